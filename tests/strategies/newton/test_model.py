"""The minimiser of the quadratic model against CVXPY and scikit-learn, with every psi that it takes."""

import cvxpy as cp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import Lasso

from flwr_fco.algorithms.newton.model import Penalty, minimise_model
from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, GroupLasso, L2Squared, NonNegative, SparseGroupLasso, Zero

SIZE = 12
GROUPS = np.arange(SIZE) // 3
WEIGHTS = np.random.default_rng(3).uniform(0.0, 2.0, SIZE).round(1)
LAYOUT = Layout.from_arrays({"w": np.zeros(SIZE)})


def _norms(x):
    return np.sqrt(3.0) * sum(cp.norm(x[group == GROUPS]) for group in range(4))


CASES = {
    "l1": (L1(0.3), lambda x: 0.3 * cp.norm1(x)),
    "weighted l1": (L1(0.3, weights=WEIGHTS), lambda x: 0.3 * cp.norm1(cp.multiply(WEIGHTS, x))),
    "elastic net": (ElasticNet(0.4, 0.6), lambda x: 0.24 * cp.norm1(x) + 0.08 * cp.sum_squares(x)),
    "l1 in a box": (L1(0.1, bound=0.3), lambda x: 0.1 * cp.norm1(x) + cp.transforms.indicator([cp.abs(x) <= 0.3])),
    "box": (Box(-0.2, 0.5), lambda x: cp.transforms.indicator([x >= -0.2, x <= 0.5])),
    "non-negative": (NonNegative(), lambda x: cp.transforms.indicator([x >= 0])),
    "ridge": (L2Squared(0.5), lambda x: 0.25 * cp.sum_squares(x)),
    "none": (Zero(), lambda x: 0.0),
    "group lasso": (GroupLasso(0.3, GROUPS), lambda x: 0.3 * _norms(x)),
    "sparse group lasso": (SparseGroupLasso(0.5, GROUPS, 0.4), lambda x: 0.2 * cp.norm1(x) + 0.3 * _norms(x)),
    "one norm": (L2(0.5), lambda x: 0.5 * cp.norm(x)),
}


def _model(seed=0, rows=30):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, SIZE))
    start = 0.2 * rng.uniform(size=SIZE) * (rng.random(SIZE) < 0.5)
    return features.T @ features / rows, rng.normal(size=SIZE), start


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_minimiser_is_that_of_cvxpy(name, seed):
    psi, expression = CASES[name]
    hessian, gradient, start = _model(seed)
    x = cp.Variable(SIZE)
    move = x - start
    quadratic = gradient @ move + 0.5 * cp.quad_form(move, cp.psd_wrap(hessian))
    problem = cp.Problem(cp.Minimize(quadratic + expression(x)))
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    found = minimise_model(hessian, gradient, start, Penalty.of(psi.bind(LAYOUT)))
    own = found - start
    value = gradient @ own + 0.5 * own @ hessian @ own + psi.value(found)
    assert value <= problem.value + 1e-10
    assert_allclose(found, x.value, atol=2e-6)


@pytest.mark.filterwarnings("ignore:Objective did not converge")
def test_a_badly_conditioned_lasso_is_solved_to_rounding():
    """Descent alone needs more than 100,000 sweeps here."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, SIZE)) @ np.diag(np.logspace(0, -3, SIZE)) + rng.normal(size=(60, 1))
    targets = features @ rng.normal(size=SIZE) + 0.1 * rng.normal(size=60)
    strength = 1e-6
    penalty = Penalty.of(L1(strength).bind(LAYOUT))
    found = minimise_model(features.T @ features / 60, -features.T @ targets / 60, np.zeros(SIZE), penalty)

    def value(w):
        return 0.5 * np.mean((features @ w - targets) ** 2) + strength * np.abs(w).sum()

    oracle = Lasso(alpha=strength, fit_intercept=False, tol=1e-14, max_iter=1_000_000).fit(features, targets).coef_
    assert value(found) <= value(oracle) + 1e-16
    slope = features.T @ (features @ found - targets) / 60
    assert np.abs(slope).max() <= strength * (1.0 + 1e-6)
    on = found != 0.0
    assert_allclose(slope[on], -strength * np.sign(found[on]), atol=1e-6 * strength)


def test_the_penalty_of_some_coordinates_has_their_groups():
    penalty = Penalty.of(SparseGroupLasso(1.0, GROUPS, 0.25, weights=np.array([1.0, 2.0, 0.0, 3.0])).bind(LAYOUT))
    part = penalty.at(np.array([3, 4, 5, 6, 7, 8]))
    assert part.groups.tolist() == [0, 0, 0, -1, -1, -1]
    assert part.strengths.tolist() == [1.5]
    x = np.array([3.0, 4.0, 0.0, 1.0, 0.0, 0.0])
    assert part.value(x) == 0.25 * 8.0 + 1.5 * 5.0


@pytest.mark.parametrize("name", CASES)
def test_distance_from_optimality_is_by_the_proximal_map_of_psi(name):
    psi = CASES[name][0].bind(LAYOUT)
    rng = np.random.default_rng(0)
    for _ in range(20):
        v = rng.normal(size=SIZE) * rng.choice([0.01, 0.1, 1.0])
        assert_allclose(Penalty.of(psi).prox(v), psi.prox(v, 1.0), atol=1e-15)


# One group has one unit.
@pytest.mark.parametrize("name", [name for name in CASES if name != "one norm"])
def test_a_model_of_any_units_has_the_minimiser_of_one_unit(name):
    """With u = scales * x, each group in one unit."""
    hessian, gradient, start = _model()
    penalty = Penalty.of(CASES[name][0].bind(LAYOUT))
    scales = np.repeat([1e6, 3e-4, 7.0, 1.0], 3)
    expected = minimise_model(hessian, gradient, start, penalty)
    other = hessian * np.outer(scales, scales), gradient * scales, start / scales, penalty.scaled(1.0 / scales)
    found = minimise_model(*other)
    assert_allclose(found * scales, expected, atol=1e-9)
    assert (found == 0.0).tolist() == (expected == 0.0).tolist()
