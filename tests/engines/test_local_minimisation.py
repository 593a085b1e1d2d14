"""DualFL and what is like it without Flower: both halves of each method in a loop over clients."""

import numpy as np
import pytest
from playing import MU, TOP, UNEQUAL, Clients, D, begins_where_it_ended, dual_fl, error, fed_dr, play_dual_fl, remembers
from quadratics import Quadratic, quadratics

from flwr_fco.algorithms import dual_fl as dual_fl_rule
from flwr_fco.errors import ConfigurationError
from flwr_fco.work import FirstOrder, Minimise

# --- DualFL is inexact FISTA on the dual ------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, MU / TOP])
def test_the_sequences_of_dual_fl_are_those_of_fista_on_the_dual(rho):
    objectives, nu, rounds = quadratics(), 0.8 * MU, 30
    # Algorithm 2 from its own formulas: g_j = f_j - nu/2 |.|^2, and its conjugate's proximal map by linear algebra.
    count = len(objectives)
    xi, eta, t = np.zeros((count, D)), np.zeros((count, D)), 1.0
    clients = Clients(dual_fl, objectives)
    state = dual_fl_rule.DualFLState(np.zeros(D))
    before = state.primal
    for _ in range(rounds):
        points = eta - eta.mean(axis=0)
        for j, f in enumerate(objectives):
            inverse = np.linalg.inv(f.matrix - nu * np.eye(D))
            # argmin g*(x) + 1/(2 nu) |x - v|^2, g*(x) = 1/2 (x + b)' (A - nu I)^-1 (x + b)
            new = np.linalg.solve(inverse + np.eye(D) / nu, points[j] / nu - inverse @ f.vector)
            following = xi[j].copy()
            xi[j] = new
            eta[j] = following
        t_next = (1 - rho * t**2 + np.sqrt((1 - rho * t**2) ** 2 + 4 * t**2)) / 2
        beta = (t - 1) / t_next * (1 - t_next * rho) / (1 - rho)
        eta, t = (1 + beta) * xi - beta * eta, t_next

        mean = clients.ask({"primal": state.primal}, duality=nu, momentum=state.momentum)
        controls = np.array([memory["control"] for memory in clients.memories])
        locals_ = np.array([memory["local"] for memory in clients.memories])
        np.testing.assert_allclose(nu * (controls - locals_), xi, atol=1e-9)
        before, state = state.primal, dual_fl_rule.advance(state, mean, rho)
        assert state.momentum == pytest.approx(beta, abs=1e-14)
        # (6.9b) with the averaged theta, where the paper prints theta_j.
        anchors = np.array([memory["anchor"] for memory in clients.memories])
        fresh = controls + state.primal - locals_
        following = (1 + beta) * fresh - beta * anchors
        np.testing.assert_allclose(nu * (following - (1 + beta) * state.primal + beta * before), eta, atol=1e-9)
        np.testing.assert_allclose(state.primal, -xi.mean(axis=0) / nu, atol=1e-9)


def test_the_momentum_tends_to_its_limit_and_refuses_rho_of_one():
    t, rho = 1.0, 0.04
    for _ in range(200):
        t, momentum = dual_fl_rule.next_momentum(t, rho)
    assert t == pytest.approx(5.0)
    assert momentum == pytest.approx((1 - 0.2) / (1 + 0.2))
    for bad in (1.0, 1.5, -0.1, np.nan):
        with pytest.raises(ConfigurationError, match="rho"):
            dual_fl_rule.next_momentum(1.0, bad)


@pytest.mark.parametrize("weights", [None, UNEQUAL])
def test_the_weighted_sum_of_controls_is_zero_however_inexact_clients_are(weights):
    work = Minimise(tolerance=1.0)
    clients, _ = play_dual_fl(quadratics(exact=False), 12, 0.03, weights=weights, work=work)
    assert max(uplink.metrics["gradient-norm"] for uplink in clients.uplinks) > 1e-3
    controls = [np.abs(memory["control"]).max() for memory in clients.memories]
    assert np.abs(clients.memory("control")).max() < 1e-14 * max(1.0, *controls) * 10
    assert min(controls) > 0.1


def test_the_gap_is_what_the_paper_says_and_lies_between_its_bounds():
    (f,) = quadratics(count=1, exact=False)
    nu, control, theta = 0.7 * MU, np.ones(D), np.full(D, 0.3)
    xi = nu * (control - theta)
    conjugate = 0.5 * (xi + f.vector) @ np.linalg.solve(f.matrix - nu * np.eye(D), xi + f.vector)
    gap = f.value(theta) - nu * control @ theta + conjugate + nu / 2 * theta @ theta
    r = f.gradient(theta) - nu * control
    assert r @ r / (2 * TOP) <= gap <= r @ r / (2 * (MU - nu)) + 1e-12
    # The rule stops where the upper bound is below the tolerance, hence the gap as well.
    clients = Clients(dual_fl, [f], work=Minimise(tolerance=1e-6, rule="gap"))
    clients.ask({"primal": np.zeros(D)}, duality=nu, momentum=0.0)
    theta = clients.memories[0]["local"]
    xi = -nu * theta
    conjugate = 0.5 * (xi + f.vector) @ np.linalg.solve(f.matrix - nu * np.eye(D), xi + f.vector)
    assert 0.0 <= f.value(theta) + conjugate + nu / 2 * theta @ theta + 1e-15 <= 1e-6
    with pytest.raises(ConfigurationError, match="gap"):
        clients.ask({"primal": np.zeros(D)}, duality=1.01 * MU, momentum=0.0)


def test_without_strong_convexity_the_regularized_minimiser_is_found():
    rng = np.random.default_rng(0)
    objectives = []
    for _ in range(4):
        half = rng.standard_normal((3, D))
        objectives.append(Quadratic(half.T @ half, half.T @ rng.standard_normal(3)))
    values = []
    for alpha in (1e-1, 1e-2):
        regular = [Quadratic(f.matrix + alpha * np.eye(D), f.vector) for f in objectives]
        top = max(f.lipschitz() for f in objectives)
        states = play_dual_fl(objectives, 1500, alpha / (top + alpha), nu=alpha, alpha=alpha)[1]
        assert error(states[-1].primal, regular) < 1e-8
        values.append(sum(f.value(states[-1].primal) for f in objectives))
    # Theorem 4.1: the smaller alpha, the closer to the minimum of the problem itself.
    best = np.linalg.lstsq(sum(f.matrix for f in objectives), sum(f.vector for f in objectives), rcond=None)[0]
    bias = np.array(values) - sum(f.value(best) for f in objectives)
    assert 0 < bias[1] < bias[0] / 5


# --- who reaches the optimum of heterogeneous clients, and who does not -------------------------------------------


def test_a_minimiser_refuses_gradient_steps_and_reports_its_cap():
    objectives = quadratics(count=2, exact=False)
    clients = Clients(dual_fl, objectives, work=FirstOrder(steps=3))
    with pytest.raises(ConfigurationError, match="Minimise"):
        clients.ask({"primal": np.zeros(D)}, duality=MU, momentum=0.0)
    clients = Clients(dual_fl, objectives, work=Minimise(tolerance=1e-12, max_iterations=1))
    clients.ask({"primal": np.zeros(D)}, duality=MU, momentum=0.0)
    for uplink in clients.uplinks:
        assert uplink.elapsed is None
        assert uplink.steps == 1
        assert uplink.metrics["capped"] == 1.0
        assert uplink.metrics["inner-iterations"] == 1.0
        assert uplink.metrics["gradient-norm"] > 1e-12
        assert uplink.metrics["gap"] > 0.0


# --- the boxes of the papers, step by step ----------------------------------------------------------------------


@pytest.mark.parametrize("solver", [dual_fl, fed_dr])
def test_a_minimisation_begins_where_the_last_one_ended(solver, monkeypatch):
    begins_where_it_ended(solver, monkeypatch)


def test_a_memory_of_dual_fl_is_a_function_of_the_messages():
    def expected(before, point, vectors):
        anchor = before["control"] + point - before["local"]
        control = 1.3 * anchor - 0.3 * before["anchor"]
        return {"control": control, "anchor": anchor, "local": point + vectors["increment"]}

    remembers(dual_fl, expected)


def test_a_memory_of_fed_dr_is_a_function_of_the_messages():
    def expected(before, point, vectors):
        center = before["center"] + 1.2 * (point - before["local"])
        old = 2.0 * before["local"] - before["center"]
        return {"center": center, "local": 0.5 * (old + vectors["increment"] + center)}

    remembers(fed_dr, expected)
