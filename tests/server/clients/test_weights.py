"""The weight of a client: reported, bounded, pinned by the user, forgotten with clients that left."""

import numpy as np
import pytest
from faulty import Faulty, invariant, start_on, with_metrics
from problems import app_of, clients, flat, optimum, problem

from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, Steps
from flwr_fco.wire.protocol import Node

OPTIONS = {"client_lr": 0.02, "work": Steps(3), "fraction_evaluate": 0.0}


@pytest.mark.parametrize("lie", [0, 20_000])
def test_another_number_than_the_first_is_left_out_and_the_limit_stays(lie):
    objectives = problem((30, 40, 20, 30, 25, 30, 30))
    fault = with_metrics(lambda m: {**m, "num-examples": lie})
    chosen = FedDAGT(client_lr=0.05, work=Steps(4, batch_size=None), client_state="ledger", fraction_evaluate=0.0)
    grid = Faulty(app_of(objectives), len(objectives), fault, rounds=(3, 4))
    result = start_on(grid, chosen, rounds=150, callbacks=[lambda n, a, m: invariant(chosen)])
    assert chosen.memories.members[(0, 1)].examples == 40
    assert [(row.round, row.partition_id) for row in result.left_out] == [(3, 1), (4, 1)]
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8


def test_a_client_that_remembers_keeps_its_weight():
    memories = ClientMemories(("own",), client_state="ledger", weighting="examples")
    memories.forget(2)
    node = Node(5, 0)
    memories.notice([node])
    memories.check_weight(node, 1e9)
    memories.member(node).examples = 100.0
    memories.check_weight(node, 100.0)
    for other in (120.0, 50.0, 0.0):
        with pytest.raises(ProtocolError, match=f"{other:g} examples"):
            memories.check_weight(node, other)


def test_weights_that_the_user_pins_win_and_strangers_are_left_out():
    lying = with_metrics(lambda m: {**m, "num-examples": 5000})
    weights = {m: float(size) for m, size in enumerate((12, 25, 7, 16))}
    for cls in (FedDualAvg, FedDAGT):
        make = lambda cls=cls, **more: cls(client_lr=0.02, work=Steps(3), fraction_evaluate=0.0, **more)  # noqa: E731
        grid = Faulty(app_of(clients()), 4, lying, rounds=range(99))
        honest = start_on(Faulty(app_of(clients()), 4, None, rounds=()), make(), rounds=5)
        pinned = start_on(grid, make(weighting=weights), rounds=5)
        np.testing.assert_array_equal(flat(pinned.arrays), flat(honest.arrays))
    result = start_on(
        Faulty(app_of(clients()), 4, None, rounds=()), FedDualAvg(weighting={0: 1, 1: 1}, fraction_evaluate=0.0)
    )
    assert {row.partition_id for row in result.left_out} == {2, 3}
    for wrong, message in (({0: float("nan")}, r"weighting\[0\]=nan"), ({0: 0.0}, "at least one"), ({"a": 1.0}, "'a'")):
        with pytest.raises(ConfigurationError, match=message):
            FedDualAvg(weighting=wrong)


def test_a_weight_that_the_user_gives_is_no_claim_of_the_client():
    """It is far larger than the others' and still counts."""
    objectives = problem((30, 40, 20, 30, 25, 30, 30))
    make = FedDualAvg(**OPTIONS, weighting={m: 1e4 if m == 0 else 1.0 for m in range(7)})
    result = start_on(Faulty(app_of(objectives), 7, None, rounds=()), make, rounds=4)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [7] * 4


def test_steps_follow_from_examples_also_where_another_number_is_the_weight():
    weighted = with_metrics(lambda m: {**m, "weight": 0.5})
    make = FedDualAvg(client_lr=0.02, work=Epochs(2, batch_size=5), weighted_by_key="weight", fraction_evaluate=0.0)
    result = start_on(Faulty(app_of(clients()), 4, weighted, rounds=range(99), nodes=(2, 3, 4, 5)), make, rounds=4)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [4] * 4


def test_weights_set_between_two_runs_are_those_of_the_second():
    weights = {0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0}

    def model(strategy):
        return flat(start_on(Faulty(app_of(clients()), 4, None, rounds=()), strategy, rounds=3).arrays)

    strategy = FedDAGT(**OPTIONS)
    model(strategy)
    strategy.weighting = weights
    np.testing.assert_array_equal(model(strategy), model(FedDAGT(**OPTIONS, weighting=weights)))
    with pytest.raises(ConfigurationError, match=r"weighting\[0\]=-1.0"):
        strategy.weighting = {0: -1.0}


def test_members_that_cannot_come_back_are_forgotten():
    memories = ClientMemories(("own",), client_state="ledger", weighting="examples")
    memories.forget(2)
    memories.members[(0, 3)] = type(memories.member(Node(1, 3)))()
    for number in range(50):
        nodes = [Node(2 * number, None), Node(2 * number + 1, None)]
        memories.notice(nodes)
        for node in nodes:
            memories.member(node).accepted = number
    assert len(memories.members) <= 1 + 3 * 2
    assert (0, 3) in memories.members
