"""Gradient tracking on sparse features: the numbers of dense ones; messages, memories and ledger by touched columns."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.testing import assert_allclose
from problems import trackers_of
from representatives import crossed
from scipy import sparse

from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.layout import SparseVector
from flwr_fco.core.logs import quiet
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1, GroupLasso
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDAGT, Scaffold

D, CLIENTS = 400, 5


def rows_of(partition, seed=0):
    rng = np.random.default_rng([seed, partition])
    return sparse.random_array((10 + partition, D), density=0.02, rng=rng, format="csr")


def load(context, form="sparse", cls=Logistic):
    partition = context.node_config["partition-id"]
    rows = rows_of(partition)
    whole = form == "dense" or (form == "mixed" and partition == 2)
    return cls(rows.toarray() if whole else rows, np.arange(rows.shape[0]) % 2)


def run(strategy, form="sparse", rounds=6, grid=None, **options):
    strategy.fraction_evaluate = 0.0
    grid = grid or InProcessGrid(client_app(lambda context: load(context, form)), CLIENTS)
    start = ArrayRecord({"coefficients": Array(np.zeros(D)), "intercept": Array(np.zeros(1))})
    with grid.identity(), quiet(50), single_threaded_blas():
        return strategy.start(grid, start, rounds, **options)


def made(cls=FedDAGT, **options):
    return cls(**{"regularizer": L1(0.001), "client_lr": 0.5, "work": Epochs(1, batch_size=4), "seed": 1, **options})


CASES = {
    "everybody": (FedDAGT, {}),
    "from zero": (FedDAGT, {"tracker_start": "zero"}),
    "a sample": (FedDAGT, {"fraction_train": 0.4}),
    "no two alike": (FedDAGT, {"normalize_local_work": False}),
    "uniform": (FedDAGT, {"weighting": "uniform", "server_lr": 0.7}),
    "decaying": (FedDAGT, {"client_lr": lambda number: 0.5 / number, "fraction_train": 0.4}),
    "groups": (FedDAGT, {"regularizer": GroupLasso(0.01, groups=np.arange(D) // 2)}),
    "SCAFFOLD": (Scaffold, {}),
}


@pytest.mark.parametrize(("case", "form"), crossed(CASES, ["sparse", "mixed"]))
def test_numbers_are_those_of_dense_features(case, form):
    cls, options = CASES[case]
    expected, found = made(cls, **options), made(cls, **options)
    dense = run(expected, "dense")
    result = run(found, form)
    for name in ("dual", "control"):
        own = getattr(expected.state, name)
        assert_allclose(getattr(found.state, name), own, rtol=0, atol=1e-12 * np.abs(own).max())
    for number, metrics in result.train_metrics_clientapp.items():
        for name, value in dense.train_metrics_clientapp[number].items():
            if name in ("tracker-norm", "objective", "elapsed", "num-left-out"):
                assert metrics[name] == pytest.approx(value, rel=1e-9)
    for key, tracker in trackers_of(expected).items():
        assert_allclose(trackers_of(found)[key], tracker, rtol=0, atol=1e-13)


def test_all_that_a_client_sends_gets_and_remembers_is_at_its_columns():
    strategy = made(Scaffold)
    grid = InProcessGrid(client_app(load), CLIENTS)
    result = run(strategy, grid=grid)
    counts = [np.unique(rows_of(m).indices).size + 1 for m in range(CLIENTS)]
    last = result.train_metrics_clientapp[6]
    assert last["bytes-up"] == 12 * sum(counts)
    assert last["bytes-down"] <= 2 * 12 * sum(counts)
    for (_, partition), member in strategy.memories.members.items():
        assert isinstance(member.memory["own"], SparseVector)
        assert member.memory["own"].indices.size == counts[partition]
    for context in grid.contexts.values():
        held = sum(
            len(array.data) for key in ("fco-memory-new", "fco-memory-old") for array in context.state[key].values()
        )
        assert held <= 4 * (12 * max(counts) + 256)
