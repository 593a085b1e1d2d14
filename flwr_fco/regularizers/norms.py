"""Norms that are not separable: l2 and l-infinity of a whole array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from flwr_fco.kernels import prox as kernels
from flwr_fco.regularizers.balls import scratch
from flwr_fco.regularizers.base import Array
from flwr_fco.regularizers.flat import FlatRegularizer
from flwr_fco.regularizers.validation import NON_NEGATIVE, amount


@dataclass(frozen=True)
class L2(FlatRegularizer):
    """The l2 norm, not squared: psi(w) = strength * ||w||_2. It sets either the whole array or no coordinate to 0.

    The proximal map shrinks the array as a block::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = v * max(1 - step * strength / ||v||_2, 0)

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> L2(1.0).prox(np.array([3.0, -4.0]), 2.5)
    array([ 1.5, -2. ])
    """

    kind: ClassVar[str] = "l2"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * ||w||_2."""
        unit, root = kernels.scaled_norm(w.reshape(-1))
        return self.strength * unit * root

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        unit, root = kernels.scaled_norm(v)
        threshold = amount(step, self.strength) / unit
        if root <= threshold:
            out.fill(0.0)
        else:
            kernels.scale_twice(v, 1.0, 1.0 - threshold / root, out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * w / ||w||_2, 0 at 0."""
        unit, root = kernels.scaled_norm(w.reshape(-1))
        if root == 0.0:
            return np.zeros_like(w)
        result: Array = ((w / unit) * (self.strength / root)).astype(w.dtype)
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the l2 norm of the gradient, the smallest strength for which 0 is optimal."""
        unit, root = kernels.scaled_norm(np.asarray(gradient_at_zero, dtype=np.float64).reshape(-1))
        return unit * root


@dataclass(frozen=True)
class LInfinity(FlatRegularizer):
    """The l-infinity norm: psi(w) = strength * max_i |w_i|. It makes the largest coordinates equal.

    The proximal map clips at a level theta (Moreau: v minus its projection onto an l1 ball)::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = clip(v, -theta, theta)

    where sum_i max(|v_i| - theta, 0) = step * strength; the result is 0 if ||v||_1 <= step * strength.

    Parameters
    ----------
    strength : float
        Finite, >= 0.

    Raises
    ------
    ConfigurationError
        If the strength is not a finite number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> LInfinity(1.0).prox(np.array([3.0, -2.5, 1.0]), 1.5)
    array([ 2., -2.,  1.])
    """

    kind: ClassVar[str] = "l-infinity"
    strength: float = field(metadata=NON_NEGATIVE)

    def value(self, w: Array) -> float:
        """Return strength * max_i |w_i|."""
        return self.strength * float(np.abs(w).max(initial=0.0))

    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write v, clipped at the level that an l1 projection gives, to `out`."""
        threshold = amount(step, self.strength)
        if threshold == 0.0:
            np.add(v, v.dtype.type(0.0), out=out)
            return
        inside, top, tau, correction = kernels.simplex_threshold(v, threshold, True, scratch(v, out))
        if inside:
            out.fill(0.0)
        else:
            kernels.level_clip(v, top, tau, correction, out)

    def subgradient(self, w: Array) -> Array:
        """Return strength * sign(w_i) at the first coordinate with the largest |w_i|, 0 elsewhere."""
        result = np.zeros_like(w)
        if w.size:
            place = int(np.argmax(np.abs(w)))
            result.flat[place] = self.strength * np.sign(w.flat[place])
        return result

    def strength_max(self, gradient_at_zero: Array) -> float:
        """Return the l1 norm of the gradient, the smallest strength for which 0 is optimal."""
        return float(np.abs(np.asarray(gradient_at_zero, dtype=np.float64)).sum())
