"""5GCS: client sampling for local training of the fifth generation.

Grudzien, Malinovsky, Richtarik (2022), algorithm 1; their symbols in brackets, every dual times M::

    server: primal [x_hat] <- (x - gamma dual [v]) / (1 + gamma mu)
    each client of the cohort: y ~ argmin f(y) - mu/2 ||y||^2 + tau/2 ||y - (primal + own [u] / tau)||^2
                               own <- own + tau (primal - y); send the change
    server: dual+ <- mean of all clients' own; x <- primal - gamma M/C (dual+ - dual)
"""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.parameters import Vector

__all__ = ["FiveGCSState", "advance"]


class FiveGCSState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        x_hat: what the clients are sent, and the model.
    dual : ndarray of float64, shape (d,)
        v: the weighted mean of all clients' own duals.
    """

    primal: Vector
    dual: Vector


def advance(
    state: FiveGCSState, change: Vector, *, step: float, convexity: float, population: float = 1.0
) -> FiveGCSState:
    """Return the state after a round.

    Parameters
    ----------
    state : FiveGCSState
    change : ndarray of float64, shape (d,)
        Sum of the cohort's increments by their weights among all clients.
    step : float
        gamma.
    convexity : float
        mu.
    population : float, default 1.0
        M/C: all clients for each one of the cohort.
    """
    dual = state.dual + change
    x = state.primal - step * population * change
    return FiveGCSState((x - step * dual) / (1.0 + step * convexity), dual)
