"""The interface of a federated data set, and methods to split examples over clients.

`flwr-datasets` is not used for these few lines because it requires Hugging Face `datasets` and pyarrow, which together
are larger than all other dependencies of this package. Its Dirichlet partitioner also redraws until all clients have
enough examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Objective
from flwr_fco.objectives.design import stacked


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


def together(parts: Iterable[Samples]) -> Samples:
    """Return the examples of several parts, one after the other."""
    features, targets = zip(*parts, strict=True)
    return Samples(stacked(features), np.concatenate(targets))


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
    >>> from flwr_fco.datasets import digits
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
        """Return the objectives of all clients, for reference solutions and metrics of the pooled problem.

        Parameters
        ----------
        **options
            Keyword arguments of the objective's class.
        """
        return [self.objective(index, **options) for index in range(self.num_clients)]

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.num_clients:
            raise ConfigurationError(
                f"there is no client {index}; expected 0 .. {self.num_clients - 1}. "
                "Give the data set as many clients as the federation has nodes."
            )

    def _check_whole(self, *names: str) -> None:
        for name in names:
            checked(name, getattr(self, name), int, AT_LEAST_ONE)


def stream(seed: int, *key: int) -> np.random.Generator:
    """Return the generator for one purpose of a seed, independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


_TRIES = 1000


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
    _check_counts(num_examples, num_clients, 1)
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
        If alpha is not positive, or `min_size` was not reached in 1,000 draws.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat([0, 1, 2], 40)
    >>> parts = dirichlet_partition(labels, 4, 0.5, np.random.default_rng(0))
    >>> sum(part.size for part in parts), min(part.size for part in parts) >= 10
    (120, True)
    """
    array = np.asarray(labels)
    _check_counts(array.size, num_clients, min_size)
    checked("alpha", alpha, float, POSITIVE)
    classes = [np.flatnonzero(array == label) for label in np.unique(array)]
    for _ in range(_TRIES):
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(num_clients)]
        for rows in classes:
            shares = rng.dirichlet(np.full(num_clients, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * rows.size).astype(np.int64)
            for part, piece in zip(parts, np.split(rng.permutation(rows), cuts), strict=True):
                part.append(piece)
        joined = [np.sort(np.concatenate(part)) for part in parts]
        if min(part.size for part in joined) >= min_size:
            return joined
    raise ConfigurationError(
        f"{_TRIES} draws of {array.size} examples over {num_clients} clients with alpha={alpha} all left some client "
        f"with fewer than min_size={min_size}; expected a split to be likely. Raise alpha, or lower num_clients or "
        "min_size."
    )


def random_partition(
    labels: NDArray[Any], num_clients: int, alpha: float | None, rng: np.random.Generator, min_size: int
) -> tuple[NDArray[np.int64], ...]:
    """Return a Dirichlet split, or an even random split if alpha is None."""
    if alpha is None:
        return tuple(iid_partition(labels.size, num_clients, rng))
    return tuple(dirichlet_partition(labels, num_clients, alpha, rng, min_size))


def label_partition(
    labels: ArrayLike, num_clients: int, labels_per_client: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return a split with few labels per client: examples sorted by label, cut into shards, a few shards per client.

    Parameters
    ----------
    labels : array-like, shape (n,)
        The examples' labels.
    num_clients : int
        Number of clients.
    labels_per_client : int
        Number of shards per client. A shard at the boundary between two labels contains both.
    rng : numpy.random.Generator
        Draws the partition.

    Returns
    -------
    list of ndarray of int64
        Row numbers of each client, ascending; each row occurs once.

    Raises
    ------
    ConfigurationError
        If there are more shards than examples.

    Examples
    --------
    >>> import numpy as np
    >>> labels = np.repeat([0, 1, 2, 3], 10)
    >>> parts = label_partition(labels, 2, 2, np.random.default_rng(0))
    >>> [np.unique(labels[part]).size for part in parts]
    [2, 2]
    """
    array = np.asarray(labels)
    checked("labels_per_client", labels_per_client, int, AT_LEAST_ONE)
    _check_counts(array.size, num_clients, labels_per_client)
    # Shuffled first, so that the assignment of a label's rows to shards also depends on the seed.
    order = rng.permutation(array.size)
    order = order[np.argsort(array[order], kind="stable")]
    shards = np.array_split(order, num_clients * labels_per_client)
    dealt = rng.permutation(len(shards)).reshape(num_clients, labels_per_client)
    return [np.sort(np.concatenate([shards[shard] for shard in numbers])) for numbers in dealt]


def _check_counts(num_examples: int, num_clients: int, min_size: int) -> None:
    if num_clients < 1 or num_clients * min_size > num_examples:
        raise ConfigurationError(
            f"num_clients={num_clients} with at least {min_size} of {num_examples} examples each; expected at least "
            f"one client and at most {num_examples // max(min_size, 1)}"
        )
