"""A subclass is taken at its word: what it inherits never bypasses what it overrides."""

import numpy as np
import pytest
from together import together

from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Objective
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDAGT, FedDualAvg, FedMid, FeDualEx, Steps
from flwr_fco.testing import check_objective
from flwr_fco.work import FirstOrder

RNG = np.random.default_rng(0)
DATA, TARGETS = RNG.standard_normal((20, 4)), RNG.standard_normal(20)


def _shifted_value(self, w):
    return LeastSquares.value(self, w) + float(np.log(np.cosh(w)).sum())


def _shifted_gradient(self, w, batch=None, out=None):
    gradient = LeastSquares.gradient(self, w, batch, out)
    gradient += np.tanh(w)
    return gradient


#: The slope of tanh is at most 1, and never negative.
BOUND = {"lipschitz": lambda self, norm="l2": LeastSquares.lipschitz(self, norm) + 1.0}


def test_another_gradient_is_another_loss_without_the_parents_shortcuts():
    own = {"value": _shifted_value, "gradient": _shifted_gradient, **BOUND}
    objective = type("Shifted", (LeastSquares,), own)(DATA, TARGETS)
    check_objective(objective)
    assert objective.linear_data() is None
    value, gradient = objective.value_and_gradient(np.ones(5))
    assert value == objective.value(np.ones(5)) > LeastSquares(DATA, TARGETS).value(np.ones(5)) + 1.0
    assert np.array_equal(gradient, objective.gradient(np.ones(5)))
    assert not objective.quadratic
    with pytest.raises(ConfigurationError, match="Shifted does not know"):
        objective.hessian_product(*np.ones((2, 5)))


@pytest.mark.parametrize("depth", [1, 2])
def test_super_works_through_a_chain_of_overrides(depth):
    kind = LeastSquares
    for _ in range(depth):

        class Doubled(kind):
            def gradient(self, w, batch=None, out=None):
                return 2.0 * super().gradient(w, batch)

        kind = Doubled
    objective, w, batch = kind(DATA, TARGETS), np.ones(5), np.array([3, 4])
    expected = 2.0**depth * LeastSquares(DATA, TARGETS).gradient(w, batch)
    np.testing.assert_allclose(objective.gradient(w, batch), expected, rtol=1e-14)
    out = np.zeros(5)
    objective.add_gradient(w, batch, 1.0, out)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_of_a_step_in_place_the_gradient_follows():
    class Tilted(LeastSquares):
        def add_gradient(self, w, batch, scale, out):
            super().add_gradient(w, batch, scale, out)
            out += scale

    objective = Tilted(DATA, TARGETS)
    expected = LeastSquares(DATA, TARGETS).gradient(np.zeros(5)) + 1.0
    np.testing.assert_allclose(objective.gradient(np.zeros(5)), expected, rtol=1e-14)
    assert objective.linear_data() is None


def test_another_value_is_the_loss_that_is_reported():
    class Lowered(LeastSquares):
        def value(self, w):
            return super().value(w) - 5.0

    objective = Lowered(DATA, TARGETS)
    assert objective.metrics(np.zeros(5)) == {"loss": LeastSquares(DATA, TARGETS).value(np.zeros(5)) - 5.0}


def test_a_mixin_is_an_override_too():
    class Tilted:
        def gradient(self, w, batch=None, out=None):
            return super().gradient(w, batch) + 1.0

    class Own(Tilted, LeastSquares):
        pass

    objective, out = Own(DATA, TARGETS), np.zeros(5)
    objective.add_gradient(np.zeros(5), None, 1.0, out)
    np.testing.assert_allclose(out, LeastSquares(DATA, TARGETS).gradient(np.zeros(5)) + 1.0, rtol=1e-14)
    assert objective.linear_data() is None


def test_what_is_not_overridden_is_kept():
    class Reported(LeastSquares):
        def metrics(self, w):
            return super().metrics(w) | {"size": float(np.abs(w).sum())}

    for name in (
        "gradient",
        "add_gradient",
        "value_and_gradient",
        "hessian_product",
        "hessian_block",
        "along",
        "linear_data",
    ):
        assert getattr(Reported, name) is getattr(LeastSquares, name)
    assert Reported(DATA, TARGETS).linear_data().link == "identity"


class _Bare(Objective):
    """The smallest objective: 1/2 ||w||^2."""

    def __init__(self):
        self.layout, self.num_examples = LeastSquares(DATA, TARGETS).layout, 3

    def value(self, w):
        return 0.5 * float(w @ w)

    def gradient(self, w, batch=None, out=None):
        return w.copy()


def test_a_bare_objective_says_what_it_does_not_know():
    objective, w = _Bare(), np.ones(5)
    value, gradient = objective.value_and_gradient(w)
    assert (value, gradient.tolist()) == (2.5, [1.0] * 5)
    assert objective.linear_data() is None
    for ask in (
        objective.lipschitz,
        objective.strong_convexity,
        lambda: objective.hessian_product(w, w),
        lambda: objective.along(w, w).curvature(1.0)(w),
        lambda: objective.value_and_gradient(w, np.array([0])),
    ):
        with pytest.raises(ConfigurationError, match="_Bare does not know its"):
            ask()


def test_without_buffers_none_are_taken():
    objective = _Bare()
    assert objective.buffers() == {}
    objective.load_buffers({})
    with pytest.raises(ConfigurationError, match=r"\['count'\]; _Bare has none"):
        objective.load_buffers({"count": np.array(3)})


class Centre(Objective):
    """The mean of ||w - 1||^2 / 2, with what a test would have of it."""

    def __init__(self, num_examples=10, change=lambda gradient: gradient):
        self.layout = Layout.from_arrays({"coefficients": np.zeros(3)})
        self.num_examples, self.change = num_examples, change

    def value(self, w):
        return 0.5 * float((w - 1.0) @ (w - 1.0))

    def gradient(self, w, batch=None, out=None):
        return self.change(w - 1.0)


def _train(objective, strategy):
    options = {"num_nodes": 2, "num_rounds": 2, "initial_arrays": {"coefficients": np.zeros(3)}, "progress": False}
    return simulate(strategy, client_app(lambda context: objective), **options)


@together("make", [FedDualAvg, FedMid, FeDualEx])
@together("change", [np.sum, lambda g: g[:1], lambda g: g[:, None], lambda g: None])
def test_a_gradient_of_another_shape_is_refused_and_not_stretched(make, change):
    with pytest.raises(ClientError, match=r"ConfigurationError .* the gradient has shape .*; expected \(3,\)"):
        _train(Centre(change=change), make(client_lr=0.1, work=Steps(2), fraction_evaluate=0.0))


@together("count", [0, -1, 2.5, None, True, "3"])
@together("batch_size", [None, 4])
def test_a_client_without_examples_is_named_and_does_not_go_on_for_ever(count, batch_size):
    strategy = FedDualAvg(client_lr=0.1, work=Steps(2, batch_size=batch_size), fraction_evaluate=0.0)
    with pytest.raises(ClientError, match=rf"num_examples={count!r}; expected a whole number >= 1"):
        _train(Centre(count), strategy)


def test_minibatches_of_no_rows_are_an_error():
    with pytest.raises(ConfigurationError, match="num_examples=0"):
        list(Centre(0).batches(np.random.default_rng(0), FirstOrder(steps=2, batch_size=4)))


def test_a_float32_gradient_counts_in_every_round_of_gradient_tracking():
    """In the round of first gradients too, whose replies were left out for their dtype."""
    options = {"client_lr": 0.1, "work": Steps(2), "fraction_evaluate": 0.0}
    results = [
        _train(Centre(change=change), FedDAGT(**options))
        for change in (lambda g: g.astype(np.float32), lambda g: g.astype(np.float32).astype(np.float64))
    ]
    assert [result.left_out for result in results] == [[], []]
    np.testing.assert_allclose(*(result.arrays["coefficients"].numpy() for result in results), rtol=1e-7)
