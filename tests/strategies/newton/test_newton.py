"""FedNewton: exact answers in few rounds, and a gap that is never below the true one."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from kinks import Distance
from newton import numbers, objective_value, point, sites, solved
from representatives import crossed
from scipy.sparse import csr_array

from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared, SparseGroupLasso, Zero
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
}


@pytest.mark.parametrize(
    ("name", "kind", "options"), crossed(PENALTIES, ["squares", "logistic"], [{}, {"l2": 0.05}, {"intercept": False}])
)
def test_the_solution_and_a_valid_gap_in_every_round(name, kind, options):
    psi = PENALTIES[name]
    objectives = sites(kind, **options)
    result, _ = solved(objectives, psi)
    rounds = len(result.train_metrics_clientapp)
    assert rounds <= (6 if kind == "squares" else 12)
    w = point(result, objectives[0])
    best = min(objective_value(objectives, psi, each) for each in (w, centralized_solution(objectives, psi, tol=1e-10)))
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert len(gaps) == rounds
    assert gaps[-1] <= 1e-8
    for gap, value in zip(gaps, values, strict=True):
        assert gap >= value - best - 1e-13
    assert values[-1] == pytest.approx(objective_value(objectives, psi, w), rel=1e-13)


@pytest.mark.parametrize(("name", "kind"), crossed(PENALTIES, ["squares", "logistic"]))
def test_without_a_hessian_the_same_answer(name, kind):
    psi = PENALTIES[name]
    objectives = sites(kind)
    exact, _ = solved(objectives, psi)
    result, _ = solved(objectives, psi, hessian="none", rounds=1000)
    best = numbers(exact, "objective")[-1]
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert gaps[-1] <= 1e-8
    assert all(gap >= value - best - 1e-9 for gap, value in zip(gaps, values, strict=True))


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


def _certified(objectives, psi, **options):
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
    _certified(objectives, L1(0.05))
    free = L1(0.05, weights=np.array([0.0, 1.0, 1.0, 1.0]))
    said = r"separable along coefficients that psi leaves alone, coefficients.*: the largest"
    with pytest.raises(ConfigurationError, match=said):
        solved(objectives, free)
    result, _ = solved(objectives, free, hessian="none", rounds=60)
    assert not numbers(result, "duality-gap")


def test_sites_with_one_class_and_with_one_row():
    one, two, three = sites("logistic")
    of_one_class = Logistic(three.features, np.ones(three.num_examples))
    single = Logistic(one.features[:1], one.labels[:1])
    w = _certified([single, two, of_one_class], L1(0.03))
    best = centralized_solution([single, two, of_one_class], L1(0.03), tol=1e-10)
    np.testing.assert_allclose(w, best, atol=1e-4)
    _certified([LeastSquares(np.ones((1, 2)), np.array([3.0]))], L1(0.1))


def test_a_class_that_nobody_has_is_named():
    objectives = [Logistic(np.ones((3, 2)) * m, np.zeros(3, dtype=int)) for m in (1.0, 2.0)]
    with pytest.raises(ConfigurationError, match=r"no client has an example of class 1.*apply_to="):
        solved(objectives, L1(0.1))
    parts = [MultinomialLogistic(np.eye(2), np.array([0, 2]), num_classes=3) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="no client has an example of class 1"):
        solved(parts, L1(0.1))


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
    np.testing.assert_allclose(point(result, objectives[0]), truth, rtol=1e-6)


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_loss_without_second_derivatives_is_refused_by_the_client():
    objectives = [Distance(np.ones(3)) for _ in range(2)]
    with pytest.raises((ClientError, ConfigurationError), match=r"Distance does not know its Hessian.*FedDAGT"):
        solved(objectives, L1(0.1), 3)


# --- L-BFGS steps without Hessian blocks, for an l2 term --------------------------------------------------------------


@pytest.mark.parametrize("strength", [1e-3, 0.1, 30.0])
@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
def test_the_answer_of_newton_steps_with_a_gap_that_holds_on_the_way(kind, strength):
    objectives, psi = sites(kind), L2Squared(strength)
    exact, _ = solved(objectives, psi, tolerance=1e-12)
    result, _ = solved(objectives, psi, hessian="none", rounds=200)
    best = numbers(exact, "objective")[-1]
    gaps = numbers(result, "duality-gap")
    values = numbers(result, "objective")
    assert gaps[-1] <= 1e-8
    assert all(gap >= value - best - 1e-12 for gap, value in zip(gaps, values, strict=True))
    assert (np.diff(values) <= 1e-13).all()
    one, other = point(result, objectives[0]), point(exact, objectives[0])
    if kind == "multinomial":
        # Free intercepts are unique up to a common constant.
        one[-3:], other[-3:] = one[-3:] - one[-3:].mean(), other[-3:] - other[-3:].mean()
    np.testing.assert_allclose(one, other, atol=3e-3)
    assert objective_value(objectives, psi, point(result, objectives[0])) <= best + 1e-8


def wide(p=5000, rows=40):
    rng = np.random.default_rng(0)
    features = [rng.normal(0.1 * m, 1.0, size=(rows, p)) for m in range(3)]
    return [Logistic(own, own[:, 0] + rng.normal(size=rows) > 0.0) for own in features]


def test_many_features_take_tens_of_rounds():
    """The gap is that to a ridge in the span of the rows."""
    objectives = wide()
    psi = L2Squared(1 / 120)
    result, _ = solved(objectives, psi, hessian="none", tolerance=1e-13, rounds=200)
    assert numbers(result, "duality-gap")[-1] <= 1e-13
    assert len(result.train_metrics_clientapp) <= 60
    X, y = np.vstack([own.features for own in objectives]), np.concatenate([own.labels for own in objectives])
    w = point(result, objectives[0])
    slopes = (1.0 / (1.0 + np.exp(-(X @ w[:-1] + w[-1]))) - y) / len(y)
    np.testing.assert_allclose(X.T @ slopes, -w[:-1] / 120, atol=1e-8)
    assert abs(slopes.sum()) < 1e-8
