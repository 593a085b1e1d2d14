"""In one process no message is made unless somebody looks, and the bits are those of messages."""

import copy

import numpy as np
import pytest
from fault_bars import make, problem_of
from flwr.app import Message
from halves import find_solver
from problems import Foreign, app_of, changed, clients, outcome, solved_by, start_arrays, zeros
from representatives import by_class

from flwr_fco.errors import ClientError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, FedDualAvg, FedMid, Steps, Wire


def passing(message, context, call_next):
    """Look at all messages, and change nothing."""
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


def both_ways(make_strategy, objectives, start, rounds=4, **limits):
    """Run without and with messages, on objectives that have solved nothing yet."""
    apps = [app_of(copy.deepcopy(objectives), mods, **limits) for mods in ((), [passing])]
    return [outcome(InProcessGrid(app, len(objectives)), make_strategy(), start, rounds) for app in apps]


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_gives_the_same_bits_and_metrics(name):
    objectives = problem_of(name).objectives
    direct, by_messages = both_ways(lambda: make(name), objectives, zeros(objectives[0].layout))
    assert direct == by_messages


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"output": "shadow", "work": Steps(3, batch_size=4)},
        {"seed": 5, "fraction_train": 0.5, "work": Epochs(1, batch_size=4)},
        {"wire": Wire(dtype="float32")},
        {"wire": Wire(dtype="auto")},
    ],
)
def test_options_give_the_same_bits_and_metrics(options):
    start = start_arrays(np.float32 if "wire" in options else np.float64)
    direct, by_messages = both_ways(lambda: strategy(**options), clients(), start, rounds=6)
    assert direct == by_messages


# --- who looks ----------------------------------------------------------------------------------------------------


class Opens(FedDualAvg):
    def configure_train(self, server_round, arrays, config, grid):
        return list(super().configure_train(server_round, arrays, config, grid))


class Reads(FedDualAvg):
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, [reply for reply in replies if reply.has_content()])


class Forwards(FedDualAvg):
    """Hooks that hand on what they get."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        assert len(messages) == 4
        return messages

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, replies)


def app(mods=()):
    return app_of(clients(), mods)


def living():
    """Return an app with a lifespan, which runs around each message."""
    made = app()

    @made.lifespan()
    def around(context):
        yield

    return made


@pytest.mark.parametrize(
    ("grid", "chosen", "looks"),
    [
        (lambda: InProcessGrid(app(), 4), FedDualAvg, False),
        (lambda: InProcessGrid(app(), 4), Forwards, False),
        (lambda: InProcessGrid(app([passing]), 4), FedDualAvg, True),
        (lambda: InProcessGrid(living(), 4), FedDualAvg, True),
        (lambda: InProcessGrid(app().__call__, 4), FedDualAvg, True),
        (lambda: InProcessGrid(app(), 4, raise_errors=False), FedDualAvg, True),
        (lambda: Foreign(InProcessGrid(app(), 4)), FedDualAvg, True),
        (lambda: InProcessGrid(app(), 4), Opens, True),
        (lambda: InProcessGrid(app(), 4), Reads, True),
    ],
    ids=["plain", "hooks that forward", "mod", "lifespan", "app", "error replies", "grid", "configure", "aggregate"],
)
def test_messages_are_made_for_whoever_looks_and_change_no_bit(grid, chosen, looks, made):
    plain = outcome(InProcessGrid(app(), 4), strategy(), start_arrays(), 3)
    assert made == []
    seen = outcome(grid(), strategy(chosen), start_arrays(), 3)
    assert seen[:4] == plain[:4]
    # Four clients in three rounds: each is sent a message, and sends one.
    assert made.count("train") == (24 if looks else 0)
    assert looks or made == []


def test_what_a_hook_changes_in_one_message_arrives_there_alone():
    seen = []

    class Marks(FedDualAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = super().configure_train(server_round, arrays, config, grid)
            messages[1].content["config"]["mark"] = server_round
            return messages

    def spy(message, context, call_next):
        seen.append((context.node_config["partition-id"], message.content["config"].get("mark")))
        return call_next(message, context)

    outcome(InProcessGrid(app([spy]), 4), strategy(Marks), start_arrays(), 2)
    assert seen == [(m, number if m == 1 else None) for number in (1, 2) for m in range(4)]


# --- what clients do ----------------------------------------------------------------------------------------------


def failures(make_strategy, objectives, rounds=4, **limits):
    texts = []
    for mods in ((), [passing]):
        with pytest.raises(ClientError) as caught:
            outcome(InProcessGrid(app_of(objectives, mods, **limits), 4), make_strategy(), start_arrays(), rounds)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    return texts[0]


def test_an_error_of_a_client_names_node_and_round():
    objectives = clients()

    def failing(downlink, objective, state, rng):
        if downlink.vectors["primal"].any() and objective is objectives[2]:
            raise ZeroDivisionError("no rows")
        return find_solver("subgradient")(downlink, objective, state, rng)

    own = solved_by(FedMid, "test-failing", failing)
    text = failures(lambda: own(client_lr=0.02, fraction_evaluate=0.0), objectives)
    assert "node 4 (partition 2) raised ZeroDivisionError in round 2 (train): no rows" in text


@pytest.mark.parametrize("prefix", [{"elapsed": -1.0}, {"elapsed": np.nan}, {"client_lr": 0.0}, {"client_lr": np.inf}])
def test_a_client_refuses_what_it_refuses_in_a_message(prefix):
    """From round 2 on answers come without messages."""

    def downlink(own, self, problem, state, to):
        message = own.downlink(self, problem, state, to)
        return message._replace(**prefix) if problem.round == 3 else message

    own = changed(FedDualAvg, downlink=downlink)(client_lr=0.1, work=Steps(2), fraction_evaluate=0.0)
    ((name, value),) = prefix.items()
    with pytest.raises(ClientError, match=f"{name.replace('_', '-')}={value}"):
        outcome(InProcessGrid(app(), 4), own, start_arrays(), 5)
    assert own.state.round == 2
