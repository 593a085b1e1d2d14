"""Proximal kernels on contiguous arrays: sums over coordinates, groups, the l1 ball and the simplex, and p-norms.

Kernels trust their callers, propagate NaN and accept `v` as `out`. They never write a negative zero: ``+ 0.0`` turns
-0.0 into 0.0 and changes nothing else. Comparisons are written so that NaN takes no branch.
"""

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from flwr_fco.kernels import njit

Array = NDArray[Any]

#: From how many entries on a sample of so many guesses the threshold of a projection, and the part of entries that is
#: so small that these are copied.
_LONG = 1 << 14
_SAMPLE = 1 << 10
_FEW = 8
#: Elements handled at a time: buffers that fit the first-level cache, and maxima side by side.
_PART = 256
_LANES = 64


def at(term: Any, i: Any) -> Any:
    """Return entry i of an array, or a number itself: kernels take either, each compiled for its own."""
    return term if np.ndim(term) == 0 else term[i]


@overload(at, inline="always")
def _at(term, i):  # type: ignore[no-untyped-def]
    return (lambda term, i: term[i]) if isinstance(term, types.Array) else (lambda term, i: term)


@njit(cache=True, inline="always")
def clamp(x, low, high):  # type: ignore[no-untyped-def]
    """Return x, or the end of [low, high] that it is beyond."""
    x = low if x < low else x
    return high if x > high else x


@njit(cache=True, inline="always")
def point(z, t, threshold, shrinkage, lower, upper, metric):  # type: ignore[no-untyped-def]
    """Return argmin_w -z w + metric/2 w^2 + t (threshold |w| + shrinkage/2 w^2) over [lower, upper], for a number."""
    cut = t * threshold
    return clamp((z - clamp(z, -cut, cut)) / (metric + t * shrinkage), lower, upper) + 0.0


# A number to divide by becomes one to multiply by: divisions take longer than all else of a coordinate.
@njit(cache=True, error_model="numpy", fastmath={"arcp"})
def separable(v, t, terms, metric, out):  # type: ignore[no-untyped-def]
    """Write :func:`point` of each coordinate; terms and metric are floats or float64 arrays of v's size."""
    threshold, shrinkage, lower, upper = terms
    for i in range(v.size):
        a, b, low, high = at(threshold, i), at(shrinkage, i), at(lower, i), at(upper, i)
        out[i] = point(v[i], t, a, b, low, high, at(metric, i))


@njit(cache=True, error_model="numpy")
def grouped(v, threshold, groups, limits, out):  # type: ignore[no-untyped-def]
    """Soft-threshold v, then shrink the norm of each group by its limit; groups[i] is the group of coordinate i."""
    factors = np.zeros(limits.size)
    top = _top(v, 1.0, threshold, True)
    # In this unit squares neither over- nor underflow.
    unit = max(top, 1e-300) if top < 1e-140 or 1e140 < top < np.inf else 1.0
    inverse = 1.0 / unit
    for i in range(v.size):
        out[i] = v[i] - clamp(v[i], -threshold, threshold)
        factors[groups[i]] += (out[i] * inverse) ** 2
    for g in range(limits.size):
        norm = math.sqrt(factors[g]) * unit
        factors[g] = 0.0 if norm <= limits[g] else 1.0 - limits[g] / norm
    for i in range(v.size):
        out[i] = out[i] * factors[groups[i]] + 0.0


@njit(cache=True, error_model="numpy")
def scale(v, factor, out):  # type: ignore[no-untyped-def]
    """Write factor * v."""
    for i in range(v.size):
        out[i] = v[i] * factor + 0.0


# --- l1 ball and simplex ----------------------------------------------------------------------------------------------
# The projection onto {x >= 0, <a, x> = r} is max(v - tau a, 0), where tau is the root of the convex, decreasing
# f(tau) = sum a_i max(v_i - tau a_i, 0) - r. A Newton step from anywhere lands at or left of the root and then only
# rises, so what is below the current tau can be dropped for good. Near the largest v_i / a_i, tau is relative to that:
# the result is feasible also where v is many orders larger than r, because it takes the very differences that f takes.


@njit(cache=True, error_model="numpy", fastmath={"arcp"})
def _top(v, weights, base, absolute):  # type: ignore[no-untyped-def]
    """Return the largest v_i / a_i - base, or of |v_i|, NaN ignored: side by side, for one maximum waits for itself."""
    tops = np.full(_LANES, -np.inf)
    for start in range(0, v.size, _LANES):
        part = v[start : start + _LANES]
        for j in range(part.size):
            x = abs(part[j]) if absolute else part[j]
            a = at(weights, start + j)
            ratio = (x - base * a) / a if a > 0.0 else -np.inf
            tops[j] = ratio if ratio > tops[j] else tops[j]
    return tops.max()


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _excess(v, weights, base, tau, absolute):  # type: ignore[no-untyped-def]
    """Return sum a d, sum a^2 and the number of the d = (v_i - base a) - tau a, or of |v_i|, above 0; NaN counts."""
    total = square = count = 0.0
    for i in range(v.size):
        x = abs(v[i]) if absolute else v[i]
        a = at(weights, i)
        d = (x - base * a) - tau * a
        total += 0.0 if d <= 0.0 else a * d
        square += 0.0 if d <= 0.0 else a * a
        count += 0.0 if d <= 0.0 else 1.0
    return total, square, count


@njit(cache=True, error_model="numpy")
def _above(v, weights, base, tau, absolute):  # type: ignore[no-untyped-def]
    """Return the indices of the d that are above 0."""
    kept = np.empty(v.size, np.int64)
    size = 0
    for i in range(v.size):
        x = abs(v[i]) if absolute else v[i]
        kept[size] = i
        size += 0 if (x - base * at(weights, i)) - tau * at(weights, i) <= 0.0 else 1
    return kept[:size]


@njit(cache=True, error_model="numpy")
def _root(v, weights, radius, absolute, base, least, start):  # type: ignore[no-untyped-def]
    """Return the root of f, at least `least`, by Newton's method from a start, and what rounding leaves of it."""
    tau = start
    before = -1.0
    while True:
        total, square, count = _excess(v, weights, base, tau, absolute)
        step = (total - radius) / square
        if count == before or (before >= 0.0 and step <= 0.0):
            # Where rounding alone has dropped a heavy entry, the others say nothing of what is left.
            return tau, step if square > 0.0 and (count == before or step > -1e-12 * abs(tau)) else 0.0
        tau = max(tau + step, least)
        before = count
        if _FEW * count < v.size:
            kept = _above(v, weights, base, tau, absolute)
            v, weights = v[kept], at(weights, kept)


@njit(cache=True, error_model="numpy")
def on_simplex(v, weights, ends, radius, absolute, out):  # type: ignore[no-untyped-def]
    """Write the projection onto {w >= 0, <weights, w> = radius}, or onto {<weights, |w|> <= radius} if `absolute`.

    The weights are 1.0 or a float64 array of v's size, with the smallest above 0 and the largest one as `ends`;
    coordinates of weight 0 are free.
    """
    if absolute and _excess(v, weights, 0.0, 0.0, absolute)[0] <= radius:
        scale(v, 1.0, out)
        return
    top = _top(v, weights, 0.0, absolute)
    lightest, heaviest = ends
    near = lightest == heaviest or _excess(v, weights, 0.0, 0.5 * top, absolute)[0] > radius
    base = top if near else 0.0
    # What rounding leaves of the largest, with weights, is more than r where v is very many orders larger.
    rest = 0.0 if lightest == heaviest == 1.0 else _top(v, weights, base, absolute)
    start = least = max(rest - radius / lightest / lightest, -base if absolute else -np.inf)
    if v.size >= _LONG:
        # From a good guess, one step over all entries comes close; a bad one costs time and nothing else.
        stride = v.size // _SAMPLE
        some = np.arange(0, v.size, stride)
        start, _ = _root(v[some], at(weights, some), radius / stride, absolute, base, least, least)
    tau, rest = _root(v, weights, radius, absolute, base, least, start)
    for i in range(v.size):
        x = abs(v[i]) if absolute else v[i]
        a = at(weights, i)
        x = ((x - base * a) - tau * a) - rest * a
        x = 0.0 if x < 0.0 else x
        out[i] = (-x if absolute and v[i] < 0.0 else x) + 0.0


# --- hard sparsity ----------------------------------------------------------------------------------------------------


@njit(cache=True)
def magnitudes_between(v, low, high):  # type: ignore[no-untyped-def]
    """Return the |v_i| from low to high, and how many are above, or NaN."""
    kept = np.empty(v.size, v.dtype)
    size = above = 0
    for i in range(v.size):
        x = abs(v[i])
        kept[size] = x
        size += 1 if low <= x <= high else 0
        above += 0 if x <= high else 1
    return kept[:size], above


@njit(cache=True)
def keep_largest(v, level, count, out):  # type: ignore[no-untyped-def]
    """Write the `count` entries of which the last one's magnitude is `level`, of equal ones the first; NaN is kept."""
    surplus = -count
    for i in range(v.size):
        surplus += 0 if abs(v[i]) < level else 1
    end = v.size
    while surplus > 0 and end > 0:
        end -= 1
        surplus -= 1 if abs(v[end]) == level else 0
    for i in range(v.size):
        x = abs(v[i])
        out[i] = 0.0 if x < level or (x == level and i >= end) else v[i] + 0.0


# --- the point of a dual in the geometry of a p-norm ------------------------------------------------------------------


# Sums may be reordered (that is what lets them use vector instructions); NaN and infinity keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _scaled_powers(z: Array, unit: float, p: float, out: Array) -> float:
    """Write sign(x) |x|^(p-1) for x = z/unit and return sum |x|^p, of a part; `out` may be `z`."""
    exponent = int(p) - 2
    whole = p == exponent + 2 and exponent <= 64
    x, base, power = np.empty(z.size), np.empty(z.size), np.empty(z.size)
    for j in range(z.size):
        x[j] = z[j] / unit
        base[j] = abs(x[j])
        power[j] = x[j] if whole else math.copysign(base[j] ** (p - 1.0), x[j])
    while whole and exponent > 0:  # by repeated squaring
        for j in range(z.size):
            power[j] *= base[j] if exponent & 1 else 1.0
            base[j] *= base[j]
        exponent >>= 1
    total = 0.0
    # By itself: beside what is written, the order of the sum, and so the bits, may depend on where `out` is.
    for j in range(z.size):
        total += power[j] * x[j]
    scale(power, 1.0, out)
    return total


@njit(cache=True)
def p_norm_point(z: Array, p: float, radius: float, out: Array) -> None:
    """Write P(z) = argmin { -<z, u> + ||u||_q^2 / (2 (q-1)) : ||u||_q <= radius }.

    With x = z/max|z| and N = ||x||_p the point is min(max|z| N/(p-1), radius) (x/N)^(p-1).
    """
    top = _top(z, 1.0, 0.0, True)
    if not top > 0.0:
        # A NaN is not larger than 0: it is passed on, not lost.
        scale(z, 1.0, out)
        return
    total = 0.0
    for start in range(0, z.size, _PART):
        total += _scaled_powers(z[start : start + _PART], top, p, out[start : start + _PART])
    length = top / (p - 1.0) * total ** (1.0 / p)
    factor = min(length, radius) * total ** ((1.0 - p) / p)
    for i in range(z.size):
        # Adding 0 turns -0 into 0.
        out[i] = out[i] * factor + 0.0
