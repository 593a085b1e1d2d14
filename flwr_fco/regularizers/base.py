"""The interface of a regularizer psi, and its application to a model's named arrays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.validation import Array as Array
from flwr_fco.regularizers.validation import check_step, destination

Scope = Literal["each", "joint"]


class Terms(NamedTuple):
    """The separable terms of t psi for kernels: float64 arrays with one element or as many as the vector.

    Examples
    --------
    >>> Terms(np.ones(1), np.zeros(1), np.array([-np.inf]), np.array([np.inf])).threshold
    array([1.])
    """

    threshold: Vector
    shrinkage: Vector
    lower: Vector
    upper: Vector


class SeparableTerms(NamedTuple):
    """The terms of a separable psi(w) = sum_i a_i |w_i| + b_i/2 w_i^2 + indicator(lower_i <= w_i <= upper_i).

    Its proximal map is ``clip(soft(v, step * a) / (1 + step * b), lower, upper)``. Each field is a number or an array
    that broadcasts to the array's shape. Non-Euclidean geometries use these terms for their closed forms.

    Examples
    --------
    >>> SeparableTerms(threshold=0.5, lower=0.0).scaled(2.0).threshold
    array([1.])
    """

    threshold: float | Array = 0.0
    shrinkage: float | Array = 0.0
    lower: float | Array = -np.inf
    upper: float | Array = np.inf

    @property
    def is_l1(self) -> bool:
        """Whether there are no terms but thresholds."""
        bounds = np.any(np.greater(self.lower, -np.inf)) or np.any(np.less(self.upper, np.inf))
        return not (np.any(self.shrinkage) or bounds)

    def at(self, indices: NDArray[np.integer[Any]]) -> SeparableTerms:
        """Return the terms at some coordinates.

        Parameters
        ----------
        indices : ndarray of int
            Their numbers.
        """
        return SeparableTerms(*(field[indices] if isinstance(field, np.ndarray) else field for field in self))

    def scaled(self, t: float, size: int | None = None) -> Terms:
        """Return the terms of t psi as arrays for the kernels.

        Parameters
        ----------
        t : float
            The weight of psi, finite and >= 0.
        size : int, optional
            The length of the vector that the terms have to fit; not checked by default.

        Raises
        ------
        ConfigurationError
            If a term does not fit.
        """
        arrays = Terms(_vector(self.threshold, t), _vector(self.shrinkage, t), _vector(self.lower), _vector(self.upper))
        for name, array in zip(Terms._fields, arrays, strict=True):
            if size is not None and array.shape not in ((1,), (size,)):
                raise ConfigurationError(
                    f"psi's {name} has shape {array.shape}, the vector has {size} elements; bind psi to the model's "
                    "layout (psi.bind(layout)), or give it weights of the vector's shape"
                )
        return arrays


def _vector(field: Any, factor: float = 1.0) -> Vector:
    """Return factor * field, at most the largest float, as a new array (kernels require writable ones)."""
    if isinstance(field, float):
        return np.array([field if factor == 1.0 else min(field * factor, sys.float_info.max)])
    with np.errstate(over="ignore"):
        array = np.atleast_1d(np.multiply(field, factor, dtype=np.float64))
    return array if factor == 1.0 else np.minimum(array, sys.float_info.max, out=array)


def _number_if_constant(field: Any) -> Any:
    return float(field[0]) if np.size(field) and np.all(field == field[0]) else field


class Proximable(Protocol):
    """psi on a flat vector, as mirror maps use it: a :class:`Regularizer` or a :class:`BoundRegularizer`.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> def envelope(psi: Proximable, v):
    ...     w = psi.prox(v, 1.0)
    ...     return psi.value(w) + 0.5 * float(np.square(w - v).sum())
    >>> envelope(L1(1.0), np.array([3.0, 0.0]))
    2.5
    """

    def value(self, w: Array) -> float:
        """Return psi(w)."""

    def prox(self, v: Array, step: float, out: Array | None = None) -> Array:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2."""

    def subgradient(self, w: Array) -> Array:
        """Return a subgradient of psi's finite part at w."""

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms | None:
        """Return the terms of a separable psi, or None."""


class Regularizer(Specified, ABC):
    """A function psi with an exact proximal map; psi = indicator of a set is a constraint.

    Subclasses are frozen dataclasses that validate their fields in ``__post_init__`` and set ``kind``, a unique name
    that identifies them to clients. They implement :meth:`value` and :meth:`prox` on one array (of any shape that
    :meth:`check_shape` accepts).

    Attributes
    ----------
    kind : str
        Unique name of the class in messages.
    convex : bool
        Whether psi is convex. The prox of a non-convex psi is a global minimiser.
    constraint : bool
        Whether psi only takes the values 0 and infinity; its prox then ignores the step.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> psi: Regularizer = L1(0.5)
    >>> psi.value(np.array([2.0, -1.0])), psi.prox(np.array([2.0, -1.0]), 1.0)
    (1.5, array([ 1.5, -0.5]))
    """

    family: ClassVar[str] = "regularizer"
    convex: ClassVar[bool] = True
    constraint: ClassVar[bool] = False

    @abstractmethod
    def value(self, w: Array) -> float:
        """Return psi(w); for a constraint, 0.0 inside (up to rounding) and inf outside."""

    @abstractmethod
    def prox(self, v: Array, step: float, out: Array | None = None) -> Array:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2.

        Parameters
        ----------
        v : ndarray of float64 or float32
            The point; not changed unless it is also `out`.
        step : float
            A non-negative number. A constraint ignores it, even if it is 0.
        out : ndarray, optional
            Where to write the result; may be `v` itself.

        Returns
        -------
        ndarray
            The result, with the shape and dtype of `v`; `out` if it was given.
        """

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write the proximal map to `out` without checking the arguments, for loops that call it often.

        Parameters
        ----------
        v : ndarray of float64, shape (n,)
            Contiguous; may share memory with `out`.
        step : float
            Finite and non-negative.
        out : ndarray, shape (n,)
            Contiguous.
        shape : tuple of int
            The shape of the array that `v` and `out` are flattened from.
        """
        self.prox(v.reshape(shape), step, out.reshape(shape))

    def subgradient(self, w: Array) -> Array:
        """Return a subgradient of psi's finite part at w; where it is not unique, subclasses choose 0.

        The default, 0, is correct for constraints: 0 is in the normal cone of the set at every feasible point.
        """
        if not self.constraint:
            raise ConfigurationError(
                f"{type(self).__name__} defines no subgradient; FedAvgSubgradient needs one. "
                "Implement `subgradient(w)`, or use a proximal method."
            )
        return np.zeros_like(w)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest strength at which 0 minimises <gradient_at_zero, w> + psi(w) to first order.

        Parameters
        ----------
        gradient_at_zero : ndarray
            Gradient of the smooth part at 0 (with the unregularized arrays at their optimum, for the exact threshold of
            the whole problem).
        """
        raise ConfigurationError(f"{type(self).__name__} has no strength at which the solution becomes 0")

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms | None:
        """Return the terms of psi on an array of this shape, or None if psi is not separable."""
        return None

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise :class:`ConfigurationError` if psi cannot act on an array of this shape.

        Parameters
        ----------
        name : str
            The array's name, for the error message.
        shape : tuple of int
            The array's shape.
        """

    def for_array(self, name: str) -> Regularizer | None:
        """Return the regularizer of the array called `name`, or None (see :class:`PerParameter`)."""
        return self

    def bind(self, layout: Layout, *, scope: Scope = "each") -> BoundRegularizer:
        """Return psi as a function of the flat vector of a model.

        Parameters
        ----------
        layout : Layout
            Names, shapes and which arrays psi acts on.
        scope : {"each", "joint"}
            Whether psi acts on each array separately or on all of them as one long vector.
        """
        return BoundRegularizer(self, layout, scope=scope)


class FlatRegularizer(Regularizer):
    """A psi that reads any array as one vector; subclasses implement :meth:`solve` on contiguous 1-D arrays.

    Examples
    --------
    >>> from flwr_fco.regularizers import Zero
    >>> isinstance(Zero(), FlatRegularizer), Zero().prox(np.array([[3.0, -0.5]]), 1.0)
    (True, array([[ 3. , -0.5]]))
    """

    @abstractmethod
    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write argmin_w step * psi(w) + 1/2 ||w - v||^2 to `out`.

        Parameters
        ----------
        v : ndarray of float64 or float32, shape (n,)
            Contiguous; may share memory with `out`.
        step : float
            Finite and non-negative.
        out : ndarray, shape (n,)
            Contiguous.
        shape : tuple of int
            The original shape of the array, for weights that broadcast to it.
        """

    def prox(self, v: Array, step: float, out: Array | None = None) -> Array:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2; see the class for its closed form."""
        result = destination(self, v, out)
        step = check_step(self, step)
        if not v.flags.c_contiguous or not v.flags.writeable:
            # Kernels are compiled for each memory layout; a copy is cheaper than seconds of compilation.
            v = v.copy()
        if result.flags.c_contiguous:
            self.solve(v.reshape(-1), step, result.reshape(-1), v.shape)
        else:
            flat = np.empty(v.size, v.dtype)
            self.solve(v.reshape(-1), step, flat, v.shape)
            result[...] = flat.reshape(v.shape)
        return result


def with_strength(regularizer: Regularizer, strength: float) -> Regularizer:
    """Return a regularizer with another strength.

    Parameters
    ----------
    regularizer : Regularizer
        One that has a strength.
    strength : float
        The new one.

    Raises
    ------
    ConfigurationError
        If the regularizer has no strength, such as a constraint or a psi per array.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> with_strength(L1(1.0, bound=2.0), 0.5)
    L1(strength=0.5, weights=None, bound=2.0)
    """
    if "strength" not in getattr(regularizer, "__dataclass_fields__", {}):
        raise ConfigurationError(
            f"{regularizer!r} has no strength to be chosen; take one that has, such as L1(1.0) or Nuclear(1.0)"
        )
    changed: Regularizer = replace(regularizer, strength=strength)  # type: ignore[type-var]
    return changed


class BoundRegularizer:
    """psi on the flat vector of a model; it acts on the regularized arrays only.

    Parameters
    ----------
    regularizer : Regularizer
        The function on one array.
    layout : Layout
        The model's arrays.
    scope : {"each", "joint"}, default "each"
        ``"each"`` sums psi over the regularized arrays; ``"joint"`` applies it to their concatenation (constraints
        such as one l1 ball for the whole model).

    Raises
    ------
    ConfigurationError
        If psi cannot act on the shape of an array that it should act on.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"coefficients": np.zeros(3), "intercept": np.zeros(1)})
    >>> L1(1.0).bind(layout).prox(np.array([3.0, -0.5, -2.0, 0.5]), 1.0)
    array([ 2. ,  0. , -1. ,  0.5])
    """

    def __init__(self, regularizer: Regularizer, layout: Layout, *, scope: Scope = "each") -> None:
        self.regularizer = regularizer
        self.layout = layout
        self.scope: Scope = checked("scope", scope, Scope)
        hit = [entry for entry in layout.optimized if entry.regularized]
        self._parts: list[tuple[Any, tuple[int, ...], Regularizer]] = []
        if scope == "joint":
            size = sum(entry.size for entry in hit)
            regularizer.check_shape(" + ".join(entry.name for entry in hit), (size,))
            spans = [entry.block for entry in hit]
            place: Any = np.flatnonzero(layout.regularized_mask())
            if spans and all(a.stop == b.start for a, b in pairwise(spans)):
                place = slice(spans[0].start, spans[-1].stop)
            if spans:
                self._parts.append((place, (size,), regularizer))
        else:
            for entry in hit:
                part = regularizer.for_array(entry.name)
                if part is not None:
                    part.check_shape(entry.name, entry.shape)
                    self._parts.append((entry.block, entry.shape, part))
        self._gaps = self._complement()

    def _complement(self) -> list[slice]:
        """Return the slices of the vector outside all blocks, merged."""
        stops = [0, *(block.stop for block, _, _ in self.blocks)]
        starts = [*(block.start for block, _, _ in self.blocks), self.layout.size]
        return [slice(stop, start) for stop, start in zip(stops, starts, strict=True) if stop < start]

    @property
    def convex(self) -> bool:
        """Whether psi is convex on every array that it acts on."""
        return all(part.convex for _, _, part in self._parts) if self._parts else self.regularizer.convex

    @property
    def blocks(self) -> tuple[tuple[slice, tuple[int, ...], Regularizer], ...]:
        """Slice, shape and psi of every block that psi acts on (empty for a joint scope that is not contiguous)."""
        return tuple(part for part in self._parts if isinstance(part[0], slice))

    def strength_max(self, gradient_at_zero: Vector) -> float:
        """Return the smallest strength at which 0 is optimal wherever psi acts, from the gradient there."""
        return max(part.strength_max(gradient_at_zero[place].reshape(shape)) for place, shape, part in self._parts)

    def value(self, w: Vector) -> float:
        """Return psi(w)."""
        return sum((part.value(w[place].reshape(shape)) for place, shape, part in self._parts), 0.0)

    def prox(self, v: Vector, step: float, out: Vector | None = None) -> Vector:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2; arrays that psi does not act on are copied."""
        out = np.empty_like(v) if out is None else out
        if out is not v:
            for gap in self._gaps:
                out[gap] = v[gap]
        for place, shape, part in self._parts:
            if isinstance(place, slice):
                part.solve(v[place], step, out[place], shape)
            else:
                out[place] = part.prox(v[place], step)
        return out

    def subgradient(self, w: Vector) -> Vector:
        """Return a subgradient of psi's finite part at w; it is 0 where psi does not act."""
        result = np.zeros_like(w)
        for place, shape, part in self._parts:
            result[place] = part.subgradient(w[place].reshape(shape)).reshape(-1)
        return result

    @cached_property
    def terms(self) -> SeparableTerms | None:
        """The terms on the flat vector, constant ones as numbers; None if a block is not separable."""
        terms = self.separable_terms((self.layout.size,))
        return None if terms is None else SeparableTerms(*(_number_if_constant(field) for field in terms))

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms | None:
        """Return the terms on the flat vector, neutral where psi does not act; None if a block is not separable."""
        terms, others = self.split_terms()
        return None if others else terms

    def split_terms(self) -> tuple[SeparableTerms, list[tuple[Any, tuple[int, ...], Regularizer]]]:
        """Return the terms on the flat vector, and the slice, shape and psi of each block that is not separable."""
        size = self.layout.size
        terms = SeparableTerms(np.zeros(size), np.zeros(size), np.full(size, -np.inf), np.full(size, np.inf))
        others = []
        for place, shape, part in self._parts:
            part_terms = part.separable_terms(shape)
            if part_terms is None:
                others.append((place, shape, part))
                continue
            for target, source in zip(terms, part_terms, strict=True):
                target[place] = np.broadcast_to(source, shape).reshape(-1)  # type: ignore[index]
        return terms, others

    def free_coordinates(self) -> NDArray[np.bool_]:
        """Return which coordinates psi leaves alone, shape (d,): outside of its arrays, or with a weight of 0.

        Examples
        --------
        >>> from flwr_fco.regularizers import L1
        >>> layout = Layout.from_arrays({"coefficients": np.zeros(2), "intercept": np.zeros(1)})
        >>> L1(0.5, weights=np.array([0.0, 1.0])).bind(layout).free_coordinates().tolist()
        [True, False, True]
        """
        terms, others = self.split_terms()
        free = (terms.threshold == 0.0) & (terms.shrinkage == 0.0) & np.isinf(terms.lower) & np.isinf(terms.upper)
        for place, shape, part in others:
            free[place] = False
            if hasattr(part, "group_terms"):
                l1, groups, strengths = part.group_terms(shape)
                free[place] = (l1 == 0.0) & (strengths[groups] == 0.0)
        return np.asarray(free)
