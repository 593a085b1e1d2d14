"""Checks of the contract of a regularizer, for built-in and user-defined ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import Array, Regularizer
from flwr_fco.testing.objectives import require

#: Steps at which proximal maps are checked.
STEPS = (1e-6, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e6)


def check_regularizer(regularizer: Regularizer, shape: tuple[int, ...] = (12,), seed: int = 0) -> None:
    """Check that a regularizer fulfils its contract, on random points and steps from 1e-6 to 1e6.

    For every regularizer: the proximal map preserves shape and dtype (float64, float32), does not change its argument,
    gives the same result with ``out`` and in place, returns no negative zero and propagates NaN; it refuses a step that
    is no finite number >= 0 and an array of integers, as :class:`~flwr_fco.regularizers.FlatRegularizer` does; psi is
    finite at the result; and ``from_spec(to_spec())`` reproduces the regularizer. For a constraint: the map ignores the
    step and is idempotent. For a convex psi, with p = prox(v): the three-point inequality

        step psi(p) + 1/2 ||p - v||^2 + 1/2 ||p - x||^2 <= step psi(x) + 1/2 ||x - v||^2    for every x,

    which proves that p is the minimiser, and firm non-expansiveness, ||p - q||^2 <= <p - q, v - u> for q = prox(u).
    For a non-convex psi: no tested point is better than p.

    Parameters
    ----------
    regularizer : Regularizer
        The regularizer to check.
    shape : tuple of int, default (12,)
        Shape of the test arrays.
    seed : int, default 0
        Seed of the random points.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part, where and by how much.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> check_regularizer(L1(0.3), shape=(5,))
    """
    rng = np.random.default_rng(seed)
    name = repr(regularizer)
    regularizer.check_shape("w", shape)
    points = points_of(rng, shape, (0.01, 0.5, 1.0, 10.0, 1e3))
    # Points with a finite psi: results of the proximal map, and points near them.
    feasible = [regularizer.prox(v.copy(), 1.0) for v in points]
    feasible += [regularizer.prox(p + 0.1 * rng.normal(size=shape), 0.1) for p in feasible[:4]]
    valued = [(x, regularizer.value(x)) for x in feasible]
    _check_travel(regularizer, points[0], name)
    _check_nan(regularizer, points[0], name)
    _check_refusals(regularizer, points[0], name)
    for step in STEPS:
        where, results = f"{name}, step {step:g}", []
        for v in points:
            p = _check_call(regularizer, v, step, where)
            _check_float32(regularizer, v, step, where)
            results.append(p)
            _check_minimum(regularizer, v, p, step, valued, where)
        if regularizer.convex:
            _check_nonexpansive(points, results, where)
    if regularizer.constraint:
        _check_call(regularizer, points[0], 0.0, f"{name}, step 0")


def _check_refusals(regularizer: Regularizer, v: Array, name: str) -> None:
    """Check that arguments without a meaning are errors, and not numbers."""
    wrong: list[tuple[str, Any, Any]] = [(f"step={step!r}", v.copy(), step) for step in (-1.0, math.nan, math.inf)]
    for what, argument, step in [*wrong, ("an array of int64", v.astype(np.int64), 1.0)]:
        try:
            regularizer.prox(argument, step)
        except ConfigurationError:
            continue
        said = f"{name}: prox accepts {what}; it has to raise ConfigurationError. Derive from FlatRegularizer"
        raise AssertionError(f"{said}, or call `destination` and `check_step` of flwr_fco.regularizers.validation")


def points_of(rng: np.random.Generator, shape: tuple[int, ...], sizes: Sequence[float]) -> list[Array]:
    """Return normal draws of these scales, and some points with ties and zeros."""
    points: list[Array] = [size * rng.normal(size=shape) for size in sizes]
    points += [np.zeros(shape), np.ones(shape), np.where(rng.random(shape) < 0.5, -1.0, 1.0)]
    points.append(np.where(rng.random(shape) < 0.5, 0.0, rng.normal(size=shape)))
    return points


def check_map(call: Callable[[Array, Array | None], Array], v: Array, who: str) -> Array:
    """Check that a map preserves shape and dtype, and gives the same result without `out`, with it and in place.

    Parameters
    ----------
    call : callable
        ``(v, out) -> result``.
    v : ndarray
        Argument of the map.
    who : str
        The object and the name of its method, for error messages.

    Returns
    -------
    ndarray
        The result.
    """
    argument = v.copy()
    result = call(argument, None)
    require(isinstance(result, np.ndarray), f"{who} returned a {type(result).__name__}, expected an array")
    require(result.shape == v.shape, f"{who} returned shape {result.shape} for an array of shape {v.shape}")
    require(result.dtype == v.dtype, f"{who} returned {result.dtype} for {v.dtype}; it has to keep the dtype")
    what = f"{who} returned (a view of) its argument; without `out` it has to return a new array"
    require(not np.shares_memory(result, argument), what)
    out = np.full_like(v, np.nan)
    require(call(argument, out) is out, f"{who} has to return out")
    require(np.array_equal(argument, v), f"{who} changed its argument; it may write to `out` only")
    require(np.array_equal(out, result), f"{who} writes something else to `out` than it returns without")
    require(call(argument, argument) is argument, f"{who} has to return out, which may be its argument")
    gap = float(np.abs(argument - result).max(initial=0.0))
    what = f"{who}: in place (out is the argument) the result differs by {gap:.2e}"
    require(np.array_equal(argument, result), f"{what}; it has to read its argument before it overwrites it")
    return result


def require_below(excess: Array, limits: Array, what: str, points: Mapping[str, Array]) -> None:
    """Raise :class:`AssertionError` at the first number above what rounding explains, with the points it is of.

    Parameters
    ----------
    excess, limits : ndarray of float64, shape (n,)
        The numbers, which should be 0 at most, and their rounding errors.
    what : str
        What is wrong then.
    points : mapping of str to ndarray
        By name a point, or one for each of the numbers.
    """
    for i in np.flatnonzero(~(excess <= limits)):
        at = "".join(f"\n  {name} = {(each[i] if each.ndim > 1 else each)[:8]}" for name, each in points.items())
        raise AssertionError(f"{what} by {excess[i]:.2e} (rounding would explain {limits[i]:.0e}) at{at}")


def _check_call(regularizer: Regularizer, v: Array, step: float, where: str) -> Array:
    """Check shape, dtype, `out`, in-place calls, signs of zeros and finiteness; return the result.

    A constraint's map also ignores the step and does not change its own results.
    """
    p = check_map(lambda v, out: regularizer.prox(v, step, out), v, f"{where}: prox")
    what = f"{where}: the result holds -0.0; zeros have to be +0.0 (add 0.0)"
    require(not np.signbit(p[p == 0.0]).any(), what)
    require(np.isfinite(p).all(), f"{where}: the result of finite v holds", p[~np.isfinite(p)][:1])
    value = regularizer.value(p)
    require(isinstance(value, float), f"{where}: value returned a {type(value).__name__}, expected a float")
    require(math.isfinite(value), f"{where}: value(prox(v)) is {value}; psi has to be finite where prox goes")
    if regularizer.constraint:
        require(value == 0.0, f"{where}: value(prox(v)) is {value}; the value of a constraint is 0.0 inside")
        other, again = regularizer.prox(v.copy(), 1.0), regularizer.prox(p.copy(), step)
        what = f"{where}: the result differs by {np.abs(p - other).max(initial=0.0):.2e} from that at step 1"
        require(np.array_equal(p, other), f"{what}; a constraint's prox is its projection whatever the step is")
        gap = float(np.abs(again - p).max(initial=0.0))
        limit = 64.0 * np.finfo(np.float64).eps * max(1.0, float(np.abs(p).max(initial=0.0)))
        what = f"{where}: projecting twice moves the point by {gap:.2e}; a projection leaves its results alone"
        require(gap <= limit, what)
    return p


def _check_float32(regularizer: Regularizer, v: Array, step: float, where: str) -> None:
    """Check that float32 results stay float32, are feasible, and agree with float64 up to rounding."""
    single = v.astype(np.float32)
    p = regularizer.prox(single, step)
    require(p.dtype == np.float32, f"{where}: prox returned {p.dtype} for float32; it has to keep the dtype")
    value = regularizer.value(p)
    require(math.isfinite(value), f"{where}: value(prox(v)) is {value} in float32")
    if regularizer.convex:
        exact = regularizer.prox(single.astype(np.float64), step)
        gap = float(np.abs(p - exact).max(initial=0.0))
        size = max(1e-30, float(np.abs(single).max(initial=0.0)), float(np.abs(exact).max(initial=0.0)))
        require(gap <= 1e-4 * size, f"{where}: float32 is {gap:.2e} away from float64 at size {size:.2e}")


def _check_minimum(
    regularizer: Regularizer, v: Array, p: Array, step: float, feasible: list[tuple[Array, float]], where: str
) -> None:
    """Check the three-point inequality (convex), or that no tested point is better (not convex)."""
    weight = 1.0 if regularizer.constraint else step
    scaled = weight * regularizer.value(p)
    near = [p + size * (x - p) for x, _ in feasible[:3] for size in (1e-6, 1e-3)]
    values = [*(value for _, value in feasible), *(regularizer.value(x) for x in near)]
    references = weight * np.array(values)
    tried = np.array([*(x for x, _ in feasible), *near]).reshape(len(values), v.size)
    tried, references = tried[np.isfinite(references)], references[np.isfinite(references)]
    flat, away = p.reshape(-1), (p - v).reshape(-1)
    moves = flat - tried
    distances, lengths = np.sqrt((moves**2).sum(axis=1)), np.sqrt((tried**2).sum(axis=1))
    distance, length = float(np.linalg.norm(away)), float(np.linalg.norm(flat))
    # <p - v, p - x> + step (psi(p) - psi(x)) <= 0 is the inequality with expanded squares, which avoids cancellation.
    if regularizer.convex:
        excess, fails = scaled - references + moves @ away, "The three-point inequality fails"
    else:
        excess = scaled - references + 0.5 * (moves * (flat + tried - 2.0 * v.reshape(-1))).sum(axis=1)
        fails = "Another point is better"
    sizes = abs(scaled) + np.abs(references) + (distance + float(np.linalg.norm(v))) * distances
    # Rounding moves p and x by eps times their size, which is multiplied by the distance to v.
    rounding = 64.0 * np.finfo(np.float64).eps * (length + lengths)
    limits = 1e-11 * sizes + 1e-14 + rounding * distance
    what = f"{where}: prox(v) is not the minimiser of step * psi(w) + 1/2 ||w - v||^2. {fails}"
    require_below(excess, limits, what, {"v": v.reshape(-1), "prox(v)": flat, "x": tried})


def _check_nonexpansive(points: list[Array], results: list[Array], where: str) -> None:
    """Check ||p - q||^2 <= <p - q, v - u> for all pairs."""
    i, j = np.tril_indices(len(points), -1)
    arguments, images = (np.array(each).reshape(len(points), points[0].size) for each in (points, results))
    apart, moved = arguments[i] - arguments[j], images[i] - images[j]
    left, right = (moved**2).sum(axis=1), (moved * apart).sum(axis=1)
    lengths = np.sqrt((images**2).sum(axis=1))
    rounding = 64.0 * np.finfo(np.float64).eps * (lengths[i] + lengths[j])
    limits = (1e-11 * np.sqrt(left) + rounding) * np.sqrt((apart**2).sum(axis=1)) + 1e-20
    what = f"{where}: prox is not firmly non-expansive, as the map of a convex psi is (if psi is not convex, set "
    what += "convex = False): ||p - q||^2 exceeds <p - q, v - u>"
    require_below(left - right, limits, what, {"v": arguments[i], "u": arguments[j]})


def _check_nan(regularizer: Regularizer, v: Array, name: str) -> None:
    """Check that a NaN is propagated."""
    if v.size:
        spoiled = v.copy()
        spoiled.flat[v.size // 2] = np.nan
        p = regularizer.prox(spoiled, 1.0).flat[v.size // 2]
        what = f"{name}: prox turned NaN into {p}; a NaN has to stay visible, or a diverged model looks fine"
        require(np.isnan(p), what)


def _check_travel(regularizer: Regularizer, v: Array, name: str) -> None:
    """Check from_spec(to_spec()): equal object, equal spec, equal numbers."""
    spec = regularizer.to_spec()
    copy: Any = Regularizer.from_spec(spec)
    require(type(copy) is type(regularizer), f"{name}: its spec rebuilds a {type(copy).__name__}")
    require(copy == regularizer, f"{name}: its spec rebuilds {copy!r}, which is not equal to it")
    require(hash(copy) == hash(regularizer), f"{name}: equal objects have different hashes")
    require(copy.to_spec().digest() == spec.digest(), f"{name}: the rebuilt object has another spec")
    same = np.array_equal(copy.prox(v.copy(), 0.5), regularizer.prox(v.copy(), 0.5))
    require(same, f"{name}: the object rebuilt from its spec has another proximal map")
