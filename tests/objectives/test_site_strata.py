"""Intercepts of strata within the sites, against CVXPY with a dummy for each, and against sites in their place."""

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from newton import numbers, point, solved
from scipy.sparse import csr_array

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression, LeastSquares, Logistic, Poisson, SiteIntercept
from flwr_fco.regularizers import L1
from flwr_fco.testing import check_objective
from reproduction.pooled import certify, composite_objective

P, SIZES = 5, (90, 120)
KINDS = {
    "squares": lambda X, y, **options: LeastSquares(X, y, scale=0.5, **options),
    "logistic": Logistic,
    "poisson": Poisson,
}
#: Labels of the strata; of the last one nothing is learnt.
NAMES = np.array(["old", "new", "ward", "none"])


def _rows(kind, m):
    """A site with strata whose levels and sizes differ, and with a column that is constant in one of them."""
    n, rng = SIZES[m], np.random.default_rng(m)
    strata = np.r_[np.repeat(np.arange(4), 10), rng.choice(4, n - 40, p=[0.4, 0.3, 0.2, 0.1])][rng.permutation(n)]
    X = rng.normal(size=(n, P)) + 1.5 * strata[:, None] - m
    X[strata == 1, 4] = 7.0
    scores = (X - 1.5 * strata[:, None] + m) @ [1.0, -0.6, 0.3, 0.0, 0.2] + 0.7 * rng.normal(size=n)
    y = {"squares": scores + 5.0 * strata, "logistic": scores > 0.1 * strata, "poisson": rng.poisson(np.exp(scores))}
    y = y[kind].astype(float)
    if kind != "squares":
        y[strata == 3] = m * (kind == "logistic")
    return X, y, NAMES[strata]


def _more(n, seed=7):
    rng = np.random.default_rng(seed)
    return {"sample_weight": rng.uniform(0.2, 4.0, n), "offset": rng.normal(size=n)}


def _site(kind, m=0, sparse=False, **options):
    X, y, strata = _rows(kind, m)
    return SiteIntercept(KINDS[kind](csr_array(X) if sparse else X, y, **options), strata=strata)


def _with_dummies(kind, strength):
    """CVXPY's optimum, with an intercept of each stratum of each site, and those of the strata that tell something."""
    w, loss, own = cp.Variable(P), 0.0, {}
    for m in range(len(SIZES)):
        X, y, strata = _rows(kind, m)
        for name in NAMES[: 4 if kind == "squares" else 3]:
            at = strata == name
            own[m, name] = cp.Variable()
            scores = X[at] @ w + own[m, name]
            if kind == "squares":
                loss += 0.5 * cp.sum_squares(scores - y[at])
            elif kind == "logistic":
                loss += cp.sum(cp.logistic(scores) - cp.multiply(y[at], scores))
            else:
                loss += cp.sum(cp.exp(scores) - cp.multiply(y[at], scores))
    problem = cp.Problem(cp.Minimize(loss / sum(SIZES) + strength * cp.norm1(w)))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13)
    return w.value, {place: float(b.value) for place, b in own.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate", "ignore:few rows")
def test_the_pooled_optimum_is_that_of_a_dummy_for_each_stratum_of_each_site(kind):
    sites, psi = [_site(kind, m) for m in range(len(SIZES))], L1(0.02)
    result, _ = solved(sites, psi, tolerance=1e-12)
    assert {name: array.shape for name, array in result.arrays.items()} == {"coefficients": (P,)}
    w = point(result, sites[0])
    expected, intercepts = _with_dummies(kind, 0.02)
    np.testing.assert_allclose(w, expected, atol=1e-6)
    best = composite_objective(sites, None, psi, expected)
    assert abs(composite_objective(sites, None, psi, w) - best) <= 1e-9
    assert numbers(result, "duality-gap")[-1] <= 1e-12
    for (m, name), b in intercepts.items():
        assert sites[m].own_intercept(w)[name] == pytest.approx(b, abs=1e-5)
    # Away from the optimum the gap is a bound.
    at = w + 0.1
    assert certify(sites, None, psi, at).value >= composite_objective(sites, None, psi, at) - best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.filterwarnings("ignore:few rows")
def test_strata_are_as_sites_of_their_own(kind, sparse):
    """Also with weights and offsets, of which each stratum has others."""
    X, y, strata = _rows(kind, 0)
    more, matrix = _more(len(y)), csr_array(X) if sparse else X
    site = SiteIntercept(KINDS[kind](matrix, y, l2=0.3, **more), strata=strata)
    w, v, on = np.array([0.4, -1.0, 0.0, 2.0, 0.5]), np.arange(P) - 1.5, np.array([0, 2, 4])
    shares, parts = [], []
    for name in NAMES:
        at = strata == name
        shares.append(more["sample_weight"][at].sum() / more["sample_weight"].sum())
        own = {key: given[at] for key, given in more.items()}
        parts.append(SiteIntercept(KINDS[kind](matrix[np.flatnonzero(at)], y[at], l2=0.3, **own)))
        assert site.own_intercept(w)[name] == pytest.approx(parts[-1].own_intercept(w), rel=1e-13)
    for ask in (
        lambda one: one.value(w),
        lambda one: one.gradient(w),
        lambda one: one.value_and_gradient(w)[0],
        lambda one: one.value_and_gradient(w)[1],
        lambda one: one.hessian_product(w, v),
        lambda one: one.hessian_block(w, on),
    ):
        expected = sum(share * ask(part) for share, part in zip(shares, parts, strict=True))
        np.testing.assert_allclose(ask(site), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:few rows")
def test_derivatives_are_those_of_differences(kind):
    site = _site(kind, 0, l2=0.1, **_more(SIZES[0]))
    check_objective(site)
    w, step = np.array([0.4, -1.0, 0.0, 0.7, 0.5]), 1e-5
    by_differences = np.array(
        [(site.gradient(w + step * e) - site.gradient(w - step * e)) / (2.0 * step) for e in np.eye(P)]
    )
    upper = np.triu_indices(P)
    np.testing.assert_allclose(site.hessian_block(w, np.arange(P)), by_differences[upper], rtol=1e-6, atol=1e-8)
    # A batch has the intercepts of all rows: the batches of an epoch average to the whole.
    batches = np.array_split(np.random.default_rng(0).permutation(SIZES[0]), 7)
    mean = sum(len(rows) * site.gradient(w, rows) for rows in batches) / SIZES[0]
    np.testing.assert_allclose(mean, site.gradient(w), rtol=1e-12, atol=1e-13)
    value = sum(len(rows) * site.value_and_gradient(w, rows)[0] for rows in batches) / SIZES[0]
    assert value == pytest.approx(site.value(w), rel=1e-12)


@pytest.mark.filterwarnings("ignore:few rows")
def test_a_column_that_is_constant_in_each_stratum_has_no_curvature():
    """Between the strata it varies."""
    X, y, strata = _rows("logistic", 1)
    X[:, 2] = 1e3 + 10.0 * np.unique(strata, return_inverse=True)[1]
    site = SiteIntercept(Logistic(X, y), strata=strata)
    block = np.zeros((P, P))
    block[np.triu_indices(P)] = site.hessian_block(np.zeros(P), np.arange(P))
    assert not block[2].any()
    assert not block[:, 2].any()
    assert (np.diag(block)[[0, 1, 3, 4]] > 0.0).all()


@pytest.mark.filterwarnings("ignore:few rows")
def test_a_stratum_of_one_class_tells_nothing_and_the_others_count():
    w = np.array([0.4, -1.0, 0.0, 2.0, 0.5])
    for kind in ("logistic", "poisson"):
        X, y, strata = _rows(kind, 1)
        X[strata == "none"] *= 100.0
        site, rest = SiteIntercept(KINDS[kind](X, y), strata=strata), strata != "none"
        others = SiteIntercept(KINDS[kind](X[rest], y[rest]), strata=strata[rest])
        assert not site.adds_nothing
        assert site.own_intercept(w)["none"] == (np.inf if kind == "logistic" else -np.inf)
        assert site.value(w) == pytest.approx(rest.mean() * others.value(w), rel=1e-13)
        np.testing.assert_allclose(site.gradient(w), rest.mean() * others.gradient(w), rtol=1e-12, atol=1e-14)
        rows = np.flatnonzero(~rest)
        np.testing.assert_array_equal(site.gradient(w, rows), 0.0)
        assert site.value_and_gradient(w, rows)[0] == 0.0
        assert SiteIntercept(KINDS[kind](X[rows], y[rows]), strata=np.arange(rows.size)).adds_nothing
    y = (strata == "new") * 1.0
    site = SiteIntercept(Logistic(X, y, l2=0.5, **_more(len(y))), strata=strata)
    assert site.adds_nothing
    assert all(np.isinf(b) and (b > 0.0) == (name == "new") for name, b in site.own_intercept(w).items())
    assert site.value(w) == 0.25 * float(w @ w) == site.metrics(w)["loss"]
    np.testing.assert_array_equal(site.gradient(w), 0.5 * w)
    np.testing.assert_array_equal(site.hessian_product(w, w), 0.5 * w)
    np.testing.assert_array_equal(site.hessian_block(w, np.array([0, 3])), [0.5, 0.0, 0.5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:few rows")
def test_rows_and_features_of_others_keep_their_strata(kind):
    X, y, strata = _rows(kind, 0)
    w, more = np.array([0.4, -1.0, 0.0, 2.0, 0.5]), _more(len(y))
    site = SiteIntercept(KINDS[kind](X, y, **more), strata=strata)
    rows = np.flatnonzero(strata != "old")[3:]
    part, share = site.subset(rows)
    fresh = KINDS[kind](X[rows], y[rows], **{key: given[rows] for key, given in more.items()})
    fresh = SiteIntercept(fresh, strata=strata[rows])
    assert share == pytest.approx(more["sample_weight"][rows].sum() / more["sample_weight"].sum())
    assert part.own_intercept(w) == pytest.approx(fresh.own_intercept(w))
    assert part.value(w) == pytest.approx(fresh.value(w), rel=1e-13)
    np.testing.assert_allclose(
        part.subset(np.arange(5))[0].gradient(w), fresh.subset(np.arange(5))[0].gradient(w), atol=1e-12
    )
    other = SiteIntercept(KINDS[kind](X[:, :2], y, **more), strata=strata)
    assert site.with_features(X[:, :2]).value(w[:2]) == other.value(w[:2])


@pytest.mark.filterwarnings("ignore:few rows")
def test_metrics_are_those_of_the_predictions_with_each_stratums_intercept():
    w = np.array([0.4, -0.3, 0.2, 0.0, 0.1])
    X, y, strata = _rows("squares", 0)
    site, own = _site("squares"), _site("squares").own_intercept(w)
    predicted = X @ w + [own[name] for name in strata]
    found = site.metrics(w)
    assert found["loss"] == site.value(w)
    assert found["mse"] == pytest.approx(((y - predicted) ** 2).mean())
    assert found["r2"] == pytest.approx(1.0 - ((y - predicted) ** 2).mean() / y.var())
    X, y, strata = _rows("logistic", 0)
    site = _site("logistic")
    predicted = X @ w + [site.own_intercept(w)[name] for name in strata]
    assert site.metrics(w)["accuracy"] == pytest.approx(((predicted > 0.0) == (y > 0.0)).mean())
    assert site.metrics(w)["loss"] == site.value(w)


def test_few_rows_are_those_of_a_stratum_with_both_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(70, 2)), np.arange(70) % 2

    def site(*sizes, one_class=()):
        strata = np.repeat([f"ward {k}" for k in range(len(sizes))], sizes)
        labels = np.where(np.isin(strata, one_class), 0, y[: strata.size])
        return SiteIntercept(Logistic(X[: strata.size], labels), strata=strata)

    with pytest.raises(
        ConfigurationError, match=r"too few rows .*: a stratum of this site has fewer than 10\."
    ) as told:
        site(40, 9)
    assert "ward" not in str(told.value)
    with pytest.warns(UserWarning, match="few rows .*: a stratum of this site has fewer than 25, and") as warned:
        site(25, 24)
    assert warned[0].filename == __file__
    site(25, 25)
    site(25, 30, 9, one_class=["ward 2"])
    SiteIntercept(LeastSquares(X, y), strata=np.arange(70))


def test_labels_are_any_but_missing_ones():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4, 2)), np.arange(4.0)
    w = np.ones(2)
    for labels, keys in (
        ([2, 1, 2, 1], [1, 2]),
        (np.array(["b", "a", "b", "a"]), ["a", "b"]),
        (pd.Series(["b", "a", "b", "a"], dtype="category"), ["a", "b"]),
        ([1, "1", 1, "1"], [1, "1"]),
        (np.array([True, False, True, False]), [False, True]),
    ):
        site = SiteIntercept(LeastSquares(X, y), strata=labels)
        assert list(site.own_intercept(w)) == keys
        assert site.own_intercept(w)[keys[1]] == pytest.approx(
            (y - X @ w)[[0, 2] if keys != [1, "1"] else [1, 3]].mean()
        )
    missing = ([0.0, np.nan, 1.0, 1.0], ["a", None, "b", "b"], ["a", np.nan, "b", "b"], pd.array([1, None, 2, 2]))
    for labels in missing:
        with pytest.raises(ConfigurationError, match="strata hold a label that is missing; give such rows"):
            SiteIntercept(LeastSquares(X, y), strata=labels)
        with pytest.raises(ConfigurationError, match="strata hold a label that is missing; give such rows"):
            CoxRegression(X, y, np.ones(4), strata=labels)
    for labels in ([["a"], ["a", "b"]] * 2, [{"ward": 1}] * 4, [(1, [2])] * 3 + [0]):
        with pytest.raises(ConfigurationError, match=r"what is no label: .*unhashable.*expected texts or numbers"):
            SiteIntercept(LeastSquares(X, y), strata=labels)
        with pytest.raises(ConfigurationError, match=r"what is no label: .*unhashable.*expected texts or numbers"):
            CoxRegression(X, y, np.ones(4), strata=labels)
    for labels in (["a"], "ward", np.zeros((4, 2))):
        with pytest.raises(ConfigurationError, match="strata have shape"):
            SiteIntercept(LeastSquares(X, y), strata=labels)


def test_one_stratum_is_none():
    X, y, _ = _rows("logistic", 0)
    w = np.full(P, 0.3)
    plain, one = SiteIntercept(Logistic(X, y)), SiteIntercept(Logistic(X, y), strata=np.zeros(len(y)))
    assert one.own_intercept(w) == {0.0: plain.own_intercept(w)}
    assert one.value(w) == pytest.approx(plain.value(w), rel=1e-14)
    np.testing.assert_array_equal(one.hessian_block(w, np.arange(P)), plain.hessian_block(w, np.arange(P)))
    assert one.dual_terms() == plain.dual_terms()


def test_weighted_rows_of_one_class_have_an_infinite_intercept():
    """Whatever their weights' sum rounds to."""
    rng = np.random.default_rng(0)
    for n in range(25, 60):
        objective = Logistic(rng.normal(size=(n, 1)), np.ones(n), sample_weight=rng.uniform(0.1, 9.0, n))
        assert SiteIntercept(objective).own_intercept(np.ones(1)) == np.inf
