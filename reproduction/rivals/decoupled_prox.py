"""Proximal gradient steps with a correction of the clients' drift, psi decoupled from the communication.

Zhang, Hu, Johansson (2023), their symbols in brackets; K local steps, P_s the proximal map of s psi::

    server: point [x-bar], 0 common
    each round:
        start <- P_(server_lr client_lr K)(point)
        each client: dual [z-hat] <- start; for k < K:
            w <- P_(client_lr k)(dual);  dual <- dual - client_lr (g(w) + common - own) [c_i = common - own]
            own <- mean of the K gradients; send dual - start
        server: point <- start + server_lr mean(dual - start);  common <- mean(own)

With psi = 0 it is gradient tracking (FedDAGT). FedDAGT's dual sums all steps and psi's weight grows with it; here psi
weighs what one round weighs, as in a proximal gradient method. Exact for any K with exact gradients and all clients.

The paper's own text was not at hand: the fixed point is tested, the steps were not compared with algorithm 1 line by
line. Somebody who has it should.

Differs from the paper, as far as is known, in: 1. the server sends ``start`` and ``common``, two vectors; the paper's
clients compute both from ``point`` and what they remember, which a client that missed a round could not; 2. the first
start is the model as it is given, without psi; 3. client m has weight p_m, not 1/M; 4. clients with more steps do not
weigh more (``normalize_local_work``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flwr_fco.algorithms import Algorithm, Change, Client, Downlink, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.objectives import Vector
from flwr_fco.strategies import Everyone, Ledger, StepStrategy, strategy


class DecoupledState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        x-bar, before psi.
    common : ndarray of float64, shape (d,)
        Mean of the clients' mean gradients of the last round.
    weight : float
        Of psi: server_lr client_lr K of the last round, 0 before round 1.
    round : int
        Number of successful rounds.
    """

    point: Vector
    common: Vector
    weight: float = 0.0
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class Decoupled(Algorithm):
    """Zhang, Hu, Johansson: Composite federated learning with heterogeneous data (2023), algorithm 1."""

    name = "decoupled_prox"
    memory = ("own",)
    reads = "everyone"
    refuses = {"mirror_map": "its server averages primal points"}

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Begin at the server's point, with the correction."""
        return client.dual_steps(downlink.vectors["start"], _correction(downlink, memory))

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return the mean of the client's gradients."""
        assert elapsed is not None
        return {"own": -_correction(downlink, memory) - sent["increment"] / elapsed}

    def init(self, problem: Problem, primal: Vector) -> DecoupledState:
        """Return the state before round 1."""
        return DecoupledState(primal, np.zeros(primal.size))

    def downlink(self, problem: Problem, state: DecoupledState, to: To | None) -> Downlink:
        """Return the start, psi applied, and the mean of the gradients."""
        vectors = {"start": self.retrieve(problem, state), "common": state.common}
        return Downlink(problem.plan, vectors, problem.client_lr)

    def aggregate(self, problem: Problem, state: DecoupledState, replies: Replies) -> DecoupledState:
        """Return the point after the clients' mean move; their corrections sum to 0."""
        mean, elapsed = replies.mean()
        point = self.retrieve(problem, state) + problem.server_lr * mean
        return DecoupledState(point, -mean / elapsed, problem.server_lr * elapsed, state.round + 1)

    def retrieve(self, problem: Problem, state: DecoupledState) -> Vector:
        """Return the proximal map of the point."""
        return problem.retrieve(state.point, state.weight)

    def restart(self, problem: Problem, state: DecoupledState, change: Change) -> DecoupledState:
        """Return the state with the mean over the current clients."""
        return state if change.means is None else state._replace(common=change.means["own"])


def _correction(downlink: Downlink, memory: Memory | None) -> Vector:
    """Return common - own; a client that begins is not corrected."""
    common = downlink.vectors["common"]
    return np.zeros_like(common) if memory is None else np.asarray(common - memory["own"])


@strategy
class DecoupledProx(StepStrategy):
    """Proximal gradient steps with a drift correction: exact for any local work, all clients in every round.

    References
    ----------
    Zhang, Hu, Johansson: Composite federated learning with heterogeneous data (ICASSP 2024, arXiv 2309.01795),
    algorithm 1.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> DecoupledProx(client_lr=0.1, work=Steps(5)).work.steps
    5
    """

    algorithm = Decoupled
    theory = "1/(L K)"
    participation: Everyone = field(default=Everyone())
    client_state: Ledger = field(default=Ledger())
