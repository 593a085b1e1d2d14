"""Checks of the contracts of objectives, regularizers and mirror maps, for built-in and user-defined ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.mirror_maps.base import Euclidean, MirrorMap
from flwr_fco.objectives.base import DualTerms, Objective
from flwr_fco.objectives.duality import num_intercepts
from flwr_fco.objectives.saddle import SaddleObjective
from flwr_fco.regularizers.base import Array, BoundRegularizer, Proximable, Regularizer
from flwr_fco.regularizers.constraints import Box, L1Ball, L2Ball, LInfinityBall, NonNegative, Simplex
from flwr_fco.regularizers.norms import L2
from flwr_fco.regularizers.separable import L1, ElasticNet, L2Squared, Zero
from flwr_fco.work import FirstOrder

#: The regularizers that a map is checked with by default.
REGULARIZERS: tuple[Regularizer, ...] = (
    *(Zero(), L1(0.3), L1(0.3, bound=0.5), L2Squared(0.5), ElasticNet(0.4), NonNegative(), Box(-1.0, 0.5)),
    *(LInfinityBall(0.4), L1Ball(1.5), L2Ball(0.9), Simplex(1.0), L2(0.3)),
)
#: Accuracies by precision: relative of two sums in two orders, and of a derivative against differences; the rounding
#: error of a difference quotient, in units of the value; the step of the differences.
_ACCURACY = {"float64": (1e-10, 1e-6, 1e-10, 1e-4), "float32": (1e-4, 1e-2, 1e-3, 1e-2)}
_EPS = 64.0 * np.finfo(np.float64).eps


def require(condition: object, message: str, **points: Array) -> None:
    """Raise :class:`AssertionError` unless a condition holds, also when Python disables ``assert``.

    Parameters
    ----------
    **points : ndarray
        Points whose first entries end the message; only a failure formats them, which takes longer than most checks.
    """
    if not condition:
        raise AssertionError(message + "".join(f"\n  {name} = {point[:8]}" for name, point in points.items()))


def agree(found: Any, expected: Any, what: str, tolerance: float = 0.0, size: float | None = None) -> None:
    """Raise :class:`AssertionError` unless two numbers or arrays agree; say where they differ most.

    Parameters
    ----------
    tolerance : float, default 0.0
        Relative to `size`.
    size : float, optional
        By default 1 + the largest entry expected.
    """
    one, other = np.ravel(found), np.ravel(expected)
    gap, size = np.abs(one - other), 1.0 + float(np.abs(other).max(initial=0.0)) if size is None else size
    if not (gap <= tolerance * size).all():
        i = int(gap.argmax())
        raise AssertionError(f"{what}: {one[i]:.9g} instead of {other[i]:.9g}, in entry {i} of {gap.size}")


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or its ConfigurationError: what is not known, or not accepted."""
    try:
        return call(*arguments)
    except ConfigurationError as error:
        return error


def known(result: Any) -> bool:
    """Whether an attempt has succeeded."""
    return not isinstance(result, ConfigurationError)


# --- regularizers and mirror maps -----------------------------------------------------------------------------------


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
    rng, name = np.random.default_rng(seed), repr(regularizer)
    regularizer.check_shape("w", shape)
    points = _points(rng, shape, (0.01, 0.5, 1.0, 10.0, 1e3))
    feasible = [regularizer.prox(v.copy(), 1.0) for v in points]
    feasible += [regularizer.prox(p + 0.1 * rng.normal(size=shape), 0.1) for p in feasible[:4]]
    _check_once(Regularizer, regularizer, lambda each, v: each.prox(v, 0.5), points[0])
    for dtype, step in (("float64", -1.0), ("float64", math.nan), ("float64", math.inf), ("int64", 1.0)):
        what = (
            f"{name}: prox accepts step={step} for {dtype}; it has to raise ConfigurationError, as a FlatRegularizer's"
        )
        require(not known(attempt(regularizer.prox, points[0].astype(dtype), step)), what)
    for step in (1e-6, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e6):
        where, t = f"{name}, step {step:g}", 1.0 if regularizer.constraint else step
        call = partial(Euclidean().retrieve, t=step, regularizer=regularizer)
        results = _check_minima(Euclidean(), call, regularizer, t, points, where, feasible)
        for v, p in zip(points, results, strict=True):
            _check_prox(regularizer, v, p, step, where)
    if regularizer.constraint:
        _check_prox(regularizer, points[0], regularizer.prox(points[0].copy(), 0.0), 0.0, f"{name}, step 0")


def check_mirror_map(
    mirror_map: MirrorMap, dimension: int = 12, seed: int = 0, regularizers: Sequence[Proximable] = REGULARIZERS
) -> None:
    """Check that a mirror map fulfils its contract, on random duals with scales from 0.01 to 10.

    The map itself: ``conjugate_gradient`` preserves shape and dtype, does not change its argument, gives the same
    result with ``out`` and in place, and propagates NaN. With w = conjugate_gradient(z), both z and gradient(w) are
    subgradients of h at w (h(x) >= h(w) + <z, x - w> for every x), conjugate_gradient(gradient(w)) = w, and the
    Fenchel-Young inequality h(x) + h*(z) >= <z, x> holds with equality at w. conjugate_gradient is monotone, and
    ``from_spec(to_spec())`` reproduces the map. Then every pair with a regularizer is checked; see :func:`check_pair`.

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
    h, name, duals = mirror_map, repr(mirror_map), _points(np.random.default_rng(seed), (dimension,))
    primals = [_check_map(h.conjugate_gradient, z, f"{name}: conjugate_gradient") for z in duals]
    for i, (z, w) in enumerate(zip(duals, primals, strict=True)):
        dual, value, tried = h.gradient(w), h.value(w), _towards(w, np.delete(primals, i, axis=0))
        finite = isinstance(value, float) and math.isfinite(value)
        require(finite, f"{name}: value(conjugate_gradient(z)) is {value!r}; h is a finite float where the map goes")
        require(not np.shares_memory(dual, w), f"{name}: gradient has to return a new array")
        what, size = f"{name}: conjugate_gradient(gradient(w)) is not w", 1e-3 + float(np.abs(w).max())
        agree(h.conjugate_gradient(dual), w, what, 1e-10, size)
        size = abs(value) + abs(conjugate := h.conjugate(z)) + float(np.abs(z) @ np.abs(w)) + 1e-4
        agree(value + conjugate, z @ w, f"{name}: h(w) + h*(z) is not <z, w> at w = grad h*(z)", 1e-10, size)
        for who, slope in (("z", z), ("gradient(w)", dual)):
            excess = value + (tried - w) @ slope - np.array([h.value(x) for x in tried])
            limits = 1e-12 * (size + np.abs(tried) @ np.abs(slope) + float(np.abs(slope) @ np.abs(w)))
            _below(excess, limits, f"{name}: {who} is not a subgradient of h at w = grad h*(z)", tried, z=z, w=w)
    if h.kind:
        _check_once(MirrorMap, h, lambda each, z: each.conjugate_gradient(z), duals[0])
    for regularizer in regularizers:
        check_pair(h, regularizer, dimension, seed)


def check_pair(mirror_map: MirrorMap, regularizer: Proximable, dimension: int = 12, seed: int = 0) -> None:
    """Check that ``retrieve`` returns the minimiser of -<z, w> + t psi(w) + h(w), or refuses the pair by name.

    With w = retrieve(z, t), other feasible points x, t >= 0 and psi convex:
    <grad h(w) - z, x - w> + t (psi(x) - psi(w)) >= 0, the three-point inequality without its differences of squares. If
    grad h does not exist (entropy with a coordinate capped at 0), no x is better than w. ``retrieve`` gives the same
    result with ``out`` and in place. An unsupported pair raises an :class:`UnsupportedPairError` that names both.

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
    >>> from flwr_fco.regularizers import Box
    >>> check_pair(SimplexEntropy(), Box(0.0, 0.5))
    """
    psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
    name, duals = f"{mirror_map!r} with {psi!r}", _points(np.random.default_rng(seed), (dimension,))
    supported, error = mirror_map.supports(regularizer), attempt(mirror_map.retrieve, duals[0], 1.0, regularizer)
    if not (supported and known(error)):
        # Of sets without a common point the message tells the user to change one of them.
        names = type(mirror_map).__name__.removeprefix("Bound"), type(psi).__name__
        refused = isinstance(error, UnsupportedPairError) and all(each in str(error) for each in names)
        good = "do not meet" in str(error) if supported else refused
        require(good, f"{name}: supports() is {supported}, but retrieve returns, or does not name both: {error}")
        return
    feasible: list[Vector] = []
    for t in (0.0, 0.5, 20.0):
        where = f"{name}, t = {t:g}: retrieve"
        call = partial(mirror_map.retrieve, t=t, regularizer=regularizer)
        points = _check_minima(mirror_map, call, regularizer, t, duals, where, feasible)
        feasible = feasible or points
        for z, w in zip(duals, points, strict=True):
            require(math.isfinite(mirror_map.value(w)), f"{where}: the result is outside of the domain of h:", w=w)
            if isinstance(psi, Zero):
                agree(w, mirror_map.conjugate_gradient(z), f"{where} is not conjugate_gradient", 1e-14)


def _points(rng: np.random.Generator, shape: Any, sizes: Sequence[float] = (0.01, 0.5, 1.0, 3.0, 10.0)) -> list[Array]:
    """Return normal draws of these scales, and some points with ties and zeros."""
    signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    holes = np.where(rng.random(shape) < 0.5, 0.0, rng.normal(size=shape))
    return [*(size * rng.normal(size=shape) for size in sizes), np.zeros(shape), np.ones(shape), signs, holes]


def _towards(w: Array, others: Array) -> Array:
    """Return points between w and each of the others, as rows."""
    return np.concatenate([w + fraction * (others - w) for fraction in (1.0, 1e-2, 1e-4, 1e-6)])


def _below(excess: Array, limits: Array, what: str, x: Array, **points: Array) -> None:
    """Raise AssertionError at the first number above what rounding explains, with its point x."""
    for i in np.flatnonzero(~(excess <= limits)):
        require(False, f"{what}, by {excess[i]:.2e} (rounding would explain {limits[i]:.0e}) at", **points, x=x[i])


def _check_once(base: Any, thing: Any, call: Callable[[Any, Array], Array], v: Array) -> None:
    """Check that the spec rebuilds an equal object with an equal map, and that the map keeps a NaN."""
    copy, spoiled, name = base.from_spec(thing.to_spec()), v.copy(), repr(thing)
    same = type(copy) is type(thing) and copy == thing and hash(copy) == hash(thing)
    same = same and copy.to_spec().digest() == thing.to_spec().digest()
    require(same, f"{name}: its spec rebuilds {copy!r}, which is not equal to it")
    agree(call(copy, v.copy()), call(thing, v.copy()), f"{name}: its spec rebuilds an object with another map")
    spoiled.flat[v.size // 2 : v.size // 2 + 1] = np.nan
    what = f"{name}: NaN becomes a number; a NaN has to stay visible, or a diverged model looks fine"
    require(np.isnan(call(thing, spoiled.copy())[np.isnan(spoiled)]).all(), what)


def _check_map(call: Callable[..., Array], v: Array, who: str) -> Array:
    """Check that a map keeps shape and dtype, and gives the same finite result without `out`, with it and in place."""
    argument, out = v.copy(), np.full_like(v, np.nan)
    result = call(argument)
    got = f"{result.dtype}{result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
    require(got == f"{v.dtype}{v.shape}", f"{who} returned {got}, expected {v.dtype}{v.shape} as in its argument")
    require(np.isfinite(result).all(), f"{who} is not finite:", argument=v, result=result)
    require(not np.shares_memory(result, argument), f"{who} returned (a view of) its argument, expected a new array")
    require(call(argument, out=out) is out, f"{who} has to return out")
    agree(argument, v, f"{who} changed its argument; it may write to `out` only")
    agree(out, result, f"{who} writes something else to `out` than it returns without")
    require(call(argument, out=argument) is argument, f"{who} has to return out, which may be its argument")
    agree(argument, result, f"{who} in place (out is its argument, which has to be read before it is overwritten)")
    return result


def _check_prox(psi: Regularizer, v: Array, p: Array, step: float, where: str) -> None:
    """Check signs of zeros, psi's value, projections, and the result in float32."""
    single = v.astype(np.float32)
    narrow, exact = psi.prox(single, step), psi.prox(single.astype(np.float64), step)
    require(not np.signbit(p[p == 0.0]).any(), f"{where}: the result holds -0.0; zeros have to be +0.0 (add 0.0)")
    require(narrow.dtype == np.float32, f"{where}: prox returned {narrow.dtype} for float32; it has to keep the dtype")
    for value in (psi.value(p), psi.value(narrow)):
        good = isinstance(value, float) and math.isfinite(value) and not (psi.constraint and value)
        require(good, f"{where}: value(prox(v)) is {value!r}; expected a finite float, and 0.0 of a constraint")
    if psi.convex:
        size = max(1e-30, float(np.abs([single, exact]).max(initial=0.0)))
        agree(narrow, exact, f"{where}: float32 differs from float64", 1e-4, size)
    if psi.constraint:
        agree(p, psi.prox(v.copy(), 1.0), f"{where}: prox of a constraint depends on the step")
        size = max(1.0, float(np.abs(p).max(initial=0.0)))
        agree(psi.prox(p.copy(), step), p, f"{where}: projecting twice moves the point", _EPS, size)


def _check_minima(
    h: MirrorMap,
    call: Callable[..., Array],
    psi: Proximable,
    t: float,
    duals: list[Array],
    where: str,
    others: list[Array],
) -> list[Array]:
    """Check that no point is better than a result, by first-order conditions if h has a gradient and psi is convex.

    Against the other results, the inequality also says that the map is firmly non-expansive.
    """
    results, shape = [_check_map(call, z, where) for z in duals], duals[0].shape
    convex = not isinstance(psi, Regularizer) or psi.convex
    what = f"{where} is not the minimiser of -<z, w> + t psi(w) + h(w) (prox: 1/2 ||w - v||^2 + step psi(w)): "
    what += "the three-point inequality fails (is psi convex?)" if convex else "another point is better"
    points = np.array(results + others).reshape(len(results + others), -1)
    for i, z in enumerate(np.reshape(duals, (len(duals), -1))):
        w, tried = points[i], _towards(points[i], np.delete(points, i, axis=0))
        with np.errstate(invalid="ignore"):  # 0 times the infinity of a point that rounding has moved out of a set
            here, *values = t * np.array([psi.value(x.reshape(shape)) for x in (w, *tried)])
        require(math.isfinite(here), f"{where}: psi is {here} at the result:", w=w)
        there, tried = np.array(values)[np.isfinite(values)], tried[np.isfinite(values)]
        dual, moves = attempt(h.gradient, w), tried - w
        if known(dual):
            slope, blur, size = dual - z, np.zeros_like(w), np.abs(tried) + np.abs(w)
            # Effect of the rounding of w on its dual, which is large around a center and for a large p.
            for signs in (_EPS / 8.0, np.where(np.arange(w.size) % 2, _EPS / 8.0, -_EPS / 8.0)):
                blur += np.abs(h.gradient(w * (1.0 + signs)) - h.gradient(w * (1.0 - signs)))
            excess = here - there - moves @ slope - (0.0 if convex else 0.5) * (moves**2).sum(axis=1)
            limits = 1e-11 * (np.abs(moves) @ (np.abs(dual) + np.abs(z)) + np.abs(here - there)) + np.abs(moves) @ blur
            # A projection is rounded by eps times its size, which is multiplied by the distance to z.
            limits += 1e-13 * (abs(here) + np.abs(there)) + 1e-15 + _EPS * size @ np.abs(slope)
        else:
            excess = here + h.value(w) + moves @ z - there - np.array([h.value(x) for x in tried])
            limits = 1e-13 * (abs(here) + abs(h.value(w)) + 1.0 + 2.0 * np.abs(tried) @ np.abs(z))
        _below(excess, limits, what, tried, argument=z, result=w)
    return results


# --- objectives -----------------------------------------------------------------------------------------------------


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
    checks = _Checks(objective, seed, precision)
    for check in (checks.batches, checks.buffers, checks.points, checks.curvature, checks.dual_terms):
        check()


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
    size, split = objective.layout.size, objective.split
    require(0 < split < size, f"split={split}; expected both players to have coordinates, {size} together")
    check_objective(objective, seed)
    w, rng = np.linspace(-1.0, 2.0, size), np.random.default_rng(seed)
    # For rows the mean is exact over whole epochs; for noise its accuracy depends on the number of draws.
    work = FirstOrder(
        epochs=1 + 1000 // FirstOrder(epochs=1, batch_size=1).num_draws(objective.num_examples), batch_size=1
    )
    samples, exact = (
        np.array([objective.gradient(w, batch) for batch in objective.batches(rng, work)]),
        objective.gradient(w),
    )
    allowed = 6.0 * samples.std(axis=0) / np.sqrt(len(samples)) + 1e-10 * (1.0 + float(np.abs(exact).max()))
    what = f"the mean of {len(samples)} stochastic operators differs from the exact one"
    _below(np.abs(samples.mean(axis=0) - exact), allowed, what, samples.T)


def _is_rows(batch: Any) -> bool:
    return isinstance(batch, np.ndarray) and batch.ndim == 1 and batch.dtype.kind == "i"


class _Checks:
    """The checks of one objective f."""

    def __init__(self, objective: Objective, seed: int, precision: str) -> None:
        self.f, self.rng, self.size = objective, np.random.default_rng(seed), objective.layout.size
        self.same, self.slope, self.noise, self.step = _ACCURACY[precision]

    def draw(self, scale: float = 1.0) -> Vector:
        return scale * self.rng.normal(size=self.size) / np.sqrt(self.size)

    def difference(self, function: Callable[[Vector], Any], w: Vector, direction: Vector) -> Any:
        """Return the derivative at w along a direction, by fourth-order differences."""
        near, far = (function(w + step) - function(w - step) for step in self.step * np.outer((1, 2), direction))
        return (8.0 * near - far) / (12.0 * self.step)

    def points(self) -> None:
        f, points, ignores = self.f, [np.zeros(self.size), self.draw(), self.draw()], True
        rows = [*f.batches(self.rng, FirstOrder(epochs=1, batch_size=1))]
        for w in points:
            before, value = w.copy(), f.value(w)
            for check in (self.gradient, self.batch_gradients, self.hessian, self.line):
                check(w)
            metrics = f.metrics(w)
            agree(w, before, "value, gradient, add_gradient or metrics changed the point w in place")
            for name, number in metrics.items():
                require(type(number) in (float, int), f"metrics[{name!r}] is {number!r}, expected a Python number")
            require("loss" in metrics, f"metrics has no 'loss', only {sorted(metrics)}")
            agree(metrics["loss"], value, "metrics['loss'] differs from value(w)", 0.01 * self.same)
            ignores = ignores and all(np.array_equal(f.gradient(w, row), f.gradient(w)) for row in rows)
        what = "gradient(w, batch) is that of all rows, whatever the batch: does it ignore its batch?"
        many = len(rows) > 1 and all(map(_is_rows, rows))
        require(not (many and ignores), f"{what} (Where all examples are the same, give an objective with others.)")

    def gradient(self, w: Vector) -> None:
        """Check types, that the gradient overwrites `out`, and its numbers."""
        f, value, gradient, out = self.f, self.f.value(w), self.f.gradient(w), np.full_like(w, np.nan)
        require(type(value) is float, f"value(w) is a {type(value).__name__}, expected a Python float")
        got = f"{gradient.dtype}{gradient.shape}"
        require(got == f"float64{w.shape}", f"gradient(w) is {got}, expected float64{w.shape}")
        require(f.gradient(w, None, out) is out, "gradient(w, batch, out) did not return out")
        agree(out, gradient, "gradient(w, batch, out) differs from gradient(w, batch): is out cleared?")
        signs, modulus, saddle = np.ones(w.size), attempt(f.strong_convexity), f.ascends is not None
        signs[slice(0) if f.ascends is None else f.ascends] = -1.0
        # The last coordinate is the intercept in most models, which is easily forgotten, as are the ends of a player's.
        ends = np.flatnonzero(np.diff(signs, append=0.0))
        chosen = np.unique([*self.rng.permutation(w.size)[:20], *ends, *((ends + 1) % w.size)])
        what = "the gradient along a direction is not what differences of the value give"
        what += ", negated where f is maximised: is its sign right?" * saddle
        for direction in (*np.eye(w.size)[chosen], self.draw()):
            slope, size = float(signs * gradient @ direction), 0.01 * (float(np.linalg.norm(gradient)) + saddle)
            if f.smooth:
                expected, where = (
                    self.difference(f.value, w, direction),
                    f" (at coordinate {np.abs(direction).argmax()})",
                )
                size += abs(expected) + self.noise / self.slope * (1.0 + abs(value))
                agree(slope, expected, what + where, self.slope, size)
            # Nearby points on both sides test the derivative, if there is one; distant points test the convexity.
            for step in () if f.smooth else (self.step, -self.step, 1.0, -1.0):
                there, line = f.value(w + step * direction), value + step * slope
                line += 0.5 * (modulus if known(modulus) else 0.0) * step**2 * float(direction @ direction)
                below = f"the value is {there:.10g}, {step:g} away, where the gradient's line is {line:.10g}"
                good = there >= line - self.noise * (1.0 + abs(value) + abs(line))
                require(good, f"{below}: it is no subgradient, or the strong convexity is less")

    def batch_gradients(self, w: Vector) -> None:
        """Check add_gradient and value_and_gradient, of all examples and of batches, and the means over an epoch."""
        f, full, value = self.f, self.f.gradient(w), self.f.value(w)
        mean, mean_value, total, size = np.zeros_like(w), 0.0, 0.0, 1.0 + float(np.abs(full).max())
        for batch in (None, *f.batches(self.rng, FirstOrder(epochs=1, batch_size=f.num_examples // 3 + 1))):
            gradient, start, of = f.gradient(w, batch), self.draw(), 0.0
            size = max(size, float(np.abs(gradient).max()))
            for scale in (1.0, -0.3):
                f.add_gradient(w, batch, scale, out := start.copy())
                what = f"add_gradient(w, batch, {scale}, out) differs from out + {scale} * gradient(w, batch)"
                agree(out, start + scale * gradient, what, self.same, 1.0 + float(np.abs(gradient).max()))
            pair = attempt(f.value_and_gradient, w, batch, out)
            of = pair[0] if known(pair) else value
            if known(pair):
                good = type(of) is float and pair[1] is out
                require(good, "value_and_gradient(w, batch, out) did not return a Python float and out")
                agree(
                    out,
                    gradient,
                    "the gradient of value_and_gradient(w, batch) differs from gradient(w, batch)",
                    self.same,
                )
            if batch is None:
                agree(of, value, "value_and_gradient(w)[0] differs from value(w)", self.same)
            elif _is_rows(batch):
                share = batch.size / f.num_examples
                mean, mean_value, total = mean + share * gradient, mean_value + share * of, total + share
        if total:
            what = "of an epoch's batches, weighted by batch size, do not average to"
            end = ": a sum instead of a mean, or a regularization term not the same in every batch?"
            agree(mean, full, f"the minibatch gradients {what} the full gradient{end}", self.same, size)
            agree(mean_value, value, f"the values {what} value(w)", self.same)

    def hessian(self, w: Vector) -> None:
        f, size = self.f, self.noise / self.slope * (1.0 + float(np.abs(self.f.gradient(w)).max()))
        on = np.union1d(self.rng.choice(w.size, size=min(4, w.size), replace=False), [w.size - 1]).astype(np.int64)
        rows = np.array([self.difference(f.gradient, w, direction) for direction in np.eye(w.size)[on]])
        v, j = self.draw(), on.size - 1
        seconds = [("hessian_product(w, v)", attempt(f.hessian_product, w, v), self.difference(f.gradient, w, v))]
        seconds += [("hessian_product(w, v)", attempt(f.hessian_product, w, np.eye(w.size)[-1]), rows[j])]
        seconds += [("hessian_block(w, on)", attempt(f.hessian_block, w, on), rows[:, on][np.triu_indices(j + 1)])]
        for who, found, expected in seconds:
            if f.smooth and known(found):
                require(found.shape == expected.shape, f"{who} has shape {found.shape}, expected {expected.shape}")
                scale = size + float(np.abs(expected).max())
                agree(found, expected, f"{who} differs from differences of the gradient", self.slope, scale)

    def line(self, w: Vector) -> None:
        directions, f = (self.draw(), self.draw()), self.f
        line = attempt(f.along, w, directions[0])
        # The second line starts at the last point of the first one.
        for direction in directions if known(line) else ():
            for step in (0.0, 0.7, -1.3):
                trial, (value, slope) = w + step * direction, line(step)
                gradient, where = f.gradient(trial), f"along(w, direction)({step})"
                size = (1.0 + float(np.abs(gradient).max())) * (1.0 + float(np.linalg.norm(direction)))
                agree(value, f.value(trial), f"{where}[0] is not the value there", self.same)
                agree(slope, gradient @ direction, f"{where}[1] is not the slope there", self.same, size)
                agree(line.gradient(step), gradient, f"along(w, direction).gradient({step}) is off", self.same)
            line, w = line.turn(step, directions[1]), trial

    def batches(self) -> None:
        """Check sizes and rows of an epoch, that batches are as many as asked, and the same for equal generators."""
        n, f, w = self.f.num_examples, self.f, self.draw()
        require(n >= 1, f"num_examples={n}, expected at least 1")
        for size in sorted({1, max(1, n // 3), max(1, n - 1), n, n + 1}):
            batches, of = [*f.batches(self.rng, FirstOrder(epochs=1, batch_size=size))], f"of {size} out of {n} rows"
            if all(map(_is_rows, batches)):
                sizes = [batch.size for batch in batches]
                good = sizes == [size] * (n // size) + [n % size] * (n % size > 0)
                require(good, f"batches {of} have sizes {sizes}: expected full ones, and the last partial one")
                good = np.array_equal(np.sort(np.concatenate(batches)), np.arange(n))
                require(good, f"an epoch in batches {of} does not cover each of them exactly once")
            for work in (FirstOrder(epochs=1, batch_size=size), FirstOrder(steps=n // size + 2, batch_size=size)):
                for per_step in (1, 2):
                    count, wanted = len([*f.batches(self.rng, work, per_step)]), work.num_draws(n, per_step)
                    what = (
                        f"batches(rng, {work!r}, per_step={per_step}), {per_step} a step, yields {count}, not {wanted}"
                    )
                    require(count == wanted, what)
                # Use the first batches after drawing the second ones, because the objective must not hold their state.
                twins = zip(*([*f.batches(np.random.default_rng(0), work)] for _ in range(2)), strict=True)
                same = all(np.array_equal(f.gradient(w, one), f.gradient(w, two)) for one, two in twins)
                what = "equal generators, of the same seed, give batches with different gradients"
                require(same, f"{what}: what is random must come from rng and be part of the batch")
        full = [*f.batches(self.rng, FirstOrder(steps=2, batch_size=None), 2)]
        good = len(full) == 4 and all(batch is None for batch in full)
        require(good, "batches(rng, FirstOrder(steps=2, batch_size=None), 2) should yield None for each full batch")

    def buffers(self) -> None:
        buffers, names = self.f.buffers(), sorted(entry.name for entry in self.f.layout.passed_through)
        require(sorted(buffers) == names, f"buffers() has {sorted(buffers)}; what is not optimised is {names}")
        self.f.load_buffers(buffers)
        for name, array in self.f.buffers().items():
            agree(array, buffers[name], f"load_buffers(buffers()) changes {name!r}")
        refused = not known(attempt(self.f.load_buffers, {**buffers, "no such buffer": np.zeros(1)}))
        require(refused, "load_buffers takes a name that buffers() does not have; expected a ConfigurationError")

    def curvature(self) -> None:
        """Check the constants, and that a gradient is monotone, strongly if that is known."""
        f, at, modulus = self.f, np.zeros(self.size), attempt(self.f.strong_convexity)
        constants = [attempt(f.lipschitz, norm) for norm in ("l2", "l1")]
        second = [attempt(f.hessian_product, at, at), attempt(f.hessian_block, at, np.zeros(1, dtype=np.int64))]
        what = "a lipschitz constant or a Hessian is known of an objective with smooth = False, whose gradient jumps"
        require(f.smooth or not any(map(known, constants + second)), what)
        monotone, least = getattr(f, "monotone", known(modulus)), modulus if known(modulus) else 0.0
        require(least >= 0.0, f"strong_convexity()={least!r}; expected a number >= 0")
        # Half of the pairs are close, because distant pairs show only the mean of a varying curvature.
        for distance in [1.0, 1e-3] * 10:
            u, move = self.draw(), self.draw(distance)
            change = f.gradient(u + move) - f.gradient(u)
            for constant, norm, dual in zip(constants, (2, 1), (2, np.inf), strict=True):
                unit = float(np.linalg.norm(change, dual) / np.linalg.norm(move, norm))
                what = f"lipschitz('l{norm}')={constant}, but the gradient or operator changed by {unit:.6g} a unit"
                require(not known(constant) or unit <= constant * (1.0 + 1e-6), what)
            curvature = float(change @ move / (move @ move))
            limit = least * (1.0 - 1e-6) - 1e-10 * float(np.linalg.norm(change) / np.linalg.norm(move)) - 1e-9
            what = f"strong_convexity()={least}, but the curvature <g(u) - g(v), u - v> / |u - v|^2 is {curvature:.6g}"
            what += ": f is not as convex (and, of a saddle function, concave in y) as the class says"
            require(curvature >= limit or not monotone, what)

    def dual_terms(self) -> None:
        """Compare values, near and far, with tangents and with the least value: a gap is made of both."""
        f, slopes, terms = self.f, range(self.size - num_intercepts(self.f.layout)), self.f.dual_terms()
        for distance in np.geomspace(1e-2, 1e2, 20) if isinstance(terms, DualTerms) else ():
            ridge = np.where(np.arange(self.size) < len(slopes), terms.l2, 0.0)
            w, v = self.draw(distance), self.draw(distance)
            (value, gradient), there = f.value_and_gradient(w), f.value(v)
            tangent = value - 0.5 * float(ridge @ w**2) + float((gradient - ridge * w) @ (v - w))
            noise, loss = self.noise * (1.0 + abs(value) + abs(tangent) + abs(there)), there - 0.5 * float(ridge @ v**2)
            what = f"the loss is {loss:.8g} where its tangent from another point is {tangent:.8g}: it is not convex, or"
            require(loss >= tangent - noise, f"{what} has another l2 term than dual_terms() says; gaps would be wrong")
            what = f"the loss is {loss:.8g}, and dual_terms() says least={terms.least:.8g}: gaps would be wrong"
            require(loss >= terms.least - noise, what)
            for j in slopes if terms.link == "profiled" else ():
                moved, step = np.where(np.arange(self.size) == j, v, w), v[j] - w[j]
                change = abs(float((f.gradient(moved) - gradient)[j]) - ridge[j] * step)
                most = (1.0 + 1e-6) * f.largest_square() * abs(step) + self.noise * (1.0 + abs(value))
                what = f"a slope changes by {change:.6g} where largest_square() allows {most:.6g}"
                require(change <= most, f"{what}: coefficients that are not 0 would be proved zero")
