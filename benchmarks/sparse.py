"""What a client with sparse features costs, as the model grows: 100 non-zeros a row, a million features against 10,000.

    python benchmarks/sparse.py            100 and 1,000 rows a client, up to 1e7 features (some minutes)
    python benchmarks/sparse.py --quick    a few repetitions, up to 1e6

Rows are as users bring them: columns unsorted and with duplicates, made canonical once. 'epoch' is the local epoch of
dual averaging with l1 on the gathered dual; 'step' a client's whole step through Flower's messages (read the message,
epoch, answer), once with the whole dual in the message, once with the dual at the client's columns ('sparse downlink').
CPU time, one thread, medians of ratios of pairs that are measured in turn, so that a busy machine matters little.
The bars are those of the issue that asked for this; a bar that is missed is marked, and the exit status says so.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from scipy.sparse import csr_array
from shared import by_turns, options_of
from threadpoolctl import threadpool_limits

from flwr_fco import FedDualAvg
from flwr_fco.client_apps import client_app
from flwr_fco.engines.sparse_steps import shard_of
from flwr_fco.messages.protocol import Downlink
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, run_of

NON_ZEROS = 100
BARS = {"epoch": {100: 1.2, 1000: 1.8}, "step": {100: 2.0, 1000: 3.0}, "step, sparse downlink": {100: 1.3, 1000: 2.2}}


def rows_of(count: int, features: int, rng: np.random.Generator, zipf: bool) -> Any:
    """Return rows with 100 non-zeros each, their columns in no order and some entries in two parts."""
    columns = np.empty((count, NON_ZEROS), dtype=np.int64)
    for row in columns:
        found = np.zeros(0, dtype=np.int64)
        while found.size < NON_ZEROS:
            more = rng.zipf(1.2, 4 * NON_ZEROS) - 1 if zipf else rng.integers(0, features, NON_ZEROS)
            # Words are numbered by a hash, not by how frequent they are.
            more = (more[more < features] * 2654435761) % features
            found = np.unique(np.concatenate([found, more]))
        row[:] = rng.permutation(found)[:NON_ZEROS]
    values = rng.normal(size=columns.shape)
    twice = slice(0, NON_ZEROS // 10)
    values[:, twice] *= 0.5
    columns, values = (np.concatenate([part, part[:, twice]], axis=1) for part in (columns, values))
    ends = np.arange(count + 1) * columns.shape[1]
    return csr_array((values.ravel(), columns.ravel(), ends), shape=(count, features))


class Client:
    """One client with its shard, and a server that has just asked it."""

    def __init__(self, count: int, features: int, zipf: bool) -> None:
        rng = np.random.default_rng((count, features, zipf))
        self.objective = Logistic(rows_of(count, features, rng, zipf), rng.integers(0, 2, count))
        one = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
        self.strategy = FedDualAvg(regularizer=L1(0.01), client_lr=1e-6, work=Epochs(1, batch_size=10), **one)
        self.grid = InProcessGrid(client_app(lambda context: self.objective), 1)
        dual = rng.normal(scale=0.05, size=features)
        start = ArrayRecord({"coefficients": Array(dual), "intercept": Array(np.zeros(1))})
        self.strategy.prepare(start)
        with self.grid.identity():
            self.messages = [self._asked(1)]
            replies = list(self.grid.send_and_receive(self.messages[0]))
            self.strategy.aggregate_train(1, replies)
            self.messages.append(self._asked(2))
        plan = run_of(self.strategy).problem.plan
        shard = shard_of(plan, self.objective)
        assert shard is not None
        self.shard = shard
        self.dual = dual
        self.own = np.append(dual, 0.0)[shard.indices]
        self.downlink = Downlink(plan, {"dual": self.own}, client_lr=1e-6, elapsed=0.3)

    def _asked(self, number: int) -> list[Any]:
        arrays = run_of(self.strategy).arrays
        return list(self.strategy.configure_train(number, arrays, ConfigRecord(), self.grid))

    def epoch(self) -> None:
        """Take an epoch of lazy steps."""
        self.shard.dual_steps(self.downlink, self.own, np.random.default_rng(0))

    def step(self, which: int) -> None:
        """Read a message, take an epoch, answer."""
        with self.grid.identity():
            list(self.grid.send_and_receive(self.messages[which]))


def compare(name: str, calls: dict[int, Callable[[], Any]], times: int, repetitions: int) -> tuple[float, str]:
    """Return the ratio of 1e6 to 1e4, and a line with the milliseconds of each size."""
    for call in calls.values():
        call()
    found, _ = by_turns(calls, repetitions, times)
    ratio = statistics.median(b / a for a, b in zip(found[10**4], found[10**6], strict=True))
    shown = "  ".join(f"1e{len(str(size)) - 1}: {1e3 * statistics.median(own):.3f}" for size, own in found.items())
    return ratio, f"{name:24} {shown} ms"


def main() -> int:
    """Print a table; return the number of bars that are missed."""
    quick = options_of(__doc__).quick
    logging.getLogger("flwr").setLevel(logging.ERROR)
    sizes = [10**4, 10**6] + ([] if quick else [10**7])
    repetitions = 2 if quick else 15
    missed = 0
    with threadpool_limits(1):
        for zipf in (False, True):
            for count in (100, 1000):
                clients = {size: Client(count, size, zipf) for size in sizes}
                columns = ", ".join(f"{client.shard.indices.size:,}" for client in clients.values())
                print(f"\n{'Zipf' if zipf else 'uniform'}, {count} rows a client; coordinates of its shard: {columns}")
                tables = {
                    "epoch": {size: own.epoch for size, own in clients.items()},
                    "step": {size: (lambda own=own: own.step(0)) for size, own in clients.items()},
                    "step, sparse downlink": {size: (lambda own=own: own.step(1)) for size, own in clients.items()},
                }
                for name, calls in tables.items():
                    ratio, line = compare(name, calls, max(1, 2000 // count), repetitions)
                    bar = BARS[name][count]
                    missed += ratio > bar
                    print(f"  {line}  1e6/1e4 {ratio:.2f}, bar {bar}{' MISSED' if ratio > bar else ''}")
    return 0 if quick else missed


if __name__ == "__main__":
    raise SystemExit(main())
