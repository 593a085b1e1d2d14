"""Saddle-point objectives: shapes, noise, errors."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, FunctionSaddle, SaddleObjective
from flwr_fco.work import FirstOrder


def test_noise_has_its_standard_deviation_whatever_the_batch_size():
    objective = BilinearSaddle(np.ones((30, 40)), noise=0.3)
    w = np.zeros(70)
    for batch_size in (1, 32):
        work = FirstOrder(steps=200, batch_size=batch_size)
        draws = np.array([objective.gradient(w, b) for b in objective.batches(np.random.default_rng(0), work)])
        assert draws.std() == pytest.approx(0.3, rel=0.02)
        assert np.abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.03
    assert list(objective.batches(np.random.default_rng(0), FirstOrder(steps=3, batch_size=None))) == [None] * 3


def test_functions_without_a_value_say_so():
    objective = SaddleObjective.from_functions(lambda x, y: y, lambda x, y: x, x=2, y=2)
    assert objective.metrics(np.array([3.0, 0.0, 0.0, 4.0])) == {"operator-norm": 5.0}
    with pytest.raises(ConfigurationError, match="value="):
        objective.value(np.zeros(4))
    with pytest.raises(ConfigurationError, match="Lipschitz"):
        objective.lipschitz()
    assert list(objective.batches(np.random.default_rng(0), FirstOrder(steps=2, batch_size=8))) == [None, None]


def test_functions_of_wrong_shapes_are_refused():
    objective = FunctionSaddle(lambda x, y: y, lambda x, y: x[:1], x=2, y=2)
    with pytest.raises(ConfigurationError, match=r"grad_y returned shape \(1,\); expected \(2,\)"):
        objective.gradient(np.zeros(4))
    for bad in (0, -1, (2, 0), True, (True,)):
        with pytest.raises(ConfigurationError, match="x="):
            FunctionSaddle(lambda x, y: y, lambda x, y: x, x=bad, y=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BilinearSaddle(np.ones(3)), r"matrix has shape \(3,\)"),
        (lambda: BilinearSaddle(np.ones((3, 2)), np.ones(2)), r"offset has shape \(2,\)"),
        (lambda: BilinearSaddle([[np.nan]]), r"matrix\[0, 0\] is nan"),
        (lambda: BilinearSaddle([[1.0]], noise=-1.0), "noise=-1.0"),
        (lambda: BilinearSaddle([[1.0]], num_examples=0), "num_examples=0"),
        (lambda: BilinearSaddle([[1.0]]).gradient(np.zeros(3)), r"shape \(3,\), expected \(2,\)"),
        (lambda: BilinearSaddle([[1.0]]).lipschitz("l3"), "norm='l3'"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grad_x": None}, "grad_x is a NoneType; expected a function"),
        ({"grad_y": np.ones(2)}, "grad_y is a ndarray; expected a function"),
        ({"value": 3.0}, "value is a float; expected a function"),
        ({"x": 2.0}, r"x=2\.0; expected the shape"),
        ({"lipschitz": -1.0}, r"lipschitz=-1\.0"),
        ({"lipschitz": "1"}, "lipschitz='1'"),
    ],
)
def test_arguments_of_functions_are_looked_at(options, message):
    with pytest.raises(ConfigurationError, match=message):
        SaddleObjective.from_functions(
            **{"grad_x": lambda x, y: y, "grad_y": lambda x, y: x, "x": 2, "y": 2, **options}
        )


@pytest.mark.parametrize("answer", [None, "high", np.ones(2)], ids=str)
def test_a_value_is_a_number(answer):
    objective = FunctionSaddle(lambda x, y: y, lambda x, y: x, x=2, y=2, value=lambda x, y: answer)
    with pytest.raises(ConfigurationError, match=f"value returned a {type(answer).__name__}; expected a number"):
        objective.value(np.ones(4))


def test_functions_that_compute_in_place_change_nobodys_point():
    def grad_x(x, y):
        x += y
        return x

    def grad_y(x, y):
        x -= y
        return x

    w = np.array([1.0, 2.0, 3.0, 5.0])
    objective = FunctionSaddle(grad_x, grad_y, x=2, y=2, value=lambda x, y: x.sort() or 1.0)
    np.testing.assert_array_equal(objective.gradient(w), [4.0, 7.0, 2.0, 3.0])
    objective.value(w)
    np.testing.assert_array_equal(w, [1.0, 2.0, 3.0, 5.0])
