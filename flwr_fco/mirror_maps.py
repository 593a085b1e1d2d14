"""Mirror maps h: the geometry in which duals are averaged.

A mirror map is a strictly convex function h. ``gradient`` takes a primal point to its dual, ``conjugate_gradient``
takes a dual back, and ``retrieve`` takes a dual to the primal point with psi in it:

    retrieve(z, t, psi) = argmin_w { -<z, w> + t psi(w) + h(w) } = gradient of (h + t psi)*
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.errors import UnsupportedPairError
from flwr_fco.parameters import Layout, Vector
from flwr_fco.regularizers.base import BoundRegularizer, Proximable
from flwr_fco.spec import Specified

__all__ = ["Euclidean", "MirrorMap"]


class MirrorMap(Specified, ABC):
    """A geometry: a strictly convex h and its conjugate, on flat float64 vectors.

    Subclasses are frozen dataclasses that set ``kind`` and implement :meth:`value`, :meth:`gradient`,
    :meth:`conjugate_gradient`, :meth:`supports` and :meth:`retrieve`. Nothing else needs to change for a new one.
    """

    family: ClassVar[str] = "mirror map"

    @abstractmethod
    def value(self, w: Vector) -> float:
        """Return h(w)."""

    @abstractmethod
    def gradient(self, w: Vector) -> Vector:
        """Return grad h(w), the dual of a primal point, as a new array."""

    @abstractmethod
    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return grad h*(z) = argmin_w { -<z, w> + h(w) }."""

    @abstractmethod
    def supports(self, regularizer: Proximable) -> bool:
        """Whether :meth:`retrieve` can be computed exactly for this psi."""

    @abstractmethod
    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) }.

        Parameters
        ----------
        z : ndarray of float64, shape (d,)
            The dual.
        t : float
            The weight of psi: elapsed step sizes. Constraints hold at t = 0 too.
        regularizer : Regularizer or BoundRegularizer
            psi on the flat vector.
        out : ndarray, optional
            Where to write the result; may be `z`.
        """

    def check_layout(self, layout: Layout) -> None:
        """Raise :class:`ConfigurationError` if the map cannot act on a model of this layout."""

    def bind(self, layout: Layout) -> MirrorMap:
        """Return the map on the flat vector of a model (itself, unless it distinguishes between arrays)."""
        self.check_layout(layout)
        return self

    def require(self, regularizer: Proximable) -> None:
        """Raise :class:`UnsupportedPairError` unless the pair is supported."""
        if not self.supports(regularizer):
            psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
            raise UnsupportedPairError(
                f"{type(self).__name__} cannot be combined with {psi!r}: the minimiser of "
                "-<z, w> + t psi(w) + h(w) has no exact solution here. Euclidean() works with every regularizer."
            )


@dataclass(frozen=True)
class Euclidean(MirrorMap):
    """h(w) = 1/2 ||w||^2: dual and primal coincide and retrieve is the proximal map of t psi.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> Euclidean().retrieve(np.array([3.0, -0.5]), 2.0, L1(1.0))
    array([ 1., -0.])
    """

    kind: ClassVar[str] = "euclidean"

    def value(self, w: Vector) -> float:
        """Return 1/2 ||w||^2."""
        return 0.5 * float(w @ w)

    def gradient(self, w: Vector) -> Vector:
        """Return a copy of w."""
        return w.copy()

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z."""
        if out is None:
            return z.copy()
        if out is not z:
            out[:] = z
        return out

    def supports(self, regularizer: Proximable) -> bool:
        """Return True: every regularizer has a Euclidean proximal map."""
        return True

    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        """Return prox_{t psi}(z)."""
        return regularizer.prox(z, t, out)
