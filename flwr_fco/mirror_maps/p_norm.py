"""The p-norm map: dual averaging for sparse problems in high dimension."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import mirror as kernels
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.mirror_maps.base import Terms, TermwiseMap, l1_thresholds
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.regularizers.validation import frozen_array, number, positive


@dataclass(frozen=True, eq=False)
class PNorm(TermwiseMap):
    """h(w) = ||w - center||_q^2 / (2 (q - 1)) on ||w - center||_q <= radius, with 1/p + 1/q = 1.

    Without a center and a radius this is the map of (D)FedDA(-GT)::

        grad h*(z) = n/(p-1) |z/n|^(p-1) sign(z),    n = ||z||_p,    0 at z = 0

    With them it is the 'Prox' of ReFedDA-GT, whose dual starts at 0: w = center + P(z)::

        P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) radius) - 1, 0))

    Center and ball belong to the map, not to psi. The dual is relative to the center: the dual of the center is 0, and
    a stage of ReFedDA-GT starts there. The ball uses the map's own norm, because P has no closed form for any other
    ball. The user's psi can be combined with both.

    Powers are taken of z/max|z|, so nothing overflows for duals from 1e-300 to 1e300; integer powers use
    multiplications.

    Closed forms: no psi; l1 and sign constraints without a center (soft-threshold z by t a, then P). Any other
    separable psi needs a root find in log ||w - center||_q; balls need a root find in their multiplier.

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
    p: float
    center: Vector | None = None
    radius: float | None = None

    def __post_init__(self) -> None:
        p = number(self, "p", self.p)
        if not 2.0 <= p < math.inf:
            raise ConfigurationError(
                f"PNorm(p={self.p!r}): expected a finite number >= 2 (2 is Euclidean, the paper takes 12 or 2 log d)"
            )
        object.__setattr__(self, "p", p)
        if self.center is not None:
            center = frozen_array(self, "center", self.center)
            if center.ndim != 1 or not np.isfinite(center).all():
                raise ConfigurationError(
                    f"PNorm(center=...): expected a vector of finite numbers, got shape {center.shape}: {center!r}"
                )
            object.__setattr__(self, "center", center)
        if self.radius is not None:
            object.__setattr__(self, "radius", positive(self, "radius", self.radius))

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
        if dimension < 1:
            raise ConfigurationError(f"PNorm.for_dimension({dimension!r}): expected a positive integer")
        return cls(max(2.0, 2.0 * math.log(dimension)), center, radius)

    @property
    def q(self) -> float:
        """The exponent of the primal norm, p/(p-1)."""
        return self.p / (self.p - 1.0)

    @property
    def _limit(self) -> float:
        return math.inf if self.radius is None else self.radius

    def value(self, w: Vector) -> float:
        """Return ||w - center||_q^2 (p-1)/2; inf outside the ball (up to rounding)."""
        length = float(kernels.p_norm(self._displacement(w), self.q))
        return math.inf if length > self._limit * (1.0 + 1e-12) else 0.5 * (self.p - 1.0) * length * length

    def gradient(self, w: Vector) -> Vector:
        """Return (p-1) ||u||_q^(2-q) |u|^(q-1) sign(u), u = w - center; 0 at the center."""
        u = np.ascontiguousarray(self._displacement(w), dtype=np.float64)
        out = np.empty_like(u)
        kernels.p_norm_gradient(u, self.p, out)
        return out

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return center + P(z)."""
        if out is None:
            out = np.empty_like(z)
        self.check_size(z.size)
        kernels.p_norm_point(z, self.p, self._limit, out)
        if self.center is not None:
            out += self.center
        return out

    def conjugate(self, z: Vector) -> float:
        """Return <z, center> + ||z||_p^2 / (2 (p-1)); if the ball is active, <z, center> + r ||z||_p - (p-1) r^2/2."""
        size = float(kernels.p_norm(z, self.p))
        length = min(size / (self.p - 1.0), self._limit)
        shift = 0.0 if self.center is None else float(z @ self.center)
        return shift + length * (size - 0.5 * (self.p - 1.0) * length)

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        if not self.closed_form(terms):
            center = np.zeros(z.size) if self.center is None else self.center
            return bool(kernels.p_norm_terms(z, *terms, center, self.p, self._limit, out))
        kernels.soft_threshold(z, terms.threshold, out)
        # A sign constraint clips the dual: where z points out of the orthant, w is 0.
        if terms.lower[0] == 0.0:
            np.maximum(out, 0.0, out=out)
        if terms.upper[0] == 0.0:
            np.minimum(out, 0.0, out=out)
        self.conjugate_gradient(out, out)
        return True

    def closed_form(self, terms: Terms) -> bool:
        """Whether there is no psi, or l1 with at most one common sign constraint and without a center."""
        if any(field.size > 1 for field in terms[1:]):
            return False
        shrinkage, lower, upper = (float(field[0]) for field in terms[1:])
        if shrinkage != 0.0:
            return False
        if self.center is not None:
            return not terms.threshold.any() and lower == -math.inf and upper == math.inf
        return lower in (-math.inf, 0.0) and upper in (math.inf, 0.0)

    def compiled(self, regularizer: BoundRegularizer) -> Retrieval | None:
        """Return thresholds, p, radius and center if psi is zero, or an l1 norm and there is no center."""
        thresholds = l1_thresholds(regularizer)
        if type(self) is not PNorm or thresholds is None or (thresholds.size and self.center is not None):
            return None
        # A copy, because kernels treat a read-only array as another type.
        return Retrieval(thresholds, self.p, self._limit, NOTHING if self.center is None else self.center.copy())

    def check_size(self, size: int) -> None:
        """Raise unless the center has an element for each coordinate."""
        if self.center is not None and self.center.size != size:
            raise ConfigurationError(
                f"PNorm has a center of {self.center.size} elements, the flat vector has {size}; pass the reference "
                "point as layout.flatten(arrays) gives it"
            )

    def _displacement(self, w: Vector) -> Vector:
        """Return w - center."""
        self.check_size(w.size)
        return w if self.center is None else w - self.center
