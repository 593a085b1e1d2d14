"""What experiments know about strategies: names, options, and how to build one from settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any

from flwr.serverapp.strategy import FedAvg

from flwr_fco.engines import FirstOrder
from flwr_fco.errors import ConfigurationError
from flwr_fco.privacy import GaussianDP
from flwr_fco.strategies import (
    Arrays,
    Average,
    CompositeStrategy,
    Last,
    Stage,
    Trimmed,
)
from reproduction.problems.baselines import BASELINES
from reproduction.rivals import STRATEGIES
from reproduction.rivals.fast_fed_da import ModelStage

#: Arguments of a strategy that are set by the problem or by other settings.
_DECIDED = frozenset(
    {
        *signature(FedAvg).parameters,
        *("client_lr", "server_lr", "work", "batch_size", "stages", "seed", "privacy"),
        *("regularizer", "mirror_map", "arrays", "certificate_every"),
        *("client", "density", "bounds", "participation", "on_divergence", "wire"),
    }
)
_PRIVACY = "privacy_"
#: Objects that the run sets, or that are no options of a command line.
_OTHERS: tuple[type, ...] = (Arrays, FirstOrder)
#: Objects that replace a word, by the option; of other options the default says which object it is.
_FOR_WORDS: Mapping[str, type] = {"output": Last, "aggregation": Trimmed}
#: Keys of a command line for fields whose own name says too little.
_KEYS = {
    ("aggregation", "share"): "trim",
    ("wire", "dtype"): "wire_dtype",
    ("wire", "sparse"): "wire_sparse",
    ("reference", "window"): "restart_window",
    ("reference", "newest"): "restart_newest",
}
#: The fields of :class:`GaussianDP` as options, except the number of rounds, which the run sets.
PRIVACY_OPTIONS = tuple(_PRIVACY + own.name for own in fields(GaussianDP) if own.name != "rounds")


def option_names(strategy: str) -> list[str]:
    """Return the options of a strategy or baseline that a user of the command line can set.

    Parameters
    ----------
    strategy : str
        A name in :data:`STRATEGIES` or :data:`reproduction.problems.baselines.BASELINES`.

    Examples
    --------
    >>> option_names("local")
    ['client', 'tol']
    """
    if strategy in BASELINES:
        return ["client", "tol"] if strategy == "local" else ["tol"]
    known = _arguments(STRATEGIES[strategy])
    own = [name for name in known if name not in _DECIDED]
    own += filter(None, [option_of_stages(strategy)])
    return [*own, *_of_objects(STRATEGIES[strategy]), *(PRIVACY_OPTIONS if "privacy" in known else ())]


def _of_objects(kind: type[CompositeStrategy]) -> dict[str, tuple[str, str]]:
    """Return the option and the field that each key of a command line for a field of an option object stands for."""
    found: dict[str, tuple[str, str]] = {}
    for name, option in signature(kind).parameters.items():
        like = _FOR_WORDS.get(name, type(option.default))
        if is_dataclass(like) and like not in _OTHERS:
            fields_of = [own.name for own in fields(like) if own.name not in ("choose_nodes", "own_loops")]
            found |= {_KEYS.get((name, field), field): (name, field) for field in fields_of}
    return found


def is_private(options: Mapping[str, Any]) -> bool:
    """Whether a run has differential privacy.

    Parameters
    ----------
    options : mapping of str to value
        The strategy's options, in kebab-case or snake_case.

    Examples
    --------
    >>> is_private({"privacy-clip": 1.0}), is_private({"output": "last"})
    (True, False)
    """
    return any(key.replace("-", "_") in PRIVACY_OPTIONS for key in options)


def needs_everyone(strategy: str) -> bool:
    """Whether all clients must take part in every round.

    Parameters
    ----------
    strategy : str

    Examples
    --------
    >>> needs_everyone("DualFL"), needs_everyone("FedDualAvg"), needs_everyone("centralized")
    (True, False, False)
    """
    algorithm = None if strategy in BASELINES else STRATEGIES[strategy].algorithm
    return algorithm is not None and algorithm.reads == "everyone"


def extrapolates(strategy: str) -> bool:
    """Whether a strategy's server rate can be chosen from the norms of the increments.

    Parameters
    ----------
    strategy : str

    Examples
    --------
    >>> extrapolates("FedMid"), extrapolates("FedDAGT"), extrapolates("centralized")
    (True, False, False)
    """
    if strategy in BASELINES or "server_lr" not in _arguments(STRATEGIES[strategy]):
        return False
    algorithm = STRATEGIES[strategy].algorithm
    return algorithm is not None and algorithm.reads == "mean" and "server_lr" not in algorithm.refuses


def make_strategy(name: str, decided: Mapping[str, Any], options: Mapping[str, Any]) -> CompositeStrategy:
    """Return a strategy with the run's settings that it accepts, and the user's options.

    Parameters
    ----------
    name : str
        A name in :data:`STRATEGIES`.
    decided : mapping of str to value
        The run's regularizer, rates, local work and seed. Arguments that the strategy does not have (a rate, say) are
        dropped.
    options : mapping of str to value
        The strategy's options, in snake_case.

    Examples
    --------
    >>> make_strategy("FedMid", {"client_lr": 0.5, "momentum": 0.9}, {"server_prox": False}).client_lr
    0.5
    """
    kind = STRATEGIES[name]
    known = _arguments(kind)
    if is_private(options):
        private = {key.removeprefix(_PRIVACY): value for key, value in options.items() if key.startswith(_PRIVACY)}
        if missing := [key for key in ("clip", "delta") if key not in private]:
            given = ", ".join(f"privacy-{key.replace('_', '-')}" for key in private)
            raise ConfigurationError(
                f"{given} without {' and '.join(f'privacy-{key}' for key in missing)}; a private run needs clip, delta "
                "and either noise-multiplier or target-epsilon, each with privacy- before it"
            )
        rest = {key: value for key, value in options.items() if not key.startswith(_PRIVACY)}
        # Defaults that the accounting needs; other values are refused with the reason.
        needed = {"weighting": "uniform", "normalize_local_work": False}
        options = {**needed, **rest, "privacy": GaussianDP(**private)}
    parameters = signature(kind).parameters
    # A method that minimises does no steps.
    mine = {key: value for key, value in decided.items() if key in known}
    if "work" in mine and type(mine["work"]) is not type(parameters["work"].default):
        del mine["work"]
    return kind(**_with_objects(kind, {**mine, **options}))


def _with_objects(kind: type[CompositeStrategy], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with objects in the place of the words and numbers that a command line has for them."""
    keys, parameters = _of_objects(kind), signature(kind).parameters
    own = {name: value for name, value in options.items() if name not in keys}
    words = {"average": Average(), "trimmed": Trimmed()}
    own |= {name: words[own[name]] for name in _FOR_WORDS if own.get(name) in words}
    given: dict[str, dict[str, Any]] = {}
    for key, (name, field) in keys.items():
        if key in options:
            given.setdefault(name, {})[field] = options[key]
    for name, values in given.items():
        start = own.get(name, parameters[name].default)
        start = Last() if start == "last" else start
        of_start = {own.name for own in fields(start)} if is_dataclass(start) else set()
        for key in (key for key in keys if key in options and keys[key][0] == name and keys[key][1] not in of_start):
            raise ConfigurationError(f"{key.replace('_', '-')}={options[key]!r} has no effect with {name}={start!r}")
        own[name] = replace(start, **values)
    return own


def equal_stages(length: int, num_rounds: int) -> list[Stage]:
    """Return stages of equal length, one more than fits, so that the last full stage also ends in a restart."""
    return [Stage(length)] * (num_rounds // length + 1)


def halving_stages(length: int, radius: float) -> list[ModelStage]:
    """Return the three stages of Bao's experiments with MC-FedDA: radius and strength halve, the last stage never ends.

    Parameters
    ----------
    length : int
        Rounds of the first and of the second stage each.
    radius : float
        Radius of the first stage's ball.

    Examples
    --------
    >>> [tuple(stage) for stage in halving_stages(250, 5e3)]
    [(250, 5000.0, 1.0), (250, 2500.0, 0.5), (250, 1250.0, 0.25)]
    """
    return [ModelStage(length, radius / 2**s, 1 / 2**s) for s in range(3)]


def _arguments(kind: type[CompositeStrategy]) -> list[str]:
    """Return the names of a strategy's arguments."""
    return list(signature(kind).parameters)


#: For strategies with stages: the function that computes all stages from one length and the rounds of the run, and the
#: name of its extra option, if any.
_STAGES: Mapping[str, tuple[Callable[..., list[Any]], str]] = {
    "MCFedDA": (lambda length, num_rounds, radius: halving_stages(length, radius), "radius"),
    "DReFedDAGT": (equal_stages, ""),
    "MultistepReFedDAGT": (equal_stages, ""),
}
#: Strategies whose stages can be computed from a theorem.
THEORETICAL = ("MultistepReFedDAGT",)


def option_of_stages(strategy: str) -> str:
    """Return the option that a strategy has for its stages alone; empty for none."""
    return _STAGES[strategy][1] if strategy in _STAGES else ""


def no_stages(strategy: str, options: Mapping[str, Any]) -> str:
    """Return the expected value of stage-rounds, with the reason, for a strategy without stages; else nothing.

    Parameters
    ----------
    strategy : str
    options : mapping of str to value
        Of the strategy, in kebab-case.

    Examples
    --------
    >>> no_stages("FedMid", {})
    '0, because FedMid has no stages (MCFedDA, DReFedDAGT, MultistepReFedDAGT have)'
    """
    if strategy not in _STAGES:
        return f"0, because {strategy} has no stages ({', '.join(_STAGES)} have)"
    needed = _STAGES[strategy][1]
    if not needed or isinstance(options.get(needed), int | float):
        return ""
    return f"0, or a number as the option {needed}, that of the first stage's ball; {needed}={options.get(needed)!r}"


def make_stages(strategy: str, length: int, num_rounds: int, options: dict[str, Any]) -> list[Any]:
    """Return the stages of a run whose strategy has stages; an option for them alone is taken out of the options.

    Parameters
    ----------
    strategy : str
    length : int
        Communications of the first stage.
    num_rounds : int
        Communications of the run.
    options : dict of str to value
        Of the strategy, in snake_case.
    """
    make, needed = _STAGES[strategy]
    return make(length, num_rounds, *([options.pop(needed)] if needed else []))
