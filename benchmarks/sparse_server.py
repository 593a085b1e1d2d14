"""What the server does in a round: the mean of long replies beside Flower's own, and rounds of sparse replies.

    python benchmarks/sparse_server.py            replies of 1e7 numbers, 10 and 100 of them; rounds up to 1e7 features
    python benchmarks/sparse_server.py --quick    replies of 1e6, 10 of them; rounds of 1e5 and 1e6 features

'mean' reads and checks float32 replies (shapes, NaN, norms) and takes their weighted mean in float64; Flower's
`aggregate_arrayrecords` checks nothing. Memory is what is allocated at the most, in float64 models. 'round' is a whole
round of FedDualAvg or FedDAGT with l1 and ten clients who answer with 10,000 numbers each; 'peak' that of the whole
process.
CPU time, one thread, medians of ratios of pairs that are measured in turn. What misses a bar is marked, and the exit
status of the full run says so; in the quick mode, much of the time is the cache's and the bar is none.
"""

from __future__ import annotations

import logging
import resource
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords
from shared import Marks, by_turns, options_of
from threadpoolctl import threadpool_limits

from flwr_fco import FedDualAvg
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.layout import SparseVector
from flwr_fco.messages.protocol import Uplink
from flwr_fco.messages.records import decode_uplink, encode_uplink, partition_reply, to_array
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, Steps

#: How many times faster than Flower's own mean, and how many float64 models of memory at the most.
BARS = {"ratio": 5.0, "memory": 1.1}


def replies_of(count: int, size: int) -> list[RecordDict]:
    """Return replies of float32 increments, four different ones in turn."""
    rng = np.random.default_rng(0)
    shared = [to_array(rng.standard_normal(size, dtype=np.float32)) for _ in range(4)]
    arrays = [ArrayRecord({"increment": shared[i % 4]}) for i in range(count)]
    metrics = [MetricRecord({"num-examples": 10 + i, "local-steps": 5, "elapsed": 0.5}) for i in range(count)]
    return [RecordDict({"arrays": one, "metrics": other}) for one, other in zip(arrays, metrics, strict=True)]


def mean_of(replies: list[RecordDict], size: int) -> Any:
    """Return the mean as the server takes it."""
    found = [decode_uplink(each, size, {}) for each in replies]
    total = sum(uplink.examples for uplink in found)
    return Mean()([own._replace(weight=own.examples / total) for own in found])[0]


def compare_means(count: int, size: int, times: int) -> bool:
    """Print how the two means compare; return whether the bars are met."""
    replies = replies_of(count, size)
    calls: dict[str, Callable[[], Any]] = {
        "Flower": lambda: aggregate_arrayrecords(replies, "num-examples")["increment"].numpy(),
        "ours": lambda: mean_of(replies, size),
    }
    apart = float(np.abs(calls["Flower"]() - calls["ours"]()).max())
    seconds = list(by_turns(calls, times)[0].values())
    peaks = []
    for call in calls.values():
        tracemalloc.start()
        call()
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * size))
        tracemalloc.stop()
    ratio = statistics.median(a / b for a, b in zip(*seconds, strict=True))
    met = ratio >= BARS["ratio"] and peaks[1] <= BARS["memory"]
    flowers, ours = map(statistics.median, seconds)
    print(
        f"mean of {count:3d} replies of {size:.0e}: Flower {flowers:.3f} s, {peaks[0]:.1f} models; ours {ours:.3f} s, "
        f"{peaks[1]:.1f} models; {ratio:.1f} times as fast, {apart:.0e} apart{'' if met else '  below the bar'}"
    )
    return met


def answering_app(size: int, count: int) -> ClientApp:
    """Return clients who answer with numbers at `count` places, and read nothing."""
    app = ClientApp()
    rng = np.random.default_rng(1)
    indices = np.sort(rng.choice(size, count, replace=False)).astype(np.int32)
    increment = SparseVector(indices, rng.normal(size=count), size)
    content = encode_uplink(Uplink({"increment": increment}, 0.5, 5, examples=10))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(content, reply_to=message)

    app.query("partition")(partition_reply)

    return app


def server_round(cls: Any, size: int, count: int, rounds: int) -> float:
    """Return the CPU milliseconds of a round."""
    own_options = {"tracker_start": "zero"} if cls is FedDAGT else {}
    strategy = cls(regularizer=L1(1e-4), client_lr=0.1, work=Steps(5), fraction_evaluate=0.0, **own_options)
    grid = InProcessGrid(answering_app(size, count), 10)
    marks = Marks(time.process_time)
    strategy.start(grid, ArrayRecord({"w": to_array(np.zeros(size))}), rounds + 3, callbacks=[marks])
    return marks.milliseconds(first=2)[0]


def main() -> int:
    """Run all and return 1 if a bar is missed."""
    quick = options_of(__doc__, "smaller and fewer").quick
    logging.getLogger("flwr").setLevel(logging.ERROR)
    met = True
    with threadpool_limits(1):
        for count in (10,) if quick else (10, 100):
            met = compare_means(count, 1_000_000 if quick else 10_000_000, 5 if quick else 3) and met
        for size in (100_000, 1_000_000) if quick else (100_000, 1_000_000, 10_000_000):
            for cls in (FedDualAvg, FedDAGT):
                spent = server_round(cls, size, 10_000, 8 if quick else 12)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                print(f"round of {cls.__name__} at {size:.0e}: {spent:.1f} ms; peak {peak:.2f} GB")
    return int(not met and not quick)


if __name__ == "__main__":
    raise SystemExit(main())
