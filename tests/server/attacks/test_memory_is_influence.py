"""What a client remembers is in the sums of all: lies that are never taken back, replays, copies of departed ones."""

from functools import cache

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from lies_of_one import CLIENTS, LIAR, make, regressions, run
from problems import flat, trackers_of
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import Zero
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.nodes import Node
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Everyone, Ledger, Participation, run_of
from flwr_fco.wire.protocol import Uplink
from reproduction.pooled import centralized_solution

OBJECTIVES = regressions()
REST = [own for m, own in enumerate(OBJECTIVES) if m != LIAR]
TRACKERS = ("FedDAGT", "ReFedDAGT", "Scaffold", "MultistepReFedDAGT")
ONCE = (*TRACKERS, "FedDR", "DFedDAGT")


class Lenient(InProcessGrid):
    def __init__(self, app, number):
        super().__init__(app, number, raise_errors=False)


def saying(lie, liar=LIAR):
    """Return a mod: ``lie(round, vectors)`` returns what a client sends, or None for nothing."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        here = message.metadata.message_type == "train" and context.node_config["partition-id"] == liar
        if not here or "arrays" not in reply.content or int(message.metadata.group_id) < 1:
            return reply
        vectors = {name: array.numpy() for name, array in reply.content["arrays"].items()}
        said = lie(int(message.metadata.group_id), vectors)
        if said is None:
            raise RuntimeError("it has nothing to say")
        content = reply.content.copy()
        content["arrays"] = ArrayRecord({name: Array(value) for name, value in said.items()})
        reply.content = content
        return reply

    return mod


def once_and_never_again(number, vectors):
    if number < 20:
        return vectors
    return {name: -900.0 * value for name, value in vectors.items()} if number == 20 else None


def replaying():
    kept = {}

    def lie(number, vectors):
        return kept.setdefault("first", vectors)

    return lie


def solution(strategy, objectives):
    return _solution(getattr(strategy, "regularizer", Zero()), len(objectives))


@cache
def _solution(psi, number):
    return centralized_solution(OBJECTIVES if number == CLIENTS else REST, psi, tol=1e-12)


@pytest.mark.parametrize(
    "name", [ONCE[0], *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.nightly]) for name in ONCE[1:])]
)
def test_a_lie_of_a_client_that_never_answers_again_is_forgotten(name):
    strategy = make(name)
    result = run(strategy, OBJECTIVES, 200, mods=[saying(once_and_never_again)], grid=Lenient)
    assert np.abs(flat(result.arrays) - solution(strategy, REST)).max() <= 1e-6


@pytest.mark.parametrize("kind", ["silent", pytest.param("NaN", marks=pytest.mark.slow)])
def test_a_client_that_is_asked_in_vain_has_left_and_comes_back(kind):
    """The run goes to the optimum of the others, and from there to that of all."""
    sums, distances = [], {}
    strategy = make("FedDAGT")

    def lie(number, vectors):
        if 30 <= number < 90:
            return None if kind == "silent" else {name: np.nan * value for name, value in vectors.items()}
        return vectors

    def look(number, arrays, metrics):
        trackers = trackers_of(strategy)
        sums.append(np.abs(np.mean(list(trackers.values()), axis=0)).max())
        distances[number] = [np.abs(flat(arrays) - solution(strategy, own)).max() for own in (OBJECTIVES, REST)]
        assert len(trackers) == (CLIENTS - 1 if 32 <= number < 90 else CLIENTS)

    run(strategy, OBJECTIVES, 200, mods=[saying(lie)], grid=Lenient, callbacks=[look])
    assert max(sums) <= 1e-10
    assert distances[89][1] <= 1e-6 < distances[89][0]
    assert distances[200][0] <= 1e-6


@pytest.mark.parametrize("name", ["FedDR", "DFedDAGT", "FedDAGT"])
def test_a_client_may_send_a_few_coordinates_where_the_method_has_whole_vectors(name):
    """It did end the run of all with a TypeError."""

    def lie(number, vectors):
        some = {key: value[:2] for key, value in vectors.items()}
        return {**some, **{f"places:{key}": np.arange(2, dtype=np.int32) for key in vectors}}

    assert max(run(make(name), OBJECTIVES, 3, mods=[saying(lie)], grid=Lenient).train_metrics_clientapp) == 3


def test_two_rounds_are_not_three():
    """Rounds in a row count, and only those in which the client was asked."""
    strategy = make("FedDAGT")

    def lie(number, vectors):
        return vectors if number % 3 == 0 else None

    def look(number, arrays, metrics):
        assert len(strategy.memories.present) == CLIENTS

    result = run(strategy, OBJECTIVES, 150, mods=[saying(lie)], grid=Lenient, callbacks=[look])
    assert np.abs(flat(result.arrays) - solution(strategy, OBJECTIVES)).max() <= 1e-6
    strategy = make("FedDAGT", participation=Participation(evict_after=1))
    seen = []
    run(
        strategy,
        OBJECTIVES,
        5,
        mods=[saying(lie)],
        grid=Lenient,
        callbacks=[lambda *_: seen.append(strategy.memories.present)],
    )
    assert [len(present) for present in seen] == [CLIENTS - 1, CLIENTS - 1, CLIENTS, CLIENTS - 1, CLIENTS - 1]


def test_rounds_that_do_not_count_evict_nobody():
    class Dead(Lenient):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            train = messages and messages[0].metadata.message_type == "train"
            if train and 5 <= int(messages[0].metadata.group_id) <= 15:
                return []
            return super().send_and_receive(messages, timeout=timeout)

    strategy = make("FedDAGT")
    result = run(strategy, OBJECTIVES, 150, grid=Dead)
    assert len(strategy.memories.present) == CLIENTS
    assert np.abs(flat(result.arrays) - solution(strategy, OBJECTIVES)).max() <= 1e-6


QUICK, LATER = ("FedDAGT", "FedDR", "DFedDAGT"), ("DualFL", *TRACKERS[1:])


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.nightly]) for name in LATER)]
)
@pytest.mark.parametrize("lie", ["replay", "sign flip", pytest.param("10 times", marks=pytest.mark.slow)])
def test_a_variate_is_no_longer_than_what_was_usual(name, lie):
    """The error was 20 and more for a replay of the first answer, and 3e4 to 1e6 for a sign flip."""
    change = {
        "replay": replaying(),
        "sign flip": lambda number, vectors: {name: -1.0 * value for name, value in vectors.items()},
        "10 times": lambda number, vectors: {name: 10.0 * value for name, value in vectors.items()},
    }[lie]
    strategy = make(name, **({"nu": 0.5, "smoothness": 1.0} if name == "DualFL" else {}))
    result = run(strategy, OBJECTIVES, 80, mods=[saying(change)], grid=Lenient)
    assert np.abs(flat(result.arrays) - solution(strategy, OBJECTIVES)).max() <= 5.0
    assert {row.partition_id for row in result.left_out} == {LIAR}
    assert any("control variate" in row.reason for row in result.left_out)


@pytest.mark.parametrize("factor", [5.0, pytest.param(50.0, marks=pytest.mark.slow)])
def test_answers_of_a_loss_that_is_less_convex_than_nu_are_a_liars(factor):
    """DualFL diverges with such a loss; the error was 9e4, or the run ended."""
    strategy, lengths = make("DualFL"), []

    def longer(number, vectors):
        return {name: factor * value for name, value in vectors.items()}

    look = lambda number, arrays, metrics: lengths.append(np.abs(flat(arrays)).max())  # noqa: E731
    result = run(strategy, OBJECTIVES, 60, mods=[saying(longer)], grid=Lenient, callbacks=[look])
    assert {row.partition_id for row in result.left_out} == {LIAR}
    assert max(lengths) <= 10.0 * factor
    assert np.abs(flat(result.arrays) - solution(strategy, REST)).max() <= 1e-3


@pytest.mark.parametrize("name", ["FedDR", "DualFL"])
def test_an_honest_loss_that_is_sharper_than_all_others_stays(name):
    """Its gradients grow to many times what was usual, and never turn back."""
    sites = OBJECTIVES[:5]
    rng = np.random.default_rng(5)
    features = 10.0 * rng.standard_normal((30, 6))
    sites = [*sites, LeastSquares(features, features @ np.full(6, 4.0), scale=0.5)]
    strategy = make(name, **({"nu": 0.5, "smoothness": 200.0} if name == "DualFL" else {}))
    strategy.on_divergence, lengths = "warn", []

    def look(number, arrays, metrics):
        memories = [strategy.memories.memory(key) for key in sorted(strategy.memories.members)]
        if memories:
            gradients = [type(run_of(strategy).algorithm).implied(None, own, {}, None).gradient for own in memories]
            lengths.append([float(np.linalg.norm(gradient)) for gradient in gradients])

    result = run(strategy, sites, 60, callbacks=[look])
    assert result.left_out == []
    firsts = [next(length for length in own if length > 0.0) for own in zip(*lengths, strict=True)]
    most = max(10.0 * np.median(firsts), 3.0 * firsts[-1], 3.0 * np.median(lengths[-1]))
    assert lengths[-1][-1] > most, "the data no longer show what the test is about"


def test_a_run_goes_on_from_its_checkpoint_with_the_counts(tmp_path):
    def lie(number, vectors):
        return vectors if number < 4 else None

    class Save:
        def on_save_point(self, number, last):
            if last:
                run_of(strategy).save(path)

    whole = make("FedDAGT")
    run(whole, OBJECTIVES, 12, mods=[saying(lie)], grid=Lenient)
    for stop in (5, 8):
        strategy, path = make("FedDAGT"), tmp_path / f"{stop}.npz"
        run(strategy, OBJECTIVES, stop, mods=[saying(lie)], grid=Lenient, callbacks=[Save()])
        again = make("FedDAGT")
        run(again, OBJECTIVES, 12, mods=[saying(lie)], grid=Lenient, resume=path)
        np.testing.assert_array_equal(again.state.dual, whole.state.dual)
        assert again.memories.present == whole.memories.present


# --- the ledger under churn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
def test_the_limit_of_the_ledger_is_the_limit_under_churn(sparse):
    """Departed clients' vectors are the first to go; present ones' stay as long as they fit."""
    size, here = 1000, 20
    limit = 8 * size * (here + 2)
    memories = ClientMemories(("own",), client_state=Ledger(limit), weighting="uniform", may_be_sparse=sparse)
    memories.forget(size)
    for epoch in range(20):
        nodes = [Node(100 * epoch + i, None if epoch % 2 else 100 * epoch + i) for i in range(here)]
        memories.notice(nodes)
        uplinks = [Uplink({"increment": np.ones(size)}, 1.0, 1, 1.0 / here, node, 10.0) for node in nodes]
        memories.commit(epoch, uplinks, lambda memory, uplink, begins: {"own": memory["own"] + 1.0})
        held = sum(member.memory["own"].nbytes for member in memories.members.values() if member.memory)
        # No more goes than has to.
        assert held == (limit if epoch else 8 * size * here)
        assert memories.ledger
        assert all(memories.members[node.key].memory is not None for node in nodes)
    # A client whose copy is gone begins anew.
    assert all(member.accepted < 0 for member in memories.members.values() if member.memory is None)


def test_a_ledger_that_its_own_clients_outgrow_is_given_up():
    memories = ClientMemories(("own",), client_state=Ledger(8 * 100 * 5), weighting="uniform")
    memories.forget(100)
    memories.notice([Node(i, i) for i in range(4)])
    nodes = [Node(i, i) for i in range(8)]
    memories.notice(nodes)
    uplinks = [Uplink({"increment": np.ones(100)}, 1.0, 1, 0.1, node, 10.0) for node in nodes]
    memories.commit(1, uplinks, lambda memory, uplink, begins: {"own": memory["own"]})
    assert not memories.ledger


# --- methods that need every client -----------------------------------------------------------------------------------


@together("name", ["DualFL", "FedNewton"])
def test_by_default_a_bad_client_is_left_out_and_the_run_goes_on(name):
    options = {"nu": 0.5, "smoothness": 1.0} if name == "DualFL" else {}
    strategy = make(name, **options)

    def lie(number, vectors):
        return {name: np.nan * value for name, value in vectors.items()}

    result = run(strategy, OBJECTIVES, 120, mods=[saying(lie)], grid=Lenient)
    history = result.train_metrics_clientapp
    assert [number for number in history if history[number]["skipped"]] == [1, 2, 3]
    assert history[max(history)]["num-replies"] == CLIENTS - 1
    assert np.abs(flat(result.arrays) - solution(strategy, REST)).max() <= 1e-3


def test_the_run_goes_on_while_min_replies_are_there():
    strategy = make("FedNewton", participation=Everyone(min_replies=CLIENTS))
    with pytest.raises(
        ConfigurationError, match=rf"partition {LIAR} was given up, and 9 clients are left.*min_replies=10"
    ):
        run(strategy, OBJECTIVES, 20, mods=[saying(lambda number, vectors: None)], grid=Lenient)
    strategy = make("FedNewton", participation=Everyone(on_missing="error"))
    with pytest.raises(ConfigurationError, match="3 rounds in a row"):
        run(strategy, OBJECTIVES, 20, mods=[saying(lambda number, vectors: None)], grid=Lenient)
