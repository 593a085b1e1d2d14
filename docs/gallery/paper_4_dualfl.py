"""
Park, Xu (2023): after one round DualFL is 7 times closer to the minimum than FedDR
===================================================================================

The comparison of figure 1 in small: multinomial logistic regression on scikit-learn's digits over 8 clients, mu = 0.01.
``python -m reproduction reproduce dualfl-fig1a`` runs the paper's own data.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from flwr_fco import DualFL, FedDR, FedNewton, client_app, simulate
from flwr_fco.objectives import MultinomialLogistic

pixels, labels = load_digits(return_X_y=True)
parts = np.array_split(np.arange(len(labels)), 8)
objectives = [
    MultinomialLogistic(
        pixels[part] / 16.0, labels[part], l2=0.01, num_classes=10, intercept=False
    )
    for part in parts
]
app = client_app(lambda context: objectives[int(context.node_config["partition-id"])])
weights = np.array([len(part) for part in parts]) / len(labels)
start = {entry.name: np.zeros(entry.shape) for entry in objectives[0].layout.optimized}

# %%
# FedDR's steps are the better two of three; with all clients it is the paper's FedDyn of the penalty 1 / step. The
# coefficients are all regularised, without an intercept, because DualFL needs losses that are strongly convex in every
# direction.


def energy(arrays):
    w = np.concatenate([arrays[key].numpy().ravel() for key in start])
    return float(weights @ [f.value(w) for f in objectives])


def run(strategy, **options):
    return simulate(
        strategy,
        app,
        num_nodes=8,
        num_rounds=30,
        initial_arrays=start,
        progress=False,
        **options,
    )


energies = {}
strategies = {
    "DualFL": DualFL(nu=0.01, rho=0.003, fraction_evaluate=0.0),
    "FedDR, step 100": FedDR(step=100.0, fraction_evaluate=0.0),
    "FedDR, step 10": FedDR(step=10.0, fraction_evaluate=0.0),
}
for name, strategy in strategies.items():
    energies[name] = found = []
    run(
        strategy, evaluate_fn=lambda number, arrays, to=found: to.append(energy(arrays))
    )

# %%
# The minimum itself is FedNewton's.

best = energy(run(FedNewton(tolerance=1e-13, fraction_evaluate=0.0)).arrays)
for (name, found), color in zip(
    energies.items(), ("#0072B2", "0.4", "0.7"), strict=True
):
    plt.semilogy(np.array(found) / best - 1.0, color=color, label=name)
plt.xlabel("round")
plt.ylabel("relative energy error")
plt.legend()
plt.show()

first = {name: found[1] - best for name, found in energies.items()}
assert all(first["DualFL"] < first[name] / 7 for name in first if name != "DualFL"), (
    first
)
for number in (1, 10, 30):
    reached = {name: found[number] for name, found in energies.items()}
    assert min(reached, key=reached.__getitem__) == "DualFL", (number, reached)
