"""Support, with a warning, for strategies written before 0.2, whose functions took only the state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.wire.protocol import Downlink, Node


class _NoAverage(NamedTuple):
    """Stands for the former ``self.averaging``; averages are now kept outside the state."""

    def start(self, size: int) -> Vector:
        """Return the field `total` of such a state, which is not used."""
        return np.zeros(0)

    def add(self, state: Any, point: Any) -> Any:
        """Return the state unchanged."""
        return state


def adapt(cls: Any) -> None:
    """Add the functions of the current contract to a class with ``init_state(primal)``.

    Parameters
    ----------
    cls : type
        A subclass of ``CompositeStrategy``; other classes are left unchanged.
    """
    own: dict[str, Any] = dict(vars(cls))
    if "init_state" not in own:
        return
    warnings.warn(
        f"{cls.__name__} has init_state(primal), vectors(state), aggregate(state, uplinks) and retrieve(state): since "
        "0.2 these are init(problem, primal), downlink(problem, state, node), aggregate(problem, state, uplinks) and "
        "retrieve(problem, state), and the output is averaged outside of the state; see docs/own-strategy.md",
        DeprecationWarning,
        stacklevel=4,
    )

    def init(self: Any, problem: Problem, primal: Vector) -> Any:
        return self.init_state(primal)

    def downlink(self: Any, problem: Problem, state: Any, node: Node | None) -> Downlink:
        elapsed = float(getattr(state, "elapsed", 0.0))
        return Downlink(problem.plan, self.vectors(state), problem.client_lr, elapsed)

    def last_arguments(name: str, count: int) -> Callable[..., Any]:
        """Return a method that also accepts the problem before its own arguments."""
        given = own[name]

        def call(self: Any, *arguments: Any) -> Any:
            return given(self, *arguments[-count:])

        return call

    cls.init, cls.averaging = init, _NoAverage()
    cls.downlink = last_arguments("downlink", 2) if "downlink" in own else downlink
    for name, count in (("aggregate", 2), ("retrieve", 1)):
        if name in own:
            setattr(cls, name, last_arguments(name, count))
