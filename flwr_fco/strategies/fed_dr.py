"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen (NeurIPS 2021), algorithm 1; their symbols in brackets::

    each client of the sample: center [y_i] <- center + alpha (primal [x-bar] - local [x_i])
                               local <- prox_{eta f_i}(center); send the change of 2 local - center [x-hat_i]
    server: mean [x-tilde] <- mean of all clients' last 2 local - center; primal <- prox_{eta psi}(mean)
"""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.parameters import Vector
from flwr_fco.regularizers.base import BoundRegularizer

__all__ = ["FedDRState", "advance"]


class FedDRState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        What the clients are sent.
    mean : ndarray of float64, shape (d,)
        Weighted mean over all clients of 2 local - center.
    """

    primal: Vector
    mean: Vector


def advance(state: FedDRState, change: Vector, step: float, psi: BoundRegularizer | None = None) -> FedDRState:
    """Return the state after a round.

    Parameters
    ----------
    state : FedDRState
    change : ndarray of float64, shape (d,)
        Sum of the clients' increments by their weights among all clients, absent ones included.
    step : float
        eta.
    psi : BoundRegularizer, optional
    """
    mean = state.mean + change
    return FedDRState(mean if psi is None else psi.prox(mean, step), mean)
