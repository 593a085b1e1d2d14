"""What everyone is told, by its non-zeros: the bits of the whole vector, in fewer bytes."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.testing import assert_array_equal
from scipy import sparse

from flwr_fco import FedDualAvg, FedMid
from flwr_fco.client_apps import client_app
from flwr_fco.core.sparse import NonZeros
from flwr_fco.errors import ClientError, ProtocolError
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1
from flwr_fco.server.replies import mail
from flwr_fco.simulation import simulate
from flwr_fco.strategies import DualFL, Epochs, FedDAGT, FedDR, Minimise, Steps, Wire
from flwr_fco.wire.protocol import ReceivedVectors

D = 600
START = {"coefficients": np.zeros(D), "intercept": np.zeros(1)}


@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_any_places_of_it_are_those_of_the_whole(density):
    rng = np.random.default_rng(0)
    whole = np.where(rng.random(50) < density, rng.standard_normal(50), 0.0)
    whole[7] = -0.0
    short = NonZeros.of(whole)
    for places in (np.arange(50), np.array([0, 7, 49]), np.array([], dtype=np.int64)):
        assert_array_equal(short.at(places).view(np.int64), whole[places].view(np.int64))
    assert_array_equal(short.to_dense().view(np.int64), whole.view(np.int64))
    assert type(short.astype("float32")) is NonZeros


def test_who_wants_the_whole_gets_it_read_only_and_finite():
    short = NonZeros(np.array([0, 3], dtype=np.int32), np.array([1.0, -2.0]), 5)
    vectors = ReceivedVectors.to_look_at({"dual": short}, {"dual"})
    assert_array_equal(vectors["dual"], [1, 0, 0, -2, 0])
    assert not vectors["dual"].flags.writeable
    assert_array_equal(dict(vectors.items())["dual"], vectors["dual"])
    assert_array_equal(next(iter(ReceivedVectors({"dual": short}).values())), vectors["dual"])
    bad = NonZeros(short.indices, short.values * np.nan, 5)
    with pytest.raises(ProtocolError, match="2 NaN"):
        ReceivedVectors.to_look_at({"dual": bad}, {"dual"})["dual"]
    with pytest.raises(ProtocolError, match="NaN"):
        ReceivedVectors.to_look_at({"dual": bad}, {"dual"}).at("dual", np.array([0, 1]))


def rows(m, form):
    rng = np.random.default_rng(m)
    # Each client has words of its own, and some that others have too.
    own = sparse.random_array((12, 60), density=0.1, rng=rng)
    places = rng.permutation(D)[:60]
    whole = np.zeros((12, D))
    whole[:, places] = own.toarray()
    return Logistic(sparse.csr_array(whole) if form == "sparse" else whole, np.arange(12) % 2)


def run(form, *, kind=FedDualAvg, messages=False, **options):
    mods = [lambda message, context, call_next: call_next(message, context)] if messages else None
    app = client_app(lambda context: rows(context.node_config["partition-id"], form), mods=mods)
    strategy = kind(
        regularizer=L1(0.001),
        client_lr=0.5,
        work=Epochs(1, batch_size=4),
        fraction_train=0.4,
        min_train_nodes=2,
        fraction_evaluate=0.0,
        seed=1,
        **options,
    )
    result = simulate(strategy, app, num_nodes=5, num_rounds=6, initial_arrays=START, progress=False)
    return result.arrays["coefficients"].numpy(), [row["train/bytes-down"] for row in result.rows()]


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"wire": Wire(dtype="float32")}, {"wire": Wire(sparse=False)}, {"kind": FedMid}], ids=str
)
def test_the_bits_are_the_same_and_the_first_messages_are_short(form, messages, options, monkeypatch):
    expected, whole = run(form, messages=messages, **options)
    monkeypatch.setattr(mail, "LONG", 100)
    found, short = run(form, messages=messages, **options)
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
    [
        lambda: DualFL(nu=0.05, rho=0.0, **MINIMISES),
        lambda: FedDR(step=2.0, **MINIMISES),
        lambda: FedDAGT(**STEPS),
    ],
)
def test_what_clients_remember_begins_as_with_whole_vectors(strategy, messages, monkeypatch):
    """A client's memory begins with zeros of the message's kind, and the first message is zero nearly everywhere."""
    mods = [lambda message, context, call_next: call_next(message, context)] if messages else None
    rng = np.random.default_rng(0)
    losses = [Logistic(rng.standard_normal((12, D)), np.arange(12) % 2, l2=0.1) for _ in range(3)]
    app = client_app(lambda context: losses[context.node_config["partition-id"]], mods=mods)

    def run():
        result = simulate(strategy(), app, num_nodes=3, num_rounds=3, initial_arrays=START, progress=False)
        return result.arrays["coefficients"].numpy()

    expected = run()
    monkeypatch.setattr(mail, "LONG", 100)
    assert_array_equal(run().view(np.int64), expected.view(np.int64))


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ([D + 5], "ascend"),
        ([3, 3], "ascend"),
        ([[3]], "expected float64"),
        ([0.5], "float64"),
        ([3, 4, 5], "expected float64"),
    ],
    ids=str,
)
def test_crafted_places_are_refused(places, reason, monkeypatch):
    monkeypatch.setattr(mail, "LONG", 100)

    def craft(message, context, call_next):
        given = np.array(places)
        crafted = given.astype(np.int32) if given.dtype.kind == "i" else given
        arrays = {"dual": Array(np.ones(2)[: given.shape[0]]), "nonzeros:dual": Array(crafted)}
        message.content["arrays"] = ArrayRecord(arrays)
        return call_next(message, context)

    app = client_app(lambda context: rows(0, "sparse"), mods=[craft])
    strategy = FedDualAvg(regularizer=L1(0.001), client_lr=0.5, fraction_evaluate=0.0)
    with pytest.raises(ClientError, match=reason):
        simulate(strategy, app, num_nodes=2, num_rounds=1, initial_arrays=START, progress=False)
