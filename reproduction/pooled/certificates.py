"""Certificates of optimality for the pooled problem sum_m p_m F_m(w) + psi(w): objective, gradient, duality gaps.

Plain functions on arrays. `weights` are the p_m up to a factor; None means the numbers of examples (the pooled
empirical risk).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.certificates import Answer, Certificate, Request, certificate, reported_at, settle
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Layout, Objective, Vector
from flwr_fco.regularizers import BoundRegularizer, Regularizer

#: An objective of each client.
Clients = Sequence[Objective]
Psi = Regularizer | BoundRegularizer


def bound_to(regularizer: Psi, layout: Layout) -> BoundRegularizer:
    """Return psi on a model's flat vectors."""
    return regularizer if isinstance(regularizer, BoundRegularizer) else regularizer.bind(layout)


def client_weights(objectives: Clients, weights: ArrayLike | None = None) -> Vector:
    """Return the weights p_m of the clients, which sum to 1.

    Parameters
    ----------
    objectives : sequence of Objective
        One per client; all with the same layout.
    weights : array-like, shape (num_clients,), optional
        Weights up to a factor; numbers of examples by default.

    Returns
    -------
    ndarray of float64, shape (num_clients,)
        The p_m, in the order of the objectives.

    Raises
    ------
    ConfigurationError
        If there is no client, layouts differ, or the weights are not one non-negative number per client.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> clients = [LeastSquares(np.ones((n, 1)), np.ones(n)) for n in (1, 3)]
    >>> client_weights(clients), client_weights(clients, [1, 1])
    (array([0.25, 0.75]), array([0.5, 0.5]))
    """
    if len({objective.layout for objective in objectives}) != 1:
        raise ConfigurationError("there is no client, or the clients' models differ; give all the same options")
    given = [objective.num_examples for objective in objectives] if weights is None else weights
    shares = np.asarray(given, dtype=np.float64)
    if shares.shape != (len(objectives),) or not (shares >= 0.0).all() or not 0.0 < shares.sum() < np.inf:
        raise ConfigurationError(f"weights={shares.tolist()}; expected numbers >= 0, one a client and not all 0")
    return np.asarray(shares / shares.sum())


def composite_objective(objectives: Clients, weights: ArrayLike | None, regularizer: Psi, w: Vector) -> float:
    """Return Phi(w) = sum_m p_m F_m(w) + psi(w).

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    weights : array-like or None
        See :func:`client_weights`.
    regularizer : Regularizer or BoundRegularizer
        psi; if it is not bound to a layout, it is bound to the objectives' layout.
    w : ndarray of float64, shape (layout.size,)
        The point.

    Returns
    -------
    float
        Infinite outside a constraint.

    Raises
    ------
    ConfigurationError
        See :func:`client_weights`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]))
    >>> composite_objective([client], None, L1(0.5), np.array([1.0, 0.0]))
    1.0
    """
    shares = client_weights(objectives, weights)
    w = np.asarray(w, dtype=np.float64)
    smooth = sum(share * objective.value(w) for share, objective in zip(shares, objectives, strict=True))
    return float(smooth + bound_to(regularizer, objectives[0].layout).value(w))


def pooled_gradient(objectives: Clients, weights: ArrayLike | None, w: Vector) -> Vector:
    """Return sum_m p_m grad F_m(w).

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    weights : array-like or None
        See :func:`client_weights`.
    w : ndarray of float64, shape (layout.size,)
        The point.

    Returns
    -------
    ndarray of float64, shape (layout.size,)
        The gradient of the smooth part of Phi.

    Raises
    ------
    ConfigurationError
        See :func:`client_weights`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> clients = [LeastSquares(np.full((n, 1), 1.0), np.full(n, 2.0), intercept=False) for n in (1, 3)]
    >>> pooled_gradient(clients, None, np.array([0.0]))
    array([-4.])
    """
    # An integer point would give an integer gradient, in which small entries become 0.
    w = np.asarray(w, dtype=np.float64)
    gradient = np.zeros_like(w)
    for share, objective in zip(client_weights(objectives, weights), objectives, strict=True):
        objective.add_gradient(w, None, float(share), gradient)
    return gradient


def stationarity(
    objectives: Clients, weights: ArrayLike | None, regularizer: Psi, w: Vector, *, lipschitz: float | None = None
) -> float:
    """Return the norm of the proximal gradient mapping, L ||w - prox_{psi/L}(w - grad F(w) / L)||.

    It is 0 exactly at the minimisers (for convex psi), and equals the gradient's norm if there is no psi.

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    weights : array-like or None
        See :func:`client_weights`.
    regularizer : Regularizer or BoundRegularizer
        psi; if it is not bound to a layout, it is bound to the objectives' layout.
    w : ndarray of float64, shape (layout.size,)
        The point.
    lipschitz : float, optional
        L; by default sum_m p_m L_m with the clients' own constants.

    Raises
    ------
    ConfigurationError
        If L is not given and an objective does not know its own; see also :func:`client_weights`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> stationarity([client], None, L1(0.5), np.array([1.5, 0.0]))
    0.0
    """
    shares = client_weights(objectives, weights)
    w = np.asarray(w, dtype=np.float64)
    if lipschitz is None:
        lipschitz = sum(float(p) * objective.lipschitz() for p, objective in zip(shares, objectives, strict=True))
    psi = bound_to(regularizer, objectives[0].layout)
    forward = w - pooled_gradient(objectives, shares, w) / lipschitz
    return lipschitz * float(np.linalg.norm(w - psi.prox(forward, 1.0 / lipschitz)))


def certify(objectives: Clients, weights: ArrayLike | None, regularizer: Psi, w: Vector) -> Certificate:
    """Return a certificate for a point: a duality gap if the problem has one, otherwise a residual.

    The mathematics is the same as in a federated pass; :mod:`flwr_fco.certificates` lists the losses and psi with a
    gap.

    Parameters
    ----------
    objectives : sequence of Objective
        One per client.
    weights : array-like or None
        See :func:`client_weights`.
    regularizer : Regularizer or BoundRegularizer
        psi; if it is not bound to a layout, it is bound to the objectives' layout.
    w : ndarray of float64, shape (layout.size,)
        The point.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import Logistic
    >>> from flwr_fco.regularizers import HardSparsity, L1Ball
    >>> client = Logistic(np.array([[1.0], [-1.0]]), np.array([1, 0]), intercept=False)
    >>> certify([client], None, L1Ball(1.0), np.array([1.0])).kind
    'duality-gap'
    >>> certify([client], None, HardSparsity(1), np.array([0.0]))[0::3]
    ('residual', 'HardSparsity(count=1) is not convex')
    """
    shares = client_weights(objectives, weights)
    w = np.asarray(w, dtype=np.float64)
    # A client of weight 0 does not count, and its numbers need not be finite.
    parts = [(float(share), objective) for share, objective in zip(shares, objectives, strict=True) if share > 0.0]

    def ask(request: Request) -> list[Answer]:
        return [Answer(*reported_at(objective, w, request.numbers), weight=share) for share, objective in parts]

    return settle(certificate(bound_to(regularizer, objectives[0].layout), w), ask)
