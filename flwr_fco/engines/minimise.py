"""One local minimisation: f(w) - <shift, w> + penalty/2 ||w - center||^2, until its gradient is as small as asked for.

Squares are solved by the eigenvectors of their Hessian, which are computed once for all rounds and penalties; losses
with a Hessian by Newton's method with conjugate gradients, whose line searches read no features; others by SciPy's
L-BFGS-B. A loss may bring a `minimiser` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.linear import MultinomialLogistic
from flwr_fco.work import Minimise

#: Largest number of parameters for which the eigenvectors of a quadratic are computed.
LARGEST = 1024
#: Curvature, relative to the largest one, that consists of rounding errors, and a slope, relative to the first
#: gradient, that these do not explain.
_FLAT = float(np.finfo(np.float64).eps)
_STEEP = math.sqrt(_FLAT)
#: Loosest relative residual of a Newton equation.
_LOOSEST = 0.3
#: Part of the predicted decrease that a step must achieve, the shortest step, and a value's rounding error.
_SUFFICIENT = 1e-4
_SHORTEST = 2.0**-80
_ROUNDING = 4e-16
#: Steps in a row that change the value by rounding, after which the gradient falls by chance: of columns far from 0 it
#: is itself rounding, above any tolerance.
_IDLE = 20
#: Steps in a row that do not halve the gradient's norm: the value falls for ever, along a direction without curvature.
_ENDLESS = 500


_METRICS = ("inner-iterations", "gradient-evaluations", "hessian-products", "gradient-norm", "gap", "capped")


class Minimum(NamedTuple):
    """Result of a local minimisation.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        The final point.
    iterations : int
        Number of steps; of L-BFGS-B of points after the first.
    gradient_evaluations : int
        Number of gradients of f over all of the client's examples.
    hessian_products : int
        Number of products with the Hessian of f.
    gradient_norm : float
        Norm of the gradient of the minimised function at the point.
    gap : float
        A certified bound on the distance of the value to the minimum; infinity if no strong convexity is known.
    reached : bool
        Whether the stopping rule was met; False at the iteration limit, or if rounding ended the descent earlier.
    """

    point: Vector
    iterations: int
    gradient_evaluations: int
    hessian_products: int
    gradient_norm: float
    gap: float
    reached: bool

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics that a client reports, by their names in the reply: those that are known."""
        values = map(float, (*self[1:-1], not self.reached))
        return {name: value for name, value in zip(_METRICS, values, strict=True) if math.isfinite(value)}


_Map = Callable[[Vector], Vector]


class _At(NamedTuple):
    """A point, the gradient there and its norm."""

    point: Vector
    gradient: Vector
    norm: float = math.inf


class _Ended(Exception):
    """The stopping rule or the limit is met."""


class _Problem:
    """f(w) - <pull, w> + penalty/2 ||w||^2, when to stop, the best point so far, and what was spent on it."""

    def __init__(self, objective: Objective, pull: Vector, penalty: float, target: float, limit: int) -> None:
        self.objective = objective
        self.pull = pull
        self.penalty = penalty
        self.target = target
        self.limit = limit
        # Where no gradient is finite, neither is the answer, which then does not count.
        self.best = _At(np.full_like(pull, np.nan), pull)
        #: Steps taken: the first gradient comes before all of them.
        self.steps, self.products = -1, 0

    def value(self, w: Vector, own: float) -> float:
        """Return the value at a point where f is `own`."""
        return own + float(w @ (0.5 * self.penalty * w - self.pull))

    def at(self, w: Vector, own: Vector) -> _At:
        """Return the next point, where the gradient of f is `own`; or end the descent."""
        gradient = own + self.penalty * w - self.pull
        found = _At(w, gradient, float(np.linalg.norm(gradient)))
        self.best = found if found.norm < self.best.norm else self.best
        self.steps += 1
        if found.norm <= self.target or self.steps == self.limit:
            raise _Ended
        return found


def minimise(
    objective: Objective,
    work: Minimise | None = None,
    *,
    shift: Vector | float = 0.0,
    center: Vector | float = 0.0,
    penalty: float = 0.0,
    start: Vector | None = None,
    duality: float = 0.0,
) -> Minimum:
    """Return argmin_w f(w) - <shift, w> + penalty/2 ||w - center||^2.

    Parameters
    ----------
    objective : Objective
        f.
    work : Minimise, optional
        Stopping rule, tolerance and limit; by default to a gradient norm of 1e-10.
    shift, center : ndarray of float64, shape (d,), or float, default 0.0
        Their vectors.
    penalty : float, default 0.0
        Modulus of the quadratic term. May be negative if f's strong convexity is larger than its absolute value.
    start : ndarray of float64, shape (d,), optional
        The starting point; by default `center`.
    duality : float, default 0.0
        DualFL's nu, which its gap (3.6) depends on; used for the rule ``"gap"``.

    Returns
    -------
    Minimum
        The point, what it took, the gradient's norm, a certified gap, and whether the rule was met.

    Raises
    ------
    ConfigurationError
        If f is not smooth, or a saddle function, and has no `minimiser`, the problem has no unique minimiser, or no
        gap is known.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.eye(2), np.array([2.0, 4.0]), intercept=False)
    >>> minimum = minimise(objective, penalty=1.0)
    >>> minimum.point.round(6), minimum.reached
    (array([1., 2.]), True)
    """
    work = Minimise() if work is None else work
    zeros = np.zeros(objective.layout.size)
    pull = zeros + shift + penalty * center
    start = zeros + (center if start is None else start)
    if objective.minimiser is not None:
        minimum: Minimum = objective.minimiser(pull, penalty, start, work, duality)
        return minimum
    if not objective.smooth or objective.ascends is not None:
        kind, other = ("not smooth", "LocalSGD") if objective.ascends is None else ("a saddle function", "FeDualEx")
        prefix = f"{type(objective).__name__} is {kind}, and has no method"
        advice = f"Give it one, or take a strategy of (sub)gradient steps, such as {other}"
        raise ConfigurationError(f"{prefix} minimiser(pull, penalty, start, work, duality). {advice}")
    modulus, squares, axes = _facts(objective)
    convexity = max(0.0, modulus + penalty)
    problem = _Problem(objective, pull, penalty, work.stopping_norm(convexity, duality), work.max_iterations)
    with suppress(_Ended):
        if axes.size and convexity > 0.0:
            _exact(problem, start, squares + penalty, axes)
        elif type(objective).hessian_product is not Objective.hessian_product:
            _newton(problem, start)
        else:
            _lbfgs(problem, start)
    point, _, norm = problem.best
    gap = norm**2 / (2.0 * convexity) if convexity > 0.0 else math.inf
    return Minimum(point, problem.steps, problem.steps + 1, problem.products, norm, gap, norm <= problem.target)


def _exact(problem: _Problem, start: Vector, squares: Vector, axes: Vector) -> None:
    """Solve by the Hessian's eigenvectors, and for the rest of the gradient again as long as it falls."""
    gradient = problem.objective.gradient
    at = problem.at(start, gradient(start))
    while at is problem.best:
        w = at.point - axes @ ((at.gradient @ axes) / squares)
        at = problem.at(w, gradient(w))


def _newton(problem: _Problem, start: Vector) -> None:
    """Take Newton steps, each with conjugate gradients as far as it pays, and a line search that reads no features.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithm 7.1.
    """
    line = problem.objective.along(start, np.zeros(start.size))
    step = 0.0
    idle = endless = 0
    at = problem.at(start, line.gradient(0.0))
    value = problem.value(start, line(0.0)[0])
    scale = _preconditioner(problem.objective, problem.penalty, line.diagonal(0.0))
    first = least = at.norm
    # Where the Hessian is constant, nothing ends a descent along a flat direction.
    steep = _STEEP * first if problem.objective.quadratic else math.inf
    while True:
        # As accurate as superlinear convergence needs, but no more accurate than the target requires.
        enough = max(0.3 * problem.target, at.norm * min(_LOOSEST, math.sqrt(at.norm / first)))
        direction = _newton_step(problem, line.curvature(step), -at.gradient, scale, enough, steep)
        slope = float(at.gradient @ direction)
        last = value
        slack = _ROUNDING * (1.0 + abs(value))
        line = line.turn(step, direction)
        step = 1.0
        w = at.point + direction
        while not (value := problem.value(w, line(step)[0])) <= last + _SUFFICIENT * step * slope + slack:
            step *= 0.5
            if step < _SHORTEST:
                return
            w = at.point + step * direction
        at = problem.at(w, line.gradient(step))
        idle = idle + 1 if value >= last - slack else 0
        least, endless = (at.norm, 0) if at.norm < 0.5 * least else (least, endless + 1)
        if (idle and (at is not problem.best or idle == _IDLE)) or endless == _ENDLESS:
            return


def _preconditioner(objective: Objective, penalty: float, diagonal: Vector) -> _Map:
    """Return v -> v over the Hessian's diagonal and the penalty.

    Nothing changes where the scores of all classes do, but for squares of the weights: steps have no other part there,
    or the value would fall for ever along what rounding leaves.
    """
    curved = diagonal + penalty
    # Along a coordinate without curvature the value may fall for ever, which steps of a finite length show.
    scales = 1.0 / np.where(curved > 1e-300, curved, curved.max(initial=0.0) or 1.0)
    if not isinstance(objective, MultinomialLogistic):
        return lambda v: scales * v
    each = scales.reshape(-1, objective.num_classes)
    ridge = (penalty + objective.l2 * objective.ridged(np.ones(diagonal.size))).reshape(each.shape)
    inverse = np.divide(1.0, ridge, out=np.zeros_like(ridge), where=ridge > 0.0)

    def scale(v: Vector) -> Vector:
        rows = v.reshape(each.shape)
        shared = rows.mean(axis=1, keepdims=True)
        own = each * (rows - shared)
        return np.asarray(own - own.mean(axis=1, keepdims=True) + inverse * shared).ravel()

    return scale


def _newton_step(problem: _Problem, curvature: _Map, right: Vector, scale: _Map, enough: float, steep: float) -> Vector:
    """Return x with ||H x - right|| <= enough by conjugate gradients, or the last one before a flat direction.

    Parameters
    ----------
    curvature : callable
        v -> H v, but for the problem's penalty.
    scale : callable
        v -> v over H's diagonal, which preconditions.
    steep : float
        A slope along a direction without curvature that means that there is no minimiser.
    """
    x = np.zeros(right.size)
    rest = right.copy()
    direction = scale(right)
    energy = float(rest @ direction)
    largest = 0.0
    for _ in range(right.size):
        image = curvature(direction) + problem.penalty * direction
        problem.products += 1
        curved, square = float(direction @ image), float(direction @ direction)
        if curved <= _FLAT * largest * square:
            if energy > steep * math.sqrt(square):
                prefix = "the client's problem has no unique minimiser: it falls along a direction without curvature"
                raise ConfigurationError(f"{prefix}. Add an l2 term to it, or a penalty; for DualFL alpha > 0")
            # The right-hand side itself if there is no solution yet.
            return x if x.any() else right
        largest = max(largest, curved / square)
        x += (energy / curved) * direction
        rest -= (energy / curved) * image
        if float(np.linalg.norm(rest)) <= enough:
            break
        scaled = scale(rest)
        last = energy
        energy = float(rest @ scaled)
        direction = scaled + (energy / last) * direction
    return x


def _lbfgs(problem: _Problem, start: Vector) -> None:
    """Run SciPy's L-BFGS-B; of all points that it sees the best one counts, for its line search fails near 1e-8."""
    from scipy.optimize import minimize

    def evaluate(w: Vector) -> tuple[float, Vector]:
        given = w.copy()
        value, gradient = problem.objective.value_and_gradient(given)
        if not np.array_equal(given, w, equal_nan=True):
            name = type(problem.objective).__name__
            raise ConfigurationError(f"{name} changes w in value(w) or gradient(w); expected one that works on a copy")
        return problem.value(w, value), problem.at(given, gradient).gradient

    options = {"gtol": 0.0, "ftol": 0.0, "maxiter": problem.limit, "maxfun": 2 * problem.limit, "maxcor": 10}
    minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)


_known: WeakKeyDictionary[Objective, tuple[float, Vector, Vector]] = WeakKeyDictionary()


def _facts(objective: Objective) -> tuple[float, Vector, Vector]:
    """Return the modulus of strong convexity, 0 if it is not known, and of squares the Hessian's eigenvectors.

    They depend on the data only, and are computed at the first call.
    """
    if objective not in _known:
        size = objective.layout.size if objective.quadratic and objective.layout.size <= LARGEST else 0
        modulus = 0.0
        hessian = np.zeros((size, size))
        if size:
            hessian[np.triu_indices(size)] = objective.hessian_block(np.zeros(size), np.arange(size))
        with suppress(ConfigurationError):
            modulus = objective.strong_convexity()
        _known[objective] = modulus, *np.linalg.eigh(hessian, UPLO="U")
    return _known[objective]
