"""Linear losses: margins of any size, labels in any coding, and what weights, offsets and constants mean."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import (
    CoxRegression,
    Huber,
    LeastSquares,
    Linear,
    Logistic,
    MultinomialLogistic,
    Poisson,
    SquaredHinge,
    TraceRegression,
    links,
)

RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(60, 5)) + 0.5
LABELS = (FEATURES[:, 0] + RNG.normal(size=60) > 0.5).astype(int)


# --- values and optima ------------------------------------------------------------------------------------------------


def test_a_squared_hinge_has_the_solution_of_linear_svc():
    objective = SquaredHinge(FEATURES, LABELS, l2=1 / 20.0, intercept=False)
    w = minimize(objective.value_and_gradient, np.zeros(5), jac=True, tol=1e-14, options={"gtol": 1e-10}).x
    svc = LinearSVC(C=20.0 / 60, loss="squared_hinge", fit_intercept=False, tol=1e-12, max_iter=10**5)
    assert_allclose(w, svc.fit(FEATURES, LABELS).coef_[0], atol=1e-6)
    assert np.array_equal(objective.predict(w), svc.predict(FEATURES))


def test_trace_regression_is_least_squares_on_flattened_matrices():
    matrices = RNG.normal(size=(12, 4, 3))
    targets = RNG.normal(size=12)
    objective = TraceRegression(matrices, targets, scale=0.5, l2=0.1)
    flat = LeastSquares(matrices.reshape(12, 12), targets, scale=0.5, l2=0.1)
    w = RNG.normal(size=13)
    assert objective.layout["coefficients"].shape == objective.subset(np.arange(3))[0].layout["coefficients"].shape
    assert objective.layout["coefficients"].shape == (4, 3)
    assert objective.layout.regularized_names == ("coefficients",)
    residuals = [np.trace(x.T @ w[:12].reshape(4, 3)) + w[12] - y for x, y in zip(matrices, targets, strict=True)]
    assert_allclose(objective.value(w), 0.5 * np.mean(np.square(residuals)) + 0.05 * (w[:12] ** 2).sum(), rtol=1e-13)
    assert np.array_equal(objective.gradient(w), flat.gradient(w))
    assert objective.lipschitz() == flat.lipschitz()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("margin", [1e2, 1e4, 1e300])
def test_margins_of_any_size(margin):
    objective = Logistic(np.array([[1.0], [1.0]]), np.array([1, 0]), intercept=False)
    for sign in (1.0, -1.0):
        assert_allclose(objective.value(np.array([sign * margin])), margin / 2, rtol=1e-15)
        assert_allclose(objective.gradient(np.array([sign * margin])), [sign * 0.5], rtol=1e-15)
    objective = MultinomialLogistic(np.array([[1.0], [1.0]]), np.array([0, 2]), num_classes=3, intercept=False)
    w = np.array([margin, 0.0, -margin])
    assert_allclose(objective.value(w), margin, rtol=1e-15)
    assert_allclose(objective.gradient(w), [0.5, 0.0, -0.5], rtol=1e-15, atol=1e-40)


def test_small_probabilities_are_not_rounded_away():
    one = Logistic([[1.0]], [1], intercept=False).gradient(np.array([40.0]))
    other = MultinomialLogistic([[1.0]], [1], num_classes=2, intercept=False).gradient(np.array([0.0, 40.0]))
    assert_allclose([one[0], other[0]], [-np.exp(-40.0), np.exp(-40.0)], rtol=1e-12)


# --- labels -----------------------------------------------------------------------------------------------------------


def test_labels_in_either_coding_and_dtype():
    w = RNG.normal(size=6)
    zero_one = Logistic(FEATURES, LABELS)
    for coded in (2 * LABELS - 1, LABELS.astype(bool), LABELS.astype(float), (2 * LABELS - 1).astype(np.float32)):
        other = Logistic(FEATURES, coded)
        assert other.value(w) == zero_one.value(w)
        assert np.array_equal(other.gradient(w), zero_one.gradient(w))
    assert set(zero_one.predict(w)) == {0, 1}
    assert set(Logistic(FEATURES, 2 * LABELS - 1).predict(w)) == {-1, 1}


@pytest.mark.parametrize("labels", [[0, 1, 2], [0, -1, 1], [0.5, 1, 0], [np.nan, 0, 1], ["cat", "dog", "dog"]])
def test_binary_labels_that_are_refused(labels):
    with pytest.raises(ConfigurationError, match=r"labels hold .*; expected 0 and 1, or -1 and \+1"):
        Logistic(np.ones((3, 2)), labels)


@pytest.mark.parametrize(
    ("labels", "num_classes", "message"),
    [
        ([0, 2, 0], None, "hold 0, 2.*num_classes="),
        ([0, 0, 0], None, "num_classes="),
        ([0, 1, 2], 2, r"integers 0 \.\. 1"),
        ([0, 0, 0], 1, "expected at least 2"),
        ([-1, 1, 0], 3, "integers"),
        ([0.5, 1, 0], 3, "integers"),
        ([np.nan, 1, 0], 3, "integers"),
        (["cat", "dog", "dog"], None, "cat"),
    ],
)
def test_labels_of_classes_that_are_refused(labels, num_classes, message):
    with pytest.raises(ConfigurationError, match=message):
        MultinomialLogistic(np.ones((3, 2)), labels, num_classes=num_classes)


# --- constants and lines ----------------------------------------------------------------------------------------------


def _hessian(objective):
    zero = objective.gradient(np.zeros(objective.layout.size))
    return np.array([objective.gradient(row) - zero for row in np.eye(objective.layout.size)])


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (7, 7), (1, 5), (5, 1)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_constants_of_squares_are_eigenvalues(shape, intercept, l2):
    rng = np.random.default_rng(0)
    objective = LeastSquares(rng.normal(size=shape) + 0.5, rng.normal(size=shape[0]), intercept=intercept, l2=l2)
    hessian = _hessian(objective)
    smallest, *_, largest = np.linalg.eigvalsh(hessian) if len(hessian) > 1 else 2 * [hessian[0, 0]]
    # With fewer rows than columns an intercept counts as if l2 acted on it.
    assert largest * (1 - 1e-10) <= objective.lipschitz() <= largest * (1 + 1e-10) + l2 * (shape[0] < len(hessian))
    assert_allclose(objective.lipschitz("l1"), np.abs(hessian).max(), rtol=1e-10)
    assert_allclose(objective.strong_convexity(), max(smallest, 0.0), rtol=1e-9, atol=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        # Too large for a Gram matrix: what is due to l2 alone, never more than the truth.
        patch.setattr("flwr_fco.objectives.linear.LARGEST_GRAM", 0)
        bound = objective.strong_convexity()
    assert 0.0 <= bound <= smallest * (1.0 + 1e-9) + 1e-12
    assert (bound > 0.0) == (l2 > 0.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lanczos_agrees_with_the_gram_matrix(monkeypatch, dtype):
    dense = RNG.normal(size=(90, 60)).astype(dtype)
    for kind, features in ((LeastSquares, dense), (Logistic, csr_array(dense * (np.abs(dense) > 1.0)))):
        objective = kind(features, np.arange(90) % 2, l2=0.2, sample_weight=1.0 + np.arange(90) % 3)
        exact = objective.lipschitz("l2")
        with monkeypatch.context() as patch:
            patch.setattr("flwr_fco.objectives.linear.LARGEST_GRAM", 10)
            assert exact * (1 - 1e-12) <= objective.lipschitz("l2") <= exact * (1 + 1e-8)


# --- sparse rows ------------------------------------------------------------------------------------------------------


def agree(found, expected):
    assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


# --- weights and offsets of rows --------------------------------------------------------------------------------------

N, D = 24, 5
X = np.random.default_rng(0).normal(0.3, 1.0, size=(N, D))
SCORES = X[:, 0] - X[:, 1] + np.random.default_rng(1).normal(size=N)
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


LOSSES = (LeastSquares, TraceRegression, Logistic, MultinomialLogistic, Huber, Poisson, SquaredHinge, CoxRegression)


@pytest.mark.parametrize("cls", LOSSES)
@pytest.mark.parametrize("l2", [0.0, 0.2])
@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_a_weight_of_k_is_k_copies(cls, l2, form):
    """In the value, gradient, Hessian, constants and metrics, and whatever the weights' common factor is."""
    features = np.asarray(X) if cls is TraceRegression else form(X)
    # A common factor changes the partial likelihood by a constant.
    weights = (1.0 if cls is CoxRegression else 7.0) * COPIES
    one = _made(cls, features, l2=l2, sample_weight=weights)
    other = _made(cls, features, np.repeat(np.arange(N), COPIES), l2=l2)
    for w in 0.4 * np.random.default_rng(3).normal(size=(3, one.layout.size)):
        v = w[::-1].copy()
        on = np.arange(w.size)
        agree(one.value(w), other.value(w))
        agree(one.gradient(w), other.gradient(w))
        agree(list(one.metrics(w).values()), list(other.metrics(w).values()))
        agree(one.hessian_product(w, v), other.hessian_product(w, v))
        agree(one.hessian_block(w, on), other.hessian_block(w, on))
        if cls is not CoxRegression:
            agree(one.dual_terms([w], [0.7])[0], other.dual_terms([w], [0.7])[0])
    agree(one.strong_convexity(), other.strong_convexity())
    for norm in ("l2", "l1") if cls is not Poisson else ():
        near = 0.5 if cls is CoxRegression else 1e-12
        assert one.lipschitz(norm) == pytest.approx(other.lipschitz(norm), rel=near)


@pytest.mark.parametrize("cls", [LeastSquares, Logistic, Huber, Poisson, SquaredHinge])
def test_an_offset_is_a_column_with_the_coefficient_one(cls):
    offset = np.random.default_rng(4).normal(size=N)
    one = _made(cls, offset=offset, intercept=False)
    other = _made(cls, np.column_stack([X, offset]), intercept=False)
    for w in 0.4 * np.random.default_rng(3).normal(size=(3, D)):
        agree(one.value(w), other.value(np.append(w, 1.0)))
        agree(one.gradient(w), other.gradient(np.append(w, 1.0))[:-1])
        agree(one.predict(w), other.predict(np.append(w, 1.0)))


@pytest.mark.parametrize("link", ["squares", links.Squares, None])
def test_what_is_no_link_is_refused(link):
    with pytest.raises(ConfigurationError, match=r"link=.* expected a Link"):
        Linear(link, np.eye(2), np.ones(2))
