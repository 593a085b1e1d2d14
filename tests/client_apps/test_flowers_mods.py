"""Flower's mods and wrappers with unmodified clients and with ours: `docs/how-to/mods.md` holds what is tested here."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAvg

from flwr_fco import FedDualAvg, client_app, simulate
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError

mods = pytest.importorskip("flwr.clientapp.mod")
secure = pytest.importorskip("flwr.client.mod")

NODES = 5
START = {"w": np.zeros(5), "b": np.zeros(1)}


def ordinary(*own):
    """A FedAvg client as users write theirs: five gradient steps, the new model back."""
    app = ClientApp(mods=list(own))

    @app.train()
    def train(message, context):
        rng = np.random.default_rng(context.node_config["partition-id"])
        features = rng.normal(size=(50, 5))
        targets = features @ np.array([1.0, -1.0, 0.0, 0.0, 0.0])
        w, b = (array.numpy().copy() for array in message.content["arrays"].values())
        for _ in range(5):
            residuals = features @ w + b - targets
            w -= 0.1 * (features.T @ residuals / 50)
            b -= 0.1 * residuals.mean()
        arrays = ArrayRecord({"w": Array(w), "b": Array(b)})
        metrics = MetricRecord({"num-examples": 50})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def strategy():
    return FedDualAvg(client="unmodified", density=0.5, client_lr=0.1, fraction_evaluate=0.0)


def run(app, own=None, rounds=20, **options):
    options = {"num_nodes": NODES, "num_rounds": rounds, "initial_arrays": START, "progress": False} | options
    return simulate(own or strategy(), app, **options)


def is_right(result, tolerance):
    np.testing.assert_allclose(result.arrays["w"].numpy(), [1.0, -1.0, 0.0, 0.0, 0.0], rtol=0, atol=tolerance)
    assert (result.arrays["w"].numpy() == 0).sum() >= 2
    assert all(metrics["num-replies"] == NODES for metrics in result.train_metrics_clientapp.values())


def test_unmodified_clients_may_clip_and_add_noise():
    is_right(run(ordinary(mods.LocalDpMod(1.0, 0.01, 10.0, 1e-5))), 0.05)


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_unmodified_clients_clip_where_the_train_config_says_how_much(name):
    clipped = ordinary(getattr(mods, name))
    is_right(run(clipped, train_config=ConfigRecord({"clipping_norm": 1.0})), 1e-2)
    small = run(clipped, rounds=1, train_config=ConfigRecord({"clipping_norm": 1e-3}))
    assert 0.0 < np.linalg.norm(small.arrays["w"].numpy()) <= 1e-3
    with pytest.raises(NothingTrainedError, match="requires the key 'clipping_norm'"):
        run(clipped, rounds=1)


@pytest.mark.parametrize(
    ("wrapper", "options"),
    [
        ("DifferentialPrivacyServerSideFixedClipping", (0.1, 1.0, NODES)),
        ("DifferentialPrivacyClientSideFixedClipping", (0.1, 1.0, NODES)),
        ("DifferentialPrivacyServerSideAdaptiveClipping", (0.1, NODES)),
        ("DifferentialPrivacyClientSideAdaptiveClipping", (0.1, NODES)),
    ],
)
def test_the_wrappers_are_refused_with_what_is_true_of_unmodified_clients(wrapper, options):
    wrapped = getattr(flowers, wrapper)(strategy(), *options)
    with pytest.raises(ConfigurationError, match=r"reply with models, .* noise would be forgotten.*'clipping_norm'"):
        run(ordinary(), wrapped)


@pytest.mark.parametrize("name", ["secagg_mod", "secaggplus_mod"])
def test_secure_aggregation_is_of_the_legacy_api(name):
    mod = getattr(secure, name)
    with pytest.raises(ConfigurationError, match=f"the mod {name} speaks with SecAggPlusWorkflow"):
        client_app(lambda context: None, mods=[mod])
    for own in (strategy(), FedAvg(fraction_evaluate=0.0)):
        with pytest.raises(ClientError, match=r"KeyError.*secaggplus_configs"):
            run(ordinary(mod), own, rounds=1)
    workflow = pytest.importorskip("flwr.server.workflow").SecAggPlusWorkflow
    assert workflow is not None
    assert not hasattr(FedAvg, "configure_fit")
    assert not hasattr(FedDualAvg, "initialize_parameters")
