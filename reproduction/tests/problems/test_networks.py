"""Networks as problems: layers, starts, what a round reports, and a few rounds of learning."""

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from torch.nn import functional

from flwr_fco.datasets import digits
from flwr_fco.errors import ConfigurationError
from reproduction.pooled import client_weights
from reproduction.problems.baselines import solve_baseline
from reproduction.problems.named import load_task
from reproduction.problems.networks import AttackedNetwork, two_layers

# On networks as small as these, threads wait for each other most of the time.
torch.set_num_threads(1)


def test_the_attacked_network_is_the_papers():
    """A.4: 16, 32 and 64 filters of 3 x 3; only the perturbation has psi, and only it ascends."""
    network = AttackedNetwork((3, 32, 32), 10)
    kernels = [tuple(p.shape) for p in network.parameters() if p.ndim == 4]
    assert kernels == [(16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3)]
    layers = [type(module).__name__ for module in network.classifier]
    assert layers == ["Conv2d", "ReLU", "MaxPool2d"] * 3 + ["Flatten", "Linear"]
    objective = load_task("adversarial-network-digits", options={"num-clients": 5}).clients[0]
    assert objective.layout.regularized_names == ("perturbation",)
    assert objective.ascends.sum() == 64
    assert objective.ascends[objective.layout["perturbation"].block].all()


def test_a_round_of_the_network_in_balls_reports_what_the_parameters_say():
    task = load_task("two-layers-digits", 3, {"width": 8, "num-clients": 4, "radius": 20.0})
    start = task.initial_arrays()
    kernels = [array for array in start.values() if array.ndim == 2]
    assert [kernel.shape for kernel in kernels] == [(8, 64), (8, 8), (10, 8)]
    norms = [np.abs(kernel).sum() for kernel in kernels]
    assert norms[0] == pytest.approx(20.0, rel=1e-5)
    assert max(norms[1:]) < 20.0
    w = task.layout.flatten(start)
    found = task.scores(w)
    assert found["norm"] == pytest.approx(max(norms))
    assert found["density"] == pytest.approx(sum((k != 0).sum() for k in kernels) / sum(k.size for k in kernels))
    assert set(task.scores(w, full=False)) == {"norm", "density"}
    net = two_layers(64, 8, 10)
    net.load_state_dict({name: torch.tensor(array) for name, array in start.items()})
    data = digits(4, 0.3, seed=3)
    samples = [data.client(m) for m in range(4)]
    images, labels = (torch.tensor(np.concatenate(columns)) for columns in zip(*samples, strict=True))
    with torch.no_grad():
        scores = net(images.float())
    assert found["objective"] == pytest.approx(float(functional.cross_entropy(scores, labels)), rel=1e-5)
    assert found["training-accuracy"] == pytest.approx(float((scores.argmax(1) == labels).double().mean()))
    with torch.no_grad():
        scores = net(torch.tensor(data.test.features).float())
    assert found["accuracy"] == pytest.approx(float((scores.argmax(1).numpy() == data.test.targets).mean()))
    assert all(np.array_equal(array, start[name]) for name, array in task.initial_arrays().items())


def test_a_round_against_the_attack_reports_what_is_with_and_without_it():
    task = load_task("adversarial-network-digits", 0, {"num-clients": 3})
    start = task.initial_arrays()
    assert 0.0 < np.abs(start["perturbation"]).max() <= 0.05
    w = task.layout.flatten(start)
    found = task.scores(w)
    plain = task.scores(task.layout.flatten({**start, "perturbation": 0 * start["perturbation"]}))
    assert plain["accuracy"] == plain["attacked-accuracy"]
    assert plain["loss"] == plain["attacked-loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["attacked-loss"] != found["loss"]
    losses = [client.value(w) for client in task.clients]
    assert found["training-loss"] == pytest.approx(client_weights(task.clients) @ losses)


def test_what_nobody_can_certify_is_no_baseline():
    with pytest.raises(ConfigurationError, match="certified tolerance, which nobody can do for a network"):
        solve_baseline(load_task("two-layers-digits", options={"num-clients": 2}), "centralized")
    with pytest.raises(ConfigurationError, match="is a saddle function"):
        solve_baseline(load_task("adversarial-network-digits", options={"num-clients": 2}), "centralized")
