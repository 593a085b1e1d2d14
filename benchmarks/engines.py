"""What a round costs on each engine, beside a bare compiled loop: CPU time of the whole process tree, and wall time.

    python benchmarks/engines.py              in process, and with messages (about two minutes)
    python benchmarks/engines.py --quick      fewer rounds (half a minute)
    python benchmarks/engines.py --ray        Ray actors and Flower's own Ray simulation too
    python benchmarks/engines.py --pictures docs/performance.svg    time against d, clients and known clients
    python benchmarks/engines.py --store      write the ratios to benchmarks/engines.json
    python benchmarks/engines.py --compare    exit code 1 if a ratio is more than 30 % worse than the stored one

LASSO dataset I of 'Federated Composite Optimization': 64 clients with 128 rows of 1,024 features (float64), 10 of them
a round, one epoch of batch 10, l1 norm, evaluation off. The cases alternate, so that a busy machine is as busy for all
of them; medians. Then rounds with 1,000 and 100,000 known clients, 100 of them asked; rounds with 1,000 clients of
10,000 coefficients, one step each, as a whole and in the server's process alone; with --ray clients of a fifth of a
second.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import flwr
import numba
import numpy as np
from shared import (
    BATCH,
    NODES,
    OPTIONS,
    RATE,
    SAMPLE,
    STRENGTH,
    Marks,
    cpu_seconds,
    federate,
    holding,
    load,
    options_of,
    partition,
    start_arrays,
)

from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import random_generator
from flwr_fco.core.layout import Layout
from flwr_fco.datasets import lasso
from flwr_fco.kernels.dual_averaging import NOTHING, dual_averaging
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.models import write_file
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import CompositeStrategy, Epochs, FedDualAvg, Steps
from tools.local_superlink import descendants

STORED = Path(__file__).with_suffix(".json")
#: By how much a ratio may be worse than the stored one.
TOLERANCE = 1.3
#: What the parts of a round are called.
PARTS = {CompositeStrategy: ("configure_train", "aggregate_train"), InProcessGrid: ("uplinks",)}
#: Where clients of a run on Ray are.
RAY: dict[str, Any] = {"engine": "ray", "workers": 2}


def tree_seconds() -> float:
    """Return the CPU seconds of this process, its descendants, and those of them that have ended."""
    # The clock of this process itself is finer than the ticks.
    return time.process_time() + cpu_seconds(descendants(os.getpid()))


def bare_loop(objectives: list[LeastSquares], rounds: int) -> None:
    """Run the algorithm with the compiled kernel and the same draws, and nothing else."""
    layout: Layout = objectives[0].layout
    retrieval = Euclidean().bind(layout).compiled(L1(STRENGTH).bind(layout))
    losses = [objective.compiled for objective in objectives]
    dual = np.zeros(layout.size)
    elapsed = 0.0
    for number in range(1, rounds + 1):
        chosen = random_generator(0, number, 0, 2).choice(NODES, SAMPLE, replace=False)
        total = np.zeros(layout.size)
        spent = 0.0
        for m in np.sort(chosen):
            order = random_generator(0, number, int(m)).permutation(objectives[m].num_examples)
            z = dual.copy()
            dual_averaging(losses[m], order, len(order), BATCH, False, tuple(retrieval), elapsed, RATE, 0.0, NOTHING, z)
            spent = RATE * -(-order.size // BATCH)
            total += (z - dual) / SAMPLE
        dual, elapsed = dual + total, elapsed + spent


def run(rounds: int, app, **options) -> None:
    """Simulate FedDualAvg on LASSO I."""
    federate(FedDualAvg(**OPTIONS), app, rounds, start_arrays(1024), nodes=NODES, **options)


def passing(message, context, call_next):
    """A mod that does nothing: with it everything travels in messages."""
    return call_next(message, context)


def measured(cases: dict[str, Callable[[int], object]], rounds: int, runs: int) -> dict[str, tuple[float, float]]:
    """Return CPU and wall milliseconds a round: a long run less a short one, so that what happens once is out."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for number in range(runs + 1):
        for name, call in cases.items():
            stamps = []
            for length in (rounds // 5, rounds):
                cpu = tree_seconds()
                wall = time.perf_counter()
                call(length)
                stamps.append((tree_seconds() - cpu, time.perf_counter() - wall))
            if number:
                each = 1e3 / (rounds - rounds // 5)
                found[name].append(tuple((stamps[1][i] - stamps[0][i]) * each for i in (0, 1)))
    return {name: tuple(statistics.median(pair[i] for pair in own) for i in (0, 1)) for name, own in found.items()}


def flower_simulation(rounds: int, strategy, clients, nodes: int, start, warm: int) -> list[float]:
    """Return CPU and wall milliseconds a round of Flower's Ray simulation, without its start."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    marks = Marks(tree_seconds, time.perf_counter)
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy.start(grid, start, warm + rounds, callbacks=[marks])

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"include_dashboard": False}}
    run_simulation(server_app=app, client_app=clients, num_supernodes=nodes, backend_config=resources)
    return a_round(marks, warm, rounds)


def a_round(marks: Marks, warm: int, rounds: int) -> list[float]:
    """Return the mean milliseconds of the rounds after the first ones."""
    return [(end - begin) / rounds * 1e3 for begin, end in zip(marks[warm - 1], marks[-1], strict=True)]


def known_clients(number: int, rounds: int) -> tuple[float, float]:
    """Return the CPU milliseconds of a round with 100 of `number` clients, and those of `load_objective`, the medians.

    In most rounds with 100,000 clients all are new, with a thousand almost none is.
    """
    loading = 0.0

    def shard(context) -> LeastSquares:
        nonlocal loading
        began = time.process_time()
        objective = shard_of(20, 200)(context)
        loading += time.process_time() - began
        return objective

    marks = Marks(time.process_time, lambda: loading)
    strategy = our_strategy(Epochs(1, batch_size=10), 1e-4, fraction_train=100 / number)
    federate(strategy, client_app(shard), rounds, start_arrays(200), nodes=number, callbacks=[marks])
    # The first half of the rounds has met most of a thousand clients.
    whole, data = marks.milliseconds(first=rounds // 2)
    return whole, data


def our_strategy(work, client_lr: float, **options) -> FedDualAvg:
    return FedDualAvg(regularizer=L1(1e-3), client_lr=client_lr, work=work, fraction_evaluate=0.0, **options)


def shard_of(rows: int, d: int) -> Callable[..., LeastSquares]:
    """Return a load_objective of some rows of `d` features."""

    def load_rows(context):
        features = np.random.default_rng(partition(context)).normal(size=(rows, d))
        return LeastSquares(features, features[:, 0])

    return load_rows


def one_step(clients: int, d: int, rounds: int, **options) -> list[float]:
    """Return milliseconds a round in which every client takes one step: CPU of all, of the server's process, wall."""
    strategy = our_strategy(Steps(1, batch_size=10), 1e-5)
    app = client_app(shard_of(10, d))
    marks = Marks(tree_seconds, time.process_time, time.perf_counter)
    federate(strategy, app, rounds + 2, start_arrays(d), nodes=clients, callbacks=[marks], **options)
    return a_round(marks, 2, rounds)


def flower_rounds(rounds: int, clients: int, d: int) -> tuple[list[float], list[float]]:
    """Return what a round of Flower's Ray simulation costs: of LASSO I, and of many clients as in `one_step`.

    It waits for cores that actors have reserved, and ends Ray when it is done: it is first, while there are no actors.
    """
    lasso_one = flower_simulation(rounds, FedDualAvg(**OPTIONS), client_app(load), NODES, start_arrays(1024), warm=12)
    given = our_strategy(Steps(1, batch_size=10), 1e-5), client_app(shard_of(10, d)), clients, start_arrays(d)
    cpu, wall = flower_simulation(2, *given, warm=1)
    # Its server's process is not distinguished.
    return lasso_one, [cpu, float("nan"), wall]


def many_clients(clients: int, d: int, rounds: int, engines: dict[str, Any], others: dict[str, Any]) -> None:
    """Print what many clients cost, beside what others do."""
    found = {"in process": one_step(clients, d, rounds)}
    found |= {name: one_step(clients, d, rounds, **engine) for name, engine in engines.items()} | others
    print(f"\n{f'{clients:,} clients, d = {d:,}, a client':42} {'CPU us':>8} {'server CPU us':>14} {'wall us':>8}")
    for name, row in found.items():
        print(f"{name:42} {row[0] / clients * 1e3:8.0f} {row[1] / clients * 1e3:14.1f} {row[2] / clients * 1e3:8.0f}")


def slow_clients(clients: int, rounds: int) -> None:
    """Print what two Ray actors make of clients of a fifth of a second of NumPy."""

    def timed(**options) -> list[float]:
        marks = Marks(tree_seconds, time.perf_counter)
        strategy = our_strategy(Steps(800, batch_size=None), 1e-4)
        app = client_app(shard_of(2_000, 500))
        federate(strategy, app, rounds + 1, start_arrays(500), nodes=clients, callbacks=[marks], **options)
        return a_round(marks, 1, rounds)

    here = timed()
    there = timed(**RAY)
    print(
        f"\n{clients} clients of {here[0] / clients / 1e3:.2f} s: 2 Ray actors take {there[0] / here[0]:.2f} times the "
        f"CPU of one process, and {there[1] / (here[1] / 2):.2f} times half of its wall time"
    )


def where_time_goes(app, rounds: int) -> None:
    """Print the CPU milliseconds of the parts of a round of LASSO I in process."""
    spent: dict[str, float] = {}

    def clocked(kind: type, name: str) -> None:
        plain = vars(kind)[name]

        def method(self, *given, **named):
            began = time.process_time()
            try:
                return plain(self, *given, **named)
            finally:
                key = f"{kind.__name__}.{name}"
                spent[key] = spent.get(key, 0.0) + (time.process_time() - began) / rounds * 1e3

        indices.callback(setattr, kind, name, plain)
        setattr(kind, name, method)

    with ExitStack() as indices:
        for kind, names in PARTS.items():
            for name in names:
                clocked(kind, name)
        run(rounds, app)
    asks, step = (spent[f"CompositeStrategy.{hook}_train"] for hook in ("configure", "aggregate"))
    clients = spent["InProcessGrid.uplinks"]
    print(f"\nin process, ms of CPU: asking {asks:.2f}, clients {clients:.2f}, checks and the server's step {step:.2f}")


def pictures(file: str) -> None:
    """Draw CPU time a round against d, the number of clients, and that of known ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 3.8), layout="constrained")
    figure.suptitle("A round's time follows the coefficients and the clients asked; a client costs more when it is new")
    by_size, by_clients, by_known = figure.subplots(1, 3)
    sizes = (10**k for k in range(2, 7))
    numbers = (4, 16, 64, 256, 1024)
    known = [10**k for k in range(3, 6)]
    cells = {"d": [(16, d) for d in sizes], "clients": [(m, 1_000) for m in numbers]}
    for place, (name, pairs) in zip((by_size, by_clients), cells.items(), strict=True):
        # Ticks of 10 ms: at least as many rounds as make a second.
        rows = [one_step(m, d, max(8, int(1e8 / (m * (d + 20_000))))) for m, d in pairs]
        across = [pair[1 if name == "d" else 0] for pair in pairs]
        place.plot(across, [row[0] for row in rows], color="#0072B2", marker="o", markersize=3.5)
    by_size.set_xlabel("d, with 16 clients a round")
    by_clients.set_xlabel("clients a round, with d = 1,000")
    rows = [known_clients(number, 40) for number in known]
    for label, values, color in (
        ("all", [row[0] for row in rows], "#0072B2"),
        ("without load_objective", [row[0] - row[1] for row in rows], "#222222"),
    ):
        by_known.plot(known, values, color=color, marker="o", markersize=3.5, label=label)
    by_known.set_xlabel("known clients, 100 of them a round, in process")
    by_known.set_ylim(bottom=0.0)
    by_known.legend(frameon=False, fontsize=8)
    for place in (by_size, by_clients, by_known):
        place.set_xscale("log")
        place.grid(alpha=0.3)
    for place in (by_size, by_clients):
        place.set_yscale("log")
    by_size.set_ylabel("CPU ms a round")
    figure.savefig(file, dpi=200, metadata={"Date": None})


def main() -> None:
    flags = {name: {"action": "store_true"} for name in ("ray", "store", "compare")}
    arguments = options_of(__doc__, pictures={"metavar": "FILE"}, **flags)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if arguments.pictures:
        pictures(arguments.pictures)
        return
    sizes = (100, 1_000) if arguments.quick else (1_000, 10_000)
    flower = flower_rounds(10 if arguments.quick else 40, *sizes) if arguments.ray else ()
    engines = {"2 Ray actors": RAY} if arguments.ray else {}
    compare(arguments, engines, sizes, [{"Flower's Ray simulation": row} for row in flower] or [{}, {}])


def compare(arguments: Namespace, engines: dict[str, Any], sizes: tuple[int, int], others: list[Any]) -> None:
    """Measure all cases, and print, store or compare them; `others` are measured already: LASSO I, many clients."""
    rounds, runs = (30, 1) if arguments.quick else (200, 7)
    objectives = lasso().objectives()
    here = holding(objectives)
    mods = holding(objectives, mods=[passing])
    there = client_app(load)
    cases: dict[str, Callable[[int], object]] = {
        "bare compiled loop": lambda n: bare_loop(objectives, n),
        "in process": lambda n: run(n, here),
        "in process, with messages": lambda n: run(n, mods),
    }
    load_average = os.getloadavg()[0]
    cases |= {name: partial(run, app=there, **engine) for name, engine in engines.items()}
    found = measured(cases, rounds, runs) | others[0]
    versions = f"flwr {flwr.__version__}, NumPy {np.__version__}, numba {numba.__version__}"
    print(f"Python {platform.python_version()}, {versions}, {os.cpu_count()} cores, load {load_average:.1f}\n")
    base = found["bare compiled loop"][0]
    print(f"{'LASSO I, a round':30} {'CPU ms':>8} {'wall ms':>8} {'CPU / bare':>11}")
    for name, (cpu, wall) in found.items():
        print(f"{name:30} {cpu:8.2f} {wall:8.2f} {cpu / base:11.2f}")
    ratios = {name: round(cpu / base, 3) for name, (cpu, _) in found.items()}
    where_time_goes(here, rounds)
    length = 10 if arguments.quick else 60
    turns, most = (1, 10_000) if arguments.quick else (3, 100_000)
    few, many = (np.median([known_clients(number, length) for _ in range(turns)], axis=0) for number in (1_000, most))
    ratio = (many[0] - many[1]) / (few[0] - few[1])
    ratios[f"{most:,} known clients / 1,000"] = round(ratio, 3)
    print(
        f"\n100 of 1,000 known clients: {few[0]:.1f} ms of CPU a round, {few[1]:.1f} in load_objective; of {most:,}: "
        f"{many[0]:.1f} and {many[1]:.1f} ({ratio:.2f} times without it)"
    )
    many_clients(*sizes, 2 if arguments.quick else 10, engines, others[1])
    if arguments.ray:
        slow_clients(2 if arguments.quick else 4, 1 if arguments.quick else 4)
    if arguments.store:
        write_file(STORED, json.dumps(ratios, indent=2) + "\n")
    if arguments.compare:
        stored = json.loads(STORED.read_text(encoding="utf-8"))
        worse = [name for name, own in ratios.items() if own > TOLERANCE * stored.get(name, own)]
        for name in worse:
            print(f"{name}: {ratios[name]:.2f}, stored {stored[name]:.2f}")
        sys.exit(bool(worse))


if __name__ == "__main__":
    main()
