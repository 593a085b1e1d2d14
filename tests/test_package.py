"""What leaves the repository: the wheel, and the FAB of every Flower App here, which a run can install."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from flwr.cli.app import app as flwr
from packaging.requirements import Requirement
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/pyproject.toml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build wheel and sdist; return the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    build = f"-m hatchling build --target wheel --target sdist --directory {folder}".split()
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_one_top_level_name(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"flwr_fco"}
    assert "flwr_fco/py.typed" in names


def test_the_readme_on_an_index_has_absolute_links_to_files_that_exist(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert metadata.startswith("Metadata-Version: 2.4\n")
    source = re.search(r"^Project-URL: Source, https://(\S+)$", metadata, flags=re.MULTILINE)[1]
    links = re.findall(r"\]\(([^)]+)\)", metadata.partition("\n\n")[2])
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    ours = [link.partition("/main/")[2].partition("#")[0] for link in links if source in link]
    assert [path for path in ours if not (ROOT / path).exists()] == []


def manifest(app):
    return tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("app", [ROOT, *EXAMPLES], ids=lambda path: "root" if path == ROOT else path.name)
def test_flower_bundles_the_app_and_little_else(app, clone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(flwr, ["build", "--app", str(clone if app == ROOT else app)])
    assert done.exit_code == 0, done.output
    assert "missing" not in done.output
    (bundle,) = tmp_path.glob("*.fab")
    assert bundle.stat().st_size < 10 * 2**20
    names = zipfile.ZipFile(bundle).namelist()
    components = manifest(app)["tool"]["flwr"]["app"]["components"].values()
    modules = {component.split(":")[0].replace(".", "/") + ".py" for component in components}
    assert modules | {"pyproject.toml", "README.md", "LICENSE"} <= set(names)
    packages = {module.split("/")[0] for module in modules} | ({"flwr_fco"} if app == ROOT else set())
    assert {name.split("/")[0] for name in names if "/" in name} - {".info"} == packages


@cache
def distributions():
    """Return the distributions that bring each module; Python reads the metadata of all for it."""
    return packages_distributions()


def names_of(groups):
    return {Requirement(text).name for group in groups for text in group}


@pytest.mark.parametrize("app", EXAMPLES, ids=lambda path: path.name)
def test_a_run_installs_what_the_app_imports(app):
    """By its requirements; what a function imports may be of an extra."""
    about = manifest(app)
    listed = names_of([about["project"]["dependencies"]])
    extras = names_of(about["project"].get("optional-dependencies", {}).values())
    packages = about["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for path in [path for package in packages for path in (app / package).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            else:
                continue
            for module in {name.split(".")[0] for name in modules} - sys.stdlib_module_names - {"flwr_fco", *packages}:
                # What is not installed here is called as its distribution.
                brought = set(distributions().get(module, [module.replace("_", "-")]))
                assert brought & (listed | extras if node.col_offset else listed), module
