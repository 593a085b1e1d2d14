"""Proximal kernels on contiguous 1-D arrays.

Every kernel preserves the dtype of `v`, propagates NaN, accepts `v` as `out`, and never writes a negative zero:
``+ 0.0`` turns -0.0 into 0.0 and changes nothing else (a difference of equal numbers is already 0.0). Comparisons are
written so that NaN takes no branch. Reductions run in float64 whatever the dtype.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

Array = NDArray[Any]

#: Elements of one block of a reduction: fits the first-level cache, so a second pass over it is free.
_BLOCK = 1024
#: Elements whose maxima are kept side by side.
_LANES = 64
#: Size of the sample that guesses the threshold of a projection, and from what length on it is drawn.
_SAMPLE = 4096
_SAMPLE_FROM = 65536


# -- separable ---------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def clamp(x, low, high):  # type: ignore[no-untyped-def]
    """Return x, or the end of [low, high] that it is beyond."""
    x = low if x < low else x
    return high if x > high else x


@njit(cache=True, error_model="numpy")
def soft(v: Array, threshold: float, weights: Array | None, factor: float, bound: float, out: Array) -> None:
    """Write factor * sign(v_i) max(|v_i| - threshold * weights_i, 0), clipped to [-bound, bound]; no weights are 1."""
    high, top = v.dtype.type(threshold), v.dtype.type(bound)
    times, zero = v.dtype.type(factor), v.dtype.type(0.0)
    for i in range(v.size):
        if weights is not None:
            high = v.dtype.type(threshold * weights[i])
        out[i] = clamp((v[i] - clamp(v[i], -high, high)) * times, -top, top) + zero


@njit(cache=True, error_model="numpy")
def scale_twice(v: Array, unit: float, factor: float, out: Array) -> None:
    """Write (v / unit) * factor; the two steps avoid an overflow or underflow of the combined factor."""
    for i in range(v.size):
        out[i] = (np.float64(v[i]) / unit if unit != 1.0 else np.float64(v[i])) * factor + 0.0


@njit(cache=True, error_model="numpy")
def soft_scale_weighted(v: Array, threshold: float, shrinkage: float, weights: Array, out: Array) -> None:
    """Write soft(v_i, threshold * weights_i) / (1 + shrinkage * weights_i)."""
    zero, one = v.dtype.type(0.0), v.dtype.type(1.0)
    for i in range(v.size):
        high = v.dtype.type(threshold * weights[i])
        out[i] = (v[i] - clamp(v[i], -high, high)) / (one + v.dtype.type(shrinkage * weights[i])) + zero


@njit(cache=True, error_model="numpy")
def clip(v: Array, lower: float, upper: float, out: Array) -> None:
    """Write v clipped to [lower, upper]."""
    low, high, zero = v.dtype.type(lower), v.dtype.type(upper), v.dtype.type(0.0)
    for i in range(v.size):
        out[i] = clamp(v[i], low, high) + zero


@njit(cache=True, error_model="numpy")
def clip_arrays(v: Array, lower: Array, upper: Array, out: Array) -> None:
    """Write v_i clipped to [lower_i, upper_i]."""
    zero = v.dtype.type(0.0)
    for i in range(v.size):
        out[i] = clamp(v[i], v.dtype.type(lower[i]), v.dtype.type(upper[i])) + zero


# -- reductions --------------------------------------------------------------------------------------------------
# `reassoc` lets the compiler keep several partial sums (and so use vector instructions); it does not assume that
# there is no NaN. A block is passed as a slice: a loop from `start` to `stop` would have to check for negative
# indices, and then is not vectorised. The maximum needs `nnan` for that and is only taken where the sum was no NaN.


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _block_sum(v: Array, absolute: bool) -> float:
    total = 0.0
    for i in range(v.size):
        x = np.float64(v[i])
        total += abs(x) if absolute else x
    return total


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "nnan", "nsz"})
def _block_max(v: Array, absolute: bool) -> float:
    # The compiler turns a sum into vector instructions, a maximum only as an elementwise maximum of whole lanes.
    lanes = np.full(_LANES, -np.inf)
    whole = v.size - v.size % _LANES
    for start in range(0, whole, _LANES):
        part = v[start : start + _LANES]
        # Two loops: a choice in one of them would halve the speed.
        if absolute:
            for i in range(_LANES):
                x = abs(np.float64(part[i]))
                lanes[i] = x if x > lanes[i] else lanes[i]
        else:
            for i in range(_LANES):
                x = np.float64(part[i])
                lanes[i] = x if x > lanes[i] else lanes[i]
    top = lanes.max()
    for x in v[whole:]:
        top = max(top, abs(np.float64(x)) if absolute else np.float64(x))
    return float(top)


@njit(cache=True, error_model="numpy")
def _add(total: float, lost: float, part: float) -> tuple[float, float]:
    """Add a block's sum; `lost` carries what rounding drops (Neumaier), or 1e7 equal numbers drift by 1e-12."""
    new = total + part
    if not math.isfinite(new):
        return new, 0.0
    if abs(total) >= abs(part):
        return new, lost + ((total - new) + part)
    return new, lost + ((part - new) + total)


@njit(cache=True, error_model="numpy")
def _sum_and_max(v: Array, absolute: bool) -> tuple[float, float]:
    """Return sum and maximum of v (or |v|) in one pass over memory; the maximum is NaN if an element is."""
    total = 0.0
    lost = 0.0
    top = -np.inf
    for start in range(0, v.size, _BLOCK):
        block = v[start : start + _BLOCK]
        part = _block_sum(block, absolute)
        if math.isnan(part):
            # +inf and -inf among signed values also end here: neither has a projection.
            return part, part
        total, lost = _add(total, lost, part)
        top = max(top, _block_max(block, absolute))
    return total + lost, top


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _block_weighted_sum(v: Array, weights: Array) -> float:
    total = 0.0
    for i in range(v.size):
        total += weights[i] * abs(np.float64(v[i]))
    return total


@njit(cache=True, error_model="numpy")
def absolute_sum(v: Array, weights: Array | None = None) -> float:
    """Return sum weights_i |v_i|; no weights are 1."""
    total = 0.0
    lost = 0.0
    for start in range(0, v.size, _BLOCK):
        stop = start + _BLOCK
        block = v[start:stop]
        part = _block_sum(block, True) if weights is None else _block_weighted_sum(block, weights[start:stop])
        total, lost = _add(total, lost, part)
    return total + lost


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def square_sum(v: Array, weights: Array | None = None) -> float:
    """Return sum weights_i v_i^2; no weights are 1."""
    total = 0.0
    for i in range(v.size):
        x = np.float64(v[i])
        if weights is None:
            total += x * x
        else:
            # A weight of 0 times a square that overflowed would be NaN.
            total += weights[i] * x * x if weights[i] > 0.0 else 0.0
    return total


@njit(cache=True, error_model="numpy")
def scaled_norm(v: Array) -> tuple[float, float]:
    """Return (scale, root) with ||v||_2 = scale * root; scale is 1 unless squares over- or underflow."""
    total = square_sum(v)
    if 1e-280 < total < 1e300 or math.isnan(total):
        return 1.0, math.sqrt(total)
    top = 0.0
    for i in range(v.size):
        top = max(top, abs(np.float64(v[i])))
    if top == 0.0 or math.isinf(top):
        return 1.0, top
    # A power of two divides exactly, and 2^-1074 may not be inverted: divide, never multiply by 1 / scale.
    exponent = math.frexp(top)[1]
    unit = math.ldexp(1.0, min(max(exponent, -1073), 1023))
    total = 0.0
    for i in range(v.size):
        x = np.float64(v[i]) / unit
        total += x * x
    return unit, math.sqrt(total)


# -- l1 ball and simplex -----------------------------------------------------------------------------------------
# The projection onto {w >= 0, sum w = r} is w = max(v - theta, 0). With u = v - max(v) <= 0 and theta = max(v) + tau
# it is max(u - tau, 0), -r <= tau <= -r/n. Working with u keeps full accuracy when v is far larger than r: where w is
# not 0, |u| < r and the subtraction that forms u is exact to a rounding of u. tau is the root of the convex, decreasing
# f(tau) = sum max(u - tau, 0) - r; a Newton step from anywhere lands at or left of the root and then only rises,
# so what is at or below the current tau can be dropped for good.


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _excess_block(x: Array, top: float, tau: float, absolute: bool) -> tuple[float, float]:
    """Return the sum of max(u - tau, 0) and the number of positive terms over one block."""
    total = 0.0
    count = 0.0
    for i in range(x.size):
        d = ((abs(np.float64(x[i])) if absolute else np.float64(x[i])) - top) - tau
        positive = d > 0.0
        total += d if positive else 0.0
        count += 1.0 if positive else 0.0
    return total, count


@njit(cache=True, error_model="numpy")
def _excess(x: Array, size: int, top: float, tau: float, absolute: bool) -> tuple[float, float]:
    total = 0.0
    lost = 0.0
    count = 0.0
    for start in range(0, size, _BLOCK):
        part, number = _excess_block(x[start : min(start + _BLOCK, size)], top, tau, absolute)
        total, lost = _add(total, lost, part)
        count += number
    return total + lost, count


@njit(cache=True, error_model="numpy")
def _compact(x: Array, top: float, tau: float, absolute: bool, buffer: Array) -> int:
    """Copy what lies above the threshold to the front of the buffer; return how many."""
    kept = 0
    for i in range(x.size):
        value = abs(x[i]) if absolute else x[i]
        buffer[kept] = value
        kept += 1 if (np.float64(value) - top) > tau else 0
    return kept


@njit(cache=True, error_model="numpy")
def _newton(
    x: Array, size: int, top: float, tau: float, radius: float, absolute: bool, low: float
) -> tuple[float, float]:
    """Return (tau, correction) at the root of f over x[:size]; `low` is a lower bound of the root."""
    previous = -1.0
    while True:
        total, count = _excess(x, size, top, tau, absolute)
        if count == 0.0:
            return low, 0.0
        step = (total - radius) / count
        if count == previous or step == 0.0:
            # The set of positive terms has settled: `step` is what rounding left, small against tau.
            return tau, step
        if previous >= 0.0 and step < 0.0:
            return tau, step
        previous = count
        tau = max(tau + step, low)


@njit(cache=True, error_model="numpy")
def simplex_threshold(v: Array, radius: float, absolute: bool, buffer: Array) -> tuple[bool, float, float, float]:
    """Find the threshold of the projection onto the l1 ball (`absolute`) or the simplex.

    Parameters
    ----------
    v : ndarray, shape (n,)
        The point to project.
    radius : float
        Positive.
    absolute : bool
        True to threshold |v| (l1 ball), False to threshold v (simplex).
    buffer : ndarray, shape (n,)
        Scratch memory with the dtype of v that does not overlap v.

    Returns
    -------
    inside : bool
        Whether v is already in the ball (never for the simplex).
    top, tau, correction : float
        The projection is max((|v| - top) - tau - correction, 0) with the sign of v.
    """
    total, top = _sum_and_max(v, absolute)
    if absolute and total <= radius:
        return True, 0.0, 0.0, 0.0
    if not math.isfinite(top):
        return False, np.nan, np.nan, np.nan
    n = v.size
    low = -radius
    if math.isfinite(total):
        low = max(low, (total - n * top - radius) / n)
    high = -radius / n
    if low > high:
        low = high
    start = low
    if n >= _SAMPLE_FROM:
        # A strided sample brings the first full Newton step close to the root; whatever it says, that step
        # lands left of the root, so a bad sample costs time and nothing else.
        stride = n // _SAMPLE
        size = -(-n // stride)
        buffer[:size] = v[::stride]
        guess, correction = _newton(buffer, size, top, low, radius * size / n, absolute, low)
        start = min(max(guess + correction, low), high)
        total, count = _excess(v, n, top, start, absolute)
        if count > 0.0:
            low = max(low, min(start + (total - radius) / count, high))
        start = low
    kept = _compact(v, top, start, absolute, buffer)
    tau, correction = _newton(buffer, kept, top, start, radius, False, low)
    return False, top, tau, correction


@njit(cache=True, error_model="numpy")
def project(v: Array, radius: float, absolute: bool, buffer: Array, out: Array) -> None:
    """Write the projection onto the l1 ball (`absolute`) or the simplex; see :func:`simplex_threshold`."""
    inside, top, tau, correction = simplex_threshold(v, radius, absolute, buffer)
    if inside:
        for i in range(v.size):
            out[i] = v[i] + v.dtype.type(0.0)
        return
    for i in range(v.size):
        x = np.float64(v[i])
        d: float = (((abs(x) if absolute else x) - top) - tau) - correction
        d = 0.0 if d < 0.0 else d
        out[i] = (-d if absolute and x <= 0.0 else d) + 0.0


@njit(cache=True, error_model="numpy", fastmath={"reassoc"})
def _weighted_excess_block(p: Array, weights: Array, theta: float) -> tuple[float, float, float]:
    """Return sum weights d, sum weights^2 and the number of terms over d = p - theta weights > 0."""
    total = 0.0
    square = 0.0
    count = 0.0
    for i in range(p.size):
        a = weights[i]
        d = p[i] - theta * a
        positive = d > 0.0
        total += a * d if positive else 0.0
        square += a * a if positive else 0.0
        count += 1.0 if positive else 0.0
    return total, square, count


@njit(cache=True, error_model="numpy")
def _weighted_excess(p: Array, weights: Array, theta: float) -> tuple[float, float, float]:
    total = 0.0
    lost = 0.0
    square = 0.0
    count = 0.0
    for start in range(0, p.size, _BLOCK):
        stop = start + _BLOCK
        part, part_square, number = _weighted_excess_block(p[start:stop], weights[start:stop], theta)
        total, lost = _add(total, lost, part)
        square += part_square
        count += number
    return total + lost, square, count


@njit(cache=True, error_model="numpy")
def _weighted_root(p: Array, weights: Array, radius: float) -> float:
    """Return theta with sum weights max(p - theta weights, 0) = radius, by Newton from the left."""
    theta = -np.inf
    for i in range(p.size):
        a = weights[i]
        # At this theta the i-th term alone is the radius, so the root is not to the left of it.
        bound = (p[i] - radius / a) / a
        theta = bound if a > 0.0 and bound > theta else theta
    previous = -1.0
    while True:
        total, square, count = _weighted_excess(p, weights, theta)
        if square == 0.0:
            return theta
        step = (total - radius) / square
        if count == previous:
            # The set of positive terms has settled: `step` is what rounding left.
            return theta + step
        if not step > 0.0:
            # Rounding has led past the root. The heavy terms whose kink is there may be gone, and a step back by the
            # light ones alone would be far too long.
            return theta
        previous = count
        theta += step


@njit(cache=True, error_model="numpy")
def weighted_ball_project(v: Array, weights: Array, radius: float, out: Array) -> None:
    """Write the projection of v onto {sum weights_i |w_i| <= radius}; coordinates of weight 0 are free."""
    n = v.size
    top = 0.0
    heaviest = 0.0
    for i in range(n):
        x = abs(np.float64(v[i]))
        if not math.isfinite(x):
            out[:] = np.nan
            return
        if weights[i] > 0.0:
            top = max(top, x)
            heaviest = max(heaviest, weights[i])
    # Units in which the largest |v| and the largest weight are about 1, by exact powers of two.
    unit_exponent = min(max(math.frexp(top)[1], -1021), 1021)
    heavy_exponent = min(max(math.frexp(heaviest)[1], -1021), 1021)
    unit = math.ldexp(1.0, unit_exponent)
    heavy = math.ldexp(1.0, heavy_exponent)
    # In one step: a quotient by one of them may underflow where that by both does not.
    limit = math.ldexp(radius, -(unit_exponent + heavy_exponent))
    p = np.abs(v) / unit
    a = weights / heavy
    if absolute_sum(p, a) <= limit:
        for i in range(n):
            out[i] = v[i] + v.dtype.type(0.0)
        return
    # Twice: the second root is that of the rounded differences, and makes the result feasible to a rounding of the
    # radius also where v is many orders larger.
    for _ in range(2):
        p -= _weighted_root(p, a, limit) * a
    for i in range(n):
        d = p[i] if p[i] > 0.0 else 0.0
        d *= unit
        out[i] = (d if v[i] > 0.0 else -d) + 0.0


# -- groups ------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def group_norms(v: Array, groups: Array, number: int) -> Array:
    """Return the Euclidean norms of `number` groups; groups[i] is the group of coordinate i."""
    norms = np.zeros(number)
    for i in range(v.size):
        x = np.float64(v[i])
        norms[groups[i]] += x * x
    # Groups whose squares left the range of floats (or are 0) are summed again in units of their largest element;
    # a unit of 0 marks the others.
    unit = np.zeros(number)
    odd = False
    for g in range(number):
        if norms[g] < 1e-280 or norms[g] > 1e300:
            odd = True
    if odd:
        for i in range(v.size):
            g = groups[i]
            if norms[g] < 1e-280 or norms[g] > 1e300:
                unit[g] = max(unit[g], abs(np.float64(v[i])))
        for g in range(number):
            if unit[g] > 0.0:
                norms[g] = 0.0
        for i in range(v.size):
            g = groups[i]
            if unit[g] > 0.0:
                x = np.float64(v[i]) / unit[g]
                norms[g] += x * x
    for g in range(number):
        norms[g] = math.sqrt(norms[g]) * (unit[g] if unit[g] > 0.0 else 1.0)
    return norms


@njit(cache=True, error_model="numpy")
def group_shrink(v: Array, groups: Array, norms: Array, threshold: float, weights: Array, out: Array) -> None:
    """Write v_i max(1 - threshold * weights_g / norms_g, 0), g the group of i."""
    factors = np.empty(norms.size)
    for g in range(norms.size):
        limit = threshold * weights[g]
        factors[g] = 0.0 if norms[g] <= limit else 1.0 - limit / norms[g]
    for i in range(v.size):
        out[i] = np.float64(v[i]) * factors[groups[i]] + 0.0
