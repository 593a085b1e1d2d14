"""Kernels of the mirror maps: duals to primal points, coordinate by coordinate or by one root find.

Every psi is given as `terms`, a tuple of the arrays of its separable terms, already multiplied by t:

    psi(w) = sum_i threshold_i |w_i| + shrinkage_i / 2 w_i^2 + indicator(lower_i <= w_i <= upper_i)

Each array has one element or as many as the vector. `out` may be the dual itself. Kernels whose domain may be empty
return False if it is, and True otherwise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit
from flwr_fco.kernels.prox import clamp

Vector = NDArray[np.float64]
Terms = tuple[Vector, ...]

#: The smallest weight that an entropy map returns: log w exists at every point it gives.
TINY = 2.2250738585072014e-308
#: A bracket of doubles, from the widest to neighbours, has been halved before this many steps.
_MAX_STEPS = 2200
#: Elements handled at a time where powers are taken by repeated squaring: three buffers fit the first-level cache.
_CHUNK = 256
_EPSILON = 2.220446049250313e-16

# Sums may be reordered (that is what lets them use vector instructions); NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz"}


@njit(cache=True, inline="always")
def _at(terms: Terms, i: int) -> tuple[float, float, float, float]:
    """Return threshold, shrinkage, lower and upper bound of a coordinate."""
    a, b, low, high = terms
    return a[i * (a.size > 1)], b[i * (b.size > 1)], low[i * (low.size > 1)], high[i * (high.size > 1)]


@njit(cache=True)
def _largest(z: Vector) -> float:
    """Return max |z_i|, NaN ignored. Four running maxima: a single one waits for itself."""
    m0 = m1 = m2 = m3 = 0.0
    whole = z.size - z.size % 4
    for i in range(0, whole, 4):
        a0, a1, a2, a3 = abs(z[i]), abs(z[i + 1]), abs(z[i + 2]), abs(z[i + 3])
        if a0 > m0:
            m0 = a0
        if a1 > m1:
            m1 = a1
        if a2 > m2:
            m2 = a2
        if a3 > m3:
            m3 = a3
    for i in range(whole, z.size):
        if abs(z[i]) > m0:
            m0 = abs(z[i])
    return max(max(m0, m1), max(m2, m3))


@njit(cache=True, fastmath=_REORDER)
def _scaled_powers(z: Vector, scale: float, p: float, out: Vector) -> float:
    """Write sign(x) |x|^(p-1) for x = z/scale and return sum |x|^p."""
    total = 0.0
    exponent = int(p) - 2
    whole = p == exponent + 2 and exponent <= 64
    x = np.empty(_CHUNK)
    base = np.empty(_CHUNK)
    power = np.empty(_CHUNK)
    for start in range(0, z.size, _CHUNK):
        size = min(_CHUNK, z.size - start)
        for j in range(size):
            x[j] = z[start + j] / scale
            base[j] = abs(x[j])
            power[j] = x[j]
        if whole:
            left = exponent
            while left > 0:
                if left & 1:
                    for j in range(size):
                        power[j] *= base[j]
                left >>= 1
                if left > 0:
                    for j in range(size):
                        base[j] *= base[j]
        else:
            for j in range(size):
                power[j] = x[j] * base[j] ** (p - 2.0)
        # Summed from the buffers: the order, and so the bits, cannot depend on whether `out` is `z`.
        for j in range(size):
            total += power[j] * x[j]
        for j in range(size):
            out[start + j] = power[j]
    return total


@njit(cache=True)
def p_norm(z: Vector, p: float) -> float:
    """Return ||z||_p, computed from powers of z/max|z| so that nothing overflows."""
    scale = _largest(z)
    if scale == 0.0 or math.isinf(scale):
        return scale
    total = 0.0
    for i in range(z.size):
        total += (abs(z[i]) / scale) ** p
    return float(scale * total ** (1.0 / p))


@njit(cache=True)
def p_norm_point(z: Vector, p: float, radius: float, out: Vector) -> None:
    """Write P(z) = argmin { -<z, u> + ||u||_q^2 / (2 (q-1)) : ||u||_q <= radius }.

    With x = z/max|z| and N = ||x||_p the point is min(max|z| N/(p-1), radius) (x/N)^(p-1).
    """
    scale = _largest(z)
    if scale == 0.0:
        # A NaN is not larger than 0: it is passed on, not lost.
        out[:] = z
        return
    total = _scaled_powers(z, scale, p, out)
    length = scale / (p - 1.0) * total ** (1.0 / p)
    factor = min(length, radius) * total ** ((1.0 - p) / p)
    for i in range(z.size):
        # Adding 0 turns -0 into 0.
        out[i] = out[i] * factor + 0.0


@njit(cache=True)
def p_norm_gradient(u: Vector, p: float, out: Vector) -> None:
    """Write the gradient of ||u||_q^2 / (2 (q-1)): (p-1) M^(2-q) max|u| y^(q-1), y = u/max|u|, M = ||y||_q."""
    scale = _largest(u)
    if scale == 0.0:
        out[:] = u
        return
    q = p / (p - 1.0)
    power = 1.0 / (p - 1.0)
    total = 0.0
    for i in range(u.size):
        y = u[i] / scale
        root = math.copysign(abs(y) ** power, y)
        total += root * y
        out[i] = root
    factor = total ** ((2.0 - q) / q) * (p - 1.0)
    for i in range(u.size):
        out[i] = out[i] * factor * scale + 0.0


@njit(cache=True)
def _displacement(s: float, b: float, c: float, p: float) -> tuple[float, float]:
    """Solve c (p-1) y + b y^(p-1) = |s| for u = sign(s) y^(p-1); also return -d log|u| / d log c / (p-1)."""
    force = abs(s)
    if force == 0.0:
        return 0.0, 0.0
    first = c * (p - 1.0)
    y = force / first
    share = 1.0
    if b > 0.0:
        # Both are above the root and one is below twice of it; from there Newton on a convex function descends.
        y = min(y, (force / b) ** (1.0 / (p - 1.0)))
        for _ in range(100):
            power = b * y ** (p - 2.0)
            slope = first + (p - 1.0) * power
            change = (first * y + power * y - force) / slope
            y -= change
            if change <= _EPSILON * y:
                break
        share = first / (first + (p - 1.0) * b * y ** (p - 2.0))
    return math.copysign(y ** (p - 1.0), s), share


@njit(cache=True)
def _p_norm_trial(terms: Vector, curved: Vector, c: float, p: float, u: Vector, share: Vector) -> tuple[float, float]:
    """Minimise each coordinate of -<z, u> + psi(v + u) + c (p-1)/q ||u||_q^q; return log ||u||_q and its slope.

    The slope is -d log ||u||_q / d log c / (p-1), between 0 (every coordinate on a border or a kink) and 1.
    """
    z, a, lower, upper, v = terms[0], terms[1], terms[2], terms[3], terms[4]
    for i in range(z.size):
        b = curved[i * (curved.size > 1)]
        pull = z[i] - b * v[i]
        move, free = _displacement(pull - a[i], b, c, p)
        if v[i] + move <= 0.0 and a[i] >= 0.0:
            move, free = _displacement(pull + a[i], b, c, p)
            if v[i] + move >= 0.0:
                move, free = -v[i], 0.0
        if v[i] + move <= lower[i]:
            move, free = lower[i] - v[i], 0.0
        elif v[i] + move >= upper[i]:
            move, free = upper[i] - v[i], 0.0
        u[i] = move
        share[i] = free
    largest = _largest(u)
    if largest == 0.0:
        return -math.inf, 0.0
    if largest == math.inf:
        # The force is far too little resisted; any number above all others says so.
        return 709.0, 1.0
    q = p / (p - 1.0)
    total = 0.0
    moving = 0.0
    for i in range(z.size):
        term = (abs(u[i]) / largest) ** q
        total += term
        moving += term * share[i]
    return math.log(largest) + math.log(total) / q, moving / total


@njit(cache=True)
def _p_norm_scale(z: Vector, terms: Terms, center: Vector, scaled: Vector) -> float:
    """Write pulls, terms and center in units of the largest quantity that can move w, and return it; -1 for a NaN in z.

    Shrinkages have no unit, and are not written.
    """
    scale = 0.0
    for i in range(z.size):
        if math.isnan(z[i]):
            return -1.0
        pull, v = z[i], center[i]
        a, _, low, high = _at(terms, i)
        if v == 0.0:
            # Around 0 the threshold acts on the dual itself, without loss when it is the larger one by far.
            pull = math.copysign(max(abs(pull) - a, 0.0), pull)
            a = 0.0
        scale = max(scale, abs(pull), abs(v), abs(min(max(v, low), high) - v))
        scaled[0, i], scaled[1, i], scaled[2, i], scaled[3, i], scaled[4, i] = pull, a, low, high, v
    if scale > 0.0:
        scaled /= scale
        scaled[1] = np.minimum(scaled[1], 1e300)
    return scale


@njit(cache=True)
def _p_norm_inside(terms: Vector, shrinkage: Vector, x: float, p: float, u: Vector, share: Vector) -> None:
    """Write the minimiser of :func:`p_norm_terms` inside the ball: a root find in x = log ||u||_q."""
    q = p / (p - 1.0)
    left, right = -math.inf, math.inf
    for _ in range(_MAX_STEPS):
        log_norm, slope = _p_norm_trial(terms, shrinkage, math.exp((2.0 - q) * x), p, u, share)
        gap = log_norm - x
        if gap == -math.inf:
            break
        if gap > 0.0:
            left, right = max(left, x), min(right, x + gap)
        else:
            left, right = max(left, x + gap), min(right, x)
        trial = x + gap / (1.0 + (p - 2.0) * slope)
        if not left < trial < right:
            trial = 0.5 * (left + right)
        if abs(gap) <= 2.0 * _EPSILON * max(1.0, abs(x)) or trial in (left, right):
            break
        x = trial


@njit(cache=True)
def _p_norm_at_border(terms: Vector, shrinkage: Vector, goal: float, p: float, u: Vector, share: Vector) -> bool:
    """Write the minimiser of :func:`p_norm_terms` with log ||u||_q = goal; return whether there is one."""
    q = p / (p - 1.0)
    left, right = (2.0 - q) * goal, math.inf
    # Where no border or kink is in the way, this multiplier is the answer.
    y = max(left, math.log(max(p_norm(terms[0], p) / (p - 1.0), TINY)) - goal / (p - 1.0))
    stride = 1.0
    for _ in range(_MAX_STEPS):
        log_norm, slope = _p_norm_trial(terms, shrinkage, math.exp(y), p, u, share)
        gap = log_norm - goal
        if abs(gap) <= 4.0 * _EPSILON * max(1.0, abs(goal)):
            break
        if gap > 0.0:
            left = y
            if slope == 0.0 and right == math.inf and y > 600.0:
                # Every coordinate stands on its border and is still too far away.
                return gap <= 1e-12
        else:
            right = y
        trial = y + gap / ((p - 1.0) * slope) if slope > 0.0 else math.inf
        if right == math.inf:
            trial = min(max(trial, y), y + stride)
            stride *= 2.0
        elif not left < trial < right:
            trial = 0.5 * (left + right)
        if trial in (left, right):
            break
        y = min(trial, 690.0)
    return True


@njit(cache=True)
def p_norm_terms(z: Vector, center: Vector, p: float, radius: float, out: Vector, *terms: Vector) -> bool:
    """Write argmin { -<z, w> + psi(w) + ||w - center||_q^2 / (2 (q-1)) : ||w - center||_q <= radius }.

    For a given norm n of u = w - center the problem separates into coordinates, with the factor n^(2-q) in front of
    |u_i|^(q-1), and log ||u(n)||_q - log n decreases with a slope between -(p-1) and -1, which gives a bracket for a
    root find in log n. If the root lies outside the ball, a second root find determines the multiplier that puts u on
    its boundary.
    """
    d = z.size
    scaled, u, share = np.empty((5, d)), np.empty(d), np.empty(d)
    scale = _p_norm_scale(z, terms, center, scaled)
    if scale <= 0.0:
        out[:] = 0.0 if scale == 0.0 else math.nan
        return True
    shrinkage, bound = terms[1], radius / scale
    q = p / (p - 1.0)
    feasible = True

    x = math.log(max(p_norm(scaled[0], p) / (p - 1.0), TINY))
    limited = False
    if bound < math.inf:
        at_border, _ = _p_norm_trial(scaled, shrinkage, bound ** (2.0 - q), p, u, share)
        limited = at_border > math.log(bound)
        x = min(x, math.log(bound))
    if limited:
        feasible = _p_norm_at_border(scaled, shrinkage, math.log(bound), p, u, share)
    else:
        _p_norm_inside(scaled, shrinkage, x, p, u, share)
    for i in range(d):
        w = scaled[4, i] + u[i]
        _, _, low, high = _at(terms, i)
        if u[i] == 0.0:
            out[i] = center[i]
        elif share[i] == 0.0 and w != 0.0 and w <= scaled[2, i]:
            out[i] = low
        elif share[i] == 0.0 and w != 0.0 and w >= scaled[3, i]:
            out[i] = high
        else:
            out[i] = scale * w
    return feasible


@njit(cache=True)
def softmax(z: Vector, radius: float, out: Vector) -> None:
    """Write radius exp(z) / sum exp(z), never below TINY."""
    top = -math.inf
    for i in range(z.size):
        if z[i] > top or math.isnan(z[i]):
            top = z[i]
    total = 0.0
    for i in range(z.size):
        out[i] = math.exp(z[i] - top)
        total += out[i]
    factor = radius / total
    for i in range(z.size):
        weight = out[i] * factor
        out[i] = TINY if weight < TINY else weight


@njit(cache=True)
def _log_weight(s: float, b: float) -> float:
    """Solve y + b exp(y) = s (Wright's omega for b = 1): the log of argmin { -s w + b/2 w^2 + w log w - w }."""
    if b == 0.0 or s == -math.inf:
        return s
    log_b = math.log(b)
    k = s + log_b
    y = math.log(k - math.log(k)) - log_b if k > 1.0 else s
    for _ in range(60):
        curved = math.exp(y + log_b)
        change = (y + curved - s) / (1.0 + curved)
        y -= change
        if abs(change) <= _EPSILON * max(1.0, abs(y)):
            break
    return y


@njit(cache=True)
def orthant_terms(z: Vector, out: Vector, *terms: Vector) -> bool:
    """Write argmin_{w >= 0} { -<z, w> + psi(w) + sum w log w - w }, coordinate by coordinate."""
    for i in range(z.size):
        a, b, low, high = _at(terms, i)
        if high < 0.0:
            return False
        out[i] = clamp(math.exp(_log_weight(z[i] - a, b)), max(low, TINY), high)
    return True


@njit(cache=True)
def _simplex_trial(s: Vector, b: Vector, low: Vector, high: Vector, tau: float, w: Vector) -> tuple[float, float]:
    """Write w(tau) and return its sum and minus the derivative of that."""
    total = 0.0
    moving = 0.0
    for i in range(s.size):
        weight = math.exp(min(_log_weight(s[i] - tau, b[i]), 600.0))
        if weight <= low[i]:
            weight = low[i]
        elif weight >= high[i]:
            weight = high[i]
        else:
            moving += weight / (1.0 + b[i] * weight)
        w[i] = weight
        total += weight
    return total, moving


@njit(cache=True)
def _simplex_root(s: Vector, b: Vector, low: Vector, high: Vector, tau: float, w: Vector) -> None:
    """Write the weights for the multiplier at which they sum to 1, up to rounding."""
    left, right = -math.inf, math.inf
    stride = 1.0
    for _ in range(_MAX_STEPS):
        total, moving = _simplex_trial(s, b, low, high, tau, w)
        gap = math.log(total) if total > 0.0 else -math.inf
        if abs(gap) <= 2.0 * _EPSILON:
            break
        if gap > 0.0:
            left = tau
        else:
            right = tau
        trial = tau + gap * total / moving if moving > 0.0 else math.copysign(math.inf, gap)
        if left == -math.inf or right == math.inf:
            trial = min(max(trial, tau - stride), tau + stride)
            stride *= 2.0
        elif not left < trial < right:
            trial = 0.5 * (left + right)
        if trial in (left, right):
            break
        tau = trial


@njit(cache=True)
def _share_out(s: Vector, low: Vector, high: Vector, radius: float, curved: bool, w: Vector, out: Vector) -> None:
    """Write the weights times the radius, after the free ones have shared out the mass that the borders leave.

    The sum is exactly feasible, whatever the multiplier has lost to rounding when the duals are huge.
    """
    free = (low < w) & (w < high)
    fixed = free_total = 0.0
    free_top = -math.inf
    for i in range(w.size):
        if free[i]:
            free_top = max(free_top, s[i])
        else:
            fixed += w[i]
    for i in range(w.size):
        if free[i]:
            if not curved:
                w[i] = math.exp(s[i] - free_top)
            free_total += w[i]
    for i in range(w.size):
        weight = min(max(w[i] * ((1.0 - fixed) / free_total), low[i]), high[i]) if free[i] else w[i]
        weight *= radius
        out[i] = TINY if weight < TINY and high[i] * radius >= TINY else weight


@njit(cache=True)
def simplex_terms(z: Vector, radius: float, out: Vector, *terms: Vector) -> bool:
    """Write argmin { -<z, w> + psi(w) + sum w log w - w : w >= 0, sum w = radius }.

    One multiplier tau is subtracted from the dual; log sum w(tau) decreases with a slope between -1 and 0.
    """
    d = z.size
    s, b, low, high = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    top = -math.inf
    for i in range(d):
        threshold, shrinkage, lower, upper = _at(terms, i)
        s[i] = z[i] - threshold
        if math.isnan(s[i]):
            out[:] = math.nan
            return True
        # Weights are counted in units of the radius: w = radius x turns b into b * radius and s into s - log radius.
        b[i], low[i], high[i] = shrinkage * radius, max(lower, 0.0) / radius, upper / radius
        if high[i] < 0.0:
            return False
        if high[i] > 0.0 and s[i] > top:
            top = s[i]
    least, most = low.sum(), high.sum()
    if least > 1.0 + 1e-12 or most < 1.0 - 1e-12:
        return False
    if most <= 1.0 + 1e-15 or least >= 1.0 - 1e-15:
        out[:] = (high if most <= 1.0 + 1e-15 else low) * radius
        return True
    s -= top
    w = np.empty(d)
    _simplex_root(s, b, low, high, math.log(np.exp(np.minimum(s, 0.0)).sum()), w)
    _share_out(s, low, high, radius, b.max() > 0.0, w, out)
    return True


@njit(cache=True)
def diagonal_terms(z: Vector, weights: Vector, out: Vector, *terms: Vector) -> None:
    """Write clip(soft(z, threshold) / (weights + shrinkage), lower, upper); the weights are one or as many as z's."""
    for i in range(z.size):
        a, b, low, high = _at(terms, i)
        weight = weights[i * (weights.size > 1)]
        out[i] = clamp((z[i] - clamp(z[i], -a, a)) / (weight + b), low, high) + 0.0
