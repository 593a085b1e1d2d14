"""Validation of arguments of regularizers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core import validation as ranges
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError

Array = NDArray[Any]
_NUMBER = {"range": (lambda value: not math.isnan(value), "a number")}


def number(owner: object, name: str, value: Any, within: Mapping[str, Any] | None = _NUMBER, kind: Any = float) -> Any:
    """Return a real number as a float, or an argument of another kind.

    Parameters
    ----------
    owner : object
        The regularizer with this argument, for the error message.
    name : str
        The argument's name.
    value : Any
        The argument's value. Booleans and strings are refused, because they are mistakes where a number is expected.
    within : mapping, optional
        A range of :mod:`flwr_fco.core.validation`; by default all numbers but NaN.
    kind : type or annotation, default float
        As in :func:`flwr_fco.core.validation.checked`.

    Raises
    ------
    ConfigurationError
        If `value` is not of this kind, or not in the range.
    """
    return checked(f"{type(owner).__name__}.{name}", value, kind, within)


def frozen_array(owner: object, name: str, value: ArrayLike, dtype: Any = np.float64) -> Array:
    """Return a read-only, contiguous copy, so that changes to the original array cannot affect the regularizer."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"its dtype is {array.dtype}")
        result = np.array(array, dtype=dtype, order="C", copy=True)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{type(owner).__name__}({name}=...): expected an array of numbers, but {error}"
        ) from error
    result.setflags(write=False)
    return result


def finite_vector(owner: object, name: str, value: ArrayLike, positive: bool = False) -> Array:
    """Return a read-only float64 copy of a vector of finite numbers, all > 0 if `positive`."""
    array = frozen_array(owner, name, value)
    if array.ndim != 1 or not np.isfinite(array).all() or (positive and not (array.size and (array > 0.0).all())):
        raise ConfigurationError(
            f"{type(owner).__name__}({name}=...): expected a vector of finite numbers{' > 0' * positive}, one for each "
            f"coordinate, got shape {array.shape}: {array!r}"
        )
    return array


def non_negative_array(owner: object, name: str, value: ArrayLike) -> Array:
    """Return a read-only float64 copy of an array of finite numbers >= 0."""
    result = frozen_array(owner, name, value)
    bad = ~(np.isfinite(result) & (result >= 0.0))
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ConfigurationError(
            f"{type(owner).__name__}({name}=...): expected finite numbers >= 0, got {result[place]} at {list(place)}"
        )
    return result


def broadcastable(owner: object, what: str, sizes: tuple[int, ...], name: str, shape: tuple[int, ...]) -> None:
    """Raise :class:`ConfigurationError` unless an array of shape `sizes` broadcasts to `shape`."""
    try:
        fits = np.broadcast_shapes(sizes, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"{type(owner).__name__} has {what} of shape {sizes}, which does not broadcast to the array {name!r} of "
            f"shape {shape}. Pass {what} of the array's shape, or use PerParameter to give each array its own."
        )


def check_step(owner: object, step: float) -> float:
    """Return the step of a proximal map; raise :class:`ConfigurationError` unless it is finite and >= 0."""
    if isinstance(step, bool) or not 0.0 <= step < math.inf:
        raise ConfigurationError(f"{type(owner).__name__}.prox(step={step!r}): expected a finite number >= 0")
    return float(step)


def amount(step: float, strength: float) -> float:
    """Return step * strength, at most the largest float, because infinity times a weight of 0 would be NaN."""
    return min(step * strength, sys.float_info.max)


def destination(owner: object, v: Array, out: Array | None) -> Array:
    """Return the output array of a proximal map: `out` if it matches `v`, or a new array if `out` is None.

    Raises
    ------
    ConfigurationError
        If v is not an array of float32 or float64, or out has another shape or dtype.
    """
    if not isinstance(v, np.ndarray) or v.dtype not in (np.float64, np.float32):
        got = v.dtype if isinstance(v, np.ndarray) else type(v).__name__
        raise ConfigurationError(
            f"{type(owner).__name__}.prox expects an array of float64 or float32, got {got}; "
            "convert it with np.asarray(v, dtype=np.float64)"
        )
    if out is None:
        return np.empty(v.shape, v.dtype)
    if out.shape != v.shape or out.dtype != v.dtype:
        raise ConfigurationError(
            f"{type(owner).__name__}.prox writes {v.dtype} of shape {v.shape}, but out is {out.dtype} of shape "
            f"{out.shape}; pass np.empty_like(v), or v itself"
        )
    return out


def tolerance(w: Array) -> float:
    """Return the relative violation of a constraint that counts as rounding in the dtype of w."""
    return 16.0 * float(np.finfo(w.dtype).eps) if w.dtype.kind == "f" else 16.0 * sys.float_info.epsilon


def outside(violation: float, scale: float, w: Array) -> float:
    """Return inf if a violation is NaN or exceeds the rounding of quantities of this scale, else 0.0."""
    return 0.0 if violation <= tolerance(w) * scale else math.inf


# The metadata of fields that `Specified.__post_init__` checks.
NON_NEGATIVE, POSITIVE, RATIO, SHARE = (
    {"check": partial(number, within=within)}
    for within in (ranges.NON_NEGATIVE, ranges.POSITIVE, ranges.FRACTION, ranges.CHANCE)
)
COUNT = {"check": partial(number, within=ranges.AT_LEAST_ONE, kind=int)}
WEIGHTS = {"check": non_negative_array}
