"""Mirror maps that treat psi's terms in closed form or by a root: diagonal, p-norm and entropies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import mirror as kernels
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.kernels.prox import soft
from flwr_fco.mirror_maps.base import Ball, Block, Indices, RetrievalMethod, TermwiseMap, l1_thresholds
from flwr_fco.regularizers.base import BoundRegularizer, Terms
from flwr_fco.regularizers.constraints import L1Ball, L2Ball, Simplex
from flwr_fco.regularizers.validation import POSITIVE, finite_vector, number


@dataclass(frozen=True, eq=False)
class DiagonalMetric(TermwiseMap):
    """h(w) = 1/2 sum_i weights_i w_i^2: coordinates with a large weight move slowly.

    With separable psi the minimiser has the closed form ``clip(soft(z, t a) / (weights + t b), lower, upper)``; balls
    and the simplex become weighted projections, computed by a root find on their multiplier.

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
    separable: ClassVar[bool] = True
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

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        """Write clip(soft(z, threshold) / (weights + shrinkage), lower, upper); see :meth:`TermwiseMap.solve`."""
        kernels.diagonal_terms(z, self.weights, out, *terms)
        return True

    def restrict(self, place: slice | Indices) -> DiagonalMetric:
        return DiagonalMetric(self.weights[place])

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
class PNorm(TermwiseMap):
    """h(w) = ||w - center||_q^2 / (2 (q - 1)) on ||w - center||_q <= radius, with 1/p + 1/q = 1.

    Without a center and a radius this is the map of (D)FedDA(-GT)::

        grad h*(z) = n/(p-1) |z/n|^(p-1) sign(z),    n = ||z||_p,    0 at z = 0

    With them it is the 'Prox' of ReFedDA-GT, whose dual starts at 0: w = center + P(z)::

        P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) radius) - 1, 0))

    Center and ball belong to the map, not to psi. The dual is relative to the center: the dual of the center is 0, and
    a stage of ReFedDA-GT starts there. The ball uses the map's own norm, because P has no closed form for any other
    ball. The user's psi can be combined with both.

    Powers are taken of z/max|z|, so nothing overflows for duals from 1e-300 to 1e300; integer powers use
    multiplications.

    Closed forms: no psi; l1 and sign constraints without a center (soft-threshold z by t a, then P). Any other
    separable psi needs a root find in log ||w - center||_q; balls need a root find in their multiplier.

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

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        if not self.closed_form(terms):
            center = np.zeros(z.size) if self.center is None else self.center
            return bool(kernels.p_norm_terms(z, center, self.p, self._limit, out, *terms))
        one = terms.threshold.size == 1
        soft(z, terms.threshold[0] if one else 1.0, None if one else terms.threshold, 1.0, math.inf, out)
        # A sign constraint clips the dual: where z points out of the orthant, w is 0.
        if terms.lower[0] == 0.0:
            np.maximum(out, 0.0, out=out)
        if terms.upper[0] == 0.0:
            np.minimum(out, 0.0, out=out)
        self.conjugate_gradient(out, out)
        return True

    def closed_form(self, terms: Terms) -> bool:
        """Whether there is no psi, or l1 with at most one common sign constraint and without a center."""
        if any(field.size > 1 for field in terms[1:]):
            return False
        shrinkage, lower, upper = (float(field[0]) for field in terms[1:])
        if shrinkage != 0.0:
            return False
        if self.center is not None:
            return not terms.threshold.any() and lower == -math.inf and upper == math.inf
        return lower in (-math.inf, 0.0) and upper in (math.inf, 0.0)

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


def _value(w: Vector) -> float:
    """Return sum w log w - w, inf outside the orthant; 0 log 0 = 0."""
    if not (w >= 0.0).all():
        return math.nan if np.isnan(w).any() else math.inf
    positive_part = w[w > 0.0]
    return float(positive_part @ np.log(positive_part) - w.sum())


def _log(owner: object, w: Vector) -> Vector:
    """Return log w; raise if a coordinate is not positive."""
    if not (w > 0.0).all():
        place = int(np.argmin(w > 0.0))
        raise ConfigurationError(
            f"{type(owner).__name__}: the gradient does not exist at a point whose coordinate {place} is {w[place]}; "
            "the start point must be interior, every coordinate > 0. Use the default start (the primal point of the "
            "dual 0: `mirror_map.start(size)`), or raise zeros to a small positive number."
        )
    return np.log(w)


@dataclass(frozen=True, eq=False)
class OrthantEntropy(TermwiseMap):
    """h(w) = sum_i w_i log w_i - w_i on w >= 0, with multiplicative updates: w_i = exp(z_i).

    Because of the linear term the gradient is log w, without the 1; this term changes neither the Bregman divergence
    (the generalised Kullback-Leibler divergence) nor any algorithm. Computed in the log domain. Results are never below
    2.2e-308, so that their gradient exists (0 only if psi's upper bound is 0): thresholds make coordinates small, not
    exactly 0. A dual above 709 has no finite primal point, and the result is inf.

    Closed forms: l1 (also weighted) and bounds, ``clip(exp(z - t a), lower, upper)``, and the simplex. With a squared
    l2 norm ``log w + t b w = z - t a`` (Wright's omega) is solved to rounding by Newton's method.

    Notes
    -----
    This is the map of the exponentiated gradient method. The default start is all ones.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> OrthantEntropy().retrieve(np.log([4.0, 6.0]), 1.0, L1(float(np.log(2.0))))
    array([2., 3.])
    """

    kind: ClassVar[str] = "orthant-entropy"
    separable: ClassVar[bool] = True

    def value(self, w: Vector) -> float:
        """Return sum w log w - w; inf outside the orthant."""
        return _value(w)

    def gradient(self, w: Vector) -> Vector:
        """Return log w.

        Raises
        ------
        ConfigurationError
            If a coordinate is not positive.
        """
        return _log(self, w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return exp(z), at least 2.2e-308."""
        result = np.minimum(z, 710.0, out=out)
        # Above 709.78 exp is inf, which is the correct result, so no warning is needed.
        with np.errstate(over="ignore"):
            np.exp(result, out=result)
        return np.maximum(result, kernels.TINY, out=result)

    def conjugate(self, z: Vector) -> float:
        """Return sum exp(z)."""
        return float(self.conjugate_gradient(z).sum())

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        return bool(kernels.orthant_terms(z, out, *terms))

    def closed_form(self, terms: Terms) -> bool:
        """Whether there is no squared l2 norm."""
        return not terms.shrinkage.any()

    def constraint_method(self, ball: Ball, whole: bool) -> RetrievalMethod:
        """Return "closed form" for the simplex and the unweighted l1 ball, else "root find"."""
        plain = isinstance(ball, Simplex) or (isinstance(ball, L1Ball) and ball.weights is None)
        return "closed form" if plain else "root find"

    def constrain(self, z: Vector, block: Block, terms: Terms, out: Vector) -> bool:
        if self.constraint_method(block.ball, True) == "root find":
            return super().constrain(z, block, terms, out)
        if isinstance(block.ball, L1Ball):
            self.conjugate_gradient(z, out)
            if out.sum() <= block.ball.radius:
                return True
        kernels.softmax(z, block.ball.radius, out)
        return True


@dataclass(frozen=True, eq=False)
class SimplexEntropy(TermwiseMap):
    """h(w) = sum_i w_i log w_i - w_i on the simplex {w >= 0, sum w = radius}: w = radius softmax(z).

    The simplex is part of h, so every result lies on it whatever psi is. The gradient is log w; on the simplex, duals
    that differ by a constant represent the same point, so ``gradient(conjugate_gradient(z))`` is z up to a constant.
    Softmax subtracts the largest dual first, so duals of any size are allowed. Results are never below 2.2e-308, so
    that their gradient exists (0 only if psi's upper bound is 0).

    l1 shifts the duals by t a, which has no effect if all weights are equal, because ||w||_1 is the radius. Bounds (the
    capped simplex), a squared l2 norm and balls need a root find on the multiplier of the sum or of the ball.

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
    >>> from flwr_fco.regularizers import Box
    >>> SimplexEntropy().conjugate_gradient(np.log([1.0, 3.0]))
    array([0.25, 0.75])
    >>> SimplexEntropy().retrieve(np.log([1.0, 1.0, 6.0]), 1.0, Box(0.0, 0.5))
    array([0.25, 0.25, 0.5 ])
    """

    kind: ClassVar[str] = "simplex-entropy"
    works_with: ClassVar[str] = (
        "sums over coordinates (Zero, L1, L2Squared, ElasticNet, Box, NonNegative, LInfinityBall), with Simplex of the "
        "map's own radius, and with L1Ball and L2Ball that meet the map's simplex (one array with such a constraint)"
    )
    radius: float = field(default=1.0, metadata=POSITIVE)

    def value(self, w: Vector) -> float:
        """Return sum w log w - w; inf off the simplex."""
        if abs(float(w.sum()) - self.radius) > 1e-12 * self.radius:
            return math.inf
        return _value(w)

    def gradient(self, w: Vector) -> Vector:
        """Return log w.

        Raises
        ------
        ConfigurationError
            If a coordinate is not positive, or the sum is not the radius.
        """
        result = _log(self, w)
        if abs(float(w.sum()) - self.radius) > _OFF_SIMPLEX * self.radius:
            raise ConfigurationError(
                f"SimplexEntropy(radius={self.radius}): the point sums to {float(w.sum())}, so it is not on the "
                "simplex; divide it by its sum and multiply it by the radius, or use the default start"
            )
        return result

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

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        if self.closed_form(terms):
            np.subtract(z, terms.threshold, out=out)
            kernels.softmax(out, self.radius, out)
            return True
        return bool(kernels.simplex_terms(z, self.radius, out, *terms))

    def closed_form(self, terms: Terms) -> bool:
        """Whether there are no bounds but 0 and the radius, and no squared l2 norm."""
        open_box = bool((terms.lower <= 0.0).all() and (terms.upper >= self.radius).all())
        return open_box and not terms.shrinkage.any()

    def constraint_method(self, ball: Ball, whole: bool) -> RetrievalMethod:
        """Return "refused" for sets that do not meet the simplex, "closed form" for sets that contain it."""
        if isinstance(ball, L2Ball):
            return "closed form" if ball.radius >= self.radius else "root find"
        if isinstance(ball, L1Ball):
            if ball.weights is not None:
                return "root find"
            if ball.radius >= self.radius:
                return "closed form"
            return "refused" if whole else "root find"
        if whole:
            return "closed form" if ball.radius == self.radius else "refused"
        return "root find" if ball.radius <= self.radius else "refused"

    def constrain(self, z: Vector, block: Block, terms: Terms, out: Vector) -> bool:
        if self.constraint_method(block.ball, block.whole) == "closed form":
            return self.solve(z, terms, out)
        return super().constrain(z, block, terms, out)
