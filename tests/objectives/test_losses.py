"""Linear losses, Cox regression against its definition, fits by Newton's method, intercepts of sites, own losses."""

import re
from pathlib import Path

import numpy as np
import pytest
from newton import numbers, objective_value, point, sites, solved
from numpy.testing import assert_allclose, assert_array_equal
from problems import app_of, refused, run, simulated
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import xlogy
from sklearn.svm import LinearSVC

from flwr_fco.algorithms.newton.model import unpacked
from flwr_fco.core.layout import Layout
from flwr_fco.engines.minimise import minimise
from flwr_fco.errors import ClientError
from flwr_fco.objectives import CoxRegression, Huber, LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson
from flwr_fco.objectives.linear import Linear, SquaredHinge, TraceRegression
from flwr_fco.objectives.links import Link, Squares
from flwr_fco.objectives.site_intercept import SiteIntercept
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedAvgSubgradient, FedDAGT, FedDR, FedDualAvg, FedMid, FeDualEx, Steps
from flwr_fco.testing import check_objective
from reproduction.pooled import centralized_solution, certify, composite_objective

RNG = np.random.default_rng(1)
N, D = 24, 5
X = np.random.default_rng(0).normal(0.3, 1.0, size=(N, D))
SCORES = X[:, 0] - X[:, 1] + np.random.default_rng(1).normal(size=N)
LABELS = (SCORES > 0.0).astype(int)
COPIES = np.random.default_rng(2).integers(1, 5, N)


def _made(cls, features=X, rows=None, **options):
    """An objective of some of the rows, by default all."""
    rows = np.arange(N) if rows is None else rows
    features = features[rows] if cls is not TraceRegression else features[rows].reshape(-1, D, 1)
    if cls is CoxRegression:
        times = 1.0 + np.floor(4.0 * np.abs(SCORES))
        return cls(features, times[rows], SCORES[rows] > -0.5, ties="breslow", **options)
    if cls in (Logistic, SquaredHinge):
        return cls(features, SCORES[rows] > 0.0, **options)
    if cls is MultinomialLogistic:
        return cls(features, np.digitize(SCORES[rows], [-1.0, 1.0]), num_classes=3, **options)
    return cls(features, np.floor(np.abs(SCORES))[rows] if cls is Poisson else SCORES[rows], **options)


def agree(found, expected):
    assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# --- values and optima ------------------------------------------------------------------------------------------------


def test_a_squared_hinge_has_the_solution_of_linear_svc():
    objective = SquaredHinge(X, LABELS, l2=1 / 20.0, intercept=False)
    w = minimize(objective.value_and_gradient, np.zeros(D), jac=True, tol=1e-14, options={"gtol": 1e-10}).x
    svc = LinearSVC(C=20.0 / N, loss="squared_hinge", fit_intercept=False, tol=1e-12, max_iter=10**5)
    assert_allclose(w, svc.fit(X, LABELS).coef_[0], atol=1e-6)
    assert_array_equal(objective.predict(w), svc.predict(X))


def test_trace_regression_is_least_squares_on_flattened_matrices():
    matrices = RNG.normal(size=(12, 4, 3))
    targets = RNG.normal(size=12)
    objective = TraceRegression(matrices, targets, scale=0.5, l2=0.1)
    flat = LeastSquares(matrices.reshape(12, 12), targets, scale=0.5, l2=0.1)
    w = RNG.normal(size=13)
    assert [own.layout["coefficients"].shape for own in (objective, objective.subset(np.arange(3))[0])] == [(4, 3)] * 2
    assert objective.value(w) == flat.value(w)
    assert_array_equal(objective.gradient(w), flat.gradient(w))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("margin", [1e2, 1e4, 1e300])
def test_margins_of_any_size(margin):
    objective = Logistic(np.ones((2, 1)), np.array([1, 0]), intercept=False)
    for sign in (1.0, -1.0):
        assert_allclose(objective.value(np.array([sign * margin])), margin / 2, rtol=1e-15)
        assert_allclose(objective.gradient(np.array([sign * margin])), [sign * 0.5], rtol=1e-15)
    objective = MultinomialLogistic(np.ones((2, 1)), np.array([0, 2]), num_classes=3, intercept=False)
    w = np.array([margin, 0.0, -margin])
    assert_allclose(objective.value(w), margin, rtol=1e-15)
    assert_allclose(objective.gradient(w), [0.5, 0.0, -0.5], rtol=1e-15, atol=1e-40)


def test_labels_in_either_coding_and_dtype():
    w = np.r_[1.0, -1.0, 0.0, 0.0, 0.0, 0.1]
    zero_one = Logistic(X, LABELS)
    for coded in (2 * LABELS - 1, LABELS.astype(bool), LABELS.astype(float), (2 * LABELS - 1).astype(np.float32)):
        other = Logistic(X, coded)
        assert other.value(w) == zero_one.value(w)
        assert_array_equal(other.gradient(w), zero_one.gradient(w))
    assert [set(Logistic(X, own).predict(w)) for own in (LABELS, 2 * LABELS - 1)] == [{0, 1}, {-1, 1}]
    assert MultinomialLogistic(X, LABELS).num_classes == 2


# --- constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (7, 7), (2, 5), (5, 2)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("form", [np.asarray, csr_array, np.float32])
def test_constants_of_squares_are_eigenvalues(shape, intercept, l2, form):
    rng = np.random.default_rng(0)
    rows = {"sample_weight": 1.0 + np.arange(shape[0]) % 3, "intercept": intercept, "l2": l2}
    objective = LeastSquares(form(rng.normal(size=shape) + 0.5), rng.normal(size=shape[0]), **rows)
    unit = np.eye(objective.layout.size)
    hessian = np.array([objective.gradient(row) - objective.gradient(0.0 * row) for row in unit])
    smallest, *_, largest = np.linalg.eigvalsh(hessian)
    # With fewer rows than columns an intercept counts as if l2 acted on it.
    exact = objective.lipschitz()
    assert largest * (1 - 1e-10) <= exact <= largest * (1 + 1e-10) + l2 * (shape[0] < len(hessian))
    assert_allclose(objective.lipschitz("l1"), np.abs(hessian).max(), rtol=1e-10)
    assert_allclose(objective.strong_convexity(), max(smallest, 0.0), rtol=1e-9, atol=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        # Too large for a Gram matrix: Lanczos; and what is due to l2 alone, never more than the truth.
        patch.setattr("flwr_fco.objectives.linear.LARGEST_GRAM", 0)
        assert largest * (1 - 1e-10) <= objective.lipschitz() <= exact * (1 + 1e-8)
        bound = objective.strong_convexity()
    assert 0.0 <= bound <= smallest * (1.0 + 1e-9) + 1e-12
    assert (bound > 0.0) == (l2 > 0.0)


# --- weights and offsets of rows --------------------------------------------------------------------------------------

LOSSES = (LeastSquares, TraceRegression, Logistic, MultinomialLogistic, Huber, Poisson, SquaredHinge, CoxRegression)


@pytest.mark.parametrize("cls", LOSSES)
@pytest.mark.parametrize("l2", [0.0, 0.2])
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_a_weight_of_k_is_k_copies(cls, l2, form):
    """In the value, gradient, Hessian, constants and metrics, and whatever the weights' common factor is."""
    features = X if cls is TraceRegression else form(X)
    # A common factor changes the partial likelihood by a constant.
    weights = (1.0 if cls is CoxRegression else 7.0) * COPIES
    one = _made(cls, features, l2=l2, sample_weight=weights)
    other = _made(cls, features, np.repeat(np.arange(N), COPIES), l2=l2)
    for w in 0.4 * np.random.default_rng(3).normal(size=(3, one.layout.size)):
        v = w[::-1].copy()
        asked = {"value": [w], "gradient": [w], "hessian_product": [w, v], "hessian_block": [w, np.arange(w.size)]}
        for name, given in asked.items():
            agree(getattr(one, name)(*given), getattr(other, name)(*given))
        if cls is not CoxRegression:
            agree(one.dual_terms([w], [0.7])[0], other.dual_terms([w], [0.7])[0])
        agree(list(one.metrics(w).values()), list(other.metrics(w).values()))
    agree(one.strong_convexity(), other.strong_convexity())
    for norm in ("l2", "l1") if cls is not Poisson else ():
        assert one.lipschitz(norm) == pytest.approx(other.lipschitz(norm), rel=0.5 if cls is CoxRegression else 1e-12)


# --- conjugates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [LeastSquares, Huber, Poisson, Logistic, SquaredHinge, MultinomialLogistic])
@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("given", [(), ("sample_weight",), ("sample_weight", "offset")])
def test_the_conjugate_at_a_mixture_is_the_closest_bound(cls, form, given):
    """Squares, Huber, Poisson and logistic: of the losses' own sum it is what maximising <r, w> - G(w) gives."""
    rng = np.random.default_rng(0)
    offset = 0.3 * rng.normal(size=(N, 3) if cls is MultinomialLogistic else N)
    rows = {"sample_weight": rng.uniform(0.2, 3.0, N), "offset": offset}
    rows = {name: rows[name] for name in given}
    objective, plain = (_made(cls, form(X), l2=l2, **rows) for l2 in (0.4, 0.0))
    w, v = 0.3 * rng.normal(size=(2, objective.layout.size))
    conjugate, mixture = objective.dual_terms([w, v], [0.5, 0.3])
    assert_allclose(mixture, 0.5 * plain.gradient(w) + 0.3 * plain.gradient(v), atol=1e-13)
    assert_allclose(plain.row_gradients(w).mean(axis=0), plain.gradient(w), atol=1e-13)
    # Nothing of a lost model is finite by chance.
    assert np.isnan(plain.gradient(w * np.nan)).any()
    by_convexity, same = Objective.dual_terms(objective, [w, v], [0.5, 0.3])
    assert_allclose(same, mixture, atol=1e-13)
    assert conjugate <= by_convexity + 1e-13
    # One point with the whole share: both are exact, and equal.
    alone = [Objective.dual_terms(objective, [w], [1.0])[0], objective.dual_terms([w], [1.0])[0]]
    assert_allclose(alone, float(plain.gradient(w) @ w) - plain.value(w), rtol=1e-10)
    found = minimize(lambda x: plain.value(x) - mixture @ x, w, jac=lambda x: plain.gradient(x) - mixture, tol=1e-12)
    assert conjugate >= -found.fun - 1e-9


# --- times ------------------------------------------------------------------------------------------------------------


def partial_likelihood(eta, times, events, ties="efron", entry=None, strata=None, weights=None):
    """The negative log partial likelihood over the sum of the weights, term by term."""
    n = len(eta)
    v = np.ones(n) if weights is None else weights
    entry = np.full(n, -np.inf) if entry is None else entry
    strata = np.zeros(n) if strata is None else strata
    total = 0.0
    for stratum in np.unique(strata):
        for t in np.unique(times[(events == 1) & (strata == stratum)]):
            dead = (times == t) & (events == 1) & (strata == stratum)
            risk = (v * np.exp(eta))[(times >= t) & (entry < t) & (strata == stratum)].sum()
            own = (v * np.exp(eta))[dead].sum()
            d = dead.sum()
            gone = np.arange(d) / d * own if ties == "efron" else np.zeros(d)
            total += v[dead].mean() * np.log(risk - gone).sum() - (v * eta)[dead].sum()
    return total / v.sum()


def rows_of(seed, n, p=6):
    """Rows with ties, censoring, late entries and strata, whose scale and baseline differ between sites."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0.2 * seed, 1.0 + 0.3 * seed, size=(n, p))
    times = np.ceil(rng.exponential((1 + seed) * 6.0 / np.exp(0.8 * X[:, 0] - 0.5 * X[:, 1])))
    ends = np.ceil(rng.exponential(12.0, n))
    return {
        "features": X,
        "times": np.minimum(times, ends),
        "events": (times <= ends).astype(int),
        "entry": np.maximum(np.minimum(times, ends) - rng.integers(1, 12, n), 0.0),
        "strata": rng.integers(0, 2, n),
        "sample_weight": rng.uniform(0.2, 3.0, n),
    }


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_value_is_that_of_the_definition(ties):
    rng = np.random.default_rng(0)
    for seed in range(12):
        data = rows_of(seed % 4, int(rng.integers(1, 40)))
        for name, every in (("entry", seed % 2 == 1), ("strata", seed % 3 == 0), ("sample_weight", seed % 5 == 0)):
            data[name] = None if every else data[name]
        objective = CoxRegression(**data, ties=ties, offset=np.full(len(data["times"]), 0.3))
        features, times, events, *others = data.values()
        for size in (0.0, 0.5, 5.0):
            w = size * rng.normal(size=6)
            expected = partial_likelihood(features @ w, times, events, ties, *others)
            assert objective.value(w) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_scores_of_any_size_neither_overflow_nor_lose_who_is_left():
    """The log likelihood of two at risk is the larger score's difference, however far apart."""
    X = np.array([[0.0], [1.0], [-1.0]])
    objective = CoxRegression(X, [1.0, 2.0, 3.0], [1, 1, 1], ties="breslow")
    for size in (50.0, 800.0, 1e5):
        assert objective.value(np.array([size])) == pytest.approx(size / 3.0, rel=1e-12)
        assert objective.gradient(np.array([size])) == pytest.approx([1.0 / 3.0], rel=1e-9)
    late = CoxRegression(X, [1.0, 2.0, 3.0], [1, 1, 1], entry=[0.0, 1.5, 1.5])
    # Alone when it happens; then the one who has entered since.
    assert late.value(np.array([-800.0])) == pytest.approx(1600.0 / 3.0, rel=1e-12)


def test_late_entries_cost_no_digits():
    """Risk sets of which nearly everything has left again are summed anew."""
    rng = np.random.default_rng(1)
    n = 400
    times = np.ceil(rng.exponential(50.0, n)) + 1.0
    entry = 0.99 * np.maximum(times - rng.exponential(5.0, n), 0.0)
    events = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 2))
    w = np.array([15.0, -15.0])
    # In extended precision.
    expected = partial_likelihood((X @ w).astype(np.longdouble), times, events, "efron", entry)
    objective = CoxRegression(X, times, events, entry=entry)
    assert objective.value(w) == pytest.approx(float(expected), rel=1e-13)
    # Of batches the risk sets next to the largest scores may have no share.
    batches = [objective.gradient(40.0 * w, np.array([row])) for row in range(n)]
    assert np.mean(batches, axis=0) == pytest.approx(objective.gradient(40.0 * w), rel=1e-9)
    # Times that are equal up to rounding are equal.
    rounded = np.where(rng.random(n) < 0.5, times * 0.1 * 3.0, times * 0.3)
    assert CoxRegression(X, rounded, events, entry=entry * 0.3).gradient(w) == pytest.approx(
        objective.gradient(w), 1e-12
    )


def test_a_block_of_many_classes_takes_no_memory_for_their_pairs():
    objective = MultinomialLogistic(np.ones((128, 1)), np.arange(128), num_classes=10_000)
    assert objective.hessian_block(np.zeros(20_000), np.array([7])) == pytest.approx([1e-4 * (1.0 - 1e-4)])


def test_where_one_row_has_all_of_a_risk_set_rounding_is_no_covariance():
    """Two rows with scores far apart: 1e-16 on the diagonal, and beside it, is no matrix of covariances."""
    features = 1000.0 + np.random.default_rng(0).standard_normal((2, 12))
    objective = CoxRegression(features, [1.0, 2.0], [True, True])
    apart = features[1] - features[0]
    for score in np.linspace(30.0, 40.0, 21):
        block = unpacked(objective.hessian_block(score * apart / (apart @ apart), np.arange(12)))
        roots = np.sqrt(np.where(np.diag(block) > 0.0, np.diag(block), 1.0))
        assert np.linalg.eigvalsh(block / np.outer(roots, roots)).min() >= -1e-6


def test_the_gap_knows_that_small_weights_have_negative_losses():
    """The logarithm of a sum of weights far below 1: a scaled dual point has a part of the conjugate at 0."""
    rows = [rows_of(seed, n) for seed, n in enumerate((150, 80, 40))]
    light = [CoxRegression(**{**own, "sample_weight": 1e-4 * own["sample_weight"]}) for own in rows]
    psi = L1(0.05)
    rng = np.random.default_rng(0)
    best = centralized_solution(light, psi, tol=1e-12)
    least = objective_value(light, psi, best)
    assert least < 0.0
    for size in (0.1, 1.0, 10.0):
        found = certify(light, None, psi, best + size * rng.normal(size=6))
        assert found.value >= found.objective - least


# --- fits by Newton's method ------------------------------------------------------------------------------------------


def _counts(seed, n, high):
    rng = np.random.default_rng(seed)
    X = rng.normal(0.3 * seed, 1.0, size=(n, 5))
    exposure = rng.uniform(0.1, 8.0, n)
    return Poisson(X, rng.poisson(exposure * np.exp(0.4 * X[:, 0] - 0.3 * X[:, 1] + high)), offset=np.log(exposure))


def test_without_an_event_at_any_site_there_is_nothing_to_learn():
    silent = [CoxRegression(np.eye(3), [1.0, 2.0, 3.0], np.zeros(3)) for _ in range(2)]
    for options in ({}, {"hessian": "none"}):
        refused("no client has an event", solved, silent, L1(0.1), 5, **options)
    # One of them is enough.
    result, _ = solved([*silent, CoxRegression(np.eye(3), [1.0, 2.0, 3.0], [1, 1, 0])], L1(0.001), 20)
    assert numbers(result, "duality-gap")[-1] < 1e-8


@pytest.mark.parametrize("offset", [0.0, 20.0, 800.0])
def test_without_an_event_counts_have_no_intercept(offset):
    """Also where rounding leaves some; and with offsets of another unit the few there are."""
    features = np.random.default_rng(0).standard_normal((40, 3))
    nothing, some = (
        [Poisson(features + m, np.full(40, count), offset=np.full(40, offset)) for m in range(3)]
        for count in (0.0, 1.0)
    )
    refused(r"all counts are 0, or as good as 0.*no minimum", solved, nothing, L1(0.1), 5)
    if offset == 800.0:
        refused("Otherwise subtract a constant from all offsets", solved, some, L1(0.1), 5)
    else:
        assert numbers(solved(some, L1(0.1), 20)[0], "duality-gap")[-1] <= 1e-8


@pytest.mark.parametrize(
    ("kind", "size"),
    [("counts", 0.0), ("counts", 4.0), ("counts", 13.0), ("huber", 0.0), ("huber", 1e3), ("huber", 1e6)],
)
def test_newton_needs_few_rounds_of_counts_and_huber_whatever_the_mean(kind, size):
    """Also from 0, where a step towards a mean of a million events would be one of a million."""
    rows = (60, 30, 1)
    # What is left of sums of so many events is rounding, of a few units in the last place by the order of the sums; of
    # targets around a million ten digits are the level.
    rounding, near = 0.0, 1e-6 if size == 1e6 else 1e-10
    if kind == "counts":
        sites = [_counts(seed, n, size) for seed, n in enumerate(rows)]
        rounding = 16 * np.finfo(np.float64).eps * np.mean([site.targets.mean() for site in sites])
    else:
        rng = np.random.default_rng(0)
        features = (rng.normal(size=(n, 5)) for n in rows)
        sites = [Huber(X, size + X[:, 0] + rng.standard_t(1.5, len(X)), delta=0.8) for X in features]
    result, _ = solved(sites, L1(0.05), 20, tolerance=1e-14)
    assert min(numbers(result, "duality-gap")) <= near * numbers(result, "objective")[-1] + rounding


# --- intercepts of sites ----------------------------------------------------------------------------------------------

P = 6


@pytest.mark.parametrize("kind", ["squares", "logistic", "poisson"])
def test_a_value_is_the_least_over_the_intercept_whatever_the_scores(kind):
    """Also where predictions are far from the targets, with weights and offsets."""
    rng = np.random.default_rng(5)
    (inner,) = sites(kind, [40], P, sample_weight=rng.uniform(0.1, 5.0, 40), offset=rng.normal(size=40))
    site = SiteIntercept(inner)
    for size in (0.0, 1.0, 30.0) + (300.0,) * (kind == "logistic"):
        w = size * rng.normal(size=P)
        b = site.own_intercept(w)
        slope = inner.gradient(np.append(w, b))
        assert abs(slope[-1]) <= 1e-13 * (1.0 + size * (1.0 + np.abs(inner.targets).max()))
        assert site.value(w) == pytest.approx(inner.value(np.append(w, b)), rel=1e-13)
        assert_array_equal(site.predict(w), inner.predict(np.append(w, b)))
        assert_allclose(site.gradient(w), slope[:-1], rtol=1e-12, atol=1e-13 * (1.0 + np.abs(slope).max()))
        assert all(site.value(w) <= inner.value(np.append(w, b + move)) for move in (-0.1, 0.1))


def test_rows_that_tell_nothing_beside_their_own_intercept():
    X = np.random.default_rng(0).normal(size=(40, P))
    w = np.arange(P) * 1.0
    assert SiteIntercept(Linear(type("Low", (Squares,), {"least": -1.0})(), X, X[:, 0])).least == -1.0
    for site in (SiteIntercept(Logistic(X, np.ones(len(X)), l2=0.5)), SiteIntercept(Poisson(X, 0.0 * X[:, 0], l2=0.5))):
        assert site.adds_nothing
        assert np.isinf(site.own_intercept(w))
        assert site.value(w) == 0.25 * float(w @ w) == site.metrics(w)["loss"]
        assert_array_equal(site.gradient(w), 0.5 * w)
        assert_array_equal(site.hessian_product(w, w), 0.5 * w)
        assert_array_equal(site.hessian_block(w, np.array([0, 3])), [0.5, 0.0, 0.5])


def test_folds_have_intercepts_of_their_own_and_few_rows_are_warned_of():
    (whole,) = sites("logistic", [40], P)
    X, y = whole.features, whole.labels
    w = np.full(P, 0.3)
    for rows, share in (({}, 0.25), ({"sample_weight": np.where(np.arange(40) < 20, 3.0, 1.0)}, 0.375)):
        part, found = SiteIntercept(Logistic(X, y, **rows)).subset(np.arange(10))
        assert part.value(w) == pytest.approx(SiteIntercept(Logistic(X[:10], y[:10])).value(w), rel=1e-14)
        assert found == share
    with pytest.warns(UserWarning, match="this site has fewer than 25, and logistic coefficients are biased"):
        SiteIntercept(Logistic(X[:24], y[:24]))
    SiteIntercept(LeastSquares(X[:2], y[:2]))


# --- losses of one's own ----------------------------------------------------------------------------------------------

#: The link of the page, as it stands there.
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-loss.md").read_text(encoding="utf-8")
NAMES = {"np": np, "xlogy": xlogy, "Link": Link}
exec(re.search(r"class LogCosh.*?\n\n\n", PAGE, re.DOTALL)[0], NAMES)
LogCosh = NAMES["LogCosh"]


class TwoSquares(Link):
    """Squares of two scores, which have nothing to do with each other: no softmax."""

    outputs = 2
    bounds = (1.0, 1.0)
    quadratic = True

    def value(self, s, y):
        return 0.5 * ((s[:, 0] - y) ** 2 + (s[:, 1] + y) ** 2)

    def slope(self, s, y):
        return s - np.column_stack([y, -y])

    def curvature(self, s, y, change):
        return change

    def conjugate(self, a, y):
        return 0.5 * (a * a).sum(axis=1) + (a[:, 0] - a[:, 1]) * y


def _sites(form, link=LogCosh, **options):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((60, 5))
    features[np.abs(features) <= 0.5] = 0.0
    targets = rng.standard_t(2, 60)
    return [Linear(link(), form(features[m::3]), targets[m::3], **options) for m in range(3)]


LINKS_OF_FIVE = [
    (type("Without", (LogCosh,), {"conjugate": None}), {}),
    (LogCosh, {"l2": 0.3, "intercept": False, "offset": np.linspace(-1.0, 1.0, 20)}),
    (LogCosh, {"sample_weight": np.linspace(0.5, 2.0, 20)}),
    (TwoSquares, {"sample_weight": np.linspace(0.5, 2.0, 20)}),
]


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize(("link", "options"), LINKS_OF_FIVE)
def test_a_link_of_five_formulas_is_an_objective_also_of_several_scores(form, link, options):
    objective = _sites(form, link, **options)[0]
    check_objective(objective)
    assert objective.compiled[0] == -1
    refused(r"targets\[0\] is nan", Linear, type("Lost", (link,), {"encoded": lambda self, y: y + np.nan})(), X, LABELS)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_it_trains_by_gradients_too_and_has_certificates(form):
    sites = _sites(form)
    psi = L1(0.05)
    best = centralized_solution(sites, psi, tol=1e-12)
    assert certify(sites, None, psi, best).value < 1e-10
    zeros = {name: np.zeros(shape) for name, shape in sites[0].layout.shapes.items()}
    strategy = FedDualAvg(regularizer=psi, client_lr=0.5, work=Steps(3, batch_size=20), fraction_evaluate=0.0)
    slow = simulated(strategy, app_of(sites), 100, num_nodes=3, initial_arrays=zeros)
    values = [composite_objective(sites, None, psi, w) for w in (point(slow, sites[0]), best)]
    assert values[0] - values[1] < 1e-3


class Centre(Objective):
    """The smallest objective, the mean of ||w - 1||^2 / 2, with what a test would have of it."""

    def __init__(self, num_examples=10, change=lambda gradient: gradient):
        self.layout = Layout.from_arrays({"coefficients": np.zeros(3)})
        self.num_examples = num_examples
        self.change = change

    def value(self, w):
        return 0.5 * float((w - 1.0) @ (w - 1.0))

    def gradient(self, w, batch=None, out=None):
        return self.change(w - 1.0)


def test_a_bare_objective_says_what_it_does_not_know():
    objective = Centre()
    w = np.full(3, 2.0)
    value, gradient = objective.value_and_gradient(w)
    assert (value, gradient.tolist()) == (1.5, [1.0] * 3)
    assert objective.compiled is None
    for ask in (
        objective.lipschitz,
        objective.strong_convexity,
        lambda: objective.hessian_product(w, w),
        lambda: objective.along(w, w).curvature(1.0)(w),
        lambda: objective.value_and_gradient(w, np.array([0])),
    ):
        refused("Centre does not know its", ask)
    # Without a gradient there is no point, which would be a reply.
    assert np.isnan(minimise(Centre(change=lambda gradient: gradient * np.nan)).point).all()


def test_a_flag_of_single_precision_is_no_warning():
    """OpenBLAS raises it now and then; here infinity minus infinity does."""
    curved = Logistic(X, LABELS).along(np.zeros(D + 1), np.zeros(D + 1)).curvature(0.0)
    assert np.isnan(curved(np.full(D + 1, np.inf))).any()


def test_a_loss_that_writes_into_its_argument_moves_nobodys_point():
    own = type("Own", (Centre,), {"gradient": lambda self, w, *_: np.subtract(w, 1.0, out=w)})
    start = {"coefficients": np.zeros(3)}
    models = [run(FedAvgSubgradient(), [each(np.int64(10))] * 2, 2, start=start).arrays for each in (Centre, own)]
    assert_array_equal(*(model["coefficients"].numpy() for model in models))
    refused("Own changes w in value.* or gradient.*; expected", minimise, own())


WRONG = [
    (Centre(change=change), r"ConfigurationError .* the gradient has shape .*; expected \(3,\)")
    for change in (np.sum, lambda g: g[:1], lambda g: g[:, None], lambda g: None)
]
WRONG += [
    (Centre(count), rf"num_examples.*={count!r}.*; expected a whole number") for count in (0, -1, 2.5, None, True, "3")
]


DICT = type("Own", (Centre,), {"layout": {}, "num_examples": 3})
WRONG.append((Centre.__new__(Centre), r"Centre has no layout; set it in __init__, or call super\(\).__init__"))
WRONG.append((DICT.__new__(DICT), "layout of the objective={} is a dict; expected a Layout"))


@pytest.mark.parametrize("make", [FedDualAvg, FedMid, FeDualEx, FedDAGT, lambda **_: FedDR(fraction_evaluate=0.0)])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(("objective", "message"), WRONG)
def test_no_gradient_is_stretched_and_no_count_goes_on_for_ever(make, batch_size, objective, message):
    strategy = make(client_lr=0.1, work=Steps(2, batch_size=batch_size), fraction_evaluate=0.0)
    options = {"num_nodes": 2, "initial_arrays": {"coefficients": np.zeros(3)}, "kind": ClientError}
    refused(message, simulated, strategy, app_of([objective] * 2), 2, **options)
