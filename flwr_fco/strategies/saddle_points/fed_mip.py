"""Federated mirror prox: proximal steps with an extra step on the clients, averages of primal points on the server.

Algorithm 2 (FedMiP, appendix H) of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), their symbols
in brackets::

    server: primal [z_r]
    each round:
        each client: start at primal; for k = 0, 1, ..., K-1, with two fresh batches, g the operator [g_m]:
            half [z_{k+1/2}] = retrieve(grad h(primal) - client_lr g(primal), client_lr)
            primal          <- retrieve(grad h(primal) - client_lr g(half), client_lr)
            send the increment [z_K - z_0] and elapsed, the sum of its step sizes
        server: primal <- retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))
                          server_prox=False:   primal + server_lr mean(increment)

where retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). It is the primal twin of FeDualEx and inherits FedMid's
curse: the mean of sparse points is not sparse.

Erratum: as printed, psi acts on the client and again on the server, so FedMiP solves the problem with about twice the
strength. That is the default here; ``server_prox=False`` counts psi once.

In non-Euclidean geometries the server, as printed, adds a difference of primal points to a dual. With
``server_prox=False`` it adds primal points in every geometry.

Differs from the paper in: 1. clients with more steps do not weigh more (``normalize_local_work``); 2. clients may be
weighted by examples; 3. the default output is the last point, the paper's average over the half steps is
``output="ergodic"``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Limit, NearDoubledStrength
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalState, PrimalStrategy
from flwr_fco.strategies.saddle_points.fe_dual_ex import Extragradient


@dataclass(repr=False, eq=False, kw_only=True)
class FedMiP(Extragradient, PrimalStrategy):
    """Federated mirror prox, algorithm 2 of appendix H: saddle points by primal averaging.

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi also acts in the server's step. If so, as printed in the paper, psi counts twice: the limit is near
        the solution for 2 * strength.
    output : {"last", "average", "moving-average", "ergodic"}, default "last"
        The primal point that evaluation and the user see: the last one, the mean over all rounds, or the mean over the
        last `window` rounds. ``"ergodic"``: the mean over rounds, local steps and clients of the half steps. For
        research: the uplink is K + 1 times as large, and `local_steps` is required.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 2 (appendix H).

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedMiP(regularizer=L1(0.01), server_prox=False).local_solver
    'mirror_prox'
    """

    local_solver: ClassVar[str] = "mirror_prox"
    limit: ClassVar[Limit] = NearDoubledStrength()
    source: ClassVar[str] = "[3], algorithm 2"
    sends: ClassVar[str] = "z_K - z_0"
    euclidean: ClassVar[str | None] = None

    server_prox: bool = True

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))."""
        increment, elapsed = replies.mean()
        if self.server_prox:
            dual = problem.h.gradient(state.primal) + problem.server_lr * increment
            primal = problem.retrieve(dual, problem.server_lr * elapsed)
        else:
            primal = np.asarray(state.primal + problem.server_lr * increment)
        return PrimalState(primal, state.round + 1)

    def averaged_points(
        self, problem: Problem, before: PrimalState, after: PrimalState, replies: Replies
    ) -> Iterable[Vector]:
        """Return the last point of the round, or all its half steps."""
        if self.output != "ergodic":
            yield after.primal
            return
        for moved in replies.plain_mean("trajectory"):
            yield before.primal + moved

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about where psi acts."""
        return [("Proximal steps", f"client (True) | server ({self.server_prox})")]
