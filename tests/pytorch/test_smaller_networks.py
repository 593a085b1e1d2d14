"""Whole channels and 2 of 4: the page about networks that are smaller runs, and takes away nothing that is not 0."""

import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("torch_pruning", reason="pip install torch-pruning")
from fresh import run_file
from torch import nn

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import NofM, Zero

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import smaller

PAGE = (ROOT / "docs" / "how-to" / "smaller-networks.md").read_text(encoding="utf-8")


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


def test_a_channel_goes_where_all_that_share_it_are_zero():
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


def test_the_page_gives_a_network_of_a_tenth_that_still_classifies(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(re.search(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[1], encoding="utf-8")
    done = run_file(path)
    assert done.returncode == 0, done.stderr
    weights, accuracy = map(float, done.stdout.split())
    assert weights < 0.1 * 38_282
    assert accuracy > 0.9


def test_layers_that_tensor_cores_do_not_take_stay_whole():
    convolutions = (nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3))
    layers = (nn.Linear(30, 64), nn.Linear(64, 64))
    network = nn.Sequential(*convolutions, *layers, nn.Linear(64, 2))
    psi = smaller.two_of_four(network)
    assert [psi.for_array(f"{i}.weight") for i in range(5)] == [Zero(), Zero(), Zero(), NofM(2, 4), Zero()]
    assert inspect.getsource(smaller.two_of_four) in PAGE
    few = {"0.weight": np.zeros((8, 1, 3, 3))}
    with pytest.raises(ConfigurationError, match="match no array"):
        smaller.two_of_four(nn.Sequential(nn.Conv2d(1, 8, 3))).bind(Layout.from_arrays(few))
