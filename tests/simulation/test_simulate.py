"""The in-process grid and `simulate`."""

import logging
from functools import partial
from types import MappingProxyType

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from problems import FEATURES, app_of, clients, flat, run, simulated, solved_by, start_arrays
from together import together

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Uplink
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import DFedDA, Epochs, FedDualAvg, Steps, Wire
from flwr_fco.topology import ring

OBJECTIVES = clients()


def strategy(**options):
    return FedDualAvg(
        **{
            "regularizer": L1(0.3),
            "client_lr": 0.02,
            "work": Epochs(1, batch_size=5),
            "fraction_evaluate": 0.0,
            **options,
        }
    )


def test_no_client_can_touch_what_another_is_sent():
    """Flower's FedAvg puts one RecordDict into all messages; the grid must still isolate them."""
    app = ClientApp()
    seen = []

    @app.train()
    def vandal(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        seen.append((arrays["w"].numpy().tolist(), {**config, "list": list(config["list"])}))
        reply = ArrayRecord({"w": Array(np.ones(2))})
        arrays["w"].data = b""
        arrays["extra"] = Array(np.zeros(1))
        config["server-round"] = -1
        config["list"].append(9)
        message.content["more"] = MetricRecord()
        return Message(RecordDict({"arrays": reply, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    simulated(
        FedAvg(fraction_evaluate=0.0),
        app,
        1,
        num_nodes=3,
        initial_arrays={"w": np.zeros(2)},
        train_config=ConfigRecord({"list": [1, 2]}),
    )
    assert seen == [([0.0, 0.0], {"list": [1, 2], "server-round": 1})] * 3


def test_a_reply_cannot_be_changed_after_it_was_sent():
    app = ClientApp()
    kept = []

    @app.train()
    def train(message, context):
        reply = RecordDict(
            {"arrays": ArrayRecord({"w": Array(np.ones(2))}), "metrics": MetricRecord({"num-examples": 1})}
        )
        for old in kept:
            old["arrays"]["w"] = Array(np.full(2, 1e9))
        kept.append(reply)
        return Message(reply, reply_to=message)

    result = simulate(
        FedAvg(fraction_evaluate=0.0), app, num_nodes=3, num_rounds=1, initial_arrays={"w": np.zeros(2)}, progress=False
    )
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.ones(2))


def test_the_users_train_config_is_sent_and_not_changed():
    seen = []
    objectives = clients()

    def load(context):
        return objectives[context.node_config["partition-id"]]

    def spy(message, context, call_next):
        if message.metadata.message_type == "train":
            seen.append(dict(message.content["config"]))
        return call_next(message, context)

    given = ConfigRecord({"temperature": 0.5})
    simulated(strategy(), client_app(load, mods=[spy]), 2, train_config=given)
    assert dict(given) == {"temperature": 0.5}
    assert {(c["temperature"], c["server-round"]) for c in seen} == {(0.5, 1), (0.5, 2)}


def test_central_evaluation_at_intervals_first_and_last():
    rounds = []

    def evaluate(number, arrays):
        rounds.append(number)
        return MetricRecord({"n": number})

    result = run(strategy(), clients(), 7, evaluate_fn=evaluate, evaluate_every=3)
    assert rounds == [0, 3, 6, 7]
    assert list(result.evaluate_metrics_serverapp) == rounds


def test_federated_evaluation_is_of_the_primal_model():
    objectives = clients()
    result = run(strategy(), objectives, 3, fraction_evaluate=1.0)
    sizes = np.array([o.num_examples for o in objectives])
    expected = np.average([o.value(flat(result.arrays)) for o in objectives], weights=sizes)
    assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(expected, rel=1e-14)


def test_round_zero_evaluates_the_start_as_given_feasible_or_not():
    seen = {}
    start = np.full(7, 9.0)
    run(strategy(), clients(), 1, start=start, evaluate_fn=lambda n, arrays: seen.update({n: flat(arrays)}))
    np.testing.assert_array_equal(seen[0], start)


def test_the_logger_is_restored():
    logger = logging.getLogger("flwr")
    before = logger.level
    run(strategy(), clients(), 1)
    assert logger.level == before


def test_the_state_of_nodes_is_kept_over_rounds_and_runs_are_apart():
    app = ClientApp()

    @app.train()
    def train(message, context):
        count = context.state.get("count", MetricRecord({"n": 0}))["n"] + 1
        context.state["count"] = MetricRecord({"n": count})
        arrays = ArrayRecord({"w": Array(np.full(1, float(count)))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    for _ in range(2):
        result = simulated(FedAvg(fraction_evaluate=0.0), app, 4, num_nodes=2, initial_arrays={"w": np.zeros(1)})
        assert result.arrays["w"].numpy()[0] == 4.0


def test_push_and_pull():
    app = ClientApp()

    @app.query()
    def query(message, context):
        return Message(RecordDict({"m": MetricRecord({"p": context.node_config["partition-id"]})}), reply_to=message)

    grid = InProcessGrid(app, 3, node_config=lambda p: {"path": f"/data/{p}"})
    with grid.identity():
        numbers = grid.push_messages(
            [grid.create_message(RecordDict(), "query", node, "1") for node in grid.get_node_ids()]
        )
        replies = grid.pull_messages(numbers)
        assert [r.content["m"]["p"] for r in replies] == [0, 1, 2]
        assert grid.pull_messages(numbers) == []
    assert grid.contexts[3].node_config == {"path": "/data/1", "partition-id": 1, "num-partitions": 3}


def test_a_handler_that_forgets_to_answer_is_silent():
    app = ClientApp()

    @app.query()
    def query(message, context):
        return None

    grid = InProcessGrid(app, 1)
    with grid.identity():
        assert grid.send_and_receive([grid.create_message(RecordDict(), "query", 2, "1")]) == []


@pytest.mark.parametrize("answer", ["done", {"loss": 1.0}, RecordDict()], ids=lambda a: type(a).__name__)
def test_what_is_no_message_is_an_error_of_the_client(answer):
    def app(message, context):
        return answer if context.node_config["partition-id"] == 1 else app_of(OBJECTIVES)(message, context)

    options = {"num_nodes": 4, "num_rounds": 1, "initial_arrays": start_arrays(), "progress": False}
    with pytest.raises(ClientError, match=f"partition 1.*returned a {type(answer).__name__}; expected a Message"):
        simulate(strategy(), app, **options)
    result = simulate(strategy(), app, raise_errors=False, **options)
    assert [(entry.partition_id, "expected a Message" in entry.reason) for entry in result.left_out] == [(1, True)]


def test_an_app_may_be_any_callable():
    class App:
        __slots__ = ()

        def __call__(self, message, context):
            return app(message, context)

    app = app_of(OBJECTIVES)
    options = {"num_nodes": 4, "num_rounds": 3, "initial_arrays": start_arrays(), "progress": False}
    results = [simulate(strategy(), kind, **options) for kind in (app, App(), partial(app), app.__call__)]
    for result in results[1:]:
        np.testing.assert_array_equal(flat(result.arrays), flat(results[0].arrays))


@pytest.mark.parametrize("mods", [lambda message, context, call_next: call_next(message, context), "abc", [None], 3])
def test_mods_are_a_sequence_of_functions(mods):
    with pytest.raises(ConfigurationError, match=r"mods=.*expected a list of functions"):
        client_app(lambda context: OBJECTIVES[0], mods=mods)


@pytest.mark.parametrize("which", ["train", "evaluate"])
@pytest.mark.parametrize("answer", [None, 1.0], ids=str)
def test_averaged_metrics_are_a_record(which, answer):
    def averaged(contents, weighted_by_key):
        return answer

    made = strategy(**{f"{which}_metrics_aggr_fn": averaged})
    with pytest.raises(ConfigurationError, match=f"averaged, .* returned a {type(answer).__name__}; expected a Metric"):
        run(made, clients(), 1, fraction_evaluate=1.0)


@together(
    ("wrong", "message"),
    [
        ({"num_nodes": 0}, "num_nodes=0"),
        ({"num_rounds": -1}, "num_rounds=-1"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"num_rounds": 1.5}, "num_rounds=1.5 is a float; expected a whole number"),
        ({"num_nodes": "4"}, "num_nodes='4' is a str; expected a whole number"),
        ({"strategy": FedDualAvg}, "strategy=the class FedDualAvg; expected a Strategy"),
        ({"client_app": lambda context: None}, "client_app=a function; expected a ClientApp"),
        ({"initial_arrays": [np.zeros(3)]}, "initial_arrays is a list; expected an ArrayRecord, or a mapping"),
        ({"strategy": DFedDA(mixing=ring(5))}, "mixing has 5 nodes, but there are num_nodes=4"),
        ({"evaluate_fn": lambda server_round: None}, "evaluate_fn=<.*expected a function of 2 arguments or None"),
        ({"evaluate_fn": 3}, "evaluate_fn=3 is a int; expected a function of 2 arguments or None"),
        ({"node_config": {"path": "/data"}}, "node_config=.* is a dict; expected a function of 1 argument or None"),
        ({"node_config": lambda partition: None}, r"node_config\(0\) is a NoneType; expected a mapping"),
        ({"resume": 5}, "resume=5 is a int; expected a string or a PathLike or None"),
        ({"num_nodes": 1}, "min_train_nodes=2 and min_available_nodes=2, but there are num_nodes=1"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_before_anything_runs(wrong, message):
    options = {
        "strategy": strategy(),
        "client_app": app_of(clients()),
        "num_nodes": 4,
        "num_rounds": 1,
        "initial_arrays": start_arrays(),
        **wrong,
    }
    with pytest.raises(ConfigurationError, match=message):
        simulate(options.pop("strategy"), options.pop("client_app"), **options)


def test_a_start_that_returns_nothing_is_named():
    class Forgets(FedDualAvg):
        def start(self, *args, **options):
            super().start(*args, **options)

    with pytest.raises(ConfigurationError, match=r"Forgets\.start returns None; expected a Result"):
        simulate(
            Forgets(regularizer=L1(0.3), client_lr=0.02, fraction_evaluate=0.0),
            app_of(clients()),
            num_nodes=4,
            num_rounds=1,
            initial_arrays=start_arrays(),
        )


def test_lists_are_arrays():
    start = {name: array.numpy().tolist() for name, array in start_arrays().items()}
    first = run(strategy(), clients(), 2).arrays
    second = simulate(strategy(), app_of(clients()), num_nodes=4, num_rounds=2, initial_arrays=start).arrays
    assert flat(first).tobytes() == flat(second).tobytes()
    start = dict(start_arrays().items())
    third = simulate(strategy(), app_of(clients()), num_nodes=4, num_rounds=2, initial_arrays=start).arrays
    assert flat(first).tobytes() == flat(third).tobytes()


def test_a_float32_wire_is_half_the_traffic_and_close():
    exact = run(strategy(), clients(), 20)
    rounded = run(strategy(wire=Wire(dtype="float32")), clients(), 20)
    difference = np.abs(flat(exact.arrays) - flat(rounded.arrays)).max()
    assert 0 < difference < 1e-5
    full, half = (r.train_metrics_clientapp[20]["bytes-up"] for r in (exact, rounded))
    assert full == 2 * half


class WithBuffers(LeastSquares):
    """Arrays that are not optimised: kept as the server sends them."""

    kept = MappingProxyType({})

    def buffers(self):
        return self.kept

    def load_buffers(self, buffers):
        self.kept = dict(buffers)


def clients_with_buffers():
    return [WithBuffers(f.features, f.targets) for f in clients()]


def test_pass_through_arrays_are_those_of_the_replies_that_carry_them():
    """Weights are shared among the replies with the array, the others do not pull it to zero or to its old value."""
    objectives = clients_with_buffers()
    sizes = [objective.num_examples for objective in objectives]
    carriers = {"norm.running_mean": (1, 3), "norm.num_batches_tracked": (2, 3)}
    means = [np.array([10.0 * m, -1.0]) for m in range(4)]
    start = {
        "norm.running_mean": np.full(2, 7.0, dtype=np.float32),
        "norm.num_batches_tracked": np.array(5),
        "norm.running_var": np.array([0.25, 0.5], dtype=np.float32),
    }

    def only_some(message, context, call_next):
        reply = call_next(message, context)
        partition = context.node_config["partition-id"]
        arrays = reply.content["arrays"]
        sent = {
            "norm.running_mean": means[partition].astype(np.float32),
            "norm.num_batches_tracked": np.array(100 + partition),
        }
        for name, value in sent.items():
            arrays.pop(f"pass:{name}", None)
            if partition in carriers[name]:
                arrays[f"pass:{name}"] = Array(value)
        arrays.pop("pass:norm.running_var", None)
        return reply

    arrays = dict(start_arrays().items()) | {name: Array(value) for name, value in start.items()}
    result = simulated(
        strategy(),
        client_app(lambda context: objectives[context.node_config["partition-id"]], mods=[only_some]),
        1,
        initial_arrays=ArrayRecord(arrays),
    )
    expected = (sizes[1] * means[1] + sizes[3] * means[3]) / (sizes[1] + sizes[3])
    assert sizes[1] != sizes[3]
    found = result.arrays["norm.running_mean"].numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert result.arrays["norm.num_batches_tracked"].numpy() == 102
    np.testing.assert_array_equal(result.arrays["norm.running_var"].numpy(), start["norm.running_var"])


@pytest.mark.parametrize("raise_errors", [True, False])
def test_after_a_clients_error_its_state_is_what_it_was_before_the_message(raise_errors):
    """Flower's simulation writes a node's state back only after a handler has returned."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        fails = message.content["config"]["fails"]
        state = context.state
        if "log" not in state:
            state["log"], state["memory"] = ConfigRecord({"calls": []}), ArrayRecord({"w": Array(np.zeros(2))})
        state["log"]["calls"].append(len(state["log"]["calls"]))
        state["memory"]["w"].data = Array(np.full(2, 9.0 if fails else 1.0)).data
        if fails:
            state["half-done"] = MetricRecord({"a": 1.0})
            raise OSError("disk on fire")
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, 2, raise_errors=raise_errors)
    ids = grid.get_node_ids()

    def send(fails):
        with grid.identity():
            content = RecordDict({"config": ConfigRecord({"fails": fails})})
            return list(grid.send_and_receive([Message(content, ids[0], "train")]))

    def remembered():
        state = grid.contexts[ids[0]].state
        return list(state["log"]["calls"]), state["memory"]["w"].numpy().tolist(), sorted(state)

    send(False)
    if raise_errors:
        # The run ends here, and a debugger wants to see the state as the handler left it.
        with pytest.raises(ClientError, match="disk on fire"):
            send(True)
        assert remembered() == ([0, 1], [9.0, 9.0], ["half-done", "log", "memory"])
        return
    (reply,) = send(True)
    assert reply.has_error()
    assert remembered() == ([0], [1.0, 1.0], ["log", "memory"])
    (reply,) = send(False)
    assert reply.has_content()
    assert remembered() == ([0, 1], [1.0, 1.0], ["log", "memory"])


@pytest.mark.parametrize("wire_dtype", ["float64", "auto"])
def test_what_a_client_does_with_its_message_is_not_seen_by_the_next(wire_dtype):
    """All are told the same, which is read once a process: nobody may change it for the others."""
    seen = []

    def greedy(downlink, objective, state, rng):
        start = downlink.vectors["dual"]
        seen.append((start.sum(), start.flags.writeable, dict(downlink.numbers)))
        downlink.vectors.clear()
        downlink.numbers["mine"] = 1.0
        return Uplink({"increment": np.ones_like(start)}, downlink.client_lr, 1), state

    model = start_arrays(np.float32 if wire_dtype == "auto" else np.float64)
    strategy = solved_by(FedDualAvg, "greedy", greedy)(
        client_lr=0.1, work=Steps(1), wire=Wire(dtype=wire_dtype), fraction_evaluate=0.0
    )
    simulate(strategy, app_of(clients()), num_nodes=4, num_rounds=2, initial_arrays=model, progress=False)
    assert [(round(total, 6), writeable, numbers) for total, writeable, numbers in seen] == [
        *[(0.0, False, {})] * 4,
        *[(float(FEATURES + 1), False, {})] * 4,
    ]
