"""The PyTorch examples as a user runs them, on small data of their formats that are made here."""

import gzip
import importlib
import re
import struct
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from flwr_fco.simulation import InProcessGrid

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + np.ascontiguousarray(array, dtype=np.uint8).tobytes(), 1))


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A folder with MNIST's four files: scikit-learn's digits, three times as wide and with an edge, 28 x 28."""
    folder = tmp_path_factory.mktemp("mnist")
    images, labels = load_digits(return_X_y=True)
    images = np.pad(np.kron(images.reshape(-1, 8, 8), np.ones((1, 3, 3))) * 15.9, ((0, 0), (2, 2), (2, 2)))
    for part, rows in (("train", slice(0, 1500)), ("t10k", slice(1500, None))):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels[rows])
    return folder


@pytest.fixture
def load(monkeypatch):
    def modules(folder, package, *names):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        for name in [name for name in sys.modules if name.split(".")[0] in (package, *names)]:
            monkeypatch.delitem(sys.modules, name)
        config = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        return config, *(importlib.import_module(name) for name in names)

    return modules


def go(client, server, config, nodes, **options):
    grid = InProcessGrid(client.app, nodes, run_config=config, **options)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with grid.identity():
        server.app(grid, context)


def numbers_of(capsys, round_number):
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"round {round_number}:")]
    return [float(text) for text in re.findall(r"\d+\.\d+", line)]


@pytest.mark.parametrize("strategy", ["FedDualAvg", "FedAvg"])
def test_the_quickstart_learns_and_only_ours_is_sparse(strategy, load, mnist, capsys):
    names = ("pytorch_sparse.client_app", "pytorch_sparse.server_app")
    config, client, server = load("quickstart-pytorch-sparse", "pytorch_sparse", *names)
    config.update({"mnist": str(mnist), "num-images": 800, "num-server-rounds": 8, "strategy": strategy})
    config.update({"strength": 1e-3, "batch-size": 16, "client-lr": 0.1, "fraction-evaluate": 0.5})
    go(client, server, config, 2)
    accuracy, density = numbers_of(capsys, 8)
    assert accuracy > 0.75
    assert density < 0.95 if strategy == "FedDualAvg" else density == 1.0


def test_the_two_layer_network_stays_in_its_balls(load, mnist, capsys):
    config, client, server = load("femnist-two-layer", "two_layer", "two_layer.client_app", "two_layer.server_app")
    config.update({"data": str(mnist), "num-images": 400, "num-server-rounds": 8, "local-epochs": 3, "width": 16})
    # At the app's own rate the accuracy jumps by .2 from round to round.
    config.update({"radius": 60.0, "clients-per-round": 2, "client-lr": 0.1})
    go(client, server, config, 4)
    accuracy, *norms, density = numbers_of(capsys, 8)
    assert accuracy > 0.3
    assert len(norms) == 3
    # The first kernel's ball is smaller than its start point, the last one's larger than it ever gets.
    assert norms[0] == 60.0
    assert max(norms[1:]) < 60.0
    assert density < 0.5


@pytest.mark.parametrize(
    ("folder", "package", "shape"),
    [
        ("adversarial-cnn", "adversarial_cnn", (32, 32, 3)),
        ("femnist-two-layer", "two_layer", (28, 28)),
        ("quickstart-pytorch-sparse", "pytorch_sparse", (28, 28)),
    ],
)
def test_nodes_with_a_file_train_on_it(folder, package, shape, tmp_path, load):
    rng = np.random.default_rng(0)
    path = str(tmp_path / "images.npz")
    images = rng.integers(0, 256, (20, *shape), dtype=np.uint8)
    labels = rng.integers(0, 10, 20, dtype=np.uint8)
    np.savez(path, images=images, labels=labels)
    config, client, server = load(folder, package, f"{package}.client_app", f"{package}.server_app")
    config |= {"num-server-rounds": 1, "clients-per-round": 2}
    context = Context(run_id=1, node_id=1, node_config={"data-path": path}, state=RecordDict(), run_config=config)
    if package == "pytorch_sparse":
        train, test = client._loaders(context)
        pixels = (torch.cat([train.dataset.tensors[0], test.dataset.tensors[0]]) + 1.0) * 127.5
        targets = torch.cat([train.dataset.tensors[1], test.dataset.tensors[1]])
    else:
        found, targets = client.load_objective(context).dataset.tensors
        pixels = (found.permute(0, 2, 3, 1) if found.ndim == 4 else found) * 255.0
    for label in range(10):
        seen = pixels[targets == label].double().reshape(-1, images[0].size).sum(0)
        np.testing.assert_allclose(seen, images[labels == label].reshape(-1, images[0].size).sum(0), atol=1e-3)
    go(client, server, config, 2, node_config=lambda partition: {"data-path": path})
