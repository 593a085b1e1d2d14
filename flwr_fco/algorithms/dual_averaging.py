"""Federated dual averaging: clients move a dual, the server averages duals, one proximal map gives the model.

Algorithm 3 (FedDualAvg) and algorithm 5 (FedDualAvg-OSP) of Yuan, Zaheer, Reddi (ICML 2021), their symbols in
brackets::

    server: dual [z_0] = grad h(primal [w_0]), elapsed [eta-tilde_0] = 0
    each round:
        each client: start at dual; for k = 0, 1, ..., one minibatch each, with gradient g at
            primal = retrieve(dual, elapsed + client_lr * k)                   OSP: conjugate_gradient(dual)
            dual <- dual - client_lr g
            send the increment [z_K - z_0] and its own elapsed [eta_c K]
        server: dual    <- dual + server_lr mean(increment)
                elapsed <- elapsed + server_lr mean(elapsed)
                primal   = retrieve(dual, elapsed)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). The structure that psi promises (zeros, low rank,
feasibility) is exact in the server's model, because the proximal map comes last.

Differs from the paper in: 1. elapsed is the sum of the step sizes that clients report, not eta_s eta_c r K, so unequal
and changing local work keep psi in proportion (with equal K it is the paper's); 2. clients with more steps do not
weigh more (``normalize_local_work``); 3. the default output is the last primal, the theory's average of shadow points
is ``output="shadow"``; 4. ``client="unmodified"`` is an approximation that is not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Client, Downlink, Memory, Moved, Option, Problem, Replies, Start, To, Vector
from flwr_fco.algorithms.contract.algorithm import Algorithm
from flwr_fco.algorithms.contract.choices import Average, Last, Wire
from flwr_fco.mirror_maps import Euclidean

#: Largest dual-to-weight ratio sent as float32.
FLOAT32_LIMIT = 1e3
#: Outputs that average all local steps, which clients then send.
OF_ALL_STEPS = ("shadow", "ergodic")


class DualState(NamedTuple):
    """State of federated dual averaging.

    Parameters
    ----------
    dual : ndarray of float64, shape (d,)
        z_r.
    elapsed : float
        Weight of psi: server_lr times the mean of the clients' elapsed times, summed over the rounds. With a density,
        whose psi is a constraint and has no weight, the number of rounds that have gone by.
    round : int
        Number of successful rounds, r.
    """

    dual: Vector
    elapsed: float = 0.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class DualAveraging(Algorithm):
    """Local steps z <- z - client_lr g(retrieve(z, t + client_lr k)); the server averages what they come to.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps; False is OSP, 'only server proximal'.
    output : str, default "last"
        With ``"shadow"`` clients also send z_k - z_0, k = 1..K.
    client : {"composite", "unmodified"}, default "composite"
        Whether the clients know psi.
    wire : Wire, default Wire()
        Whether clients with sparse features may send only these.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 3 and 5.

    Examples
    --------
    >>> DualAveraging.engine, DualAveraging.memory, DualAveraging.reads
    ('dual steps', (), 'mean')
    """

    name, sparse = "dual_averaging", True

    client_prox: bool = True
    output: str | Last | Average = "last"
    client: str = "composite"
    wire: Wire = field(default=Wire())

    # --- a client -------------------------------------------------------------------------------------------------

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's dual."""
        return Start(downlink.vectors["dual"])

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send z_K - z_0 and, if they are asked for, all z_k - z_0."""
        points = {} if moved.trajectory is None else {"trajectory": moved.trajectory}
        return {"increment": moved.increment, **points}

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> DualState:
        """Return the state before round 1: dual = grad h(primal), elapsed = 0."""
        return DualState(problem.h.gradient(primal))

    def downlink(self, problem: Problem, state: DualState, to: To | None) -> Downlink:
        """Return the dual and its elapsed time."""
        return Downlink(problem.plan, {"dual": state.dual}, problem.client_lr, state.elapsed)

    def aggregate(self, problem: Problem, state: DualState, replies: Replies) -> DualState:
        """Return dual + server_lr mean(increment), elapsed + server_lr mean(elapsed)."""
        dual, elapsed = replies.mean()
        dual *= problem.server_lr
        dual += state.dual
        return DualState(dual, state.elapsed + problem.server_lr * elapsed, state.round + 1)

    def retrieve(self, problem: Problem, state: DualState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)

    # --- what else it says ----------------------------------------------------------------------------------------

    def points(self, problem: Problem, before: DualState, after: DualState, replies: Replies) -> Iterable[Vector]:
        """Return the last point of the round, or the points of all its local steps."""
        if self.output not in OF_ALL_STEPS:
            yield self.retrieve(problem, after)
            return
        for k, moved in enumerate(replies.plain_mean("trajectory"), start=1):
            yield problem.retrieve(before.dual + moved, before.elapsed + problem.client_lr * k)

    def shapes(self, problem: Problem, state: DualState) -> dict[str, tuple[int, ...]]:
        """Return the shape of the increment and, if they are averaged, of all local steps."""
        points = {"trajectory": (problem.plan.steps, problem.layout.size)} if self.output in OF_ALL_STEPS else {}
        return super().shapes(problem, state) | points

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return whether psi acts in the local steps, and whether all local steps are sent."""
        options: dict[str, Option] = {"client-prox": self.client_prox, "trajectory": self.output in OF_ALL_STEPS}
        return options if self.wire.sparse else {**options, "sparse-wire": False}

    def describe(self, state: DualState | None) -> list[tuple[str, str]]:
        """Return the line about the clients."""
        theirs = "unmodified" if self.client == "unmodified" else f"composite, proximal steps ({self.client_prox})"
        return [("Clients", theirs)]


def short_wire(algorithm: Algorithm, problem: Problem, state: Any) -> bool:
    """Whether float32 is enough for a round's messages with ``wire_dtype="auto"``, in which the dual is rounded.

    For a Euclidean float32 model it is, up to 1,000 times the size of the weights. The error of float32 is 6e-8 of the
    dual, which is about the threshold plus the weight, so at most 6e-5 of the root mean square of the non-zero weights.
    The server's dual stays float64, and increments are relative to what was sent. Clients' memories, extrapolated
    points and differences of successive broadcasts need all digits.

    Parameters
    ----------
    algorithm : Algorithm
        The method.
    problem : Problem
        The model's layout, psi, h, and the round's numbers.
    state : NamedTuple
        The server's state as the round begins.
    """
    if algorithm.engine != "dual steps" or algorithm.memory or algorithm.reads != "mean":
        return False
    # Only now: elsewhere a message is for one client.
    sent = algorithm.downlink(problem, state, None).vectors
    short = all(entry.dtype in ("float32", "float16") for entry in problem.layout.optimized)
    if set(sent) != {"dual"} or not isinstance(problem.plan.mirror_map, Euclidean) or not short:
        return False
    primal, dual = algorithm.retrieve(problem, state), sent["dual"]
    count = np.count_nonzero(primal)
    size = np.sqrt(np.vdot(primal, primal) / count) if count else 0.0
    return bool(max(-dual.min(), dual.max()) <= FLOAT32_LIMIT * size)
