"""Files that somebody else has made: refused in words before they cost memory, or read as what they are."""

import io
import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzz.budget import damaged, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from problems import app_of, clients, refused, started

from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.files import read_json, read_npz, read_text, write_file
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import load_npz, save_npz
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg

#: More than any of these files is worth.
MEMORY = 48 * 2**20


def header(shape, dtype="<f8"):
    """Return the first bytes of an ``.npy`` file that claims this."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text = text.ljust(-(len(text) + 11) % 64 + len(text)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(path, contents, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for content in contents:
            file.writestr("dense/w.npy", content)


def plain(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


#: What is wrong with the file of one array, `dense/w`.
BAD = {
    "objects": [plain(np.array([{"a": 1}], dtype=object))],
    "a shape that is not there": [header((25_000, 25_000))],
    "more than there is": [header((4,)) + bytes(24)],
    "negative sizes": [header((-2, -1)) + bytes(16)],
    "texts of no length": [header((10**12,), "<U0")],
    "a header without end": [b"\x93NUMPY\x02\x00\xff\xff\xff\xff"],
    "a header that is code": [header("__import__('os').abort()")],
    "numbers that are no letters": [header((1,), "<U1") + (0x7FFFFFFF).to_bytes(4, "little")],
    "two of a name": [plain(np.zeros(2)), plain(np.zeros(3))],
}


def error_of(act):
    """Return the error of a function in words; its memory is small."""
    tracemalloc.start()
    with pytest.raises(ConfigurationError) as caught:
        act()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEMORY, peak
    return str(caught.value)


def run(rounds, **options):
    grid = InProcessGrid(app_of(clients()), 4)
    return started(FedDualAvg(client_lr=0.1, fraction_evaluate=0.0), grid, rounds, **options)


READERS = {"load_npz": load_npz, "checkpoint": lambda path: run(2, resume=path), "read_npz": read_npz}
ANY_FILE = {**READERS, "read_json": read_json, "read_text": read_text}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("prefix", BAD)
def test_an_archive_that_claims_what_it_has_not_is_refused_by_every_reader(tmp_path, prefix, reader):
    path = tmp_path / "a.npz"
    archive(path, BAD[prefix])
    assert str(path) in error_of(lambda: READERS[reader](path))


@pytest.mark.parametrize("reader", ANY_FILE)
def test_the_name_of_a_file_forges_no_line_and_is_printed_everywhere(tmp_path, reader):
    """A name may hold line ends, what a terminal obeys, and bytes that are no UTF-8."""
    path = tmp_path / "x\n\x1b[2JINFO: all is well\udc80.npz"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"x\\n\\x1b\[2JINFO: all is well\\udc80") as caught:
        ANY_FILE[reader](path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, reader):
    path = tmp_path / "bomb.npz"
    archive(path, [header((60 * 2**20,), "|u1") + bytes(60 * 2**20)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**21
    assert str(path) in error_of(lambda: READERS[reader](path))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model and a checkpoint, what reads each, and what may be read of it."""
    model, checkpoint = (tmp_path_factory.mktemp("saved") / name for name in ("m.npz", "run.npz"))
    save_npz({"dense": np.arange(6.0), "sparse": np.eye(1, 90, 7)[0]}, model)
    run(1, callbacks=[Checkpoint(checkpoint)])
    expected = run(2, resume=checkpoint).arrays
    return {
        "model": (model, load_npz, lambda found: all(array.nbytes < 10**6 for array in found.values())),
        "checkpoint": (checkpoint, READERS["checkpoint"], lambda found: found.arrays == expected),
    }


@pytest.mark.parametrize("kind", ["model", "checkpoint"])
@fuzzed(0.08)
@given(data=st.data())
def test_damaged_files_are_refused_or_harmless(kind, saved, tmp_path_factory, data):
    good, read, is_harmless = saved[kind]
    path = tmp_path_factory.mktemp("fuzz") / good.name
    path.write_bytes(data.draw(damaged(good.read_bytes())))
    try:
        found = read(path)
    except ConfigurationError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert is_harmless(found)


@pytest.mark.parametrize("reader", [read_npz, read_json, read_text, load_npz])
def test_what_is_no_file_is_not_waited_for(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder", Path("/dev/zero")):
        refused(str(path), reader, path, kind=(ConfigurationError, FileNotFoundError))
    refused("nothing", reader, tmp_path / "nothing", kind=FileNotFoundError)


@pytest.mark.parametrize("content", [b"", b"null", b"NaN", b"[" * 10**6, b"\xff\xfe{}", b"{} x"], ids=range(6))
def test_a_file_that_holds_no_object_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    refused(r"a\.json is damaged: it is no (file of JSON|text)", read_json, path)


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    write_file(tmp_path / "ours", "new")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "ours").read_text() == "new"
    assert not (tmp_path / "ours").is_symlink()


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_file(path, "old")

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    refused("No space", write_file, path, fail, kind=OSError)
    assert (path.read_text(), [*tmp_path.iterdir()]) == ("old", [path])


def test_permissions_stay_and_secrets_are_the_owners(tmp_path):
    path = tmp_path / "a"
    write_file(path, "x")
    path.chmod(0o640)
    write_file(path, "y")
    assert path.stat().st_mode & 0o777 == 0o640
    write_file(path, lambda file: os.fstat(file.fileno()).st_mode & 0o077 and pytest.fail("readable"), secret=True)
    assert path.stat().st_mode & 0o777 == 0o600
