"""What the data sets share: examples put together, streams of random numbers, images for other objectives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_fco.datasets import FederatedDataset, PartitionedClassification, Samples
from flwr_fco.errors import ConfigurationError


def together(parts: Iterable[Samples]) -> Samples:
    """Return the examples of several parts, one after the other."""
    features, targets = zip(*parts, strict=True)
    return Samples(np.concatenate(features), np.concatenate(targets))


def stream(seed: int, *key: int) -> np.random.Generator:
    """Return the generator for one purpose of a seed, independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def check_whole(data: object, *names: str) -> None:
    """Raise unless these attributes are whole numbers >= 1."""
    for name in names:
        value = getattr(data, name)
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ConfigurationError(f"{name}={value!r}; expected a whole number >= 1")


def check_sizes(data: object, *names: str, positive: bool = False) -> None:
    """Raise a ConfigurationError unless all of these attributes are finite numbers >= 0, or > 0."""
    for name in names:
        value = getattr(data, name)
        if not 0.0 <= value < np.inf or (positive and value == 0.0):
            raise ConfigurationError(f"{name}={value!r}; expected a finite number {'> 0' if positive else '>= 0'}")


@dataclass(frozen=True, eq=False)
class ImagesOnClients(FederatedDataset):
    """Classified images split over clients, for objectives other than plain classification."""

    images: PartitionedClassification

    @property
    def num_clients(self) -> int:  # type: ignore[override]
        """Number of clients."""
        return self.images.num_clients

    def client(self, index: int) -> Samples:
        """Return the training images of a client.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        """
        return self.images.client(index)

    def test_objective(self, **options: Any) -> Any:
        """Return the objective on the test images, for its metrics.

        Parameters
        ----------
        **options
            Keyword arguments of the objective's class.
        """
        return self.build_objective(self.images.test_examples(), **options)
