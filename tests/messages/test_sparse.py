"""Fewer bytes: the non-zeros of vectors that are zero nearly everywhere, and float32 for float32 models."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import FEATURES, app_of, clients, flat, refused, simulated, start_arrays
from scipy import sparse

from flwr_fco import FedDA, FedDAGT, FedDualAvg
from flwr_fco.core.layout import NonZeros, SparseVector
from flwr_fco.errors import ProtocolError
from flwr_fco.messages.protocol import ReceivedVectors
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Average, Bounds, DualFL, Epochs, FedDR, Minimise, Steps, Trimmed, Wire, training

D = 600
START = {"coefficients": np.zeros(D), "intercept": np.zeros(1)}


def test_a_client_reads_what_it_was_sent():
    sent = np.array([0, 3, 9], dtype=np.int32), np.array([1.0, -0.0, 0.5]), 12
    vectors = ReceivedVectors({"dual": SparseVector(*sent), "all": NonZeros(*sent)})
    assert_array_equal(vectors.at("dual", sent[0]), sent[1])
    for indices in (np.arange(12), np.array([0, 1, 9]), np.array([], dtype=np.int64)):
        assert_array_equal(vectors.at("all", indices).view(np.int64), vectors["all"][indices].view(np.int64))
    refused("at other indices", vectors.at, "dual", np.array([0, 3]), kind=ProtocolError)
    refused("at 3 of 12 indices", vectors.__getitem__, "dual", kind=ProtocolError)
    expected = np.array([1, 0, 0, -0.0, 0, 0, 0, 0, 0, 0.5, 0, 0])
    assert_array_equal(vectors["all"].view(np.int64), expected.view(np.int64))
    assert not vectors["all"].flags.writeable


# --- from clients with few of the features ------------------------------------------------------------------------


def few_features():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((10 + m, D), density=0.02, rng=rng, format="csr") for m in range(5)]
    return [Logistic(own, np.arange(own.shape[0]) % 2) for own in rows]


OPTIONS = {"regularizer": L1(0.001), "client_lr": 0.5, "work": Epochs(1, batch_size=4), "fraction_evaluate": 0.0}


def run(objectives, **options):
    strategy = FedDualAvg(**OPTIONS | options)
    result = simulated(strategy, app_of(objectives), 4, num_nodes=5, initial_arrays=START)
    return strategy.state.dual, result


ON_THE_SERVER = [{"aggregation": "median"}, {"aggregation": Trimmed()}, {"server_momentum": 0.5}, {"server_lr": "auto"}]
OF_REPLIES = [{"bounds": Bounds(max_increment_norm=1.0)}, {"output": Average()}]
ON_THE_WIRE = [{}, {"wire": Wire(dtype="float32")}, {"wire": Wire(sparse=False)}]


@pytest.mark.parametrize("options", [*ON_THE_WIRE, *ON_THE_SERVER, *OF_REPLIES])
def test_options_see_the_same_increments(options):
    expected, _ = run([Logistic(own.features.toarray(), own.labels) for own in few_features()], **options)
    found, result = run(few_features(), **options)
    tolerance = 1e-6 if options.get("wire") == Wire(dtype="float32") else 1e-12
    assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    assert len(result.left_out) == 0


def test_increments_and_the_dual_travel_at_the_indices_that_a_client_has():
    _, result = run(few_features())
    down, up = ([result.train_metrics_clientapp[n][f"bytes-{way}"] for n in (1, 2, 3)] for way in ("down", "up"))
    short = sum(12 * (np.unique(own.features.indices).size + 1) for own in few_features())
    assert (down, up) == ([5 * 8 * (D + 1), short, short], [short] * 3)


# --- what everyone is sent, by its non-zeros -------------------------------------------------------------------------


def rows(m, form):
    rng = np.random.default_rng(m)
    # Each client has words of its own, and some that others have too.
    own = sparse.random_array((12, 60), density=0.1, rng=rng)
    whole = np.zeros((12, D))
    whole[:, rng.permutation(D)[:60]] = own.toarray()
    return Logistic(sparse.csr_array(whole) if form == "sparse" else whole, np.arange(12) % 2)


def broadcast(strategy, objectives, messages, rounds):
    """Return the bits of a model, and the bytes that were sent in each round."""
    app = app_of(objectives, [lambda message, context, after: after(message, context)] if messages else ())
    result = simulated(strategy, app, rounds, num_nodes=len(objectives), initial_arrays=START)
    return result.arrays["coefficients"].numpy().view(np.int64), [row["train/bytes-down"] for row in result.rows()]


@pytest.mark.parametrize(("form", "messages"), [("sparse", True), ("dense", False)])
@pytest.mark.parametrize("options", ON_THE_WIRE, ids=str)
def test_the_bits_are_the_same_and_the_first_messages_are_short(form, messages, options, monkeypatch):
    def go():
        strategy = FedDualAvg(fraction_train=0.4, seed=1, **OPTIONS | options)
        return broadcast(strategy, [rows(m, form) for m in range(5)], messages, 6)

    expected, whole = go()
    monkeypatch.setattr(training, "_LONG", 100)
    found, short = go()
    assert_array_equal(found, expected)
    if options.get("wire") == Wire(sparse=False):
        assert short == whole
        return
    # The first dual is zero everywhere.
    assert short[0] < 0.3 * whole[0]
    assert sum(short) < (0.5 if form == "sparse" and not options else 1.0) * sum(whole)


REMEMBER = [(FedDAGT, {"client_lr": 0.5, "work": Steps(2)}), (FedDR, {"step": 2.0}), (DualFL, {"nu": 0.05, "rho": 0.0})]


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize(("kind", "options"), REMEMBER)
def test_what_clients_remember_begins_as_with_whole_vectors(kind, options, messages, monkeypatch):
    """A client's memory begins with zeros of the message's kind, and the first message is zero nearly everywhere."""
    rng = np.random.default_rng(0)
    losses = [Logistic(rng.standard_normal((12, D)), np.arange(12) % 2, l2=0.1) for _ in range(3)]
    options = {"work": Minimise(), "fraction_evaluate": 0.0} | options
    expected, _ = broadcast(kind(**options), losses, messages, 3)
    monkeypatch.setattr(training, "_LONG", 100)
    assert_array_equal(broadcast(kind(**options), losses, messages, 3)[0], expected)


# --- float32 for float32 models: as many bytes as FedAvg, and float64 where the digits are needed ---------------------

SHORT_OPTIONS = {**OPTIONS, "regularizer": L1(0.3), "client_lr": 0.05, "work": Epochs(1, batch_size=None)}
AUTO = Wire(dtype="auto")
FEDAVG_BYTES = 4 * 4 * (FEATURES + 1)


def go(strategy, rounds=30, dtype=np.float32):
    """Return a flat model, and the bytes that were sent, and those that were received, in each round."""
    start = start_arrays(dtype=dtype, start=np.full(FEATURES + 1, 0.5))
    result = simulated(strategy, app_of(clients()), rounds, initial_arrays=start)
    metrics = result.train_metrics_clientapp.values()
    return flat(result.arrays), *([own[f"bytes-{way}"] for own in metrics] for way in ("down", "up"))


def test_the_model_is_that_of_float64_messages():
    strategy = FedDualAvg(**SHORT_OPTIONS, wire=AUTO)
    short, *few = go(strategy)
    full, *many = go(FedDualAvg(**SHORT_OPTIONS))
    assert strategy.state.dual.dtype == np.float64
    assert not np.array_equal(strategy.state.dual, strategy.state.dual.astype(np.float32))
    assert_allclose(short, full, rtol=0, atol=1e-6)
    assert_array_equal(short == 0, full == 0)
    assert [each[2] for each in (*few, *many)] == [FEDAVG_BYTES] * 2 + [2 * FEDAVG_BYTES] * 2


NEED_ALL_DIGITS = [
    (lambda **o: FedDualAvg(**SHORT_OPTIONS, **o), np.float64),
    (lambda **o: FedDAGT(**SHORT_OPTIONS | {"work": Steps(3, batch_size=None)}, **o), np.float32),
    (lambda **o: FedDA(**SHORT_OPTIONS, mirror_map=PNorm(3.0), **o), np.float32),
]


@pytest.mark.parametrize(("strategy", "dtype"), NEED_ALL_DIGITS)
def test_all_digits_where_they_are_needed(strategy, dtype):
    """float64 models, clients that remember, and other geometries: bit by bit what float64 gives."""
    auto, full = (go(strategy(**wire), 6, dtype) for wire in ({"wire": AUTO}, {}))
    assert_array_equal(auto[0], full[0])
    assert auto[1:] == full[1:]


def test_float64_once_the_threshold_is_far_above_the_weights():
    """The threshold grows by 15 a round, and the weights are about .5."""
    options = SHORT_OPTIONS | {"regularizer": L1(3.0), "work": Steps(100, batch_size=None)}
    _, sizes, _ = go(FedDualAvg(**options, wire=AUTO), 60)
    assert (sizes[0], sizes[-1]) == (FEDAVG_BYTES, 2 * FEDAVG_BYTES)
    assert sizes == sorted(sizes)
