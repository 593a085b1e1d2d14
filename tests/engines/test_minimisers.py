"""The engines: certified minimisers, honest results, and the counts that they report."""

import numpy as np
import pytest
from kinks import Distance
from quadratics import Quadratic, quadratics
from scipy.optimize import approx_fprime
from together import together

from flwr_fco import work
from flwr_fco.engines.minimisers import ENGINES, LocalProblem, StoppingRule, fastest_engine, local_problem, minimise
from flwr_fco.engines.minimisers.newton_cg import Products, inverse_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.work import Minimise

N, D = 60, 7


def data(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    features = (rng.standard_normal((N, D)) * np.geomspace(0.1, 10, D)).astype(dtype)
    return features, rng


def objective_of(kind, dtype=np.float64):
    features, rng = data(dtype=dtype)
    if kind == "softmax":
        return MultinomialLogistic(features, rng.integers(0, 4, N), num_classes=4, intercept=False, l2=1e-2)
    if kind == "softmax with intercept":
        return MultinomialLogistic(features, rng.integers(0, 4, N), num_classes=4, l2=1e-2)
    if kind == "logistic":
        return Logistic(features, rng.integers(0, 2, N), l2=1e-2)
    if kind == "least squares":
        return LeastSquares(features, rng.standard_normal(N), scale=0.5, l2=1e-2)
    if kind == "quadratic":
        return quadratics(count=1, d=D)[0]
    raise AssertionError(kind)


KINDS = ("softmax", "softmax with intercept", "logistic", "least squares", "quadratic")
ENGINE_NAMES = ("aogm", "lbfgs", "newton-cg", "exact")


def terms(objective, seed=1):
    rng = np.random.default_rng(seed)
    size = objective.layout.size
    return {"shift": 0.1 * rng.standard_normal(size), "center": rng.standard_normal(size), "penalty": 0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_the_problem_is_its_formula_and_its_gradient_the_derivative(kind):
    objective = objective_of(kind)
    extra = terms(objective)
    problem = local_problem(objective, **extra)
    plain = LocalProblem(objective, **extra)
    rng = np.random.default_rng(2)
    for _ in range(3):
        theta = rng.standard_normal(objective.layout.size)
        apart = theta - extra["center"]
        expected = objective.value(theta) - extra["shift"] @ theta + 0.25 * apart @ apart
        value, gradient = problem.value_and_gradient(theta, problem.image(theta))
        assert value == pytest.approx(expected, rel=1e-12)
        assert problem.value(theta, problem.image(theta)) == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(gradient, approx_fprime(theta, lambda x: problem.evaluate(x)[0]), atol=2e-5)
        np.testing.assert_allclose(gradient, plain.value_and_gradient(theta, plain.image(theta))[1], atol=1e-11)
        # The Hessian's products may be in single precision.
        v = rng.standard_normal(theta.size)
        step = 1e-5
        ahead, behind = problem.evaluate(theta + step * v)[1], problem.evaluate(theta - step * v)[1]
        product = problem.hessian(theta, problem.image(theta))(v)
        np.testing.assert_allclose(product, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-4 * np.abs(product).max())


@together("kind", KINDS)
@together("engine", ENGINE_NAMES)
def test_every_engine_finds_the_minimiser_and_certifies_it(engine, kind):
    objective = objective_of(kind)
    extra = terms(objective)
    if engine == "exact" and kind not in ("least squares", "quadratic"):
        with pytest.raises(ConfigurationError, match="quadratics"):
            minimise(objective, Minimise(engine), **extra)
        return
    tolerance = 1e-6 if engine == "lbfgs" else 1e-11
    found = minimise(objective, Minimise(engine, tolerance=tolerance), **extra)
    assert found.reached
    gradient = objective.gradient(found.point) - extra["shift"] + 0.5 * (found.point - extra["center"])
    assert np.linalg.norm(gradient) <= 1.1 * tolerance + 1e-14
    assert found.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=0.1, abs=1e-14)
    # Strong convexity makes the norm of the gradient a bound on the distance: an oracle that needs no other solver.
    best = minimise(objective, Minimise("newton-cg", tolerance=1e-13), **extra).point
    assert np.linalg.norm(found.point - best) <= (tolerance + 1e-12) / 0.5
    assert found.gradient_evaluations >= 1


@pytest.mark.parametrize("engine", ["aogm", "newton-cg"])
@pytest.mark.parametrize("kind", ["softmax", "quadratic"])
def test_the_gap_bounds_the_suboptimality_and_the_gap_rule_stops_at_it(engine, kind):
    objective = objective_of(kind)
    best = objective.value(minimise(objective, Minimise("newton-cg", tolerance=1e-13)).point)
    for tolerance in (1e-2, 1e-5):
        found = minimise(objective, Minimise(engine, tolerance=tolerance, rule="gap"))
        assert found.reached
        assert -1e-15 <= objective.value(found.point) - best <= found.gap <= tolerance


@pytest.mark.parametrize("engine", ["aogm", "lbfgs", "newton-cg"])
def test_the_energy_rule_compares_successive_values(engine):
    objective = objective_of("softmax")
    loose = minimise(objective, Minimise(engine, tolerance=1e-3, rule="energy"))
    tight = minimise(objective, Minimise(engine, tolerance=1e-12, rule="energy"))
    assert loose.reached
    assert tight.reached
    assert loose.gradient_evaluations < tight.gradient_evaluations
    # Not an error bound, but not far from one here; the result says what it is worth.
    gradient = objective.gradient(tight.point)
    assert tight.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-6)
    assert tight.gap < 1e-8


@pytest.mark.parametrize("engine", ["aogm", "lbfgs", "newton-cg"])
def test_a_cap_is_never_silent(engine):
    objective = objective_of("softmax")
    found = minimise(objective, Minimise(engine, tolerance=1e-13, max_iterations=2))
    assert not found.reached
    assert found.metrics["capped"] == 1.0
    assert found.iterations == 2
    assert found.gradient_norm > 1e-13
    assert minimise(objective, Minimise(engine, tolerance=1e-3)).metrics["capped"] == 0.0


@pytest.mark.parametrize("spectrum", [[2.0, 0.5, 0.1], [3.0, 0.7, 0.05]])
def test_an_aogm_iteration_is_the_formula_of_the_paper(spectrum):
    """The docstring's three lines, with the safeguard of its note 3, on a quadratic.

    With the second spectrum it matters that the step after a safeguard tries no larger step size.
    """
    f = Quadratic(np.diag(spectrum), np.array([1.0, 1.0, 1.0]))
    iterates, x, y, t = [], np.zeros(3), np.zeros(3), 1.0
    tau, held, restarts = 0.5, False, 0
    for k in range(40):
        g = f.gradient(x)
        previous, tau = tau, tau if held else tau / 0.5
        while f.value(x - tau * g) > f.value(x) - tau / 2 * g @ g:
            tau *= 0.5
        held = False
        while True:
            y_next = x - tau * g
            t_next = (1 + np.sqrt(1 + 4 * (previous / tau if k else 1.0) * t**2)) / 2
            x_next = y_next + (t - 1) / t_next * (y_next - y) + t / t_next * (y_next - x)
            change = f.gradient(x_next) - g
            if tau * change @ change <= (1 + 1e-9) * change @ (x_next - x):
                break
            tau, held = tau / 2, True
        restart = g @ (y_next - y) >= 0
        restarts += restart
        x, y, t = x_next, y_next, 1.0 if restart else t_next
        iterates.append(x)
    assert restarts > 0
    for k, expected in enumerate(iterates, start=1):
        found = minimise(f, Minimise("aogm", tolerance=1e-15, max_iterations=k))
        np.testing.assert_allclose(found.point, expected, atol=1e-9)


def test_the_certificate_of_aogm_does_not_drift_in_thousands_of_iterations():
    """Margins are sums of differences, which rounding moves away from those of the point."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 7)) * np.geomspace(0.01, 30, 7)
    objective = Logistic(features, rng.integers(0, 2, 60), l2=1e-4)
    found = minimise(objective, Minimise("aogm", tolerance=1e-11, max_iterations=20_000))
    assert found.reached
    assert found.iterations > 10_000
    assert np.linalg.norm(objective.gradient(found.point)) == pytest.approx(found.gradient_norm, rel=1e-2, abs=0.0)


def test_newton_steps_become_as_good_as_exact_ones():
    """Their equations are solved better and better, so that few more are needed than with a factorised Hessian."""
    objective = objective_of("logistic")
    problem = local_problem(objective)
    w, exact = np.zeros(problem.size), 0
    while np.linalg.norm(gradient := objective.gradient(w)) > 1e-12:
        multiply = problem.hessian(w, problem.image(w))
        w = w - np.linalg.solve(np.stack([multiply(unit) for unit in np.eye(w.size)]), gradient)
        exact += 1
    found = minimise(objective, Minimise("newton-cg", tolerance=1e-12))
    assert found.reached
    assert found.iterations <= exact + 3


class Huber(Quadratic):
    """A quadratic around its minimiser that goes on as a cone: without curvature where a step begins far away."""

    def __init__(self, minimiser):
        super().__init__(np.eye(minimiser.size), minimiser)
        self.quadratic = False

    def value(self, w):
        distance = np.linalg.norm(w - self.vector)
        return float(0.5 * distance**2 if distance < 1.0 else distance - 0.5)

    def gradient(self, w, batch=None, out=None):
        apart = w - self.vector
        return np.divide(apart, max(1.0, np.linalg.norm(apart)), out=out)

    def hessian_product(self, w, v):
        apart = w - self.vector
        distance = np.linalg.norm(apart)
        if distance < 1.0:
            return v.copy()
        unit = apart / distance
        return (v - (unit @ v) * unit) / distance


def test_newton_goes_on_along_a_direction_without_curvature():
    """Seen from far away the gradient is such a direction, to the last bit where it is an axis."""
    found = minimise(Huber(np.array([9.0, 0.0, 0.0])), Minimise("newton-cg", tolerance=1e-12), start=np.zeros(3))
    assert found.reached
    np.testing.assert_allclose(found.point, [9.0, 0.0, 0.0], atol=1e-11)


def test_where_scipy_stops_the_best_point_it_saw_is_the_answer():
    seen = []

    class Watched(Logistic):
        def gradient(self, w, batch=None, out=None):
            result = super().gradient(w, batch, out)
            seen.append(float(np.linalg.norm(result)))
            return result

    plain, worse_at_last = objective_of("logistic"), 0
    for cap in range(1, 8):
        seen.clear()
        found = minimise(Watched(plain.features, plain.labels, l2=1e-2), Minimise("lbfgs", max_iterations=cap))
        assert not found.reached
        assert found.gradient_norm == min(seen)
        worse_at_last += seen[-1] > min(seen)
    assert worse_at_last > 0


def test_an_exact_solution_with_another_penalty_has_another_factorisation():
    objective = objective_of("least squares")
    for penalty in (0.5, 50.0, 0.0, 0.5):
        found = minimise(objective, Minimise("exact", tolerance=1e-10), penalty=penalty)
        assert found.reached
        assert found.iterations <= 2


def test_aogm_needs_about_the_root_of_the_condition_number():
    counts = []
    for top in (50.0, 5000.0):
        objective = quadratics(count=1, d=40, mu=0.5, top=top)[0]
        counts.append(minimise(objective, Minimise("aogm", tolerance=1e-9)).iterations)
    # Gradient descent would need 100 times as many, acceleration 10 times.
    assert counts[1] < 25 * counts[0]


def test_trial_steps_cost_no_pass_over_the_data():
    found = minimise(objective_of("softmax"), Minimise("newton-cg", tolerance=1e-8))
    # One gradient an iteration and the first one; backtracking adds none.
    assert found.gradient_evaluations == found.iterations + 1


def test_newton_steps_in_single_precision_still_reach_a_gradient_of_1e_12():
    objective = objective_of("softmax")
    found = minimise(objective, Minimise("newton-cg", tolerance=1e-13))
    assert found.reached
    assert np.linalg.norm(objective.gradient(found.point)) <= 2e-13
    assert found.hessian_products > 0


@pytest.mark.parametrize("engine", ["newton-cg", "aogm"])
def test_features_in_single_precision_are_minimised_in_double(engine):
    objective = objective_of("softmax", np.float32)
    found = minimise(objective, Minimise(engine, tolerance=1e-11))
    assert found.reached
    assert np.linalg.norm(objective.gradient(found.point)) <= 1e-10


def test_the_fastest_engine_is_the_one_the_objective_allows():
    names = {kind: fastest_engine(local_problem(objective_of(kind))) for kind in KINDS}
    assert names == {
        "softmax": "newton-cg",
        "softmax with intercept": "newton-cg",
        "logistic": "newton-cg",
        "least squares": "exact",
        "quadratic": "exact",
    }

    class Without(Quadratic):
        def gradient(self, w, batch=None, out=None):
            return super().gradient(w, batch, out)

    f = Without(np.eye(2), np.ones(2))
    f.quadratic = False
    assert fastest_engine(local_problem(f)) == "lbfgs"
    np.testing.assert_allclose(minimise(f).point, 1.0, atol=1e-9)
    with pytest.raises(ConfigurationError, match="hessian_product"):
        minimise(f, Minimise("newton-cg"))


def test_a_start_at_the_minimum_stays_there():
    objective = objective_of("softmax")
    best = minimise(objective, Minimise(tolerance=1e-12)).point
    for engine in ("aogm", "lbfgs", "newton-cg"):
        found = minimise(objective, Minimise(engine, tolerance=1e-11), start=best)
        assert found.gradient_evaluations <= 2
        np.testing.assert_array_equal(found.point, best)


def test_unknown_engines_and_impossible_problems_are_refused():
    objective = objective_of("softmax with intercept")
    with pytest.raises(ConfigurationError, match="aogm"):
        Minimise("newton")
    with pytest.raises(ConfigurationError, match="strong convexity"):
        minimise(objective, Minimise(rule="gap"))
    with pytest.raises(ConfigurationError, match="no unique minimiser"):
        minimise(Quadratic(np.zeros((2, 2)), np.ones(2)), Minimise("exact"))
    assert minimise(objective, Minimise(tolerance=1e-8)).gap == np.inf
    assert ("auto", *ENGINES) == work.ENGINES == ("auto", *ENGINE_NAMES)


def test_a_loss_that_is_not_smooth_brings_its_own_minimiser():
    loss, center = Distance(np.zeros(2)), np.array([3.0, 4.0])
    found = minimise(loss, Minimise(rule="gap"), center=center, penalty=0.5)
    # Its proximal map: 2 off the length of 5.
    np.testing.assert_allclose(found.point, 0.6 * center, rtol=1e-15)
    assert (found.gradient_evaluations, found.gap, found.reached) == (1, 1e-10, True)
    with pytest.raises(ConfigurationError, match=r"Distance is not smooth: engine='lbfgs'.*LocalSGD"):
        minimise(loss, Minimise("lbfgs"))
    loss.minimiser = None
    with pytest.raises(ConfigurationError, match=r"Distance is not smooth.*minimiser\(problem, start, rule\)"):
        minimise(loss)


def test_the_gap_rule_uses_what_strong_convexity_is_left_beyond_the_duality():
    objective = objective_of("softmax")
    problem = local_problem(objective)
    rule = StoppingRule(Minimise(tolerance=1e-4, rule="gap"), problem, duality=0.9e-2)
    norm = np.sqrt(2 * 0.1e-2 * 1e-4)
    assert rule.reached(1.0, 0.999 * norm)
    assert not rule.reached(1.0, 1.001 * norm)


def test_a_direction_without_any_curvature_is_named():
    learnt = Products([(np.full(3, 1e-170), np.full(3, 1e-170))])
    with pytest.raises(ConfigurationError, match="no unique minimiser"):
        inverse_of(learnt)


def test_a_quadratic_that_falls_without_end_is_named():
    """DualFL's controls leave the span of a client's rows, where least squares without an l2 term has no curvature."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((128, 1024))
    objective = LeastSquares(features, rng.standard_normal(128))
    with pytest.raises(ConfigurationError, match=r"flat in some direction: it falls .*alpha > 0"):
        minimise(objective, shift=rng.standard_normal(1025))
    # Without that slope, it has minimisers, and finds one.
    assert minimise(objective, Minimise(tolerance=1e-8)).reached
    inside = objective.gradient(rng.standard_normal(1025), None)
    assert minimise(objective, Minimise(tolerance=1e-8), shift=inside).reached
