"""The interface of a regularizer psi, and its application to a model's named arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Layout, Vector, checked_patterns, first_match, require_matches
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import NON_NEGATIVE, POSITIVE, checked, of_type, short
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.prox import at, separable

Array = NDArray[Any]
Scope = Literal["each", "joint"]
#: ``(v, step, out)``: writes argmin_w step * psi(w) + 1/2 ||w - v||^2 of an array's flat vector `v` to `out`.
Solver = Callable[[Array, float, Array], Any]
#: The l1 strength, the group number of each coordinate, and the strength of each group's norm.
Groups = tuple[float, NDArray[np.int64], Vector]
_Own = TypeVar("_Own", bound="Regularizer")

#: By how much, relative to it, rounding may exceed the end of a conjugate's domain.
ROUNDING = 1e-12


# --- checks of arguments ----------------------------------------------------------------------------------------------


def array(dtype: type = np.float64, *, least: float = 0.0, vector: bool = False) -> dict[str, Any]:
    """Return the metadata of a field that is an array of finite numbers, none below `least`.

    It is kept as a read-only copy: changes to the user's array cannot affect the regularizer.
    """
    prefix = ("a vector of " if vector else "") + ("integers" if dtype is np.int64 else "finite numbers")
    prefix += " > 0" if 0.0 < least < 1e-300 else f" >= {least:g}" if math.isfinite(least) else ""

    def check(owner: object, name: str, value: ArrayLike) -> Array:
        good = False
        with suppress(ValueError):
            given = np.asarray(value)
            good = given.dtype.kind in ("iu" if dtype is np.int64 else "fiu") and (given.ndim == 1 or not vector)
            good = good and bool((np.isfinite(given) & (given >= least)).all())
        if not good:
            raise ConfigurationError(f"{type(owner).__name__}({name}=...): expected {prefix}, got {short(value)}")
        result: Array = np.array(given, dtype=dtype, order="C")
        result.setflags(write=False)
        return result

    return {"check": check}


WEIGHTS = array()


def fits(owner: object, prefix: str, sizes: tuple[int, ...], name: str, shape: tuple[int, ...]) -> None:
    """Raise :class:`ConfigurationError` unless an array of shape `sizes` broadcasts to `shape`."""
    with suppress(ValueError):
        if np.broadcast_shapes(sizes, shape) == shape:
            return
    wrong = f"{type(owner).__name__} has {prefix} of shape {sizes}, the array {name!r} of shape {shape}"
    raise ConfigurationError(f"{wrong}; pass {prefix} of the array's shape, or PerParameter to give each its own")


def outside(violation: float, scale: float, w: Array) -> float:
    """Return inf if a violation is NaN or exceeds the rounding of a sum of quantities of this scale, else 0.0."""
    return 0.0 if violation <= 16.0 * float(np.finfo(w.dtype).eps) * math.sqrt(w.size) * scale else math.inf


def norm_of(v: Array) -> tuple[float, float]:
    """Return (unit, root) with ||v||_2 = unit * root; the unit is 1.0 unless squares over- or underflow."""
    values = np.asarray(v, dtype=np.float64)
    # vdot does not warn if the sum overflows; dot does.
    square = float(np.vdot(values, values))
    if 1e-280 < square < 1e300 or math.isnan(square):
        return 1.0, math.sqrt(square)
    unit = float(np.abs(values).max(initial=0.0))
    return (unit, norm_of(values / unit)[1]) if 0.0 < unit < math.inf else (1.0, unit)


def flat(array: Array, shape: tuple[int, ...]) -> Array:
    """Return an array, broadcast to a shape, as a vector; as a new one unless it can be written, as kernels want."""
    array = array if array.shape == shape else np.broadcast_to(array, shape)
    return np.require(array.reshape(-1), requirements=["C", "W"])


def holds_anywhere(found: Any) -> bool:
    """Whether a number or an entry of an array is not 0; NumPy's own takes a microsecond for a number."""
    return bool(found.any() if isinstance(found, np.ndarray) else found)


# --- what a regularizer says of itself --------------------------------------------------------------------------------


class Terms(NamedTuple):
    """The terms of a separable psi(w) = sum_i a_i |w_i| + b_i/2 w_i^2 + indicator(lower_i <= w_i <= upper_i).

    Each is a number or an array that broadcasts to the array's shape. All that is done with a separable psi is read
    from them: ``prox(v, step) = clip(soft(v, step * a) / (1 + step * b), lower, upper)``, values, conjugates, compiled
    loops, tensors, Newton steps, geometries.

    Examples
    --------
    >>> Terms(threshold=0.5, lower=0.0).is_l1, Terms(np.array([0.5, 1.0])).is_l1
    (False, True)
    """

    threshold: Any = 0.0
    shrinkage: Any = 0.0
    lower: Any = -math.inf
    upper: Any = math.inf

    @property
    def is_l1(self) -> bool:
        """Whether there are no terms but thresholds."""
        return not self.is_bounded and not holds_anywhere(self.shrinkage)

    @property
    def is_bounded(self) -> bool:
        """Whether a coordinate has a bound."""
        return holds_anywhere(self.lower != -math.inf) or holds_anywhere(self.upper != math.inf)

    def at(self, indices: NDArray[np.integer[Any]]) -> Terms:
        """Return the terms of a vector at some of its coordinates."""
        return Terms(*(at(term, indices) for term in self))

    def rows(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Return each term for kernels: a float, or a new vector with an entry for each coordinate of the shape."""
        return tuple(float(x) if isinstance(x, float | int) else flat(np.asarray(x, float), shape) for x in self)

    def table(self, shape: tuple[int, ...]) -> Array:
        """Return the terms as a new array of four rows, with a column for each coordinate of the shape."""
        return np.array([np.full(shape, term, dtype=np.float64).reshape(-1) for term in self])


class Regularizer(Specified, ABC):
    """A function psi with an exact proximal map; psi = indicator of a set is a constraint.

    Subclasses are frozen dataclasses that set ``kind``, a unique name that identifies them to clients. A sum over
    coordinates derives from :class:`Separable` and says its :meth:`terms`: nothing else. Others write :meth:`value` and
    :meth:`solve`, a formula; :meth:`conjugate`, :meth:`subgradient` and :meth:`strength_max` are optional.

    Attributes
    ----------
    kind : str
        Unique name of the class in messages.
    convex : bool
        Whether psi is convex. The prox of a non-convex psi is a global minimiser.
    constraint : bool
        Whether psi only takes the values 0 and infinity; its prox then ignores the step.
    by_name : bool
        Whether psi acts on named arrays only, each by a regularizer of its own.

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
    by_name: ClassVar[bool] = False

    @abstractmethod
    def value(self, w: Array) -> float:
        """Return psi(w); for a constraint, 0.0 inside (up to rounding) and inf outside."""

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Write argmin_w step * psi(w) + 1/2 ||w - v||^2 to `out`; NaN stays NaN, and no zero is negative.

        Parameters
        ----------
        v : ndarray of float64 or float32
            Contiguous, of the array's shape.
        step : float
            Finite and non-negative. A constraint ignores it, even if it is 0.
        out : ndarray
            Contiguous, of the shape and dtype of `v`; may be `v`.
        """
        raise NotImplementedError(f"{type(self).__name__} writes no solve(v, step, out), the formula of its prox")

    def solver(self, shape: tuple[int, ...]) -> Solver:
        """Return :meth:`solve` on the flat vectors of arrays of a shape; constants of a shape are made once."""

        def solved(v: Array, step: float, out: Array) -> None:
            if apart := not np.may_share_memory(v, out):
                # What a formula does not write is seen.
                out.fill(math.nan)
            returned: Any = self.solve(v.reshape(shape), step, out.reshape(shape))  # type: ignore[func-returns-value]
            said = "" if returned is None else f"returned {of_type(returned)}"
            # Of a run that diverges a formula may overflow.
            if apart and np.isnan(out).any() and np.abs(v).max(initial=0.0) < 1e15:
                said = said or "left NaN in `out`"
            if said:
                prefix = f"{type(self).__name__}.solve {said}; expected None"
                raise ConfigurationError(f"{prefix}, and the result in `out`: out[...] = ...")

        return solved

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

        Raises
        ------
        ConfigurationError
            If `v` or `out` has another dtype or shape, or `step` is negative or not finite.
        """
        result = np.empty_like(v, order="C") if out is None else out
        name = type(self).__name__
        if not isinstance(v, np.ndarray) or v.dtype not in (np.float64, np.float32):
            given = getattr(v, "dtype", short(v))
            raise ConfigurationError(f"{name}.prox expects an array of float64 or float32, got {given}")
        if isinstance(step, bool) or not 0.0 <= step < math.inf:
            raise ConfigurationError(f"{name}.prox(step={step!r}): expected a finite number >= 0")
        self.check_shape("v", v.shape)
        if result.shape != v.shape or result.dtype != v.dtype:
            prefix = f"{name}.prox writes {v.dtype} of shape {v.shape}, but out is {result.dtype} of shape"
            raise ConfigurationError(f"{prefix} {result.shape}; pass np.empty_like(v), or v itself")
        if not v.flags.c_contiguous or not v.flags.writeable:
            # Kernels are compiled for each memory layout; a copy is cheaper than seconds of compilation.
            v = v.copy()
        target = result if result.flags.c_contiguous else np.empty(v.shape, v.dtype)
        self.solver(v.shape)(v.reshape(-1), float(step), target.reshape(-1))
        if target is not result:
            result[...] = target
        return result

    def conjugate(self, u: Array) -> float:
        """Return psi*(u) = max_w <u, w> - psi(w); may be infinite.

        Raises
        ------
        ConfigurationError
            If psi* is not known.
        """
        raise ConfigurationError(f"the conjugate of {self!r} is not known in closed form, so there is no duality gap")

    def largest_scaling(self, u: Array) -> float:
        """Return the largest t for which the conjugate at t u is finite; inf where it is finite everywhere."""
        return math.inf

    def subgradient(self, w: Array) -> Array:
        """Return a subgradient of psi's finite part at w; where it is not unique, subclasses choose 0.

        The default, 0, is correct for constraints: 0 is in the normal cone of the set at every feasible point.

        Raises
        ------
        ConfigurationError
            If psi is a penalty that has none.
        """
        if not self.constraint:
            prefix = f"{type(self).__name__} defines no subgradient, which FedAvgSubgradient needs"
            raise ConfigurationError(f"{prefix}; implement `subgradient(w)`, or use a proximal method")
        return np.zeros_like(w)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest strength at which 0 minimises <gradient_at_zero, w> + psi(w) to first order.

        Parameters
        ----------
        gradient_at_zero : ndarray
            Gradient of the smooth part at 0 (with the unregularized arrays at their optimum, for the exact threshold of
            the whole problem).

        Raises
        ------
        ConfigurationError
            If there is no such strength, as of constraints and squared norms.
        """
        raise ConfigurationError(f"{self!r} has no strength at which the solution becomes 0; give the strengths")

    def terms(self) -> Terms | None:
        """Return psi as a sum over coordinates, or None."""
        return None

    def groups_of(self, shape: tuple[int, ...]) -> Groups | None:
        """Return psi as an l1 norm and norms of groups of an array of this shape, or None.

        Returns
        -------
        tuple of float, ndarray and ndarray
            Strength of the l1 norm, each coordinate's group number, each group's strength.
        """
        return None

    def of_values(self) -> Regularizer | None:
        """Return the regularizer of the singular values that psi is of the matrix, or None."""
        return None

    def count_of(self, size: int) -> int | None:
        """Return how many of so many entries psi lets be other than 0; None if it sets no limit."""
        return None

    def matrix(self, w: Array) -> Array:
        """Return an array as the matrix that psi reads."""
        return w

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise :class:`ConfigurationError` if psi cannot act on an array of this shape; psi's own broadcast to it.

        Parameters
        ----------
        name : str
            The array's name, for the error message.
        shape : tuple of int
            The array's shape.
        """
        for own in getattr(self, "__dataclass_fields__", ()):
            if isinstance(value := getattr(self, own), np.ndarray):
                fits(self, own, value.shape, name, shape)

    def for_array(self, name: str) -> Regularizer | None:
        """Return the regularizer of the array called `name`, or None (see :class:`PerParameter`)."""
        return self

    def bind(self, layout: Layout, *, scope: Scope = "each") -> BoundRegularizer:
        """Return psi as a function of the flat vector of a model.

        Parameters
        ----------
        layout : Layout
            Names, shapes and which arrays psi acts on.
        scope : {"each", "joint"}, default "each"
            Whether psi acts on each array separately or on all of them as one long vector.
        """
        return BoundRegularizer(self, layout, scope=scope)


class Separable(Regularizer):
    """A sum over coordinates; a subclass writes :meth:`terms`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass(frozen=True)
    ... class NonNegativeL1(Separable):
    ...     kind = "non-negative-l1"
    ...     strength: float
    ...     def terms(self):
    ...         return Terms(threshold=self.strength, lower=0.0)
    >>> NonNegativeL1(1.0).prox(np.array([3.0, -2.0]), 0.5)
    array([2.5, 0. ])
    """

    @abstractmethod
    def terms(self) -> Terms:
        """Return the terms: numbers, or arrays that broadcast to the array's shape."""

    def value(self, w: Array) -> float:
        """Return the sum of the terms, or inf if a coordinate is beyond its bounds by more than rounding."""
        a, b, lower, upper = terms = self.terms()
        if terms.is_bounded:
            # A violation is measured relative to the bound; an open side stays infinite.
            slack = 16.0 * float(np.finfo(w.dtype).eps)
            inside = (w >= lower - slack * np.abs(lower)) & (w <= upper + slack * np.abs(upper))
            if not inside.all():
                return math.inf
        value = float((a * np.abs(w)).sum(dtype=np.float64))
        if not holds_anywhere(b):
            return value
        with np.errstate(over="ignore"):
            # In this order: a square may overflow where its product with a small factor does not.
            return value + 0.5 * float(((b * w) * w).sum(dtype=np.float64))

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Refuse another shape, and terms of which psi would not be convex."""
        super().check_shape(name, shape)
        terms = self.terms()
        who = f"{type(self).__name__}.terms()"
        if not isinstance(terms, Terms):
            raise ConfigurationError(f"{who} returned {short(terms)}; expected Terms(threshold=...)")
        for term in ("threshold", "shrinkage"):
            # Of a number NumPy's own functions take ten times as long as its methods.
            if not (least := np.asarray(getattr(terms, term)).min(initial=0.0)) >= 0.0:
                raise ConfigurationError(f"{who} has {term} {least:g}; expected numbers >= 0, of which psi is convex")
        if not (np.asarray(terms.lower) <= terms.upper).all():
            raise ConfigurationError(f"{who} has lower > upper, or NaN; expected lower <= upper everywhere")

    def solver(self, shape: tuple[int, ...]) -> Solver:
        """Return the map clip(soft(v, step a) / (1 + step b), lower, upper)."""
        rows = self.terms().rows(shape)
        return lambda v, step, out: separable(v, step, rows, 1.0, out)

    def conjugate(self, u: Array) -> float:
        """Return the sum over coordinates of max_w u w - a |w| - b/2 w^2 over lower <= w <= upper."""
        a, b, lower, upper = self.terms().table(u.shape)
        u = u.reshape(-1)
        pull = np.sign(u) * np.maximum(np.abs(u) - a, 0.0)
        # Without curvature, a coordinate with a non-zero slope goes to its bound.
        best = np.where(pull == 0.0, 0.0, np.copysign(np.inf, pull))
        np.divide(pull, b, out=best, where=b > 0.0)
        best = np.clip(best, lower, upper)
        # At the end of the domain rounding decides nothing.
        best[np.isinf(best) & (np.abs(pull) <= ROUNDING * a)] = 0.0
        return float((u * best - a * np.abs(best) - 0.5 * b * best**2).sum()) if np.isfinite(best).all() else math.inf

    def largest_scaling(self, u: Array) -> float:
        a, b, lower, upper = self.terms().table(u.shape)
        u = u.reshape(-1)
        limited = (b == 0.0) & (u != 0.0) & np.isinf(np.where(u > 0.0, upper, lower))
        return float((a[limited] / np.abs(u[limited])).min(initial=math.inf))

    def subgradient(self, w: Array) -> Array:
        """Return a sign(w) + b w, with sign(0) = 0."""
        a, b, *_ = self.terms()
        return np.asarray(a * np.sign(w) + b * w, dtype=w.dtype)

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return max_i |g_i| / a_i of strength 1, with 0/0 = 0: that coordinate is optimal at 0 for any strength."""
        size = np.abs(np.asarray(gradient_at_zero, dtype=np.float64))
        unit = np.zeros(()) if not hasattr(self, "strength") else np.asarray(with_strength(self, 1.0).terms()[0])
        if not unit.any():
            return super().strength_max(size)
        least = np.where(size > 0.0, np.inf, 0.0)
        return float(np.divide(size, unit, out=least, where=unit > 0.0).max(initial=0.0))


@dataclass(frozen=True)
class Zero(Separable):
    """No regularization: psi(w) = 0.

    The proximal map is ``prox(v, step) = v``.

    Examples
    --------
    >>> import numpy as np
    >>> Zero().prox(np.array([3.0, -0.5]), 1.0)
    array([ 3. , -0.5])
    """

    kind: ClassVar[str] = "zero"

    def terms(self) -> Terms:
        return Terms()


@dataclass(frozen=True)
class Penalty(Regularizer):
    """A psi times a strength, which paths and cross-validation choose."""

    strength: float = field(metadata=NON_NEGATIVE)


@dataclass(frozen=True)
class Ball(Regularizer):
    """The points up to a size, the radius, of a norm or of a sum."""

    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)


def with_strength(regularizer: _Own, strength: float) -> _Own:
    """Return a regularizer with another strength.

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
        raise ConfigurationError(f"{regularizer!r} has no strength to be chosen; take one that has, such as L1(1.0)")
    return replace(regularizer, strength=strength)  # type: ignore[type-var]


# --- psi on a model's flat vector -------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """psi as sum_j a_j |x_j| + b_j/2 x_j^2 within bounds, plus sum_G s_G ||x_G||_2, on the flat vector or a part of it.

    Parameters
    ----------
    table : ndarray of float64, shape (4, d)
        a, b, lower and upper bounds; neutral where psi does not act.
    groups : ndarray of int64, shape (d,)
        Each coordinate's group; -1 for none, or for one of weight 0.
    strengths : ndarray of float64, shape (number of groups,)
        The factor s_G of each group's norm, > 0.
    others : list of slice or ndarray
        Where psi is neither.

    Examples
    --------
    >>> Sums(Terms(0.5).table((2,)), np.array([-1, 0]), np.ones(1), []).table[0]
    array([0.5, 0.5])
    """

    table: Array
    groups: NDArray[np.int64]
    strengths: Vector
    others: list[Any]

    def at(self, on: NDArray[np.int64]) -> Sums:
        """Return the sums over the coordinates `on`, which hold groups as a whole."""
        present, groups = np.unique(self.groups[on], return_inverse=True)
        groups = groups.astype(np.int64) - int(present[:1].sum() < 0)
        return Sums(self.table.take(on, axis=1), groups, self.strengths[present[present >= 0]], [])

    def value(self, x: Vector) -> float:
        """Return psi(x) of a point within the bounds."""
        return float(self.table[0] @ np.abs(x) + 0.5 * (self.table[1] @ x**2) + self.strengths @ self.norms(x))

    def norms(self, x: Vector) -> Vector:
        """Return ||x_G||_2 of each group."""
        inside = self.groups >= 0
        return np.sqrt(np.bincount(self.groups[inside], x[inside] ** 2, self.strengths.size))

    @property
    def smooth(self) -> bool:
        """Whether psi has no kink and no bound anywhere."""
        return not (self.table[0].any() or self.strengths.size or np.isfinite(self.table[2:]).any())


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

    Attributes
    ----------
    parts : list of tuple
        Place in the flat vector (a slice, or numbers of coordinates), shape and psi of each array that psi acts on.
    convex : bool
        Whether psi is convex on every array that it acts on.

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
        given = [(e, regularizer.for_array(e.name) if e.regularized else None) for e in layout.optimized]
        #: Places of the arrays that psi does not act on.
        self._idle = [entry.block for entry, own in given if own is None]
        named: list[tuple[str, Any, tuple[int, ...], Regularizer]]
        named = [(entry.name, entry.block, entry.shape, own) for entry, own in given if own is not None]
        if scope == "joint":
            place: Any = np.flatnonzero(layout.regularized_mask())
            together = place.size and (np.diff(place) == 1).all()
            where = slice(int(place[0]), int(place[-1]) + 1) if together else place
            named = [(" + ".join(layout.regularized_names), where, place.shape, regularizer)]
        for name, _, shape, own in named:
            own.check_shape(name, shape)
        self.parts = [(where, shape, own) for _, where, shape, own in named if math.prod(shape)]
        self.convex = all(part.convex for *_, part in self.parts) if self.parts else regularizer.convex
        self._maps = [(where, own.solver(shape)) for where, shape, own in self.parts]

    def _own(self, w: Vector) -> list[tuple[Any, Regularizer, Array]]:
        """Return place, psi and array of each part of a vector."""
        return [(place, part, w[place].reshape(shape)) for place, shape, part in self.parts]

    def value(self, w: Vector) -> float:
        """Return psi(w); a bound of which a model in single precision has no number holds up to its rounding."""
        found = sum((part.value(own) for _, part, own in self._own(w)), 0.0)
        single = found == math.inf and not self.layout.double
        return sum((part.value(own) for _, part, own in self._own(w.astype(np.float32))), 0.0) if single else found

    def prox(self, v: Vector, step: float, out: Vector | None = None) -> Vector:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2; arrays that psi does not act on are copied."""
        out = np.empty_like(v) if out is None else out
        step = float(step)
        if out is not v:
            for block in self._idle:
                out[block] = v[block]
        for place, solve in self._maps:
            # A copy, where they are numbers of coordinates.
            own = out[place]
            solve(v[place], step, own)
            if not isinstance(place, slice):
                out[place] = own
        return out

    def conjugate(self, u: Vector) -> float:
        """Return psi*(u), the sum over arrays; where psi does not act, it is 0 at 0, else inf."""
        free = any(u[block].any() for block in self._idle)
        return math.inf if free else sum((part.conjugate(own) for _, part, own in self._own(u)), 0.0)

    def largest_scaling(self, u: Vector) -> float:
        """Return the largest t for which the conjugate at t u is finite where psi acts."""
        return min((part.largest_scaling(own) for _, part, own in self._own(u)), default=math.inf)

    def strength_max(self, gradient_at_zero: Vector) -> float:
        """Return the smallest strength at which 0 is optimal wherever psi acts, from the gradient there."""
        return max(part.strength_max(own) for _, part, own in self._own(gradient_at_zero))

    def subgradient(self, w: Vector) -> Vector:
        """Return a subgradient of psi's finite part at w; it is 0 where psi does not act."""
        result = np.zeros_like(w)
        for place, part, own in self._own(w):
            result[place] = part.subgradient(own).reshape(-1)
        return result

    @cached_property
    def sums(self) -> Sums:
        """Sums over coordinates and over norms of groups, which psi is, and the places of parts that are neither."""
        table = Terms().table((self.layout.size,))
        others = []
        groups = np.full(self.layout.size, -1, dtype=np.int64)
        strengths = np.zeros(0)
        for place, shape, part in self.parts:
            terms = part.terms()
            grouped = part.groups_of(shape)
            if terms is not None:
                table[:, place] = terms.table(shape)
            elif grouped is not None:
                table[0, place] = grouped[0]
                groups[place] = grouped[1] + strengths.size
                strengths = np.concatenate([strengths, grouped[2]])
            else:
                others.append(place)
        sums = Sums(table, np.where(np.append(strengths > 0.0, False)[groups], groups, -1), strengths, others)
        return sums.at(np.arange(self.layout.size))._replace(others=others) if strengths.size else sums

    @cached_property
    def _terms(self) -> Terms | None:
        # Without a table: clients hold the plans of several rounds, and a density has another psi in each.
        if any(part.terms() is None for _, _, part in self.parts):
            return None
        terms = Terms(*(row[0] if (row == row[0]).all() else row.copy() for row in self.sums.table))
        del self.sums
        return terms

    def terms(self) -> Terms | None:
        """Return the terms on the flat vector, constant ones as numbers; None if psi is no sum over coordinates.

        Examples
        --------
        >>> from flwr_fco.regularizers import L1, HardSparsity
        >>> layout = Layout.from_arrays({"w": np.zeros((4, 5))})
        >>> psis = [psi.bind(layout) for psi in (L1(0.5), HardSparsity(density=0.5))]
        >>> [psi.terms() is None for psi in psis], ["sums" in vars(psi) for psi in psis]  # as large as the model
        ([False, True], [False, False])
        """
        return self._terms

    def free_coordinates(self) -> NDArray[np.bool_]:
        """Return which coordinates psi leaves alone, shape (d,): outside of its arrays, or with a weight of 0.

        Examples
        --------
        >>> from flwr_fco.regularizers import L1
        >>> layout = Layout.from_arrays({"coefficients": np.zeros(2), "intercept": np.zeros(1)})
        >>> L1(0.5, weights=np.array([0.0, 1.0])).bind(layout).free_coordinates().tolist()
        [True, False, True]
        """
        table, groups, _, others = self.sums
        free = (table[:2] == 0.0).all(axis=0) & np.isinf(table[2:]).all(axis=0) & (groups < 0)
        for place in others:
            free[place] = False
        return np.asarray(free)


#: psi of one array, or on the flat vector of a model.
Psi = Regularizer | BoundRegularizer


@dataclass(frozen=True)
class PerParameter(Regularizer):
    """A psi for each array, chosen by its name: psi(w) = sum over arrays of psi_array(w_array).

    The proximal map applies each array's own. It acts on named arrays only: ``bind`` it to a layout, as strategies and
    clients do. ``regularizer.for_array(name)`` returns the regularizer of an array.

    Parameters
    ----------
    regularizers : mapping of str to Regularizer
        Shell patterns (``"*.weight"``) and the regularizer of the matching arrays. The first match wins; an array that
        matches no pattern has no regularizer.

    Raises
    ------
    ConfigurationError
        If the mapping is empty, a key is not a string or a value is not a regularizer. At :meth:`bind`, if a pattern is
        not the first match of any array that the regularizer acts on.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import L1, L2Squared
    >>> layout = Layout.from_arrays({"first": np.zeros((1, 2)), "second": np.zeros((1, 2))})
    >>> psi = PerParameter({"first": L1(1.0), "*": L2Squared(1.0)})
    >>> psi.bind(layout).prox(np.array([3.0, 0.5, 3.0, 0.5]), 1.0)
    array([2.  , 0.  , 1.5 , 0.25])
    """

    kind: ClassVar[str] = "per-parameter"
    by_name: ClassVar[bool] = True
    regularizers: Mapping[str, Regularizer]

    def __post_init__(self) -> None:
        own = lambda psi: isinstance(psi, Regularizer) and not psi.by_name  # noqa: E731
        patterns = checked_patterns("PerParameter", self.regularizers, "regularizer", own)
        convex = all(psi.convex for psi in patterns.values())
        # One that leaves its arrays alone takes nothing from the others.
        constraint = all(psi.constraint or isinstance(psi, Zero) for psi in patterns.values())
        vars(self).update(regularizers=patterns, convex=convex, constraint=constraint)

    def for_array(self, name: str) -> Regularizer | None:
        """Return the regularizer of the first pattern that matches, or None."""
        pattern = first_match(self.regularizers, name)
        return None if pattern is None else self.regularizers[pattern]

    def among(self, names: Sequence[str]) -> Regularizer:
        """Return psi of these arrays: without the patterns that are the first match of none of them.

        Parameters
        ----------
        names : sequence of str
            Names of arrays.

        Examples
        --------
        >>> PerParameter({"head.*": Zero(), "*": Zero()}).among(["body.weight"])
        PerParameter(regularizers={'*': Zero()})
        """
        used = {first_match(self.regularizers, name) for name in names}
        left = {pattern: psi for pattern, psi in self.regularizers.items() if pattern in used}
        return PerParameter(left) if left else Zero()

    def bind(self, layout: Layout, *, scope: Scope = "each") -> BoundRegularizer:
        """Return psi as a function of the flat vector of a model; every pattern must match an array.

        Raises
        ------
        ConfigurationError
            If a pattern matches none, because a misspelt name would leave its array without a regularizer.
        """
        left_alone = [entry.name for entry in layout.optimized if not entry.regularized]
        self.require_names(layout.regularized_names, left_alone)
        return super().bind(layout, scope=scope)

    def require_names(self, names: Sequence[str], left_alone: Sequence[str] = ()) -> None:
        """Raise unless every pattern is the first match of at least one array name.

        Parameters
        ----------
        names : sequence of str
            Names of the regularized arrays.
        left_alone : sequence of str, default ()
            Names of the other arrays, for the error message.

        Raises
        ------
        ConfigurationError
            If a pattern is not the first match of any name.
        """
        besides = f" ({list(left_alone)} are not regularized: name them in apply_to=)" if left_alone else ""
        require_matches("PerParameter", self.regularizers, names, besides)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because single-array operations require the regularizer of that array."""
        prefix = "PerParameter acts on named arrays, one by one"
        raise ConfigurationError(f"{prefix}: use psi.bind(layout) with scope='each', or psi.for_array(name) of one")

    value = prox = subgradient = check_shape = _refuse
