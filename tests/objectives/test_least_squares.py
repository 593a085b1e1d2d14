import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_squared_error, r2_score
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, TraceRegression


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    return rng.normal(size=(40, 6)) + 1.0, rng.normal(size=40)


def test_value_is_the_mean_of_squares_times_scale(data):
    features, targets = data
    w = np.random.default_rng(2).normal(size=7)
    residuals = features @ w[:6] + w[6] - targets
    assert_allclose(LeastSquares(features, targets).value(w), (residuals**2).sum() / 40, rtol=1e-14)
    assert_allclose(LeastSquares(features, targets, scale=0.5).value(w), (residuals**2).sum() / 80, rtol=1e-14)


@pytest.mark.parametrize("intercept", [True, False])
def test_gradient_is_zero_at_scikit_learns_solutions(data, intercept):
    features, targets = data
    plain = LinearRegression(fit_intercept=intercept).fit(features, targets)
    w = np.append(plain.coef_, plain.intercept_ if intercept else [])
    assert np.abs(LeastSquares(features, targets, intercept=intercept).gradient(w)).max() < 1e-12
    # Ridge minimises ||y - Xw||^2 + alpha ||w||^2: divide by n and compare with scale = 1, l2 / 2 = alpha / n.
    ridge = Ridge(alpha=3.0, fit_intercept=intercept).fit(features, targets)
    w = np.append(ridge.coef_, ridge.intercept_ if intercept else [])
    objective = LeastSquares(features, targets, intercept=intercept, l2=2 * 3.0 / 40)
    assert np.abs(objective.gradient(w)).max() < 1e-12


def test_metrics_against_scikit_learn(data):
    features, targets = data
    objective = LeastSquares(features, targets, scale=0.5, l2=0.1)
    w = np.random.default_rng(2).normal(size=7)
    predicted = features @ w[:6] + w[6]
    metrics = objective.metrics(w)
    assert_allclose(objective.predict(w), predicted, rtol=1e-13)
    assert_allclose(metrics["mse"], mean_squared_error(targets, predicted), rtol=1e-13)
    assert_allclose(metrics["r2"], r2_score(targets, predicted), rtol=1e-12)
    assert_allclose(metrics["loss"], objective.value(w), rtol=1e-14)


def test_r2_of_constant_targets_is_scikit_learns():
    objective = LeastSquares(np.array([[1.0], [2.0]]), np.array([3.0, 3.0]))
    assert objective.metrics(np.array([0.0, 3.0]))["r2"] == 1.0
    assert objective.metrics(np.array([0.0, 2.0]))["r2"] == 0.0


def test_repeated_rows_count_twice(data):
    objective = LeastSquares(*data)
    w = np.random.default_rng(2).normal(size=7)
    one, two = objective.gradient(w, np.array([5])), objective.gradient(w, np.array([9]))
    assert_allclose(objective.gradient(w, np.array([5, 5, 9])), (2 * one + two) / 3, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float16, ">f8", ">f4"])
def test_other_dtypes_are_converted_once(dtype):
    features = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    objective = LeastSquares(features, [0, 1, 2])
    assert objective.features.dtype in (np.float64, np.float32)
    assert_allclose(objective.gradient(np.zeros(3)), [-2.0, -2.0 / 3.0, -2.0])


def _hessian(objective):
    size = objective.layout.size
    zero = objective.gradient(np.zeros(size))
    return np.array([objective.gradient(row) - zero for row in np.eye(size)])


@together("intercept", [True, False])
@together("shape", [(40, 6), (6, 40), (7, 7), (1, 5), (5, 1)])
@together("scale", [1.0, 0.5])
def test_lipschitz_is_exact(shape, intercept, scale):
    rng = np.random.default_rng(0)
    objective = LeastSquares(rng.normal(size=shape) + 0.5, rng.normal(size=shape[0]), intercept=intercept, scale=scale)
    hessian = _hessian(objective)
    assert_allclose(objective.lipschitz("l2"), np.linalg.eigvalsh(hessian)[-1], rtol=1e-10)
    assert_allclose(objective.lipschitz("l1"), np.abs(hessian).max(), rtol=1e-10)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_lipschitz_with_l2(shape):
    rng = np.random.default_rng(0)
    objective = LeastSquares(0.1 * rng.normal(size=shape), rng.normal(size=shape[0]), l2=0.5)
    hessian = _hessian(objective)
    exact = np.linalg.eigvalsh(hessian)[-1]
    if shape[0] > shape[1]:
        assert_allclose(objective.lipschitz("l2"), exact, rtol=1e-10)
    else:
        assert exact * (1 - 1e-12) <= objective.lipschitz("l2") <= exact + 0.5
    assert_allclose(objective.lipschitz("l1"), np.abs(hessian).max(), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lanczos_agrees_with_the_gram_matrix(monkeypatch, dtype):
    rng = np.random.default_rng(0)
    objective = LeastSquares(rng.normal(size=(90, 60)).astype(dtype), rng.normal(size=90), l2=0.2)
    exact = objective.lipschitz("l2")
    monkeypatch.setattr("flwr_fco.objectives._linear.LARGEST_GRAM", 10)
    assert exact * (1 - 1e-12) <= objective.lipschitz("l2") <= exact * (1 + 1e-8)


def test_lipschitz_of_slices(monkeypatch):
    rng = np.random.default_rng(0)
    for shape in ((50, 20), (20, 50)):
        objective = LeastSquares(rng.normal(size=shape).astype(np.float32), rng.normal(size=shape[0]))
        exact = objective.lipschitz("l2")
        with monkeypatch.context() as patch:
            patch.setattr("flwr_fco.objectives.design.CHUNK", 7)
            assert_allclose(objective.lipschitz("l2"), exact, rtol=1e-12)


def test_trace_regression_is_least_squares_on_flattened_matrices():
    rng = np.random.default_rng(0)
    matrices, targets = rng.normal(size=(12, 4, 3)), rng.normal(size=12)
    objective = TraceRegression(matrices, targets, scale=0.5, l2=0.1)
    flat = LeastSquares(matrices.reshape(12, 12), targets, scale=0.5, l2=0.1)
    assert objective.layout["coefficients"].shape == (4, 3)
    assert objective.layout.regularized_names == ("coefficients",)
    assert np.shares_memory(objective.features, matrices)
    w = rng.normal(size=13)
    residuals = [np.trace(x.T @ w[:12].reshape(4, 3)) + w[12] - y for x, y in zip(matrices, targets, strict=True)]
    assert_allclose(objective.value(w), 0.5 * np.mean(np.square(residuals)) + 0.05 * (w[:12] ** 2).sum(), rtol=1e-13)
    assert np.array_equal(objective.gradient(w), flat.gradient(w))
    assert objective.lipschitz() == flat.lipschitz()


@together(
    ("features", "targets", "options", "message"),
    [
        (np.ones(3), np.ones(3), {}, r"shape \(3,\)"),
        (np.ones((3, 2)), np.ones(4), {}, "3 examples"),
        (np.ones((3, 2)), np.ones((3, 1)), {}, r"expected \(3,\)"),
        (np.ones((0, 2)), np.ones(0), {}, "at least one example"),
        (np.ones((2, 0)), np.ones(2), {}, "at least one"),
        ([[1.0, np.nan], [1.0, 2.0]], np.ones(2), {}, r"features\[0, 1\] is nan"),
        (np.ones((2, 2)), [1.0, np.inf], {}, r"targets\[1\] is inf"),
        ([["a"], ["b"]], np.ones(2), {}, "dtype"),
        (np.array([[1.0, "a"], [2.0, "b"]], dtype=object), np.ones(2), {}, r"features\[0, 1\] is a str\. Encode such"),
        (np.ones((2, 2), dtype=object), np.ones(2), {}, r"All of its entries are: give \.astype\(float\)"),
        (np.ones((2, 2)), ["a", "b"], {}, "dtype"),
        (np.ones((2, 2)), np.ones(2), {"scale": 0.0}, "scale"),
        (np.ones((2, 2)), np.ones(2), {"scale": np.nan}, "scale"),
        (np.ones((2, 2)), np.ones(2), {"l2": -1.0}, "l2"),
    ],
)
def test_what_is_refused(features, targets, options, message):
    with pytest.raises(ConfigurationError, match=message):
        LeastSquares(features, targets, **options)


def test_trace_regression_wants_matrices():
    with pytest.raises(ConfigurationError, match="examples, rows, columns"):
        TraceRegression(np.ones((3, 4)), np.ones(3))


def test_wrong_vectors_and_batches_are_refused(data):
    objective = LeastSquares(*data, intercept=False)
    with pytest.raises(ConfigurationError, match=r"shape \(7,\), expected \(6,\)"):
        objective.value(np.zeros(7))
    with pytest.raises(ConfigurationError, match="shape"):
        objective.gradient(np.zeros(7))
    with pytest.raises(IndexError, match="row number"):
        objective.gradient(np.zeros(6), np.array([0, 40]))
    with pytest.raises(IndexError, match="row number"):
        objective.gradient(np.zeros(6), np.array([-1]))
    with pytest.raises(ValueError, match="length"):
        objective.add_gradient(np.zeros(5), None, 1.0, np.zeros(5))
    with pytest.raises(ValueError, match="length"):
        objective.add_gradient(np.zeros(6), None, 1.0, np.zeros(5))
    with pytest.raises(ConfigurationError, match="norm"):
        objective.lipschitz("linf")


def test_the_largest_eigenvalue_where_most_are_equal():
    """Orthonormal features with an intercept: LAPACK's search for one eigenvalue ends with an internal error here."""
    for m in range(4):
        features, _ = np.linalg.qr(np.random.default_rng(m).standard_normal((30, 6)))
        objective = LeastSquares(np.sqrt(30) * features, np.ones(30), scale=0.5)
        assert_allclose(objective.lipschitz(), np.linalg.eigvalsh(_hessian(objective))[-1], rtol=1e-12)
