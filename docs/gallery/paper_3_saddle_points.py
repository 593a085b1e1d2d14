"""
Bai, Bullins (2024): FeDualEx finds a saddle point with 40 of 90 entries at 0 or more, FedMiP with at most 5
============================================================================================================

The comparison of figure 4, the paper's first one with measurements, in small: a bilinear game with l1 norms in boxes
over 10 clients with noisy gradients.
``python -m reproduction reproduce spp-fig4`` runs the paper's own size.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import L1, BilinearSaddle, FedMiP, FeDualEx, Steps, client_app, simulate

rng = np.random.default_rng(0)
matrix = rng.uniform(-1, 1, (30, 60))
offset = rng.uniform(-1, 1, 30)
objectives = [
    BilinearSaddle(matrix, offset + rng.normal(0.0, 0.3, 30), noise=0.1)
    for _ in range(10)
]
app = client_app(lambda context: objectives[int(context.node_config["partition-id"])])
psi = L1(0.1, bound=0.05)
start = {"x": rng.uniform(-0.05, 0.05, 60), "y": rng.uniform(-0.05, 0.05, 30)}


def gap(x, y):
    """Return what the players could still gain by their best answers: the paper's appendix A.1."""
    b = np.mean([objective.offset for objective in objectives], axis=0)
    gains = [
        np.maximum(np.abs(slopes) - 0.1, 0.0).sum()
        for slopes in (matrix @ x - b, matrix.T @ y)
    ]
    return 0.05 * sum(gains) + 0.1 * (np.abs(x).sum() + np.abs(y).sum()) + b @ y


# %%
# FedMiP averages points after its proximal steps, FeDualEx averages duals.

gaps, dense = {}, {}
for name, strategy in {"FeDualEx": FeDualEx, "FedMiP": FedMiP}.items():
    gaps[name], dense[name] = [], []

    def evaluate(number, arrays, name=name):
        w = np.concatenate([arrays["x"].numpy(), arrays["y"].numpy()])
        gaps[name].append(gap(arrays["x"].numpy(), arrays["y"].numpy()))
        dense[name].append(np.mean(w != 0.0))

    options = {"server_prox": False} if strategy is FedMiP else {}
    simulate(
        strategy(
            regularizer=psi,
            client_lr=0.03,
            work=Steps(10),
            fraction_evaluate=0.0,
            **options,
        ),
        app,
        num_nodes=10,
        num_rounds=40,
        initial_arrays=start,
        evaluate_fn=evaluate,
        progress=False,
    )

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
for name, color in zip(gaps, ("#0072B2", "0.5"), strict=True):
    left.semilogy(gaps[name], color=color, label=name)
    right.plot(dense[name], color=color, label=name)
left.set(xlabel="round", ylabel="duality gap")
right.set(xlabel="round", ylabel="share of entries that are not 0")
left.legend()
plt.show()

assert gaps["FeDualEx"][-1] < 0.2 * gaps["FeDualEx"][0], gaps["FeDualEx"]
zeros = {name: round(90 * (1.0 - found[-1])) for name, found in dense.items()}
assert zeros["FeDualEx"] >= 40, zeros
assert zeros["FedMiP"] <= 5, zeros
