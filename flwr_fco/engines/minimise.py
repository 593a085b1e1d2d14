"""One local minimisation: f(w) - <shift, w> + penalty/2 ||w - center||^2, until its gradient is as small as asked for.

Squares are solved by the eigenvectors of their Hessian, which are computed once for all rounds and penalties; losses
with a Hessian by Newton's method with conjugate gradients, whose line searches read no features; others by SciPy's
L-BFGS-B. A loss may bring a `minimiser` of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
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
_SUFFICIENT, _SHORTEST, _ROUNDING = 1e-4, 2.0**-80, 4e-16


class Minimum(NamedTuple):
    """Result of a local minimisation.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        The final point.
    iterations : int
        Number of steps.
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
        """The metrics that a client reports, by their names in the reply."""
        return {
            "inner-iterations": float(self.iterations),
            "gradient-evaluations": float(self.gradient_evaluations),
            "hessian-products": float(self.hessian_products),
            "gradient-norm": float(self.gradient_norm),
            "gap": float(self.gap),
            "capped": 0.0 if self.reached else 1.0,
        }


class _At(NamedTuple):
    """A point with the gradient there and its norm."""

    point: Vector
    gradient: Vector
    norm: float = math.inf


class _Problem:
    """f(w) - <pull, w> + penalty/2 ||w||^2, when to stop, where the descent is, and what was spent on it."""

    def __init__(self, objective: Objective, pull: Vector, penalty: float, target: float, limit: int) -> None:
        self.objective, self.pull, self.penalty, self.target, self.limit = objective, pull, penalty, target, limit
        self.at = _At(pull, pull)
        self.steps = self.evaluations = self.products = 0

    def value(self, w: Vector, own: float) -> float:
        """Return the value at a point where f is `own`."""
        return own + float(w @ (0.5 * self.penalty * w - self.pull))

    def move(self, w: Vector, own: Vector) -> None:
        """Go to a point where the gradient of f is `own`."""
        gradient = own + self.penalty * w - self.pull
        self.at = _At(w, gradient, float(np.linalg.norm(gradient)))
        self.evaluations += 1

    @property
    def reached(self) -> bool:
        """Whether the stopping rule is met."""
        return self.at.norm <= self.target

    @property
    def ended(self) -> bool:
        """Whether the rule or the limit is met."""
        return self.reached or self.steps == self.limit


def minimise(
    objective: Objective,
    work: Minimise | None = None,
    *,
    shift: Vector | None = None,
    center: Vector | None = None,
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
    shift, center : ndarray of float64, shape (d,), optional
        Default zeros.
    penalty : float, default 0.0
        Modulus of the quadratic term. May be negative if f's strong convexity is larger than its absolute value.
    start : ndarray of float64, shape (d,), optional
        The starting point; by default `center`, or zeros.
    duality : float, default 0.0
        DualFL's nu, which its gap (3.6) depends on; used for the rule ``"gap"``.

    Returns
    -------
    Minimum
        The point, what it took, the gradient's norm, a certified gap, and whether the rule was met.

    Raises
    ------
    ConfigurationError
        If f is not smooth and has no `minimiser`, the problem has no unique minimiser, or no gap is known.

    Notes
    -----
    With modulus m of strong convexity the value is within ||gradient||^2 / (2 m) of the minimum. DualFL's primal-dual
    gap (3.6) is at most ||gradient||^2 / (2 (m - duality)), a bound that requires duality < m.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.eye(2), np.array([2.0, 4.0]), intercept=False)
    >>> minimum = minimise(objective, penalty=1.0)
    >>> minimum.point.round(6), minimum.reached
    (array([1., 2.]), True)
    """
    work, size = Minimise() if work is None else work, objective.layout.size
    pull = np.zeros(size) if shift is None else shift
    if center is not None:
        pull = pull + penalty * center
    if start is None:
        start = np.zeros(size) if center is None else center
    if objective.minimiser is not None:
        minimum: Minimum = objective.minimiser(pull, penalty, start, work, duality)
        return minimum
    if not objective.smooth:
        raise ConfigurationError(
            f"{type(objective).__name__} is not smooth, and has no method minimiser(pull, penalty, start, work, "
            "duality). Give it one, or take a strategy whose clients take (sub)gradient steps, such as LocalSGD"
        )
    target = stopping_norm(objective, work, penalty, duality)
    problem = _Problem(objective, pull, penalty, target, work.max_iterations)
    if objective.quadratic and size <= LARGEST:
        solve = _exact
    else:
        solve = _lbfgs if type(objective).hessian_product is Objective.hessian_product else _newton
    solve(problem, np.array(start, dtype=np.float64))
    (point, _, norm), convexity = problem.at, _convexity(objective, penalty)
    gap = norm**2 / (2.0 * convexity) if convexity > 0.0 else math.inf
    return Minimum(point, problem.steps, problem.evaluations, problem.products, norm, gap, problem.reached)


def stopping_norm(objective: Objective, work: Minimise, penalty: float = 0.0, duality: float = 0.0) -> float:
    """Return the norm of the gradient at which the stopping rule is met.

    Parameters
    ----------
    objective, work, penalty, duality
        As in :func:`minimise`.

    Raises
    ------
    ConfigurationError
        If the rule is ``"gap"`` and the gradient bounds no gap.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares([[1.0]], [2.0], scale=0.5, intercept=False)
    >>> stopping_norm(objective, Minimise(tolerance=1e-8, rule="gap"), penalty=1.0)
    0.0002
    """
    if work.rule == "gradient":
        return work.tolerance
    convexity = _convexity(objective, penalty)
    if not convexity > duality:
        raise ConfigurationError(
            f"rule='gap' needs a strong convexity above {duality:g}, but only {convexity:g} is known of the client's "
            "problem, so the primal-dual gap cannot be bounded. Use rule='gradient', add an l2 term to the objective, "
            "or choose DualFL's nu below it"
        )
    return math.sqrt(2.0 * (convexity - duality) * work.tolerance)


def _exact(problem: _Problem, start: Vector) -> None:
    """Solve by the Hessian's eigenvectors, and for the rest of the gradient again as long as it falls."""
    squares, axes = _once(problem.objective, "spectrum", _spectrum)
    squares = squares + problem.penalty
    curved = squares > squares.size * _FLAT * squares[-1]
    problem.move(start, problem.objective.gradient(start))
    steep = _STEEP * problem.at.norm
    while not problem.ended:
        last, inside = problem.at, problem.at.gradient @ axes
        if not curved.all():
            if float(np.linalg.norm(inside[~curved])) > steep:
                raise _no_minimiser()
            inside[~curved], squares = 0.0, np.where(curved, squares, 1.0)
        w = last.point - axes @ (inside / squares)
        problem.move(w, problem.objective.gradient(w))
        problem.steps += 1
        if problem.at.norm >= last.norm:
            problem.at = last
            return


def _spectrum(objective: Objective) -> tuple[Vector, NDArray[np.float64]]:
    """Return the eigenvalues and eigenvectors of a quadratic's Hessian."""
    size = objective.layout.size
    hessian = np.zeros((size, size))
    hessian[np.triu_indices(size)] = objective.hessian_block(np.zeros(size), np.arange(size))
    squares, axes = np.linalg.eigh(hessian, UPLO="U")
    return squares, axes


def _newton(problem: _Problem, start: Vector) -> None:
    """Take Newton steps, each with conjugate gradients as far as it pays, and a line search that reads no features.

    References
    ----------
    Nocedal, Wright: Numerical optimization (2006), algorithm 7.1.
    """
    objective, penalty = problem.objective, problem.penalty
    line, step, w = objective.along(start, np.zeros(start.size)), 0.0, start
    problem.move(w, line.gradient(0.0))
    value, first = problem.value(w, line(0.0)[0]), problem.at.norm
    steep = _STEEP * first if objective.quadratic else math.inf
    scales = 1.0 / np.maximum(line.diagonal(0.0) + penalty, 1e-300)
    while not problem.ended:
        (_, gradient, norm), curvature = problem.at, line.curvature(step)

        def multiply(v: Vector, curvature: Callable[[Vector], Vector] = curvature) -> Vector:
            problem.products += 1
            return curvature(v) + penalty * v

        # As accurate as superlinear convergence needs, but no more accurate than the target requires.
        enough = max(0.3 * problem.target, norm * min(_LOOSEST, math.sqrt(norm / first)))
        direction = _conjugate_gradients(multiply, -gradient, scales, enough, steep)
        slope = float(gradient @ direction)
        line, step = line.turn(step, direction), 1.0
        while True:
            trial = w + step * direction
            new = problem.value(trial, line(step)[0])
            if new <= value + _SUFFICIENT * step * slope + _ROUNDING * (1.0 + abs(value)):
                break
            step *= 0.5
            if step < _SHORTEST:
                return
        if not slope < 0.0:
            return
        w, value = trial, new
        problem.move(w, line.gradient(step))
        problem.steps += 1


def _conjugate_gradients(
    multiply: Callable[[Vector], Vector], right: Vector, scales: Vector, enough: float, steep: float
) -> Vector:
    """Return x with ||H x - right|| <= enough, or the last one before a direction without curvature.

    Parameters
    ----------
    scales : ndarray of float64, shape (d,)
        The inverse of H's diagonal, which preconditions.
    steep : float
        A slope along a direction without curvature that means that there is no minimiser.
    """
    x, rest, direction = np.zeros(right.size), right.copy(), scales * right
    energy, largest = float(rest @ direction), 0.0
    for _ in range(right.size):
        image = multiply(direction)
        curved, square = float(direction @ image), float(direction @ direction)
        if curved <= _FLAT * largest * square:
            if energy > steep * math.sqrt(square):
                raise _no_minimiser()
            # The right-hand side itself if there is no solution yet.
            return x if x.any() else right
        largest = max(largest, curved / square)
        x += (energy / curved) * direction
        rest -= (energy / curved) * image
        if float(np.linalg.norm(rest)) <= enough:
            break
        scaled = scales * rest
        last, energy = energy, float(rest @ scaled)
        direction = scaled + (energy / last) * direction
    return x


class _Reached(Exception):
    """Raised to leave SciPy's loop."""


def _lbfgs(problem: _Problem, start: Vector) -> None:
    """Run SciPy's L-BFGS-B; of all points that it sees the best one counts, for its line search fails near 1e-8."""
    from scipy.optimize import minimize

    best = _At(start, start)

    def evaluate(w: Vector) -> tuple[float, Vector]:
        nonlocal best
        value, gradient = problem.objective.value_and_gradient(w)
        problem.move(w.copy(), gradient)
        best = problem.at if problem.at.norm < best.norm else best
        if problem.reached:
            raise _Reached
        return problem.value(w, value), problem.at.gradient

    def count(_: Vector) -> None:
        problem.steps += 1

    options = {"gtol": 0.0, "ftol": 0.0, "maxiter": problem.limit, "maxfun": 20 * problem.limit, "maxcor": 10}
    with suppress(_Reached):
        minimize(evaluate, start, jac=True, method="L-BFGS-B", callback=count, options=options)
    problem.at = best


def _no_minimiser() -> ConfigurationError:
    return ConfigurationError(
        "the client's problem has no unique minimiser: it falls along a direction without curvature. Add an l2 term to "
        "the objective, or a penalty; for DualFL alpha > 0"
    )


def _convexity(objective: Objective, penalty: float) -> float:
    """Return the known modulus of strong convexity of a local problem; 0.0 if there is none."""
    return max(0.0, float(_once(objective, "modulus", _modulus)) + penalty)


def _modulus(objective: Objective) -> float:
    try:
        return objective.strong_convexity()
    except ConfigurationError:
        return 0.0


#: What depends on an objective's data only, by objective and name.
_known: WeakKeyDictionary[Objective, dict[str, Any]] = WeakKeyDictionary()


def _once(objective: Objective, name: str, make: Callable[[Objective], Any]) -> Any:
    """Return what depends on an objective's data only, computed at the first call."""
    known = _known.setdefault(objective, {})
    if name not in known:
        known[name] = make(objective)
    return known[name]
