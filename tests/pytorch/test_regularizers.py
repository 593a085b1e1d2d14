"""The proximal maps on tensors are the NumPy ones, for every class that has one."""

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
    Simplex,
    SparseGroupLasso,
    SpectralBall,
    Zero,
)
from flwr_fco.torch import supported_regularizers, tensor_prox

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
    L2(0.7),
    L2Ball(1.3),
    L1Ball(2.0),
    L1Ball(2.0, weights=WEIGHTS),
    Simplex(1.5),
    GroupLasso(0.7, groups=ROWS),
    GroupLasso(0.7, groups=RNG.integers(0, 5, SHAPE), weights=np.array([0.0, 0.5, 1.0, 2.0, 3.0, 1.0])),
    SparseGroupLasso(0.7, groups=ROWS, l1_ratio=0.4),
    Nuclear(0.7),
    Nuclear(0.7, bound=1.1),
    NuclearBall(2.0),
    SpectralBall(1.1),
    HardSparsity(5),
]
STEPS = (0.0, 1e-3, 0.3, 1.0, 7.0, 1e3)


def _points():
    rng = np.random.default_rng(0)
    yield from (size * rng.normal(size=SHAPE) for size in (1e-3, 0.3, 1.0, 10.0, 1e4))
    yield np.zeros(SHAPE)
    yield np.ones(SHAPE)
    yield np.where(rng.random(SHAPE) < 0.5, -1.0, 1.0)
    yield np.where(rng.random(SHAPE) < 0.5, 0.0, rng.normal(size=SHAPE))


def test_every_supported_class_is_among_the_cases():
    ours = {getattr(regularizers, name) for name in regularizers.__all__}
    assert {type(psi) for psi in CASES} == set(supported_regularizers()) & ours


@together("psi", CASES)
def test_the_map_is_that_of_numpy_in_float64(psi):
    for point in _points():
        tensor = torch.tensor(point)
        given = tensor.clone()
        for step in STEPS:
            expected = psi.prox(point, step)
            found = tensor_prox(psi, tensor)(tensor, step).numpy()
            # 1e-12 of the result; a projection from far away, of what it is projected from too.
            size = max(np.abs(expected).max(), 1e-4 * np.abs(point).max())
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12 * size, err_msg=f"{psi} {step}")
            assert not np.signbit(found[found == 0.0]).any()
            if not isinstance(psi, Nuclear | NuclearBall | SpectralBall):
                assert ((found == 0.0) == (expected == 0.0)).all()
        assert torch.equal(tensor, given), "the argument has been changed"


@together("psi", CASES)
def test_a_float32_tensor_stays_float32_and_loses_only_its_rounding(psi):
    point = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    tensor = torch.tensor(point)
    found = tensor_prox(psi, tensor)(tensor, 0.5)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), psi.prox(point.astype(np.float64), 0.5), atol=3e-6)


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


@together("psi", CASES)
def test_nan_is_not_hidden(psi):
    point = torch.ones(SHAPE, dtype=torch.float64)
    point[1, 1] = np.nan
    assert bool(tensor_prox(psi, point)(point, 0.5).isnan().any())


@pytest.mark.parametrize("psi", [Nuclear(0.3, reshape="first"), NuclearBall(1.0, reshape="last")], ids=str)
def test_a_filter_bank_is_read_as_a_matrix(psi):
    point = np.random.default_rng(2).normal(size=(5, 3, 2, 2))
    tensor = torch.tensor(point)
    np.testing.assert_allclose(tensor_prox(psi, tensor)(tensor, 0.5).numpy(), psi.prox(point, 0.5), atol=1e-12)


def test_a_projection_from_far_away_keeps_its_digits():
    point = 1e12 + np.random.default_rng(3).normal(size=1000)
    tensor = torch.tensor(point)
    for psi in (L1Ball(1.0), Simplex(1.0)):
        found = tensor_prox(psi, tensor)(tensor, 1.0).numpy()
        np.testing.assert_allclose(found, psi.prox(point, 1.0), atol=1e-12)
        assert abs(found.sum() - 1.0) < 1e-12


def test_a_subclass_does_not_get_the_map_of_its_parent_and_is_told_what_has_one():
    class Louder(L1):
        kind = "test-louder-l1"

    with pytest.raises(ConfigurationError, match=r"Louder has no proximal map on tensors; .*L1Ball.*TorchObj"):
        tensor_prox(Louder(1.0), torch.zeros(3))


@pytest.mark.parametrize("psi", [Nuclear(1.0), L1(1.0, weights=np.ones(7)), GroupLasso(1.0, groups=np.arange(7))])
def test_a_shape_that_psi_cannot_act_on_is_refused(psi):
    with pytest.raises(ConfigurationError):
        tensor_prox(psi, torch.zeros(3))
