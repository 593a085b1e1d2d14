"""The proximal maps on tensors are the NumPy ones, for every class that has one."""

from dataclasses import dataclass

import numpy as np
import pytest
from together import together

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch

from flwr_fco import regularizers
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import (
    L1,
    L2,
    Adapter,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NonNegative,
    Nuclear,
    NuclearBall,
    Separable,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
    Terms,
    Zero,
)
from flwr_fco.torch import DualAveraging, tensor_prox

RNG = np.random.default_rng(5)
SHAPE = (6, 4)
WEIGHTS = np.where(RNG.random(SHAPE) < 0.2, 0.0, RNG.uniform(0.1, 3.0, SHAPE))
ROWS = np.arange(6)[:, None]

CASES = [
    Zero(),
    L1(0.7),
    L1(0.7, weights=WEIGHTS),
    L1(0.7, bound=0.8),
    L1(0.7, weights=WEIGHTS, bound=0.8),
    L2Squared(0.7),
    L2Squared(0.7, weights=WEIGHTS),
    ElasticNet(0.7, 0.3),
    ElasticNet(0.7, 0.3, weights=WEIGHTS),
    ElasticNet(0.7, 0.3, weights=WEIGHTS, scales=2.0 * WEIGHTS),
    ElasticNet(0.7, 0.0),
    Box(-0.5, 0.8),
    Box(0.3, 0.8),
    Box(-WEIGHTS, 2.0 * WEIGHTS),
    Box(-np.inf, 0.5),
    NonNegative(),
    LInfinityBall(0.9),
    GroupLasso(0.7, groups=ROWS),
    GroupLasso(0.7, groups=RNG.integers(0, 5, SHAPE), weights=np.array([0.0, 0.5, 1.0, 2.0, 3.0, 1.0])),
    SparseGroupLasso(0.7, groups=ROWS, l1_ratio=0.4),
    Nuclear(0.7),
    Nuclear(0.7, bound=1.1),
    HardSparsity(5),
    L2(0.7),
    L1Ball(1.5),
    L1Ball(1.5, weights=WEIGHTS),
    L2Ball(0.8),
    Simplex(1.2),
    NuclearBall(1.5),
    SpectralBall(0.6),
]
STEPS = (0.0, 1e-3, 0.3, 1.0, 7.0, 1e3)


def _points():
    rng = np.random.default_rng(0)
    yield from (size * rng.normal(size=SHAPE) for size in (1e-3, 0.3, 1.0, 10.0, 1e4))
    yield np.zeros(SHAPE)
    yield np.ones(SHAPE)
    yield np.where(rng.random(SHAPE) < 0.5, -1.0, 1.0)
    yield np.where(rng.random(SHAPE) < 0.5, 0.0, rng.normal(size=SHAPE))


@dataclass(frozen=True)
class NonNegativeL1(Separable):
    kind = "test-tensor-l1"
    strength: float

    def terms(self):
        return Terms(threshold=self.strength, lower=0.0)


def test_every_class_of_one_array_is_among_the_cases():
    ours = {getattr(regularizers, name) for name in regularizers.__all__}
    ours = {cls for cls in ours if getattr(cls, "kind", "") and not cls.by_name}
    assert ours - {Adapter} == {type(psi) for psi in CASES}


@together("psi", CASES)
def test_the_map_is_that_of_numpy_in_float64(psi):
    for point in _points():
        tensor = torch.tensor(point)
        given = tensor.clone()
        for step in STEPS:
            expected = psi.prox(point, step)
            found = tensor_prox(psi, tensor)(tensor, step).numpy()
            size = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12 * size, err_msg=f"{psi} {step}")
            assert not np.signbit(found[found == 0.0]).any()
            if not psi.of_values() is not None:
                assert ((found == 0.0) == (expected == 0.0)).all()
        assert torch.equal(tensor, given), "the argument has been changed"


@together("psi", CASES)
def test_a_float32_tensor_stays_float32_and_loses_only_its_rounding_and_nan_is_not_hidden(psi):
    point = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    tensor = torch.tensor(point)
    found = tensor_prox(psi, tensor)(tensor, 0.5)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), psi.prox(point.astype(np.float64), 0.5), atol=3e-6)
    tensor[1, 1] = np.nan
    assert bool(tensor_prox(psi, tensor)(tensor, 0.5).isnan().any())


@together("psi", CASES)
def test_a_parameter_has_the_map_of_its_values_also_where_gradients_are_recorded(psi):
    values = torch.tensor(np.random.default_rng(7).normal(size=SHAPE))
    parameter = torch.nn.Parameter(values.clone())
    solve = tensor_prox(psi, parameter)
    with torch.no_grad():
        expected = solve(values, 0.5)
    found = solve(parameter, 0.5)
    assert torch.equal(found.detach(), expected)
    assert torch.equal(parameter.detach(), values), "the parameter has been changed"
    if isinstance(psi, L1 | L2Squared | ElasticNet | Box):
        assert torch.autograd.gradcheck(lambda v: solve(v, 0.5), (parameter,))


@pytest.mark.parametrize("reshape", ["first", "last"])
def test_a_filter_bank_is_read_as_a_matrix(reshape):
    point, psi = np.random.default_rng(2).normal(size=(5, 3, 2, 2)), Nuclear(0.3, reshape=reshape)
    tensor = torch.tensor(point)
    np.testing.assert_allclose(tensor_prox(psi, tensor)(tensor, 0.5).numpy(), psi.prox(point, 0.5), atol=1e-12)


def test_an_own_sum_over_coordinates_is_on_tensors_what_it_is_in_numpy():
    optimizer = DualAveraging([torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))], 0.5, NonNegativeL1(1.0))
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0].tolist() == [[0.5, 0.0]]


@pytest.mark.parametrize("psi", [Nuclear(1.0), L1(1.0, weights=np.ones(7)), GroupLasso(1.0, groups=np.arange(7))])
def test_a_shape_that_psi_cannot_act_on_is_refused(psi):
    with pytest.raises(ConfigurationError):
        tensor_prox(psi, torch.zeros(3))
