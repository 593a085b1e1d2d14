"""Convert the root Flower App's run config to run settings: Flower only checks that a key exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr_fco.core.validation import checked, suggestion
from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies import STRATEGIES
from reproduction.problems.loaders import REGULARIZERS
from reproduction.problems.named import PROBLEMS
from reproduction.runs.settings import RunSettings, range_of

#: Problems whose data can be split over the available nodes, with a regularizer named by the run config.
APP_PROBLEMS = tuple(
    name for name, problem in PROBLEMS.items() if {"num-clients", "regularizer"} <= problem.options().keys()
)


class _Key(NamedTuple):
    """A key of the run config.

    Parameters
    ----------
    kind : type or annotation
    expected : str
        Description of the allowed values.
    allowed : callable
        Returns whether a value is allowed.
    names : tuple of str
        Its names among the run settings or the problem's options.
    """

    kind: Any
    expected: str
    allowed: Callable[[Any], bool]
    names: tuple[str, ...]


def _one_of(names: Any) -> tuple[str, Callable[[Any], bool]]:
    return f"one of {', '.join(names)}", lambda value: value in names


def _at_least(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number >= {least}", lambda value: value >= least


def _as_setting(setting: str, *names: str) -> _Key:
    """Return a key with the type and the range of a run setting."""
    return _Key(*range_of(setting), names or (setting.replace("_", "-"),))


_POSITIVE = "a finite number > 0", lambda value: 0.0 < value < math.inf
_ABSOLUTE = (
    'an absolute path (the ServerApp runs in the SuperLink\'s working directory, not in yours), or "" to write nothing',
    lambda value: not value or Path(value).is_absolute(),
)

_OR_NONE = (
    "a finite number > 0; 0 in all of clip, target-epsilon and delta: no differential privacy",
    lambda value: 0.0 <= value < math.inf,
)

#: What ``[tool.flwr.app.config]`` must have.
KEYS: dict[str, _Key] = {
    "problem": _Key(str, *_one_of(APP_PROBLEMS), ()),
    "strategy": _Key(str, *_one_of(STRATEGIES), ()),
    "regularizer": _Key(str, *_one_of(REGULARIZERS), ("regularizer",)),
    "strength": _Key(float, "a finite number >= 0", lambda value: 0.0 <= value < math.inf, ("strength",)),
    "client-lr": _as_setting("client_lr"),
    "server-lr": _as_setting("server_lr"),
    "batch-size": _Key(int, *_at_least(1), ("batch-size",)),
    "local-steps": _Key(int, *_at_least(1), ("local-steps",)),
    "num-server-rounds": _as_setting("num_rounds"),
    "num-nodes": _Key(int, *_at_least(2), ("num-clients",)),
    "alpha": _Key(float, *_POSITIVE, ("alpha",)),
    "train-fraction": _Key(float, "a number between 0 and 1", lambda value: 0.0 < value < 1.0, ("train-fraction",)),
    "seed": _as_setting("seed"),
    "evaluate-every": _as_setting("structure_every", "structure-every", "objective-every"),
    "output-dir": _Key(str, *_ABSOLUTE, ()),
    "checkpoint-dir": _Key(str, *_ABSOLUTE, ()),
    "clients-per-round": _as_setting("clients_per_round"),
    "privacy-clip": _Key(float, *_OR_NONE, ("privacy-clip",)),
    "privacy-target-epsilon": _Key(float, *_OR_NONE, ("privacy-target-epsilon",)),
    "privacy-delta": _Key(float, "a number from 0 to 1", lambda value: 0.0 <= value < 1.0, ("privacy-delta",)),
    "privacy-noise": _Key(str, *_one_of(("banded", "tree", "independent")), ("privacy-noise",)),
    "resume": _Key(bool, "true or false", lambda value: True, ()),
    "round-timeout": _Key(float, *_POSITIVE, ()),
}
#: How the data are split; synthetic clients draw their own data.
_SPLIT = ("alpha", "train-fraction")
#: Each 0: no differential privacy.
_PRIVATE = ("privacy-clip", "privacy-target-epsilon", "privacy-delta")
_EXAMPLES = {str: '"..."', int: "3"}


def run_settings(run_config: Mapping[str, Any], num_nodes: int | None = None) -> RunSettings:
    """Check a run config and return the run settings.

    Parameters
    ----------
    run_config : mapping
        ``context.run_config``.
    num_nodes : int, optional
        Number of nodes over which the data are split; by default the run config's ``num-nodes``.

    Returns
    -------
    RunSettings

    Raises
    ------
    ConfigurationError
        If a key is missing or unknown, or a value is of the wrong type or out of range.

    Examples
    --------
    >>> run_settings({"problem": 3})
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: problem=3 is a int; expected a string. Give it as in -c 'problem="..."'
    """
    values = {key: _checked(key, value) for key, value in run_config.items()}
    missing = [key for key in KEYS if key not in values]
    if missing:
        raise ConfigurationError(
            f"the run config lacks {', '.join(missing)}; put them into [tool.flwr.app.config] of pyproject.toml"
        )
    if num_nodes is not None:
        values["num-nodes"] = num_nodes
    options = PROBLEMS[values["problem"]].options()
    assignments = {
        name: values[key] for key, entry in KEYS.items() for name in entry.names if key not in _SPLIT or name in options
    }
    if not any(values[key] for key in _PRIVATE):
        assignments = {name: value for name, value in assignments.items() if not name.startswith("privacy-")}
    return RunSettings.of(values["problem"], values["strategy"], assignments)


def _checked(key: str, value: Any) -> Any:
    if key not in KEYS:
        raise ConfigurationError(
            f"unknown key {key!r} in the run config; it may have {', '.join(KEYS)}{suggestion(key, KEYS)}"
        )
    entry = KEYS[key]
    try:
        value = checked(key, value, entry.kind)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}. Give it as in -c '{key}={_EXAMPLES.get(entry.kind, '0.1')}'") from None
    if not entry.allowed(value):
        raise ConfigurationError(f"{key}={value!r}; expected {entry.expected}")
    return value
