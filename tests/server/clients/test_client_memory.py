"""Clients with a memory when things go wrong: the trackers' sum stays 0 and the optimum is still found."""

import numpy as np
import pytest
from faults import FaultyGrid
from problems import D, app_of, clients, flat, optimum, problem, start_arrays, trackers_of
from remembering import FAULTS, VICTIM, faulty_run, leave, weights_of
from representatives import by_class, covered, crossed
from together import together

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import (
    Epochs,
    FedDAGT,
    MultistepReFedDAGT,
    Participation,
    ReFedDAGT,
    Scaffold,
    Stage,
    Steps,
    run_of,
)
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.client_state import read_state, store_pending
from flwr_fco.wire.envelope import StateMissingError
from flwr_fco.wire.protocol import ClientStamp


def check_sums(strategy, grid, number, metrics):
    """The weighted sum of what the ledger knows, and of what the clients hold in their own contexts."""
    weights = weights_of(strategy, grid)
    held, scale = [], 1e-300
    for (node_id, partition), _ in zip(sorted(grid.partition_ids.items(), key=lambda i: i[1]), weights, strict=True):
        member = strategy.memories.members.get((0, partition))
        stamp = ClientStamp(strategy.memories.epoch, -1 if member is None else member.accepted)
        try:
            state = read_state(grid.contexts[node_id], stamp, D)
        except StateMissingError:
            state = strategy.memories.memory((0, partition))
        held.append(strategy.state.control - (0.0 if state is None else state["own"]))
        scale = max(scale, np.abs(held[-1]).max())
    assert np.abs(weights @ np.array(held)).max() <= 1e-10 * scale, f"round {number}"
    if strategy.memories.ledger:
        for tracker, own in zip(trackers_of(strategy).values(), held, strict=True):
            np.testing.assert_allclose(tracker, own, rtol=1e-9, atol=1e-9 * scale)


CENTRAL = {"FedDAGT": FedDAGT, "ReFedDAGT": ReFedDAGT, "Scaffold": Scaffold}


@pytest.mark.parametrize(
    ("fault", "client_state", "weighting"), crossed(FAULTS, ["ledger", "reset"], ["uniform", "examples"])
)
def test_the_trackers_sum_to_zero_after_every_round(fault, client_state, weighting):
    strategy = FedDAGT(
        client_state=client_state, weighting=weighting, client_lr=0.05, work=Epochs(1, batch_size=8), seed=2
    )
    _, grid, result = faulty_run(strategy, FAULTS[fault], check=check_sums)
    assert len(grid.injected) >= 3
    left_out = [result.train_metrics_clientapp[n]["num-left-out"] for n in (3, 4, 9)]
    if fault == "restart" and client_state == "ledger":
        assert left_out == [0, 0, 0]
    else:
        assert left_out[0] == 1


@pytest.mark.parametrize(("fault", "client_state"), crossed(FAULTS, ["ledger", "reset"]))
@pytest.mark.parametrize("cls", by_class(CENTRAL))
def test_the_run_still_reaches_the_optimum(fault, client_state, cls):
    objectives = problem()
    strategy = CENTRAL[cls](client_state=client_state, client_lr=0.2, work=Steps(4, batch_size=None))
    w, grid, _ = faulty_run(strategy, FAULTS[fault], num_rounds=50, check=check_sums)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(objectives, weights_of(strategy, grid))).max() <= 1e-8


@together(("fault", "client_state"), covered(FAULTS, ["ledger", "reset"]))
def test_sampled_clients_keep_the_sum_too(fault, client_state):
    strategy = FedDAGT(
        fraction_train=0.6,
        client_state=client_state,
        client_lr=0.2,
        work=Steps(4, batch_size=None),
        seed=1,
        participation=Participation(evict_after=100),
    )
    w, grid, _ = faulty_run(strategy, FAULTS[fault], rounds=range(1, 40), num_rounds=100, check=check_sums)
    assert len(grid.injected) >= 10
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


def test_a_lost_reply_does_not_change_what_the_client_goes_on_from():
    """Losing the reply or losing the message is the same to the bit: what is pending is discarded."""
    options = {"client_lr": 0.05, "work": Epochs(1, batch_size=8)}
    a, _, _ = faulty_run(FedDAGT(**options), "drop")
    b, _, _ = faulty_run(FedDAGT(**options), "lose")
    assert np.array_equal(a, b)


def test_a_ledger_hides_a_restart():
    """Up to the rounding of the server's copy; without the ledger the run differs."""
    options = {"client_lr": 0.05, "work": Epochs(1, batch_size=8)}
    a, _, _ = faulty_run(FedDAGT(**options), "restart")
    b, _, _ = faulty_run(FedDAGT(**options), "restart", rounds=())
    c, _, _ = faulty_run(FedDAGT(client_state="reset", **options), "restart")
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    assert np.abs(c - b).max() > 1e-4


@pytest.mark.parametrize("client_state", ["ledger", "reset"])
@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_node_that_leaves_for_good(client_state, fraction):
    objectives = problem()
    strategy = FedDAGT(
        client_state=client_state, fraction_train=fraction, client_lr=0.15, work=Steps(4, batch_size=None)
    )

    def check(strategy, grid, number, metrics):
        if number != 5:  # in round 5 it is still there
            check_sums(strategy, grid, number, metrics)

    w, grid, _ = faulty_run(strategy, None, rounds=(), num_rounds=75, check=check, before=leave(VICTIM))
    assert len(grid.contexts) == 4
    rest = [f for m, f in enumerate(objectives) if m != VICTIM]
    assert np.abs(w - optimum(rest, [f.num_examples for f in rest])).max() <= 1e-8


@pytest.mark.parametrize("client_state", ["ledger", "reset"])
def test_a_node_that_comes_later_and_one_that_comes_back_under_another_id(client_state):
    objectives, kept = problem(), {}

    def before(grid, number):
        if number in (4, 8):
            gone = next(i for i, p in grid.partition_ids.items() if p == VICTIM)
            kept[number] = grid.contexts.pop(gone)
            del grid.partition_ids[gone]
        if number == 6:
            grid.contexts[90] = _flower.new_context(grid.run_id, 90, dict(kept[4].node_config), {})
            grid.partition_ids[90] = VICTIM
        if number == 11:
            grid.contexts[90], grid.partition_ids[90] = kept[8], VICTIM

    def check(strategy, grid, number, metrics):
        if {m.node_id for m in run_of(strategy).nodes.ordered} == set(grid.contexts):
            check_sums(strategy, grid, number, metrics)

    strategy = FedDAGT(client_state=client_state, client_lr=0.2, work=Steps(4, batch_size=None))
    w, _, _ = faulty_run(strategy, None, rounds=(), num_rounds=60, check=check, before=before)
    assert np.abs(w - optimum(objectives, [f.num_examples for f in objectives])).max() <= 1e-8


def test_a_client_whose_first_reply_comes_late_and_with_another_weight_than_was_guessed():
    def check(strategy, grid, number, metrics):
        if number >= 5:  # until then its weight is unknown, and taken for the mean of the others
            check_sums(strategy, grid, number, metrics)

    strategy = FedDAGT(client_lr=0.2, work=Steps(4, batch_size=None))
    w, grid, _ = faulty_run(strategy, "lose", rounds=range(5), num_rounds=60, check=check)
    assert len(grid.injected) == 5
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


def test_stages_survive_faults():
    strategy = MultistepReFedDAGT(stages=[Stage(4), Stage(5), Stage(10)], client_lr=0.2, work=Steps(4, batch_size=None))
    w, grid, _ = faulty_run(strategy, "restart", num_rounds=60, rounds=range(2, 12), check=check_sums)
    assert strategy.state.stage == 2
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


# --- two phases, saving -------------------------------------------------------------------------------------------


def vectors(value):
    return {"own": np.full(3, float(value))}


def test_pending_is_committed_or_discarded_by_the_next_stamp():
    context = _flower.new_context(1, 2, {}, {})
    assert read_state(context, ClientStamp(0, -1), 3) is None
    store_pending(context, ClientStamp(0, -1), 1, None, vectors(1), "1")
    assert read_state(context, ClientStamp(0, -1), 3) is None  # round 1 did not count
    state = read_state(context, ClientStamp(0, 1), 3)  # it did
    assert state["own"].tolist() == [1.0, 1.0, 1.0]
    store_pending(context, ClientStamp(0, 1), 4, state, vectors(4), "4")
    assert read_state(context, ClientStamp(0, 1), 3)["own"][0] == 1.0
    assert read_state(context, ClientStamp(0, 4), 3)["own"][0] == 4.0
    for stamp in (ClientStamp(0, 3), ClientStamp(1, 4), ClientStamp(1, 1)):
        with pytest.raises(StateMissingError, match=f"round {stamp.accepted}"):
            read_state(context, stamp, 3)
    assert read_state(context, ClientStamp(1, -1), 3) is None
    assert read_state(context, ClientStamp(0, 7, vectors(9)), 3)["own"][0] == 9.0


def test_a_second_start_begins_anew():
    strategy = FedDAGT(client_lr=0.05, work=Epochs(1, batch_size=8))
    a, _, _ = faulty_run(strategy, "drop")
    b, _, _ = faulty_run(strategy, "drop")
    assert np.array_equal(a, b)


def test_without_a_first_gradient_trackers_start_at_zero(caplog):
    def nobody(delivery):
        return []

    models = []
    for kind, lost in (("gradient", (0,)), ("zero", ())):
        grid = FaultyGrid(app_of(clients()), 4, {nobody: 1.0}, rounds=lost)
        with _flower.identity(grid.run_id), caplog.at_level("WARNING", logger="flwr"):
            strategy = FedDAGT(
                client_lr=0.02, work=Epochs(1, batch_size=None), fraction_evaluate=0.0, tracker_start=kind
            )
            models.append(flat(strategy.start(grid, start_arrays(), 3).arrays))
    np.testing.assert_array_equal(*models)
    assert caplog.text.count("No client has sent a gradient that counts") == 1


def test_the_same_nodes_serve_a_second_start():
    """Their contexts still hold the first run's memories, under the same round numbers."""
    grid = InProcessGrid(app_of(clients()), 4)
    strategy = FedDAGT(client_lr=0.05, work=Epochs(1, batch_size=8), fraction_train=0.5, fraction_evaluate=0.0)
    with _flower.identity(grid.run_id), _flower.quiet(), single_threaded_blas():
        a, b = (flat(strategy.start(grid, start_arrays(), 8).arrays) for _ in range(2))
    assert np.array_equal(a, b)
