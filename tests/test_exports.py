"""What `import flwr_fco` offers and `help` says: all to start with, described, and imported only when it is used."""

import importlib
import inspect
import subprocess
import sys
from functools import cached_property
from pathlib import Path

import pytest
from fresh import run_code

import flwr_fco
from flwr_fco import mirror_maps, objectives, regularizers, strategies
from flwr_fco.core.validation import Choice

ROOT = Path(__file__).parents[1]
PARTS = sorted(
    path.stem for path in (ROOT / "flwr_fco").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"
)


def classes(module, base=object):
    found = {name: getattr(module, name) for name in module.__all__}
    return {name for name, value in found.items() if inspect.isclass(value) and issubclass(value, base)}


def test_everything_to_start_with_is_exported_and_is_the_thing_itself():
    beside = "CompositeStrategy Epochs GaussianDP Link Minimise Steps client_app fit_path short_mod simulate"
    expected = {
        *strategies.STRATEGIES,
        *classes(regularizers),
        *classes(mirror_maps, mirror_maps.MirrorMap),
        *classes(objectives, objectives.Objective),
        *classes(strategies, Choice) - {"Stage"},
        *beside.split(),
    }
    assert {*dir(flwr_fco)} == {*expected, "__version__"}
    for module in (strategies, regularizers, mirror_maps, objectives):
        for name in expected & set(module.__all__):
            assert getattr(flwr_fco, name) is getattr(module, name)


def test_importing_the_package_imports_nothing_heavy_and_no_part_pytorch():
    command = [sys.executable, "-c", "import sys, flwr_fco; dir(flwr_fco); print(*sys.modules)"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert {"flwr_fco", "flwr", "numba", "numpy", "scipy", "sklearn", "torch"} & {*loaded} == {"flwr_fco"}
    every = ", ".join(f"flwr_fco.{part}" for part in PARTS if part != "torch")
    loaded = run_code(f"import sys\n\nimport {every}\n\nprint(*sys.modules)\n").stdout.split()
    assert {"flwr_fco.tables", "torch"} & {*loaded} == {"flwr_fco.tables"}


WITHOUT_PYTORCH = """
import sys
sys.modules["torch"] = None
import flwr_fco.client_apps, flwr_fco.simulation, flwr_fco.testing
try:
    import flwr_fco.torch
except ImportError as error:
    print(type(error).__name__, error)
"""


def test_without_pytorch_all_else_works_and_the_error_names_the_command():
    said = "NotInstalledError flwr_fco.torch needs PyTorch: pip install torch (the extra [torch])\n"
    assert run_code(WITHOUT_PYTORCH).stdout == said


@pytest.fixture(params=PARTS)
def public(request):
    """Return the public objects of a part by their names."""
    if request.param == "torch":
        pytest.importorskip("torch")
    module = importlib.import_module(f"flwr_fco.{request.param}")
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def test_no_public_name_is_hidden_by_a_module_of_the_same_name(public):
    assert [name for name, value in public.items() if inspect.ismodule(value)] == []


def test_every_public_object_and_method_has_a_docstring(public):
    """Its own or an inherited one."""
    missing = []
    for name, value in public.items():
        if inspect.isclass(value) or inspect.isroutine(value):
            missing += [] if value.__doc__ else [name]
        for own, member in vars(value).items() if inspect.isclass(value) else ():
            if own[0] != "_" and (inspect.isroutine(member) or isinstance(member, property | cached_property)):
                found = [vars(base)[own].__doc__ for base in value.__mro__ if own in vars(base)]
                missing += [] if any(found) else [f"{name}.{own}"]
    assert missing == []
