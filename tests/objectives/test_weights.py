"""Weights and offsets of rows: what they mean, in each objective, its derivatives, constants and duality gaps."""

import numpy as np
import pytest
from newton import point, solved
from scipy.sparse import csr_array
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import (
    CoxRegression,
    Huber,
    LeastSquares,
    Logistic,
    MultinomialLogistic,
    Poisson,
    TraceRegression,
)
from flwr_fco.regularizers import L1, ElasticNet
from reproduction.pooled import centralized_solution, certify

N, D = 24, 5
RNG = np.random.default_rng(0)
X = RNG.normal(0.3, 1.0, size=(N, D))
SCORES = X[:, 0] - X[:, 1] + RNG.normal(size=N)
COPIES = RNG.integers(1, 5, N)
OFFSET = RNG.normal(size=N)


def _made(cls, features=X, rows=None, **options):
    """An objective of some of the rows, by default all."""
    rows = np.arange(N) if rows is None else rows
    features = features[rows] if cls is not TraceRegression else features[rows].reshape(-1, D, 1)
    if cls is CoxRegression:
        times = 1.0 + np.floor(4.0 * np.abs(SCORES))
        return cls(features, times[rows], SCORES[rows] > -0.5, ties="breslow", **options)
    if cls is Logistic:
        return cls(features, SCORES[rows] > 0.0, **options)
    if cls is MultinomialLogistic:
        return cls(features, np.digitize(SCORES[rows], [-1.0, 1.0]), num_classes=3, **options)
    return cls(features, np.floor(np.abs(SCORES))[rows] if cls is Poisson else SCORES[rows], **options)


CLASSES = (LeastSquares, TraceRegression, Logistic, MultinomialLogistic, Huber, Poisson, CoxRegression)


def _points(objective):
    rng = np.random.default_rng(3)
    return [0.4 * rng.normal(size=objective.layout.size) for _ in range(3)]


@together("cls", CLASSES)
@together("l2", [0.0, 0.2])
@together("sparse", [False, True])
def test_a_weight_of_k_is_k_copies(cls, l2, sparse):
    """In the value, gradient, Hessian, constants and metrics, and whatever the weights' common factor is."""
    if sparse and cls is TraceRegression:
        pytest.skip("has matrices")
    features = csr_array(X) if sparse else X
    # A common factor changes the partial likelihood by a constant.
    weights = (1.0 if cls is CoxRegression else 7.0) * COPIES
    one = _made(cls, features, l2=l2, sample_weight=weights)
    other = _made(cls, features, np.repeat(np.arange(N), COPIES), l2=l2)
    for w in _points(one):
        assert one.value(w) == pytest.approx(other.value(w), rel=1e-12)
        assert one.gradient(w) == pytest.approx(other.gradient(w), abs=1e-12)
        assert one.metrics(w) == pytest.approx(other.metrics(w), rel=1e-12)
        assert one.hessian_product(w, w[::-1].copy()) == pytest.approx(
            other.hessian_product(w, w[::-1].copy()), abs=1e-12
        )
        on = np.arange(one.layout.size)
        assert one.hessian_block(w, on) == pytest.approx(other.hessian_block(w, on), abs=1e-12)
    assert one.strong_convexity() == pytest.approx(other.strong_convexity(), abs=1e-12)
    if cls is not Poisson:
        for norm in ("l2", "l1"):
            near = 0.5 if cls is CoxRegression else 1e-12
            assert one.lipschitz(norm) == pytest.approx(other.lipschitz(norm), rel=near)


@together("cls", [cls for cls in CLASSES if cls is not CoxRegression])
def test_a_subset_has_the_weights_and_offsets_of_its_rows(cls):
    rows, rng = np.array([1, 4, 5, 11, 19]), np.random.default_rng(5)
    offset = rng.normal(size=(N, 3) if cls is MultinomialLogistic else N)
    whole = _made(cls, sample_weight=COPIES, offset=offset)
    part, share = whole.subset(rows)
    other = _made(cls, rows=rows, sample_weight=COPIES[rows], offset=offset[rows])
    rest, left = whole.subset(np.setdiff1d(np.arange(N), rows))
    assert share == pytest.approx(COPIES[rows].sum() / COPIES.sum())
    for w in _points(whole):
        assert part.value(w) == pytest.approx(other.value(w), rel=1e-13)
        assert part.gradient(w) == pytest.approx(other.gradient(w), abs=1e-13)
        assert share * part.value(w) + left * rest.value(w) == pytest.approx(whole.value(w), rel=1e-12)


@together("cls", [LeastSquares, Logistic, Huber, Poisson])
def test_an_offset_is_a_column_with_the_coefficient_one(cls):
    one, other = (
        _made(cls, X, offset=OFFSET, intercept=False),
        _made(cls, np.column_stack([X, OFFSET]), intercept=False),
    )
    for w in _points(one):
        assert one.value(w) == pytest.approx(other.value(np.append(w, 1.0)), rel=1e-13)
        assert one.gradient(w) == pytest.approx(other.gradient(np.append(w, 1.0))[:-1], abs=1e-13)
    w = _points(one)[0]
    assert one.predict(w) == pytest.approx(other.predict(np.append(w, 1.0)))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("psi", [L1(0.03), ElasticNet(0.1, 0.5)], ids=["l1", "elastic net"])
@pytest.mark.parametrize("given", ["weights", "both"])
def test_no_gap_is_below_the_distance_from_the_optimum(cls, psi, given):
    """At points of any distance, and 0 at the optimum: with weights alone, and with offsets."""
    rng = np.random.default_rng(1)
    options = {"sample_weight": rng.uniform(0.2, 3.0, N)}
    if given == "both":
        options["offset"] = rng.normal(size=(N, 3) if cls is MultinomialLogistic else N)
    sites = [_made(cls, rows=np.arange(m, N, 3), **{k: v[m::3] for k, v in options.items()}) for m in range(3)]
    best = centralized_solution(sites, psi, tol=1e-11)
    at = certify(sites, None, psi, best)
    assert at.kind == "duality-gap"
    assert at.value < 1e-9
    for distance in (1e-4, 1e-2, 0.3, 2.0):
        for _ in range(8):
            found = certify(sites, None, psi, best + distance * rng.normal(size=best.size))
            assert found.kind == "duality-gap"
            assert found.value >= found.objective - at.objective - 1e-10


@pytest.mark.parametrize("cls", [LeastSquares, Logistic, MultinomialLogistic])
def test_newton_certifies_the_pooled_problem_of_weighted_sites(cls):
    """With the sums of weights as the sites' weights, it is that of all rows in one place."""
    parts, psi = [np.arange(10), np.arange(10, 13), np.arange(13, N)], L1(0.03)
    sites = [_made(cls, rows=rows, sample_weight=COPIES[rows]) for rows in parts]
    weighting = {m: float(COPIES[rows].sum()) for m, rows in enumerate(parts)}
    result, _ = solved(sites, psi, tolerance=1e-13, site_weights=weighting)
    (one,) = [_made(cls, rows=np.repeat(np.arange(N), COPIES))]
    found = certify([one], None, psi, point(result, one))
    assert found.kind == "duality-gap"
    assert found.value < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weight": np.zeros(N)}, r"sample_weight\[0\] is 0; expected numbers > 0"),
        ({"sample_weight": -np.ones(N)}, "expected numbers > 0"),
        ({"sample_weight": np.ones(3)}, r"sample_weight have shape \(3,\), but there are 24 examples"),
        ({"sample_weight": np.full(N, np.nan)}, r"sample_weight\[0\] is nan"),
        ({"offset": np.ones((N, 2))}, "offset have shape"),
        ({"offset": np.full(N, np.inf)}, r"offset\[0\] is inf"),
        ({"offset": ["a"] * N}, "offset have dtype"),
    ],
)
@pytest.mark.parametrize("cls", [LeastSquares, Logistic, Poisson, CoxRegression])
def test_what_is_no_weight_or_offset_is_refused(cls, options, message):
    with pytest.raises(ConfigurationError, match=message):
        _made(cls, **options)


def test_offsets_of_many_classes_have_a_column_for_each():
    with pytest.raises(ConfigurationError, match=r"expected \(24, 3\)"):
        _made(MultinomialLogistic, offset=OFFSET)
