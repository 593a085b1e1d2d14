"""Federated mirror descent: proximal steps on the clients, averages of primal points on the server.

Algorithm 2 (FedMid) and algorithm 4 (FedMid-OSP, 'only server proximal') of Yuan, Zaheer, Reddi (ICML 2021), their
symbols in brackets::

    server: primal [w_r]
    each round:
        each client: start at primal; for each minibatch, with gradient g:
            primal <- retrieve(grad h(primal) - client_lr g, client_lr)        OSP: conjugate_gradient( . )
            send the increment [w_K - w_0] and elapsed, the sum of its step sizes
        server: primal <- retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). The mean of sparse points is not sparse (the curse of primal
averaging), and the server's single proximal step cannot undo it.

Erratum: as printed, psi acts on the client and again on the server, so FedMid solves the problem with twice a psi that
is finite; for a constraint the two are the same, 2 chi = chi. That is the default here; ``server_prox=False`` or
``client_prox=False`` counts psi once.

In non-Euclidean geometries the server, as printed, adds a difference of primal points to a dual. Its fixed point is
then not the optimum, even with one local step; FedDualAvg does not have this limitation.

Differs from the paper in: 1. clients with more steps do not weigh more (``normalize_local_work``); 2. clients may be
weighted by examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.algorithms.contract import Batch, Client, Downlink, Option, Problem, Replies, Start, Step, Vector
from flwr_fco.algorithms.primal_averaging import PrimalAveraging, PrimalState


@dataclass(frozen=True, kw_only=True)
class MirrorDescent(PrimalAveraging):
    """Proximal steps w <- retrieve(grad h(w) - client_lr g(w), client_lr), averaged as primal points.

    Parameters
    ----------
    client_prox, server_prox : bool, default True
        Whether psi acts in the local steps, and in the server's.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithms 2 and 4.

    Examples
    --------
    >>> MirrorDescent.engine, MirrorDescent.memory, MirrorDescent.reads
    ('proximal steps', (), 'mean')
    """

    name: ClassVar[str] = "mirror_descent"
    engine: ClassVar[str | None] = "proximal steps"
    refuses: ClassVar[Mapping[str, str]] = {}

    client_prox: bool = True
    server_prox: bool = True

    @staticmethod
    def local_step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a proximal step."""
        plan, rate, add_gradient = client.plan, client.rate, client.objective.add_gradient
        h, client_prox = plan.h, plan.options.get("client-prox", True)

        def step(primal: Vector, batch: Batch) -> None:
            dual = h.gradient(primal)
            add_gradient(primal, batch, -rate, dual)
            if client_prox:
                plan.point(dual, rate, primal)
            else:
                h.conjugate_gradient(dual, primal)

        return step

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return whether psi acts in the local steps."""
        return {"client-prox": self.client_prox}

    def describe(self, state: PrimalState | None) -> list[tuple[str, str]]:
        """Return the line about where psi acts."""
        return [("Proximal steps", f"client ({self.client_prox}) | server ({self.server_prox})")]

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))."""
        increment, elapsed = replies.mean()
        h, weight = problem.h, problem.server_lr * elapsed
        dual = h.gradient(state.primal) + problem.server_lr * increment
        primal = problem.retrieve(dual, weight) if self.server_prox else h.conjugate_gradient(dual)
        return PrimalState(primal, state.round + 1)
