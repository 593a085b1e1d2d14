"""The settings of a run, and the strategy that they describe."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from inspect import signature
from typing import Any, Literal, cast, get_type_hints

from flwr.serverapp.strategy import FedAvg

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap, PNorm, Product, SimplexEntropy
from flwr_fco.regularizers import Regularizer
from flwr_fco.strategies import Arrays, Average, Bounds, CompositeStrategy, Epochs, Last, Stage, Steps
from reproduction.data.graph import SparseGraphProblem
from reproduction.problems.baselines import BASELINES
from reproduction.problems.named import find_problem, load_task
from reproduction.problems.tasks import Task
from reproduction.rivals import STRATEGIES
from reproduction.rivals.fast_fed_da import ModelStage
from reproduction.theorem_stages import theorem_stages
from reproduction.values import checked, suggestion

#: A rate that the strategy derives from the clients.
AUTO = "auto"
#: Smallest values of the settings that are whole numbers, of others 0.
_LEAST = {"plateau_node": -1, "num_rounds": 1, "local_epochs": 1, "structure_every": 1, "objective_every": 1}
_LEAST |= {"stretch": 1, "plateau_every": 1, "plateau_patience": 1}
#: Arguments of a strategy that the problem or other settings decide, or that are no words or numbers.
_DECIDED = frozenset(
    {
        *signature(FedAvg).parameters,
        *("client_lr", "server_lr", "work", "batch_size", "stages", "seed", "privacy"),
        *("regularizer", "mirror_map", "arrays", "certificate_every"),
        *("client", "density", "bounds", "participation", "on_divergence", "wire"),
    }
)
#: Options that stand for a field of an argument: of a local minimisation, of the point to restart at.
_FIELDS = {
    "tolerance": ("work", "tolerance"),
    "max_iterations": ("work", "max_iterations"),
    "restart_window": ("reference", "window"),
    "sparsity": ("reference", "sparsity"),
}
#: Strategies with stages of one length, and the first one whose stages a theorem gives.
_STAGED = ("MCFedDA", "DReFedDAGT", "MultistepReFedDAGT")
_OF_THEORY = "MultistepReFedDAGT"


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run depends on.

    Parameters
    ----------
    problem : str
        A name in :data:`reproduction.problems.named.PROBLEMS`.
    strategy : str
        A name in :data:`STRATEGIES` or :data:`BASELINES`.
    seed : int, default 0
        Seed of the data, the split, the sampling of clients and the minibatches.
    client_lr, server_lr : float or "auto"
        Learning rates; ``"auto"``: derived from the clients' losses and replies, the default for a strategy that the
        problem's rates were not chosen for.
    num_rounds : int
    clients_per_round, batch_size : int
        0: all clients; full batches.
    local_epochs, local_steps : int
        Passes over a client's data in a round, or, if `local_steps` is above 0, minibatches.
    structure_every, objective_every : int
        Rounds between two evaluations of cheap metrics, and of metrics that need a pass over all data.
    mirror_map : str, default "euclidean"
        See :func:`named_map`.
    stretch : int, default 1
        Number of rounds that one communication stands for, with `stretch` times the batch. All numbers of rounds here
        are on that stretched axis.
    plateau : str, default ""
        A metric that must decrease; where it does not, both rates are halved.
    plateau_node : int, default -1
        On a graph: the node at whose point that metric is evaluated; -1: the mean over the nodes.
    plateau_every, plateau_patience : int
        Rounds between two evaluations of it, and evaluations without a new best after which the rates are halved.
    stage_rounds : int, default 0
        Length of the stages of a strategy that restarts; of ``MCFedDA``, whose ball and strength halve (the option
        `radius` is of the first stage), of the first two of three stages; 0: one stage without an end.
    stage_accuracy : float, default 0.0
        In its place, for ``sparse-linear-graph``: the squared L1 error for which :func:`theorem_stages` gives the
        stages, with the strategy's `radius_squared` and `sparsity`.
    problem_options, strategy_options : dict of str to value
        In kebab-case.

    Examples
    --------
    >>> RunSettings.of("lasso-small", "FedDualAvg", {"client-lr": 0.02, "strength": 0.3}).problem_options
    {'strength': 0.3}
    """

    problem: str
    strategy: str
    seed: int = 0
    client_lr: float | Literal["auto"] = 0.1
    server_lr: float | Literal["auto"] = 1.0
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
    plateau_node: int = -1
    plateau_every: int = 10
    plateau_patience: int = 30
    stage_rounds: int = 0
    stage_accuracy: float = 0.0
    problem_options: dict[str, Any] = field(default_factory=dict)
    strategy_options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: str, strategy: str, given: Mapping[str, Any] | None = None, seed: int = 0) -> RunSettings:
        """Return the problem's defaults with some values replaced.

        Parameters
        ----------
        problem, strategy : str
        given : mapping of str to value, optional
            Settings of the run, options of the problem, options of the strategy.
        seed : int, default 0

        Raises
        ------
        ConfigurationError
            If a key is unknown, or a value is of the wrong type or out of range.
        """
        entry = find_problem(problem)
        if strategy not in STRATEGIES and strategy not in BASELINES:
            known = [*STRATEGIES, *BASELINES]
            raise ConfigurationError(
                f"strategy={strategy!r}; expected one of {', '.join(known)}{suggestion(strategy, known)}"
            )
        own = [name for name in _types() if name not in ("problem", "strategy")]
        names_of = {"problem": entry.options, "strategy": [o.replace("_", "-") for o in option_names(strategy)]}
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in entry.defaults.items()}
        found: dict[str, dict[str, Any]] = {kind: {} for kind in names_of}
        for key, value in (given or {}).items():
            name, kebab = key.replace("-", "_"), key.replace("_", "-")
            if name in own:
                values[name] = value
                continue
            kind = next((kind for kind, names in names_of.items() if kebab in names), "")
            if not kind:
                known = [name.replace("_", "-") for name in own] + [*names_of["problem"], *names_of["strategy"]]
                raise ConfigurationError(
                    f"unknown setting {key!r}; {problem} with {strategy} has {', '.join(known)}{suggestion(key, known)}"
                )
            found[kind][kebab] = value
        names = {key.replace("-", "_") for key in given or {}}
        if _reads(strategy) == "everyone" and "clients_per_round" not in names:
            values["clients_per_round"] = 0
        if not (values.get("plateau") or entry.tuned_for(strategy) or names & {"client_lr", "server_lr"}):
            values["client_lr"] = AUTO
        if values.get("client_lr") == AUTO and "server_lr" not in names:
            values["server_lr"] = AUTO if _extrapolates(strategy) else 1.0
        options = {f"{kind}_options": own for kind, own in found.items()}
        return cls(problem, strategy, **{"seed": seed, **values, **options})

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            object.__setattr__(self, name, checked(name.replace("_", "-"), getattr(self, name), kind))
            if kind is int and getattr(self, name) < (least := _LEAST.get(name, 0)):
                raise self._error(name, f"a whole number >= {least}")
        for name in ("client_lr", "server_lr"):
            rate = getattr(self, name)
            if rate == AUTO and self.plateau:
                raise self._error(name, f"a number: plateau={self.plateau!r} halves it")
            if rate != AUTO and not 0.0 < rate < math.inf:
                raise self._error(name, "a finite number > 0, or 'auto'")
        if self.stretch > self.num_rounds:
            raise self._error("stretch", f"at most num-rounds={self.num_rounds}")
        if self.stage_rounds and self.strategy not in _STAGED:
            raise self._error("stage_rounds", f"0, because {self.strategy} has no stages ({', '.join(_STAGED)} have)")
        if self.stage_accuracy and (self.strategy != _OF_THEORY or self.stage_rounds):
            raise self._error("stage_accuracy", f"0, or {_OF_THEORY} without stage-rounds")
        if self.strategy == "MCFedDA" and bool(self.stage_rounds) != ("radius" in self.strategy_options):
            raise self._error("stage_rounds", "a number > 0 with the radius of the first stage, or neither")

    def _error(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{name.replace('_', '-')}={getattr(self, name)!r}; expected {expected}")

    @property
    def exchanges(self) -> int:
        """Number of communications between server and clients."""
        return self.num_rounds // self.stretch

    @property
    def stage_length(self) -> int:
        """Number of communications in a stage."""
        return max(1, self.stage_rounds // self.stretch)

    def load(self) -> Task:
        """Return the problem with its data, cached for the next run with the same data."""
        return load_task(self.problem, self.seed, self.problem_options)

    def to_config(self) -> dict[str, Any]:
        """Return the settings as one flat dictionary in kebab-case, which identifies the run."""
        flat = {name.replace("_", "-"): value for name, value in asdict(self).items()}
        options = {**flat.pop("problem-options"), **flat.pop("strategy-options")}
        return {**flat, **options}


@cache
def _types() -> dict[str, Any]:
    """Return the types of a run's settings, except the options of problem and strategy."""
    return {name: kind for name, kind in get_type_hints(RunSettings).items() if not name.endswith("options")}


@cache
def option_names(strategy: str) -> list[str]:
    """Return the options of a strategy or baseline that a setting can give.

    Examples
    --------
    >>> option_names("local")
    ['client', 'tol']
    """
    if strategy in BASELINES:
        return ["client", "tol"] if strategy == "local" else ["tol"]
    known = signature(STRATEGIES[strategy]).parameters
    own = [name for name in known if name not in _DECIDED]
    fields = [key for key, (name, field) in _FIELDS.items() if name in known and hasattr(known[name].default, field)]
    return [*own, *(["radius"] if strategy == "MCFedDA" else []), *fields]


def _reads(strategy: str) -> str:
    algorithm = None if strategy in BASELINES else STRATEGIES[strategy].algorithm
    return algorithm.reads if algorithm is not None else ""


def _extrapolates(strategy: str) -> bool:
    """Whether a strategy's server rate can be chosen from the norms of the increments."""
    if _reads(strategy) != "mean" or "server_lr" not in signature(STRATEGIES[strategy]).parameters:
        return False
    algorithm = STRATEGIES[strategy].algorithm
    return algorithm is not None and "server_lr" not in algorithm.refuses


def build_strategy(
    settings: RunSettings,
    num_clients: int,
    regularizer: Regularizer,
    scaled: Callable[[float], Any] = lambda rate: rate,
) -> CompositeStrategy:
    """Return the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
    num_clients : int
        Number of clients in the federation.
    regularizer : Regularizer
    scaled : callable, optional
        Makes of a rate what the strategy is given: a function of the round.

    Raises
    ------
    ConfigurationError
        If the strategy has no such option, or more clients are requested than there are.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedMid", {"server-prox": False})
    >>> build_strategy(settings, 16, settings.load().regularizer).server_prox
    False
    """
    clients = settings.clients_per_round or num_clients
    if clients > num_clients or (clients < num_clients and _reads(settings.strategy) == "everyone"):
        most = f"at most {num_clients}" if clients > num_clients else f"all, because {settings.strategy} needs them"
        raise ConfigurationError(
            f"clients-per-round={clients}, but {settings.problem} has {num_clients}; expected {most}, or 0 for all"
        )
    layout = settings.load().layout
    batch_size = settings.batch_size * settings.stretch or None
    steps, epochs = settings.local_steps, settings.local_epochs
    decided: dict[str, Any] = {
        "regularizer": regularizer,
        "mirror_map": named_map(settings.mirror_map, layout.size),
        # A perturbation is a vector next to a matrix: by their shapes the server would regularize only the matrix.
        "arrays": Arrays(apply_to=layout.regularized_names),
        **{name: scaled(getattr(settings, name)) for name in ("client_lr", "server_lr")},
        "batch_size": batch_size,
        "work": Steps(steps, batch_size) if steps else Epochs(epochs, batch_size),
        # The sample is int(nodes * fraction); the half keeps rounding from losing a client.
        "fraction_train": min(1.0, (clients + 0.5) / num_clients),
        "min_train_nodes": clients,
        "min_available_nodes": num_clients,
        "fraction_evaluate": 0.0,
        # The recorder has its own rule, and keeps the line of the round in which a run diverged.
        "on_divergence": "warn",
        # The papers' methods count every reply: nobody here is dishonest, and lengths may grow where a run diverges.
        "bounds": Bounds(max_ratio=None),
        "seed": settings.seed,
    }
    options = {key.replace("-", "_"): value for key, value in settings.strategy_options.items()}
    if settings.stage_rounds or settings.stage_accuracy:
        decided["stages"] = _stages(settings, num_clients, options)
    kind = STRATEGIES[settings.strategy]
    parameters = signature(kind).parameters
    mine = {name: value for name, value in decided.items() if name in parameters}
    # A method that minimises does no steps.
    if "work" in mine and type(mine["work"]) is not type(parameters["work"].default):
        del mine["work"]
    return kind(**{**mine, **_with_objects(kind, options)})


def _with_objects(kind: type[CompositeStrategy], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with objects in the place of the words and numbers that stand for them and their fields."""
    own = {name: value for name, value in options.items() if name not in _FIELDS}
    if own.get("output") in ("average", "last"):
        own["output"] = Average() if own["output"] == "average" else Last()
    for key in _FIELDS.keys() & options.keys():
        name, field = _FIELDS[key]
        start = own.get(name, signature(kind).parameters[name].default)
        own[name] = replace(start, **{field: options[key]})
    return own


def _stages(settings: RunSettings, num_clients: int, options: dict[str, Any]) -> list[Any]:
    """Return a run's stages, one more than fits, so that the last full stage ends in a restart too."""
    if settings.stage_rounds and settings.strategy == "MCFedDA":
        # Bao's three stages: radius and strength halve, and the last stage never ends.
        radius = float(options.pop("radius"))
        return [ModelStage(settings.stage_length, radius / 2**s, 1 / 2**s) for s in range(3)]
    if settings.stage_rounds:
        return [Stage(settings.stage_length)] * (settings.exchanges // settings.stage_length + 1)
    if settings.problem != "sparse-linear-graph" or not {"sparsity", "radius_squared"} <= options.keys():
        raise ConfigurationError(
            f"stage-accuracy={settings.stage_accuracy!r}; expected 0, or problem='sparse-linear-graph' with "
            "radius-squared and sparsity"
        )
    data = cast(SparseGraphProblem, settings.load().dataset)
    own = {name: options[name] for name in ("sparsity", "radius_squared")}
    # The theorem divides by sigma.
    noise = max(data.gradient_deviation(settings.batch_size or None), 1e-9)
    stages = theorem_stages(data.dimension, noise, accuracy=settings.stage_accuracy, num_clients=num_clients, **own)
    return [*stages, stages[-1]]


def named_map(text: str, dimension: int) -> MirrorMap:
    """Return the mirror map described by a string.

    Parameters
    ----------
    text : str
        ``"euclidean"``, ``"p-norm(12)"`` with any p, ``"p-norm(2 log d)"`` with the theory's p, or
        ``"simplex-entropy"`` with a simplex for each array.
    dimension : int
        d.

    Examples
    --------
    >>> named_map("p-norm(12)", 1024).p, round(named_map("p-norm(2 log d)", 1024).p, 2)
    (12.0, 13.86)
    """
    if text == "euclidean":
        return Euclidean()
    if text == "simplex-entropy":
        return Product({"*": SimplexEntropy()})
    if text == "p-norm(2 log d)":
        return PNorm.for_dimension(dimension)
    found = re.fullmatch(r"p-norm\((\d+(?:\.\d+)?)\)", text)
    if found is None:
        raise ConfigurationError(
            f"mirror-map={text!r}; expected 'euclidean', 'simplex-entropy', 'p-norm(12)' or 'p-norm(2 log d)'"
        )
    return PNorm(float(found[1]))
