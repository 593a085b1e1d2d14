"""
Six sites alone select more than 20 of 40 features, together the 5 that matter
==============================================================================

Each of six sites has 60 rows, and five of 40 features matter. A lasso at one site selects features by chance. One model
of all sites selects the five.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from sklearn.linear_model import Lasso

from flwr_fco import L1, FedNewton, LeastSquares, client_app, simulate

rng = np.random.default_rng(0)
truth = np.zeros(40)
truth[:5] = [1.0, -0.8, 0.7, -0.6, 0.5]
sites = []
for _ in range(6):
    features = rng.standard_normal((60, 40))
    sites.append(
        LeastSquares(features, features @ truth + 1.5 * rng.standard_normal(60))
    )

# %%
# Each site by itself, at the strength of all sites together: scikit-learn's alpha is half of it.
alone = np.array([Lasso(0.3).fit(site.features, site.targets).coef_ for site in sites])
result = simulate(
    FedNewton(regularizer=L1(0.6), fraction_evaluate=0.0),
    client_app(lambda context: sites[context.node_config["partition-id"]]),
    num_nodes=6,
    num_rounds=30,
    initial_arrays={"coefficients": np.zeros(40), "intercept": np.zeros(1)},
    progress=False,
)
together = result.arrays["coefficients"].numpy()

# %%
selected = np.vstack([alone, together, truth]) != 0
shades = selected * np.array([1] * 6 + [2, 3])[:, None]
figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
axes.imshow(
    shades, aspect="auto", cmap=ListedColormap(["white", "0.6", "#0072B2", "black"])
)
axes.set_yticks(
    range(8), [*(f"site {m + 1} alone" for m in range(6)), "together", "truth"]
)
axes.set_xlabel("feature")
axes.set_title("Sites alone select features by chance", loc="left", fontweight="bold")
assert selected[:6].any(axis=0).sum() > 20
assert np.flatnonzero(selected[6]).tolist() == [0, 1, 2, 3, 4]
