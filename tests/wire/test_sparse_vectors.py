"""Increments of clients with sparse features: what travels, what the server makes of it, and of what is crafted."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import changed
from scipy import sparse
from together import together

from flwr_fco import FedDualAvg
from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Layout
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.objectives import Logistic
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import Average, Bounds, Epochs, Participation, Steps, Trimmed, Wire
from flwr_fco.wire.client_state import read_state, store_pending
from flwr_fco.wire.flower import new_context
from flwr_fco.wire.protocol import ClientStamp, ReceivedVectors
from flwr_fco.wire.uplink import Sent, as_records, read_uplink

D = 400
INDICES, VALUES = np.array([0, 3, 9], dtype=np.int32), np.array([1.0, -2.0, 0.5])


def read(indices=INDICES, values=VALUES, size=10, **more):
    arrays = {"increment": Array(values), "places:increment": Array(indices), **more}
    metrics = MetricRecord({"num-examples": 5, "local-steps": 2, "elapsed": 0.5})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    layout = Layout.from_arrays({"w": np.zeros(size)})
    options = {"wire_dtype": "float64", "weighted_by_key": "num-examples"}
    return read_uplink(content, layout, shapes={"increment": (size,)}, **options)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_sparse_vector_is_read(dtype):
    found = read(values=VALUES.astype(dtype))
    assert_array_equal(found.vectors["increment"].to_dense(), [1, 0, 0, -2, 0, 0, 0, 0, 0, 0.5])
    assert found.norms["increment"] == np.linalg.norm(VALUES)


@pytest.mark.parametrize("kind", [SparseVector, NonZeros])
def test_a_client_may_send_and_remember_any_kind(kind):
    """A method of one's own makes a sparse vector as it likes: what everyone is told by non-zeros is one too."""
    vector = kind(INDICES, VALUES, 10)
    content = as_records(Sent({"increment": vector}, {"num-examples": 5, "local-steps": 2, "elapsed": 0.5}))
    layout = Layout.from_arrays({"w": np.zeros(10)})
    options = {"wire_dtype": "float64", "weighted_by_key": "num-examples"}
    found = read_uplink(content, layout, shapes={"increment": (10,)}, **options)
    assert_array_equal(found.vectors["increment"].to_dense(), vector.to_dense())
    context, stamp = new_context(1, 2, {}, {}), ClientStamp(0, -1)
    store_pending(context, stamp, 3, None, {"tracker": vector}, "")
    remembered = read_state(context, stamp._replace(accepted=3), 10)
    assert_array_equal(remembered["tracker"].to_dense(), vector.to_dense())


def test_an_empty_one_too():
    found = read(np.zeros(0, dtype=np.int32), np.zeros(0))
    assert_array_equal(found.vectors["increment"].to_dense(), np.zeros(10))


@together(
    ("given", "message"),
    [
        ({"indices": np.array([0, 3, 10], dtype=np.int32)}, "ascend from 0 to 9"),
        ({"indices": np.array([-1, 3, 9], dtype=np.int32)}, "ascend"),
        ({"indices": np.array([0, 9, 3], dtype=np.int32)}, "ascend"),
        ({"indices": np.array([0, 3, 3], dtype=np.int32)}, "ascend"),
        ({"indices": np.array([2**31 - 1, -(2**31), 3], dtype=np.int32)}, "ascend"),
        ({"indices": INDICES.astype(np.int64)}, "int64"),
        ({"indices": VALUES}, "float64"),
        ({"indices": INDICES[:2]}, r"expected .*\[2\]"),
        ({"indices": INDICES[:, None]}, "places"),
        ({"indices": np.arange(11, dtype=np.int32), "values": np.ones(11)}, "places"),
        ({"values": np.array([1.0, np.nan, 2.0])}, "NaN"),
        ({"places:other": Array(INDICES)}, "the arrays are"),
    ],
)
def test_what_is_crafted_is_left_out(given, message):
    with pytest.raises(ProtocolError, match=message):
        read(**given)


def test_a_label_does_not_make_the_server_allocate():
    bytes_of = Array(INDICES)
    lying = Array("int32", (10,), bytes_of.stype, bytes_of.data)
    with pytest.raises(ProtocolError):
        read(indices=INDICES, **{"places:increment": lying})


def test_a_sparse_vector_is_checked_where_it_is_made():
    with pytest.raises(ConfigurationError, match="ascend"):
        SparseVector(np.array([1, 1], dtype=np.int32), np.ones(2), 5)
    with pytest.raises(ConfigurationError, match="int64"):
        SparseVector(np.array([1, 2]), np.ones(2), 5)


def clients():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((10 + m, D), density=0.02, rng=rng, format="csr") for m in range(5)]
    return [Logistic(own, np.arange(own.shape[0]) % 2) for own in rows]


def app(objectives, **options):
    return client_app(lambda context: objectives[context.node_config["partition-id"]], **options)


def run(objectives, strategy=None, **options):
    own = {"regularizer": L1(0.001), "client_lr": 0.5, "work": Epochs(1, batch_size=4), "fraction_evaluate": 0.0}
    strategy = strategy or FedDualAvg(**own | options)
    result = simulate(strategy, app(objectives), num_nodes=5, num_rounds=4, initial_arrays=START, progress=False)
    return strategy.state.dual, result


START = {"coefficients": np.zeros(D), "intercept": np.zeros(1)}


def dense_clients():
    return [Logistic(own.features.toarray(), own.labels) for own in clients()]


@together(
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


def test_privacy_clips_the_whole_increment():
    pytest.importorskip("dp_accounting")

    def private(objectives):
        privacy = GaussianDP(clip=0.01, noise_multiplier=1e-9, delta=1e-5, noise_seed=3)
        options = {
            "work": Steps(3, batch_size=4),
            "weighting": "uniform",
            "normalize_local_work": False,
            "privacy": privacy,
        }
        return run(objectives, **options)[0]

    assert_allclose(private(clients()), private(dense_clients()), rtol=0, atol=1e-9)


def test_bytes_are_those_of_what_travels():
    _, one = run(clients())
    _, other = run(clients(), wire=Wire(sparse=False))
    sizes = [own.design.columns.size + 1 for own in clients()]
    up = one.train_metrics_clientapp[2]["bytes-up"]
    assert sum(12 * size for size in sizes) < up < sum(12 * size for size in sizes) + 5 * 2 * 160
    assert up < 0.5 * other.train_metrics_clientapp[2]["bytes-up"]


def test_the_dual_comes_at_the_places_that_a_client_has_told():
    _, result = run(clients())
    down = [result.train_metrics_clientapp[number]["bytes-down"] for number in (1, 2, 3)]
    assert down[0] > 5 * 8 * D
    assert down[1] == down[2]
    sizes = [own.design.columns.size + 1 for own in clients()]
    assert sum(12 * size for size in sizes) < down[1] < sum(12 * size for size in sizes) + 5 * 2 * 160


def test_a_client_with_other_features_is_left_out_once():
    """As a SuperNode that comes back with another shard: it is sent the whole dual again."""
    objectives = clients()
    strategy = FedDualAvg(
        regularizer=L1(0.001),
        client_lr=0.5,
        work=Epochs(1, batch_size=4),
        fraction_evaluate=0.0,
        participation=Participation(min_replies=1),
        bounds=Bounds(max_ratio=None),
    )
    grid = InProcessGrid(app(objectives), 5, raise_errors=False)
    from flwr_fco.client_apps.training import forget_objectives

    def swap(number, arrays, metrics):
        if number == 2:
            objectives[0] = clients()[4]
            forget_objectives(grid.run_id)
        return False

    result = strategy.start(
        grid, ArrayRecord({name: Array(array) for name, array in START.items()}), 5, callbacks=[swap]
    )
    reasons = [(row.round, row.partition_id, row.reason) for row in result.left_out]
    assert [row[:2] for row in reasons] == [(3, 0)]
    assert "other places" in reasons[0][2]


def test_what_a_server_sends_is_checked():
    half = SparseVector(INDICES, VALUES, 10)
    vectors = ReceivedVectors.to_look_at({"dual": half}, {"dual"})
    assert_array_equal(vectors.at("dual", INDICES), VALUES)
    with pytest.raises(ProtocolError, match="other places"):
        vectors.at("dual", np.array([0, 3]))
    with pytest.raises(ProtocolError, match="at 3 of 10 places"):
        vectors["dual"]
    bad = ReceivedVectors.to_look_at({"dual": SparseVector(INDICES, VALUES * np.nan, 10)}, {"dual"})
    with pytest.raises(ProtocolError, match="NaN"):
        bad.at("dual", INDICES)


def test_what_is_remembered_of_clients_is_bounded(monkeypatch):
    expected, _ = run(clients())
    monkeypatch.setattr("flwr_fco.server.replies.mail.MOST_PLACES", 500)
    found, result = run(clients())
    assert_array_equal(found, expected)
    assert result.train_metrics_clientapp[3]["bytes-down"] > 3 * 8 * D


def test_messages_give_the_same_bits():
    class Posted(InProcessGrid):
        """A grid with messages."""

    duals = []
    for kind in (InProcessGrid, Posted):
        strategy = FedDualAvg(regularizer=L1(0.001), client_lr=0.5, work=Epochs(1, batch_size=4), fraction_evaluate=0.0)
        grid = kind(app(clients()), 5)
        strategy.start(grid, ArrayRecord({name: Array(array) for name, array in START.items()}), 3)
        duals.append(strategy.state.dual)
    assert_array_equal(*duals)


def test_a_strategy_of_ones_own_gets_whole_vectors():
    def aggregate(own, self, problem, state, replies):
        assert all(isinstance(uplink.vectors["increment"], np.ndarray) for uplink in replies)
        return own.aggregate(self, problem, state, replies)

    mine = changed(FedDualAvg, aggregate=aggregate)
    found, _ = run(
        clients(), mine(regularizer=L1(0.001), client_lr=0.5, work=Epochs(1, batch_size=4), fraction_evaluate=0.0)
    )
    assert_array_equal(found, run(clients())[0])


def test_a_client_looks_at_what_it_reads():
    vectors = ReceivedVectors.to_look_at({"dual": np.array([1.0, np.nan, 2.0])}, {"dual"})
    assert_array_equal(vectors.at("dual", np.array([0, 2])), [1.0, 2.0])
    for ask in (
        lambda: vectors["dual"],
        lambda: vectors.get("dual"),
        lambda: dict(vectors.items()),
        lambda: vectors.at("dual", np.array([1])),
    ):
        with pytest.raises(ProtocolError, match="holds 1 NaN or infinite"):
            ask()
    copy = ReceivedVectors.to_look_at({"dual": np.array([1e200, 1e200])}, {"dual"})
    assert copy["dual"][0] == 1e200
    assert not copy.unseen
