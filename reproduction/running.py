"""Run problems in this process, and many of them in several: each finished run is a line of JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import joblib
import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.objectives import Objective, Vector
from flwr_fco.simulation import simulate
from flwr_fco.strategies import CompositeStrategy, run_of
from reproduction.problems.baselines import BASELINES, solve_baseline
from reproduction.problems.named import load_task
from reproduction.problems.tasks import Task
from reproduction.settings import RunSettings, build_strategy

#: A coefficient of this size means that the run has diverged: no problem here has a solution near it.
DIVERGED = 1e6
#: The strategy's own metrics that a round of a graph problem reports.
_GRAPH_METRICS = ("consensus-error", "tracker-norm")


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
    chosen : sequence of str, optional
        The values chosen for automatic settings, and why.
    left_out : int, default 0
        Number of replies that did not count.
    """

    settings: RunSettings
    history: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    diverged: int
    seconds: float
    chosen: Sequence[str] = ()
    left_out: int = 0


def run(settings: RunSettings) -> RunResult:
    """Run a problem in this process.

    Parameters
    ----------
    settings : RunSettings

    Returns
    -------
    RunResult

    Raises
    ------
    ConfigurationError
        If the settings do not fit the problem.
    DataNotFoundError
        If the problem's files are missing.

    Examples
    --------
    >>> result = run(RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 100}))
    >>> result.diverged, result.history[-1]["recovery-error"] < 0.5
    (0, True)
    """
    task = settings.load()
    began = time.perf_counter()
    if settings.strategy in BASELINES:
        solution = solve_baseline(task, settings.strategy, **settings.strategy_options)
        key = solution.certificate.replace(" ", "-")
        line = {"round": float(settings.num_rounds), **task.scores(solution.w), key: solution.gap}
        return RunResult(settings, [line], task.layout.unflatten(solution.w), 0, time.perf_counter() - began)
    recorder = Recorder(task, settings)
    # A run that diverges in its first round is a result too.
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            given: Any = {"evaluate_fn": recorder.evaluate, "callbacks": [recorder.record]}
            train(recorder.strategy, task, settings.exchanges, **given)
        except NothingTrainedError:
            if not recorder.diverged:
                raise
    seconds = time.perf_counter() - began
    own = run_of(recorder.strategy)
    model = {name: array.numpy() for name, array in own.arrays.items()}
    result = recorder.strategy.result
    left_out = 0 if result is None else len(result.left_out)
    chosen = [f"{key.replace('_', '-')}={value:.4g}: {own.reasons[key]}" for key, value in own.chosen.items()]
    return RunResult(settings, recorder.history, model, recorder.diverged, seconds, chosen, left_out)


def train(strategy: CompositeStrategy, task: Task, num_rounds: int, **options: Any) -> Result:
    """Run a strategy on a task's clients.

    Parameters
    ----------
    strategy : CompositeStrategy
    task : Task
    num_rounds : int
        Number of communications.
    **options
        Further arguments of :func:`flwr_fco.simulation.simulate`.
    """

    def load(context: Context) -> Objective:
        return task.clients[int(context.node_config["partition-id"])]

    given: Any = {"num_nodes": len(task.clients), "num_rounds": num_rounds, "initial_arrays": task.initial_arrays()}
    return simulate(strategy, client_app(load), progress=False, on_interrupt="raise", **given, **options)


class Recorder:
    """Evaluates on the server and keeps a line for each round; ends a run that has diverged.

    A run has diverged when a coefficient exceeds :data:`DIVERGED`, when an update overflowed, or when no reply was
    finite (the strategy skips such a round and would skip all later ones).

    Parameters
    ----------
    task : Task
    settings : RunSettings

    Attributes
    ----------
    history : list of dict
    diverged : int
    strategy : CompositeStrategy
        Built for the settings; its rates follow the plateau rule if there is one.
    """

    def __init__(self, task: Task, settings: RunSettings) -> None:
        self.task = task
        self.settings = settings
        self.history: list[dict[str, float]] = []
        self.diverged = 0
        self._plateau = Plateau(settings.plateau_patience) if settings.plateau else None
        self._stage = 0
        scaled = {} if self._plateau is None else {"scaled": self._plateau.rate}
        self.strategy = build_strategy(settings, len(task.clients), task.regularizer, **scaled)
        over_nodes = task.over_nodes and getattr(self.strategy, "mixing", None) is not None
        if settings.plateau_node >= (len(task.clients) if over_nodes else 0):
            raise ConfigurationError(
                f"plateau-node={settings.plateau_node}; expected a node's index, or -1 where there is no graph"
            )
        self._cpu_began = time.process_time()
        self._cpu_evaluating = 0.0
        self._costs = {"gradient-evaluations": 0.0, "hessian-products": 0.0, "passes": 0.0}

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the round's scores and keep its line; Flower's ``evaluate_fn``."""
        settings = self.settings
        run = run_of(self.strategy)
        w = self.task.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        if not np.abs(w).max(initial=0.0) <= DIVERGED:
            self.diverged = self.diverged or server_round * settings.stretch
        last = server_round == settings.exchanges or bool(run.state.round and run.finished())
        full = (self._due(server_round, settings.objective_every) or last) and not self.diverged
        watched = self._plateau is not None and self._due(server_round, settings.plateau_every)
        if not (full or watched or self._due(server_round, settings.structure_every) or self.diverged):
            return None
        began = time.process_time()
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._scores(w, server_round, full)
        self._cpu_evaluating += time.process_time() - began
        self.history.append({"round": float(server_round * settings.stretch), **scores})
        if watched:
            self._observe(server_round)
        return MetricRecord(dict(scores))

    def _due(self, server_round: int, every: int) -> bool:
        """Return whether this is the first communication at or after a multiple of `every` rounds."""
        return server_round * self.settings.stretch % every < self.settings.stretch

    def _scores(self, w: Vector, server_round: int, full: bool) -> dict[str, float]:
        """Return the task's scores; on a graph, if the task asks for it, their means over the nodes' points."""
        run = run_of(self.strategy)
        # All nodes start at the same point.
        graph = self.task.over_nodes and server_round > 0 and run.graph is not None
        points = cast(Any, run.method).node_points(run.problem, run.state) if graph else [w]
        found = [self.task.scores(point, full=full) for point in points]
        scores = {name: float(np.mean([own[name] for own in found])) for name in found[0]}
        metric, node = self.settings.plateau, self.settings.plateau_node
        if node >= 0 and metric in scores:
            scores[self._watched] = found[node if len(found) > 1 else 0][metric]
        if not self.task.over_nodes or server_round == 0:
            return scores
        metrics = run.method.metrics(run.problem, run.state)
        return {**scores, **{name: float(metrics[name]) for name in _GRAPH_METRICS if name in metrics}}

    @property
    def _watched(self) -> str:
        """The metric of the plateau rule, as named in a line of the history."""
        node = self.settings.plateau_node
        return self.settings.plateau if node < 0 else f"{self.settings.plateau}-node-{node}"

    def _observe(self, server_round: int) -> None:
        """Show the last line to the plateau rule, which forgets its best score where a stage begins."""
        assert self._plateau is not None
        stage = server_round // self.settings.stage_length if self.settings.stage_rounds else 0
        if stage != self._stage:
            self._stage = stage
            self._plateau.best = math.inf
        line = self.history[-1]
        if self._watched not in line:
            raise ConfigurationError(f"plateau={self._watched!r}, but a round reports {', '.join(line)}")
        self._plateau.observe(line[self._watched])

    def record(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> bool:
        """Add what the round has cost to its line; return whether the run has diverged (a callback)."""
        if self.task.costs and metrics is not None and server_round:
            # Means over the clients; a method that takes gradient steps has one gradient a step.
            gradients = metrics.get("gradient-evaluations", metrics.get("local-steps", 0.0))
            spent = {"gradient-evaluations": gradients, "hessian-products": metrics.get("hessian-products", 0.0)}
            for name, count in spent.items():
                self._costs[name] += float(cast(float, count))
            # Either reads all of a client's examples twice.
            self._costs["passes"] = sum(self._costs[name] for name in spent)
            cpu = time.process_time() - self._cpu_began - self._cpu_evaluating
            if self.history and self.history[-1]["round"] == server_round * self.settings.stretch:
                self.history[-1].update(self._costs, **{"cpu-seconds": round(cpu, 3)})
        if metrics is not None and metrics.get("skipped", 0) and not self.diverged:
            self.diverged = server_round * self.settings.stretch
        return bool(self.diverged)


class Plateau:
    """Halves the rates that it provides after `patience` scores without a new best.

    Examples
    --------
    >>> plateau = Plateau(patience=2)
    >>> rate = plateau.rate(0.1)
    >>> for score in (1.0, 1.0, 1.0):
    ...     plateau.observe(score)
    >>> rate(4)
    0.05
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.scale = 1.0
        self.best = math.inf
        self._waited = 0

    def rate(self, start: float) -> Callable[[int], float]:
        """Return a rate as a function of the round, for a strategy's ``client_lr`` or ``server_lr``."""
        return lambda server_round: start * self.scale

    def observe(self, score: float) -> None:
        """Take the next score; lower is better, and NaN is never a new best."""
        if score < self.best:
            self.best = score
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self.scale = self.scale / 2
            self._waited = 0


#: A finished run: ``settings`` (flat), ``history``, ``diverged``, ``seconds``, ``cpu-seconds``, ``model`` if asked for.
Record = dict[str, Any]


def read_records(file: Path) -> dict[str, Record]:
    """Return the finished runs of a file, by :func:`key_of` their settings; an incomplete last line does not count."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return {key_of(own["settings"]): own for own in records}


def key_of(config: Mapping[str, Any]) -> str:
    """Return what identifies a run: its settings as text."""
    return json.dumps(dict(config), sort_keys=True)


def run_all(
    jobs: Sequence[RunSettings], file: Path, do: Callable[[RunSettings], Record], workers: int = 1
) -> Iterator[tuple[int, Record]]:
    """Yield how many of some runs are finished, and each; those that a file has are not repeated.

    Parameters
    ----------
    jobs : sequence of RunSettings
    file : Path
        Each finished run is a line of it at once: a command that was stopped goes on with the runs that are missing.
    do : callable
        Makes a run, such as :func:`measured`.
    workers : int, default 1
        Processes; with 1, all is done in this one.
    """
    known = read_records(file)
    if file.is_file() and not (text := file.read_bytes()).endswith(b"\n"):
        # The next line must not be appended to the rest of a broken one.
        file.write_bytes(text[: text.rfind(b"\n") + 1])
    # Panels of several parts may show the same run.
    wanted = {key_of(own.to_config()): own for own in jobs}
    yield from enumerate((known[key] for key in wanted if key in known), start=1)
    missing = [own for key, own in wanted.items() if key not in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    parallel = joblib.Parallel(workers, return_as="generator_unordered", batch_size=1)
    found = parallel(joblib.delayed(do)(own) for own in missing) if workers > 1 else map(do, missing)
    with file.open("a", encoding="utf-8") as lines:
        for number, record in enumerate(found, start=len(wanted) - len(missing) + 1):
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            yield number, record


def measured(
    settings: RunSettings, *, gap: bool = False, array: str = "", run: Callable[[RunSettings], RunResult] = run
) -> Record:
    """Return the record of a run.

    Parameters
    ----------
    settings : RunSettings
    gap : bool, default False
        Whether to add the objective above that of the centralized solution.
    array : str, default ""
        The array of the model to keep.
    run : callable, optional
        What makes the run.
    """
    settings.load()
    began = time.process_time()
    result = run(settings)
    record: Record = {
        "settings": settings.to_config(),
        "diverged": result.diverged,
        "seconds": round(result.seconds, 3),
        "cpu-seconds": round(time.process_time() - began, 3),
        "history": result.history,
    }
    if gap and "objective" in result.history[-1]:
        best = _optimum(settings.problem, settings.seed, json.dumps(settings.problem_options, sort_keys=True))
        for line in result.history:
            if "objective" in line:
                line["gap"] = line["objective"] - best
    if array:
        record["model"] = result.arrays[array].ravel().tolist()
    return record


@cache
def _optimum(problem: str, seed: int, options: str) -> float:
    """Return the objective of the centralized solution."""
    task = load_task(problem, seed, json.loads(options))
    return task.objective(solve_baseline(task, "centralized", tol=1e-10).w)
