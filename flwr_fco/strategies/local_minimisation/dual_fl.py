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
point is the user's model, not 0 (only the first local solver starts from it); 3. the local solver and its stopping rule
are options; the paper's are ``engine="aogm", rule="energy", tolerance=1e-12``; 4. an absent client can be given up
(``on_missing="reset"``): the remaining ones continue from zeta = a = 0 and t = 1.

Errata: theorem 3.3's 'rho <= [0, nu/L]' is 'in'; equation (6.9b) needs the averaged theta where theta_j is printed; at
nu = mu the gap (3.6) is infinite in general, so the rule ``"gap"`` needs nu < mu.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.memory import Change
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import AUTO, POSITIVE, EveryoneOptions, MemoryOptions, MinimiseOptions
from flwr_fco.server.questions.rates import LossFacts
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy
from flwr_fco.wire.protocol import Downlink, Node
from flwr_fco.work import Minimise, Work


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
    mean : ndarray of float64, shape (d,)
        Weighted mean of all clients' increments.
    rho : float
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


@dataclass(repr=False, eq=False, kw_only=True)
class DualFL(MinimiseOptions, EveryoneOptions, MemoryOptions, PrimalStrategy):
    """DualFL: accelerated exact local minimisations, O(sqrt(kappa) log 1/eps) rounds to the pooled minimiser.

    The losses must be strongly convex (with `alpha` or without) but need not be smooth: hinge losses are allowed.

    Parameters
    ----------
    nu : float or "auto", optional
        In (0, mu]: at most the modulus of strong convexity of every client's loss, such as the weight of an l2 term on
        all of its parameters. By default `alpha`, or 0.01 if that is 0. The theory does not hold for a larger nu. Only
        the rule ``"gap"`` checks it: clients refuse that rule unless they know that nu < mu. ``"auto"``: mu + alpha,
        where mu is the smallest modulus that the clients report before round 1 (nine tenths of it for the rule
        ``"gap"``).
    rho : float or "auto", optional
        In [0, nu/L], below 1: how quickly the momentum settles. By default nu / (L + alpha) if `smoothness` is given;
        otherwise 0, which needs no constant and gives O(1/n^2). ``"auto"``: nu / (L + alpha) with the largest L that
        the clients report; 0 if a loss, such as a hinge loss, does not know its L.
    smoothness : float, optional
        L, of all clients' losses; only for the default of `rho`.
    alpha : float, default 0.0
        Weight of the term alpha/2 ||x||^2, which makes the losses strongly convex; the limit is then the minimiser of
        the regularized problem.
    schedule : {"fixed", "sublinear", "linear"}, default "fixed"
        ``"fixed"``: `rule` and `tolerance` in every round. ``"sublinear"``, ``"linear"``: the rule is the gap, with the
        tolerance of theorem 3.2 or 3.3 in round n, but never below `tolerance`.
    gamma : float, default 0.5
        gamma of theorems 3.2 and 3.3.

    References
    ----------
    Park, Xu: DualFL, a duality-based federated learning algorithm with communication acceleration in the general
    convex regime, algorithm 1.

    Examples
    --------
    >>> strategy = DualFL(nu=0.01, smoothness=1.0)
    >>> strategy.nu, strategy.rho
    (0.01, 0.01)
    >>> strategy.participation
    'everyone'
    """

    local_solver: ClassVar[str] = "dual_fl"
    limit: ClassVar[Limit] = Exact("the solution", problem="smooth")
    deterministic: ClassVar[bool] = True
    source: ClassVar[str] = "[4], algorithm 1"
    sends: ClassVar[str] = "theta_j - theta"
    remembers: ClassVar[str] = "zeta_j, a_j, theta_j"
    no_psi: ClassVar[str | None] = "the clients' minimisations are all that it is made of, and they know nothing of psi"

    nu: float | Literal["auto"] | None = field(default=None, metadata=POSITIVE)
    rho: float | Literal["auto"] | None = None
    smoothness: float | None = field(default=None, metadata=POSITIVE)
    alpha: float = field(
        default=0.0, metadata={"range": (lambda alpha: 0.0 <= alpha < math.inf, "a finite number >= 0")}
    )
    schedule: Literal["fixed", "sublinear", "linear"] = "fixed"
    gamma: float = field(default=0.5, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu is None:
            self.nu = self.alpha or 0.01
        if self.rho is None:
            known = self.smoothness is not None and self.nu != AUTO
            self.rho = self.number("nu") / (float(self.smoothness or 0.0) + self.alpha) if known else 0.0
        next_momentum(1.0, self.number("rho"))

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
        gap = self.rule == "gap" or self.schedule != "fixed"
        nu = (0.9 * whole if gap else whole) if self.nu == AUTO else self.number("nu")
        # If all report 0, which contradicts strong convexity, `curvature` raises the error.
        rho = 0.0 if facts.probed else min(nu / (facts.smoothness + self.alpha or facts.curvature), 0.999)
        return {"nu": (nu, "0.9 (mu + alpha)" if gap else "mu + alpha"), "rho": (rho, "nu / (L + alpha)")}

    def work(self) -> Work:
        """Return the minimisation that clients do in a round."""
        rule = self.rule if self.schedule == "fixed" else "gap"
        return Minimise(self.engine, self.tolerance, rule, self.max_iterations)

    def work_of_round(self, problem: Problem, state: DualFLState) -> Work | None:
        """Return the minimisation with this round's tolerance, if the tolerance changes."""
        if self.schedule == "fixed":
            return None
        number, clients = state.round - state.began, len(problem.asked)
        if self.schedule == "linear":
            tolerance = linear_tolerance(number, rho=problem.numbers["rho"], clients=clients, gamma=self.gamma)
        else:
            tolerance = sublinear_tolerance(number, duality=problem.numbers["nu"], clients=clients, gamma=self.gamma)
        return Minimise(self.engine, max(tolerance, self.tolerance), "gap", self.max_iterations)

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the momentum."""
        nu, rho = (AUTO if getattr(self, name) == AUTO else f"{self.number(name):g}" for name in ("nu", "rho"))
        return [("Constants", f"nu={nu}, rho={rho}, alpha={self.alpha:g}, tolerance {self.schedule}")]

    def init(self, problem: Problem, primal: Vector) -> DualFLState:
        """Return the state before round 1."""
        return DualFLState(primal)

    def downlink(self, problem: Problem, state: DualFLState, node: Node | None) -> Downlink:
        """Return theta, nu, the momentum and alpha."""
        numbers = {"duality": problem.numbers["nu"], "momentum": state.momentum, "regularization": self.alpha}
        return super().downlink(problem, state, node)._replace(numbers=numbers)

    def aggregate(self, problem: Problem, state: DualFLState, replies: Replies) -> DualFLState:
        """Return theta + mean(theta_j - theta), with the next momentum."""
        return advance(state, replies.sum() / replies.weight, problem.numbers["rho"])

    def memories_changed(self, problem: Problem, state: DualFLState, change: Change) -> DualFLState:
        """Restart the momentum if the controls restart."""
        if change.reason is None:
            return state
        return state._replace(t=1.0, momentum=0.0, began=state.round)

    def controls(self) -> dict[tuple[int, int], Vector]:
        """Return zeta_j of the last round that counted for every client, by :attr:`Node.key` (needs the ledger).

        Their sum, weighted by the clients' weights, is 0.
        """
        memories = self.problem.clients
        if not memories.ledger:
            raise ConfigurationError('only the clients know their controls; client_state="ledger" keeps a copy')
        return {key: memories.memory(key)["control"] for key in sorted(memories.present)}

    def metrics(self, problem: Problem, state: DualFLState) -> dict[str, float | int]:
        """Return the momentum."""
        return {"momentum": float(state.momentum)}
