"""Mirror maps h: the geometry in which duals are averaged.

A mirror map is a strictly convex function h. ``gradient`` maps a primal point to its dual, ``conjugate_gradient`` maps
a dual back, and ``retrieve`` maps a dual to the primal point that takes psi into account:

    retrieve(z, t, psi) = argmin_w { -<z, w> + t psi(w) + h(w) } = gradient of (h + t psi)*
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from flwr_fco.core.layout import Layout, Vector, checked_patterns, first_match, require_matches
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.kernels.dual_averaging import NO_TERMS, NOTHING, Retrieval
from flwr_fco.kernels.prox import p_norm_point, separable
from flwr_fco.regularizers import BoundRegularizer, Simplex, Terms, Zero
from flwr_fco.regularizers.base import Psi, array

__all__ = ["DiagonalMetric", "Euclidean", "MirrorMap", "PNorm", "Product", "SimplexEntropy"]

#: The smallest weight that an entropy map returns: log w exists at every point it gives.
TINY = 2.2250738585072014e-308


class MirrorMap(Specified, ABC):
    """A geometry: a strictly convex h and its conjugate, on flat float64 vectors.

    Subclasses are frozen dataclasses that set ``kind`` and
    implement :meth:`value`, :meth:`gradient`, :meth:`conjugate_gradient`, :meth:`supports` and :meth:`retrieve`.
    A new map needs nothing else.

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
    def supports(self, regularizer: Psi) -> bool:
        """Whether :meth:`retrieve` can be computed exactly for this psi."""

    @abstractmethod
    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
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
            If t is negative or not finite.
        """

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

    def start(self, size: int, regularizer: Psi | None = None) -> Vector:
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

    def modulus(self) -> float:
        """Return a modulus of strong convexity in the l2 norm; 0 if none is known."""
        return 0.0

    def smoothness(self, l2: float, l1: float) -> tuple[float, str]:
        """Return gradients' Lipschitz constant in the norm in which h is 1-strongly convex, and the norm's name.

        Rates of theory, ``client_lr="auto"``, follow from it.

        Parameters
        ----------
        l2, l1 : float
            ||grad(u) - grad(v)||_2 <= l2 ||u - v||_2, and with the norms linf and l1.

        Raises
        ------
        ConfigurationError
            If the map is not known to be strongly convex on its domain.
        """
        if self.modulus() > 0.0:
            return l2 / self.modulus(), "l2"
        raise ConfigurationError(f"theory has no rate for {self!r}, not strongly convex: give client_lr by hand")

    def bind(self, layout: Layout) -> MirrorMap:
        """Return the map on a model's flat vectors; the map itself, unless it needs the names of the arrays."""
        return self

    def objection(self, regularizer: Psi) -> str:
        """Return why psi is not supported and what would be; an empty string if it is."""
        if self.supports(regularizer):
            return ""
        psi = getattr(regularizer, "regularizer", regularizer)
        prefix = f"{type(self).__name__} cannot be combined with {psi!r}: `retrieve` has no closed form here"
        return f"{prefix}. It works with {self.works_with}; Euclidean() works with every regularizer"

    def require(self, regularizer: Psi) -> None:
        """Raise :class:`UnsupportedPairError` unless the pair is supported."""
        if objection := self.objection(regularizer):
            raise UnsupportedPairError(objection)


@dataclass(frozen=True)
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

    def modulus(self) -> float:
        """Return 1."""
        return 1.0

    def value(self, w: Vector) -> float:
        """Return 1/2 ||w||^2."""
        return 0.5 * float(w @ w)

    def gradient(self, w: Vector) -> Vector:
        """Return a copy of w."""
        return w.copy()

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z."""
        return np.add(z, 0.0, out=out)

    def supports(self, regularizer: Psi) -> bool:
        """Return True: every regularizer has a Euclidean proximal map."""
        return True

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        """Return prox_{t psi}(z)."""
        return regularizer.prox(z, t, out)

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return the terms of a sum over coordinates; see :meth:`MirrorMap.compiled`."""
        terms = regularizer.terms()
        if type(self) is not Euclidean or terms is None:
            return None
        return _compiled(terms, regularizer), 0.0, math.inf, NOTHING


def _compiled(terms: Terms, regularizer: BoundRegularizer) -> tuple[Any, ...]:
    """Return psi's terms as compiled loops take them."""
    size = regularizer.layout.size
    if not terms.is_l1:
        return tuple(terms.table((size,)))
    return (np.full(size, terms.threshold), *NO_TERMS[1:]) if np.any(terms.threshold) else NO_TERMS


class _ClosedForm(MirrorMap):
    """A map with a closed form for sums over coordinates whose terms it covers."""

    def _covers(self, terms: Terms) -> bool:
        """Whether there is a closed form for these terms."""
        return True

    @abstractmethod
    def _solve(self, z: Vector, t: float, terms: Terms, out: Vector) -> None:
        """Write argmin_w { -<z, w> + h(w) + t psi(w) }; `out` may be `z`."""

    def check_size(self, size: int) -> None:
        """Raise :class:`ConfigurationError` if the map's own vector, if it has one, is of another length."""
        for name in getattr(self, "__dataclass_fields__", ()):
            if isinstance(own := getattr(self, name), np.ndarray) and own.size != size:
                prefix = f"{type(self).__name__}({name}=...) has {own.size} elements, the flat vector has {size}"
                raise ConfigurationError(f"{prefix}; pass one for each coordinate, such as layout.flatten(arrays)")

    def bind(self, layout: Layout) -> MirrorMap:
        self.check_size(layout.size)
        return self

    def _terms(self, regularizer: Psi) -> Terms | None:
        """Return psi's terms; None if there is no closed form for them."""
        terms = regularizer.terms()
        return terms if terms is not None and self._covers(terms) else None

    def supports(self, regularizer: Psi) -> bool:
        """Whether psi is a sum over coordinates for which the map has a closed form."""
        return self._terms(regularizer) is not None

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        if not 0.0 <= t < math.inf:
            raise ConfigurationError(f"retrieve(t={t!r}): expected a finite number >= 0")
        # Kernels treat a read-only array as another type.
        z = np.require(z, np.float64, ["C", "W"])
        self.check_size(z.size)
        terms = self._terms(regularizer)
        if terms is None:
            self.require(regularizer)
        out = np.empty_like(z) if out is None else out
        self._solve(z, float(t), terms or Terms(), out)
        return out


@dataclass(frozen=True)
class DiagonalMetric(_ClosedForm):
    """h(w) = 1/2 sum_i weights_i w_i^2: coordinates with a large weight move slowly.

    With psi a sum over coordinates the minimiser is ``clip(soft(z, t a) / (weights + t b), lower, upper)``.

    Parameters
    ----------
    weights : array, shape (d,)
        Finite numbers > 0, one for each coordinate of the flat vector.

    Raises
    ------
    ConfigurationError
        If the weights are not as described.

    Notes
    -----
    This is the metric of preconditioned dual averaging; it is not in the papers of this package. With all weights equal
    to 1 it is :class:`Euclidean`.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> DiagonalMetric(np.array([1.0, 4.0])).retrieve(np.array([3.0, -5.0]), 1.0, L1(1.0))
    array([ 2., -1.])
    """

    kind: ClassVar[str] = "diagonal"
    works_with: ClassVar[str] = "coordinatewise ones: Zero, L1, L2Squared, ElasticNet, Box, NonNegative, LInfinityBall"
    weights: Vector = field(metadata=array(least=TINY, vector=True))

    def value(self, w: Vector) -> float:
        """Return 1/2 sum_i weights_i w_i^2."""
        return 0.5 * float(self.weights @ (w * w))

    def gradient(self, w: Vector) -> Vector:
        """Return weights * w."""
        return np.multiply(self.weights, w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z / weights."""
        return np.divide(z, self.weights, out=out)

    def modulus(self) -> float:
        """Return the smallest weight."""
        return float(self.weights.min())

    def _solve(self, z: Vector, t: float, terms: Terms, out: Vector) -> None:
        separable(z, t, terms.rows(z.shape), self.weights, out)


def _norm(u: Vector, p: float) -> float:
    # Powers are taken of u in units of its largest magnitude.
    scale = float(np.abs(u).max(initial=0.0)) or 1.0
    return scale if math.isinf(scale) else scale * float(np.sum(np.abs(u / scale) ** p)) ** (1.0 / p)


_AT_LEAST_TWO = {"range": (lambda p: 2.0 <= p < math.inf, "a finite number >= 2, such as 12 or 2 log d")}


@dataclass(frozen=True)
class PNorm(_ClosedForm):
    """h(w) = ||w - center||_q^2 / (2 (q - 1)) on ||w - center||_q <= radius, with 1/p + 1/q = 1.

    Without a center and a radius this is the map of (D)FedDA(-GT)::

        grad h*(z) = n/(p-1) |z/n|^(p-1) sign(z),    n = ||z||_p,    0 at z = 0

    With them it is the 'Prox' of ReFedDA-GT, whose dual starts at 0: w = center + P(z)::

        P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) radius) - 1, 0))

    Center and ball belong to the map, not to psi. The dual is relative to the center: the dual of the center is 0, and
    a stage of ReFedDA-GT starts there. The ball uses the map's own norm, because P has no closed form for any other
    ball.

    Powers are taken of z/max|z|, so nothing overflows for duals from 1e-300 to 1e300; integer powers use
    multiplications.

    psi is zero or an l1 norm, weighted or not: soft-threshold z by t a, then P. With l1 and a center,
    log ||w - center||_q is the root of an increasing function, found to rounding.

    Parameters
    ----------
    p : float
        At least 2; the paper uses 12 in experiments and 2 log d in theory (:meth:`for_dimension`). 2 is Euclidean.
    center : array of shape (d,), optional
        The reference point v; 0 by default.
    radius : float, optional
        Radius of the q-norm ball around the center, sqrt(Q) in the paper; no ball by default.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Notes
    -----
    Section B of the algorithms: Liang, Peng, Zhang, 'FedDA with gradient tracking', Algorithms 1 to 3. At a point on
    the boundary of the ball, the gradient is the gradient of the norm only, the smallest of the point's duals. With a
    center, the dual of a coordinate cannot be recovered from w if rounding makes it equal to the center: keep the dual,
    as dual averaging does.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> PNorm(4.0).conjugate_gradient(np.array([2.0, 0.0]))
    array([0.66666667, 0.        ])
    >>> PNorm(4.0).retrieve(np.array([3.0, -0.5]), 1.0, L1(1.0))
    array([0.66666667, 0.        ])
    >>> PNorm(4.0, center=np.array([1.0, 1.0]), radius=0.5).conjugate_gradient(np.array([2.0, 0.0]))
    array([1.5, 1. ])
    """

    kind: ClassVar[str] = "p-norm"
    works_with: ClassVar[str] = "Zero and L1 (also with weights, or in a PerParameter)"
    p: float = field(metadata=_AT_LEAST_TWO)
    center: Vector | None = field(default=None, metadata=array(least=-math.inf, vector=True))
    radius: float | None = field(default=None, metadata=POSITIVE)

    @classmethod
    def for_dimension(cls, dimension: int, *, center: Vector | None = None, radius: float | None = None) -> Self:
        """Return the map with the theory's p = 2 log(dimension), at least 2.

        Parameters
        ----------
        dimension : int
            Length of the flat vector.
        center, radius
            As for the class.

        Examples
        --------
        >>> round(PNorm.for_dimension(1024).p, 2)
        13.86
        """
        return cls(max(2.0, 2.0 * math.log(checked("dimension", dimension, int, AT_LEAST_ONE))), center, radius)

    @property
    def q(self) -> float:
        """The exponent of the primal norm, p/(p-1)."""
        return self.p / (self.p - 1.0)

    def modulus(self) -> float:
        """Return 1: of norms the l2 norm is the smaller one."""
        return 1.0

    def smoothness(self, l2: float, l1: float) -> tuple[float, str]:
        """Return that of the norm of exponent q, by the Riesz-Thorin theorem between l1 -> linf and l2 -> l2."""
        return l1 ** (1.0 - 2.0 / self.p) * l2 ** (2.0 / self.p), f"{self.q:.4g}"

    def value(self, w: Vector) -> float:
        """Return ||w - center||_q^2 (p-1)/2; inf outside the ball (up to rounding)."""
        length = _norm(self._displacement(w), self.q)
        outside = length > (self.radius or math.inf) * (1.0 + 1e-12)
        return math.inf if outside else 0.5 * (self.p - 1.0) * length * length

    def gradient(self, w: Vector) -> Vector:
        """Return (p-1) ||u||_q^(2-q) |u|^(q-1) sign(u), u = w - center; 0 at the center."""
        # grad h* is the same function of p.
        out = np.array(self._displacement(w), dtype=np.float64)
        p_norm_point(out, self.q, math.inf, out)
        return out

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return center + P(z)."""
        self.check_size(z.size)
        # In place, as the kernel is compiled for each memory layout: a copy is cheaper than seconds of compilation.
        out = np.positive(z, out)
        p_norm_point(out, self.p, self.radius or math.inf, out)
        return out if self.center is None else np.add(out, self.center, out=out)

    def _covers(self, terms: Terms) -> bool:
        return terms.is_l1

    def _solve(self, z: Vector, t: float, terms: Terms, out: Vector) -> None:
        if self.center is not None and np.any(terms.threshold) and t > 0.0:
            out[:] = self._around(z, t * terms.threshold, self.center)
        else:
            separable(z, t, terms.rows(z.shape), 1.0, out)
            self.conjugate_gradient(out, out)

    def _around(self, z: Vector, thresholds: Vector | float, center: Vector) -> Vector:
        """Return argmin { -<z, w> + sum thresholds |w| + h(w) }.

        For a given norm n of u = w - center the problem separates into coordinates, with the factor c = n^(2-q) in
        front of |u_i|^(q-1). One number x orders the candidates: n = exp(x) up to the border of the ball, and on it the
        multiplier that c grows by. log ||u(c)||_q - log n decreases in x.
        """
        from scipy.optimize import brentq

        # Around 0 only what exceeds the threshold moves w.
        free = np.maximum(np.abs(z) - np.where(center == 0.0, thresholds, 0.0), 0.0)
        scale = max(float(free.max()), float(np.abs(center).max()))
        if not scale > 0.0:
            return center + scale
        start = center / scale
        border = math.log((self.radius or math.inf) / scale)
        up = (z - thresholds) / scale
        down = (z + thresholds) / scale

        def moved(x: float) -> Vector:
            factor = math.exp((2.0 - self.q) * min(x, border) + max(x - border, 0.0)) * (self.p - 1.0)
            with np.errstate(over="ignore"):
                right, left = (np.copysign(np.abs(pull / factor) ** (self.p - 1.0), pull) for pull in (up, down))
            return np.where(start + right > 0.0, right, np.where(start + left < 0.0, left, -start))

        def excess(x: float) -> float:
            # Numbers above and below all others, where the norm is none.
            size = _norm(moved(x), self.q)
            logarithm = math.log(size) if 0.0 < size < math.inf else math.copysign(709.0, size - 1.0)
            return logarithm - min(x, border)

        # Each |u_i| is between those of a pull that is smaller by the threshold, and of one that is larger.
        pulls = np.maximum(np.abs(z) - thresholds, 0.0), np.abs(z) + thresholds
        sizes = (_norm(pull / scale, self.p) / (self.p - 1.0) for pull in pulls)
        low, high = (math.log(min(max(size, TINY), 1.0 / TINY)) for size in sizes)
        x = brentq(excess, low, high + 1e-9, xtol=1e-300, rtol=8.9e-16) if excess(low) > 0.0 else low
        u = moved(x)
        return np.asarray(np.where(u == 0.0, center, scale * (start + u)))

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return terms, p, radius and center if psi is zero, or an l1 norm and there is no center."""
        terms = self._terms(regularizer)
        if type(self) is not PNorm or terms is None or (self.center is not None and np.any(terms.threshold)):
            return None
        # A copy, because kernels treat a read-only array as another type.
        center = NOTHING if self.center is None else self.center.copy()
        return _compiled(terms, regularizer), self.p, self.radius or math.inf, center

    def _displacement(self, w: Vector) -> Vector:
        """Return w - center."""
        self.check_size(w.size)
        return w if self.center is None else w - self.center


#: Relative distance from the simplex above which a start point is an error (float32 primals are within 1e-6).
_OFF_SIMPLEX = 1e-4


@dataclass(frozen=True)
class SimplexEntropy(_ClosedForm):
    """h(w) = sum_i w_i log w_i - w_i on the simplex {w >= 0, sum w = radius}: w = radius softmax(z).

    The simplex is part of h, so every result lies on it. The gradient is log w, without the 1: this changes neither the
    divergence nor any algorithm. On the simplex, duals that differ by a constant represent the same point, so
    ``gradient(conjugate_gradient(z))`` is z up to a constant. Softmax subtracts the largest dual first, so duals of any
    size are allowed. Results are never below 2.2e-308, so that their gradient exists.

    l1 shifts the duals by t a, which has no effect if all weights are equal, because ||w||_1 is the radius.

    Parameters
    ----------
    radius : float, default 1.0
        The sum of the coordinates; finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Notes
    -----
    This is the map of matrix games (one simplex for each player: :class:`Product`). The default start is uniform. A
    certificate of optimality is about psi alone, and knows of the simplex if psi is ``Simplex(radius)``.

    Examples
    --------
    >>> import numpy as np
    >>> SimplexEntropy().conjugate_gradient(np.log([1.0, 3.0]))
    array([0.25, 0.75])
    """

    kind: ClassVar[str] = "simplex-entropy"
    works_with: ClassVar[str] = "Zero, L1, NonNegative and, of all of a model (no intercept), Simplex of its own radius"
    radius: float = field(default=1.0, metadata=POSITIVE)

    def modulus(self) -> float:
        """Return 1 / radius, on the simplex."""
        return 1.0 / self.radius

    def smoothness(self, l2: float, l1: float) -> tuple[float, str]:
        """Return that of the l1 norm, by Pinsker's inequality."""
        return self.radius * l1, "l1"

    def value(self, w: Vector) -> float:
        """Return sum w log w - w; inf off the simplex."""
        total = float(w.sum())  # NaN, if one is in it
        if abs(total - self.radius) > 1e-12 * self.radius or (w < 0.0).any():
            return math.inf
        positive = w[w > 0.0]  # 0 log 0 is 0
        return float(positive @ np.log(positive)) - total

    def gradient(self, w: Vector) -> Vector:
        """Return log w.

        Raises
        ------
        ConfigurationError
            If a coordinate is not positive, or the sum is not the radius.
        """
        total, least = float(w.sum()), float(w.min())
        if not least > 0.0 or abs(total - self.radius) > _OFF_SIMPLEX * self.radius:
            prefix = f"{self!r}: the point sums to {total}, and its smallest coordinate is {least}"
            raise ConfigurationError(f"{prefix}; expected an interior one: raise zeros, scale it, or use start()")
        return np.log(w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return radius softmax(z), at least 2.2e-308."""
        w = np.exp(np.subtract(z, z.max(), out=out), out=out)
        w *= self.radius / float(w.sum())
        return np.asarray(np.maximum(w, TINY, out=w))

    def _terms(self, regularizer: Psi) -> Terms | None:
        """Return no terms for the map's own simplex, on the whole vector."""
        psi: Psi = regularizer
        if isinstance(regularizer, BoundRegularizer) and len(regularizer.parts) == 1:
            _, shape, part = regularizer.parts[0]
            psi = part if math.prod(shape) == regularizer.layout.size else regularizer
        return Terms() if isinstance(psi, Simplex) and psi.radius == self.radius else super()._terms(regularizer)

    def _covers(self, terms: Terms) -> bool:
        """Whether there are no bounds but 0 and the radius, and no squared l2 norm."""
        bounds = np.all(np.less_equal(terms.lower, 0.0)) and np.all(np.greater_equal(terms.upper, self.radius))
        return bool(bounds) and not np.any(terms.shrinkage)

    def _solve(self, z: Vector, t: float, terms: Terms, out: Vector) -> None:
        self.conjugate_gradient(np.subtract(z, t * terms.threshold, out=out), out)


@dataclass(frozen=True)
class Product(MirrorMap):
    """h(w) = sum over arrays of h_array(w_array): a map for each array, chosen by its name.

    For example, a matrix game uses entropy x entropy, and a model with an intercept p-norm x Euclidean. The map acts on
    named arrays only: ``bind`` it to a layout, as strategies and clients do. Every array has a separate map, even if
    one pattern matches several: two arrays under ``"*": SimplexEntropy()`` lie on two simplices.

    Parameters
    ----------
    maps : mapping of str to MirrorMap
        Shell patterns (``"*.weight"``) and the map of the matching arrays. The first match wins.

    Raises
    ------
    ConfigurationError
        If the mapping is empty, a key is not a string or a value is not a map. At :meth:`bind`, if an array matches no
        pattern or a pattern matches no array.

    Notes
    -----
    Section C of the algorithms: a saddle point is one vector (x, y) with h separable over x and y.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.mirror_maps import Euclidean, SimplexEntropy
    >>> from flwr_fco.core.layout import Layout
    >>> layout = Layout.from_arrays({"row": np.zeros(2), "column": np.zeros(2)})
    >>> game = Product({"row": SimplexEntropy(), "*": Euclidean()}).bind(layout)
    >>> game.conjugate_gradient(np.array([0.0, 0.0, 2.0, -1.0]))
    array([ 0.5,  0.5,  2. , -1. ])
    """

    kind: ClassVar[str] = "product"
    maps: Mapping[str, MirrorMap]

    def __post_init__(self) -> None:
        own = lambda h: isinstance(h, MirrorMap) and not isinstance(h, Product)  # noqa: E731
        object.__setattr__(self, "maps", checked_patterns("Product", self.maps, "mirror map", own))

    def bind(self, layout: Layout) -> BoundProduct:
        return BoundProduct(self, layout)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because the map cannot act on a vector without the names of its arrays."""
        raise ConfigurationError("Product acts on named arrays: use Product(...).bind(layout), and psi.bind(layout)")

    value = gradient = conjugate_gradient = supports = objection = retrieve = _refuse


@dataclass(init=False)
class BoundProduct(MirrorMap):
    """A :class:`Product` on the flat vectors of a model.

    Parameters
    ----------
    product : Product
        The maps.
    layout : Layout
        The model's arrays.

    Raises
    ------
    ConfigurationError
        If an array matches no pattern, a pattern matches no array, or a map cannot act on its array.
    """

    def __init__(self, product: Product, layout: Layout) -> None:
        self.layout = layout
        #: Each array's place in the vector, its own layout and its map.
        self.parts: list[tuple[slice, Layout, MirrorMap]] = []
        for entry in layout.optimized:
            pattern = first_match(product.maps, entry.name)
            alone = Layout((replace(entry, offset=0),))
            if pattern is None:
                prefix = f"Product has no map for the array {entry.name!r}; its patterns are {list(product.maps)}"
                raise ConfigurationError(f'{prefix}. Add one, or "*": Euclidean() for all the others')
            self.parts.append((entry.block, alone, product.maps[pattern].bind(alone)))
        require_matches("Product", product.maps, layout.shapes)
        #: The psi of the last point, which is supported, and what it is on each array.
        self._last: tuple[Any, list[BoundRegularizer]] = None, []

    def value(self, w: Vector) -> float:
        return sum(h.value(w[place]) for place, _, h in self.parts)

    def gradient(self, w: Vector) -> Vector:
        return np.concatenate([h.gradient(w[place]) for place, _, h in self.parts])

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        out = np.empty_like(z) if out is None else out
        for place, _, h in self.parts:
            h.conjugate_gradient(z[place], out[place])
        return out

    def modulus(self) -> float:
        """Return the smallest of the arrays'."""
        return min((h.modulus() for _, _, h in self.parts), default=1.0)

    def supports(self, regularizer: Psi) -> bool:
        """Whether psi is bound to this layout with scope="each", and every array's map supports its psi."""
        return not self.objection(regularizer)

    def objection(self, regularizer: Psi) -> str:
        """Return why psi is not supported, with the first array whose pair is not; an empty string if it is."""
        if not isinstance(regularizer, BoundRegularizer) or regularizer.layout != self.layout:
            why = "it is not bound to the same layout; use psi.bind(layout) and Product(...).bind(layout)"
        elif regularizer.scope == "joint":
            why = "over all arrays together (scope='joint'): it treats one at a time"
        else:
            pairs = zip(self.parts, self._own(regularizer), strict=True)
            objections = ((alone.names[0], h.objection(own)) for (_, alone, h), own in pairs)
            why = next((f"array {name!r}: {objection}" for name, objection in objections if objection), "")
        return why and f"Product cannot be combined with {getattr(regularizer, 'regularizer', regularizer)!r}: {why}"

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        """Return the minimiser array by array; see :meth:`MirrorMap.retrieve`."""
        if regularizer is not self._last[0]:
            self.require(regularizer)
            self._last = regularizer, self._own(regularizer)
        out = np.empty_like(z) if out is None else out
        for (place, _, h), own in zip(self.parts, self._last[1], strict=True):
            h.retrieve(z[place], t, own, out[place])
        return out

    def _own(self, regularizer: Any) -> list[BoundRegularizer]:
        """Return psi on each array."""
        layouts = [alone for _, alone, _ in self.parts]
        return [(regularizer.regularizer.for_array(*alone.names) or Zero()).bind(alone) for alone in layouts]
