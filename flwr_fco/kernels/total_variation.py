"""Proximal maps of 1-D arrays as sequences; their conventions are those of the other proximal kernels."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

Array = NDArray[Any]


@njit(cache=True, error_model="numpy")
def _centred(y: Array, unit: float, data: Array) -> tuple[float, float]:
    """Write y / unit without its mean; return the mean and the largest absolute sum of first entries."""
    data[:] = y / unit
    mean = (data / y.size).sum()
    data -= mean
    return mean, np.abs(np.cumsum(data)).max()


@njit(cache=True, error_model="numpy")
def _clipped_derivatives(
    data: Array, pull: float, knots: Array, slopes: Array, offsets: Array, lower: Array, upper: Array
) -> None:
    """Write where the derivative of each value function is clipped, below and above; the last one's root as `lower`."""
    n = data.size
    left = n
    right = n - 1
    for k in range(n):
        # The derivative left of all knots is slope * x + offset = x - data[k] - pull_left, and right of all
        # knots x - data[k] + pull_left; crossing a knot adds that knot's slope and offset.
        before = pull if k > 0 else 0.0
        after = pull if k < n - 1 else 0.0
        slope = 1.0
        offset = -data[k] - before
        while left <= right and slope * knots[left] + offset < -after:
            slope += slopes[left]
            offset += offsets[left]
            left += 1
        low = (-after - offset) / slope
        if k == n - 1:
            lower[k] = low
            break
        slope_high = 1.0
        offset_high = -data[k] + before
        while left <= right and slope_high * knots[right] + offset_high > after:
            slope_high -= slopes[right]
            offset_high -= offsets[right]
            right -= 1
        high = (after - offset_high) / slope_high
        lower[k] = low
        upper[k] = high
        left -= 1
        knots[left] = low
        slopes[left] = slope
        offsets[left] = offset + after
        right += 1
        knots[right] = high
        slopes[right] = -slope_high
        offsets[right] = after - offset_high


@njit(cache=True, error_model="numpy")
def _pieces(
    data: Array, solution: Array, pull: float, totals: Array, ends: Array, pulls_left: Array, pulls_right: Array
) -> int:
    """Write the constant pieces as a stack of (sum, end, pull on the left, pull on the right); return their number.

    Where the true jump between two pieces is 0, rounding may have turned it the wrong way: such pieces are one.
    """
    n = data.size
    pieces = 0
    start = 0
    pull_left = 0.0
    while start < n:
        stop = start + 1
        total = data[start]
        while stop < n and solution[stop] == solution[start]:
            total += data[stop]
            stop += 1
        pull_right = 0.0
        if stop < n:
            pull_right = pull if solution[stop] > solution[start] else -pull
        piece_left = pull_left
        begin = start
        while pieces > 0:
            level = (total + pull_right - piece_left) / (stop - begin)
            before = ends[pieces - 2] if pieces > 1 else 0.0
            last = pieces - 1
            level_before = (totals[last] + pulls_right[last] - pulls_left[last]) / (ends[last] - before)
            if (level > level_before) if piece_left > 0.0 else (level < level_before):
                break
            total += totals[last]
            piece_left = pulls_left[last]
            begin = int(before)
            pieces -= 1
        totals[pieces] = total
        ends[pieces] = stop
        pulls_left[pieces] = piece_left
        pulls_right[pieces] = pull_right
        pieces += 1
        pull_left = pull_right
        start = stop
    return pieces


@njit(cache=True, error_model="numpy")
def total_variation(y: Array, strength: float, out: Array) -> None:
    """Write argmin_w strength sum |w_{i+1} - w_i| + 1/2 ||w - y||^2, exactly, in O(n).

    Dynamic programming (Johnson 2013): the derivative of the value function of the first k coordinates is piecewise
    linear and increasing; adding |w_{k+1} - w_k| clips it to [-strength, strength]. Its pieces are stored in a
    double-ended queue, from which each is removed once. Then every constant piece is recomputed as the mean of its data
    plus the pull of its two jumps, which removes the rounding errors accumulated in the first part.
    """
    n = y.size
    if n == 0:
        return
    top = np.float64(np.abs(y).max())
    if not math.isfinite(top):
        out[:] = np.nan
        return
    if n == 1 or strength == 0.0 or top == 0.0:
        for i in range(n):
            out[i] = y[i] + y.dtype.type(0.0)
        return
    unit = math.ldexp(1.0, min(max(math.frexp(top)[1], -1021), 1021))
    pull = strength / unit
    data = np.empty(n)
    mean, largest = _centred(y, unit, data)
    if pull >= largest:
        # The whole is one piece; a second pass of the mean removes the first one's rounding.
        out[:] = (mean + data.sum() / n) * unit + 0.0
        return

    knots, slopes, offsets = np.empty(2 * n), np.empty(2 * n), np.empty(2 * n)
    lower, upper = np.empty(n), np.empty(n)
    _clipped_derivatives(data, pull, knots, slopes, offsets, lower, upper)
    solution = upper
    value = lower[n - 1]
    solution[n - 1] = value
    for k in range(n - 2, -1, -1):
        if value > upper[k]:
            value = upper[k]
        elif value < lower[k]:
            value = lower[k]
        solution[k] = value

    totals, ends, pulls_left, pulls_right = knots, slopes, offsets, lower
    pieces = _pieces(data, solution, pull, totals, ends, pulls_left, pulls_right)
    start = 0
    for piece in range(pieces):
        stop = int(ends[piece])
        level = (totals[piece] + pulls_right[piece] - pulls_left[piece]) / (stop - start)
        out[start:stop] = (level + mean) * unit + 0.0
        start = stop


@njit(cache=True, error_model="numpy")
def pool_adjacent_violators(y: Array, out: Array, increasing: bool) -> None:
    """Write the projection of y onto the sequences that do not decrease, or do not increase."""
    n = y.size
    levels = np.empty(n)
    ends = np.empty(n, np.int64)
    pieces = 0
    for i in range(n):
        level = np.float64(y[i])
        begin = i
        while pieces > 0 and (level < levels[pieces - 1] if increasing else level > levels[pieces - 1]):
            pieces -= 1
            start = ends[pieces - 1] if pieces > 0 else 0
            share = (begin - start) / (i + 1 - start)
            apart = levels[pieces] - level
            if np.isfinite(apart):
                level += apart * share
            else:
                level = level * (1.0 - share) + levels[pieces] * share
            begin = start
        levels[pieces] = level
        ends[pieces] = i + 1
        pieces += 1
    start = 0
    for piece in range(pieces):
        out[start : ends[piece]] = levels[piece] + 0.0
        start = ends[piece]
