"""Regularizers of a matrix through its singular values."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import Array, Regularizer
from flwr_fco.regularizers.validation import amount, check_step, destination, non_negative, outside, positive

__all__ = ["MatrixRegularizer", "Nuclear", "Reshape", "numerical_rank"]

Reshape = Literal["first", "last"]


def numerical_rank(w: Array) -> int:
    """Return how many singular values exceed 64 eps sigma_1 max(m, n), eps that of the dtype.

    Parameters
    ----------
    w : ndarray, shape (m, n)

    Returns
    -------
    int

    Examples
    --------
    >>> import numpy as np
    >>> numerical_rank(np.outer([1.0, 2.0], [3.0, 4.0, 5.0]))
    1
    """
    if not w.size:
        return 0
    values = np.linalg.svd(w, compute_uv=False)
    return int((values > 64.0 * np.finfo(values.dtype).eps * values[0] * max(w.shape)).sum())


def scaled_svd(matrix: Array) -> tuple[float, Array, Array, Array] | None:
    """Return (unit, U, s, Vt) with matrix = unit * U diag(s) Vt in float64; None if it has NaN or infinities.

    The unit is a power of two near max |matrix|, so that nothing over- or underflows on the way.
    """
    top = float(np.abs(matrix).max(initial=0.0))
    if not math.isfinite(top):
        return None
    unit = math.ldexp(1.0, min(max(math.frexp(top)[1], -1021), 1021)) if top > 0.0 else 1.0
    left, values, right = np.linalg.svd(np.divide(matrix, unit, dtype=np.float64), full_matrices=False)
    return unit, left, values, right


def shrink_singular_values(matrix: Array, threshold: float, bound: float) -> tuple[Array, int]:
    """Return U diag(min(max(s - threshold, 0), bound)) V' in float64, and its rank.

    Singular values of the result below 128 eps max(m, n) of its largest are set to 0: they are rounding, and without
    them the rank is the numerical rank, whoever computes it.
    """
    factors = scaled_svd(matrix)
    if factors is None:
        return np.full(matrix.shape, np.nan), 0
    unit, left, values, right = factors
    shrunk = np.minimum(np.maximum(values - threshold / unit, 0.0), bound / unit)
    noise = 128.0 * np.finfo(np.float64).eps * max(matrix.shape) * shrunk.max(initial=0.0)
    rank = int((shrunk > noise).sum())
    result = (left[:, :rank] * (shrunk[:rank] * unit)) @ right[:rank]
    return result, rank


class MatrixRegularizer(Regularizer):
    """A psi that reads an array as a matrix: two dimensions, or more if ``reshape`` says how.

    Subclasses have a field ``reshape``: ``"first"`` (``"last"``) keeps the first (last) axis and flattens the others;
    None refuses arrays that are not 2-D.
    """

    @property
    @abstractmethod
    def reshape(self) -> Reshape | None:
        """How an array of more than two dimensions becomes a matrix."""

    @abstractmethod
    def solve(self, matrix: Array, step: float) -> tuple[Array, int]:
        """Return argmin_w step * psi(w) + 1/2 ||w - matrix||^2 and its rank."""

    def matrix(self, w: Array) -> Array:
        """Return the array as the matrix that psi reads."""
        self.check_shape("w", w.shape)
        if self.reshape == "first":
            return w.reshape(w.shape[0], math.prod(w.shape[1:]))
        if self.reshape == "last":
            return w.reshape(math.prod(w.shape[:-1]), w.shape[-1])
        return w

    def prox(self, v: Array, step: float, out: Array | None = None) -> Array:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2; see the class for its closed form."""
        return self.prox_and_rank(v, step, out)[0]

    def prox_and_rank(self, v: Array, step: float, out: Array | None = None) -> tuple[Array, int]:
        """Return the proximal map and the rank of its result, known from the factorisation.

        Parameters
        ----------
        v : ndarray of float64 or float32
        step : float
            A non-negative number. A constraint ignores it.
        out : ndarray, optional
            Where to write the result; may be `v` itself.

        Returns
        -------
        tuple of ndarray and int
            The result in the shape and dtype of v, and its rank. Of float64 results :func:`numerical_rank` finds
            the same rank; rounding to float32 may hide singular values below 64 eps sigma_1 max(m, n) of float32.
        """
        result = destination(self, v, out)
        step = check_step(self, step)
        matrix = self.matrix(v)
        if not matrix.size:
            return result, 0
        solution, rank = self.solve(matrix, step)
        # Adding 0.0 turns the negative zeros of a product with zeros into zeros.
        np.add(solution.reshape(v.shape), 0.0, out=result, casting="same_kind")
        return result, rank

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array is a matrix, or has two or more dimensions and ``reshape`` is given."""
        if len(shape) == 2 or (len(shape) > 2 and self.reshape is not None):
            return
        if len(shape) > 2:
            advice = "say how to read it as a matrix: reshape='first' keeps the first axis and flattens the others"
        else:
            advice = "choose its arrays with apply_to=, or give each array its own psi with PerParameter"
        raise ConfigurationError(
            f"{type(self).__name__} acts on matrices, but the array {name!r} has shape {shape}; {advice}"
        )


def check_reshape(owner: MatrixRegularizer) -> None:
    """Raise :class:`ConfigurationError` unless ``owner.reshape`` is known."""
    if owner.reshape not in (None, "first", "last"):
        raise ConfigurationError(f"{type(owner).__name__}(reshape={owner.reshape!r}): expected 'first', 'last' or None")


@dataclass(frozen=True)
class Nuclear(MatrixRegularizer):
    """The nuclear norm, if wanted within a spectral ball: psi(W) = strength * sum_i s_i(W), s_1(W) <= bound.

    The proximal map soft-thresholds the singular values, then clips them: with V = P diag(s) Q'::

        argmin_W step * psi(W) + 1/2 ||W - V||_F^2 = P diag(min(max(s - step * strength, 0), bound)) Q'

    Parameters
    ----------
    strength : float
        Finite, >= 0.
    bound : float, optional
        The largest singular value allowed (> 0); no bound by default.
    reshape : {"first", "last"}, optional
        How an array of more than two dimensions becomes a matrix: the first (last) axis is kept, the others are
        flattened. By default such arrays are an error.

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
    >>> Nuclear(1.0).prox_and_rank(np.diag([3.0, 0.5]), 1.0)[1]
    1
    """

    kind: ClassVar[str] = "nuclear"
    strength: float
    bound: float | None = None
    reshape: Reshape | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", non_negative(self, "strength", self.strength))
        if self.bound is not None:
            object.__setattr__(self, "bound", positive(self, "bound", self.bound))
        check_reshape(self)

    def value(self, w: Array) -> float:
        """Return strength times the sum of the singular values, inf if the largest is above the bound."""
        matrix = self.matrix(w)
        if not matrix.size:
            return 0.0
        factors = scaled_svd(matrix)
        if factors is None:
            return float(np.nan)
        unit, _, values, _ = factors
        if self.bound is not None and outside(
            float(values[0]) - self.bound / unit, max(matrix.shape) ** 0.5 * self.bound / unit, w
        ):
            return float(np.inf)
        return self.strength * unit * float(values.sum())

    def solve(self, matrix: Array, step: float) -> tuple[Array, int]:
        """Soft-threshold the singular values, then clip them."""
        bound = np.inf if self.bound is None else self.bound
        return shrink_singular_values(matrix, amount(step, self.strength), bound)

    def subgradient(self, w: Array) -> Array:
        """Return strength * P Q' over the non-zero singular values (0 where W is 0)."""
        factors = scaled_svd(self.matrix(w))
        if factors is None:
            return np.full_like(w, np.nan)
        _, left, values, right = factors
        noise = 64.0 * np.finfo(w.dtype).eps * max(left.shape[0], right.shape[1]) * values.max(initial=0.0)
        rank = int((values > noise).sum())
        return (self.strength * (left[:, :rank] @ right[:rank])).reshape(w.shape).astype(w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the largest singular value of the gradient: from this strength on 0 is optimal."""
        matrix = self.matrix(np.asarray(gradient_at_zero, dtype=np.float64))
        return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0
