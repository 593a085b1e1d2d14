"""Hinge losses, and the dual ascent that minimises them."""

import numpy as np
import pytest

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


def test_the_gradient_rule_is_about_optimality_and_a_cap_is_reported():
    found = minimise(hinge(), Minimise(tolerance=1e-11))
    assert found.reached
    assert found.gradient_norm <= 1e-11
    best = minimise(hinge(), Minimise(tolerance=1e-14, rule="gap"))
    np.testing.assert_allclose(found.point, best.point, atol=1e-6)
    capped = minimise(hinge(n=400, l2=1e-3), Minimise(tolerance=1e-15, rule="gap", max_iterations=2))
    assert (capped.iterations, capped.reached) == (2, False)
    with pytest.raises(ConfigurationError, match="l2"):
        minimise(hinge(l2=0.0))
