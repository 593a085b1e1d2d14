"""DualFL: dual acceleration of exact local minimisations.

Park, Xu: DualFL, algorithm 1; their symbols in brackets::

    theta [theta] = 0, every control [zeta_j] = anchor [a_j] = 0, t = 1; nu in (0, mu], rho in [0, nu/L]
    each round, every client: local [theta_j] ~ argmin f_j(x) - nu <control, x>; send local - theta
    server:  theta <- mean(local); t+ <- (1 - rho t^2 + sqrt((1 - rho t^2)^2 + 4 t^2)) / 2
             momentum [beta] <- (t - 1)/t+ (1 - t+ rho)/(1 - rho)
    client, when the new theta arrives:  anchor+ <- control + theta - local
                                         control <- (1 + momentum) anchor+ - momentum anchor

The weighted sum of the controls is 0 after every round, however inexact the local solutions are. The momentum of the
first round is 0 for every rho, because t = 1: its result is the mean of the local minimisers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector

__all__ = ["DualFLState", "advance", "linear_tolerance", "next_momentum", "sublinear_tolerance"]


class DualFLState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        theta.
    t : float
        The momentum's sequence, from 1.
    momentum : float
        beta of the last round: what the clients need for their controls.
    round : int
        Rounds that have counted.
    """

    primal: Vector
    t: float = 1.0
    momentum: float = 0.0
    round: int = 0


def next_momentum(t: float, rho: float) -> tuple[float, float]:
    """Return t_{n+1} and beta_n.

    Parameters
    ----------
    t : float
        t_n.
    rho : float
        In [0, 1).

    Raises
    ------
    ConfigurationError
        If rho is out of range: at 1 the formula is 0/0, above it the momentum is negative.

    References
    ----------
    Park, Xu: DualFL, equation (3.4).

    Examples
    --------
    >>> t, momentum = next_momentum(1.0, 0.0)
    >>> round(t, 6), momentum
    (1.618034, 0.0)
    """
    if not 0.0 <= rho < 1.0:
        raise ConfigurationError(f"rho={rho!r}; expected 0 <= rho < 1, in theory at most nu/L")
    square = t * t
    if math.isinf(rho * square):
        return t, (1.0 - math.sqrt(rho)) / (1.0 + math.sqrt(rho))
    lead = 1.0 - rho * square
    following = (lead + math.sqrt(lead * lead + 4.0 * square)) / 2.0
    return following, (t - 1.0) / following * (1.0 - following * rho) / (1.0 - rho)


def advance(state: DualFLState, mean: Vector, rho: float) -> DualFLState:
    """Return the state after a round.

    Parameters
    ----------
    state : DualFLState
    mean : ndarray of float64, shape (d,)
        Weighted mean of all clients' increments.
    rho : float
    """
    t, momentum = next_momentum(state.t, rho)
    return DualFLState(state.primal + mean, t, momentum, state.round + 1)


def sublinear_tolerance(round: int, *, duality: float, clients: int, gamma: float) -> float:
    """Return the gap that theorem 3.2 allows each client: 1/(N nu (n+1)^(4+gamma)).

    Parameters
    ----------
    round : int
        n, from 0.
    duality : float
        nu.
    clients : int
        N.
    gamma : float
        Above 0.
    """
    return float(1.0 / (clients * duality * (round + 1.0) ** (4.0 + gamma)))


def linear_tolerance(round: int, *, rho: float, clients: int, gamma: float) -> float:
    """Return the gap that theorem 3.3 allows each client: 1/N ((1 - sqrt(rho))/(1 + gamma))^n.

    Parameters
    ----------
    round : int
        n, from 0.
    rho : float
    clients : int
        N.
    gamma : float
        Above 0.
    """
    return float(((1.0 - math.sqrt(rho)) / (1.0 + gamma)) ** round / clients)
