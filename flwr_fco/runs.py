"""A run of a named problem: its settings from keys and values, its metrics round by round, its folder."""

from __future__ import annotations

import inspect
import logging
import math
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from numpy.typing import NDArray

from flwr_fco import _flower
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps.named import named_map
from flwr_fco.objectives import Objective
from flwr_fco.parameters import Vector
from flwr_fco.problems import Task, find_problem, load_task, solve_baseline
from flwr_fco.regularizers import Regularizer
from flwr_fco.run_folder import RunFolder
from flwr_fco.simulation import simulate
from flwr_fco.strategies import STRATEGIES, CompositeStrategy, MultistepReFedDAGT, Plateau, Stage
from flwr_fco.strategies.base import CompositeOptions
from flwr_fco.strategies.decentralized import GraphStrategy

__all__ = [
    "BASELINES",
    "STRATEGIES",
    "Recorder",
    "RunResult",
    "RunSettings",
    "build_strategy",
    "parse_assignments",
    "parse_value",
    "run",
    "save_run",
]

#: What can stand in a strategy's place: solutions without a federation.
BASELINES = {
    "centralized": "all data in one place, solved by proximal gradient, with a certificate",
    "local": "the data of one client (--set client=3), solved likewise",
}
#: Strategies that a length of stages makes sense for.
_STAGED = tuple(name for name, kind in STRATEGIES.items() if issubclass(kind, MultistepReFedDAGT))
#: A coefficient of this size means that the run has diverged: no problem here has a solution near it.
DIVERGED = 1e6

#: Metrics of the strategy's own that a round of a problem over a graph reports.
_GRAPH_METRICS = ("consensus-error", "tracker-norm")
#: Settings that a configuration names only where they are not the default: older run folders do not have them.
_OCCASIONAL = ("mirror_map", "stretch", "plateau", "plateau_every", "plateau_patience", "stage_rounds")

#: Strategy options that are decided by the problem or by other settings.
_OWN = frozenset(
    {
        "regularizer",
        "mirror_map",
        "client_lr",
        "server_lr",
        "local_epochs",
        "local_steps",
        "batch_size",
        "stages",
        "seed",
        "apply_to",
        "pass_through",
        "fraction_train",
        "fraction_evaluate",
        "min_train_nodes",
        "min_evaluate_nodes",
        "min_available_nodes",
        "weighted_by_key",
        "arrayrecord_key",
        "configrecord_key",
        "train_metrics_aggr_fn",
        "evaluate_metrics_aggr_fn",
        "node_timeout",
    }
)


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run depends on.

    Parameters
    ----------
    problem : str
        A name in :data:`flwr_fco.problems.PROBLEMS`.
    strategy : str
        A name in :data:`STRATEGIES` or :data:`BASELINES`.
    seed : int, default 0
        Of data, split, samples of clients and minibatches.
    client_lr, server_lr : float
        Learning rates, > 0.
    num_rounds : int
        >= 1.
    clients_per_round : int
        Drawn at random in each round; at most the number of clients, 0: all of them.
    batch_size : int
        0: full batches.
    local_epochs : int
        Passes over a client's data in a round; not used where `local_steps` is above 0.
    local_steps : int, default 0
        Minibatches in a round.
    structure_every, objective_every : int
        Rounds between two evaluations of what is cheap, and of what needs a pass over all data.
    mirror_map : str, default "euclidean"
        See :func:`flwr_fco.mirror_maps.named.named_map`.
    stretch : int, default 1
        A round that counts as several: with so many times the batch, one communication of the run stands for so many
        rounds. All numbers of rounds here are on that stretched axis.
    plateau : str, default ""
        A metric that must fall; both rates are halved by :class:`flwr_fco.strategies.Plateau` when it does not.
    plateau_every, plateau_patience : int, default 10 and 30
        Rounds between two looks at it, and looks without a new best after which the rates are halved.
    stage_rounds : int, default 0
        Length of the stages of ``MultistepReFedDAGT``; 0: one stage without an end.
    problem_options, strategy_options : dict of str to value
        In kebab-case.

    Raises
    ------
    ConfigurationError
        If a name is unknown or a value out of range.

    Examples
    --------
    >>> RunSettings.of("lasso-small", "FedDualAvg", {"client-lr": 0.02, "strength": 0.3}).problem_options
    {'strength': 0.3}
    """

    problem: str
    strategy: str
    seed: int = 0
    client_lr: float = 0.1
    server_lr: float = 1.0
    num_rounds: int = 100
    clients_per_round: int = 10
    batch_size: int = 32
    local_epochs: int = 1
    local_steps: int = 0
    structure_every: int = 1
    objective_every: int = 10
    mirror_map: str = "euclidean"
    stretch: int = 1
    plateau: str = ""
    plateau_every: int = 10
    plateau_patience: int = 30
    stage_rounds: int = 0
    problem_options: dict[str, Any] = field(default_factory=dict)
    strategy_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, problem: str, strategy: str, assignments: Mapping[str, Any] | None = None, seed: int = 0
    ) -> RunSettings:
        """Return the problem's defaults with some values replaced.

        Parameters
        ----------
        problem, strategy : str
        assignments : mapping of str to value, optional
            Keys in kebab-case: settings of the run, options of the problem, options of the strategy.
        seed : int, default 0

        Returns
        -------
        RunSettings

        Raises
        ------
        ConfigurationError
            If a key is none of these, or a value is of the wrong type or out of range.
        """
        entry = find_problem(problem)
        if strategy not in STRATEGIES and strategy not in BASELINES:
            raise ConfigurationError(f"strategy={strategy!r}; expected one of {', '.join([*STRATEGIES, *BASELINES])}")
        problem_options = entry.options()
        strategy_options = _strategy_options(strategy)
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in entry.defaults.items()}
        for_problem: dict[str, Any] = {}
        for_strategy: dict[str, Any] = {}
        for key, value in (assignments or {}).items():
            name = key.replace("-", "_")
            if name in cls.__dataclass_fields__ and name not in (
                "problem",
                "strategy",
                "problem_options",
                "strategy_options",
            ):
                values[name] = _number(key, value, str(cls.__dataclass_fields__[name].type))
            elif key in problem_options:
                for_problem[key] = value
            elif name in strategy_options:
                for_strategy[key] = value
            else:
                known = [*_run_keys(), *problem_options, *(o.replace("_", "-") for o in strategy_options)]
                raise ConfigurationError(f"unknown key {key!r}; {problem} with {strategy} has {', '.join(known)}")
        return cls(
            problem, strategy, **{"seed": seed, **values}, problem_options=for_problem, strategy_options=for_strategy
        )

    def __post_init__(self) -> None:
        for name in ("client_lr", "server_lr"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise self._error(name, "a finite number > 0")
        for name, least in (
            ("num_rounds", 1),
            ("clients_per_round", 0),
            ("batch_size", 0),
            ("local_epochs", 1),
            ("local_steps", 0),
            ("structure_every", 1),
            ("objective_every", 1),
            ("stretch", 1),
            ("plateau_every", 1),
            ("plateau_patience", 1),
            ("stage_rounds", 0),
        ):
            if getattr(self, name) < least:
                raise self._error(name, f"a whole number >= {least}")
        if self.stretch > self.num_rounds:
            raise self._error("stretch", f"at most num-rounds={self.num_rounds}")
        if self.stage_rounds and self.strategy not in _STAGED:
            raise self._error("stage_rounds", f"0, because {self.strategy} has no stages ({', '.join(_STAGED)} has)")
        if not 0 <= self.seed < 2**32:
            raise self._error("seed", "a whole number from 0 to 2**32 - 1")

    @property
    def exchanges(self) -> int:
        """How often server and clients communicate."""
        return self.num_rounds // self.stretch

    def _error(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{name.replace('_', '-')}={getattr(self, name)!r}; expected {expected}")

    def load(self) -> Task:
        """Return the problem with its data; kept for the next run with the same data."""
        return load_task(self.problem, self.seed, self.problem_options)

    def to_config(self) -> dict[str, Any]:
        """Return the settings as one flat dictionary in kebab-case."""
        fields = type(self).__dataclass_fields__
        flat = {
            key.replace("_", "-"): value
            for key, value in asdict(self).items()
            if key not in _OCCASIONAL or value != fields[key].default
        }
        options = {**flat.pop("problem-options"), **flat.pop("strategy-options")}
        return {**flat, **options}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Return the settings that :meth:`to_config` wrote.

        Parameters
        ----------
        config : mapping

        Returns
        -------
        RunSettings
        """
        rest = {key: value for key, value in config.items() if key not in ("problem", "strategy")}
        return cls.of(str(config["problem"]), str(config["strategy"]), rest)


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
    """

    settings: RunSettings
    history: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    diverged: int
    seconds: float


class Recorder:
    """Evaluates on the server and keeps a line for each round; ends a run that has diverged.

    A run has diverged when a coefficient is beyond :data:`DIVERGED`, or when an update overflowed or every reply was
    not finite (the strategy skips such a round and would skip all that follow).

    Parameters
    ----------
    task : Task
    settings : RunSettings
    sink : callable, optional
        Called with each line.
    on_round : callable, optional
        Called with the round after each.

    Attributes
    ----------
    strategy : CompositeStrategy
        Built for the settings; its rates follow the plateau rule where there is one.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3})
    >>> Recorder(settings.load(), settings).history
    []
    """

    def __init__(
        self,
        task: Task,
        settings: RunSettings,
        sink: Callable[[Mapping[str, float]], None] | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self.task, self.settings = task, settings
        self.sink, self.on_round = sink, on_round
        self.history: list[dict[str, float]] = []
        self.diverged = 0
        self._plateau = (
            Plateau(self._plateau_score, every=1, patience=settings.plateau_patience) if settings.plateau else None
        )
        self.strategy = build_strategy(settings, task.dataset.num_clients, task.regularizer, self._plateau)

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Write the round's line; Flower's ``evaluate_fn``."""
        settings = self.settings
        last = server_round == settings.exchanges
        w = self.task.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        if not np.abs(w).max(initial=0.0) <= DIVERGED:
            self.diverged = self.diverged or server_round * settings.stretch
        full = (self._due(server_round, settings.objective_every) or last) and not self.diverged
        watched = self._plateau is not None and self._due(server_round, settings.plateau_every)
        if not (full or watched or self._due(server_round, settings.structure_every) or self.diverged):
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._scores(w, server_round, full)
        line = {"round": float(server_round * settings.stretch), **scores}
        self.history.append(line)
        if self.sink is not None:
            self.sink(line)
        if watched and self._plateau is not None:
            self._plateau(server_round, arrays, None)
        return MetricRecord(dict(scores))

    def _due(self, server_round: int, every: int) -> bool:
        """Return whether this is the first communication at or after a multiple of `every` rounds."""
        return server_round * self.settings.stretch % every < self.settings.stretch

    def _scores(self, w: Vector, server_round: int, full: bool) -> dict[str, float]:
        """Return the task's scores; on a graph, where the task says so, their means over the nodes' points."""
        if not self.task.over_nodes or server_round == 0:
            return self.task.scores(w, full=full)
        strategy = self.strategy
        points = list(strategy.node_primals()) if isinstance(strategy, GraphStrategy) and not strategy.central else [w]
        found = [self.task.scores(point, full=full) for point in points]
        scores = {name: float(np.mean([own[name] for own in found])) for name in found[0]}
        metrics = strategy.round_metrics()
        return {**scores, **{name: float(metrics[name]) for name in _GRAPH_METRICS if name in metrics}}

    def _plateau_score(self, arrays: ArrayRecord) -> float:
        line, metric = self.history[-1], self.settings.plateau
        if metric not in line:
            raise ConfigurationError(
                f"plateau={metric!r}, but a round of {self.settings.problem} reports {', '.join(line)}"
            )
        return line[metric]

    def record(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> bool:
        """Return whether the run has diverged; a callback of ``start``."""
        if metrics is not None and metrics.get("skipped", 0) and not self.diverged:
            self.diverged = server_round * self.settings.stretch
        if self.on_round is not None:
            self.on_round(server_round * self.settings.stretch)
        return bool(self.diverged)


def build_strategy(
    settings: RunSettings, num_clients: int, regularizer: Regularizer, plateau: Plateau | None = None
) -> CompositeStrategy:
    """Return the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
    num_clients : int
        Of the federation.
    regularizer : Regularizer
    plateau : Plateau, optional
        What both rates follow.

    Returns
    -------
    CompositeStrategy

    Raises
    ------
    ConfigurationError
        If an option is not the strategy's, or more clients are wanted than there are.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedMid", {"server-prox": False})
    >>> build_strategy(settings, 16, settings.load().regularizer).server_prox
    False
    """
    if settings.clients_per_round > num_clients:
        raise ConfigurationError(
            f"clients-per-round={settings.clients_per_round}, but {settings.problem} has {num_clients} clients; "
            f"expected at most that"
        )
    options = {key.replace("-", "_"): value for key, value in settings.strategy_options.items()}
    # Flower warns that nothing is evaluated on the clients, which is what is wanted.
    with _flower.quiet(logging.ERROR):
        return _build(settings, num_clients, regularizer, plateau, options)


def _build(
    settings: RunSettings,
    num_clients: int,
    regularizer: Regularizer,
    plateau: Plateau | None,
    options: dict[str, Any],
) -> CompositeStrategy:
    local: dict[str, Any] = (
        {"local_steps": settings.local_steps} if settings.local_steps else {"local_epochs": settings.local_epochs}
    )
    if settings.stage_rounds:
        length = max(1, settings.stage_rounds // settings.stretch)
        # One stage more than there is time for: the last full one ends in a restart too.
        options["stages"] = [Stage(length)] * (settings.exchanges // length + 1)
    clients = settings.clients_per_round or num_clients
    return STRATEGIES[settings.strategy](
        regularizer=regularizer,
        mirror_map=named_map(settings.mirror_map, settings.load().layout.size),
        client_lr=settings.client_lr if plateau is None else plateau.rate(settings.client_lr),
        server_lr=settings.server_lr if plateau is None else plateau.rate(settings.server_lr),
        batch_size=settings.batch_size * settings.stretch or None,
        **local,
        # The sample is int(nodes * fraction); the half keeps rounding from losing a client.
        fraction_train=min(1.0, (clients + 0.5) / num_clients),
        min_train_nodes=clients,
        min_available_nodes=num_clients,
        fraction_evaluate=0.0,
        seed=settings.seed,
        **options,
    )


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
    return RunResult(settings, recorder.history, arrays, recorder.diverged, time.perf_counter() - began)


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


def parse_value(text: str) -> Any:
    """Return a value of TOML; a word that is none is a string.

    Parameters
    ----------
    text : str

    Returns
    -------
    bool, int, float or str

    Examples
    --------
    >>> [parse_value(text) for text in ("3", "1e-3", "true", "average", "data/mnist")]
    [3, 0.001, True, 'average', 'data/mnist']
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of ``key=value`` texts, values as texts.

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    dict of str to str

    Raises
    ------
    ConfigurationError
        If a text has no ``=``, or a key comes twice.

    Examples
    --------
    >>> parse_assignments(["client-lr=0.01"])
    {'client-lr': '0.01'}
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or not value.strip():
            raise ConfigurationError(f"--set {text!r}; expected key=value, such as --set client-lr=0.01")
        if key in found:
            raise ConfigurationError(f"--set gives {key} twice: {found[key]} and {value.strip()}")
        found[key] = value.strip()
    return found


def _strategy_options(strategy: str) -> list[str]:
    if strategy in BASELINES:
        return ["client", "tol"] if strategy == "local" else ["tol"]
    own = [
        parameter.name
        for parameter in inspect.signature(STRATEGIES[strategy]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    return [name for name in [*own, *CompositeOptions.__annotations__] if name not in _OWN]


def _run_keys() -> list[str]:
    fields = RunSettings.__dataclass_fields__
    return [name.replace("_", "-") for name in fields if not name.endswith("options")][2:]


def _number(key: str, value: Any, wanted: str) -> Any:
    if wanted == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value).__name__ != wanted:
        raise ConfigurationError(f"{key}={value!r} is a {type(value).__name__}; expected {wanted}")
    return value
