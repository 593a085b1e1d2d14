"""The interface of a mirror map h, and how a map uses psi."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.spec import Specified
from flwr_fco.errors import ConfigurationError, MagnitudeError, UnsupportedPairError
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.kernels.mirror import diagonal_terms
from flwr_fco.regularizers.base import BoundRegularizer, Proximable, SeparableTerms, Terms
from flwr_fco.regularizers.constraints import L1Ball, L2Ball, Simplex

#: The method by which retrieve computes its minimiser.
RetrievalMethod = Literal["closed form", "root find", "refused"]
#: Numbers of coordinates.
Indices = NDArray[np.integer[Any]]


class MirrorMap(Specified, ABC):
    """A geometry: a strictly convex h and its conjugate, on flat float64 vectors.

    Subclasses are frozen dataclasses (``eq=False``: maps are equal if their specifications are) that set ``kind`` and
    implement :meth:`value`, :meth:`gradient`, :meth:`conjugate_gradient`, :meth:`supports` and :meth:`retrieve`.
    A new map needs nothing else. If psi's separable terms can be solved coordinate by coordinate, derive from
    :class:`TermwiseMap` instead, which provides ``supports``, ``retrieve`` and the balls.

    Attributes
    ----------
    kind : str
        Unique name of the class in messages.
    works_with : str
        The supported regularizers, for error messages.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import Euclidean
    >>> from flwr_fco.regularizers import L1
    >>> geometry: MirrorMap = Euclidean()
    >>> geometry.supports(L1(1.0)), geometry.retrieve(np.array([3.0, -0.5]), 1.0, L1(1.0))
    (True, array([2., 0.]))
    """

    family: ClassVar[str] = "mirror map"
    works_with: ClassVar[str] = "the regularizers that `supports` accepts"

    @abstractmethod
    def value(self, w: Vector) -> float:
        """Return h(w); inf outside its domain."""

    @abstractmethod
    def gradient(self, w: Vector) -> Vector:
        """Return grad h(w), the dual of a primal point, as a new array."""

    @abstractmethod
    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return grad h*(z) = argmin_w { -<z, w> + h(w) }."""

    @abstractmethod
    def supports(self, regularizer: Proximable) -> bool:
        """Whether :meth:`retrieve` can be computed exactly for this psi."""

    @abstractmethod
    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) }.

        Parameters
        ----------
        z : ndarray of float64, shape (d,)
            The dual.
        t : float
            The weight of psi: the sum of the step sizes. Constraints hold even at t = 0.
        regularizer : Regularizer or BoundRegularizer
            psi on the flat vector.
        out : ndarray, optional
            Where to write the result; may be `z`.

        Raises
        ------
        UnsupportedPairError
            If psi has no exact solution in this geometry.
        ConfigurationError
            If t is negative or not finite, or no point of h's domain satisfies psi's constraints.
        """

    def at(self, regularizer: BoundRegularizer, indices: Indices) -> Coordinates | None:
        """Return h and psi at some coordinates, or None if one of them is not a sum over coordinates.

        Parameters
        ----------
        regularizer : BoundRegularizer
            psi on the flat vector.
        indices : ndarray of int, shape (k,)
            The coordinates.
        """
        return None

    def retrieve_at(
        self, z: Vector, t: float, regularizer: BoundRegularizer, indices: Indices, out: Vector | None = None
    ) -> Vector:
        """Return some coordinates of :meth:`retrieve`, computing only these.

        Parameters
        ----------
        z : ndarray of float64, shape (d,)
            The dual.
        t : float
            The weight of psi.
        regularizer : BoundRegularizer
            psi on the flat vector.
        indices : ndarray of int, shape (k,)
            The coordinates.
        out : ndarray of float64, shape (k,), optional
            Where to write the result.

        Raises
        ------
        UnsupportedPairError
            If h or psi is not a sum over coordinates.

        Examples
        --------
        >>> from flwr_fco.regularizers import L1
        >>> psi = L1(1.0).bind(Layout.from_arrays({"w": np.zeros(3)}))
        >>> Euclidean().retrieve_at(np.array([3.0, -0.5, -2.0]), 1.0, psi, np.array([2, 0]))
        array([-1.,  2.])
        """
        coordinates = self.at(regularizer, indices)
        if coordinates is None:
            raise UnsupportedPairError(
                f"{type(self).__name__} and {regularizer.regularizer!r} are no sums over coordinates, so that a "
                "coordinate cannot be retrieved alone; use retrieve"
            )
        return coordinates.retrieve(z[indices], t, out=out)

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return the data that compiled loops need for :meth:`retrieve`, or None if they cannot compute it.

        Parameters
        ----------
        regularizer : BoundRegularizer
            psi on the flat vector.
        """
        return None

    def conjugate(self, z: Vector) -> float:
        """Return h*(z) = max_w { <z, w> - h(w) }."""
        w = self.conjugate_gradient(z)
        return float(z @ w) - self.value(w)

    def retrieval_method(self, regularizer: Proximable) -> RetrievalMethod:
        """Return the method of :meth:`retrieve` for this psi: "closed form", "root find" (to 1e-12) or "refused"."""
        return "closed form" if self.supports(regularizer) else "refused"

    def start(self, size: int, regularizer: Proximable | None = None) -> Vector:
        """Return the default start of a model of this size: the primal point of the dual 0, feasible for psi.

        Parameters
        ----------
        size : int
            Length of the flat vector.
        regularizer : Regularizer or BoundRegularizer, optional
            psi; only its constraints matter, because t = 0.
        """
        dual = np.zeros(size)
        return self.conjugate_gradient(dual) if regularizer is None else self.retrieve(dual, 0.0, regularizer)

    def bind(self, layout: Layout) -> MirrorMap:
        """Return the map on a model's flat vectors; the map itself, unless it needs the names of the arrays."""
        self.check_layout(layout)
        return self

    def check_layout(self, layout: Layout) -> None:
        """Raise :class:`ConfigurationError` if the map cannot act on a model of this layout."""

    def require(self, regularizer: Proximable) -> None:
        """Raise :class:`UnsupportedPairError` unless the pair is supported."""
        if not self.supports(regularizer):
            psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
            raise UnsupportedPairError(
                f"{type(self).__name__} cannot be combined with {psi!r}: the minimiser of "
                f"-<z, w> + t psi(w) + h(w) has no exact solution here. {type(self).__name__} works with "
                f"{self.works_with}; Euclidean() works with every regularizer."
            )

    def never_supports(self, regularizer: Proximable) -> bool:
        """Whether the pair is unsupported for every model layout, so that it can be refused at once.

        Parameters
        ----------
        regularizer : Regularizer
            psi, not bound to a model.
        """
        return False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MirrorMap) or type(self) is not type(other):
            return NotImplemented
        return self.to_spec().digest() == other.to_spec().digest()

    def __hash__(self) -> int:
        return hash(self.to_spec().digest())


@dataclass(frozen=True, eq=False)
class Euclidean(MirrorMap):
    """h(w) = 1/2 ||w||^2: dual and primal coincide and retrieve is the proximal map of t psi.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> Euclidean().retrieve(np.array([3.0, -0.5]), 2.0, L1(1.0))
    array([1., 0.])
    """

    kind: ClassVar[str] = "euclidean"
    works_with: ClassVar[str] = "every regularizer"

    def value(self, w: Vector) -> float:
        """Return 1/2 ||w||^2."""
        return 0.5 * float(w @ w)

    def gradient(self, w: Vector) -> Vector:
        """Return a copy of w."""
        return w.copy()

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z."""
        if out is None:
            return z.copy()
        if out is not z:
            out[:] = z
        return out

    def supports(self, regularizer: Proximable) -> bool:
        """Return True: every regularizer has a Euclidean proximal map."""
        return True

    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        """Return prox_{t psi}(z)."""
        return regularizer.prox(z, t, out)

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return the thresholds if psi is zero or a (weighted) l1 norm; see :meth:`MirrorMap.compiled`."""
        thresholds = l1_thresholds(regularizer)
        return None if type(self) is not Euclidean or thresholds is None else Retrieval(thresholds)

    def at(self, regularizer: BoundRegularizer, indices: Indices) -> Coordinates | None:
        return Coordinates.of(self, None, regularizer, indices) if type(self) is Euclidean else None


Ball = L1Ball | L2Ball | Simplex


class Block(NamedTuple):
    """A constraint that couples the coordinates of one block of the vector."""

    place: slice
    shape: tuple[int, ...]
    ball: Ball

    @property
    def whole(self) -> bool:
        """Whether the block is known to be the whole vector."""
        return self.place == slice(None)


def terms_at(terms: SeparableTerms, indices: Indices) -> SeparableTerms:
    """Return the terms at some coordinates."""
    return SeparableTerms(*(field[indices] if isinstance(field, np.ndarray) else field for field in terms))


class Coordinates(NamedTuple):
    """h and psi at some coordinates, if both are sums over coordinates.

    Parameters
    ----------
    regularizer : BoundRegularizer
        h and psi, for error messages.
    restricted : TermwiseMap or None
        h at these coordinates; None for Euclidean h.
    terms : SeparableTerms
        psi's terms: each a number or an array of shape (k,).

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"w": np.zeros(3)})
    >>> Euclidean().at(L1(0.5).bind(layout), np.array([0, 2])).retrieve(np.array([3.0, -0.5]), 2.0)
    array([2., 0.])
    """

    geometry: MirrorMap
    regularizer: BoundRegularizer
    restricted: TermwiseMap | None
    terms: SeparableTerms

    @classmethod
    def of(
        cls, geometry: MirrorMap, restricted: TermwiseMap | None, regularizer: BoundRegularizer, indices: Indices
    ) -> Self | None:
        """Return h and psi at some coordinates, or None if psi is not a sum over coordinates."""
        parts = _split(regularizer, (regularizer.layout.size,))
        if parts is None or parts.balls:
            return None
        terms = terms_at(parts.terms, indices)
        fields = (_collapsed(field) if np.ndim(field) else field for field in terms)
        return cls(geometry, regularizer, restricted, SeparableTerms(*fields))

    def without_psi(self) -> Self:
        """Return the same coordinates without psi."""
        return self._replace(terms=SeparableTerms())

    def retrieve(self, z: Vector, t: float, positions: Indices | None = None, out: Vector | None = None) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) } at the coordinates, or at some of them.

        Parameters
        ----------
        z : ndarray of float64, shape (k,) or shape of `positions`
            The dual there.
        t : float
            The weight of psi.
        positions : ndarray of int, optional
            Positions in the coordinates; all by default.
        out : ndarray, shape of z, optional
            Where to write the result; may be `z`.
        """
        restricted, terms = self.restricted, self.terms
        if positions is not None:
            restricted = None if restricted is None else restricted.restrict(positions)
            terms = terms_at(terms, positions)
        scaled = terms.scaled(t, z.size)
        out = np.empty_like(z) if out is None else out
        if restricted is None:
            diagonal_terms(z, _ONE, out, *scaled)
        elif not restricted.solve(z, scaled, out):
            raise _without_point(self.geometry, self.regularizer, z, t)
        return out


_ONE = np.ones(1)


class _Parts(NamedTuple):
    """psi, split into separable terms and blocks that couple coordinates."""

    terms: SeparableTerms
    balls: tuple[Block, ...]


class TermwiseMap(MirrorMap):
    """A map that minimises -<z, w> + h(w) + separable terms: l1, squared l2 and bounds, coordinate by coordinate.

    Subclasses implement :meth:`solve`, and :meth:`closed_form` if some terms need a root find. They then support every
    psi with separable terms, and also the l1 ball, the l2 ball and the simplex: with one multiplier theta their
    minimiser is again separable (a threshold, a shrinkage or a shift of the dual by theta), and a safeguarded root find
    determines theta to rounding.

    Attributes
    ----------
    separable : bool
        Whether h is a sum over coordinates. Only then can several blocks have a ball each.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import DiagonalMetric
    >>> from flwr_fco.regularizers import L1
    >>> geometry = DiagonalMetric(np.array([1.0, 2.0]))
    >>> isinstance(geometry, TermwiseMap), geometry.retrieve(np.array([3.0, 3.0]), 1.0, L1(1.0))
    (True, array([2., 1.]))
    """

    separable: ClassVar[bool] = False
    works_with: ClassVar[str] = (
        "sums over coordinates (Zero, L1, L2Squared, ElasticNet, Box, NonNegative, LInfinityBall) and with L1Ball, "
        "L2Ball and Simplex (one array with such a constraint, unless the map treats coordinates one by one)"
    )

    @abstractmethod
    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        """Write argmin_w { -<z, w> + h(w) + terms }; return False if no point of h's domain is within the bounds.

        Parameters
        ----------
        z : ndarray of float64, shape (d,)
            The dual.
        terms : Terms
            The terms, already multiplied by t.
        out : ndarray
            Where to write the result; may be `z`.
        """

    def closed_form(self, terms: Terms) -> bool:
        """Whether :meth:`solve` needs no root find for these terms (at t = 1)."""
        return True

    def check_size(self, size: int) -> None:
        """Raise :class:`ConfigurationError` if the map cannot act on vectors of this length."""

    def check_layout(self, layout: Layout) -> None:
        self.check_size(layout.size)

    def restrict(self, place: slice | Indices) -> TermwiseMap:
        """Return the map on a part of the vector (called only if h is separable)."""
        return self

    def at(self, regularizer: BoundRegularizer, indices: Indices) -> Coordinates | None:
        return Coordinates.of(self, self.restrict(indices), regularizer, indices) if self.separable else None

    def constrain(self, z: Vector, block: Block, terms: Terms, out: Vector) -> bool:
        """Write the minimiser with a ball or simplex on a block; `out` must not overlap `z`."""
        return _find_multiplier(self, z, block, terms, out)

    def constraint_method(self, ball: Ball, whole: bool) -> RetrievalMethod:
        """Return the method for a ball or simplex, on the whole vector or on a block of it."""
        return "root find"

    def retrieval_method(self, regularizer: Proximable) -> RetrievalMethod:
        parts = _split(regularizer, ())
        if parts is None or not self._can_constrain(parts):
            return "refused"
        ways = [self.constraint_method(block.ball, block.whole) for block in parts.balls]
        easy = self.closed_form(parts.terms.scaled(1.0))
        return "closed form" if easy and all(way == "closed form" for way in ways) else "root find"

    def never_supports(self, regularizer: Proximable) -> bool:
        """Whether psi is neither a sum over coordinates nor a ball or simplex, whatever the arrays are."""
        try:
            return _split(regularizer, ()) is None
        except ConfigurationError:
            return False  # Depends on the arrays: their names, or the shape of psi's weights.

    def supports(self, regularizer: Proximable) -> bool:
        """Whether psi has separable terms, or is a ball or simplex that the map can solve for."""
        return self.retrieval_method(regularizer) != "refused"

    def retrieve(self, z: Vector, t: float, regularizer: Proximable, out: Vector | None = None) -> Vector:
        if not 0.0 <= t < math.inf:
            raise ConfigurationError(f"retrieve(t={t!r}): expected a finite number >= 0")
        z = np.ascontiguousarray(z, dtype=np.float64)
        self.check_size(z.size)
        parts = _split(regularizer, z.shape)
        if parts is None or not self._can_constrain(parts):
            self.require(regularizer)
            raise ConfigurationError(f"{type(regularizer).__name__} has no separable terms on shape {z.shape}")
        terms = parts.terms.scaled(t, z.size)
        if out is None:
            out = np.empty_like(z)
        if parts.balls and np.may_share_memory(z, out):
            z = z.copy()
        if parts.balls and not self.separable:
            block = parts.balls[0]
            feasible = self.constrain(z, block._replace(shape=block.shape or z.shape), terms, out)
        else:
            feasible = self.solve(z, terms, out)
            for block in parts.balls:
                part = np.empty(z[block.place].size)
                whole, free = Block(slice(None), block.shape or part.shape, block.ball), SeparableTerms().scaled(0.0)
                feasible &= self.restrict(block.place).constrain(z[block.place], whole, free, part)
                out[block.place] = part
        if not feasible:
            raise _without_point(self, regularizer, z, t)
        return out

    def _can_constrain(self, parts: _Parts) -> bool:
        """Whether the blocks with a ball can be solved together."""
        if len(parts.balls) > 1 and not self.separable:
            return False
        return all(self.constraint_method(block.ball, block.whole) != "refused" for block in parts.balls)


def _without_point(h: MirrorMap, regularizer: Proximable, z: Vector, t: float) -> ConfigurationError:
    """Return the error for a dual without a primal point."""
    largest = float(np.abs(z).max(initial=0.0))
    psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
    if not largest < math.inf:
        return MagnitudeError(
            f"the dual has grown to {largest} at t = {t:.3g}, so it has no primal point: the method diverges. "
            "Lower the rates."
        )
    text = (
        f"no point of the domain of {h!r} satisfies {psi!r} (in dimension {z.size}): the two sets "
        "do not meet. Widen the constraint or change the radius of the map."
    )
    if largest < _OVERFLOWING and t < _OVERFLOWING:
        return ConfigurationError(text)
    return MagnitudeError(
        f"the dual has grown to {largest:.3g} at t = {t:.3g}, where its primal point cannot be told: the "
        f"method diverges (lower the rates), or {text}"
    )


#: Above this size, differences of duals are meaningless.
_OVERFLOWING = 1e100

#: Parts of bound regularizers, cached because they are needed in every step and never change.
_PARTS: WeakKeyDictionary[BoundRegularizer, _Parts | None] = WeakKeyDictionary()


def _split(regularizer: Proximable, shape: tuple[int, ...]) -> _Parts | None:
    """Split psi into separable terms and balls; return None if it has other parts."""
    if isinstance(regularizer, BoundRegularizer):
        if regularizer not in _PARTS:
            _PARTS[regularizer] = _split_bound(regularizer)
        return _PARTS[regularizer]
    terms = regularizer.separable_terms(shape)
    if terms is not None:
        return _Parts(terms, ())
    if isinstance(regularizer, L1Ball | L2Ball | Simplex):
        return _Parts(SeparableTerms(), (Block(slice(None), shape, regularizer),))
    return None


def _split_bound(regularizer: BoundRegularizer) -> _Parts | None:
    """Split psi on a model's arrays; constant terms become numbers."""
    terms, others = regularizer.split_terms()
    balls = []
    for place, shape, psi in others:
        if not isinstance(place, slice) or not isinstance(psi, L1Ball | L2Ball | Simplex):
            return None
        whole = place == slice(0, regularizer.layout.size)
        balls.append(Block(slice(None) if whole else place, shape, psi))
    return _Parts(SeparableTerms(*(_collapsed(field) for field in terms)), tuple(balls))


def _collapsed(field: Any) -> Any:
    """Return a constant array as a number, and any other array unchanged."""
    return float(field[0]) if np.size(field) and np.all(field == field[0]) else field


def _spread(field: Vector, size: int) -> Vector:
    """Return a copy of one term with an element for each coordinate."""
    return np.broadcast_to(field, (size,)).copy()


def _find_multiplier(mirror_map: TermwiseMap, z: Vector, block: Block, terms: Terms, out: Vector) -> bool:
    """Write the minimiser under a ball or simplex on a block, by a root find on its multiplier."""
    ball, place = block.ball, block.place
    direction = np.zeros(z.size)
    weights = getattr(ball, "weights", None)
    direction[place] = 1.0 if weights is None else np.broadcast_to(weights, block.shape).reshape(-1)
    is_l2, equality = isinstance(ball, L2Ball), isinstance(ball, Simplex)
    term = "shrinkage" if is_l2 else "threshold"
    start = _spread(getattr(terms, term), z.size)
    if equality:
        lower = _spread(terms.lower, z.size)
        lower[place] = np.maximum(lower[place], 0.0)
        terms = terms._replace(lower=lower)

    def measure(multiplier: float) -> float:
        moved = multiplier * direction
        mirror_map.solve(*((z - moved, terms) if equality else (z, terms._replace(**{term: start + moved}))), out)
        if not is_l2:
            return float(out[place].sum() if equality else np.abs(out) @ direction)
        largest = float(np.abs(out[place]).max(initial=0.0))
        return largest * float(np.linalg.norm(out[place] / largest)) if 0.0 < largest < math.inf else largest

    if not np.isfinite(z).all():
        out[:] = np.nan
        return True
    scale = 1.0 if is_l2 else float(np.abs(z).max(initial=0.0)) or 1.0
    # A shrinkage is multiplied by other numbers, so its limit is far from overflow.
    limit = 1e200 if is_l2 else sys.float_info.max
    if not _decreasing_root(measure, ball.radius, scale, limit, equality=equality):
        return False
    # Correct the rounding error of the multiplier: 1e-16 relative, larger only if the duals are huge.
    size = float(np.linalg.norm(out[place])) if is_l2 else float(np.abs(out) @ direction)
    if equality or size > ball.radius:
        out[place] *= ball.radius / size
    return True


def _decreasing_root(
    measure: Callable[[float], float], radius: float, scale: float, limit: float, *, equality: bool
) -> bool:
    """Find theta with measure(theta) = radius and call `measure` there last; keep 0 if it is inside, unless `equality`.

    The bracket grows from 0 and is then shrunk by regula falsi (Illinois) or, if that is slow, by bisection, until its
    ends are adjacent floats. The last call is then at the end with a measure of at least the radius.

    Returns
    -------
    bool
        False if no theta up to the limit reaches the radius.
    """

    def excess(theta: float) -> float:
        size = measure(theta)
        # Between -1 and 1 for any size, including infinity.
        return 1.0 if size == math.inf else (size - radius) / (size + radius)

    at_zero = excess(0.0)
    if abs(at_zero) <= 1e-16 or (at_zero < 0.0 and not equality):
        return True
    sign = 1.0 if at_zero > 0.0 else -1.0
    near, far = (0.0, at_zero), (sign * scale, excess(sign * scale))
    while sign * far[1] > 0.0:
        theta = 8.0 * far[0]
        if abs(theta) > limit:
            return abs(far[1]) <= 1e-12
        near, far = far, (theta, excess(theta))
    # The measure is too small at the first place and too large at the second; regula falsi takes the weights.
    (a, value_a), (b, value_b) = (far, near) if sign > 0.0 else (near, far)
    places, values, weights = [a, b], [value_a, value_b], [value_a, value_b]
    last, width = -1, abs(b - a)
    for step in range(2000):
        low, high = places
        theta = high + (low - high) * (weights[1] / (weights[1] - weights[0]))
        if step % 3 == 2:
            if abs(high - low) > 0.5 * width:
                theta = 0.5 * high + 0.5 * low
            width = abs(high - low)
        if not min(places) < theta < max(places):
            theta = 0.5 * low + 0.5 * high
        if not min(places) < theta < max(places):
            break
        value = excess(theta)
        if abs(value) <= 1e-16:
            return True
        side = int(value > 0.0)
        places[side] = theta
        values[side] = weights[side] = value
        weights[1 - side] = weights[1 - side] / 2.0 if last == side else values[1 - side]
        last = side
    measure(places[1])
    return True


def l1_thresholds(regularizer: BoundRegularizer) -> Vector | None:
    """Return the thresholds strength * weights if psi is a (weighted) l1 norm, ``NOTHING`` if it is 0, else None."""
    terms = regularizer.separable_terms((regularizer.layout.size,))
    if terms is None or np.any(terms.shrinkage) or np.any(terms.lower > -np.inf) or np.any(terms.upper < np.inf):
        return None
    return np.asarray(terms.threshold, dtype=np.float64) if np.any(terms.threshold) else NOTHING
