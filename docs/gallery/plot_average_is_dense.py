"""
The average of ten sparse models has 97 % of its coefficients, dual averaging 25 %
=================================================================================

Ten clients hold handwritten digits, each another mix of them. Every client's own lasso is sparse. Their zeros lie in
different places, so the average of the ten models is nearly dense. :class:`~flwr_fco.strategies.FedDualAvg` averages
duals instead, and its model is as sparse as that of the pooled data.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import L1, FedDualAvg, client_app, simulate
from flwr_fco.datasets import digits
from flwr_fco.pooled import centralized_solution

OURS, THEIRS = "#0072B2", "0.6"
data = digits(num_clients=10, alpha=0.3)
psi = L1(2e-3)


def kept(coefficients):
    return float((coefficients != 0).mean())


# %%
# Each client's own model, and their average.
alone = [centralized_solution([data.objective(m)], psi, tol=1e-6)[:640] for m in range(10)]
average = np.mean(alone, axis=0)

# %%
# One model of all clients, by averaging duals. The rows never leave the clients.
strategy = FedDualAvg(regularizer=psi, client_lr=0.1, server_lr=10.0, fraction_evaluate=0.0)
start = {"coefficients": np.zeros((64, 10)), "intercept": np.zeros(10)}
clients = client_app(lambda context: data.objective(context.node_config["partition-id"]))
result = simulate(strategy, clients, num_nodes=10, num_rounds=300, initial_arrays=start, progress=False)
together = result.arrays["coefficients"].numpy()

# %%
names = [*(f"client {m}" for m in range(10)), "their average", "FedDualAvg"]
values = [100 * kept(model) for model in [*alone, average, together]]
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.barh(names, values, color=[THEIRS] * 10 + ["black", OURS])
for name, value in zip(names, values, strict=True):
    axes.text(value + 1, name, f"{value:.0f} %", va="center")
axes.set(xlim=(0, 108), xlabel="coefficients that are not 0 (%)")
axes.invert_yaxis()
axes.set_title("An average of sparse models is dense", loc="left", fontweight="bold")
axes.spines[["top", "right"]].set_visible(False)
print([round(value) for value in values])
