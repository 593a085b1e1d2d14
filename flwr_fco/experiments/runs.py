"""A run of a named problem in this process, and what it leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flwr_fco.client_apps import client_app
from flwr_fco.experiments.baselines import BASELINES, solve_baseline
from flwr_fco.experiments.recorder import Recorder
from flwr_fco.experiments.run_folder import RunFolder
from flwr_fco.experiments.settings import RunSettings
from flwr_fco.experiments.tasks import Task
from flwr_fco.objectives import Objective
from flwr_fco.simulation import simulate

__all__ = ["RunResult", "run", "save_run"]


class RunResult(NamedTuple):
    """What a run found.

    Parameters
    ----------
    settings : RunSettings
    history : list of dict of str to float
        A line for each evaluated round, with ``round``.
    arrays : dict of str to ndarray
        The final model.
    diverged : int
        The round in which the run was cut; 0 if it was not.
    seconds : float
        Of the rounds, without loading the data.
    left_out : sequence of NamedTuple
        Which replies did not count, and why: the strategy's ``left_out``.
    """

    settings: RunSettings
    history: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    diverged: int
    seconds: float
    left_out: Sequence[Any] = ()


def run(
    settings: RunSettings,
    *,
    sink: Callable[[Mapping[str, float]], None] | None = None,
    on_round: Callable[[int], None] | None = None,
) -> RunResult:
    """Run a problem in this process.

    Parameters
    ----------
    settings : RunSettings
    sink : callable, optional
        Called with each line of metrics.
    on_round : callable, optional
        Called with the round after each.

    Returns
    -------
    RunResult

    Raises
    ------
    ConfigurationError
        If the settings do not fit the problem.
    DataNotFoundError
        If the problem's files are not there.

    Examples
    --------
    >>> result = run(RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 100}))
    >>> result.diverged, result.history[-1]["recovery-error"] < 0.5
    (0, True)
    """
    task = settings.load()
    if settings.strategy in BASELINES:
        return _run_baseline(settings, task, sink)
    objectives = task.clients
    recorder = Recorder(task, settings, sink, on_round)

    def load_objective(context: Context) -> Objective:
        return objectives[int(context.node_config["partition-id"])]

    began = time.perf_counter()
    with np.errstate(over="ignore", invalid="ignore"):
        result = simulate(
            recorder.strategy,
            client_app(load_objective),
            num_nodes=len(objectives),
            num_rounds=settings.exchanges,
            initial_arrays=task.initial_arrays(),
            evaluate_fn=recorder.evaluate,
            callbacks=[recorder.record],
            progress=False,
        )
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    seconds = time.perf_counter() - began
    return RunResult(settings, recorder.history, arrays, recorder.diverged, seconds, recorder.left_out)


def _run_baseline(settings: RunSettings, task: Task, sink: Callable[[Mapping[str, float]], None] | None) -> RunResult:
    began = time.perf_counter()
    solution = solve_baseline(task, settings.strategy, **settings.strategy_options)
    key = solution.certificate.replace(" ", "-")
    line = {"round": float(settings.num_rounds), **task.scores(solution.w), key: solution.gap}
    if sink is not None:
        sink(line)
    return RunResult(settings, [line], task.layout.unflatten(solution.w), 0, time.perf_counter() - began)


def save_run(result: RunResult, path: Path) -> None:
    """Write a finished run to a folder.

    Parameters
    ----------
    result : RunResult
    path : Path
        Must not hold a run.

    Raises
    ------
    ConfigurationError
        If it holds a run, or cannot be made.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "run")
    >>> save_run(run(RunSettings.of("lasso-small", "centralized")), folder)
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'metrics.jsonl', 'model.npz']
    """
    folder = RunFolder(path, result.settings.to_config())
    for line in result.history:
        folder.add(line)
    folder.save_model(result.arrays)
    folder.save_left_out(result.left_out)
