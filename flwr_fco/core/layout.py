"""Layout: named arrays on the outside, one flat float64 vector on the inside; and vectors that are mostly zero.

All computations in this package are arithmetic on one vector. A :class:`Layout` stores the names, shapes and dtypes of
the user's arrays, which of them the regularizer acts on, and which are not optimised at all (integer counters, running
statistics): those pass through.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError

Vector = NDArray[np.float64]
Patterns = str | Sequence[str]

#: Arrays that are statistics of the data, not parameters: PyTorch's batch normalisation buffers.
PASS_THROUGH = ("*running_mean", "*running_var", "*num_batches_tracked")
#: Patterns of those that are whole numbers in PyTorch.
COUNTERS = "*num_batches_tracked"
#: Last parts of the names of arrays that regularizers skip by default.
UNREGULARIZED = ("intercept", "intercept_", "bias")
_FLOAT64 = np.dtype(np.float64)


def all_finite(value: NDArray[Any] | float) -> bool:
    """Whether an array or a number has no NaN and no infinity.

    Examples
    --------
    >>> all_finite(np.array([1.0, 1e300])), all_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    if not isinstance(value, np.ndarray):
        return math.isfinite(value)
    # A sum of squares is finite only if every element is, and needs no second array. It overflows above 1e154, about
    # which vdot does not warn (dot would).
    if value.dtype is _FLOAT64 and math.isfinite(np.vdot(value, value)):
        return True
    return bool(np.isfinite(value).all())


def euclidean_norm(vector: NDArray[Any]) -> float:
    """Return the Euclidean norm, infinite if the sum of squares overflows.

    Parameters
    ----------
    vector : ndarray of float64, float32 or float16
        Array of any shape.

    Examples
    --------
    >>> euclidean_norm(np.array([3.0, 4.0])), euclidean_norm(np.array([1e200]))
    (5.0, inf)
    """
    # vdot does not warn if the sum overflows; dot does.
    if vector.dtype == np.float64:
        return math.sqrt(np.vdot(vector, vector))
    flat = vector.reshape(-1)
    # A large vector has no copy in float64.
    return math.sqrt(np.einsum("i,i->", flat, flat, dtype=np.float64))


@dataclass(frozen=True)
class Entry:
    """One named array of a model.

    Parameters
    ----------
    name : str
        The key in the user's ``ArrayRecord``.
    shape : tuple of int
        Its shape; ``()`` is a scalar.
    dtype : str
        NumPy name of the user's dtype; computations always use float64.
    offset : int
        Where the array starts in the flat vector; -1 if it passes through.
    regularized : bool
        Whether the regularizer acts on it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    regularized: bool

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def optimized(self) -> bool:
        """Whether the array is part of the flat vector."""
        return self.offset >= 0

    @cached_property
    def block(self) -> slice:
        """The array's place in the flat vector."""
        return slice(self.offset, self.offset + self.size)

    def __str__(self) -> str:
        return f"{self.name}{list(self.shape)}{'*' * self.regularized}{' (passes through)' * (not self.optimized)}"


@dataclass(frozen=True, repr=False)
class Layout:
    """Names, shapes, dtypes and places of a model's arrays.

    Parameters
    ----------
    entries : tuple of Entry
        The arrays, in the user's order; :meth:`from_header` gives them their places.

    Raises
    ------
    ValueError
        If two arrays have the same name.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout.from_arrays({"coefficients": np.zeros(3), "intercept": np.zeros(1)})
    >>> layout.size, layout.regularized_names
    (4, ('coefficients',))
    >>> layout.unflatten(np.arange(4.0))["intercept"]
    array([3.])
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"array names must be unique, got {self.names}")

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return sum(entry.size for entry in self.optimized)

    @cached_property
    def optimized(self) -> tuple[Entry, ...]:
        """The arrays that make up the flat vector."""
        return tuple(entry for entry in self.entries if entry.optimized)

    @cached_property
    def passed_through(self) -> tuple[Entry, ...]:
        """The arrays outside the flat vector."""
        return tuple(entry for entry in self.entries if not entry.optimized)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the optimised arrays, in their order in the flat vector."""
        return {entry.name: entry.shape for entry in self.optimized}

    @cached_property
    def signature(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The part that layouts of the same model must share: :attr:`shapes`, in the same order."""
        return tuple(self.shapes.items())

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, ArrayLike], *, apply_to: Patterns | None = None, pass_through: Patterns = PASS_THROUGH
    ) -> Layout:
        """Return the layout of a dictionary of arrays.

        Parameters
        ----------
        arrays : mapping of str to array
            The model. Floating arrays are optimised; integer and boolean arrays pass through.
        apply_to : str or sequence of str, optional
            Shell patterns (``"*.weight"``) of the arrays that the regularizer acts on. By default: the arrays of two or
            more dimensions if there are any, otherwise all, but none called ``intercept`` or ``bias``. Among unnamed
            arrays (Flower numbers them), single numbers next to longer arrays are taken for intercepts.
        pass_through : str or sequence of str
            Shell patterns of floating arrays that are averaged but not optimised, besides PyTorch's running statistics.
            An empty sequence: not even these.

        Raises
        ------
        ValueError
            If there is no array to optimise, a dtype is not numeric, or a pattern of one's own matches nothing.
        """
        own = (pass_through,) if isinstance(pass_through, str) else tuple(pass_through)
        matching(list(arrays), [pattern for pattern in own if pattern not in PASS_THROUGH], "pass_through")
        through = (*own, *PASS_THROUGH) if own else ()
        rows = []
        for name, given in arrays.items():
            array = np.asarray(given)
            if array.dtype.kind not in "fiub":
                raise ValueError(f"array {name!r} has dtype {array.dtype}; expected floating point, integer or boolean")
            optimized = array.dtype.kind == "f" and first_match(through, name) is None
            rows.append((name, array.shape, array.dtype.name, optimized, False))
        layout = cls.from_header(rows)
        if not layout.optimized:
            raise ValueError(f"no floating-point array to optimise among {sorted(arrays)}; pass the model's parameters")
        return layout.applying(apply_to)

    def applying(self, apply_to: Patterns | None) -> Layout:
        """Return the layout whose regularizer acts on what `apply_to` names, as in :meth:`from_arrays`."""
        if apply_to is not None:
            return self.regularizing(matching(list(self.shapes), apply_to))
        longer = {entry.name for entry in self.optimized if entry.size > 1}
        # Names in JAX are "dense/bias", or "['dense']['bias']".
        slopes = {name for name in self.shapes if re.split("[./']", name.rstrip("']"))[-1] not in UNREGULARIZED}
        # Layers in a stack have a matrix of biases.
        matrices = {entry.name for entry in self.optimized if len(entry.shape) >= 2} & slopes
        # Arrays in a list are named "0", "1", ...: usually the coefficients and intercept of a linear model.
        unnamed = all(name.isdecimal() for name in self.shapes)
        return self.regularizing(matrices or (unnamed and longer) or slopes)

    def regularizing(self, names: Container[str]) -> Layout:
        """Return the layout of which these arrays are regularized, and no others.

        Examples
        --------
        >>> layout = Layout.from_arrays({"a": np.zeros(2), "b": np.zeros(3)})
        >>> layout.regularizing(["b"])
        Layout(a[2], b[3]*; size 5, * regularized)
        """
        return Layout(tuple(replace(entry, regularized=entry.name in names) for entry in self.entries))

    def entry_at(self, coordinate: int) -> Entry:
        """Return the array that a coordinate of the flat vector is of."""
        return next(entry for entry in self.optimized if coordinate < entry.block.stop)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the user's order."""
        return tuple(entry.name for entry in self.entries)

    @property
    def regularized_names(self) -> tuple[str, ...]:
        """Names of the arrays that the regularizer acts on."""
        return tuple(entry.name for entry in self.entries if entry.regularized)

    def regularized_mask(self) -> NDArray[np.bool_]:
        """Return a mask of shape (size,) over the flat vector: True where the regularizer acts."""
        parts = [np.full(entry.size, entry.regularized) for entry in self.optimized]
        return np.concatenate([np.zeros(0, np.bool_), *parts])

    def flatten(self, arrays: Mapping[str, ArrayLike]) -> Vector:
        """Return the optimised arrays as one new float64 vector of shape (size,).

        Parameters
        ----------
        arrays : mapping of str to array
            Must hold at least the optimised arrays, each with the layout's shape.

        Raises
        ------
        ValueError
            If an array is missing or has another shape.
        """
        vector = np.empty(self.size)
        for name, place in self.views(vector).items():
            if name not in arrays:
                raise ValueError(f"array {name!r} is missing; got {sorted(arrays)}")
            array = np.asarray(arrays[name])
            if array.shape != place.shape:
                raise ValueError(f"array {name!r} has shape {array.shape}, expected {place.shape}")
            place[...] = array
        return vector

    def unflatten(self, vector: Vector) -> dict[str, NDArray[Any]]:
        """Return the optimised arrays as new arrays of the user's shapes and dtypes, from a vector of shape (size,)."""
        return {e.name: v.astype(e.dtype) for e, v in zip(self.optimized, self.views(vector).values(), strict=True)}

    @cached_property
    def double(self) -> bool:
        """Whether the user's model holds all digits of the flat vector, that is, all of its arrays are float64."""
        return all(entry.dtype == "float64" for entry in self.optimized)

    @cached_property
    def single_network(self) -> bool:
        """Whether this is a single-precision network: float32 arrays, with PyTorch's names of weights."""
        named = any(entry.name.rsplit(".", 1)[-1] == "weight" for entry in self.optimized)
        return named and all(entry.dtype == "float32" for entry in self.optimized)

    def rounded(self, vector: Vector) -> Vector:
        """Return a vector rounded to the user's dtypes; the vector itself if they are all float64.

        Parameters
        ----------
        vector : ndarray of float64, shape (size,)
            The flat vector.

        Returns
        -------
        ndarray of float64, shape (size,)
            Infinite where a number overflows its dtype.
        """
        return vector if self.double else self.flatten(self.unflatten(vector))

    def views(self, vector: Vector) -> dict[str, Vector]:
        """Return views of a vector of shape (size,), one for each optimised array, of its shape.

        Raises
        ------
        ValueError
            If the vector has another shape.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"the vector has shape {vector.shape}, expected ({self.size},)")
        return {entry.name: vector[entry.block].reshape(entry.shape) for entry in self.optimized}

    def to_header(self) -> tuple[tuple[Any, ...], ...]:
        """Return a JSON-able description; :meth:`from_header` reads it."""
        return tuple((e.name, e.shape, e.dtype, e.optimized, e.regularized) for e in self.entries)

    @classmethod
    def from_header(cls, header: Iterable[Sequence[Any]]) -> Layout:
        """Return the layout of arrays, of each: its name, shape and dtype, whether it is optimised and regularized.

        Raises
        ------
        ValueError
            If an entry does not have the form that :meth:`to_header` writes.

        Examples
        --------
        >>> Layout.from_header([("w", (2, 3), "float32", True, True), ("count", (), "int64", False, False)])
        Layout(w[2, 3]*, count[] (passes through); size 6, * regularized)
        """
        entries, offset = list[Entry](), 0
        for row in header:
            name, shape, dtype, optimized, regularized = row
            # A negative size could hide a surplus elsewhere, and texts and structures have other names than dtypes.
            sizes = isinstance(shape, list | tuple) and all(type(size) is int and size >= 0 for size in shape)
            right = isinstance(name, str) and sizes and np.dtype(dtype).kind in "biufc"
            if not (right and isinstance(optimized, bool) and isinstance(regularized, bool)):
                expected = "a name, whole sizes >= 0, a numeric dtype, whether it is optimised and regularized"
                raise ValueError(f"the entry {row!r} describes no array; expected {expected}")
            entries.append(Entry(name, tuple(shape), np.dtype(dtype).name, offset if optimized else -1, regularized))
            offset += entries[-1].size * optimized
        return cls(tuple(entries))

    def __getitem__(self, name: str) -> Entry:
        return {entry.name: entry for entry in self.entries}[name]

    def __repr__(self) -> str:
        return f"Layout({', '.join(map(str, self.entries))}; size {self.size}, * regularized)"


# --- patterns of names ------------------------------------------------------------------------------------------------

#: Every array is compared with every pattern.
_MOST_PATTERNS = 1_000


def checked_patterns(owner: str, given: Any, prefix: str, fits: Any) -> dict[str, Any]:
    """Return a copy of a user's mapping.

    Parameters
    ----------
    owner : str
        Name of the class, for error messages.
    prefix : str
        What the patterns are mapped to.
    fits : callable
        Whether something is that.

    Raises
    ------
    ConfigurationError
        If it is no mapping of shell patterns to such things, or one of too many.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"{owner}({given!r}): expected a non-empty mapping of shell patterns to {prefix}s")
    for pattern, own in given.items():
        if not isinstance(pattern, str) or not fits(own):
            raise ConfigurationError(f"{owner}: {pattern!r}: {own!r}; expected a shell pattern and a {prefix}")
    if len(given) > _MOST_PATTERNS:
        advice = "Write one pattern for many arrays; density= on so many takes Density(..., scope='global')"
        raise ConfigurationError(f"{owner}: {len(given)} patterns; expected at most {_MOST_PATTERNS}. {advice}")
    return dict(given)


def matching(names: Sequence[str], patterns: Patterns, option: str = "apply_to") -> set[str]:
    """Return the names that match a pattern; one that matches none is an error, which names the option."""
    matched = set[str]()
    for pattern in (patterns,) if isinstance(patterns, str) else checked(option, patterns, Sequence[str]):
        found = {name for name in names if first_match([pattern], name) is not None}
        if not found:
            raise ConfigurationError(f"{option}={pattern!r} matches none of the arrays {names}")
        matched |= found
    return matched


def first_match(patterns: Iterable[str], name: str) -> str | None:
    """Return the first pattern that matches a name, or is the name, or None.

    Examples
    --------
    >>> first_match(["b*", "*"], "bias"), first_match(["b*"], "weight")
    ('b*', None)
    """
    # Brackets are classes of characters in patterns, and parts of names in JAX.
    return next((pattern for pattern in patterns if pattern == name or fnmatchcase(name, pattern)), None)


def require_matches(owner: str, patterns: Iterable[str], names: Iterable[str], besides: str = "") -> None:
    """Raise :class:`ConfigurationError` unless every pattern is the first match of at least one name."""
    arrays, all_patterns = list(names), list(patterns)
    used = {first_match(all_patterns, name) for name in arrays}
    if unused := [pattern for pattern in all_patterns if pattern not in used]:
        problem = f"{owner}: the patterns {unused} match no array that is still free: the first that matches wins"
        raise ConfigurationError(f"{problem}. The arrays are {arrays}{besides}")


# --- vectors that are zero in most coordinates ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class SparseVector:
    """The coordinates of a vector that may be non-zero, and its values there.

    Parameters
    ----------
    indices : ndarray of int32, shape (k,)
        Ascending without duplicates, from 0 to size - 1.
    values : ndarray of float64 or float32, shape (k,)
        The vector at these coordinates.
    size : int
        Length of the vector.

    Raises
    ------
    ConfigurationError
        If the indices violate this description.

    Examples
    --------
    >>> SparseVector(np.array([0, 3], dtype=np.int32), np.array([1.0, -2.0]), 5).to_dense()
    array([ 1.,  0.,  0., -2.,  0.])
    """

    indices: NDArray[np.int32]
    values: NDArray[Any]
    size: int

    def __post_init__(self) -> None:
        indices = self.indices
        k = self.indices.size
        if indices.dtype != np.int32 or indices.shape != (k,) or self.values.shape != (k,):
            prefix = f"indices {indices.dtype}{list(indices.shape)} and values {list(self.values.shape)}"
            raise ConfigurationError(f"a sparse vector has {prefix}; expected one int32 for each value")
        if k and not (indices[0] >= 0 and indices[-1] < self.size and (indices[1:] > indices[:-1]).all()):
            raise ConfigurationError(f"the indices of a sparse vector have to ascend, from 0 to {self.size - 1}")

    @property
    def shape(self) -> tuple[int]:
        """Shape of the whole vector."""
        return (self.size,)

    @property
    def parts(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values and indices, the parts in messages."""
        return self.values, self.indices

    @property
    def nbytes(self) -> int:
        """Bytes of both parts."""
        return self.values.nbytes + self.indices.nbytes

    def astype(self, dtype: str, copy: bool = True) -> SparseVector:
        """Return the vector with values of another dtype."""
        return replace(self, values=self.values.astype(dtype, copy=copy))

    def to_dense(self) -> NDArray[Any]:
        """Return the whole vector."""
        whole = np.zeros(self.size, dtype=self.values.dtype)
        whole[self.indices] = self.values
        return whole

    def at(self, indices: NDArray[Any]) -> NDArray[Any]:
        """Return the vector at some coordinates."""
        if not self.indices.size:
            return np.zeros(indices.size, dtype=self.values.dtype)
        nearest = np.searchsorted(self.indices, indices).clip(max=self.indices.size - 1)
        return np.where(self.indices[nearest] == indices, self.values[nearest], 0.0)


class NonZeros(SparseVector):
    """A vector given by all of its non-zeros; a SparseVector from the server holds a client's coordinates.

    Examples
    --------
    >>> NonZeros.of(np.array([0.0, 2.0, 0.0, 3.0])).at(np.array([0, 1]))
    array([0., 2.])
    """

    __slots__ = ()

    @classmethod
    def of(cls, vector: NDArray[np.float64]) -> NonZeros:
        """Return a vector by its non-zeros, including -0.0, so that all bits are kept."""
        indices = np.flatnonzero(vector.view(np.int64)).astype(np.int32)
        return cls(indices, vector[indices], vector.size)


def dense(vector: NDArray[Any] | SparseVector) -> NDArray[np.float64]:
    """Return a vector as a float64 array, without a copy if it is one."""
    whole = vector.to_dense() if isinstance(vector, SparseVector) else vector
    return whole.astype(np.float64, copy=False)


def is_shorter(count: int, size: int, itemsize: int = 8) -> bool:
    """Whether this many values with their indices take fewer bytes than all values, which take so many each.

    Examples
    --------
    >>> is_shorter(6, 10), is_shorter(7, 10)
    (True, False)
    """
    return (4 + itemsize) * count < itemsize * size
