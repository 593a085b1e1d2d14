"""What `import flwr_fco` offers: everything to start with, and nothing is imported before it is used."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import flwr_fco
from flwr_fco import mirror_maps, objectives, regularizers, strategies
from flwr_fco.core.validation import Choice
from flwr_fco.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]


def classes(module, base=object):
    found = {name: getattr(module, name) for name in module.__all__}
    return {name for name, value in found.items() if inspect.isclass(value) and issubclass(value, base)}


def expected():
    return (
        set(STRATEGIES)
        | classes(regularizers)
        | classes(mirror_maps, mirror_maps.MirrorMap)
        | classes(objectives, objectives.Objective)
        | (classes(strategies, Choice) - {"Stage"})
        | {
            "CompositeStrategy",
            "Epochs",
            "GaussianDP",
            "Link",
            "Minimise",
            "Steps",
            "client_app",
            "fit_path",
            "short_mod",
            "simulate",
        }
    )


def test_everything_to_start_with_is_exported_and_is_the_thing_itself():
    assert set(flwr_fco.__all__) == expected()
    for module in (strategies, regularizers, mirror_maps, objectives):
        for name in expected() & set(module.__all__):
            assert getattr(flwr_fco, name) is getattr(module, name)
    assert set(flwr_fco.__all__) <= set(dir(flwr_fco))


def loaded_after(code):
    names = "('flwr', 'numba', 'numpy', 'scipy', 'sklearn')"
    program = f"import sys; {code}; print([name for name in {names} if name in sys.modules])"
    return ast.literal_eval(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    )


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_after("import flwr_fco; dir(flwr_fco)") == []
    assert {"flwr", "numba"} <= set(loaded_after("from flwr_fco import FedDualAvg"))


PARTS = sorted(
    path.stem for path in (ROOT / "flwr_fco").iterdir() if path.suffix in ("", ".py") and path.stem[0] != "_"
)


@pytest.mark.parametrize("part", PARTS)
def test_no_public_name_is_hidden_by_a_module_of_the_same_name(part):
    if part == "torch":
        pytest.importorskip("torch")
    package = importlib.import_module(f"flwr_fco.{part}")
    assert not [name for name in getattr(package, "__all__", ()) if inspect.ismodule(getattr(package, name))]
