"""A training loop of one's own: the same models as our ClientApp, what it refuses, and what its owner may forbid."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import flwr.clientapp
import networks
import torch
from faults import FaultyGrid
from flwr.app import Message, MetricRecord, RecordDict
from problems import FEATURES, answered, app_of, clients, flat, refused, simulated, started

from flwr_fco import Short, short_mod, strategies
from flwr_fco.client_apps import Disclosure, Limits
from flwr_fco.core.computing import random_generator
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1, GroupLasso, HardSparsity, Zero
from flwr_fco.strategies import Bounds, FedDAGT, FedDualAvg, FedMid, FeDualEx, Steps, Wire
from flwr_fco.topology import ring
from flwr_fco.torch import ClientApp, LocalTraining, local_training
from flwr_fco.torch.client import GradientProbe
from flwr_fco.work import FirstOrder

NODES = 4


Linear = partial(networks.Linear, FEATURES)


def torch_app(
    objectives, *, model=Linear, app=ClientApp, look=id, steps=attrgetter("optimizer"), metrics=(), **options
):
    """Return a ClientApp with a training loop over the batches that our own client takes, and with evaluation."""
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
                steps(training).step()
            look(net)
        return training.reply({"num-examples": rows.num_examples, "train_loss": torch.tensor(0.25), **dict(metrics)})

    @app.evaluate()
    def evaluate(message, context):
        own = {"loss": 1.0, "num-examples": objectives[int(context.node_config["partition-id"])].num_examples}
        return Message(RecordDict({"metrics": MetricRecord(own)}), reply_to=message)

    return app


OPTIONS = {
    "regularizer": L1(0.05),
    "client_lr": 0.02,
    "work": strategies.Epochs(1, batch_size=5),
    "fraction_evaluate": 0.0,
    "bounds": Bounds(own_loops=True),
}
STRATEGIES = {
    "FedDualAvg": lambda: FedDualAvg(**OPTIONS),
    "FedDualAvg, some": lambda: FedDualAvg(**OPTIONS, fraction_train=0.5),
    "FedDualAvgOSP": lambda: strategies.FedDualAvgOSP(**OPTIONS),
    "FedMid": lambda: FedMid(**OPTIONS),
    "FedMidOSP": lambda: strategies.FedMidOSP(**OPTIONS),
    "FedMid, groups": lambda: FedMid(**OPTIONS | {"regularizer": GroupLasso(0.05, groups=[0, 0, 1, 1, 2, 2])}),
    "FedDualAvg, 3 of them": lambda: FedDualAvg(**OPTIONS | {"regularizer": HardSparsity(3)}),
    "FedDAGT": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}),
    "FedDAGT, some": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, fraction_train=0.5),
    "Scaffold": lambda: strategies.Scaffold(**OPTIONS | {"work": Steps(4, batch_size=5)}),
    "DFedDAGT": lambda: strategies.DFedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, mixing=ring(NODES)),
    "FedDualAvg, short": lambda: FedDualAvg(**OPTIONS | {"regularizer": Zero()}, density=0.5, wire=Short()),
    # What a client remembers is what was sent, rounded.
    "FedDAGT, float32": lambda: FedDAGT(**OPTIONS | {"work": Steps(4, batch_size=5)}, wire=Wire(dtype="float32")),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_loop_of_one_s_own_gives_the_model_of_our_client(name):
    objectives = clients()
    mods = [short_mod()]
    apps = app_of(objectives, mods=mods), torch_app(objectives, mods=mods)
    ours, theirs = (simulated(STRATEGIES[name](), app, 6) for app in apps)
    np.testing.assert_allclose(flat(theirs.arrays), flat(ours.arrays), rtol=0, atol=1e-12)
    assert np.abs(ours.arrays["coefficients"].numpy()).max() > 0.01


@pytest.mark.parametrize("name", ["FedDualAvg", "Scaffold"])
def test_a_restarted_node_is_sent_what_it_lacks(name):
    def train(app):
        grid = FaultyGrid(app, NODES, {"restart": 1.0}, rounds=[3])
        result = started(STRATEGIES[name](), grid, 5)
        assert {fault.partition for fault in grid.injected} == set(range(NODES))
        return result

    ours, theirs = train(app_of(clients())), train(torch_app(clients()))
    assert ours.left_out == theirs.left_out == []
    np.testing.assert_allclose(flat(theirs.arrays), flat(ours.arrays), rtol=0, atol=1e-12)


# --- random numbers -------------------------------------------------------------------------------------------------


def test_random_numbers_of_a_loop_follow_from_seed_round_and_partition():
    def drawn(seed):
        draws = []
        app = torch_app(clients(), look=lambda net: draws.append(time.sleep(1e-3) or torch.rand(1).item()))
        simulated(FedDualAvg(**OPTIONS, seed=seed), app, 2)
        return draws

    before = torch.random.get_rng_state()
    first = drawn(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(123)
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(drawn, (0, 0))] == [first, first]
    assert len({*first}) == len(first) == 2 * 2 * NODES
    assert not {*drawn(1)} & {*first}


# --- refused ----------------------------------------------------------------------------------------------------------


class Frozen(networks.Linear):
    def __init__(self):
        super().__init__(FEATURES)
        self.intercept.requires_grad_(False)


def plain(**options):
    return FedDualAvg(**{**OPTIONS, "work": Steps(3, batch_size=5), **options})


def without_gradients(training):
    training.optimizer.register_step_pre_hook(lambda optimizer, *_: optimizer.zero_grad())
    return training.optimizer


def with_own_layer(net):
    return torch.nn.init.ones_(net.intercept.requires_grad_(False))


OBJECTIVE = ".*flwr_fco.torch.TorchObjective, which takes every"
JOINT = {"regularizer": HardSparsity(2), "arrays": strategies.Arrays(scope="joint")}


REFUSED_LOOPS = [
    (FeDualEx(regularizer=L1(0.1), client_lr=0.1), {}, f"'dual_extrapolation' has no optimiser{OBJECTIVE}"),
    (plain(output="shadow"), {}, f"asks for all local points{OBJECTIVE}"),
    (plain(client_lr="auto"), {}, f"answers no questions, such as those of client_lr='auto'{OBJECTIVE}"),
    (plain(mirror_map=PNorm(4.0)), {}, rf"mirror_map=PNorm\(p=4.0{OBJECTIVE}"),
    (plain(**JOINT), {}, rf"scope='joint': HardSparsity\(count=2\) of all arrays together{OBJECTIVE}"),
    (plain(), {"app": flwr.clientapp.ClientApp}, "from flwr_fco.torch import ClientApp.*import ClientApp`$"),
    (plain(), {"model": Frozen}, "the server optimises 'intercept', .*pass_through="),
    (plain(), {"model": lambda: networks.Linear(3)}, "this model {'c.*}; 1 others are alike: give `start` Arr"),
    (plain(), {"steps": lambda training: torch.optim.SGD([torch.zeros(1)])}, "has taken no step"),
    (plain(), {"look": lambda net: torch.nn.init.ones_(net.coefficients)}, "changed before the first step"),
    # Weights that a client freezes are kept.
    (plain(), {"look": with_own_layer, "steps": without_gradients}, "no parameter of the model had a gradient"),
    (plain(), {"metrics": {"histogram": torch.zeros(2)}}, r"the metric 'histogram' is a .*'histogram-0'"),
    (plain(), {"metrics": {"num-examples": float("nan")}}, "num-examples=nan; expected a finite number >= 0"),
    *(
        (plain(), {"limits": Limits(**{name: limit})}, f"this client allows {name}={limit}")
        for name, limit in (("max_parameters", 3), ("max_plan", 40), ("max_steps", 2))
    ),
]


@pytest.mark.parametrize(("strategy", "client", "message"), REFUSED_LOOPS)
def test_what_a_loop_cannot_do_or_an_owner_does_not_allow_is_said(strategy, client, message):
    with pytest.raises(ClientError, match=message) as caught:
        simulated(strategy, torch_app(clients(), **client), 1)
    assert isinstance(caught.value.__cause__, ConfigurationError)


# --- what the owner may forbid, and the record ------------------------------------------------------------------------


def with_owner(disclosure, **options):
    """Return the result of two rounds, with evaluation; of the clients' rows, one has 7 and the others 12 and more."""
    strategy = FedDualAvg(**OPTIONS | {"fraction_evaluate": 1.0, "min_train_nodes": 1, "min_evaluate_nodes": 1})
    return simulated(strategy, torch_app(clients(), disclosure=disclosure), 2, **options)


def test_answers_about_few_rows_do_not_leave_a_training_loop():
    result = with_owner(Disclosure(min_rows=10), raise_errors=False)
    assert {(row.kind, row.partition_id) for row in result.left_out} == {("train", 2), ("evaluate", 2)}
    said = "an answer to '{}'; this site has fewer rows for it than min_rows=10"
    assert all(said.format(row.kind) in row.reason for row in result.left_out)
    assert with_owner(Disclosure(min_rows=7)).left_out == []
    # Names, which a private run asks for, are of no rows.
    answered(FaultyGrid(torch_app(clients(), disclosure=Disclosure(min_rows=7)), 4, {}), RecordDict(), "query.names")


def test_limits_that_a_loop_cannot_keep_and_a_missing_block_are_refused():
    for own in ({"min_class_rows": 5}, {"min_events": 5, "min_rows": 3}):
        refused(f"disclosure has {next(iter(own))}, .*only how many rows", ClientApp, disclosure=Disclosure(**own))
    refused("disclosure=20 is an int; expected", ClientApp, disclosure=20)
    app = torch_app(clients(), look=lambda net: net.load_state_dict({"dual": torch.ones(4)}))
    refused("a dual and no model: give the strategy client=", simulated, plain(), app, 1, kind=ClientError)
    refused("no optimiser outside .*: with local_training", attrgetter("optimizer"), object.__new__(LocalTraining))


def test_each_message_is_a_line(caplog):
    def lines():
        return [record.getMessage() for record in caplog.records if record.name == "flwr.disclosure"]

    with_owner(None)
    assert lines() == []
    with_owner(Disclosure(min_rows=10), raise_errors=False)
    trained = [line for line in lines() if ": asked for 'train'; " in line]
    assert len(trained) == 2 * 4
    assert sum(": increment[7], num-examples" in line and "sent 11 numbers about" in line for line in trained) == 2 * 3
    assert sum("refused: " in line and "min_rows=10" in line for line in trained) == 2
    assert sum("asked for 'evaluate'; sent 2 numbers about " in line for line in lines()) == 6
