"""What methods whose clients minimise or take steps of their own, and remember, keep whatever goes wrong.

A rule gets a function that makes the strategy from options, with rates for the problem of `problems.problem`, whose
Hessians have eigenvalues from about 0.1 to 2.
"""

import numpy as np
import pytest
from fault_bars import imbalance
from flwr.app import MetricRecord
from problems import D, app_of, optimum, problem
from quadratics import optimum as pooled_optimum
from quadratics import quadratics
from remembering import FAULTS, SIZES, VICTIM, corrupt, faulty_run, weights_of

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Everyone, Minimise, Participation, run_of
from flwr_fco.wire.client_state import read_state
from flwr_fco.wire.envelope import StateMissingError
from flwr_fco.wire.protocol import ClientStamp

#: By day.
LOSSES = [("lost reply", "reset"), ("restart", "ledger"), ("restart", "reset")]
GIVEN_UP = [("lost message", "ledger"), ("NaN", "reset")]


def held_by_clients(strategy, grid):
    """What the clients hold in their own contexts, as far as the server's stamps accept it."""
    held = {}
    for node_id, partition in grid.partition_ids.items():
        member = strategy.memories.members.get((0, partition))
        stamp = ClientStamp(strategy.memories.epoch, -1 if member is None else member.accepted)
        try:
            state = read_state(grid.contexts[node_id], stamp, D)
        except StateMissingError:
            state = strategy.memories.memory((0, partition))
        held[partition] = state
    return held


def check_ledger(strategy, grid, number, metrics):
    """The ledger is what the clients hold, to the bit."""
    if not strategy.memories.ledger:
        return
    for partition, state in held_by_clients(strategy, grid).items():
        if state is not None:
            kept = strategy.memories.memory((0, partition))
            assert state.keys() == kept.keys()
            for name, vector in state.items():
                np.testing.assert_array_equal(vector, kept[name], err_msg=f"round {number}, {partition}, {name}")


def more_examples(delivery):
    """Say three times as many examples as there are."""
    reply = delivery.deliver()
    if reply.has_content() and "num-examples" in reply.content.get("metrics", {}):
        content = reply.content.copy()
        metrics = dict(content["metrics"])
        content["metrics"] = MetricRecord({**metrics, "num-examples": 3 * metrics["num-examples"]})
        reply.content = content
    return [reply]


def check_balance(strategy, grid, number, metrics):
    """Every weighted mean of the clients' memories is what the server's state says, by the weights of the round."""
    check_ledger(strategy, grid, number, metrics)
    assert imbalance(strategy) <= 1e-10, f"round {number}"


def reaches_the_optimum_whatever_is_lost(make, num_rounds, fault, client_state):
    """With all clients in every round."""
    strategy = make(client_state=client_state)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], num_rounds=num_rounds, check=check_ledger)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


def samples_reach_the_optimum_whatever_is_lost(make, num_rounds, fault, client_state):
    strategy = make(client_state=client_state, fraction_train=0.6, seed=1)
    rounds = range(1, 30)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], rounds=rounds, num_rounds=num_rounds, check=check_ledger)
    assert len(grid.injected) >= 8
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


def keeps_a_weight(make, client_state):
    """A client that says another number of examples later is left out, and weighs what it said first."""
    strategy = make(client_state=client_state)
    faulty_run(strategy, more_examples, rounds=(3, 4), num_rounds=6)
    assert strategy.memories.members[(0, VICTIM)].examples == SIZES[VICTIM]
    assert {row.round for row in run_of(strategy).left_out} == {3, 4}


def hides_a_restart_to_the_bit(make):
    a, _, _ = faulty_run(make(), "restart", num_rounds=12)
    b, _, _ = faulty_run(make(), "restart", rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


def asks_again_in_the_same_round(make, kind):
    """Who has given no good answer."""

    class Once:
        def __init__(self):
            self.failed = set()

        def __call__(self, delivery):
            number = delivery.message.metadata.group_id
            if number in self.failed:
                return [delivery.deliver()]
            self.failed.add(number)
            if kind == "NaN":
                return corrupt(delivery)
            delivery.deliver()
            return []

    a, grid, result = faulty_run(make(), Once(), num_rounds=12)
    assert len(grid.injected) == 6
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0] * 12
    b, _, _ = faulty_run(make(), None, rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


def goes_on_without_who_is_given_up(make, num_rounds, fault, client_state, check_state=None):
    """The others go on from zero to their own optimum."""
    strategy = make(participation=Everyone(on_missing="reset", evict_after=2), client_state=client_state)
    primals = {}

    def check(strategy, grid, number, metrics):
        primals[number] = strategy.state.primal.copy()
        if number == 6:  # given up at the end of it: nobody remembers anything, the model is as it was
            assert all(member.accepted == -1 for member in strategy.memories.members.values())
            np.testing.assert_array_equal(primals[6], primals[4])
            if check_state is not None:
                check_state(strategy.state)

    rounds = range(5, 10**6)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], rounds=rounds, num_rounds=num_rounds, check=check)
    # In each of two rounds it is asked three times.
    assert len(grid.injected) == 6
    rest = [f for m, f in enumerate(problem()) if m != VICTIM]
    sizes = np.array([f.num_examples for f in rest], dtype=float)
    assert np.abs(w - optimum(rest, sizes / sizes.sum())).max() <= 1e-8


def refuses_psi_with_the_reason(cls):
    with pytest.raises(ConfigurationError, match=r"no place for psi, because .*FedDR"):
        cls(regularizer=L1(0.1))
    with pytest.raises(ConfigurationError, match="Euclidean"):
        cls(mirror_map=PNorm(3.0))


def refuses_samples(make):
    with pytest.raises(ConfigurationError, match="every client"):
        make(fraction_train=0.5)
    with pytest.raises(ConfigurationError, match="expected an Everyone, for the method needs every client"):
        make(participation=Participation(choose_nodes=lambda number, nodes: nodes))


def leaves_who_has_no_weight_out_of_the_mean(make, num_rounds):
    """It never counts, so nothing may be divided by a weight that is guessed for it."""
    objectives, weights = quadratics(count=4), {0: 3.0, 1: 1.0, 3: 2.0}
    strategy = make(weighting=weights, work=Minimise(tolerance=1e-13))
    strategy.fraction_evaluate = 0.0
    options = {"num_nodes": 4, "num_rounds": num_rounds, "initial_arrays": {"x": np.ones(6)}, "progress": False}
    simulate(strategy, app_of(objectives), **options)
    expected = pooled_optimum([objectives[m] for m in weights], np.array(list(weights.values())) / 6.0)
    np.testing.assert_allclose(strategy.state.primal, expected, atol=1e-5)
