"""The saddle-point problems' data: the mean over clients, ranks, starts, one client at a time."""

import numpy as np
import pytest

from flwr_fco.datasets import digits
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle
from reproduction.data.saddle import AdversarialImages, SyntheticSaddle


@pytest.mark.parametrize("kind", ["sparse", "low-rank", "game", "quadratic"])
@pytest.mark.parametrize("num_clients", [1, 4, 5])
def test_the_clients_differ_around_their_mean(kind, num_clients):
    data, again = (SyntheticSaddle(kind, num_clients, rows=3, columns=5, spread=0.7, seed=2) for _ in range(2))
    clients = [data.client(index) for index in range(num_clients)]
    np.testing.assert_allclose(np.mean([c.features for c in clients], axis=0), data.matrix, atol=1e-14)
    if kind != "game":
        np.testing.assert_allclose(np.mean([c.targets for c in clients], axis=0), data.offset, atol=1e-14)
    if num_clients > 1:
        assert np.abs(clients[0].features - data.matrix).max() > 0.1
        assert np.abs(clients[0].features - clients[2].features).max() > 0.1
    assert np.array_equal(again.client(num_clients - 1).features, clients[-1].features)


def test_the_papers_sizes_ranks_and_starts():
    data = SyntheticSaddle("low-rank")
    assert data.objective(0).layout.shapes == {"x": (600, 20), "y": (300, 20)}
    assert np.linalg.matrix_rank(data.offset) == 10
    start = data.start(0)
    assert {name: array.shape for name, array in start.items()} == data.objective(0).layout.shapes
    assert 0.99 < np.abs(start["x"]).max() <= 1.0
    sparse = SyntheticSaddle("sparse")
    assert sparse.objective(0).layout.shapes == {"x": (600,), "y": (300,)}
    assert np.abs(sparse.start(1)["x"]).max() <= 0.05
    assert not np.array_equal(sparse.start(1)["x"], sparse.start(2)["x"])
    assert (np.abs(sparse.matrix).max(), np.abs(sparse.offset).max()) <= (1.0, 1.0)
    game = SyntheticSaddle("game", 2, rows=3, columns=4)
    assert np.shares_memory(game.objective(0).matrix, game.objective(1).matrix)
    assert {name: array.sum() for name, array in game.start().items()} == pytest.approx({"x": 1.0, "y": 1.0})


def test_quadratics_are_bilinear_functions_with_curvature_for_both_players():
    data = SyntheticSaddle("quadratic", 2, rows=3, columns=4, curvature=0.5, spread=0.3)
    curved = data.objective(1)
    plain = BilinearSaddle(*data.client(1))
    w = curved.layout.flatten(data.start())
    assert curved.value(w) == pytest.approx(plain.value(w) + 0.25 * (w[:4] @ w[:4]) - 0.25 * (w[4:] @ w[4:]))
    assert curved.noise == 0.1
    with pytest.raises(ConfigurationError, match="curvature=0"):
        SyntheticSaddle("quadratic", curvature=0.0)


def test_adversarial_images_are_those_of_the_classification():
    images = digits(num_clients=3)
    data = AdversarialImages(images)
    objective = data.objective(1, intercept=False)
    test = data.test_objective()
    assert objective.layout.shapes == {"coefficients": (64, 10), "perturbation": (64,)}
    assert objective.num_examples == images.client(1).targets.size
    model = np.random.default_rng(0).normal(size=test.layout.size)
    model[test.split :] = 0.0
    assert test.metrics(model)["loss"] == pytest.approx(images.test_objective().value(model[: test.split]))
