"""Flower's mods and wrappers with unmodified clients and with ours: `docs/how-to/mods.md` holds what is tested here."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAvg

from flwr_fco import FedDualAvg, client_app, simulate
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Density, Steps

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


WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": (0.1, 1.0, NODES),
    "DifferentialPrivacyClientSideFixedClipping": (0.1, 1.0, NODES),
    "DifferentialPrivacyServerSideAdaptiveClipping": (0.1, NODES),
    "DifferentialPrivacyClientSideAdaptiveClipping": (0.1, NODES),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_what_a_wrapper_does_to_fedavg_it_does_to_ours(name):
    """Its noise is in the model that the next round sends: nothing that it adds is forgotten."""
    clips = "ClientSide" in name
    mod = mods.adaptiveclipping_mod if "Adaptive" in name else mods.fixedclipping_mod
    models = []
    for own in (FedAvg(fraction_evaluate=0.0), FedDualAvg(client="unmodified", client_lr=0.1, fraction_evaluate=0.0)):
        np.random.seed(5)  # noqa: NPY002 (Flower's noise comes from there)
        wrapped = getattr(flowers, name)(own, *WRAPPERS[name])
        arrays = run(ordinary(*[mod] * clips), wrapped, rounds=6).arrays
        models.append(np.concatenate([array.numpy() for array in arrays.values()]))
    np.testing.assert_allclose(models[1], models[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"regularizer": L1(0.1), "work": Steps(5, batch_size=None)}, {"density": Density(0.5, rounds=20)}]
)
def test_noise_that_no_sparse_model_has_is_an_error_in_words(options):
    own = FedDualAvg(client="unmodified", client_lr=0.1, fraction_evaluate=0.0, **options)
    wrapped = flowers.DifferentialPrivacyServerSideFixedClipping(own, *WRAPPERS[next(iter(WRAPPERS))])
    with pytest.raises(ConfigurationError, match="a model that is the primal point of no dual near the present one"):
        run(ordinary(), wrapped)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_refused_where_clients_reply_with_increments(name):
    wrapped = getattr(flowers, name)(FedDualAvg(client_lr=0.1, fraction_evaluate=0.0), *WRAPPERS[name])
    app = client_app(lambda context: LeastSquares(np.eye(5), np.ones(5)))
    start = {"coefficients": np.zeros(5), "intercept": np.zeros(1)}
    with pytest.raises(ConfigurationError, match="its differential-privacy claim would be void"):
        run(app, wrapped, initial_arrays=start)


@pytest.mark.parametrize("name", ["secagg_mod", "secaggplus_mod"])
def test_secure_aggregation_is_of_the_legacy_api(name):
    mod = getattr(secure, name)
    with pytest.raises(ConfigurationError, match=f"the mod {name}: it speaks with SecAggPlusWorkflow"):
        client_app(lambda context: None, mods=[mod])
    for own in (strategy(), FedAvg(fraction_evaluate=0.0)):
        with pytest.raises(ClientError, match=r"KeyError.*secaggplus_configs"):
            run(ordinary(mod), own, rounds=1)
    workflow = pytest.importorskip("flwr.server.workflow").SecAggPlusWorkflow
    assert workflow is not None
    assert not hasattr(FedAvg, "configure_fit")
    assert not hasattr(FedDualAvg, "initialize_parameters")
