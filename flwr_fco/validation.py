"""One checker of types for everything that a user passes by name: options, settings, run configs, command lines."""

from __future__ import annotations

import collections.abc
import types
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from flwr_fco.errors import ConfigurationError

__all__ = ["checked", "describe"]


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value that is of an annotated type, a whole number as a float where a float is wanted.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : Any
        What was passed.
    kind : type or annotation
        A class, ``Literal``, a union, ``NDArray[...]``, ``Sequence[...]``, ``Mapping[...]`` or ``Callable[...]``. Items
        of sequences are checked as well, those of arrays are not.

    Raises
    ------
    ConfigurationError
        If the value is not of that type. True is no number, and a number is no bool.

    Examples
    --------
    >>> checked("rate", 1, float)
    1.0
    >>> checked("client_prox", "no", bool)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: client_prox='no' is a str; expected True or False
    """
    found, result = _match(value, kind)
    if not found:
        raise ConfigurationError(f"{name}={value!r} is a {type(value).__name__}; expected {describe(kind)}")
    return result


def describe(kind: Any) -> str:
    """Return what a type is called in an error message.

    Examples
    --------
    >>> describe(int | None)
    'a whole number or None'
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(arg) for arg in args))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if kind is None or kind is type(None):
        return "None"
    if origin is collections.abc.Callable or kind is collections.abc.Callable:
        return "a function"
    if origin is not None and issubclass(origin, collections.abc.Mapping):
        return "a mapping"
    if origin is not None and issubclass(origin, collections.abc.Sequence | tuple | list):
        return f"a sequence of {describe(args[0])}" if args else "a sequence"
    if origin is np.ndarray:
        return "an array"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", Any: "anything"}
    return names.get(kind) or f"a {getattr(kind, '__name__', str(kind))}"


def _match(value: Any, kind: Any) -> tuple[bool, Any]:
    """Return whether a value is of a type, and the value as that type has it."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True, value
    if origin in (Union, types.UnionType):
        return next((match for match in (_match(value, arg) for arg in args) if match[0]), (False, value))
    if origin is Literal:
        # 1 == True: types must agree as well.
        return any(type(value) is type(arg) and value == arg for arg in args), value
    if kind is None or kind is type(None):
        return value is None, value
    if origin is collections.abc.Callable or kind is collections.abc.Callable:
        return callable(value), value
    if isinstance(value, np.generic):
        value = value.item()
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number, float(value) if number else value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if origin is np.ndarray or (origin is not None and issubclass(origin, collections.abc.Mapping)):
        return isinstance(value, origin), value
    if origin is not None:
        if not isinstance(value, origin) or isinstance(value, str):
            return False, value
        item = args[0] if args else Any
        return all(_match(element, item)[0] for element in value), value
    return isinstance(value, kind), value
