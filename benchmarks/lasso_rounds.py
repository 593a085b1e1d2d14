"""The problem that benchmarks of rounds share: LASSO dataset I of 'Federated Composite Optimization'.

64 clients with 128 rows of 1,024 features (float64), 10 of them a round, one epoch of batch 10 (13 local steps), l1
norm, evaluation off.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context

from flwr_fco.datasets import lasso
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs

NODES, SAMPLE, BATCH, RATE, STRENGTH = 64, 10, 10, 0.001, 0.2
OPTIONS = {
    "regularizer": L1(STRENGTH),
    "client_lr": RATE,
    "work": Epochs(1, batch_size=BATCH),
    "fraction_train": SAMPLE / NODES,
    "fraction_evaluate": 0.0,
}


def load(context: Context) -> LeastSquares:
    """Generate the shard where it is needed: nothing but numbers travels to workers."""
    return lasso("I").objective(int(context.node_config["partition-id"]))


def start_arrays(features: int) -> ArrayRecord:
    """Return a model of zeros."""
    return ArrayRecord({"coefficients": Array(np.zeros(features)), "intercept": Array(np.zeros(1))})
