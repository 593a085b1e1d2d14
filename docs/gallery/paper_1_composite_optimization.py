"""
Yuan, Zaheer, Reddi (2021): averaged duals keep at most 20 of 128 coefficients, averaged models 120 or more
===========================================================================================================

The comparison of figure 1 in small: a sparse regression over 16 clients instead of brain scans. FedAvg takes
subgradients, FedMid averages models after its proximal steps, FedDualAvg averages duals. FedMid is run with psi on the
clients only: as printed it applies psi on the server too, and solves the problem with twice the penalty.
``python -m reproduction reproduce fco-fig1`` runs the paper's own size.
"""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import (
    L1,
    FedAvgSubgradient,
    FedDualAvg,
    FedMid,
    Steps,
    client_app,
    simulate,
)
from flwr_fco.datasets import lasso

data = lasso(16, num_features=128, num_ones=8, examples_per_client=64)
app = client_app(
    lambda context: data.objective(int(context.node_config["partition-id"]))
)

# %%
# Each method runs 100 rounds of 10 local steps at the same rates, from 0.

counts = {}
for strategy in (FedAvgSubgradient, partial(FedMid, server_prox=False), FedDualAvg):
    counts[getattr(strategy, "__name__", "FedMid")] = found = []
    simulate(
        strategy(
            regularizer=L1(0.3), client_lr=0.002, work=Steps(10), fraction_evaluate=0.0
        ),
        app,
        num_nodes=16,
        num_rounds=100,
        initial_arrays={"coefficients": np.zeros(128), "intercept": np.zeros(1)},
        evaluate_fn=lambda number, arrays, found=found: found.append(
            np.count_nonzero(arrays["coefficients"].numpy())
        ),
        progress=False,
    )

# %%
# The true model has 8 coefficients that are not 0.

for (name, found), color in zip(counts.items(), ("0.7", "0.4", "#0072B2"), strict=True):
    plt.plot(found, color=color, label=name)
plt.axhline(8, color="black", linestyle="--", label="truth")
plt.xlabel("round")
plt.ylabel("coefficients that are not 0")
plt.legend()
plt.show()

last = {name: found[-1] for name, found in counts.items()}
assert 8 <= last["FedDualAvg"] <= 20, last
assert min(last["FedMid"], last["FedAvgSubgradient"]) >= 120, last
