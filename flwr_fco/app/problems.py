"""The problems of the root Flower App: the data on the nodes, what the server reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import PartitionedClassification, SyntheticRegression, breast_cancer, digits, lasso
from flwr_fco.datasets.base import FederatedDataset
from flwr_fco.metrics import composite_objective, density, support_scores
from flwr_fco.objectives import Objective
from flwr_fco.parameters import Layout, Vector
from flwr_fco.regularizers import Regularizer

if TYPE_CHECKING:
    from flwr_fco.app.settings import Settings

__all__ = ["PROBLEMS", "Scorer", "load_dataset"]


def _digits(settings: Settings, num_clients: int) -> FederatedDataset:
    return digits(num_clients, settings.alpha, settings.train_fraction, settings.seed)


def _breast_cancer(settings: Settings, num_clients: int) -> FederatedDataset:
    return breast_cancer(num_clients, settings.alpha, settings.train_fraction, settings.seed)


def _lasso(settings: Settings, num_clients: int) -> FederatedDataset:
    # The paper's data set I is its first 64 clients; more or fewer are drawn from the same distribution.
    return replace(lasso("I", settings.seed), num_clients=num_clients)


#: Functions (settings, number of clients) -> data set by the name that the run config uses.
PROBLEMS: dict[str, Callable[[Settings, int], FederatedDataset]] = {
    "digits": _digits,
    "breast-cancer": _breast_cancer,
    "lasso": _lasso,
}


@lru_cache(maxsize=4)
def load_dataset(settings: Settings, num_clients: int) -> FederatedDataset:
    """Return the data that the settings name, split over so many clients; kept: each client of a process asks."""
    return PROBLEMS[settings.problem](settings, num_clients)


@dataclass(frozen=True)
class Scorer:
    """What the server knows of a model: the pooled objective, its density, its quality on test data.

    Parameters
    ----------
    dataset : FederatedDataset
    clients : list of Objective
        The losses of all clients, one layout, with an array ``coefficients``.
    regularizer : Regularizer
        psi.
    """

    dataset: FederatedDataset
    clients: list[Objective]
    regularizer: Regularizer

    @classmethod
    def from_dataset(cls, dataset: FederatedDataset, regularizer: Regularizer) -> Scorer:
        """Load all clients' data: what a server has in an experiment, never in a deployment."""
        return cls(dataset, dataset.objectives(), regularizer)

    @property
    def layout(self) -> Layout:
        """The model's arrays."""
        return self.clients[0].layout

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the start point: zeros."""
        return self.layout.unflatten(np.zeros(self.layout.size))

    def coefficients(self, w: Vector) -> Vector:
        """Return the part of the vector that is meant to be sparse."""
        return w[self.layout["coefficients"].block]

    def scores(self, w: Vector) -> dict[str, float]:
        """Return what a round reports.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)

        Returns
        -------
        dict of str to float
            ``objective``: the pooled training loss plus psi. ``density``: the share of the coefficients that are not
            exactly 0. With test data ``test-loss`` and ``accuracy``; with a known truth ``support-f1``, counting what
            exceeds 1e-2 as the paper does.
        """
        found = {
            "objective": composite_objective(self.clients, None, self.regularizer, w),
            "density": density(self.coefficients(w)),
        }
        if isinstance(self.dataset, PartitionedClassification):
            metrics = self.dataset.test_objective().metrics(w)
            found.update({"accuracy": metrics["accuracy"], "test-loss": metrics["loss"]})
        if isinstance(self.dataset, SyntheticRegression):
            truth = self.dataset.coefficients.reshape(-1)
            found["support-f1"] = support_scores(self.coefficients(w), truth, 1e-2).f1
        return found
