"""Kernels of the mirror maps: duals to primal points; `out` may be the dual itself."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit
from flwr_fco.kernels.prox import clamp

Vector = NDArray[np.float64]

#: The smallest weight that an entropy map returns: log w exists at every point it gives.
TINY = 2.2250738585072014e-308
#: A bracket of doubles, from the widest to neighbours, has been halved before this many steps.
_MAX_STEPS = 2200
#: Elements handled at a time where powers are taken by repeated squaring: three buffers fit the first-level cache.
_CHUNK = 256
_EPSILON = 2.220446049250313e-16

# Sums may be reordered (that is what lets them use vector instructions); NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz"}


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
def _moved(
    z: Vector, thresholds: Vector, center: Vector, scale: float, c: float, p: float, u: Vector
) -> tuple[float, float]:
    """Write argmin { -<z, u> + sum thresholds |scale center + u| + scale c (p-1)/q ||u/scale||_q^q } / scale.

    Return log ||u||_q and -d log ||u||_q / d log c / (p-1), between 0 (every coordinate at a kink) and 1.
    """
    q = p / (p - 1.0)
    largest = 0.0
    for i in range(z.size):
        threshold, v = thresholds[i * (thresholds.size > 1)], center[i]
        force = (z[i] - threshold) / scale
        u[i] = math.copysign((abs(force) / (c * (p - 1.0))) ** (p - 1.0), force)
        if v + u[i] <= 0.0:
            force = (z[i] + threshold) / scale
            u[i] = math.copysign((abs(force) / (c * (p - 1.0))) ** (p - 1.0), force)
            if v + u[i] >= 0.0:
                u[i] = -v
        largest = max(largest, abs(u[i]))
    if largest == 0.0:
        return -math.inf, 0.0
    if largest == math.inf:
        # The force is far too little resisted; any number above all others says so.
        return 709.0, 1.0
    total = moving = 0.0
    for i in range(z.size):
        term = (abs(u[i]) / largest) ** q
        total += term
        moving += term * (u[i] != -center[i])
    return math.log(largest) + math.log(total) / q, moving / total


@njit(cache=True)
def p_norm_l1(z: Vector, thresholds: Vector, center: Vector, p: float, radius: float, out: Vector) -> None:
    """Write argmin { -<z, w> + sum thresholds |w| + ||w - center||_q^2 / (2 (q-1)) : ||w - center||_q <= radius }.

    For a given norm n of u = w - center the problem separates into coordinates, with the factor c = n^(2-q) in front of
    |u_i|^(q-1). One number x orders the candidates: n = exp(x) up to the border of the ball, and on it the multiplier
    that c grows by. log ||u(c)||_q - log n decreases in x, with a slope between -(p-1) and -1 inside the ball.
    """
    scale, u = 0.0, np.empty(z.size)
    for i in range(z.size):
        if math.isnan(z[i]):
            out[:] = math.nan
            return
        # Around 0 only what exceeds the threshold moves w.
        lost = thresholds[i * (thresholds.size > 1)] if center[i] == 0.0 else 0.0
        u[i] = max(abs(z[i]) - lost, 0.0)
        scale = max(scale, u[i], abs(center[i]))
    if scale == 0.0:
        out[:] = center
        return
    q, border, around = p / (p - 1.0), math.log(radius / scale), center / scale
    x = min(math.log(max(p_norm(u, p) / scale / (p - 1.0), TINY)), border)
    left, right, stride = -math.inf, math.inf, 1.0
    for _ in range(_MAX_STEPS):
        norm, beyond = min(x, border), max(x - border, 0.0)
        found, slope = _moved(z, thresholds, around, scale, math.exp((2.0 - q) * norm + beyond), p, u)
        gap = found - norm
        if abs(gap) <= 2.0 * _EPSILON * max(1.0, abs(x)) or (gap == -math.inf and beyond == 0.0):
            break
        if gap > 0.0:
            left = x
            right = min(right, x + gap) if x + gap <= border else right
        else:
            left, right = max(left, x + gap) if beyond == 0.0 else left, x
        steep = (p - 1.0) * slope if beyond > 0.0 or (gap > 0.0 and x == border) else 1.0 + (p - 2.0) * slope
        trial = x + gap / steep if steep > 0.0 else math.inf
        if right == math.inf:
            trial = min(trial, x + stride)
            stride *= 2.0
        elif not left < trial < right:
            trial = 0.5 * (left + right)
        if trial in (left, right):
            break
        x = trial
    for i in range(z.size):
        out[i] = center[i] if u[i] == 0.0 else scale * (around[i] + u[i])


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
def diagonal_terms(
    z: Vector, weights: Vector, out: Vector, threshold: Vector, shrinkage: Vector, lower: Vector, upper: Vector
) -> None:
    """Write clip(soft(z, threshold) / (weights + shrinkage), lower, upper); each has one element or as many as z."""
    for i in range(z.size):
        a, b = threshold[i * (threshold.size > 1)], shrinkage[i * (shrinkage.size > 1)]
        low, high = lower[i * (lower.size > 1)], upper[i * (upper.size > 1)]
        weight = weights[i * (weights.size > 1)]
        out[i] = clamp((z[i] - clamp(z[i], -a, a)) / (weight + b), low, high) + 0.0
