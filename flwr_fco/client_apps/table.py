"""The local solvers: the client half of every method, by the name under which a server asks for it."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Protocol, cast

import numpy as np

import flwr_fco.algorithms  # noqa: F401 (a message names one of its methods)
from flwr_fco.algorithms.contract import Disclosure, halves
from flwr_fco.engines.run import ENGINES, answer
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


class LocalSolver(Protocol):
    """A client's work in a round."""

    def __call__(
        self,
        downlink: Downlink,
        objective: Objective,
        state: Any,
        rng: np.random.Generator,
        disclosure: Disclosure = ...,
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
        disclosure : Disclosure, optional
            What the client's owner allows to leave; by default all.
        """


@cache
def _solver_of(half: Any) -> LocalSolver:
    if half.engine is not None and half.engine not in ENGINES:
        raise ConfigurationError(
            f"{half.__module__}.{half.__name__} says engine={half.engine!r}; expected one of {', '.join(ENGINES)}, or "
            "None for a method with a `local` of its own"
        )
    return cast(LocalSolver, partial(answer, half))


def find_solver(name: str) -> LocalSolver:
    """Return the local solver of the method called `name`.

    Raises
    ------
    ConfigurationError
        If there is none, because the server uses an algorithm that this client does not have.
    """
    half: Any = halves().get(name)
    if half is None:
        raise ConfigurationError(
            f"the server asks for the method {name!r}; this client knows {', '.join(sorted(halves()))}. Import the "
            "module of the algorithm in the ClientApp, or install the server's version of flwr-fco"
        )
    return _solver_of(half)
