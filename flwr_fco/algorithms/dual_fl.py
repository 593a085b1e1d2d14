"""DualFL: dual acceleration of exact local minimisations.

Park, Xu: DualFL, algorithm 1; their symbols in brackets::

    theta [theta] = 0, every control [zeta_j] = anchor [a_j] = 0, t = 1; nu in (0, mu], rho in [0, nu/L]
    each round, every client: local [theta_j] ~ argmin f_j(x) - nu <control, x>; send local - theta
    server:  theta <- mean(local); t+ <- (1 - rho t^2 + sqrt((1 - rho t^2)^2 + 4 t^2)) / 2
             momentum [beta] <- (t - 1)/t+ (1 - t+ rho)/(1 - rho)
    client, when the new theta arrives:  anchor+ <- control + theta - local
                                         control <- (1 + momentum) anchor+ - momentum anchor

The weighted sum of the controls is 0 after every round, however inexact the local solutions are. The momentum of the
first round is 0 for every rho, because t = 1: its result is the mean of the local minimisers. Only theta is sent down:
a client derives its control from the next broadcast.

Losses that are not strongly convex (section 4): every client adds alpha/2 ||x||^2; then nu = alpha, rho = alpha/(L +
alpha), and the limit is the minimiser of the regularized problem.

Differs from the paper in: 1. client j has weight p_j, not 1/N (``weighting="uniform"`` is the paper's); 2. the start
point is the user's model, not 0 (only the first local solver starts from it); 3. local problems are solved by the
fastest method that the loss allows, to a gradient or a gap, not by AOGM to a relative change of the value of 1e-12.

Errata: theorem 3.3's 'rho <= [0, nu/L]' is 'in'; equation (6.9b) needs the averaged theta where theta_j is printed; at
nu = mu the gap (3.6) is infinite in general, so the rule ``"gap"`` needs nu < mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Client, Downlink, Memory, Moved, Problem, Replies, Sent, Setting, To
from flwr_fco.algorithms.primal_averaging import PrimalAveraging, no_psi
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError


class DualFLState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        theta.
    t : float
        The momentum's sequence, from 1.
    momentum : float
        beta of the last round, from which the clients derive their controls.
    round : int
        Number of successful rounds.
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
    if not (0.0 <= rho < 1.0 and rho * t * t <= 2.0):
        raise ConfigurationError(f"rho={rho!r}, {t=}; expected 0 <= rho < 1, in theory at most nu/L, and rho t^2 <= 1")
    square = t * t
    lead = 1.0 - rho * square
    following = (lead + math.sqrt(lead * lead + 4.0 * square)) / 2.0
    return following, (t - 1.0) / following * (1.0 - following * rho) / (1.0 - rho)


def advance(state: DualFLState, mean: Vector, rho: float) -> DualFLState:
    """Return the state after a round.

    Parameters
    ----------
    state : DualFLState
        The state before the round.
    mean : ndarray of float64, shape (d,)
        Weighted mean of all clients' increments.
    rho : float
        In [0, 1): how quickly the momentum settles.
    """
    t, momentum = next_momentum(state.t, rho)
    return state._replace(primal=state.primal + mean, t=t, momentum=momentum, round=state.round + 1)


@dataclass(frozen=True, kw_only=True)
class DualAcceleration(PrimalAveraging):
    """Update the control zeta with the new average, then minimise f(theta) + alpha/2 ||theta||^2 - nu <zeta, theta>.

    ::

        a+ <- zeta + primal - local                 zeta <- (1 + momentum) a+ - momentum a

    The message has the vector ``primal`` (the averaged theta) and the numbers ``duality`` (nu) and ``momentum`` (beta).
    Park, Xu: DualFL, algorithm 1.

    Parameters
    ----------
    alpha : float
        Weight of the term alpha/2 ||x||^2.
    schedule : {"fixed", "sublinear", "linear"}
        Of the stopping rule's tolerance.
    gamma : float
        Of theorems 3.2 and 3.3.

    Examples
    --------
    >>> DualAcceleration.name, DualAcceleration.memory, DualAcceleration.reads
    ('dual_fl', ('control', 'anchor', 'local'), 'everyone')
    """

    name = "dual_fl"
    memory = ("control", "anchor", "local")
    reads = "everyone"
    refuses = no_psi("the clients' minimisations are all that it is made of, and they know nothing of psi")

    alpha: float = 0.0
    schedule: str = "fixed"
    gamma: float = 0.5

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Minimise with the linear term nu zeta, from the client's last solution; send theta_j - theta."""
        nu, primal = downlink.numbers["duality"], downlink.vectors["primal"]
        control, _ = _arrived(downlink, memory)
        start = primal if memory is None else memory["local"]
        local, moved = client.minimise(start, shift=nu * control, penalty=self.alpha, duality=nu)
        return {"increment": local - primal}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return zeta and a as they were in the round, and theta_j; the next message changes them."""
        control, anchor = _arrived(downlink, memory)
        return {"control": control, "anchor": anchor, "local": downlink.vectors["primal"] + sent["increment"]}

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> DualFLState:
        """Return the state before round 1."""
        return DualFLState(primal)

    def downlink(self, problem: Problem, state: DualFLState, to: To | None) -> Downlink:
        """Return theta, nu, the momentum and this round's tolerance."""
        numbers = {"duality": problem.numbers["nu"], "momentum": state.momentum}
        return super().downlink(problem, state, to)._replace(numbers=numbers, work=self._work(problem, state))

    def aggregate(self, problem: Problem, state: DualFLState, replies: Replies) -> DualFLState:
        """Return theta + mean(theta_j - theta), with the next momentum."""
        return advance(state, replies.sum() / replies.weight, problem.numbers["rho"])

    def setting(self, given: Setting, state: DualFLState | None) -> Setting:
        """Return the work with the gap as its rule, if the tolerance follows a schedule."""
        work: Any = given.work
        return given if self.schedule == "fixed" else given._replace(work=replace(work, rule="gap"))

    def _work(self, problem: Problem, state: DualFLState) -> Any:
        """Return the minimisation with this round's tolerance, if the tolerance changes.

        The gap of theorem 3.2 is 1/(N nu (n+1)^(4+gamma)), that of theorem 3.3 1/N ((1 - sqrt(rho))/(1 + gamma))^n.
        """
        work: Any = problem.plan.work
        if self.schedule == "fixed":
            return None
        if self.schedule == "linear":
            gap = ((1.0 - math.sqrt(problem.numbers["rho"])) / (1.0 + self.gamma)) ** state.round
        else:
            gap = 1.0 / (problem.numbers["nu"] * (state.round + 1.0) ** (4.0 + self.gamma))
        return replace(work, tolerance=max(gap / len(problem.asked), work.tolerance))


def _arrived(downlink: Downlink, memory: Memory | None) -> tuple[Vector, Vector]:
    """Return zeta and a of this round: the round before ends with the average that this message brings."""
    primal = downlink.vectors["primal"]
    if memory is None:
        return np.zeros_like(primal), np.zeros_like(primal)
    momentum = downlink.numbers["momentum"]
    anchor = memory["control"] + primal - memory["local"]
    return (1.0 + momentum) * anchor - momentum * memory["anchor"], anchor
