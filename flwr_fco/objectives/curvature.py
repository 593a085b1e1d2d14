"""The curvature of a loss at a point, where no constant is known."""

from __future__ import annotations

import numpy as np

from flwr_fco.core.clock import timed
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Objective

#: Iterations of the power method that estimates an unknown constant.
PROBES = 12
#: Length of the finite differences that replace products with the Hessian, relative to 1 + ||w||.
_PROBE_LENGTH = 1e-4


def probed_curvature(objective: Objective, w: Vector) -> float:
    """Return the largest ||g(w + s v) - g(w)|| / s found by a power iteration from a fixed direction."""
    length = _PROBE_LENGTH * (1.0 + float(np.linalg.norm(w)))
    direction = np.random.default_rng(0).standard_normal(w.size)
    largest, start = 0.0, np.array(objective.gradient(w))
    for _ in timed(range(PROBES)):
        direction /= float(np.linalg.norm(direction))
        direction = (objective.gradient(w + length * direction) - start) / length
        size = float(np.linalg.norm(direction))
        largest = max(largest, size)
        if size == 0.0:
            break
    return largest
