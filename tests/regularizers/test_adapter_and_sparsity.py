"""The adapter of foreign operators, hard sparsity, and that the checker finds wrong code."""

from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, Adapter, HardSparsity, L1Ball, Regularizer
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
    np.testing.assert_array_equal(psi.prox(v, 0.7), L1(0.5).prox(v, 0.7))
    with pytest.raises(ConfigurationError, match="taken"):
        Adapter.register("test-absolute", L1)
    with pytest.raises(ConfigurationError, match=r"known here: .*test-absolute.*both ServerApp and ClientApp"):
        Adapter(name="test-absolut")


def test_pyproximal_operators_and_what_is_none():
    Adapter.register("test-no-operator", lambda: 3)
    with pytest.raises(ConfigurationError, match="Adapter"):
        Adapter("test-no-operator", {})
    pyproximal = pytest.importorskip("pyproximal")
    Adapter.register("test-ball", pyproximal.L1Ball)
    v = np.random.default_rng(1).normal(size=20)
    ball = Adapter("test-ball", {"n": 20, "radius": 1.0})
    np.testing.assert_allclose(ball.prox(v, 0.7), L1Ball(1.0).prox(v, 0.7), atol=1e-5)
    assert ball.value(v) == np.inf
    assert ball.value(np.zeros(20)) == 0.0


@pytest.mark.parametrize("count", [1, 3, 6, 10])
def test_hard_sparsity_beats_every_support(count):
    """Against all supports of that size."""
    rng = np.random.default_rng(2)
    for v in (rng.normal(size=6), rng.integers(-2, 3, size=6).astype(float), np.zeros(6), np.ones(6)):
        p = HardSparsity(count).prox(v, 1.0)
        assert np.count_nonzero(p) <= count
        best = min(
            np.sum(v[[i for i in range(6) if i not in kept]] ** 2) for kept in combinations(range(6), min(count, 6))
        )
        assert np.sum((v - p) ** 2) == pytest.approx(best)


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
        if self.fault == "out" and out is not None:
            return soft
        if out is None:
            return soft
        if self.fault == "in place":
            out[:] = 0.0
            out += L1(1.0).prox(v, step)
            return out
        out[...] = soft
        return out


@pytest.mark.parametrize(
    "fault", ["value", "threshold", "negative zero", "nan", "dtype", "expansive", "out", "in place"]
)
def test_the_checker_finds_every_fault(fault):
    check_regularizer(Broken("none"))
    with pytest.raises(AssertionError, match="Broken"):
        check_regularizer(Broken(fault))
