"""Without messages a run in one process is what it is with them: bits, metrics, and what is left out."""

import copy
import re

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from representatives import by_class

from flwr_fco.algorithms import DualAcceleration
from flwr_fco.client_apps import client_app, find_solver
from flwr_fco.client_apps.quotas import Limits
from flwr_fco.errors import ClientError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.server.run import Run
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import (
    DualFL,
    Epochs,
    Everyone,
    FedAvgSubgradient,
    FedDAGT,
    FedDualAvg,
    FedMid,
    Steps,
    Wire,
    run_of,
)
from flwr_fco.wire import flower
from tests.fault_bars import make, problem_of
from tests.problems import FEATURES, app_of, clients, solved_by, start_arrays


class Counting(InProcessGrid):
    """Hooks of its own: everything travels in messages."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.delivered = 0

    def _deliver(self, message):
        self.delivered += message.metadata.message_type == "train"
        return super()._deliver(message)


@pytest.fixture
def delivered(monkeypatch):
    """Counts the training messages of a plain grid, which `Counting` would not be."""
    counted = [0]
    deliver = InProcessGrid._deliver

    def counting(self, message):
        counted[0] += message.metadata.message_type == "train"
        return deliver(self, message)

    monkeypatch.setattr(InProcessGrid, "_deliver", counting)
    return counted


def outcome(grid, strategy, start, rounds=4):
    with flower.identity(grid.run_id), flower.quiet(50):
        result = strategy.start(grid, start, rounds)
    state = [np.asarray(value).tobytes() for value in strategy.state]
    arrays = {name: array.numpy().tobytes() for name, array in result.arrays.items()}
    metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    return arrays, state, metrics, run_of(strategy).left_out, {i: context.state for i, context in grid.contexts.items()}


def both_ways(make_strategy, objectives, start, **options):
    """Run with and without messages, on objectives that have solved nothing yet."""
    grids = [grid(app_of(copy.deepcopy(objectives)), len(objectives)) for grid in (InProcessGrid, Counting)]
    return [outcome(grid, make_strategy(), start, **options) for grid in grids]


def gives_the_same_both_ways(name):
    objectives = problem_of(name).objectives
    layout = objectives[0].layout
    start = ArrayRecord({n: flower.serialised(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    direct, by_messages = both_ways(lambda: make(name), objectives, start)
    assert direct == by_messages


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_gives_the_same_bits_and_metrics(name):
    gives_the_same_both_ways(name)


@pytest.mark.parametrize(
    "options", [{"output": "shadow", "work": Steps(3, batch_size=4)}, {"seed": 5, "fraction_train": 0.5}]
)
def test_options_give_the_same_bits_and_metrics(options):
    def strategy():
        more = {"work": Epochs(1, batch_size=4), "min_train_nodes": 2, **options}
        return FedDualAvg(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0, **more)

    direct, by_messages = both_ways(strategy, clients(), start_arrays(), rounds=6)
    assert direct == by_messages


def strategy(**options):
    return FedDualAvg(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (strategy, 0),
        (lambda: strategy(wire=Wire(dtype="float32")), 12),
        (lambda: strategy(train_metrics_aggr_fn=lambda contents, key: MetricRecord({"n": len(contents)})), 12),
    ],
    ids=["plain", "float32", "metrics of one's own"],
)
def test_messages_are_made_where_they_can_be_told_from_none(chosen, expected, delivered):
    outcome(InProcessGrid(app_of(clients()), 4), chosen(), start_arrays(), 3)
    assert delivered == [expected]


def test_a_float32_model_needs_no_messages_and_gives_the_bits_of_messages(delivered):
    direct, by_messages = both_ways(lambda: strategy(wire=Wire(dtype="auto")), clients(), start_arrays(np.float32))
    assert direct == by_messages
    assert delivered == [16]  # by messages, of the second run


class OneArray(LeastSquares):
    """Its gradients come in one array that it uses again."""

    def gradient(self, w, batch=None):
        found = super().gradient(w, batch)
        self.kept = getattr(self, "kept", np.empty_like(found))
        self.kept[:] = found
        return self.kept


class NewArrays(LeastSquares):
    def gradient(self, w, batch=None):
        return super().gradient(w, batch)


def test_an_objective_may_use_the_array_of_its_gradients_again():
    def tracking():
        return FedDAGT(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0)

    rows = np.random.default_rng(0).standard_normal((3, 12, FEATURES))
    one, new = ([kind(each, each[:, 0]) for each in rows] for kind in (OneArray, NewArrays))
    assert both_ways(tracking, one, start_arrays()) == both_ways(tracking, new, start_arrays())


def test_a_mod_sees_every_message(delivered):
    seen = []

    def mod(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    outcome(InProcessGrid(app_of(clients(), [mod]), 4), strategy(), start_arrays(), 3)
    assert seen == ["train"] * 12
    assert delivered == [12]


def test_a_strategy_with_hooks_of_its_own_gets_messages(delivered):
    class Hooked(FedDualAvg):
        def configure_train(self, server_round, arrays, config, grid):
            return list(super().configure_train(server_round, arrays, config, grid))

    outcome(InProcessGrid(app_of(clients()), 4), Hooked(client_lr=0.02, fraction_evaluate=0.0), start_arrays(), 3)
    assert delivered == [12]


@pytest.mark.parametrize("lose", [lambda state: state.clear(), lambda state: state["fco"].update(plan="another run's")])
def test_a_node_that_has_lost_the_plan_is_told_it_again(lose, delivered, monkeypatch):
    plain = outcome(InProcessGrid(app_of(clients()), 4), strategy(), start_arrays())
    grid, open_round = InProcessGrid(app_of(clients()), 4), Run.open_round

    def restarts(self, server_round, *arguments):
        if server_round == 3:
            lose(grid.contexts[3].state)
        return open_round(self, server_round, *arguments)

    monkeypatch.setattr(Run, "open_round", restarts)
    assert delivered[0] == 0
    assert outcome(grid, strategy(), start_arrays())[:2] == plain[:2]
    assert delivered[0] > 0


def solver_that_returns(vector):
    """Register a local solver that answers `vector(dual)` from the second round on."""

    def solver(downlink, objective, state, rng):
        uplink, state = find_solver("subgradient")(downlink, objective, state, rng)
        start = downlink.vectors["primal"]
        return (uplink if not start.any() else uplink._replace(vectors=vector(start))), state

    return solver


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (lambda w: {"increment": np.full_like(w, np.nan)}, "NaN or infinite values"),
        (lambda w: {"increment": w[:-1]}, "expected float64"),
        (lambda w: {"increment": w.astype(np.float16)}, "expected float64"),
        (lambda w: {"another": w.copy()}, "the arrays are"),
        (lambda w: {}, "the arrays are|exactly one ArrayRecord"),
    ],
    ids=["NaN", "short", "float16", "another name", "nothing"],
)
def test_an_answer_that_cannot_count_is_left_out_in_the_same_words(vectors, reason, monkeypatch):
    own = solved_by(FedAvgSubgradient, "test-odd", solver_that_returns(vectors))

    def make_odd():
        return own(client_lr=0.02, fraction_evaluate=0.0, on_divergence="warn")

    direct, by_messages = both_ways(make_odd, clients(), start_arrays(), rounds=2)
    assert [row.reason for row in direct[3]] == [row.reason for row in by_messages[3]]
    assert len(direct[3]) == 4
    assert re.search(reason, direct[3][0].reason)
    assert direct[:2] == by_messages[:2]


def test_where_everyone_must_take_part_a_bad_answer_is_asked_again(monkeypatch):
    plain = DualAcceleration.send

    def odd(client, downlink, memory, moved):
        begins = not memory["local"].any()
        sent = plain(client, downlink, memory, moved)
        return sent if begins or client.objective is not first[0] else {"increment": np.full(7, np.nan)}

    monkeypatch.setattr(DualAcceleration, "send", staticmethod(odd))

    found = []
    for grid in (InProcessGrid, Counting):
        first = clients()
        found.append(
            outcome(
                grid(app_of(first), 4),
                DualFL(nu=0.05, fraction_evaluate=0.0, participation=Everyone(evict_after=9)),
                start_arrays(),
                2,
            )
        )
    assert found[0] == found[1]
    assert [row.reason.rpartition("; ")[2] for row in found[0][3]] == ["it is asked again"] * 2 + [
        found[0][3][2].reason
    ]


def test_no_client_can_change_what_another_one_reads(monkeypatch):
    def greedy(downlink, objective, state, rng):
        with pytest.raises(ValueError, match="read-only"):
            downlink.vectors["primal"][0] = 9.0
        uplink, state = find_solver("subgradient")(downlink, objective, state, rng)
        downlink.vectors["primal"] = np.ones(7)
        return uplink, state

    own = solved_by(FedAvgSubgradient, "test-greedy", greedy)

    one, other = (
        outcome(InProcessGrid(app_of(clients()), 4), cls(client_lr=0.02, fraction_evaluate=0.0), start_arrays())
        for cls in (own, FedAvgSubgradient)
    )
    assert one[:2] == other[:2]


def test_an_error_of_a_client_names_node_and_round(monkeypatch):
    objectives = clients()

    def failing(downlink, objective, state, rng):
        if downlink.vectors["primal"].any() and objective is objectives[2]:
            raise ZeroDivisionError("no rows")
        return find_solver("subgradient")(downlink, objective, state, rng)

    own = solved_by(FedMid, "test-failing", failing)

    texts = []
    for grid in (InProcessGrid, Counting):
        with pytest.raises(ClientError) as caught:
            outcome(grid(app_of(objectives), 4), own(client_lr=0.02, fraction_evaluate=0.0), start_arrays())
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "node 4 (partition 2) raised ZeroDivisionError in round 2 (train): no rows" in texts[0]


def test_the_clients_limits_hold(monkeypatch):
    objectives = clients()
    app = client_app(lambda context: objectives[context.node_config["partition-id"]], limits=Limits(max_number=3.5))

    def rate(server_round):
        return float(server_round)

    texts = []
    for grid in (InProcessGrid, Counting):
        with pytest.raises(ClientError, match="max_number") as caught:
            outcome(grid(app, 4), FedAvgSubgradient(client_lr=rate, on_divergence="warn"), start_arrays(), 5)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
