"""What clients remember is what the server's ledger says, to the bit, after every round, whatever goes wrong."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from adversarial_clients import make
from fault_bars import imbalance
from faults import FaultyGrid, lying
from flwr.app import MetricRecord, RecordDict
from one_faulty_client import held_alike
from problems import app_of, problem, start_arrays, zeros
from representatives import covered

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.logs import quiet
from flwr_fco.messages.records import LOST
from flwr_fco.objectives import LeastSquares
from flwr_fco.strategies import Epochs, Everyone, Ledger, Participation, Stage
from flwr_fco.strategies.ledger import Rows

FAULTY_ROUNDS = range(24)
ROUNDS = 30


def repeat(delivery):
    """The message comes twice, and so does the reply."""
    return [reply for reply in (delivery.deliver(), delivery.deliver()) if reply is not None]


def turn_back(delivery):
    """The client comes back from an earlier copy of its disk."""
    state = delivery.context.state
    replies = repeat(delivery)[:1]
    delivery.context.state = RecordDict({key: record.copy() for key, record in state.items()})
    return replies


def turn_far_back(delivery):
    """From the first copy that there was."""
    first = delivery.context.node_config.setdefault("first", [])
    if not first:
        first.append({key: record.copy() for key, record in delivery.context.state.items()})
    delivery.context.state = RecordDict(first[0])
    return repeat(delivery)[:1]


FAULTS = ("drop", "lose", "raise", "restart", "malformed", "garbage", "delay", "leave")
OF_CLIENTS = (repeat, turn_back, turn_far_back, lying(0.9), lying(-1.0))


def sparse_rows():
    """Clients whose rows have few of 200 columns, and of which each has columns of its own."""
    found = []
    for m in range(5):
        rng = np.random.default_rng((3, m))
        rows = sp.random_array((30, 200), density=0.02, rng=rng, format="csr")
        found.append(LeastSquares(rows, rows @ np.ones(200) + 0.1 * rng.standard_normal(30), scale=0.5))
    return found


DATA = {"dense": problem(), "sparse": sparse_rows()}


def play(name, data, seed, *, faults, missing=False, **options):
    """Run with random faults; compare after every round; return the model, the strategy and what was compared."""
    objectives = DATA[data]
    compared = []
    strategy = make(name, seed=seed, **options)
    grid = FaultyGrid(app_of(objectives), len(objectives), faults, seed=seed, rounds=FAULTY_ROUNDS, missing=missing)

    def check(number, arrays, metrics):
        compared.append(held_alike(strategy, grid))
        assert imbalance(strategy) <= 1e-10, f"round {number}"

    layout = objectives[0].layout
    with grid.identity(), quiet(50), single_threaded_blas():
        result = strategy.start(grid, zeros(layout), ROUNDS, callbacks=[check])
    return layout.flatten({n: array.numpy() for n, array in result.arrays.items()}), strategy, compared, grid


METHODS = {
    "FedDAGT": {},
    "ReFedDAGT": {},
    "MultistepReFedDAGT": {"stages": [Stage(6), Stage(9), Stage(99)]},
    "Scaffold": {},
    "FedDR": {},
    "DualFL": {},
}
CASES = [
    pytest.param(name, data, seed, marks=pytest.mark.nightly if seed > 1 else ())
    for (name, data), seed in product(product(METHODS, DATA), range(12))
    if not (name == "Scaffold" and data == "sparse")
]


@pytest.mark.parametrize(("name", "data", "seed"), CASES)
def test_the_ledger_is_what_the_clients_hold_whatever_goes_wrong(name, data, seed):
    rng = np.random.default_rng((seed, 8))
    everyone = name == "DualFL"
    kinds = [fault for fault in (*FAULTS, *OF_CLIENTS) if not (everyone and fault == "leave")]
    # Some of the kinds, so that each is met alone and with others.
    kinds = [kinds[i] for i in rng.permutation(len(kinds))[: rng.integers(1, 7)]]
    options = dict(METHODS[name])
    if everyone:
        options["participation"] = Everyone(evict_after=10**6)
    else:
        options["fraction_train"] = float(rng.choice([1.0, 0.6]))
        options["participation"] = Participation(evict_after=int(rng.integers(1, 6)))
        options["min_available_nodes"] = options["min_train_nodes"] = 1
        options["work"] = Epochs(1, batch_size=8)
    options["weighting"] = str(rng.choice(["examples", "uniform"]))
    # Above this size the ledger lies in a file.
    options["client_state"] = Ledger(max_bytes=int(rng.choice([0, 5_000, 10**9])))
    _, _, compared, grid = play(name, data, seed, faults=dict.fromkeys(kinds, 0.3 / len(kinds)), **options)
    assert grid.injected
    assert sum(compared) >= 10


#: What must leave no trace, and what it must be as: a run in which the messages are lost, or one without faults.
NO_TRACE = {
    **{fault: {"missing": True} for fault in ("drop", "raise", "malformed", "garbage", "delay")},
    **{fault: {"faults": {}} for fault in ("restart", repeat, turn_back, turn_far_back)},
}


@pytest.mark.parametrize(("fault", "name"), covered(NO_TRACE, METHODS))
def test_a_run_with_faults_has_the_bits_of_one_without_these_replies(fault, name):
    patient = Everyone(evict_after=10**6) if name == "DualFL" else Participation()
    options = {**METHODS[name], "faults": {fault: 0.3}, "participation": patient}
    one, *_, grid = play(name, "dense", 5, **options)
    other = play(name, "dense", 5, **{**options, **NO_TRACE[fault]})[0]
    assert len(grid.injected) > 20
    np.testing.assert_array_equal(one, other)


def test_a_client_that_has_lost_its_memory_each_time_is_left_out_by_name():
    def forgets(delivery):
        reply = delivery.deliver()
        reply.content = RecordDict({"metrics": MetricRecord({LOST: 1})})
        return [reply]

    strategy = make("FedDAGT")
    objectives = DATA["dense"]
    grid = FaultyGrid(app_of(objectives), len(objectives), {forgets: 1.0}, rounds=(3,), partitions=[1])
    with grid.identity(), quiet(50):
        result = strategy.start(grid, start_arrays(), 4)
    assert [(row.round, row.partition_id, row.reason) for row in result.left_out] == [(3, 1, "it has lost its memory")]
    assert [own["num-left-out"] for own in result.train_metrics_clientapp.values()] == [0, 0, 1, 0]


def test_a_memory_in_the_file_frees_the_place_of_the_one_before(monkeypatch):
    held = set()
    put = Rows.put
    free = Rows.free

    def counted_put(self, vector):
        row = put(self, vector)
        held.add(row.ctypes.data)
        return row

    def counted_free(self, vector):
        free(self, vector)
        held.discard(vector.ctypes.data)

    monkeypatch.setattr(Rows, "put", counted_put)
    monkeypatch.setattr(Rows, "free", counted_free)
    _, strategy, _, _ = play("FedDR", "dense", 0, faults={}, client_state=Ledger(max_bytes=0))
    # Two vectors of each client.
    assert len(held) == 2 * len(strategy.memories.members) == 2 * len(DATA["dense"])
