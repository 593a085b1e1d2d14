"""FedNewton: exact answers in few rounds, and a gap that is never below the true one; its model against CVXPY."""

from functools import partial
from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from kinks import Distance
from newton import numbers, objective_value, point, sites, solved
from numpy.testing import assert_allclose
from representatives import crossed
from scipy.sparse import csr_array
from sklearn.linear_model import Lasso

from flwr_fco.algorithms.newton.model import Penalty, minimise_model
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, GroupLasso, L2Squared, NonNegative, SparseGroupLasso, Zero
from flwr_fco.strategies import run_of
from reproduction.pooled import centralized_solution

GROUPS = np.arange(9) // 3


PENALTIES = {
    "l1": L1(0.05),
    "weighted l1": L1(0.05, weights=np.linspace(0.5, 2.0, 9)),
    "elastic net": ElasticNet(0.1, 0.7),
    "l1 in a box": L1(0.02, bound=0.4),
    "box": Box(-0.3, 0.6),
    "group lasso": GroupLasso(0.03, GROUPS),
    "sparse group lasso": SparseGroupLasso(0.05, GROUPS, 0.5),
    "ridge": L2Squared(0.1),
    "a weak ridge": L2Squared(1e-3),
    "a strong ridge": L2Squared(30.0),
}


@pytest.mark.parametrize("hessian", ["block", "none"])
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        *crossed(PENALTIES, ["squares", "logistic"], [{}, {"l2": 0.05}, {"intercept": False}]),
        *((ridge, "classes", {}) for ridge in PENALTIES if "ridge" in ridge),
    ],
)
def test_the_solution_and_a_valid_gap_in_every_round(name, kind, options, hessian):
    psi = PENALTIES[name]
    objectives = sites(kind, **options)
    result, _ = solved(objectives, psi, hessian=hessian, rounds=40 if hessian == "block" else 1000)
    rounds = len(result.train_metrics_clientapp)
    w = point(result, objectives[0])
    solution = centralized_solution(objectives, psi, tol=1e-10)
    best = min(objective_value(objectives, psi, each) for each in (w, solution))
    gaps, values = np.array(numbers(result, "duality-gap")), np.array(numbers(result, "objective"))
    assert len(gaps) == rounds
    assert gaps[-1] <= 1e-8
    assert (gaps >= values - best - 1e-13).all()
    assert values[-1] == pytest.approx(objective_value(objectives, psi, w), rel=1e-13)
    if hessian == "block":
        assert rounds <= (6 if kind == "squares" else 12)
    elif "ridge" in name:
        # L-BFGS goes down in every step.
        assert (np.diff(values) <= 1e-13).all()
        assert rounds <= 200


def test_at_the_largest_strength_the_gap_is_that_of_the_intercept():
    """Scaled residuals of w = 0, b = 0 are feasible but for the intercept, and give a gap of 0.0."""
    objectives = sites("logistic")
    features, labels = (np.concatenate([getattr(own, name) for own in objectives]) for name in ("features", "labels"))
    share = labels.mean()
    result, _ = solved(objectives, L1(np.abs(features.T @ (labels - share)).max() / labels.size), rounds=1)
    null = -share * np.log(share) - (1.0 - share) * np.log(1.0 - share)
    assert numbers(result, "duality-gap")[0] >= np.log(2.0) - null > 0.01


@pytest.mark.parametrize(("psi", "hessian"), [(L1(0.01), "block"), (L2Squared(1e-4), "none")])
def test_a_step_is_halved_where_a_whole_one_would_go_up(psi, hessian):
    """From far away on one coordinate the Hessian is small, and a whole step too long."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 1))
    objectives = [Logistic(features, features[:, 0] + 0.3 * rng.normal(size=40) > 0.0)]
    start = {"coefficients": np.array([-6.0]), "intercept": np.array([3.0])}
    result, _ = solved(objectives, psi, hessian=hessian, start=start, rounds=100)
    values = numbers(result, "objective")
    assert min(numbers(result, "step")) < 1.0
    assert all(later <= earlier + 1e-14 for earlier, later in pairwise(values))
    assert numbers(result, "duality-gap")[-1] <= 1e-8


def test_the_gap_of_a_float32_model_is_that_of_the_returned_arrays():
    objectives = sites("logistic")
    psi = L1(0.05)
    start = {"coefficients": np.zeros(9, np.float32), "intercept": np.zeros(1, np.float32)}
    result, strategy = solved(objectives, psi, start=start)
    assert result.arrays["coefficients"].numpy().dtype == np.float32
    w = point(result, objectives[0]).astype(np.float64)
    assert objective_value(objectives, psi, w) == pytest.approx(numbers(result, "objective")[-1], rel=1e-14)
    assert np.array_equal(strategy.state.point, w)
    assert numbers(result, "duality-gap")[-1] < 1e-6


@pytest.mark.parametrize(("kind", "hessian"), crossed(["squares", "logistic", "classes"], ["block", "none"]))
def test_sparse_features_send_the_columns_of_their_rows(kind, hessian):
    """With the answer of dense ones, in a fraction of the bytes."""
    given = sites(kind, p=300)
    rng = np.random.default_rng(0)
    masked = [objective.features * (rng.random(objective.features.shape) < 0.003) for objective in given]
    makes = {"squares": partial(LeastSquares, scale=0.5), "logistic": Logistic}
    make = makes.get(kind, partial(MultinomialLogistic, num_classes=3))
    rows = [(x, f.targets) for f, x in zip(given, masked, strict=True)]
    both = [[make(form(x), targets) for x, targets in rows] for form in (np.asarray, csr_array)]
    psi = L1(0.3 if kind == "squares" else 0.02)
    (dense, _), (sparse, _) = (solved(each, psi, rounds=1000, hessian=hessian) for each in both)
    assert numbers(sparse, "duality-gap")[-1] <= 1e-8
    assert np.count_nonzero(sparse.arrays["coefficients"].numpy()) >= 3
    # A gradient's zeros are not sent, whatever form the features have.
    assert numbers(sparse, "bytes-up")[-1] == numbers(dense, "bytes-up")[-1]
    if hessian == "none":
        assert numbers(sparse, "bytes-up")[-1] < 0.3 * 3 * 8 * given[0].layout.size
    assert numbers(sparse, "objective")[-1] == pytest.approx(numbers(dense, "objective")[-1], abs=1e-8)


@pytest.mark.parametrize("kind", ["squares", "logistic", "classes"])
@pytest.mark.parametrize("hessian", ["block", "none"])
def test_where_psi_leaves_columns_alone_the_run_ends_at_a_residual(kind, hessian):
    """Of a confounder; with an l2 term of the losses, which holds it, there is a gap."""
    weights = np.r_[0.0, 0.0, np.ones(7)]
    psi = L1(0.05, weights if kind != "classes" else np.repeat(weights[:, None], 3, axis=1))
    rounds = 40 if hessian == "block" else 3000
    objectives = sites(kind)
    result, _ = solved(objectives, psi, rounds, hessian=hessian, tolerance=1e-7)
    best = objective_value(objectives, psi, centralized_solution(objectives, psi, tol=1e-11))
    assert numbers(result, "residual")[-1] <= 1e-7
    assert not numbers(result, "duality-gap")
    assert objective_value(objectives, psi, point(result, objectives[0])) <= best + 1e-8
    result, _ = solved(sites(kind, l2=0.05), psi, rounds, hessian=hessian)
    assert numbers(result, "duality-gap")[-1] <= 1e-8


# --- where data, clients or options are not as they should be ---------------------------------------------------------


def certified(objectives, psi, **options):
    """Return where a run ends, once its gap says that it is the optimum."""
    result, _ = solved(objectives, psi, **options)
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    return point(result, objectives[0])


# --- data -------------------------------------------------------------------------------------------------------------


def test_classes_that_are_separable_along_what_psi_leaves_alone():
    """l1 alone has an optimum; without psi on a separating column the loss has none, and a residual says 'solved'."""
    rng = np.random.default_rng(0)
    objectives = []
    for _ in range(3):
        features = rng.normal(size=(20, 4))
        objectives.append(Logistic(features, features[:, 0] > 0.0))
    certified(objectives, L1(0.05))
    free = L1(0.05, weights=np.array([0.0, 1.0, 1.0, 1.0]))
    result, _ = solved(objectives, free, hessian="none", rounds=60)
    assert not numbers(result, "duality-gap")
    with pytest.raises(ConfigurationError, match=r"separable along coefficients that psi leaves alone, coeff.*: the"):
        solved(objectives, free)


def test_sites_with_one_class_and_with_one_row():
    one, two, three = sites("logistic")
    of_one_class = Logistic(three.features, np.ones(three.num_examples))
    single = Logistic(one.features[:1], one.labels[:1])
    w = certified([single, two, of_one_class], L1(0.03))
    best = centralized_solution([single, two, of_one_class], L1(0.03), tol=1e-10)
    assert_allclose(w, best, atol=1e-4)
    certified([LeastSquares(np.ones((1, 2)), np.array([3.0]))], L1(0.1))


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        ([Logistic(np.ones((3, 2)), np.zeros(3, int))] * 2, r"no client has an example of class 1.*apply_to="),
        ([MultinomialLogistic(np.eye(2), [0, 2], num_classes=3)] * 2, "no client has an example of class 1"),
        ([Distance(np.ones(3))] * 2, r"Distance does not know its Hessian.*FedDAGT"),
    ],
    ids=["one class", "two of three classes", "no second derivatives"],
)
def test_losses_that_newton_cannot_take_are_refused_by_name(objectives, said):
    with pytest.raises((ClientError, ConfigurationError), match=said):
        solved(objectives, L1(0.1), 3)


def test_features_in_other_units_leave_no_site_out():
    """One site's features times 50, and another feature times 1,000: derivatives are not compared with each other."""
    objectives = sites("logistic", sizes=(30, 41, 25, 30, 30, 30))
    objectives[1] = Logistic(50.0 * objectives[1].features, objectives[1].labels)
    objectives[2] = Logistic(objectives[2].features * np.r_[1000.0, np.ones(8)], objectives[2].labels)
    result, strategy = solved(objectives, L1(0.05))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert not result.left_out
    assert run_of(strategy).state.round == len(result.train_metrics_clientapp)


def test_an_exact_fit_leaves_no_site_out():
    """Loss, mean square and gradient go to 0, and their rounding errors do not."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=5)
    objectives = []
    for _ in range(3):
        features = 1e3 * rng.normal(size=(30, 4))
        objectives.append(LeastSquares(features, features @ truth[:4] + truth[4], scale=0.5))
    result, _ = solved(objectives, Zero(), tolerance=1e-10)
    assert not result.left_out
    assert_allclose(point(result, objectives[0]), truth, rtol=1e-6)


# --- L-BFGS steps without Hessian blocks, for an l2 term --------------------------------------------------------------


def test_many_features_take_tens_of_rounds():
    """The gap is that to a ridge in the span of the rows."""
    rng = np.random.default_rng(0)
    features = [rng.normal(0.1 * m, 1.0, size=(40, 5000)) for m in range(3)]
    objectives = [Logistic(own, own[:, 0] + rng.normal(size=40) > 0.0) for own in features]
    psi = L2Squared(1 / 120)
    result, _ = solved(objectives, psi, hessian="none", tolerance=1e-13, rounds=200)
    assert numbers(result, "duality-gap")[-1] <= 1e-13
    assert len(result.train_metrics_clientapp) <= 60
    X, y = np.vstack([own.features for own in objectives]), np.concatenate([own.labels for own in objectives])
    w = point(result, objectives[0])
    slopes = (1.0 / (1.0 + np.exp(-(X @ w[:-1] + w[-1]))) - y) / len(y)
    assert_allclose(X.T @ slopes, -w[:-1] / 120, atol=1e-8)
    assert abs(slopes.sum()) < 1e-8


# --- the minimiser of the quadratic model -----------------------------------------------------------------------------

SIZE = 12
OF_GROUP = np.arange(SIZE) // 3
WEIGHTS = np.random.default_rng(3).uniform(0.0, 2.0, SIZE).round(1)
LAYOUT = Layout.from_arrays({"w": np.zeros(SIZE)})


def _norms(x):
    return np.sqrt(3.0) * sum(cp.norm(x[group == OF_GROUP]) for group in range(4))


MODELS = {
    "l1": (L1(0.3), lambda x: 0.3 * cp.norm1(x)),
    "weighted l1": (L1(0.3, weights=WEIGHTS), lambda x: 0.3 * cp.norm1(cp.multiply(WEIGHTS, x))),
    "elastic net": (ElasticNet(0.4, 0.6), lambda x: 0.24 * cp.norm1(x) + 0.08 * cp.sum_squares(x)),
    "l1 in a box": (L1(0.1, bound=0.3), lambda x: 0.1 * cp.norm1(x) + cp.transforms.indicator([cp.abs(x) <= 0.3])),
    "box": (Box(-0.2, 0.5), lambda x: cp.transforms.indicator([x >= -0.2, x <= 0.5])),
    "non-negative": (NonNegative(), lambda x: cp.transforms.indicator([x >= 0])),
    "ridge": (L2Squared(0.5), lambda x: 0.25 * cp.sum_squares(x)),
    "none": (Zero(), lambda x: 0.0),
    "group lasso": (GroupLasso(0.3, OF_GROUP), lambda x: 0.3 * _norms(x)),
    "sparse group lasso": (SparseGroupLasso(0.5, OF_GROUP, 0.4), lambda x: 0.2 * cp.norm1(x) + 0.3 * _norms(x)),
    "one norm": (L2(0.5), lambda x: 0.5 * cp.norm(x)),
}


def _model(seed=0, rows=30):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, SIZE))
    start = 0.2 * rng.uniform(size=SIZE) * (rng.random(SIZE) < 0.5)
    return features.T @ features / rows, rng.normal(size=SIZE), start


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_minimiser_is_that_of_cvxpy(name, seed):
    psi, expression = MODELS[name]
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


# One group has one unit.
@pytest.mark.parametrize("name", [name for name in MODELS if name != "one norm"])
def test_a_model_of_any_units_has_the_minimiser_of_one_unit(name):
    """With u = scales * x, each group in one unit."""
    hessian, gradient, start = _model()
    penalty = Penalty.of(MODELS[name][0].bind(LAYOUT))
    scales = np.repeat([1e6, 3e-4, 7.0, 1.0], 3)
    expected = minimise_model(hessian, gradient, start, penalty)
    other = hessian * np.outer(scales, scales), gradient * scales, start / scales, penalty.scaled(1.0 / scales)
    found = minimise_model(*other)
    assert_allclose(found * scales, expected, atol=1e-9)
    assert (found == 0.0).tolist() == (expected == 0.0).tolist()
