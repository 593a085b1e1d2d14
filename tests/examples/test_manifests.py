"""What every Flower App here says of itself: `flwr build` takes it, and a run installs what it imports."""

import ast
import importlib.metadata
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))
#: From the release of Flower on that knows the format; older ones do not look at it.
STRICT = Version(importlib.metadata.version("flwr")) >= Version("1.41")


def manifest(app):
    return tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(app):
    return {Requirement(text).name: Requirement(text) for text in manifest(app)["project"]["dependencies"]}


def extras(app):
    groups = manifest(app)["project"].get("optional-dependencies", {}).values()
    return {Requirement(text).name for group in groups for text in group}


def build(app, folder, monkeypatch):
    """Run `flwr build`; return its exit code, what it has said, and the names in the bundle."""
    from flwr.cli.app import app as flwr
    from typer.testing import CliRunner

    monkeypatch.chdir(folder)
    done = CliRunner().invoke(flwr, ["build", "--app", str(app)])
    names = [name for path in folder.glob("*.fab") for name in zipfile.ZipFile(path).namelist()]
    return done.exit_code, done.output, names


@pytest.mark.parametrize("app", [ROOT, *EXAMPLES], ids=lambda path: "root" if path == ROOT else path.name)
def test_flower_builds_the_app_and_recommends_nothing(app, clone, tmp_path, monkeypatch):
    code, said, names = build(clone if app == ROOT else app, tmp_path, monkeypatch)
    assert code == 0, said
    assert "missing" not in said
    components = manifest(app)["tool"]["flwr"]["app"]["components"]
    modules = {reference.split(":")[0].replace(".", "/") + ".py" for reference in components.values()}
    assert modules | {"pyproject.toml"} <= set(names)
    if STRICT:
        assert "LICENSE" in names
        assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "docs/"))]


@cache
def installed():
    """Return the distributions that bring each module; Python reads the metadata of all for it."""
    return packages_distributions()


@pytest.mark.parametrize("app", EXAMPLES)
def test_a_run_installs_what_the_app_imports(app):
    # What is not installed here is called as its distribution.
    known = installed()
    imported, inside = set(), set()
    packages = manifest(app)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for path in [path for package in packages for path in (app / package).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # What a function imports may be of an extra.
            found = inside if getattr(node, "col_offset", 0) else imported
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
    listed = set(requirements(app))
    for modules, brought in ((imported, listed), (inside, listed | extras(app))):
        for module in modules - sys.stdlib_module_names - {"flwr_fco", *packages}:
            assert set(known.get(module, [module.replace("_", "-")])) & brought, module
