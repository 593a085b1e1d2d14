"""Hooks of subclasses, and strategies and loops around ours: what configure_train is given is what clients get."""

import copy
import logging
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from flwr_fco.algorithms import MirrorDescent
from flwr_fco.algorithms.primal_averaging import PrimalState
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError
from flwr_fco.regularizers import L1, Box
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import Average, Density, FedDAGT, FedDualAvg, FedMid, Steps

TARGET = np.random.default_rng(0).normal(size=(6, 5))
DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}
SPARSE = {**DENSE, "density": 0.3}
THRESHOLD = {**DENSE, "regularizer": L1(0.01), "client_lr": 0.25, "work": Steps(4)}
NODES = 4


def client_app(seen=None, metrics=None, start="w"):
    """Clients that move w by .3 of the way to the target; `seen` gets what they receive."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        w = message.content["arrays"][start].numpy()
        if seen is not None:
            seen.append(w.copy())
        numbers = {"num-examples": 10, "train_loss": 0.5, **(metrics or {})}
        arrays = ArrayRecord({start: Array((w + 0.3 * (TARGET - w)).astype(w.dtype))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(numbers)}), reply_to=message)

    return app


def go(kind, options=DENSE, *, rounds=6, dtype=np.float64, seen=None, **more):
    strategy = kind(**options)
    start = {"w": np.zeros((6, 5), dtype)}
    app = more.pop("app", None) or client_app(seen)
    return simulate(strategy, app, num_nodes=NODES, num_rounds=rounds, initial_arrays=start, progress=False, **more)


def answering(make, base=FedDualAvg):
    """A subclass whose `aggregate_train` returns what `make(round, arrays, metrics)` does."""

    class Own(base):
        def aggregate_train(self, server_round, replies):
            return make(server_round, *super().aggregate_train(server_round, replies))

    return Own


def changing(change, base=FedDualAvg):
    """A subclass that changes the model after each round."""

    def make(number, arrays, metrics):
        w = arrays["w"].numpy()
        return ArrayRecord({"w": Array(np.asarray(change(w.copy(), number), w.dtype))}), metrics

    return answering(make, base)


# --- what hooks return ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("metrics", "kept"),
    [
        (MetricRecord({"train_loss": 0.5}), {"train_loss": 0.5}),
        ({"train_loss": np.float32(0.5)}, {"train_loss": 0.5}),
        ({}, {}),
        (MetricRecord(), {}),
    ],
)
def test_metrics_of_a_hook_are_the_round_s(options, metrics, kept):
    plain = go(FedDualAvg, options)
    result = go(answering(lambda number, arrays, _: (arrays, metrics)), options)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), plain.arrays["w"].numpy())
    assert dict(result.train_metrics_clientapp[6]) == kept


def test_a_hook_may_return_no_metrics():
    result = go(answering(lambda number, arrays, _: (arrays, None)))
    assert np.abs(result.arrays["w"].numpy() - TARGET).max() < 0.3
    assert not result.train_metrics_clientapp


@pytest.mark.parametrize("answer", [None, [], (1,), ("model", {}), (None, 3), (None, {"name": "text"})])
def test_other_answers_of_a_hook_are_errors_in_words(answer):
    with pytest.raises(ConfigurationError, match=r"Own.aggregate_train returned"):
        go(answering(lambda *_: answer))


def test_a_round_of_which_nothing_is_kept_is_taken_back():
    """As with FedAvg, `None` leaves the model as it was: the clients get the same model again."""
    seen = []
    result = go(answering(lambda number, arrays, metrics: (None if number == 3 else arrays, metrics)), seen=seen)
    models = seen[::NODES]
    np.testing.assert_array_equal(models[3], models[2])
    np.testing.assert_array_equal(result.arrays["w"].numpy(), go(FedDualAvg, rounds=5).arrays["w"].numpy())


def test_a_skipped_round_of_a_hook_is_no_error():
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            return (None, None) if server_round == 3 else super().aggregate_train(server_round, replies)

    np.testing.assert_array_equal(go(Own).arrays["w"].numpy(), go(FedDualAvg, rounds=5).arrays["w"].numpy())


@pytest.mark.parametrize("name", ["density", "skipped", "num-replies"])
def test_a_metric_with_one_of_our_names_is_kept_under_another(name):
    metrics = go(FedDualAvg, SPARSE, app=client_app(metrics={name: 7.0})).train_metrics_clientapp[6]
    assert metrics[f"clients-{name}"] == 7.0
    assert metrics[name] == {"density": pytest.approx(0.3), "skipped": 0, "num-replies": NODES}[name]


def test_functions_of_metrics_may_return_a_dict():
    options = {**DENSE, "train_metrics_aggr_fn": lambda contents, key: {"mine": len(contents)}}
    result = go(FedDualAvg, options, evaluate_fn=lambda number, arrays: {"loss": float(number)})
    assert result.train_metrics_clientapp[6]["mine"] == NODES
    assert result.evaluate_metrics_serverapp[6]["loss"] == 6.0


# --- models that a subclass changes -----------------------------------------------------------------------------------


def clipped(w, number):
    return w * min(1.0, 1.0 / np.linalg.norm(w))


def without_a_row(w, number):
    w[0] = 0.0
    return w


def made_tiny(w, number):
    return 1e-9 * w


def halved_and_rounded(w, number):
    return np.round(0.5 * w, 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("options", [DENSE, SPARSE, THRESHOLD], ids=["dense", "sparse", "threshold"])
@pytest.mark.parametrize("change", [clipped, without_a_row, halved_and_rounded, made_tiny])
def test_the_clients_get_what_the_hook_returns(change, options, dtype):
    seen, returned = [], []

    def remembered(w, number):
        returned.append(change(w, number).astype(dtype))
        return returned[-1]

    result = go(changing(remembered), options, dtype=dtype, seen=seen)
    for number, model in enumerate(seen[::NODES][1:]):
        np.testing.assert_allclose(model, returned[number], rtol=1e-12, atol=1e-12)
        assert np.array_equal(model == 0.0, returned[number] == 0.0)
    np.testing.assert_allclose(result.arrays["w"].numpy(), returned[-1], rtol=1e-12, atol=1e-12)


def test_what_is_not_changed_keeps_its_bits():
    plain, seen = [], []
    go(FedDualAvg, THRESHOLD, seen=plain)
    go(changing(without_a_row), THRESHOLD, seen=seen)
    for model, own in zip(plain[::NODES], seen[::NODES], strict=True):
        np.testing.assert_array_equal(model[1:], own[1:])


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD], ids=["sparse", "threshold"])
def test_noise_on_zeros_is_refused_because_it_would_vanish(options):
    noise = np.random.default_rng(1)
    with pytest.raises(ConfigurationError, match=r"Own.configure_train got .* must stay 0.*privacy claim"):
        go(changing(lambda w, number: w + 0.01 * noise.normal(size=w.shape)), options)


def test_an_array_that_a_hook_sets_is_kept_whole_as_the_error_says():
    reset = changing(lambda w, number: TARGET if number == 5 else w)
    with pytest.raises(ConfigurationError, match=r"in 'w' an entry would be 0.*PerParameter\(\{'w': Zero\(\)\}\)"):
        go(reset, SPARSE)


def test_noise_without_psi_is_what_the_clients_get():
    noise, seen, returned = np.random.default_rng(1), [], []

    def noisy(w, number):
        returned.append(w + 0.1 * noise.normal(size=w.shape))
        return returned[-1]

    go(changing(noisy), seen=seen)
    np.testing.assert_allclose(seen[NODES], returned[0], rtol=1e-12)


def test_a_model_outside_of_a_constraint_is_refused():
    options = {**DENSE, "regularizer": Box(-0.5, 0.5)}
    with pytest.raises(ConfigurationError, match="a constraint must hold"):
        go(changing(lambda w, number: w + 1.0), options)


def test_methods_that_average_models_take_changes_too():
    from flwr_fco.client_apps import client_app as composite
    from flwr_fco.objectives import LeastSquares

    rows = np.random.default_rng(2).normal(size=(NODES, 8, 3))
    objectives = [LeastSquares(each, each[:, 0]) for each in rows]
    app = composite(lambda context: objectives[int(context.node_config["partition-id"])])
    options = {"regularizer": L1(0.01), "client_lr": 0.1, "fraction_evaluate": 0.0}
    start = {"coefficients": np.zeros(3), "intercept": np.zeros(1)}

    def halved(number, arrays, metrics):
        return ArrayRecord({name: Array(0.5 * array.numpy()) for name, array in arrays.items()}), metrics

    class Told(PrimalState):
        """A state that also says something of itself, which is no field of it."""

        @property
        def dual(self):
            return self.primal

    class Telling(MirrorDescent):
        def init(self, problem, primal):
            return Told(*super().init(problem, primal))

        def aggregate(self, problem, state, replies):
            return Told(*super().aggregate(problem, state, replies))

    more = {"num_nodes": NODES, "num_rounds": 20, "initial_arrays": start, "progress": False}
    own = type("Own", (FedMid,), {"algorithm": Telling})
    ends = [
        simulate(kind(**options), app, **more).arrays["coefficients"].numpy()
        for kind in (FedMid, answering(halved, FedMid), answering(halved, own))
    ]
    np.testing.assert_array_equal(ends[1], ends[2])
    assert 0.0 < np.linalg.norm(ends[1]) < 0.6 * np.linalg.norm(ends[0])
    with pytest.raises(ConfigurationError, match="what its clients remember"):
        simulate(answering(halved, FedDAGT)(**options), app, **more)


def test_arrays_of_another_model_are_named():
    with pytest.raises(ConfigurationError, match=r"no model: .*missing \['w'\]"):
        go(answering(lambda number, arrays, metrics: (ArrayRecord({"v": arrays["w"]}), metrics)))


def test_clients_that_return_a_part_of_the_model_are_told_what_to_start_from():
    start = {"w": np.zeros((6, 5)), "head": np.zeros(3)}
    with pytest.raises(NothingTrainedError, match=r"missing \['head'\].*the arrays that the clients return"):
        simulate(FedDualAvg(**DENSE), client_app(), num_nodes=2, num_rounds=2, initial_arrays=start, progress=False)


def test_a_subclass_that_aggregates_itself_is_told_where_to():
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            models = [reply.content["arrays"]["w"].numpy() for reply in replies]
            return ArrayRecord({"w": Array(np.mean(models, axis=0))}), MetricRecord()

    with pytest.raises(ConfigurationError, match=r"without calling super\(\).aggregate_train.*aggregate\(self, prob"):
        go(Own)


def test_a_hook_may_ask_nobody():
    class Seldom(FedDualAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return [] if server_round % 2 else super().configure_train(server_round, arrays, config, grid)

    result = go(Seldom)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), go(FedDualAvg, rounds=3).arrays["w"].numpy())
    assert list(result.train_metrics_clientapp) == [2, 4, 6]


def test_two_aggregations_of_a_round_would_be_two_steps():
    """Such as the contribution of each client, from the models without it."""

    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            super().aggregate_train(server_round, replies[1:])
            return super().aggregate_train(server_round, replies)

    with pytest.raises(ConfigurationError, match="round 1, which configure_train has not opened"):
        go(Own)


def test_messages_that_a_hook_leaves_out_are_not_missed():
    class Own(FedDualAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return list(super().configure_train(server_round, arrays, config, grid))[:2]

    result = go(Own)
    assert not result.left_out
    assert [result.train_metrics_clientapp[6][name] for name in ("num-replies", "num-left-out")] == [2, 0]


def test_evaluations_of_one_s_own_are_told_the_way():
    class Own(FedDualAvg):
        def configure_evaluate(self, server_round, arrays, config, grid):
            record = RecordDict({"arrays": arrays, "config": config})
            return self._construct_messages(record, list(grid.get_node_ids())[:2], "evaluate")

    app = client_app()

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.5})}), reply_to=message)

    with pytest.raises(ConfigurationError, match=r"super\(\).configure_evaluate was not"):
        go(Own, {"client": "unmodified"}, app=app)


def test_a_traceback_is_a_line_of_the_log(caplog):
    app = ClientApp()

    @app.train()
    def train(message, context):
        raise ValueError("first line" + 200 * "\nframe of the traceback" + "\nit broke here")

    with caplog.at_level(logging.WARNING, logger="flwr"), pytest.raises(NothingTrainedError):
        FedDualAvg(**DENSE).start(
            InProcessGrid(app, 2, raise_errors=False), ArrayRecord({"w": Array(np.zeros((6, 5)))}), 1
        )
    lines = [line for line in caplog.messages if "left out the reply" in line]
    assert len(lines) == 2
    assert all("ValueError: first line" in line and len(line) < 300 for line in lines)


# --- models that a loop, or a strategy around ours, changes -----------------------------------------------------------


def looped(strategy, change, app, rounds=4):
    """Rounds of a ServerApp without `start`; the model changes after each."""
    grid, arrays, passed = InProcessGrid(app, NODES), ArrayRecord({"w": Array(np.zeros((6, 5)))}), []
    with grid.identity():
        for number in range(1, rounds + 1):
            passed.append(arrays["w"].numpy())
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
            arrays = ArrayRecord({"w": Array(change(arrays["w"].numpy().copy(), number))})
    return passed


class Around(Strategy):
    """A strategy that has another one do the work, and changes the model between rounds."""

    def __init__(self, strategy, change):
        self.strategy, self.change, self.passed = strategy, change, []

    def configure_train(self, server_round, arrays, config, grid):
        self.passed.append(arrays["w"].numpy())
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = self.strategy.aggregate_train(server_round, replies)
        return ArrayRecord({"w": Array(self.change(arrays["w"].numpy().copy(), server_round))}), metrics

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        self.strategy.summary()


def wrapped(strategy, change, app):
    around = Around(strategy, change)
    simulate(around, app, num_nodes=NODES, num_rounds=4, initial_arrays={"w": np.zeros((6, 5))}, progress=False)
    return around.passed


def back_to_the_start(w, number):
    return np.zeros_like(w) if number == 3 else w


WAYS = pytest.mark.parametrize("way", [looped, wrapped])


@WAYS
@pytest.mark.parametrize("options", [DENSE, {**DENSE, "density": Density(0.3, rounds=3)}, THRESHOLD])
@pytest.mark.parametrize("change", [clipped, without_a_row, halved_and_rounded, back_to_the_start])
def test_what_is_passed_is_sent(way, options, change):
    seen = []
    passed = way(FedDualAvg(**options), change, client_app(seen))
    assert any(np.any(model) for model in passed)
    for model, sent in zip(passed, seen[::NODES], strict=True):
        np.testing.assert_allclose(sent, model, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(sent == 0.0, model == 0.0)


@WAYS
@pytest.mark.parametrize("options", [{"density": Density(0.3, rounds=3)}, THRESHOLD, {"output": Average()}])
def test_what_cannot_be_sent_is_an_error_in_words(way, options):
    noise, seen = np.random.default_rng(1), []
    strategy = FedDualAvg(**{**DENSE, **options})
    with pytest.raises(
        ConfigurationError, match=r"FedDualAvg.configure_train got (a|another) model .*(must stay 0|average)"
    ):
        way(strategy, lambda w, number: w + 0.1 * noise.normal(size=w.shape), client_app(seen))
    # No client has been told another model than the one that was passed.
    assert len(seen) < 4 * NODES
    with pytest.raises(ConfigurationError, match=r"configure_train got arrays that are no model: .*w"):
        way(FedDualAvg(**DENSE), lambda w, number: w[:-1], client_app())


WRAPPERS = [
    lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, NODES),
    lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.1, NODES),
    lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.1, 1.0, NODES),
    lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.1, NODES),
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_flowers_wrappers_for_privacy_do_what_they_do_around_fed_avg_or_are_refused(wrap):
    def models(inner):
        np.random.seed(0)  # noqa: NPY002 (Flower's noise is drawn from it)
        seen = []
        app = client_app(seen, metrics={"norm_bit": 1.0})
        start = {"w": np.zeros((6, 5))}
        result = simulate(wrap(inner), app, num_nodes=NODES, num_rounds=3, initial_arrays=start, progress=False)
        return [*seen[::NODES], result.arrays["w"].numpy()]

    ours, theirs = models(FedDualAvg(**DENSE)), models(FedAvg(fraction_evaluate=0.0))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    with pytest.raises(ConfigurationError, match="privacy claim"):
        models(FedDualAvg(**DENSE, density=Density(0.3, rounds=2)))
    with pytest.raises(ConfigurationError, match=r"DifferentialPrivacy\w+ clips .*privacy=GaussianDP"):
        models(FedDualAvg(fraction_evaluate=0.0))


# --- no absolute scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e8, 1e12])
def test_a_run_takes_its_units_from_its_first_round(scale):
    app = ClientApp()

    @app.train()
    def train(message, context):
        w = message.content["arrays"]["w"].numpy()
        arrays = ArrayRecord({"w": Array(w + 0.3 * (scale * TARGET - w))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    np.testing.assert_allclose(go(FedDualAvg, rounds=40, app=app).arrays["w"].numpy(), scale * TARGET, rtol=1e-4)


def test_replies_without_examples_are_told_as_the_cause(caplog):
    app = client_app(metrics={"num-examples": 0})
    with caplog.at_level(logging.WARNING, logger="flwr"), pytest.raises(NothingTrainedError, match="weights are all 0"):
        go(FedDualAvg, app=app)
    assert any("4 of 1 good replies, whose 'num-examples' are all 0" in line for line in caplog.messages)


# --- the same class body over FedAvg, and over FedDualAvg without psi -------------------------------------------------

TARGETS = np.random.default_rng(5).normal(size=(NODES, 6, 5))
START = {"0.weight": np.zeros((6, 5)), "0.bias": np.full(5, 0.5)}


def project_app(evaluates=True):
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
    return simulate(strategy, project_app(), num_nodes=NODES, num_rounds=12, initial_arrays=start, progress=False)


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
    told = rf"Forgetful\.{hook} returned (None|a NoneType); expected .*super\(\)\.{hook}"
    with pytest.raises(ConfigurationError, match=told):
        simulate(strategy, project_app(), num_nodes=NODES, num_rounds=1, initial_arrays=START, progress=False)


@pytest.mark.parametrize("hook", ["configure_train", "configure_evaluate"])
@pytest.mark.parametrize(("returned", "told"), [(5, "5"), ([1, 2], "1 among its messages"), ("all", "'all'")])
def test_a_hook_that_returns_no_messages_is_told_what_to_return(hook, returned, told):
    strategy = type("Odd", (FedDualAvg,), {hook: lambda *_: returned})(client="unmodified")
    with pytest.raises(ConfigurationError, match=rf"Odd\.{hook} returned {told}; expected messages: "):
        simulate(strategy, project_app(), num_nodes=NODES, num_rounds=1, initial_arrays=START, progress=False)


def test_a_client_app_without_evaluate_is_told_of_it():
    told, options = r"has no @app\.evaluate\(\).*fraction_evaluate=0\.0", {"num_nodes": NODES, "progress": False}
    for base in (FedDualAvg(client="unmodified"), FedAvg()):
        with pytest.raises(ClientError, match=told):
            simulate(base, project_app(False), num_rounds=1, initial_arrays=START, **options)
    without = FedDualAvg(client="unmodified")
    result = simulate(without, project_app(False), num_rounds=1, initial_arrays=START, raise_errors=False, **options)
    assert [bool(re.search(told, row.reason)) for row in result.left_out] == [True] * NODES
    advised = FedDualAvg(client="unmodified", fraction_evaluate=0.0)
    simulate(advised, project_app(False), num_rounds=1, initial_arrays=START, **options)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics", "current", "nodes", "graph", "plan", "layout", "problem", "mail", "run"])
def test_ordinary_names_are_the_subclass_s(name):
    class Own(FedDualAvg):
        def __init__(self, **options):
            super().__init__(**options)
            setattr(self, name, [])

    np.testing.assert_array_equal(go(Own).arrays["w"].numpy(), go(FedDualAvg).arrays["w"].numpy())


@pytest.mark.parametrize("name", ["state", "memories", "result", "saved"])
def test_what_a_user_reads_of_a_run_is_no_attribute_of_one_s_own(name):
    strategy = FedDualAvg(**DENSE)
    with pytest.raises(ConfigurationError, match=rf"self.{name} = \[\].*take another name"):
        setattr(strategy, name, [])
    go(lambda **_: strategy)


def test_a_subclass_without_super_init_is_told_so():
    class Own(FedDualAvg):
        def __init__(self, speed=1.0, **_):
            self.speed = speed

    with pytest.raises(ConfigurationError, match=r"Own.__init__ does not call super\(\).__init__\(...\)"):
        go(Own)
    with pytest.raises(ConfigurationError, match=r"Own.__init__ does not call super\(\).__init__\(...\)"):
        looped(Own(), clipped, client_app())
    assert "Own" in repr(Own())
