"""Linear losses: margins of any size, labels in any coding, what weights, offsets and constants mean, conjugates."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.sparse import csr_array
from sklearn.svm import LinearSVC

from flwr_fco.objectives import CoxRegression, Huber, LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson
from flwr_fco.objectives.linear import SquaredHinge, TraceRegression

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
    shapes = [own.layout["coefficients"].shape for own in (objective, objective.subset(np.arange(3))[0])]
    assert shapes == [(4, 3)] * 2
    residuals = np.einsum("nij,ij->n", matrices, w[:12].reshape(4, 3)) + w[12] - targets
    assert_allclose(objective.value(w), 0.5 * np.mean(np.square(residuals)) + 0.05 * (w[:12] ** 2).sum(), rtol=1e-13)
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
    assert set(zero_one.predict(w)) == {0, 1}
    assert MultinomialLogistic(X, LABELS).num_classes == 2
    assert set(Logistic(X, 2 * LABELS - 1).predict(w)) == {-1, 1}


# --- constants --------------------------------------------------------------------------------------------------------


def _hessian(objective):
    zero = objective.gradient(np.zeros(objective.layout.size))
    return np.array([objective.gradient(row) - zero for row in np.eye(objective.layout.size)])


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (7, 7), (2, 5), (5, 2)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("form", [np.asarray, csr_array, np.float32])
def test_constants_of_squares_are_eigenvalues(shape, intercept, l2, form):
    rng = np.random.default_rng(0)
    rows = {"sample_weight": 1.0 + np.arange(shape[0]) % 3, "intercept": intercept, "l2": l2}
    objective = LeastSquares(form(rng.normal(size=shape) + 0.5), rng.normal(size=shape[0]), **rows)
    hessian = _hessian(objective)
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
        near = 0.5 if cls is CoxRegression else 1e-12
        assert one.lipschitz(norm) == pytest.approx(other.lipschitz(norm), rel=near)


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
    by_convexity, same = Objective.dual_terms(objective, [w, v], [0.5, 0.3])
    assert_allclose(same, mixture, atol=1e-13)
    assert conjugate <= by_convexity + 1e-13
    # One point with the whole share: both are exact, and equal.
    alone = [Objective.dual_terms(objective, [w], [1.0])[0], objective.dual_terms([w], [1.0])[0]]
    assert_allclose(alone, float(plain.gradient(w) @ w) - plain.value(w), rtol=1e-10)
    found = minimize(lambda x: plain.value(x) - mixture @ x, w, jac=lambda x: plain.gradient(x) - mixture, tol=1e-12)
    assert conjugate >= -found.fun - 1e-9
