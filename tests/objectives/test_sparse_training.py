"""Training on sparse features against training on the same features dense: every strategy, and the estimators."""

import numpy as np
from numpy.testing import assert_allclose
from scipy import sparse
from sparse_rows import rows

from flwr_fco.sklearn import FederatedLasso, FederatedLogisticRegression


def numbers(seed=0, n=25):
    return np.random.default_rng(seed).standard_normal(n)


def test_the_estimators_agree_with_dense_ones():
    X, y = rows(80, 12), numbers(5, 80)
    for make, target in ((FederatedLasso(0.005), y), (FederatedLogisticRegression(C=2.0), y > 0)):
        dense = make.fit(X.toarray(), target)
        expected = dense.coef_.copy(), np.copy(dense.intercept_)
        for given in (X, sparse.csc_matrix(X), [X[:30], X[30:].toarray()]):
            parts = target if sparse.issparse(given) else [target[:30], target[30:]]
            found = make.fit(given, parts)
            assert_allclose(found.coef_, expected[0], atol=1e-6)
            assert_allclose(found.intercept_, expected[1], atol=1e-6)
        assert_allclose(found.predict(X), found.predict(X.toarray()), rtol=1e-12)
