"""The curse of primal averaging in numbers: how dense the clients' models are, and how dense their mean is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from flwr_fco.objectives import Vector
from flwr_fco.strategies import CompositeStrategy, FedDualAvg
from reproduction.pooled import density
from reproduction.running import RunResult, train
from reproduction.settings import RunSettings, build_strategy


def measure_densities(settings: RunSettings) -> RunResult:
    """Run a strategy and report the densities of the clients' models, of their mean and of the server's model.

    Parameters
    ----------
    settings : RunSettings
        Settings with a strategy that averages primal points, or with FedDualAvg.

    Returns
    -------
    RunResult
        A line for each round: ``client-density``, the mean density of the models of the round's clients;
        ``mean-density``, the density of the average of these models; ``server-density``, the density of the server's
        model.

    Examples
    --------
    >>> result = measure_densities(RunSettings.of("lasso-small", "FedMid", {"num-rounds": 2}))
    >>> result.history[-1]["client-density"] <= result.history[-1]["mean-density"]
    True
    """
    task = settings.load()
    block = task.layout["coefficients"].block
    history: list[dict[str, float]] = []

    def note(number: int, models: list[Vector], model: Vector) -> None:
        history.append(
            {
                "round": float(number),
                "client-density": float(np.mean([density(own[block]) for own in models])),
                "mean-density": density(np.mean(models, axis=0)[block]),
                "server-density": density(model[block]),
            }
        )

    began = time.perf_counter()
    strategy = noting(build_strategy(settings, len(task.clients), task.regularizer), note)
    result = train(strategy, task, settings.num_rounds, callbacks=[_stop_when_skipped])
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    short = len(history) < settings.num_rounds
    return RunResult(settings, history, arrays, len(history) + 1 if short else 0, time.perf_counter() - began)


def noting(strategy: CompositeStrategy, note: Callable[[int, list[Vector], Vector], None]) -> CompositeStrategy:
    """Return the same strategy with a note of each round: its number, the clients' models and the server's.

    Parameters
    ----------
    strategy : CompositeStrategy
        One that averages primal points, or FedDualAvg.
    note : callable
    """
    base: Any = type(strategy)
    kind: Any = base.algorithm

    class Noted(kind):  # type: ignore[misc]
        """The same method; the clients see no difference."""

        def aggregate(self, problem: Any, state: Any, replies: Any) -> Any:
            """Return the next state."""
            moved = [(uplink.vectors["increment"], uplink.step_sizes) for uplink in replies]
            if isinstance(strategy, FedDualAvg):
                models = [problem.retrieve(state.dual + own, state.elapsed + sizes) for own, sizes in moved]
            else:
                models = [state.primal + own for own, _ in moved]
            following = kind.aggregate(self, problem, state, replies)
            note(problem.round, models, self.retrieve(problem, following))
            return following

    class Measured(base):  # type: ignore[misc]
        """The same strategy with the note."""

        algorithm = Noted

    return Measured(**{option.name: getattr(strategy, option.name) for option in fields(strategy) if option.init})


def _stop_when_skipped(server_round: int, arrays: Any, metrics: Mapping[str, Any] | None) -> bool:
    return bool(metrics and metrics.get("skipped", 0))
