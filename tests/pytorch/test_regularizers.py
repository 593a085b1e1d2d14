"""The proximal maps on tensors are the NumPy ones, for every regularizer."""

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from examples_of_psi import EXAMPLES

from flwr_fco import regularizers as psis
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared, Nuclear
from flwr_fco.regularizers.separable import Separable
from flwr_fco.torch import DualAveraging, tensor_prox

RNG = np.random.default_rng(5)
SHAPE = (6, 4)
WEIGHTS = np.where(RNG.random(SHAPE) < 0.2, 0.0, RNG.uniform(0.1, 3.0, SHAPE))
ROWS = np.arange(6)[:, None]


@dataclass(frozen=True)
class Lopsided(Separable):
    """An author's own psi, which says its terms and nothing else."""

    kind = "test-lopsided"
    strength: float

    def terms(self):
        return psis.Terms(self.strength, 0.5 * WEIGHTS, lower=-0.25)


@pytest.mark.parametrize(("psi", "shape"), [*EXAMPLES, (Lopsided(0.4), SHAPE)])
def test_the_map_is_that_of_numpy(psi, shape):
    rng = np.random.default_rng(0)
    signs = np.where(rng.random(shape) < 0.5, -1.0, 1.0)
    points = [size * rng.normal(size=shape) for size in (1e-3, 0.3, 1.0, 10.0, 1e4)]
    for point in [*points, np.zeros(shape), np.ones(shape), signs, np.maximum(signs, 0.0) * points[1]]:
        parameter = torch.nn.Parameter(torch.tensor(point))
        for step in (0.0, 1e-3, 0.3, 1.0, 7.0, 1e3):
            expected = psi.prox(point, step)
            found = tensor_prox(psi, parameter)(parameter, step).detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12 * np.abs(expected).max())
            assert not np.signbit(found[found == 0.0]).any()
            if psi.of_values() is None:
                assert ((found == 0.0) == (expected == 0.0)).all()
        assert np.array_equal(parameter.detach().numpy(), point), "the argument has been changed"
    tensor = torch.tensor(points[2], dtype=torch.float32)
    found = tensor_prox(psi, tensor)(tensor, 0.5)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), psi.prox(tensor.double().numpy(), 0.5), atol=3e-6)
    tensor.view(-1)[-1] = np.nan
    assert bool(tensor_prox(psi, tensor)(tensor, 0.5).isnan().any())


@pytest.mark.parametrize("psi", [L1(0.4), L2Squared(0.4, weights=WEIGHTS), ElasticNet(0.4), Box(-0.3, 0.4)])
def test_a_map_of_terms_can_be_differentiated(psi):
    parameter = torch.nn.Parameter(torch.tensor(np.random.default_rng(7).normal(size=SHAPE)))
    assert torch.autograd.gradcheck(lambda v: tensor_prox(psi, v)(v, 0.5), (parameter,))


@pytest.mark.parametrize("reshape", ["first", "last"])
def test_a_filter_bank_is_read_as_a_matrix(reshape):
    point = np.random.default_rng(2).normal(size=(5, 3, 2, 2))
    psi = Nuclear(0.3, reshape=reshape)
    tensor = torch.tensor(point)
    np.testing.assert_allclose(tensor_prox(psi, tensor)(tensor, 0.5).numpy(), psi.prox(point, 0.5), atol=1e-12)


def test_any_psi_acts_in_an_optimiser():
    for psi in (psis.L1Ball(0.5), Lopsided(0.4)):
        w = torch.nn.Parameter(torch.ones(SHAPE, dtype=torch.float64))
        DualAveraging([w], 0.5, psi).step()
        np.testing.assert_allclose(w.detach().numpy(), psi.prox(np.ones(SHAPE), 0.5), atol=1e-13)


@pytest.mark.parametrize("psi", [Nuclear(1.0), L1(1.0, weights=np.ones(7)), GroupLasso(1.0, groups=np.arange(7))])
def test_a_shape_that_psi_cannot_act_on_is_refused(psi):
    with pytest.raises(ConfigurationError):
        tensor_prox(psi, torch.zeros(3))
