"""A check of the contract of objectives, for ours and for yours."""

from __future__ import annotations

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.parameters import Vector

__all__ = ["check_objective"]

_POINTS = 3
_DIRECTIONS = 20
_PAIRS = 20


def check_objective(objective: Objective, seed: int = 0) -> None:
    """Check that an objective keeps the contract of :class:`flwr_fco.objectives.Objective`.

    At a few random points: the gradient agrees with differences of the value; :meth:`add_gradient` is scale times the
    gradient; the gradients of an epoch's minibatches, weighted by batch size, average to the full gradient; the
    Lipschitz constants hold (where they are known); minibatches cover every row once an epoch and keep the last
    partial one; metrics are Python numbers; the point is not changed.

    Parameters
    ----------
    objective : Objective
        A smooth objective whose value is a mean over its examples.
    seed : int, default 0
        Of the random points, directions and batches.

    Raises
    ------
    AssertionError
        With what is broken, where and by how much.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> check_objective(LeastSquares(np.eye(3), np.ones(3)))
    """
    rng = np.random.default_rng(seed)
    size = objective.layout.size
    points = [np.zeros(size)] + [rng.normal(size=size) / np.sqrt(size) for _ in range(_POINTS - 1)]
    _check_minibatches(objective, rng)
    for w in points:
        before = w.copy()
        _check_gradient(objective, w, rng)
        _check_batches(objective, w, rng)
        _check_metrics(objective, w)
        _require(np.array_equal(w, before), "value, gradient, add_gradient or metrics changed the point w in place")
    _check_lipschitz(objective, rng)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_gradient(objective: Objective, w: Vector, rng: np.random.Generator) -> None:
    value = objective.value(w)
    _require(type(value) is float, f"value(w) is a {type(value).__name__}, expected a Python float")
    gradient = objective.gradient(w)
    _require(
        gradient.shape == w.shape and gradient.dtype == np.float64,
        f"gradient(w) has shape {gradient.shape} and dtype {gradient.dtype}, expected {w.shape} and float64",
    )
    out = np.full_like(w, np.nan)
    _require(objective.gradient(w, None, out) is out, "gradient(w, batch, out) did not return out")
    _require(np.array_equal(out, gradient), "gradient(w, batch, out) differs from gradient(w, batch): is out cleared?")
    coordinates = rng.permutation(w.size)[:_DIRECTIONS]
    # The last coordinate is an intercept in most models and easily forgotten.
    directions = [np.eye(1, w.size, int(j))[0] for j in {*coordinates.tolist(), w.size - 1}]
    directions.append(rng.normal(size=w.size) / np.sqrt(w.size))
    h = 1e-4
    for direction in directions:
        near = objective.value(w + h * direction) - objective.value(w - h * direction)
        far = objective.value(w + 2 * h * direction) - objective.value(w - 2 * h * direction)
        expected = (8.0 * near - far) / (12.0 * h)
        found = float(gradient @ direction)
        tolerance = 1e-6 * abs(expected) + 1e-8 * float(np.linalg.norm(gradient)) + 1e-10 * (1.0 + abs(value))
        _require(
            abs(found - expected) <= tolerance,
            f"the gradient is {found:.8g} along a direction in which differences of the value give {expected:.8g} "
            f"(largest component: coordinate {int(np.abs(direction).argmax())} of {w.size})",
        )


def _check_batches(objective: Objective, w: Vector, rng: np.random.Generator) -> None:
    n = objective.num_examples
    full = objective.gradient(w)
    size = float(np.abs(full).max()) + 1.0
    mean = np.zeros_like(w)
    for batch in objective.minibatches(rng, max(1, n // 3 + 1), epochs=1):
        assert batch is not None
        gradient = objective.gradient(w, batch)
        size = max(size, float(np.abs(gradient).max()))
        mean += batch.size / n * gradient
        start = rng.normal(size=w.size)
        for scale in (1.0, -0.3):
            out = start.copy()
            objective.add_gradient(w, batch, scale, out)
            gap = float(np.abs(out - (start + scale * gradient)).max())
            _require(
                gap <= 1e-10 * size,
                f"add_gradient(w, batch, {scale}, out) differs from out + {scale} * gradient(w, batch) by {gap:.3g}",
            )
    gap = float(np.abs(mean - full).max())
    _require(
        gap <= 1e-10 * size,
        f"the minibatch gradients of an epoch, weighted by batch size, differ from the full gradient by {gap:.3g}: "
        "is something a sum instead of a mean, or a regularization term not the same in every batch?",
    )


def _check_minibatches(objective: Objective, rng: np.random.Generator) -> None:
    n = objective.num_examples
    _require(n >= 1, f"num_examples={n}, expected at least 1")
    for batch_size in sorted({1, max(1, n // 3), max(1, n - 1), n, n + 1}):
        batches = [np.asarray(batch) for batch in objective.minibatches(rng, batch_size, epochs=1)]
        sizes = [batch.size for batch in batches]
        expected = [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
        _require(
            sizes == expected,
            f"minibatches of {batch_size} out of {n} rows have sizes {sizes[:4]} ... {sizes[-1:]}, expected "
            f"{expected[:4]} ... {expected[-1:]}: the last partial one is kept",
        )
        _require(
            np.array_equal(np.sort(np.concatenate(batches)), np.arange(n)),
            f"an epoch of minibatches of {batch_size} does not cover each of the {n} rows exactly once",
        )
        steps = len(list(objective.minibatches(rng, batch_size, steps=len(batches) + 1)))
        _require(steps == len(batches) + 1, f"minibatches(steps={len(batches) + 1}) yields {steps} batches")
    _require(
        list(objective.minibatches(rng, None, steps=2)) == [None, None],
        "minibatches(batch_size=None, steps=2) should yield None twice: full batches",
    )


def _check_lipschitz(objective: Objective, rng: np.random.Generator) -> None:
    for norm, primal, dual in (("l2", 2, 2), ("l1", 1, np.inf)):
        try:
            constant = objective.lipschitz(norm)
        except ConfigurationError:
            continue
        for pair in range(_PAIRS):
            u = rng.normal(size=objective.layout.size) / np.sqrt(objective.layout.size)
            # Half of the pairs are close: where the curvature varies, distant pairs see only its mean.
            v = u + rng.normal(size=u.size) * (1e-3 if pair % 2 else 1.0) / np.sqrt(u.size)
            change = float(np.linalg.norm(objective.gradient(u) - objective.gradient(v), dual))
            distance = float(np.linalg.norm(u - v, primal))
            _require(
                change <= constant * distance * (1.0 + 1e-6),
                f"lipschitz({norm!r})={constant:.6g}, but the gradient changed by {change:.6g} over a distance of "
                f"{distance:.6g}: {change / distance:.6g} a unit",
            )


def _check_metrics(objective: Objective, w: Vector) -> None:
    metrics = objective.metrics(w)
    for name, number in metrics.items():
        _require(
            type(number) in (float, int), f"metrics[{name!r}] is a {type(number).__name__}, expected a Python number"
        )
    _require("loss" in metrics, f"metrics has no 'loss', only {sorted(metrics)}")
    value = objective.value(w)
    _require(
        abs(metrics["loss"] - value) <= 1e-12 * (1.0 + abs(value)),
        f"metrics['loss']={metrics['loss']!r} differs from value(w)={value!r}",
    )
