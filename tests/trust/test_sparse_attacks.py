"""What one client of five can do with an increment that is sparse, or says so: it is left out, counted, and no more."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from numpy.testing import assert_array_equal
from problems import trackers_of
from scipy import sparse

from flwr_fco import FedDualAvg
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, Epochs, FedDAGT, Ledger, run_of

D, NODES, LIAR = 300, 5, 1
INDICES = "indices:increment"


def objectives():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((12, D), density=0.02, rng=rng, format="csr") for _ in range(NODES)]
    return [Logistic(own, np.arange(12) % 2) for own in rows]


def app_with(lie):
    """Return our ClientApp, whose liar's arrays go through `lie(round, values, indices)` before they are sent."""
    own = objectives()

    def lying(message, context, call_next):
        reply = call_next(message, context)
        here = message.metadata.message_type == "train" and context.node_config["partition-id"] == LIAR
        if not here or "increment" not in reply.content.get("arrays", {}):
            return reply
        record = reply.content["arrays"]
        number = int(message.content["config"]["server-round"])
        found = lie(number, record["increment"].numpy(), record[INDICES].numpy())
        if found is None:
            raise RuntimeError("it is silent")
        arrays = {name: part if isinstance(part, Array) else Array(part) for name, part in found.items()}
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": reply.content["metrics"]})
        return Message(content, reply_to=message)

    return client_app(lambda context: own[context.node_config["partition-id"]], mods=[lying])


def run(lie, rounds=4, cls=FedDualAvg, **options):
    options = {"bounds": Bounds(max_ratio=None), **options} | ({"tracker_start": "zero"} if cls is FedDAGT else {})
    strategy = cls(regularizer=L1(1e-3), client_lr=0.5, work=Epochs(1, batch_size=4), fraction_evaluate=0.0, **options)
    grid = InProcessGrid(app_with(lie), NODES, raise_errors=False)
    start = {"coefficients": np.zeros(D), "intercept": np.zeros(1)}
    result = strategy.start(grid, ArrayRecord({name: Array(array) for name, array in start.items()}), rounds)
    return strategy, result


def pair(values, indices, **more):
    return {"increment": values, INDICES: indices, **more}


def swapped(number, values, indices):
    return pair(values, indices[[1, 0, *range(2, indices.size)]])


def labelled(dtype, shape):
    def lie(number, values, indices):
        honest = Array(indices)
        return pair(values, Array(dtype, shape or honest.shape, honest.stype, honest.data))

    return lie


LIES = {
    "unsorted": swapped,
    "twice": lambda number, values, indices: pair(values, np.sort(np.r_[indices[1], indices[1:]]).astype(np.int32)),
    "negative": lambda number, values, indices: pair(values, np.r_[np.int32(-1), indices[1:]]),
    "beyond the end": lambda number, values, indices: pair(values, np.r_[indices[:-1], np.int32(D + 1)]),
    "the largest number": lambda number, values, indices: pair(values, np.r_[indices[:-1], np.int32(2**31 - 1)]),
    "more than there are": lambda number, values, indices: pair(np.ones(D + 2), np.arange(D + 2, dtype=np.int32)),
    "int64": lambda number, values, indices: pair(values, indices.astype(np.int64)),
    "uint32": lambda number, values, indices: pair(values, indices.astype(np.uint32)),
    "numbers with a point": lambda number, values, indices: pair(values, indices.astype(np.float64)),
    "the other end first": lambda number, values, indices: pair(values, indices.astype(">i4")),
    "fewer indices": lambda number, values, indices: pair(values, indices[:-1]),
    "fewer values": lambda number, values, indices: pair(values[:-1], indices),
    "two dimensions": lambda number, values, indices: pair(values[:, None], indices[:, None]),
    "values alone": lambda number, values, indices: {"increment": values},
    "indices alone": lambda number, values, indices: {INDICES: indices},
    "indices of what is not asked": lambda number, values, indices: pair(values, indices, **{"indices:dual": indices}),
    "indices of indices": lambda number, values, indices: pair(values, indices, **{f"indices:{INDICES}": indices}),
    "two kinds of indices": lambda number, values, indices: pair(values, indices, **{"nonzeros:increment": indices}),
    "NaN": lambda number, values, indices: pair(np.r_[np.nan, values[1:]], indices),
    "infinity in float32": lambda number, values, indices: pair(np.r_[np.inf, values[1:]].astype(np.float32), indices),
    "a label of 64 bits": labelled("int64", None),
    "a label of a terabyte": labelled("int32", (2**38,)),
    "a negative label": labelled("int32", (-1,)),
}


@pytest.fixture(scope="module", params=[FedDualAvg, FedDAGT])
def without_the_liar(request):
    strategy, _ = run(lambda number, values, indices: None, cls=request.param)
    return request.param, strategy.state.dual


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_a_reply_that_did_not_come(name, without_the_liar):
    cls, expected = without_the_liar
    strategy, result = run(LIES[name], cls=cls)
    assert [(row.round, row.partition_id) for row in result.left_out] == [(n, LIAR) for n in range(1, 5)]
    assert all(metrics["num-left-out"] == 1 for metrics in result.train_metrics_clientapp.values())
    assert_array_equal(strategy.state.dual, expected)
    # A liar is sent what everybody can be sent.
    assert len(run_of(strategy).places) == NODES - 1


def test_a_long_one_is_left_out():
    # Far from what others send, at one place.
    def lie(number, values, indices):
        return pair(np.array([1e9]), indices[:1])

    _, result = run(lie, bounds=Bounds(max_ratio=10.0))
    assert [row.partition_id for row in result.left_out] == [LIAR] * 4
    _, result = run(lie, bounds=Bounds(max_ratio=None, max_increment_norm=50.0))
    assert all("max_increment_norm" in row.reason for row in result.left_out)
    assert len(result.left_out) == 4


def test_what_one_says_of_its_features_is_heard_by_nobody_else():
    """A client that says other indices in each round gets the dual there; all others get what they got."""

    def lie(number, values, indices):
        return pair(np.full(3, 1e-9), np.array([number, number + 40, D], dtype=np.int32))

    strategy, result = run(lie)
    honest, expected = run(lambda number, values, indices: pair(values, indices))
    assert {row.partition_id for row in result.left_out} <= {LIAR}
    assert not expected.left_out
    for key, indices in run_of(honest).places.items():
        if key != (0, LIAR):
            assert_array_equal(run_of(strategy).places[key], indices)


@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_an_increment_of_nothing_counts(cls):
    _, result = run(lambda number, values, indices: pair(np.zeros(0), np.zeros(0, dtype=np.int32)), rounds=1, cls=cls)
    assert not result.left_out


@pytest.mark.parametrize("lie", ["other indices in each round", "all indices"])
def test_what_one_says_of_its_features_neither_ends_the_ledger_nor_moves_the_trackers(lie):
    """Its replies count, and what it is said to remember is what follows from them."""

    def said(number, values, indices):
        if lie == "all indices":
            return {"increment": np.full(D + 1, 1e-9)}
        return pair(np.full(3, 1e-9), np.array([number, number + 40, D], dtype=np.int32))

    # Whole vectors of all would not fit.
    options = {"client_state": Ledger(max_bytes=8 * D * 3), "fraction_train": 0.6, "bounds": Bounds(max_ratio=1000.0)}
    strategy, result = run(said, rounds=12, cls=FedDAGT, **options)
    assert {row.partition_id for row in result.left_out} <= {LIAR}
    trackers = np.array([*trackers_of(strategy).values()])
    assert np.abs(trackers.sum(axis=0)).max() <= 1e-12 * np.abs(trackers).max()
