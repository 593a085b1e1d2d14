"""Regularizers of a sequence through its differences: total variation, fused lasso and monotonicity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels import prox as kernels
from flwr_fco.kernels.total_variation import pool_adjacent_violators, total_variation
from flwr_fco.regularizers.base import Array
from flwr_fco.regularizers.flat import FlatRegularizer
from flwr_fco.regularizers.validation import NON_NEGATIVE, amount, outside


class _Sequence(FlatRegularizer):
    """Base class of regularizers that act on 1-D arrays."""

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise unless the array is 1-D."""
        if len(shape) != 1:
            raise ConfigurationError(
                f"{type(self).__name__} acts on sequences, but the array {name!r} has shape {shape}; choose 1-D arrays "
                "with apply_to=, or give each array its own psi with PerParameter"
            )


def variation(w: Array) -> float:
    """Return sum_i |w_{i+1} - w_i|."""
    return float(np.abs(np.diff(w.astype(np.float64, copy=False))).sum())


def variation_subgradient(w: Array) -> Array:
    """Return D' sign(D w), with D the differences and sign(0) = 0."""
    result = np.zeros_like(w)
    signs = np.sign(np.diff(w))
    result[1:] += signs
    result[:-1] -= signs
    return result


@dataclass(frozen=True)
class TotalVariation(_Sequence):
    """Total variation of a sequence: psi(w) = strength * sum_i |w_{i+1} - w_i|. The result is piecewise constant.

    The proximal map is computed by an exact O(n) algorithm (dynamic programming, Johnson 2013)::

        argmin_w step * strength * sum_i |w_{i+1} - w_i| + 1/2 ||w - v||^2

    On every constant piece w is the mean of v there plus step * strength * (rise_right - rise_left) / length, where
    rise is +1 at a jump upwards, -1 downwards and 0 at the ends.

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> TotalVariation(1.0).prox(np.array([1.0, 2.0, 9.0, 10.0]), 1.0)
    array([2., 2., 9., 9.])
    """

    kind: ClassVar[str] = "total-variation"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * sum_i |w_{i+1} - w_i|."""
        return self.strength * variation(w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write the proximal map, computed by dynamic programming, to `out`."""
        self.check_shape("v", shape)
        total_variation(v, amount(step, self.strength), out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * D' sign(D w), with D the differences and sign(0) = 0."""
        result = variation_subgradient(w)
        result *= self.strength
        return result


@dataclass(frozen=True)
class FusedLasso(_Sequence):
    """Sparse and piecewise constant: psi(w) = strength * ||w||_1 + difference_strength * sum_i |w_{i+1} - w_i|.

    The proximal map applies the total variation's, then soft-thresholds::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = soft(prox_{step * difference_strength TV}(v), step * strength)

    In this order it is exact: soft-thresholding never reverses the order of two coordinates (w_i < w_{i+1} is kept or
    becomes an equality), so a subgradient of the total variation remains one afterwards (Friedman et al. 2007).

    Parameters
    ----------
    strength : float
        Strength of the l1 norm; finite, >= 0.
    difference_strength : float
        Strength of the total variation; finite, >= 0.

    Raises
    ------
    ConfigurationError
        If a strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> FusedLasso(2.5, 1.0).prox(np.array([1.0, 2.0, 9.0, 10.0]), 1.0)
    array([0. , 0. , 6.5, 6.5])
    """

    kind: ClassVar[str] = "fused-lasso"
    strength: float = field(metadata=NON_NEGATIVE)
    difference_strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_1 + difference_strength * sum_i |w_{i+1} - w_i|."""
        return float(self.strength * kernels.absolute_sum(w) + self.difference_strength * variation(w))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        self.check_shape("v", shape)
        total_variation(v, amount(step, self.difference_strength), out)
        kernels.soft_threshold(out, amount(step, self.strength), out)

    def subgradient(self, w: Array) -> Array:
        """Return the sum of the two subgradients, with sign(0) = 0."""
        one = w.dtype.type
        result: Array = np.sign(w) * one(self.strength) + variation_subgradient(w) * one(self.difference_strength)
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the smallest `strength` for which 0 is optimal, at this `difference_strength`.

        It is the largest |coordinate| of prox_{difference_strength TV}(gradient).
        """
        gradient = np.asarray(gradient_at_zero, dtype=np.float64)
        return float(np.abs(TotalVariation(self.difference_strength).prox(gradient, 1.0)).max(initial=0.0))


@dataclass(frozen=True)
class Monotone(_Sequence):
    """Monotone sequences, the isotonic cone {w : w_1 <= w_2 <= ... <= w_n}, or the same with >=.

    The proximal map is the projection, whatever the step: isotonic regression with equal weights, by an exact O(n)
    algorithm (pool adjacent violators, Ayer et al. 1955). The result is a mean of v on each of its constant pieces.

    Parameters
    ----------
    increasing : bool, default True
        Whether the sequence must not decrease; otherwise it must not increase.

    Raises
    ------
    ConfigurationError
        If `increasing` is not a boolean.

    Examples
    --------
    >>> import numpy as np
    >>> Monotone().prox(np.array([1.0, 4.0, 2.0, 6.0]), 1.0)
    array([1., 3., 3., 6.])
    """

    kind: ClassVar[str] = "monotone"
    constraint: ClassVar[bool] = True
    increasing: bool = True

    def __post_init__(self) -> None:
        """Validate the field."""
        if not isinstance(self.increasing, bool):
            raise ConfigurationError(f"Monotone(increasing={self.increasing!r}): expected True or False")

    def value(self, w: Array) -> float:
        """Return 0.0 if the sequence is monotone, else inf."""
        rises = np.diff(w.astype(np.float64, copy=False))
        wrong = -rises if self.increasing else rises
        return outside(float(wrong.max(initial=0.0)), float(np.abs(w).max(initial=0.0)), w)

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write the isotonic regression of v to `out`."""
        self.check_shape("v", shape)
        pool_adjacent_violators(v, out, self.increasing)
