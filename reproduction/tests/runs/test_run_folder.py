import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.runs.run_folder import RunFolder, read_run, write_csv


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run", {"seed": 3, "problem": "digits"})
    folder.add({"round": 0, "objective": 0.1 + 0.2})
    folder.add({"round": 1, "objective": 1e-300})
    folder.save_model({"coefficients": np.array([[0.0, -1.5]], dtype=np.float32)})
    run = read_run(tmp_path / "deep" / "run")
    assert run.config == {"seed": 3, "problem": "digits"}
    assert run.metrics == [{"round": 0, "objective": 0.1 + 0.2}, {"round": 1, "objective": 1e-300}]
    assert run.arrays["coefficients"].dtype == np.float32
    np.testing.assert_array_equal(run.arrays["coefficients"], [[0.0, -1.5]])


def test_a_line_is_on_disk_at_once(tmp_path):
    RunFolder(tmp_path / "run", {}).add({"round": 0})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"round": 0}\n'


def test_a_run_is_not_written_over(tmp_path):
    RunFolder(tmp_path, {})
    with pytest.raises(ConfigurationError, match="holds a run already"):
        RunFolder(tmp_path, {})


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot make the run folder"):
        RunFolder(tmp_path / "file" / "run", {})


def test_a_run_that_did_not_finish_is_refused(tmp_path):
    folder = RunFolder(tmp_path, {})
    folder.add({"round": 0})
    with pytest.raises(ConfigurationError, match=r"no model\.npz"):
        read_run(tmp_path)


class Row:
    """A row of a strategy's table of what was left out."""

    def __init__(self, *values):
        self.round, self.node_id, self.partition_id, self.reason, self.kind = values


def finished(path):
    folder = RunFolder(path, {"seed": 3})
    folder.add({"round": 0, "objective": 0.5})
    folder.save_model({"w": np.zeros(3)})
    return folder


def test_what_was_left_out_is_read_back_as_it_was_written(tmp_path):
    rows = [Row(2, 17, None, 'said "x",\nthen nothing', "train"), Row(3, 2**63, 4, "NaN", "evaluate")]
    finished(tmp_path).save_left_out(rows)
    header = (tmp_path / "left-out.csv").read_text().splitlines()[0]
    assert header == "round,node_id,partition_id,reason,kind"
    first, second = read_run(tmp_path).left_out
    assert first == {
        "round": "2",
        "node_id": "17",
        "partition_id": "",
        "reason": 'said "x",\nthen nothing',
        "kind": "train",
    }
    assert second["node_id"] == str(2**63)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_what_a_client_says_is_no_formula(tmp_path, text):
    """In a spreadsheet; a table that is read and written again is the same."""
    finished(tmp_path).save_left_out([Row(2, 17, None, text, "train")])
    (row,) = read_run(tmp_path).left_out
    assert row["reason"] == f"'{text}"
    write_csv([row], tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "left-out.csv").read_text()


def test_where_everything_counted_there_is_no_table(tmp_path):
    finished(tmp_path).save_left_out([])
    assert not (tmp_path / "left-out.csv").exists()
    assert list(read_run(tmp_path).left_out) == []


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("config.json", b"{", "Expecting property name"),
        ("config.json", b"[1]", "it holds a list, expected an object"),
        ("config.json", b"\xff\xfe", "can't decode byte"),
        ("config.json", b"[" * 100_000, "nested too deeply"),
        ("metrics.jsonl", b'{"round": 0}\nnot a line\n', "line 2: Expecting value"),
        ("metrics.jsonl", b'{"objective": 0}\n', "line 1: it has no 'round'"),
        ("metrics.jsonl", b'{"round": 0, "f1": "high"}\n', "line 1: f1 is 'high', expected a number"),
        ("metrics.jsonl", b'{"round": 0, "f1": [1]}\n', r"line 1: f1 is \[1\]"),
        ("metrics.jsonl", b'{"round": true}\n', "line 1: round is True"),
        ("metrics.jsonl", b'{"round": 1' + b"0" * 400 + b"}\n", "line 1: int too large"),
        ("model.npz", b"", r"it is no \.npz file"),
        ("model.npz", b"PK\x03\x04junk", r"it is no \.npz file"),
        ("model.npz", b"\x93NUMPY\x01\x00", r"it is no \.npz file"),
        ("left-out.csv", b"round,node\n1,2\n", "expected the columns round, node_id"),
        ("left-out.csv", b"round,node_id,partition_id,reason,kind\n1,2\n", "in every line"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, name, data, reason):
    finished(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=rf"{name} is damaged: .*{reason}"):
        read_run(tmp_path)


def test_every_bit_of_a_model_is_checked_or_unused(tmp_path):
    """A flipped bit is an error that names the file, or changes nothing: zip files carry a checksum."""
    finished(tmp_path)
    file = tmp_path / "model.npz"
    good = file.read_bytes()
    for place in range(0, len(good), 3):
        file.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        said = ""
        try:
            arrays = read_run(tmp_path).arrays
        except ConfigurationError as error:
            said = str(error)
        assert "model.npz is damaged" in said or all(np.array_equal(array, np.zeros(3)) for array in arrays.values())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    folder = finished(tmp_path)
    (tmp_path / "left-out.csv").mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot write .*left-out\.csv: Is a directory"):
        folder.save_left_out([Row(1, 2, 3, "NaN", "train")])
