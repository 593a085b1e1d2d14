"""The app that runs in Flower's own runtime, and what it comes to in this process."""

import os
from pathlib import Path

import pytest
from problems import numpy_of, simulated

#: They run in Flower; read for doctests, they would be imported here.
collect_ignore = ["app", "stranger"]
APP = Path(__file__).parent / "app"


@pytest.fixture(scope="session")
def paths(request):
    """Return PYTHONPATH for processes that find the package, installed or not, and what tests share."""
    root = request.config.rootpath
    return os.pathsep.join([str(root), str(root / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def here(monkeypatch):
    """Run the app's strategy and clients in this process; return arrays and rows."""
    monkeypatch.syspath_prepend(APP)
    from survivors import client
    from survivors.problem import build

    def run(strategy, rounds, nodes=3, faults=0.0):
        options = {"num_nodes": nodes, "run_config": {"faults": faults, "notes": ""}, "raise_errors": not faults}
        result = simulated(build(strategy, nodes), client.app, rounds, **options)
        return numpy_of(result.arrays), result.rows()

    return run
