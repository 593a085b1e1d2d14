"""Specifications: plans, and what they are made of, as JSON and named arrays for messages, without pickle.

A *spec* is a pair of a header (a JSON object with a ``"kind"``) and a dictionary of arrays (weights, groups,
reference points). Reading a spec never evaluates code: the kind is looked up in a table of registered classes and
the class validates its arguments as its constructor always does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, SparseVector
from flwr_fco.core.validation import Choice, enter, of_type
from flwr_fco.errors import SpecError, in_words

_ARRAY = "$array"
#: Limit on objects that a message may request, as their items' below.
_DEEPEST = 16


class Spec(NamedTuple):
    """A header (JSON object) and the arrays that it names."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    def to_json(self) -> str:
        """Return the header as canonical JSON (sorted keys, no white space)."""
        return json.dumps(self.header, sort_keys=True, separators=(",", ":"))


class Specified(Choice):
    """Mixin of dataclasses that can be sent as a :class:`Spec`.

    A subclass that sets ``family`` opens a family (regularizers, mirror maps); every dataclass below it that sets
    ``kind`` is registered under that name. Fields may be numbers, strings, booleans, None, arrays, layouts, members of
    a family, and tuples, lists, sets and mappings of these.
    """

    kind: ClassVar[str] = ""
    family: ClassVar[str] = ""
    _families: ClassVar[dict[str, dict[str, type[Specified]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # @dataclass writes its own __eq__ and __hash__ unless the class body has them, and the generated ones fail on
        # fields that are arrays or dictionaries. Setting the inherited ones here keeps them in every subclass.
        for name in ("__eq__", "__hash__"):
            if name not in cls.__dict__:
                setattr(cls, name, getattr(cls, name))
        if "family" in cls.__dict__:
            Specified._families.setdefault(cls.family, {})
        if cls.__dict__.get("kind"):
            Specified.enter(cls)

    @staticmethod
    def enter(cls: type[Specified]) -> None:
        """Make a class known by its family and its kind.

        Parameters
        ----------
        cls : type of Specified
            With a `kind`.

        Raises
        ------
        ConfigurationError
            If another class has its kind.
        """
        enter(Specified._families[cls.family], cls.kind, cls, f"a {cls.family} of the kind")

    @staticmethod
    def registered() -> list[type[Specified]]:
        """Return all classes that are known."""
        return [kind for family in Specified._families.values() for kind in family.values()]

    def __eq__(self, other: object) -> bool:
        """Whether the other object is of the same class with equal fields: arrays by dtype, shape and content."""
        if type(other) is not type(self):
            return NotImplemented
        return self is other or self._contents() == other._contents()

    def __hash__(self) -> int:
        """Hash the class and its fields; equal objects have equal hashes."""
        return hash((type(self), self._contents()))

    def _contents(self) -> tuple[Any, ...]:
        return tuple(_content(getattr(self, name)) for name in self._names())

    def _names(self) -> list[str]:
        if not hasattr(self, "__dataclass_fields__"):
            advice = "put @dataclass(frozen=True) above it: its fields are what clients get"
            raise SpecError(f"{type(self).__name__} is no dataclass; {advice}")
        return [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]

    def to_spec(self) -> Spec:
        """Return the specification from which :meth:`from_spec` rebuilds an equal object."""
        arrays: dict[str, NDArray[Any]] = {}
        return Spec(self._header("", arrays), arrays)

    def _header(self, prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        if not self.kind:
            advice = "Give the class a unique `kind: ClassVar[str]` and import its module in the ClientApp too."
            raise SpecError(f"{type(self).__name__} has no registered name, so it cannot travel to clients. {advice}")
        if "kind" in vars(type(self)):
            # Of a script or notebook: cloudpickle makes the class in another process, and gives it its kind last.
            Specified.enter(type(self))
        fields = {name: encode(getattr(self, name), prefix + name, arrays) for name in self._names()}
        return {"family": self.family, "kind": self.kind, **fields}

    @classmethod
    def from_spec(cls, spec: Spec) -> Self:
        """Rebuild an object of this family from its specification.

        Raises
        ------
        SpecError
            If the kind is unknown or the arguments do not fit its constructor.
        """
        built = _build(spec.header, spec.arrays, "")
        if not isinstance(built, cls):
            raise SpecError(f"the spec describes {of_type(built)}, expected a {cls.__name__}")
        return built


def _content(value: Any) -> Any:
    """Return what equal values have in common, and others have not, in a form that can be compared and hashed."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        # The order counts: patterns are tried one after the other, so it is part of the meaning.
        return tuple((key, _content(item)) for key, item in value.items())
    return tuple(map(_content, value)) if isinstance(value, tuple | list) else value


#: What is written as an object: its type, what it is taken apart into, and how it is put together again.
_KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "$layout": (Layout, Layout.to_header, Layout.from_header),
    "$mapping": (Mapping, lambda value: tuple(value.items()), dict),
    "$list": (list, tuple, list),
    "$set": (set | frozenset, lambda value: tuple(sorted(value)), set),
    "$sparse": (SparseVector, lambda value: (value.indices, value.values, value.size), lambda own: SparseVector(*own)),
    "$bytes": (bytes, lambda value: np.frombuffer(value, np.uint8), lambda own: own.tobytes()),
}


def encode(value: Any, path: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a value as JSON; its arrays are added by their paths in it.

    Parameters
    ----------
    value : Any
        A number, text, array, sparse vector or layout, bytes, an object that can be sent, or a tuple, list, set or
        mapping of these.
    path : str
        Of the value.
    arrays : dict of str to ndarray
        Where its arrays go.

    Raises
    ------
    SpecError
        If it is something else.

    Examples
    --------
    >>> arrays = {}
    >>> encode({"w": (np.ones(2), 3)}, "at", arrays), sorted(arrays)
    ({'$mapping': [['w', [{'$array': '0'}, 3]]]}, ['at/0/1/0'])
    """
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {_ARRAY: path.rsplit("/", 1)[-1]}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [encode(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, Specified):
        return value._header(f"{path}/", arrays)
    for name, (kind, apart, _) in _KINDS.items():
        if isinstance(value, kind):
            return {name: encode(apart(value), path, arrays)}
    raise SpecError(f"{path} = {value!r} of type {type(value).__name__} cannot be part of a specification")


def decode(value: Any, path: str, arrays: Mapping[str, NDArray[Any]], most: float = 10_000) -> Any:
    """Return a value that :func:`encode` has written.

    Parameters
    ----------
    value : Any
        JSON.
    path : str
        Of the value.
    arrays : mapping of str to ndarray
        Its arrays, by their paths.
    most : float, default 10000
        Number of items that a tuple, list, set or mapping may have.

    Raises
    ------
    SpecError
        If it is none.
    """
    if isinstance(value, list):
        if len(value) > most:
            raise SpecError(f"{path} is {str(value)[:80]}, {len(value)} items; expected at most {most}")
        return tuple(decode(item, f"{path}/{i}", arrays, most) for i, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    if "family" in value:
        return _build(value, arrays, f"{path}/")
    name, own = next(iter(value.items()), ("", None))
    if name == _ARRAY and path not in arrays:
        raise SpecError(f"the specification names an array {path!r} that did not come with it")
    if name == _ARRAY:
        return arrays[path]
    if name not in _KINDS:
        raise SpecError(f"{path} holds an object that is not part of a specification: {sorted(value)}")
    return _KINDS[name][2](decode(own, path, arrays, most))


def _build(header: Any, arrays: Mapping[str, NDArray[Any]], prefix: str) -> Specified:
    family, kind = (header.get("family"), header.get("kind")) if isinstance(header, dict) else (None, None)
    if not isinstance(family, str) or not isinstance(kind, str):
        raise SpecError(f"not a specification: {str(header)[:80]}; expected names of a family and of a kind")
    if prefix.count("/") > _DEEPEST:
        raise SpecError(f"a specification that is nested more than {_DEEPEST} times: {prefix[:80]}")
    classes = Specified._families.get(family, {})
    if kind not in classes:
        advice = "A class of your own must be imported where it is read: import its module in the ClientApp"
        raise SpecError(f"unknown {family} {kind!r}; known here: {', '.join(sorted(classes)) or 'none'}. {advice}")
    cls = classes[kind]
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    arguments = header.keys() - {"family", "kind"}
    if arguments != names:
        wrong = f"lacks {', '.join(sorted(names - arguments))}" if names - arguments else ""
        wrong = wrong or f"has no argument {', '.join(sorted(arguments - names))}"
        raise SpecError(f"{family} {kind!r} {wrong}; server and client probably run different versions of flwr-fco")
    with in_words(f"{family} {kind!r} cannot be built", SpecError):
        return cls(**{name: decode(header[name], f"{prefix}{name}", arrays) for name in arguments})
