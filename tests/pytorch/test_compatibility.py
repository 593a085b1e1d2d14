"""What a Flower project has besides its training goes on working: evaluation, metrics, mods, configs, checkpoints."""

import io

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg
from networks import BATCH, NODES, TRAIN, accuracy, density, load, loop_app, objective_app, run, unmodified_app

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Bounds, Epochs, FedDualAvg
from flwr_fco.torch import ClientApp

STEPS = TRAIN // NODES // BATCH


def unmodified(**options):
    return FedDualAvg(client="unmodified", density=0.3, **options)


def composite(**options):
    return FedDualAvg(regularizer=L1(2e-3), client_lr=0.2, work=Epochs(1, batch_size=BATCH), **options)


def with_loops(**options):
    return composite(bounds=Bounds(own_loops=True), **options)


WAYS = {
    "unmodified": (unmodified, unmodified_app),
    "loop": (with_loops, loop_app),
    "objective": (composite, objective_app),
}
OFF = {"fraction_evaluate": 0.0}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


@pytest.mark.parametrize("name", ["unmodified", "loop"])
def test_federated_evaluation_with_handlers_and_metrics_of_ones_own(name):
    """The handlers get the model; replies go to the user's functions, with the key that they are to weigh by."""
    make, app = WAYS[name]
    calls = []

    def aggregate(records, weighted_by_key):
        calls.append((len(records), weighted_by_key))
        found = [record[key] for content in records for record in content.metric_records.values() for key in record]
        return MetricRecord({"clients": len(records), "largest": max(map(float, found))})

    options = {"train_metrics_aggr_fn": aggregate, "evaluate_metrics_aggr_fn": aggregate}
    result = run(make(fraction_evaluate=1.0, **options), app(), 2)
    assert calls == [(NODES, "num-examples")] * 4
    for metrics in (result.train_metrics_clientapp[2], result.evaluate_metrics_clientapp[2]):
        assert metrics["clients"] == NODES
        assert metrics["largest"] == TRAIN // NODES
    plain = run(make(fraction_evaluate=1.0), app(), 2)
    assert plain.evaluate_metrics_clientapp[2]["eval_loss"] < plain.evaluate_metrics_clientapp[1]["eval_loss"]


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 0.1)])
def test_mods_that_clip_models_are_refused_by_our_client_apps(mod):
    for make in (lambda: ClientApp(mods=[mod]), lambda: client_app(lambda context: None, mods=[mod])):
        with pytest.raises(ConfigurationError, match=r"clips \(reply - what was received\).*increments"):
            make()


@pytest.mark.parametrize("name", ["unmodified", "loop"])
def test_the_run_config_reaches_the_clients(name):
    make, app = WAYS[name]
    one, other = (run(make(**OFF), app(), 1, run_config={"lr": lr}) for lr in (0.1, 0.4))
    if name == "loop":
        assert (one.train_metrics_clientapp[1]["rate"], other.train_metrics_clientapp[1]["rate"]) == (0.1, 0.4)
    else:
        assert not np.array_equal(one.arrays["0.weight"].numpy(), other.arrays["0.weight"].numpy())


def checkpoint(rounds):
    """What a FedAvg project has saved after some rounds: torch.save(state_dict)."""
    file = io.BytesIO()
    trained = run(FedAvg(**OFF), unmodified_app(), rounds)
    torch.save(trained.arrays.to_torch_state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_checkpoint_of_fedavg_is_gone_on_with():
    """Three rounds of FedAvg and two of ours are five of FedAvg, statistics and counters of BatchNorm included."""
    saved = checkpoint(3)
    ours = run(FedDualAvg(client="unmodified", **OFF), unmodified_app(), 2, ArrayRecord(saved)).arrays
    fedavg = run(FedAvg(**OFF), unmodified_app(), 5).arrays
    assert int(ours["1.num_batches_tracked"].numpy()) == 5 * STEPS
    for name in fedavg:
        np.testing.assert_allclose(ours[name].numpy(), fedavg[name].numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


def test_a_trained_checkpoint_becomes_sparse_and_keeps_what_it_has_learnt(way):
    """As `evaluate_fn` sees it, which gets the model after each round, and the start point as that of round 0."""
    make, app = way
    saved = checkpoint(8)
    seen = {}

    def evaluate(number, arrays):
        net = load(arrays)
        seen[number] = {"accuracy": accuracy(net), "density": density(net)}
        return MetricRecord(seen[number])

    result = run(make(**OFF), app(), 8, ArrayRecord(saved), evaluate_fn=evaluate)
    assert [dict(result.evaluate_metrics_serverapp[number]) for number in range(9)] == [*seen.values()]
    accuracies = [found["accuracy"] for found in seen.values()]
    assert accuracies[0] == accuracy(load(ArrayRecord(saved))) > 0.85
    assert min(accuracies) > 0.7
    assert accuracies[-1] > accuracies[0] - 0.06
    assert seen[0]["density"] == 1.0
    assert seen[8]["density"] == density(load(result.arrays)) < 0.9
