"""Norm balls of vectors, and the simplex."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.base import Array
from flwr_fco.regularizers.flat import FlatRegularizer
from flwr_fco.regularizers.separable import Weighted, flat_weights
from flwr_fco.regularizers.validation import POSITIVE, WEIGHTS, outside, tolerance


def scratch(v: Array, out: Array) -> Array:
    """Return an array of v's size that does not overlap v: `out` if possible, otherwise a new array."""
    return np.empty_like(v) if np.may_share_memory(v, out) else out


@dataclass(frozen=True)
class L1Ball(Weighted):
    """The (weighted) l1 ball {w : sum_i weights_i |w_i| <= radius}.

    The proximal map is the projection, whatever the step: ``v`` inside the ball, otherwise
    ``sign(v) max(|v| - theta * weights, 0)`` with the unique theta that puts it on the boundary. theta is found by
    Newton steps on the active set, exact to rounding even if v is many orders of magnitude larger than the radius.

    Parameters
    ----------
    radius : float
        Finite, > 0.
    weights : array, optional
        Non-negative numbers that broadcast to the array; 1 by default. A coordinate of weight 0 is free.

    Raises
    ------
    ConfigurationError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np
    >>> L1Ball(1.0).prox(np.array([1.5, -1.0, 0.25]), 1.0)
    array([ 0.75, -0.25,  0.  ])
    """

    kind: ClassVar[str] = "l1-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)
    weights: Array | None = field(default=None, metadata=WEIGHTS)

    def value(self, w: Array) -> float:
        flat = w.reshape(-1)
        if self.weights is None:
            norm = kernels.absolute_sum(flat)
        else:
            norm = kernels.weighted_absolute_sum(flat, flat_weights(self.weights, w.shape))
        return outside(norm - self.radius, self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if self.weights is not None:
            kernels.weighted_ball_project(v, flat_weights(self.weights, shape), self.radius, out)
            return
        inside, top, tau, correction = kernels.simplex_threshold(v, self.radius, True, scratch(v, out))
        if inside:
            np.add(v, v.dtype.type(0.0), out=out)
        else:
            kernels.shifted_soft_threshold(v, top, tau, correction, True, out)


@dataclass(frozen=True)
class L2Ball(FlatRegularizer):
    """The l2 ball {w : ||w||_2 <= radius}.

    The proximal map is the projection, whatever the step: ``v * min(1, radius / ||v||_2)``.

    Parameters
    ----------
    radius : float
        Finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Examples
    --------
    >>> import numpy as np
    >>> L2Ball(1.0).prox(np.array([3.0, -4.0]), 1.0)
    array([ 0.6, -0.8])
    """

    kind: ClassVar[str] = "l2-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)

    def value(self, w: Array) -> float:
        unit, root = kernels.scaled_norm(w.reshape(-1))
        return outside(root - self.radius / unit, self.radius / unit, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        unit, root = kernels.scaled_norm(v)
        if root <= self.radius / unit:
            np.add(v, v.dtype.type(0.0), out=out)
        elif not np.isfinite(root):
            out.fill(np.nan)
        else:
            kernels.scale_twice(v, unit, self.radius / root, out)


@dataclass(frozen=True)
class Simplex(FlatRegularizer):
    """The simplex {w : w >= 0, sum_i w_i = radius}.

    The proximal map is the projection, whatever the step: ``max(v - theta, 0)`` with the unique theta for which the sum
    equals the radius, found by Newton steps on the active set.

    Parameters
    ----------
    radius : float, default 1.0
        Finite, > 0.

    Raises
    ------
    ConfigurationError
        If the radius is not a finite number > 0.

    Examples
    --------
    >>> import numpy as np
    >>> Simplex().prox(np.array([1.5, -1.0, 1.0]), 1.0)
    array([0.75, 0.  , 0.25])
    """

    kind: ClassVar[str] = "simplex"
    constraint: ClassVar[bool] = True
    radius: float = field(default=1.0, metadata=POSITIVE)

    def value(self, w: Array) -> float:
        """Return 0.0 on the simplex (up to rounding), inf elsewhere."""
        if not bool((w >= -tolerance(w) * self.radius).all()):
            return float(np.inf)
        return outside(abs(kernels.absolute_sum(w.reshape(-1)) - self.radius), self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if v.size:
            _, top, tau, correction = kernels.simplex_threshold(v, self.radius, False, scratch(v, out))
            kernels.shifted_soft_threshold(v, top, tau, correction, False, out)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise for an empty array, because its sum is 0 instead of the radius."""
        if 0 in shape:
            raise ConfigurationError(f"Simplex cannot act on the empty array {name!r} of shape {shape}")
