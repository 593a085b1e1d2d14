"""The files that say how to work on the repository name things that exist."""

import os
import re
import tomllib
from pathlib import Path
from pydoc import locate

import pytest

from flwr_fco import strategies

yaml = pytest.importorskip("yaml", reason="PyYAML comes with ray: make install, or pip install pyyaml")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    return path.read_text(encoding="utf-8")


def targets():
    """Return the Makefile's targets."""
    return set(re.findall(r"^([a-z][a-z-]*):", read(ROOT / "Makefile"), flags=re.MULTILINE))


def named_targets(text):
    """Return what follows `make` in code: in backticks, in blocks, in a script."""
    code = re.findall(r"`(make [^`]+)`", text) + re.findall(r"^\s*(make .+)$", text, flags=re.MULTILINE)
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


def test_each_strategy_names_entries_of_the_bibliography_and_no_others():
    papers = read(ROOT / "docs" / "reference" / "papers.bib")
    entries = set(re.findall(r"^@\w+\{(\w+),$", papers, flags=re.MULTILINE))
    line = re.compile(r"^ *BibTeX: ([\w, ]+), in docs/reference/papers\.bib\.$", flags=re.MULTILINE)
    named = {name: line.findall(kind.__doc__ or "") for name, kind in strategies.STRATEGIES.items()}
    assert [name for name, found in named.items() if len(found) != 1] == []
    assert {key for (found,) in named.values() for key in found.split(", ")} == entries


def test_hosted_ci_runs_our_script_on_every_supported_python():
    """The classifiers promise these versions of Python; CI is what keeps the promise."""
    job = yaml.safe_load(read(ROOT / ".github" / "workflows" / "ci.yml"))["jobs"]["test"]
    supported = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)}
    assert set(job["strategy"]["matrix"]["python"]) == supported == {"3.11", "3.12", "3.13", "3.14"}
    (command,) = (step["run"] for step in job["steps"] if "run" in step)
    assert command.split()[-1] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_path_that_the_documentation_links_exists():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("**/README.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page)):
            assert (page.parent / target).exists(), f"{page.name} links {target}"
