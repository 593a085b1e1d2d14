"""
Rock, paper, scissors and a well: five clients find the equilibrium to 0.01
===========================================================================

In this game the well beats rock and scissors, and paper beats the well: nobody should play rock. Five clients see the
payoffs with noise. :class:`~flwr_fco.strategies.FeDualEx` averages duals with an extra step, in the geometry of
entropy.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linprog

from flwr_fco import (
    BilinearSaddle,
    FeDualEx,
    Product,
    SimplexEntropy,
    Steps,
    client_app,
    simulate,
)

MOVES = ["rock", "paper", "scissors", "well"]
payoff = np.array(
    [[0, 1, -1, 1], [-1, 0, 1, -1], [1, -1, 0, 1], [-1, 1, -1, 0]], dtype=float
)
path = []
strategy = FeDualEx(
    mirror_map=Product({"*": SimplexEntropy()}),
    client_lr=0.1,
    work=Steps(10, batch_size=1),
    fraction_evaluate=0.0,
)
result = simulate(
    strategy,
    client_app(lambda context: BilinearSaddle(payoff.T, noise=0.1)),
    num_nodes=5,
    num_rounds=300,
    initial_arrays={"x": np.full(4, 0.25), "y": np.full(4, 0.25)},
    evaluate_fn=lambda number, arrays: path.append(arrays["x"].numpy().copy()),
    progress=False,
)

# %%
# The row player's linear program: the least v with payoff' x <= v for a distribution x.
rows = np.hstack([payoff.T, -np.ones((4, 1))])
sums = {
    "A_eq": [[1, 1, 1, 1, 0]],
    "b_eq": [1],
    "bounds": [(0, None)] * 4 + [(None, None)],
}
equilibrium = linprog([0, 0, 0, 0, 1], A_ub=rows, b_ub=np.zeros(4), **sums).x[:4]
distances = [
    np.abs(np.mean(path[1:end], axis=0) - equilibrium).max()
    for end in range(2, len(path) + 1)
]
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
axes.plot(distances, color="#0072B2", linewidth=2)
axes.set(yscale="log", xlabel="round", ylabel="largest distance of a probability")
axes.set_title(
    "The mean strategy ends at the equilibrium", loc="left", fontweight="bold"
)
axes.spines[["top", "right"]].set_visible(False)
assert distances[-1] < 0.01
assert result.arrays["x"].numpy()[MOVES.index("rock")] < 1e-6
