"""The point of a dual in the geometry of a p-norm; `out` may be the dual itself."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit
from flwr_fco.kernels.passes import copy

Vector = NDArray[np.float64]

#: Elements handled at a time: buffers that fit the first-level cache, and maxima side by side.
_CHUNK, _LANES = 256, 64


@njit(cache=True)
def _largest(z: Vector) -> float:
    """Return max |z_i|, NaN ignored: side by side, because a single running maximum waits for itself."""
    tops = np.zeros(_LANES)
    for start in range(0, z.size, _LANES):
        part = z[start : start + _LANES]
        for j in range(part.size):
            tops[j] = abs(part[j]) if abs(part[j]) > tops[j] else tops[j]
    return float(tops.max())


# Sums may be reordered (that is what lets them use vector instructions); NaN and infinity keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def _scaled_powers(z: Vector, scale: float, p: float, out: Vector) -> float:
    """Write sign(x) |x|^(p-1) for x = z/scale and return sum |x|^p."""
    total, exponent = 0.0, int(p) - 2
    whole = p == exponent + 2 and exponent <= 64
    x, base, power = np.empty(_CHUNK), np.empty(_CHUNK), np.empty(_CHUNK)
    for start in range(0, z.size, _CHUNK):
        size, left = min(_CHUNK, z.size - start), exponent
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
def p_norm_point(z: Vector, p: float, radius: float, out: Vector) -> None:
    """Write P(z) = argmin { -<z, u> + ||u||_q^2 / (2 (q-1)) : ||u||_q <= radius }.

    With x = z/max|z| and N = ||x||_p the point is min(max|z| N/(p-1), radius) (x/N)^(p-1).
    """
    scale = _largest(z)
    if scale == 0.0:
        # A NaN is not larger than 0: it is passed on, not lost.
        copy(z, out)
        return
    total = _scaled_powers(z, scale, p, out)
    length = scale / (p - 1.0) * total ** (1.0 / p)
    factor = min(length, radius) * total ** ((1.0 - p) / p)
    for i in range(z.size):
        # Adding 0 turns -0 into 0.
        out[i] = out[i] * factor + 0.0
