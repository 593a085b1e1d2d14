"""The example with a sparse network, on few images and rounds."""

import importlib
import os
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: pip install 'flwr-fco[torch]'")

from flwr.app import Context, RecordDict

from flwr_fco import _flower
from flwr_fco.simulation import InProcessGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart-pytorch-sparse"
MNIST = Path(os.environ.get("FLWR_FCO_DATA", "missing"), "mnist")


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs MNIST's four files in the folder mnist of $FLWR_FCO_DATA")
@pytest.mark.parametrize("strategy", ["FedDualAvg", "FedAvg"])
def test_the_example_trains(strategy, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in [name for name in sys.modules if name.split(".")[0] == "pytorch_sparse"]:
        monkeypatch.delitem(sys.modules, name)
    client, server = (importlib.import_module(f"pytorch_sparse.{part}_app") for part in ("client", "server"))
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config.update({"mnist": str(MNIST), "num-images": 4000, "num-server-rounds": 8, "strategy": strategy})
    config.update({"strength": 5e-4, "client-lr": 0.1, "fraction-evaluate": 0.2})
    grid = InProcessGrid(client.app, 4, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with _flower.identity(grid.run_id):
        server.app(grid, context)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round 8")]
    accuracy, density = (float(part.split()[-1]) for part in lines[0].split(": ")[1].split(", "))
    assert accuracy > 0.8
    assert density < 0.95 if strategy == "FedDualAvg" else density == 1.0
