"""The adapter of foreign operators, hard and n-of-m sparsity, and that the checker finds wrong code."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from refusals import refused

from flwr_fco.regularizers import L1, Adapter, HardSparsity, L1Ball, NofM, Regularizer
from flwr_fco.testing import check_regularizer


class Absolute:
    def __init__(self, sigma=1.0):
        self.sigma = sigma

    def __call__(self, x):
        return self.sigma * float(np.abs(x).sum())

    def prox(self, x, tau):
        return np.sign(x) * np.maximum(np.abs(x) - tau * self.sigma, 0)


def test_a_registered_operator_travels():
    Adapter.register("test-absolute", Absolute)
    psi = Adapter(name="test-absolute", arguments={"sigma": 0.5})
    assert Regularizer.from_spec(psi.to_spec()) == psi
    check_regularizer(psi)
    v = np.random.default_rng(0).normal(size=(3, 4))
    assert_array_equal(psi.prox(v, 0.7), L1(0.5).prox(v, 0.7))
    refused("taken", Adapter.register, "test-absolute", L1)
    message = r"known here: .*test-absolute.*both ServerApp and ClientApp"
    refused(message, Adapter, name="test-absolut")
    Adapter.register("test-no-operator", lambda: 3)
    refused("Adapter", Adapter, "test-no-operator", {})


def test_operators_of_pyproximal():
    pyproximal = pytest.importorskip("pyproximal")
    Adapter.register("test-ball", pyproximal.L1Ball)
    v = np.random.default_rng(1).normal(size=20)
    ball = Adapter("test-ball", {"n": 20, "radius": 1.0})
    assert_allclose(ball.prox(v, 0.7), L1Ball(1.0).prox(v, 0.7), atol=1e-5)
    assert ball.value(v) == np.inf
    assert ball.value(np.zeros(20)) == 0.0


# --- sparsity ---------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.integers(-3, 3), min_size=4, max_size=4)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 4))
def test_no_choice_of_n_is_nearer_and_of_equal_ones_the_first_stay(rows, n):
    v = np.array(rows, dtype=np.float64)
    for row, kept in zip(v, NofM(n, 4).prox(v, 1.0), strict=True):
        # The first of the best choices keeps the first entries.
        best = max(itertools.combinations(range(4), n), key=lambda choice: np.square(row[list(choice)]).sum())
        distance = np.square(row).sum() - np.square(row[list(best)]).sum()
        assert np.square(row - kept).sum() == pytest.approx(distance)
        smallest = np.abs(row[kept != 0]).min(initial=np.inf)
        dropped = np.flatnonzero((kept == 0) & (np.abs(row) == smallest))
        chosen = np.flatnonzero((kept != 0) & (np.abs(row) == smallest))
        assert not dropped.size or not chosen.size or chosen.max() < dropped.min()
        hard = HardSparsity(n).prox(row, 1.0)
        assert np.count_nonzero(hard) <= n
        assert np.square(row - hard).sum() == pytest.approx(distance)


def test_a_kernel_is_read_along_its_input_channels_if_it_has_enough():
    kernel = np.random.default_rng(0).normal(size=(5, 8, 3, 2))
    result = NofM(1, 4).prox(kernel, 1.0)
    for out, x, y in itertools.product(range(5), range(3), range(2)):
        expected = NofM(1, 4).prox(kernel[out, :, x, y][None].copy(), 1.0)[0]
        assert_array_equal(result[out, :, x, y], expected)
    assert NofM(1, 4).value(result) == 0.0
    assert NofM(1, 4).value(kernel) == np.inf
    few = np.ones((5, 3, 2, 2))
    assert_array_equal(NofM(2, 4).prox(few, 1.0), few)
    assert NofM(2, 4).value(few) == 0.0
    for shape, words in (
        ((8,), "second axis of matrices"),
        ((3, 30), r"30 inputs, no multiple of 4; leave it whole"),
    ):
        refused(words, NofM(2, 4).check_shape, "weight", shape)
    assert_array_equal(NofM(1, 4).prox(np.array([[np.nan, 1.0, 3.0, 2.0]]), 1.0), [[np.nan, 0.0, 3.0, 0.0]])


def test_hard_sparsity_of_more_entries_than_there_are_changes_nothing():
    for v in (np.random.default_rng(2).normal(size=6), np.zeros(6)):
        assert_array_equal(HardSparsity(10).prox(v, 1.0), v)


# --- the checker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(Regularizer):
    """An l1 norm with one fault at a time."""

    kind: ClassVar[str] = "test-broken"
    fault: str

    def value(self, w):
        return float(np.abs(w).sum()) * (2.0 if self.fault == "value" else 1.0)

    def prox(self, v, step, out=None):
        soft = L1(1.0).prox(v, step * (1.001 if self.fault == "threshold" else 1.0))
        if self.fault == "negative zero":
            soft = np.where(soft == 0, -0.0, soft).astype(v.dtype)
        if self.fault == "nan":
            soft = np.nan_to_num(soft)
        if self.fault == "dtype":
            return soft.astype(np.float64)
        if self.fault == "expansive":
            soft *= v.dtype.type(1.01)
        if out is None or self.fault == "out":
            return soft
        if self.fault == "in place":
            out[:] = 0.0
            soft = out + L1(1.0).prox(v, step)
        out[...] = soft
        return out


@pytest.mark.parametrize(
    "fault", ["value", "threshold", "negative zero", "nan", "dtype", "expansive", "out", "in place"]
)
def test_the_checker_finds_every_fault(fault):
    check_regularizer(Broken("none"))
    with pytest.raises(AssertionError, match="Broken"):
        check_regularizer(Broken(fault))
