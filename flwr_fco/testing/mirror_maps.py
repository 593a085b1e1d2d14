"""Checks of the contract of a mirror map, for built-in and user-defined maps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer, Proximable, Regularizer
from flwr_fco.regularizers.constraints import Box, L1Ball, L2Ball, LInfinityBall, NonNegative, Simplex
from flwr_fco.regularizers.groups import L2
from flwr_fco.regularizers.separable import L1, ElasticNet, L2Squared, Zero
from flwr_fco.testing.objectives import require
from flwr_fco.testing.regularizers import check_map, points_of, require_below

#: The regularizers that a map is checked with by default.
REGULARIZERS: tuple[Regularizer, ...] = (
    Zero(),
    L1(0.3),
    L1(0.3, bound=0.5),
    L2Squared(0.5),
    ElasticNet(0.4),
    NonNegative(),
    Box(-1.0, 0.5),
    LInfinityBall(0.4),
    L1Ball(1.5),
    L2Ball(0.9),
    Simplex(1.0),
    L2(0.3),
)
#: Weights of psi at which pairs are checked.
TIMES = (0.0, 0.5, 20.0)
#: Scales of the duals.
SIZES = (0.01, 0.5, 1.0, 3.0, 10.0)
#: Steps from the minimiser towards other points.
FRACTIONS = (1.0, 1e-2, 1e-4)


def check_mirror_map(
    mirror_map: MirrorMap,
    dimension: int = 12,
    seed: int = 0,
    regularizers: Sequence[Proximable] | None = None,
    scales: Sequence[float] = (),
) -> None:
    """Check that a mirror map fulfils its contract, on random duals with scales from 0.01 to 10 and those in `scales`.

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
    regularizers : sequence of Regularizer or BoundRegularizer, optional
        The regularizers to pair it with; by default one of each kind that acts on a plain vector.
    scales : sequence of float, optional
        Additional scales of duals, such as 1e-300 and 1e300, for which the map must have finite primal points.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part, where and by how much.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> check_mirror_map(PNorm(4.0), dimension=5, scales=(1e-300, 1e300))
    """
    rng = np.random.default_rng(seed)
    name = repr(mirror_map)
    duals = points_of(rng, (dimension,), SIZES)
    primals = [_check_call(mirror_map, z, name) for z in duals]
    spoiled = duals[0].copy()
    spoiled[dimension // 2] = np.nan
    what = f"{name}: a NaN in the dual vanishes; it has to stay visible, or a diverged model looks fine"
    require(np.isnan(mirror_map.conjugate_gradient(spoiled)).any(), what)
    for z, w in zip(duals, primals, strict=True):
        _check_dual(mirror_map, z, w, primals, name)
    _check_monotone(duals, primals, name)
    for scale in scales:
        for z in duals[:5]:
            w = mirror_map.conjugate_gradient(scale * z)
            what = f"{name}: conjugate_gradient of duals of size {scale:g} is not finite:"
            require(np.isfinite(w).all(), what, w)
            _check_monotone([scale * z, np.zeros(dimension)], [w, mirror_map.start(dimension)], name)
    if mirror_map.kind:
        copy = MirrorMap.from_spec(mirror_map.to_spec())
        require(copy == mirror_map, f"{name}: its spec rebuilds {copy!r}, which is not equal to it")
        require(hash(copy) == hash(mirror_map), f"{name}: equal maps have different hashes")
        same = np.array_equal(copy.conjugate_gradient(duals[0]), primals[0])
        require(same, f"{name}: the rebuilt map differs")
    for regularizer in REGULARIZERS if regularizers is None else regularizers:
        check_pair(mirror_map, regularizer, dimension, seed)


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
    >>> from flwr_fco.regularizers import L1
    >>> check_pair(SimplexEntropy(), L1(0.5))
    """
    psi = regularizer.regularizer if isinstance(regularizer, BoundRegularizer) else regularizer
    name = f"{mirror_map!r} with {psi!r}"
    rng = np.random.default_rng(seed)
    duals = points_of(rng, (dimension,), SIZES)
    supported = mirror_map.supports(regularizer)
    if not supported:
        _check_refusal(mirror_map, regularizer, duals[0], psi, name)
        return
    mirror_map.require(regularizer)
    for t in TIMES:
        where = f"{name}, t = {t:g}"

        def retrieve(z: Vector, out: Vector | None, t: float = t) -> Vector:
            return mirror_map.retrieve(z, t, regularizer, out)

        try:
            points = [check_map(retrieve, z, f"{where}: retrieve") for z in duals]
        except ConfigurationError as error:
            raise AssertionError(f"{name}: supports() is True, but retrieve raises: {error}") from error
        for z, w in zip(duals, points, strict=True):
            require(np.isfinite(w).all(), f"{where}: the result is not finite:", w)
            require(math.isfinite(mirror_map.value(w)), f"{where}: the result is outside the domain of h:", w)
            require(math.isfinite(regularizer.value(w)), f"{where}: the result is infeasible for psi:", w)
            _check_minimum(mirror_map, regularizer, z, t, w, points, where)
            if isinstance(psi, Zero):
                gap = float(np.abs(w - mirror_map.conjugate_gradient(z)).max())
                close = gap <= 1e-14 * (1.0 + float(np.abs(w).max()))
                require(close, f"{name}: differs from conjugate_gradient by {gap:.2e}")


def _check_call(mirror_map: MirrorMap, z: Vector, name: str) -> Vector:
    """Check shape, dtype, `out` and in-place calls; return the primal point."""
    w = check_map(mirror_map.conjugate_gradient, z, f"{name}: conjugate_gradient")
    require(np.isfinite(w).all(), f"{name}: conjugate_gradient is not finite (z and its primal point):", z, w)
    value = mirror_map.value(w)
    require(isinstance(value, float), f"{name}: value returned a {type(value).__name__}, expected a float")
    what = f"{name}: value(conjugate_gradient(z)) is {value}; h is finite where the map goes"
    require(math.isfinite(value), what)
    return w


def _check_dual(mirror_map: MirrorMap, z: Vector, w: Vector, others: list[Vector], name: str) -> None:
    """Check that z and gradient(w) are subgradients at w, the round trip of w, and Fenchel-Young."""
    dual = mirror_map.gradient(w)
    require(not np.shares_memory(dual, w), f"{name}: gradient has to return a new array")
    gap = float(np.abs(mirror_map.conjugate_gradient(dual) - w).max())
    what = f"{name}: conjugate_gradient(gradient(w)) differs from w by {gap:.2e} at w ="
    require(gap <= 1e-10 * (1e-3 + float(np.abs(w).max())), what, w)
    value, conjugate = mirror_map.value(w), mirror_map.conjugate(z)
    gap = value + conjugate - float(z @ w)
    size = abs(value) + abs(conjugate) + float(np.abs(z) @ np.abs(w))
    what = f"{name}: h(w) + h*(z) - <z, w> = {gap:.2e} at w = grad h*(z), expected 0"
    require(abs(gap) <= 1e-10 * size + 1e-14, what)
    tried = _towards(w, others)
    values = np.array([mirror_map.value(x) for x in tried])
    for who, slope in (("z", z), ("gradient(w)", dual)):
        excess = value + (tried - w) @ slope - values
        limits = 1e-12 * (size + np.abs(tried) @ np.abs(slope) + float(np.abs(slope) @ np.abs(w))) + 1e-15
        what = f"{name}: {who} is not a subgradient of h at w = grad h*(z): h(w) + <{who}, x - w> exceeds h(x)"
        require_below(excess, limits, what, {"z": z, "w": w, "x": tried})


def _towards(w: Vector, others: list[Vector]) -> Vector:
    """Return the given points, and points between w and each of them, as rows."""
    moves = np.array([point for point in others if point is not w]) - w
    return np.concatenate([w + fraction * moves for fraction in FRACTIONS])


def _check_monotone(duals: Sequence[Vector], primals: Sequence[Vector], name: str) -> None:
    """Check <z - y, w - v> >= 0 for all pairs, which holds for the gradient of a convex function."""
    i, j = np.tril_indices(len(duals), -1)
    apart, moved = np.array(duals)[i] - np.array(duals)[j], np.array(primals)[i] - np.array(primals)[j]
    # Duals in units of their largest entry, which can be 1e300.
    products = apart / np.maximum(np.abs(apart).max(axis=1, keepdims=True), 1e-300) * moved
    what = (
        f"{name}: conjugate_gradient is not monotone: <z - y, w - v>, z - y in units of its largest entry, is below 0"
    )
    points = {"z": np.array(duals)[i], "y": np.array(duals)[j]}
    require_below(-products.sum(axis=1), 1e-12 * np.abs(products).sum(axis=1), what, points)


def _check_minimum(
    mirror_map: MirrorMap, regularizer: Proximable, z: Vector, t: float, w: Vector, points: list[Vector], where: str
) -> None:
    """Check that no other point is better, by first-order conditions if h has a gradient at w."""
    psi, tried = t * regularizer.value(w), _towards(w, points)
    with np.errstate(invalid="ignore"):  # 0 times the infinity of a point that rounding has moved out of a set
        there = t * np.array([regularizer.value(x) for x in tried])
    tried, there = tried[np.isfinite(there)], there[np.isfinite(there)]
    try:
        dual = mirror_map.gradient(w)
    except ConfigurationError:
        here = -float(z @ w) + psi + mirror_map.value(w)
        deficits = here + tried @ z - there - np.array([mirror_map.value(x) for x in tried])
        limits = np.full(len(tried), 1e-13 * (abs(here) + float(np.abs(z) @ np.abs(w)) + 1.0))
    else:
        # Effect of the rounding of w on its dual, which is large around a center and for a large p.
        nudge, blur = 8.0 * np.finfo(np.float64).eps, np.zeros_like(w)
        for signs in (nudge, np.where(np.arange(w.size) % 2, nudge, -nudge)):
            blur += np.abs(mirror_map.gradient(w * (1.0 + signs)) - mirror_map.gradient(w * (1.0 - signs)))
        changes = np.abs(tried - w)
        deficits = psi - there - (tried - w) @ (dual - z)
        limits = 1e-11 * (changes @ (np.abs(dual) + np.abs(z)) + np.abs(psi - there))
        limits += changes @ blur + 1e-13 * (abs(psi) + np.abs(there)) + 1e-15
    what = f"{where}: retrieve is not the minimiser of -<z, w> + t psi(w) + h(w): the first-order inequality fails"
    require_below(deficits, limits, what, {"z": z, "retrieve(z, t)": w, "x": tried})


def _check_refusal(mirror_map: MirrorMap, regularizer: Proximable, z: Vector, psi: object, name: str) -> None:
    """Check that all methods refuse an unsupported pair by name."""
    title = type(mirror_map).__name__.removeprefix("Bound")
    for what, arguments in (("require", (regularizer,)), ("retrieve", (z, 1.0, regularizer))):
        message = ""
        try:
            getattr(mirror_map, what)(*arguments)
        except UnsupportedPairError as error:
            message = str(error)
        require(message, f"{name}: supports() is False, but {what} raises no UnsupportedPairError")
        for part in (title, type(psi).__name__):
            require(part in message, f"{name}: the error of {what} does not name {part}: {message}")
