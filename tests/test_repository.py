"""What leaves the repository, and the files that say how to work on it: they name things that exist."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from pydoc import locate

import pytest
from flwr.cli.app import app as flwr
from packaging.requirements import Requirement
from typer.testing import CliRunner

from flwr_fco import strategies

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


def read(path):
    return path.read_text(encoding="utf-8")


def manifest(app):
    return tomllib.loads(read(app / "pyproject.toml"))


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
        for node in ast.walk(ast.parse(read(path))):
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


# --- how to work on it ------------------------------------------------------------------------------------------------


def targets():
    """Return the Makefile's targets."""
    return set(re.findall(r"^([a-z][a-z-]*):", read(ROOT / "Makefile"), flags=re.MULTILINE))


def named_targets(text):
    """Return what follows `make` in code: in backticks, in blocks, in a script and what it calls `make` by."""
    code = re.findall(r"`(make [^`]+)`", text) + re.findall(r"(?m)^\s*((?:make|limited|job|side_by_side) .+)$", text)
    words = [word for line in code for word in line.split("#")[0].split()[1:]]
    return {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}


def test_every_target_is_declared_and_in_the_help_or_in_contributing():
    """An undeclared target does nothing where a file has its name; nobody finds one that is explained nowhere."""
    makefile = read(ROOT / "Makefile")
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)[1].split())
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## ", makefile, flags=re.MULTILINE))
    assert targets() == phony
    assert len(explained) <= 10
    assert targets() - explained - {"help"} <= named_targets(read(ROOT / "CONTRIBUTING.md"))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", ".ci/run"])
def test_every_make_target_that_is_named_exists(page):
    """A renamed target breaks the instructions, and CI."""
    named = named_targets(read(ROOT / page))
    assert named
    assert named <= targets()


def test_every_name_of_the_package_in_pages_and_references_exists():
    """What moves to another module takes along the pages that name it; a function is no module that has its name."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    names = {name for page in pages for name in re.findall(r"flwr_fco(?:\.[A-Za-z_]\w*)+", read(page))}
    code = [path for part in ("flwr_fco", "reproduction") for path in (ROOT / part).rglob("*.py")]
    names |= {name for path in code for name in re.findall(r":mod:`~?(flwr_fco\.[\w.]+)`", read(path))}
    called = {name for path in code for name in re.findall(r":(?:func|class):`~?(flwr_fco\.[\w.]+)`", read(path))}
    assert len(names) > 30
    assert len(called) > 30
    pytest.importorskip("torch", reason="pip install torch")
    assert not [name for name in sorted(names) if locate(name) is None]
    assert not [name for name in sorted(called) if not callable(locate(name))]


def test_the_files_that_the_notation_names_are_there():
    named = set(re.findall(r"`(flwr_fco/[\w/.]+)`", read(ROOT / "docs" / "reference" / "notation.md")))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_round_of_the_architecture_is_in_the_files_that_it_names():
    page = read(ROOT / "docs" / "contribute" / "architecture.md")
    lines = re.findall(r"^ *(\w+) .* (\S+\.py)$", page, flags=re.MULTILINE)
    assert len(lines) >= 25
    for name, file in lines:
        source = read(ROOT / "flwr_fco" / file)
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), (name, file)


def test_each_strategy_names_entries_of_the_bibliography_and_no_others():
    papers = read(ROOT / "docs" / "reference" / "papers.bib")
    entries = set(re.findall(r"^@\w+\{(\w+),$", papers, flags=re.MULTILINE))
    line = re.compile(r"^ *BibTeX: ([\w, ]+), in docs/reference/papers\.bib\.$", flags=re.MULTILINE)
    named = {name: line.findall(kind.__doc__ or "") for name, kind in strategies.STRATEGIES.items()}
    assert [name for name, found in named.items() if len(found) != 1] == []
    assert {key for (found,) in named.values() for key in found.split(", ")} == entries


def test_hosted_ci_runs_our_script_on_every_supported_python():
    """The classifiers promise these versions of Python; CI is what keeps the promise."""
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with ray: make install, or pip install pyyaml")
    job = yaml.safe_load(read(ROOT / ".github" / "workflows" / "ci.yml"))["jobs"]["test"]
    classifiers = "\n".join(manifest(ROOT)["project"]["classifiers"])
    supported = set(re.findall(r"Python :: (3\.\d+)$", classifiers, flags=re.MULTILINE))
    assert set(job["strategy"]["matrix"]["python"]) == supported == {"3.11", "3.12", "3.13", "3.14"}
    (command,) = (step["run"] for step in job["steps"] if "run" in step)
    assert command.split()[-1] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_path_that_the_documentation_links_exists():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("**/README.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page)):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
