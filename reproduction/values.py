"""Checks of what a user types: types of settings and options, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from flwr_fco.errors import ConfigurationError

_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value after checking its type; a whole number becomes a float if a float is expected.

    Parameters
    ----------
    name : str
        For the message.
    value : Any
    kind : type or annotation
        A class, ``Literal``, or a union of these.

    Raises
    ------
    ConfigurationError
        If the value is not of that type. Booleans are not numbers, and numbers are not booleans.

    Examples
    --------
    >>> checked("rate", 1, float)
    1.0
    >>> checked("rate", "fast", float | Literal["auto"])
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: rate='fast' is a str; expected a number or 'auto'
    """
    if isinstance(value, np.generic):
        value = value.item()
    known = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    expected: list[str] = []
    for own in known:
        if get_origin(own) is Literal:
            # 1 == True: types must agree as well.
            if any(type(value) is type(arg) and value == arg for arg in get_args(own)):
                return value
            expected += map(repr, get_args(own))
            continue
        if own is float and type(value) is int:
            return float(value)
        if type(value) is own:
            return value
        expected.append(_NAMES.get(own) or f"a {own.__name__}")
    raise ConfigurationError(f"{name}={value!r} is a {type(value).__name__}; expected {' or '.join(expected)}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the nearest known name, if there is one.

    Parameters
    ----------
    name : str
        The given name.
    known : iterable of str
        The known names.

    Examples
    --------
    >>> suggestion("feddualav", ["FedMid", "FedDualAvg"])
    '. Did you mean FedDualAvg?'
    """
    plain = {entry.lower().replace("_", "-"): entry for entry in known}
    near = get_close_matches(name.lower().replace("_", "-"), plain, n=1, cutoff=0.7)
    return f". Did you mean {plain[near[0]]}?" if near else ""
