"""FedNewton: exact answers in few rounds, and a gap that is never below the true one; its model against CVXPY.

A path of strengths and its cross-validation in one run: against runs of one strength each.
"""

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from faulty import Faulty, changing
from newton import exchanged, numbers, objective_value, point, sites, solved
from numpy.testing import assert_allclose
from problems import Distance, app_of, crossed, refused, simulated, started, zeros
from scipy.sparse import csr_array, vstack
from sklearn.linear_model import Lasso

from flwr_fco.algorithms.contract.replies import Mean, Replies
from flwr_fco.algorithms.newton import asking
from flwr_fco.algorithms.newton.asking import folds_of
from flwr_fco.algorithms.newton.model import minimise_model
from flwr_fco.client_apps import Disclosure
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Uplink
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson, SiteIntercept
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, GroupLasso, L2Squared, NonNegative, SparseGroupLasso, Zero
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation import fit_path
from flwr_fco.strategies import FedDAGT, FedNewton, Strengths, proved_zero, run_of
from reproduction.pooled import centralized_solution

SIZE = 12
OF_GROUP = np.arange(SIZE) // 3
WEIGHTS = np.random.default_rng(3).uniform(0.0, 2.0, SIZE).round(1)
LAYOUT = Layout.from_arrays({"w": np.zeros(SIZE)})


def _norms(x):
    return np.sqrt(3.0) * sum(cp.norm(x[group == OF_GROUP]) for group in range(4))


MODELS = {
    "l1": (L1(0.1), lambda x: 0.1 * cp.norm1(x)),
    "weighted l1": (L1(0.1, weights=WEIGHTS), lambda x: 0.1 * cp.norm1(cp.multiply(WEIGHTS, x))),
    "elastic net": (ElasticNet(0.2, 0.6), lambda x: 0.12 * cp.norm1(x) + 0.04 * cp.sum_squares(x)),
    "l1 in a box": (L1(0.1, bound=0.3), lambda x: 0.1 * cp.norm1(x) + cp.transforms.indicator([cp.abs(x) <= 0.3])),
    "box": (Box(-0.2, 0.5), lambda x: cp.transforms.indicator([x >= -0.2, x <= 0.5])),
    "non-negative": (NonNegative(), lambda x: cp.transforms.indicator([x >= 0])),
    "ridge": (L2Squared(0.5), lambda x: 0.25 * cp.sum_squares(x)),
    "none": (Zero(), lambda x: 0.0),
    "group lasso": (GroupLasso(0.1, OF_GROUP), lambda x: 0.1 * _norms(x)),
    "sparse group lasso": (SparseGroupLasso(0.2, OF_GROUP, 0.4), lambda x: 0.08 * cp.norm1(x) + 0.12 * _norms(x)),
    "one norm": (L2(0.2), lambda x: 0.2 * cp.norm(x)),
}
#: Those with which a round has a duality gap.
PENALTIES = {name: psi for name, (psi, _) in MODELS.items() if name not in ("non-negative", "none")}
PENALTIES |= {"a weak ridge": L2Squared(1e-3), "a strong ridge": L2Squared(30.0)}


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
    objectives = sites(kind, p=SIZE, **options)
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


@pytest.mark.parametrize(("psi", "hessian", "begin"), [(L1(0.01), "block", -6.0), (L2Squared(1e-4), "none", 6.0)])
def test_a_step_is_halved_where_a_whole_one_would_go_up(psi, hessian, begin):
    """From far away on one coordinate the Hessian is small, and a whole step too long."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 1))
    objectives = [Logistic(features, features[:, 0] + 0.3 * rng.normal(size=40) > 0.0)]
    start = {"coefficients": np.array([begin]), "intercept": np.array([-0.5 * begin])}
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

    def thin(features, rng):
        return features * (rng.random(features.shape) < 0.004)

    both = [sites(kind, p=300, change=change) for change in (thin, lambda *given: csr_array(thin(*given)))]
    psi = L1(0.05 if kind == "squares" else 0.005)
    (dense, _), (sparse, _) = (solved(each, psi, rounds=1000, hessian=hessian) for each in both)
    assert numbers(sparse, "duality-gap")[-1] <= 1e-8
    assert np.count_nonzero(sparse.arrays["coefficients"].numpy()) >= 3
    # A gradient's zeros are not sent, whatever form the features have.
    assert numbers(sparse, "bytes-up")[-1] == numbers(dense, "bytes-up")[-1]
    if hessian == "none":
        assert numbers(sparse, "bytes-up")[-1] < 0.3 * 3 * 8 * both[0][0].layout.size
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
    objectives = [Logistic(own, own[:, 0] > 0.0) for own in np.random.default_rng(0).normal(size=(3, 20, 4))]
    certified(objectives, L1(0.05))
    free = L1(0.05, weights=np.array([0.0, 1.0, 1.0, 1.0]))
    result, _ = solved(objectives, free, hessian="none", rounds=60)
    assert not numbers(result, "duality-gap")
    refused(r"separable along coefficients that psi leaves alone, coeff.*: the", solved, objectives, free)


def test_sites_with_one_class_and_with_one_row():
    one, two, three = sites("logistic")
    of_one_class = Logistic(three.features, np.ones(three.num_examples))
    single = Logistic(one.features[:1], one.labels[:1])
    w = certified([single, two, of_one_class], L1(0.03))
    assert_allclose(w, centralized_solution([single, two, of_one_class], L1(0.03), tol=1e-10), atol=1e-4)
    certified([LeastSquares(np.ones((1, 2)), np.array([3.0]))], L1(0.1))


def test_losses_that_newton_cannot_take_are_refused_by_name():
    for objectives, said in (
        ([Logistic(np.ones((3, 2)), np.zeros(3, int))] * 2, r"no client has an example of class 1.*apply_to="),
        ([MultinomialLogistic(np.eye(2), [0, 2], num_classes=3)] * 2, "no client has an example of class 1"),
        ([Distance(np.ones(3))] * 2, r"Distance does not know its Hessian.*FedDAGT"),
    ):
        refused(said, solved, objectives, L1(0.1), 3, kind=(ClientError, ConfigurationError))


def test_features_in_other_units_leave_no_site_out():
    """One site's features times 50, and another feature times 1,000: derivatives are not compared with each other."""
    objectives = sites("logistic", sizes=(30, 41, 25, 30, 30, 30))
    objectives[1] = Logistic(50.0 * objectives[1].features, objectives[1].labels)
    objectives[2] = Logistic(objectives[2].features * np.r_[1000.0, np.ones(8)], objectives[2].labels)
    result, strategy = solved(objectives, L1(0.05))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert not result.left_out
    assert run_of(strategy).state.round == len(result.train_metrics_clientapp)


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_without_blocks_features_are_in_any_unit(unit):
    objectives = [Poisson(unit * own.features, own.targets) for own in sites("poisson")]
    certified(objectives, L1(0.05 * unit), hessian="none", rounds=500)


def test_an_exact_fit_leaves_no_site_out():
    """Loss, mean square and gradient go to 0, and their rounding errors do not."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=5)
    features = 1e3 * rng.normal(size=(3, 30, 4))
    objectives = [LeastSquares(own, own @ truth[:4] + truth[4], scale=0.5) for own in features]
    result, _ = solved(objectives, Zero(), tolerance=1e-10)
    assert not result.left_out
    assert_allclose(point(result, objectives[0]), truth, rtol=1e-6)


# --- L-BFGS steps without Hessian blocks, for an l2 term --------------------------------------------------------------


def test_many_features_take_tens_of_rounds():
    """The gap is that to a ridge in the span of the rows."""
    rng = np.random.default_rng(0)
    features = [rng.normal(0.1 * m, 1.0, size=(40, 5000)) for m in range(3)]
    objectives = [Logistic(own, own[:, 0] + rng.normal(size=40) > 0.0) for own in features]
    result, _ = solved(objectives, L2Squared(1 / 120), hessian="none", tolerance=1e-13, rounds=200)
    assert numbers(result, "duality-gap")[-1] <= 1e-13
    assert len(result.train_metrics_clientapp) <= 60
    X, y = np.vstack([own.features for own in objectives]), np.concatenate([own.labels for own in objectives])
    w = point(result, objectives[0])
    slopes = (1.0 / (1.0 + np.exp(-(X @ w[:-1] + w[-1]))) - y) / len(y)
    assert_allclose(X.T @ slopes, -w[:-1] / 120, atol=1e-8)
    assert abs(slopes.sum()) < 1e-8


# --- the minimiser of the quadratic model -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_minimiser_is_that_of_cvxpy(name, seed):
    psi, expression = MODELS[name]
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, SIZE))
    start = 0.2 * rng.uniform(size=SIZE) * (rng.random(SIZE) < 0.5)
    hessian = features.T @ features / 30
    gradient = rng.normal(size=SIZE)
    x = cp.Variable(SIZE)
    move = x - start
    quadratic = gradient @ move + 0.5 * cp.quad_form(move, cp.psd_wrap(hessian))
    problem = cp.Problem(cp.Minimize(quadratic + expression(x)))
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    found = minimise_model(hessian, gradient, start, psi.bind(LAYOUT).sums)
    own = found - start
    assert gradient @ own + 0.5 * own @ hessian @ own + psi.value(found) <= problem.value + 1e-10
    # Under some BLAS the solver's point is further off than ours, which no proximal step moves.
    assert_allclose(found, psi.bind(LAYOUT).prox(found - gradient - hessian @ own, 1.0), atol=1e-9)
    assert_allclose(found, x.value, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Objective did not converge")
def test_a_badly_conditioned_lasso_is_solved_to_rounding():
    """Descent alone needs more than 100,000 sweeps here."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, SIZE)) @ np.diag(np.logspace(0, -3, SIZE)) + rng.normal(size=(60, 1))
    targets = features @ rng.normal(size=SIZE) + 0.1 * rng.normal(size=60)
    strength = 1e-6
    penalty = L1(strength).bind(LAYOUT).sums
    found = minimise_model(features.T @ features / 60, -features.T @ targets / 60, np.zeros(SIZE), penalty)

    def value(w):
        return 0.5 * np.mean((features @ w - targets) ** 2) + strength * np.abs(w).sum()

    oracle = Lasso(alpha=strength, fit_intercept=False, tol=1e-14, max_iter=1_000_000).fit(features, targets).coef_
    assert value(found) <= value(oracle) + 1e-16
    slope = features.T @ (features @ found - targets) / 60
    assert np.abs(slope).max() <= strength * (1.0 + 1e-6)
    assert_allclose(slope[found != 0.0], -strength * np.sign(found[found != 0.0]), atol=1e-6 * strength)
    # A whole step to a ridge's minimiser, which lowers the model by less than its rounding.
    ridge = L2Squared(1.0).bind(LAYOUT).sums
    moved = minimise_model(np.eye(SIZE), np.full(SIZE, 1e-9 - 1.0), np.ones(SIZE), ridge) - 1.0
    assert_allclose(moved, -5e-10, rtol=1e-6)


# --- what rounds prove zero, however loose their gaps, against the optimum that CVXPY finds ---------------------------

P = 8


def rare_and_equal(features, rng):
    """Some columns are rare and two are equal."""
    features = features * np.exp(rng.normal(0.0, 0.7, P))
    features[:, 3] = features[:, 2]
    return features


def sparse_rows(features, rng):
    return csr_array(rare_and_equal(features * (rng.random(features.shape) < 0.4), rng))


def slopes_at_the_optimum(objectives, l1, ridge, box=None):
    """Return |x_j'u*|/n, which is the same at all optima, and the coefficients of one of them."""
    X = vstack([csr_array(own.features) for own in objectives]).toarray()
    total = sum(own.num_examples for own in objectives)
    first = objectives[0]
    outputs = getattr(first, "num_classes", 1)
    W = cp.Variable((P, outputs))
    b = cp.Variable((1, outputs)) if first.intercept else np.zeros((1, outputs))
    scores = X @ W + np.ones((total, 1)) @ b
    if isinstance(first, LeastSquares):
        y = np.concatenate([own.targets for own in objectives])
        loss = first.scale * cp.sum_squares(scores[:, 0] - y)
    elif outputs == 1:
        signs = np.concatenate([np.where(own.labels == 1, 1.0, -1.0) for own in objectives])
        loss = cp.sum(cp.logistic(-cp.multiply(signs, scores[:, 0])))
    else:
        Y = np.eye(3)[np.concatenate([own.labels for own in objectives])]
        loss = cp.sum(cp.log_sum_exp(scores, axis=1)) - cp.sum(cp.multiply(Y, scores))
    psi = cp.sum(cp.multiply(l1, cp.abs(W))) + 0.5 * cp.sum(cp.multiply(ridge + first.l2, W**2))
    limits = [] if box is None else [cp.abs(W) <= box]
    cp.Problem(cp.Minimize(loss / total + psi), limits).solve(solver="CLARABEL")
    w = np.concatenate([W.value.reshape(-1), b.value[0] if first.intercept else []])
    gradient = sum(own.num_examples * own.gradient(w) for own in objectives) / total
    return np.abs(gradient[: P * outputs] - first.l2 * w[: P * outputs]), W.value.reshape(-1)


#: psi of a threshold, its l2 term and box, and options of the losses. The features 2 and 3 are equal.
CASES = {
    "l1": (L1, 0.0, None, {}),
    "elastic net": (lambda a: ElasticNet(2.0 * a, 0.5), 1.0, None, {}),
    "box": (lambda a: L1(a, bound=0.1), 0.0, 0.1, {}),
    "an l2 term of the losses": (L1, 0.0, None, {"l2": 0.3}),
    "no intercept": (L1, 0.0, None, {"intercept": False}),
    "sparse features": (L1, 0.0, None, {"change": sparse_rows}),
    "weights": (L1, 0.0, None, {}),
}


@pytest.mark.parametrize(("kind", "case"), crossed(["squares", "logistic", "multinomial"], CASES))
def test_no_optimum_has_what_a_round_has_proved_zero(kind, case):
    """The proofs of all rounds are kept, those at loose gaps too; in the end nearly all is proved that can be."""
    psi_of, ridge, box, options = CASES[case]
    counts = []
    for seed in range(4):
        objectives = sites(kind, (12, 20, 9), P, seed, **{"change": rare_and_equal, **options})
        shape = (P, 3) if kind == "multinomial" else (P, 1)
        zero = sum(own.num_examples * own.gradient(np.zeros(own.layout.size)) for own in objectives) / 41
        strength = (0.3, 0.1)[seed % 2] * np.abs(zero[: np.prod(shape)]).max()
        weights = np.linspace(0.5, 2.0, P) if case == "weights" else np.ones(P)
        thresholds = np.repeat(strength * weights, shape[1])
        psi = psi_of(strength)
        if case == "weights":
            psi = L1(strength, weights if shape[1] == 1 else weights[:, None])
        slopes, w = slopes_at_the_optimum(objectives, thresholds.reshape(shape), ridge * strength, box)
        result, strategy = solved(objectives, psi)
        assert numbers(result, "duality-gap")[-1] <= 1e-8
        proved = proved_zero(strategy)["coefficients"].reshape(-1)
        # CVXPY's slopes are good to about 1e-7; those of any optimum's support are the threshold itself, or above.
        assert (slopes[proved] < (1.0 - 1e-5) * thresholds[proved]).all()
        assert (np.abs(w[proved]) < 1e-4).all()
        assert not any(mask.any() for name, mask in proved_zero(strategy).items() if name == "intercept")
        counts.append((proved.sum(), (slopes < 0.99 * thresholds).sum()))
    found, provable = np.sum(counts, axis=0)
    assert found >= 0.95 * provable > 0


def test_what_is_known_is_asked_again_where_other_clients_answer():
    objective = sites()[0]
    psi = L1(0.2)
    w = np.zeros(objective.layout.size)
    state, _ = exchanged(objective, psi, w)
    same, other = (Replies([Uplink(asking.answer(objective, w, True), None, 1, weight=own)]) for own in (1.0, 0.5))
    asking.opened(state, psi.bind(objective.layout), same)
    refused("have changed", asking.opened, state, psi.bind(objective.layout), other, kind=asking.Restart)


@pytest.mark.parametrize(
    ("objective", "slack"),
    [
        (LeastSquares([[2.0]], [1.0], scale=0.5, intercept=False), 1.0),
        (LeastSquares([[2.0]], [1.0], scale=2.0, intercept=False), 1.0),
        (Logistic([[2.0]], [1], intercept=False), 1.0),
        # The slopes of two classes are opposite, and the radius is of both.
        (MultinomialLogistic([[2.0]], [1], num_classes=2, intercept=False), 2.0**0.5),
        (SiteIntercept(LeastSquares([[7.0], [9.0]], [1.0, 2.0], scale=0.5)), 1.0),
        (SiteIntercept(Logistic([[7.0], [9.0]] * 13, [0, 1] * 13)), 1.0),
    ],
)
def test_the_radius_reaches_the_optimal_slope_and_no_further(objective, slack):
    """Of one example the dual is as curved as the bound says: a smaller radius would be wrong."""
    zero = np.zeros(objective.layout.size)
    # An elastic net of a large threshold leaves the dual point as it is, and 0 is its optimum.
    state, known = exchanged(objective, ElasticNet(100.0, 0.5), np.array([0.05, -0.05])[: zero.size])
    bound, slopes = known.dual(state)
    # What `zeros` adds to the slope of one coefficient, by bisection of the threshold.
    lower, upper = 0.0, 10.0
    for _ in range(60):
        middle = 0.5 * (lower + upper)
        narrow = known._replace(psi=ElasticNet(2.0 * middle, 0.5).bind(objective.layout))
        proved = narrow.zeros(objective.value(zero), bound, slopes, state)
        lower, upper = (lower, middle) if proved[0] else (middle, upper)
    reach = middle - abs(slopes[0])
    distance = abs(slopes[0] - objective.gradient(zero)[0])
    assert distance * (1.0 - 1e-9) <= reach
    assert reach == pytest.approx(slack * distance, rel=0.02)


def own_loss(largest):
    """Return a loss that a user has written, here one with an intercept of each site, and what it says of its rows."""
    return type("Own", (SiteIntercept,), {"largest_square": largest, "least": 0.0})


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_ones_own_is_proved_zero_by_its_own_bound_only(seed):
    """Without a bound of its own it has no radius, and one of 0 would prove what the optimum has."""
    losses = sites("squares", (30, 30, 30), P, seed)
    psi = L1(0.2 * np.abs(sum(SiteIntercept(own).gradient(np.zeros(P)) for own in losses) / 3).max())

    def found(kind, hessian="block"):
        return proved_zero(solved([kind(own) for own in losses], psi, 400, hessian=hessian)[1])["coefficients"]

    np.testing.assert_array_equal(found(SiteIntercept, "none"), found(SiteIntercept))
    np.testing.assert_array_equal(found(own_loss(SiteIntercept.largest_square)), found(SiteIntercept))
    assert 0 < found(SiteIntercept).sum() < P
    assert not found(own_loss(Objective.largest_square)).any()
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ClientError, match=r"Own.largest_square\(\)=.*expected a finite number >= 0"):
            found(own_loss(lambda self, wrong=wrong: wrong))


# --- a path of strengths ----------------------------------------------------------------------------------------------


def path_of(objectives, psi=None, rounds=60, strategy=None, disclosure=None, **options):
    strategy = strategy or FedNewton(regularizer=psi or L1(1.0), tolerance=1e-9, fraction_evaluate=0.0)
    start = zeros(objectives[0].layout)
    given = {"num_nodes": len(objectives), "num_rounds": rounds, "initial_arrays": start, "progress": False}
    return fit_path(strategy, app_of(objectives, disclosure=disclosure), **given, **options)


SIZES = (60, 81, 50)
FOUR = {"num_strengths": 4, "ratio": 0.05, "validate": False}
#: More features than rows: known gradients bound most of the others.
WIDE = sites("squares", sizes=(30, 40, 25), p=200)
EIGHT = {"num_strengths": 8, "ratio": 0.05, "cv": 3, "rounds": 200}
KINDS = {
    "squares": (sites("squares", SIZES), L1(7.0), FOUR),
    "logistic": (sites("logistic", SIZES), L1(7.0), FOUR),
    "softmax": (sites("multinomial", SIZES), L1(7.0), FOUR),
    "elastic net": (sites("logistic", SIZES), ElasticNet(7.0, 0.5), FOUR),
    "groups": (sites("squares", SIZES), GroupLasso(7.0, groups=np.arange(9) // 3), FOUR),
    "confounders": (sites("logistic", SIZES), L1(7.0, weights=np.r_[0.0, 0.0, np.ones(7)]), FOUR),
    "wide squares": (WIDE, L1(7.0), EIGHT),
    "wide ridge": (WIDE, L2Squared(7.0), {"strengths": [1.0, 0.1], "validate": False}),
    "wide squares with intercepts of each site": ([SiteIntercept(own) for own in WIDE], L1(7.0), EIGHT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_model_is_that_of_a_run_of_its_own(kind):
    objectives, psi, options = KINDS[kind]
    strategy = FedNewton(regularizer=psi, tolerance=1e-9, fraction_evaluate=0.0)
    path = path_of(objectives, strategy=strategy, **options)
    assert path.points[0].nonzero == {"confounders": 2, "wide ridge": 200}.get(kind, 0)
    assert run_of(strategy).state.shares.any() == ("cv" in options)
    for at in path.points:
        own = with_strength(psi, at.strength)
        alone, _ = solved(objectives, own, tolerance=1e-10)
        w, best = (point(result, objectives[0]) for result in (at.result, alone))
        assert objective_value(objectives, own, w) <= objective_value(objectives, own, best) + 2e-9
        assert at.gap <= 1e-9 or np.isnan(at.gap)
        np.testing.assert_array_equal(w != 0.0, best != 0.0)
    history = path.points[0].result.train_metrics_clientapp
    gaps = [at.gap for at in path.points]
    assert np.isnan(gaps).all() or history[max(history)]["duality-gap"] >= max(gaps) > min(gaps)


@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
def test_the_held_out_losses_are_those_of_models_of_the_other_rows(kind):
    """Each client's rows of a fold, by a pooled solution on all clients' other rows; two sites have fewer rows."""
    objectives = sites(kind, sizes=(60, 81, 50, 3, 1))
    path = path_of(objectives, num_strengths=3, ratio=0.2, cv=4)
    parts = [folds_of(objective, 4, 0) for objective in objectives]
    losses, weights = [], []
    for fold in range(4):
        train, held_out = [], []
        for own, rows in zip(objectives, parts, strict=True):
            rest = np.setdiff1d(np.arange(own.num_examples), rows[fold])
            train += [own.subset(rest)[0]] if rest.size else []
            held_out += [own.subset(rows[fold])[0]] if rows[fold].size else []
        models = [centralized_solution(train, L1(at.strength), tol=1e-11) for at in path.points]
        losses += [[own.value(w) for w in models] for own in held_out]
        weights += [float(own.num_examples) for own in held_out]
    mean, error, difference = Mean().errors(np.array(losses), np.array(weights))
    found = [(at.held_out, at.standard_error, at.difference_error) for at in path.points]
    np.testing.assert_allclose(found, np.transpose([mean, error, difference]), rtol=0, atol=1e-5)
    assert path.best.held_out == min(at.held_out for at in path.points)


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_part_the_rows_with_the_same_shares_of_each_class(folds):
    labels = np.random.default_rng(0).integers(3, size=83)
    objective = MultinomialLogistic(np.ones((83, 1)), labels, num_classes=3)
    parts, again, others = (folds_of(objective, folds, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(83))
    counts = np.array([[rows.size, *np.bincount(labels[rows], minlength=3)] for rows in parts])
    assert np.ptp(counts, axis=0).max() <= 1
    assert [all(map(np.array_equal, parts, own)) for own in (again, others)] == [True, False]
    assert sum(map(len, folds_of(LeastSquares(np.ones((1, 1)), np.ones(1)), folds, 5))) == 1
    # The rows of a cluster, as of a patient, are never on both sides.
    objective.clusters = np.arange(83) // 3
    assert sum(np.unique(rows // 3).size for rows in folds_of(objective, folds, 5)) == 28


def test_messages_have_the_same_bits():
    objectives = sites("multinomial", sizes=(30, 41, 25))
    ends = []
    for mods in ([], [lambda message, context, call_next: call_next(message, context)]):
        own = FedNewton(
            regularizer=L1(1.0), tolerance=1e-7, strengths=Strengths(3, 0.1, folds=2), fraction_evaluate=0.0
        )
        simulated(own, app_of(objectives, mods), 60, num_nodes=3, initial_arrays=zeros(objectives[0].layout))
        ends.append(run_of(own).state._asdict())
    np.testing.assert_equal(*ends)


# --- trouble ----------------------------------------------------------------------------------------------------------


LIES = {
    "shares above 1": ("shares", lambda own: own * 2.0, "shares of rows are"),
    "rows in no fold": ("shares", lambda own: np.r_[1.0, np.ones(own.size - 1)], "each row is in one fold"),
    "a gradient times 3": ("gradient", lambda own: 3.0 * own, "of one convex function"),
    "a loss of -1e9": ("terms", lambda own: np.r_[-1e9, own[1:]], "its own lower bound is 0"),
    "a short block": ("ranks", lambda own: own + 10.0, "by their ranks 300"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_one_problem_is_named_and_the_round_is_skipped(lie):
    name, change, reason = LIES[lie]
    objectives = sites("logistic", SIZES)
    grid = Faulty(app_of(objectives), 3, changing(name, change), rounds=(4,), nodes=(2,))
    strategy = FedNewton(regularizer=L1(1.0), strengths=Strengths(2, folds=2), tolerance=1e-7, fraction_evaluate=0.0)
    result = started(strategy, grid, 60, zeros(objectives[0].layout))
    assert [number for number, own in result.train_metrics_clientapp.items() if own["skipped"]] == [4]
    assert any(reason in row.reason for row in result.left_out)
    assert run_of(strategy).finished()


#: Of one example with the class, the fold that it is in has none on the other rows.
RARE = [Logistic(np.eye(20), np.arange(20) == 3), Logistic(np.eye(20), np.zeros(20, dtype=int))]
FEW = {"rounds": 20, "num_strengths": 3}


@pytest.mark.parametrize(
    ("objectives", "options", "said"),
    [
        (RARE, {"cv": 5}, r"without fold [1-5] of 5: no client has an example of class 1"),
        (None, {"strategy": FedDAGT(regularizer=L1(1.0), client_lr=0.1), "cv": 5}, "cv=5: only FedNewton"),
        (None, {}, "load_evaluation_objective"),
        (None, {"rounds": 3, "cv": 3}, "not all are solved after num_rounds=3"),
        # Of 60 rows, 15 are in each of four folds and 45 outside of it.
        (None, {"disclosure": Disclosure(min_rows=20), "cv": 4, **FEW}, "site has fewer rows for it than min_rows=20"),
        (None, {"disclosure": Disclosure(min_class_rows=5), "cv": 8, **FEW}, "fewer rows than min_class_rows=5"),
        (None, {"disclosure": Disclosure(min_events=5), "cv": 8, **FEW}, "has fewer events than min_events=5"),
    ],
)
def test_what_is_not_allowed_of_each_fold_or_makes_no_folds_is_refused(objectives, options, said):
    given = objectives or sites("logistic", sizes=(60, 81, 58))
    refused(said, path_of, given, kind=(ClientError, ConfigurationError), **options)
