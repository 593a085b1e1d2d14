"""Sweeps over a grid of settings, in processes or on Ray, with each trial in process inside a task.

Every finished trial is written to ``trials.jsonl`` at once; a sweep that was stopped resumes with the missing trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.models import json_object, read_text, write_file
from flwr_fco.simulation import check_reservation, import_ray, room_of
from reproduction.runs.run import RunResult, run
from reproduction.runs.run_folder import write_csv
from reproduction.runs.settings import RunSettings, parse_value

#: The result of a trial: settings, score, the round in which it diverged, means of the metrics.
Trial = dict[str, Any]

_TRIALS, _LOCK = "trials.jsonl", ".sweep.lock"
#: What a line of that file has.
_KINDS: dict[str, Any] = {
    "settings": dict,
    "score": float,
    "diverged": int,
    "rounds": int,
    "seconds": float,
    "mean": dict,
    "last": dict,
}
#: Maximum number of bytes of that file.
_LONGEST = 2**30


@dataclass(frozen=True)
class Criterion:
    """The score of a trial: the mean of a metric over the last evaluations.

    Parameters
    ----------
    metric : str
    window : int
        Evaluations of the metric at the end of the run that are averaged.
    largest : bool, default False
        Whether larger is better.

    Examples
    --------
    >>> CRITERIA["recovery-error"]
    Criterion(metric='recovery-error', window=100, largest=False)
    """

    metric: str
    window: int
    largest: bool = False

    @property
    def worst(self) -> float:
        """The score of a trial that diverged."""
        return -math.inf if self.largest else math.inf

    def describe(self) -> str:
        """Return the criterion in words."""
        aim = "largest" if self.largest else "smallest"
        where = "in the last evaluation" if self.window == 1 else f"mean over the last {self.window} evaluations"
        return f"{aim} {self.metric}, {where}"


#: Criteria by the name that ``--rule`` uses. The first paper has `recovery-error` (B.2, B.3), `validation-objective`
#: (B.4) and `objective` (B.5), the second `l1-error` (section 7). The third and the fourth do not say how their rates
#: were chosen: `gap` and `training-loss`, and `energy-error`, are our interpretation.
CRITERIA: dict[str, Criterion] = {
    "recovery-error": Criterion("recovery-error", 100),
    "f1": Criterion("f1", 100, largest=True),
    "objective": Criterion("objective", 10),
    "validation-objective": Criterion("validation-objective", 1),
    "accuracy": Criterion("accuracy", 1, largest=True),
    "gap": Criterion("gap", 1),
    "l1-error": Criterion("l1-error", 1),
    "energy-error": Criterion("energy-error", 1),
    "training-loss": Criterion("training-loss", 1),
}


def parse_axis(key: str, text: str) -> tuple[Any, ...]:
    """Return the comma-separated values of a key.

    Parameters
    ----------
    key, text : str

    Returns
    -------
    tuple

    Raises
    ------
    ConfigurationError
        If there is none.

    Examples
    --------
    >>> parse_axis("client-lr", "0.001,0.003")
    (0.001, 0.003)
    """
    values = tuple(parse_value(part.strip()) for part in text.split(",") if part.strip())
    if not values:
        raise ConfigurationError(f"{key} has no values; expected some, such as {key}=0.001,0.003")
    return values


def expand_axes(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the settings of all trials: the grid of the axes.

    Parameters
    ----------
    axes : mapping of str to sequence of value

    Returns
    -------
    list of dict of str to value

    Examples
    --------
    >>> expand_axes({"a": [1, 2], "b": [3]})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def score_run(result: RunResult, criterion: Criterion) -> Trial:
    """Return the trial of a finished run.

    Parameters
    ----------
    result : RunResult
    criterion : Criterion

    Returns
    -------
    dict
        ``settings`` (flat), ``score``, ``diverged`` (round, or 0), ``rounds``, ``seconds``; ``mean`` and ``last`` of
        every metric (over the criterion's window).

    Raises
    ------
    ConfigurationError
        If the run has no such metric.

    Examples
    --------
    >>> trial = score_run(run(RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3})), CRITERIA["f1"])
    >>> trial["diverged"], trial["rounds"]
    (0, 3)
    """
    history = result.history
    last = {name: value for line in history for name, value in line.items() if name != "round"}
    if criterion.metric not in last and not result.diverged:
        raise ConfigurationError(
            f"{result.settings.problem} does not report {criterion.metric}; it reports {', '.join(last)}. "
            "Give another criterion."
        )
    # The other metrics are averaged over the same rounds, however often they were evaluated.
    judged = [line["round"] for line in history if criterion.metric in line][-criterion.window :]
    first = judged[0] if judged else history[-1]["round"]
    late = {name: [line[name] for line in history if name in line and line["round"] >= first] for name in last}
    mean = {name: float(np.mean(values)) for name, values in late.items() if values}
    score = mean.get(criterion.metric, math.nan)
    if result.diverged or not math.isfinite(score):
        score = criterion.worst
    return {
        "settings": result.settings.to_config(),
        "score": score,
        "diverged": result.diverged,
        "rounds": int(history[-1]["round"]),
        "seconds": round(result.seconds, 3),
        "mean": mean,
        "last": last,
    }


def best_trials(trials: Sequence[Trial], criterion: Criterion) -> dict[str, Trial]:
    """Return the best trial of each strategy; trials that differ only in the seed are averaged first.

    Parameters
    ----------
    trials : sequence of Trial
    criterion : Criterion

    Returns
    -------
    dict of str to Trial
        With the mean score over the seeds. Strategies whose trials all diverged are omitted.

    Examples
    --------
    >>> trials = [{"settings": {"strategy": "A", "client-lr": rate}, "score": rate} for rate in (0.3, 0.1)]
    >>> best_trials(trials, CRITERIA["objective"])["A"]["settings"]["client-lr"]
    0.1
    """
    seeds: dict[str, list[Trial]] = {}
    for trial in trials:
        same = {key: value for key, value in trial["settings"].items() if key != "seed"}
        seeds.setdefault(json.dumps(same, sort_keys=True), []).append(trial)
    found: dict[str, Trial] = {}
    for group in seeds.values():
        score = float(np.mean([trial["score"] for trial in group]))
        if not math.isfinite(score):
            continue
        name = str(group[0]["settings"]["strategy"])
        best = found.get(name)
        if best is None or (score > best["score"] if criterion.largest else score < best["score"]):
            found[name] = {**group[0], "score": score}
    return found


def run_sweep(
    settings: Sequence[RunSettings],
    folder: Path,
    criterion: Criterion,
    *,
    engine: str = "processes",
    workers: int = 0,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    on_trial: Callable[[Trial], None] | None = None,
) -> list[Trial]:
    """Run all trials that are not in the folder yet.

    Parameters
    ----------
    settings : sequence of RunSettings
    folder : Path
        Each finished trial is a line of ``trials.jsonl``; ``trials.csv`` is the final table.
    criterion : Criterion
    engine : {"processes", "ray", "in-process"}, default "processes"
        ``"processes"``: processes on this machine. ``"ray"``: the cluster at RAY_ADDRESS if it is set, else this
        machine; Ray listens on the network. ``"in-process"``: all trials one after another in this process.
    workers : int, default 0
        Trials at a time on this machine; 0: as many as fit.
    num_cpus, num_gpus : float, default 1 and 0
        Resources that Ray reserves for a trial.
    on_trial : callable, optional
        Called with each finished trial.

    Returns
    -------
    list of Trial
        In the order of the settings, those of an earlier sweep included.

    Raises
    ------
    ConfigurationError
        If the engine is unknown, Ray is not installed, there is no cluster at RAY_ADDRESS, no machine of it can meet
        the reservation, or another sweep is running in the folder.
    FlwrFcoError
        If a trial raised.

    Examples
    --------
    >>> import tempfile
    >>> settings = [RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3, "server-lr": s}) for s in (1.0, 3.0)]
    >>> trials = run_sweep(settings, Path(tempfile.mkdtemp()), CRITERIA["recovery-error"], engine="in-process")
    >>> best_trials(trials, CRITERIA["recovery-error"])["FedDualAvg"]["settings"]["server-lr"]
    3.0
    """
    if engine not in ("ray", "processes", "in-process"):
        raise ConfigurationError(f"engine={engine!r}; expected 'processes', 'ray' or 'in-process'")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        file = folder / _TRIALS
        done = {_key(trial["settings"]): trial for trial in read_trials(folder)}
        missing = [own for own in settings if _key(own.to_config()) not in done]

        def keep(trial: Trial) -> None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(trial) + "\n")
            done[_key(trial["settings"])] = trial
            if on_trial is not None:
                on_trial(trial)

        errors: list[BaseException] = []
        if missing and engine == "in-process":
            for own in missing:
                keep(_trial(own, criterion))
        elif missing:
            # A worker keeps the data of its last trials, so those that share data come one after the other.
            missing.sort(key=lambda own: json.dumps([own.problem, own.seed, own.problem_options]))
            calls = [(own, criterion) for own in missing]
            with results_of(_tried, calls, engine, workers, num_cpus, num_gpus, as_they_come=True) as found:
                for trial in found:
                    if isinstance(trial, BaseException):
                        errors.append(trial)
                    else:
                        keep(trial)
        if errors:
            raise FlwrFcoError(
                f"{len(errors)} of {len(missing)} trials failed; the finished trials are in {folder}. "
                f"The first error: {errors[0]}"
            )
        trials = [done[_key(own.to_config())] for own in settings]
        write_table(trials, folder / "trials.csv")
    return trials


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, where the file system has one; two sweeps would write over each other's trials."""
    with (folder / _LOCK).open("ab") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another sweep is running in {folder}; wait until it ends, or name another folder"
            ) from None
        except OSError:
            pass
        yield


def read_trials(folder: Path) -> list[Trial]:
    """Return the finished trials of a folder; an incomplete last line is ignored.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    list of Trial

    Raises
    ------
    ConfigurationError
        If a line is damaged.

    Examples
    --------
    >>> read_trials(Path("nowhere"))
    []
    """
    file = folder / _TRIALS
    if not file.is_file():
        return []
    found: list[Trial] = []
    text = read_text(file, _LONGEST)
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        # The next line must not be appended to the rest of a broken one.
        write_file(file, complete)
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            trial = json_object(line, _KINDS)
            if not isinstance(trial["settings"].get("strategy"), str):
                raise ValueError("its settings have no strategy")
            if not all(type(value) in (int, float) for value in [*trial["mean"].values(), *trial["last"].values()]):
                raise ValueError("its metrics are no numbers")
        except ValueError as error:
            raise ConfigurationError(
                f"{file} is damaged: line {number}: {error}. Remove that line: its trial is done again"
            ) from error
        found.append(trial)
    return found


def write_table(trials: Sequence[Trial], path: Path) -> None:
    """Write the trials as CSV: settings, score, diverged, rounds, seconds, the means of the metrics.

    Parameters
    ----------
    trials : sequence of Trial
    path : Path

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "trials.csv")
    >>> trial = {"settings": {"seed": 0}, "score": 1.5, "diverged": 0, "rounds": 3, "seconds": 0.1}
    >>> trial.update(mean={}, last={})
    >>> write_table([trial], path)
    >>> path.read_text().split()
    ['seed,score,diverged,rounds,seconds', '0,1.5,0,3,0.1']
    """
    rows = [
        {
            **trial["settings"],
            **{key: trial[key] for key in ("score", "diverged", "rounds", "seconds")},
            **{f"mean {name}": value for name, value in trial["mean"].items()},
            **{f"last {name}": value for name, value in trial["last"].items()},
        }
        for trial in trials
    ]
    write_csv(rows, path)


def _key(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()


def _trial(settings: RunSettings, criterion: Criterion) -> Trial:
    return score_run(run(settings), criterion)


def _tried(settings: RunSettings, criterion: Criterion) -> Trial | Exception:
    """Return a trial, or its error, which does not end the others."""
    try:
        return _trial(settings, criterion)
    except Exception as error:
        return error


@contextlib.contextmanager
def results_of(
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    engine: str,
    workers: int,
    num_cpus: float,
    num_gpus: float,
    *,
    as_they_come: bool = False,
) -> Iterator[Iterable[Any]]:
    """Yield the results of calls of a function in other processes or on Ray; what is left at the end is called off.

    Parameters
    ----------
    function : callable
        At the top of a module.
    calls : sequence of tuple
        Its arguments.
    engine : {"ray", "processes"}
    workers : int
        Calls at a time; 0: as many as there is room for.
    num_cpus, num_gpus : float
        What Ray reserves for a call.
    as_they_come : bool, default False
        Whether results come in the order in which calls end, instead of the calls' own.

    Raises
    ------
    ConfigurationError
        As :func:`ray_tasks` does.
    """
    if engine == "ray":
        with ray_tasks(workers, num_cpus, num_gpus) as (ray, task):
            yield _of_tasks(ray, [task(function).remote(*call) for call in calls], as_they_come)
        return
    order = "generator_unordered" if as_they_come else "generator"
    # One call at a time, because a result is kept as soon as it is there.
    parallel = joblib.Parallel(workers or joblib.cpu_count(), return_as=order, batch_size=1)
    with contextlib.closing(parallel(joblib.delayed(_called)(os.getpid(), function, call) for call in calls)) as found:
        yield found


def _called(parent: int, function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    _end_with(parent)
    return function(*call)


@cache
def _end_with(parent: int) -> None:
    """End this process as soon as the one that started it is gone, which a kill leaves no time to tell its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _of_tasks(ray: Any, tasks: list[Any], as_they_come: bool) -> Iterator[Any]:
    try:
        while tasks:
            done = ray.wait(tasks)[0][0] if as_they_come else tasks[0]
            tasks.remove(done)
            yield ray.get(done)
    finally:
        for task in tasks:
            ray.cancel(task)


@contextlib.contextmanager
def ray_tasks(workers: int, num_cpus: float, num_gpus: float) -> Iterator[tuple[Any, Any]]:
    """Yield the module ``ray`` and what makes tasks, on the cluster at RAY_ADDRESS or on a Ray that is started here.

    Parameters
    ----------
    workers : int
        Tasks at a time on this machine; 0: as many as fit.
    num_cpus, num_gpus : float
        Resources reserved for a task.

    Raises
    ------
    ConfigurationError
        If Ray is not installed, there is no cluster at RAY_ADDRESS, or no room for a task, which would wait forever.
    """
    check_reservation(num_cpus, num_gpus)
    if not num_cpus and not num_gpus:
        raise ConfigurationError("num_cpus=0 and num_gpus=0 leave room for all tasks at a time; reserve more")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = import_ray(os.environ.get("RAY_ADDRESS"))
    except ImportError as error:
        raise ConfigurationError("this engine needs Ray: pip install ray, or use --engine in-process") from error
    # Failed trials are not repeated here; running the same command again does the missing ones.
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus, "max_retries": 0}
    if ray.is_initialized():
        room_of(ray, num_cpus, num_gpus)
        yield ray, ray.remote(**options)
        return
    address = os.environ.get("RAY_ADDRESS")
    here: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 200_000_000}
    if workers and not address:
        # A Ray that we start has whole cores, in which more tasks may fit than requested.
        here |= {"num_cpus": math.ceil(workers * num_cpus), "resources": {"tasks": workers}}
        options["resources"] = {"tasks": 1}
    try:
        ray.init(
            address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else here)
        )
    except (ConnectionError, ValueError) as error:
        if not address:
            raise
        raise ConfigurationError(
            f"RAY_ADDRESS={address}: {error}; expected a running cluster, as `ray start --head` makes it. "
            "Unset RAY_ADDRESS to use this machine"
        ) from error
    try:
        room_of(ray, num_cpus, num_gpus)
        yield ray, ray.remote(**options)
    finally:
        ray.shutdown()
