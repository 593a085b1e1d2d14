"""The keys of the root app's run config, and a check of its values: Flower only checks that a key exists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies import STRATEGIES
from main_job.task import PROBLEMS, REGULARIZERS


class _Key(NamedTuple):
    """What a value must be: its type, its range in words and as a function, and how to write it."""

    kind: type
    expected: str
    allowed: Callable[[Any], bool]
    example: str


def _one_of(names: Iterable[str]) -> _Key:
    return _Key(str, f"a string, one of {', '.join(names)}", lambda value: value in names, '"..."')


def _whole(least: int, below: float = math.inf, upper: str = "") -> _Key:
    return _Key(int, f"a whole number >= {least}{upper}", lambda value: least <= value < below, "3")


def _number(expected: str, allowed: Callable[[float], bool]) -> _Key:
    return _Key(float, f"a number {expected}", allowed, "0.1")


_POSITIVE = _number("> 0, finite", lambda value: 0.0 < value < math.inf)
_NOT_NEGATIVE = _number(">= 0, finite", lambda value: 0.0 <= value < math.inf)
_FOLDER = _Key(
    str,
    "a string, an absolute path (the ServerApp runs in the SuperLink's working directory, not in yours), or empty: "
    "nothing is written",
    lambda value: not value or Path(value).is_absolute(),
    '"/..."',
)

#: What ``[tool.flwr.app.config]`` must have.
KEYS: dict[str, _Key] = {
    "problem": _one_of(PROBLEMS),
    "strategy": _one_of(STRATEGIES),
    "regularizer": _one_of(REGULARIZERS),
    "strength": _NOT_NEGATIVE,
    "client-lr": _POSITIVE._replace(expected="a number > 0, finite, or 'auto'"),
    "server-lr": _POSITIVE._replace(expected="a number > 0, finite, or 'auto'"),
    "batch-size": _whole(1),
    "local-steps": _whole(1),
    "num-server-rounds": _whole(1),
    "num-nodes": _whole(2),
    "clients-per-round": _whole(0),
    "alpha": _POSITIVE,
    "train-fraction": _number("between 0 and 1", lambda value: 0.0 < value < 1.0),
    "seed": _whole(0, 2**32, " and < 2**32"),
    "evaluate-every": _whole(1),
    "privacy-clip": _NOT_NEGATIVE,
    "privacy-target-epsilon": _NOT_NEGATIVE,
    "privacy-delta": _number("from 0 to 1", lambda value: 0.0 <= value < 1.0),
    "privacy-noise": _one_of(("banded", "independent")),
    "output-dir": _FOLDER,
    "checkpoint-dir": _FOLDER,
    "resume": _Key(bool, "true or false", lambda value: True, "true"),
    "round-timeout": _POSITIVE,
}
#: Keys whose value may be the word ``"auto"``: the strategy derives the rate.
_AUTOMATIC = ("client-lr", "server-lr")


def checked_config(run_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config after checking it; whole numbers become floats where a number is expected.

    Parameters
    ----------
    run_config : mapping
        ``context.run_config``.

    Raises
    ------
    ConfigurationError
        If a key is missing or unknown, or a value is of the wrong type or out of range.

    Examples
    --------
    >>> checked_config({"problem": 3})
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: problem=3 is a int; expected a string, one of digits, breast-cancer, lasso. \
Give it as in -c 'problem="..."'
    """
    values = {key: _checked(key, value) for key, value in run_config.items()}
    missing = [key for key in KEYS if key not in values]
    if missing:
        raise ConfigurationError(
            f"the run config lacks {', '.join(missing)}; put them into [tool.flwr.app.config] of pyproject.toml"
        )
    return values


def _checked(key: str, value: Any) -> Any:
    if key not in KEYS:
        raise ConfigurationError(f"unknown key {key!r} in the run config; expected {', '.join(KEYS)}")
    kind, expected, allowed, example = KEYS[key]
    if kind is float and type(value) is int:
        value = float(value)
    if key in _AUTOMATIC and value == "auto":
        return value
    if type(value) is not kind or not allowed(value):
        wrong = "" if type(value) is kind else f" is a {type(value).__name__}"
        raise ConfigurationError(f"{key}={value!r}{wrong}; expected {expected}. Give it as in -c '{key}={example}'")
    return value
