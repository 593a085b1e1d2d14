"""Real data included in scikit-learn, split over clients, without any download.

scikit-learn is imported only by the functions that need it, because importing it takes as long as the rest of the
package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.validation import PART, checked
from flwr_fco.datasets.base import FederatedDataset, Samples, random_partition, stream
from flwr_fco.objectives import Logistic, MultinomialLogistic

#: Seed of the test split; fixed, so that runs with different seeds are scored on the same examples.
_SPLIT_SEED = 0


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

    train: Samples
    test: Samples
    partition: tuple[NDArray[np.int64], ...]
    num_classes: int

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Number of clients."""
        return len(self.partition)

    def client(self, index: int) -> Samples:
        self._check_index(index)
        rows = self.partition[index]
        return Samples(self.train.features[rows], self.train.targets[rows])

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
    train, test = _split(features / 16.0, labels, train_fraction)
    partition = random_partition(train.targets, num_clients, alpha, stream(seed), min_size)
    return PartitionedClassification(train, test, partition, 10)


def breast_cancer(
    num_clients: int = 10, alpha: float | None = 0.3, train_fraction: float = 0.75, seed: int = 0, *, min_size: int = 10
) -> PartitionedClassification:
    """Return scikit-learn's breast cancer data (569 patients, 30 measurements, benign or not), split over clients.

    Measurements are standardised with the means and standard deviations of the training part.

    Parameters
    ----------
    num_clients : int, default 10
        Number of clients.
    alpha : float or None, default 0.3
        Concentration of :func:`dirichlet_partition`; None for an even random split.
    train_fraction : float, default 0.75
        Share of the patients that are split over clients; the rest is the test split, which is stratified and does not
        depend on the seed.
    seed : int, default 0
        Seed of the split over clients.
    min_size : int, default 10
        Minimum number of patients per client.

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
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    features, labels = load_breast_cancer(return_X_y=True)
    train, test = _split(features, labels, train_fraction)
    scaler = StandardScaler().fit(train.features)
    train, test = (Samples(scaler.transform(part.features), part.targets) for part in (train, test))
    partition = random_partition(train.targets, num_clients, alpha, stream(seed), min_size)
    return PartitionedClassification(train, test, partition, 2)


def _split(features: NDArray[Any], labels: NDArray[Any], train_fraction: float) -> tuple[Samples, Samples]:
    from sklearn.model_selection import train_test_split

    train_fraction = checked("train_fraction", train_fraction, float, PART)
    train_features, test_features, train_labels, test_labels = train_test_split(
        features, labels, train_size=train_fraction, stratify=labels, random_state=_SPLIT_SEED
    )
    return Samples(train_features, train_labels), Samples(test_features, test_labels)
