"""Every objective in `flwr_fco.objectives.__all__` keeps the contract; the checker notices when one does not."""

import inspect
from functools import partial

import numpy as np
import pytest
from kinks import Distance
from scipy.sparse import csr_array

import flwr_fco.objectives
from flwr_fco.objectives import (
    BilinearSaddle,
    CoxRegression,
    FunctionSaddle,
    Huber,
    LeastSquares,
    Linear,
    Logistic,
    MultinomialLogistic,
    Objective,
    Poisson,
    SaddleObjective,
    SiteIntercept,
    SquaredHinge,
    TraceRegression,
)
from flwr_fco.objectives.links import SquaredHingeLoss
from flwr_fco.testing import check_objective, check_saddle_objective
from reproduction.data.saddle_objectives import QuadraticSaddle


def _data(n, d, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)).astype(dtype), rng


def _made(cls, targets, width=1, **fixed):
    """Return a factory of a loss, whose targets are drawn."""

    def make(n=23, d=7, dtype=np.float64, **options):
        features, rng = _data(n, d * width, dtype)
        features = features.reshape(n, d, width) if width > 1 else features
        return cls(features, targets(rng, n), **fixed, **options)

    return make


_least_squares = _made(LeastSquares, lambda rng, n: rng.normal(size=n))
_logistic = _made(Logistic, lambda rng, n: rng.integers(0, 2, n))
_multinomial = _made(MultinomialLogistic, lambda rng, n: rng.integers(0, 4, n), num_classes=4)
_trace = _made(TraceRegression, lambda rng, n: rng.normal(size=n), width=3)
_poisson = _made(Poisson, lambda rng, n: rng.poisson(2.0, size=n))


def _cox(n=23, d=7, dtype=np.float64, intercept=True, **options):
    """With ties; `intercept` chooses strata, entries and weights instead."""
    features, rng = _data(n, d, dtype)
    times = 1.0 + rng.integers(0, 8, n)
    more = {}
    if intercept:
        more = {"entry": times - rng.integers(1, 6, n), "strata": rng.integers(0, 2, n)}
        more |= {"sample_weight": rng.uniform(0.2, 3.0, n), "ties": "breslow"}
    return CoxRegression(features, times, rng.random(n) < 0.7, **more, **options)


def _site(n=23, d=7, dtype=np.float64, intercept=True, **options):
    """`intercept` chooses the loss."""
    return SiteIntercept((_poisson if intercept else _least_squares)(n, d, dtype, **options))


FACTORIES = {
    CoxRegression: _cox,
    Huber: _made(Huber, lambda rng, n: 2.0 * rng.normal(size=n)),
    LeastSquares: _least_squares,
    Linear: _made(partial(Linear, SquaredHingeLoss()), lambda rng, n: rng.integers(0, 2, n)),
    Logistic: _logistic,
    MultinomialLogistic: _multinomial,
    Poisson: _poisson,
    SiteIntercept: _site,
    SquaredHinge: _made(SquaredHinge, lambda rng, n: rng.integers(0, 2, n)),
    TraceRegression: _trace,
}


def _concrete(base):
    members = [getattr(flwr_fco.objectives, name) for name in flwr_fco.objectives.__all__]
    return [m for m in members if isinstance(m, type) and issubclass(m, base) and not inspect.isabstract(m)]


@pytest.mark.parametrize("cls", [cls for cls in _concrete(Objective) if not issubclass(cls, SaddleObjective)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.7])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [23, 3, 1])
def test_keeps_the_contract(cls, intercept, l2, dtype, n):
    assert cls in FACTORIES, f"add a factory for {cls.__name__} to this file"
    check_objective(FACTORIES[cls](n=n, intercept=intercept, l2=l2, dtype=dtype))


@pytest.mark.parametrize("cls", [cls for cls in FACTORIES if cls not in (CoxRegression, SiteIntercept)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("given", [("sample_weight",), ("offset",), ("sample_weight", "offset")])
def test_weights_and_offsets_keep_the_contract(cls, sparse, given):
    rng = np.random.default_rng(1)
    plain = FACTORIES[cls]()
    shape = (23, 4) if cls is MultinomialLogistic else 23
    both = {"sample_weight": rng.uniform(0.2, 3.0, 23), "offset": rng.normal(size=shape)}
    check_objective(FACTORIES[cls](l2=0.3, **{name: both[name] for name in given}))
    if sparse and cls not in (TraceRegression, Linear):
        labels = getattr(plain, "labels", plain.targets)
        more = {"num_classes": 4} if cls is MultinomialLogistic else {}
        check_objective(cls(csr_array(plain.features), labels, **more, **{name: both[name] for name in given}))


def test_intercepts_of_sites_keep_the_contract():
    weights = np.random.default_rng(1).uniform(0.2, 3.0, 23)
    with pytest.warns(UserWarning, match="fewer than 25"):
        check_objective(SiteIntercept(_logistic(l2=0.1, sample_weight=weights, offset=weights)))
    check_objective(SiteIntercept(Logistic(csr_array(_data(30, 5)[0]), np.arange(30) % 3 == 0)))


def test_scales_and_more_rows_than_a_kernel_takes_keep_the_contract():
    check_objective(_least_squares(scale=0.5, l2=0.1))
    check_objective(_trace(scale=3.0))
    check_objective(_multinomial(n=201))
    check_objective(_logistic(n=201))
    check_objective(_cox(n=201))


@pytest.mark.parametrize("cls", FACTORIES)
@pytest.mark.parametrize("n", [23, 300])
def test_a_step_may_be_taken_in_place(cls, n):
    objective = FACTORIES[cls](n=n, l2=0.3)
    rng = np.random.default_rng(2)
    for batch in (None, np.array([5]), rng.permutation(n)[:6], np.array([5, 5, 9])):
        w = rng.normal(size=objective.layout.size)
        expected = w - 0.1 * objective.gradient(w, batch)
        objective.add_gradient(w, batch, -0.1, w)
        np.testing.assert_allclose(w, expected, rtol=1e-13)


@pytest.mark.parametrize("cls", [Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson])
def test_float32_and_mapped_features_stay_and_are_summed_in_float64(cls, tmp_path):
    features = 0.3 * _data(200, 31, np.float32)[0]
    rng = np.random.default_rng(3)
    labels = {Huber: 2.0 * rng.normal(size=200), LeastSquares: rng.normal(size=200)}.get(cls, rng.integers(0, 2, 200))
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    wide, one, other = (cls(own, labels) for own in (features.astype(np.float64), features, mapped))
    assert np.shares_memory(one.features, features)
    assert np.shares_memory(other.features, mapped)
    w = rng.normal(size=wide.layout.size) / 30.0
    batch = np.arange(0, 200, 7)
    w.flags.writeable = False
    np.testing.assert_array_equal(other.gradient(w, batch), one.gradient(w, batch))
    np.testing.assert_array_equal(cls(np.asfortranarray(features), labels).gradient(w), one.gradient(w))
    np.testing.assert_allclose(one.gradient(w, batch), wide.gradient(w, batch), rtol=1e-10, atol=1e-14)
    if cls is not Poisson:
        for norm in ("l2", "l1"):
            np.testing.assert_allclose(one.lipschitz(norm), wide.lipschitz(norm), rtol=1e-12)
    np.testing.assert_allclose(one.value(w), wide.value(w), rtol=1e-13)


def delegating(base, make, methods, **own):
    """Return a subclass of `base` whose instances ask an `inner` object, made by `make`, for some methods."""

    def begin(self):
        self.inner = make()
        for name in ("layout", "num_examples", "split"):
            if hasattr(self.inner, name):
                setattr(self, name, getattr(self.inner, name))

    def passed_on(name):
        return lambda self, *given, **options: getattr(self.inner, name)(*given, **options)

    return type("Correct", (base,), {"__init__": begin, **{name: passed_on(name) for name in methods.split()}, **own})


_METHODS = (
    "value gradient add_gradient value_and_gradient hessian_product hessian_block along lipschitz strong_convexity"
)
_Broken = delegating(
    *(Objective, lambda: _least_squares(l2=0.3), _METHODS), least=0.0, l2=property(lambda self: self.inner.l2)
)


def test_the_unbroken_copies_pass():
    check_objective(_Broken())
    check_objective(_BrokenKinks())


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


def _drops_last(self, rng, work, per_step=1):
    for batch in self.inner.batches(rng, work, per_step):
        if batch is None or batch.size == work.batch_size:
            yield batch


def _draws_with_replacement(self, rng, work, per_step=1):
    for batch in self.inner.batches(rng, work, per_step):
        yield batch if batch is None else rng.integers(0, self.num_examples, batch.size)


def _ignores_per_step(self, rng, work, per_step=1):
    return self.inner.batches(rng, work)


def _one_step_less(self, rng, work, per_step=1):
    batches = list(self.inner.batches(rng, work, per_step))
    return iter(batches if work.steps is None else batches[1:])


def _draws_from_elsewhere(self, rng, work, per_step=1):
    self.elsewhere = getattr(self, "elsewhere", np.random.default_rng(5))
    return self.inner.batches(self.elsewhere, work, per_step)


class _Line:
    """A line with one thing wrong."""

    def __init__(self, inner, **wrong):
        self.inner = inner
        self.wrong = wrong

    def __call__(self, step):
        value, slope = self.inner(step)
        return value + self.wrong.get("value", 0.0), slope * self.wrong.get("slope", 1.0)

    def gradient(self, step, out=None):
        return self.inner.gradient(step + self.wrong.get("step", 0.0), out)

    def curvature(self, step):
        product = self.inner.curvature(step)
        return lambda v: self.wrong.get("curved", 1.0) * product(v)

    def turn(self, step, direction):
        return _Line(self.inner.turn(step + self.wrong.get("start", 0.0), direction), **self.wrong)


def _along(**wrong):
    return lambda self, w, direction: _Line(self.inner.along(w, direction), **wrong)


def _value_and_gradient(value=1.0, gradient=1.0, batch_value=1.0, batch_gradient=1.0):
    def value_and_gradient(self, w, batch=None, out=None):
        found, vector = self.inner.value_and_gradient(w, batch, out)
        vector *= gradient if batch is None else batch_gradient
        return found * (value if batch is None else batch_value), vector

    return value_and_gradient


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("gradient", _half_intercept, "differences of the value"),
        ("gradient", _sum_not_mean, "full gradient"),
        ("gradient", _not_cleared, "is out cleared"),
        ("gradient", lambda self, w, batch=None, out=None: self.inner.gradient(w, None, out), "ignore its batch"),
        (
            "add_gradient",
            lambda self, w, batch, scale, out: self.inner.add_gradient(w, batch, 1.0, out),
            "add_gradient",
        ),
        ("value", lambda self, w: np.float64(self.inner.value(w)), "Python float"),
        ("value", _mutating, "in place"),
        ("value_and_gradient", _value_and_gradient(value=1.001), r"\[0\] differs from value"),
        ("value_and_gradient", _value_and_gradient(gradient=1.001), "differs from gradient"),
        ("value_and_gradient", _value_and_gradient(batch_value=1.001), "values of an epoch.s batches do not average"),
        ("value_and_gradient", _value_and_gradient(batch_value=np.nan), "do not average to .*: nan instead of"),
        ("value_and_gradient", _value_and_gradient(batch_gradient=1.001), r"differs from gradient\(w, batch\)"),
        ("hessian_product", lambda self, w, v: 1.001 * self.inner.hessian_product(w, v), "hessian_product"),
        ("hessian_block", lambda self, w, on: 1.001 * self.inner.hessian_block(w, on), "hessian_block"),
        ("hessian_block", lambda self, w, on: self.inner.hessian_block(w, on)[1:], "hessian_block.* has shape"),
        ("along", _along(value=1e-3), "not the value there"),
        ("along", _along(slope=1.001), "not the slope there"),
        ("along", _along(step=1e-3), r"along.*gradient\(.*\) is off"),
        ("along", _along(start=1e-3), "along"),
        ("along", _along(curved=1.001), r"along.*curvature\(.*\) is off"),
        ("metrics", lambda self, w: {"loss": np.float64(self.inner.value(w))}, "Python numbers"),
        ("metrics", lambda self, w: {"mse": 0.0}, "among them 'loss'"),
        ("metrics", lambda self, w: {"loss": 2.0 * self.inner.value(w)}, "differs from value"),
        ("lipschitz", lambda self, norm="l2": 0.3 * self.inner.lipschitz(norm), "lipschitz"),
        ("strong_convexity", lambda self: 2.0 * self.inner.lipschitz(), "strong_convexity"),
        ("strong_convexity", lambda self: -1.0, "strong_convexity"),
        ("least", 1.0, "says least=1"),
        ("l2", 9.0, "not convex, or has another l2"),
        ("batches", _drops_last, "last partial"),
        ("batches", _draws_with_replacement, "exactly once"),
        ("batches", _ignores_per_step, "2 a step"),
        ("batches", _one_step_less, r"Steps\("),
        ("batches", _draws_from_elsewhere, "generators of the same seed"),
        ("buffers", lambda self: {"count": np.array(0)}, "not optimised"),
        ("load_buffers", lambda self, buffers: None, "load_buffers takes a name"),
    ],
)
def test_the_checker_notices(name, broken, message):
    # Another gradient alone is found by all that is made of it: those of the base class follow it.
    follows = ("add_gradient", "value_and_gradient", "hessian_product", "hessian_block", "along", "least")
    more = {each: getattr(Objective, each) for each in follows} if name == "gradient" else {}
    cls = type("Broken", (_Broken,), {**more, name: broken})
    with pytest.raises(AssertionError, match=message):
        check_objective(cls())


@pytest.mark.parametrize("factor", [1.0, 0.99])
def test_the_checker_notices_a_bound_of_second_derivatives_that_is_none(factor):
    """Coefficients are proved zero by it."""

    class Profiled(_Broken):
        def largest_square(self):
            return factor * (self.inner.lipschitz("l1") - self.inner.l2)

    if factor == 1.0:
        check_objective(Profiled())
    else:
        with pytest.raises(AssertionError, match="largest_square"):
            check_objective(Profiled())


_BrokenKinks = delegating(
    Objective, lambda: Distance(np.arange(8.0), l2=0.3), "value gradient strong_convexity", smooth=False
)


def _scaled_gradient(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    gradient *= 1.001
    return gradient


def _curvature(self, w, v):
    apart = w - self.inner.point
    distance = np.linalg.norm(apart)
    return (v - (apart @ v) / distance**2 * apart) / distance + self.inner.l2 * v


@pytest.mark.parametrize(
    ("name", "broken", "message"),
    [
        ("gradient", _scaled_gradient, "no subgradient"),
        ("gradient", _half_intercept, "no subgradient"),
        ("value", lambda self, w: -self.inner.value(w), "no subgradient"),
        ("strong_convexity", lambda self: 2.0 * self.inner.l2, "strong convexity is less"),
        ("lipschitz", lambda self, norm="l2": 1e9, "where the gradient jumps"),
        ("hessian_product", _curvature, "smooth = False"),
        ("hessian_block", lambda self, w, on: np.ones(1), "smooth = False"),
    ],
)
def test_the_checker_notices_what_is_no_subgradient(name, broken, message):
    with pytest.raises(AssertionError, match=message):
        check_objective(type("Broken", (_BrokenKinks,), {name: broken})())


def test_a_loss_with_a_kink_that_does_not_say_so_is_noticed():
    """|w_0| has its kink at zero, where the checker looks."""

    class Silent(_BrokenKinks):
        smooth = True

        def value(self, w):
            return self.inner.value(w) + abs(float(w[0]))

        def gradient(self, w, batch=None, out=None):
            gradient = self.inner.gradient(w, batch, out)
            gradient[0] += 1.0 if w[0] > 0.0 else -1.0
            return gradient

    with pytest.raises(AssertionError, match="differences of the value"):
        check_objective(Silent())
    check_objective(type("Said", (Silent,), {"smooth": False})())


# --- saddle functions -------------------------------------------------------------------------------------------------


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


def test_every_exported_saddle_function_has_an_example():
    assert set(_concrete(SaddleObjective)) == {kind for kind, _ in EXAMPLES.values()}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_saddle_function_keeps_its_contract(name, seed):
    check_saddle_objective(EXAMPLES[name][1](), seed=seed)


_BrokenSaddle = delegating(
    SaddleObjective, lambda: _quadratic(0.5), "value gradient batches lipschitz strong_convexity", num_examples=1
)


def test_the_unbroken_copy_of_a_saddle_function_passes():
    check_saddle_objective(_BrokenSaddle())


def _plain_gradient(self, w, batch=None, out=None):
    gradient = self.inner.gradient(w, batch, out)
    gradient[self.split :] *= -1.0
    return gradient


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
def test_the_checker_of_saddle_functions_notices(name, broken, message):
    cls = type("Broken", (_BrokenSaddle,), {name: broken})
    with pytest.raises(AssertionError, match=message):
        check_saddle_objective(cls())


def test_the_checker_notices_what_is_not_monotone():
    concave = FunctionSaddle(lambda x, y: -x, lambda x, y: -y, x=2, y=2, value=lambda x, y: -0.5 * (x @ x + y @ y))
    with pytest.raises(AssertionError, match="as convex"):
        check_saddle_objective(concave)
