"""Draw docs/images/curse.png: the curse of primal averaging, measured. Run: python docs/make_curse.py.

How many coefficients are not 0 in each client's model at the end of its local work, and in the server's, on the digits
of `flwr run .` (10 clients, non-IID): for FedMid without a proximal step on the server, for FedMid as printed, and for
FedDualAvg. It is figure 2 of Yuan, Zaheer, Reddi (2021) on data that come with scikit-learn. The strategies are driven
by hand, without Flower: their mathematics does not need it.
"""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from matplotlib.figure import Figure

from flwr_fco.algorithms import Replies
from flwr_fco.client_apps.training import find_solver
from flwr_fco.core.randomness import random_generator
from flwr_fco.datasets import digits
from flwr_fco.pooled import density
from flwr_fco.regularizers import L1
from flwr_fco.strategies import CompositeStrategy, FedDualAvg, FedMid, run_of

ROUNDS, CLIENTS, STRENGTH = 300, 10, 2e-3


def densities(strategy: CompositeStrategy) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of each client's model in each round, and of the server's after it."""
    data = digits(CLIENTS, alpha=0.3, seed=0)
    clients = data.objectives()
    block = clients[0].layout["coefficients"].block
    total = sum(client.num_examples for client in clients)
    start = {"coefficients": np.zeros((64, 10)), "intercept": np.zeros(10)}
    run = run_of(strategy)
    run.prepare(ArrayRecord({name: Array(array) for name, array in start.items()}))
    algorithm, state, (client_lr, server_lr) = run.algorithm, run.state, run.rates()
    solve = find_solver(algorithm.name)
    local, server = [], []
    for number in range(1, ROUNDS + 1):
        problem = run.problem._replace(round=number, client_lr=client_lr, server_lr=server_lr)
        uplinks = []
        row = []
        for m, client in enumerate(clients):
            downlink = algorithm.downlink(problem, state, None)
            uplink, _ = solve(downlink, client, None, random_generator(strategy.seed, number, m))
            uplinks.append(uplink._replace(weight=client.num_examples / total))
            if isinstance(strategy, FedDualAvg):
                dual = state.dual + uplink.vectors["increment"]
                model = problem.retrieve(dual, state.elapsed + uplink.elapsed)
            else:
                model = state.primal + uplink.vectors["increment"]
                # w_0 + (w_K - w_0) is not w_K to the last bit, and an exact zero is what is counted.
                model[np.abs(model) < 1e-14] = 0.0
            row.append(density(model[block]))
        state = algorithm.aggregate(problem, state, Replies(uplinks))
        local.append(row)
        server.append(density(algorithm.retrieve(problem, state)[block]))
    return np.array(local), np.array(server)


def main() -> None:
    """Draw the picture and print the last numbers."""
    figure = Figure(figsize=(8.8, 3.5), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    rounds = np.arange(1, ROUNDS + 1)
    options = {"regularizer": L1(STRENGTH), "client_lr": 0.1}
    strategies = {
        "FedMid(server_prox=False):\naverages models": FedMid(server_prox=False, **options),
        "FedMid: averages models,\nthen a proximal step": FedMid(**options),
        "FedDualAvg: averages duals,\nthen a proximal step": FedDualAvg(server_lr=10.0, **options),
    }
    for axes, (name, strategy) in zip(panels, strategies.items(), strict=True):
        local, server = densities(strategy)
        axes.plot(rounds, local, color="0.75", linewidth=0.7)
        color = "#0072B2" if isinstance(strategy, FedDualAvg) else "0.3"
        axes.plot(rounds, server, color=color, linewidth=2.2)
        ends = {"server": (server[-1], color), "clients": (local[-1].mean(), "0.45")}
        if abs(server[-1] - local[-1].mean()) < 0.05:
            ends = {"server and clients": (server[-1], color)}
        for who, (height, shade) in ends.items():
            text = f"{who} {height:.2f}"
            place = (height - 0.03, "top") if len(ends) == 1 else (height + 0.05, "bottom")
            axes.text(ROUNDS, place[0], text, color=shade, ha="right", va=place[1], fontsize=11)
        axes.set_title(name, fontsize=11)
        axes.set_xlabel("round")
        axes.spines[["top", "right"]].set_visible(False)
        print(f"{' '.join(name.split())}: clients {local[-1].mean():.3f} (mean of {CLIENTS}), server {server[-1]:.3f}")
    panels[0].set_ylabel("density: share that is not 0")
    panels[0].set_ylim(0, 1)
    figure.suptitle("Averaging sparse models makes a dense one", x=0.01, ha="left", fontweight="bold")
    path = Path(__file__).parent / "images" / "curse.png"
    figure.savefig(path, dpi=200)
    print(path)


if __name__ == "__main__":
    main()
