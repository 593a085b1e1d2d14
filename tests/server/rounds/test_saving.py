"""Saved states: whole after a power cut, and refused where damaged."""

import os
import re
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from faulty import Faulty, start_on
from problems import app_of, clients, start_arrays
from together import together

from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.rounds import saving
from flwr_fco.strategies import Arrays, Bounds, FedDAGT, Participation, Scaffold, Steps, Wire, run_of
from flwr_fco.wire.protocol import Node


def test_a_damaged_file_is_a_clear_error_and_changes_nothing(tmp_path):
    chosen = FedDAGT(client_lr=0.02, work=Steps(2), fraction_evaluate=0.0, client_state="ledger")
    path, other = tmp_path / "state.npz", tmp_path / "other.npz"
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen)
    chosen.memories.member(Node(2**64 - 1, None)).examples = 3.0
    run_of(chosen).save(path)
    fresh = FedDAGT(client_lr=0.02, work=Steps(2), fraction_evaluate=0.0, client_state="ledger")
    run_of(fresh).prepare(start_arrays())
    data, before = path.read_bytes(), fresh.state
    rng = np.random.default_rng(0)
    for place in [*rng.integers(0, len(data), 150), *range(8)]:
        other.write_bytes(data[:place] + bytes([data[place] ^ (1 << rng.integers(8))]) + data[place + 1 :])
        try:
            run_of(fresh).load(other)
        except ConfigurationError:
            assert fresh.state is before
        else:  # a bit of the archive that nothing depends on
            np.testing.assert_array_equal(fresh.state.dual, chosen.state.dual)
            run_of(fresh).prepare(start_arrays())
            before = fresh.state
    # A good archive with other contents: what zip files check by themselves is not enough.
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez(other, **{**arrays, "state/dual": arrays["state/dual"] + 1.0})
    with pytest.raises(ConfigurationError, match="do not match its checksum"):
        run_of(fresh).load(other)
    assert fresh.state is before
    run_of(fresh).load(path)
    assert fresh.memories.members[(1, 2**64 - 1)].examples == 3.0
    assert fresh.memories.members[(0, 1)].digest == chosen.memories.members[(0, 1)].digest != ""
    assert run_of(fresh).mail.bounds.largest == run_of(chosen).mail.bounds.largest


@pytest.mark.parametrize("value", ["x", 3, [1, 2, 3], [1.0, 2.0], [-1, 2]])
def test_what_is_counted_of_round_0_is_two_counts(tmp_path, value):
    """They come to the metrics of the first round that counts, long after the file was read."""
    path, chosen = tmp_path / "state.npz", FedDAGT(client_lr=0.02, work=Steps(2), fraction_evaluate=0.0)
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen, 1)
    run_of(chosen).save(path)
    with np.load(path) as saved:
        arrays = dict(saved)
    arrays["part/first gradients/bytes"] = np.array(value)
    del arrays["checksum"]
    np.savez(path, **arrays, checksum=np.array(saving._checksum(arrays)))
    with pytest.raises(ConfigurationError, match="its bytes"):
        run_of(chosen).load(path)


@pytest.fixture
def disk(monkeypatch):
    """What is asked of the disk, in order: each fsync with what had been written by then, each renaming."""
    calls, fsync, replace = [], os.fsync, os.replace

    def recorded_fsync(handle):
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            calls.append(("fsync", "folder", about.st_ino))
        else:
            calls.append(("fsync", "file", about.st_ino, about.st_size))
        fsync(handle)

    def recorded_replace(source, target):
        # A name that nobody can know before.
        name = re.sub(r"\.[0-9a-f]{16}\.", ".RANDOM.", Path(source).name)
        calls.append(("replace", name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    return calls


def saved_to(path, rounds=1):
    chosen = FedDAGT(client_lr=0.02, work=Steps(2), fraction_evaluate=0.0)
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen, rounds=rounds)
    run_of(chosen).save(path)
    return chosen


def test_a_save_survives_a_power_cut_at_any_moment(tmp_path, disk):
    path = tmp_path / "state.npz"
    saved_to(path)
    # All bytes before the file has its name, or the name might be that of an empty file; then the name itself.
    assert disk == [
        ("fsync", "file", path.stat().st_ino, path.stat().st_size),
        ("replace", ".state.npz.RANDOM.partial", "state.npz"),
        ("fsync", "folder", tmp_path.stat().st_ino),
    ]


def test_where_the_disk_refuses_the_last_save_stays(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    chosen = saved_to(path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved_to(path, rounds=3)
    fresh = FedDAGT(client_lr=0.02, work=Steps(2), fraction_evaluate=0.0)
    run_of(fresh).prepare(start_arrays())
    run_of(fresh).load(path)
    np.testing.assert_array_equal(fresh.state.dual, chosen.state.dual)
    assert fresh.state.round == chosen.state.round == 1


# --- what a file must say --------------------------------------------------------------------------------------------

OPTIONS = {"client_lr": 0.02, "work": Steps(2), "fraction_evaluate": 0.0}


def tampered(path, other, **changes):
    """Write a file with other arrays, or without those that are None, and a checksum that fits."""
    with np.load(path) as saved:
        arrays = {name: saved[name] for name in saved.files if name != "checksum"}
    for name, value in changes.items():
        key = name.replace("__", "/")
        if value is None:
            del arrays[key]
        else:
            arrays[key] = value(arrays[key]) if callable(value) else value
    np.savez(other, **arrays, checksum=np.array(saving._checksum(arrays)))


TAMPERED = {
    "NaN in the state": {"state__dual": lambda a: a * np.nan},
    "text in the state": {"state__dual": lambda a: a.astype("U32")},
    "complex numbers": {"state__dual": lambda a: a.astype(complex)},
    "a short array": {"state__dual": lambda a: a[:-1]},
    "a negative round": {"state__round": lambda a: a - 5},
    "NaN for a number": {"state__elapsed": lambda a: a * np.nan},
    "no array": {"state__control": None},
    "memories of another width": {"part/memories/memory-own": lambda a: a[:, :-1]},
    "NaN in a memory": {"part/memories/memory-own": lambda a: a * np.nan},
    "fewer members than weights": {"part/memories/members": lambda a: a[:-1]},
    "a negative weight": {"part/memories/examples": lambda a: -a},
    "text for a count": {"part/memories/accepted": lambda a: a.astype("U8")},
    "an infinite bound": {"part/bounds/largest-number of examples": lambda a: a * np.inf},
    "a part that is not there": {"part/velocity/velocity": np.zeros(3)},
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_file_of_other_arrays_is_refused_whatever_its_checksum(tmp_path, name):
    path, other = tmp_path / "state.npz", tmp_path / "other.npz"
    chosen = FedDAGT(**OPTIONS)
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen)
    run_of(chosen).save(path)
    state, members = chosen.state, dict(chosen.memories.members)
    tampered(path, other, **TAMPERED[name])
    with pytest.raises(ConfigurationError, match="state of this strategy"):
        run_of(chosen).load(other)
    assert chosen.state is state
    assert {key: m.examples for key, m in chosen.memories.members.items()} == {
        k: m.examples for k, m in members.items()
    }


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Scaffold(**OPTIONS), "strategy was"),
        (FedDAGT(**{**OPTIONS, "client_lr": 0.03}), "client_lr was 0.02, is 0.03"),
        (FedDAGT(**OPTIONS, server_lr=0.5), r"server_lr was 1\.0, is 0\.5"),
        (FedDAGT(**OPTIONS, weighting="uniform"), "weighting was 'examples', is 'uniform'"),
    ],
)
def test_another_strategy_or_option_is_refused_by_name(tmp_path, other, named):
    saved_to(tmp_path / "state.npz")
    run_of(other).prepare(start_arrays())
    with pytest.raises(ConfigurationError, match=named):
        run_of(other).load(tmp_path / "state.npz")


def test_options_that_may_change_may(tmp_path):
    chosen = saved_to(tmp_path / "state.npz")
    other = FedDAGT(
        **OPTIONS, bounds=Bounds(max_ratio=50.0), on_divergence="warn", participation=Participation(node_timeout=3.0)
    )
    run_of(other).prepare(start_arrays())
    run_of(other).load(tmp_path / "state.npz")
    np.testing.assert_array_equal(other.state.dual, chosen.state.dual)


@together(
    "options",
    [
        {"participation": Participation(choose_nodes=lambda number, nodes: nodes)},
        {"wire": Wire("float32")},
        {"wire": Wire(sparse=False)},
        {"arrays": Arrays(apply_to="*")},
        {"arrays": Arrays(scope="joint")},
        {"work": Steps(3)},
        {"client_state": "reset"},
    ],
)
def test_options_that_change_what_is_computed_may_not_change(options):
    with TemporaryDirectory() as folder:
        saved_to(Path(folder) / "state.npz")
        other = FedDAGT(**OPTIONS | options)
        run_of(other).prepare(start_arrays())
        with pytest.raises(ConfigurationError, match=r"other (settings|options)|was saved with"):
            run_of(other).load(Path(folder) / "state.npz")


def test_a_small_file_does_not_take_much_memory(tmp_path):
    """1.5 GB of zeros compress to 1.5 MB."""
    path = tmp_path / "bomb.npz"
    saved_to(path)
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez_compressed(path, **{**arrays, "state/dual": np.zeros(10**6)})
    with pytest.raises(ConfigurationError, match=r"bytes than the file has|compressed"):
        fresh_load(path)


def fresh_load(path):
    fresh = FedDAGT(**OPTIONS)
    run_of(fresh).prepare(start_arrays())
    run_of(fresh).load(path)


@pytest.mark.parametrize("ended", ["[" * 100_000, "null", "[1, 2]", "text", '{"a": 1}', '["x", true, {}]'])
def test_callbacks_states_that_are_none_are_refused_in_words(tmp_path, ended):
    path, other = tmp_path / "run.npz", tmp_path / "other.npz"
    options = {"rounds": 2, "callbacks": [Checkpoint(path, every=1)]}
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), FedDAGT(**OPTIONS), **options)
    tampered(path, other, **{"part/run/hooks/ended": np.array(ended)})
    with pytest.raises(ConfigurationError, match="callbacks"):
        start_on(Faulty(app_of(clients()), 4, None, rounds=()), FedDAGT(**OPTIONS), rounds=3, resume=other)
