"""What a run config describes: the data of all nodes, psi, the strategy, and the scores of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support

from flwr_fco import datasets, regularizers
from flwr_fco.datasets import FederatedDataset, PartitionedClassification, SyntheticRegression
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Objective
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import Regularizer
from flwr_fco.strategies import STRATEGIES, Arrays, CompositeStrategy, Steps


def _lasso(num_nodes: int, alpha: float, train_fraction: float, seed: int) -> SyntheticRegression:
    """Return synthetic clients, who draw their own data: there is nothing to split."""
    return datasets.lasso(num_nodes, seed=seed)


#: ``(num_nodes, alpha, train_fraction, seed) -> data``.
PROBLEMS: Mapping[str, Callable[[int, float, float, int], FederatedDataset]] = {
    "digits": datasets.digits,
    "breast-cancer": datasets.breast_cancer,
    "lasso": _lasso,
}
#: Regularizers with the strength as their only parameter.
REGULARIZERS: Mapping[str, Callable[..., Regularizer]] = {
    "L1": regularizers.L1,
    "L2Squared": regularizers.L2Squared,
    "Nuclear": regularizers.Nuclear,
    "Zero": regularizers.Zero,
}
#: Coefficients above it count as found, where the true ones are known.
_THRESHOLD = 1e-2


class Task:
    """The data of all nodes, psi, the strategy, and the scores of a model.

    Parameters
    ----------
    config : mapping
        A checked run config.
    num_nodes : int, optional
        Number of nodes over which the data are split; by default the run config's ``num-nodes``.
    """

    def __init__(self, config: Mapping[str, Any], num_nodes: int | None = None) -> None:
        self.config = config
        self.num_nodes = num_nodes or config["num-nodes"]
        make = PROBLEMS[config["problem"]]
        self.data = make(self.num_nodes, config["alpha"], config["train-fraction"], config["seed"])
        strength = () if config["regularizer"] == "Zero" else (config["strength"],)
        self.regularizer = REGULARIZERS[config["regularizer"]](*strength)

    @cached_property
    def clients(self) -> list[Objective]:
        """The losses of all nodes, which the server has in this example but never in a deployment."""
        return self.data.objectives()

    def initial_arrays(self) -> ArrayRecord:
        """Return the start point: zeros."""
        layout = self.clients[0].layout
        return ArrayRecord({name: Array(a) for name, a in layout.unflatten(np.zeros(layout.size)).items()})

    def strategy(self) -> CompositeStrategy:
        """Return the strategy with those options of the run config that it has.

        Raises
        ------
        ConfigurationError
            If the strategy does not accept a value, or more clients are requested than there are.
        """
        config = self.config
        kind = STRATEGIES[self.config["strategy"]]
        clients = config["clients-per-round"] or self.num_nodes
        if clients > self.num_nodes:
            raise ConfigurationError(
                f"clients-per-round={clients}, but there are {self.num_nodes} nodes; expected at most that, or 0 for "
                "all of them"
            )
        private = self._privacy()
        names = ("client-lr", "server-lr", "batch-size", "seed")
        options: dict[str, Any] = {
            **{name.replace("-", "_"): config[name] for name in names},
            "work": Steps(config["local-steps"], config["batch-size"]),
            "regularizer": self.regularizer,
            "arrays": Arrays(apply_to=self.clients[0].layout.regularized_names),
            # The sample is int(nodes * fraction); the half keeps rounding from losing a client. Privacy is accounted
            # for by the fraction itself.
            "fraction_train": min(1.0, (clients + 0.5 * (not private)) / self.num_nodes),
            "min_train_nodes": 1 if private else clients,
            "min_available_nodes": self.num_nodes,
            "fraction_evaluate": 0.0,
        }
        known = signature(kind).parameters
        # A method that minimises does no steps.
        if "work" in known and type(known["work"].default) is not type(options["work"]):
            del options["work"]
        return kind(**{name: value for name, value in options.items() if name in known}, **private)

    def _privacy(self) -> dict[str, Any]:
        """Return the options of a private run, with those that its accounting needs; none without privacy."""
        own = {name: self.config[f"privacy-{name.replace('_', '-')}"] for name in ("clip", "target_epsilon", "delta")}
        if not any(own.values()):
            return {}
        privacy = GaussianDP(**own, noise=self.config["privacy-noise"])
        return {"privacy": privacy, "weighting": "uniform", "normalize_local_work": False}

    def scores(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return the objective, the density, and how well the model does: on test data, or beside the truth."""
        w = self.clients[0].layout.flatten(arrays)
        coefficients = arrays["coefficients"]
        losses, sizes = zip(*((client.value(w), client.num_examples) for client in self.clients), strict=True)
        psi = self.regularizer.bind(self.clients[0].layout).value(w)
        found = {
            "objective": float(np.average(losses, weights=sizes)) + psi,
            "density": float(np.mean(coefficients != 0.0)),
        }
        if isinstance(self.data, PartitionedClassification):
            metrics = self.data.test_objective().metrics(w)
            return {**found, "accuracy": metrics["accuracy"], "validation-loss": metrics["loss"]}
        assert isinstance(self.data, SyntheticRegression)
        truth = self.data.coefficients
        chosen = np.abs(coefficients) > _THRESHOLD
        *scores, _ = precision_recall_fscore_support(truth != 0.0, chosen, average="binary", zero_division=1.0)
        found |= dict(zip(("precision", "recall", "f1"), map(float, scores), strict=True))
        return {**found, "recovery-error": float(np.linalg.norm(coefficients - truth))}

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the scores of every ``evaluate-every``-th round and of the last one; Flower's ``evaluate_fn``."""
        if server_round % self.config["evaluate-every"] and server_round != self.config["num-server-rounds"]:
            return None
        return MetricRecord(dict(self.scores({name: array.numpy() for name, array in arrays.items()})))
