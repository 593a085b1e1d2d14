"""FedNewton: exact answers in few rounds, and a gap that is never below the true one."""

from itertools import pairwise

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from newton import numbers, objective_value, point, sites, solved
from problems import app_of
from representatives import crossed
from scipy.sparse import csr_array
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from flwr_fco.algorithms.newton import model
from flwr_fco.algorithms.newton.model import Penalty, working_set
from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import quiet
from flwr_fco.objectives import Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared, PerParameter, SparseGroupLasso, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Arrays, FedNewton
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
    psi, objectives = PENALTIES[name], sites(kind, **options)
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


@pytest.mark.parametrize("name", ["l1", "elastic net", "group lasso"])
def test_several_classes(name):
    psi = {
        "l1": L1(0.03),
        "elastic net": ElasticNet(0.05, 0.5),
        "group lasso": GroupLasso(0.03, np.arange(9)[:, None]),
    }[name]
    objectives = sites("classes")
    result, _ = solved(objectives, psi)
    best = objective_value(objectives, psi, centralized_solution(objectives, psi, tol=1e-9))
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert gaps[-1] <= 1e-8
    assert len(gaps) <= 12
    assert all(gap >= value - best - 1e-9 for gap, value in zip(gaps, values, strict=True))
    if name == "group lasso":
        rows = result.arrays["coefficients"].numpy()
        assert set(np.count_nonzero(rows, axis=1)) <= {0, 3}


def _skewed(num_sites=4):
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    order = np.argsort(features[:, 0] + np.random.default_rng(0).standard_normal(len(labels)))
    largest = np.abs(features.T @ (labels - labels.mean())).max() / len(labels)
    return [Logistic(features[i], labels[i]) for i in np.array_split(order, num_sites)], largest


@pytest.mark.parametrize(("ratio", "most"), [(0.5, 6), (0.05, 8), (0.005, 11), (1e-5, 30)])
def test_breast_cancer_in_a_dozen_rounds(ratio, most):
    objectives, largest = _skewed()
    result, _ = solved(objectives, L1(ratio * largest))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert len(result.train_metrics_clientapp) <= most


def test_the_solution_is_that_of_scikit_learn():
    objectives, largest = _skewed()
    strength = 0.05 * largest
    result, _ = solved(objectives, L1(strength), tolerance=1e-12)
    features = np.vstack([objective.features for objective in objectives])
    labels = np.concatenate([objective.labels for objective in objectives])
    oracle = LogisticRegression(
        C=1.0 / (len(labels) * strength), l1_ratio=1.0, solver="saga", tol=1e-10, max_iter=10**5
    )
    oracle.fit(features, labels)
    np.testing.assert_allclose(result.arrays["coefficients"].numpy(), oracle.coef_[0], atol=1e-5)
    assert np.array_equal(result.arrays["coefficients"].numpy() != 0.0, oracle.coef_[0] != 0.0)


@pytest.mark.parametrize(("name", "kind"), crossed(PENALTIES, ["squares", "logistic"]))
def test_without_a_hessian_the_same_answer(name, kind):
    psi, objectives = PENALTIES[name], sites(kind)
    exact, _ = solved(objectives, psi)
    result, _ = solved(objectives, psi, hessian="none", rounds=1000)
    best = numbers(exact, "objective")[-1]
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert gaps[-1] <= 1e-8
    assert all(gap >= value - best - 1e-9 for gap, value in zip(gaps, values, strict=True))


def _restarted_fista(objectives, psi, best, tolerance):
    """Count the gradients of FISTA with restarts on the pooled data, with the exact largest eigenvalue."""
    pooled = Logistic(np.vstack([f.features for f in objectives]), np.concatenate([f.labels for f in objectives]))
    bound, L = psi.bind(pooled.layout), pooled.lipschitz()
    x = y = np.zeros(pooled.layout.size)
    t = 1.0
    for count in range(1, 5000):
        new = bound.prox(y - pooled.gradient(y) / L, 1.0 / L)
        if pooled.value(new) + bound.value(new) - best <= tolerance:
            return count
        t = 1.0 if (y - new) @ (new - x) > 0.0 else t
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
        x, y, t = new, new + (t - 1.0) / following * (new - x), following
    raise AssertionError("no convergence")


def test_without_a_hessian_it_takes_no_more_rounds_than_the_centralised_method():
    objectives, largest = _skewed()
    psi = L1(0.05 * largest)
    exact, _ = solved(objectives, psi, tolerance=1e-13)
    result, _ = solved(objectives, psi, hessian="none", rounds=1000)
    oracle = _restarted_fista(objectives, psi, numbers(exact, "objective")[-1], 1e-8)
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert len(result.train_metrics_clientapp) <= 1.3 * oracle


def test_digits_on_a_working_set():
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = np.array_split(order, 10)
    objectives = [MultinomialLogistic(features[i] / 16.0, labels[i], num_classes=10) for i in parts]
    result, _ = solved(objectives, L1(2e-3))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert len(result.train_metrics_clientapp) <= 13
    assert max(numbers(result, "working-set")) < 300


@pytest.mark.parametrize(("outputs", "size"), [(1, 100), (10, 100), (14, 140)])
def test_a_working_set_has_room_for_every_class(outputs, size):
    penalty = Penalty.of(L1(1.0).bind(Layout.from_arrays({"w": np.zeros(2000)})))
    assert working_set(np.zeros(2000), np.linspace(0.0, 0.9, 2000), penalty, outputs=outputs).sum() == size


def test_at_the_largest_strength_the_gap_is_that_of_the_intercept():
    """Scaled residuals of w = 0, b = 0 are feasible but for the intercept, and give a gap of 0.0."""
    objectives, largest = _skewed()
    result, _ = solved(objectives, L1(largest), rounds=1)
    share = np.mean(np.concatenate([objective.labels for objective in objectives]))
    null = -share * np.log(share) - (1.0 - share) * np.log(1.0 - share)
    assert numbers(result, "duality-gap")[0] >= np.log(2.0) - null > 0.03


def test_squares_with_every_coordinate_in_the_set_take_two_rounds():
    result, _ = solved(sites("squares"), L1(0.05))
    assert len(result.train_metrics_clientapp) == 2


def test_from_another_start():
    objectives = sites("logistic")
    start = {"coefficients": np.linspace(-3.0, 3.0, 9), "intercept": np.array([2.0])}
    result, _ = solved(objectives, L1(0.05), start=start)
    again, _ = solved(objectives, L1(0.05), start={name: array.numpy() for name, array in result.arrays.items()})
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert len(again.train_metrics_clientapp) == 1
    far = {"coefficients": np.full(9, 40.0), "intercept": np.array([-200.0])}
    halved, _ = solved(objectives, L1(0.05), start=far)
    assert numbers(halved, "duality-gap")[-1] <= 1e-8


def test_a_start_outside_of_the_box_begins_at_its_nearest_point():
    start = {"coefficients": np.full(9, 7.0), "intercept": np.zeros(1)}
    result, _ = solved(sites("squares"), Box(-0.3, 0.6), start=start)
    assert np.abs(result.arrays["coefficients"].numpy()).max() <= 0.6
    assert numbers(result, "duality-gap" if numbers(result, "duality-gap") else "residual")[-1] <= 1e-8


@pytest.mark.parametrize("kind", ["squares", "logistic"])
def test_without_psi_there_is_a_residual_and_no_gap(kind):
    objectives, psi = sites(kind, sizes=(60, 80)), Zero()
    result, _ = solved(objectives, psi)
    assert not numbers(result, "duality-gap")
    assert numbers(result, "residual")[-1] <= 1e-8
    oracle = centralized_solution(objectives, psi, tol=1e-10)
    np.testing.assert_allclose(point(result, objectives[0]), oracle, atol=1e-6)


def test_psi_by_parameter_and_equal_weights():
    objectives = sites("logistic")
    psi = PerParameter({"coefficients": L1(0.04), "intercept": L2Squared(0.1)})
    result, _ = solved(objectives, psi, weighting="uniform", arrays=Arrays(apply_to="*"))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    w = point(result, objectives[0])
    step = w - sum(f.gradient(w) for f in objectives) / 3
    moved = np.r_[np.sign(step[:9]) * np.maximum(np.abs(step[:9]) - 0.04, 0.0), step[9] / 1.1]
    np.testing.assert_allclose(moved, w, atol=1e-5)


# --- the same bits however it runs ------------------------------------------------------------------------------------


class Messages(InProcessGrid):
    """Hooks of its own: everything travels in messages."""

    direct = None

    def reply(self, message):
        return super().reply(message)


def _wide(seed=0, p=150):
    """More features than SMALL, so that the working set changes."""
    objectives = sites("logistic", p=p, sizes=(40, 30, 35), seed=seed)
    return objectives, L1(0.06)


def _state(strategy):
    return [np.asarray(value).tobytes() for value in strategy.state]


@pytest.mark.parametrize("hessian", ["block", "none"])
def test_in_process_and_over_messages_the_bits_are_the_same(hessian):
    objectives, psi = _wide()
    result, strategy = solved(objectives, psi, hessian=hessian)
    layout = objectives[0].layout
    start = {name: Array(np.zeros(shape)) for name, shape in layout.shapes.items()}
    other = FedNewton(regularizer=psi, hessian=hessian, fraction_evaluate=0.0)
    grid = Messages(app_of(objectives), 3)
    with grid.identity(), quiet(50):
        told = other.start(grid, ArrayRecord(start), 40)
    assert _state(other) == _state(strategy)
    assert told.train_metrics_clientapp.keys() == result.train_metrics_clientapp.keys()


def test_with_several_blas_threads_the_bits_are_the_same():
    """A ServerApp has as many as there are cores, `simulate` one: products of hundreds of columns would differ."""
    features, labels = load_digits(return_X_y=True)
    parts = np.array_split(np.random.default_rng(0).permutation(len(labels)), 4)
    objectives = [MultinomialLogistic(features[i] / 16.0, labels[i], num_classes=10) for i in parts]
    _, strategy = solved(objectives, L1(2e-3))
    other = FedNewton(regularizer=L1(2e-3), fraction_evaluate=0.0)
    grid = InProcessGrid(app_of(objectives), 4)
    start = ArrayRecord({name: Array(np.zeros(shape)) for name, shape in objectives[0].layout.shapes.items()})
    with grid.identity(), quiet(50), threadpool_limits(limits=2, user_api="blas"):
        other.start(grid, start, 40)
    assert _state(other) == _state(strategy)


@pytest.mark.parametrize(
    ("stop", "hessian"),
    [(4, "block"), (3, "none"), *(pytest.param(stop, "block", marks=pytest.mark.nightly) for stop in (1, 2))],
)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, stop, hessian):
    """Also in the middle of a step that is being shortened."""
    objectives, psi = _wide()
    options = {"hessian": hessian, "rounds": 40}
    start = {"coefficients": np.full(150, 1.0), "intercept": np.array([-30.0])}
    whole, strategy = solved(objectives, psi, start=start, **options)
    assert len(numbers(whole, "objective")) > 4
    path = tmp_path / "run.npz"
    first, _ = solved(objectives, psi, start=start, callbacks=[Checkpoint(path)], **{**options, "rounds": stop})
    assert len(first.train_metrics_clientapp) == stop
    rest, resumed = solved(objectives, psi, start=start, resume=path, **options)
    assert _state(resumed) == _state(strategy)
    assert numbers(rest, "duality-gap") == numbers(whole, "duality-gap")


def test_a_step_is_halved_where_a_whole_one_would_go_up():
    """From far away on one coordinate the Hessian is small, and a whole step too long."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 1))
    objectives = [Logistic(features, features[:, 0] + 0.3 * rng.normal(size=40) > 0.0)]
    start = {"coefficients": np.array([-6.0]), "intercept": np.array([3.0])}
    result, _ = solved(objectives, L1(0.01), start=start, rounds=60)
    values = numbers(result, "objective")
    assert min(numbers(result, "step")) < 1.0
    assert all(later <= earlier + 1e-14 for earlier, later in pairwise(values))
    assert numbers(result, "duality-gap")[-1] <= 1e-8


def test_the_gap_of_a_float32_model_is_that_of_the_arrays_handed_out():
    objectives, psi = sites("logistic"), L1(0.05)
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
    both = [[f.with_features(form(x)) for f, x in zip(given, masked, strict=True)] for form in (np.asarray, csr_array)]
    psi = L1(0.3 if kind == "squares" else 0.02)
    (dense, _), (sparse, _) = (solved(each, psi, rounds=1000, hessian=hessian) for each in both)
    assert numbers(sparse, "duality-gap")[-1] <= 1e-8
    assert np.count_nonzero(sparse.arrays["coefficients"].numpy()) >= 3
    assert numbers(sparse, "bytes-up")[-1] < numbers(dense, "bytes-up")[-1]
    assert numbers(sparse, "objective")[-1] == pytest.approx(numbers(dense, "objective")[-1], abs=1e-8)


def test_more_coordinates_than_the_largest_block_are_solved_in_turns(monkeypatch):
    """The point travels with all of its coordinates, not only with those of the block."""
    monkeypatch.setattr(model, "_MOST", 70)
    objectives, psi = sites("logistic", p=100, sizes=(60, 80, 70)), L2Squared(0.1)
    result, _ = solved(objectives, psi, rounds=60)
    best = objective_value(objectives, psi, centralized_solution(objectives, psi, tol=1e-11))
    assert not result.left_out
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert objective_value(objectives, psi, point(result, objectives[0])) <= best + 1e-8
    assert max(numbers(result, "working-set")) == 70


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
