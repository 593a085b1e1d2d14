"""Hinge losses, and the dual ascent that minimises them."""

import numpy as np
import pytest

from flwr_fco import DualFL, client_app, simulate
from flwr_fco.engines import Minimise, minimise
from flwr_fco.errors import ConfigurationError
from flwr_fco.testing import check_objective
from reproduction.problems.hinge import Hinge


def hinge(seed=0, n=80, l2=0.05):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, 5))
    return Hinge(features, np.where(features[:, 0] + 0.7 * rng.standard_normal(n) > 0, 1, -1), l2)


def test_the_loss_is_an_objective_with_subgradients():
    check_objective(hinge())


def test_dual_ascent_finds_the_minimiser_as_a_quadratic_program_does():
    cvxpy = pytest.importorskip("cvxpy")
    objective = hinge()
    rng = np.random.default_rng(3)
    extra = {"shift": 0.1 * rng.standard_normal(5), "center": rng.standard_normal(5), "penalty": 0.2}
    found = minimise(objective, Minimise(tolerance=1e-12, rule="gap"), **extra)
    assert found.reached
    w = cvxpy.Variable(5)
    margins = cvxpy.multiply(objective.targets, objective.features @ w)
    loss = cvxpy.sum(cvxpy.pos(1 - margins)) / 80 + 0.025 * cvxpy.sum_squares(w) - extra["shift"] @ w
    cvxpy.Problem(cvxpy.Minimize(loss + 0.1 * cvxpy.sum_squares(w - extra["center"]))).solve(solver="CLARABEL")
    np.testing.assert_allclose(found.point, w.value, atol=1e-5)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-9])
def test_the_gap_bounds_the_suboptimality(tolerance):
    objective, shift = hinge(), np.full(5, 0.1)

    def energy(w):
        return objective.value(w) - shift @ w

    best = energy(minimise(objective, Minimise(tolerance=1e-14, rule="gap"), shift=shift).point)
    found = minimise(objective, Minimise(tolerance=tolerance, rule="gap"), shift=shift)
    assert found.reached
    assert -1e-14 <= energy(found.point) - best <= found.gap <= tolerance


def test_the_gradient_rule_is_about_the_optimality_conditions_and_a_cap_is_told():
    found = minimise(hinge(), Minimise(tolerance=1e-11))
    assert found.reached
    assert found.gradient_norm <= 1e-11
    best = minimise(hinge(), Minimise(tolerance=1e-14, rule="gap"))
    np.testing.assert_allclose(found.point, best.point, atol=1e-6)
    capped = minimise(hinge(n=400, l2=1e-3), Minimise(tolerance=1e-15, rule="gap", max_iterations=2))
    assert (capped.iterations, capped.reached) == (2, False)
    with pytest.raises(ConfigurationError, match="l2"):
        minimise(hinge(l2=0.0))


def test_dual_fl_solves_support_vector_machines_at_the_rate_of_theorem_3_2():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((120, 4))
    labels = np.where(features[:, 0] - 0.5 * features[:, 1] + 0.5 * rng.standard_normal(120) > 0, 1, -1)
    parts, mu = np.array_split(np.argsort(features[:, 2]), 4), 0.1
    best = minimise(Hinge(features, labels, mu), Minimise(tolerance=1e-13, rule="gap")).point
    # nu = mu is allowed here: the gap of the dual ascent is finite all the same.
    work = Minimise(tolerance=1e-14, rule="gap", max_iterations=2000)
    strategy = DualFL(nu=mu, rho=0.0, schedule="sublinear", gamma=1.0, work=work)
    errors = []

    def watch(server_round, arrays):
        errors.append(np.linalg.norm(arrays["coefficients"].numpy() - best))
        return {}

    clients = [Hinge(features[rows], labels[rows], mu) for rows in parts]
    app = client_app(lambda context: clients[context.node_config["partition-id"]])
    start = {"coefficients": np.zeros(4)}
    simulate(strategy, app, num_nodes=4, num_rounds=200, initial_arrays=start, evaluate_fn=watch, progress=False)
    rounds = np.arange(1, len(errors))
    assert (rounds * errors[1:]).max() < 3 * errors[1] + 1
    assert max(errors[-20:]) < 0.02 * errors[1]
