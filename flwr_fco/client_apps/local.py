"""The table of local solvers: the client half of every algorithm, pure functions without Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_averaging import NOTHING
from flwr_fco.objectives.base import Batch, DualAveragingKernel, Objective
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Downlink, Uplink

__all__ = ["LocalSolver", "compiled_steps", "find_solver", "local_solver", "plan_minibatches"]


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


def plan_minibatches(downlink: Downlink, objective: Objective, rng: np.random.Generator) -> Iterator[Batch]:
    """Return the minibatches of a round as the server says."""
    work = downlink.first_order
    return objective.minibatches(rng, work.batch_size, epochs=work.epochs, steps=work.steps)


def compiled_steps(
    downlink: Downlink,
    objective: Objective,
    dual: Vector,
    rng: np.random.Generator,
    *,
    psi: bool = True,
    shift: Vector | None = None,
) -> int | None:
    """Take the local steps of dual averaging an epoch at a time where psi, h and the objective allow it.

    Parameters
    ----------
    downlink : Downlink
    objective : Objective
    dual : ndarray of float64, shape (d,)
        Changed in place: z <- z - client_lr g(retrieve(z, t)) - shift in each step.
    rng : numpy.random.Generator
    psi : bool, default True
        Whether psi acts.
    shift : ndarray of float64, shape (d,), optional

    Returns
    -------
    int or None
        The number of steps; None, and no step, where a step takes more than a compiled loop can do.
    """
    plan, client_lr = downlink.plan, downlink.client_lr
    retrieval = plan.retrieval
    work = downlink.first_order
    if retrieval is None or work.batch_size is None or not _has_own_kernel(type(objective)):
        return None
    assert isinstance(objective, DualAveragingKernel)
    if not psi:
        retrieval = retrieval._replace(thresholds=NOTHING)
    move = NOTHING if shift is None else shift
    steps = 0
    for order in objective.orders(rng, work.batch_size, epochs=work.epochs, steps=work.steps):
        elapsed = downlink.elapsed + client_lr * steps
        assert order is not None
        steps += objective.dual_averaging_epoch(order, work.batch_size, retrieval, elapsed, client_lr, move, dual)
    return steps


@cache
def _has_own_kernel(kind: type[Objective]) -> bool:
    """Whether the compiled loop is that of the class itself: a subclass may have other gradients or minibatches."""
    for base in kind.__mro__:
        if "dual_averaging_epoch" in vars(base):
            return issubclass(kind, DualAveragingKernel)
        if vars(base).keys() & {"gradient", "add_gradient", "minibatches", "orders"}:
            return False
    return False
