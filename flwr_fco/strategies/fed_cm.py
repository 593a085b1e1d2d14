"""FedCM: the federation's last direction in every local step.

Xu, Wang, Wang, Yao (2021), algorithm 2; their symbols in brackets::

    each client of the sample, K times: x <- x - client_lr (alpha g(x) + (1 - alpha) direction [Delta])
                               send the increment
    server: direction <- -mean(increment) / (client_lr K); primal <- primal + server_lr mean(increment)

With alpha = 1 it is FedAvg. It does not converge to the optimum of heterogeneous clients at a fixed rate.
"""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.parameters import Vector

__all__ = ["FedCMState", "advance"]


class FedCMState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
    direction : ndarray of float64, shape (d,)
        The mean direction of the last round's local steps.
    """

    primal: Vector
    direction: Vector


def advance(state: FedCMState, mean: Vector, elapsed: float, server_lr: float = 1.0) -> FedCMState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedCMState
    mean : ndarray of float64, shape (d,)
        Weighted mean of the increments.
    elapsed : float
        Weighted mean of the clients' sums of step sizes, client_lr K.
    server_lr : float, default 1.0
    """
    return FedCMState(state.primal + server_lr * mean, -mean / elapsed)
