"""DualFL and what is like it without Flower: both halves of each method in a loop over clients."""

import numpy as np
import pytest
from halves import MU, NUMBERS, TOP, Clients, D, begins_where_it_ended, find_solver
from quadratics import quadratics

from flwr_fco.algorithms import dual_fl as dual_fl_rule
from flwr_fco.errors import ConfigurationError
from flwr_fco.work import FirstOrder, Minimise

dual_fl, fed_dr = map(find_solver, ("dual_fl", "fed_dr"))


@pytest.mark.parametrize("rho", [0.0, MU / TOP])
def test_the_sequences_of_dual_fl_are_those_of_fista_on_the_dual(rho):
    objectives = quadratics()
    nu = 0.8 * MU
    rounds = 30
    # Algorithm 2 from its own formulas: g_j = f_j - nu/2 |.|^2, and its conjugate's proximal map by linear algebra.
    count = len(objectives)
    xi = np.zeros((count, D))
    eta = np.zeros((count, D))
    t = 1.0
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
        eta = (1 + beta) * xi - beta * eta
        t = t_next

        mean = clients.ask({"primal": state.primal}, duality=nu, momentum=state.momentum)
        controls = np.array([memory["control"] for memory in clients.memories])
        locals_ = np.array([memory["local"] for memory in clients.memories])
        np.testing.assert_allclose(nu * (controls - locals_), xi, atol=1e-9)
        before = state.primal
        state = dual_fl_rule.advance(state, mean, rho)
        assert state.momentum == pytest.approx(beta, abs=1e-14)
        # (6.9b) with the averaged theta, where the paper prints theta_j.
        anchors = np.array([memory["anchor"] for memory in clients.memories])
        fresh = controls + state.primal - locals_
        following = (1 + beta) * fresh - beta * anchors
        np.testing.assert_allclose(nu * (following - (1 + beta) * state.primal + beta * before), eta, atol=1e-9)
        np.testing.assert_allclose(state.primal, -xi.mean(axis=0) / nu, atol=1e-9)


@pytest.mark.parametrize("rho", [1.0, 1.5, -0.1, np.nan])
def test_a_momentum_without_a_limit_is_refused(rho):
    with pytest.raises(ConfigurationError, match="rho"):
        dual_fl_rule.next_momentum(1.0, rho)


def test_a_minimiser_refuses_gradient_steps_and_reports_its_cap():
    objectives = quadratics(count=2, exact=False)
    with pytest.raises(ConfigurationError, match="Minimise"):
        Clients(dual_fl, objectives, work=FirstOrder(steps=3)).ask({"primal": np.zeros(D)}, **NUMBERS)
    clients = Clients(dual_fl, objectives, work=Minimise(tolerance=1e-12, max_iterations=1))
    clients.ask({"primal": np.zeros(D)}, **NUMBERS)
    for uplink in clients.uplinks:
        assert (uplink.elapsed, uplink.steps) == (None, 1)
        assert (uplink.metrics["capped"], uplink.metrics["inner-iterations"]) == (1.0, 1.0)
        assert uplink.metrics["gradient-norm"] > 1e-12
        assert uplink.metrics["gap"] > 0.0


@pytest.mark.parametrize("solver", [dual_fl, fed_dr])
def test_a_minimisation_begins_where_the_last_one_ended(solver, monkeypatch):
    begins_where_it_ended(solver, monkeypatch)
