"""A round of DFedDA-GT as in the paper's linear regression, and what memories cost methods that have none.

    python benchmarks/tracking.py [--quick]

16 clients, 10 local steps, minibatches of 10 rows, d = 1,024, p = 12, chain. 'data given': every client holds 100 rows
and shuffles them; 'streaming': fresh rows for each step. 'local solvers alone' is what the clients compute, without
messages, checks and the server: the difference is what Flower's messages and this package around them cost. The plain
NumPy reference computes the same numbers without Flower, messages or checks.

The first figure is wall time, the second this process's time on the core: on a busy machine only the latter says
something. Both are medians over rounds, on one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from shared import Marks, federate, options_of
from threadpoolctl import threadpool_limits

from flwr_fco.core.computing import random_generator
from flwr_fco.engines import Client
from flwr_fco.messages.protocol import Downlink
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import CompositeStrategy, DFedDAGT, Epochs, FedDAGT, FedDualAvg, Steps, run_of
from flwr_fco.topology import chain
from reproduction.data.graph import SparseGraphProblem

CLIENTS = 16
DIMENSION = 1024
STEPS = 10
BATCH = 10
P = 12.0
RATE = 1e-3


def given() -> list[LeastSquares]:
    """Return clients that hold exactly the rows of one round."""
    objectives = []
    for m in range(CLIENTS):
        rng = np.random.default_rng(m)
        features = rng.standard_normal((STEPS * BATCH, DIMENSION))
        features[:, 0] = 1.0
        targets = features @ rng.standard_normal(DIMENSION)
        objectives.append(LeastSquares(features, targets, scale=0.5, intercept=False))
    return objectives


#: Of the wall, and of this thread on its core.
CLOCKS = (time.perf_counter, time.thread_time)
Times = list[float]


def rounds_of(strategy: CompositeStrategy, objectives: list, rounds: int) -> tuple[Times, np.ndarray]:
    """Return the milliseconds of a round, medians over rounds, and the last model."""
    strategy.fraction_evaluate = 0.0
    marks = Marks(*CLOCKS)
    start = {"coefficients": np.zeros(objectives[0].layout.size)}
    result = federate(strategy, objectives, rounds, start, callbacks=[marks])
    return marks.milliseconds(), result.arrays["coefficients"].numpy()


def solvers_alone(objectives: list[LeastSquares], strategy: CompositeStrategy, rounds: int) -> Times:
    """Return the milliseconds that the clients' local solvers take in a round, with generators and without messages."""
    method = DFedDAGT.algorithm()
    plan = run_of(strategy).problem.plan
    dual = np.zeros(DIMENSION)
    tracker = np.full(DIMENSION, 1e-3)
    mark = Marks(*CLOCKS)
    mark()
    for number in range(1, rounds + 1):
        for m, objective in enumerate(objectives):
            downlink = Downlink(plan, {"dual": dual, "tracker": tracker}, RATE)
            Client(downlink, objective, random_generator(0, number, m)).answer(method, None)
        mark()
    return mark.milliseconds()


def reference(objectives: list[LeastSquares], rounds: int) -> tuple[Times, np.ndarray]:
    """Return the same of DFedDA-GT in plain NumPy with the same minibatches."""
    mixing = chain(CLIENTS).mixing
    z = np.zeros((CLIENTS, DIMENSION))
    c = np.zeros((CLIENTS, DIMENSION))
    mark = Marks(*CLOCKS)
    mark()
    for number in range(1, rounds + 1):
        end = z.copy()
        for m, objective in enumerate(objectives):
            order = random_generator(0, number, m).permutation(STEPS * BATCH)
            for k in range(STEPS):
                rows = order[k * BATCH : (k + 1) * BATCH]
                x = objective.features[rows]
                residuals = x @ point(end[m]) - objective.targets[rows]
                end[m] -= RATE * (x.T @ residuals / BATCH + c[m])
        move = (end - z) / (STEPS * RATE)
        c += move - mixing @ move
        z = mixing @ end
        mark()
    return mark.milliseconds(), point(z.mean(axis=0))


def point(z: np.ndarray) -> np.ndarray:
    """Return the primal point of the p-norm map."""
    scale = np.abs(z).max()
    if scale == 0.0:
        return np.zeros_like(z)
    x = z / scale
    power = np.abs(x) ** (P - 1.0)
    n = float((power * np.abs(x)).sum()) ** (1.0 / P)
    return scale * n / (P - 1.0) * (power / n ** (P - 1.0)) * np.sign(x)


def memories(make: Callable[..., CompositeStrategy], rounds: int) -> Times:
    """Return the milliseconds of a round with 10 of 64 clients of 128 rows, d = 1,024, batches of 10, l1."""
    objectives = []
    for m in range(64):
        rng = np.random.default_rng(m)
        features = rng.standard_normal((128, DIMENSION)).astype(np.float32)
        objectives.append(LeastSquares(features, features @ rng.standard_normal(DIMENSION), intercept=False))
    strategy = make(fraction_train=10 / 64, regularizer=L1(0.01), client_lr=1e-4, work=Epochs(1, batch_size=10))
    return rounds_of(strategy, objectives, rounds)[0]


def main() -> None:
    """Print the table."""
    rounds = 5 if options_of(__doc__, "few rounds, for continuous integration").quick else 300
    options = {"mirror_map": PNorm(P), "client_lr": RATE, "work": Steps(STEPS, batch_size=BATCH)}
    with threadpool_limits(1, user_api="blas"):
        objectives = given()
        strategy = DFedDAGT(mixing=chain(CLIENTS), tracker_start="zero", **options)
        ours, w = rounds_of(strategy, objectives, rounds)
        alone = solvers_alone(objectives, strategy, rounds)
        plain, expected = reference(objectives, rounds)
        difference = np.abs(w - expected).max() / np.abs(expected).max()
        assert difference <= 1e-6, f"the reference differs by {difference:.1e}"
        problem = SparseGraphProblem("linear", seed=0)
        stream = [problem.objective(m) for m in range(problem.num_clients)]
        streaming, _ = rounds_of(DFedDAGT(mixing=chain(CLIENTS), **options), stream, max(10, rounds // 5))
        rows = [
            ("DFedDA-GT, data given, in-process grid", ours),
            ("DFedDA-GT, data given, local solvers alone", alone),
            ("DFedDA-GT, data given, plain NumPy", plain),
            ("DFedDA-GT, streaming, in-process grid", streaming),
            ("FedDualAvg, 10 of 64 clients (no memory)", memories(FedDualAvg, rounds)),
            ("FedDA-GT, 10 of 64 clients (memory)", memories(FedDAGT, rounds)),
        ]
    print(f"median of {rounds} rounds, one BLAS thread; largest relative difference to NumPy {difference:.1e}")
    print(f"{'milliseconds a round':45s} {'wall':>8s} {'on core':>8s}")
    for title, (wall, core) in rows:
        print(f"{title:45s} {wall:8.2f} {core:8.2f}")


if __name__ == "__main__":
    main()
