"""The metric of a positive diagonal matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import mirror as kernels
from flwr_fco.mirror_maps.base import Terms, TermwiseMap
from flwr_fco.regularizers.validation import frozen_array


@dataclass(frozen=True, eq=False)
class DiagonalMetric(TermwiseMap):
    """h(w) = 1/2 sum_i weights_i w_i^2: coordinates with a large weight move slowly.

    With separable psi the minimiser has the closed form ``clip(soft(z, t a) / (weights + t b), lower, upper)``; balls
    and the simplex become weighted projections, computed by a root find on their multiplier.

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
    separable: ClassVar[bool] = True
    weights: Vector

    def __post_init__(self) -> None:
        weights = frozen_array(self, "weights", self.weights)
        if weights.ndim != 1 or not weights.size or not (np.isfinite(weights) & (weights > 0.0)).all():
            raise ConfigurationError(
                f"DiagonalMetric(weights=...): expected a vector of finite numbers > 0, one for each coordinate, "
                f"got {weights!r}"
            )
        object.__setattr__(self, "weights", weights)

    def value(self, w: Vector) -> float:
        """Return 1/2 sum_i weights_i w_i^2."""
        return 0.5 * float(self.weights @ (w * w))

    def gradient(self, w: Vector) -> Vector:
        """Return weights * w."""
        return np.multiply(self.weights, w)

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        """Return z / weights."""
        return np.divide(z, self.weights, out=out)

    def conjugate(self, z: Vector) -> float:
        """Return 1/2 sum_i z_i^2 / weights_i."""
        return 0.5 * float(z @ (z / self.weights))

    def solve(self, z: Vector, terms: Terms, out: Vector) -> bool:
        """Write clip(soft(z, threshold) / (weights + shrinkage), lower, upper); see :meth:`TermwiseMap.solve`."""
        kernels.diagonal_terms(z, self.weights, *terms, out)
        return True

    def restrict(self, place: slice | NDArray[np.integer[Any]]) -> DiagonalMetric:
        return DiagonalMetric(self.weights[place])

    def check_size(self, size: int) -> None:
        """Raise unless there is a weight for each coordinate."""
        if self.weights.size != size:
            raise ConfigurationError(
                f"DiagonalMetric has {self.weights.size} weights, the flat vector has {size} coordinates; pass one "
                "weight for each"
            )
