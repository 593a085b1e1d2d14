"""Reference solutions of the pooled problem, to which a federated run should converge.

Only this module reconciles normalisations. With weights p_m that sum to 1, this package uses

    Phi(w, b) = sum_m p_m [ mean_i loss(<x_i, w> + b; y_i) + l2/2 ||w||^2 ] + psi(w)

so example i of client m has weight s_i = p_m / n_m; with the default p_m = n_m / n it is 1 / n. scikit-learn uses

    Lasso, ElasticNet     1/2 sum_i s_i r_i^2 + alpha l1_ratio ||w||_1 + alpha (1 - l1_ratio) / 2 ||w||^2
    LogisticRegression    C sum_i (n s_i) loss_i + l1_ratio ||w||_1 + (1 - l1_ratio) / 2 ||w||^2

and neither regularizes the intercept (solver `saga`; `liblinear` would).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, TraceRegression
from flwr_fco.objectives.design import stacked
from flwr_fco.pooled.certificates import Clients, client_weights, pooled_gradient, same_options
from flwr_fco.regularizers.base import BoundRegularizer, Psi, bound_to

#: Norm of the mapping, relative to its norm at the start, below which only rounding errors are left.
_ROUNDING = 1e-14


def centralized_solution(
    objectives: Clients,
    regularizer: Psi,
    weights: ArrayLike | None = None,
    tol: float = 1e-10,
    *,
    start: Vector | None = None,
    max_iterations: int = 200_000,
) -> Vector:
    """Return argmin_w sum_m p_m F_m(w) + psi(w) for any smooth objectives and any convex psi.

    Uses the accelerated proximal gradient method (FISTA) with backtracking, and restarts whenever the momentum points
    uphill. It stops when the proximal gradient mapping L ||w - prox_{psi/L}(w - grad F(w) / L)|| is at most
    `tol` ||grad F(w)||, or at most `tol` / 1000 of its value at the start (without psi the gradient itself vanishes).

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    regularizer : Regularizer or BoundRegularizer
        psi; if it is not bound to a layout, it is bound to the objectives' layout.
    weights : array-like, shape (num_clients,), optional
        The p_m up to a factor; numbers of examples by default (the pooled empirical risk).
    tol : float, default 1e-10
        Relative tolerance of the proximal gradient mapping.
    start : ndarray of float64, shape (layout.size,), optional
        The starting point; 0 by default.
    max_iterations : int, default 200,000
        Iterations after which the tolerance counts as out of reach.

    Returns
    -------
    ndarray of float64, shape (layout.size,)
        The solution, a value of psi's proximal map and so exactly sparse, low rank or feasible.

    Raises
    ------
    FlwrFcoError
        If the tolerance is not reached.
    ConfigurationError
        If psi is not convex, an objective is not smooth or is a saddle function, or weights or layouts do not match
        (see :func:`flwr_fco.pooled.client_weights`).

    Notes
    -----
    The intercepts of multinomial logistic regression are unique only up to a constant. With an l1 norm and an even
    number of classes, its coefficients are unique only up to an interval.

    :func:`flwr_fco.pooled.stationarity` measures the optimality of the result; if psi is an l1 norm,
    :func:`flwr_fco.pooled.lasso_duality_gap` certifies it.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> centralized_solution([client], L1(0.5)).round(6) + 0.0
    array([1.5, 0. ])
    """
    shares = client_weights(objectives, weights)
    psi = bound_to(regularizer, objectives[0].layout)
    _check_solvable(psi, objectives)

    def value(point: Vector) -> float:
        return float(sum(p * objective.value(point) for p, objective in zip(shares, objectives, strict=True)))

    w = np.zeros(psi.layout.size) if start is None else np.array(start, dtype=np.float64)
    w = psi.prox(w, 0.0)
    y, momentum = w, 1.0
    curvature = _curvature_guess(objectives, shares, w)
    first: float | None = None
    for _ in range(max_iterations):
        gradient = pooled_gradient(objectives, shares, y)
        y_value = value(y)
        while True:
            new = psi.prox(y - gradient / curvature, 1.0 / curvature)
            step = new - y
            square = float(step @ step)
            bound = 0.5 * curvature * square
            if bound > 1e-10 * (1.0 + abs(y_value)):
                fits = value(new) - y_value - float(gradient @ step) <= bound
            else:
                # The difference of the values is lost in rounding, but the difference of the gradients is not.
                change = pooled_gradient(objectives, shares, new) - gradient
                fits = float(change @ step) <= 2.0 * bound * (1.0 + 1e-6) + 1e-300
            if fits or not np.isfinite(curvature):
                break
            curvature *= 2.0
        mapping = curvature * float(np.sqrt(square))
        first = mapping if first is None else first
        if mapping <= max(tol * float(np.linalg.norm(gradient)), max(1e-3 * tol, _ROUNDING) * first):
            return new
        if float((y - new) @ (new - w)) > 0.0:
            momentum, y = 1.0, new
        else:
            following = 0.5 * (1.0 + float(np.sqrt(1.0 + 4.0 * momentum**2)))
            y = new + (momentum - 1.0) / following * (new - w)
            momentum = following
        w = new
    raise FlwrFcoError(
        f"after {max_iterations} iterations the proximal gradient mapping is {mapping:.3g}, at the start it was "
        f"{first:.3g}, and the gradient is {np.linalg.norm(gradient):.3g}; expected tol={tol:g} of the latter. "
        "Scale the features, raise max_iterations or be content with a larger tol."
    )


def _check_solvable(psi: BoundRegularizer, objectives: Clients) -> None:
    if not psi.convex:
        raise ConfigurationError(
            f"{psi.regularizer!r} is not convex: there is no way to tell a global minimiser from a stationary point"
        )
    for objective in objectives:
        name = type(objective).__name__
        if not objective.smooth:
            # At a kink, steps become so short that rounding would look like convergence.
            raise ConfigurationError(f"{name} is not smooth, and gradient steps do not find its minimiser")
        if objective.ascends is not None:
            raise ConfigurationError(
                f"{name} is a saddle function, which has no minimiser; flwr_fco.pooled.saddle_point() and "
                "game_solution() solve some of them"
            )


def sklearn_solution(
    objectives: Clients,
    regularizer: Psi,
    weights: ArrayLike | None = None,
    *,
    tol: float = 1e-12,
    max_iterations: int = 100_000,
) -> Vector:
    """Return scikit-learn's minimiser of the pooled problem, for an l1 norm or an elastic net.

    Least squares and trace regression use ``ElasticNet``; (multinomial) logistic regression uses
    ``LogisticRegression(solver="saga")``. alpha and C are derived from the normalisations in the module's docstring:
    with strength lambda and ridge mu (psi's ridge plus `l2`), alpha l1_ratio = lambda / (2 scale) and
    alpha (1 - l1_ratio) = mu / (2 scale); C = 1 / (n (lambda + mu)) and l1_ratio = lambda / (lambda + mu).

    Parameters
    ----------
    objectives : sequence of Objective
        One per client, all of the same class with equal options.
    regularizer : Regularizer or BoundRegularizer
        strength ||w||_1 + ridge/2 ||w||^2 on the coefficients, the same for all coefficients, with strength > 0.
    weights : array-like, shape (num_clients,), optional
        The p_m up to a factor; numbers of examples by default.
    tol : float, default 1e-12
        scikit-learn's tolerance, whose meaning depends on the solver.
    max_iterations : int, default 100,000
        Iteration limit; scikit-learn warns if it is reached.

    Returns
    -------
    ndarray of float64, shape (layout.size,)
        The minimiser.

    Raises
    ------
    ConfigurationError
        If scikit-learn cannot solve the problem.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> sklearn_solution([client], L1(0.5)).round(6) + 0.0
    array([1.5, 0. ])
    """
    import sklearn
    from sklearn.linear_model import ElasticNet, LogisticRegression
    from sklearn.utils.fixes import parse_version

    shares = client_weights(objectives, weights)
    losses = (LeastSquares, TraceRegression, Logistic, MultinomialLogistic)
    clients = same_options(objectives, losses, "centralized_solution() takes any.")
    if any(client._offset is not None for client in clients):
        raise ConfigurationError("scikit-learn's logistic regression has no offset. centralized_solution() takes any.")
    first = clients[0]
    strength, ridge = _elastic_net(regularizer, first)
    ridge += first.l2
    features = stacked([client.features.astype(np.float64, copy=False) for client in clients])
    n = features.shape[0]
    # Scale the sample weights to mean 1, as scikit-learn expects.
    rows = [np.ones(client.num_examples) if client._weights is None else client._weights for client in clients]
    sample_weights = np.concatenate([(n * p / own.size) * own for p, own in zip(shares, rows, strict=True)])
    share, total = strength / (strength + ridge), strength + ridge
    options: dict[str, Any]
    if isinstance(first, LeastSquares | TraceRegression):
        options = {"alpha": total / (2.0 * first.scale)}
        model, targets = ElasticNet, np.concatenate([client._targets for client in clients])
    else:
        options = {"C": 1.0 / (n * total), "solver": "saga", "random_state": 0}
        if parse_version(sklearn.__version__) < parse_version("1.8"):
            options["penalty"] = "elasticnet"
        model, targets = LogisticRegression, _labels(clients)
    model = model(l1_ratio=share, fit_intercept=first.intercept, tol=tol, max_iter=max_iterations, **options)
    model.fit(features, targets, sample_weight=sample_weights)
    coefficients = np.asarray(model.coef_).T
    return np.concatenate([coefficients.reshape(-1), np.atleast_1d(model.intercept_) if first.intercept else []])


def _labels(clients: Sequence[Any]) -> NDArray[np.int64]:
    """Return the labels of all rows, if scikit-learn takes them for as many classes as the objectives do."""
    first = clients[0]
    labels = np.concatenate([c.labels == 1 if isinstance(c, Logistic) else c.labels for c in clients]).astype(np.int64)
    expected = 2 if isinstance(first, Logistic) else first.num_classes
    if np.unique(labels).size != expected or (expected == 2 and isinstance(first, MultinomialLogistic)):
        raise ConfigurationError(
            f"{expected} classes, {np.unique(labels).size} of them in the data: scikit-learn wants every class to "
            "occur, and treats two classes as binary (use Logistic for them)"
        )
    return labels


def _elastic_net(regularizer: Psi, objective: Objective) -> tuple[float, float]:
    """Return strength and ridge of a psi that is equal on all coefficients and 0 on the intercept."""
    layout = objective.layout
    psi = bound_to(regularizer, layout)
    terms = psi.separable_terms((layout.size,))
    if terms is not None:
        threshold, shrinkage, lower, upper = (np.broadcast_to(term, (layout.size,)) for term in terms)
        block = layout["coefficients"].block
        unbounded = bool(np.isneginf(lower).all() and np.isposinf(upper).all())
        even = bool(np.ptp(threshold[block]) == 0.0 and np.ptp(shrinkage[block]) == 0.0)
        rest = float(np.delete(threshold, block).sum() + np.delete(shrinkage, block).sum())
        if unbounded and even and rest == 0.0 and threshold[block.start] > 0.0:
            return float(threshold[block.start]), float(shrinkage[block.start])
    raise ConfigurationError(
        f"{psi.regularizer!r} is not strength ||w||_1 + ridge/2 ||w||^2 with one positive strength on all coefficients "
        "and none on the intercept, which is what scikit-learn solves. centralized_solution() takes any convex psi."
    )


def _curvature_guess(objectives: Clients, shares: Vector, w: Vector) -> float:
    """Return a lower bound on the curvature, from a small step along the gradient; backtracking raises it."""
    gradient = pooled_gradient(objectives, shares, w)
    norm = float(np.linalg.norm(gradient))
    if norm == 0.0:
        return 1.0
    probe = gradient / norm * 1e-3
    change = pooled_gradient(objectives, shares, w + probe) - gradient
    return max(float(np.linalg.norm(change)) / 1e-3, 1e-8)
