"""Vectors that are zero nearly everywhere: what travels of them, what both sides make of it, and of what is crafted."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import app_of, simulated
from scipy import sparse

from flwr_fco import FedDualAvg
from flwr_fco.core.layout import NonZeros, SparseVector
from flwr_fco.errors import ProtocolError
from flwr_fco.messages.protocol import ReceivedVectors
from flwr_fco.messages.records import decode_uplink
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.strategies import (
    Average,
    Bounds,
    DualFL,
    Epochs,
    FedDAGT,
    FedDR,
    Minimise,
    Steps,
    Trimmed,
    Wire,
    training,
)

D = 600
START = {"coefficients": np.zeros(D), "intercept": np.zeros(1)}
INDICES = np.array([0, 3, 9], dtype=np.int32)
VALUES = np.array([1.0, -2.0, 0.5])


def read(indices=INDICES, values=VALUES, size=10, kind="indices", **more):
    arrays = {"increment": Array(values), f"{kind}:increment": Array(indices), **more}
    metrics = MetricRecord({"num-examples": 5, "local-steps": 2, "elapsed": 0.5})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return decode_uplink(content, size, {"increment": (size,)})


@pytest.mark.parametrize("kind", ["indices", "nonzeros"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"indices": np.array([0, 3, 10], dtype=np.int32)}, "ascend from 0 to 9"),
        ({"indices": np.array([0, 3, 3], dtype=np.int32)}, "ascend"),
        ({"indices": np.array([2**31 - 1, -(2**31), 3], dtype=np.int32)}, "ascend"),
        ({"indices": INDICES.astype(np.int64)}, "int64"),
        ({"indices": INDICES[:2]}, "one int32 for each value"),
        ({"indices": INDICES[:, None]}, "one int32 for each value"),
        ({"indices:other": Array(INDICES)}, "no values of their own beside them"),
        ({"indices:increment": Array(INDICES), "nonzeros:increment": Array(INDICES)}, "indices of two kinds"),
    ],
)
def test_what_is_crafted_is_refused(given, message, kind):
    with pytest.raises(ProtocolError, match=message):
        read(**given, kind=kind)


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_any_places_of_non_zeros_are_those_of_the_whole(density):
    rng = np.random.default_rng(0)
    whole = np.where(rng.random(50) < density, rng.standard_normal(50), 0.0)
    whole[7] = -0.0
    short = NonZeros.of(whole)
    for indices in (np.arange(50), np.array([0, 7, 49]), np.array([], dtype=np.int64)):
        assert_array_equal(short.at(indices).view(np.int64), whole[indices].view(np.int64))
    assert_array_equal(short.to_dense().view(np.int64), whole.view(np.int64))
    assert type(short.astype("float32")) is NonZeros


def test_a_client_reads_what_it_was_sent():
    vectors = ReceivedVectors({"dual": SparseVector(INDICES, VALUES, 10), "all": NonZeros(INDICES, VALUES, 10)})
    assert_array_equal(vectors.at("dual", INDICES), VALUES)
    assert_array_equal(vectors.at("all", np.array([0, 1, 9])), [1.0, 0.0, 0.5])
    with pytest.raises(ProtocolError, match="at other indices"):
        vectors.at("dual", np.array([0, 3]))
    with pytest.raises(ProtocolError, match="at 3 of 10 indices"):
        vectors["dual"]
    assert_array_equal(vectors["all"], [1, 0, 0, -2, 0, 0, 0, 0, 0, 0.5])
    assert not vectors["all"].flags.writeable


# --- from clients with few of the features ------------------------------------------------------------------------


def clients():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((10 + m, D), density=0.02, rng=rng, format="csr") for m in range(5)]
    return [Logistic(own, np.arange(own.shape[0]) % 2) for own in rows]


def passing(message, context, call_next):
    return call_next(message, context)


OPTIONS = {"regularizer": L1(0.001), "client_lr": 0.5, "work": Epochs(1, batch_size=4), "fraction_evaluate": 0.0}


def run(objectives, **options):
    strategy = FedDualAvg(**OPTIONS | options)
    result = simulated(strategy, app_of(objectives), 4, num_nodes=5, initial_arrays=START)
    return strategy.state.dual, result


def dense_clients():
    return [Logistic(own.features.toarray(), own.labels) for own in clients()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"aggregation": "median"},
        {"aggregation": Trimmed()},
        {"server_momentum": 0.5},
        {"server_lr": "auto"},
        {"bounds": Bounds(max_increment_norm=1.0)},
        {"wire": Wire(sparse=False)},
        {"wire": Wire(dtype="float32")},
        {"output": Average()},
    ],
)
def test_options_see_the_same_increments(options):
    expected, _ = run(dense_clients(), **options)
    found, result = run(clients(), **options)
    tolerance = 1e-6 if options.get("wire") == Wire(dtype="float32") else 1e-12
    assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    assert len(result.left_out) == 0


def test_increments_and_the_dual_travel_at_the_indices_that_a_client_has():
    _, result = run(clients())
    down, up = ([result.train_metrics_clientapp[n][f"bytes-{way}"] for n in (1, 2, 3)] for way in ("down", "up"))
    short = sum(12 * (np.unique(own.features.indices).size + 1) for own in clients())
    assert down == [5 * 8 * (D + 1), short, short]
    assert up == [short] * 3


# --- what everyone is sent, by its non-zeros -------------------------------------------------------------------------


def rows(m, form):
    rng = np.random.default_rng(m)
    # Each client has words of its own, and some that others have too.
    own = sparse.random_array((12, 60), density=0.1, rng=rng)
    indices = rng.permutation(D)[:60]
    whole = np.zeros((12, D))
    whole[:, indices] = own.toarray()
    return Logistic(sparse.csr_array(whole) if form == "sparse" else whole, np.arange(12) % 2)


def broadcast(form, *, messages=False, **options):
    app = app_of([rows(m, form) for m in range(5)], [passing] if messages else ())
    strategy = FedDualAvg(fraction_train=0.4, seed=1, **OPTIONS | options)
    result = simulated(strategy, app, 6, num_nodes=5, initial_arrays=START)
    return result.arrays["coefficients"].numpy(), [row["train/bytes-down"] for row in result.rows()]


@pytest.mark.parametrize(("form", "messages"), [("sparse", True), ("dense", False)])
@pytest.mark.parametrize("options", [{}, {"wire": Wire(dtype="float32")}, {"wire": Wire(sparse=False)}], ids=str)
def test_the_bits_are_the_same_and_the_first_messages_are_short(form, messages, options, monkeypatch):
    expected, whole = broadcast(form, messages=messages, **options)
    monkeypatch.setattr(training, "_LONG", 100)
    found, short = broadcast(form, messages=messages, **options)
    assert_array_equal(found.view(np.int64), expected.view(np.int64))
    if options.get("wire") == Wire(sparse=False):
        assert short == whole
    else:
        # The first dual is zero everywhere.
        assert short[0] < 0.3 * whole[0]
        assert sum(short) < sum(whole)
    if form == "sparse" and not options:
        assert sum(short) < 0.5 * sum(whole)


MINIMISES = {"work": Minimise(), "fraction_evaluate": 0.0}
STEPS = {"client_lr": 0.5, "work": Steps(2), "fraction_evaluate": 0.0}


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize(
    "strategy",
    [lambda: DualFL(nu=0.05, rho=0.0, **MINIMISES), lambda: FedDR(step=2.0, **MINIMISES), lambda: FedDAGT(**STEPS)],
)
def test_what_clients_remember_begins_as_with_whole_vectors(strategy, messages, monkeypatch):
    """A client's memory begins with zeros of the message's kind, and the first message is zero nearly everywhere."""
    rng = np.random.default_rng(0)
    losses = [Logistic(rng.standard_normal((12, D)), np.arange(12) % 2, l2=0.1) for _ in range(3)]
    app = app_of(losses, [passing] if messages else ())

    def go():
        return simulated(strategy(), app, 3, num_nodes=3, initial_arrays=START).arrays["coefficients"].numpy()

    expected = go()
    monkeypatch.setattr(training, "_LONG", 100)
    assert_array_equal(go().view(np.int64), expected.view(np.int64))
