"""Checks of the contracts of objectives and saddle-point objectives, for built-in and user-defined ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import DualTerms, Objective
from flwr_fco.objectives.duality import num_intercepts
from flwr_fco.objectives.saddle import SaddleObjective
from flwr_fco.work import FirstOrder

_POINTS = 3
_DIRECTIONS = 20
_PAIRS = 20
#: Number of draws for the mean of a noisy operator.
_DRAWS = 1000
_STEPS = (0.0, 0.7, -1.3)

_Result = TypeVar("_Result")


class _Tolerances(NamedTuple):
    """Tolerances for two computations of the same number.

    Parameters
    ----------
    same : float
        Relative, for the same sums in two orders.
    slope : float
        Relative, for a derivative and differences of values.
    noise : float
        Rounding error of a difference quotient, in units of the value.
    step : float
        Step of the differences: their error decreases with its fourth power, and rounding grows with its inverse.
    """

    same: float
    slope: float
    noise: float
    step: float


_TOLERANCES = {
    "float64": _Tolerances(same=1e-10, slope=1e-6, noise=1e-10, step=1e-4),
    "float32": _Tolerances(same=1e-4, slope=1e-2, noise=1e-3, step=1e-2),
}


def check_objective(
    objective: Objective, seed: int = 0, *, precision: Literal["float64", "float32"] = "float64"
) -> None:
    """Check that an objective fulfils the contract of :class:`flwr_fco.objectives.Objective`.

    At a few random points: the gradient agrees with differences of the value; :meth:`add_gradient` adds scale times the
    gradient; :meth:`value_and_gradient` agrees with both; metrics are Python numbers; the point is not changed. The
    number of batches is as requested, also with two per step, and equal generators give equal batches. If batches are
    row numbers, an epoch contains every row once, including the last partial batch, and the gradients of its batches,
    weighted by batch size, average to the full gradient, but are not all equal to it. If they are known: Hessian
    products agree with differences of the gradient, values and gradients along a line agree with those at its points,
    and the bounds on the curvature hold. The objective's own buffers can be loaded, and unknown ones are refused. With
    :class:`DualTerms` the loss is convex, and nowhere less than `least`; under the link ``"profiled"`` no slope in one
    coefficient changes faster than :meth:`largest_square` says.

    With ``smooth = False`` the gradient only needs to be a subgradient: no value, near or far, is below its line (plus
    half the strong convexity times the squared distance), and the objective has neither a Lipschitz constant nor a
    Hessian.

    Parameters
    ----------
    objective : Objective
        An objective whose value is a mean over its examples.
    seed : int, default 0
        Seed of the random points, directions and batches.
    precision : {"float64", "float32"}, default "float64"
        Precision of the objective's arithmetic. (Use "float64" for float32 features that are summed in float64, as in
        this package.)

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part, where and by how much.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> check_objective(LeastSquares(np.eye(3), np.ones(3)))
    """
    rng = np.random.default_rng(seed)
    tolerances = _TOLERANCES[precision]
    size = objective.layout.size
    points = [np.zeros(size)] + [rng.normal(size=size) / np.sqrt(size) for _ in range(_POINTS - 1)]
    _check_batches(objective, rng)
    _check_buffers(objective)
    for w in points:
        before = w.copy()
        _check_gradient(objective, w, rng, tolerances)
        _check_batch_gradients(objective, w, rng, tolerances)
        _check_value_and_gradient(objective, w, tolerances)
        _check_hessian(objective, w, rng, tolerances)
        if objective.smooth:
            _check_hessian_block(objective, w, rng, tolerances)
        _check_line(objective, w, rng, tolerances)
        _check_metrics(objective, w, tolerances)
        require(np.array_equal(w, before), "value, gradient, add_gradient or metrics changed the point w in place")
    _check_rows_count(objective, points, rng)
    _check_curvature(objective, rng)
    _check_dual_terms(objective, rng, tolerances)


def require(condition: bool, message: str) -> None:
    """Raise :class:`AssertionError` unless a condition holds, also when Python disables ``assert``."""
    if not condition:
        raise AssertionError(message)


def _require_close(values: Any, expected: Any, limit: float, what: str, end: str = "") -> None:
    """Raise AssertionError unless no entry of two arrays differs by more than the limit."""
    gap = float(np.abs(values - expected).max())
    require(gap <= limit, f"{what} by {gap:.3g}{end}")


def if_known(ask: Callable[..., _Result], *arguments: Any) -> _Result | None:
    """Return the result of a call, or None if the objective raises because it does not know it."""
    try:
        return ask(*arguments)
    except ConfigurationError:
        return None


def _is_rows(batch: Any) -> bool:
    return isinstance(batch, np.ndarray) and batch.ndim == 1 and batch.dtype.kind == "i"


def checked_oracle(objective: Objective, w: Vector) -> tuple[float, Vector]:
    """Check the types of value(w) and gradient(w), and that the gradient overwrites `out`; return both."""
    value = objective.value(w)
    require(type(value) is float, f"value(w) is a {type(value).__name__}, expected a Python float")
    gradient = objective.gradient(w)
    require(
        gradient.shape == w.shape and gradient.dtype == np.float64,
        f"gradient(w) has shape {gradient.shape} and dtype {gradient.dtype}, expected {w.shape} and float64",
    )
    out = np.full_like(w, np.nan)
    require(objective.gradient(w, None, out) is out, "gradient(w, batch, out) did not return out")
    require(np.array_equal(out, gradient), "gradient(w, batch, out) differs from gradient(w, batch): is out cleared?")
    return value, gradient


def slope(function: Callable[[Vector], Any], w: Vector, move: Vector, h: float) -> Any:
    """Return the derivative at w along a direction, by fourth-order differences; ``move`` is h times the direction."""
    near = function(w + move) - function(w - move)
    far = function(w + 2 * move) - function(w - 2 * move)
    return (8.0 * near - far) / (12.0 * h)


def known_constants(objective: Objective) -> dict[str, float]:
    """Return the objective's known Lipschitz constants, by norm."""
    constants = {norm: if_known(objective.lipschitz, norm) for norm in ("l2", "l1")}
    return {norm: constant for norm, constant in constants.items() if constant is not None}


def check_lipschitz(constants: dict[str, float], change: Vector, move: Vector, what: str) -> None:
    """Check that the change of a gradient over a move is within the Lipschitz constants."""
    for norm, constant in constants.items():
        primal, dual = (2, 2) if norm == "l2" else (1, np.inf)
        size, distance = float(np.linalg.norm(change, dual)), float(np.linalg.norm(move, primal))
        require(
            size <= constant * distance * (1.0 + 1e-6),
            f"lipschitz({norm!r})={constant}, but the {what} changed by {size:.6g} over a distance of {distance:.6g}: "
            f"{size / distance:.6g} a unit",
        )


def check_numbers(metrics: dict[str, float]) -> None:
    """Check that metrics are Python numbers."""
    for name, number in metrics.items():
        require(
            type(number) in (float, int), f"metrics[{name!r}] is a {type(number).__name__}, expected a Python number"
        )


def _check_gradient(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    value, gradient = checked_oracle(objective, w)
    if not objective.smooth:
        _check_subgradient(objective, w, value, gradient, rng, tolerances)
        return
    h = tolerances.step
    for direction in _directions(w, rng):
        expected = slope(objective.value, w, h * direction, h)
        measured = float(gradient @ direction)
        scale = float(np.linalg.norm(gradient))
        allowed = tolerances.slope * (abs(expected) + 0.01 * scale) + tolerances.noise * (1.0 + abs(value))
        require(
            abs(measured - expected) <= allowed,
            f"the gradient is {measured:.8g} along a direction in which differences of the value give {expected:.8g} "
            f"(largest component: coordinate {int(np.abs(direction).argmax())} of {w.size})",
        )


def _check_subgradient(
    objective: Objective,
    w: Vector,
    value: float,
    gradient: Vector,
    rng: np.random.Generator,
    tolerances: _Tolerances,
) -> None:
    convexity = if_known(objective.strong_convexity) or 0.0
    for direction in _directions(w, rng):
        # Nearby points on both sides test the derivative, if there is one; distant points test the convexity.
        for step in (tolerances.step, -tolerances.step, 1.0, -1.0):
            distant = objective.value(w + step * direction)
            line = value + step * float(gradient @ direction) + 0.5 * convexity * step**2 * float(direction @ direction)
            require(
                distant >= line - tolerances.noise * (1.0 + abs(value) + abs(line)),
                f"the value at a distance of {step:g} is {distant:.10g}, below the line {line:.10g} that the gradient "
                "gives: it is no subgradient, or the strong convexity is less",
            )


def _directions(w: Vector, rng: np.random.Generator) -> list[Vector]:
    coordinates = rng.permutation(w.size)[:_DIRECTIONS]
    # The last coordinate is the intercept in most models, which is easily forgotten.
    directions = [np.eye(1, w.size, int(j))[0] for j in {*coordinates.tolist(), w.size - 1}]
    return [*directions, rng.normal(size=w.size) / np.sqrt(w.size)]


def _check_batch_gradients(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    n = objective.num_examples
    full = objective.gradient(w)
    size = float(np.abs(full).max()) + 1.0
    mean, mean_value, total, values = np.zeros_like(w), 0.0, 0, True
    for batch in objective.batches(rng, FirstOrder(epochs=1, batch_size=max(1, n // 3 + 1))):
        gradient = objective.gradient(w, batch)
        size = max(size, float(np.abs(gradient).max()))
        start = rng.normal(size=w.size)
        for scale in (1.0, -0.3):
            out = start.copy()
            objective.add_gradient(w, batch, scale, out)
            what = f"add_gradient(w, batch, {scale}, out) differs from out + {scale} * gradient(w, batch)"
            _require_close(out, start + scale * gradient, tolerances.same * size, what)
        pair = if_known(objective.value_and_gradient, w, batch)
        if pair is None:
            values = False
        else:
            what = "value_and_gradient(w, batch) has a gradient that differs from gradient(w, batch)"
            _require_close(pair[1], gradient, tolerances.same * size, what)
        if not _is_rows(batch):
            continue
        total += batch.size
        mean += batch.size / n * gradient
        mean_value += 0.0 if pair is None else batch.size / n * pair[0]
    if total == 0:
        return
    what = "the minibatch gradients of an epoch, weighted by batch size, differ from the full gradient"
    end = ": is something a sum instead of a mean, or a regularization term not the same in every batch?"
    _require_close(mean, full, tolerances.same * size, what, end)
    value = objective.value(w)
    require(
        not values or abs(mean_value - value) <= tolerances.same * (1.0 + abs(value)),
        f"the values of an epoch's batches, weighted by batch size, average to {mean_value:.8g}, value(w)={value:.8g}",
    )


def _check_rows_count(objective: Objective, points: list[Vector], rng: np.random.Generator) -> None:
    """Check that the gradient of one row differs from that of all rows, for some row at some point."""
    rows = [*objective.batches(rng, FirstOrder(epochs=1, batch_size=1))] if objective.num_examples > 1 else []
    if not rows or not all(map(_is_rows, rows)):
        return
    same = all(np.array_equal(objective.gradient(w, row), objective.gradient(w)) for w in points for row in rows)
    require(
        not same,
        "gradient(w, batch) is the gradient of all rows, whatever the batch: does it ignore its batch? (Where all "
        "examples of this objective are the same, give one with others.)",
    )


def _check_value_and_gradient(objective: Objective, w: Vector, tolerances: _Tolerances) -> None:
    out = np.full_like(w, np.nan)
    other, gradient = objective.value_and_gradient(w, None, out)
    require(type(other) is float, f"value_and_gradient(w)[0] is a {type(other).__name__}, expected a Python float")
    require(gradient is out, "value_and_gradient(w, batch, out) did not return out")
    value, expected = objective.value(w), objective.gradient(w)
    require(
        abs(other - value) <= tolerances.same * (1.0 + abs(value)),
        f"value_and_gradient(w)[0]={other!r} differs from value(w)={value!r}",
    )
    size = 1.0 + float(np.abs(expected).max())
    what = "the gradient of value_and_gradient(w) differs from gradient(w)"
    _require_close(gradient, expected, tolerances.same * size, what)


def _check_hessian(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    h = tolerances.step
    for v in (rng.normal(size=w.size) / np.sqrt(w.size), np.eye(1, w.size, w.size - 1)[0]):
        product = if_known(objective.hessian_product, w, v)
        if product is None:
            return
        expected = slope(objective.gradient, w, h * v, h)
        size = float(np.abs(expected).max())
        noise = tolerances.noise * (1.0 + float(np.abs(objective.gradient(w)).max()))
        what = f"hessian_product(w, v) differs from differences of the gradient, which are up to {size:.3g},"
        _require_close(product, expected, tolerances.slope * size + noise, what)


def _check_hessian_block(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    """Compare a block with differences of the gradient, on the last coordinate and on some of the others."""
    others = rng.choice(w.size, size=min(4, w.size), replace=False)
    on = np.union1d(others, [w.size - 1]).astype(np.int64)
    block = if_known(objective.hessian_block, w, on)
    if block is None:
        return
    k, h = on.size, tolerances.step
    require(block.shape == (k * (k + 1) // 2,), f"hessian_block of {k} coordinates has shape {block.shape}")
    rows = [slope(objective.gradient, w, h * np.eye(1, w.size, j)[0], h)[on] for j in on]
    expected = np.array(rows)[np.triu_indices(k)]
    noise = tolerances.noise * (1.0 + float(np.abs(objective.gradient(w)).max()))
    size = float(np.abs(expected).max())
    what = f"hessian_block(w, {on.tolist()}) differs from differences of the gradient, which are up to {size:.3g},"
    _require_close(block, expected, tolerances.slope * size + noise, what)


def _check_line(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    directions = rng.normal(size=(2, w.size)) / np.sqrt(w.size)
    line = if_known(objective.along, w, directions[0])
    if line is None:
        return
    point = w
    # The second line starts at the last point of the first one.
    for direction in directions:
        for step in _STEPS:
            trial = point + step * direction
            value, gradient = objective.value(trial), objective.gradient(trial)
            size = 1.0 + float(np.abs(gradient).max())
            loss, slope = line(step)
            require(
                abs(loss - value) <= tolerances.same * (1.0 + abs(value)),
                f"along(w, direction)({step}) is {loss:.8g}, the value there {value:.8g}",
            )
            expected = float(gradient @ direction)
            require(
                abs(slope - expected) <= tolerances.same * size * (1.0 + float(np.linalg.norm(direction))),
                f"along(w, direction)({step}) has the slope {slope:.8g}, the gradient there gives {expected:.8g}",
            )
            what = f"along(w, direction).gradient({step}) is off"
            _require_close(line.gradient(step), gradient, tolerances.same * size, what)
        line, point = line.turn(_STEPS[-1], directions[1]), point + _STEPS[-1] * direction


def _check_batches(objective: Objective, rng: np.random.Generator) -> None:
    n = objective.num_examples
    require(n >= 1, f"num_examples={n}, expected at least 1")
    for batch_size in sorted({1, max(1, n // 3), max(1, n - 1), n, n + 1}):
        work = FirstOrder(epochs=1, batch_size=batch_size)
        batches = list(objective.batches(rng, work))
        expected = [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
        if all(map(_is_rows, batches)):
            sizes = [batch.size for batch in batches]
            require(
                sizes == expected,
                f"batches of {batch_size} out of {n} rows have sizes {sizes[:4]} ... {sizes[-1:]}, expected "
                f"{expected[:4]} ... {expected[-1:]}: the last partial one is kept",
            )
            require(
                np.array_equal(np.sort(np.concatenate(batches)), np.arange(n)),
                f"an epoch in batches of {batch_size} does not cover each of the {n} rows exactly once",
            )
        for asked, per_step in (
            (work, 1),
            (work, 2),
            (FirstOrder(steps=len(expected) + 1, batch_size=batch_size), 1),
            (FirstOrder(steps=len(expected) + 1, batch_size=batch_size), 2),
        ):
            count = len(list(objective.batches(rng, asked, per_step)))
            wanted = asked.num_draws(n, per_step)
            require(count == wanted, f"batches(rng, {asked!r}, per_step={per_step}) yields {count}, expected {wanted}")
        _check_repeatable(objective, work)
    require(
        list(objective.batches(rng, FirstOrder(steps=2, batch_size=None), 2)) == [None] * 4,
        "batches(rng, FirstOrder(steps=2, batch_size=None), per_step=2) should yield None four times: full batches",
    )


def _check_repeatable(objective: Objective, work: FirstOrder) -> None:
    w = np.zeros(objective.layout.size)
    first, second = (list(objective.batches(np.random.default_rng(0), work)) for _ in range(2))
    # Use the first batches after drawing the second ones, because the objective must not hold a batch's state.
    for one, two in zip(first, second, strict=True):
        require(
            np.array_equal(objective.gradient(w, one), objective.gradient(w, two)),
            "equal generators give batches with different gradients: what is random must come from rng and be part of "
            "the batch",
        )


def _check_buffers(objective: Objective) -> None:
    buffers = objective.buffers()
    names = {entry.name for entry in objective.layout.passed_through}
    require(
        buffers.keys() == names,
        f"buffers() has {sorted(buffers)}; the layout's arrays that are not optimised are {sorted(names)}",
    )
    objective.load_buffers(buffers)
    after = objective.buffers()
    require(
        all(np.array_equal(after[name], array) for name, array in buffers.items()),
        "load_buffers(buffers()) changes the buffers",
    )
    try:
        objective.load_buffers({**buffers, "no such buffer": np.zeros(1)})
    except ConfigurationError:
        return
    raise AssertionError("load_buffers takes a name that buffers() does not have; expected a ConfigurationError")


def _check_curvature(objective: Objective, rng: np.random.Generator) -> None:
    convexity = if_known(objective.strong_convexity)
    if not objective.smooth:
        norms = list(known_constants(objective))
        require(not norms, f"lipschitz({norms}) is known of an objective with smooth = False, whose gradient jumps")
        zeros = np.zeros(objective.layout.size)
        require(
            if_known(objective.hessian_product, zeros, zeros) is None,
            "hessian_product is known of an objective with smooth = False",
        )
        require(
            if_known(objective.hessian_block, zeros, np.zeros(1, dtype=np.int64)) is None,
            "hessian_block is known of an objective with smooth = False",
        )
    constants = known_constants(objective)
    if convexity is not None:
        require(convexity >= 0.0, f"strong_convexity()={convexity!r}; expected a number >= 0")
    for pair in range(_PAIRS):
        u = rng.normal(size=objective.layout.size) / np.sqrt(objective.layout.size)
        # Half of the pairs are close, because distant pairs show only the mean of a varying curvature.
        v = u + rng.normal(size=u.size) * (1e-3 if pair % 2 else 1.0) / np.sqrt(u.size)
        change, move = objective.gradient(u) - objective.gradient(v), u - v
        check_lipschitz(constants, change, move, "gradient")
        curvature = float(change @ move) / float(move @ move)
        require(
            convexity is None or curvature >= convexity * (1.0 - 1e-6) - 1e-9,
            f"strong_convexity()={convexity}, but between two points the curvature is {curvature:.6g}",
        )


def _check_dual_terms(objective: Objective, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    """Compare values, near and far, with tangents and with the least value: a gap is made of both."""
    terms = objective.dual_terms()
    if not isinstance(terms, DualTerms):
        return
    size = objective.layout.size
    ridge = np.full(size, terms.l2)
    ridge[size - num_intercepts(objective.layout) :] = 0.0

    def loss(w: Vector) -> float:
        return objective.value(w) - 0.5 * float(ridge @ w**2)

    for distance in np.geomspace(1e-2, 1e2, _PAIRS):
        w, v = distance * rng.normal(size=(2, size)) / np.sqrt(size)
        value, gradient = objective.value_and_gradient(w)
        tangent = loss(w) + float((gradient - ridge * w) @ (v - w))
        noise = tolerances.noise * (1.0 + abs(value) + abs(tangent) + abs(objective.value(v)))
        require(
            loss(v) >= tangent - noise,
            f"the loss is {loss(v):.8g} at a point where its tangent from another one is {tangent:.8g}: it is not "
            "convex, or has another l2 term than dual_terms() says, and its duality gap would be wrong",
        )
        require(
            loss(v) >= terms.least - noise,
            f"the loss is {loss(v):.8g}, and dual_terms() says least={terms.least:.8g}: its duality gap would be wrong",
        )
        if terms.link != "profiled":
            continue
        for j in range(size - num_intercepts(objective.layout)):
            moved = np.where(np.arange(size) == j, v, w)
            change = abs(float((objective.gradient(moved) - gradient)[j]) - ridge[j] * (v[j] - w[j]))
            most = objective.largest_square() * abs(v[j] - w[j])
            require(
                change <= (1.0 + 1e-6) * most + tolerances.noise * (1.0 + abs(value)),
                f"a slope changes by {change:.6g} where largest_square() allows {most:.6g}: coefficients that are not "
                "0 would be proved zero",
            )


def _check_metrics(objective: Objective, w: Vector, tolerances: _Tolerances) -> None:
    metrics = objective.metrics(w)
    check_numbers(metrics)
    require("loss" in metrics, f"metrics has no 'loss', only {sorted(metrics)}")
    value = objective.value(w)
    require(
        abs(metrics["loss"] - value) <= 0.01 * tolerances.same * (1.0 + abs(value)),
        f"metrics['loss']={metrics['loss']!r} differs from value(w)={value!r}",
    )


def check_saddle_objective(objective: SaddleObjective, seed: int = 0) -> None:
    """Check that an objective fulfils the contract of :class:`flwr_fco.objectives.SaddleObjective`.

    At a few random points: the operator agrees with differences of f, with the sign changed for the maximising player;
    ``add_gradient`` adds scale times the operator; the point is not changed; metrics are Python numbers. On random
    pairs: the operator is monotone if the class says so, strongly monotone if the modulus is known, and known Lipschitz
    constants hold. Batches: their number is as requested, in whole steps; the same seed gives the same batches; full
    batches are None; the operator on batches is unbiased.

    Parameters
    ----------
    objective : SaddleObjective
        An objective with a known value.
    seed : int, default 0
        Seed of the random points, directions and batches.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part, where and by how much.

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
    _check_saddle_batches(objective, rng)


def _check_operator(objective: SaddleObjective, w: Vector, rng: np.random.Generator) -> None:
    value, operator = checked_oracle(objective, w)
    start = rng.normal(size=w.size)
    out = start.copy()
    objective.add_gradient(w, None, -0.3, out)
    scale = 1.0 + float(np.abs(operator).max())
    what = "add_gradient(w, None, -0.3, out) differs from out - 0.3 gradient(w)"
    _require_close(out, start - 0.3 * operator, 1e-10 * scale, what)
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


def _check_saddle_batches(objective: SaddleObjective, rng: np.random.Generator) -> None:
    size = objective.layout.size
    for work in (FirstOrder(steps=3, batch_size=1), FirstOrder(epochs=1, batch_size=2)):
        for per_step in (1, 2):
            expected = work.num_draws(objective.num_examples, per_step)
            count = len(list(objective.batches(np.random.default_rng(0), work, per_step)))
            require(
                count == expected,
                f"batches() yields {count} batches for {work}, {per_step} a step; expected {expected}",
            )
    full = list(objective.batches(rng, FirstOrder(steps=2, batch_size=None)))
    require(len(full) == 2 and all(batch is None for batch in full), "batches() should yield None for each full batch")
    w = rng.normal(size=size)
    per_epoch = FirstOrder(epochs=1, batch_size=1).num_draws(objective.num_examples)
    # For rows the mean is exact over whole epochs; for noise its accuracy depends on the number of draws.
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
