"""Networks in float32: increments that lose no digits to the dual, momentum, and what a reply is read as."""

import numpy as np
import pytest
from together import together

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import nn
from torch.nn import functional as F

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.regularizers import L1, Nuclear, Zero
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Bounds, FedDAGT, FedDualAvg
from flwr_fco.torch import ClientApp, DualAveraging, local_training
from flwr_fco.torch.optim import IncrementFirst
from flwr_fco.wire.uplink import read_unmodified


def pairs(kind, psi, dual, *, steps=20, shapes=((40, 30), (40,)), elapsed=3.0, **options):
    """Return an optimiser after some steps on one least-squares problem, from a given dual."""
    torch.manual_seed(0)
    layer = nn.Linear(shapes[0][1], shapes[0][0])
    x, y = torch.randn(64, shapes[0][1]), torch.randn(64, shapes[0][0])
    optimizer = kind(layer.named_parameters(), lr=0.05, regularizer=psi, **options)
    optimizer.start_from(dual, elapsed=elapsed)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(layer(x), y).backward()
        optimizer.step()
    return layer, optimizer


def dual_of(scale, shapes=((40, 30), (40,))):
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(shape) for name, shape in zip(("weight", "bias"), shapes, strict=True)}
    return {name: (scale * value).astype(np.float32) for name, value in values.items()}


@together("psi", [Zero(), L1(0.3), Nuclear(0.1)])
@together("shapes", [((40, 30), (40,)), ((400, 500), (400,))])  # The second in parts, tensor by tensor.
@together("momentum", [0.0, 0.9])
def test_it_is_dual_averaging_in_float64_up_to_rounding(psi, shapes, momentum):
    if isinstance(psi, Nuclear) and shapes[0][0] > 40:
        pytest.skip("a large singular value decomposition in every step")
    dual = dual_of(1.0, shapes)
    exact, theirs = pairs(DualAveraging, psi, dual, shapes=shapes, momentum=momentum, steps=5)
    single, ours = pairs(IncrementFirst, psi, dual, shapes=shapes, momentum=momentum, steps=5)
    assert ours.elapsed == theirs.elapsed
    for name, increment in theirs.increments().items():
        own = ours.increments()[name]
        assert own.dtype == torch.float32
        assert torch.allclose(own.double(), increment, rtol=1e-4, atol=1e-6)
    for p, q in zip(exact.parameters(), single.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_an_increment_loses_no_digits_to_a_large_dual():
    dual = dual_of(1e3)
    _, exact = pairs(DualAveraging, L1(300.0), dual)
    _, ours = pairs(IncrementFirst, L1(300.0), dual)
    _, plain = pairs(DualAveraging, L1(300.0), dual, dual_dtype=torch.float32)
    true, own, rounded = (each.increments()["weight"].double() for each in (exact, ours, plain))
    error = float((own - true).norm() / true.norm())
    assert error < 2e-4
    assert error < 0.5 * float((rounded - true).norm() / true.norm())


def test_momentum_without_psi_is_that_of_sgd():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    twin = nn.Linear(5, 3)
    twin.load_state_dict(model.state_dict())
    ours = DualAveraging(model.named_parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(8, 5)
    for _ in range(10):
        for net, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            optimizer.step()
    assert torch.allclose(model.weight, twin.weight, atol=1e-6)


def test_with_momentum_the_weight_of_psi_counts_gradients_as_the_dual_does():
    w = nn.Parameter(torch.zeros(1, 1))
    optimizer = DualAveraging([w], lr=0.5, momentum=0.5)
    for _ in range(3):
        w.grad = torch.ones(1, 1)
        optimizer.step()
    # Velocities 1, 1.5, 1.75.
    assert optimizer.elapsed == 0.5 * 4.25
    assert w.item() == -0.5 * 4.25


def test_momentum_survives_saving_and_is_refused_where_it_has_no_meaning():
    w = nn.Parameter(torch.zeros(2, 2))
    optimizer = DualAveraging([w], momentum=0.5)
    w.grad = torch.ones(2, 2)
    optimizer.step()
    twin = nn.Parameter(w.detach().clone())
    other = DualAveraging([twin])
    other.load_state_dict(optimizer.state_dict())
    for p, own in ((w, optimizer), (twin, other)):
        p.grad = torch.ones(2, 2)
        own.step()
    assert torch.equal(w, twin)
    assert optimizer.elapsed == other.elapsed
    with pytest.raises(ConfigurationError, match="expected a number >= 0 and < 1"):
        DualAveraging([w], momentum=1.0)
    with pytest.raises(ConfigurationError, match="track"):
        optimizer.set_shift({"0": torch.ones(2, 2)})


def test_an_own_loop_keeps_its_momentum():
    x, y = torch.randn(40, 6), torch.randint(0, 2, (40,))
    kinds = []

    def run(momentum, strategy):
        app = ClientApp()

        @app.train()
        def train(message, context):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
            with local_training(message, context, model, momentum=momentum) as training:
                kinds.append(type(training.optimizer))
                for rows in torch.arange(40).split(10):
                    training.optimizer.zero_grad()
                    F.cross_entropy(model(x[rows]), y[rows]).backward()
                    training.optimizer.step()
            return training.reply({"num-examples": 40})

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        start = ArrayRecord(model.state_dict())
        result = simulate(strategy, app, num_nodes=2, num_rounds=4, initial_arrays=start, progress=False)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        return float(F.cross_entropy(model(x), y))

    options = {"client_lr": 0.02, "bounds": Bounds(own_loops=True), "fraction_evaluate": 0.0}
    slow, fast = (run(momentum, FedDualAvg(**options)) for momentum in (0.0, 0.9))
    assert fast < slow
    assert set(kinds) == {IncrementFirst}
    with pytest.raises(Exception, match=r"momentum=0\.9"):
        run(0.9, FedDAGT(**options))


def test_the_change_of_a_float32_model_stays_float32_and_nan_is_named():
    arrays = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    layout = Layout.from_arrays(arrays)
    sent = layout.flatten(arrays)

    def read(changed):
        content = RecordDict({"arrays": ArrayRecord(changed), "metrics": MetricRecord({"num-examples": 3})})
        options = {"client_lr": 0.1, "local_steps": 1, "weighted_by_key": "num-examples"}
        return read_unmodified(content, layout, sent=sent, **options)

    changed = {name: torch.from_numpy(array + np.float32(0.1)) for name, array in arrays.items()}
    uplink = read(changed)
    assert uplink.vectors["increment"].dtype == np.float32
    assert uplink.norms["increment"] == pytest.approx(float(np.linalg.norm(uplink.vectors["increment"])))
    assert np.array_equal(
        sent + uplink.vectors["increment"], layout.flatten({k: v.numpy() for k, v in changed.items()})
    )
    changed["bias"][1] = float("nan")
    with pytest.raises(ProtocolError, match="'bias' holds 1 NaN"):
        read(changed)
