"""Methods whose state is the model itself, which clients receive and the user sees: FedAvg, and mirror descent.

FedAvg on this package's objectives, known in theory as local SGD: McMahan, Moore, Ramage, Hampson, y Arcas (AISTATS
2017), algorithm 1; their symbols in brackets::

    each client of the sample: start at primal [w_t]; for each minibatch:  primal <- primal - client_lr [eta] gradient
        send the increment
    server: primal <- primal + server_lr mean(increment)

and with subgradients of psi ('FedAvg (d)' of Yuan, Zaheer, Reddi 2021, section 5), the baseline that never produces
exact zeros::

        primal <- primal - client_lr (gradient + s)      s in the subdifferential of psi, sign(0) = 0

Differs from the papers in: 1. a server rate (1.0 is the papers'); 2. clients with more steps do not weigh more
(``normalize_local_work``); 3. constraints contribute no subgradient, so the iterates may leave the set; 4. s is that of
the gradient's point; the authors' public code takes it at the point after the gradient step.


Federated mirror descent: proximal steps on the clients, averages of primal points on the server.

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
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import NO_POINTS, Algorithm, Client, Memory, Moved, Problem, Replies, Sent, To
from flwr_fco.core.layout import Vector
from flwr_fco.messages.protocol import Downlink
from flwr_fco.objectives.base import Batch


class PrimalState(NamedTuple):
    """State of a method that averages primal points.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, w_r.
    round : int
        Number of successful rounds, r.
    points : ndarray of float64, shape (K, d) or (0, 0)
        Points of the last round's local steps, for an output that averages them.

    Examples
    --------
    >>> PrimalState(np.zeros(2)).round
    0
    """

    primal: Vector
    round: int = 0
    points: Vector = NO_POINTS


class PrimalAveraging(Algorithm):
    """A method whose state holds the model itself as `primal`; Euclidean unless a subclass says otherwise.

    Examples
    --------
    >>> class Mine(PrimalAveraging):
    ...     def local(self, client, downlink, memory):
    ...         return client.dual_steps(downlink.vectors["primal"], psi=False)
    >>> Mine().retrieve(None, PrimalState(np.array([1.0, 2.0])))
    array([1., 2.])
    """

    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "averages primal points"}

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        problem.h.gradient(primal)  # raises where the map has no gradient, before any client starts there
        return PrimalState(primal, points=problem.points())

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the model."""
        return Downlink(problem.plan, {"primal": state.primal}, problem.client_lr)

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state with primal + server_lr mean(increment)."""
        increment, _ = replies.mean()
        return state._replace(primal=state.primal + problem.server_lr * increment, round=state.round + 1)

    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the model."""
        return np.asarray(state.primal)


def no_psi(why: str) -> Mapping[str, str]:
    """Return what a method refuses that averages primal points and has no place for psi."""
    return {**PrimalAveraging.refuses, "regularizer": why}


class GradientSteps(PrimalAveraging):
    """Steps x <- x - client_lr g(x): FedAvg, dual averaging's steps without psi.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, y Arcas: Communication-efficient learning of deep networks from decentralized data
    (AISTATS 2017), algorithm 1.

    Examples
    --------
    >>> GradientSteps.name, GradientSteps.memory, GradientSteps.reads
    ('gradient_steps', (), 'mean')
    """

    name = "gradient_steps"
    refuses = no_psi("its local steps are plain gradient steps (FedAvgSubgradient takes subgradients)")

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take gradient steps."""
        return client.dual_steps(downlink.vectors["primal"], psi=False)


class SubgradientSteps(PrimalAveraging):
    """Subgradient steps w <- w - client_lr (g(w) + s(w)), s in the subdifferential of psi, sign(0) = 0.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.

    Examples
    --------
    >>> SubgradientSteps.name, SubgradientSteps.memory, SubgradientSteps.reads
    ('subgradient', (), 'mean')
    """

    name: ClassVar[str] = "subgradient"

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take subgradient steps."""

        def step(primal: Vector, batch: Batch) -> None:
            direction = client.plan.psi.subgradient(primal)
            # A copy: a loss of one's own may write into its argument.
            client.objective.add_gradient(primal.copy(), batch, 1.0, direction)
            primal -= client.rate * direction

        return client.steps(downlink.vectors["primal"], step)


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
    >>> MirrorDescent.name, MirrorDescent.memory, MirrorDescent.reads
    ('mirror_descent', (), 'mean')
    """

    name: ClassVar[str] = "mirror_descent"
    refuses: ClassVar[Mapping[str, str]] = {}

    client_prox: bool = True
    server_prox: bool = True

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take proximal steps."""
        return client.proximal_steps(downlink.vectors["primal"], psi=self.client_prox)

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return retrieve(grad h(primal) + server_lr mean(increment), server_lr mean(elapsed))."""
        increment, elapsed = replies.mean()
        h = problem.h
        dual = h.gradient(state.primal) + problem.server_lr * increment
        primal = problem.retrieve(dual, problem.server_lr * elapsed) if self.server_prox else h.conjugate_gradient(dual)
        return state._replace(primal=primal, round=state.round + 1)
