"""Three data sets to try the methods with, and two ways to split examples over clients.

Digits and breast cancer come with scikit-learn, which is imported by the functions that need it: that takes as long as
the rest of the package. Flower Datasets has many more, from Hugging Face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.validation import AT_LEAST_ONE, NATURAL, PART, POSITIVE, Choice, checked
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective

__all__ = ["FederatedDataset", "PartitionedClassification", "Samples", "SyntheticRegression", "breast_cancer"]
__all__ += ["digits", "dirichlet_partition", "iid_partition", "lasso"]

_TRIES = 1000


class Samples(NamedTuple):
    """Features and targets (or labels), one row per example, as an objective's first two arguments.

    Examples
    --------
    >>> features, targets = Samples(np.eye(2), np.array([1.0, -1.0]))
    >>> targets.tolist()
    [1.0, -1.0]
    """

    #: An array, or a sparse matrix by rows.
    features: Any
    targets: NDArray[Any]


class FederatedDataset(ABC):
    """Data split over clients.

    :meth:`client` generates one client's data without generating any other client's, independently of the order of
    calls, so each SuperNode can load its own partition.

    Attributes
    ----------
    num_clients : int
        Number of clients.

    Examples
    --------
    >>> data = digits(num_clients=5)
    >>> data.num_clients, data.client(4).features.shape[1], len(data.objectives())
    (5, 64, 5)
    """

    num_clients: int

    @abstractmethod
    def client(self, index: int) -> Samples:
        """Return the training examples of a client.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.

        Raises
        ------
        ConfigurationError
            If there is no client with this index.
        """

    @abstractmethod
    def build_objective(self, examples: Samples, **options: Any) -> Objective:
        """Return this data set's objective on some examples.

        Parameters
        ----------
        examples : Samples
            Examples of a client, of a test split, ...
        **options
            Keyword arguments of the objective's class.
        """

    def objective(self, index: int, **options: Any) -> Objective:
        """Return the objective of a client.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        **options
            Keyword arguments of the objective's class.

        Raises
        ------
        ConfigurationError
            If there is no client with this index, or an option is out of range.
        """
        return self.build_objective(self.client(index), **options)

    def objectives(self, **options: Any) -> list[Objective]:
        """Return the objectives of all clients, which only an experiment has in one place.

        Parameters
        ----------
        **options
            Keyword arguments of the objective's class.
        """
        return [self.objective(index, **options) for index in range(self.num_clients)]

    def _check_index(self, index: int) -> int:
        advice = f"0 .. {self.num_clients - 1}; give the data set as many clients as the federation has nodes"
        return int(checked("index", index, int, {"range": (range(self.num_clients).__contains__, advice)}))


def iid_partition(num_examples: int, num_clients: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return a random split into parts whose sizes differ by at most 1.

    Parameters
    ----------
    num_examples : int
        Number of examples.
    num_clients : int
        Number of clients.
    rng : numpy.random.Generator
        Draws the partition.

    Returns
    -------
    list of ndarray of int64
        Row numbers of each client, ascending; each row occurs once.

    Raises
    ------
    ConfigurationError
        If there are more clients than examples.

    Examples
    --------
    >>> import numpy as np
    >>> [part.size for part in iid_partition(10, 3, np.random.default_rng(0))]
    [4, 3, 3]
    """
    _check_counts(num_examples, num_clients, 1, rng)
    return [np.sort(part) for part in np.array_split(rng.permutation(num_examples), num_clients)]


def dirichlet_partition(
    labels: ArrayLike, num_clients: int, alpha: float, rng: np.random.Generator, min_size: int = 10
) -> list[NDArray[np.int64]]:
    """Return a split that distributes each class over the clients by a draw from Dirichlet(alpha, ..., alpha).

    Parameters
    ----------
    labels : array-like, shape (n,)
        The examples' labels.
    num_clients : int
        Number of clients.
    alpha : float
        Concentration. If it is small, each client has few classes, in unequal numbers; if it is large, all clients are
        similar.
    rng : numpy.random.Generator
        The split is redrawn from it until every client has `min_size` examples.
    min_size : int, default 10
        Minimum number of examples per client.

    Returns
    -------
    list of ndarray of int64
        Row numbers of each client, ascending; each row occurs once.

    Raises
    ------
    ConfigurationError
        If alpha is not positive, there is not one label of each example, or `min_size` was not reached in 1,000 draws.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat([0, 1, 2], 40)
    >>> parts = dirichlet_partition(labels, 4, 0.5, np.random.default_rng(0))
    >>> sum(part.size for part in parts), min(part.size for part in parts) >= 10
    (120, True)
    """
    array = np.asarray(labels)
    if array.shape not in ((array.size,), (array.size, 1)):
        raise ConfigurationError(f"labels has the shape {array.shape}; expected the label of each example")
    _check_counts(array.size, num_clients, min_size, rng)
    checked("alpha", alpha, float, POSITIVE)
    # NaN is a label like others, which is not equal to itself.
    codes = np.unique(array, return_inverse=True)[1]
    classes = [np.flatnonzero(codes == code) for code in np.unique(codes)]
    for _ in range(_TRIES):
        drawn = [(np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))[:-1], rng.permutation(own)) for own in classes]
        pieces = [np.split(rows, np.rint(ends * rows.size).astype(np.int64)) for ends, rows in drawn]
        parts = [np.sort(np.concatenate(part)) for part in zip(*pieces, strict=True)]
        if min(part.size for part in parts) >= min_size:
            return parts
    prefix = f"{_TRIES} draws of {array.size} examples over {num_clients} clients with {alpha=} all left some client"
    raise ConfigurationError(f"{prefix} with fewer than {min_size=}. Raise alpha, or lower num_clients or min_size.")


def _check_counts(num_examples: int, num_clients: int, min_size: int, rng: np.random.Generator) -> None:
    checked("rng", rng, np.random.Generator)
    least = checked("num_clients", num_clients, int, AT_LEAST_ONE) * checked("min_size", min_size, int)
    if max(least, 1) > checked("num_examples", num_examples, int):
        prefix = f"{num_clients=} with at least {min_size} of {num_examples} examples each"
        raise ConfigurationError(f"{prefix}; expected 1 or more, at most {num_examples // max(min_size, 1)}")


@dataclass(frozen=True, eq=False)
class PartitionedClassification(FederatedDataset):
    """Labelled examples, a split of the training part over clients, and a test part.

    Parameters
    ----------
    train : Samples
        Labels are integers 0 .. num_classes - 1.
    test : Samples
        The test split.
    partition : tuple of ndarray of int64
        Rows of `train`, one array per client.
    num_classes : int
        Number of classes in the whole federation; two give `Logistic` objectives, more `MultinomialLogistic`.

    Examples
    --------
    >>> data = digits(num_clients=5)
    >>> data.num_clients, data.train.features.shape, data.test.features.shape
    (5, (1347, 64), (450, 64))
    >>> data.objective(0).layout
    Layout(coefficients[64, 10]*, intercept[10]; size 650, * regularized)
    """

    train: Samples = field(repr=False)
    test: Samples = field(repr=False)
    partition: tuple[NDArray[np.int64], ...] = field(repr=False)
    num_classes: int

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Number of clients."""
        return len(self.partition)

    def client(self, index: int) -> Samples:
        rows = self.partition[self._check_index(index)]
        return Samples._make(own[rows] for own in self.train)

    def build_objective(self, examples: Samples, **options: Any) -> Logistic | MultinomialLogistic:
        """Return `Logistic` for two classes, otherwise `MultinomialLogistic` with all classes of the federation."""
        if self.num_classes == 2:
            return Logistic(examples.features, examples.targets, **options)
        return MultinomialLogistic(examples.features, examples.targets, num_classes=self.num_classes, **options)

    def test_examples(self) -> Samples:
        """Return the test split, in the form that objectives accept."""
        return self.test

    def test_objective(self, **options: Any) -> Logistic | MultinomialLogistic:
        """Return the objective on the test split, for its metrics.

        Parameters
        ----------
        **options
            Keyword arguments of the objective's class.
        """
        return self.build_objective(self.test_examples(), **options)


def digits(
    num_clients: int = 10, alpha: float | None = 0.3, train_fraction: float = 0.75, seed: int = 0, *, min_size: int = 10
) -> PartitionedClassification:
    """Return scikit-learn's handwritten digits (1,797 images, 8 x 8 pixels in [0, 1], 10 classes), split over clients.

    Parameters
    ----------
    num_clients : int, default 10
        Number of clients.
    alpha : float or None, default 0.3
        Concentration of :func:`dirichlet_partition`; None for an even random split.
    train_fraction : float, default 0.75
        Share of the images that are split over clients; the rest is the test split, which is stratified and does not
        depend on the seed.
    seed : int, default 0
        Seed of the split over clients.
    min_size : int, default 10
        Minimum number of images per client.

    Raises
    ------
    ConfigurationError
        If the images cannot be split this way.

    Examples
    --------
    >>> data = digits(num_clients=10, alpha=0.3, seed=0)
    >>> sum(data.client(index).targets.size for index in range(10))
    1347
    """
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return _split((features / 16.0, labels), train_fraction, num_clients, alpha, seed, min_size)


def breast_cancer(
    num_clients: int = 10, alpha: float | None = 0.3, train_fraction: float = 0.75, seed: int = 0, *, min_size: int = 10
) -> PartitionedClassification:
    """Return scikit-learn's breast cancer data (569 patients, 30 measurements, benign or not), split over clients.

    Measurements are standardised with the means and standard deviations of the training part.

    Parameters
    ----------
    num_clients, alpha, train_fraction, seed, min_size
        As for :func:`digits`.

    Returns
    -------
    PartitionedClassification
        Label 1 is benign, as in scikit-learn.

    Raises
    ------
    ConfigurationError
        If the patients cannot be split this way.

    Examples
    --------
    >>> data = breast_cancer(num_clients=4)
    >>> data.num_clients, data.test.features.shape
    (4, (143, 30))
    """
    from sklearn import datasets, preprocessing

    data = _split(datasets.load_breast_cancer(return_X_y=True), train_fraction, num_clients, alpha, seed, min_size)
    scaler = preprocessing.StandardScaler().fit(data.train.features)
    train, test = (Samples(scaler.transform(part.features), part.targets) for part in (data.train, data.test))
    return PartitionedClassification(train, test, data.partition, data.num_classes)


def _split(
    rows: Any, train_fraction: float, num_clients: int, alpha: float | None, seed: int, min_size: int
) -> PartitionedClassification:
    """Split off a test part, the same whatever the seed, so that all runs are scored on it; deal the rest."""
    from sklearn.model_selection import train_test_split

    share = checked("train_fraction", train_fraction, float, PART)
    rng = np.random.default_rng(checked("seed", seed, int, NATURAL))
    with in_words(f"{train_fraction=}", ConfigurationError, "; expected a row of each class in both parts"):
        x, x_test, y, y_test = train_test_split(*rows, train_size=share, stratify=rows[1], random_state=0)
    if alpha is None:
        dealt = iid_partition(len(y), num_clients, rng)
    else:
        dealt = dirichlet_partition(y, num_clients, alpha, rng, min_size)
    return PartitionedClassification(Samples(x, y), Samples(x_test, y_test), tuple(dealt), int(y.max()) + 1)


@dataclass(frozen=True, eq=False)
class SyntheticRegression(Choice, FederatedDataset):
    """A sparse linear model observed by clients whose features have different means.

    Client m draws a mean mu_m ~ N(0, I) once, then x = mu_m + N(0, I) and y = <x, coefficients> + intercept + N(0, 1).

    Parameters
    ----------
    coefficients : ndarray of float64, shape (d,)
        The true coefficients.
    num_clients : int
        Number of clients.
    examples_per_client : int
        Number of examples of each client.
    seed : int, default 0
        Seed of the problem; the true intercept is drawn from N(0, 1) with it.

    Examples
    --------
    >>> import numpy as np
    >>> data = SyntheticRegression(np.array([1.0, 0.0, 0.0]), num_clients=4, examples_per_client=20)
    >>> data.client(2).features.shape
    (20, 3)
    """

    coefficients: NDArray[np.float64]
    num_clients: int = field(metadata=AT_LEAST_ONE)
    examples_per_client: int = field(metadata=AT_LEAST_ONE)
    seed: int = field(default=0, metadata=NATURAL)

    def client(self, index: int) -> Samples:
        rng = self._stream(1, self._check_index(index))
        size = self.coefficients.size
        features = rng.normal(size=size) + rng.normal(size=(self.examples_per_client, size))
        signal = features @ self.coefficients + self._stream(0).normal()
        return Samples(features, signal + rng.normal(size=self.examples_per_client))

    def build_objective(self, examples: Samples, **options: Any) -> LeastSquares:
        """Return `LeastSquares`."""
        return LeastSquares(examples.features, examples.targets, **options)

    def _stream(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


def lasso(
    num_clients: int = 64,
    *,
    num_features: int = 1024,
    num_ones: int = 512,
    examples_per_client: int = 128,
    seed: int = 0,
) -> SyntheticRegression:
    """Return a sparse regression: the first true coefficients are 1, all others 0.

    By default it is data set I of Yuan, Zaheer and Reddi (2021, B.2.1).

    Parameters
    ----------
    num_clients : int, default 64
        Number of clients.
    num_features, num_ones : int, default 1024 and 512
        Number of coefficients, and how many of them are 1.
    examples_per_client : int, default 128
        Number of examples of each client.
    seed : int, default 0
        Seed of the problem.

    Raises
    ------
    ConfigurationError
        If there is no client or example, or there are more ones than features.

    Examples
    --------
    >>> data = lasso(num_ones=8)
    >>> data.num_clients, data.client(5).features.shape, int(data.coefficients.sum())
    (64, (128, 1024), 8)
    """
    if not 0 <= checked("num_ones", num_ones, int) <= checked("num_features", num_features, int, AT_LEAST_ONE):
        raise ConfigurationError(f"{num_ones=}, {num_features=}; expected no more ones than features")
    truth = (np.arange(num_features) < num_ones).astype(np.float64)
    return SyntheticRegression(truth, num_clients, examples_per_client, seed)
