"""Flower's mods with unmodified clients and with ours: `docs/how-to/mods.md` holds what is tested here."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from problems import foreign_app, refused, simulated

from flwr_fco import FedDualAvg, client_app
from flwr_fco.errors import ClientError, NothingTrainedError

mods = pytest.importorskip("flwr.clientapp.mod")
secure = pytest.importorskip("flwr.client.mod")

NODES = 5
TRUTH = np.array([1.0, -1.0, 0.0, 0.0, 0.0])


def ordinary(*own):
    """A FedAvg client as users write theirs: five gradient steps, the new model back."""

    def trained(arrays, message, context):
        features = np.random.default_rng(context.node_config["partition-id"]).normal(size=(50, 5))
        w, b = (array.copy() for array in arrays.values())
        for _ in range(5):
            residuals = features @ (w - TRUTH) + b
            w -= 0.1 * (features.T @ residuals / 50)
            b -= 0.1 * residuals.mean()
        return {"w": w, "b": b}

    return foreign_app(trained, mods=list(own))


def run(app, own=None, rounds=20, **options):
    own = own or FedDualAvg(client="unmodified", density=0.5, client_lr=0.1, fraction_evaluate=0.0)
    return simulated(own, app, rounds, num_nodes=NODES, initial_arrays={"w": np.zeros(5), "b": np.zeros(1)}, **options)


def is_right(result, tolerance):
    w = result.arrays["w"].numpy()
    np.testing.assert_allclose(w, TRUTH, rtol=0, atol=tolerance)
    assert (w == 0).sum() >= 2
    assert result.left_out == []


def test_unmodified_clients_may_clip_and_add_noise():
    is_right(run(ordinary(mods.LocalDpMod(1.0, 0.01, 10.0, 1e-5))), 0.05)


@pytest.mark.parametrize("name", ["fixedclipping_mod", "adaptiveclipping_mod"])
def test_unmodified_clients_clip_where_the_train_config_says_how_much(name):
    clipped = ordinary(getattr(mods, name))
    is_right(run(clipped, train_config=ConfigRecord({"clipping_norm": 1.0})), 1e-2)
    small = run(clipped, rounds=1, train_config=ConfigRecord({"clipping_norm": 1e-3}))
    assert 0.0 < np.linalg.norm(small.arrays["w"].numpy()) <= 1e-3
    refused("requires the key 'clipping_norm'", run, clipped, rounds=1, kind=NothingTrainedError)
    refused(name, client_app, lambda context: None, mods=[getattr(mods, name)])


@pytest.mark.parametrize("name", ["secagg_mod", "secaggplus_mod"])
def test_secure_aggregation_is_of_the_legacy_api(name):
    mod = getattr(secure, name)
    refused(f"the mod {name}: it speaks with SecAggPlusWorkflow", client_app, lambda context: None, mods=[mod])
    for own in (None, FedAvg(fraction_evaluate=0.0)):
        refused(r"KeyError.*secaggplus_configs", run, ordinary(mod), own, rounds=1, kind=ClientError)


@pytest.mark.parametrize("wrong", [lambda message, context, call_next: None, "abc", [None], [client_app], 3])
def test_mods_are_a_sequence_of_functions(wrong):
    refused(r"mods=.*expected a list of functions", client_app, lambda context: None, mods=wrong)
