"""Support vector machines: the hinge loss, which brings a minimiser of its own, coordinate ascent on the dual."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from flwr_fco.engines import Minimise, Minimum
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Linear, Link, Objective, Vector


class HingeLoss(Link):
    """max(0, 1 - y s) of signs y."""

    targets = "labels"

    def encoded(self, targets: NDArray[Any]) -> NDArray[Any]:
        return np.where(targets == 1, 1.0, -1.0)

    def value(self, s: Vector, y: Vector) -> Vector:
        return np.maximum(0.0, 1.0 - y * s)

    def slope(self, s: Vector, y: Vector) -> Vector:
        # A subgradient; a margin of exactly 1 counts as 0.
        return np.where(y * s < 1.0, -y, 0.0)

    def curvature(self, s: Vector, y: Vector, change: Vector) -> Vector:
        raise ConfigurationError("the hinge loss has no second derivative")

    def conjugate(self, a: Vector, y: Vector) -> Vector:
        return np.where((a * y >= -1.0 - 1e-12) & (a * y <= 1e-12), a * y, np.inf)

    def scored(self, s: Vector, y: Vector, mean: Any) -> dict[str, float]:
        return {"accuracy": mean((s > 0.0) == (y > 0.0))}


class Hinge(Linear):
    """F(w) = mean_i max(0, 1 - s_i <x_i, w>) + l2/2 ||w||^2, strongly convex with modulus `l2`, but not smooth.

    Parameters
    ----------
    features : array-like, shape (n, d)
        Without an intercept, in which the loss would not be strongly convex.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1.
    l2 : float
        Strength of the ridge term.
    """

    smooth: ClassVar[bool] = False
    along = Objective.along

    def __init__(self, features: ArrayLike, labels: ArrayLike, l2: float) -> None:
        super().__init__(HingeLoss(), features, labels, intercept=False, l2=l2)

    def minimiser(self, pull: Vector, penalty: float, start: Vector, work: Minimise, duality: float) -> Minimum:
        """Minimise mean_i max(0, 1 - s_i <x_i, theta>) + m/2 ||theta - v||^2 by dual coordinate ascent.

        m = l2 + penalty and v = pull / m. With alpha in [0, 1]^n and theta = v + 1/(m n) sum_i alpha_i s_i x_i, the
        dual is mean_i alpha_i (1 - s_i <x_i, v>) - m/2 ||theta - v||^2, and the primal minus the dual value bounds
        F(theta) - min F. It also bounds DualFL's gap (3.6) for any nu <= m, because the conjugate in (3.6) can be
        bounded at alpha.

        Parameters
        ----------
        pull, penalty
            Of the problem F(theta) - <pull, theta> + penalty/2 ||theta||^2.
        start : ndarray of float64, shape (d,)
            Determines the initial alpha: 1 where the margin at `start` is below 1, otherwise 0.
        work : Minimise
            The tolerance is compared with the largest violation of the dual's optimality conditions (``"gradient"``),
            or with the gap (``"gap"``).
        duality : float
            Not used.

        Returns
        -------
        Minimum
            `iterations` counts passes over the examples; `gradient_norm` is the largest violation.

        Raises
        ------
        ConfigurationError
            If the problem is not strongly convex.

        References
        ----------
        Hsieh and others: A dual coordinate descent method for large-scale linear SVM (ICML 2008), with shrinking: most
        passes visit only the examples with alpha strictly between 0 and 1.
        """
        modulus = self.l2 + penalty
        if not modulus > 0.0:
            raise ConfigurationError(f"l2={self.l2:g} and penalty={penalty:g}; expected a sum > 0: give Hinge an l2")
        theta = anchor = pull / modulus
        features, signs, n = self.features, self.targets, self.num_examples
        scale = 1.0 / (modulus * n)
        squares = np.einsum("ij,ij->i", features, features, dtype=np.float64)
        # It is unknown which alpha are inside (0, 1), but at the start the margins predict the bound of most others.
        alpha = (signs * (features @ start) < 1.0).astype(np.float64)
        rng = np.random.default_rng(0)
        everyone = np.arange(n)
        gap = violation = np.inf

        def sweep(which: NDArray[np.int64]) -> float:
            return float(_epoch(features, signs, squares, rng.permutation(which), scale, alpha, theta))

        for passes in range(work.max_iterations + 1):
            if passes:
                violation = sweep(everyone)
                # Cheap passes over the interior alpha, until their violation is a tenth of the last full pass's.
                for _ in range(20):
                    free = np.flatnonzero((alpha > 0.0) & (alpha < 1.0))
                    if free.size in (0, n) or sweep(free) < 0.1 * violation:
                        break
            # Recompute theta from alpha, which removes the rounding errors of many small updates.
            theta = anchor + scale * (features.T @ (alpha * signs))
            losses = np.maximum(0.0, 1.0 - signs * (features @ theta))
            # Primal minus dual value, as a sum of non-negative terms, which avoids cancellation.
            gap = float((losses - alpha * (1.0 - signs * (features @ theta))).mean())
            reached = (gap if work.rule == "gap" else violation) <= work.tolerance
            if reached:
                break
        return Minimum(theta, passes, passes + 1, 0, float(violation), max(gap, 0.0), reached)


@njit(cache=True, fastmath={"reassoc", "contract"})
def _epoch(features: Any, signs: Any, squares: Any, order: Any, scale: Any, alpha: Any, theta: Any) -> Any:
    """Maximise the dual exactly over one alpha_i at a time, in place; return the largest projected gradient."""
    worst = 0.0
    for i in order:
        row = features[i]
        margin = 0.0
        for j in range(row.size):
            margin += row[j] * theta[j]
        ascent = 1.0 - signs[i] * margin
        curvature = scale * squares[i]
        old = alpha[i]
        if (old <= 0.0 and ascent < 0.0) or (old >= 1.0 and ascent > 0.0):
            continue
        if curvature > 0.0:
            alpha[i] = min(1.0, max(0.0, old + ascent / curvature))
        else:
            alpha[i] = 1.0 if ascent > 0.0 else 0.0
        worst = max(worst, abs(ascent))
        move = scale * signs[i] * (alpha[i] - old)
        if move != 0.0:
            for j in range(row.size):
                theta[j] += move * row[j]
    return worst
