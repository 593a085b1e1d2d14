"""Methods to split examples over clients.

`flwr-datasets` is not used for these few lines because it requires Hugging Face `datasets` and pyarrow, which together
are larger than all other dependencies of this package. Its Dirichlet partitioner also redraws until all clients have
enough examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.errors import ConfigurationError

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
    if not (np.isfinite(alpha) and alpha > 0.0):
        raise ConfigurationError(
            f"alpha={alpha!r}; expected a positive number, such as 0.3 (iid_partition for 'equal')"
        )
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
    _check_counts(array.size, num_clients, labels_per_client)
    if labels_per_client < 1:
        raise ConfigurationError(f"labels_per_client={labels_per_client}; expected at least 1")
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
