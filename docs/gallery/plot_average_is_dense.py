"""
Ten models keep at most 25 coefficients each, their average 50 or more, dual averaging the true 8
=================================================================================================

Ten clients have 80 rows each, and 8 of 100 features matter. Every client's own lasso is sparse. Their zeros lie in
different places, so the average of the ten models is dense. :class:`~flwr_fco.strategies.FedDualAvg` averages duals
instead, and the model comes out of a proximal step.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Lasso

from flwr_fco import L1, FedDualAvg, LeastSquares, Steps, client_app, simulate

rng = np.random.default_rng(0)
truth = np.where(np.arange(100) < 8, 1.0, 0.0)
clients = []
for _ in range(10):
    features = rng.standard_normal((80, 100))
    clients.append(
        LeastSquares(
            features, features @ truth + rng.standard_normal(80), intercept=False
        )
    )
psi = L1(0.4)

# %%
# Each client's own model, and their average. scikit-learn halves the squares.
alone = [
    Lasso(alpha=0.2, fit_intercept=False).fit(client.features, client.targets).coef_
    for client in clients
]
average = np.mean(alone, axis=0)

# %%
# One model of all clients. The rows never leave them.
strategy = FedDualAvg(
    regularizer=psi,
    client_lr=0.02,
    work=Steps(5, batch_size=None),
    fraction_evaluate=0.0,
)
app = client_app(lambda context: clients[context.node_config["partition-id"]])
start = {"coefficients": np.zeros(100)}
result = simulate(
    strategy, app, num_nodes=10, num_rounds=100, initial_arrays=start, progress=False
)
together = result.arrays["coefficients"].numpy()

# %%
names = [*(f"client {m}" for m in range(10)), "their average", "FedDualAvg"]
kept = [int((model != 0).sum()) for model in [*alone, average, together]]
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.barh(names, kept, color=["0.75"] * 10 + ["0.4", "#0072B2"])
for name, value in zip(names, kept, strict=True):
    axes.text(value + 1, name, value, va="center")
axes.axvline(8, color="black", linestyle="dashed", linewidth=1)
axes.set(
    xlim=(0, 108),
    xlabel="coefficients that are not 0, of 100 (dashed: those of the truth)",
)
axes.invert_yaxis()
axes.set_title("An average of sparse models is dense", loc="left", fontweight="bold")
axes.spines[["top", "right"]].set_visible(False)
assert max(kept[:10]) <= 25, kept
assert kept[10] >= 50, kept
assert set(np.flatnonzero(together)) == set(range(8))
