"""Draw docs/images/curse.png: the curse of primal averaging, measured. Run: python benchmarks/pages/make_curse.py.

How many coefficients are not 0 in each client's model at the end of its local work, and in the server's, on the digits
of `flwr run .` (10 clients, non-IID): for FedMid without a proximal step on the server, for FedMid as printed, and for
FedDualAvg. It is figure 2 of Yuan, Zaheer, Reddi (2021) on data that come with scikit-learn.
"""

import numpy as np
from matplotlib.figure import Figure
from writing import OURS, federate, save, without_frame

from flwr_fco.datasets import digits
from flwr_fco.regularizers import L1
from flwr_fco.strategies import CompositeStrategy, FedDualAvg, FedMid
from reproduction.densities import noting
from reproduction.pooled import density

ROUNDS = 300
CLIENTS = 10
STRENGTH = 2e-3


def densities(strategy: CompositeStrategy) -> tuple[np.ndarray, np.ndarray]:
    """Return the density of each client's model in each round, and of the server's after it."""
    clients = digits(CLIENTS, alpha=0.3, seed=0).objectives()
    block = clients[0].layout["coefficients"].block
    local, server = [], []

    def note(number: int, models: list[np.ndarray], model: np.ndarray) -> None:
        # w_0 + (w_K - w_0) is not w_K to the last bit, and an exact zero is what is counted.
        local.append([density(own[block], 1e-14) for own in models])
        server.append(density(model[block]))

    start = {"coefficients": np.zeros((64, 10)), "intercept": np.zeros(10)}
    federate(noting(strategy, note), clients, ROUNDS, start)
    return np.array(local), np.array(server)


def main() -> None:
    """Draw the picture and print the last numbers."""
    figure = Figure(figsize=(8.8, 3.5), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    rounds = np.arange(1, ROUNDS + 1)
    options = {"regularizer": L1(STRENGTH), "client_lr": 0.1, "fraction_evaluate": 0.0}
    strategies = {
        "FedMid(server_prox=False):\naverages models": FedMid(server_prox=False, **options),
        "FedMid: averages models,\nthen a proximal step": FedMid(**options),
        "FedDualAvg: averages duals,\nthen a proximal step": FedDualAvg(server_lr=10.0, **options),
    }
    for axes, (name, strategy) in zip(panels, strategies.items(), strict=True):
        local, server = densities(strategy)
        axes.plot(rounds, local, color="0.75", linewidth=0.7)
        color = OURS if isinstance(strategy, FedDualAvg) else "0.3"
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
        without_frame(axes)
        print(f"{' '.join(name.split())}: clients {local[-1].mean():.3f} (mean of {CLIENTS}), server {server[-1]:.3f}")
    panels[0].set_ylabel("density: share that is not 0")
    panels[0].set_ylim(0, 1)
    save(figure, "curse.png", "Averaging sparse models makes a dense one")


if __name__ == "__main__":
    main()
