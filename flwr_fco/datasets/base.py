"""The interface of a federated data set: each client's data, and the objective on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Objective
from flwr_fco.objectives.design import stacked


class Samples(NamedTuple):
    """Features and targets (or labels), one row per example, as an objective's first two arguments."""

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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ConfigurationError(f"{name}={value!r}; expected a whole number >= 1")


def stream(seed: int, *key: int) -> np.random.Generator:
    """Return the generator for one purpose of a seed, independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
