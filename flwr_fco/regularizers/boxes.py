"""Coordinate-wise constraints: the box, non-negative numbers, the l-infinity ball."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.base import Array, SeparableTerms
from flwr_fco.regularizers.flat import FlatRegularizer
from flwr_fco.regularizers.validation import POSITIVE, broadcastable, frozen_array, number, outside, tolerance


@dataclass(frozen=True)
class Box(FlatRegularizer):
    """The box {w : lower <= w <= upper}, coordinate by coordinate.

    The proximal map is the projection, whatever the step: ``clip(v, lower, upper)``.

    Parameters
    ----------
    lower, upper : float or array
        Numbers or arrays that broadcast to the array; -inf and inf leave a side open.

    Raises
    ------
    ConfigurationError
        If a bound is NaN or a lower bound is above its upper bound.

    Examples
    --------
    >>> import numpy as np
    >>> Box(-1.0, 2.0).prox(np.array([3.0, -0.5, -2.0]), 1.0)
    array([ 2. , -0.5, -1. ])
    """

    kind: ClassVar[str] = "box"
    constraint: ClassVar[bool] = True
    lower: float | Array
    upper: float | Array

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            value = getattr(self, name)
            bound: float | Array
            if isinstance(value, np.ndarray | list | tuple) and np.ndim(value):
                bound = frozen_array(self, name, value)
                if np.isnan(bound).any():
                    raise ConfigurationError(f"Box({name}=...): expected numbers, got NaN")
            else:
                bound = number(self, name, value)
            object.__setattr__(self, name, bound)
        try:
            crossed = np.greater(self.lower, self.upper)
        except ValueError:
            raise ConfigurationError(
                f"Box: lower of shape {np.shape(self.lower)} and upper of shape {np.shape(self.upper)} do not "
                "broadcast to each other"
            ) from None
        if crossed.any() or np.equal(self.lower, np.inf).any() or np.equal(self.upper, -np.inf).any():
            raise ConfigurationError(
                f"Box(lower={self.lower!r}, upper={self.upper!r}) is empty: expected lower <= upper everywhere, "
                "with -inf and inf for open sides"
            )

    def value(self, w: Array) -> float:
        eps = tolerance(w)
        # A violation is measured relative to the finite bound; if both sides are open there is none.
        low = np.where(np.isfinite(self.lower), self.lower, 0.0)
        high = np.where(np.isfinite(self.upper), self.upper, 0.0)
        inside = (w >= np.where(np.isfinite(self.lower), low - eps * np.abs(low), -np.inf)) & (
            w <= np.where(np.isfinite(self.upper), high + eps * np.abs(high), np.inf)
        )
        return 0.0 if bool(inside.all()) else float(np.inf)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        if isinstance(self.lower, float) and isinstance(self.upper, float):
            kernels.clip(v, self.lower, self.upper, out)
        else:
            lower = np.ascontiguousarray(np.broadcast_to(self.lower, shape)).reshape(-1)
            upper = np.ascontiguousarray(np.broadcast_to(self.upper, shape)).reshape(-1)
            kernels.clip_arrays(v, lower, upper, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=self.lower, upper=self.upper)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the bounds broadcast to the array."""
        broadcastable(self, "lower", np.shape(self.lower), name, shape)
        broadcastable(self, "upper", np.shape(self.upper), name, shape)


@dataclass(frozen=True)
class NonNegative(FlatRegularizer):
    """The non-negative numbers {w : w >= 0}.

    The proximal map is the projection, whatever the step: ``max(v, 0)``.

    Examples
    --------
    >>> import numpy as np
    >>> NonNegative().prox(np.array([3.0, -0.5]), 1.0)
    array([3., 0.])
    """

    kind: ClassVar[str] = "non-negative"
    constraint: ClassVar[bool] = True

    def value(self, w: Array) -> float:
        """Return 0.0 if no coordinate is negative, else inf."""
        return 0.0 if bool((w >= 0.0).all()) else float(np.inf)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        kernels.clip(v, 0.0, np.inf, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=0.0)


@dataclass(frozen=True)
class LInfinityBall(FlatRegularizer):
    """The l-infinity ball {w : max |w_i| <= radius}.

    The proximal map is the projection, whatever the step: ``clip(v, -radius, radius)``.

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
    >>> LInfinityBall(1.0).prox(np.array([3.0, -0.5]), 1.0)
    array([ 1. , -0.5])
    """

    kind: ClassVar[str] = "l-infinity-ball"
    constraint: ClassVar[bool] = True
    radius: float = field(metadata=POSITIVE)

    def value(self, w: Array) -> float:
        return outside(float(np.abs(w).max(initial=0.0)) - self.radius, self.radius, w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        kernels.clip(v, -self.radius, self.radius, out)

    def separable_terms(self, shape: tuple[int, ...]) -> SeparableTerms:
        return SeparableTerms(lower=-self.radius, upper=self.radius)
