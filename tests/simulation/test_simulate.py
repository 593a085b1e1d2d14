"""The in-process grid and `simulate`; no message is made unless somebody looks, and the bits are those of messages."""

import copy
import gc
import os
import signal

import numpy as np
import pytest
from fault_bars import make, problem_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numba.core.event import trigger_event
from problems import Foreign, after, app_of, by_class, changed, clients, outcome, refused, simulated, start_arrays

from flwr_fco.algorithms import Moved
from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import quiet
from flwr_fco.errors import ClientError, NothingTrainedError, RunInterrupted
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.simulation.simulate import progress_bar
from flwr_fco.strategies import DFedDA, Epochs, FedDAGT, FedDualAvg, FedMid, Steps, Wire
from flwr_fco.topology import ring


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_no_client_can_touch_what_another_is_sent_or_what_it_has_replied():
    """Flower's FedAvg puts one RecordDict into all messages; the grid must still isolate them."""
    app = ClientApp()
    seen, kept = [], []

    @app.train()
    def vandal(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        seen.append((arrays["w"].numpy().tolist(), {**config, "list": list(config["list"])}))
        said = {"arrays": ArrayRecord({"w": Array(np.ones(2))}), "metrics": MetricRecord({"num-examples": 1})}
        reply = RecordDict(said)
        arrays["w"].data = b""
        arrays["extra"] = Array(np.zeros(1))
        config["server-round"] = -1
        config["list"].append(9)
        message.content["more"] = MetricRecord()
        for old in kept:
            old["arrays"]["w"] = Array(np.full(2, 1e9))
        kept.append(reply)
        return Message(reply, reply_to=message)

    given = {"initial_arrays": {"w": memoryview(np.zeros(2))}, "train_config": ConfigRecord({"list": [1, 2]})}
    result = simulated(FedAvg(fraction_evaluate=0.0), app, 1, num_nodes=3, **given)
    assert seen == [([0.0, 0.0], {"list": [1, 2], "server-round": 1})] * 3
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.ones(2))


@pytest.mark.parametrize("wire_dtype", ["float64", "auto"])
def test_what_a_client_does_with_its_message_is_not_seen_by_the_next(wire_dtype):
    """All receive the same, which is read once a process: nobody may change it for the others."""
    seen = []

    class Greedy(FedDualAvg):
        class algorithm(FedDualAvg.algorithm):
            name = "greedy"

            def local(self, client, downlink, memory):
                start = downlink.vectors["dual"]
                seen.append((round(float(start.sum()), 6), start.flags.writeable, dict(downlink.numbers)))
                downlink.vectors.clear()
                downlink.numbers["mine"] = 1.0
                return {"increment": np.ones_like(start)}, Moved(np.array(downlink.client_lr), np.int64(1))

    model = start_arrays(np.float32 if wire_dtype == "auto" else np.float64)
    options = {"client_lr": 0.1, "work": Steps(1), "wire": Wire(dtype=wire_dtype), "fraction_evaluate": 0.0}
    simulated(Greedy(**options), app_of(clients()), 2, initial_arrays=model)
    assert seen == [(0.0, False, {})] * 4 + [(7.0, False, {})] * 4


def test_after_a_clients_error_its_state_is_what_it_was_before_the_message():
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

    grid = InProcessGrid(app, 2, raise_errors=False)

    for fails, calls in ((False, [0]), (True, [0]), (False, [0, 1])):
        content = RecordDict({"config": ConfigRecord({"fails": fails})})
        with grid.identity():
            (reply,) = grid.send_and_receive([Message(content, 2, "train")])
        assert reply.has_error() == fails
        state = grid.contexts[2].state
        found = list(state["log"]["calls"]), state["memory"]["w"].numpy().tolist(), sorted(state)
        assert found == (calls, [1.0, 1.0], ["log", "memory"])


def test_a_missing_entry_of_run_config_and_who_exits_are_named():
    lacks, exits = (client_app(end) for end in (lambda own: own.run_config["batch-size"], lambda own: exit(3)))
    reported = r"no 'batch-size' in context.run_config; give simulate or the grid run_config=\{'batch-size'"
    for app, said in ((lacks, reported), (exits, r"partition 0\) raised SystemExit .*: 3")):
        refused(said, simulated, strategy(), app, 1, num_nodes=2, run_config={"lr": 0.1}, kind=ClientError)


def test_replies_may_be_pulled_and_who_forgets_to_answer_is_silent():
    app = ClientApp()

    @app.query()
    def query(message, context):
        partition = context.node_config["partition-id"]
        return None if partition == 2 else Message(RecordDict({"m": MetricRecord({"p": partition})}), reply_to=message)

    grid = InProcessGrid(app, 3, node_config=lambda p: {"path": f"/data/{p}", "num-partitions": 9})
    with grid.identity():
        numbers = grid.push_messages([grid.create_message(RecordDict(), "query", i, "1") for i in grid.get_node_ids()])
        assert [reply.content["m"]["p"] for reply in grid.pull_messages(numbers)] == [0, 1]
        assert grid.pull_messages(numbers) == []
    assert grid.contexts[3].node_config == {"path": "/data/1", "partition-id": 1, "num-partitions": 9}
    refused("s functions return a Message", simulated, strategy(), lambda *_: None, 2, kind=NothingTrainedError)


@pytest.mark.parametrize("answer", ["done", {"loss": 1.0}, RecordDict()], ids=lambda a: type(a).__name__)
def test_what_is_no_message_is_an_error_of_the_client(answer):
    def app(message, context):
        return answer if context.node_config["partition-id"] == 1 else app_of(clients())(message, context)

    refused(rf"1\).*returned a {type(answer).__name__}; expected a M", simulated, strategy(), app, 1, kind=ClientError)
    result = simulated(strategy(), app, 1, raise_errors=False)
    assert [(entry.partition_id, "expected a Message" in entry.reason) for entry in result.left_out] == [(1, True)]


# --- runs -------------------------------------------------------------------------------------------------------------


def test_central_evaluation_at_intervals_first_and_last():
    seen = {}
    start = start_arrays(start=np.full(7, 9.0))
    evaluate = lambda number, arrays: seen.update({number: arrays}) or MetricRecord({"n": number})  # noqa: E731
    given = {"evaluate_fn": evaluate, "evaluate_every": 3, "initial_arrays": start}
    result = simulated(strategy(), app_of(clients()), 7, **given)
    assert list(seen) == list(result.evaluate_metrics_serverapp) == [0, 3, 6, 7]
    # Round 0 is the start as it was given, feasible or not.
    assert seen[0] == start


def test_pass_through_arrays_are_those_of_the_replies_that_carry_them():
    """Weights are shared among the replies with the array, the others do not pull it to zero or to its old value."""
    objectives = clients()
    for own in objectives:
        own.buffers, own.load_buffers = dict, lambda buffers: None
    means = [np.array([10.0 * m, -1.0], np.float32) for m in range(4)]
    start = {f"norm.running_{name}": np.full(2, 7.0, dtype=">f4") for name in ("mean", "var")}
    start["norm.num_batches_tracked"] = np.array(5)

    def only_some(message, context, call_next):
        reply = call_next(message, context)
        partition = context.node_config["partition-id"]
        arrays = reply.content["arrays"]
        for name in start:
            arrays.pop(f"pass:{name}", None)
        if partition in (1, 3):
            arrays["pass:norm.running_mean"] = Array(means[partition])
        if partition in (2, 3):
            arrays["pass:norm.num_batches_tracked"] = Array(np.array(100 + partition))
        return reply

    given = {**start_arrays(), **start}
    found = simulated(strategy(), app_of(objectives, [only_some]), 1, initial_arrays=given).arrays
    assert found["norm.running_mean"].numpy().dtype == np.float32
    expected = np.average([means[1], means[3]], axis=0, weights=[objectives[m].num_examples for m in (1, 3)])
    np.testing.assert_allclose(found["norm.running_mean"].numpy(), expected, rtol=1e-6)
    assert found["norm.num_batches_tracked"].numpy() == 102
    np.testing.assert_array_equal(found["norm.running_var"].numpy(), start["norm.running_var"])


# --- words ------------------------------------------------------------------------------------------------------------


Forgets = type("Forgets", (FedDualAvg,), {"start": lambda *given, **options: None})


WRONG = [
    ({"num_nodes": 0}, "num_nodes=0"),
    ({"num_rounds": 1.5}, "num_rounds=1.5 is a float; expected a whole number"),
    ({"evaluate_every": 0}, "evaluate_every=0"),
    ({"strategy": FedDualAvg}, "strategy=the class FedDualAvg; expected a Strategy"),
    ({"strategy": Forgets(fraction_evaluate=0.0)}, r"Forgets\.start returns None; expected a Result"),
    ({"client_app": lambda context: None}, "client_app=a function; expected a ClientApp"),
    ({"initial_arrays": [np.zeros(3)]}, "is a list; expected an ArrayRecord or a mapping; write initial_arrays=Arr"),
    ({"initial_arrays": {"w": None}}, r"array 'w' is None, which Flower cannot send \(.*; expected float64"),
    ({"initial_arrays": {1: np.zeros(3)}}, "name=1 is an int; expected a string"),
    ({"run_config": 3}, "run_config=3 is an int; expected a mapping or None"),
    ({"strategy": DFedDA(mixing=ring(5))}, "only 4 nodes, 5 are needed"),
    ({"evaluate_fn": lambda server_round: None}, "evaluate_fn=<.*expected a function of 2 arguments or None"),
    ({"evaluate_fn": lambda number, arrays: 0.5}, "evaluate_fn after round 0 returned a float; expected a Metric"),
    ({"node_config": lambda partition: None}, r"node_config\(0\)=None is a NoneType; expected a mapping"),
    ({"node_config": lambda partition: {"partition-id": 3 - partition}}, "has partition-id=3; node m has m here"),
    ({"num_nodes": 1}, "min_train_nodes=2 and min_available_nodes=2, but there are num_nodes=1"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_an_argument_of_the_wrong_kind_is_named(wrong, message):
    options = {"num_nodes": 4, "num_rounds": 1, "initial_arrays": start_arrays(), **wrong}
    given = options.pop("strategy", strategy()), options.pop("client_app", app_of(clients()))
    refused(message, simulate, *given, **options)


# --- a hundred thousand nodes, of which only those are made that are used ---------------------------------------------


@pytest.mark.parametrize(("cls", "options"), [(FedDualAvg, {}), (FedDAGT, {"tracker_start": "zero"})])
def test_nothing_is_made_for_nodes_that_are_not_asked(cls, options):
    many = 100_000
    chosen = strategy(cls, fraction_train=10 / many, seed=1, work=Steps(1), **options)
    load = lambda context: LeastSquares(np.eye(context.run_config["d"]), np.arange(6.0))  # noqa: E731
    grid = InProcessGrid(client_app(load), many, run_config=(config := {"d": 6}), run_id=None)
    config.clear()  # another grid may have other settings
    with grid.identity(), quiet(50):
        result = chosen.start(grid, start_arrays(), 3)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [10, 10, 10]
    assert 10 < len(grid.contexts) <= 30 < grid.run_id
    assert grid.states().keys() <= grid.contexts.keys()


def test_replies_go_with_their_round_and_wait_for_no_collection():
    """Python looks for objects in circles once many were made, and not where a few are as large as the model."""
    held = []
    look = lambda *_: held.append([type(each).__name__ for each in gc.get_objects()].count("Inbox"))  # noqa: E731
    simulated(strategy(), app_of(clients()), 3, callbacks=[look])
    assert held == [0, 0, 0]


# --- Ctrl-C: what there is so far is not lost, and nothing prints a page ----------------------------------------------


def run_and_press(own=None, rounds=50, **options):
    end = lambda number: number == 3 and os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    press = lambda number, arrays: end(number) or MetricRecord({"seen": number})  # noqa: E731
    return simulated(own or strategy(), app_of(clients()), rounds, **{"evaluate_fn": press, **options})


def test_the_result_so_far_is_returned_with_a_warning_or_raised(caplog):
    result = run_and_press()
    assert "interrupted after 3 of 50 rounds" in caplog.text
    with pytest.raises(RunInterrupted) as caught:
        run_and_press(on_interrupt="raise")
    assert isinstance(caught.value, KeyboardInterrupt)
    whole = run_and_press(rounds=3, evaluate_fn=None)
    for found in (result, caught.value.result):
        assert sorted(found.train_metrics_clientapp) == [1, 2, 3]
        assert (sorted(found.evaluate_metrics_serverapp), found.arrays) == ([0, 1, 2], whole.arrays)


def test_a_second_interrupt_loses_no_result():
    own = strategy()
    slow = type("Slow", (), {"on_run_end": lambda self, result: os.kill(os.getpid(), signal.SIGINT)})
    said = "FedDualAvg was interrupted: the result so far is the strategy's"
    refused(said, run_and_press, own, callbacks=[slow()], kind=KeyboardInterrupt)
    assert sorted(own.result.train_metrics_clientapp) == [1, 2, 3]


# --- without messages -------------------------------------------------------------------------------------------------


def passing(message, context, call_next):
    """Look at all messages, as Flower's message_size_mod does, and change nothing."""
    assert all(record.count_bytes() >= 0 for record in message.content.values())
    return call_next(message, context)


@pytest.fixture
def made(monkeypatch):
    """The types of the messages that were made."""
    types = []
    plain = Message.__init__

    def counting(self, *arguments, **options):
        plain(self, *arguments, **options)
        types.append(self.metadata.message_type)

    monkeypatch.setattr(Message, "__init__", counting)
    return types


def is_the_same_by_messages(make_strategy, objectives, start):
    """Run without and with messages, on objectives that have solved nothing yet."""
    apps = [app_of(copy.deepcopy(objectives), mods) for mods in ((), [passing])]
    direct, by_messages = [outcome(InProcessGrid(app, len(objectives)), make_strategy(), start, 5) for app in apps]
    assert direct == by_messages


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_gives_the_same_bits_and_metrics(name):
    problem = problem_of(name)
    is_the_same_by_messages(lambda: make(name), problem.objectives, problem.start)


WORKS = [{"output": "shadow", "work": Steps(3, batch_size=4)}]
WORKS += [{"seed": 5, "fraction_train": 0.5, "work": Epochs(1, batch_size=4)}]


@pytest.mark.parametrize("options", [*WORKS, *({"wire": Wire(dtype=dtype)} for dtype in ("float32", "auto"))])
def test_options_give_the_same_bits_and_metrics(options):
    start = start_arrays(np.float32 if "wire" in options else np.float64)
    is_the_same_by_messages(lambda: strategy(**options), clients(), start)


# --- who looks ----------------------------------------------------------------------------------------------------


def forwarding(sent=lambda messages: messages, got=lambda replies: replies):
    """Return a subclass whose hooks hand on what functions make of what they get."""

    class Own(FedDualAvg):
        def configure_train(self, *given):
            return sent(super().configure_train(*given))

        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, got(replies))

    return Own


def living():
    """Return an app with a lifespan, which runs around each message."""
    app = app_of(clients())

    @app.lifespan()
    def around(context):
        yield

    return app


def plain(app=None, **options):
    return InProcessGrid(app or app_of(clients()), 4, **options)


LOOKS = {
    "plain": (plain, FedDualAvg, False),
    "hooks that forward": (plain, forwarding(lambda messages: len(messages) == 4 and messages), False),
    "mod": (lambda: plain(app_of(clients(), [passing])), FedDualAvg, True),
    "lifespan": (lambda: plain(living()), FedDualAvg, True),
    "app": (lambda: plain(app_of(clients()).__call__), FedDualAvg, True),
    "error replies": (lambda: plain(raise_errors=False), FedDualAvg, True),
    "grid": (lambda: Foreign(plain()), FedDualAvg, True),
    "configure": (plain, forwarding(list), True),
    "aggregate": (plain, forwarding(got=list), True),
}


@pytest.mark.parametrize("who", LOOKS)
def test_messages_are_made_for_whoever_looks_and_change_no_bit(who, made):
    grid, chosen, looks = LOOKS[who]
    expected = outcome(plain(), strategy(), start_arrays(), 3)
    assert made == []
    assert outcome(grid(), strategy(chosen), start_arrays(), 3)[:4] == expected[:4]
    # Four clients in three rounds: each is sent a message, and sends one.
    assert made.count("train") == (24 if looks else 0)
    assert looks or made == []


def test_what_a_hook_changes_in_one_message_arrives_there_alone():
    seen = []

    def marked(messages):
        messages[1].content["config"]["mark"] = int(messages[1].metadata.group_id)
        return messages

    def spy(message, context, call_next):
        seen.append((context.node_config["partition-id"], message.content["config"].get("mark")))
        return call_next(message, context)

    outcome(plain(app_of(clients(), [spy])), strategy(forwarding(marked)), start_arrays(), 2)
    assert seen == [(m, number if m == 1 else None) for number in (1, 2) for m in range(4)]


# --- what clients do ----------------------------------------------------------------------------------------------


def test_an_error_of_a_client_names_node_and_round():
    objectives = clients()

    def failing(downlink, objective):
        if downlink.vectors["primal"].any() and objective is objectives[2]:
            raise ZeroDivisionError("no rows")

    own = after(FedMid, "test-failing", failing)
    said = r"node 4 \(partition 2\) raised ZeroDivisionError in round 2 \(train\): no rows"
    grids = [plain(app_of(objectives, mods)) for mods in ((), [passing])]
    texts = [refused(said, outcome, grid, strategy(own), start_arrays(), kind=ClientError) for grid in grids]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("prefix", [{"elapsed": -1.0}, {"elapsed": np.nan}, {"client_lr": 0.0}, {"client_lr": np.inf}])
def test_a_client_refuses_what_it_refuses_in_a_message(prefix):
    """From round 2 on answers come without messages."""

    def downlink(own, self, problem, state, to):
        message = own.downlink(self, problem, state, to)
        return message._replace(**prefix) if problem.round == 3 else message

    own = changed(FedDualAvg, downlink=downlink)(client_lr=0.1, work=Steps(2), fraction_evaluate=0.0)
    ((name, value),) = prefix.items()
    refused(f"{name.replace('_', '-')}={value}", outcome, plain(), own, start_arrays(), 5, kind=ClientError)
    assert own.state.round == 2


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_rounds_and_that_numba_compiles(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    grid = InProcessGrid(ClientApp(), 1)
    with progress_bar(grid, 7, True):
        grid.report(3)
        with trigger_event("numba:compile"):
            pass
    shown = capsys.readouterr().err
    assert "compiling (first run only)" in shown
    assert "3/7" in shown
    # As of a service, or of a host that writes it to a log.
    monkeypatch.setattr("sys.stderr", None)
    with progress_bar(grid, 7):
        assert capsys.readouterr().err == ""
