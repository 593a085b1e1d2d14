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

Traffic. The message has `control` beside the dual, but for where it is 0; nothing more is ever sent up.

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

from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import NO_POINTS, Algorithm, Change, Client, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.core.layout import SparseVector, Vector, dense
from flwr_fco.messages.protocol import Downlink


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
    started : int
        1 after the round 0 in which the trackers start.
    points : ndarray of float64, shape (1, d) or (0, 0)
        Of a restricted method, the primal point in which the last round began.
    """

    dual: Vector
    elapsed: float
    round: int
    control: Vector
    population: float = 0.0
    started: int = 0
    points: Vector = NO_POINTS


class GradientTracking(Algorithm):
    """Local steps z <- z - client_lr (g(retrieve(z, t)) + control - own), whose trackers sum to 0 over all clients.

    `own` is the mean of the client's gradients when it last took part, `control` the mean of `own` over all clients.
    The number ``gradient`` asks for one gradient at the start instead (round 0).

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 1 and 2; Karimireddy
    and others: SCAFFOLD (ICML 2020), algorithm 1.

    Examples
    --------
    >>> GradientTracking.name, GradientTracking.memory, GradientTracking.reads
    ('gradient_tracking', ('own',), 'sums')
    """

    name = "gradient_tracking"
    memory = ("own",)
    reads = "sums"
    sparse = "control"

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Send z_K - z_0 of steps along g + tracker; in round 0 a gradient."""
        dual = downlink.vectors["dual"]
        if "gradient" in downlink.numbers:
            return client.gradient(dual)
        return client.dual_steps(dual, _tracker(downlink, memory))

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return own - control - move, the mean of the client's gradients in this round; in round 0 its gradient."""
        if "gradient" in downlink.numbers:
            return {"own": sent["increment"]}
        assert elapsed is not None
        return {"own": -_tracker(downlink, memory) - sent["increment"] / elapsed}

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> TrackingState:
        """Return the state before round 1: dual = grad h(primal), control = 0."""
        return TrackingState(problem.h.gradient(primal), 0.0, 0, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: TrackingState, to: To | None) -> Downlink:
        """Return the dual, and the control unless it is 0."""
        vectors = {"dual": state.dual} | ({"control": state.control} if state.control.any() else {})
        numbers = {"gradient": 1.0} if problem.round == 0 else {}
        return Downlink(problem.plan, vectors, problem.client_lr, state.elapsed, numbers)

    def aggregate(self, problem: Problem, state: TrackingState, replies: Replies) -> TrackingState:
        """Return dual + server_lr mean(increment), control + sum p_m (-control - move_m)."""
        population = replies.population
        if problem.round == 0:
            return state._replace(control=replies.sum() / population, population=population, started=1)
        mean, elapsed = replies.mean(state.control)
        changes = -replies.weight * state.control - replies.moves(state.control)
        control = (state.control * (state.population or population) + changes) / population
        dual = state.dual + problem.server_lr * mean
        time = state.elapsed + problem.server_lr * elapsed
        return state._replace(dual=dual, elapsed=time, round=state.round + 1, control=control, population=population)

    def retrieve(self, problem: Problem, state: TrackingState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)

    def restart(self, problem: Problem, state: TrackingState, change: Change) -> TrackingState:
        """Return the state with `control` as the mean over the current clients."""
        population = change.population
        control = state.control * (state.population / population) if change.means is None else change.means["own"]
        return state._replace(control=control, population=population)

    def metrics(self, problem: Problem, state: TrackingState) -> dict[str, Any]:
        """Return the trackers' root mean square norm over the round's clients."""
        memories = problem.memories
        squares = list[float]()
        whole = float(state.control @ state.control)
        for own in [memories.memory(node.key)["own"] for node in problem.asked] if memories is not None else ():
            # Where a client has no features its own is 0.
            sparse = isinstance(own, SparseVector)
            here = state.control[own.indices] if sparse else state.control
            tracker = here - (own.values if sparse else own)
            squares.append(max(0.0, whole - float(here @ here)) + float(tracker @ tracker))
        return {"tracker-norm": float(np.sqrt(np.mean(squares)))} if squares else {}


def _tracker(downlink: Downlink, memory: Memory | None) -> Any:
    """Return control - own; a control of 0 is not in the message."""
    return downlink.vectors.get("control", 0.0) - (0.0 if memory is None else memory["own"])


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
    return {key: state.control - dense(memories.memory(key)["own"]) for key in sorted(memories.present)}
