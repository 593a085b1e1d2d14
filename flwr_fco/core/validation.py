"""A single type checker for all named user input: options, settings, run configs, command lines; texts of errors."""

from __future__ import annotations

import collections.abc
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache, wraps
from inspect import get_annotations, signature
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from flwr_fco.errors import ConfigurationError, UnknownOptionError

_Kind = TypeVar("_Kind", bound=type[Any])
#: Ranges, as the metadata of a field: a check of the number, and its description.
AT_LEAST_ONE = {"range": (lambda value: value >= 1, "a whole number >= 1")}
NATURAL = {"range": (lambda value: value >= 0, "a whole number >= 0")}
POSITIVE = {"range": (lambda value: 0.0 < value < math.inf, "a finite number > 0")}
NON_NEGATIVE = {"range": (lambda value: 0.0 <= value < math.inf, "a finite number >= 0")}
FRACTION = {"range": (lambda value: 0.0 <= value <= 1.0, "a number from 0 to 1")}
PART = {"range": (lambda value: 0.0 < value < 1.0, "a number between 0 and 1")}
MOMENTUM = {"range": (lambda value: 0.0 <= value < 1.0, "a number >= 0 and < 1")}
SEED = {"range": (lambda seed: 0 <= seed < 2**32, "a whole number from 0 to 2**32 - 1")}
CHANCE = {"range": (lambda value: 0.0 < value <= 1.0, "a number > 0 and <= 1")}
#: Called when a class or a function is defined anew, to drop what was made of the old one.
FORGETTING: list[Callable[[], None]] = []


def short(value: object, most: int = 100) -> str:
    """Return a value's repr in at most a line; of a model, or of many values, only what it is.

    Examples
    --------
    >>> short(0.5), short({"w": np.zeros(3)}), short(np.zeros((2, 2)))
    ('0.5', 'a dict of 1 values', 'an array of shape (2, 2)')
    """
    if _is_array(value):
        return f"an array of shape {tuple(value.shape)}"  # type: ignore[attr-defined]
    if isinstance(value, collections.abc.Mapping | list | tuple | set | str | bytes):
        each: Any = value.values() if isinstance(value, collections.abc.Mapping) else value
        # A repr of a model's arrays takes four bytes of text for each byte.
        if len(value) > most or any(map(_is_array, each)):
            return f"{describe(type(value))} of {len(value)} values"
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _is_array(value: object) -> bool:
    return isinstance(getattr(value, "shape", None), tuple) and not isinstance(value, np.generic)


def printable(text: str) -> str:
    r"""Return a text on one line without characters that a terminal, a table or a browser would obey.

    Control characters, line ends and marks that turn the direction of writing are escaped as Python writes them.

    Parameters
    ----------
    text : str
        What somebody else has said: a client's error, the name of a metric, a line of a file.

    Examples
    --------
    >>> print(printable("a\x1b[2Kb\nINFO: all is well\u202e!"))
    a\x1b[2Kb\nINFO: all is well\u202e!
    """
    plain = (c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return "".join(plain)


def checked(name: str, value: Any, kind: Any, within: Mapping[str, Any] | None = None) -> Any:
    """Return a value after checking its type and range; a whole number becomes a float if a float is expected.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : Any
        The value.
    kind : type or annotation
        A class, ``Literal``, a union, ``NDArray[...]``, ``Sequence[...]``, ``Mapping[...]`` or ``Callable[...]``. Items
        of sequences are checked as well, entries of arrays are not; for functions, the number of arguments is checked.
    within : mapping, optional
        A range of this module, for values other than None, texts and functions; under ``"example"`` what to write in
        the place of a value of another type, with ``{0}`` for a number that was given.

    Raises
    ------
    ConfigurationError
        If the value is not of that type or not in that range. Booleans are not numbers, and numbers are not booleans.

    Examples
    --------
    >>> checked("rate", 1, float)
    1.0
    >>> checked("client_prox", "no", bool)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: client_prox='no' is a str; expected True or False
    """
    matches, result = _match(value, kind)
    if not matches and isinstance(value, type):
        kinds = tuple(own for own in get_args(kind) or (kind,) if isinstance(own, type))
        example = f", such as {value.__name__}(...)" if issubclass(value, kinds) else ""
        raise ConfigurationError(f"{name}={value.__name__} is a class; expected {describe(kind)}{example}")
    if not matches and getattr(value, "__annotations__", {}).get("return") == getattr(kind, "__name__", ""):
        raise ConfigurationError(f"{name}={value.__name__} is a function; call it: {value.__name__}(...)")
    within = within or {}
    if not matches:
        number = value if type(value) is int and value > 0 else 5
        example = f"; write {name}={within['example'].format(number)}" if "example" in within else ""
        raise ConfigurationError(f"{name}={short(value)} is {of_type(value)}; expected {describe(kind)}{example}")
    has_range = "range" in within and not (result is None or isinstance(result, str) or callable(result))
    if has_range and not within["range"][0](result):
        none = ", or None" if type(None) in get_args(kind) else ""
        raise ConfigurationError(f"{name}={short(value)}; expected {within['range'][1]}{none}")
    return result


@cache
def kinds_of(kind: Any) -> Mapping[str, Any]:
    """Return the annotations of a class, cached because Python evaluates their text on each call."""
    try:
        return get_type_hints(kind)
    except NameError:
        # A user's class may have annotations of names that only type checkers import.
        own = dict.fromkeys(getattr(kind, "__dataclass_fields__", ()), Any)
        return own | {name: each for base in reversed(kind.__bases__) for name, each in kinds_of(base).items()}


def check_fields(values: Any, owner: str = "") -> None:
    """Keep a dataclass's values as the types that they are declared with, if they are in their ranges.

    A field may bring a check of its own in its metadata: ``check(values, name, value)`` returns what is kept.

    Parameters
    ----------
    owner : str, default ""
        Precedes the names in errors.
    """
    kinds = kinds_of(values.__class__)
    for option in fields(values):
        value = getattr(values, option.name)
        check = option.metadata.get("check")
        if check is None:
            value = checked(owner + option.name, value, kinds[option.name], option.metadata)
        elif not (value is None and option.default is None):
            value = check(values, option.name, value)
        object.__setattr__(values, option.name, value)


class Choice:
    """A dataclass of values that are kept as the types that they are declared with, and are in their ranges."""

    def __post_init__(self) -> None:
        check_fields(self, f"{type(self).__name__}.")


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the option that a name is most like, in lower case; None if it is like none.

    Examples
    --------
    >>> nearest("gowth", ["up", "growth"]), nearest("rate", ["up", "growth"])
    ('growth', None)
    """
    return next(iter(get_close_matches(name.lower().replace("-", "_"), list(options), n=1, cutoff=0.7)), None)


def _did_you_mean(name: str, taken: Mapping[str, Any]) -> str:
    own = nearest(name, taken)
    return f"; it has {', '.join([*taken][1:])}" if own is None else f"; did you mean {own}?"


def refusing(kind: _Kind, advice: Callable[[str, Mapping[str, Any]], str] = _did_you_mean) -> _Kind:
    """Make a class say what to write in the place of an option that it does not have.

    Parameters
    ----------
    kind : type
        The class, whose constructor changes.
    advice : callable, optional
        ``(name, options that there are)``: the end of the error; by default the option that is most like it.
    """
    init = kind.__init__
    taken = signature(init).parameters

    @wraps(init)
    def __init__(self: Any, *values: Any, **options: Any) -> None:
        for name in options:
            if name not in taken:
                prefix = f"{name}={short(options[name])}: {type(self).__name__} has no such option"
                # A field of a dataclass that is no parameter, as the lasso's l1_ratio, is declared as it should be.
                if name in get_annotations(type(self)) and name not in getattr(self, "__dataclass_fields__", {}):
                    raise UnknownOptionError(f"{prefix}: it declares one, but lacks a decorator, such as @strategy")
                raise UnknownOptionError(f"{prefix}{advice(name, taken)}")
        init(self, *values, **options)

    kind.__init__ = __init__
    return kind


def enter(known: dict[str, Any], name: str, thing: Any, prefix: str) -> None:
    """Make a class or a function known by a name, which belongs to no other.

    Parameters
    ----------
    known : dict
        What is known of the kind that the prefix says, by name.

    Raises
    ------
    ConfigurationError
        If another one has this name.
    """
    first = known.get(name, thing)
    # A cell or a file that is run again defines the same class again; a functools.partial has its class's name.
    who, other = (f"{each.__module__}.{getattr(each, '__qualname__', type(each).__name__)}" for each in (thing, first))
    if who != other:
        raise ConfigurationError(f"{who}: {prefix} {name!r} exists already, {other}; give yours another name")
    known[name] = thing
    if first is not thing:
        for forget in FORGETTING:
            forget()


def plain(value: Any) -> Any:
    """Return numbers of NumPy, PyTorch or JAX, such as a float32 model's norm, as Python's: JSON accepts only these.

    Examples
    --------
    >>> plain(np.float32(0.5)), plain(np.arange(2)), plain("x")
    (0.5, [0, 1], 'x')
    """
    return value.tolist() if hasattr(value, "tolist") else value


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with this many positional arguments; True if its signature is unknown.

    Examples
    --------
    >>> takes(lambda number: number, 1), takes(lambda: 0, 1), takes(lambda *all: all, 3)
    (True, False, True)
    """
    try:
        signature(function).bind(*range(count))
    except (TypeError, ValueError) as error:
        # Some functions that are not written in Python do not say what they take.
        return isinstance(error, ValueError)
    return True


def describe(kind: Any) -> str:
    """Return the name of a type in an error message.

    Examples
    --------
    >>> describe(int | None)
    'a whole number or None'
    """
    origin, args = _parts(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, args)))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is collections.abc.Callable:
        count = _count_of(args)
        return f"a function of {count} argument{'s' * (count > 1)}" if count else "a function"
    if args and issubclass(origin, collections.abc.Sequence):
        return "a list" if args[0] is Any else f"a sequence of {describe(args[0])}"
    name = getattr(origin, "__name__", str(kind))
    return _NAMES.get(origin) or f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def of_type(value: object) -> str:
    """Return the name of a value's type, after its article."""
    name = type(value).__name__
    return f"{'an' if name.startswith((*'AEIOaeio', 'nd', 'L1', 'L2')) else 'a'} {name}"


#: Types in errors.
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", Any: "anything"}
_NAMES |= {type(None): "None", np.ndarray: "an array", collections.abc.Mapping: "a mapping"}


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without its arguments, and these; an alias, as NumPy's NDArray is from 2.5 on, is what it means."""
    origin = get_origin(kind) or kind
    return _parts(origin.__value__) if hasattr(origin, "__value__") else (origin, get_args(kind))


def _count_of(args: tuple[Any, ...]) -> int:
    """Return the number of arguments of a ``Callable[...]`` of these; 0 if it is not specified."""
    return len(args[0]) if args and isinstance(args[0], list) else 0


def _match(value: Any, kind: Any) -> tuple[bool, Any]:
    """Return whether a value has a type, and the value converted to it."""
    origin, args = _parts(kind)
    if kind is Any:
        return True, value
    if origin in (Union, types.UnionType):
        return next((match for match in (_match(value, arg) for arg in args) if match[0]), (False, value))
    if isinstance(value, np.generic) or (kind in (bool, float, int) and _is_array(value) and not value.ndim):
        value = value.item()
    if origin is Literal:
        # 1 == True: types must agree as well.
        return any(type(value) is type(arg) and value == arg for arg in args), value
    if origin is collections.abc.Callable:
        return callable(value) and (not _count_of(args) or takes(value, _count_of(args))), value
    if kind in (float, int):
        number = isinstance(value, int | kind) and not isinstance(value, bool)
        try:
            return number, kind(value) if number else value
        except OverflowError:
            return number, math.inf if value > 0 else -math.inf
    fits = isinstance(value, origin)
    if args and issubclass(origin, collections.abc.Sequence):
        fits = fits and not isinstance(value, str) and all(_match(element, args[0])[0] for element in value)
    return fits, value
