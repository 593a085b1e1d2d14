"""A model outside Flower and back: nothing of it is lost."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from scipy.sparse import csr_array

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import load_npz, save_npz, to_sparse

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


@pytest.mark.parametrize("kind", [dict, lambda record: record, lambda record: dict(record.items())])
def test_a_file_gives_the_same_model_back_and_is_plain_numpys(tmp_path, kind):
    path = tmp_path / "model.npz"
    record = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    save_npz(MODEL if kind is dict else kind(record), path)
    same(load_npz(path), MODEL)
    assert list(tmp_path.iterdir()) == [path]
    with np.load(path) as file:
        same({name: file[name] for name in file}, MODEL)


def test_arrays_are_sparse_matrices_of_scipys():
    model = {name: MODEL[name] for name in ("dense", "tensor/with.a:name", "vector", "scalar", "counter")}
    for name, matrix in to_sparse(model).items():
        assert isinstance(matrix, csr_array)
        assert matrix.nnz == np.count_nonzero(model[name])
        np.testing.assert_array_equal(matrix.toarray().reshape(model[name].shape), model[name])


@pytest.mark.parametrize("wrong", [3, {"w": ["a", "b"]}, {"w": [1.0, None]}, {"w": object()}, {"w": "text"}], ids=str)
def test_what_is_no_model_of_numbers_is_refused(wrong, tmp_path):
    for use in (lambda: save_npz(wrong, tmp_path / "model.npz"), lambda: to_sparse(wrong)):
        with pytest.raises(ConfigurationError, match=r"expected a Result|the array 'w' has dtype"):
            use()
    assert not (tmp_path / "model.npz").exists()


def test_a_damaged_file_and_one_of_another_format_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    save_npz(MODEL, path)
    whole = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    for content in (whole[: len(whole) // 2], b"", b"text", (tmp_path / "array.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"is no \.npz file"):
            load_npz(path)
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "missing.npz")
