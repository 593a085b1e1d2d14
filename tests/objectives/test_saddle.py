"""Saddle-point objectives: exact solutions, shapes, errors, and what the perturbation does."""

import numpy as np
import pytest
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Product, SimplexEntropy
from flwr_fco.objectives import (
    BilinearSaddle,
    FunctionSaddle,
    MatrixGame,
    MultinomialLogistic,
    QuadraticSaddle,
    SaddleObjective,
    UniversalAdversarialLogistic,
)
from flwr_fco.regularizers import L1, L2Squared, PerParameter
from flwr_fco.work import FirstOrder


def test_the_solution_of_a_quadratic_is_a_saddle():
    """No move of x lowers f there, no move of y raises it."""
    rng = np.random.default_rng(0)
    objective = QuadraticSaddle(
        np.diag([1.0, 2.0, 3.0]),
        rng.normal(size=(2, 3)),
        np.diag([0.5, 4.0]),
        linear=rng.normal(size=3),
        offset=rng.normal(size=2),
    )
    saddle = objective.solution
    value = objective.value(saddle)
    for _ in range(50):
        move = rng.normal(size=5)
        assert objective.value(saddle + np.where(np.arange(5) < 3, move, 0.0)) > value
        assert objective.value(saddle + np.where(np.arange(5) < 3, 0.0, move)) < value


@pytest.mark.parametrize("kind", ["bilinear", "game", "quadratic"])
def test_pooled_is_the_mean_of_the_clients(kind):
    rng = np.random.default_rng(1)

    def client():
        if kind == "bilinear":
            return BilinearSaddle(rng.normal(size=(2, 3)), rng.normal(size=2))
        if kind == "game":
            return MatrixGame(rng.normal(size=(2, 3)))
        return QuadraticSaddle(np.diag(rng.random(3)), rng.normal(size=(2, 3)), np.diag(rng.random(2)))

    clients, shares, w = [client() for _ in range(3)], np.array([0.5, 0.3, 0.2]), rng.normal(size=5)
    pooled = type(clients[0]).pooled(clients, shares)
    assert pooled.value(w) == pytest.approx(sum(p * c.value(w) for p, c in zip(shares, clients, strict=True)))
    expected = sum(p * c.gradient(w) for p, c in zip(shares, clients, strict=True))
    np.testing.assert_allclose(pooled.gradient(w), expected, atol=1e-14)


def test_equal_clients_share_the_matrix():
    matrix, offset = np.ones((3, 4)), np.ones(3)
    clients = [BilinearSaddle(matrix, offset) for _ in range(3)]
    assert all(client.matrix is matrix for client in clients)
    assert BilinearSaddle.pooled(clients, np.full(3, 1 / 3)).matrix is matrix


def test_players_are_named_arrays():
    objective = BilinearSaddle(np.ones((3, 4)), np.ones((3, 2)))
    assert objective.layout.shapes == {"x": (4, 2), "y": (3, 2)}
    assert objective.split == 8
    assert (objective.min_arrays, objective.max_arrays) == (("x",), ("y",))
    adversarial = UniversalAdversarialLogistic(np.eye(3), [0, 1, 2])
    assert adversarial.min_arrays == ("coefficients", "intercept")
    assert adversarial.max_arrays == ("perturbation",)
    assert adversarial.layout.regularized_names == ("coefficients", "perturbation")


def test_a_pattern_that_matches_no_player_is_an_error():
    layout = BilinearSaddle(np.ones((3, 4))).layout
    PerParameter({"x": L1(1.0), "y": L2Squared(1.0)}).bind(layout)
    with pytest.raises(ConfigurationError, match=r"\['z'\] match no array"):
        PerParameter({"x": L1(1.0), "z": L1(1.0)}).bind(layout)
    with pytest.raises(ConfigurationError, match=r"\['y'\] match no array that is still free"):
        PerParameter({"*": L1(1.0), "y": L1(2.0)}).bind(layout)
    with pytest.raises(ConfigurationError, match="match no array"):
        Product({"*": SimplexEntropy(), "row": SimplexEntropy()}).bind(layout)


def test_noise_has_its_standard_deviation_whatever_the_batch_size():
    objective = BilinearSaddle(np.ones((30, 40)), noise=0.3)
    w = np.zeros(70)
    for batch_size in (1, 32):
        work = FirstOrder(steps=200, batch_size=batch_size)
        draws = np.array([objective.gradient(w, b) for b in objective.batches(np.random.default_rng(0), work)])
        assert draws.std() == pytest.approx(0.3, rel=0.02)
        assert np.abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.03
    assert list(objective.batches(np.random.default_rng(0), FirstOrder(steps=3, batch_size=None))) == [None] * 3


def test_batches_that_are_kept_are_different_draws():
    objective = BilinearSaddle(np.ones((2, 2)), noise=1.0)
    first, second = objective.batches(np.random.default_rng(0), FirstOrder(steps=1, batch_size=1), per_step=2)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("intercept", [True, False])
def test_an_adversarial_objective_is_logistic_regression_on_moved_examples(intercept):
    rng = np.random.default_rng(2)
    features, labels, delta = rng.normal(size=(20, 6)), rng.integers(0, 4, 20), 0.3 * rng.normal(size=6)
    adversarial = UniversalAdversarialLogistic(features, labels, num_classes=4, intercept=intercept)
    plain = MultinomialLogistic(features + delta, labels, num_classes=4, intercept=intercept)
    model = rng.normal(size=plain.layout.size)
    w = np.concatenate([model, delta])
    assert adversarial.value(w) == pytest.approx(plain.value(model), rel=1e-12)
    for batch in (None, np.array([3, 5, 7])):
        np.testing.assert_allclose(adversarial.gradient(w, batch)[:-6], plain.gradient(model, batch), atol=1e-12)
    assert np.array_equal(adversarial.predict(w), plain.predict(model))
    clean = MultinomialLogistic(features, labels, num_classes=4, intercept=intercept)
    assert np.array_equal(adversarial.predict(w, perturbed=False), clean.predict(model))
    metrics = adversarial.metrics(w)
    assert metrics["loss"] == pytest.approx(plain.metrics(model)["loss"])
    assert metrics["clean-loss"] == pytest.approx(clean.metrics(model)["loss"])
    assert metrics["clean-accuracy"] == clean.metrics(model)["accuracy"]


def test_against_the_operator_the_perturbation_raises_the_loss():
    rng = np.random.default_rng(3)
    objective = UniversalAdversarialLogistic(rng.normal(size=(30, 5)), rng.integers(0, 3, 30), num_classes=3)
    w = rng.normal(size=objective.layout.size)
    ascent = np.where(np.arange(w.size) >= objective.split, -objective.gradient(w), 0.0)
    assert objective.value(w + 1e-3 * ascent) > objective.value(w)


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


@together(
    ("make", "message"),
    [
        (lambda: BilinearSaddle(np.ones(3)), r"matrix=...\) has shape \(3,\)"),
        (lambda: BilinearSaddle(np.ones((3, 2)), np.ones(2)), r"offset=...\) has shape \(2,\)"),
        (lambda: BilinearSaddle([[np.nan]]), "NaN"),
        (lambda: BilinearSaddle(np.ones((0, 2))), "matrix"),
        (lambda: BilinearSaddle([[1.0]], noise=-1.0), "noise=-1.0"),
        (lambda: BilinearSaddle([[1.0]], num_examples=0), "num_examples=0"),
        (lambda: MatrixGame([["a"]]), "payoff"),
        (lambda: QuadraticSaddle([[-1.0]], [[1.0]], [[1.0]]), "eigenvalue -1"),
        (lambda: QuadraticSaddle(np.array([[1.0, 2.0], [0.0, 1.0]]), np.ones((1, 2)), [[1.0]]), "symmetric"),
        (lambda: QuadraticSaddle([[0.0]], [[0.0]], [[1.0]]).solution, "singular"),
        (lambda: BilinearSaddle([[1.0]]).gradient(np.zeros(3)), r"shape \(3,\), expected \(2,\)"),
        (lambda: BilinearSaddle([[1.0]]).lipschitz("l3"), "norm='l3'"),
        (lambda: UniversalAdversarialLogistic(np.eye(2), [0, 1]).gradient(np.zeros(3)), "shape"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("found", "dtype"), [([1j, 2.0], "complex128"), (["1", "2"], "<U1"), ([1.0, None], "object")], ids=str
)
def test_functions_that_return_no_real_numbers_are_refused(found, dtype):
    """NumPy would drop the imaginary part, and read the text."""
    objective = FunctionSaddle(lambda x, y: np.array(found), lambda x, y: x, x=2, y=2)
    with pytest.raises(ConfigurationError, match=f"grad_x returned dtype {dtype}; expected real numbers"):
        objective.gradient(np.ones(4))


@together(
    ("options", "message"),
    [
        ({"grad_x": None}, "grad_x is a NoneType; expected a function"),
        ({"grad_y": np.ones(2)}, "grad_y is a ndarray; expected a function"),
        ({"value": 3.0}, "value is a float; expected a function"),
        ({"x": None}, "x=None; expected the shape"),
        ({"x": 2.0}, r"x=2\.0; expected the shape"),
        ({"lipschitz": -1.0}, r"lipschitz=-1\.0"),
        ({"lipschitz": np.nan}, "lipschitz=nan"),
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
