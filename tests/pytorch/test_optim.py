"""The optimisers and proximal maps on tensors: as in NumPy, with PyTorch's own habits; test_client.py has the loops."""

import copy
import io
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from examples_of_psi import EXAMPLES
from problems import refused
from torch import nn

from flwr_fco import regularizers as psis
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, HardSparsity, Nuclear, PerParameter, Zero
from flwr_fco.torch import DualAveraging, ProximalSGD, tensor_prox

# --- proximal maps ---------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
SHAPE = (6, 4)
WEIGHTS = np.where(RNG.random(SHAPE) < 0.2, 0.0, RNG.uniform(0.1, 3.0, SHAPE))


@dataclass(frozen=True)
class Lopsided(psis.Separable):
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


@pytest.mark.parametrize("psi", [L1(0.4), psis.L2Squared(0.4, weights=WEIGHTS), ElasticNet(0.4), Box(-0.3, 0.4)])
def test_a_map_of_terms_can_be_differentiated(psi):
    parameter = torch.nn.Parameter(torch.tensor(np.random.default_rng(7).normal(size=SHAPE)))
    assert torch.autograd.gradcheck(lambda v: tensor_prox(psi, v)(v, 0.5), (parameter,))


# --- precision -------------------------------------------------------------------------------------------------------


def test_duals_in_float64_hold_a_small_weight_beside_a_large_threshold():
    """t * strength is 1e5, the weights are of size 1e-2: float32 has no digits for that."""
    w = nn.Parameter(torch.zeros(50, 2))
    optimizer = DualAveraging([w], lr=1.0, regularizer=L1(1.0))
    optimizer.start_from({"0": np.full((50, 2), 1e5 + 0.01)}, elapsed=1e5)
    assert float((w.detach() - 0.01).abs().max()) < 1e-8
    optimizer.step()  # without a gradient, which is the gradient 0: psi still acts
    assert not w.any()
    optimizer.param_groups[0]["regularizer"] = Zero()  # as a user changes a rate
    optimizer.step()
    assert bool((w > 1e5).all())
    assert not optimizer.increments()["0"].any()


@pytest.mark.parametrize(
    ("psi", "shape", "scale"), [(Zero(), (40, 30), 1.0), (L1(0.3), (400, 500), 1.0), (L1(300.0), (40, 30), 1e3)]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_increments_in_float32_lose_no_digits_to_a_large_dual(psi, shape, scale, momentum):
    rng = np.random.default_rng(1)
    dual = {"weight": rng.standard_normal(shape), "bias": rng.standard_normal(shape[0])}
    dual = {name: (scale * part).astype(np.float32) for name, part in dual.items()}
    found = []
    for single in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(shape[1], shape[0])
        x, y = torch.randn(64, shape[1]), torch.randn(64, shape[0])
        optimizer = DualAveraging(layer.named_parameters(), lr=0.05, regularizer=psi, momentum=momentum)
        optimizer.start_from(dual, elapsed=3.0, single=single)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.mse_loss(layer(x), y).backward()
            optimizer.step()
        found.append((optimizer.elapsed, optimizer.increments(), layer))
    (time, exact, wide), (own_time, own, narrow) = found
    assert own_time == time
    for name, increment in exact.items():
        assert own[name].dtype == torch.float32
        assert float((own[name].double() - increment).norm() / increment.norm()) < 2e-4
    torch.testing.assert_close([*narrow.parameters()], [*wide.parameters()], rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "psi", [Zero(), ElasticNet(0.4, 0.3), Box(-0.1, 0.2), L1(0.4, bound=0.3), HardSparsity(9), psis.L1Ball(50.0)]
)
def test_large_tensors_are_taken_in_parts_where_psi_allows(psi):
    rng = np.random.default_rng(0)
    start, gradient = rng.normal(size=(600, 300)), rng.normal(size=(600, 300))
    w = nn.Parameter(torch.tensor(start))
    w.grad = torch.tensor(gradient)
    optimizer = DualAveraging([w], 0.1, psi)
    optimizer.step()
    optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), psi.prox(start - 0.2 * gradient, 0.2), rtol=0, atol=1e-13)


# --- momentum --------------------------------------------------------------------------------------------------------


def test_with_momentum_the_weight_of_psi_counts_gradients_as_the_dual_does():
    w = nn.Parameter(torch.zeros(1, 1))
    optimizer = DualAveraging([w], lr=0.5, momentum=0.5)
    for gradient in (torch.ones(1, 1), None, torch.ones(1, 1)):
        w.grad = gradient  # None, as of a layer that a batch does not reach, is 0
        optimizer.step()
    # Velocities 1, 0.5, 1.25; of gradients that are all there 1, 1.5, 1.75.
    assert (optimizer.elapsed, w.item()) == (0.5 * 4.25, -0.5 * 2.75)


# --- PyTorch's habits ------------------------------------------------------------------------------------------------


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).to(dtype)


def train(model, optimizer, steps):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, 4, generator=generator).to(next(model.parameters()).dtype)
    y = torch.randint(0, 3, (20,), generator=generator)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


KINDS = [(DualAveraging, {}), (ProximalSGD, {}), (DualAveraging, {"momentum": 0.9})]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_without_psi_or_where_it_is_frozen_it_is_sgd(kind, options):
    ours = network(torch.float64)
    ours[3].weight.requires_grad_(False)
    theirs = copy.deepcopy(ours)
    train(ours, kind(ours.named_parameters(), 0.1, L1(9.0), apply_to="3.weight", **options), 7)
    train(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1, **options), 7)
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=0, atol=1e-13)


def test_a_layer_has_a_psi_by_pattern_and_a_group_one_for_all_it_has():
    model = network()
    # By default it acts on matrices, and leaves biases and batch normalisation alone.
    plain = ProximalSGD(model.named_parameters(), 0.1, L1(1.0))
    assert list(plain.regularizers.values()) == [L1(1.0), None, None, None, L1(1.0), None]
    psi = PerParameter({"0.*": L1(1.0), "3.weight": Nuclear(0.5)})
    optimizer = DualAveraging(model.named_parameters(), 0.1, psi, apply_to="*")
    assert list(optimizer.regularizers.values()) == [L1(1.0), L1(1.0), None, None, Nuclear(0.5), None]
    groups = [{"params": [model[0].weight, model[3].weight]}, {"params": [model[0].bias], "regularizer": L1(2.0)}]
    assert list(DualAveraging(groups, 0.1, L1(1.0)).regularizers.values()) == [L1(1.0), L1(1.0), L1(2.0)]


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_or_copied_it_goes_on_to_the_bit(kind, options, dtype):
    ours = network(dtype)
    psi = PerParameter({"0.*": L1(0.2, weights=np.ones((5, 4))), "*": L1(0.1)})
    optimizer = kind(ours.named_parameters(), lr=0.1, regularizer=psi, **options)
    train(ours, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other = network(dtype)
    other.load_state_dict(saved["model"])
    resumed = kind(other.named_parameters(), lr=0.7, regularizer=L1(9.0))
    resumed.load_state_dict(saved["optimizer"])
    third, copied = copy.deepcopy((ours, optimizer))
    for model, own in ((ours, optimizer), (other, resumed), (third, copied)):
        train(model, own, 4)
    for own, *theirs in zip(*(model.parameters() for model in (ours, other, third)), strict=True):
        assert all(torch.equal(own, each) for each in theirs)
    assert resumed.elapsed == optimizer.elapsed
    assert {tensor.dtype for tensor in resumed.increments().values()} == {torch.float64}
    said = r"the state is of the parameter groups .*, these are \[\['0'\]\]"
    refused(said, kind([nn.Parameter(torch.zeros(3))]).load_state_dict, saved["optimizer"])
    for other in (torch.optim.SGD, ProximalSGD if kind is DualAveraging else DualAveraging):
        refused("the state is of .*; expected one of", resumed.load_state_dict, other(ours.parameters()).state_dict())


# --- refused ---------------------------------------------------------------------------------------------------------


CANNOT_WORK = [
    ({"lr": -1.0}, "lr=-1.0; expected a finite number"),
    ({"params": [{"params": [nn.Parameter(torch.ones(2))], "weight_decay": 0.1}]}, "no weight_decay: .*L2Squared"),
    ({"regularizer": "l1"}, "regularizer='l1' is a str; expected a Reg.*=L1.* of flwr_fco.regularizers"),
    ({"apply_to": "*.weight"}, r"apply_to='\*.weight' needs names: pass model.named_parameters"),
    ({"regularizer": PerParameter({"*": L1(1.0)})}, "PerParameter needs names: pass model.named_parameters"),
]


@pytest.mark.parametrize(("change", "message"), CANNOT_WORK)
def test_arguments_that_cannot_work(change, message):
    refused(message, DualAveraging, **{"params": network().parameters(), "lr": 0.1, **change})


def test_a_shift_of_another_shape_or_with_momentum_is_refused():
    parameters = [("one", nn.Parameter(torch.zeros(2)))]
    for take in (DualAveraging(parameters).set_shift, DualAveraging(parameters).start_from):
        refused(r"'one' has shape \[1\], expected \[2\]", take, {"one": torch.zeros(1)})
    refused("no weight_decay or momentum", ProximalSGD, [{"params": parameters, "momentum": 0.9}])
    refused("support momentum", torch.optim.lr_scheduler.CyclicLR, ProximalSGD(parameters), 0.1, 0.2, kind=ValueError)
    refused("track", DualAveraging(parameters, momentum=0.5).set_shift, {"one": torch.zeros(2)})
    (tracking := DualAveraging(parameters)).set_shift({"one": torch.zeros(2)})
    torch.optim.lr_scheduler.OneCycleLR(tracking, max_lr=0.1, total_steps=9)
    refused("track.*scheduler", tracking.step)


PATTERNS = [
    ({}, {"regularizer": PerParameter({"0.wieght": L1(1.0)})}, r"PerParameter.*\['0.wieght'\] match no array"),
    ({}, {"regularizer": PerParameter({"*": L1(1.0), "0.weight": L2(1.0)})}, r"\['0.weight'\] match no array"),
    ({}, {"regularizer": PerParameter({"*.bias": L1(1.0)})}, r"are not regularized: name them in apply_to="),
    ({}, {"apply_to": "0.wieght"}, r"apply_to='0.wieght' matches none of the arrays"),
    ({"apply_to": "3.weight"}, {"regularizer": L1(1.0)}, r"apply_to='3.weight' matches none of the arrays"),
    ({"regularizer": PerParameter({"3.*": L1(1.0)})}, {}, r"PerParameter.*\['3.\*'\] match no array"),
    ({"lr": 0.2}, {}, r"groups differ in their sums of step sizes \(\[0.2, 0.1\]\): .* the same learning rate"),
]


@pytest.mark.parametrize(("groups", "options", "words"), PATTERNS)
@pytest.mark.parametrize("kind", [DualAveraging, ProximalSGD])
def test_patterns_that_match_nothing_and_groups_without_a_common_time(kind, groups, options, words):
    model = network()
    own = list(model.named_parameters())
    groups = [{"params": own[:2], **groups}, {"params": own[2:]}]
    refused(words, lambda: [train(model, own := kind(groups, lr=0.1, **options), 1), own.elapsed])
