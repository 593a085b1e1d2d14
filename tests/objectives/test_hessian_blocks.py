"""A block of the Hessian against the whole one, from SciPy's differences of the gradient."""

import numpy as np
import pytest
from kinks import Distance
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, TraceRegression

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(40, 6)) * (RNG.random((40, 6)) < 0.7)
TARGETS, SIGNS, CLASSES = RNG.normal(size=40), RNG.integers(0, 2, 40), RNG.integers(0, 3, 40)
OBJECTIVES = {
    "least squares": lambda X: LeastSquares(X, TARGETS, scale=0.7, l2=0.2),
    "logistic": lambda X: Logistic(X, SIGNS, l2=0.1),
    "without an intercept": lambda X: Logistic(X, SIGNS, intercept=False),
    "one class": lambda X: Logistic(X, np.ones(40)),
    "multinomial": lambda X: MultinomialLogistic(X, CLASSES, num_classes=4, l2=0.1),
}


def unpacked(block, k):
    whole = np.zeros((k, k))
    whole[np.triu_indices(k)] = block
    return np.triu(whole) + np.triu(whole, 1).T


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("form", [np.asarray, csr_array, lambda X: X.astype(np.float32)], ids=["dense", "csr", "f32"])
def test_the_block_is_that_of_the_hessian(name, form):
    objective = OBJECTIVES[name](form(FEATURES))
    w = 0.3 * np.random.default_rng(1).normal(size=objective.layout.size)
    hessian = approx_fprime(w, objective.gradient, 1e-6)
    for on in (np.arange(w.size), np.arange(0, w.size, 3), np.array([w.size - 1]), np.zeros(0, dtype=np.int64)):
        block = unpacked(objective.hessian_block(w, on), on.size)
        assert_allclose(block, hessian[np.ix_(on, on)], atol=1e-5)
        assert not on.size or np.linalg.eigvalsh(block)[0] >= -1e-12


def test_a_trace_regression_has_one():
    objective = TraceRegression(FEATURES.reshape(40, 2, 3), TARGETS)
    plain = LeastSquares(FEATURES, TARGETS)
    on = np.array([0, 4, 6])
    assert_allclose(objective.hessian_block(np.ones(7), on), plain.hessian_block(np.zeros(7), on), rtol=1e-14)


def test_what_has_no_second_derivative_says_so():
    with pytest.raises(ConfigurationError, match=r"Distance does not know its Hessian.*FedDAGT"):
        Distance(np.ones(6)).hessian_block(np.zeros(6), np.arange(2))
