"""
With epsilon 4 the private model keeps the 2 true coefficients of 20
====================================================================

400 clients have 50 rows each, and two of 20 coefficients are not 0. With ``privacy=GaussianDP(...)`` the server adds
noise before the proximal step, so that the model is private and still exactly sparse.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import (
    L1,
    FedDualAvg,
    GaussianDP,
    LeastSquares,
    Steps,
    client_app,
    simulate,
)

truth = np.array([2.0, -2.0] + [0.0] * 18)


def load(context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    features = rng.standard_normal((50, 20))
    return LeastSquares(features, features @ truth, intercept=False)


def fit(privacy):
    strategy = FedDualAvg(
        regularizer=L1(0.2),
        client_lr=0.05,
        work=Steps(2),
        fraction_train=0.1,
        fraction_evaluate=0.0,
        weighting="uniform",
        normalize_local_work=False,
        privacy=privacy,
    )
    start = {"coefficients": np.zeros(20)}
    return simulate(
        strategy,
        client_app(load),
        num_nodes=400,
        num_rounds=40,
        initial_arrays=start,
        progress=False,
    )


clear = fit(None)
private = fit(GaussianDP(clip=0.3, target_epsilon=4.0, delta=1e-3))
models = [result.arrays["coefficients"].numpy() for result in (clear, private)]
epsilon = private.train_metrics_clientapp[40]["epsilon"]

# %%
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.plot(truth, "_", color="black", markersize=16, label="truth")
axes.plot(models[0], "o", color="0.6", markersize=11, label="without privacy")
axes.plot(models[1], "o", color="#0072B2", label=f"epsilon {epsilon:.1f}")
axes.set(xlabel="coefficient", ylabel="value", xticks=range(0, 20, 2))
axes.legend(frameon=False)
axes.set_title("Private, and the true coefficients stay", loc="left", fontweight="bold")
axes.spines[["top", "right"]].set_visible(False)
assert epsilon <= 4.0
# The noise is fresh in every run: it comes from the operating system.
assert set(np.flatnonzero(models[1])) >= {0, 1}
