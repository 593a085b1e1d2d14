"""
Six labs together keep 20 voxels or more, all in the signal; of one lab's less than half are
============================================================================================

Six labs scan subjects while these see one of two things. Two regions of the slice answer. An l1 norm finds them from
all labs' scans, and no scan leaves its lab. The brains are synthetic: smooth noise with a signal in two spots.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression

from flwr_fco import L1, FedNewton, Logistic, client_app, simulate

SIDE = 32
rows, columns = np.mgrid[:SIDE, :SIDE]
signal = sum(
    ((rows - r) ** 2 + (columns - c) ** 2 <= 9).astype(float)
    for r, c in ((9, 9), (20, 23))
)


def lab(number):
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 2, 60)
    scans = np.array(
        [gaussian_filter(rng.standard_normal((SIDE, SIDE)), 1.0) * 3 for _ in labels]
    )
    scans += 0.35 * (2 * labels[:, None, None] - 1) * signal
    return Logistic(scans.reshape(60, -1), labels)


labs = [lab(number) for number in range(6)]
one = LogisticRegression(
    C=1 / (60 * 0.05), l1_ratio=1.0, solver="saga", tol=1e-4, max_iter=10_000
)
alone = one.fit(labs[0].features, labs[0].labels).coef_[0]
result = simulate(
    FedNewton(regularizer=L1(0.05), fraction_evaluate=0.0),
    client_app(lambda context: labs[context.node_config["partition-id"]]),
    num_nodes=6,
    num_rounds=40,
    initial_arrays={"coefficients": np.zeros(SIDE**2), "intercept": np.zeros(1)},
    progress=False,
)
together = result.arrays["coefficients"].numpy()

# %%
figure, panels = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for axes, (title, picture) in zip(
    panels,
    {
        "the signal": signal,
        "one lab alone": alone,
        "six labs together": together,
    }.items(),
    strict=True,
):
    picture = picture.reshape(SIDE, SIDE)
    axes.imshow(np.abs(picture), cmap="Blues")
    axes.set_title(f"{title}: {(picture != 0).sum()} voxels", fontsize=10, loc="left")
    axes.set(xticks=[], yticks=[])
inside = [float(signal.ravel()[model != 0].mean()) for model in (alone, together)]
assert (together != 0).sum() >= 20
assert inside[0] < 0.5, inside
assert inside[1] == 1.0, inside
