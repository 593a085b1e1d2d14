"""Documents of two classes whose words follow Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, Samples
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Logistic, Vector
from reproduction.data.samples import check_whole, stream

#: Words are drawn with probabilities 1 / (rank + offset)^exponent: Mandelbrot's form of Zipf's law, as in English.
_OFFSET = 2.7
_EXPONENT = 1.05
_WORDS = 0
_TRUE_WORDS = 1
_TEST = 2


@dataclass(frozen=True, eq=False)
class ZipfDocuments(FederatedDataset):
    """Documents of two classes whose words follow Zipf's law, with TF-IDF features of unit length.

    A document has `num_words` words drawn with probabilities ~ (rank + 2.7)^-1.05: two thirds from the whole vocabulary
    and one third from its client's words, whose ranks are rotated by a client-specific step. So clients have different
    rare words and the same frequent ones. A feature is (1 + log count) idf, scaled so that each document has norm 1.
    Labels are drawn from a logistic model whose `informative` non-zero coefficients belong to words of medium
    frequency. The columns of the words are in random order.

    Parameters
    ----------
    num_clients : int, default 100
        Number of clients.
    num_documents : int, default 100
        Number of documents per client.
    num_features : int, default 1000000
        Size of the vocabulary.
    num_words : int, default 150
        Number of words in a document, of which about two thirds are distinct.
    informative : int, default 300
        Number of words that the label depends on.
    seed : int, default 0
        Seed of the problem.

    Raises
    ------
    ConfigurationError
        If a number is not a whole number >= 1, or there are fewer features than informative words.

    Examples
    --------
    >>> data = ZipfDocuments(num_clients=3, num_documents=5, num_features=10_000)
    >>> features, labels = data.client(1)
    >>> features.shape, labels.shape, float(round((features @ features.T).trace(), 9))
    ((5, 10000), (5,), 5.0)
    """

    num_clients: int = 100
    num_documents: int = 100
    num_features: int = 1_000_000
    num_words: int = 150
    informative: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "num_clients", "num_documents", "num_features", "num_words", "informative")
        if self.num_features < self.informative + 50:
            raise ConfigurationError(
                f"num_features={self.num_features}; expected at least informative + 50 = {self.informative + 50}"
            )

    @cached_property
    def _probabilities(self) -> Vector:
        """The cumulative probability of each rank."""
        weights = (np.arange(self.num_features) + 1.0 + _OFFSET) ** -_EXPONENT
        return np.asarray(np.cumsum(weights / weights.sum()))

    @cached_property
    def _columns(self) -> NDArray[np.int32]:
        """The column of each rank."""
        return stream(self.seed, _WORDS).permutation(self.num_features).astype(np.int32)

    @cached_property
    def coefficients(self) -> Vector:
        """The true coefficients, in column order; non-zero for the informative words."""
        truth = np.zeros(self.num_features)
        size = 12.0 * stream(self.seed, _TRUE_WORDS).choice([-1.0, 1.0], self.informative)
        truth[self._columns[50 : 50 + self.informative]] = size
        return truth

    def client(self, index: int) -> Samples:
        """Return the documents of a client: features as a csr_array, labels 0 and 1."""
        self._check_index(index)
        return self._documents(self.num_documents, index, stream(self.seed, _TEST + 1, index))

    def test_examples(self, count: int = 1000) -> Samples:
        """Return `count` new documents that belong to no client, drawn from each client's distribution in turn."""
        rng = stream(self.seed, _TEST)
        owners = np.arange(count) % self.num_clients
        return self._documents(count, owners, rng)

    def build_objective(self, examples: Samples, **options: Any) -> Logistic:
        """Return :class:`flwr_fco.objectives.Logistic` on some documents, by default without an intercept."""
        return Logistic(examples.features, examples.targets, **{"intercept": False, **options})

    def test_objective(self, **options: Any) -> Logistic:
        """Return the objective on the test documents, for its metrics.

        Parameters
        ----------
        **options
            As for :meth:`build_objective`.
        """
        return self.build_objective(self.test_examples(), **options)

    def _documents(self, count: int, owner: Any, rng: np.random.Generator) -> Samples:
        from scipy.sparse import csr_array

        d, length = self.num_features, self.num_words
        ranks = np.searchsorted(self._probabilities, rng.random((count, length)), side="right")
        ranks = np.minimum(ranks, d - 1)
        # A client's own words are rare ones only, so that all clients share the stop words.
        of_client = (np.arange(length) % 3 == 0)[None, :]
        rare = ranks >= min(1000, d // 2)
        steps = np.broadcast_to(np.asarray(owner), count)[:, None] * 7919
        first = min(1000, d // 2)
        ranks = np.where(of_client & rare, first + (ranks - first + steps) % (d - first), ranks)
        documents = np.repeat(np.arange(count), length)
        counts = csr_array((np.ones(count * length), (documents, ranks.reshape(-1))), shape=(count, d))
        counts.sum_duplicates()
        rank = counts.indices.astype(np.float64)
        # The share of documents with a word is about its probability times the document length, at most 1.
        probability = (rank + 1.0 + _OFFSET) ** -_EXPONENT / ((1.0 + _OFFSET) ** -_EXPONENT / self._probabilities[0])
        weights = (1.0 + np.log(counts.data)) * (1.0 - np.log(-np.expm1(-length * probability)))
        features = csr_array((weights, self._columns[counts.indices], counts.indptr.astype(np.int32)), shape=(count, d))
        features.sort_indices()
        norms = np.sqrt(np.add.reduceat(features.data**2, features.indptr[:-1]))
        features.data /= np.repeat(norms, np.diff(features.indptr))
        scores = features @ self.coefficients
        labels = (rng.random(count) < 1.0 / (1.0 + np.exp(-scores))).astype(np.int64)
        return Samples(features, labels)
