"""What the benchmarks share: options, federations in this process, clocks, and the problem that rounds are timed with.

That is LASSO dataset I of 'Federated Composite Optimization': 64 clients with 128 rows of 1,024 features (float64), 10
of them a round, one epoch of batch 10 (13 local steps), l1 norm, evaluation off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.clientapp import ClientApp

from flwr_fco.client_apps import client_app
from flwr_fco.datasets import lasso
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Epochs

NODES = 64
SAMPLE = 10
BATCH = 10
RATE = 0.001
STRENGTH = 0.2
OPTIONS = {
    "regularizer": L1(STRENGTH),
    "client_lr": RATE,
    "work": Epochs(1, batch_size=BATCH),
    "fraction_train": SAMPLE / NODES,
    "fraction_evaluate": 0.0,
}


def load(context: Context) -> LeastSquares:
    """Generate the shard where it is needed: nothing but numbers travels to workers."""
    return lasso().objective(partition(context))


def start_arrays(features: int) -> ArrayRecord:
    """Return a model of zeros."""
    return ArrayRecord({"coefficients": Array(np.zeros(features)), "intercept": Array(np.zeros(1))})


def partition(context: Context) -> int:
    """Return which client it is."""
    return int(context.node_config["partition-id"])


def holding(objectives: Any, **options: Any) -> ClientApp:
    """Return clients that hold a loss each."""
    return client_app(lambda context: objectives[partition(context)], **options)


def federate(strategy: Any, clients: Any, rounds: int, start: Any, *, nodes: int = 0, **options: Any) -> Any:
    """Run a strategy over clients, or over the losses that they hold."""
    app = clients if isinstance(clients, ClientApp) else holding(clients)
    given = {"num_nodes": nodes or len(clients), "num_rounds": rounds, "initial_arrays": start, "progress": False}
    return simulate(strategy, app, **given, **options)


class Marks(list[tuple[float, ...]]):
    """What some clocks show at the ends of rounds; a callback of a strategy."""

    def __init__(self, *clocks: Callable[[], float]) -> None:
        super().__init__()
        self.clocks = clocks

    def __call__(self, *_: object) -> None:
        self.append(tuple(clock() for clock in self.clocks))

    def milliseconds(self, first: int = 0) -> list[float]:
        """Return the median of a round by each clock, from a round on."""
        return [1e3 * float(each) for each in np.median(np.diff(self, axis=0)[first:], axis=0)]


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return what processes, and those that they have started and waited for, have used."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def by_turns(
    ways: Mapping[Any, Callable[[], Any]], turns: int, times: int = 1
) -> tuple[dict[Any, list[float]], dict[Any, Any]]:
    """Return the CPU seconds of each call of each way, run in turn so that a busy machine is as busy for all.

    The last results too; with `times` a turn makes as many calls.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            for _ in range(times):
                results[name] = way()
            seconds[name].append((time.process_time() - began) / times)
    return seconds, results


def options_of(doc: str | None, quick: str = "", **others: Any) -> argparse.Namespace:
    """Return what the command line says: --quick, and other options with what `add_argument` takes for them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    for name, how in others.items():
        parser.add_argument(f"--{name}", **how)
    return parser.parse_args()


def print_row(*cells: object) -> None:
    """Print a row of a table of Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_head(*cells: str) -> None:
    """Print the first row of a table, and the line below it."""
    print_row(*cells)
    print("|---" * len(cells) + "|")


def middles(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each number."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}
