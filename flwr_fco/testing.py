"""Checks for users' own regularizers, mirror maps, objectives and strategies; the package's own pass them too."""

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from scipy.sparse import csr_array

from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.objectives import LeastSquares, Objective, SaddleObjective
from flwr_fco.objectives.base import Line
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, L1Ball, L2Ball, L2Squared, NonNegative, Simplex, Zero
from flwr_fco.regularizers.base import Psi, Regularizer
from flwr_fco.simulation import simulate
from flwr_fco.strategies import CompositeStrategy
from flwr_fco.work import Epochs, FirstOrder, Steps

__all__ = ["check_mirror_map", "check_objective", "check_pair", "check_regularizer", "check_saddle_objective"]
__all__ += ["check_strategy"]

#: The regularizers that a map is checked with by default.
REGULARIZERS: tuple[Regularizer, ...] = (Zero(), L1(0.3), L1(0.3, bound=0.5), L2Squared(0.5), ElasticNet(0.4), L2(0.3))
REGULARIZERS += (NonNegative(), Box(-1.0, 0.5), Box(-0.4, 0.4), L1Ball(1.5), L2Ball(0.9), Simplex(1.0))
#: Accuracies by precision: relative of two sums in two orders, and of a derivative against differences; the rounding
#: error of a difference quotient, in units of the value; the step of the differences.
_ACCURACY = {"float64": (1e-10, 1e-6, 1e-10, 1e-4), "float32": (1e-4, 1e-2, 1e-3, 1e-2)}
_EPS = 64.0 * np.finfo(np.float64).eps


def require(condition: object, message: str, **points: Any) -> None:
    """Raise :class:`AssertionError` unless a condition holds, also when Python disables ``assert``.

    Parameters
    ----------
    **points : ndarray
        Points whose first entries end the message; only a failure formats them, which takes longer than most checks.
    """
    if not condition:
        raise AssertionError(message + "".join(f"\n  {name} = {point[:8]}" for name, point in points.items()))


def agree(found: Any, expected: Any, prefix: str, tolerance: float = 0.0, size: float | None = None) -> None:
    """Raise :class:`AssertionError` unless two numbers or arrays agree; say where they first differ.

    Parameters
    ----------
    tolerance : float, default 0.0
        Relative to `size`.
    size : float, optional
        By default 1 + the largest entry expected.
    """
    # A mask is compared as 0 and 1.
    one, other = 1.0 * np.ravel(found), 1.0 * np.ravel(expected)
    close = np.abs(one - other) <= tolerance * (1.0 + _largest(other) if size is None else size)
    for i in np.flatnonzero(~close):
        raise AssertionError(f"{prefix}: {one[i]:.9g} instead of {other[i]:.9g}, in entry {i} of {close.size}")


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or None after a ConfigurationError: it is not known, or not accepted."""
    with suppress(ConfigurationError):
        result = call(*arguments)
        require(result is not None, f"{getattr(call, '__name__', call)} returned None: is its `return` missing?")
        return result


def _largest(array: Any) -> float:
    return float(np.abs(array).max(initial=0.0))


# --- regularizers and mirror maps -----------------------------------------------------------------------------------


def check_regularizer(regularizer: Regularizer, shape: tuple[int, ...] = (12,), seed: int = 0) -> None:
    """Check that a regularizer fulfils its contract, on random points and steps from 1e-6 to 1e6.

    For every regularizer: the proximal map takes float64 and float32 to the same point, does not change its argument,
    gives the same result with ``out`` and in place, returns no negative zero and propagates NaN; psi is finite at the
    result; and ``from_spec(to_spec())`` reproduces the regularizer. For a constraint: the map ignores the step and is
    idempotent. For a convex psi, with p = prox(v): the three-point inequality

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
    psi = regularizer
    rng = np.random.default_rng(seed)
    psi.check_shape("w", shape)
    points = _points(rng, shape, (0.01, 0.5, 1.0, 10.0, 1e3))
    require(isinstance(value := psi.value(points[0]), float), f"{psi!r}: value(w) is {value!r}; expected a float")
    near = [psi.prox(v + 0.1 * rng.normal(size=shape), 0.1) for v in points]
    _check_once(Regularizer, psi, lambda v: psi.prox(v, 0.5), points[0])
    for step in (*[0.0] * psi.constraint, 1e-6, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e6):
        where = f"{psi!r}, step {step:g}: prox"
        for v, p in zip(points, _check_minima(Euclidean(), psi, step, where, points, near), strict=True):
            require(not np.signbit(p[p == 0.0]).any(), f"{where} has -0.0; zeros have to be +0.0 (add 0.0)")
            narrow = psi.prox(single := v.astype(np.float32), step)
            wide = psi.prox(single.astype(np.float64), step)
            size = max(1e-30, _largest([single, wide])) if psi.convex else math.inf
            agree(narrow, wide, f"{where} in float32 differs from float64", 1e-4, size)
            for value in (psi.value(p), psi.value(narrow)):
                good = isinstance(value, float | np.floating) and np.isfinite(value) and not (psi.constraint and value)
                require(good, f"{where}: value there is {value!r}; expected a finite float, and 0.0 of a constraint")
            for again, slack in ((psi.prox(v, 1.0), 0.0), (psi.prox(p, step), _EPS)) if psi.constraint else ():
                agree(again, p, f"{where} depends on the step or moves its own result", slack, max(1.0, _largest(p)))


def check_mirror_map(
    mirror_map: MirrorMap, dimension: int = 12, seed: int = 0, regularizers: Sequence[Psi] = REGULARIZERS
) -> None:
    """Check that a mirror map fulfils its contract, on random duals with scales from 0.01 to 10.

    The map itself: ``conjugate_gradient`` preserves shape and dtype, does not change its argument, gives the same
    result with ``out`` and in place, and propagates NaN. With w = conjugate_gradient(z), z is a subgradient of h at w
    (h(x) >= h(w) + <z, x - w> for every x), conjugate_gradient(gradient(w)) = w, and the Fenchel-Young inequality
    h(x) + h*(z) >= <z, x> holds with equality at w. ``from_spec(to_spec())`` reproduces the map. Then every pair with a
    regularizer is checked; see :func:`check_pair`.

    gradient(conjugate_gradient(z)) = z is not required: on the simplex it holds up to a constant, on the boundary of a
    ball up to a normal vector. The subgradient inequalities check the rest of it.

    Parameters
    ----------
    mirror_map : MirrorMap
        The map to check; a :class:`Product` must be bound to a layout.
    dimension : int, default 12
        Length of the test vectors.
    seed : int, default 0
        Seed of the random points.
    regularizers : sequence of Regularizer or BoundRegularizer
        The regularizers to pair it with; by default one of each kind that acts on a plain vector.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part, where and by how much.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> check_mirror_map(PNorm(4.0), dimension=5)
    """
    h = mirror_map
    duals = _points(np.random.default_rng(seed), (dimension,))
    primals = [_check_map(h.conjugate_gradient, z, f"{h!r}: conjugate_gradient") for z in duals]
    for z, w in zip(duals, primals, strict=True):
        dual = h.gradient(w)
        value = h.value(w)
        tried = _towards(w, primals)
        require(isinstance(value, float) and math.isfinite(value), f"{h!r}: value(w) is {value!r}, not a finite float")
        require(not np.shares_memory(dual, w), f"{h!r}: gradient has to return a new array")
        agree(h.conjugate_gradient(dual), w, f"{h!r}: not inverse of gradient", 1e-10, 1e-3 + _largest(w))
        size = abs(value) + abs(conjugate := h.conjugate(z)) + float(np.abs(z) @ np.abs(w)) + 1e-4
        agree(value + conjugate, z @ w, f"{h!r}: h(w) + h*(z) is not <z, w> at w = grad h*(z)", 1e-10, size)
        curve = 0.5 * h.modulus() * ((tried - w) ** 2).sum(axis=1)
        excess = value + curve + (tried - w) @ z - np.array([h.value(x) for x in tried])
        limits = 1e-12 * (size + curve + np.abs(tried) @ np.abs(z) + float(np.abs(z) @ np.abs(w)))
        _below(excess, limits, f"{h!r}: z is no subgradient at grad h*(z), or modulus() is too large", tried, z=z, w=w)
    if h.kind:
        _check_once(MirrorMap, h, h.conjugate_gradient, duals[0])
    for regularizer in regularizers:
        check_pair(h, regularizer, dimension, seed)


def check_pair(mirror_map: MirrorMap, regularizer: Psi, dimension: int = 12, seed: int = 0) -> None:
    """Check that ``retrieve`` returns the minimiser of -<z, w> + t psi(w) + h(w), or refuses the pair.

    With w = retrieve(z, t), other feasible points x, t >= 0 and psi convex:
    <grad h(w) - z, x - w> + t (psi(x) - psi(w)) >= 0, the three-point inequality without its differences of squares.
    ``retrieve`` gives the same result with ``out`` and in place. An unsupported pair raises an
    :class:`~flwr_fco.errors.UnsupportedPairError`.

    Parameters
    ----------
    mirror_map : MirrorMap
        The map.
    regularizer : Regularizer or BoundRegularizer
        psi.
    dimension : int, default 12
        Length of the vectors.
    seed : int, default 0
        Seed of the random points.

    Raises
    ------
    AssertionError
        If the contract is violated.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import SimplexEntropy
    >>> from flwr_fco.regularizers import L1
    >>> check_pair(SimplexEntropy(), L1(0.5))
    """
    duals = _points(np.random.default_rng(seed), (dimension,))
    found = list[Vector]()
    pair = f"{mirror_map!r} with {getattr(regularizer, 'regularizer', regularizer)!r}"
    supported = mirror_map.supports(regularizer)
    result = attempt(mirror_map.retrieve, duals[0], 1.0, regularizer)
    require(supported == (result is not None), f"{pair}: {supported=}, but retrieve returns {result}")
    for t in (0.0, 0.5, 20.0) if supported else ():
        found += _check_minima(mirror_map, regularizer, t, f"{pair}, t = {t:g}: retrieve", duals, found)


def _points(rng: np.random.Generator, shape: Any, sizes: Sequence[float] = (0.01, 0.5, 1.0, 3.0, 10.0)) -> list[Vector]:
    """Return normal draws of these scales, and some points with ties and zeros."""
    signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    holes = np.where(rng.random(shape) < 0.5, 0.0, rng.normal(size=shape))
    return [*(size * rng.normal(size=shape) for size in sizes), np.zeros(shape), np.ones(shape), signs, holes]


def _towards(w: Vector, others: Any) -> Vector:
    """Return the others, as rows, and then points between w and each of them."""
    return np.concatenate([others, *(w + fraction * (np.array(others) - w) for fraction in (1e-2, 1e-4, 1e-6))])


def _below(excess: Vector, limits: Vector, prefix: str, x: Vector, **points: Vector) -> None:
    """Raise AssertionError at the first number above what rounding explains, with its point x."""
    for i in np.flatnonzero(~(excess <= limits)):
        require(False, f"{prefix}, by {excess[i]:.2e} (rounding would explain {limits[i]:.0e}) at", **points, x=x[i])


def _check_once(family: Any, thing: Any, call: Callable[[Vector], Vector], v: Vector) -> None:
    """Check that the spec rebuilds an equal object, and that the map keeps a NaN."""
    copy = family.from_spec(thing.to_spec())
    spoiled = v.copy()
    require((copy, hash(copy)) == (thing, hash(thing)), f"{thing!r}: its spec rebuilds {copy!r}, which is not equal")
    spoiled.flat[v.size // 2] = np.nan
    require(np.isnan(call(spoiled).flat[v.size // 2]), f"{thing!r}: NaN becomes a number, as if a run had not diverged")


def _check_map(call: Callable[..., Any], v: Vector, who: str, in_place: bool = True) -> Vector:
    """Check that a map keeps shape and dtype, and gives the same finite result without `out`, with it and in place."""
    result = call(argument := v.copy())
    got, expected = (f"{getattr(each, 'dtype', type(each))}{np.shape(each)}" for each in (result, v))
    require(got == expected, f"{who} returned {got}, expected {expected} as in its argument")
    require(np.isfinite(result).all(), f"{who} is not finite:", argument=v, result=result)
    require(not np.shares_memory(result, argument), f"{who} returned (a view of) its argument, expected a new array")
    for where, out in [("`out`", np.full_like(v, np.nan)), ("its argument as `out`", argument)][: 1 + in_place]:
        agree(argument, v, f"{who} changed its argument; it may write to `out` only")
        require(call(argument, out) is out, f"{who} has to return out{', which may be its argument' * in_place}")
        agree(out, result, f"{who} writes something else to {where} than it returns: is out cleared?")
    return np.asarray(result)


def _check_minima(h: MirrorMap, psi: Psi, t: float, where: str, duals: list[Vector], more: list[Vector]) -> Any:
    """Check that no point is better than a result, by first-order conditions.

    Against the other results, the inequality also says that the map is firmly non-expansive.
    """
    results = [_check_map(lambda v, *out: h.retrieve(v, t, psi, *out), z, where) for z in duals]
    convex = getattr(psi, "convex", True)
    prefix = f"{where}: not the minimiser of -<z, w> + t psi(w) + h(w) (prox: 1/2 ||w - v||^2 + step psi(w)), {convex=}"
    # With a large step most results are the same point.
    others = np.unique(np.reshape(results + more, (-1, duals[0].size)), axis=0)
    ends = [psi.value(x.reshape(duals[0].shape)) for x in others]
    for w, z in np.reshape([*zip(results, duals, strict=True)], (-1, 2, duals[0].size)):
        tried = _towards(w, others)
        here, *values = [psi.value(x.reshape(duals[0].shape)) for x in (w, *tried[len(others) :])]
        values = ends + values
        require(math.isfinite(here + h.value(w)), f"{where}: psi or h is not finite at the result:", w=w)
        tried = tried[np.isfinite(values)]
        here, there = t * here, t * np.array(values)[np.isfinite(values)]
        dual, moves = h.gradient(w), tried - w
        # Effect of the rounding of w on its dual, which is large around a center and for a large p.
        signs = np.where(np.arange(w.size) % 2, -_EPS / 8.0, _EPS / 8.0)
        blur = 2.0 * np.abs(h.gradient(w * (1.0 + signs)) - h.gradient(w * (1.0 - signs)))
        excess = here - there - moves @ (dual - z) - (0.0 if convex else 0.5) * (moves**2).sum(axis=1)
        limits = 1e-11 * (np.abs(moves) @ (np.abs(dual) + np.abs(z)) + np.abs(here - there)) + np.abs(moves) @ blur
        # A projection is rounded by eps times its size, which is multiplied by the distance to z.
        limits += 1e-13 * (abs(here) + np.abs(there)) + 1e-15 + _EPS * (np.abs(tried) + np.abs(w)) @ np.abs(dual - z)
        _below(excess, limits, prefix, tried, argument=z, result=w)
    return results


# --- objectives -----------------------------------------------------------------------------------------------------


def check_objective(objective: Objective, seed: int = 0, *, precision: str = "float64") -> None:
    """Check that an objective fulfils the contract of :class:`flwr_fco.objectives.Objective`.

    At a few random points: the gradient agrees with differences of the value; :meth:`add_gradient` adds scale times the
    gradient; :meth:`value_and_gradient` agrees with both; metrics are Python numbers; the point is not changed. The
    number of batches is as requested, also with two per step, and equal generators give equal batches. If batches are
    row numbers, an epoch contains every row once, including the last partial batch, and the gradients of its batches,
    weighted by batch size, average to the full gradient, but are not all equal to it. If they are known: Hessian
    products agree with differences of the gradient, values and gradients along a line agree with those at its points,
    and the bounds on the curvature hold. With `least` the loss is convex, and nowhere less; no slope in one coefficient
    changes faster than :meth:`largest_square` says.

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
    checks = _Checks(objective, seed, precision)
    points = (np.zeros(checks.size), checks.draw(), checks.draw())
    for check in (checks.gradient, checks.batches, checks.batch_gradients, checks.hessian, checks.line):
        for w in points:
            check(objective, given := w.copy())
            agree(given, w, "value, gradient, add_gradient or metrics changed the point w in place")
    checks.curvature(objective)


def check_saddle_objective(objective: SaddleObjective, seed: int = 0) -> None:
    """Check that an objective fulfils the contract of :class:`flwr_fco.objectives.SaddleObjective`.

    As :func:`check_objective`, for the operator instead of the gradient: it agrees with differences of f, with the
    sign changed for the maximising player; it is monotone if the class says so, strongly if the modulus is known. The
    operator on batches is unbiased.

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
    size = objective.layout.size
    rng = np.random.default_rng(seed)
    require(0 < objective.split < size, f"{objective.split=}; expected both players to have some of {size} coordinates")
    check_objective(objective, seed)
    w = rng.normal(size=size)
    samples = np.array([objective.gradient(w, batch) for batch in objective.batches(rng, Steps(1000, batch_size=1))])
    exact = objective.gradient(w)
    allowed = 6.0 * samples.std(axis=0) / np.sqrt(len(samples)) + 1e-10 * (1.0 + _largest(exact))
    _below(np.abs(samples.mean(axis=0) - exact), allowed, "the mean of batches is not the exact operator", samples.T)


def _is_rows(batch: Any) -> bool:
    return isinstance(batch, np.ndarray) and batch.ndim == 1 and batch.dtype.kind == "i"


class _Checks:
    """The checks of one objective f."""

    def __init__(self, objective: Objective, seed: int, precision: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.size = objective.layout.size
        self.same, self.slope, self.noise, self.step = _ACCURACY[precision]
        self.modulus = attempt(objective.strong_convexity)

    def draw(self, scale: float = 1.0) -> Vector:
        return np.asarray(scale * self.rng.normal(size=self.size) / np.sqrt(self.size))

    def difference(self, function: Callable[[Vector], Any], w: Vector, direction: Vector) -> Any:
        """Return the derivative at w along a direction, by fourth-order differences."""
        near, far = (function(w + step) - function(w - step) for step in self.step * np.outer((1, 2), direction))
        return (8.0 * near - far) / (12.0 * self.step)

    def batches(self, f: Objective, w: Vector) -> None:
        """Check sizes and rows of an epoch, that batches are as many as asked, and the same for equal generators."""
        n = f.num_examples
        # At 0 the gradients of different batches may be equal.
        w = w + self.draw()
        require(n >= 1, f"num_examples={n}, expected at least 1")
        works = [work for k in {1, n // 3 + 1, n - 1 or 1, n + 1} for work in (Epochs(1, k), Steps(n // k + 2, k))]
        for work, per_step in [(work, count) for work in (*works, Steps(2, batch_size=None)) for count in (1, 2)]:
            made = (f.batches, f.batches, partial(Objective.batches, f))
            one, two, plain = ([*batches(np.random.default_rng(0), work, per_step)] for batches in made)
            rows = all(map(_is_rows, one))
            whole = not (rows and work.epochs and per_step == 1) or sorted(np.concatenate(one)) == [*range(n)]
            require(whole, f"an epoch has not each of {n} rows exactly once: is the last partial batch kept?")
            require(len(one) == len(plain), f"batches: {len(one)} for {work!r}, {per_step} a step, not {len(plain)}")
            require(work.batch_size or all(batch is None for batch in one), "expected None for each full batch")
            # The first batches are used after the second ones are drawn: the objective must not hold their state.
            first, second = (np.array([f.gradient(w, batch) for batch in batches]) for batches in (one, two))
            require(np.array_equal(first, second), "generators of the same seed give other batches: draw from rng")
            ignores = rows and work.batch_size == 1 < n and bool((first == f.gradient(w)).all())
            require(not ignores, "gradient(w, batch) is that of all rows: does it ignore its batch?")

    def gradient(self, f: Objective, w: Vector) -> None:
        """Check types, that the gradient overwrites `out`, its numbers, values and tangents, and the metrics.

        A gap is made of tangents and of the least value.
        """
        value = f.value(given := w.copy())
        agree(given, w, "value changed the point w in place")
        gradient = _check_map(lambda v, *out: f.gradient(v, None, *out), w, "gradient(w, batch)", in_place=False)
        require(type(value) is float, f"value(w) is {value!r}, not a Python float")
        signs = np.ones(w.size)
        saddle = f.ascends is not None
        signs[slice(0) if f.ascends is None else f.ascends] = -1.0
        modulus = 0.0 if f.smooth else self.modulus or 0.0
        # The ends of an array are easily forgotten; the last one is the intercept in most models.
        ends = [i for entry in f.layout.optimized for i in (entry.block.start, entry.block.stop - 1)]
        for direction in (*np.eye(w.size)[np.union1d(self.rng.permutation(w.size)[:20], ends)], self.draw()):
            slope = float(signs * gradient @ direction)
            size = 0.01 * (float(np.linalg.norm(gradient)) + saddle)
            if f.smooth:
                prefix = f"the gradient is not what differences of the value give, at {np.abs(direction).argmax()}"
                expected = self.difference(f.value, w, direction)
                size += abs(expected) + self.noise / self.slope * (1.0 + abs(value))
                agree(slope, expected, prefix + ": is its sign right for y?" * saddle, self.slope, size)
            # Nearby points on both sides test the derivative, if there is one; distant points test the convexity.
            curvature = max(f.l2 * float(direction @ f.ridged(direction)), modulus * float(direction @ direction))
            for step in (self.step, -self.step, 1.0, -1.0, 30.0, -30.0) if f.least is not None or not f.smooth else ():
                there = f.value(v := w + step * direction)
                line = value + step * slope + 0.5 * step**2 * curvature
                noise = self.noise * (1.0 + abs(value) + abs(line) + abs(there))
                prefix = f"value {there:.8g} < line {line:.8g}: no subgradient, or the strong convexity is less"
                require(there >= line - noise, f"{prefix}; gaps would be wrong: not convex, or has another l2 term")
                loss = there - 0.5 * f.l2 * float(v @ f.ridged(v))
                good = f.least is None or -np.inf < f.least <= loss + noise
                require(good, f"gaps would be wrong: the loss is {loss:.8g} where it says least={f.least}")
        good = "loss" in (metrics := f.metrics(w)) and all(type(each) in (float, int) for each in metrics.values())
        require(good, f"metrics(w) is {metrics}; expected Python numbers, among them 'loss'")
        agree(metrics["loss"], value, "metrics['loss'] differs from value(w)", 0.01 * self.same)

    def batch_gradients(self, f: Objective, w: Vector) -> None:
        """Check add_gradient and value_and_gradient, of all rows and of batches, means of an epoch, the conjugate."""
        batches = [*f.batches(self.rng, Epochs(1, batch_size=f.num_examples // 3 + 1))]
        reported = np.empty((1 + len(batches), w.size + 1))
        for batch, row in zip((None, *batches), reported, strict=True):
            gradient = f.gradient(w, batch)
            start = self.draw()
            f.add_gradient(w, batch, -0.3, out := start.copy())
            agree(out, start - 0.3 * gradient, "add_gradient(w, batch, -0.3, out) adds something else", self.same)
            pair = attempt(f.value_and_gradient, w, batch, out)
            if pair is not None:
                require(type(pair[0]) is float and pair[1] is out, "value_and_gradient gave no Python float and out")
                agree(out, gradient, "value_and_gradient(w, batch)[1] differs from gradient(w, batch)", self.same)
            row[:] = *gradient, pair[0] if pair else f.value(w)
        agree(reported[0, -1], f.value(w), "value_and_gradient(w)[0] differs from value(w)", self.same)
        if all(map(_is_rows, batches)):
            mean = np.average(reported[1:], axis=0, weights=[batch.size for batch in batches])
            agree(mean[:-1], reported[0, :-1], "an epoch's batches do not average to the full gradient", self.same)
            agree(mean[-1], reported[0, -1], "the values of an epoch's batches do not average to value(w)", self.same)
        # The conjugate at the gradient, both without the ridge, is no less than value and gradient say.
        if terms := attempt(f.dual_terms, [w], [1.0]):
            ridge = f.l2 * f.ridged(w)
            inner, value = float((reported[0, :-1] - ridge) @ w), reported[0, -1] - 0.5 * float(ridge @ w)
            prefix = "gaps would be wrong: dual_terms([w], [1.0])[0] is below <g, w> - value(w), of the gradient g"
            agree(min(terms[0], inner - value), inner - value, prefix, self.same, 1.0 + abs(value) + abs(inner))

    def hessian(self, f: Objective, w: Vector) -> None:
        size = self.noise / self.slope * (1.0 + _largest(f.gradient(w)))
        v = self.draw()
        on = np.union1d(self.rng.choice(w.size, size=min(32, w.size), replace=False), [w.size - 1]).astype(np.int64)
        rows = np.array([self.difference(f.gradient, w, each) for each in (*np.eye(w.size)[on], v)])
        product, block = attempt(f.hessian_product, w, v), attempt(f.hessian_block, w, on)
        entries = rows[:-1, on][np.triu_indices(on.size)]
        for who, found, expected in (("product(w, v)", product, rows[-1]), ("block(w, on)", block, entries)):
            if found is not None:
                require(f.smooth, f"hessian_{who} is known with smooth = False, where the gradient jumps")
                require(found.shape == expected.shape, f"hessian_{who} has shape {found.shape}, not {expected.shape}")
                agree(found, expected, f"hessian_{who}, against differences,", self.slope, size + _largest(expected))

    def line(self, f: Objective, w: Vector) -> None:
        directions = (self.draw(), self.draw())
        line = attempt(f.along, w, directions[0])
        # The second line starts at the last point of the first one.
        for direction in directions if line else ():
            plain = Line(f, w, direction)
            for step in (0.0, 0.7, -1.3):
                (value, slope), (there, rise), where = line(step), plain(step), f"along(w, direction)({step})"
                agree(value, there, f"{where}[0] is not the value there", self.same)
                agree(slope, rise, f"{where}[1] is not the slope there", self.same)
                agree(line.gradient(step), plain.gradient(step), f"{where}, its gradient({step}) is off", self.same)
                product = attempt(plain.curvature(step), direction)
                if product is not None:
                    agree(line.curvature(step)(direction), product, f"{where}, its curvature({step}) is off", 1e-5)
            line = line.turn(step, directions[1])
            w = w + step * direction

    def curvature(self, f: Objective) -> None:
        """Check the constants, and that a gradient is monotone, strongly if that is known."""
        least = self.modulus or 0.0
        square = attempt(f.largest_square)
        monotone = getattr(f, "monotone", self.modulus is not None)
        require(least >= 0.0, f"strong_convexity()={least!r}; expected a number >= 0")
        # Half of the pairs are close, because distant pairs show only the mean of a varying curvature.
        for distance in [1.0, 1e-3] * 10:
            u = self.draw()
            move = self.draw(distance)
            slopes = f.gradient(u)
            change = f.gradient(u + move) - slopes
            for norm, order, dual in (("l2", 2, 2), ("l1", 1, np.inf)):
                most = attempt(f.lipschitz, norm)
                unit = np.linalg.norm(change, dual) / np.linalg.norm(move, order)
                require(f.smooth or most is None, f"{most=} of {norm} with smooth = False, where the gradient jumps")
                prefix = f"lipschitz({norm!r})={most}, but the gradient or operator changed by {unit:.6g} a unit"
                require(most is None or unit <= most * (1.0 + 1e-6), prefix)
            curvature = float(change @ move / (move @ move))
            slack = 1e-9 + 1e-10 * _largest(change) / _largest(move)
            prefix = f"f is not as convex (concave in y) as strong_convexity()={least}: curvature {curvature:.6g}"
            require(not monotone or curvature >= least * (1.0 - 1e-6) - slack, prefix)
            for j in np.flatnonzero(f.ridged(move)) if square is not None else ():
                alone = np.where(np.arange(self.size) == j, move, 0.0)
                unit = (f.gradient(u + alone) - slopes)[j] / move[j] - f.l2
                good = unit <= square * (1.0 + 1e-6) + slack
                require(good, f"a slope changes by {unit:.6g} a unit, by largest_square() {square:.6g} at most")


# --- strategies -------------------------------------------------------------------------------------------------------


def _client(seed: int, form: Any = None) -> LeastSquares:
    """Return a well-conditioned client, with data from a model of its own; in a form, of six of 24 columns."""
    rng = np.random.default_rng(seed)
    features = np.sqrt(30) * np.linalg.qr(rng.standard_normal((30, 6)))[0]
    truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(6)
    wide = form and form(np.pad(features, ((0, 0), (6 * seed, 18 - 6 * seed))))
    return LeastSquares(features if form is None else wide, features @ truth, scale=0.5)


@in_words("a run ended with an error", AssertionError, passing=AssertionError)
def check_strategy(make: Callable[..., CompositeStrategy], tolerance: float | None = 1e-4) -> None:
    """Check that a strategy fulfils the contract of :class:`flwr_fco.strategies.CompositeStrategy`.

    The problem is a small LASSO with four heterogeneous clients (or, for a method that refuses psi, the same least
    squares without psi). The strategy returns the user's names, shapes and dtypes; its state keeps its dtypes and
    shapes, a round does not change its arrays in place, and after saving and loading, the next round is identical bit
    for bit; the same seed gives identical results; with one local step it comes to the solution. Clients of a `sparse`
    method do on sparse features what they do on dense ones.

    Parameters
    ----------
    make : callable
        The class, or a function that takes the same keyword arguments and returns a strategy. Options that the strategy
        does not have, such as a client's learning rate, are omitted.
    tolerance : float or None, default 1e-4
        Largest distance of a coefficient to the solution, after 300 rounds of one local step with full batches. None
        for a method that only comes near, or much later.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part and by how much. Of a run that ends with an error of
        this package, such as one that diverges, that error is the cause.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> check_strategy(FedDualAvg)
    """
    like: Any = make()
    objectives = [_client(m) for m in range(4)]
    steps = isinstance(getattr(like, "work", None), FirstOrder)
    # A method whose work is its own draws minibatches if it has a rate.
    draws = steps or hasattr(like, "client_lr")
    psi = Zero() if "regularizer" in like.algorithm.refuses else L1(0.3)
    start = ArrayRecord({"coefficients": Array(np.zeros(6, np.float32)), "intercept": Array(np.zeros(1))})

    def build(client_lr: float = 0.1, batch_size: int | None = 7, **options: Any) -> CompositeStrategy:
        options |= {"regularizer": psi, "client_lr": client_lr, "min_train_nodes": 1, "fraction_evaluate": 0.0}
        options |= {"work": Epochs(1, batch_size)} if steps else {}
        return make(**{field.name: options[field.name] for field in fields(like) if field.name in options})

    def run(strategy: CompositeStrategy, rounds: int, losses: Any = objectives, start: Any = start, **more: Any) -> Any:
        app = client_app(lambda context: losses[int(context.node_config["partition-id"])])
        more |= {"initial_arrays": start, "progress": False, "on_interrupt": "raise"}
        return simulate(strategy, app, num_nodes=4, num_rounds=rounds, **more)

    # Without minibatches, only the sampling of clients is random.
    everyone = like.algorithm.reads == "everyone"
    states = list[Any]()
    one, twin, other = (build(seed=seed, fraction_train=1.0 if draws or everyone else 0.5) for seed in (3, 3, 5))
    watch: Any = lambda number, arrays, metrics: states.append((one.state, deepcopy(one.state)))  # noqa: E731
    result = run(one, 4, callbacks=[watch])
    _ = run(other, 4)
    got, expected = ({name: (a.dtype, *a.shape) for name, a in each.items()} for each in (result.arrays, start))
    require(got == expected, f"the arrays came back as {got}, the user gave {expected}")
    equal = all(map(np.array_equal, one.state, other.state))
    require(equal == (everyone and not draws), f"the seed has {'no' * equal} effect, where clients draw: {draws}")
    with tempfile.TemporaryDirectory() as folder:
        run(twin, 2, callbacks=[Checkpoint(path := f"{folder}/run.npz")])
        run(twin, 4, resume=path)
    require(all(map(np.array_equal, one.state, twin.state)), "two runs of one seed differ, of which one was resumed")
    for number, (state, held) in enumerate(states, 1):
        require(state.round == number, f"after {number} rounds the state says round {state.round}")
        for name, value in zip(held._fields, held, strict=True):
            agree(getattr(state, name), value, f"a round changed state.{name} in place: `aggregate` returns new arrays")
    if like.algorithm.sparse:
        ones = ArrayRecord({"coefficients": Array(np.ones(24)), "intercept": Array(np.ones(1))})
        forms = ([_client(m, form) for m in range(4)] for form in (csr_array, np.asarray))
        found, w = (run(build(0.05, seed=3), 3, own, ones).arrays["coefficients"].numpy() for own in forms)
        agree(found, w, "sparse features give another run than dense ones: does `local` move other columns?", 1e-9)
    if tolerance is not None:
        w = np.zeros(7)
        bound = psi.bind(objectives[0].layout)
        for _ in range(1000):
            w = bound.prox(w - 0.3 * np.mean([objective.gradient(w) for objective in objectives], axis=0), 0.3)
        found = np.concatenate([array.numpy() for array in run(build(0.3, batch_size=None), 300).arrays.values()])
        agree(found, w, "300 rounds of one local step do not come to the solution", tolerance, 1.0)
