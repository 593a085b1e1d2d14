"""Negative entropy, on the simplex and on the non-negative orthant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import mirror as kernels
from flwr_fco.mirror_maps.base import Ball, Block, RetrievalMethod, Terms, TermwiseMap
from flwr_fco.regularizers.balls import L1Ball, L2Ball, Simplex
from flwr_fco.regularizers.validation import positive

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
        return bool(kernels.orthant_terms(z, *terms, out))

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
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive(self, "radius", self.radius))

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
        return bool(kernels.simplex_terms(z, *terms, self.radius, out))

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
