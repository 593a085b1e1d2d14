"""
Rock, paper, scissors and a well: five clients find the equilibrium to 0.01
===========================================================================

In this game the well beats rock and scissors, and paper beats the well: nobody should play rock. Five clients see the
payoffs with noise. :class:`~flwr_fco.strategies.FeDualEx` averages duals with an extra step, in the geometry of entropy.
"""

import matplotlib.pyplot as plt
import numpy as np

from flwr_fco import FeDualEx, MatrixGame, Product, SimplexEntropy, Steps, client_app, simulate

MOVES = ["rock", "paper", "scissors", "well"]
payoff = np.array([[0, 1, -1, 1], [-1, 0, 1, -1], [1, -1, 0, 1], [-1, 1, -1, 0]], dtype=float)
path = []
strategy = FeDualEx(
    mirror_map=Product({"*": SimplexEntropy()}),
    client_lr=0.1,
    work=Steps(10, batch_size=1),
    output="ergodic",
    fraction_evaluate=0.0,
)
result = simulate(
    strategy,
    client_app(lambda context: MatrixGame(payoff, noise=0.1)),
    num_nodes=5,
    num_rounds=300,
    initial_arrays={"x": np.full(4, 0.25), "y": np.full(4, 0.25)},
    evaluate_fn=lambda number, arrays: path.append(arrays["x"].numpy().copy()),
    progress=False,
)

# %%
from flwr_fco.pooled import game_solution  # noqa: E402

equilibrium = game_solution(payoff)
print(equilibrium, result.arrays["x"].numpy(), path[-1])
