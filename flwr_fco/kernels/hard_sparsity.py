"""The largest entries of arrays: kernels of psi that bounds the number of entries which are not 0."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

Array = NDArray[Any]

#: From how many entries on they are counted by the first 16 bits of their magnitudes before any of them are sorted.
_COUNTED_FROM = 1 << 15


@njit(cache=True, error_model="numpy")
def _count_magnitudes(bits: Array, mask: int, shift: int, counts: Array) -> None:
    """Count entries by the first 16 bits of their magnitudes, which are in the order of the numbers."""
    for i in range(bits.size):
        counts[(bits[i] & mask) >> shift] += 1


@njit(cache=True, error_model="numpy")
def _with_first_bits(bits: Array, mask: int, shift: int, first: int, magnitudes: Array) -> None:
    """Write the magnitudes with these first 16 bits."""
    place = 0
    for i in range(bits.size):
        magnitude = bits[i] & mask
        if magnitude >> shift == first:
            magnitudes[place] = magnitude
            place += 1


def kth_largest(arrays: Sequence[Array], count: int) -> float:
    """Return exactly the `count`-th largest magnitude in 1-D arrays of one dtype, float64 or float32.

    It takes two passes and no second array of that size: entries are counted by their first bits, and only entries with
    the same first bits as the result are sorted. NaN counts as the largest.
    """
    total = sum(array.size for array in arrays)
    if total < _COUNTED_FROM:
        sizes = np.abs(np.concatenate(arrays))
        sizes.partition(total - count)
        return float(sizes[total - count])
    width = 8 * arrays[0].itemsize
    kind = np.dtype(f"uint{width}").type
    mask, shift = kind(2 ** (width - 1) - 1), kind(width - 17)
    bits, counts = [array.view(kind) for array in arrays], np.zeros((len(arrays), 1 << 16), np.int64)
    for entries, row in zip(bits, counts, strict=True):
        _count_magnitudes(entries, mask, shift, row)
    above = np.cumsum(counts.sum(axis=0)[::-1])
    place = int(np.searchsorted(above, count))
    first, rest = above.size - 1 - place, count - (int(above[place - 1]) if place else 0)
    sizes_left = np.empty(int(counts[:, first].sum()), kind)
    begin = 0
    for entries, row in zip(bits, counts, strict=True):
        _with_first_bits(entries, mask, shift, kind(first), sizes_left[begin : begin + row[first]])
        begin += int(row[first])
    sizes_left.partition(sizes_left.size - rest)
    return float(sizes_left.view(arrays[0].dtype)[sizes_left.size - rest])


@njit(cache=True, error_model="numpy")
def above_and_at(v: Array, level: float) -> tuple[int, int]:
    """Return the number of magnitudes above a level, and the number equal to it."""
    above = at = 0
    for i in range(v.size):
        size = abs(v[i])
        above += size > level
        at += size == level
    return above, at


@njit(cache=True, error_model="numpy")
def keep_largest(v: Array, level: float, ties: int, out: Array) -> None:
    """Write v where |v| > level and at the first `ties` places where |v| = level, 0 elsewhere; NaN is kept."""
    left = ties
    equal = 0
    for i in range(v.size):
        equal += abs(v[i]) == level
    if equal <= ties:
        # As a rule; without a count the loop is a few instructions for several entries at once.
        for i in range(v.size):
            x = v[i] + v.dtype.type(0.0)
            out[i] = v.dtype.type(0.0) if abs(x) < level else x
        return
    for i in range(v.size):
        x = v[i]
        size = abs(x)
        if size > level or size != size:
            out[i] = x
        elif size == level and left > 0:
            left -= 1
            out[i] = x + v.dtype.type(0.0)
        else:
            out[i] = 0.0


@njit(cache=True, error_model="numpy")
def sparse_step(primal: Array, before: Array, after: Array, memory: float, further: float) -> None:
    """Scale up a step on the support of `primal`, at most to the whole step's length; decay `before` elsewhere."""
    whole = kept = 0.0
    for i in range(after.size):
        step = after[i] - before[i]
        whole += step * step
        kept += step * step if primal[i] != 0.0 else 0.0
    factor = min(further, math.sqrt(whole / kept)) if kept > 0.0 else 1.0
    for i in range(after.size):
        step = after[i] - before[i]
        after[i] = before[i] + factor * step if primal[i] != 0.0 else memory * before[i] + step


@njit(cache=True, error_model="numpy")
def square_where(primal: Array, dual: Array) -> float:
    """Return the squared norm of `dual` where `primal` is not 0."""
    total = 0.0
    for i in range(dual.size):
        total += dual[i] * dual[i] if primal[i] != 0.0 else 0.0
    return total


@njit(cache=True, error_model="numpy")
def lengthen_to(kept: Array, dual: Array, square: float) -> None:
    """Scale `dual` where `kept` is not 0, so that its squared norm there is at least `square`."""
    square_there = square_where(kept, dual)
    if not 0.0 < square_there < square:
        return
    factor = math.sqrt(square / square_there)
    for i in range(dual.size):
        if kept[i] != 0.0:
            dual[i] *= factor
