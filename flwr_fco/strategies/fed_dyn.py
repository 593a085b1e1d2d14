"""FedDyn: dynamic regularization.

Acar and others (ICLR 2021), algorithm 1; their symbols in brackets::

    each client of the sample: local [theta_i] ~ argmin f_i(x) - <own [g_i], x> + alpha/2 ||x - theta||^2
                               own <- own - alpha (local - theta); send local - theta
    server: dual [h] <- dual - alpha sum over the sample of p_i (local - theta); theta <- mean(local) - dual / alpha

With everybody there, exact solves and zeros at the start, FedDyn(alpha) is FedPD(eta = 1/alpha) and
FedDR(eta = 1/alpha, alpha = 1), iterate by iterate.
"""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.parameters import Vector

__all__ = ["FedDynState", "advance"]


class FedDynState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        theta.
    dual : ndarray of float64, shape (d,)
        h: the weighted mean of all clients' `own`.
    """

    primal: Vector
    dual: Vector


def advance(state: FedDynState, mean: Vector, penalty: float, share: float = 1.0) -> FedDynState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedDynState
    mean : ndarray of float64, shape (d,)
        Weighted mean of the sample's increments.
    penalty : float
        alpha.
    share : float, default 1.0
        Weight of the sample among all clients.
    """
    dual = state.dual - penalty * share * mean
    return FedDynState(state.primal + mean - dual / penalty, dual)
