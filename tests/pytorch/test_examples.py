"""The PyTorch examples and pages as a user runs them, on small data of their formats that are made here."""

import gzip
import inspect
import re
import struct

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from fresh import DOCS, blocks, text_of
from problems import node, refused, run_app
from sklearn.datasets import load_digits
from torch import nn

from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import NofM, Zero


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
    return str(folder)


def numbers_of(capsys, round_number):
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"round {round_number}:")]
    return [float(text) for text in re.findall(r"\d+\.\d+", line)]


@pytest.mark.parametrize("strategy", ["FedDualAvg", "FedAvg"])
def test_the_quickstart_learns_and_only_ours_is_sparse(strategy, example, mnist, capsys):
    settings = {"mnist": mnist, "num_images": 800, "num_server_rounds": 8, "strategy": strategy, "strength": 1e-3}
    settings |= {"batch_size": 16, "client_lr": 0.1, "fraction_evaluate": 0.5}
    run_app(example("quickstart-pytorch-sparse"), 2, **settings)
    accuracy, density = numbers_of(capsys, 8)
    assert accuracy > 0.75
    assert density < 0.95 if strategy == "FedDualAvg" else density == 1.0


def test_the_two_layer_network_stays_in_its_balls(example, mnist, capsys):
    settings = {"data": mnist, "num_images": 400, "num_server_rounds": 8, "local_epochs": 3, "width": 16}
    # At the app's own rate the accuracy jumps by .2 from round to round.
    run_app(example("femnist-two-layer"), 4, radius=60.0, clients_per_round=2, client_lr=0.1, **settings)
    accuracy, *norms, density = numbers_of(capsys, 8)
    assert accuracy > 0.3
    assert len(norms) == 3
    # The first kernel's ball is smaller than its start point, the last one's larger than it ever gets.
    assert norms[0] == 60.0
    assert max(norms[1:]) < 60.0
    assert density < 0.5


@pytest.mark.parametrize(
    ("folder", "shape"),
    [("adversarial-cnn", (32, 32, 3)), ("femnist-two-layer", (28, 28)), ("quickstart-pytorch-sparse", (28, 28))],
)
def test_nodes_with_a_file_train_on_it(folder, shape, tmp_path, example):
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    images = rng.integers(0, 256, (20, *shape), dtype=np.uint8)
    labels = rng.integers(0, 10, 20, dtype=np.uint8)
    np.savez(path, images=images, labels=labels)
    app = example(folder)
    app.config |= {"num-server-rounds": 1, "clients-per-round": 2}
    context = node(app.config, **{"data-path": str(path)})
    if folder == "quickstart-pytorch-sparse":
        loaders = app.client_app._loaders(context)
        found, targets = (torch.cat(tensors) for tensors in zip(*(own.dataset.tensors for own in loaders), strict=True))
        pixels = (found + 1.0) * 127.5
    else:
        found, targets = app.client_app.load_objective(context).dataset.tensors
        pixels = (found.permute(0, 2, 3, 1) if found.ndim == 4 else found) * 255.0
    for label in range(10):
        seen = pixels[targets == label].double().reshape(-1, images[0].size).sum(0)
        np.testing.assert_allclose(seen, images[labels == label].reshape(-1, images[0].size).sum(0), atol=1e-3)
    run_app(app, 2, path=path)


def test_the_tutorial_does_what_its_comments_say(capsys):
    code = blocks("tutorials/pytorch")
    assert len(code) == 4
    names = {"__name__": "page"}
    exec("\n".join(code), names)
    assert float(capsys.readouterr().out) == 0.25
    model, x, y = (names[name] for name in ("unmodified", "x", "y"))
    assert float((model.eval()(x.reshape(240, 12)).argmax(1) == y.reshape(240)).float().mean()) > 0.9
    # The learnt inputs are the two that matter, more than the others.
    used = (model[0].weight != 0).sum(dim=0)
    assert used[:2].min() >= used[2:].max()


# --- how-to/smaller-networks.md ---------------------------------------------------------------------------------------


@pytest.fixture
def smaller(monkeypatch):
    """The benchmark whose code is on the page."""
    pytest.importorskip("torch_pruning", reason="pip install torch-pruning")
    monkeypatch.syspath_prepend(DOCS.parent / "benchmarks")
    import smaller

    return smaller


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.third = nn.Linear(16 * 64, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.norm(self.second(x)) + x)
        return self.last(torch.relu(self.third(x.flatten(1))))


def test_a_channel_goes_where_all_that_share_it_are_zero(smaller):
    torch.manual_seed(0)
    network = Residual().eval()
    images = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        for layer, dead in ((network.first, [1, 4, 7]), (network.second, [1, 4, 9]), (network.third, [0, 5])):
            layer.weight[dead] = 0.0
            layer.bias[dead] = 0.0
        network.norm.weight[[1, 4]] = 0.0
    small = smaller.shrink(network, images).eval()
    assert (len(small.first.weight), len(small.second.weight), len(small.third.weight)) == (14, 14, 30)
    assert len(network.first.weight) == 16
    torch.testing.assert_close(small(images), network(images), rtol=1e-5, atol=1e-5)


def test_the_page_gives_a_network_of_a_tenth_that_still_classifies(smaller, capsys):
    # The benchmark has registered a regularizer of the page's name.
    code = blocks("how-to/smaller-networks")[0].replace('kind = "channels"', 'kind = "channels of the page"')
    exec(code, {"__name__": "page"})
    weights, accuracy = map(float, capsys.readouterr().out.split())
    assert weights < 0.1 * 38_282
    assert accuracy > 0.9


def test_layers_that_tensor_cores_do_not_take_stay_whole(smaller):
    convolutions = (nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3))
    layers = (nn.Linear(30, 64), nn.Linear(64, 64))
    network = nn.Sequential(*convolutions, *layers, nn.Linear(64, 2))
    psi = smaller.two_of_four(network)
    assert [psi.for_array(f"{i}.weight") for i in range(5)] == [Zero(), Zero(), Zero(), NofM(2, 4), Zero()]
    assert inspect.getsource(smaller.two_of_four) in text_of("how-to/smaller-networks")
    few = {"0.weight": np.zeros((8, 1, 3, 3))}
    refused("match no array", smaller.two_of_four(nn.Sequential(nn.Conv2d(1, 8, 3))).bind, Layout.from_arrays(few))
