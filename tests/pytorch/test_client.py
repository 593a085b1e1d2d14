"""A training loop of one's own with our strategies: the same models as our ClientApp, and what it refuses."""

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import flwr.clientapp
import networks
import torch
from flwr.app import ConfigRecord, RecordDict
from problems import FEATURES, clients, start_arrays

from flwr_fco import Short, short_mod
from flwr_fco.client_apps import Limits, client_app
from flwr_fco.core.computing import random_generator
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1, GroupLasso, HardSparsity, Zero
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import (
    Arrays,
    Bounds,
    DFedDAGT,
    Epochs,
    FedDA,
    FedDAGT,
    FedDualAvg,
    FedDualAvgOSP,
    FedMid,
    FedMidOSP,
    FeDualEx,
    Scaffold,
    Steps,
    Wire,
)
from flwr_fco.topology import ring
from flwr_fco.torch import ClientApp, local_training
from flwr_fco.torch.client import GradientProbe
from flwr_fco.work import FirstOrder

NODES = 4


class Linear(networks.Linear):
    def __init__(self):
        super().__init__(FEATURES)


def torch_app(
    objectives,
    *,
    model=Linear,
    app=ClientApp,
    look=lambda net: None,
    steps_with=lambda training: training.optimizer,
    metrics=(),
    **options,
):
    """Return a ClientApp with a training loop over the batches that our own client takes."""
    app = app(**options)

    @app.train()
    def train(message, context):
        partition = int(context.node_config["partition-id"])
        rows = objectives[partition]
        net = model()
        with local_training(message, context, net) as training:
            look(net)
            work = training.work
            if isinstance(training.optimizer, GradientProbe):
                work = FirstOrder(steps=1, batch_size=work.batch_size)
            for batch in rows.batches(random_generator(0, training.server_round, partition), work):
                x, y = torch.tensor(rows.features[batch]), torch.tensor(rows.targets[batch])
                training.optimizer.zero_grad()
                ((net(x) - y) ** 2).mean().backward()
                steps_with(training).step()
            look(net)
        return training.reply({"num-examples": rows.num_examples, "train_loss": torch.tensor(0.25), **dict(metrics)})

    return app


def our_app(objectives, **options):
    return client_app(lambda context: objectives[int(context.node_config["partition-id"])], **options)


OPTIONS = {
    "regularizer": L1(0.05),
    "client_lr": 0.02,
    "work": Epochs(1, batch_size=5),
    "fraction_evaluate": 0.0,
    "bounds": Bounds(own_loops=True),
}
STRATEGIES = {
    "FedDualAvg": lambda: FedDualAvg(**OPTIONS),
    "FedDualAvg, some": lambda: FedDualAvg(**OPTIONS, fraction_train=0.5),
    "FedDualAvgOSP": lambda: FedDualAvgOSP(**OPTIONS),
    "FedMid": lambda: FedMid(**OPTIONS),
    "FedMidOSP": lambda: FedMidOSP(**OPTIONS),
    "FedMid, groups": lambda: FedMid(**OPTIONS | {"regularizer": GroupLasso(0.05, groups=[0, 0, 1, 1, 2, 2])}),
    "FedDualAvg, 3 of them": lambda: FedDualAvg(**OPTIONS | {"regularizer": HardSparsity(3)}),
    "FedDA": lambda: FedDA(**OPTIONS),
    "FedDAGT": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}),
    "FedDAGT, some": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, fraction_train=0.5),
    "Scaffold": lambda: Scaffold(**OPTIONS | {"work": Steps(4, batch_size=5)}),
    "DFedDAGT": lambda: DFedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, mixing=ring(NODES)),
    "FedDualAvg, short": lambda: FedDualAvg(**OPTIONS | {"regularizer": Zero()}, density=0.5, wire=Short()),
    # What a client remembers is what was sent, rounded.
    "FedDAGT, float32": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, wire=Wire(dtype="float32")),
}


def go(strategy, app, rounds=6, start=None, **options):
    start = start_arrays() if start is None else start
    return simulate(strategy, app, num_nodes=NODES, num_rounds=rounds, initial_arrays=start, progress=False, **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_loop_of_one_s_own_gives_the_model_of_our_client(name):
    objectives = clients()
    mods = [short_mod()]
    apps = our_app(objectives, mods=mods), torch_app(objectives, mods=mods)
    ours, theirs = (go(STRATEGIES[name](), app) for app in apps)
    for key in ours.arrays:
        expected = ours.arrays[key].numpy()
        np.testing.assert_allclose(theirs.arrays[key].numpy(), expected, rtol=0, atol=1e-12, err_msg=key)
    assert np.abs(ours.arrays["coefficients"].numpy()).max() > 0.01


class Forgetful(InProcessGrid):
    """Restarts all nodes before one round: nothing is remembered."""

    def reply(self, message):
        state = self.context(message.metadata.dst_node_id).state
        if message.metadata.group_id == "3" and "restarted" not in state:
            self.contexts[message.metadata.dst_node_id].state = RecordDict({"restarted": ConfigRecord()})
        return super().reply(message)


@pytest.mark.parametrize("name", ["FedDualAvg", "Scaffold"])
def test_a_restarted_node_is_sent_what_it_lacks(name):
    def train(app):
        grid = Forgetful(app, NODES, raise_errors=False)
        with grid.identity(), quiet(50):
            return STRATEGIES[name]().start(grid=grid, initial_arrays=start_arrays(), num_rounds=5)

    ours, theirs = train(our_app(clients())), train(torch_app(clients()))
    assert ours.left_out == theirs.left_out == []
    for key in ours.arrays:
        np.testing.assert_allclose(theirs.arrays[key].numpy(), ours.arrays[key].numpy(), rtol=0, atol=1e-12)


# --- random numbers -------------------------------------------------------------------------------------------------


def test_random_numbers_of_a_loop_follow_from_seed_round_and_partition():
    def drawn(seed):
        draws = []
        app = torch_app(clients(), look=lambda net: draws.append(torch.rand(1).item()))
        go(FedDualAvg(**OPTIONS, seed=seed), app, 2)
        return draws

    before = torch.random.get_rng_state()
    first = drawn(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(123)
    assert drawn(0) == first
    assert len({*first}) == len(first) == 2 * 2 * NODES
    assert not {*drawn(1)} & {*first}


# --- refused ----------------------------------------------------------------------------------------------------------


class Frozen(Linear):
    def __init__(self):
        super().__init__()
        self.intercept.requires_grad_(False)


def plain(**options):
    return FedDualAvg(**{**OPTIONS, "work": Steps(3, batch_size=5), **options})


OBJECTIVE = ".*flwr_fco.torch.TorchObjective, which takes every"
JOINT = {"regularizer": HardSparsity(2), "arrays": Arrays(scope="joint")}


@pytest.mark.parametrize(
    ("strategy", "client", "message"),
    [
        (FeDualEx(regularizer=L1(0.1), client_lr=0.1), {}, f"'dual_extrapolation' has no optimiser{OBJECTIVE}"),
        (plain(output="shadow"), {}, f"asks for all local points{OBJECTIVE}"),
        (plain(mirror_map=PNorm(4.0)), {}, rf"mirror_map=PNorm\(p=4.0{OBJECTIVE}"),
        (plain(**JOINT), {}, rf"scope='joint': HardSparsity\(count=2\) of all arrays together{OBJECTIVE}"),
        (plain(), {"app": flwr.clientapp.ClientApp}, "from flwr_fco.torch import ClientApp"),
        (plain(), {"model": Frozen}, r"the server optimises \['intercept'\].*pass_through="),
        (plain(), {"model": lambda: networks.Linear(3)}, "this model has .*: give `start` ArrayRecord"),
        (plain(), {"steps_with": lambda training: torch.optim.SGD([torch.zeros(1)])}, "has taken no step"),
        (plain(), {"metrics": {"histogram": torch.zeros(2)}}, r"the metric 'histogram' is a .*'histogram-0'"),
        *(
            (plain(), {"limits": Limits(**{name: limit})}, f"this client allows {name}={limit}")
            for name, limit in (("max_parameters", 3), ("max_plan", 40), ("max_steps", 2))
        ),
    ],
)
def test_what_a_loop_cannot_do_or_an_owner_does_not_allow_is_said(strategy, client, message):
    with pytest.raises(ClientError, match=message) as caught:
        go(strategy, torch_app(clients(), **client), rounds=1)
    assert isinstance(caught.value.__cause__, ConfigurationError)


# --- networks with buffers --------------------------------------------------------------------------------------------


def _loop_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        net = networks.Net()
        rows = networks.rows_of(context.node_config["partition-id"])
        with local_training(message, context, net) as training:
            assert {tensor.dtype for tensor in training.optimizer.increments().values()} == {torch.float32}
            for _ in range(training.work.steps):
                training.optimizer.zero_grad()
                networks.loss(net, (networks.IMAGES[rows], networks.LABELS[rows])).backward()
                training.optimizer.step()
        return training.reply({"num-examples": len(rows)})

    return app


def _buffered(app, **options):
    strategy = FedDualAvg(regularizer=L1(0.01), client_lr=0.1, work=Steps(2, batch_size=None), **options)
    return networks.run(strategy, app, 3)


def test_running_statistics_and_counters_come_back_averaged():
    loop = _buffered(_loop_app(), fraction_evaluate=0.0).arrays
    assert int(loop["1.num_batches_tracked"].numpy()) == 6  # 3 rounds of 2 steps
    assert loop["1.num_batches_tracked"].numpy().dtype == np.int64
    # The mean of the statistics that the nodes computed in their last round, on top of the round's common start.
    assert np.abs(loop["1.running_mean"].numpy()).max() > 0.05
    assert all(torch.isfinite(tensor).all() for tensor in networks.load(loop).state_dict().values())
    # Our own client with an Objective of the same model comes to the same, evaluation included.
    result = _buffered(networks.objective_app(), fraction_evaluate=1.0)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(array.numpy(), loop[name].numpy(), rtol=0, atol=1e-6, err_msg=name)
    assert result.evaluate_metrics_clientapp[3]["loss"] < result.evaluate_metrics_clientapp[1]["loss"]


def test_an_own_loop_keeps_its_momentum():
    def run(momentum, kind):
        strategy = kind(client_lr=0.01, bounds=Bounds(own_loops=True), fraction_evaluate=1.0)
        result = networks.run(strategy, networks.loop_app(momentum=momentum), 3)
        return result.evaluate_metrics_clientapp[3]["eval_loss"]

    assert run(0.9, FedDualAvg) < run(0.0, FedDualAvg)
    with pytest.raises(ClientError, match=r"momentum=0\.9"):
        run(0.9, FedDAGT)
