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

Erratum: as printed, psi acts on the client and again on the server, so FedMid solves the problem with twice the
strength. That is the default here; ``server_prox=False`` or ``client_prox=False`` counts psi once.

In non-Euclidean geometries the server, as printed, adds a difference of primal points to a dual. Its fixed point is
then not the optimum, even with one local step; FedDualAvg does not have this limitation.

Differs from the paper in: 1. clients with more steps do not weigh more (``normalize_local_work``); 2. clients may be
weighted by examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Biased, DoubledStrength, Limit
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalState, PrimalStrategy
from flwr_fco.wire.protocol import Option


@dataclass(repr=False, eq=False, kw_only=True)
class FedMid(RateOptions, WorkOptions, PrimalStrategy):
    """Federated mirror descent, algorithm 2: local proximal steps, primal averaging, a server proximal step.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps.
    server_prox : bool, default True
        Whether psi acts in the server's step. With both, as printed in the paper, psi counts twice: the limit is the
        solution for 2 * strength.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 2.

    Examples
    --------
    >>> FedMid(0.5, server_prox=False)
    FedMid(fraction_train=0.5, server_prox=False)
    """

    local_solver: ClassVar[str] = "mirror_descent"
    limit: ClassVar[Limit] = DoubledStrength()
    source: ClassVar[str] = "[1], algorithm 2"
    sends: ClassVar[str] = "w_K - w_0"
    euclidean: ClassVar[str | None] = None
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = ""
    extrapolates: ClassVar[bool] = True

    client_prox: bool = True
    server_prox: bool = True

    def solver_options(self) -> dict[str, Option]:
        """Return whether psi acts in the local steps."""
        return {"client-prox": self.client_prox}

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about where psi acts."""
        return [("Proximal steps", f"client ({self.client_prox}) | server ({self.server_prox})")]

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))."""
        increment, elapsed = replies.mean()
        dual = problem.h.gradient(state.primal) + problem.server_lr * increment
        if self.server_prox:
            primal = problem.retrieve(dual, problem.server_lr * elapsed)
        else:
            primal = problem.h.conjugate_gradient(dual)
        return PrimalState(primal, state.round + 1)


@dataclass(repr=False, eq=False, kw_only=True)
class FedMidOSP(FedMid):
    """Federated mirror descent, only server proximal, algorithm 4: psi acts only in the server's step.

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi acts at all.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 4.

    Examples
    --------
    >>> FedMidOSP().client_prox
    False
    """

    limit: ClassVar[Limit] = Biased("near the solution; not as sparse")
    source: ClassVar[str] = "[1], algorithm 4"

    client_prox: bool = field(init=False, default=False)
