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

#: From how many entries on a sample of so many guesses the threshold of a projection.
_LONG = 1 << 18
_SAMPLE = 4096
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
    for i in range(v.size):
        out[i] = v[i] - clamp(v[i], -threshold, threshold)
        factors[groups[i]] += out[i] * out[i]
    for g in range(limits.size):
        norm = math.sqrt(factors[g])
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
# rises, so what is below the current tau can be dropped for good.


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _sums(v, weights, tau, absolute):  # type: ignore[no-untyped-def]
    """Return sum a x and sum a^2 over the x = v_i, or |v_i|, above tau a."""
    total = square = 0.0
    for i in range(v.size):
        x = abs(v[i]) if absolute else v[i]
        a = at(weights, i)
        above = x > tau * a
        total += a * x if above else 0.0
        square += a * a if above else 0.0
    return total, square


@njit(cache=True, error_model="numpy")
def _root(v, weights, radius, start):  # type: ignore[no-untyped-def]
    """Return the root of f by Newton's method."""
    tau = start
    low = -np.inf
    previous = (0.0, 0.0)
    while True:
        total, square = sums = _sums(v, weights, tau, False)
        if sums == previous or square == 0.0:
            return tau
        low = tau = max(low, (total - radius) / square)
        previous = sums


@njit(cache=True, error_model="numpy")
def largest(v, weights, tau, absolute, stride):  # type: ignore[no-untyped-def]
    """Return the x = v_i, or |v_i|, not below tau a (or NaN) among each stride-th entry, and their weights."""
    kept = np.empty(v.size)
    heavy = np.empty(v.size)
    size = 0
    for i in range(0, v.size, stride):
        x = abs(v[i]) if absolute else v[i]
        a = at(weights, i)
        kept[size] = x
        heavy[size] = a
        size += 0 if x < tau * a else 1
    return kept[:size], heavy[:size]


@njit(cache=True, error_model="numpy")
def on_simplex(v, weights, radius, absolute, out):  # type: ignore[no-untyped-def]
    """Write the projection onto {w >= 0, <weights, w> = radius}, or onto {<weights, |w|> <= radius} if `absolute`.

    The weights are 1.0 or a float64 array of v's size; coordinates of weight 0 are free.
    """
    total, square = _sums(v, weights, -np.inf, absolute)
    if absolute and total <= radius:
        scale(v, 1.0, out)
        return
    if not math.isfinite(total):
        out[:] = np.nan
        return
    low = (total - radius) / square
    if v.size >= _LONG:
        # From a good guess, one step over all entries leaves few of them; a bad one costs time and nothing else.
        stride = v.size // _SAMPLE
        kept, heavy = largest(v, weights, low, absolute, stride)
        guess = _root(kept, heavy, radius / stride, low)
        total, square = _sums(v, weights, guess, absolute)
        low = max(low, (total - radius) / square) if square > 0.0 else low
    else:
        for _ in range(2):
            total, square = _sums(v, weights, low, absolute)
            low = max(low, (total - radius) / square) if square > 0.0 else low
    # A little lower, or rounding might leave none.
    kept, heavy = largest(v, weights, low - 1e-12 * abs(low), absolute, 1)
    # Relative to the largest, and twice, for what rounding left: the result is feasible also where v is many orders
    # larger than the radius, because the output takes the very differences that the roots are of.
    top = -np.inf
    for k in range(kept.size):
        if heavy[k] > 0.0 and kept[k] > top * heavy[k]:
            top = kept[k] / heavy[k]
    for k in range(kept.size):
        kept[k] -= top * heavy[k]
    tau = _root(kept, heavy, radius, -np.inf)
    for k in range(kept.size):
        kept[k] -= tau * heavy[k]
    rest = _root(kept, heavy, radius, -np.inf)
    for i in range(v.size):
        x = abs(v[i]) if absolute else v[i]
        a = at(weights, i)
        x = ((x - top * a) - tau * a) - rest * a
        x = 0.0 if x < 0.0 else x
        out[i] = (-x if absolute and v[i] < 0.0 else x) + 0.0


# --- the point of a dual in the geometry of a p-norm ------------------------------------------------------------------


@njit(cache=True)
def _top(z: Array) -> float:
    """Return max |z_i|, NaN ignored: side by side, because a single running maximum waits for itself."""
    tops = np.zeros(_LANES)
    for start in range(0, z.size, _LANES):
        part = z[start : start + _LANES]
        for j in range(part.size):
            tops[j] = abs(part[j]) if abs(part[j]) > tops[j] else tops[j]
    return float(tops.max())


# Sums may be reordered (that is what lets them use vector instructions); NaN and infinity keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _scaled_powers(z: Array, scale: float, p: float, out: Array) -> float:
    """Write sign(x) |x|^(p-1) for x = z/scale and return sum |x|^p."""
    total = 0.0
    exponent = int(p) - 2
    whole = p == exponent + 2 and exponent <= 64
    x, base, power = np.empty(_PART), np.empty(_PART), np.empty(_PART)
    for start in range(0, z.size, _PART):
        size = min(_PART, z.size - start)
        left = exponent
        for j in range(size):
            x[j] = z[start + j] / scale
            base[j] = abs(x[j])
            power[j] = x[j]
        if not whole:
            for j in range(size):
                power[j] = math.copysign(base[j] ** (p - 1.0), x[j])
        while whole and left > 0:  # by repeated squaring
            if left & 1:
                for j in range(size):
                    power[j] *= base[j]
            for j in range(size):
                base[j] *= base[j]
            left >>= 1
        # Summed from the buffers: the order, and so the bits, cannot depend on whether `out` is `z`.
        for j in range(size):
            total += power[j] * x[j]
            out[start + j] = power[j]
    return total


@njit(cache=True)
def p_norm_point(z: Array, p: float, radius: float, out: Array) -> None:
    """Write P(z) = argmin { -<z, u> + ||u||_q^2 / (2 (q-1)) : ||u||_q <= radius }.

    With x = z/max|z| and N = ||x||_p the point is min(max|z| N/(p-1), radius) (x/N)^(p-1).
    """
    top = _top(z)
    if top == 0.0:
        # A NaN is not larger than 0: it is passed on, not lost.
        scale(z, 1.0, out)
        return
    total = _scaled_powers(z, top, p, out)
    length = top / (p - 1.0) * total ** (1.0 / p)
    factor = min(length, radius) * total ** ((1.0 - p) / p)
    for i in range(z.size):
        # Adding 0 turns -0 into 0.
        out[i] = out[i] * factor + 0.0
