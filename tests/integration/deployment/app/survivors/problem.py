"""Small heterogeneous least squares, and the strategies that are tried on them."""

import numpy as np

from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import DualFL, Everyone, FedDAGT, FedDualAvg, FeDualEx, Short, Steps

FEATURES = 6


def objective(partition):
    rng = np.random.default_rng((7, int(partition)))
    q, _ = np.linalg.qr(rng.standard_normal((20 + 5 * int(partition), FEATURES)))
    features = q * np.sqrt(len(q))
    return LeastSquares(features, features @ rng.standard_normal(FEATURES) + partition, scale=0.5)


def start():
    return {"coefficients": np.zeros(FEATURES), "intercept": np.zeros(1)}


def build(name, nodes, **options):
    """Return a strategy that waits for its nodes and evaluates by all of them."""
    common = {"min_train_nodes": nodes, "min_available_nodes": nodes, "fraction_evaluate": 0.0, "seed": 3, **options}
    steps = {"client_lr": 0.05, "work": Steps(3, batch_size=4)}
    if name == "DualFL":
        return DualFL(nu=0.5, smoothness=1.0, regularizer=Zero(), participation=Everyone(evict_after=10), **common)
    if name == "Short":
        return FedDualAvg(density=0.5, wire=Short(), **steps, **common)
    cls = {"FedDualAvg": FedDualAvg, "FedDAGT": FedDAGT, "FeDualEx": FeDualEx}[name]
    return cls(regularizer=L1(0.05), **steps, **common)
