"""A model outside Flower and back: nothing of it is lost."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from problems import clients, flat, run

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import arrays_from, load_npz, save_npz, state_dict
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg

RNG = np.random.default_rng(0)
MODEL = {
    "dense": RNG.standard_normal((7, 5)),
    "sparse": np.where(RNG.random((40, 30)) < 0.05, RNG.standard_normal((40, 30)), 0.0),
    "zero": np.zeros((60, 4)),
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
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        np.testing.assert_array_equal(found[name], array)


def test_a_file_gives_the_same_model_back(tmp_path):
    path = tmp_path / "model.npz"
    forms = save_npz(MODEL, path)
    same(load_npz(path), MODEL)
    assert {name for name, form in forms.items() if form == "csr"} == {"sparse", "zero", "tensor/with.a:name", "vector"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("density", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_the_smaller_form_is_taken(tmp_path, density):
    w = np.where(RNG.random((200, 100)) < density, 1.0, 0.0)
    form = save_npz({"w": w}, tmp_path / "a.npz")["w"]
    # 12 bytes an entry against 8 a number: CSR pays below two thirds.
    assert form == ("csr" if density < 0.66 else "dense")
    size = (tmp_path / "a.npz").stat().st_size
    assert size < min(w.nbytes, 12 * np.count_nonzero(w) + 4 * 201) + 2000


def test_plain_numpy_reads_the_file_as_the_docstring_says(tmp_path):
    from scipy.sparse import csr_array

    save_npz(MODEL, tmp_path / "m.npz")
    with np.load(tmp_path / "m.npz") as file:
        np.testing.assert_array_equal(file["dense/dense"], MODEL["dense"])
        parts = (file[f"csr/sparse/{part}"] for part in ("data", "indices", "indptr"))
        np.testing.assert_array_equal(csr_array(tuple(parts), shape=(40, 30)).toarray(), MODEL["sparse"])


def test_another_file_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", w=np.zeros(3))
    with pytest.raises(ConfigurationError, match="'w'"):
        load_npz(tmp_path / "other.npz")


def test_a_run_goes_on_from_where_another_ended(tmp_path):
    first = run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), clients(), 20)
    save_npz(first, tmp_path / "m.npz")
    sources = {
        "result": first,
        "record": first.arrays,
        "file": tmp_path / "m.npz",
        "name": str(tmp_path / "m.npz"),
        "arrays": {name: array.numpy() for name, array in first.arrays.items()},
    }
    for source in sources.values():
        np.testing.assert_array_equal(flat(arrays_from(source)), flat(first.arrays))
    again = run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), clients(), 0, start=flat(arrays_from(first)))
    np.testing.assert_array_equal(flat(again.arrays), flat(first.arrays))


def test_what_is_no_model_is_refused():
    with pytest.raises(ConfigurationError, match="3 is a int; expected a Result"):
        arrays_from(3)


def test_there_and_back_through_pytorch():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    record = arrays_from(module)
    assert isinstance(record, ArrayRecord)
    same(
        {name: array.numpy() for name, array in record.items()}, {n: t.numpy() for n, t in module.state_dict().items()}
    )
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    tensors = state_dict(record)
    other.load_state_dict(tensors)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    # Memory of its own: training the module changes nothing in the result.
    tensors["0.weight"].zero_()
    assert record["0.weight"].numpy().any()
    assert arrays_from(dict(module.named_parameters()))["0.bias"].numpy().shape == (3,)


def test_a_record_of_arrays_is_copied_into_tensors():
    torch = pytest.importorskip("torch")
    record = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32))})
    assert state_dict(record)["w"].dtype == torch.float32


def test_flowers_arrays_by_their_names_are_a_model(tmp_path):
    """The items of ``Result.arrays``: they were written as pickled objects, which nothing reads back."""
    record = ArrayRecord({name: Array(array) for name, array in MODEL.items()})
    save_npz(dict(record.items()), tmp_path / "model.npz")
    same(load_npz(tmp_path / "model.npz"), MODEL)
    same({name: array.numpy() for name, array in arrays_from(dict(record.items())).items()}, MODEL)


@pytest.mark.parametrize(
    "wrong",
    [{"w": ["a", "b"]}, {"w": [1.0, None]}, {"w": [[1.0, 2.0], [3.0]]}, {"w": object()}, {"w": "weights"}],
    ids=str,
)
def test_what_is_no_array_of_numbers_is_refused(wrong, tmp_path):
    path = tmp_path / "model.npz"
    for use in (lambda: save_npz(wrong, path), lambda: arrays_from(wrong)):
        with pytest.raises(ConfigurationError, match="the array 'w'"):
            use()
    assert not path.exists()


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


def test_dtypes_that_only_one_side_has():
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch, or pip install torch")
    values = torch.tensor([1.0, -0.5, 3.0e38]).to(torch.bfloat16)
    found = arrays_from({"w": values})
    assert found["w"].numpy().dtype == np.float32
    again = torch.zeros(3, dtype=torch.bfloat16)
    again.copy_(state_dict(found)["w"])
    assert torch.equal(again, values)
    assert state_dict({"w": np.array([1.0, 2.0], dtype=">f8")})["w"].tolist() == [1.0, 2.0]
