"""Faults that were once planted in the library while all of its tests passed: each has a test that fails with it."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from lies_of_one import regressions, run
from problems import changed, flat, simulated
from quadratics import Quadratic

from flwr_fco.algorithms import GradientTracking
from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.layout import Layout
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.errors import ClientError
from flwr_fco.messages.protocol import Downlink, Node, Uplink
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import HardSparsity, PerParameter
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Density, FedDAGT, FedDualAvg, Steps
from flwr_fco.strategies.ledger import remembered
from flwr_fco.strategies.private import PrivateMean


def private_mean(privacy, arrays, clients):
    """Return the part that makes one noisy mean of a round's replies, which has begun a round, and its nodes."""
    options = {"fraction_evaluate": 0.0, "weighting": "uniform", "normalize_local_work": False, "work": Steps(1)}
    mean = PrivateMean(privacy, FedDualAvg(privacy=privacy, **options))
    layout = Layout.from_arrays(arrays)
    plan = SimpleNamespace(layout=layout, steps=1)
    nodes = [Node(100 + m, m) for m in range(clients)]
    mean.begin_round(nodes, 4, SimpleNamespace(plan=plan, layout=layout, client_lr=0.1))
    return mean, nodes


def test_the_noise_of_clips_by_array_covers_all_of_them():
    """One client moves the sum by the root of the sum of the squares, and the noise is that many times as large."""
    pytest.importorskip("dp_accounting")
    arrays = {"a": np.zeros(4000), "b": np.zeros(4000)}
    privacy = GaussianDP(clip={"a": 3.0, "b": 4.0}, noise_multiplier=2.0, delta=1e-3, noise_seed=1)
    mean, nodes = private_mean(privacy, arrays, 1)
    far = Uplink({"increment": np.full(8000, 1e6)}, 0.1, 1, node=nodes[0])
    assert np.linalg.norm(mean.clipped_sum([far])) == pytest.approx(5.0, rel=1e-9)
    assert np.std(mean.release([]).vectors["increment"]) == pytest.approx(2.0 * 5.0, rel=0.05)


def test_the_number_of_clients_is_that_of_the_privacy_and_not_of_the_connected():
    pytest.importorskip("dp_accounting")
    privacy = GaussianDP(clip=1.0, noise_multiplier=0.0, delta=1e-3, clients=40)
    mean, nodes = private_mean(privacy, {"w": np.zeros(3)}, 4)
    said = [Uplink({"increment": np.array([0.5, 0.0, 0.0])}, 0.1, 1, node=node) for node in nodes]
    np.testing.assert_allclose(mean.release(said).vectors["increment"], [4 * 0.5 / 40, 0.0, 0.0], rtol=1e-9)


@pytest.mark.parametrize("places", [[0, 2, 4], [1, 3, 5], [0, 3, 5]])
def test_what_a_client_remembers_is_the_same_by_its_columns_and_whole(places):
    """A client that sends as many other columns as before remembers both."""
    rng, size, elapsed = np.random.default_rng(0), 6, 0.5
    layout, control = Layout.from_arrays({"w": np.zeros(size)}), rng.standard_normal(size)
    plan = strategy_of(layout).problem.plan
    own = SparseVector(np.array([0, 2, 4], dtype=np.int32), rng.standard_normal(3), size)
    sent = SparseVector(np.array(places, dtype=np.int32), rng.standard_normal(3), size)
    message = Downlink(plan, {"dual": np.zeros(size), "control": control}, 0.1, 0.0)
    short = remembered(GradientTracking, message, {"own": own}, Uplink({"increment": sent}, elapsed, 1), begins=False)
    # Elsewhere the whole increment is what the control alone does.
    increment = dense(sent) - elapsed * control
    whole = Uplink({"increment": increment}, elapsed, 1)
    long = remembered(GradientTracking, message, {"own": dense(own)}, whole, begins=False)
    np.testing.assert_allclose(dense(short["own"]), long["own"], rtol=1e-13, atol=1e-14)


def strategy_of(layout):
    strategy = FedDAGT(client_lr=0.1, fraction_evaluate=0.0)
    arrays = {entry.name: Array(np.zeros(entry.shape)) for entry in layout.optimized}
    return strategy.prepare(ArrayRecord(arrays))


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_a_robust_centre_is_of_equal_work(rule):
    """The centre is that of the gradients, whatever the numbers of steps; without that, long ones are outliers."""
    gradients = np.random.default_rng(0).standard_normal((5, 3)) + np.array([1.0, -2.0, 0.5])
    said = [
        Uplink({"increment": 0.1 * k * own}, 0.1 * k, k, weight=0.2)
        for k, own in zip([9, 1, 2, 5, 40], gradients, strict=True)
    ]
    mean, elapsed = Mean(aggregation=rule)(said)
    expected = Mean(aggregation=rule, trim=0.2).of([elapsed * own for own in gradients], [0.2] * 5)
    np.testing.assert_allclose(mean, expected, rtol=1e-7)


def test_an_array_comes_to_its_own_density_step_by_step():
    """As all others do: share ** (round / rounds) of its entries are left."""
    app, counts = ClientApp(), {}

    @app.train()
    def train(message, context):
        rng = np.random.default_rng(context.node_config["partition-id"])
        moved = {n: Array(a.numpy() + rng.standard_normal(a.shape)) for n, a in message.content["arrays"].items()}
        content = RecordDict({"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 10})})
        return FlowerMessage(content, reply_to=message)

    def count(number, arrays, metrics):
        counts[number] = np.count_nonzero(arrays["own"].numpy())

    strategy = FedDualAvg(
        client="unmodified",
        density=Density(0.1, rounds=8),
        regularizer=PerParameter({"own": HardSparsity(density=0.25)}),
        fraction_evaluate=0.0,
    )
    rng = np.random.default_rng(9)
    start = {"own": rng.standard_normal((20, 20)), "rest": rng.standard_normal((20, 20))}
    simulate(strategy, app, num_nodes=2, num_rounds=12, initial_arrays=start, progress=False, callbacks=[count])
    assert counts == {number: round(400 * 0.25 ** min(1.0, number / 8)) for number in range(1, 13)}


def test_the_step_of_our_clients_is_no_longer_than_what_they_have_trained():
    """They have trained nothing but what stays; unmodified clients move the whole array."""
    objective = Quadratic(np.eye(2), np.array([1.0, 4.0]))
    strategy = FedDualAvg(
        density=Density(0.5, rounds=1000), client_lr=0.1, work=Steps(1, batch_size=None), fraction_evaluate=0.0
    )
    from flwr_fco.client_apps import client_app

    start = {"x": np.array([2.0, 0.0])}
    simulated(strategy, client_app(lambda context: objective), 1, num_nodes=2, initial_arrays=start)
    # A gradient of 2 - 1 at the entry that is not 0.
    assert strategy.state.dual[0] == pytest.approx(2.0 - 0.1 * 1.0, rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused_though_its_state_is_finite(bad):
    def retrieve(own, self, problem, state):
        point = own.retrieve(self, problem, state)
        return np.where(np.arange(point.size) == 1, bad, point) if state.round in (3, 4) else point

    kind = changed(FedDualAvg, retrieve=retrieve)
    strategy = kind(client_lr=0.1, work=Steps(2, batch_size=None), fraction_evaluate=0.0, on_divergence="warn")
    seen = []
    result = run(strategy, regressions(), 6, callbacks=[lambda n, arrays, m: seen.append(flat(arrays))])
    assert np.isfinite(seen).all()
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"elapsed": -1.0}, "elapsed=-1.0"),
        ({"elapsed": np.nan}, "elapsed=nan"),
        ({"elapsed": np.inf}, "elapsed=inf"),
        ({"client_lr": 0.0}, "client-lr=0.0"),
        ({"client_lr": -0.1}, "client-lr=-0.1"),
        ({"client_lr": np.inf}, "client-lr=inf"),
    ],
)
def test_without_messages_a_client_refuses_what_it_refuses_in_a_message(what, reason):
    """From round 2 on answers come without messages."""

    def downlink(own, self, problem, state, to):
        message = own.downlink(self, problem, state, to)
        return message._replace(**what) if problem.round == 3 else message

    kind = changed(FedDualAvg, downlink=downlink)
    strategy = kind(client_lr=0.1, work=Steps(2, batch_size=None), fraction_evaluate=0.0)
    with pytest.raises(ClientError, match=re.escape(reason)):
        run(strategy, regressions(), 5)
    assert strategy.state.round == 2
