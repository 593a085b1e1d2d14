"""What a client says of itself: steps, elapsed time, examples and norms are checked, and absurd ones left out."""

import re

import numpy as np
import pytest
from faulty import Faulty, scaled, start_on, strategy, with_metrics
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from problems import app_of, clients, flat
from together import together

from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Bounds, DFedDA, Epochs, FedDAGT, FedDualAvg, FedMid, Steps, run_of

SEVEN = (12, 25, 7, 16, 20, 14, 11)


CLAIMS = {
    "elapsed too long": (with_metrics(lambda m: {**m, "elapsed": 1e12}), "elapsed"),
    "elapsed too short": (with_metrics(lambda m: {**m, "elapsed": 1e-12}), "elapsed"),
    "more steps": (with_metrics(lambda m: {**m, "local-steps": 10**6, "elapsed": 0.02 * 10**6}), "local steps"),
    "half a step": (with_metrics(lambda m: {**m, "local-steps": 0.5}), "whole number"),
    "more examples than there are": (with_metrics(lambda m: {**m, "num-examples": 10**15}), "max_examples"),
    "far more examples than others": (with_metrics(lambda m: {**m, "num-examples": 10**9}), "max_ratio"),
    "an integer beyond the floats": (with_metrics(lambda m: {**m, "num-examples": 10**400}), "examples"),
    "an increment of 1e12": (scaled(1e12), "max_ratio"),
    "an increment of 1e300": (scaled(1e300), "overflows"),
}


@together("name", CLAIMS)
@together("cls", [FedDualAvg, FedMid, FedDAGT, DFedDA])
def test_an_absurd_claim_is_left_out_and_counted(cls, name):
    fault, reason = CLAIMS[name]
    options = {"work": Epochs(1, batch_size=5), "fraction_evaluate": 0.0, "client_lr": 0.02}

    def result_with(fault):
        chosen = cls(**options)
        return start_on(Faulty(app_of(clients(SEVEN)), len(SEVEN), fault), chosen, rounds=4), chosen

    result, chosen = result_with(fault)
    expected, _ = result_with(lambda message, reply: [])
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))
    rows = [row for row in result.left_out if row.round == 2]
    assert [(row.partition_id, row.kind) for row in rows] == [(1, "train")]
    # What clients with a memory weigh is held against what they said first.
    assert reason in rows[0].reason or (cls is FedDAGT and "in its first reply" in rows[0].reason)
    assert run_of(chosen).left_out is result.left_out
    assert result.train_metrics_clientapp[2]["num-left-out"] == 1


def test_duplicates_late_and_missing_replies_are_in_the_table():
    def late_and_twice(message, reply):
        twin = Message(content=reply.content, reply_to=message)
        twin.metadata.__dict__["_group_id"] = "1"
        return [twin, reply, reply]

    result = start_on(Faulty(app_of(clients()), 4, late_and_twice), strategy())
    assert [row.reason.split(",")[0].split(";")[0] for row in result.left_out] == [
        "it answers round 1",
        "it answered twice",
    ]
    metrics = result.train_metrics_clientapp[2]
    assert metrics["num-left-out"] == 0
    silent = start_on(Faulty(app_of(clients()), 4, lambda m, r: []), strategy())
    assert [(row.round, row.partition_id, row.reason) for row in silent.left_out] == [(2, 1, "no reply")]


@pytest.mark.parametrize("epochs", [1, 2])
def test_honest_clients_of_10_to_1000_examples_lose_nothing(epochs):
    """Nor under a bound forty times as tight as the default: the largest shard is twenty times the median."""
    sizes = (10, 20, 50, 100, 300, 1000, 15)
    for cls in (FedDualAvg, FedMid, FedDAGT):
        options = {
            "regularizer": L1(0.1),
            "fraction_evaluate": 0.0,
            "bounds": Bounds(max_ratio=25.0),
        }
        chosen = cls(client_lr=0.005, work=Epochs(epochs, batch_size=5), **options)
        result = start_on(Faulty(app_of(clients(sizes)), len(sizes), None, rounds=()), chosen, rounds=10)
        assert result.left_out == []


@pytest.mark.parametrize(
    ("nodes", "largest", "left_out"),
    [(4, 10**6, ()), (2, 10**6, ()), (5, 10**4, ()), (5, 10**6, range(1, 15)), (4, 10**8, range(1, 15))],
)
def test_a_client_of_many_examples_is_treated_alike_in_training_and_in_evaluation(nodes, largest, left_out):
    app = ClientApp()

    def answer(message, context, records):
        number = 10 if context.node_config["partition-id"] else largest
        metrics = MetricRecord({"num-examples": number, "loss": 0.5})
        return Message(RecordDict({**records, "metrics": metrics}), reply_to=message)

    @app.train()
    def train(message, context):
        w = message.content["arrays"]["w"].numpy()
        return answer(message, context, {"arrays": ArrayRecord({"w": Array(w + 0.3 * (1.0 - w))})})

    @app.evaluate()
    def evaluate(message, context):
        return answer(message, context, {})

    chosen, start = FedDualAvg(client="unmodified"), {"w": np.zeros(3)}
    result = simulate(chosen, app, num_nodes=nodes, num_rounds=14, initial_arrays=start, progress=False)
    rounds = {kind: [row.round for row in result.left_out if row.kind == kind] for kind in ("train", "evaluate")}
    assert rounds == {"train": [*left_out], "evaluate": [*left_out]}


def said_of(fault, **options):
    """Return the reasons for which a client's replies of round 2 do not count."""
    chosen = FedDualAvg(**{"client_lr": 0.1, "work": Epochs(1, batch_size=5), "fraction_evaluate": 0.0, **options})
    result = start_on(Faulty(app_of(clients((20, 20, 20, 20))), 4, fault), chosen)
    return [row.reason for row in result.left_out]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"elapsed": 0.2}, "elapsed=0.2 after 4 steps"),
        ({"local-steps": 5}, "5 local steps, the plan asks for 4"),
        ({"num-examples": 2 * 10**12}, "expected a number from 0 to max_examples=1e.12"),
        ({"num-examples": 10}, "4 local steps, the plan asks for 2"),
        ({"num-examples": None}, "reports nan examples"),
    ],
    ids=["elapsed", "steps", "examples", "fewer examples", "no examples"],
)
def test_what_one_client_may_say_is_no_leave_for_the_next(change, reason):
    """Most clients of a round say the same, which is looked at once; the slightest difference is looked at again."""
    fault = with_metrics(lambda m: {key: value for key, value in {**m, **change}.items() if value is not None})
    (said,) = said_of(fault)
    assert re.search(reason, said)


@pytest.mark.parametrize("work", [{"local-steps": 40}, {"elapsed": 0.3}, {"local-steps": 40, "elapsed": 4.0}])
def test_a_loop_of_ones_own_is_allowed_more_where_the_server_app_says_so(work):
    fault = with_metrics(lambda m: {**m, **work})
    (said,) = said_of(fault)
    assert re.search(r"train with flwr_fco\.torch\.local_training, .*Bounds\(own_loops=True\)", said)
    assert said_of(fault, bounds=Bounds(own_loops=True)) == []


@pytest.mark.parametrize(("elapsed", "fine"), [(0.02, True), (0.02 * 9000, True), (1e12, False), (1e-12, False)])
def test_an_unmodified_client_may_have_a_schedule_but_not_any(elapsed, fine):
    app = ClientApp()

    @app.train()
    def train(message, context):
        w = message.content["arrays"]["w"].numpy()
        odd = int(context.node_config["partition-id"]) == 1 and message.metadata.group_id == "2"
        metrics = {"num-examples": 10, "local-steps": 10, "elapsed": elapsed if odd else 0.2}
        arrays = ArrayRecord({"w": Array(w + 0.3 * (1.0 - w))})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    chosen = FedDualAvg(client="unmodified", client_lr=0.02, work=Steps(10), fraction_evaluate=0.0)
    result = simulate(chosen, app, num_nodes=4, num_rounds=3, initial_arrays={"w": np.zeros(3)}, progress=False)
    assert ["elapsed" in row.reason for row in result.left_out] == ([] if fine else [True])
