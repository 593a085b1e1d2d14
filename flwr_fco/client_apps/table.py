"""The table of local solvers: the client half of every method, and functions of your own; pure, without Flower."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import numpy as np

import flwr_fco.algorithms  # noqa: F401 (a message names one of its methods)
from flwr_fco.algorithms.contract import ClientHalf, halves
from flwr_fco.engines.run import answer
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


class LocalSolver(Protocol):
    """A client's work in a round."""

    def __call__(
        self, downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
    ) -> tuple[Uplink, Any]:
        """Return the client's answer and its next state.

        Parameters
        ----------
        downlink : Downlink
            The server's message; its vectors are read-only.
        objective : Objective
            The client's loss.
        state : Any
            The client's state; None for a method without one.
        rng : numpy.random.Generator
            The generator of this (seed, round, partition).
        """


def solver_of(half: type[ClientHalf]) -> LocalSolver:
    """Return the local solver of a method's client half."""
    solver: Any = partial(answer, half)
    solver.__module__ = half.__module__
    return cast(LocalSolver, solver)


#: The local solvers by name; see `find_solver`.
SOLVERS: dict[str, LocalSolver] = {name: solver_of(half) for name, half in halves().items()}
_Solver = TypeVar("_Solver", bound=LocalSolver)


def local_solver(name: str) -> Callable[[_Solver], _Solver]:
    """Register a function as the local solver called `name`.

    Parameters
    ----------
    name : str
        The strategy's ``local_solver``.
    """

    def register(function: _Solver) -> _Solver:
        other = SOLVERS.get(name)
        if other is not None and getattr(other, "__module__", "") != function.__module__:
            raise ConfigurationError(f"a local solver called {name!r} exists already; give yours another name")
        SOLVERS[name] = function
        return function

    return register


def find_solver(name: str) -> LocalSolver:
    """Return the local solver called `name`.

    Raises
    ------
    ConfigurationError
        If there is none, because the server uses an algorithm that this client does not have.
    """
    if name not in SOLVERS:
        # Of modules that were imported later.
        SOLVERS.update({method: solver_of(half) for method, half in halves().items() if method not in SOLVERS})
    if name not in SOLVERS:
        raise ConfigurationError(
            f"the server asks for the local solver {name!r}; this client knows {', '.join(sorted(SOLVERS))}. "
            "Import the module that registers it in the ClientApp, or install the server's version of flwr-fco"
        )
    return SOLVERS[name]
