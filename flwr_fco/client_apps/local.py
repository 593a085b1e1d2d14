"""The table of local solvers: the client half of every algorithm, pure functions without Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.protocol import Downlink, Plan, Uplink

__all__ = ["LocalSolver", "find_solver", "local_solver", "plan_minibatches"]


class LocalSolver(Protocol):
    """A client's work in a round."""

    def __call__(
        self, downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
    ) -> tuple[Uplink, Any]:
        """Return what the client answers, and its next state.

        Parameters
        ----------
        downlink : Downlink
            What the server says; its vectors are read-only.
        objective : Objective
            The client's loss.
        state : Any
            What this client remembers; None for a method without client state.
        rng : numpy.random.Generator
            The generator of this (seed, round, partition).
        """


_SOLVERS: dict[str, LocalSolver] = {}
_Solver = TypeVar("_Solver", bound=LocalSolver)


def local_solver(name: str) -> Callable[[_Solver], _Solver]:
    """Register a function as the local solver called `name`.

    Parameters
    ----------
    name : str
        What a strategy's ``local_solver`` says.
    """

    def register(function: _Solver) -> _Solver:
        known = _SOLVERS.get(name)
        if known is not None and getattr(known, "__module__", "") != function.__module__:
            raise ConfigurationError(f"a local solver called {name!r} exists already; give yours another name")
        _SOLVERS[name] = function
        return function

    return register


def find_solver(name: str) -> LocalSolver:
    """Return the local solver called `name`.

    Raises
    ------
    ConfigurationError
        If there is none: the server uses an algorithm that this client does not have.
    """
    if name not in _SOLVERS:
        raise ConfigurationError(
            f"the server asks for the local solver {name!r}; this client knows {', '.join(sorted(_SOLVERS))}. "
            "Import the module that registers it in the ClientApp, or install the server's version of flwr-fco"
        )
    return _SOLVERS[name]


def plan_minibatches(plan: Plan, objective: Objective, rng: np.random.Generator) -> Iterator[Batch]:
    """Return the minibatches of a round as the plan says."""
    return objective.minibatches(rng, plan.batch_size, epochs=plan.local_epochs, steps=plan.local_steps)
