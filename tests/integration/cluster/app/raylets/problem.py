"""Small heterogeneous least squares and a strategy for them."""

import numpy as np

from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps

FEATURES = 200


def objective(partition):
    rng = np.random.default_rng((7, int(partition)))
    features = rng.standard_normal((60 + 5 * int(partition), FEATURES))
    return LeastSquares(features, features[:, 0] + partition, scale=0.5)


def start():
    return {"coefficients": np.zeros(FEATURES), "intercept": np.zeros(1)}


def build(nodes):
    """Return a strategy that waits for its nodes."""
    waits = {"min_train_nodes": nodes, "min_available_nodes": nodes, "fraction_evaluate": 0.0}
    return FedDualAvg(client_lr=1e-3, work=Steps(20, batch_size=4), seed=3, regularizer=L1(0.05), **waits)
