"""What practitioners make of FedAvg: the same class body over FedDualAvg without psi gives FedAvg's model."""

import copy
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg

NODES, ROUNDS = 4, 12
TARGETS = np.random.default_rng(5).normal(size=(NODES, 6, 5))
START = {"0.weight": np.zeros((6, 5)), "0.bias": np.full(5, 0.5)}


def client_app(evaluates=True):
    """Clients that move the weights towards a target of their own, at the rate that the config says."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        target = TARGETS[int(context.node_config["partition-id"])]
        goals = {"0.weight": target, "0.bias": target.mean(axis=0)}
        now = {name: array.numpy() for name, array in arrays.items()}
        rate = float(config.get("lr", 0.3))
        new = {name: Array(value + rate * (goals[name] - value)) for name, value in now.items()}
        metrics = {"num-examples": 10, "loss": float(np.mean((now["0.weight"] - target) ** 2))}
        metrics["served"] = float(config.get("serves", -1))
        content = RecordDict({"arrays": ArrayRecord(new), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 0.5})}), reply_to=message)

    if evaluates:
        app.evaluate()(evaluate)
    return app


def numbers(arrays):
    return {name: array.numpy() for name, array in arrays.items()}


class DecayingRate:
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5 * 0.9**server_round
        return super().configure_train(server_round, arrays, config, grid)


class OneByOne:
    def configure_train(self, server_round, arrays, config, grid):
        yield from super().configure_train(server_round, arrays, config, grid)


class TwoOfThem:
    def configure_train(self, server_round, arrays, config, grid):
        ours = sorted(super().configure_train(server_round, arrays, config, grid), key=lambda m: m.metadata.dst_node_id)
        return tuple(ours[server_round % 2 :][:2])


class ConfigOfEachClient:
    def configure_train(self, server_round, arrays, config, grid):
        for index, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            content = copy.deepcopy(message.content)
            content["config"]["serves"] = index
            metadata = message.metadata
            yield Message(content, metadata.dst_node_id, message_type=metadata.message_type, group_id=metadata.group_id)


class OneReplyIsLost:
    def aggregate_train(self, server_round, replies):
        ours = sorted(replies, key=lambda message: message.metadata.src_node_id)
        return super().aggregate_train(server_round, ours[1:] if server_round == 3 else ours)


class Fairness:
    """Weights by the loss, as q-FedAvg has them."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            reply.content["metrics"]["num-examples"] = 1 + reply.content["metrics"]["loss"]
        return super().aggregate_train(server_round, replies)


class ClippedUpdates:
    def configure_train(self, server_round, arrays, config, grid):
        self.before = numbers(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            changes = {name: value - self.before[name] for name, value in numbers(reply.content["arrays"]).items()}
            factor = min(1.0, 1.0 / np.sqrt(sum(np.sum(change**2) for change in changes.values())))
            clipped = {name: Array(self.before[name] + factor * change) for name, change in changes.items()}
            reply.content["arrays"] = ArrayRecord(clipped)
        return super().aggregate_train(server_round, replies)


class Momentum:
    velocity = None

    def configure_train(self, server_round, arrays, config, grid):
        self.before = numbers(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        changes = {name: value - self.before[name] for name, value in numbers(arrays).items()}
        past = self.velocity or dict.fromkeys(changes, 0.0)
        self.velocity = {name: 0.5 * past[name] + change for name, change in changes.items()}
        moved = {name: Array(self.before[name] + step) for name, step in self.velocity.items()}
        return ArrayRecord(moved), metrics


class MeanOfModels:
    """An exponential mean beside the model, in an attribute of its own."""

    mean = None

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        new = numbers(arrays)["0.weight"]
        self.mean = new if self.mean is None else 0.9 * self.mean + 0.1 * new
        return arrays, {**dict(metrics or {}), "length-of-mean": float(np.linalg.norm(self.mean))}


class Watermark:
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        arrays["0.bias"] = Array(np.arange(5.0))
        return arrays, metrics


class Clipped:
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({name: Array(np.clip(value, -0.6, 0.6)) for name, value in numbers(arrays).items()}), metrics


class Logged:
    def __init__(self, *args, folder="runs", **options):
        super().__init__(*args, **options)
        self.folder, self.rows, self.metrics = folder, [], {}

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.rows.append({"round": server_round, "loss": metrics["loss"]})
        return arrays, metrics

    def aggregate_evaluate(self, server_round, replies):
        self.metrics[server_round] = dict(super().aggregate_evaluate(server_round, replies))
        return MetricRecord({"rows": len(self.rows)})


class EverySecondEvaluation:
    def configure_evaluate(self, server_round, arrays, config, grid):
        return [] if server_round % 2 else super().configure_evaluate(server_round, arrays, config, grid)


KINDS = [
    DecayingRate,
    OneByOne,
    TwoOfThem,
    ConfigOfEachClient,
    OneReplyIsLost,
    Fairness,
    ClippedUpdates,
    Momentum,
    MeanOfModels,
    Watermark,
    Clipped,
    Logged,
    EverySecondEvaluation,
]
#: They move entries that psi has made exactly 0, which no state can hold.
REFUSED_WITH_DENSITY = {Momentum}


def model_of(kind, base, **options):
    strategy = type(kind.__name__, (kind, base), {})(**options)
    start = {name: value.copy() for name, value in START.items()}
    return simulate(strategy, client_app(), num_nodes=NODES, num_rounds=ROUNDS, initial_arrays=start, progress=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_of_fed_avg_is_a_subclass_of_ours(kind):
    ours, theirs = model_of(kind, FedDualAvg, client="unmodified"), model_of(kind, FedAvg)
    for name, value in numbers(theirs.arrays).items():
        np.testing.assert_allclose(ours.arrays[name].numpy(), value, rtol=1e-12, atol=1e-13)
    for kept in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        rounds = getattr(theirs, kept)
        assert rounds.keys() == getattr(ours, kept).keys()
        for number, metrics in rounds.items():
            own = getattr(ours, kept)[number]
            assert {key: own[key] for key in metrics} == pytest.approx(dict(metrics), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_a_sparse_model_or_is_refused_in_words(kind):
    if kind in REFUSED_WITH_DENSITY:
        with pytest.raises(ConfigurationError, match="An entry that psi has made 0 must stay 0"):
            model_of(kind, FedDualAvg, client="unmodified", density=0.3)
        return
    weights = model_of(kind, FedDualAvg, client="unmodified", density=0.3).arrays["0.weight"].numpy()
    assert np.count_nonzero(weights) == 9
    optimum = TARGETS.mean(axis=0)
    assert np.sum((weights - optimum) ** 2) < 0.7 * np.sum(optimum**2)


@pytest.mark.parametrize("hook", ["configure_train", "aggregate_train", "configure_evaluate"])
def test_a_hook_without_return_is_told_what_to_return(hook):
    def forgets(self, *arguments):
        getattr(super(type(self), self), hook)(*arguments)

    strategy = type("Forgetful", (FedDualAvg,), {hook: forgets})(client="unmodified")
    told = rf"Forgetful\.{hook} returned None; expected .* end it with `return super\(\)\.{hook}\(server_round, "
    with pytest.raises(ConfigurationError, match=told):
        simulate(strategy, client_app(), num_nodes=NODES, num_rounds=1, initial_arrays=START, progress=False)


@pytest.mark.parametrize("hook", ["configure_train", "configure_evaluate"])
@pytest.mark.parametrize(("returned", "told"), [(5, "a int"), ([1, 2], "a list that holds a int")])
def test_a_hook_that_returns_no_messages_is_told_what_to_return(hook, returned, told):
    strategy = type("Odd", (FedDualAvg,), {hook: lambda *_: returned})(client="unmodified")
    with pytest.raises(ConfigurationError, match=rf"Odd\.{hook} returned {told}; expected messages"):
        simulate(strategy, client_app(), num_nodes=NODES, num_rounds=1, initial_arrays=START, progress=False)


def test_a_client_app_without_evaluate_is_told_of_it():
    told, options = r"has no @app\.evaluate\(\).*fraction_evaluate=0\.0", {"num_nodes": NODES, "progress": False}
    for base in (FedDualAvg(client="unmodified"), FedAvg()):
        with pytest.raises(ClientError, match=told):
            simulate(base, client_app(False), num_rounds=1, initial_arrays=START, **options)
    without = FedDualAvg(client="unmodified")
    result = simulate(without, client_app(False), num_rounds=1, initial_arrays=START, raise_errors=False, **options)
    assert [bool(re.search(told, row.reason)) for row in result.left_out] == [True] * NODES
    advised = FedDualAvg(client="unmodified", fraction_evaluate=0.0)
    simulate(advised, client_app(False), num_rounds=1, initial_arrays=START, **options)
