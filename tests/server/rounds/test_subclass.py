"""A subclass of FedAvg that becomes a subclass of FedDualAvg: its hooks, its names, the models that it changes."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.algorithms import MirrorDescent
from flwr_fco.algorithms.primal_averaging import PrimalState
from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import ConfigurationError, FlwrFcoError, NothingTrainedError
from flwr_fco.regularizers import L1, Box
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Arrays, FedDAGT, FedDualAvg, FedMid, Steps

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


def test_if_no_round_is_kept_the_run_says_so():
    with pytest.raises(NothingTrainedError, match="aggregate_train returned None"):
        go(answering(lambda *_: (None, MetricRecord())))


def test_a_skipped_round_of_a_hook_is_no_error():
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            return (None, None) if server_round == 3 else super().aggregate_train(server_round, replies)

    np.testing.assert_array_equal(go(Own).arrays["w"].numpy(), go(FedDualAvg, rounds=5).arrays["w"].numpy())


@pytest.mark.parametrize("name", ["density", "skipped", "num-replies"])
def test_a_metric_with_one_of_our_names_is_kept_under_another(name, caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        metrics = go(FedDualAvg, SPARSE, app=client_app(metrics={name: 7.0})).train_metrics_clientapp[6]
    assert metrics[f"clients-{name}"] == 7.0
    assert metrics[name] == {"density": pytest.approx(0.3), "skipped": 0, "num-replies": NODES}[name]
    assert sum(f"'{name}' has the name" in line for line in caplog.messages) == 1


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
    with pytest.raises(ConfigurationError, match=r"Own.aggregate_train returned .* must stay 0.*privacy claim"):
        go(changing(lambda w, number: w + 0.01 * noise.normal(size=w.shape)), options)


def test_an_array_that_a_hook_sets_is_kept_whole_as_the_error_says():
    reset = changing(lambda w, number: TARGET if number == 5 else w)
    with pytest.raises(ConfigurationError, match=r"zeros of 'w' are not 0.*PerParameter\(\{'w': Zero\(\)\}\)"):
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
    own = type("Own", (FedMid,), {}, algorithm=Telling)
    ends = [
        simulate(kind(**options), app, **more).arrays["coefficients"].numpy()
        for kind in (FedMid, answering(halved, FedMid), answering(halved, own))
    ]
    np.testing.assert_array_equal(ends[1], ends[2])
    assert 0.0 < np.linalg.norm(ends[1]) < 0.6 * np.linalg.norm(ends[0])
    with pytest.raises(ConfigurationError, match="remember what they have sent"):
        simulate(answering(halved, FedDAGT)(**options), app, **more)


def test_arrays_of_another_model_are_named():
    with pytest.raises(ConfigurationError, match=r"no model of this run.*missing \['w'\]"):
        go(answering(lambda number, arrays, metrics: (ArrayRecord({"v": arrays["w"]}), metrics)))


def test_clients_that_return_a_part_of_the_model_are_told_what_to_start_from():
    start = {"w": np.zeros((6, 5)), "head": np.zeros(3)}
    with pytest.raises(NothingTrainedError, match=r"missing \['head'\].*the arrays that the clients return"):
        simulate(FedDualAvg(**DENSE), client_app(), num_nodes=2, num_rounds=2, initial_arrays=start, progress=False)


def test_a_loop_of_one_s_own_passes_changes_on():
    seen = []

    class Own(FedDualAvg):
        def start(self, grid, initial_arrays, num_rounds=3, **more):
            arrays = initial_arrays
            for number in range(1, num_rounds + 1):
                messages = self.configure_train(number, arrays, ConfigRecord(), grid)
                arrays, _ = self.aggregate_train(number, grid.send_and_receive(messages))
                arrays = ArrayRecord({"w": Array(0.5 * arrays["w"].numpy())})
            return arrays

    strategy = Own(**DENSE)
    from flwr_fco.simulation import InProcessGrid

    strategy.start(InProcessGrid(client_app(seen), NODES), ArrayRecord({"w": Array(np.zeros((6, 5)))}))
    models = seen[::NODES]
    np.testing.assert_allclose(models[1], 0.5 * 0.3 * TARGET, rtol=1e-12)


def test_a_subclass_that_aggregates_itself_is_told_where_to():
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            models = [reply.content["arrays"]["w"].numpy() for reply in replies]
            return ArrayRecord({"w": Array(np.mean(models, axis=0))}), MetricRecord()

    with pytest.raises(
        ConfigurationError, match=r"without calling super\(\).aggregate_train.*aggregate\(self, problem"
    ):
        go(Own)


def test_messages_of_one_s_own_are_told_the_way():
    class Own(FedDualAvg):
        def configure_train(self, server_round, arrays, config, grid):
            record = RecordDict({"arrays": arrays, "config": config})
            return self._construct_messages(record, list(grid.get_node_ids())[:2], "train")

    class After(Own):
        def configure_train(self, server_round, arrays, config, grid):
            FedDualAvg.configure_train(self, server_round, arrays, config, grid)
            return super().configure_train(server_round, arrays, config, grid)

    for kind in (Own, After):
        with pytest.raises(
            ConfigurationError, match=r"2 messages that are not of super\(\).configure_train.*choose_nodes="
        ):
            go(kind)


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

    with pytest.raises(ConfigurationError, match="aggregate_train was called twice for round 1"):
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

    from flwr_fco.simulation import InProcessGrid

    with caplog.at_level(logging.WARNING, logger="flwr"), pytest.raises(NothingTrainedError):
        FedDualAvg(**DENSE).start(
            InProcessGrid(app, 2, raise_errors=False), ArrayRecord({"w": Array(np.zeros((6, 5)))}), 1
        )
    lines = [line for line in caplog.messages if "left out the reply" in line]
    assert len(lines) == 2
    assert all("first line ... it broke here" in line and len(line) < 300 for line in lines)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metrics", "current", "nodes", "graph", "plan", "layout", "problem", "mail", "run"])
def test_ordinary_names_are_the_subclass_s(name):
    class Own(FedDualAvg):
        def __init__(self, **options):
            super().__init__(**options)
            setattr(self, name, [])

    np.testing.assert_array_equal(go(Own).arrays["w"].numpy(), go(FedDualAvg).arrays["w"].numpy())


@pytest.mark.parametrize("name", ["state", "memories", "result", "output", "arrays", "weighting", "seed", "density"])
def test_a_clash_is_an_error_at_the_assignment(name):
    strategy = FedDualAvg(**DENSE)
    with pytest.raises(ConfigurationError, match=rf"self.{name} = \[\].*take another name"):
        setattr(strategy, name, [])
    go(lambda **_: strategy)


# --- weights that nobody trains ---------------------------------------------------------------------------------------

RNG = np.random.default_rng(3)
NETWORK = {
    "backbone.weight": RNG.normal(size=(30, 10)).astype(np.float32),
    "pe": RNG.normal(size=(12, 8)).astype(np.float32),
    "embedding.weight": RNG.normal(size=(20, 8)).astype(np.float32),
    "fc.weight": RNG.normal(size=(10, 10)).astype(np.float32),
    "fc.bias": np.zeros(10, np.float32),
}
NETWORK["head.weight"] = NETWORK["embedding.weight"].copy()
ENDS = {name: RNG.normal(size=array.shape).astype(np.float32) for name, array in NETWORK.items()}
ENDS["head.weight"] = ENDS["embedding.weight"]


def network_app(frozen=("pe", "backbone.weight"), until=1_000, *, tied=True):
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        if tied:
            arrays["embedding.weight"] = arrays["head.weight"]
        now = message.content["config"]["server-round"]
        still = frozen if now < until else ("pe",)
        moved = {
            name: w if name in still else (w + 0.3 * (ENDS[name] - w)).astype(np.float32) for name, w in arrays.items()
        }
        content = {"arrays": ArrayRecord({name: Array(w) for name, w in moved.items()})}
        return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 10})}), reply_to=message)

    return app


def train_network(options, app=None, rounds=10, *, kind=FedDualAvg, **more):
    start = {name: array.copy() for name, array in NETWORK.items()}
    strategy = kind(**options)
    app = network_app() if app is None else app
    result = simulate(strategy, app, num_nodes=3, num_rounds=rounds, initial_arrays=start, progress=False, **more)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("options", [SPARSE, {**THRESHOLD, "regularizer": L1(0.05)}])
def test_what_nobody_trains_stays_whole(options):
    model = train_network(options)
    for name in ("backbone.weight", "pe"):
        np.testing.assert_array_equal(model[name], NETWORK[name])
    assert np.count_nonzero(model["fc.weight"]) < model["fc.weight"].size


@pytest.mark.parametrize("number", [1, 2, 5])
def test_what_a_hook_makes_of_untrained_arrays_stays(number):
    class Own(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round == number:
                made["pe"] = arrays["pe"].numpy() * np.float32(2.0)
                arrays["pe"] = Array(made["pe"])
            return arrays, metrics

    made = {}
    model = train_network(SPARSE, kind=Own)
    np.testing.assert_array_equal(model["pe"], made["pe"])
    np.testing.assert_array_equal(model["backbone.weight"], NETWORK["backbone.weight"])


def test_what_is_trained_later_gets_its_share_then():
    model = train_network(SPARSE, network_app(until=6), rounds=14)
    np.testing.assert_array_equal(model["pe"], NETWORK["pe"])
    assert np.count_nonzero(model["backbone.weight"]) < 0.5 * model["backbone.weight"].size


def test_the_log_names_tied_arrays_once(caplog):
    from flwr_fco.simulation import InProcessGrid

    start = ArrayRecord({name: Array(array) for name, array in NETWORK.items()})
    with caplog.at_level(logging.INFO, logger="flwr"):
        FedDualAvg(**SPARSE).start(InProcessGrid(network_app(), 3), start, 14)
    told = [line for line in caplog.messages if "under another name" in line]
    assert [line.partition(" (")[0] for line in told] == ["'head.weight' is 'embedding.weight' under another name"]


def test_tied_arrays_move_together():
    model = train_network(SPARSE)
    np.testing.assert_array_equal(model["embedding.weight"], model["head.weight"])
    assert 0 < np.count_nonzero(model["head.weight"]) < 0.5 * model["head.weight"].size


@pytest.mark.parametrize("kept", ["embedding.weight", "head.weight"])
def test_of_tied_arrays_psi_acts_on_both_if_it_acts_on_one(kept):
    model = train_network({**SPARSE, "arrays": Arrays(apply_to=[kept, "fc.weight"])})
    np.testing.assert_array_equal(model["embedding.weight"], model["head.weight"])
    assert 0 < np.count_nonzero(model["head.weight"]) < 0.5 * model["head.weight"].size


def test_arrays_that_are_equal_at_first_and_then_differ_are_two():
    ends, ENDS["head.weight"] = ENDS["head.weight"], ENDS["embedding.weight"] + 1.0
    try:
        model = train_network(DENSE, network_app(tied=False), rounds=20)
    finally:
        ENDS["head.weight"] = ends
    np.testing.assert_allclose(model["head.weight"] - model["embedding.weight"], 1.0, atol=0.01)


def test_a_resumed_run_leaves_the_same_arrays_alone(tmp_path):
    whole = train_network(SPARSE)
    with pytest.raises(FlwrFcoError):
        train_network(SPARSE, rounds=10, callbacks=[Checkpoint(tmp_path / "run.npz"), _stop_at(4)])
    again = train_network(SPARSE, resume=tmp_path / "run.npz", callbacks=[Checkpoint(tmp_path / "run.npz")])
    for name, array in whole.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


def _stop_at(last):
    def callback(number, arrays, metrics):
        if number == last:
            raise FlwrFcoError("stop")

    return callback


def test_clients_that_return_what_they_got_are_told_of(caplog):
    names = tuple(NETWORK)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        model = train_network(DENSE, network_app(frozen=names, tied=False))
    assert sum("return the model that they got" in line for line in caplog.messages) == 1
    for name, array in NETWORK.items():
        np.testing.assert_array_equal(model[name], array)


def test_pass_through_adds_to_running_statistics():
    from flwr_fco.core.layout import Layout

    arrays = {"weight": np.zeros((2, 2)), "pe": np.zeros((2, 2)), "bn.running_mean": np.zeros(2)}
    passed = [entry.name for entry in Layout.from_arrays(arrays, pass_through="pe").passed_through]
    assert passed == ["pe", "bn.running_mean"]
    assert not Layout.from_arrays(arrays, pass_through=()).passed_through


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
    assert any("whose 'num-examples' are all 0" in line for line in caplog.messages)
