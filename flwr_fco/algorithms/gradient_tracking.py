"""Federated dual averaging with gradient tracking, centralised.

Algorithm 1 (FedDA, FedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization',
for U = 11'/M, and its equation (4) for partial participation; their symbols in brackets. `own` is a client's control
variate (its mean gradient when it last took part), `control` the weighted mean of `own` over all clients::

    server: dual [z_0] = grad h(primal [w_0]), elapsed = 0
    round 0 (tracker_start="gradient"): each client sends one gradient g at w_0: own [c_0^m] = g, control [c_0] = mean g
    each round, each client of the sample:
        tracker [c_r^m of algorithm 1; c_r - c_r^m of equation (4)] = control - own
        start at dual; for k = 0, 1, ..., one minibatch each, with gradient g at
            primal = retrieve(dual, elapsed + client_lr * k)
            dual <- dual - client_lr (g + tracker)
        send the increment [z_K - z_0] and its own elapsed [eta_c K]; with move [Delta] = increment / elapsed:
        own <- own - control - move                                                      (the mean of its g)
    server: control <- control + sum over the sample of p_m (-control - move_m)          (the mean of all clients' own)
            dual    <- dual + server_lr mean(increment);  elapsed <- elapsed + server_lr mean(elapsed)
            primal   = retrieve(dual, elapsed)

The weighted sum of all clients' trackers is 0 after every round, for any sample. Local steps follow the global
gradient, so the method converges to the optimum with any number of local steps.

Traffic. If all clients took part in the last round, control = (z_{r-1} - z_r) / (server_lr mean(elapsed)): a client
that remembers the last broadcast derives it from the next one, and the traffic is FedAvg's. Otherwise `control` is sent
down as one more vector. Nothing more is ever sent up.

psi is an extension that the paper does not have. It composes through `retrieve` as in FedDualAvg; without psi
(``Zero()``) this is the paper's algorithm.

Sparse features. In columns that are missing from a client's rows, its gradients and its `own` are 0, and its dual moves
by -elapsed control, as on every client. So it sends increment + elapsed control, which is 0 there, as a sparse vector
and stores `own` as one, and the server applies the rest: mean(increment) = mean(sent) - mean(elapsed) control.

Differs from the paper in: 1. client m has weight p_m, not 1/M (``weighting="uniform"`` is the paper's); 2. clients with
more steps do not weigh more (``normalize_local_work``); 3. psi, see above.

Errata: equation (4) as printed divides by |S_r| instead of M, so `control` is not the mean of the clients' own variates
when some are absent. With `control` 0 at the start and samples of one size it is a multiple of that mean, and the
method still converges; where the sizes vary, or `control` starts as a gradient, it stalls. Here `control` is the mean.
The proof of theorem B.2 drops S_0, which holds the differences of the clients' gradients at w_0: a term that falls with
the number of rounds is missing in its bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Change, Downlink, LossFacts, Option, Problem, Replies, To, Vector
from flwr_fco.algorithms.contract.algorithm import Algorithm
from flwr_fco.algorithms.contract.choices import Everyone, Participation, Wire
from flwr_fco.algorithms.contract.client import Memory, Start, zeros_like
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.errors import ProtocolError


class TrackingState(NamedTuple):
    """State of gradient tracking.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        z_r.
    elapsed : float
        Weight of psi: server_lr times the mean of the clients' elapsed times, summed over the rounds.
    round : int
        Number of successful rounds, r.
    control : ndarray of float64, shape (d,)
        c_r, the weighted mean of all clients' own control variates.
    population : float
        Sum of the weights of all clients.
    advance : float
        Increase of `elapsed` in the last round.
    derivable : int
        1 if clients can derive `control` from the last two broadcasts.
    started : int
        1 after the round 0 in which the trackers start.
    """

    dual: Vector
    elapsed: float
    round: int
    control: Vector
    population: float = 0.0
    advance: float = 0.0
    derivable: int = 0
    started: int = 0


@dataclass(frozen=True, kw_only=True)
class GradientTracking(Algorithm):
    """Local steps z <- z - client_lr (g(retrieve(z, t)) + control - own), whose trackers sum to 0 over all clients.

    `own` is the mean of the client's gradients when it last took part, `control` the mean of `own` over all clients.
    The number ``gradient`` asks for one gradient at the start instead (round 0).

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        Whether a round 0 of one gradient each comes first, or trackers begin at 0.
    fraction_train : float, default 1.0
        With a sample, clients are sent the control.
    participation : Participation, default Participation()
        As above: a choice of nodes is a sample.
    wire : Wire, default Wire()
        Whether vectors may cross the wire as their non-zeros.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 1 and 2; Karimireddy
    and others: SCAFFOLD (ICML 2020), algorithm 1.

    Examples
    --------
    >>> GradientTracking.engine, GradientTracking.memory, GradientTracking.reads
    ('dual steps', ('own',), 'sums')
    """

    name, memory, reads, common, sparse = "gradient_tracking", ("own",), "sums", "control", True

    tracker_start: str = "gradient"
    fraction_train: float = 1.0
    participation: Participation | Everyone = field(default=Participation())
    wire: Wire = field(default=Wire())

    # --- a client -------------------------------------------------------------------------------------------------

    @staticmethod
    def hear(downlink: Downlink, memory: Memory | None) -> Downlink:
        """Return the message with the dual and the control."""
        vectors, numbers = downlink.vectors, downlink.numbers
        start = vectors["dual"] if "dual" in vectors or memory is None else memory["dual"]
        control = vectors.get("control")
        if control is None and "advance" in numbers and memory is not None:
            if not numbers["advance"] > 0:
                raise ProtocolError(f"the server's advance is {numbers['advance']!r}; expected a number > 0")
            control = (memory["dual"] - start) / numbers["advance"]
        control = np.zeros_like(start) if control is None else control
        return downlink._replace(vectors={"dual": start, "control": control})

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return a variate of 0."""
        return {"own": zeros_like(downlink)}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's dual, with the tracker control - own."""
        return Start(downlink.vectors["dual"], downlink.vectors["control"] - memory["own"])

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return the mean of the client's gradients in this round, or in round 0 its gradient."""
        if "gradient" in downlink.numbers:
            return {"own": sent["increment"]}
        assert elapsed is not None
        return {"own": memory["own"] - downlink.vectors["control"] - sent["increment"] / elapsed}

    @staticmethod
    def change(downlink: Downlink, sent: Memory, elapsed: float | None) -> Vector:
        """Return the change of the client's variate, which the server's control is the mean of."""
        assert elapsed is not None
        return -downlink.vectors["control"] - sent["increment"] / elapsed

    @staticmethod
    def keep(downlink: Downlink) -> Memory:
        """Keep the broadcast, from which the next one gives the control."""
        return {"dual": downlink.vectors["dual"]} if downlink.plan.options.get("remember", False) else {}

    # --- the server -----------------------------------------------------------------------------------------------

    @property
    def _remembers_dual(self) -> bool:
        """Whether clients keep the last broadcast, to derive `control` from the next one."""
        return self.fraction_train == 1.0 and self.participation.choose_nodes is None

    def init(self, problem: Problem, primal: Vector) -> TrackingState:
        """Return the state before round 1: dual = grad h(primal), control = 0."""
        return TrackingState(problem.h.gradient(primal), 0.0, 0, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: TrackingState, to: To | None) -> Downlink:
        """Return the smallest message from which a client knows the dual and the control; to nobody, the whole."""
        derived = (state.derivable and self._remembers_dual) or not state.control.any()
        vectors, numbers = {"dual": state.dual}, {"gradient": 1.0} if problem.round == 0 else {}
        # A client that begins anew remembers no dual from which the control would follow.
        if to is None or not derived or to.left:
            vectors["control"] = state.control
        if to is not None and problem.round > 0:
            if to.lost:
                vectors = {"dual": state.dual, "control": state.control}
            elif self._remembers_dual and not derived and to.answered_opening:
                # The dual has not moved since round 0, and this client keeps it: round 1 needs the control only.
                vectors = {"control": state.control}
            elif derived and state.derivable:
                numbers = {"advance": state.advance}
        return Downlink(problem.plan, vectors, problem.client_lr, state.elapsed, numbers)

    def aggregate(self, problem: Problem, state: TrackingState, replies: Replies) -> TrackingState:
        """Return dual + server_lr mean(increment), control + sum p_m (-control - move_m)."""
        population = replies.population
        if problem.round == 0:
            return state._replace(control=replies.sum(over=population), population=population, started=1)
        mean, elapsed = replies.mean()
        advance, dual = problem.server_lr * elapsed, state.dual + problem.server_lr * mean
        same = population == state.population or not state.control.any()
        # Then the new control is the mean of the moves, and clients can derive it from the duals.
        derivable = replies.everybody and replies.comparable and same
        if derivable:
            # Computed as the clients will derive it, so that the ledger matches their memories to the bit.
            control = (state.dual - dual) / advance
        else:
            control = state.control * (state.population or population)
            replies.changes(control)
            control /= population
        state = state._replace(dual=dual, elapsed=state.elapsed + advance, round=state.round + 1, advance=advance)
        return state._replace(control=control, population=population, derivable=int(derivable))

    def retrieve(self, problem: Problem, state: TrackingState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)

    # --- what else it says ----------------------------------------------------------------------------------------

    def restart(self, problem: Problem, state: TrackingState, change: Change) -> TrackingState:
        """Return the state with `control` as the mean over the current clients."""
        population = change.population
        control = state.control * (state.population / population) if change.means is None else change.means["own"]
        return state._replace(control=control, population=population, derivable=0)

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return whether clients keep the last broadcast."""
        options: dict[str, Option] = {"remember": self._remembers_dual}
        return options if self.wire.sparse else {**options, "sparse-wire": False}

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return 1/(L K): the graph's 1/(tau^2 L K) for a mean over all clients, where tau = 1."""
        return {"client_lr": (1.0 / (facts.curvature * facts.steps), "1/(L K)")}

    def describe(self, state: Any) -> list[tuple[str, str]]:
        """Return the line about the trackers."""
        return [("Trackers", f"start at {self.tracker_start}")]

    def metrics(self, problem: Problem, state: TrackingState) -> dict[str, float | int]:
        """Return the trackers' root mean square norm over the round's clients."""
        memories = problem.memories
        if memories is None or not problem.asked:
            return {}
        squares: list[float] = []
        total = float(state.control @ state.control)
        for node in problem.asked:
            memory: Any = memories.memory(node.key)["own"]
            control, rest = state.control, 0.0
            if isinstance(memory, SparseVector):
                control, memory = control[memory.indices], memory.values
                rest = max(0.0, total - float(control @ control))
            tracker = control - memory
            squares.append(rest + float(tracker @ tracker))
        return {"tracker-norm": float(np.sqrt(np.mean(squares)))}


def trackers(problem: Problem, state: TrackingState) -> dict[tuple[int, int], Vector]:
    """Return control - own for every current client, by :attr:`Node.key`; weighted, their sum is 0.

    Parameters
    ----------
    problem : Problem
        Problem of the last round.
    state : TrackingState
        The state after it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> own = {(7, 0): {"own": np.array([1.0])}, (9, 0): {"own": np.array([3.0])}}
    >>> problem = SimpleNamespace(memories=SimpleNamespace(present=own.keys(), memory=own.get))
    >>> trackers(problem, TrackingState(np.zeros(1), 0.0, 1, control=np.array([2.0])))
    {(7, 0): array([1.]), (9, 0): array([-1.])}
    """
    memories = problem.memories
    assert memories is not None
    return {key: state.control - dense(memories.memory(key)["own"]) for key in sorted(memories.present)}
