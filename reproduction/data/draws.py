"""Minibatch gradients of streaming regressions, drawn from their distribution without generating examples.

See :class:`reproduction.data.graph.StreamingObjective` for the mathematics. A gradient takes one pass that computes
inner products and one that writes, so drawing the normal numbers dominates the cost of a step.
"""

import math

from numba import njit


@njit(cache=True)
def _check(outside, w, model, out):  # type: ignore[no-untyped-def]
    """Refuse what would read or write outside the arrays: compiled code does not notice by itself."""
    d = model.shape[0]
    if w.shape[0] != d or outside.shape[0] != d or out.shape[0] != d:
        raise ValueError("the vectors w and out must have the length of the client's model")


@njit(cache=True, fastmath={"reassoc", "contract"})
def add_drawn_linear_gradient(along, extra, outside, w, model, noise, scale, out):  # type: ignore[no-untyped-def]
    """Add scale times the mean gradient of rows x = (1, N(0, I)), y = <x, model> + N(0, noise^2) to `out`.

    `along` has the rows' products with the unit vector of w - model, `extra` the rows' noise, and `outside` the normal
    numbers for all other directions.
    """
    _check(outside, w, model, out)
    d, count = w.shape[0], along.shape[0]
    square = product = 0.0
    for j in range(1, d):
        difference = w[j] - model[j]
        square += difference * difference
        product += outside[j] * difference
    size = math.sqrt(square)
    # The first coordinate is always 1, so nothing about it is random.
    total = energy = inside = 0.0
    for i in range(count):
        slope = w[0] - model[0] + size * along[i] - noise * extra[i]
        total += slope
        energy += slope * slope
        inside += slope * along[i]
    factor = scale / count
    spread = math.sqrt(energy)
    # 1/0 is only reached where w and model agree, and then the plane has no direction.
    tilt = factor * (inside - spread * product / size) / size if size > 0.0 else 0.0
    spread *= factor
    for j in range(1, d):
        out[j] += spread * outside[j] + tilt * (w[j] - model[j])
    out[0] += factor * total


@njit(cache=True, fastmath={"reassoc", "contract"})
def add_drawn_logistic_gradient(inside, extra, outside, w, first, own_size, scale, out):  # type: ignore[no-untyped-def]
    """Add scale times the mean gradient of rows x = N(0, I), P(y = 1) = sigmoid(own_size <x, first>) to `out`.

    `inside` has the rows' products with two unit vectors: `first`, and the direction of w's remainder orthogonal to it.
    `extra` has uniform numbers that determine the labels, and `outside` the normal numbers for all other directions.
    """
    _check(outside, w, first, out)
    d, count = w.shape[0], extra.shape[0]
    shared = along_first = along_w = 0.0
    for j in range(d):
        shared += first[j] * w[j]
        along_first += outside[j] * first[j]
        along_w += outside[j] * w[j]
    square = 0.0
    for j in range(d):
        rest = w[j] - shared * first[j]
        square += rest * rest
    size = math.sqrt(square)
    # If w is a multiple of the client's model, what rounding leaves of the difference has no direction.
    if not size > 1e-12 * abs(shared):
        size = 0.0
    energy = one = two = 0.0
    for i in range(count):
        sign = 1.0 if extra[i] < 1.0 / (1.0 + math.exp(-own_size * inside[i, 0])) else -1.0
        margin = sign * (shared * inside[i, 0] + size * inside[i, 1])
        slope = -sign / (1.0 + math.exp(margin)) if margin < 700.0 else 0.0
        energy += slope * slope
        one += slope * inside[i, 0]
        two += slope * inside[i, 1]
    factor = scale / count
    spread = math.sqrt(energy)
    one = factor * (one - spread * along_first)
    two = factor * (two - spread * (along_w - shared * along_first) / size) / size if size > 0.0 else 0.0
    spread *= factor
    for j in range(d):
        out[j] += spread * outside[j] + one * first[j] + two * (w[j] - shared * first[j])
