import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Logistic, MultinomialLogistic


@pytest.fixture
def data():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(60, 5)) + 0.5
    return features, (features[:, 0] + rng.normal(size=60) > 0.5).astype(int)


@pytest.fixture
def many():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(90, 5)) + 0.5
    return features, (features[:, :3] + rng.normal(size=(90, 3))).argmax(axis=1)


@pytest.mark.parametrize("intercept", [True, False])
def test_binary_gradient_is_zero_at_scikit_learns_optimum(data, intercept):
    features, labels = data
    # LogisticRegression minimises C * sum of losses + 1/2 ||w||^2: divide by C n, so l2 = 1 / (C n).
    model = LogisticRegression(C=0.7, tol=1e-12, max_iter=10_000, solver="newton-cholesky", fit_intercept=intercept)
    model.fit(features, labels)
    w = np.append(model.coef_[0], model.intercept_ if intercept else [])
    objective = Logistic(features, labels, l2=1 / (0.7 * 60), intercept=intercept)
    assert np.abs(objective.gradient(w)).max() < 1e-9
    assert np.array_equal(objective.predict(w), model.predict(features))
    assert_allclose(objective.margins(w), model.decision_function(features), rtol=1e-10)
    assert_allclose(
        objective.value(w) - 0.5 / (0.7 * 60) * (w[:5] ** 2).sum(),
        log_loss(labels, model.predict_proba(features)),
        rtol=1e-10,
    )
    assert objective.metrics(w)["accuracy"] == accuracy_score(labels, model.predict(features))


@pytest.mark.parametrize("intercept", [True, False])
def test_multinomial_gradient_is_zero_at_scikit_learns_optimum(many, intercept):
    features, labels = many
    model = LogisticRegression(C=0.7, tol=1e-12, max_iter=10_000, solver="lbfgs", fit_intercept=intercept)
    model.fit(features, labels)
    w = np.append(model.coef_.T.reshape(-1), model.intercept_ if intercept else [])
    objective = MultinomialLogistic(features, labels, l2=1 / (0.7 * 90), intercept=intercept)
    assert np.abs(objective.gradient(w)).max() < 1e-6
    assert np.array_equal(objective.predict(w), model.predict(features))
    assert_allclose(
        objective.value(w) - 0.5 / (0.7 * 90) * (w[:15] ** 2).sum(),
        log_loss(labels, model.predict_proba(features)),
        rtol=1e-10,
    )
    assert objective.metrics(w)["accuracy"] == accuracy_score(labels, model.predict(features))


def test_two_classes_multinomial_is_binary_at_the_difference(data):
    features, labels = data
    rng = np.random.default_rng(0)
    coefficients, intercept = rng.normal(size=(5, 2)), rng.normal(size=2)
    multinomial = MultinomialLogistic(features, labels)
    binary = Logistic(features, labels)
    w = np.append(coefficients.reshape(-1), intercept)
    difference = np.append(coefficients[:, 1] - coefficients[:, 0], intercept[1] - intercept[0])
    assert_allclose(multinomial.value(w), binary.value(difference), rtol=1e-13)
    assert_allclose(multinomial.gradient(w)[:10].reshape(5, 2)[:, 1], binary.gradient(difference)[:5], rtol=1e-11)


def test_labels_in_either_coding_and_dtype(data):
    features, labels = data
    w = np.random.default_rng(2).normal(size=6)
    zero_one = Logistic(features, labels)
    for coded in (2 * labels - 1, labels.astype(bool), labels.astype(float), (2 * labels - 1).astype(np.float32)):
        other = Logistic(features, coded)
        assert other.value(w) == zero_one.value(w)
        assert np.array_equal(other.gradient(w), zero_one.gradient(w))
    assert set(zero_one.predict(w)) == {0, 1}
    assert set(Logistic(features, 2 * labels - 1).predict(w)) == {-1, 1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("margin", [1e2, 1e4, 1e300])
def test_binary_extreme_margins(margin):
    features = np.array([[1.0], [1.0]])
    objective = Logistic(features, np.array([1, 0]), intercept=False)
    for sign in (1.0, -1.0):
        w = np.array([sign * margin])
        assert_allclose(objective.value(w), margin / 2, rtol=1e-15)
        assert_allclose(objective.gradient(w), [sign * 0.5], rtol=1e-15)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("margin", [1e2, 1e4, 1e300])
def test_multinomial_extreme_margins(margin):
    objective = MultinomialLogistic(np.array([[1.0], [1.0]]), np.array([0, 2]), num_classes=3, intercept=False)
    w = np.array([margin, 0.0, -margin])
    assert_allclose(objective.value(w), margin, rtol=1e-15)
    assert_allclose(objective.gradient(w), [0.5, 0.0, -0.5], rtol=1e-15, atol=1e-40)


@pytest.mark.parametrize("make", [Logistic, MultinomialLogistic])
def test_small_probabilities_are_not_rounded_away(make):
    objective = (
        make(np.array([[1.0]]), np.array([1]), intercept=False)
        if make is Logistic
        else make(np.array([[1.0]]), np.array([1]), num_classes=2, intercept=False)
    )
    w = np.array([40.0]) if make is Logistic else np.array([0.0, 40.0])
    assert_allclose(objective.gradient(w)[0], -np.exp(-40.0) if make is Logistic else np.exp(-40.0), rtol=1e-12)


def test_lipschitz_bounds_the_hessian_and_is_attained(data):
    features, labels = data
    augmented = np.column_stack([features, np.ones(60)])
    bound = augmented.T @ augmented / 60
    binary = Logistic(features, labels)
    # At w = 0 every sample has the largest curvature, 1/4.
    assert_allclose(binary.lipschitz("l2"), np.linalg.eigvalsh(bound)[-1] / 4, rtol=1e-12)
    assert_allclose(binary.lipschitz("l1"), bound.max() / 4, rtol=1e-12)
    multinomial = MultinomialLogistic(features, labels)
    assert_allclose(multinomial.lipschitz("l2"), np.linalg.eigvalsh(bound)[-1] / 2, rtol=1e-12)
    assert_allclose(multinomial.lipschitz("l1"), bound.max() / 4, rtol=1e-12)
    h, top = 1e-5, np.linalg.eigh(bound)[1][:, -1]
    direction = np.column_stack([top, -top]) / np.sqrt(2)
    direction = np.append(direction[:5].reshape(-1), direction[5])
    change = multinomial.gradient(h * direction) - multinomial.gradient(-h * direction)
    assert_allclose(np.linalg.norm(change) / (2 * h), multinomial.lipschitz("l2"), rtol=1e-7)


def test_a_client_with_one_class(data):
    features, _ = data
    objective = Logistic(features, np.zeros(60))
    assert_allclose(objective.gradient(np.zeros(6))[-1], 0.5, rtol=1e-14)
    multinomial = MultinomialLogistic(features, np.full(60, 2), num_classes=4)
    assert multinomial.layout["coefficients"].shape == (5, 4)
    assert_allclose(multinomial.gradient(np.zeros(24))[-4:], [0.25, 0.25, -0.75, 0.25])


@pytest.mark.parametrize("labels", [[0, 1, 2], [1, 2, 1], [0, -1, 1], [0.5, 1, 0], [np.nan, 0, 1]])
def test_binary_labels_that_are_refused(labels):
    with pytest.raises(ConfigurationError, match=r"expected 0 and 1, or -1 and \+1"):
        Logistic(np.ones((3, 2)), labels)


def test_text_labels_are_refused():
    with pytest.raises(ConfigurationError, match="cat"):
        Logistic(np.ones((2, 2)), ["cat", "dog"])
    with pytest.raises(ConfigurationError, match="cat"):
        MultinomialLogistic(np.ones((2, 2)), ["cat", "dog"])


@together(
    ("labels", "num_classes", "message"),
    [
        ([0, 2, 0], None, "hold 0, 2.*num_classes="),
        ([0, 0, 0], None, "num_classes="),
        ([1, 1, 1], None, "num_classes="),
        ([0, 1, 2], 2, "expected at least 3"),
        ([0, 0, 0], 1, "expected at least 2"),
        ([-1, 1, 0], 3, "integers"),
        ([0.5, 1, 0], 3, "integers"),
        ([np.nan, 1, 0], 3, "integers"),
        (range(3), None, None),
    ],
)
def test_multinomial_labels(labels, num_classes, message):
    if message is None:
        assert MultinomialLogistic(np.ones((3, 2)), labels, num_classes=num_classes).num_classes == 3
        return
    with pytest.raises(ConfigurationError, match=message):
        MultinomialLogistic(np.ones((3, 2)), labels, num_classes=num_classes)
