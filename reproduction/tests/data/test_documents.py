"""Documents: Zipf's words, unit rows, one client at a time."""

import numpy as np
from numpy.testing import assert_allclose

from reproduction.data.documents import ZipfDocuments
from reproduction.data.samples import together

DATA = ZipfDocuments(num_clients=8, num_documents=200, num_features=20_000)


def test_rows_are_sparse_sorted_and_of_norm_one():
    features, labels = DATA.client(3)
    assert features.shape == (200, 20_000)
    assert features.has_canonical_format
    assert 60 < features.nnz / 200 < 150
    assert_allclose(np.sqrt(features.multiply(features).sum(axis=1)), 1.0)
    assert set(labels) == {0, 1}


def test_words_follow_zipfs_law():
    """The share of documents with the word of rank r, on logarithmic scales: a line of slope about -1."""
    features = together(DATA.client(index) for index in range(8)).features
    share = np.sort(np.diff(features.tocsc().indptr))[::-1] / features.shape[0]
    ranks = np.array([30, 100, 300, 1000])
    slope = np.polyfit(np.log(ranks), np.log(share[ranks]), 1)[0]
    assert -1.25 < slope < -0.75


def test_the_truth_explains_the_labels_of_documents_that_nobody_has():
    features, labels = DATA.test_examples(2000)
    correct = float(np.mean((features @ DATA.coefficients > 0) == labels))
    assert correct > 0.7
    assert np.count_nonzero(DATA.coefficients) == DATA.informative
