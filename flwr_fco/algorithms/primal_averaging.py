"""Methods whose state is the model itself, which clients receive and the user sees; among them FedAvg.

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
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Batch, Change, Downlink, Option, Problem, Replies, To, Vector, Work
from flwr_fco.algorithms.contract.client import Client, Memory, Start, Step


class PrimalState(NamedTuple):
    """State of a method that averages primal points.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, w_r.
    round : int
        Number of successful rounds, r.

    Examples
    --------
    >>> PrimalState(np.zeros(2)).round
    0
    """

    primal: Vector
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class PrimalAveraging(Algorithm):
    """A method whose state holds the model itself as `primal`; Euclidean unless a subclass says otherwise.

    Examples
    --------
    >>> class Mine(PrimalAveraging):
    ...     engine = "minimise"
    >>> Mine().retrieve(None, PrimalState(np.array([1.0, 2.0])))
    array([1., 2.])
    """

    engine: ClassVar[str | None] = "primal steps"
    refuses: ClassVar[Mapping[str, str]] = {"mirror_map": "averages primal points"}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's model."""
        return Start(downlink.vectors["primal"])

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        problem.h.gradient(primal)  # raises where the map has no gradient, before any client starts there
        return PrimalState(primal)

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the model and the numbers that the clients need."""
        numbers, work = self.numbers(problem, state), self.work_of_round(problem, state)
        return Downlink(problem.plan, {"primal": state.primal}, problem.client_lr, 0.0, numbers, work=work)

    def numbers(self, problem: Problem, state: Any) -> dict[str, float]:
        """Return the numbers sent to the clients in this round.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        """
        return {}

    def work_of_round(self, problem: Problem, state: Any) -> Work | None:
        """Return the clients' work in this round; None means the plan's.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        """
        return None

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state with primal + server_lr mean(increment)."""
        increment, _ = replies.mean()
        return PrimalState(state.primal + problem.server_lr * increment, state.round + 1)

    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the model."""
        return np.asarray(state.primal)

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return the method's own options; a state saved with other values is not resumed."""
        options = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in options.items() if isinstance(value, bool | int | float | str)}


def no_psi(why: str) -> Mapping[str, str]:
    """Return what a method refuses that averages primal points and has no place for psi."""
    return {**PrimalAveraging.refuses, "regularizer": why}


@dataclass(frozen=True, kw_only=True)
class GradientSteps(PrimalAveraging):
    """Steps x <- x - client_lr g(x): FedAvg.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, y Arcas: Communication-efficient learning of deep networks from decentralized data
    (AISTATS 2017), algorithm 1.

    Examples
    --------
    >>> GradientSteps.engine, GradientSteps.memory, GradientSteps.reads
    ('gradient steps', (), 'mean')
    """

    name, engine = "gradient_steps", "gradient steps"
    refuses = no_psi("its local steps are plain gradient steps (FedAvgSubgradient takes subgradients)")

    @staticmethod
    def local_step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a gradient step."""
        rate, gradient_of, gradient = client.rate, client.objective.gradient, np.empty_like(start.point)

        def step(point: Vector, batch: Batch) -> None:
            point -= rate * gradient_of(point, batch, gradient)

        return step


@dataclass(frozen=True, kw_only=True)
class SubgradientSteps(PrimalAveraging):
    """Subgradient steps w <- w - client_lr (g(w) + s(w)), s in the subdifferential of psi, sign(0) = 0.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.

    Examples
    --------
    >>> SubgradientSteps.engine, SubgradientSteps.memory, SubgradientSteps.reads
    ('primal steps', (), 'mean')
    """

    name: ClassVar[str] = "subgradient"

    @staticmethod
    def local_step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a subgradient step."""
        psi, rate, add_gradient = client.plan.psi, client.rate, client.objective.add_gradient

        def step(primal: Vector, batch: Batch) -> None:
            direction = psi.subgradient(primal)
            add_gradient(primal, batch, 1.0, direction)
            primal -= rate * direction

        return step


class MeanState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, which clients are sent.
    mean : ndarray of float64, shape (d,)
        Weighted mean over all clients of the quantity that the method names; zeros, or its start value, before round 1.
    round : int
        Number of successful rounds.
    population : float
        Sum of the weights of all clients behind `mean`; 0 before round 1.

    Examples
    --------
    >>> MeanState(np.zeros(2), np.array([1.0, -1.0]), round=3, population=4.0).mean
    array([ 1., -1.])
    """

    primal: Vector
    mean: Vector
    round: int = 0
    population: float = 0.0


def rescaled(state: MeanState, population: float) -> MeanState:
    """Return the state with its mean taken over another population; the sum stays the same.

    Parameters
    ----------
    state : MeanState
        The state, with its mean over the former population.
    population : float
        Sum of the weights of all clients.

    Examples
    --------
    >>> rescaled(MeanState(np.zeros(1), np.array([3.0]), population=2.0), 6.0).mean
    array([1.])
    """
    if state.population in (0.0, population):
        return state._replace(population=population)
    return state._replace(mean=state.mean * (state.population / population), population=population)


@dataclass(frozen=True, kw_only=True)
class MeanOfMemories(PrimalAveraging):
    """A method that samples clients and keeps the mean of what all of them remember.

    Examples
    --------
    >>> class Mine(MeanOfMemories):
    ...     def part_of(self, remembered):
    ...         return remembered["own"]
    >>> Mine().part_of({"own": np.array([1.0, 2.0])})
    array([1., 2.])
    """

    engine, reads = "minimise", "sums"

    @abstractmethod
    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return the linear function of a client's memory that the mean is over.

        Parameters
        ----------
        remembered : mapping of str to ndarray
            A client's memory, or a weighted sum of memories.
        """

    def init(self, problem: Problem, primal: Vector) -> MeanState:
        """Return the state before round 1."""
        return MeanState(primal, np.zeros(primal.size))

    def restart(self, problem: Problem, state: MeanState, change: Change) -> MeanState:
        """Return the state with the mean over the current clients."""
        if change.means is None:
            return rescaled(state, change.population)
        return state._replace(mean=self.part_of(change.means), population=change.population)
