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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import NO_POINTS, Algorithm, Client, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.core.layout import Vector
from flwr_fco.messages.protocol import Downlink


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
    points : ndarray of float64, shape (K, d) or (0, 0)
        Points of the last round's local steps, for an output that averages them.
    """

    dual: Vector
    elapsed: float = 0.0
    round: int = 0
    points: Vector = NO_POINTS


@dataclass(frozen=True, kw_only=True)
class DualAveraging(Algorithm):
    """Local steps z <- z - client_lr g(retrieve(z, t + client_lr k)); the server averages what they come to.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps; False is OSP, 'only server proximal'.
    output : str, default "last"
        With ``"shadow"`` clients also send z_k - z_0, k = 1..K.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 3 and 5.

    Examples
    --------
    >>> DualAveraging.name, DualAveraging.memory, DualAveraging.reads
    ('dual_averaging', (), 'mean')
    """

    name = "dual_averaging"
    sparse = True

    client_prox: bool = True
    output: str | Last | Average = "last"

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Send z_K - z_0 and, if they are asked for, all z_k - z_0."""
        return client.dual_steps(downlink.vectors["dual"], psi=self.client_prox)

    def init(self, problem: Problem, primal: Vector) -> DualState:
        """Return the state before round 1: dual = grad h(primal), elapsed = 0."""
        return DualState(problem.h.gradient(primal), points=problem.points())

    def downlink(self, problem: Problem, state: DualState, to: To | None) -> Downlink:
        """Return the dual and its elapsed time."""
        return Downlink(problem.plan, {"dual": state.dual}, problem.client_lr, state.elapsed)

    def aggregate(self, problem: Problem, state: DualState, replies: Replies) -> DualState:
        """Return dual + server_lr mean(increment), elapsed + server_lr mean(elapsed)."""
        dual, elapsed = replies.mean()
        dual *= problem.server_lr
        dual += state.dual
        following = DualState(dual, state.elapsed + problem.server_lr * elapsed, state.round + 1, state.points)
        if not problem.plan.sends_every_step:
            return following
        duals = enumerate(state.dual + replies.plain_mean("trajectory"), start=1)
        points = [problem.retrieve(z, state.elapsed + problem.client_lr * k) for k, z in duals]
        return following._replace(points=np.array(points))

    def retrieve(self, problem: Problem, state: DualState) -> Vector:
        """Return retrieve(dual, elapsed), the primal point."""
        return problem.retrieve(state.dual, state.elapsed)
