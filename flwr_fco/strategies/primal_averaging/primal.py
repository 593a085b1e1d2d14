"""Common parts of methods whose state is the model itself, which clients receive and the user sees."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.options import (
    CommonOptions,
    EveryoneOptions,
    MemoryOptions,
    MinimiseOptions,
    RateOptions,
    WorkOptions,
)
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.wire.protocol import Downlink, Node, Option
from flwr_fco.work import Work

#: Option groups that are already in the plan, or do not affect what a state means.
_SHARED = (CommonOptions, RateOptions, WorkOptions, MemoryOptions, MinimiseOptions, EveryoneOptions)


class PrimalState(NamedTuple):
    """State of a strategy that averages primal points.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, w_r.
    round : int
        Number of successful rounds, r.
    """

    primal: Vector
    round: int = 0


@dataclass(repr=False, eq=False, kw_only=True)
class PrimalStrategy(CompositeStrategy):
    """A strategy whose state holds the model itself as `primal`; Euclidean unless a subclass says otherwise.

    Parameters
    ----------
    mirror_map : MirrorMap, default Euclidean()
        h; only the Euclidean map is possible.
    """

    euclidean: ClassVar[str | None] = "averages primal points"

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1."""
        problem.h.gradient(primal)  # raises where the map has no gradient, before any client starts there
        return PrimalState(primal)

    def downlink(self, problem: Problem, state: Any, node: Node | None) -> Downlink:
        """Return the model and the other vectors and numbers that the clients need."""
        vectors, numbers = self.vectors(state), self.numbers(state)
        return Downlink(problem.plan, vectors, problem.client_lr, 0.0, numbers, work=self.work_of_round(problem, state))

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the vectors sent to the clients.

        Parameters
        ----------
        state : NamedTuple
        """
        return {"primal": state.primal}

    def numbers(self, state: Any) -> dict[str, float]:
        """Return the numbers sent to the clients in this round.

        Parameters
        ----------
        state : NamedTuple
        """
        return {}

    def work_of_round(self, problem: Problem, state: Any) -> Work | None:
        """Return the clients' work in this round; None means the plan's.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """
        return None

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state with primal + server_lr * mean(increment)."""
        increment, _ = replies.mean()
        return PrimalState(state.primal + problem.server_lr * increment, state.round + 1)

    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the model."""
        return np.asarray(state.primal)

    def solver_options(self) -> dict[str, Option]:
        """Return the method's own options; a state saved with other values is not resumed."""
        shared = {option.name for base in _SHARED for option in fields(base)}
        own = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in shared}
        return {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}
