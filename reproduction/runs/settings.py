"""The settings of a run, from keys and values."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_type_hints

from flwr_fco.errors import ConfigurationError
from reproduction.problems.baselines import BASELINES
from reproduction.problems.named import find_problem, load_task
from reproduction.problems.tasks import Task
from reproduction.rivals import STRATEGIES
from reproduction.runs import methods
from reproduction.values import checked, suggestion

#: A rate that the strategy derives from the clients.
AUTO = "auto"
#: Maximum length of a folder name in characters; file systems allow 255.
_LONGEST_NAME = 120


def _whole(default: int, least: int, **metadata: bool) -> Any:
    allowed = (lambda value: value >= least, f"a whole number >= {least}")
    return field(default=default, metadata={"range": allowed, **metadata})


_RATE = {"range": (lambda value: value == AUTO or 0.0 < value < math.inf, "a finite number > 0, or 'auto'")}
_SEED = {"range": (lambda value: 0 <= value < 2**32, "a whole number from 0 to 2**32 - 1")}
_NOT_NEGATIVE = {"range": (lambda value: 0.0 <= value < math.inf, "a finite number >= 0")}
#: Settings that a configuration names only if they differ from the default; older run folders do not have them.
_OCCASIONAL = {"occasional": True}


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
        Learning rates, > 0, or ``"auto"``: derived from the clients' losses and replies. The default is ``"auto"`` for
        a strategy that the problem's rates were not chosen for; if `client_lr` is ``"auto"``, so is the default of
        `server_lr` (1 if there is no rule).
    num_rounds : int
        >= 1.
    clients_per_round : int
        Number of clients drawn at random in each round, at most the number of clients; 0: all clients.
    batch_size : int
        0: full batches.
    local_epochs : int
        Passes over a client's data in a round; ignored if `local_steps` is above 0.
    local_steps : int, default 0
        Minibatches in a round.
    structure_every, objective_every : int
        Rounds between two evaluations of cheap metrics, and of metrics that need a pass over all data.
    mirror_map : str, default "euclidean"
        See :func:`reproduction.problems.mirror_maps.named_map`.
    stretch : int, default 1
        Number of rounds that one communication stands for, with `stretch` times the batch. All numbers of rounds here
        are on that stretched axis.
    plateau : str, default ""
        A metric that must decrease; where it does not, :class:`reproduction.runs.plateau.Plateau` halves both rates.
    plateau_node : int, default -1
        On a graph: index of the node at whose point the metric of `plateau` is evaluated; -1: the mean over the nodes.
    plateau_every, plateau_patience : int, default 10 and 30
        Rounds between two evaluations of it, and evaluations without a new best after which the rates are halved.
    stage_rounds : int, default 0
        Length of the stages of ``MultistepReFedDAGT`` and ``DReFedDAGT``, or of the first two of the three stages of
        ``MCFedDA``, whose radius (the option `radius` is for the first stage) and strength halve; 0: one stage without
        an end.
    stage_accuracy : float, default 0.0
        An alternative to `stage_rounds` for the problem ``sparse-linear-graph``: the squared L1 error for which
        :func:`~reproduction.runs.theorem_stages.theorem_stages` computes the stages, with the strategy's
        `radius_squared` and `sparsity`; 0: not used.
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
    seed: int = field(default=0, metadata=_SEED)
    client_lr: float | Literal["auto"] = field(default=0.1, metadata=_RATE)
    server_lr: float | Literal["auto"] = field(default=1.0, metadata=_RATE)
    num_rounds: int = _whole(100, 1)
    clients_per_round: int = _whole(10, 0)
    batch_size: int = _whole(32, 0)
    local_epochs: int = _whole(1, 1)
    local_steps: int = _whole(0, 0)
    structure_every: int = _whole(1, 1)
    objective_every: int = _whole(10, 1)
    mirror_map: str = field(default="euclidean", metadata=_OCCASIONAL)
    stretch: int = _whole(1, 1, **_OCCASIONAL)
    plateau: str = field(default="", metadata=_OCCASIONAL)
    plateau_node: int = _whole(-1, -1, **_OCCASIONAL)
    plateau_every: int = _whole(10, 1, **_OCCASIONAL)
    plateau_patience: int = _whole(30, 1, **_OCCASIONAL)
    stage_rounds: int = _whole(0, 0, **_OCCASIONAL)
    stage_accuracy: float = field(default=0.0, metadata={**_NOT_NEGATIVE, **_OCCASIONAL})
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
            If a key is unknown, or a value is of the wrong type or out of range.
        """
        entry = find_problem(problem)
        if strategy not in STRATEGIES and strategy not in BASELINES:
            known = [*STRATEGIES, *BASELINES]
            raise ConfigurationError(
                f"strategy={strategy!r}; expected one of {', '.join(known)}{suggestion(strategy, known)}"
            )
        problem_options = entry.options()
        types = _types()
        strategy_options = methods.option_names(strategy)
        values: dict[str, Any] = {key.replace("-", "_"): value for key, value in entry.defaults.items()}
        for_problem: dict[str, Any] = {}
        for_strategy: dict[str, Any] = {}
        for key, value in (assignments or {}).items():
            name = key.replace("-", "_")
            if name in types and name not in ("problem", "strategy"):
                values[name] = checked(key, value, types[name])
            elif key in problem_options:
                for_problem[key] = value
            elif name in strategy_options or (strategy in STRATEGIES and name in methods.PRIVACY_OPTIONS):
                # A strategy that does not support privacy says why.
                for_strategy[key] = value
            else:
                known = [*_run_keys(), *problem_options, *(o.replace("_", "-") for o in strategy_options)]
                raise ConfigurationError(
                    f"unknown key {key!r}; {problem} with {strategy} has {', '.join(known)}{suggestion(key, known)}"
                )
        given = {key.replace("-", "_") for key in assignments or {}}
        if methods.needs_everyone(strategy) and "clients_per_round" not in given:
            values["clients_per_round"] = 0
        if not (values.get("plateau") or entry.tuned_for(strategy) or given & {"client_lr", "server_lr"}):
            values["client_lr"] = AUTO
        if values.get("client_lr") == AUTO and "server_lr" not in given:
            values["server_lr"] = AUTO if methods.extrapolates(strategy) else 1.0
        return cls(
            problem, strategy, **{"seed": seed, **values}, problem_options=for_problem, strategy_options=for_strategy
        )

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            object.__setattr__(self, name, checked(name.replace("_", "-"), getattr(self, name), kind))
        for own in fields(self):
            allowed, expected = own.metadata.get("range", (lambda value: True, ""))
            if not allowed(getattr(self, own.name)):
                raise self._error(own.name, expected)
        for name in ("client_lr", "server_lr"):
            if self.plateau and getattr(self, name) == AUTO:
                raise self._error(name, f"a number: plateau={self.plateau!r} halves it")
        if self.plateau_node >= 0 and not self.plateau:
            raise self._error("plateau_node", "-1, because there is no plateau")
        if self.stretch > self.num_rounds:
            raise self._error("stretch", f"at most num-rounds={self.num_rounds}")
        if self.stage_rounds and (expected := methods.no_stages(self.strategy, self.strategy_options)):
            raise self._error("stage_rounds", expected)
        if self.stage_accuracy and (self.strategy not in methods.THEORETICAL or self.stage_rounds):
            raise self._error("stage_accuracy", f"0, or {' or '.join(methods.THEORETICAL)} without stage-rounds")
        if not self.stage_rounds and (needed := methods.option_of_stages(self.strategy)) in self.strategy_options:
            raise self._error("stage_rounds", f"a number > 0, because {needed} is that of the first stage")

    @property
    def exchanges(self) -> int:
        """Number of communications between server and clients."""
        return self.num_rounds // self.stretch

    def _error(self, name: str, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{name.replace('_', '-')}={getattr(self, name)!r}; expected {expected}")

    def load(self) -> Task:
        """Return the problem with its data, cached for the next run with the same data."""
        return load_task(self.problem, self.seed, self.problem_options)

    def to_config(self) -> dict[str, Any]:
        """Return the settings as one flat dictionary in kebab-case."""
        values = asdict(self)
        flat = {
            own.name.replace("_", "-"): values[own.name]
            for own in fields(self)
            if "occasional" not in own.metadata or values[own.name] != own.default
        }
        options = {**flat.pop("problem-options"), **flat.pop("strategy-options")}
        return {**flat, **options}

    def changes(self) -> dict[str, Any]:
        """Return the settings that differ from the problem's and the strategy's defaults, in kebab-case.

        Examples
        --------
        >>> RunSettings.of("lasso-I", "FedDualAvg", {"server-lr": 3, "strength": 0.2}).changes()
        {'server-lr': 3.0}
        """
        own = {key: value for key, value in self.to_config().items() if key not in ("problem", "strategy", "seed")}
        usual = find_problem(self.problem).options()
        found: dict[str, Any] = {}
        # Twice, because the default of one rate depends on whether the other one is given.
        for _ in range(2):
            usual = {**usual, **type(self).of(self.problem, self.strategy, found).to_config()}
            found.update({key: value for key, value in own.items() if key not in usual or usual[key] != value})
        return {key: own[key] for key in own if key in found}

    def folder_name(self) -> str:
        """Return a name for the run's folder that contains the changed settings, so that it is unique to them.

        Examples
        --------
        >>> RunSettings.of("lasso-I", "FedDualAvg", {"server-lr": 3, "num-rounds": 9}, seed=2).folder_name()
        'lasso-I-FedDualAvg-2_server-lr=3_num-rounds=9'
        """
        # A float that is a whole number is written without ".0", any other with all its digits: two settings, two
        # names.
        parts = [
            f"{key}={int(value) if isinstance(value, float) and value.is_integer() else value}"
            for key, value in self.changes().items()
        ]
        return short_name([f"{self.problem}-{self.strategy}-{self.seed}", *parts], self.to_config())

    def command(self) -> str:
        """Return the command line that repeats the run.

        Examples
        --------
        >>> RunSettings.of("lasso-I", "FedDualAvg", {"server-lr": 3}, seed=2).command()
        'python -m reproduction run lasso-I --strategy FedDualAvg --seed 2 --set server-lr=3.0'
        """
        given = [part for text in format_assignments(self.changes()) for part in ("--set", text)]
        start = ["python", "-m", "reproduction", "run", self.problem, "--strategy", self.strategy]
        return shlex.join([*start, "--seed", str(self.seed), *given])

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunSettings:
        """Return the settings that :meth:`to_config` wrote.

        Parameters
        ----------
        config : mapping

        Returns
        -------
        RunSettings

        Raises
        ------
        ConfigurationError
            If problem or strategy are missing, or a value is invalid.
        """
        for key in ("problem", "strategy"):
            if not isinstance(config.get(key), str):
                raise ConfigurationError(f"{key}={config.get(key)!r}; expected the config of a run, with a name")
        rest = {key: value for key, value in config.items() if key not in ("problem", "strategy")}
        return cls.of(str(config["problem"]), str(config["strategy"]), rest)


def short_name(parts: Sequence[str], content: Mapping[str, Any]) -> str:
    """Return a folder name: the parts, truncated and made unique by a hash of the content if they are long.

    Parameters
    ----------
    parts : sequence of str
    content : mapping
        Everything that distinguishes two folders.

    Returns
    -------
    str

    Examples
    --------
    >>> short_name(["lasso-I", "path=/data"], {})
    'lasso-I_path=-data'
    """
    name = re.sub(r"[^A-Za-z0-9.,=+_()-]+", "-", "_".join(parts))
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"


def parse_value(text: str) -> Any:
    """Return a TOML value; a word that is not valid TOML is a string.

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
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """Return the keys and values of ``key=value`` texts, with values as strings.

    Parameters
    ----------
    texts : sequence of str

    Returns
    -------
    dict of str to str

    Raises
    ------
    ConfigurationError
        If a text has no ``=``, a key is repeated, or both steps and epochs are given.

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
    if "local-epochs" in found and found.get("local-steps", "0") != "0":
        raise ConfigurationError(
            f"--set local-steps={found['local-steps']} and --set local-epochs={found['local-epochs']}; expected one of "
            "them: a round has so many minibatches, or so many passes over a client's data"
        )
    return found


def plain(value: Any) -> str:
    """Return a value as it is written in a label."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_assignments(values: Mapping[str, Any]) -> list[str]:
    """Return ``key=value`` texts, as on the command line.

    Parameters
    ----------
    values : mapping of str to bool, int, float or str

    Returns
    -------
    list of str

    Examples
    --------
    >>> format_assignments({"problem": "femnist", "fetch": True, "client-lr": 0.1})
    ['problem=femnist', 'fetch=true', 'client-lr=0.1']
    """
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


@cache
def _types() -> dict[str, Any]:
    """Return the types of a run's settings, except the options of problem and strategy."""
    return {name: kind for name, kind in get_type_hints(RunSettings).items() if not name.endswith("options")}


def _run_keys() -> list[str]:
    return [name.replace("_", "-") for name in _types()][2:]
