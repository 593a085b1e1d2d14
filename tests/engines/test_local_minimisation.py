"""Local minimisation: certified minimisers and honest counts; DualFL and what is like it in a loop over clients."""

import numpy as np
import pytest
from halves import MU, NUMBERS, TOP, Clients, D, begins_where_it_ended, find_solver
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Distance, Quadratic, quadratics, refused

from flwr_fco.algorithms import dual_fl as dual_fl_rule
from flwr_fco.engines import minimise
from flwr_fco.objectives import CoxRegression, Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.work import FirstOrder, Minimise

dual_fl, fed_dr = map(find_solver, ("dual_fl", "fed_dr"))


@pytest.mark.parametrize("rho", [0.0, MU / TOP])
def test_the_sequences_of_dual_fl_are_those_of_fista_on_the_dual(rho):
    objectives = quadratics()
    nu = 0.8 * MU
    # Algorithm 2 from its own formulas: g_j = f_j - nu/2 |.|^2, and its conjugate's proximal map by linear algebra.
    count = len(objectives)
    xi = np.zeros((count, D))
    eta = np.zeros((count, D))
    t = 1.0
    clients = Clients(dual_fl, objectives)
    state = dual_fl_rule.DualFLState(np.zeros(D))
    for _ in range(30):
        points = eta - eta.mean(axis=0)
        previous = xi.copy()
        for j, f in enumerate(objectives):
            inverse = np.linalg.inv(f.matrix - nu * np.eye(D))
            # argmin g*(x) + 1/(2 nu) |x - v|^2, g*(x) = 1/2 (x + b)' (A - nu I)^-1 (x + b)
            xi[j] = np.linalg.solve(inverse + np.eye(D) / nu, points[j] / nu - inverse @ f.vector)
        t_next = (1 - rho * t**2 + np.sqrt((1 - rho * t**2) ** 2 + 4 * t**2)) / 2
        beta = (t - 1) / t_next * (1 - t_next * rho) / (1 - rho)
        eta = (1 + beta) * xi - beta * previous
        t = t_next

        mean = clients.ask({"primal": state.primal}, duality=nu, momentum=state.momentum)
        controls = np.array([memory["control"] for memory in clients.memories])
        locals_ = np.array([memory["local"] for memory in clients.memories])
        np.testing.assert_allclose(nu * (controls - locals_), xi, atol=1e-9)
        state = dual_fl_rule.advance(state, mean, rho)
        assert state.momentum == pytest.approx(beta, abs=1e-14)
        np.testing.assert_allclose(state.primal, -xi.mean(axis=0) / nu, atol=1e-9)


def test_a_minimiser_refuses_gradient_steps_and_reports_its_cap():
    objectives = quadratics(count=1, exact=False)
    refused("Minimise", Clients(dual_fl, objectives, work=FirstOrder(steps=3)).ask, {"primal": np.zeros(D)}, **NUMBERS)
    clients = Clients(dual_fl, objectives, work=Minimise(tolerance=1e-12, max_iterations=1))
    clients.ask({"primal": np.zeros(D)}, **NUMBERS)
    (uplink,) = clients.uplinks
    assert (uplink.elapsed, uplink.steps) == (None, 1)
    assert (uplink.metrics["capped"], uplink.metrics["inner-iterations"]) == (1.0, 1.0)
    assert min(uplink.metrics["gradient-norm"], uplink.metrics["gap"]) > 0.0


@pytest.mark.parametrize("solver", [dual_fl, fed_dr])
def test_a_minimisation_begins_where_the_last_one_ended(solver, monkeypatch):
    begins_where_it_ended(solver, monkeypatch)


# --- one minimisation -------------------------------------------------------------------------------------------------

FEATURES = 7


class Gradients(Quadratic):
    """A quadratic of which only values and gradients are known."""

    quadratic = False
    hessian_product = Quadratic.__mro__[1].hessian_product


DRAWN = np.random.default_rng(0)
ROWS = DRAWN.standard_normal((60, FEATURES)) * np.geomspace(0.1, 10, FEATURES)
NORMAL = DRAWN.standard_normal(60)
(EXACT,) = quadratics(count=1, d=FEATURES)
#: Solved exactly, by Newton's method with and without a line of its own, and by L-BFGS-B.
LOSSES = {
    "softmax": MultinomialLogistic(ROWS, DRAWN.integers(0, 4, 60), num_classes=4, intercept=False, l2=1e-2),
    "logistic": Logistic(ROWS, DRAWN.integers(0, 2, 60), l2=1e-2, intercept=False),
    "counts": Poisson(0.1 * ROWS, DRAWN.poisson(1.5, 60), l2=1e-2),
    "huber": Huber(ROWS, 2.0 * NORMAL, sample_weight=DRAWN.uniform(0.5, 2.0, 60), l2=1e-2),
    "least squares": LeastSquares(ROWS, NORMAL, scale=0.5, l2=1e-2),
    "quadratic": EXACT,
    "own Hessian": quadratics(count=1, d=FEATURES, exact=False)[0],
    "gradients": Gradients(EXACT.matrix, EXACT.vector),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_the_result_tells_the_gradient_a_gap_and_what_they_took(kind):
    loss = LOSSES[kind]
    shift, center = np.random.default_rng(1).standard_normal((2, loss.layout.size))
    tolerance = 1e-6 if kind == "gradients" else 1e-11
    found = minimise(loss, Minimise(tolerance=tolerance), shift=0.1 * shift, center=center, penalty=0.5)
    norm = np.linalg.norm(loss.gradient(found.point) - 0.1 * shift + 0.5 * (found.point - center))
    assert (found.reached, found.gradient_norm) == (True, pytest.approx(norm, rel=0.1, abs=1e-14))
    assert found.gradient_norm <= tolerance
    expected = found.gradient_norm**2 / (2 * (loss.strong_convexity() + 0.5))
    assert found.gap == pytest.approx(expected, rel=1e-6, abs=0.0)
    assert found.gradient_evaluations >= max(found.iterations, 1)
    assert (found.hessian_products > 0) == (kind in ("softmax", "logistic", "counts", "huber", "own Hessian"))
    assert found.metrics["capped"] == 0.0


@pytest.mark.parametrize("kind", ["softmax", "quadratic"])
def test_the_gap_bounds_the_suboptimality_and_the_gap_rule_stops_at_it(kind):
    loss = LOSSES[kind]
    best = loss.value(minimise(loss, Minimise(tolerance=1e-13)).point)
    for tolerance in (1e-2, 1e-5):
        found = minimise(loss, Minimise(tolerance=tolerance, rule="gap"))
        assert found.reached
        assert -1e-15 <= loss.value(found.point) - best <= found.gap <= tolerance


def test_the_gap_rule_uses_the_strong_convexity_beyond_the_duality():
    loss = LOSSES["softmax"]
    assert Minimise(1e-4, "gap").stopping_norm(1e-2, 0.9e-2) == pytest.approx(np.sqrt(2 * 0.1e-2 * 1e-4))
    refused(r"strong convexity above 0\.02", minimise, loss, Minimise(rule="gap"), duality=0.02)
    cox = CoxRegression(ROWS, np.exp(NORMAL), np.ones(60))
    for unknown in (MultinomialLogistic(loss.features, loss.labels, num_classes=4), cox):
        refused("only 0 is known", minimise, unknown, Minimise(rule="gap"))
        assert minimise(unknown, Minimise(tolerance=1e-8))[-2:] == (np.inf, True)


@pytest.mark.parametrize("kind", ["softmax", "gradients"])
def test_a_cap_is_never_silent(kind):
    loss = LOSSES[kind]
    found = minimise(loss, Minimise(tolerance=1e-13, max_iterations=2), start=np.ones(loss.layout.size))
    assert (found.reached, found.metrics["capped"], found.iterations) == (False, 1.0, 2)
    assert found.gradient_norm > 1e-13


class Cone(Quadratic):
    """A quadratic around its minimiser that goes on as a cone: without curvature where a step begins far away."""

    quadratic = False

    def _distance(self, w):
        return np.linalg.norm(w - self.vector)

    def value(self, w):
        return float(0.5 * self._distance(w) ** 2 if self._distance(w) < 1.0 else self._distance(w) - 0.5)

    def gradient(self, w, batch=None, out=None):
        return np.divide(w - self.vector, max(1.0, self._distance(w)), out=out)

    def hessian_product(self, w, v):
        unit = (w - self.vector) / self._distance(w)
        return v.copy() if self._distance(w) < 1.0 else (v - (unit @ v) * unit) / self._distance(w)


@settings(max_examples=25)
@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_newton_goes_on_along_a_direction_without_curvature(minimiser):
    """Seen from far away the gradient is such a direction, to the last bit where it is an axis."""
    found = minimise(Cone(np.eye(3), np.array(minimiser)), Minimise(tolerance=1e-12), start=np.zeros(3))
    assert found.reached
    np.testing.assert_allclose(found.point, minimiser, atol=1e-11)


@pytest.mark.parametrize("d", [40, 1024])
def test_a_quadratic_that_falls_without_end_is_named(d):
    """DualFL's controls leave the span of a client's rows, where least squares without an l2 term has no curvature."""
    rng = np.random.default_rng(0)
    # One column is empty, as many are in sparse rows.
    loss = LeastSquares(rng.standard_normal((d // 8, d)) * (np.arange(d) > 0), rng.standard_normal(d // 8))
    refused(r"no unique minimiser: it falls .*alpha > 0", minimise, loss, shift=rng.standard_normal(d + 1))
    # Without that slope, it has minimisers, and finds one.
    assert minimise(loss, Minimise(tolerance=1e-8)).reached
    assert minimise(loss, Minimise(tolerance=1e-8), shift=loss.gradient(rng.standard_normal(d + 1), None)).reached


@pytest.mark.parametrize("l2", [0.0, 1e-2])
def test_what_all_classes_share_stays_as_it_is(l2):
    """A control of DualFL sums to 0 over the classes as long as points do; what rounding leaves would have no end."""
    loss = MultinomialLogistic(ROWS, LOSSES["softmax"].targets, num_classes=4, l2=l2)
    target = np.random.default_rng(0).standard_normal((FEATURES + 1, 4))
    target -= target.mean(axis=1, keepdims=True)
    found = minimise(loss, shift=loss.gradient(target.ravel()))
    np.testing.assert_allclose(found.point, target.ravel(), atol=1e-4)
    # Squares of the weights determine it to the tolerance, and without them nothing changes it but rounding.
    np.testing.assert_allclose(found.point.reshape(-1, 4).sum(axis=1), 0.0, atol=1e-7 if l2 else 1e-12)
    # Steeper than any slope of the loss.
    assert minimise(loss, shift=99.0 * np.sign(target).ravel()).iterations < 2_000 * found.reached


def test_a_loss_that_is_not_smooth_brings_its_own_minimiser():
    loss = Distance(np.zeros(2))
    center = np.array([3.0, 4.0])
    found = minimise(loss, Minimise(rule="gap"), center=center, penalty=0.5)
    # Its proximal map: 2 off the length of 5.
    np.testing.assert_allclose(found.point, 0.6 * center, rtol=1e-15)
    assert (found.gradient_evaluations, found.gap, found.reached) == (1, 1e-10, True)
    loss.minimiser = None
    refused(r"Distance is not smooth, .*minimiser\(pull, .*LocalSGD", minimise, loss)
    game = type("Game", (Quadratic,), {"ascends": slice(1, None)})(np.eye(2), np.ones(2))
    refused("Game is a saddle function, .*FeDualEx", minimise, game)


@pytest.mark.parametrize("seed", range(3, 6))
def test_rounding_of_columns_far_from_0_ends_a_descent_without_progress(seed):
    """Gradients are differences of numbers of the size of a column: their rounding is above the tolerance."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((28, 12)) * np.array([1.0, 1e3] + [1.0] * 10)
    features[:, 0] += 1e6
    objective = CoxRegression(features, rng.exponential(size=28), rng.random(28) < 0.7)
    found = minimise(objective, Minimise(), penalty=1.0, center=np.zeros(12))
    assert found.iterations < 200
    assert found.gap < 1e-14
