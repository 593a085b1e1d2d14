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
from typing import Literal, NamedTuple

from flwr_fco.algorithms.contract import Downlink, Memory, Minimise, Replies, Start, Vector, Work, zeros_like
from flwr_fco.algorithms.contract.problem import Change, LossFacts, Problem, Setting
from flwr_fco.algorithms.primal_averaging import PrimalAveraging, no_psi
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
    began : int
        Round in which the controls were zero: 0, unless clients have been given up.
    """

    primal: Vector
    t: float = 1.0
    momentum: float = 0.0
    round: int = 0
    began: int = 0


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
        The state before the round.
    mean : ndarray of float64, shape (d,)
        Weighted mean of all clients' increments.
    rho : float
        In [0, 1): how quickly the momentum settles.
    """
    t, momentum = next_momentum(state.t, rho)
    return state._replace(primal=state.primal + mean, t=t, momentum=momentum, round=state.round + 1)


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

    Examples
    --------
    >>> sublinear_tolerance(1, duality=0.5, clients=4, gamma=1.0) == 1 / (4 * 0.5 * 2**5)
    True
    """
    return float(1.0 / (clients * duality * (round + 1.0) ** (4.0 + gamma)))


def linear_tolerance(round: int, *, rho: float, clients: int, gamma: float) -> float:
    """Return the gap that theorem 3.3 allows each client: 1/N ((1 - sqrt(rho))/(1 + gamma))^n.

    Parameters
    ----------
    round : int
        n, from 0.
    rho : float
        In [0, 1): how quickly the momentum settles.
    clients : int
        N.
    gamma : float
        Above 0.

    Examples
    --------
    >>> linear_tolerance(2, rho=0.25, clients=4, gamma=1.0) == 0.25 * (0.5 / 2) ** 2
    True
    """
    return float(((1.0 - math.sqrt(rho)) / (1.0 + gamma)) ** round / clients)


def _arrived(downlink: Downlink, memory: Memory) -> tuple[Vector, Vector]:
    """Return zeta and a of this round: the round before ends with the average that this message brings."""
    momentum = downlink.numbers["momentum"]
    anchor = memory["control"] + downlink.vectors["primal"] - memory["local"]
    return (1.0 + momentum) * anchor - momentum * memory["anchor"], anchor


@dataclass(frozen=True, kw_only=True)
class DualAcceleration(PrimalAveraging):
    """Update the control zeta with the new average, then minimise f(theta) + alpha/2 ||theta||^2 - nu <zeta, theta>.

    ::

        a+ <- zeta + primal - local                 zeta <- (1 + momentum) a+ - momentum a

    The message has the vector ``primal`` (the averaged theta) and the numbers ``duality`` (nu), ``momentum`` (beta) and
    ``regularization`` (alpha, default 0). Park, Xu: DualFL, algorithm 1.

    Parameters
    ----------
    nu, rho : float or "auto"
        Weight of the control, and how quickly the momentum settles.
    smoothness : float, optional
        L.
    alpha : float
        Weight of the term alpha/2 ||x||^2.
    schedule : {"fixed", "sublinear", "linear"}
        Of the stopping rule's tolerance.
    gamma : float
        Of theorems 3.2 and 3.3.

    Examples
    --------
    >>> DualAcceleration.engine, DualAcceleration.memory, DualAcceleration.reads
    ('minimise', ('control', 'anchor', 'local'), 'everyone')
    """

    name, engine, memory, reads = "dual_fl", "minimise", ("control", "anchor", "local"), "everyone"
    refuses = no_psi("the clients' minimisations are all that it is made of, and they know nothing of psi")

    nu: float | Literal["auto"]
    rho: float | Literal["auto"]
    smoothness: float | None = None
    alpha: float = 0.0
    schedule: str = "fixed"
    gamma: float = 0.5

    # --- a client -------------------------------------------------------------------------------------------------

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return zeta = a = 0, and the model: the average that it completes is the model itself."""
        zeros = zeros_like(downlink)
        return {"control": zeros, "anchor": zeros, "local": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the client's last solution, with the linear term nu zeta."""
        numbers, (control, _) = downlink.numbers, _arrived(downlink, memory)
        shift, penalty = numbers["duality"] * control, numbers.get("regularization", 0.0)
        return Start(memory["local"], shift, base=downlink.vectors["primal"], penalty=penalty)

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return zeta and a as they were in the round, and theta; the next message changes them."""
        control, anchor = _arrived(downlink, memory)
        return {"control": control, "anchor": anchor, "local": downlink.vectors["primal"] + sent["increment"]}

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> DualFLState:
        """Return the state before round 1."""
        return DualFLState(primal)

    def numbers(self, problem: Problem, state: DualFLState) -> dict[str, float]:
        """Return nu, the momentum and alpha."""
        return {"duality": problem.numbers["nu"], "momentum": state.momentum, "regularization": self.alpha}

    def aggregate(self, problem: Problem, state: DualFLState, replies: Replies) -> DualFLState:
        """Return theta + mean(theta_j - theta), with the next momentum."""
        return advance(state, replies.sum() / replies.weight, problem.numbers["rho"])

    def restart(self, problem: Problem, state: DualFLState, change: Change) -> DualFLState:
        """Restart the momentum if the controls restart."""
        return state if change.reason is None else state._replace(t=1.0, momentum=0.0, began=state.round)

    def work_of_round(self, problem: Problem, state: DualFLState) -> Work | None:
        """Return the minimisation with this round's tolerance, if the tolerance changes."""
        if self.schedule == "fixed":
            return None
        number, clients, work = state.round - state.began, len(problem.asked), problem.plan.work
        assert isinstance(work, Minimise)
        if self.schedule == "linear":
            tolerance = linear_tolerance(number, rho=problem.numbers["rho"], clients=clients, gamma=self.gamma)
        else:
            tolerance = sublinear_tolerance(number, duality=problem.numbers["nu"], clients=clients, gamma=self.gamma)
        return replace(work, tolerance=max(tolerance, work.tolerance), rule="gap")

    def setting(self, given: Setting, state: DualFLState | None) -> Setting:
        """Return the work with the gap as its rule, if the tolerance follows a schedule."""
        work = given.work
        if self.schedule == "fixed" or not isinstance(work, Minimise):
            return given
        return given._replace(work=replace(work, rule="gap"))

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return nu = mu + alpha and rho = nu / (L + alpha).

        Raises
        ------
        ConfigurationError
            If some loss is not strongly convex and alpha is 0.
        """
        whole = facts.convexity + self.alpha
        if not whole > 0.0:
            raise ConfigurationError(
                "nu='auto': the clients' losses are not strongly convex, as far as they know; give alpha > 0, or nu by "
                "hand"
            )
        work = problem.plan.work
        gap = isinstance(work, Minimise) and work.rule == "gap"
        nu = (0.9 * whole if gap else whole) if self.nu == "auto" else float(self.nu)
        # If all report 0, which contradicts strong convexity, `curvature` raises the error.
        rho = 0.0 if facts.probed else min(nu / (facts.smoothness + self.alpha or facts.curvature), 0.999)
        return {"nu": (nu, "0.9 (mu + alpha)" if gap else "mu + alpha"), "rho": (rho, "nu / (L + alpha)")}

    def describe(self, state: DualFLState | None) -> list[tuple[str, str]]:
        """Return the line about the constants."""
        nu, rho = (value if isinstance(value, str) else f"{value:g}" for value in (self.nu, self.rho))
        return [("Constants", f"nu={nu}, rho={rho}, alpha={self.alpha:g}, tolerance {self.schedule}")]


def controls(problem: Problem) -> dict[tuple[int, int], Vector]:
    """Return zeta_j of the last round that counted for every client, by :attr:`Node.key`; weighted, their sum is 0.

    Parameters
    ----------
    problem : Problem
        Problem of the last round.
    """
    memories = problem.memories
    assert memories is not None
    return {key: memories.memory(key)["control"] for key in sorted(memories.present)}
