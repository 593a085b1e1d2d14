"""The saddle-point problems' data: the mean over clients, ranks, starts, one client at a time."""

import numpy as np
import pytest

from flwr_fco.datasets import digits
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle
from reproduction.data.saddle import (
    AdversarialImages,
    low_rank_bilinear,
    matrix_games,
    quadratic_saddles,
    sparse_bilinear,
)
from reproduction.data.saddle_objectives import QuadraticSaddle


@pytest.mark.parametrize("make", [sparse_bilinear, low_rank_bilinear, matrix_games, quadratic_saddles])
@pytest.mark.parametrize("num_clients", [1, 4, 5])
def test_the_clients_differ_around_their_mean(make, num_clients):
    data = make(num_clients, rows=3, columns=5, spread=0.7, seed=2)
    clients = [data.client(index) for index in range(num_clients)]
    np.testing.assert_allclose(np.mean([c.features for c in clients], axis=0), data.matrix, atol=1e-14)
    if data.kind != "game":
        np.testing.assert_allclose(np.mean([c.targets for c in clients], axis=0), data.offset, atol=1e-14)
    if num_clients > 1:
        assert np.abs(clients[0].features - data.matrix).max() > 0.1
    if num_clients > 3:
        assert not np.array_equal(clients[0].features, clients[2].features)
    again = make(num_clients, rows=3, columns=5, spread=0.7, seed=2)
    assert np.array_equal(again.client(num_clients - 1).features, clients[-1].features)


def test_the_papers_sizes_ranks_and_starts():
    data = low_rank_bilinear()
    objective = data.objective(0)
    assert isinstance(objective, BilinearSaddle)
    assert objective.layout.shapes == {"x": (600, 20), "y": (300, 20)}
    assert np.linalg.matrix_rank(data.offset) == 10
    start = data.start(0)
    assert {name: array.shape for name, array in start.items()} == objective.layout.shapes
    assert 0.99 < np.abs(start["x"]).max() <= 1.0
    sparse = sparse_bilinear()
    assert sparse.objective(0).layout.shapes == {"x": (600,), "y": (300,)}
    assert np.abs(sparse.start(1)["x"]).max() <= 0.05
    assert not np.array_equal(sparse.start(1)["x"], sparse.start(2)["x"])
    assert (np.abs(sparse.matrix).max(), np.abs(sparse.offset).max()) <= (1.0, 1.0)


def test_games_start_at_the_uniform_distributions():
    data = matrix_games(2, rows=3, columns=4)
    assert np.shares_memory(data.objective(0).matrix, data.objective(1).matrix)
    assert {name: array.sum() for name, array in data.start().items()} == pytest.approx({"x": 1.0, "y": 1.0})
    assert data.objective(0).layout.shapes == {"x": (3,), "y": (4,)}


def test_quadratics_are_bilinear_functions_with_curvature_for_both_players():
    data = quadratic_saddles(2, rows=3, columns=4, curvature=0.5, spread=0.3)
    curved, own = data.objective(1), data.client(1)
    assert isinstance(curved, QuadraticSaddle)
    plain = BilinearSaddle(own.features, own.targets)
    w = data.objective(0).layout.flatten(data.start())
    x, y = w[:4], w[4:]
    assert curved.value(w) == pytest.approx(plain.value(w) + 0.25 * (x @ x) - 0.25 * (y @ y))
    assert curved.noise == 0.1
    assert 0.05 < np.abs(w).max() <= 1.0
    with pytest.raises(ConfigurationError, match="curvature=0"):
        quadratic_saddles(2, curvature=0.0)


def test_adversarial_images_are_those_of_the_classification():
    images = digits(num_clients=3)
    data = AdversarialImages(images)
    assert data.num_clients == 3
    objective = data.objective(1, intercept=False)
    assert objective.layout.shapes == {"coefficients": (64, 10), "perturbation": (64,)}
    assert objective.num_examples == images.client(1).targets.size
    zero = np.zeros(objective.layout.size)
    assert objective.value(zero) == pytest.approx(np.log(10.0))
    test = data.test_objective()
    assert test.num_examples == images.test.targets.size
    model = np.random.default_rng(0).normal(size=test.layout.size)
    model[test.split :] = 0.0
    assert test.metrics(model)["loss"] == pytest.approx(images.test_objective().value(model[: test.split]))
