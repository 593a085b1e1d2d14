"""The app that runs in Flower's own runtime, and what it comes to in this process."""

import os
import sys
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
def here():
    """Run the app's strategy and clients in this process; return arrays and rows."""
    sys.path.insert(0, str(APP))
    try:
        from survivors import client
        from survivors.problem import build
    finally:
        sys.path.remove(str(APP))

    def run(strategy, rounds, nodes=3, faults=0.0):
        options = {"num_nodes": nodes, "run_config": {"faults": faults, "notes": ""}, "raise_errors": not faults}
        result = simulated(build(strategy, nodes), client.app, rounds, **options)
        return numpy_of(result.arrays), result.rows()

    return run
