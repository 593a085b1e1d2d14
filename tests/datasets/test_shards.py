"""Examples in files that are mapped: the same numbers and bits, one kernel, never half a folder."""

import multiprocessing

import numpy as np
import pytest
from scipy.sparse import csr_array

from flwr_fco.datasets import Samples, memmap
from flwr_fco.errors import ConfigurationError, DataNotFoundError
from flwr_fco.kernels import losses
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic


def examples(dtype=np.float64):
    rng = np.random.default_rng(0)
    return Samples(rng.standard_normal((30, 4)).astype(dtype), rng.integers(0, 2, 30))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cls", [LeastSquares, Logistic, MultinomialLogistic])
def test_the_bits_are_those_of_the_arrays(tmp_path, cls, dtype):
    given = examples(dtype)
    mapped = memmap(tmp_path / "0", lambda: given)
    assert not mapped.features.flags.writeable
    ours, theirs = cls(*mapped), cls(*given)
    w = np.random.default_rng(1).standard_normal(ours.layout.size)
    np.testing.assert_array_equal(ours.gradient(w), theirs.gradient(w))
    np.testing.assert_array_equal(ours.gradient(w, np.array([3, 1])), theirs.gradient(w, np.array([3, 1])))
    assert ours.value(w) == theirs.value(w)


def test_it_is_made_once(tmp_path):
    memmap(tmp_path / "0", examples)

    def fail():
        raise AssertionError("made again")

    np.testing.assert_array_equal(memmap(tmp_path / "0", fail).features, examples().features)


def test_sparse_rows(tmp_path):
    dense = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])
    mapped = memmap(tmp_path / "0", lambda: Samples(csr_array(dense), np.array([1.0, -1.0])))
    np.testing.assert_array_equal(mapped.features.toarray(), dense)
    w = np.array([0.5, -1.0, 2.0, 0.25])
    ours, theirs = LeastSquares(*mapped), LeastSquares(dense, [1.0, -1.0])
    np.testing.assert_allclose(ours.gradient(w), theirs.gradient(w), rtol=1e-15)


def test_read_only_arrays_share_the_kernels_of_writable_ones():
    given = examples()
    fixed = Samples(given.features.copy(), given.targets.copy())
    for array in fixed:
        array.flags.writeable = False
    kernels = [value for value in vars(losses).values() if hasattr(value, "signatures")]
    assert kernels
    for cls in (LeastSquares, Logistic, MultinomialLogistic):
        for samples in (given, fixed):
            objective = cls(*samples)
            w = np.ones(objective.layout.size)
            objective.gradient(w)
            objective.gradient(w, np.array([3, 1]))
            objective.value(w)
            if samples is given:
                before = {kernel.__name__: len(kernel.signatures) for kernel in kernels}
        assert before == {kernel.__name__: len(kernel.signatures) for kernel in kernels}


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(DataNotFoundError, match="does not exist"):
        memmap(tmp_path / "0")
    (tmp_path / "1").mkdir()
    with pytest.raises(ConfigurationError, match="no folder of memmap's"):
        memmap(tmp_path / "1", examples)
    with pytest.raises(ConfigurationError, match="dtype object"):
        memmap(tmp_path / "2", lambda: Samples(np.array([["a"]], dtype=object), np.array([1.0])))
    assert not (tmp_path / "2").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def _map(folder):
    return memmap(folder, examples).features.sum()


def test_processes_that_make_it_together_end_with_one_folder(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(_map, [str(tmp_path / "0")] * 4, chunksize=1)
    assert set(sums) == {examples().features.sum()}
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
