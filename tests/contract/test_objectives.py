"""Every objective in `flwr_fco.objectives.__all__` keeps the contract; the checker notices when one does not."""

import inspect
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import Distance, paired, refused
from scipy.sparse import csr_array

from flwr_fco import objectives
from flwr_fco.objectives import CoxRegression, MultinomialLogistic, Objective, Poisson, SaddleObjective, SiteIntercept
from flwr_fco.objectives.base import Line
from flwr_fco.objectives.links import SquaredHingeLoss
from flwr_fco.testing import check_objective, check_saddle_objective
from flwr_fco.work import FirstOrder


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
    return SiteIntercept(FACTORIES[Poisson if intercept else objectives.LeastSquares](n, d, dtype, **options))


FACTORIES = {
    CoxRegression: _cox,
    objectives.Huber: _made(objectives.Huber, lambda rng, n: 2.0 * rng.normal(size=n)),
    objectives.LeastSquares: _made(objectives.LeastSquares, lambda rng, n: rng.normal(size=n)),
    objectives.Linear: _made(partial(objectives.Linear, SquaredHingeLoss()), lambda rng, n: rng.integers(0, 2, n)),
    objectives.Logistic: _made(objectives.Logistic, lambda rng, n: rng.integers(0, 2, n)),
    MultinomialLogistic: _made(MultinomialLogistic, lambda rng, n: rng.integers(0, 4, n), num_classes=4),
    Poisson: _made(Poisson, lambda rng, n: rng.poisson(2.0, size=n)),
    SiteIntercept: _site,
    objectives.SquaredHinge: _made(objectives.SquaredHinge, lambda rng, n: rng.integers(0, 2, n)),
    objectives.TraceRegression: _made(objectives.TraceRegression, lambda rng, n: rng.normal(size=n), width=3),
}
_least_squares, _logistic = FACTORIES[objectives.LeastSquares], FACTORIES[objectives.Logistic]


def _concrete(base):
    members = [getattr(objectives, name) for name in objectives.__all__]
    return [m for m in members if isinstance(m, type) and issubclass(m, base) and not inspect.isabstract(m)]


@pytest.mark.parametrize("cls", [cls for cls in _concrete(Objective) if not issubclass(cls, SaddleObjective)])
@pytest.mark.parametrize(("n", "intercept", "l2", "dtype"), paired([23, 3, 1], [True, False], [0.0, 0.7], ["f8", "f4"]))
def test_keeps_the_contract(cls, n, intercept, l2, dtype):
    assert cls in FACTORIES, f"add a factory for {cls.__name__} to this file"
    check_objective(FACTORIES[cls](n=n, intercept=intercept, l2=l2, dtype=dtype))


@pytest.mark.parametrize("cls", [cls for cls in FACTORIES if cls not in (CoxRegression, SiteIntercept)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("given", [("sample_weight",), ("offset",), ("sample_weight", "offset")])
def test_weights_and_offsets_keep_the_contract(cls, sparse, given):
    rng = np.random.default_rng(1)
    shape = (23, 4) if cls is MultinomialLogistic else 23
    both = {"sample_weight": rng.uniform(0.2, 3.0, 23), "offset": rng.normal(size=shape)}
    rows = {name: both[name] for name in given}
    if not sparse:
        check_objective(FACTORIES[cls](l2=0.3, **rows))
    elif cls not in (objectives.TraceRegression, objectives.Linear):
        plain = FACTORIES[cls]()
        rows |= {"num_classes": 4} if cls is MultinomialLogistic else {}
        check_objective(cls(csr_array(plain.features), getattr(plain, "labels", plain.targets), **rows))


def test_intercepts_of_sites_scales_and_many_rows_keep_the_contract():
    weights = np.random.default_rng(1).uniform(0.2, 3.0, 23)
    with pytest.warns(UserWarning, match="fewer than 25"):
        few = SiteIntercept(_logistic(l2=0.1, sample_weight=weights, offset=weights))
    check_objective(few)
    check_objective(SiteIntercept(objectives.Logistic(csr_array(_data(30, 5)[0]), np.arange(30) % 3 == 0)))
    check_objective(_least_squares(scale=0.5, l2=0.1))
    check_objective(FACTORIES[objectives.TraceRegression](scale=3.0))
    for make in (FACTORIES[MultinomialLogistic], _logistic, _cox):
        check_objective(make(n=201))


@pytest.mark.parametrize("cls", FACTORIES)
@pytest.mark.parametrize("n", [23, 300])
def test_a_step_may_be_taken_in_place(cls, n):
    objective = FACTORIES[cls](n=n, l2=0.3)
    rng = np.random.default_rng(2)
    for batch in (None, np.array([5]), rng.permutation(n)[:6], np.array([5, 5, 9])):
        w = rng.normal(size=objective.layout.size)
        expected = w - 0.1 * objective.gradient(w, batch)
        objective.add_gradient(w, batch, -0.1, w)
        assert_allclose(w, expected, rtol=1e-13)


# --- what the checker notices -----------------------------------------------------------------------------------------


def delegating(base, make, methods, **own):
    """Return a subclass of `base` whose instances ask an `inner` object, made by `make`, for some methods."""

    def begin(self):
        self.inner = make()
        for name in ("layout", "num_examples", "split"):
            if hasattr(self.inner, name):
                setattr(self, name, getattr(self.inner, name))

    return type("Correct", (base,), {"__init__": begin, **{name: after(name) for name in methods.split()}, **own})


def after(name, change=lambda answer, *given: answer):
    """Return a method that asks `inner`, and changes the answer by what was given."""
    return lambda self, *given, **options: change(getattr(self.inner, name)(*given, **options), *given)


def times(name, factor):
    """Return a method whose answer is multiplied, an array in place."""
    return after(name, lambda answer, *given: answer.__imul__(factor) if np.ndim(answer) else factor * answer)


_Broken = delegating(
    Objective,
    lambda: _least_squares(l2=0.3),
    "value gradient add_gradient value_and_gradient hessian_product hessian_block along lipschitz strong_convexity",
    least=0.0,
    l2=property(lambda self: self.inner.l2),
)
_BrokenKinks = delegating(
    Objective, lambda: Distance(np.arange(8.0), l2=0.3), "value gradient strong_convexity", smooth=False
)
_LAST = np.r_[np.ones(7), 0.999]


def _not_cleared(self, w, batch=None, out=None):
    if out is None:
        return self.inner.gradient(w, batch)
    out += self.inner.gradient(w, batch)
    return out


def _moved(value, w):
    w *= 1.0 + 1e-12
    return value


def _batches(change=lambda batches, work, rng: batches, **asked):
    """Return a method whose batches are changed, or those of other arguments."""

    def batches(self, rng, work, per_step=1):
        given = {"rng": rng, "work": work, "per_step": per_step} | {name: own(rng) for name, own in asked.items()}
        return iter(change(list(self.inner.batches(**given)), work, rng))

    return batches


_ELSEWHERE = np.random.default_rng(5)


def _along(**wrong):
    """Return an `along` whose lines have a method that is wrong."""
    return lambda self, w, direction: type("Wrong", (Line,), wrong)(self.inner, w, direction)


def _both(factor=1.0, *, whole=True, of=0):
    """Return a `value_and_gradient` whose value or gradient is multiplied, of all rows or of a batch."""

    def change(found, w, batch=None, out=None):
        factors = [factor if (batch is None) == whole and of == place else 1.0 for place in (0, 1)]
        return found[0] * factors[0], np.multiply(found[1], factors[1], out=found[1])

    return after("value_and_gradient", change)


BROKEN_LOSSES = [
    ("gradient", times("gradient", _LAST), "differences of the value"),
    ("gradient", after("gradient", lambda g, w, b=None, *_: g.__imul__(b is None or b.size)), "full gradient"),
    ("gradient", _not_cleared, "is out cleared"),
    ("gradient", lambda self, w, batch=None, out=None: self.inner.gradient(w, None, out), "ignore its batch"),
    ("gradient", lambda self, w, batch=None, out=None: None, r"NoneType.*, expected float64\(8,\)"),
    ("gradient", after("gradient", lambda g, *_: g * np.nan), "not finite"),
    ("add_gradient", lambda self, w, rows, scale, out: self.inner.add_gradient(w, rows, 1.0, out), "add_gradient"),
    ("value", after("value", lambda value, w: np.float64(value)), "Python float"),
    ("value", after("value", _moved), "in place"),
    ("gradient", lambda self, w, batch=None, out=None: np.subtract(w, 1.0, out=w), "a view of"),
    ("dual_terms", lambda self, points, shares: (-1e3, points[0]), "gaps would be wrong: dual_terms"),
    ("value_and_gradient", _both(1.001), r"\[0\] differs from value"),
    ("value_and_gradient", _both(1.001, of=1), "differs from gradient"),
    ("value_and_gradient", _both(1.001, whole=False), "values of an epoch.s batches do not average"),
    ("value_and_gradient", _both(np.nan, whole=False), "do not average to .*: nan instead of"),
    ("value_and_gradient", _both(1.001, whole=False, of=1), r"differs from gradient\(w, batch\)"),
    ("hessian_product", times("hessian_product", 1.001), "hessian_product"),
    ("hessian_product", lambda self, w, v: None, "returned None: is its `return` missing"),
    ("hessian_block", times("hessian_block", 1.001), "hessian_block"),
    ("hessian_block", after("hessian_block", lambda block, *given: block[1:]), "hessian_block.* has shape"),
    ("along", _along(__call__=lambda own, at: np.multiply((1.001, 1.0), Line.__call__(own, at))), "not the value"),
    ("along", _along(__call__=lambda own, at: np.multiply((1.0, 1.001), Line.__call__(own, at))), "not the slope"),
    ("along", _along(gradient=lambda line, at: 1.001 * Line.gradient(line, at)), r"along.*gradient\(.*\) is off"),
    ("along", _along(turn=lambda line, at, direction: Line.turn(line, at + 1e-3, direction)), "along"),
    ("along", _along(curvature=lambda line, at: lambda v: 1.001 * Line.curvature(line, at)(v)), "curvature"),
    ("metrics", after("value", lambda value, w: {"loss": np.float64(value)}), "Python numbers"),
    ("metrics", lambda self, w: {"mse": 0.0}, "among them 'loss'"),
    ("metrics", after("value", lambda value, w: {"loss": 2.0 * value}), "differs from value"),
    ("lipschitz", times("lipschitz", 0.3), "lipschitz"),
    ("strong_convexity", lambda self: 2.0 * self.inner.lipschitz(), "strong_convexity"),
    ("strong_convexity", lambda self: -1.0, "strong_convexity"),
    # Coefficients are proved zero by it.
    ("largest_square", lambda self: 0.99 * (self.inner.lipschitz("l1") - self.inner.l2), "largest_square"),
    *(("least", least, f"says least={least}") for least in (1.0, -np.inf)),
    ("l2", 9.0, "not convex, or has another l2"),
    (
        "batches",
        _batches(lambda all, work, _: [b for b in all if b is None or b.size == work.batch_size]),
        "last partial",
    ),
    (
        "batches",
        _batches(lambda all, _, rng: [b if b is None else rng.integers(0, 23, b.size) for b in all]),
        "exactly once",
    ),
    ("batches", _batches(per_step=lambda rng: 1), "2 a step"),
    ("batches", _batches(lambda all, work, _: all if work.steps is None else all[1:]), r"Steps\("),
    ("batches", _batches(rng=lambda rng: _ELSEWHERE), "generators of the same seed"),
]


def test_what_the_broken_ones_derive_from_keeps_its_contract():
    check_objective(_Broken())
    check_objective(_BrokenKinks())
    check_saddle_objective(_BrokenSaddle())


@pytest.mark.parametrize(("name", "broken", "message"), BROKEN_LOSSES)
def test_the_checker_notices(name, broken, message):
    # Another gradient alone is found by all that is made of it: those of the base class follow it.
    follows = ("add_gradient", "value_and_gradient", "hessian_product", "hessian_block", "along", "least")
    more = {each: getattr(Objective, each) for each in follows} if name == "gradient" else {}
    refused(message, check_objective, type("Broken", (_Broken,), {**more, name: broken})(), kind=AssertionError)


BROKEN_HALVES = [
    ("gradient", times("gradient", 1.001), "no subgradient"),
    ("gradient", times("gradient", _LAST), "no subgradient"),
    ("value", times("value", -1.0), "no subgradient"),
    ("strong_convexity", lambda self: 2.0 * self.inner.l2, "strong convexity is less"),
    ("lipschitz", lambda self, norm="l2": 1e9, "where the gradient jumps"),
    ("hessian_product", lambda self, w, v: self.inner.l2 * v, "smooth = False"),
    ("hessian_block", lambda self, w, on: np.ones(1), "smooth = False"),
]


@pytest.mark.parametrize(("name", "broken", "message"), BROKEN_HALVES)
def test_the_checker_notices_what_is_no_subgradient(name, broken, message):
    refused(message, check_objective, type("Broken", (_BrokenKinks,), {name: broken})(), kind=AssertionError)


def test_a_loss_with_a_kink_that_does_not_say_so_is_noticed():
    """|w_0| has its kink at zero, where the checker looks."""

    class Silent(_BrokenKinks):
        smooth = True
        value = after("value", lambda value, w: value + abs(float(w[0])))

        def gradient(self, w, batch=None, out=None):
            gradient = self.inner.gradient(w, batch, out)
            gradient[0] += 1.0 if w[0] > 0.0 else -1.0
            return gradient

    refused("differences of the value", check_objective, Silent(), kind=AssertionError)
    check_objective(type("Said", (Silent,), {"smooth": False})())


# --- saddle functions -------------------------------------------------------------------------------------------------


def _bilinear(noise=0.0, width=None):
    rng = np.random.default_rng(0)
    offset = rng.normal(size=(4, width) if width else 4)
    return objectives.BilinearSaddle(rng.normal(size=(4, 6)), offset, noise=noise)


def _functions():
    return objectives.FunctionSaddle(
        lambda x, y: x + y,
        lambda x, y: x - np.tanh(y),
        x=(2, 3),
        y=(2, 3),
        value=lambda x, y: 0.5 * np.vdot(x, x) + np.vdot(x, y) - np.log(np.cosh(y)).sum(),
    )


def _of_batches():
    rows = np.random.default_rng(0).normal(size=(11, 3))
    mean = rows.mean(axis=0)

    def of(batch):
        return mean if batch is None else rows[batch].mean(axis=0)

    functions = lambda x, y, batch: x + of(batch) * y, lambda x, y, batch: of(batch) * x - y
    options = {"value": lambda x, y: 0.5 * float(x @ x - y @ y) + float((mean * x) @ y), "minibatch": True}
    options |= {"num_examples": 11, "lipschitz": 1.0 + float(np.abs(mean).max())}
    return SaddleObjective.from_functions(*functions, x=3, y=3, **options)


EXAMPLES = {
    "bilinear": _bilinear,
    "bilinear-noise": lambda: _bilinear(0.5),
    "bilinear-matrices": lambda: _bilinear(0.5, width=3),
    "functions": _functions,
    "functions-minibatch": _of_batches,
}


def test_every_exported_saddle_function_has_an_example():
    assert {type(make()) for make in EXAMPLES.values()} >= set(_concrete(SaddleObjective))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_saddle_function_keeps_its_contract(name, seed):
    check_saddle_objective(EXAMPLES[name](), seed=seed)


_BrokenSaddle = delegating(
    SaddleObjective, lambda: _bilinear(0.5), "value gradient batches lipschitz strong_convexity", num_examples=1
)
_MIRRORED = np.r_[np.ones(6), -np.ones(4)]


BROKEN_SADDLES = [
    ("gradient", times("gradient", _MIRRORED), "is its sign right"),
    ("gradient", _not_cleared, "is out cleared"),
    ("gradient", after("gradient", lambda g, w, b=None, out=None: g.__iadd__(0.2 * (b is not None))), "mean of"),
    ("value", times("value", -1.0), "is its sign right"),
    ("value", after("value", lambda value, w: np.float64(value)), "Python float"),
    ("lipschitz", times("lipschitz", 0.3), "lipschitz"),
    ("strong_convexity", lambda self: 30.0, "as convex"),
    ("batches", _batches(per_step=lambda rng: 1), "2 a step"),
    ("batches", _batches(rng=lambda rng: np.random.default_rng()), "same seed"),
    ("batches", _batches(lambda all, _, rng: [rng.normal(size=10) for _ in all]), "None for each full batch"),
]


@pytest.mark.parametrize(("name", "broken", "message"), BROKEN_SADDLES)
def test_the_checker_of_saddle_functions_notices(name, broken, message):
    refused(message, check_saddle_objective, type("Broken", (_BrokenSaddle,), {name: broken})(), kind=AssertionError)


def test_noise_has_its_standard_deviation_whatever_the_batch_size():
    objective = objectives.BilinearSaddle(np.ones((30, 40)), noise=0.3)
    w = np.zeros(70)
    for batch_size in (1, 32):
        work = FirstOrder(steps=200, batch_size=batch_size)
        draws = np.array([objective.gradient(w, b) for b in objective.batches(np.random.default_rng(0), work)])
        assert draws.std() == pytest.approx(0.3, rel=0.02)
        assert np.abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.03
    without = SaddleObjective.from_functions(lambda x, y: y, lambda x, y: x, x=2, y=2)
    assert without.metrics(np.array([3.0, 0.0, 0.0, 4.0])) == {"operator-norm": 5.0}
    for own, batch_size in ((objective, None), (without, 8)):
        assert list(own.batches(np.random.default_rng(0), FirstOrder(steps=3, batch_size=batch_size))) == [None] * 3


def test_functions_that_compute_in_place_change_nobodys_point():
    w = np.array([1.0, 2.0, 3.0, 5.0])
    gradients = {"grad_x": lambda x, y: np.add(x, y, out=x), "grad_y": lambda x, y: np.subtract(x, y, out=x)}
    objective = objectives.FunctionSaddle(**gradients, x=2, y=2, value=lambda x, y: x.sort() or 1.0)
    assert_array_equal(objective.gradient(w), [4.0, 7.0, 2.0, 3.0])
    objective.value(w)
    assert_array_equal(w, [1.0, 2.0, 3.0, 5.0])
