"""A project with a network: a loop of its own, or code that knows nothing of this package; nothing of it is lost."""

import io
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from adversarial_clients import in_messages
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg
from networks import BATCH, NODES, TRAIN, accuracy, density, load, loop_app, objective_app, run, unmodified_app
from problems import refused

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Bounds, Epochs, FedDAGT, FedDualAvg, Steps
from flwr_fco.torch import ClientApp

STEPS = TRAIN // NODES // BATCH
OFF, LOOPS = {"fraction_evaluate": 0.0}, {"bounds": Bounds(own_loops=True)}


def unmodified(**options):
    return FedDualAvg(client="unmodified", **options)


def composite(**options):
    return FedDualAvg(regularizer=L1(2e-3), client_lr=0.2, work=Epochs(1, batch_size=BATCH), **options)


WAYS = {
    "unmodified": (lambda **options: unmodified(density=0.3, **options), unmodified_app),
    "loop": (lambda **options: composite(**LOOPS, **options), loop_app),
    "objective": (composite, objective_app),
}


# --- what goes on working: evaluation, metrics, mods, configs, checkpoints, buffers, momentum -------------------------


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
        assert (metrics["clients"], metrics["largest"]) == (NODES, TRAIN // NODES)
    plain = run(make(fraction_evaluate=1.0), app(), 2)
    assert plain.evaluate_metrics_clientapp[2]["eval_loss"] < plain.evaluate_metrics_clientapp[1]["eval_loss"]


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 0.1)])
def test_mods_that_clip_models_are_refused_by_our_client_apps(mod):
    for make in (ClientApp, partial(client_app, lambda context: None)):
        refused(r"clips \(reply - what was received\).*increments", make, mods=[mod])


def test_the_run_config_reaches_the_clients():
    make, app = WAYS["loop"]
    rows = [run(make(**OFF), app(), 1, run_config={"lr": lr}).train_metrics_clientapp[1] for lr in (0.1, 0.4)]
    assert [row["rate"] for row in rows] == [0.1, 0.4]


def checkpoint(rounds):
    """What a FedAvg project has saved after some rounds: torch.save(state_dict)."""
    file = io.BytesIO()
    torch.save(run(FedAvg(**OFF), unmodified_app(), rounds).arrays.to_torch_state_dict(), file)
    file.seek(0)
    return ArrayRecord(torch.load(file, weights_only=True))


def test_a_checkpoint_of_fedavg_is_gone_on_with():
    """Three rounds of FedAvg and two of ours are five of FedAvg, statistics and counters of BatchNorm included."""
    ours = run(unmodified(**OFF), unmodified_app(), 2, checkpoint(3)).arrays
    fedavg = run(FedAvg(**OFF), unmodified_app(), 5).arrays
    assert int(ours["1.num_batches_tracked"].numpy()) == 5 * STEPS
    for name in fedavg:
        np.testing.assert_allclose(ours[name].numpy(), fedavg[name].numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
def test_a_trained_checkpoint_becomes_sparse_and_keeps_what_it_has_learnt(way):
    """As `evaluate_fn` sees it, which gets the model after each round, and the start point as that of round 0."""
    make, app = WAYS[way]
    saved = checkpoint(8)
    seen = {}

    def evaluate(number, arrays):
        net = load(arrays)
        seen[number] = {"accuracy": accuracy(net), "density": density(net)}
        return MetricRecord(seen[number])

    result = run(make(**OFF), app(), 8, saved, evaluate_fn=evaluate)
    assert [dict(result.evaluate_metrics_serverapp[number]) for number in range(9)] == [*seen.values()]
    accuracies = [found["accuracy"] for found in seen.values()]
    assert accuracies[0] == accuracy(load(saved)) > 0.85
    assert min(accuracies) > 0.7
    assert accuracies[-1] > accuracies[0] - 0.06
    assert seen[0]["density"] == 1.0
    assert seen[8]["density"] == density(load(result.arrays)) < 0.9


def test_running_statistics_and_counters_come_back_averaged():
    """Of a loop of one's own, and the same of our client with an Objective of the same model, evaluation included."""

    def train(app, share):
        own = {"regularizer": L1(0.01), "client_lr": 0.1, "work": Steps(2, batch_size=None)}
        return run(FedDualAvg(**own, fraction_evaluate=share), app, 3)

    loop = train(loop_app(), 0.0).arrays
    assert int(loop["1.num_batches_tracked"].numpy()) == 6  # 3 rounds of 2 steps
    assert loop["1.num_batches_tracked"].numpy().dtype == np.int64
    # The mean of the statistics that the nodes computed in their last round, on top of the round's common start.
    assert np.abs(loop["1.running_mean"].numpy()).max() > 0.05
    assert all(torch.isfinite(tensor).all() for tensor in load(loop).state_dict().values())
    result = train(objective_app(), 1.0)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), loop[name].numpy(), rtol=0, atol=1e-6, err_msg=name)
    assert result.evaluate_metrics_clientapp[3]["loss"] < result.evaluate_metrics_clientapp[1]["loss"]


def test_an_own_loop_keeps_its_momentum():
    def trained(momentum, method):
        result = run(method(client_lr=0.01, fraction_evaluate=1.0, **LOOPS), loop_app(momentum=momentum), 3)
        return result.evaluate_metrics_clientapp[3]["eval_loss"]

    assert trained(0.9, FedDualAvg) < trained(0.0, FedDualAvg)
    refused(r"momentum=0\.9", trained, 0.9, FedDAGT, kind=ClientError)


# --- code that cannot be changed --------------------------------------------------------------------------------------


def ordinary(strategy, rounds):
    """Return the network and the result of clients that know nothing of this package."""
    result = run(strategy, unmodified_app(0.9), rounds, run_config={"lr": 0.1})
    return load(result.arrays), result


def test_one_word_on_the_server_makes_the_network_sparse():
    """Density within .01 of what was asked for over the last quarter of the rounds, and the network has learnt."""
    net, result = ordinary(unmodified(density=0.2, **OFF), 16)
    dense, _ = ordinary(FedAvg(**OFF), 16)
    for number in range(12, 17):
        assert abs(result.train_metrics_clientapp[number]["density"] - 0.2) <= 0.01
    assert abs(density(net) - 0.2) <= 0.01
    assert density(dense) == 1.0
    assert accuracy(net) > 0.9
    assert accuracy(dense) - accuracy(net) < 0.08


def test_the_statistics_are_averaged_and_not_optimised():
    """They are not cut by the threshold, and the server's rate does not reach them."""
    net, _ = ordinary(unmodified(server_lr=0.5, regularizer=L1(1.0), client_lr=10.0, work=Steps(1), **OFF), 2)
    assert density(net) == 0.0
    assert torch.count_nonzero(net[1].running_var) > 0
    assert int(net[1].num_batches_tracked) == 2 * STEPS


def test_what_a_new_user_would_try_first_is_an_error():
    refused(r"Give density=0\.1", unmodified, regularizer=L1(1e-3))


def heavier(number, arrays, metrics):
    metrics["num-examples"] *= 900
    for name in [name for name in arrays if "num_batches" not in name]:
        arrays[name] = np.asarray(-900.0 * arrays[name], arrays[name].dtype)


@pytest.mark.parametrize("way", ["unmodified", "loop"])
def test_one_of_four_that_lies_is_left_out_and_changes_little(way):
    make, app = WAYS[way]
    given, honest = (run(make(**OFF), app(mods=mods), 3) for mods in ([in_messages(heavier, 1)], []))
    assert ({row.partition_id for row in given.left_out}, honest.left_out) == ({1}, [])
    assert accuracy(load(given.arrays)) > accuracy(load(honest.arrays)) - 0.1
