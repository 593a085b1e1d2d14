"""The interface of a mirror map h, and the maps on a whole vector: Euclidean, diagonal, p-norm and entropy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import numpy as np

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.spec import Specified
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.kernels import mirror as kernels
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.kernels.prox import soft
from flwr_fco.regularizers.base import BoundRegularizer, Proximable, SeparableTerms, Terms
from flwr_fco.regularizers.constraints import Simplex
from flwr_fco.regularizers.per_parameter import PerParameter
from flwr_fco.regularizers.validation import POSITIVE, finite_vector, number


class MirrorMap(Specified, ABC):
    """A geometry: a strictly convex h and its conjugate, on flat float64 vectors.

    Subclasses are frozen dataclasses (``eq=False``: maps are equal if their specifications are) that set ``kind`` and
    implement :meth:`value`, :meth:`gradient`, :meth:`conjugate_gradient`, :meth:`supports` and :meth:`retrieve`.
    A new map needs nothing else.

    Attributes
    ----------
    kind : str
        Unique name of the class in messages.
    works_with : str
        The supported regularizers, for error messages.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import Euclidean
    >>> from flwr_fco.regularizers import L1
    >>> geometry: MirrorMap = Euclidean()
    >>> geometry.supports(L1(1.0)), geometry.retrieve(np.array([3.0, -0.5]), 1.0, L1(1.0))
    (True, array([2., 0.]))
    """

    family: ClassVar[str] = "mirror map"
    works_with: ClassVar[str] = "the regularizers that `supports` accepts"

    @abstractmethod
    def value(self, w: Vector) -> float:
        """Return h(w); inf outside its domain."""

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
            The weight of psi: the sum of the step sizes. Constraints hold even at t = 0.
        regularizer : Regularizer or BoundRegularizer
            psi on the flat vector.
        out : ndarray, optional
            Where to write the result; may be `z`.

        Raises
        ------
        UnsupportedPairError
            If psi has no exact solution in this geometry.
        ConfigurationError
            If t is negative or not finite.
        """

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return the data that compiled loops need for :meth:`retrieve`, or None if they cannot compute it.

        Parameters
        ----------
        regularizer : BoundRegularizer
            psi on the flat vector.
        """
        return None

    def conjugate(self, z: Vector) -> float:
        """Return h*(z) = max_w { <z, w> - h(w) }."""
        w = self.conjugate_gradient(z)
        return float(z @ w) - self.value(w)

    def start(self, size: int, regularizer: Proximable | None = None) -> Vector:
        """Return the default start of a model of this size: the primal point of the dual 0, feasible for psi.

        Parameters
        ----------
        size : int
            Length of the flat vector.
        regularizer : Regularizer or BoundRegularizer, optional
            psi; only its constraints matter, because t = 0.
        """
        dual = np.zeros(size)
        return self.conjugate_gradient(dual) if regularizer is None else self.retrieve(dual, 0.0, regularizer)

    def bind(self, layout: Layout) -> MirrorMap:
        """Return the map on a model's flat vectors; the map itself, unless it needs the names of the arrays."""
        self.check_layout(layout)
        return self

    def check_layout(self, layout: Layout) -> None:
        """Raise :class:`ConfigurationError` if the map cannot act on a model of this layout."""

    def require(self, regularizer: Proximable) -> None:
        """Raise :class:`UnsupportedPairError` unless the pair is supported."""
        if not self.supports(regularizer):
            raise self._refusal(regularizer)

    def _refusal(self, regularizer: Proximable) -> UnsupportedPairError:
        psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
        return UnsupportedPairError(
            f"{type(self).__name__} cannot be combined with {psi!r}: the minimiser of -<z, w> + t psi(w) + h(w) has no "
            f"closed form here. {type(self).__name__} works with {self.works_with}; Euclidean() works with every "
            "regularizer."
        )

    def never_supports(self, regularizer: Proximable) -> bool:
        """Whether the pair is unsupported for every model layout, so that it can be refused at once.

        Parameters
        ----------
        regularizer : Regularizer
            psi, not bound to a model.
        """
        return False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MirrorMap) or type(self) is not type(other):
            return NotImplemented
        return self.to_spec().digest() == other.to_spec().digest()

    def __hash__(self) -> int:
        return hash(self.to_spec().digest())


@dataclass(frozen=True, eq=False)
class Euclidean(MirrorMap):
    """h(w) = 1/2 ||w||^2: dual and primal coincide and retrieve is the proximal map of t psi.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> Euclidean().retrieve(np.array([3.0, -0.5]), 2.0, L1(1.0))
    array([1., 0.])
    """

    kind: ClassVar[str] = "euclidean"
    works_with: ClassVar[str] = "every regularizer"

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

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return the thresholds if psi is zero or a (weighted) l1 norm; see :meth:`MirrorMap.compiled`."""
        thresholds = l1_thresholds(regularizer)
        return None if type(self) is not Euclidean or thresholds is None else Retrieval(thresholds)


def l1_thresholds(regularizer: BoundRegularizer) -> Vector | None:
    """Return the thresholds strength * weights if psi is a (weighted) l1 norm, ``NOTHING`` if it is 0, else None."""
    terms = regularizer.separable_terms((regularizer.layout.size,))
    if terms is None or not terms.is_l1:
        return None
    return np.asarray(terms.threshold, dtype=np.float64) if np.any(terms.threshold) else NOTHING


class _ClosedForm(MirrorMap):
    """A map with a closed form for sums over coordinates whose terms it covers."""

    @abstractmethod
    def _covers(self, terms: SeparableTerms) -> bool:
        """Whether there is a closed form for these terms."""

    @abstractmethod
    def _solve(self, z: Vector, terms: Terms, out: Vector) -> None:
        """Write argmin_w { -<z, w> + h(w) + terms }, the terms multiplied by t; `out` may be `z`."""

    def check_size(self, size: int) -> None:
        """Raise :class:`ConfigurationError` if the map cannot act on vectors of this length."""

    def check_layout(self, layout: Layout) -> None:
        self.check_size(layout.size)

    def _terms(self, regularizer: Proximable, shape: tuple[int, ...]) -> SeparableTerms | None:
        """Return psi's terms; None if there is no closed form for them."""
        terms = regularizer.terms if isinstance(regularizer, BoundRegularizer) else regularizer.separable_terms(shape)
        return terms if terms is not None and self._covers(terms) else None

    def supports(self, regularizer: Proximable) -> bool:
        """Whether psi is a sum over coordinates for which the map has a closed form."""
        return self._terms(regularizer, ()) is not None

    def never_supports(self, regularizer: Proximable) -> bool:
        """Whether the pair is unsupported whatever the arrays are; of a :class:`PerParameter` their names decide."""
        return not isinstance(regularizer, PerParameter) and not self.supports(regularizer)

    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        if not 0.0 <= t < math.inf:
            raise ConfigurationError(f"retrieve(t={t!r}): expected a finite number >= 0")
        z = np.ascontiguousarray(z, dtype=np.float64)
        self.check_size(z.size)
        terms = self._terms(regularizer, z.shape)
        if terms is None:
            raise self._refusal(regularizer)
        out = np.empty_like(z) if out is None else out
        self._solve(z, terms.scaled(t, z.size), out)
        return out


@dataclass(frozen=True, eq=False)
class DiagonalMetric(_ClosedForm):
    """h(w) = 1/2 sum_i weights_i w_i^2: coordinates with a large weight move slowly.

    With psi a sum over coordinates the minimiser is ``clip(soft(z, t a) / (weights + t b), lower, upper)``.

    Parameters
    ----------
    weights : array, shape (d,)
        Finite numbers > 0, one for each coordinate of the flat vector.

    Raises
    ------
    ConfigurationError
        If the weights are not as described.

    Notes
    -----
    This is the metric of preconditioned dual averaging; it is not in the papers of this package. With all weights equal
    to 1 it is :class:`Euclidean`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> DiagonalMetric(np.array([1.0, 4.0])).retrieve(np.array([3.0, -5.0]), 1.0, L1(1.0))
    array([ 2., -1.])
    """

    kind: ClassVar[str] = "diagonal"
    works_with: ClassVar[str] = (
        "sums over coordinates (Zero, L1, L2Squared, ElasticNet, Box, NonNegative, LInfinityBall)"
    )
    weights: Vector = field(metadata={"check": partial(finite_vector, positive=True)})

    def value(self, w: Vector) -> float:
        """Return 1/2 sum_i weights_i w_i^2."""
        return 0.5 * float(self.weights @ (w * w))

    def gradient(self, w: Vector) -> Vector:
        """Return weights * w."""
        return np.multiply(self.weights, w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z / weights."""
        return np.divide(z, self.weights, out=out)

    def conjugate(self, z: Vector) -> float:
        """Return 1/2 sum_i z_i^2 / weights_i."""
        return 0.5 * float(z @ (z / self.weights))

    def _covers(self, terms: SeparableTerms) -> bool:
        return True

    def _solve(self, z: Vector, terms: Terms, out: Vector) -> None:
        kernels.diagonal_terms(z, self.weights, out, *terms)

    def check_size(self, size: int) -> None:
        """Raise unless there is a weight for each coordinate."""
        if self.weights.size != size:
            raise ConfigurationError(
                f"DiagonalMetric has {self.weights.size} weights, the flat vector has {size} coordinates; pass one "
                "weight for each"
            )


_AT_LEAST_TWO = {
    "range": (lambda p: 2.0 <= p < math.inf, "a finite number >= 2 (2 is Euclidean, the paper takes 12 or 2 log d)")
}


@dataclass(frozen=True, eq=False)
class PNorm(_ClosedForm):
    """h(w) = ||w - center||_q^2 / (2 (q - 1)) on ||w - center||_q <= radius, with 1/p + 1/q = 1.

    Without a center and a radius this is the map of (D)FedDA(-GT)::

        grad h*(z) = n/(p-1) |z/n|^(p-1) sign(z),    n = ||z||_p,    0 at z = 0

    With them it is the 'Prox' of ReFedDA-GT, whose dual starts at 0: w = center + P(z)::

        P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) radius) - 1, 0))

    Center and ball belong to the map, not to psi. The dual is relative to the center: the dual of the center is 0, and
    a stage of ReFedDA-GT starts there. The ball uses the map's own norm, because P has no closed form for any other
    ball.

    Powers are taken of z/max|z|, so nothing overflows for duals from 1e-300 to 1e300; integer powers use
    multiplications.

    psi is zero or an l1 norm, weighted or not: soft-threshold z by t a, then P. With l1 and a center,
    log ||w - center||_q is the root of an increasing function, found to rounding.

    Parameters
    ----------
    p : float
        At least 2; the paper uses 12 in experiments and 2 log d in theory (:meth:`for_dimension`). 2 is Euclidean.
    center : array of shape (d,), optional
        The reference point v; 0 by default.
    radius : float, optional
        Radius of the q-norm ball around the center, sqrt(Q) in the paper; no ball by default.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Notes
    -----
    Section B of the algorithms: Liang, Peng, Zhang, 'FedDA with gradient tracking', Algorithms 1 to 3. At a point on
    the boundary of the ball, the gradient is the gradient of the norm only, the smallest of the point's duals. With a
    center, the dual of a coordinate cannot be recovered from w if rounding makes it equal to the center: keep the dual,
    as dual averaging does.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> PNorm(4.0).conjugate_gradient(np.array([2.0, 0.0]))
    array([0.66666667, 0.        ])
    >>> PNorm(4.0).retrieve(np.array([3.0, -0.5]), 1.0, L1(1.0))
    array([0.66666667, 0.        ])
    >>> PNorm(4.0, center=np.array([1.0, 1.0]), radius=0.5).conjugate_gradient(np.array([2.0, 0.0]))
    array([1.5, 1. ])
    """

    kind: ClassVar[str] = "p-norm"
    works_with: ClassVar[str] = "Zero and L1 (also with weights, or in a PerParameter)"
    p: float = field(metadata={"check": partial(number, within=_AT_LEAST_TWO)})
    center: Vector | None = field(default=None, metadata={"check": finite_vector})
    radius: float | None = field(default=None, metadata=POSITIVE)

    @classmethod
    def for_dimension(cls, dimension: int, *, center: Vector | None = None, radius: float | None = None) -> Self:
        """Return the map with the theory's p = 2 log(dimension), at least 2.

        Parameters
        ----------
        dimension : int
            Length of the flat vector.
        center, radius
            As for the class.

        Examples
        --------
        >>> round(PNorm.for_dimension(1024).p, 2)
        13.86
        """
        if dimension < 1:
            raise ConfigurationError(f"PNorm.for_dimension({dimension!r}): expected a positive integer")
        return cls(max(2.0, 2.0 * math.log(dimension)), center, radius)

    @property
    def q(self) -> float:
        """The exponent of the primal norm, p/(p-1)."""
        return self.p / (self.p - 1.0)

    @property
    def _limit(self) -> float:
        return math.inf if self.radius is None else self.radius

    def value(self, w: Vector) -> float:
        """Return ||w - center||_q^2 (p-1)/2; inf outside the ball (up to rounding)."""
        length = float(kernels.p_norm(self._displacement(w), self.q))
        return math.inf if length > self._limit * (1.0 + 1e-12) else 0.5 * (self.p - 1.0) * length * length

    def gradient(self, w: Vector) -> Vector:
        """Return (p-1) ||u||_q^(2-q) |u|^(q-1) sign(u), u = w - center; 0 at the center."""
        u = np.ascontiguousarray(self._displacement(w), dtype=np.float64)
        out = np.empty_like(u)
        kernels.p_norm_gradient(u, self.p, out)
        return out

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return center + P(z)."""
        if out is None:
            out = np.empty_like(z)
        self.check_size(z.size)
        kernels.p_norm_point(z, self.p, self._limit, out)
        if self.center is not None:
            out += self.center
        return out

    def conjugate(self, z: Vector) -> float:
        """Return <z, center> + ||z||_p^2 / (2 (p-1)); if the ball is active, <z, center> + r ||z||_p - (p-1) r^2/2."""
        size = float(kernels.p_norm(z, self.p))
        length = min(size / (self.p - 1.0), self._limit)
        shift = 0.0 if self.center is None else float(z @ self.center)
        return shift + length * (size - 0.5 * (self.p - 1.0) * length)

    def _covers(self, terms: SeparableTerms) -> bool:
        return terms.is_l1

    def _solve(self, z: Vector, terms: Terms, out: Vector) -> None:
        threshold = terms.threshold
        if self.center is not None and threshold.any():
            kernels.p_norm_l1(z, threshold, self.center, self.p, self._limit, out)
            return
        one = threshold.size == 1
        soft(z, threshold[0] if one else 1.0, None if one else threshold, 1.0, math.inf, out)
        self.conjugate_gradient(out, out)

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return thresholds, p, radius and center if psi is zero, or an l1 norm and there is no center."""
        thresholds = l1_thresholds(regularizer)
        if type(self) is not PNorm or thresholds is None or (thresholds.size and self.center is not None):
            return None
        # A copy, because kernels treat a read-only array as another type.
        return Retrieval(thresholds, self.p, self._limit, NOTHING if self.center is None else self.center.copy())

    def check_size(self, size: int) -> None:
        """Raise unless the center has an element for each coordinate."""
        if self.center is not None and self.center.size != size:
            raise ConfigurationError(
                f"PNorm has a center of {self.center.size} elements, the flat vector has {size}; pass the reference "
                "point as layout.flatten(arrays) gives it"
            )

    def _displacement(self, w: Vector) -> Vector:
        """Return w - center."""
        self.check_size(w.size)
        return w if self.center is None else w - self.center


#: Relative distance from the simplex above which a start point is an error (float32 primals are within 1e-6).
_OFF_SIMPLEX = 1e-4


@dataclass(frozen=True, eq=False)
class SimplexEntropy(_ClosedForm):
    """h(w) = sum_i w_i log w_i - w_i on the simplex {w >= 0, sum w = radius}: w = radius softmax(z).

    The simplex is part of h, so every result lies on it. The gradient is log w, without the 1: this changes neither the
    divergence nor any algorithm. On the simplex, duals that differ by a constant represent the same point, so
    ``gradient(conjugate_gradient(z))`` is z up to a constant. Softmax subtracts the largest dual first, so duals of any
    size are allowed. Results are never below 2.2e-308, so that their gradient exists.

    l1 shifts the duals by t a, which has no effect if all weights are equal, because ||w||_1 is the radius.

    Parameters
    ----------
    radius : float, default 1.0
        The sum of the coordinates; finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Notes
    -----
    This is the map of matrix games (one simplex for each player: :class:`Product`). The default start is uniform.

    Examples
    --------
    >>> import numpy as np
    >>> SimplexEntropy().conjugate_gradient(np.log([1.0, 3.0]))
    array([0.25, 0.75])
    """

    kind: ClassVar[str] = "simplex-entropy"
    works_with: ClassVar[str] = "Zero, L1, NonNegative and, on the whole vector, Simplex of the map's own radius"
    radius: float = field(default=1.0, metadata=POSITIVE)

    def value(self, w: Vector) -> float:
        """Return sum w log w - w; inf off the simplex."""
        if abs(float(w.sum()) - self.radius) > 1e-12 * self.radius:
            return math.inf
        if not (w >= 0.0).all():
            return math.nan if np.isnan(w).any() else math.inf
        positive = w[w > 0.0]  # 0 log 0 is 0
        return float(positive @ np.log(positive) - w.sum())

    def gradient(self, w: Vector) -> Vector:
        """Return log w.

        Raises
        ------
        ConfigurationError
            If a coordinate is not positive, or the sum is not the radius.
        """
        if not (w > 0.0).all():
            place = int(np.argmin(w > 0.0))
            raise ConfigurationError(
                f"SimplexEntropy: the gradient does not exist at a point whose coordinate {place} is {w[place]}; the "
                "start point must be interior, every coordinate > 0. Use the default start (the primal point of the "
                "dual 0: `mirror_map.start(size)`), or raise zeros to a small positive number."
            )
        if abs(float(w.sum()) - self.radius) > _OFF_SIMPLEX * self.radius:
            raise ConfigurationError(
                f"SimplexEntropy(radius={self.radius}): the point sums to {float(w.sum())}, so it is not on the "
                "simplex; divide it by its sum and multiply it by the radius, or use the default start"
            )
        return np.log(w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return radius softmax(z), at least 2.2e-308."""
        if out is None:
            out = np.empty_like(z)
        kernels.softmax(z, self.radius, out)
        return out

    def conjugate(self, z: Vector) -> float:
        """Return radius (log sum exp(z) - log radius + 1)."""
        top = float(z.max())
        return self.radius * (top + math.log(float(np.exp(z - top).sum())) - math.log(self.radius) + 1.0)

    def _terms(self, regularizer: Proximable, shape: tuple[int, ...]) -> SeparableTerms | None:
        return SeparableTerms() if self._is_own(regularizer) else super()._terms(regularizer, shape)

    def _is_own(self, regularizer: Proximable) -> bool:
        """Whether psi is the map's own simplex, on the whole vector."""
        psi: Proximable | None = regularizer
        if isinstance(regularizer, BoundRegularizer):
            blocks = regularizer.blocks
            whole = len(blocks) == 1 and blocks[0][0] == slice(0, regularizer.layout.size)
            psi = blocks[0][2] if whole else None
        return isinstance(psi, Simplex) and psi.radius == self.radius

    def _covers(self, terms: SeparableTerms) -> bool:
        """Whether there are no bounds but 0 and the radius, and no squared l2 norm."""
        bounds = np.all(np.less_equal(terms.lower, 0.0)) and np.all(np.greater_equal(terms.upper, self.radius))
        return bool(bounds) and not np.any(terms.shrinkage)

    def _solve(self, z: Vector, terms: Terms, out: Vector) -> None:
        np.subtract(z, terms.threshold, out=out)
        kernels.softmax(out, self.radius, out)
