"""Settings of all tests."""

import importlib
import os
import shutil
import signal
import sys
import tomllib
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

# A first call compiles kernels, and other work on the machine takes time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell's background job ignores Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: The tests import what is there; read for doctests, it would be imported under a second name.
collect_ignore = ["support"]

# Ray and Flower report usage over the network otherwise.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray starts workers ahead of need, each of which imports all of Flower; the tests use one or two.
os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
os.environ.setdefault("RAY_enable_worker_prestart", "0")
# Where Python is told to write no bytecode, this process would compile all tests again, with assertions rewritten, and
# every process that a test starts would compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture(scope="session")
def clone(request, tmp_path_factory):
    """Copy the repository: Flower reads a whole folder to bundle its app, and 50,000 files of an environment in it."""
    folder = tmp_path_factory.mktemp("clone") / "flwr-fco"
    written = shutil.ignore_patterns(".git", ".venv*", ".run", ".*_cache", "__pycache__", "_build", "auto_gallery")
    shutil.copytree(request.config.rootpath, folder, ignore=written)
    return folder


@pytest.fixture
def example(monkeypatch, request):
    """Load an app of examples/ anew by its folder: its run config, and its modules task, client_app and server_app."""

    def load(folder):
        place = request.config.rootpath / "examples" / folder
        about = tomllib.loads((place / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        package = about["components"]["clientapp"].split(".")[0]
        monkeypatch.syspath_prepend(place)
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        modules = {own: importlib.import_module(f"{package}.{own}") for own in ("task", "client_app", "server_app")}
        return SimpleNamespace(config=about["config"], **modules)

    return load
