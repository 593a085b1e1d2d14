"""Checks of the contracts of objectives and saddle-point objectives, for built-in and user-defined ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import DualTerms, Objective
from flwr_fco.objectives.duality import num_intercepts
from flwr_fco.objectives.saddle import SaddleObjective
from flwr_fco.work import FirstOrder

_POINTS, _DIRECTIONS, _PAIRS = 3, 20, 20
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
    rng, tolerances, size = np.random.default_rng(seed), _TOLERANCES[precision], objective.layout.size
    points = [np.zeros(size)] + [rng.normal(size=size) / np.sqrt(size) for _ in range(_POINTS - 1)]
    _check_batches(objective, rng)
    _check_buffers(objective)
    each_point = [_check_gradient, _check_batch_gradients, _check_value_and_gradient, _check_hessian]
    each_point += [_check_hessian_block, _check_line, _check_metrics]
    for w in points:
        before = w.copy()
        for check in each_point:
            check(objective, w, rng, tolerances)
        require(np.array_equal(w, before), "value, gradient, add_gradient or metrics changed the point w in place")
    _check_rows_count(objective, points, rng)
    _check_curvature(objective, rng, "gradient")
    _check_dual_terms(objective, rng, tolerances)


def require(condition: object, message: str, *shown: Vector) -> None:
    """Raise :class:`AssertionError` unless a condition holds, also when Python disables ``assert``.

    Parameters
    ----------
    *shown : ndarray
        Points whose first entries end the message; only a failure formats them, which takes longer than most checks.
    """
    if not condition:
        raise AssertionError(" ".join([message, *(f"{point[:8]}" for point in shown)]))


def _close(values: Any, expected: Any, tolerance: float, what: str, size: float | None = None, end: str = "") -> None:
    """Raise AssertionError unless two results agree, relative to `size`: by default 1 + the largest entry."""
    gap = float(np.abs(values - expected).max())
    size = 1.0 + float(np.abs(expected).max()) if size is None else size
    require(gap <= tolerance * size, f"{what} by {gap:.3g}{end}")


def if_known(ask: Callable[..., _Result], *arguments: Any) -> _Result | None:
    """Return the result of a call, or None if the objective raises because it does not know it."""
    try:
        return ask(*arguments)
    except ConfigurationError:
        return None


def _is_rows(batch: Any) -> bool:
    return isinstance(batch, np.ndarray) and batch.ndim == 1 and batch.dtype.kind == "i"


def _slope(function: Callable[[Vector], Any], w: Vector, direction: Vector, h: float) -> Any:
    """Return the derivative at w along a direction, by fourth-order differences."""
    move = h * direction
    near, far = function(w + move) - function(w - move), function(w + 2 * move) - function(w - 2 * move)
    return (8.0 * near - far) / (12.0 * h)


def _unit(size: int, j: int) -> Vector:
    return np.asarray(np.eye(1, size, j)[0])


def _check_numbers(metrics: dict[str, float]) -> None:
    for name, number in metrics.items():
        kind = type(number).__name__
        require(kind in ("float", "int"), f"metrics[{name!r}] is a {kind}, expected a Python number")


def _check_gradient(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    """Check the types of value(w) and gradient(w), that the gradient overwrites `out`, and its numbers."""
    value, gradient, out = objective.value(w), objective.gradient(w), np.full_like(w, np.nan)
    require(type(value) is float, f"value(w) is a {type(value).__name__}, expected a Python float")
    what = f"gradient(w) has shape {gradient.shape} and dtype {gradient.dtype}, expected {w.shape} and float64"
    require(gradient.shape == w.shape and gradient.dtype == np.float64, what)
    require(objective.gradient(w, None, out) is out, "gradient(w, batch, out) did not return out")
    require(np.array_equal(out, gradient), "gradient(w, batch, out) differs from gradient(w, batch): is out cleared?")
    if not objective.smooth:
        _check_subgradient(objective, w, rng, tolerances)
        return
    signs, of_players = np.ones(w.size), ""
    if objective.ascends is not None:
        signs[objective.ascends], of_players = -1.0, ", negated where f is maximised: is its sign right?"
    scale = 1.0 + float(np.linalg.norm(gradient)) if of_players else float(np.linalg.norm(gradient))
    for direction in _directions(w, rng, np.flatnonzero(np.diff(signs)).tolist()):
        expected, measured = _slope(objective.value, w, direction, tolerances.step), float(signs * gradient @ direction)
        allowed = tolerances.slope * (abs(expected) + 0.01 * scale) + tolerances.noise * (1.0 + abs(value))
        what = f"the gradient is {measured:.8g} along a direction in which differences of the value give {expected:.8g}"
        where = f"(largest component: coordinate {int(np.abs(direction).argmax())} of {w.size}){of_players}"
        require(abs(measured - expected) <= allowed, f"{what} {where}")


def _check_subgradient(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    value, gradient = objective.value(w), objective.gradient(w)
    convexity = if_known(objective.strong_convexity) or 0.0
    for direction in _directions(w, rng):
        # Nearby points on both sides test the derivative, if there is one; distant points test the convexity.
        for step in (tolerances.step, -tolerances.step, 1.0, -1.0):
            distant = objective.value(w + step * direction)
            line = value + step * float(gradient @ direction) + 0.5 * convexity * step**2 * float(direction @ direction)
            good = distant >= line - tolerances.noise * (1.0 + abs(value) + abs(line))
            what = f"the value at a distance of {step:g} is {distant:.10g}, below the gradient's line {line:.10g}"
            require(good, f"{what}: it is no subgradient, or the strong convexity is less")


def _directions(w: Vector, rng: np.random.Generator, last: Iterable[int] = ()) -> list[Vector]:
    # The last coordinate is the intercept in most models, which is easily forgotten, as are the last of a player's.
    chosen = {*rng.permutation(w.size)[:_DIRECTIONS].tolist(), w.size - 1, *last, *(j + 1 for j in last)}
    return [*(_unit(w.size, j) for j in chosen), rng.normal(size=w.size) / np.sqrt(w.size)]


def _check_added(
    objective: Objective, w: Vector, batch: Any, rng: np.random.Generator, tolerances: _Tolerances
) -> None:
    gradient, start = objective.gradient(w, batch), rng.normal(size=w.size)
    for scale in (1.0, -0.3):
        out = start.copy()
        objective.add_gradient(w, batch, scale, out)
        what = f"add_gradient(w, batch, {scale}, out) differs from out + {scale} * gradient(w, batch)"
        _close(out, start + scale * gradient, tolerances.same, what, 1.0 + float(np.abs(gradient).max()))


def _check_batch_gradients(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    n = objective.num_examples
    full = objective.gradient(w)
    size = float(np.abs(full).max()) + 1.0
    mean, total = np.zeros_like(w), 0
    value: float | None = 0.0
    for batch in objective.batches(rng, FirstOrder(epochs=1, batch_size=max(1, n // 3 + 1))):
        gradient = objective.gradient(w, batch)
        size = max(size, float(np.abs(gradient).max()))
        _check_added(objective, w, batch, rng, tolerances)
        pair = if_known(objective.value_and_gradient, w, batch)
        if pair is not None:
            what = "value_and_gradient(w, batch) has a gradient that differs from gradient(w, batch)"
            _close(pair[1], gradient, tolerances.same, what)
        if _is_rows(batch):
            total += batch.size
            mean += batch.size / n * gradient
            value = None if pair is None or value is None else value + batch.size / n * pair[0]
    if total == 0:
        return
    what = "the minibatch gradients of an epoch, weighted by batch size, differ from the full gradient"
    end = ": is something a sum instead of a mean, or a regularization term not the same in every batch?"
    _close(mean, full, tolerances.same, what, size, end)
    if value is not None:
        what = f"the values of an epoch's batches, weighted by batch size, average to {value:.8g}, off value(w)"
        _close(value, objective.value(w), tolerances.same, what)


def _check_rows_count(objective: Objective, points: list[Vector], rng: np.random.Generator) -> None:
    """Check that the gradient of one row differs from that of all rows, for some row at some point."""
    rows = [*objective.batches(rng, FirstOrder(epochs=1, batch_size=1))] if objective.num_examples > 1 else []
    if rows and all(map(_is_rows, rows)):
        same = all(np.array_equal(objective.gradient(w, row), objective.gradient(w)) for w in points for row in rows)
        what = "gradient(w, batch) is the gradient of all rows, whatever the batch: does it ignore its batch?"
        require(not same, f"{what} (Where all examples of this objective are the same, give one with others.)")


def _check_value_and_gradient(
    objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances
) -> None:
    out = np.full_like(w, np.nan)
    other, gradient = objective.value_and_gradient(w, None, out)
    require(type(other) is float, f"value_and_gradient(w)[0] is a {type(other).__name__}, expected a Python float")
    require(gradient is out, "value_and_gradient(w, batch, out) did not return out")
    value = objective.value(w)
    what = f"value_and_gradient(w)[0]={other!r} differs from value(w)={value!r}"
    _close(other, value, tolerances.same, what)
    what = "the gradient of value_and_gradient(w) differs from gradient(w)"
    _close(gradient, objective.gradient(w), tolerances.same, what)


def _check_hessian(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    for v in (rng.normal(size=w.size) / np.sqrt(w.size), _unit(w.size, w.size - 1)):
        product = if_known(objective.hessian_product, w, v)
        if product is not None:
            expected = _slope(objective.gradient, w, v, tolerances.step)
            _check_second(objective, w, product, expected, "hessian_product(w, v)", tolerances)


def _check_second(
    objective: Objective, w: Vector, found: Vector, expected: Vector, who: str, tolerances: _Tolerances
) -> None:
    size = float(np.abs(expected).max())
    noise = tolerances.noise * (1.0 + float(np.abs(objective.gradient(w)).max()))
    what = f"{who} differs from differences of the gradient, which are up to {size:.3g},"
    _close(found, expected, tolerances.slope, what, size + noise / tolerances.slope)


def _check_hessian_block(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    """Compare a block with differences of the gradient, on the last coordinate and on some of the others."""
    others = rng.choice(w.size, size=min(4, w.size), replace=False)
    on = np.union1d(others, [w.size - 1]).astype(np.int64)
    block = if_known(objective.hessian_block, w, on) if objective.smooth else None
    if block is not None:
        k = on.size
        require(block.shape == (k * (k + 1) // 2,), f"hessian_block of {k} coordinates has shape {block.shape}")
        rows = [_slope(objective.gradient, w, _unit(w.size, j), tolerances.step)[on] for j in on]
        expected = np.array(rows)[np.triu_indices(k)]
        _check_second(objective, w, block, expected, f"hessian_block(w, {on.tolist()})", tolerances)


def _check_line(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    directions = rng.normal(size=(2, w.size)) / np.sqrt(w.size)
    line = if_known(objective.along, w, directions[0])
    point, same = w, tolerances.same
    # The second line starts at the last point of the first one.
    for direction in directions if line is not None else ():
        assert line is not None
        for step in _STEPS:
            trial, where = point + step * direction, f"along(w, direction)({step})"
            value, gradient, (loss, slope) = objective.value(trial), objective.gradient(trial), line(step)
            size = (1.0 + float(np.abs(gradient).max())) * (1.0 + float(np.linalg.norm(direction)))
            expected = float(gradient @ direction)
            _close(loss, value, same, f"{where} is {loss:.8g}, the value there {value:.8g}, which differ")
            what = f"{where} has the slope {slope:.8g}, the gradient there gives {expected:.8g}, which differ"
            _close(slope, expected, same, what, size)
            _close(line.gradient(step), gradient, same, f"along(w, direction).gradient({step}) is off")
        line, point = line.turn(_STEPS[-1], directions[1]), point + _STEPS[-1] * direction


def _check_counts(objective: Objective, rng: np.random.Generator, works: Iterable[FirstOrder]) -> None:
    """Check that batches are as many as asked, None where they are full, and the same for equal generators."""
    w = rng.normal(size=objective.layout.size)
    for work in works:
        for per_step in (1, 2):
            count = len(list(objective.batches(rng, work, per_step)))
            wanted = work.num_draws(objective.num_examples, per_step)
            what = f"batches(rng, {work!r}, per_step={per_step}), {per_step} a step, yields {count}, expected {wanted}"
            require(count == wanted, what)
        first, second = (list(objective.batches(np.random.default_rng(0), work)) for _ in range(2))
        # Use the first batches after drawing the second ones, because the objective must not hold a batch's state.
        twins = zip(first, second, strict=True)
        same = all(np.array_equal(objective.gradient(w, one), objective.gradient(w, two)) for one, two in twins)
        what = "equal generators, of the same seed, give batches with different gradients"
        require(same, f"{what}: what is random must come from rng and be part of the batch")
    full = list(objective.batches(rng, FirstOrder(steps=2, batch_size=None), 2))
    what = "batches(rng, FirstOrder(steps=2, batch_size=None), per_step=2) should yield None for each full batch"
    require(len(full) == 4 and all(batch is None for batch in full), f"{what}, four times")


def _check_batches(objective: Objective, rng: np.random.Generator) -> None:
    n = objective.num_examples
    require(n >= 1, f"num_examples={n}, expected at least 1")
    works: list[FirstOrder] = []
    for batch_size in sorted({1, max(1, n // 3), max(1, n - 1), n, n + 1}):
        works.append(FirstOrder(epochs=1, batch_size=batch_size))
        batches = list(objective.batches(rng, works[-1]))
        expected = [batch_size] * (n // batch_size) + ([n % batch_size] if n % batch_size else [])
        if all(map(_is_rows, batches)):
            sizes, of = [batch.size for batch in batches], f"of {batch_size} out of {n} rows"
            what = f"batches {of} have sizes {sizes[:4]} ... {sizes[-1:]}, expected {expected[:4]} ... {expected[-1:]}"
            require(sizes == expected, f"{what}: the last partial one is kept")
            covered = np.array_equal(np.sort(np.concatenate(batches)), np.arange(n))
            require(covered, f"an epoch in batches {of} does not cover each of them exactly once")
        works.append(FirstOrder(steps=len(expected) + 1, batch_size=batch_size))
    _check_counts(objective, rng, works)


def _check_buffers(objective: Objective) -> None:
    buffers, names = objective.buffers(), sorted(entry.name for entry in objective.layout.passed_through)
    what = f"buffers() has {sorted(buffers)}; the layout's arrays that are not optimised are {names}"
    require(sorted(buffers) == names, what)
    objective.load_buffers(buffers)
    after = objective.buffers()
    same = all(np.array_equal(after[name], array) for name, array in buffers.items())
    require(same, "load_buffers(buffers()) changes the buffers")
    try:
        objective.load_buffers({**buffers, "no such buffer": np.zeros(1)})
    except ConfigurationError:
        return
    raise AssertionError("load_buffers takes a name that buffers() does not have; expected a ConfigurationError")


def _check_curvature(objective: Objective, rng: np.random.Generator, who: str) -> None:
    """Check the constants, and that a gradient is monotone, strongly if that is known."""
    lipschitz = {norm: if_known(objective.lipschitz, norm) for norm in ("l2", "l1")}
    constants = {norm: constant for norm, constant in lipschitz.items() if constant is not None}
    convexity, size = if_known(objective.strong_convexity), objective.layout.size
    if not objective.smooth:
        what = f"lipschitz({list(constants)}) is known of an objective with smooth = False, whose gradient jumps"
        require(not constants, what)
        asked = {"hessian_product": np.zeros(size), "hessian_block": np.zeros(1, dtype=np.int64)}
        for name, argument in asked.items():
            known = if_known(getattr(objective, name), np.zeros(size), argument) is not None
            require(not known, f"{name} is known of an objective with smooth = False")
    require((convexity or 0.0) >= 0.0, f"strong_convexity()={convexity!r}; expected a number >= 0")
    monotone, modulus = getattr(objective, "monotone", convexity is not None), convexity or 0.0
    for pair in range(_PAIRS):
        u = rng.normal(size=size) / np.sqrt(size)
        # Half of the pairs are close, because distant pairs show only the mean of a varying curvature.
        v = u + rng.normal(size=size) * (1e-3 if pair % 2 else 1.0) / np.sqrt(size)
        change, move = objective.gradient(u) - objective.gradient(v), u - v
        for norm, constant in constants.items():
            primal, dual = (2, 2) if norm == "l2" else (1, np.inf)
            length, distance = float(np.linalg.norm(change, dual)), float(np.linalg.norm(move, primal))
            what = (
                f"the {who} changed by {length:.6g} over a distance of {distance:.6g}: {length / distance:.6g} a unit"
            )
            require(length <= constant * distance * (1.0 + 1e-6), f"lipschitz({norm!r})={constant}, but {what}")
        curvature = float(change @ move) / float(move @ move)
        slack = 1e-10 * float(np.linalg.norm(change) / np.linalg.norm(move)) + 1e-9
        good = not monotone or curvature >= modulus * (1.0 - 1e-6) - slack
        what = f"strong_convexity()={convexity}, but the curvature <g(u) - g(v), u - v> / |u - v|^2 is {curvature:.6g}"
        require(good, f"{what}: f is not as convex (and, of a saddle function, concave in y) as the class says")


def _check_dual_terms(objective: Objective, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    """Compare values, near and far, with tangents and with the least value: a gap is made of both."""
    terms = objective.dual_terms()
    if not isinstance(terms, DualTerms):
        return
    size = objective.layout.size
    slopes = range(size - num_intercepts(objective.layout))
    ridge = np.where(np.arange(size) < len(slopes), terms.l2, 0.0)

    def loss(w: Vector) -> float:
        return objective.value(w) - 0.5 * float(ridge @ w**2)

    for distance in np.geomspace(1e-2, 1e2, _PAIRS):
        w, v = distance * rng.normal(size=(2, size)) / np.sqrt(size)
        value, gradient = objective.value_and_gradient(w)
        tangent, there = loss(w) + float((gradient - ridge * w) @ (v - w)), loss(v)
        noise = tolerances.noise * (1.0 + abs(value) + abs(tangent) + abs(objective.value(v)))
        what = (
            f"the loss is {there:.8g} at a point where its tangent from another one is {tangent:.8g}: it is not convex"
        )
        require(
            there >= tangent - noise, f"{what}, or has another l2 term than dual_terms() says; its gap would be wrong"
        )
        what = f"the loss is {there:.8g}, and dual_terms() says least={terms.least:.8g}: its duality gap would be wrong"
        require(there >= terms.least - noise, what)
        for j in slopes if terms.link == "profiled" else ():
            moved = np.where(np.arange(size) == j, v, w)
            change = abs(float((objective.gradient(moved) - gradient)[j]) - ridge[j] * (v[j] - w[j]))
            most = objective.largest_square() * abs(v[j] - w[j])
            good = change <= (1.0 + 1e-6) * most + tolerances.noise * (1.0 + abs(value))
            what = f"a slope changes by {change:.6g} where largest_square() allows {most:.6g}"
            require(good, f"{what}: coefficients that are not 0 would be proved zero")


def _check_metrics(objective: Objective, w: Vector, rng: np.random.Generator, tolerances: _Tolerances) -> None:
    metrics, value = objective.metrics(w), objective.value(w)
    _check_numbers(metrics)
    require("loss" in metrics, f"metrics has no 'loss', only {sorted(metrics)}")
    what = f"metrics['loss']={metrics['loss']!r} differs from value(w)={value!r}"
    _close(metrics["loss"], value, 0.01 * tolerances.same, what)


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
    rng, tolerances = np.random.default_rng(seed), _TOLERANCES["float64"]
    size, split = objective.layout.size, objective.split
    require(0 < split < size, f"split={split}; expected both players to have coordinates, {size} together")
    for w in [np.zeros(size)] + [rng.normal(size=size) for _ in range(_POINTS - 1)]:
        before = w.copy()
        _check_gradient(objective, w, rng, tolerances)
        _check_added(objective, w, None, rng, tolerances)
        _check_numbers(objective.metrics(w))
        require(np.array_equal(w, before), "value, gradient, add_gradient or metrics changed the point in place")
    _check_curvature(objective, rng, "operator")
    _check_counts(objective, rng, [FirstOrder(steps=3, batch_size=1), FirstOrder(epochs=1, batch_size=2)])
    _check_unbiased(objective, rng)


def _check_unbiased(objective: SaddleObjective, rng: np.random.Generator) -> None:
    w = rng.normal(size=objective.layout.size)
    per_epoch = FirstOrder(epochs=1, batch_size=1).num_draws(objective.num_examples)
    # For rows the mean is exact over whole epochs; for noise its accuracy depends on the number of draws.
    draws = max(1, _DRAWS // per_epoch) * per_epoch
    batches = objective.batches(rng, FirstOrder(steps=draws, batch_size=1))
    samples, exact = np.array([objective.gradient(w, batch) for batch in batches]), objective.gradient(w)
    spread = samples.std(axis=0) / np.sqrt(draws)
    worst = float((np.abs(samples.mean(axis=0) - exact) - 6.0 * spread).max())
    what = f"the mean of {draws} stochastic operators differs from the exact one by {worst:.3g} more than chance allows"
    require(worst <= 1e-10 * (1.0 + float(np.abs(exact).max())), what)
