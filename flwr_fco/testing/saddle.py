"""A check of the contract of saddle-point objectives, for ours and for yours."""

from __future__ import annotations

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.objectives.saddle import SaddleObjective
from flwr_fco.testing.objectives import (
    check_lipschitz,
    check_numbers,
    checked_oracle,
    if_known,
    known_constants,
    require,
    slope,
)
from flwr_fco.work import FirstOrder

__all__ = ["check_saddle_objective"]

_POINTS = 3
_PAIRS = 20
_DIRECTIONS = 20
#: Draws over which a noisy operator's mean is taken.
_DRAWS = 1000


def check_saddle_objective(objective: SaddleObjective, seed: int = 0) -> None:
    """Check that an objective keeps the contract of :class:`flwr_fco.objectives.SaddleObjective`.

    At a few random points: the operator agrees with differences of f, with the sign of the maximising player changed;
    ``add_gradient`` is scale times the operator; the point is not changed; metrics are Python numbers. On random pairs:
    the operator is monotone where the class says so, strongly where it knows its modulus, and its Lipschitz constants
    hold (where they are known). Batches: as many as the work asks for, in whole steps; the same for the same seed; None
    for full batches; the operator on them is right on average.

    Parameters
    ----------
    objective : SaddleObjective
        With a known value.
    seed : int, default 0
        Of the random points, directions and batches.

    Raises
    ------
    AssertionError
        With what is broken, where and by how much.

    Examples
    --------
    >>> from flwr_fco.objectives import BilinearSaddle
    >>> check_saddle_objective(BilinearSaddle([[1.0, 2.0]], noise=0.1))
    """
    rng = np.random.default_rng(seed)
    size, split = objective.layout.size, objective.split
    require(0 < split < size, f"split={split}; expected both players to have coordinates, {size} together")
    for w in [np.zeros(size)] + [rng.normal(size=size) for _ in range(_POINTS - 1)]:
        before = w.copy()
        _check_operator(objective, w, rng)
        check_numbers(objective.metrics(w))
        require(np.array_equal(w, before), "value, gradient, add_gradient or metrics changed the point in place")
    _check_pairs(objective, rng)
    _check_batches(objective, rng)


def _check_operator(objective: SaddleObjective, w: Vector, rng: np.random.Generator) -> None:
    value, operator = checked_oracle(objective, w)
    start = rng.normal(size=w.size)
    out = start.copy()
    objective.add_gradient(w, None, -0.3, out)
    gap = float(np.abs(out - (start - 0.3 * operator)).max())
    scale = 1.0 + float(np.abs(operator).max())
    require(gap <= 1e-10 * scale, f"add_gradient(w, None, -0.3, out) differs from out - 0.3 gradient(w) by {gap:.3g}")
    chosen = {*rng.permutation(w.size)[:_DIRECTIONS].tolist(), objective.split - 1, objective.split, w.size - 1}
    h = 1e-4
    for j in chosen:
        along = slope(objective.value, w, h * np.eye(1, w.size, j)[0], h)
        minimising = j < objective.split
        expected = along if minimising else -along
        player = "minimising" if minimising else "maximising"
        require(
            abs(operator[j] - expected) <= 1e-6 * abs(expected) + 1e-8 * scale + 1e-10 * (1.0 + abs(value)),
            f"the operator is {operator[j]:.8g} in coordinate {j} of {w.size}, of the {player} player; differences of "
            f"the value give {'' if minimising else 'minus '}{along:.8g}: is its sign right?",
        )


def _check_pairs(objective: SaddleObjective, rng: np.random.Generator) -> None:
    size = objective.layout.size
    constants = known_constants(objective)
    modulus = if_known(objective.strong_convexity) or 0.0
    for pair in range(_PAIRS):
        u = rng.normal(size=size)
        v = u + rng.normal(size=size) * (1e-3 if pair % 2 else 1.0)
        moved, change = u - v, objective.gradient(u) - objective.gradient(v)
        if objective.monotone:
            slack = 1e-10 * float(np.linalg.norm(change) * np.linalg.norm(moved)) + 1e-14
            product, bound = float(change @ moved), modulus * float(moved @ moved)
            require(
                product >= bound * (1.0 - 1e-8) - slack,
                f"<g(u) - g(v), u - v> = {product:.6g}, expected at least {bound:.6g}: f is not as convex in x and "
                "concave in y as the class says (`monotone`, `strong_convexity()`)",
            )
        check_lipschitz(constants, change, moved, "operator")


def _check_batches(objective: SaddleObjective, rng: np.random.Generator) -> None:
    size = objective.layout.size
    for work in (FirstOrder(steps=3, batch_size=1), FirstOrder(epochs=1, batch_size=2)):
        for per_step in (1, 2):
            expected = work.num_draws(objective.num_examples, per_step)
            found = len(list(objective.batches(np.random.default_rng(0), work, per_step)))
            require(
                found == expected,
                f"batches() yields {found} batches for {work}, {per_step} a step; expected {expected}",
            )
    full = list(objective.batches(rng, FirstOrder(steps=2, batch_size=None)))
    require(len(full) == 2 and all(batch is None for batch in full), "batches() should yield None for each full batch")
    w = rng.normal(size=size)
    per_epoch = FirstOrder(epochs=1, batch_size=1).num_draws(objective.num_examples)
    # Over whole epochs the mean is exact for rows; for noise it is as good as the number of draws.
    draws = max(1, _DRAWS // per_epoch) * per_epoch if per_epoch < _DRAWS else per_epoch
    work = FirstOrder(steps=draws, batch_size=1)
    twins = [next(iter(objective.batches(np.random.default_rng(3), work))) for _ in range(2)]
    same = np.array_equal(objective.gradient(w, twins[0]), objective.gradient(w, twins[1]))
    require(same, "batches() yields other batches for the same seed")
    samples = np.array([objective.gradient(w, batch) for batch in objective.batches(rng, work)])
    exact = objective.gradient(w)
    spread = samples.std(axis=0) / np.sqrt(draws)
    worst = float((np.abs(samples.mean(axis=0) - exact) - 6.0 * spread).max())
    require(
        worst <= 1e-10 * (1.0 + float(np.abs(exact).max())),
        f"the mean of {draws} stochastic operators differs from the exact one by {worst:.3g} more than chance allows",
    )
