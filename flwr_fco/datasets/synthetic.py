"""Synthetic data: the regressions of Yuan, Zaheer and Reddi (2021, B.2.1 and B.3.1), and documents of Zipf's law."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import NON_NEGATIVE, checked
from flwr_fco.datasets.base import FederatedDataset, Samples, stream
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, TraceRegression

Variant = Literal["I", "II", "III", "IV"]
Precision = Literal["float64", "float32"]

_NUM_FEATURES = 1024
_ORDER = 32
#: Number of non-zero coefficients (or rank), clients and examples per client.
_LASSO = {"I": (512, 64, 128), "II": (64, 64, 128), "III": (8, 64, 128), "IV": (512, 256, 32)}
_LOW_RANK = {"I": (16, 64, 128), "II": (4, 64, 128), "III": (1, 64, 128), "IV": (16, 256, 32)}

# Purpose of a stream of random numbers: the first number of its key.
_TRUTH, _CLIENT, _HELD_OUT, _OWN_TRUTH = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class SyntheticRegression(FederatedDataset):
    """A linear model observed by clients whose features have different means.

    Client m draws a mean mu_m ~ N(0, spread^2 I) once, then x = mu_m + N(0, I) and
    y = <x, coefficients + u_m> + intercept + N(0, 1). The u_m ~ N(0, disagreement^2 I) are 0 in the paper.

    Parameters
    ----------
    coefficients : ndarray of float64, shape (d,) or (rows, columns)
        The true coefficients. A vector gives `LeastSquares` objectives, a matrix `TraceRegression`.
    num_clients : int
        Number of clients.
    examples_per_client : int
        Number of examples of each client.
    seed : int, default 0
        Seed of the problem.
    dtype : {"float64", "float32"}, default "float64"
        dtype of the features. The numbers are drawn in float64 and rounded, so both dtypes give the same data.
    spread : float, default 1.0
        Scale of the differences between the clients' feature means; 0 gives all clients the same distribution.
    disagreement : float, default 0.0
        Scale of the differences between the clients' own coefficients, on the non-zero coefficients only.

    Attributes
    ----------
    intercept : float
        The true intercept, drawn from N(0, 1) with the seed.

    Raises
    ------
    ConfigurationError
        If a number is not positive or the dtype is not one of these.

    Examples
    --------
    >>> import numpy as np
    >>> data = SyntheticRegression(np.array([1.0, 0.0, 0.0]), num_clients=4, examples_per_client=20)
    >>> data.client(2).features.shape
    (20, 3)
    >>> data.objective(2, scale=0.5).layout
    Layout(coefficients[3]*, intercept[1]; size 4, * regularized)
    """

    coefficients: NDArray[np.float64]
    num_clients: int
    examples_per_client: int
    seed: int = 0
    dtype: Precision = "float64"
    spread: float = 1.0
    disagreement: float = 0.0
    intercept: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", np.asarray(self.coefficients, dtype=np.float64))
        if self.coefficients.ndim not in (1, 2) or self.coefficients.size == 0:
            raise ConfigurationError(
                f"coefficients have shape {self.coefficients.shape}; expected a vector or a matrix that is not empty"
            )
        self._check_whole("num_clients", "examples_per_client")
        for name in ("spread", "disagreement"):
            checked(name, getattr(self, name), float, NON_NEGATIVE)
        checked("dtype", self.dtype, Precision)
        object.__setattr__(self, "intercept", float(stream(self.seed, _TRUTH).normal()))

    @property
    def truth(self) -> Vector:
        """The true coefficients and the true intercept as a flat vector of the objectives' layout."""
        return np.append(self.coefficients.reshape(-1), self.intercept)

    def client(self, index: int) -> Samples:
        self._check_index(index)
        rng = stream(self.seed, _CLIENT, index)
        mean = self.spread * rng.normal(size=self.coefficients.shape)
        return self._draw(index, mean, self.examples_per_client, rng)

    def held_out(self, index: int, num_examples: int | None = None) -> Samples:
        """Return additional examples from a client's distribution, for validation.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        num_examples : int, optional
            By default the client's number of training examples.

        Raises
        ------
        ConfigurationError
            If there is no client with this index.
        """
        self._check_index(index)
        mean = self.spread * stream(self.seed, _CLIENT, index).normal(size=self.coefficients.shape)
        count = self.examples_per_client if num_examples is None else num_examples
        return self._draw(index, mean, count, stream(self.seed, _HELD_OUT, index))

    def build_objective(self, examples: Samples, **options: Any) -> LeastSquares | TraceRegression:
        """Return `LeastSquares` for vectors, `TraceRegression` for matrices."""
        make = LeastSquares if self.coefficients.ndim == 1 else TraceRegression
        return make(examples.features, examples.targets, **options)

    def _draw(self, index: int, mean: NDArray[np.float64], count: int, rng: np.random.Generator) -> Samples:
        features = rng.normal(size=(count, *mean.shape))
        features += mean
        signal = features.reshape(count, -1) @ self._coefficients_of(index)
        targets = signal + self.intercept + rng.normal(size=count)
        return Samples(features.astype(self.dtype, copy=False), targets)

    def _coefficients_of(self, index: int) -> NDArray[np.float64]:
        """Return a client's own coefficients, as a vector."""
        truth = self.coefficients.reshape(-1)
        if self.disagreement == 0.0:
            return truth
        effect = self.disagreement * stream(self.seed, _OWN_TRUTH, index).normal(size=truth.size)
        return np.where(truth != 0.0, truth + effect, 0.0)


@dataclass(frozen=True, eq=False)
class EqualRegression(SyntheticRegression):
    """The same regression with the first client's examples on every client: the homogeneous setting of the theory.

    Parameters
    ----------
    coefficients, num_clients, examples_per_client, seed, dtype, spread, disagreement
        As for :class:`SyntheticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> data = EqualRegression(np.array([1.0, 0.0]), num_clients=3, examples_per_client=5)
    >>> np.array_equal(data.client(0).features, data.client(2).features)
    True
    """

    def client(self, index: int) -> Samples:
        """Return the training examples of the first client, whatever the index."""
        self._check_index(index)
        return super().client(0)


def lasso(variant: Variant = "I", seed: int = 0, *, dtype: Precision = "float64") -> SyntheticRegression:
    """Return a data set of the federated lasso: 1,024 features, the first few true coefficients 1, all others 0.

    Parameters
    ----------
    variant : {"I", "II", "III", "IV"}, default "I"
        512, 64, 8 and 512 ones; 64 clients with 128 examples each, in IV 256 clients with 32 examples each.
    seed : int, default 0
        Seed of the problem.
    dtype : {"float64", "float32"}, default "float64"
        dtype of the features.

    Raises
    ------
    ConfigurationError
        For another variant.

    Examples
    --------
    >>> data = lasso("III")
    >>> data.num_clients, data.client(5).features.shape, int(data.coefficients.sum())
    (64, (128, 1024), 8)
    """
    ones, num_clients, examples = _choose(_LASSO, variant)
    coefficients = np.zeros(_NUM_FEATURES)
    coefficients[:ones] = 1.0
    return SyntheticRegression(coefficients, num_clients, examples, seed, dtype)


def low_rank(variant: Variant = "I", seed: int = 0, *, dtype: Precision = "float64") -> SyntheticRegression:
    """Return a data set of federated low-rank matrix estimation: the 32 x 32 truth is diagonal with r ones.

    Parameters
    ----------
    variant : {"I", "II", "III", "IV"}, default "I"
        Rank 16, 4, 1 and 16; 64 clients with 128 examples each, in IV 256 clients with 32 examples each.
    seed : int, default 0
        Seed of the problem.
    dtype : {"float64", "float32"}, default "float64"
        dtype of the features.

    Raises
    ------
    ConfigurationError
        For another variant.

    Examples
    --------
    >>> data = low_rank("II")
    >>> data.num_clients, data.client(5).features.shape, int(data.coefficients.trace())
    (64, (128, 32, 32), 4)
    """
    rank, num_clients, examples = _choose(_LOW_RANK, variant)
    coefficients = np.diag((np.arange(_ORDER) < rank).astype(np.float64))
    return SyntheticRegression(coefficients, num_clients, examples, seed, dtype)


def _choose(table: dict[str, tuple[int, int, int]], variant: str) -> tuple[int, int, int]:
    if variant not in table:
        raise ConfigurationError(
            f"variant={variant!r}; expected one of {', '.join(map(repr, table))}. "
            "SyntheticRegression makes data of any size."
        )
    return table[variant]


#: Words are drawn with probabilities 1 / (rank + offset)^exponent: Mandelbrot's form of Zipf's law, as in English.
_OFFSET, _EXPONENT = 2.7, 1.05
_WORDS, _TRUE_WORDS, _TEST = 0, 1, 2


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
        self._check_whole("num_clients", "num_documents", "num_features", "num_words", "informative")
        if self.num_features < self.informative + 50:
            raise ConfigurationError(
                f"num_features={self.num_features}; expected at least informative + 50 = {self.informative + 50}"
            )

    @cached_property
    def _chances(self) -> Vector:
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
        ranks = np.searchsorted(self._chances, rng.random((count, length)), side="right")
        ranks = np.minimum(ranks, d - 1)
        # A client's own words are rare ones only, so that all clients share the stop words.
        of_client, rare = (np.arange(length) % 3 == 0)[None, :], ranks >= min(1000, d // 2)
        steps = np.broadcast_to(np.asarray(owner), count)[:, None] * 7919
        first = min(1000, d // 2)
        ranks = np.where(of_client & rare, first + (ranks - first + steps) % (d - first), ranks)
        documents = np.repeat(np.arange(count), length)
        counts = csr_array((np.ones(count * length), (documents, ranks.reshape(-1))), shape=(count, d))
        counts.sum_duplicates()
        rank = counts.indices.astype(np.float64)
        # The share of documents with a word is about its probability times the document length, at most 1.
        chance = (rank + 1.0 + _OFFSET) ** -_EXPONENT / ((1.0 + _OFFSET) ** -_EXPONENT / self._chances[0])
        weights = (1.0 + np.log(counts.data)) * (1.0 - np.log(-np.expm1(-length * chance)))
        features = csr_array((weights, self._columns[counts.indices], counts.indptr.astype(np.int32)), shape=(count, d))
        features.sort_indices()
        norms = np.sqrt(np.add.reduceat(features.data**2, features.indptr[:-1]))
        features.data /= np.repeat(norms, np.diff(features.indptr))
        scores = features @ self.coefficients
        labels = (rng.random(count) < 1.0 / (1.0 + np.exp(-scores))).astype(np.int64)
        return Samples(features, labels)
