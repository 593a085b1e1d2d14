"""
Cross-validation keeps at most 10 of 30 measurements, and no row leaves its site
================================================================================

Four sites hold measurements of tumours. :func:`~flwr_fco.fit_path` fits 20 strengths and their folds in the same
messages. Each site deals its own rows into the folds.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import L1, FedNewton, client_app, fit_path
from flwr_fco.datasets import breast_cancer

OURS = "#0072B2"
data = breast_cancer(num_clients=4, alpha=1.0)
path = fit_path(
    FedNewton(regularizer=L1(1.0), fraction_evaluate=0.0),
    client_app(lambda context: data.objective(context.node_config["partition-id"])),
    num_nodes=4,
    num_rounds=200,
    initial_arrays={"coefficients": np.zeros(30), "intercept": np.zeros(1)},
    num_strengths=20,
    cv=5,
    progress=False,
)
chosen = path.one_standard_error
assert 0 < chosen.nonzero <= 10, chosen

# %%
strengths = [point.strength for point in path.points]
losses = np.array([point.held_out for point in path.points])
errors = np.array([point.standard_error for point in path.points])
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.plot(strengths, losses, color=OURS)
axes.fill_between(strengths, losses - errors, losses + errors, color=OURS, alpha=0.2)
axes.axvline(chosen.strength, color="black", linestyle="dashed")
axes.text(
    chosen.strength, axes.get_ylim()[1], f" {chosen.nonzero} measurements", va="top"
)
axes.set(xscale="log", xlabel="strength of the penalty", ylabel="loss on left-out rows")
axes.set_title(
    "The sparsest model within one standard error of the best",
    loc="left",
    fontweight="bold",
)
axes.spines[["top", "right"]].set_visible(False)
