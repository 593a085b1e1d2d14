"""
Liang, Peng, Zhang: on a chain of unequal nodes, trackers end 10 times closer to the solution
=============================================================================================

The comparison of figure 1 in small: a regression over a chain of 8 nodes with features and models of
their own. DFedDA stops where the nodes' gradients differ; DFedDA-GT tracks the difference.
``python -m reproduction reproduce gt-fig1`` runs the paper's own size.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import DFedDA, DFedDAGT, LeastSquares, PNorm, Steps, client_app, simulate

NODES = 8
SIZE = 32
rng = np.random.default_rng(0)
truth = np.repeat([1.0, 0.0], [4, SIZE - 4])
objectives = []
moments = 0.0
right = 0.0
for _ in range(NODES):
    features = rng.normal(size=(64, SIZE)) * np.exp(rng.normal(0.0, 0.5, SIZE))
    targets = features @ (truth + rng.normal(size=SIZE))
    objectives.append(LeastSquares(features, targets, scale=0.5, intercept=False))
    moments, right = moments + features.T @ features, right + features.T @ targets
solution = np.linalg.solve(moments, right)
app = client_app(lambda context: objectives[int(context.node_config["partition-id"])])

# %%
# Both methods take 10 local steps per round in the geometry of the p-norm, p = 4.

errors = {}
for strategy in (DFedDA, DFedDAGT):
    errors[strategy.__name__] = found = []
    simulate(
        strategy(
            mixing="chain",
            mirror_map=PNorm(4.0),
            client_lr=0.08,
            work=Steps(10, batch_size=None),
            fraction_evaluate=0.0,
        ),
        app,
        num_nodes=NODES,
        num_rounds=250,
        initial_arrays={"coefficients": np.zeros(SIZE)},
        evaluate_fn=lambda number, arrays, found=found: found.append(
            np.abs(arrays["coefficients"].numpy() - solution).sum()
        ),
        progress=False,
    )

# %%

for (name, found), color in zip(errors.items(), ("0.5", "#0072B2"), strict=True):
    plt.semilogy(found, color=color, label=name)
plt.xlabel("round")
plt.ylabel("l1 distance to the solution")
plt.legend()
plt.show()

last = {name: found[-1] for name, found in errors.items()}
assert last["DFedDAGT"] < last["DFedDA"] / 10, last
