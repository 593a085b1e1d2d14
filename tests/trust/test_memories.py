"""What clients remember: the ledger has it to the bit, and sums stay, whoever comes late, leaves, lies or is silent."""

import os
import time
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from adversarial_clients import CLIENTS, LIAR, in_messages, make, regressions, run
from fault_bars import imbalance
from faults import FaultyGrid, lying
from faulty import FAULTS, VICTIM, faulty_run, held_alike, leave, weights_of
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from problems import app_of, by_class, clients, covered, crossed, flat, optimum, problem, started, trackers_of, zeros

from flwr_fco import FedDAGT, ReFedDAGT, Scaffold
from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.messages.records import LOST
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Epochs, Everyone, Ledger, Participation, Stage, Steps, nodes, run_of
from reproduction.pooled import centralized_solution

CENTRAL = {"FedDAGT": FedDAGT, "ReFedDAGT": ReFedDAGT, "Scaffold": Scaffold}
FAST = {"client_lr": 0.2, "work": Steps(4, batch_size=None)}


def balanced(strategy, grid=None, number=0, metrics=None, but=()):
    assert number in but or imbalance(strategy) <= 1e-10, f"round {number}"


def reaches_the_optimum(strategy, fault, faults=1, rest=None, **options):
    """Run with a fault; trackers sum to 0 after every round, and the end is the optimum of all, or of the rest."""
    w, grid, _ = faulty_run(strategy, fault, **{"check": balanced, **options})
    assert len(grid.injected) >= faults
    weights = weights_of(strategy, grid) if rest is None else [own.num_examples for own in rest]
    assert np.abs(w - optimum(rest or problem(), weights)).max() <= 1e-8
    return grid


@pytest.mark.parametrize(("fault", "cls"), crossed(FAULTS, CENTRAL))
def test_a_run_with_a_fault_still_reaches_the_optimum(fault, cls):
    reaches_the_optimum(CENTRAL[cls](**FAST), FAULTS[fault], 3, num_rounds=35)


@pytest.mark.parametrize("fault", FAULTS)
def test_sampled_clients_keep_the_sum_too(fault):
    strategy = FedDAGT(fraction_train=0.6, seed=1, participation=Participation(evict_after=100), **FAST)
    reaches_the_optimum(strategy, FAULTS[fault], 10, rounds=range(1, 40), num_rounds=80)


@pytest.mark.parametrize(("cls", "rounds"), crossed(["FedDAGT", "Scaffold"], [range(1, 10**6), (3,)]))
def test_replies_that_a_mod_has_scaled_break_no_trackers(cls, rounds):
    reaches_the_optimum(CENTRAL[cls](**FAST), lying(0.8), rounds=rounds, num_rounds=45)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_node_leaves_for_good(fraction):
    strategy = FedDAGT(fraction_train=fraction, **FAST | {"client_lr": 0.15})
    rest = [own for m, own in enumerate(problem()) if m != VICTIM]
    check = partial(balanced, but=(5,))  # in round 5 it is still there
    grid = reaches_the_optimum(strategy, None, 0, rest, rounds=(), num_rounds=75, check=check, before=leave(VICTIM))
    assert len(grid.contexts) == 4


def test_a_first_reply_comes_late_and_with_another_weight_than_was_guessed():
    strategy = FedDAGT(participation=Participation(evict_after=99), **FAST)
    # Until then its weight is unknown, and taken for the mean of the others.
    reaches_the_optimum(strategy, "lose", 5, rounds=range(5), num_rounds=60, check=partial(balanced, but=range(5)))


@pytest.mark.parametrize("number_of_examples", [0, 20_000])
def test_another_weight_than_the_first_is_left_out_and_the_limit_stays(number_of_examples):
    lie = lambda n, _, claims: claims.update({"num-examples": number_of_examples} if n in (3, 4) else {})  # noqa: E731
    objectives = problem((30, 40, 20, 30, 25, 30, 30))
    strategy = FedDAGT(**FAST, fraction_evaluate=0.0)
    look = lambda number, arrays, metrics: balanced(strategy, number=number)  # noqa: E731
    result = run(strategy, objectives, 45, mods=[in_messages(lie, liar=1)], callbacks=[look])
    assert strategy.memories.members[(0, 1)].examples == 40
    assert [(row.round, row.partition_id) for row in result.left_out] == [(3, 1), (4, 1)]
    assert np.abs(flat(result.arrays) - optimum(objectives, [f.num_examples for f in objectives])).max() < 1e-8


def test_without_a_first_gradient_trackers_start_at_zero(caplog):
    models = []
    given = {"client_lr": 0.02, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0}
    for kind, lost in (("gradient", (0,)), ("zero", ())):
        grid = FaultyGrid(app_of(clients()), 4, {"lose": 1.0}, rounds=lost)
        with grid.identity(), caplog.at_level("WARNING", logger="flwr"):
            models.append(flat(FedDAGT(tracker_start=kind, **given).start(grid, zeros(clients()[0].layout), 3).arrays))
    np.testing.assert_array_equal(*models)
    assert caplog.text.count("No client has sent a gradient that counts") == 1


@pytest.mark.parametrize("fault", [None, "drop"])
def test_the_same_nodes_serve_a_second_start(fault):
    """Their contexts still hold the first run's memories, under the same round numbers."""
    strategy = FedDAGT(client_lr=0.05, work=Epochs(1, batch_size=8), fraction_train=0.5, fraction_evaluate=0.0)
    grid = FaultyGrid(app_of(clients()), 4, {fault: 0.3} if fault else {})
    a, b = (flat(started(strategy, grid, 8).arrays) for _ in range(2))
    assert np.array_equal(a, b)


def test_equal_replies_of_two_starts_leave_two_memories():
    """A client whose minimisers are half of the centres replies 0 in every round, from wherever it starts."""
    halving = app_of([LeastSquares(np.eye(2), np.zeros(2), scale=1.0, intercept=False)] * 4)
    grids = {start: InProcessGrid(halving, 4) for start in (1.0, 4.0)}
    for start in grids:
        strategy = make("FedDR")
        started(strategy, grids[start], 1, ArrayRecord({"coefficients": Array(np.full(2, start))}))
    assert held_alike(strategy, grids[1.0]) == 0


# --- one liar among ten -----------------------------------------------------------------------------------------------

OBJECTIVES = regressions()
REST = [own for m, own in enumerate(OBJECTIVES) if m != LIAR]


Lenient = partial(InProcessGrid, raise_errors=False)


def played(strategy, rounds, lie=None, *, grid=Lenient, **options):
    """Run with a liar: ``lie(number, vectors)`` changes what it sends from round 1 on, or is True for nothing."""

    def reported(number, vectors, claims):
        if lie and number >= 1 and lie(number, vectors):
            raise RuntimeError("it has nothing to say")

    return run(strategy, OBJECTIVES, rounds, mods=[in_messages(reported)], grid=grid, **options)


@cache
def solution(psi, without_liar):
    return centralized_solution(REST if without_liar else OBJECTIVES, psi, tol=1e-12)


def apart(arrays, strategy, objectives):
    return np.abs(flat(arrays) - solution(getattr(strategy, "regularizer", Zero()), objectives is REST)).max()


def scaled(vectors, factor):
    for vector in vectors.values():
        vector *= factor


@pytest.mark.parametrize("name", by_class(["FedDAGT", "ReFedDAGT", "Scaffold", "FedDR"]))
def test_a_lie_of_a_client_that_never_answers_again_is_forgotten(name):
    def lie(number, vectors):
        scaled(vectors, -900.0 if number == 6 else 1.0)
        return number > 6

    strategy = make(name, client_lr=0.2)
    assert apart(played(strategy, 45, lie).arrays, strategy, REST) <= 1e-6


@pytest.mark.parametrize("kind", ["silent", "NaN"])
def test_a_client_that_is_asked_in_vain_has_left_and_comes_back(kind):
    """The run goes to the optimum of the others, and from there to that of all."""
    distances = {}
    strategy = make("FedDAGT", client_lr=0.2)

    def lie(number, vectors):
        if 6 <= number < 26:
            scaled(vectors, np.nan)
            return kind == "silent"
        return False

    def look(number, arrays, metrics):
        balanced(strategy, number=number)
        distances[number] = [apart(arrays, strategy, own) for own in (OBJECTIVES, REST)]
        assert len(trackers_of(strategy)) == (CLIENTS - 1 if 8 <= number < 26 else CLIENTS)

    played(strategy, 42, lie, callbacks=[look])
    assert max(distances[25][1], distances[42][0]) <= 1e-6 < distances[25][0]


def test_only_silence_in_a_row_makes_a_client_one_that_has_left():
    for options, fewer in (({}, [0] * 12), ({"evict_after": 1}, [1, 1, 0, 1, 1])):
        strategy = make("FedDAGT", participation=Participation(**options))
        seen = []
        look = [lambda *_, own=strategy, seen=seen: seen.append(CLIENTS - len(own.memories.present))]
        played(strategy, len(fewer), lambda number, vectors: number % 3, callbacks=look)
        assert seen == fewer


def test_rounds_that_do_not_count_evict_nobody():
    strategy = make("FedDAGT", client_lr=0.2)
    result = played(strategy, 40, grid=lambda *given: FaultyGrid(*given, {"lose": 1.0}, rounds=range(5, 16)))
    assert len(strategy.memories.present) == CLIENTS
    assert apart(result.arrays, strategy, OBJECTIVES) <= 1e-6


def test_a_run_goes_on_from_its_checkpoint_with_the_counts_of_silence(tmp_path):
    def ended(rounds, **more):
        strategy = make("FedDAGT")
        played(strategy, rounds, lambda number, vectors: number >= 4, **more)
        return strategy.state.dual, strategy.memories.present

    whole = ended(12)
    for stop in (5, 8):
        ended(stop, callbacks=[Checkpoint(path := tmp_path / f"{stop}.npz")])
        dual, present = ended(12, resume=path)
        np.testing.assert_array_equal(dual, whole[0])
        assert present == whole[1]


# --- methods that need every client -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DualFL", "FedNewton", "FedDAGT"])
def test_only_a_method_that_needs_everyone_ends_without_one(name):
    strategy = make(name)
    if name == "FedDAGT":
        assert len(played(strategy, 20, lambda *_: True).train_metrics_clientapp) == 20
        return
    said = rf"partition {LIAR} gave no good reply in 3 rounds in a row \(.*nothing to say\)"
    with pytest.raises(ConfigurationError, match=said):
        played(strategy, 20, lambda *_: True)
    assert [metrics["skipped"] for metrics in strategy.result.train_metrics_clientapp.values()] == [1, 1]


@pytest.mark.parametrize("name", ["DualFL", "FedNewton"])
def test_where_all_are_needed_the_late_are_named_and_nobody_left_is_said(name, monkeypatch, caplog):
    own = make(name)
    monkeypatch.setattr(InProcessGrid, "get_node_ids", lambda grid: [2, 3] if own.state.round < 1 else [4, 5])
    with pytest.raises(ConfigurationError, match="the last one: it is not connected any more"):
        own.start(InProcessGrid(app_of(OBJECTIVES), len(OBJECTIVES)), zeros(OBJECTIVES[0].layout), 9)
    assert caplog.text.count("partition 2, partition 3 connected after the first round and takes no part") == 1


def test_rounds_in_which_others_are_missing_end_a_row():
    """In turn: no round counts, and nobody is away for two in a row."""
    mods = [in_messages(lambda number, *_, m=m: number % 2 == m and 1 // 0, liar=m) for m in (0, 1)]
    strategy = make("DualFL")
    with pytest.raises(NothingTrainedError):
        run(strategy, OBJECTIVES, 9, mods=mods, grid=Lenient)
    assert len(strategy.result.train_metrics_clientapp) == 9


def test_nodes_that_a_grid_in_this_process_never_has_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(ConfigurationError, match=rf"only {len(OBJECTIVES)} nodes, {len(OBJECTIVES) + 1} are needed"):
        run(make("FedDualAvg", min_available_nodes=len(OBJECTIVES) + 1), OBJECTIVES, 1)


def test_a_client_that_disconnects_is_waited_for_where_everyone_is_needed():
    strategy = make("DualFL", participation=Everyone(node_timeout=0.05))
    with pytest.raises(ConfigurationError, match=r"only 4 nodes connected within node_timeout=0\.05"):
        faulty_run(strategy, None, rounds=(), before=leave(VICTIM))
    assert run_of(strategy).number == 5
    assert imbalance(strategy) <= 1e-10


# --- what clients remember is what the server's ledger says, to the bit, after every round ----------------------------


def repeat(delivery):
    """The message comes twice, and so does the reply."""
    return [reply for reply in (delivery.deliver(), delivery.deliver()) if reply is not None]


def turn_back(delivery):
    """The client comes back from an earlier copy of its disk."""
    state = delivery.context.state
    replies = repeat(delivery)[:1]
    delivery.context.state = RecordDict({key: record.copy() for key, record in state.items()})
    return replies


def turn_far_back(delivery):
    """From the first copy that there was."""
    first = delivery.context.node_config.setdefault("first", [])
    if not first:
        first.append({key: record.copy() for key, record in delivery.context.state.items()})
    delivery.context.state = RecordDict(first[0])
    return repeat(delivery)[:1]


def lose_the_newest(delivery):
    """Of the copy the newest memory is gone."""
    state = delivery.context.state
    delivery.context.state = RecordDict({key: state[key] for key in [*state][:-1]})
    return repeat(delivery)[:1]


KINDS = ("drop", "lose", "raise", "restart", "malformed", "garbage", "delay", "leave")
OF_CLIENTS = (repeat, turn_back, turn_far_back, lying(0.9), lying(-1.0))


def sparse_rows():
    """Clients whose rows have few of 80 columns, and of which each has columns of its own."""
    found = []
    for m in range(5):
        rng = np.random.default_rng((3, m))
        rows = sp.random_array((30, 80), density=0.025, rng=rng, format="csr")
        found.append(LeastSquares(rows, rows @ np.ones(80) + 0.1 * rng.standard_normal(30), scale=0.5))
    return found


DATA = {"dense": problem(), "sparse": sparse_rows()}


def play(name, data, seed, *, faults, rounds=14, missing=False, **options):
    """Run with random faults; compare after every round; return the model, the strategy and what was compared."""
    objectives = DATA[data]
    compared = []
    strategy = make(name, seed=seed, **options)
    grid = FaultyGrid(app_of(objectives), len(objectives), faults, seed=seed, rounds=range(rounds - 3), missing=missing)

    def check(number, arrays, metrics):
        compared.append(held_alike(strategy, grid))
        assert imbalance(strategy) <= 1e-10, f"round {number}"

    result = started(strategy, grid, rounds, zeros(objectives[0].layout), callbacks=[check])
    return result.arrays, strategy, compared, grid


METHODS = {name: {} for name in ("FedDAGT", "ReFedDAGT", "MultistepReFedDAGT", "Scaffold", "FedDR", "DualFL")}
METHODS["MultistepReFedDAGT"] = {"stages": [Stage(4), Stage(6), Stage(99)]}
CASES = [
    pytest.param(name, data, seed, marks=pytest.mark.nightly if seed else ())
    for (name, data), seed in product(product(METHODS, DATA), range(12))
    if not (name == "Scaffold" and data == "sparse")
]


# As for a user, whose clients go on where a number overflows.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "data", "seed"), CASES)
def test_the_ledger_is_what_the_clients_hold_whatever_goes_wrong(name, data, seed):
    rng = np.random.default_rng((seed, 8))
    everyone = name == "DualFL"
    kinds = [fault for fault in (*KINDS, *OF_CLIENTS) if not (everyone and fault == "leave")]
    # Some of the kinds, so that each is met alone and with others.
    kinds = [kinds[i] for i in rng.permutation(len(kinds))[: rng.integers(1, 7)]]
    options = {**METHODS[name], "participation": Everyone(evict_after=10**6), "rounds": 22 if seed else 14}
    if not everyone:
        options |= {"fraction_train": float(rng.choice([1.0, 0.6])), "work": Epochs(1, batch_size=8)}
        options["participation"] = Participation(evict_after=int(rng.integers(1, 6)))
        options["min_available_nodes"] = options["min_train_nodes"] = 1
    options["weighting"] = str(rng.choice(["examples", "uniform"]))
    # Above this size the ledger lies in a file.
    options["client_state"] = Ledger(max_bytes=int(rng.choice([0, 5_000, 10**9])))
    _, _, compared, grid = play(name, data, seed, faults=dict.fromkeys(kinds, 0.3 / len(kinds)), **options)
    assert grid.injected
    assert sum(compared) >= 10


#: What must leave no trace, and what it must be as: a run in which the messages are lost, or one without faults.
NO_TRACE = {
    **{fault: {"missing": True} for fault in ("drop", "raise", "malformed", "garbage", "delay")},
    **{fault: {"faults": {}} for fault in ("restart", repeat, turn_back, turn_far_back, lose_the_newest)},
}


@pytest.mark.parametrize(("fault", "name"), covered(NO_TRACE, METHODS))
def test_a_run_with_faults_has_the_bits_of_one_without_these_replies(fault, name):
    patient = Everyone(evict_after=10**6) if name == "DualFL" else Participation()
    options = {**METHODS[name], "faults": {fault: 0.3}, "participation": patient}
    one, *_, grid = play(name, "dense", 5, **options)
    other = play(name, "dense", 5, **{**options, **NO_TRACE[fault]})[0]
    assert len(grid.injected) > 12
    assert one == other


def test_a_client_that_has_lost_its_memory_is_left_out_once_by_name():
    names = {3: [LOST] * 3, 4: ["odd", "odd", LOST]}

    def forgets(delivery):
        reply = delivery.deliver()
        reply.content = RecordDict({"metrics": MetricRecord({names[delivery.context.node_id].pop(): 1})})
        return [reply]

    grid = FaultyGrid(app_of(DATA["dense"]), 5, {forgets: 1.0}, rounds=(3,), partitions=[1, 2])
    result = started(make("FedDAGT"), grid, 4)
    said = sorted((row.round, row.partition_id, row.reason) for row in result.left_out)
    assert said == [(3, 1, "it has lost its memory"), (3, 2, "expected exactly one ArrayRecord, got 0")]
    assert [own["num-left-out"] for own in result.train_metrics_clientapp.values()] == [0, 0, 2, 0]


def test_a_ledger_in_a_file_has_few_files_open_and_says_when_it_is_full(monkeypatch):
    rows = nodes.Rows(1)
    before = len(os.listdir("/dev/fd"))
    assert all(rows.put(((0, i), "own"), np.full(1, float(i))) == i for i in range(64 * 140))
    assert len(os.listdir("/dev/fd")) <= before + 30
    monkeypatch.setattr(rows, "_file", open("/dev/full", "r+b", buffering=0))  # noqa: SIM115
    with pytest.raises(ConfigurationError, match=r"do not fit into .*; set TMPDIR"):
        rows.put(((0, 9_000_000), "own"), np.ones(1))
