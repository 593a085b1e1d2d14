"""Duality gaps where psi leaves coefficients alone: never below the distance from CVXPY's optimum, and 0 there."""

import functools

import cvxpy as cp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from newton import numbers, point, solved
from problems import app_of

from flwr_fco.algorithms.newton.exchange import check_corners, corner_answers, corners_of
from flwr_fco.algorithms.newton.method import ProximalNewton
from flwr_fco.algorithms.newton.terms import evaluation_terms
from flwr_fco.callbacks import EarlyStopping
from flwr_fco.certificates.dual import corners, mixed_bound, surround
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ProtocolError
from flwr_fco.objectives import CoxRegression, DualTerms, LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.regularizers import L1, ElasticNet, GroupLasso
from flwr_fco.simulation import InProcessGrid, fit_path, simulate
from flwr_fco.strategies import Epochs, FedDualAvg, FedNewton, Strengths, proved_zero, run_of
from reproduction.pooled import certify, composite_objective

P, FREE = 9, 3
STRENGTHS = {"squares": 0.1, "logistic": 0.03, "poisson": 0.1, "cox": 0.03}
KINDS = list(STRENGTHS)


def _psi(kind, **options):
    return L1(STRENGTHS[kind], weights=np.r_[np.zeros(FREE), np.ones(P - FREE)], **options)


def _rows(seed=0, n=120):
    """Age, sex and income in their own units, and six features; 5 of the coefficients are not 0."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P))
    X[:, 0], X[:, 1], X[:, 2] = 50.0 + 10.0 * X[:, 0], X[:, 1] > 0.0, 1e3 * X[:, 2] + 0.5 * X[:, 0]
    scores = X @ np.r_[0.05, 1.0, 1e-3, 1.0, -1.0, np.zeros(P - 5)] - 3.0 + 0.5 * rng.normal(size=n)
    return X, scores, rng


@functools.cache
def _problem(kind):
    """Three sites, and CVXPY's optimum of their pooled rows."""
    X, scores, rng = _rows()
    n, parts = len(X), np.split(np.arange(len(X)), [30, 85])
    w, b = cp.Variable(P), cp.Variable()
    m = X @ w + b
    if kind == "squares":
        sites = [LeastSquares(X[i], scores[i], scale=0.5) for i in parts]
        loss = 0.5 * cp.sum_squares(m - scores) / n
    elif kind == "logistic":
        y = (scores > 0.0).astype(int)
        sites = [Logistic(X[i], y[i]) for i in parts]
        loss = cp.sum(cp.logistic(m) - cp.multiply(y, m)) / n
    elif kind == "poisson":
        y = rng.poisson(np.exp(0.3 * scores)).astype(float)
        sites = [Poisson(X[i], y[i]) for i in parts]
        loss = cp.sum(cp.exp(m) - cp.multiply(y, m)) / n
    else:
        times, events = rng.exponential(np.exp(-0.3 * scores)), (rng.random(n) < 0.7).astype(int)
        sites = [CoxRegression(X[i], times[i], events[i], ties="breslow") for i in parts]
        eta = X @ w
        loss = sum(cp.log_sum_exp(eta[i][times[i] >= times[j]]) - eta[j] for i in parts for j in i if events[j]) / n
    problem = cp.Problem(cp.Minimize(loss + STRENGTHS[kind] * cp.norm1(w[FREE:])))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    optimum = w.value if kind == "cox" else np.r_[w.value, b.value]
    return sites, optimum, composite_objective(sites, None, _psi(kind), optimum)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_the_gap_of_any_point_is_above_its_distance_from_the_optimum(kind):
    """With three unpenalised columns, at points that are not optimal, in all directions and in each alone."""
    sites, optimum, best = _problem(kind)
    rng, gaps = np.random.default_rng(1), []
    for size in (1e-6, 1e-4, 1e-2, 0.1, 0.5):
        for on in (slice(None), slice(0, FREE), slice(FREE, None)):
            w = optimum.copy()
            w[on] *= 1.0 + size * rng.normal(size=w[on].size)
            found = certify(sites, None, _psi(kind), w)
            assert found.kind == "duality-gap", found
            assert found.value >= found.objective - best - 1e-10
            gaps.append(found.value)
    zero = certify(sites, None, _psi(kind), np.zeros_like(optimum))
    assert zero.kind == "residual" or zero.value >= zero.objective - best
    assert max(gaps[:3]) < 1e-4
    # CVXPY's optimum is as far as its own tolerance from the one where the gap is 0.
    exact = point(solved(sites, _psi(kind), tolerance=1e-12)[0], sites[0])
    np.testing.assert_allclose(exact, optimum, atol=1e-5)
    assert certify(sites, None, _psi(kind), exact).value <= 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_newton_certifies_each_round_and_proves_zeros_of_the_optimum(kind):
    sites, optimum, best = _problem(kind)
    result, strategy = solved(sites, _psi(kind), tolerance=1e-11)
    rounds = [m for m in result.train_metrics_clientapp.values() if "duality-gap" in m]
    assert len(result.train_metrics_clientapp) <= 10
    assert rounds[-1]["duality-gap"] <= 1e-11
    assert all(m["duality-gap"] >= m["objective"] - best - 1e-10 for m in rounds)
    proved = proved_zero(strategy)["coefficients"]
    assert not proved[np.abs(optimum[:P]) > 1e-6].any()
    # Of a loss without a largest curvature nothing is proved.
    assert proved.any() == (kind in ("squares", "logistic"))


@pytest.mark.parametrize("folds", [None, 3])
def test_a_path_begins_where_the_penalised_columns_leave_the_model_of_the_others(folds):
    sites, _, _ = _problem("logistic")
    start = {name: np.zeros(shape) for name, shape in sites[0].layout.shapes.items()}
    strategy = FedNewton(regularizer=_psi("logistic"), fraction_evaluate=0.0, min_train_nodes=1, tolerance=1e-10)
    given = {"num_nodes": 3, "num_rounds": 60, "initial_arrays": start, "progress": False}
    path = fit_path(strategy, app_of(sites), num_strengths=4, cv=folds, validate=folds is not None, **given)
    X, y = np.vstack([f.features for f in sites]), np.concatenate([f.labels for f in sites])
    w, b = cp.Variable(FREE), cp.Variable()
    m = X[:, :FREE] @ w + b
    cp.Problem(cp.Minimize(cp.sum(cp.logistic(m) - cp.multiply(y, m)) / len(y))).solve(solver=cp.CLARABEL)
    slopes = X.T @ (1.0 / (1.0 + np.exp(-(X[:, :FREE] @ w.value + b.value))) - y) / len(y)
    assert path.points[0].strength == pytest.approx(np.abs(slopes[FREE:]).max(), rel=1e-5)
    assert not path.points[0].result.arrays["coefficients"].numpy()[FREE:].any()
    assert path.points[1].result.arrays["coefficients"].numpy()[FREE:].any()
    assert all(p.gap <= 1e-9 for p in path.points)


def test_other_methods_stop_at_a_gap_and_have_the_same_path():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(90, P))
    y = X @ np.r_[1.0, -1.0, 0.5, 1.0, np.zeros(P - 4)] + rng.normal(size=90)
    sites = [LeastSquares(X[m::3], y[m::3], scale=0.5) for m in range(3)]
    start = {name: np.zeros(shape) for name, shape in sites[0].layout.shapes.items()}
    work = Epochs(1, batch_size=None)
    only = {"fraction_evaluate": 0.0, "client_lr": 0.3, "work": work, "regularizer": _psi("squares")}
    given = {"num_nodes": 3, "num_rounds": 2000, "initial_arrays": start, "progress": False}
    stop = EarlyStopping(tol=1e-6, certificate="train/duality-gap")
    result = simulate(FedDualAvg(certificate_every=20, **only), app_of(sites), callbacks=[stop], **given)
    assert len(result.train_metrics_clientapp) < 2000
    w = point(result, sites[0])
    assert certify(sites, None, _psi("squares"), w).value <= 1e-6
    ours = fit_path(FedDualAvg(**only), app_of(sites), num_strengths=2, validate=False, **given | {"num_rounds": 1})
    exact = FedNewton(regularizer=_psi("squares"), fraction_evaluate=0.0)
    theirs = fit_path(exact, app_of(sites), num_strengths=2, validate=False, **given)
    assert ours.points[0].strength == pytest.approx(theirs.points[0].strength, rel=1e-8)


@pytest.mark.parametrize(
    ("kind", "psi"),
    [
        ("squares", GroupLasso(0.05, np.r_[0, 0, 1, 2, 2, 2, 3, 3, 3], weights=np.array([0.0, 0.0, 1.0, 2.0]))),
        ("logistic", ElasticNet(0.05, 0.5, weights=np.r_[np.zeros(FREE), np.ones(P - FREE)])),
        ("logistic", _psi("logistic", bound=2.0)),
        ("classes", L1(0.02, weights=np.r_[np.zeros(FREE), np.ones(P - FREE)][:, None])),
        ("the same column twice", L1(0.02, weights=np.r_[np.zeros(FREE + 3), np.ones(P - FREE)])),
    ],
    ids=["groups of weight 0", "elastic net", "within a box", "classes", "the same column twice"],
)
def test_every_psi_that_has_a_gap_has_one_beside_free_columns(kind, psi):
    X, scores, _ = _rows()
    y = (scores > 0.0).astype(int)
    if kind == "squares":
        sites = [LeastSquares(X[m::3], scores[m::3], scale=0.5) for m in range(3)]
    elif kind == "classes":
        sites = [MultinomialLogistic(X[m::3], np.digitize(scores, [-1.0, 2.0])[m::3], num_classes=3) for m in range(3)]
    else:
        # An age twice, a constant beside the intercept, and a column of zeros.
        more = np.c_[X[:, :1], np.ones(len(X)), np.zeros(len(X)), X] if kind.startswith("the same") else X
        sites = [Logistic(more[m::3], y[m::3]) for m in range(3)]
    result, _ = solved(sites, psi, tolerance=1e-11)
    assert numbers(result, "duality-gap")[-1] <= 1e-11
    assert certify(sites, None, psi, point(result, sites[0])).value <= 1e-10


class _Lowered(Logistic):
    """A user's own convex loss, which has values below 0."""

    def value(self, w):
        return super().value(w) - 5.0

    def gradient(self, w, batch=None, out=None):
        return super().gradient(w, batch, out)

    def dual_terms(self):
        return DualTerms("logistic - 5", least=-5.0)


def test_a_loss_of_a_users_own_that_falls_below_0():
    X, scores, _ = _rows()
    sites, psi = [_Lowered(X[m::3], (scores > 0.0).astype(int)[m::3]) for m in range(3)], _psi("logistic")
    twins = [Logistic(f.features, f.labels) for f in sites]
    best = certify(twins, None, psi, point(solved(twins, psi, tolerance=1e-12)[0], twins[0])).objective - 5.0
    for w in (np.zeros(P + 1), np.r_[0.05, 1.0, 1e-3, 1.0, np.zeros(P - 4), -3.0], np.r_[np.ones(P), 0.0] * 1e-3):
        found = certify(sites, None, psi, w)
        assert found.kind == "duality-gap"
        assert found.objective - best <= found.value < 5.0


class _Messages(InProcessGrid):
    """Hooks of its own: everything travels in messages."""

    def _deliver(self, message):
        return super()._deliver(message)


@pytest.mark.parametrize("path", [False, True])
def test_messages_carry_the_same_bits(path):
    sites, start = _problem("poisson")[0], {"coefficients": np.zeros(P), "intercept": np.zeros(1)}
    found = []
    for kind in (InProcessGrid, _Messages):
        strategy = FedNewton(
            regularizer=_psi("poisson"),
            fraction_evaluate=0.0,
            strengths=Strengths(num=3, folds=2) if path else None,
        )
        arrays = ArrayRecord({name: Array(array) for name, array in start.items()})
        strategy.start(kind(app_of(sites), 3), arrays, 40)
        assert run_of(strategy).finished()
        found.append(np.concatenate([np.ravel(part) for part in strategy.state]))
    np.testing.assert_array_equal(*found)


def test_what_has_no_gap_says_why():
    X, scores, _ = _rows()
    many = np.random.default_rng(0).normal(size=(len(X), 70))
    site = LeastSquares(many, scores)
    found = certify([site], None, L1(0.1, weights=np.r_[np.zeros(66), np.ones(4)]), np.zeros(71))
    assert found.kind == "residual"
    assert found.reason == "psi leaves 67 coordinates alone, more than 64"
    # Separable along the first column: no point is the best one in it, and 0 is not surrounded.
    site = Logistic(np.c_[scores, X], scores > 0.0)
    found = certify([site], None, L1(0.1, weights=np.r_[0.0, np.ones(P)]), np.r_[30.0, np.zeros(P + 1)])
    assert found.kind == "residual" or found.value >= found.objective - np.log(2.0)


def test_corners_surround_the_optimum_of_a_quadratic_and_bound_its_loss():
    """f(w) = |w - c|_H^2 / 2 + 1 without psi on it: the bound is 1 from any point."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3)) * [1.0, 30.0, 0.01]
    H, c, w = root.T @ root, np.array([1.0, -2.0, 50.0]), np.zeros(3)
    about, _ = corners(w, H @ (w - c), H, 5.0)
    np.testing.assert_allclose(about.mean(axis=0), c, rtol=1e-9)
    slopes = (about - c) @ H
    assert surround(slopes)
    assert not surround(slopes[:-1])
    assert not surround(slopes + 10.0 * slopes[0])

    def row(at):
        gradient, loss = H @ (at - c), 0.5 * (at - c) @ H @ (at - c) + 1.0
        # A fourth coordinate that psi acts on, and nothing depends on.
        return np.r_[gradient, 0.0, gradient @ at - loss, loss]

    psi = L1(1.0, weights=np.r_[np.zeros(3), 1.0]).bind(Layout.from_arrays({"w": np.zeros(4)}))
    rows = np.array([row(at) for at in about])
    for at in (c, c + 1e-7, w):
        lower, dual = mixed_bound(psi, row(at), rows, np.arange(3), -1.0, False)
        assert lower <= 1.0 + 1e-12
        assert not dual.any()
    assert mixed_bound(psi, row(c), rows, np.arange(3), -1.0, False)[0] == pytest.approx(1.0, abs=1e-12)
    assert mixed_bound(psi, row(w), rows[:-1], np.arange(3), -1.0, False)[0] == -np.inf


def test_a_client_whose_loss_is_not_convex_at_the_corners_is_named():
    site, psi = _problem("logistic")[0][0], _psi("logistic").bind(_problem("logistic")[0][0].layout)
    strategy = solved(_problem("logistic")[0], _psi("logistic"), rounds=3)[1]
    state = strategy.state._replace(corners=np.tile(np.r_[0.01, 1.0, 0.001, 0.1], 5))
    sent = {"terms": evaluation_terms(site, state.trial), "gradient": site.gradient(state.trial)}
    honest = corner_answers(site, corners_of(state, psi))
    check_corners(state, psi, {**sent, "corners": honest}, 1e-9)
    for change in (1.0, -1.0):
        lie = honest.copy()
        lie[P + 1 :: P + 2] += change
        with pytest.raises(ProtocolError, match="its loss rises by"):
            check_corners(state, psi, {**sent, "corners": lie}, 1e-9)


def test_corners_count_as_that_many_sums_of_rows_and_only_once():
    """As what an owner's `hessian_share` limits; a run whose blocks are refused keeps the dual points it has."""
    sent = {"gradient": np.zeros(7), "terms": np.zeros(8), "corners": np.ones(4 * 8), "block": np.zeros(10)}
    assert ProximalNewton.sums(sent) == {"gradient": 1, "terms": 0, "corners": 4, "block": 4}
    asked = []

    class Counting(InProcessGrid):
        def _deliver(self, message):
            reply = super()._deliver(message)
            asked.extend(name for record in reply.content.array_records.values() for name in record)
            return reply

    sites = _problem("logistic")[0]
    strategy = FedNewton(regularizer=_psi("logistic"), fraction_evaluate=0.0, tolerance=1e-11)
    arrays = ArrayRecord({"coefficients": Array(np.zeros(P)), "intercept": Array(np.zeros(1))})
    strategy.start(Counting(app_of(sites), 3), arrays, 30)
    assert asked.count("corners") == len(sites) * int(strategy.state.tries)
    assert strategy.state.tries == 1
    assert strategy.state.objective - strategy.state.lower <= 1e-11
