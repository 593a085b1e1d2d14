"""The point of a dual in the geometry of a p-norm; `out` may be the dual itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fco.kernels import njit

Vector = NDArray[np.float64]

#: Elements handled at a time where powers are taken by repeated squaring: three buffers fit the first-level cache.
_CHUNK = 256

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
