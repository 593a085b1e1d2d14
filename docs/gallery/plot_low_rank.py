"""
The nuclear norm finds rank 3, where subgradients leave all 20
==============================================================

Five clients observe a matrix of rank 3 through random measurements with noise. The model of
:class:`~flwr_fco.strategies.FedDualAvg` has that rank, because its last step sets the small singular values to 0.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import (
    FedAvgSubgradient,
    FedDualAvg,
    Nuclear,
    Steps,
    TraceRegression,
    client_app,
    simulate,
)

rng = np.random.default_rng(0)
truth = rng.standard_normal((20, 3)) @ rng.standard_normal((3, 20))
clients = []
for _ in range(5):
    features = rng.standard_normal((200, 20, 20))
    targets = np.einsum("nij,ij->n", features, truth) + 0.5 * rng.standard_normal(200)
    clients.append(TraceRegression(features, targets, intercept=False))


def singular_values(strategy):
    result = simulate(
        strategy,
        client_app(lambda context: clients[context.node_config["partition-id"]]),
        num_nodes=5,
        num_rounds=150,
        initial_arrays={"coefficients": np.zeros((20, 20))},
        progress=False,
    )
    return np.linalg.svd(result.arrays["coefficients"].numpy(), compute_uv=False)


options = {
    "regularizer": Nuclear(2.0),
    "client_lr": 0.02,
    "work": Steps(5, batch_size=None),
    "fraction_evaluate": 0.0,
}
ours = singular_values(FedDualAvg(**options))
theirs = singular_values(FedAvgSubgradient(**options))

# %%
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.plot(
    range(1, 21),
    np.maximum(theirs, 1e-6),
    "o-",
    color="0.6",
    label="FedAvg by subgradients",
)
axes.plot(
    range(1, 21),
    np.where(ours > 1e-9, ours, np.nan),
    "o-",
    color="#0072B2",
    label="FedDualAvg",
)
axes.axvline(3.5, color="black", linestyle="dashed", linewidth=1)
axes.text(3.6, axes.get_ylim()[1], "the true rank is 3", va="top")
axes.set(yscale="log", xlabel="number of the singular value", ylabel="singular value")
axes.set_xticks(range(1, 21))
axes.legend(frameon=False)
axes.set_title(
    "All singular values after the third are exactly 0", loc="left", fontweight="bold"
)
axes.spines[["top", "right"]].set_visible(False)
assert (ours > 1e-9).sum() == 3
assert (theirs > 1e-9).sum() == 20
