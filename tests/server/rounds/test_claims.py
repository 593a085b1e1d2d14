"""Of several processes that go on from a saved run, one has it: no round is done, or released, by two."""

import errno
import functools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from problems import app_of, clients, flat, start_arrays

from flwr_fco.callbacks import Callback, Checkpoint
from flwr_fco.core.files import read_npz
from flwr_fco.errors import ConfigurationError, TakenOverError
from flwr_fco.privacy import GaussianDP
from flwr_fco.server.replies.private import PrivateMean
from flwr_fco.server.rounds import saving as claims
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg, Steps, run_of

ROUNDS = 8


def make(private=False):
    options = {"client_lr": 0.05, "work": Steps(2, batch_size=4), "fraction_evaluate": 0.0}
    if private:
        options |= {"privacy": GaussianDP(clip=1.0, delta=0.05, noise_multiplier=1.0, rounds=ROUNDS)}
        options |= {"weighting": "uniform", "server_lr": 1.0, "normalize_local_work": False}
    return FedDualAvg(**options)


def play(strategy, rounds=ROUNDS, **options):
    return strategy.start(InProcessGrid(app_of(clients()), 4), start_arrays(), rounds, **options)


class Shown(Callback):
    """What somebody beside the server sees of a run: a model by round."""

    def __init__(self, at=0, act=None):
        self.at, self.act, self.models = at, act, {}

    def on_round_begin(self, server_round, arrays):
        if server_round == self.at and self.act is not None:
            act, self.act = self.act, None
            act()

    def on_round_end(self, server_round, arrays, metrics):
        self.models[server_round] = flat(arrays)

    def on_run_end(self, result):
        self.models["end"] = flat(result.arrays)


class Killed(BaseException):
    pass


def killed(path, at=4, private=False):
    """Leave the file of a run that was killed after a round."""

    def kill():
        raise Killed

    with pytest.raises(Killed):
        play(make(private), callbacks=[Checkpoint(path, every=1), Shown(at + 1, kill)])
    return path


def done(path):
    return int(read_npz(path)["part/privacy/round"])


@pytest.mark.parametrize("private", [False, True])
def test_of_two_that_go_on_from_a_file_the_second_has_it(tmp_path, private):
    path = killed(tmp_path / "run.npz", private=private)
    second = Shown()

    def resume():
        play(make(private), resume=path, callbacks=[Checkpoint(path, 1), second])

    first = Shown(6, resume)
    with pytest.raises(TakenOverError, match=r"run\.npz is another run's now"):
        play(make(private), resume=path, callbacks=[Checkpoint(path, 1), first])
    assert set(first.models) == {5, "end"}
    assert set(second.models) == {6, 7, 8, "end"}
    # What the first one ends with is what it had shown before, and the file is the second one's.
    np.testing.assert_array_equal(first.models["end"], first.models[5])
    last = make(private)
    run_of(last).prepare(start_arrays())
    run_of(last).load(path)
    np.testing.assert_array_equal(flat(run_of(last).primal_arrays()), second.models["end"])


def test_a_private_round_is_not_released_by_who_loses_the_file_in_the_middle_of_it(tmp_path, monkeypatch):
    path = killed(tmp_path / "run.npz", private=True)
    release, second = PrivateMean.release, Shown()

    def released(own, uplinks):
        mean = release(own, uplinks)
        if own.round == 6:
            monkeypatch.setattr(PrivateMean, "release", release)
            play(make(True), resume=path, callbacks=[second])
        return mean

    monkeypatch.setattr(PrivateMean, "release", released)
    first, scored = Shown(), []
    strategy = make(True)
    with pytest.raises(TakenOverError):
        play(strategy, resume=path, callbacks=[first], evaluate_fn=lambda number, arrays: scored.append(number))
    assert scored == [5]
    assert set(first.models) == {5, "end"}
    np.testing.assert_array_equal(first.models["end"], first.models[5])
    assert max(run_of(strategy).result.train_metrics_clientapp) == 5
    # Round 5 was released and saved, and is shown again; round 6 is the second one's alone.
    np.testing.assert_array_equal(first.models[5], second.models[5])
    assert set(second.models) == {5, 6, 7, 8, "end"}


@pytest.mark.parametrize("beside", [None, "same", "other"])
def test_a_private_run_cannot_be_resumed_twice_from_the_same_round(tmp_path, beside):
    """Whether it saves itself there, elsewhere or not at all."""
    path = killed(tmp_path / "run.npz", private=True)
    shown = {}
    for number in range(3):
        places = {None: [], "same": [path], "other": [tmp_path / f"other-{number}.npz"]}[beside]
        seen = Shown()
        play(make(True), resume=path, callbacks=[*map(Checkpoint, places), seen])
        assert done(path) == ROUNDS
        for each, model in seen.models.items():
            # A round may be shown again, as it was; with other noise it would have been released again.
            np.testing.assert_array_equal(shown.setdefault(each, model), model)
    assert set(shown) == {5, 6, 7, 8, "end"}


def test_two_that_have_read_the_file_at_once_do_not_both_go_on(tmp_path, monkeypatch):
    path = killed(tmp_path / "run.npz", private=True)
    take, second = claims.Claims.take_wanted, Shown()

    def taken(own):
        monkeypatch.setattr(claims.Claims, "take_wanted", take)
        play(make(True), resume=path, callbacks=[second])
        take(own)

    monkeypatch.setattr(claims.Claims, "take_wanted", taken)
    first = Shown()
    with pytest.raises(TakenOverError):
        play(make(True), resume=path, callbacks=[first])
    assert not {5, 6, 7, 8} & set(first.models)
    assert {5, 6, 7, 8} < set(second.models)


def test_a_private_run_whose_file_cannot_be_written_is_not_resumed(tmp_path, monkeypatch):
    path = killed(tmp_path / "run.npz", private=True)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    shown = Shown()
    with pytest.raises(ConfigurationError, match=r"run\.npz cannot be written"):
        play(make(True), resume=path, callbacks=[shown])
    assert set(shown.models) == {"end"}


def test_a_private_round_that_cannot_be_recorded_is_not_shown(tmp_path, monkeypatch):
    path = killed(tmp_path / "run.npz", private=True)

    def fill():
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    shown = Shown(6, fill)
    with pytest.raises(OSError, match="No space left"):
        play(make(True), resume=path, callbacks=[shown])
    assert set(shown.models) == {5, "end"}
    np.testing.assert_array_equal(shown.models["end"], shown.models[5])


@pytest.mark.parametrize("private", [False, True])
def test_a_run_whose_file_was_damaged_meanwhile_ends(tmp_path, private):
    path = tmp_path / "run.npz"
    shown = Shown(4, lambda: path.write_bytes(b"something else"))
    with pytest.raises(TakenOverError, match=r"run\.npz holds no saved run any more"):
        play(make(private), callbacks=[Checkpoint(path, 1), shown])
    assert path.read_bytes() == b"something else"
    assert 4 not in shown.models


def test_a_file_that_cannot_be_opened_now_is_nobody_elses(tmp_path, monkeypatch):
    """The run ended, because another one was said to have been resumed from the file."""
    path, opened = tmp_path / "run.npz", os.open

    def exhausted(name, *options, **more):
        if os.fspath(name) == str(path):
            raise OSError(24, "Too many open files", name)
        return opened(name, *options, **more)

    shown = Shown(4, lambda: monkeypatch.setattr(os, "open", exhausted))
    later = Shown(6, lambda: monkeypatch.setattr(os, "open", opened))
    checkpoint = Checkpoint(path, 1)
    play(make(), callbacks=[checkpoint, shown, later])
    assert checkpoint.saved_round == ROUNDS


def test_a_file_that_is_out_of_reach_ends_the_run_in_words(tmp_path, monkeypatch):
    """As on a network file system that was mounted anew: neither the file nor what it was is seen."""
    path, ways = tmp_path / "run.npz", {"open": os.open, "stat": os.stat}

    def out_of_reach():
        def stale(name, *options, way, **more):
            if os.fspath(name) == str(path):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
            return ways[way](name, *options, **more)

        for way in ways:
            monkeypatch.setattr(os, way, functools.partial(stale, way=way))

    told = r"run\.npz cannot be read: Stale file handle\. .* make the file and its folder readable"
    with pytest.raises(ConfigurationError, match=told):
        play(make(), callbacks=[Checkpoint(path, 1), Shown(4, out_of_reach)])
    with pytest.raises(ConfigurationError, match=told):
        play(make(), resume=path)


def test_a_file_that_was_removed_is_written_again(tmp_path):
    path = tmp_path / "run.npz"
    play(make(), callbacks=[Checkpoint(path, 1), Shown(4, path.unlink)])
    assert path.exists()


def test_another_run_begun_beside_the_same_file_ends_one_of_them(tmp_path):
    path = tmp_path / "run.npz"
    first = Shown(4, lambda: play(make(), callbacks=[Checkpoint(path, 1)]))
    with pytest.raises(TakenOverError):
        play(make(), callbacks=[Checkpoint(path, 1), first])
    assert set(first.models) == {1, 2, 3, "end"}


def test_a_branch_that_saves_elsewhere_leaves_the_run_alone(tmp_path):
    path = tmp_path / "run.npz"
    branch = Shown()
    first = Shown(4, lambda: play(make(), resume=path, callbacks=[Checkpoint(tmp_path / "b.npz", 1), branch]))
    play(make(), callbacks=[Checkpoint(path, 1), first])
    assert {4, 8} < set(first.models) & set(branch.models)


def test_rounds_by_hand_move_the_file_on(tmp_path):
    path = killed(tmp_path / "run.npz", private=True)
    strategies = [make(True), make(True)]
    grid = InProcessGrid(app_of(clients()), 4)
    outcomes = []
    for strategy in strategies:
        run_of(strategy).prepare(start_arrays())
        run_of(strategy).load(path)
    for strategy in strategies:
        messages = list(strategy.configure_train(5, run_of(strategy).primal_arrays(), {}, grid))
        replies = list(grid.send_and_receive(messages))
        try:
            strategy.aggregate_train(5, replies)
            outcomes.append("released")
        except TakenOverError:
            outcomes.append("taken over")
    assert outcomes == ["released", "taken over"]
    assert done(path) == 5


def test_a_copy_of_the_file_knows_nothing_of_it(tmp_path):
    """What docs/tutorials/privacy.md says plainly: nothing in a file tells of its copies."""
    path = killed(tmp_path / "run.npz", private=True)
    shutil.copy(path, tmp_path / "copy.npz")
    for place in (path, tmp_path / "copy.npz"):
        shown = Shown()
        play(make(True), resume=place, callbacks=[shown])
        assert {5, 6, 7, 8} < set(shown.models)


WRITER = """
import sys
import time
sys.path[:0] = ["tests", "."]
from flwr_fco.errors import TakenOverError
from flwr_fco.strategies import run_of
from problems import start_arrays
from server.rounds.test_claims import make
strategy = make()
run_of(strategy).prepare(start_arrays())
print("ready", flush=True)
input()
ended = 0
for _ in range(150):
    try:
        run_of(strategy).save(sys.argv[1])
    except TakenOverError:
        ended += 1
        run_of(strategy).prepare(start_arrays())
    # Who asks for the lock again at once may have it all the time.
    time.sleep(0.01)
print(ended)
"""


def test_readers_beside_two_that_write_never_see_half_a_file(tmp_path):
    path = tmp_path / "run.npz"
    run_of(strategy := make()).prepare(start_arrays())
    run_of(strategy).save(path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], **pipes) for _ in range(2)]
    # Both have imported everything before either begins: a fast machine writes all in less time than the imports take.
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    reads = 0
    while any(writer.poll() is None for writer in writers):
        assert "owner" in read_npz(path)
        reads += 1
    ended = [int(writer.communicate()[0]) for writer in writers]
    assert reads > 20
    assert sum(ended) > 0
    assert list(tmp_path.iterdir()) == [path]


def test_who_holds_the_folder_is_waited_for_and_not_for_ever(tmp_path, monkeypatch):
    own = claims.Claims()
    monkeypatch.setattr(claims, "_PATIENCE", 0.2)
    with ThreadPoolExecutor(1) as pool, claims._alone_in(tmp_path):
        waiting = pool.submit(own.write, tmp_path / "a.npz", lambda token: None)
        assert "another process has been writing there" in str(waiting.exception())
