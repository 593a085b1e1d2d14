"""Run a named problem in this process and save the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.client_apps import client_app
from flwr_fco.errors import NothingTrainedError, RunInterrupted
from flwr_fco.objectives import Objective
from flwr_fco.simulation import simulate
from flwr_fco.strategies import run_of
from reproduction.problems.baselines import BASELINES, solve_baseline
from reproduction.problems.tasks import Task
from reproduction.runs.journal import Journal, TimedClientApp
from reproduction.runs.recorder import Recorder
from reproduction.runs.run_folder import RunFolder, RunStatus
from reproduction.runs.settings import RunSettings


class RunResult(NamedTuple):
    """The result of a run.

    Parameters
    ----------
    settings : RunSettings
    history : list of dict of str to float
        A line for each evaluated round, with ``round``.
    arrays : dict of str to ndarray
        The final model.
    diverged : int
        The round in which the run diverged and was cut; 0 if it did not.
    seconds : float
        Duration of the rounds, without loading the data.
    left_out : sequence of NamedTuple
        The replies that did not count, and why: the strategy's ``left_out``.
    stopped : int, default 0
        The round after which the run was stopped before its end; 0 if it was not.
    chosen : sequence of str
        The values chosen for automatic settings, and why.
    """

    settings: RunSettings
    history: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    diverged: int
    seconds: float
    left_out: Sequence[Any] = ()
    stopped: int = 0
    chosen: Sequence[str] = ()


def run(
    settings: RunSettings,
    *,
    on_round: Callable[[int], None] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    ray: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run a problem in this process, or with its clients on Ray.

    Parameters
    ----------
    settings : RunSettings
    on_round : callable, optional
        Called after each round with its number.
    folder : Path, optional
        Where results are written as the run proceeds; see :mod:`reproduction.runs.run_folder`.
    resume : bool, default False
        Continue the run in `folder` where it was stopped or killed, or start it if there is none. The bits are those of
        an uninterrupted run.
    stop : callable, optional
        With a `folder`: called after each communication; if it returns True, the state is saved and the run ends.
    ray : mapping of str to value, optional
        The options `workers`, `address`, `num_cpus` and `num_gpus` of :func:`flwr_fco.simulate`: the clients run on Ray
        actors. The bits are the same as in one process.

    Returns
    -------
    RunResult

    Raises
    ------
    ConfigurationError
        If the settings do not fit the problem, or the folder holds another run.
    DataNotFoundError
        If the problem's files are missing.

    Examples
    --------
    >>> result = run(RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 100}))
    >>> result.diverged, result.history[-1]["recovery-error"] < 0.5
    (0, True)
    """
    task = settings.load()
    # Before the folder is created, so that invalid settings leave no folder behind.
    recorder = None if settings.strategy in BASELINES else Recorder(task, settings)
    place = None if folder is None else RunFolder(folder, settings.to_config(), resume=resume)
    if place is not None:
        status = place.status()
        if status.finished:
            known = place.read()
            ended = status.diverged, status.seconds
            return RunResult(settings, known.metrics, known.arrays, *ended, chosen=status.chosen)
        place.begin()
    if recorder is None:
        result = _run_baseline(settings, task)
        if place is not None:
            _save(result, place)
        return result
    recorder.on_round = on_round
    if place is not None:
        return _run_in_folder(recorder, place, stop, ray)
    began = time.perf_counter()
    clients = clients_with(task.clients) if ray is None else clients_of(settings)
    _simulate(recorder, clients, recorder.evaluate, [recorder], ray=ray)
    return _result(recorder, time.perf_counter() - began)


def _run_in_folder(
    recorder: Recorder, folder: RunFolder, stop: Callable[[], bool], ray: Mapping[str, Any] | None
) -> RunResult:
    """Run with a journal, from the folder's last checkpoint if it has one."""
    settings = recorder.settings
    recorder.sink = folder.add
    clients = TimedClientApp(clients_with(recorder.task.clients))
    journal = Journal(folder, recorder, clients, stop)
    state = journal.path if journal.path.exists() else None
    # The clients' time is not measured on Ray.
    own = clients if ray is None else clients_of(settings)
    try:
        _simulate(recorder, own, journal.evaluate, [recorder, journal], state, ray)
    except RunInterrupted:
        if not journal.stopped:
            raise
    status = journal.status
    stopped = 0 if status.finished else status.exchanges * settings.stretch
    return _result(recorder, status.seconds, stopped)


def _result(recorder: Recorder, seconds: float, stopped: int = 0) -> RunResult:
    model = {name: array.numpy() for name, array in run_of(recorder.strategy).primal_arrays().items()}
    ended = recorder.diverged, seconds, recorder.left_out, stopped, recorder.chosen
    return RunResult(recorder.settings, recorder.history, model, *ended)


def _simulate(
    recorder: Recorder,
    clients: ClientApp,
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None],
    callbacks: Sequence[Any],
    resume: Path | None = None,
    ray: Mapping[str, Any] | None = None,
) -> None:
    # A run that diverges in its first round is a result too.
    with np.errstate(over="ignore", invalid="ignore"), diverging(recorder):
        simulate(
            recorder.strategy,
            clients,
            num_nodes=recorder.task.dataset.num_clients,
            num_rounds=recorder.settings.exchanges,
            initial_arrays=recorder.task.initial_arrays(),
            evaluate_fn=evaluate,
            callbacks=callbacks,
            resume=resume,
            progress=False,
            on_interrupt="raise",
            **({} if ray is None else {"engine": "ray", **ray}),
        )


@contextmanager
def diverging(recorder: Recorder) -> Iterator[None]:
    """Allow a run to end without a round that counted if the recorder knows that it has diverged."""
    try:
        yield
    except NothingTrainedError:
        if not recorder.diverged:
            raise


def partition_of(context: Context) -> int:
    """Return the index of a node's part of the data."""
    return int(context.node_config["partition-id"])


def clients_with(objectives: Sequence[Objective], held_out: Sequence[Objective] | None = None) -> ClientApp:
    """Return the ClientApp for clients with the given losses, and with `held_out` the losses that they evaluate."""
    evaluated = None if held_out is None else lambda context: held_out[partition_of(context)]
    return client_app(lambda context: objectives[partition_of(context)], load_evaluation_objective=evaluated)


def clients_of(settings: RunSettings) -> ClientApp:
    """Return the ClientApp for a problem's clients in other processes, each of which loads the problem."""
    return client_app(lambda context: settings.load().clients[partition_of(context)])


def _run_baseline(settings: RunSettings, task: Task) -> RunResult:
    began = time.perf_counter()
    solution = solve_baseline(task, settings.strategy, **settings.strategy_options)
    key = solution.certificate.replace(" ", "-")
    line = {"round": float(settings.num_rounds), **task.scores(solution.w), key: solution.gap}
    return RunResult(settings, [line], task.layout.unflatten(solution.w), 0, time.perf_counter() - began)


def save_run(result: RunResult, path: Path) -> None:
    """Write a finished run to a folder.

    Parameters
    ----------
    result : RunResult
    path : Path
        A folder that does not hold a run.

    Raises
    ------
    ConfigurationError
        If it holds a run, or cannot be created.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "run")
    >>> save_run(run(RunSettings.of("lasso-small", "centralized")), folder)
    >>> sorted(path.name for path in folder.iterdir())
    ['config.json', 'metrics.jsonl', 'model.npz', 'status.json']
    """
    _save(result, RunFolder(path, result.settings.to_config()))


def _save(result: RunResult, folder: RunFolder) -> None:
    for line in result.history:
        folder.add(line)
    own = result.settings
    exchanges = 0 if own.strategy in BASELINES else int(result.history[-1]["round"]) // own.stretch
    status = RunStatus(exchanges, True, result.diverged, round(result.seconds, 3), result.chosen)
    folder.checkpoint(status, result.arrays)
    folder.save_left_out(result.left_out)
