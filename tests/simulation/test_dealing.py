"""Unequal shards: the largest are dealt out first, with the bits of one process."""

import gc
import os

import numpy as np
import pytest

from flwr_fco.client_apps import client_app
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, WorkerGrid, simulate
from flwr_fco.simulation import workers as module
from flwr_fco.strategies import FedDAGT, FedDualAvg
from flwr_fco.wire import flower
from tests.problems import start_arrays

SIZES = (90, 10, 80, 10, 70, 10)


@pytest.fixture(autouse=True)
def _every_round_is_long(monkeypatch):
    monkeypatch.setattr(module, "WORTH_MOVING", 0.0)


def app(folder, sizes):
    def load(context):
        partition = int(context.node_config["partition-id"])
        (folder / f"{os.getpid()}-{partition}").touch()
        features = np.random.default_rng(partition).normal(size=(sizes[partition], 6))
        return LeastSquares(features, features[:, 0])

    return client_app(load)


def state_of(grid, strategy, rounds=6, **options):
    with flower.identity(grid.run_id), flower.quiet(50):
        strategy.start(grid, start_arrays(), rounds, **options)
    return [np.asarray(value).tobytes() for value in strategy.state], dict(sorted(grid.states().items()))


def loads(grid, sizes):
    return [sum(sizes[node - 2] for node, home in grid._homes.items() if home == k) for k in range(2)]


@pytest.mark.parametrize("options", [{}, {"cls": FedDAGT, "client_state": "reset"}, {"fraction_train": 0.5}])
def test_the_largest_come_first_and_no_bit_changes(options, workers, tmp_path):
    options = {"cls": FedDualAvg, **options}
    cls = options.pop("cls")

    def strategy():
        return cls(regularizer=L1(0.1), client_lr=0.01, fraction_evaluate=0.0, seed=1, **options)

    here = state_of(InProcessGrid(app(tmp_path, SIZES), 6), strategy())
    with WorkerGrid(workers, app(tmp_path, SIZES), 6) as grid:
        assert state_of(grid, strategy()) == here
        # Dealt in turn, one has 240 and the other 30.
        if "fraction_train" not in options:
            assert max(loads(grid, SIZES)) <= 150


def test_equal_shards_stay_where_they_are(workers, tmp_path):
    with WorkerGrid(workers, app(tmp_path, (20,) * 6), 6) as grid:
        state_of(grid, FedDualAvg(regularizer=L1(0.1), client_lr=0.01, fraction_evaluate=0.0))
        assert loads(grid, (20,) * 6) == [60, 60]
    assert len(list(tmp_path.iterdir())) == 6


def test_old_objects_are_set_aside_in_large_runs_only(tmp_path):
    frozen = []
    # The test suite has set its own objects aside.
    gc.unfreeze()
    given = {"num_rounds": 1, "initial_arrays": start_arrays(), "progress": False}
    watching = [lambda *_: frozen.append(gc.get_freeze_count())]
    for nodes in (6, 300):
        strategy = FedDualAvg(client_lr=0.01, fraction_evaluate=0.0)
        simulate(strategy, app(tmp_path, [10] * nodes), num_nodes=nodes, callbacks=watching, **given)
        assert gc.get_freeze_count() == 0
    assert frozen[0] == 0 < frozen[1]
    gc.freeze()
