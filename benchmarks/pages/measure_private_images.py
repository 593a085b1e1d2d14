"""MNIST with privacy, for docs/benchmarks/privacy.md: FedDualAvg with l1 beside FedAvg under Flower's central privacy.

    python benchmarks/pages/measure_private_images.py --data ~/data/mnist --clients 1000   (about an hour of one core)
    python benchmarks/pages/measure_private_images.py --tables                             tables and picture of these

Multinomial logistic regression (784 x 10 and an intercept), one gradient of all of its images by each client that is
asked, the same number of rounds and the same expected number of clients a round for all. FedAvg's noise multiplier is
that of Poisson sampling, which its sampling of a fixed number only resembles: in its favour. Every method chooses its
constants by the accuracy on 10,000 images that nobody trains on, of a model in which at most a fifth of the weights is
not 0, with the same number of trial runs: the best of its constants is improved by factors of two until none is better
or the trials are spent. FedAvg's weights are cut to its largest fifth. Then five more seeds are measured on the test
images, FedAvg's as they are and cut to the density of each of the others. Each run is a line of
benchmarks/stored/private_images.jsonl; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from matplotlib.figure import Figure
from writing import OURS, federate, partition, row_of, save, table_of, without_frame

from flwr_fco import L1, FedDualAvg, GaussianDP, MultinomialLogistic
from flwr_fco.privacy import Accountant
from flwr_fco.strategies import Steps
from reproduction.data.images import mnist, on_clients

STORED = Path(__file__).parents[1] / "stored" / "private_images.jsonl"
ROUNDS = 100
HELD_OUT = 10_000
DENSITY = 0.2
TUNING_SEED = 100
#: Clients: fraction a round, delta.
FEDERATIONS = {1_000: (0.1, 1e-4), 10_000: (0.02, 1e-5)}
METHODS = ("banded", "independent", "FedAvg")
#: Where the search begins: the rate of a step, the clip of a gradient, the strength of l1.
BEGIN = {"client_lr": 1.0, "clip": 0.5, "strength": 0.004}
TRIALS = 20


@lru_cache(maxsize=1)
def federation(path: str, clients: int, seed: int):
    """Return the clients' objectives, and images that nobody trains on, for tuning and for the test."""
    data = on_clients(mnist(path), num_clients=1)
    images = data.client(0)
    order = np.random.default_rng([seed, clients]).permutation(len(images.targets))
    held_out = order[:HELD_OUT]
    rest = np.array_split(order[HELD_OUT:], clients)
    objectives = [
        MultinomialLogistic(images.features[rows], images.targets[rows].astype(np.int64), num_classes=10)
        for rows in rest
    ]
    return objectives, (images.features[held_out], images.targets[held_out]), data.test_examples()


def noise_multiplier(method: str, fraction: float, epsilon: float, delta: float) -> float:
    """Return what an epsilon costs: 0 for infinity."""
    if epsilon == np.inf:
        return 0.0
    blocks = int(1.0 / fraction)
    mechanism = Accountant(separation=blocks, bands=blocks) if method == "banded" else Accountant(fraction)
    return mechanism.noise_multiplier(epsilon, ROUNDS, delta)


def fed_avg_app(objectives, client_lr: float) -> ClientApp:
    """Return a client that knows nothing of this package's strategies: one gradient step."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = objectives[partition(context)]
        arrays = message.content["arrays"].to_numpy_ndarrays()
        w = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
        w -= client_lr * objective.gradient(w)
        weights = w[:7840].reshape(784, 10)
        intercept = w[7840:]
        record = ArrayRecord({"coefficients": Array(weights), "intercept": Array(intercept)})
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def model(path: str, clients: int, method: str, epsilon: float, seed: int, constants: dict[str, float]):
    """Return the model of a run, flat."""
    objectives, *_ = federation(path, clients, 0)
    fraction, delta = FEDERATIONS[clients]
    client_lr, clip = constants["client_lr"], constants["clip"]
    sigma = noise_multiplier(method, fraction, epsilon, delta)
    if method == "FedAvg":
        np.random.seed(seed)  # noqa: NPY002 (Flower draws its noise and its sample from the global generators)
        per_round = int(fraction * clients)
        strategy = FedAvg(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=1)
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, sigma, clip * client_lr, per_round)
        app = fed_avg_app(objectives, client_lr)
    else:
        strategy = FedDualAvg(
            regularizer=L1(constants["strength"]),
            client_lr=client_lr,
            work=Steps(1, batch_size=None),
            fraction_train=fraction,
            fraction_evaluate=0.0,
            min_train_nodes=1,
            weighting="uniform",
            normalize_local_work=False,
            seed=seed,
            privacy=GaussianDP(clip=clip * client_lr, delta=delta, noise_multiplier=sigma, noise=method),
        )
        app = objectives
    start = {"coefficients": np.zeros((784, 10)), "intercept": np.zeros(10)}
    result = federate(strategy, app, ROUNDS, start, nodes=clients)
    return result.arrays["coefficients"].numpy(), result.arrays["intercept"].numpy()


def accuracy(weights, intercept, examples) -> float:
    features, labels = examples
    return float(np.mean(np.argmax(features @ weights + intercept, axis=1) == labels))


def cut(weights, density=DENSITY):
    """Return the largest weights, by default a fifth of them."""
    least = np.sort(np.abs(weights), axis=None)[-max(1, int(density * weights.size))]
    return np.where(np.abs(weights) >= least, weights, 0.0)


class Runs:
    """Runs that are stored, and those that are not yet."""

    def __init__(self, path: str) -> None:
        self.path = path
        lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
        self.rows = {self._key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def _key(row) -> str:
        return json.dumps([row[name] for name in ("clients", "method", "epsilon", "seed", "constants")])

    def row(self, clients: int, method: str, epsilon: float, seed: int, constants: dict[str, float], densities=()):
        """Return a run's numbers, also of its model cut to other densities."""
        row = {"clients": clients, "method": method, "epsilon": epsilon, "seed": seed, "constants": constants}
        known = self.rows.get(self._key(row))
        if known is not None and all(f"{density:.4f}" in known.get("cut", {}) for density in densities):
            return known
        weights, intercept = model(self.path, clients, method, epsilon, seed, constants)
        _, held_out, data = federation(self.path, clients, 0)
        sparse = weights if np.count_nonzero(weights) <= DENSITY * weights.size else cut(weights)
        test = (data.features, data.targets)
        row |= {
            "density": float(np.mean(weights != 0.0)),
            "tuning": accuracy(sparse, intercept, held_out),
            "accuracy": accuracy(weights, intercept, test),
            "sparse": accuracy(sparse, intercept, test),
            "cut": {f"{density:.4f}": accuracy(cut(weights, density), intercept, test) for density in densities},
        }
        self.rows[self._key(row)] = row
        with STORED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def score(self, clients: int, method: str, epsilon: float, constants: dict[str, float]) -> float:
        """Return what a method is tuned by: l1 has to reach the density itself."""
        row = self.row(clients, method, epsilon, TUNING_SEED, constants)
        if method != "FedAvg" and row["density"] > DENSITY:
            return DENSITY - row["density"]
        return row["tuning"]

    def best(self, clients: int, method: str, epsilon: float) -> tuple[dict[str, float], bool]:
        """Return the best constants, and whether all of their neighbours were tried."""
        names = [name for name in BEGIN if method != "FedAvg" or name != "strength"]
        scores: dict[str, float] = {}

        def tried(constants):
            key = json.dumps(constants)
            if key not in scores and len(scores) < TRIALS:
                scores[key] = self.score(clients, method, epsilon, constants)
            return scores.get(key, -np.inf)

        here = {name: BEGIN[name] for name in names}
        tried(here)
        while True:
            around = [{**here, name: here[name] * factor} for name in names for factor in (0.5, 2.0)]
            found = max(around, key=tried)
            if tried(found) <= tried(here):
                return here, all(json.dumps(constants) in scores for constants in around)
            here = found


def measure(path: str, clients: int, seeds: int, epsilons: list[float]) -> None:
    runs = Runs(path)
    for epsilon in epsilons:
        for method in METHODS if epsilon < np.inf else ("banded", "FedAvg"):
            constants, inside = runs.best(clients, method, epsilon)
            densities = [_median(rows, "density") for rows in chosen(runs, clients, epsilon).values()]
            densities = densities if method == "FedAvg" else []
            rows = [runs.row(clients, method, epsilon, seed, constants, densities) for seed in range(seeds)]
            how = "inside" if inside else "trials spent"
            print(clients, method, epsilon, constants, how, _spread(rows, "sparse"), flush=True)


def chosen(runs: Runs, clients: int, epsilon: float):
    """Return the measured rows of our methods with the constants that were chosen for them, as far as there are any."""
    every = [row for row in runs.rows.values() if (row["clients"], row["epsilon"]) == (clients, epsilon)]
    tested = [row for row in every if row["seed"] != TUNING_SEED]
    return {name: rows for name in METHODS[:-1] if (rows := [row for row in tested if row["method"] == name])}


def tables() -> None:
    """Print the tables of docs/benchmarks/privacy.md from what is stored, and draw their picture."""
    runs = Runs("")
    labels = {"banded": "FedDualAvg, banded", "independent": "FedDualAvg, Poisson sampling"}
    figure = Figure(figsize=(8.8, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, clients in zip(panels, FEDERATIONS, strict=True):
        print(f"\n{clients:,} clients\n")
        head = ("epsilon", "method", "accuracy", "density", "FedAvg cut to that density", "FedAvg as it is")
        print(table_of(head, []))
        lines = {name: [] for name in labels}
        dense = {}
        every = [row for row in runs.rows.values() if row["clients"] == clients]
        for epsilon in sorted({row["epsilon"] for row in every}):
            of = [row for row in every if row["epsilon"] == epsilon and row["seed"] != TUNING_SEED]
            rival = [row for row in of if row["method"] == "FedAvg" and "cut" in row]
            for method, rows in chosen(runs, clients, epsilon).items():
                density = _median(rows, "density")
                theirs = [{"cut": row["cut"][f"{density:.4f}"]} for row in rival if f"{density:.4f}" in row["cut"]]
                if len(theirs) < len(rows):
                    continue
                name = labels[method] if epsilon < np.inf else "FedDualAvg, no noise"
                numbers = (_spread(rows, "accuracy"), f"{density:.1%}", _spread(theirs, "cut"))
                print(row_of([f"{epsilon:g}", name, *numbers, _spread(rival, "accuracy")]))
                if epsilon < np.inf:
                    lines[method].append((epsilon, _median(rows, "accuracy"), _median(theirs, "cut")))
                    dense[epsilon] = _median(rival, "accuracy")
                else:
                    panel.axhline(_median(rows, "accuracy"), color="black", linestyle="--", linewidth=1)
        for (method, points), marker in zip(lines.items(), "o^", strict=True):
            if points:
                epsilons, ours, theirs = zip(*points, strict=True)
                panel.plot(epsilons, ours, f"{marker}-", color=OURS, label=labels[method])
                panel.plot(epsilons, theirs, f"{marker}:", color="0.5", mfc="none")
        panel.plot(*zip(*sorted(dense.items()), strict=True), "-", color="0.5", label="FedAvg, dense")
        panel.plot([], [], ":", color="0.5", label="FedAvg, cut to the density of the same mark")
        panel.plot([], [], "--", color="black", label="FedDualAvg without noise")
        panel.set(xscale="log", xlabel="epsilon", title=f"{clients:,} clients")
        panel.set_xticks([1, 2, 8], ["1", "2", "8"])
        panel.minorticks_off()
        without_frame(panel)
    panels[0].set_ylabel("accuracy on MNIST")
    look = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 10}
    figure.legend(*panels[0].get_legend_handles_labels(), **look)
    title = "At equal density, banded noise and Poisson sampling keep up with FedAvg; dense FedAvg leads"
    save(figure, "private-images.png", title, fontsize=11)


def _median(rows, name: str) -> float:
    return statistics.median(row[name] for row in rows)


def _spread(rows, name: str) -> str:
    values = [row[name] for row in rows]
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's four files")
    parser.add_argument("--clients", type=int, default=1_000, choices=list(FEDERATIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0, 8.0, np.inf])
    parser.add_argument("--tables", action="store_true", help="only print and draw what is stored")
    given = parser.parse_args()
    if given.tables:
        tables()
        return
    measure(given.data, given.clients, given.seeds, given.epsilon)


if __name__ == "__main__":
    main()
