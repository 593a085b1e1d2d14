"""A result is short to print and a table of all rounds; a model outside Flower and back loses nothing."""

import math
import sys

import numpy as np
import pandas
import pytest
from flwr.app import MetricRecord
from problems import arrays_of, clients, refused, run
from scipy.sparse import csr_array

from flwr_fco.models import load_npz, save_npz, to_sparse
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg


@pytest.fixture(scope="module")
def result():
    scores = {"evaluate_fn": lambda n, arrays: None if n % 10 else MetricRecord({"score": float(n)})}
    strategy = FedDualAvg(regularizer=L1(0.3), client_lr=0.05)
    return run(strategy, clients(), 200, fraction_evaluate=1.0, **scores)


def test_two_hundred_rounds_print_a_few_lines_with_the_last_round(result, capsys):
    print(result)
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 8
    assert max(map(len, text.splitlines())) < 400
    nonzero = np.count_nonzero(result.arrays["coefficients"].numpy())
    density = f"density {result.train_metrics_clientapp[200]['density']:.6g}"
    for said in ("after round 200", density, "score 200", f"coefficients float64[6], {nonzero} not zero"):
        assert said in text


def test_the_table_has_every_number_of_every_round(result):
    table = result.table()
    assert type(table) is pandas.DataFrame
    assert list(table["round"]) == list(range(201))
    histories = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
    for name, history in {**histories, "server": result.evaluate_metrics_serverapp}.items():
        for number, metrics in history.items():
            for key, value in metrics.items():
                assert table[f"{name}/{key}"][number] == value
    assert math.isnan(table["server/score"][7])


def test_without_pandas_the_error_names_the_command(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused("pip install pandas", result.table)
    assert len(result.rows()) == 201


# --- models -----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
MODEL = {
    "dense": RNG.standard_normal((7, 5)),
    "tensor/with.a:name": np.where(RNG.random((8, 4, 9)) < 0.03, 1.5, 0.0).astype(np.float32),
    "vector": np.eye(1, 500, 7)[0],
    "scalar": np.array(2.5),
    "file": np.zeros(0),
    "counter": np.array([3], dtype=np.int64),
    "half": RNG.standard_normal(3).astype(np.float16),
}


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("model", [MODEL, arrays_of(MODEL), dict(arrays_of(MODEL).items())], ids=["a", "b", "c"])
def test_a_file_gives_the_same_model_back_and_is_plain_numpys(tmp_path, model):
    path = tmp_path / "model.npz"
    save_npz(model, path)
    same(load_npz(path), MODEL)
    assert list(tmp_path.iterdir()) == [path]
    with np.load(path) as file:
        same(dict(file), MODEL)


def test_arrays_are_sparse_matrices_of_scipys():
    model = {name: MODEL[name] for name in ("dense", "tensor/with.a:name", "vector", "scalar", "counter")}
    for name, matrix in to_sparse(model).items():
        assert isinstance(matrix, csr_array)
        assert matrix.nnz == np.count_nonzero(model[name])
        np.testing.assert_array_equal(matrix.toarray().reshape(model[name].shape), model[name])


@pytest.mark.parametrize("wrong", [3, {"w": ["a", "b"]}, {"w": [1.0, None]}, {"w": object()}, {"w": "text"}], ids=str)
def test_what_is_no_model_of_numbers_is_refused(wrong, tmp_path):
    said = "expected a Result|the array 'w' has dtype"
    refused(said, save_npz, wrong, tmp_path / "model.npz")
    refused(said, to_sparse, wrong)
    assert not (tmp_path / "model.npz").exists()


def test_a_damaged_file_and_one_of_another_format_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    save_npz(MODEL, path)
    whole = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    for content in (whole[: len(whole) // 2], b"", b"text", (tmp_path / "array.npy").read_bytes()):
        path.write_bytes(content)
        refused(r"is no \.npz file", load_npz, path)
    refused("missing", load_npz, tmp_path / "missing.npz", kind=FileNotFoundError)
