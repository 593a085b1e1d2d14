"""Every objective in `flwr_fco.objectives.__all__` keeps the contract; the checker notices when one does not."""

import inspect

import numpy as np
import pytest

import flwr_fco.objectives
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, TraceRegression
from flwr_fco.testing import check_objective


def _data(n, d, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)).astype(dtype), rng


def _least_squares(n=23, d=7, dtype=np.float64, **options):
    features, rng = _data(n, d, dtype)
    return LeastSquares(features, rng.normal(size=n), **options)


def _logistic(n=23, d=7, dtype=np.float64, **options):
    features, rng = _data(n, d, dtype)
    return Logistic(features, rng.integers(0, 2, n), **options)


def _multinomial(n=23, d=7, dtype=np.float64, **options):
    features, rng = _data(n, d, dtype)
    return MultinomialLogistic(features, rng.integers(0, 4, n), num_classes=4, **options)


def _trace(n=23, d=7, dtype=np.float64, **options):
    features, rng = _data(n, 3 * d, dtype)
    return TraceRegression(features.reshape(n, d, 3), rng.normal(size=n), **options)


FACTORIES = {
    LeastSquares: _least_squares,
    Logistic: _logistic,
    MultinomialLogistic: _multinomial,
    TraceRegression: _trace,
}


def _concrete():
    members = [getattr(flwr_fco.objectives, name) for name in flwr_fco.objectives.__all__]
    return [m for m in members if isinstance(m, type) and issubclass(m, Objective) and not inspect.isabstract(m)]


@pytest.mark.parametrize("cls", _concrete(), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.7])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [23, 3, 1])
def test_keeps_the_contract(cls, intercept, l2, dtype, n):
    assert cls in FACTORIES, f"add a factory for {cls.__name__} to this file"
    check_objective(FACTORIES[cls](n=n, intercept=intercept, l2=l2, dtype=dtype))


def test_scale_keeps_the_contract():
    check_objective(_least_squares(scale=0.5, l2=0.1))
    check_objective(_trace(scale=3.0))


def test_more_rows_than_a_kernel_takes_at_a_time_keep_the_contract():
    check_objective(_multinomial(n=201))
    check_objective(_logistic(n=201))


class _Broken(Objective):
    """A correct objective to break in one place."""

    def __init__(self):
        self.inner = _least_squares(l2=0.3)
        self.layout = self.inner.layout
        self.num_examples = self.inner.num_examples

    def value(self, w):
        return self.inner.value(w)

    def gradient(self, w, batch=None, out=None):
        return self.inner.gradient(w, batch, out)

    def add_gradient(self, w, batch, scale, out):
        self.inner.add_gradient(w, batch, scale, out)

    def lipschitz(self, norm="l2"):
        return self.inner.lipschitz(norm)


def test_the_unbroken_copy_passes():
    check_objective(_Broken())


def _half_intercept(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    gradient[-1] *= 0.999
    return gradient


def _sum_not_mean(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    if batch is not None:
        gradient *= batch.size
    return gradient


def _not_cleared(self, w, batch=None, out=None):
    if out is None:
        return self.inner.gradient(w, batch)
    out += self.inner.gradient(w, batch)
    return out


def _mutating(self, w):
    value = self.inner.value(w)
    w *= 1.0 + 1e-12
    return value


def _drops_last(self, rng, batch_size, *, epochs=None, steps=None):
    for batch in self.inner.minibatches(rng, batch_size, epochs=epochs, steps=steps):
        if batch is None or batch.size == batch_size:
            yield batch


def _draws_with_replacement(self, rng, batch_size, *, epochs=None, steps=None):
    for batch in self.inner.minibatches(rng, batch_size, epochs=epochs, steps=steps):
        yield batch if batch is None else rng.integers(0, self.num_examples, batch.size)


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("gradient", _half_intercept, "differences of the value"),
        ("gradient", _sum_not_mean, "add_gradient|full gradient"),
        ("gradient", _not_cleared, "is out cleared"),
        (
            "add_gradient",
            lambda self, w, batch, scale, out: self.inner.add_gradient(w, batch, 1.0, out),
            "add_gradient",
        ),
        ("value", lambda self, w: np.float64(self.inner.value(w)), "Python float"),
        ("value", _mutating, "in place"),
        ("metrics", lambda self, w: {"loss": np.float64(self.inner.value(w))}, "Python number"),
        ("metrics", lambda self, w: {"mse": 0.0}, "no 'loss'"),
        ("metrics", lambda self, w: {"loss": 2.0 * self.inner.value(w)}, "differs from value"),
        ("lipschitz", lambda self, norm="l2": 0.3 * self.inner.lipschitz(norm), "lipschitz"),
        ("minibatches", _drops_last, "last partial"),
        ("minibatches", _draws_with_replacement, "exactly once"),
    ],
)
def test_the_checker_notices(name, broken, message):
    cls = type("Broken", (_Broken,), {name: broken})
    with pytest.raises(AssertionError, match=message):
        check_objective(cls())
