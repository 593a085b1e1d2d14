"""Regularizers of a matrix through its singular values: each is another regularizer of their vector."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import NON_NEGATIVE, POSITIVE
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import Array, Regularizer
from flwr_fco.regularizers.groups import norm_of
from flwr_fco.regularizers.separable import L1, LInfinityBall
from flwr_fco.regularizers.sets import L1Ball

Reshape = Literal["first", "last"]

#: Largest condition number of the kept part for which the Gram matrix is used. Squaring costs accuracy: the smallest
#: kept singular value has a relative error of eps * condition^2, about 2e-10 here.
GRAM_CONDITION = 1e3


def noise_of(largest: float, shape: tuple[int, ...]) -> float:
    """Return the size below which a result's singular value is noise: twice the threshold of the numerical rank."""
    return 128.0 * float(np.finfo(np.float64).eps) * max(shape) * largest


class Spectral(Regularizer):
    """A psi of the singular values of a 2-D array, or of one with more dimensions and ``reshape``.

    With V = P diag(s) Q' the proximal map is ``P diag(prox(s)) Q'`` with the prox of :meth:`of_values`. Subclasses have
    a field ``reshape``: ``"first"`` (``"last"``) keeps the first (last) axis and flattens all others; None accepts only
    2-D arrays.
    """

    reshape: Reshape | None

    @abstractmethod
    def of_values(self) -> Regularizer:
        """Return the regularizer of the vector of singular values."""

    @cached_property
    def _inner(self) -> Regularizer:
        return self.of_values()

    def matrix(self, w: Array) -> Array:
        """Return the array as the matrix that psi reads."""
        self.check_shape("w", w.shape)
        if self.reshape == "first":
            return w.reshape(w.shape[0], math.prod(w.shape[1:]))
        return w.reshape(math.prod(w.shape[:-1]), w.shape[-1])

    def _values(self, w: Array) -> Vector:
        """Return the singular values in float64; NaN if an entry is not finite."""
        matrix = np.asarray(self.matrix(w), dtype=np.float64)
        if not np.isfinite(matrix).all():
            return np.full(1, np.nan)
        return np.asarray(np.linalg.svd(matrix, compute_uv=False)) if matrix.size else np.zeros(1)

    def value(self, w: Array) -> float:
        """Return psi of the singular values; a bound holds up to the rounding of a product of matrices."""
        values = self._values(w)
        inner = self._inner
        value = inner.value(values)
        slack = 16.0 * float(np.finfo(w.dtype).eps) * math.sqrt(max(w.shape))
        return value if value < math.inf else inner.value(values / (1.0 + slack))

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Write the proximal point by the cheapest method with a relative error of 1e-9 in every singular value.

        No method depends on earlier calls, so equal inputs give equal bits. Singular values of the result below 128 eps
        max(m, n) times its largest are set to 0: they are rounding errors, and without them every method of computing
        the numerical rank gives the same one.
        """
        matrix = np.asarray(self.matrix(v), dtype=np.float64)
        inner = self._inner
        if not np.isfinite(matrix).all():
            out[...] = np.nan
            return
        unit, norm = norm_of(matrix)
        cut = step * float(getattr(self, "strength", 0.0)) / unit
        if norm <= cut or not matrix.size:
            out[...] = 0.0
            return
        left, values, right = _factors(matrix / unit if unit != 1.0 else matrix, cut, norm)
        values = values * unit
        if self.constraint and inner.value(values) == 0.0:
            np.add(v, 0.0, out=out)
            return
        shrunk = inner.prox(values, step)
        rank = int((shrunk > noise_of(float(shrunk.max(initial=0.0)), matrix.shape)).sum())
        # Adding 0.0 turns the negative zeros of a product with zeros into zeros.
        product = ((left[:, :rank] * shrunk[:rank]) @ right[:rank]).reshape(v.shape)
        np.add(product, 0.0, out=out, casting="same_kind")

    def conjugate(self, u: Array) -> float:
        return self._inner.conjugate(self._values(u))

    def largest_scaling(self, u: Array) -> float:
        return self._inner.largest_scaling(self._values(u))

    def subgradient(self, w: Array) -> Array:
        """Return P diag(subgradient(s)) Q' over the non-zero singular values (0 where W is 0)."""
        if self.constraint or not np.isfinite(w).all():
            return np.where(np.isfinite(w).all(), np.zeros_like(w), w.dtype.type(np.nan))
        left, values, right = np.linalg.svd(self.matrix(w), full_matrices=False)
        noise = 64.0 * np.finfo(w.dtype).eps * max(left.shape[0], right.shape[1]) * values.max(initial=0.0)
        slopes = self._inner.subgradient(np.where(values > noise, values, 0.0))
        return np.asarray((left * slopes) @ right, dtype=w.dtype).reshape(w.shape)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return that of the singular values: for a nuclear norm, the largest one."""
        if not hasattr(self, "strength"):
            return super().strength_max(gradient_at_zero)
        return self._inner.strength_max(self._values(np.asarray(gradient_at_zero)))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array is a matrix, or has two or more dimensions and ``reshape`` is given."""
        if len(shape) < 2 or (len(shape) > 2 and self.reshape is None):
            prefix = f"{type(self).__name__} acts on matrices, but the array {name!r} has shape {shape}"
            raise ConfigurationError(f"{prefix}; choose arrays (apply_to=), or keep one axis of more: reshape='first'")


def _factors(matrix: Array, cut: float, norm: float) -> tuple[Array, Vector, Array]:
    """Return U, s and V' of the matrix, or of its part with singular values above the cut if that is cheaper.

    Every kept singular value is above the cut. Where that bounds the condition number of the kept part, eigenvectors of
    the smaller Gram matrix are accurate enough.
    """
    tall = matrix.shape[0] >= matrix.shape[1]
    wide = matrix.T if tall else matrix
    if cut * GRAM_CONDITION**2 > norm:
        squares, vectors = np.linalg.eigh(wide @ wide.T)
        vectors = vectors[:, squares > cut * cut][:, ::-1]
        rows = vectors.T @ wide
        # The length of u'A is a Rayleigh quotient of A itself, which is more accurate than the root of the eigenvalue.
        values = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        if not values.size or values.min() * GRAM_CONDITION >= values.max():
            order = np.argsort(-values, kind="stable")
            vectors, values, rows = vectors[:, order], values[order], (rows / values[:, None])[order]
            # They are orthogonal to eps * condition^2 only; a Newton-Schulz step squares that.
            rows = 1.5 * rows - 0.5 * (rows @ rows.T) @ rows
            return (rows.T, values, vectors.T) if tall else (vectors, values, rows)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left, values, right


RESHAPE = {"range": (lambda axis: axis in ("first", "last"), "'first' or 'last'")}


@dataclass(frozen=True)
class Nuclear(Spectral):
    """The nuclear norm, optionally within a spectral ball: psi(W) = strength * sum_i s_i(W), s_1(W) <= bound.

    The proximal map soft-thresholds the singular values, then clips them: with V = P diag(s) Q'::

        argmin_W step * psi(W) + 1/2 ||W - V||_F^2 = P diag(min(max(s - step * strength, 0), bound)) Q'

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    bound : float, optional
        The largest singular value allowed (> 0); no bound by default.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix: the first (last) axis is kept and all others are
        flattened. By default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> Nuclear(1.0).prox(np.diag([3.0, 0.5]), 1.0)
    array([[2., 0.],
           [0., 0.]])
    """

    kind: ClassVar[str] = "nuclear"
    strength: float = field(metadata=NON_NEGATIVE)
    bound: float | None = field(default=None, metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def of_values(self) -> Regularizer:
        return L1(self.strength, bound=self.bound)


@dataclass(frozen=True)
class NuclearBall(Spectral):
    """The nuclear-norm ball {W : sum_i s_i(W) <= radius}.

    The proximal map is the projection, whatever the step: it projects the singular values onto the l1 ball. With
    V = P diag(s) Q' it is ``P diag(max(s - theta, 0)) Q'`` for the unique theta that puts it on the boundary.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix; by default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> NuclearBall(2.0).prox(np.diag([3.0, 1.5]), 1.0)
    array([[1.75, 0.  ],
           [0.  , 0.25]])
    """

    kind: ClassVar[str] = "nuclear-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def of_values(self) -> Regularizer:
        return L1Ball(self.radius)


@dataclass(frozen=True)
class SpectralBall(Spectral):
    """The spectral-norm ball {W : s_1(W) <= radius}.

    The proximal map is the projection, whatever the step: it clips the singular values. With V = P diag(s) Q' it is
    ``P diag(min(s, radius)) Q'``.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    reshape : {"first", "last"}, optional
        How an array with more than two dimensions becomes a matrix; by default such arrays raise an error.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> SpectralBall(2.0).prox(np.diag([3.0, 1.5]), 1.0)
    array([[2. , 0. ],
           [0. , 1.5]])
    """

    kind: ClassVar[str] = "spectral-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def of_values(self) -> Regularizer:
        return LInfinityBall(self.radius)
