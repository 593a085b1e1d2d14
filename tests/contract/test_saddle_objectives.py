"""Every saddle-point objective in `flwr_fco.objectives.__all__` keeps the contract; the checker notices if not."""

import inspect

import numpy as np
import pytest
from delegating import delegating

import flwr_fco.objectives
from flwr_fco.objectives import BilinearSaddle, FunctionSaddle, SaddleObjective
from flwr_fco.testing import check_saddle_objective
from reproduction.data.saddle_objectives import QuadraticSaddle


def _psd(rng, n, least=0.1):
    a = rng.normal(size=(n, n))
    return a @ a.T / n + least * np.eye(n)


def _bilinear(noise=0.0, width=None):
    rng = np.random.default_rng(0)
    return BilinearSaddle(rng.normal(size=(4, 6)), rng.normal(size=(4, width) if width else 4), noise=noise)


def _quadratic(noise=0.0):
    rng = np.random.default_rng(0)
    return QuadraticSaddle(
        _psd(rng, 4),
        rng.normal(size=(3, 4)),
        _psd(rng, 3),
        linear=rng.normal(size=4),
        offset=rng.normal(size=3),
        noise=noise,
    )


def _functions(minibatch=False):
    rng = np.random.default_rng(0)
    if not minibatch:
        return FunctionSaddle(
            lambda x, y: x + y,
            lambda x, y: x - np.tanh(y),
            x=(2, 3),
            y=(2, 3),
            value=lambda x, y: 0.5 * np.vdot(x, x) + np.vdot(x, y) - np.log(np.cosh(y)).sum(),
        )
    rows = rng.normal(size=(11, 3))
    mean = rows.mean(axis=0)

    def of(batch):
        return mean if batch is None else rows[batch].mean(axis=0)

    return SaddleObjective.from_functions(
        lambda x, y, batch: x + of(batch) * y,
        lambda x, y, batch: of(batch) * x - y,
        x=3,
        y=3,
        value=lambda x, y: 0.5 * float(x @ x - y @ y) + float((mean * x) @ y),
        num_examples=11,
        minibatch=True,
        lipschitz=1.0 + float(np.abs(mean).max()),
    )


EXAMPLES = {
    "bilinear": (BilinearSaddle, _bilinear),
    "bilinear-noise": (BilinearSaddle, lambda: _bilinear(0.5)),
    "bilinear-matrices": (BilinearSaddle, lambda: _bilinear(0.5, width=3)),
    "functions": (FunctionSaddle, _functions),
    "functions-minibatch": (FunctionSaddle, lambda: _functions(minibatch=True)),
}


def _concrete():
    members = [getattr(flwr_fco.objectives, name) for name in flwr_fco.objectives.__all__]
    return [m for m in members if isinstance(m, type) and issubclass(m, SaddleObjective) and not inspect.isabstract(m)]


@pytest.mark.parametrize("cls", _concrete(), ids=lambda cls: cls.__name__)
def test_every_exported_class_has_an_example(cls):
    assert any(kind is cls for kind, _ in EXAMPLES.values()), f"add {cls.__name__} to EXAMPLES"


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_keeps_the_contract(name, seed):
    check_saddle_objective(EXAMPLES[name][1](), seed=seed)


_Broken = delegating(
    SaddleObjective, lambda: _quadratic(0.5), "value gradient batches lipschitz strong_convexity", num_examples=1
)


def test_the_unbroken_copy_passes():
    check_saddle_objective(_Broken())


def _plain_gradient(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    gradient[self.split :] *= -1.0
    return gradient


def _not_cleared(self, w, batch=None, out=None):
    if out is None:
        return self.inner.gradient(w, batch)
    out += self.inner.gradient(w, batch)
    return out


def _biased(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    if batch is not None:
        gradient += 0.2
    return gradient


def _swapped(self, w):
    return -self.inner.value(w)


def _odd(self, rng, work, per_step=1):
    return self.inner.batches(rng, work, 1)


def _unseeded(self, rng, work, per_step=1):
    return self.inner.batches(np.random.default_rng() if work.batch_size else rng, work, per_step)


def _always_noisy(self, rng, work, per_step=1):
    return iter([rng.normal(size=self.layout.size) for _ in range(work.num_draws(1, per_step))])


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("gradient", _plain_gradient, "is its sign right"),
        ("gradient", _not_cleared, "is out cleared"),
        ("gradient", _biased, "mean of"),
        ("value", _swapped, "is its sign right"),
        ("value", lambda self, w: np.float64(self.inner.value(w)), "Python float"),
        ("lipschitz", lambda self, norm="l2": 0.3 * self.inner.lipschitz(norm), "lipschitz"),
        ("strong_convexity", lambda self: 30.0 * self.inner.strong_convexity(), "as convex"),
        ("batches", _odd, "2 a step"),
        ("batches", _unseeded, "same seed"),
        ("batches", _always_noisy, "None for each full batch"),
    ],
)
def test_the_checker_notices(name, broken, message):
    cls = type("Broken", (_Broken,), {name: broken})
    with pytest.raises(AssertionError, match=message):
        check_saddle_objective(cls())


def test_the_checker_notices_what_is_not_monotone():
    concave = FunctionSaddle(lambda x, y: -x, lambda x, y: -y, x=2, y=2, value=lambda x, y: -0.5 * (x @ x + y @ y))
    with pytest.raises(AssertionError, match="as convex"):
        check_saddle_objective(concave)
