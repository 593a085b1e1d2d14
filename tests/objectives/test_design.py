"""The design matrix against plain NumPy, in both precisions, with and without intercepts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.sparse import csr_array
from sklearn.datasets import load_digits

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.objectives import design as module
from flwr_fco.objectives.design import Design

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((150, 7))
ROWS = np.array([3, 149, 3, 0])


def flat(num_outputs, intercept):
    return RNG.standard_normal((7 + intercept) * num_outputs)


def dense(w, num_outputs):
    """Return W and b as a matrix and a row."""
    coefficients = w[: 7 * num_outputs].reshape(7, num_outputs)
    return coefficients, w[7 * num_outputs :] if w.size > coefficients.size else np.zeros(num_outputs)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", [None, ROWS], ids=["all", "some"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_products_are_numpys(dtype, rows, intercept, num_outputs, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1)
    matrix = MATRIX.astype(dtype)
    design, chosen = Design.of(matrix), (matrix if rows is None else matrix[rows]).astype(np.float64)
    w = flat(num_outputs, intercept)
    coefficients, offsets = dense(w, num_outputs)
    scores = design.predict(w, rows, num_outputs)
    assert scores.shape == ((len(chosen),) if num_outputs == 1 else (len(chosen), num_outputs))
    assert_allclose(scores.reshape(len(chosen), -1), chosen @ coefficients + offsets, rtol=1e-12)
    start = flat(num_outputs, intercept)
    out = start.copy()
    design.add_rows(scores, out, rows)
    expected = chosen.T @ scores.reshape(len(chosen), -1)
    assert_allclose((out - start)[: 7 * num_outputs], expected.reshape(-1), rtol=1e-9, atol=1e-11)
    assert_allclose((out - start)[7 * num_outputs :], scores.sum(axis=0) if intercept else [], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_grams_and_squares_are_numpys(dtype, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    design, wide = Design.of(MATRIX.astype(dtype)), MATRIX.astype(dtype).astype(np.float64)
    for intercept in (False, True):
        full = np.column_stack([wide, np.ones(150)]) if intercept else wide
        assert_allclose(design.gram(intercept), full.T @ full, rtol=1e-12, atol=1e-12)
        assert_allclose(design.gram_of_rows(intercept), full @ full.T, rtol=1e-12, atol=1e-12)
    assert_allclose(design.mean_squares(), (wide**2).mean(axis=0), rtol=1e-12)


def test_the_support_are_the_columns_that_the_rows_use():
    matrix = np.diag([1.0, 0.0, 2.0, 3.0])
    design = Design.of(matrix)
    assert design.support().tolist() == [0, 2, 3]
    assert design.support(np.array([2, 1])).tolist() == [2]


@pytest.mark.parametrize("bad", [[0, 150], [-1]])
def test_rows_outside_the_matrix_are_refused(bad):
    design = Design.of(MATRIX)
    for ask in (
        lambda: design.predict(np.zeros(7), np.array(bad)),
        lambda: design.predict(np.zeros(21), np.array(bad), 3),
        lambda: design.add_rows(np.zeros(len(bad)), np.zeros(7), np.array(bad)),
        lambda: LeastSquares(MATRIX, np.zeros(150)).value_and_gradient(np.zeros(8), np.array(bad)),
    ):
        with pytest.raises(IndexError, match="row number"):
            ask()


def test_blocks_of_float64_are_views():
    design = Design.of(MATRIX)
    parts = list(design.blocks(size=64))
    assert [part for part, _ in parts] == [slice(0, 64), slice(64, 128), slice(128, 150)]
    assert all(np.shares_memory(block, MATRIX) for _, block in parts)


def test_rows_without_entries_have_no_columns_left():
    design = Design.of(csr_array((3, 5)))
    objective = LeastSquares(csr_array((3, 5)), np.full(3, 2.0), scale=1.0).with_features(design.compact)
    assert design.compact.shape == (3, 0)
    value, gradient = objective.value_and_gradient(np.ones(1))
    assert (value, gradient.tolist()) == (1.0, [-2.0])


@pytest.mark.parametrize(("size", "expected"), [(None, 74), (40, 40), (4096, 150)])
def test_a_prediction_takes_as_many_rows_at_a_time_as_it_says(size, expected, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 74 * 8 * 7)
    blocks, taken = Design.blocks, []

    def recorded(self, *arguments):
        for part, block in blocks(self, *arguments):
            taken.append(len(block))
            yield part, block

    monkeypatch.setattr(Design, "blocks", recorded)
    Design.of(MATRIX).predict(flat(3, True), num_outputs=3, size=size)
    assert (max(taken), sum(taken)) == (expected, 150)


def test_linear_data_say_what_the_objective_is():
    targets, labels = RNG.standard_normal(150), RNG.integers(0, 2, 150)
    data = LeastSquares(MATRIX, targets, scale=0.5, l2=0.1).linear_data()
    assert (data.link, data.intercept, data.l2, data.factor, data.num_outputs) == ("identity", True, 0.1, 1.0, 1)
    assert np.array_equal(data.targets, targets)
    data = Logistic(MATRIX, labels, intercept=False).linear_data()
    assert (data.link, data.intercept, data.factor) == ("logistic", False, 1.0)
    assert np.array_equal(data.targets, 2.0 * labels - 1.0)
    data = MultinomialLogistic(MATRIX, labels, num_classes=4).linear_data()
    assert (data.link, data.num_outputs) == ("softmax", 4)
    assert np.array_equal(data.targets, labels)


def _eigenvalues(objective):
    hessian = np.array(
        [objective.hessian_product(np.zeros(objective.layout.size), row) for row in np.eye(objective.layout.size)]
    )
    assert_allclose(hessian, hessian.T, atol=1e-12)
    return np.linalg.eigvalsh(hessian)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (7, 7), (1, 5), (5, 1)])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_strong_convexity_is_the_smallest_eigenvalue(shape, intercept, l2, monkeypatch):
    rng = np.random.default_rng(1)
    objective = LeastSquares(
        rng.standard_normal(shape) + 0.5, rng.standard_normal(shape[0]), intercept=intercept, l2=l2
    )
    smallest = _eigenvalues(objective)[0]
    if smallest < 1e-12:
        assert objective.strong_convexity() == 0.0
    else:
        assert_allclose(objective.strong_convexity(), smallest, rtol=1e-9)
    # Too large for a Gram matrix: what is due to l2 alone, never more than the truth.
    monkeypatch.setattr("flwr_fco.objectives._linear.LARGEST_GRAM", 0)
    bound = objective.strong_convexity()
    assert 0.0 <= bound <= smallest * (1.0 + 1e-9) + 1e-12
    assert (bound > 0.0) == (l2 > 0.0)


@pytest.mark.parametrize("kind", [Logistic, MultinomialLogistic])
def test_losses_that_flatten_are_as_convex_as_their_l2_term(kind):
    labels = RNG.integers(0, 2, 150)
    assert kind(MATRIX, labels, intercept=False, l2=0.3).strong_convexity() == 0.3
    assert kind(MATRIX, labels, l2=0.3).strong_convexity() == 0.0
    far = kind(MATRIX, labels, intercept=False, l2=0.3)
    w, v = np.full(far.layout.size, 1e3) * RNG.standard_normal(far.layout.size), np.eye(far.layout.size)[0]
    assert v @ far.hessian_product(w, v) == pytest.approx(0.3, abs=1e-2)


@pytest.mark.parametrize("kind", [Logistic, MultinomialLogistic])
def test_values_do_not_overflow_far_away(kind):
    objective = kind(MATRIX, RNG.integers(0, 2, 150))
    w = 1e5 * RNG.standard_normal(objective.layout.size)
    value, gradient = objective.value_and_gradient(w)
    assert_allclose(value, objective.value(w), rtol=1e-12)
    assert_allclose(gradient, objective.gradient(w), rtol=1e-9, atol=1e-12)


def test_a_line_keeps_its_start_when_the_vectors_change():
    objective = Logistic(MATRIX, RNG.integers(0, 2, 150), l2=0.1)
    w, direction = RNG.standard_normal((2, 8))
    line = objective.along(w, direction)
    expected = objective.value(w + 0.5 * direction)
    w *= 0.0
    direction *= 0.0
    assert line(0.5)[0] == pytest.approx(expected, rel=1e-13)


def test_a_line_search_does_not_touch_the_features(monkeypatch):
    objective = MultinomialLogistic(MATRIX, RNG.integers(0, 3, 150), l2=0.1)
    line = objective.along(*RNG.standard_normal((2, 24)))
    objective.design.matrix = None
    _, slope = line(0.5)
    h = 1e-6
    assert slope == pytest.approx((line(0.5 + h)[0] - line(0.5 - h)[0]) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("shape", [(5, 2), (2, 5)])
def test_features_whose_products_overflow_are_named(shape):
    objective = LeastSquares(np.full(shape, 1e300), np.zeros(shape[0]))
    with pytest.raises(ConfigurationError, match=r"features of up to 1e\+300 are too large"):
        objective.lipschitz("l2")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rows", [20, 300])
def test_deviations_are_numpys_but_of_columns_that_have_no_unit(rows, dtype):
    rng = np.random.default_rng(0)
    matrix = rng.uniform(-1.0, 1.0, (rows, 8)) * 10.0 ** np.arange(-3, 5) + 1e3
    # Some zeros; sorted; a few rows that make the deviation; few values, of which one is rare; indicators; a constant.
    matrix[: rows // 3, 1] = 0.0
    matrix[:, 2] = np.sort(np.arange(rows) * 6 // rows)
    matrix[0, 3] = matrix[1, 3] = 1e9
    matrix[:, 4] = rng.permutation(rows) % 5 + 1e3 * (np.arange(rows) == 1) * (rows > 64)
    matrix[:, 5] = rng.permutation(rows) % 2
    matrix[:, 6] = np.where(np.arange(rows) % 2, 5.0, -3.0)
    matrix[:, 7] = 4.0
    matrix = matrix.astype(dtype)
    expected = matrix.astype(np.float64).std(axis=0)
    expected[3:] = 0.0
    np.testing.assert_array_equal(Design.of(matrix).deviations(), expected)
    for design in (Design.of(matrix), Design.of(csr_array(matrix))):
        np.testing.assert_allclose(design.deviations(), expected, rtol=1e-9)
        assert not type(design)(design.matrix[:19]).deviations().any()


@pytest.mark.parametrize("rows", [20, 30, 100])
def test_no_deviations_of_one_population_differ_five_times(rows):
    """However heavy its tails: not once among 17 sites in a thousand columns, or with the heaviest in ten of them."""
    rng = np.random.default_rng(rows)
    tails = {
        "normal": (rng.standard_normal, 0),
        "exponential": (rng.standard_exponential, 1),
        "log-normal": (lambda shape: rng.lognormal(0.0, 1.0, shape), 5),
        "Cauchy": (rng.standard_cauchy, 5),
        "Pareto": (lambda shape: rng.pareto(1.5, shape), 12),
    }
    for draw, most in tails.values():
        sites = np.array([Design.of(draw((rows, 1000))).deviations() for _ in range(17)])
        low = np.where(sites > 0.0, sites, np.inf).min(axis=0)
        assert (sites.max(axis=0) > 5.0 * low).sum() <= most
    # What is wrong is found: most columns of light tails have a deviation.
    assert (Design.of(rng.uniform(size=(rows, 1000))).deviations() > 0.0).mean() > 0.9
    assert (Design.of(rng.normal(size=(rows, 1000))).deviations() > 0.0).mean() > 0.6


@pytest.mark.parametrize("rows", [10, 15, 20, 30])
def test_pixels_of_sites_of_one_class_have_no_other_units(rows):
    X, y = load_digits(return_X_y=True)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        order = np.lexsort((rng.random(y.size), y))
        starts = rng.choice(y.size // rows, 12, replace=False) * rows
        sites = np.array([Design.of(X[order[start : start + rows]]).deviations() for start in starts])
        low = np.where(sites > 0.0, sites, np.inf).min(axis=0)
        assert not (sites.max(axis=0) > 5.0 * low).any()
