"""Metrics of saddle-point problems: duality gaps in closed form, residuals, structure, exact solutions.

Plain functions on arrays, for the pooled problem min_x max_y sum_m p_m f_m(x, y) + psi_1(x) - psi_2(y). `weights` are
the p_m up to a factor; None means the numbers of examples, as in :mod:`reproduction.pooled.certificates`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from operator import itemgetter

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import SaddleObjective, Vector
from flwr_fco.regularizers import Box, Nuclear, NuclearBall, SpectralBall, Zero
from reproduction.data.saddle_objectives import QuadraticSaddle, UniversalAdversarialLogistic
from reproduction.pooled.certificates import Clients, Psi, bound_to, client_weights, pooled_gradient, stationarity
from reproduction.pooled.scores import density, numerical_rank

#: Distance from psi's constraints, relative to 1 + ||w||, that counts as rounding.
_ROUNDING = 1e-9
#: Step that is so long that its starting point is negligible.
_FAR = 1e9


def duality_gap(objectives: Clients, weights: ArrayLike | None, regularizer: Psi, w: Vector) -> float:
    """Return psi(w) + psi*(-g(w)) + <g(w), w>, the duality gap of a bilinear problem.

    Gap(x, y) = max over y' of phi(x, y') minus min over x' of phi(x', y), where phi = f + psi_1 - psi_2. For bilinear f
    it is the expression above, where g is the pooled operator. For l1 norms in boxes and nuclear norms in spectral
    balls this is the closed form of the paper's appendices A.1 and A.2; for matrix games on
    simplices it is max_j (P'x)_j - min_i (P y)_i. For strongly convex-concave quadratics without psi the gap is
    1/2 <g_x, P^-1 g_x> + 1/2 <g_y, Q^-1 g_y> with the operator g = (g_x, g_y). For any other f that is convex in x and
    concave in y, the expression is an upper bound on the gap and is 0 at the saddle points.

    Parameters
    ----------
    objectives : sequence of SaddleObjective
        One per client.
    weights : array-like or None
        See :func:`reproduction.pooled.client_weights`.
    regularizer : Regularizer or BoundRegularizer
        psi = psi_1(x) + psi_2(y).
    w : ndarray of float64, shape (layout.size,)
        The point (x, y).

    Returns
    -------
    float
        Non-negative up to rounding; infinite if the maximum is, or outside psi's constraints. A point within 1e-9 of
        the constraints, such as a mean of feasible points, is projected first.

    Raises
    ------
    ConfigurationError
        If f is not convex in x and concave in y, or psi* is not known.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), appendices A.1, A.2.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import BilinearSaddle
    >>> from flwr_fco.regularizers import L1
    >>> duality_gap([BilinearSaddle([[2.0]], [1.0])], None, L1(0.5, bound=1.0), np.array([0.25, 0.25]))
    0.5
    """
    for objective in objectives:
        if not isinstance(objective, SaddleObjective) or not objective.monotone:
            raise ConfigurationError(
                f"{type(objective).__name__} is no function that is convex in x and concave in y, so it has no duality "
                "gap; stationarity() works for it"
            )
    psi = bound_to(regularizer, objectives[0].layout)
    w = np.asarray(w, dtype=np.float64)
    value = psi.value(w)
    if value == math.inf:
        # Rounding may move a mean of feasible points out of the constraints, which must not make the gap infinite.
        nearest = psi.prox(w, 0.0)
        if float(np.linalg.norm(nearest - w)) > _ROUNDING * (1.0 + float(np.linalg.norm(w))):
            return math.inf
        w = nearest
        value = psi.value(nearest)
    if isinstance(psi.regularizer, Zero) and all(isinstance(objective, QuadraticSaddle) for objective in objectives):
        quadratics = [objective for objective in objectives if isinstance(objective, QuadraticSaddle)]
        pooled = QuadraticSaddle.pooled(quadratics, client_weights(objectives, weights))
        if pooled.strong_convexity() > 0.0:
            return _quadratic_gap(pooled, w)
    operator = pooled_gradient(objectives, weights, w)
    return value + psi.conjugate(-operator) + float(operator @ w)


def saddle_metrics(
    objectives: Clients, weights: ArrayLike | None, regularizer: Psi, w: Vector, *, threshold: float = 1e-5
) -> dict[str, float]:
    """Return the metrics that the paper's figures show.

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    weights : array-like or None
        See :func:`reproduction.pooled.client_weights`.
    regularizer : Regularizer or BoundRegularizer
        psi.
    w : ndarray of float64, shape (layout.size,)
        The point.
    threshold : float, default 1e-5
        Entries and singular values above it count as non-zero.

    Returns
    -------
    dict of str to float
        ``gap``: :func:`duality_gap`, if it is known. ``residual``: ||w - prox(w - g(w), 1)||, 0
        exactly at the saddle points of a convex-concave problem. ``density``: the share of non-zeros among all entries
        that psi acts on, and ``density-x`` the share for each regularized array x.
        ``rank-x``: the rank of each array x with a regularizer of its singular values.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import BilinearSaddle
    >>> from flwr_fco.regularizers import L1
    >>> saddle_metrics([BilinearSaddle([[2.0]], [1.0])], None, L1(0.5, bound=1.0), np.array([0.25, 0.0]))["density"]
    0.5
    """
    psi = bound_to(regularizer, objectives[0].layout)
    w = np.asarray(w, dtype=np.float64)
    metrics: dict[str, float] = {}
    with suppress(ConfigurationError):
        metrics["gap"] = duality_gap(objectives, weights, psi, w)
    metrics["residual"] = stationarity(objectives, weights, psi, w, lipschitz=1.0)
    views = psi.layout.views(w)
    names = psi.layout.regularized_names
    metrics["density"] = density(np.concatenate([views[name].reshape(-1) for name in names]), threshold)
    for name in names:
        metrics[f"density-{name}"] = density(views[name], threshold)
        part = psi.regularizer.for_array(name)
        if isinstance(part, Nuclear | NuclearBall | SpectralBall):
            metrics[f"rank-{name}"] = float(numerical_rank(part.matrix(views[name]), threshold))
    return metrics


def strongest_perturbation(objective: UniversalAdversarialLogistic, w: Vector, bound: float) -> Vector:
    """Return the most harmful common perturbation of all examples in a box: the best of two local maxima of f.

    The loss f is convex in the perturbation, so it lies above its tangents. A step to the maximiser of a tangent,

        delta <- bound * sign(grad_delta f),

    therefore never lowers f, and the iteration ends after finitely many steps. One start is the model's own
    perturbation, the other is drawn at random.

    Parameters
    ----------
    objective : UniversalAdversarialLogistic
        The objective on the examples known to the attacker.
    w : ndarray of float64, shape (layout.size,)
        The model with its perturbation.
    bound : float
        The largest absolute value of an entry.

    Returns
    -------
    ndarray of float64, shape (layout.size,)
        The model with its perturbation replaced.

    Examples
    --------
    >>> import numpy as np
    >>> from reproduction.data.saddle_objectives import UniversalAdversarialLogistic
    >>> objective = UniversalAdversarialLogistic(np.array([[1.0], [1.0], [-1.0]]), [0, 0, 1], intercept=False)
    >>> strongest_perturbation(objective, np.array([1.0, -1.0, 0.0]), 0.5)
    array([ 1. , -1. , -0.5])
    """
    place = slice(objective.split, None)
    psi = Box(-bound, bound)
    found = []
    for start in (w[place], np.random.default_rng(0).uniform(-bound, bound, w[place].shape)):
        attacked = w.copy()
        value = -math.inf
        attacked[place] = psi.prox(start, 0.0)
        while (gained := objective.value(attacked)) > value:
            value = gained
            kept = attacked.copy()
            # The operator contains minus the maximising player's gradient. A projection from far away is the corner.
            attacked[place] = psi.prox(-_FAR * objective.gradient(attacked)[place], _FAR)
        found.append((value, kept))
    return max(found, key=itemgetter(0))[1]


def _quadratic_gap(pooled: QuadraticSaddle, w: Vector) -> float:
    """Return the players' total gain from their best responses: half the squared partial gradients over curvatures."""
    operator = pooled.gradient(w)
    ours = operator[: pooled.split]
    theirs = operator[pooled.split :]
    gains = ours @ np.linalg.solve(pooled.convexity, ours) + theirs @ np.linalg.solve(pooled.concavity, theirs)
    return 0.5 * float(gains)
