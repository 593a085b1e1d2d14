"""Regularizers of a matrix through its singular values."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.base import Array, Regularizer
from flwr_fco.regularizers.validation import NON_NEGATIVE, POSITIVE, amount, check_step, destination, number, outside

Reshape = Literal["first", "last"]


#: Largest condition number of the kept part for which the Gram matrix is used. Squaring costs accuracy: the smallest
#: kept singular value has a relative error of eps * condition^2, about 2e-10 here.
GRAM_CONDITION = 1e3


def unit_of(matrix: Array) -> float:
    """Return a power of two as a scale that keeps the matrix's squares in range; NaN for NaN or infinite entries."""
    top = float(np.abs(matrix).max(initial=0.0))
    if not math.isfinite(top):
        return math.nan
    if top == 0.0 or 1e-60 < top < 1e60:
        return 1.0
    return math.ldexp(1.0, min(max(math.frexp(top)[1], -1021), 1021))


def in_units(matrix: Array, unit: float) -> Array:
    """Return matrix / unit in float64."""
    return np.asarray(matrix, dtype=np.float64) if unit == 1.0 else np.divide(matrix, unit, dtype=np.float64)


def scaled_svd(matrix: Array) -> tuple[float, Array, Array, Array] | None:
    """Return (unit, U, s, Vt) with matrix = unit * U diag(s) Vt in float64; None if it has NaN or infinities."""
    unit = unit_of(matrix)
    if math.isnan(unit):
        return None
    left, values, right = np.linalg.svd(in_units(matrix, unit), full_matrices=False)
    return unit, left, values, right


def noise_of(largest: float, shape: tuple[int, ...]) -> float:
    """Return the size below which a result's singular value is noise: twice the threshold of the numerical rank."""
    return 128.0 * float(np.finfo(np.float64).eps) * max(shape) * largest


def shrink_singular_values(matrix: Array, threshold: float, bound: float) -> tuple[Array, int]:
    """Return U diag(min(max(s - threshold, 0), bound)) V' in float64, and its rank.

    It uses the cheapest method with a relative accuracy of about 1e-9 in every kept singular value: eigenvectors of the
    smaller Gram matrix (formed in float64) above the threshold if the condition number of the kept part allows,
    otherwise a full singular value decomposition. No method depends on earlier calls, so equal inputs give equal bits.

    Singular values of the result below 128 eps max(m, n) times its largest are set to 0: they are rounding errors, and
    without them every method of computing the numerical rank gives the returned rank.
    """
    unit = unit_of(matrix)
    if math.isnan(unit):
        return np.full(matrix.shape, np.nan), 0
    scaled = in_units(matrix, unit)
    threshold = threshold / unit
    bound = bound / unit
    tall = scaled.shape[0] >= scaled.shape[1]
    wide = scaled.T if tall else scaled
    norm = float(np.linalg.norm(scaled))
    if norm <= threshold:
        return np.zeros(matrix.shape), 0
    # Every kept singular value is above the threshold. Below this ratio it does not bound the condition number, so the
    # Gram matrix is not tried.
    if threshold * GRAM_CONDITION**2 > norm:
        factors = _gram_factors(wide, threshold)
        if factors is not None:
            vectors, values, rows = factors
            shrunk = np.minimum(values - threshold, bound)
            keep = shrunk > noise_of(float(shrunk.max(initial=0.0)), matrix.shape)
            # Row i of `rows` is u_i' A, of length s_i.
            if math.isfinite(bound):
                result = (vectors[:, keep] * (shrunk[keep] * unit)) @ _orthonormal(rows[keep] / values[keep, None])
            else:
                scaling = shrunk[keep] / values[keep] * unit
                result = (vectors[:, keep] * scaling) @ rows[keep]
            return (result.T if tall else result), int(keep.sum())
    left, values, right = np.linalg.svd(scaled, full_matrices=False)
    shrunk = np.minimum(np.maximum(values - threshold, 0.0), bound)
    rank = int((shrunk > noise_of(float(shrunk.max(initial=0.0)), matrix.shape)).sum())
    return (left[:, :rank] * (shrunk[:rank] * unit)) @ right[:rank], rank


def _gram_factors(wide: Array, threshold: float) -> tuple[Array, Array, Array] | None:
    """Return (U, s, U'A) for A's singular values above the threshold, None if the Gram matrix is too inaccurate."""
    gram = wide @ wide.T
    squares, vectors = np.linalg.eigh(gram)
    above = squares > threshold * threshold
    squares, vectors = squares[above], vectors[:, above]
    if squares.size and squares.min() * GRAM_CONDITION**2 < squares.max():
        return None
    rows = vectors.T @ wide
    # The length of u'A is a Rayleigh quotient of A itself, which is more accurate than the root of the eigenvalue.
    values = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    above = values > threshold
    return vectors[:, above], values[above], rows[above]


def _orthonormal(rows: Array) -> Array:
    """Make almost orthonormal rows orthonormal by one Newton-Schulz step.

    The rows from :func:`_gram_factors` are orthogonal only to eps * condition^2; the step squares this error, which
    makes it negligible. Without the step, a result would exceed the bound by that error and its psi would be infinite.
    """
    return 1.5 * rows - 0.5 * (rows @ rows.T) @ rows


class MatrixRegularizer(Regularizer):
    """A psi that reads an array as a matrix: a 2-D array, or one with more dimensions and ``reshape``.

    Subclasses have a field ``reshape``: ``"first"`` (``"last"``) keeps the first (last) axis and flattens all others;
    None accepts only 2-D arrays.
    """

    #: How an array of more than two dimensions becomes a matrix.
    reshape: Reshape | None

    @abstractmethod
    def solve_matrix(self, matrix: Array, step: float) -> tuple[Array, int]:
        """Return argmin_w step * psi(w) + 1/2 ||w - matrix||^2 and the rank of the result."""

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
        """Return the proximal map's result and its rank, which is known from the factorisation.

        Parameters
        ----------
        step : float
            A non-negative number. A constraint ignores it.
        out : ndarray, optional
            Where to write the result; may be `v` itself.

        Returns
        -------
        tuple of ndarray and int
            The result in the shape and dtype of v, and its rank. Rounding to float32 may hide singular values below
            64 eps sigma_1 max(m, n) in the result, with the eps of float32.
        """
        result = destination(self, v, out)
        step = check_step(self, step)
        matrix = self.matrix(v)
        if not matrix.size:
            return result, 0
        solution, rank = self.solve_matrix(matrix, step)
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


RESHAPE = {"check": partial(number, within=None, kind=Reshape | None)}


def outside_ball(norm: float, radius: float, matrix: Array) -> float:
    """Return inf if a norm of the singular values exceeds the radius by more than the rounding of a product."""
    return outside(norm - radius, max(matrix.shape) ** 0.5 * radius, matrix)


@dataclass(frozen=True)
class Nuclear(MatrixRegularizer):
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
    >>> Nuclear(1.0).prox_and_rank(np.diag([3.0, 0.5]), 1.0)[1]
    1
    """

    kind: ClassVar[str] = "nuclear"
    strength: float = field(metadata=NON_NEGATIVE)
    bound: float | None = field(default=None, metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def value(self, w: Array) -> float:
        """Return strength times the sum of the singular values, or inf if the largest is above the bound."""
        matrix = self.matrix(w)
        if not matrix.size:
            return 0.0
        factors = scaled_svd(matrix)
        if factors is None:
            return float(np.nan)
        unit, _, values, _ = factors
        if self.bound is not None and outside_ball(float(values[0]), self.bound / unit, matrix):
            return float(np.inf)
        return self.strength * unit * float(values.sum())

    def solve_matrix(self, matrix: Array, step: float) -> tuple[Array, int]:
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
        """Return the largest singular value of the gradient, the smallest strength for which 0 is optimal."""
        matrix = self.matrix(np.asarray(gradient_at_zero, dtype=np.float64))
        return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


class SingularValueBall(MatrixRegularizer):
    """A ball in a norm of the singular values; the projection changes only these."""

    constraint: ClassVar[bool] = True
    radius: float

    @abstractmethod
    def norm_of(self, values: Array) -> float:
        """Return the norm of singular values in descending order."""

    @abstractmethod
    def project_values(self, values: Array, radius: float) -> Array:
        """Return the projection of singular values outside the ball."""

    def value(self, w: Array) -> float:
        matrix = self.matrix(w)
        if not matrix.size:
            return 0.0
        factors = scaled_svd(matrix)
        if factors is None:
            return math.inf
        return outside_ball(self.norm_of(factors[2]), self.radius / factors[0], matrix)

    def solve_matrix(self, matrix: Array, step: float) -> tuple[Array, int]:
        factors = scaled_svd(matrix)
        if factors is None:
            return np.full(matrix.shape, np.nan), 0
        unit, left, values, right = factors
        radius, noise = self.radius / unit, noise_of(float(values[0]), matrix.shape)
        if outside_ball(self.norm_of(values), radius, matrix) == 0.0:
            return matrix, int((values > noise).sum())
        projected = self.project_values(values, radius)
        rank = int((projected > noise_of(float(projected[0]), matrix.shape)).sum())
        return (left[:, :rank] * (projected[:rank] * unit)) @ right[:rank], rank


@dataclass(frozen=True)
class NuclearBall(SingularValueBall):
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
    radius: float = field(metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def norm_of(self, values: Array) -> float:
        """Return the sum of the singular values."""
        return float(values.sum())

    def project_values(self, values: Array, radius: float) -> Array:
        kernels.project(values, radius, True, np.empty_like(values), values)
        return values


@dataclass(frozen=True)
class SpectralBall(SingularValueBall):
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
    radius: float = field(metadata=POSITIVE)
    reshape: Reshape | None = field(default=None, metadata=RESHAPE)

    def norm_of(self, values: Array) -> float:
        """Return the largest singular value."""
        return float(values[0])

    def project_values(self, values: Array, radius: float) -> Array:
        return np.minimum(values, radius)
