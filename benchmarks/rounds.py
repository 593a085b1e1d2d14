"""Rounds per second of the in-process grid, beside Flower's Ray simulation of the same app.

    python benchmarks/rounds.py            about three minutes
    python benchmarks/rounds.py --quick    small numbers of rounds (about half a minute)

LASSO dataset I of 'Federated Composite Optimization': 64 clients with 128 rows of 1,024 features (float64), 10 of them
a round, one epoch of batch 10 (13 local steps), l1 norm, evaluation off. Medians of several runs in one session. All
but the bare loops run the same Strategy and ClientApp objects through Flower's Messages.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from flwr_fco.client_apps import client_app
from flwr_fco.core.randomness import random_generator
from flwr_fco.datasets import lasso
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate, warmup
from flwr_fco.strategies import FedAvgSubgradient, FedDualAvg, FedMid

NODES, SAMPLE, BATCH, RATE, STRENGTH = 64, 10, 10, 0.001, 0.2
OPTIONS = {
    "regularizer": L1(STRENGTH),
    "client_lr": RATE,
    "batch_size": BATCH,
    "fraction_train": SAMPLE / NODES,
    "fraction_evaluate": 0.0,
}


def load(context: Context) -> LeastSquares:
    """Generate the shard where it is needed: nothing but numbers travels to Ray's workers."""
    return lasso("I").objective(int(context.node_config["partition-id"]))


def start_arrays(features: int) -> ArrayRecord:
    return ArrayRecord({"coefficients": Array(np.zeros(features)), "intercept": Array(np.zeros(1))})


def ordinary_client(objectives: list[LeastSquares]) -> ClientApp:
    """Return a FedAvg client as people write it: NumPy, Flower's own conversions."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = objectives[int(context.node_config["partition-id"])]
        coefficients, intercept = message.content["arrays"].to_numpy_ndarrays()
        rng = np.random.default_rng((int(message.content["config"]["server-round"]), context.node_id))
        order = rng.permutation(objective.num_examples)
        for start in range(0, order.size, BATCH):
            x, y = objective.features[order[start : start + BATCH]], objective.targets[order[start : start + BATCH]]
            residual = x @ coefficients + intercept - y
            coefficients = coefficients - 2 * RATE / len(y) * (residual @ x)
            intercept = intercept - 2 * RATE * residual.mean()
        arrays = ArrayRecord({"coefficients": Array(coefficients), "intercept": Array(intercept)})
        metrics = MetricRecord({"num-examples": objective.num_examples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def bare_loop(objectives: list[LeastSquares], rounds: int) -> None:
    """Run the same algorithm with plain NumPy and no messages at all."""
    size = objectives[0].layout.size
    dual, elapsed = np.zeros(size), 0.0
    for number in range(1, rounds + 1):
        chosen = random_generator(0, number, 0, 2).choice(NODES, SAMPLE, replace=False)
        total = np.zeros(size)
        for m in np.sort(chosen):
            objective = objectives[m]
            order = random_generator(0, number, int(m)).permutation(objective.num_examples)
            z = dual.copy()
            for k, start in enumerate(range(0, order.size, BATCH)):
                w = z.copy()
                threshold = STRENGTH * (elapsed + RATE * k)
                w[:-1] -= np.clip(z[:-1], -threshold, threshold)
                rows = order[start : start + BATCH]
                x = objective.features[rows]
                residual = x @ w[:-1] + w[-1] - objective.targets[rows]
                z[:-1] -= 2 * RATE / rows.size * (residual @ x)
                z[-1] -= 2 * RATE * residual.mean()
            total += z - dual
        dual = dual + total / SAMPLE
        elapsed += RATE * -(-objectives[0].num_examples // BATCH)


def flower_simulation(rounds: int) -> float:
    """Return the rounds per second of Flower's Ray simulation, start-up and first rounds not counted."""
    from flwr.simulation import run_simulation

    seconds: list[float] = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        # Half of the clients' data are generated in the first rounds; the clock starts after them.
        warm = max(rounds, 8)
        stamps: list[float] = []
        FedDualAvg(**OPTIONS).start(
            grid,
            start_arrays(1024),
            warm + rounds,
            callbacks=[lambda number, arrays, metrics: stamps.append(time.perf_counter())],
        )
        seconds.append((stamps[-1] - stamps[warm - 1]) / rounds)

    run_simulation(
        server_app=app,
        client_app=client_app(load),
        num_supernodes=NODES,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"include_dashboard": False}},
    )
    return 1.0 / seconds[0]


def rate_of(call: Callable[[int], object], rounds: int, runs: int) -> tuple[float, float, float]:
    """Return the minimum, median and maximum of the rounds per second over several runs."""
    call(3)
    rates = []
    for _ in range(runs):
        start = time.perf_counter()
        call(rounds)
        rates.append(rounds / (time.perf_counter() - start))
    return min(rates), statistics.median(rates), max(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and runs")
    parser.add_argument("--no-ray", action="store_true", help="leave Flower's simulation out")
    arguments = parser.parse_args()
    rounds, runs, ray_rounds = (60, 3, 10) if arguments.quick else (500, 7, 60)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    warmup()
    objectives = lasso("I").objectives()
    app = client_app(lambda context: objectives[int(context.node_config["partition-id"])])

    def grid(strategy, client=app):
        def call(number: int) -> None:
            with contextlib.redirect_stderr(io.StringIO()):
                simulate(
                    strategy(),
                    client,
                    num_nodes=NODES,
                    num_rounds=number,
                    initial_arrays=start_arrays(1024),
                    progress=False,
                )

        return call

    ordinary = ordinary_client(objectives)
    cases: dict[str, Callable[[int], object]] = {
        "FedDualAvg, in process": grid(lambda: FedDualAvg(**OPTIONS)),
        "FedMid, in process": grid(lambda: FedMid(**OPTIONS)),
        "FedAvgSubgradient, in process": grid(lambda: FedAvgSubgradient(**OPTIONS)),
        "Flower's FedAvg and an ordinary client, in process": grid(
            lambda: FedAvg(fraction_train=SAMPLE / NODES, fraction_evaluate=0.0), ordinary
        ),
        "FedDualAvg as a bare NumPy loop, no messages": lambda number: bare_loop(objectives, number),
    }
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} cores, {runs} runs each\n")
    print(f"{'':52} {'rounds/s: min':>13} {'median':>8} {'max':>8} {'x Flower':>9}")
    flower = None
    if not arguments.no_ray:
        flower = flower_simulation(ray_rounds)
        print(f"{'FedDualAvg, Flower simulation (Ray)':52} {'':>13} {flower:8.1f} {'':>8} {1:9.1f}", flush=True)
    for name, call in cases.items():
        low, middle, high = rate_of(call, rounds, runs)
        ratio = "" if flower is None else f"{middle / flower:9.1f}"
        print(f"{name:52} {low:13.0f} {middle:8.0f} {high:8.0f} {ratio:>9}", flush=True)


if __name__ == "__main__":
    main()
