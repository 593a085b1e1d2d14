"""Every code block of the pages for users runs by itself, in another folder, as a user would run it."""

import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fresh import run_file

ROOT = Path(__file__).parents[1]
PAGES = (
    "get-started/first-model",
    "how-to/codebook",
    "how-to/geometries",
    "how-to/objectives",
    "how-to/own-loss",
    "how-to/resume",
    "how-to/survival",
    "how-to/saddle-points",
    "how-to/short-messages",
    "how-to/sparse",
    "how-to/callbacks",
    "choose/rates",
    "choose/strength",
    "choose/regularizers",
    "how-to/scikit-learn",
    "how-to/inference",
    "tutorials/own-strategy",
    "how-to/subclasses",
    "how-to/taking-away",
    "how-to/faults",
    "how-to/robustness",
)


def text_of(page):
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def blocks(page):
    return re.findall(r"```python\n(.*?)```", text_of(page), flags=re.DOTALL)


@cache
def run_block(page, number):
    """Run a block as a file by itself, once for all tests that look at what it does."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "mine.py")
        path.write_text(blocks(page)[number], encoding="utf-8")
        return run_file(path)


def test_lines_of_code_fit_into_the_site():
    pages = [str(path.relative_to(ROOT / "docs"))[:-3] for path in (ROOT / "docs").rglob("*.md")]
    lines = [line for page in pages for block in blocks(page) for line in block.splitlines()]
    assert [line for line in lines if len(line) > 88] == []


#: Takes ten seconds and more, and fit_path has tests of its own.
AT_NIGHT = [("choose/strength", 1)]
IN_EVERY_RUN = [(page, i) for page in PAGES for i in range(len(blocks(page))) if (page, i) not in AT_NIGHT]
#: The output of a block, behind it.
OUTPUT = r"\n```text\n(.*?)```"
SHOWN = [
    (page, number)
    for page in PAGES
    for number, rest in enumerate(re.split(r"```python\n.*?```\n", text_of(page), flags=re.DOTALL)[1:])
    if re.match(OUTPUT, rest, flags=re.DOTALL)
]


@pytest.mark.parametrize(
    ("page", "number"), [*IN_EVERY_RUN, *(pytest.param(*block, marks=pytest.mark.nightly) for block in AT_NIGHT)]
)
def test_every_block_runs_by_itself(page, number):
    if "import torch" in blocks(page)[number]:
        pytest.importorskip("torch", reason="pip install torch")
    done = run_block(page, number)
    assert done.returncode == 0, done.stderr


def test_the_reason_for_a_rate_is_as_its_comment_says():
    stated = re.search(r'reasons\["client_lr"\]\)\n# (.*)', blocks("choose/rates")[0])[1]
    assert run_block("choose/rates", 0).stdout.strip() == stated


@pytest.mark.parametrize(("page", "number"), SHOWN)
def test_an_output_is_as_the_page_shows(page, number):
    """Its words exactly, its numbers to half of the third digit, rounds to 1: the last ones are another processor's."""
    shown = re.split(r"```python\n.*?```\n", text_of(page), flags=re.DOTALL)[number + 1]
    shown = re.match(OUTPUT, shown, flags=re.DOTALL)[1].split()
    printed = run_block(page, number).stdout.split()
    assert len(printed) == len(shown)
    for before, one, other in zip(["", *shown], printed, shown, strict=False):
        if re.fullmatch(r"-?[\d.]+(e-?\d+)?[,%]?", other):
            wanted = pytest.approx(float(other.strip(",%")), rel=5e-3, abs=1.0 if before == "Rounds:" else 1e-12)
            assert float(one.strip(",%")) == wanted
        else:
            assert one == other


def test_the_sizes_of_a_cluster_are_what_its_block_prints():
    rows = run_block("tutorials/ray-cluster", 0).stdout.strip().splitlines()
    assert len(rows) == 4
    assert [row for row in text_of("tutorials/ray-cluster").splitlines() if row in rows] == rows


@pytest.mark.parametrize(
    "page", [str(path.relative_to(ROOT / "docs"))[:-3] for path in sorted((ROOT / "docs").glob("*/*.md"))]
)
def test_a_page_says_what_its_blocks_need_beside_the_package(page):
    """By `pip install` and the name of what is imported, or of the extra that brings it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]} | {"flwr_fco", "sklearn"}
    used = {name for block in blocks(page) for name in re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE)}
    said = " ".join(re.findall(r"pip install ([^`]*)", text_of(page))).replace("-", "_")
    assert [name for name in used - known - sys.stdlib_module_names if not re.search(rf"\b{name}\b", said)] == []


def test_an_own_strategy_in_another_folder_keeps_the_contract(tmp_path):
    (tmp_path / "my_strategy.py").write_text(blocks("tutorials/own-strategy")[0], encoding="utf-8")
    path = tmp_path / "check.py"
    path.write_text(
        "from inspect import signature\nfrom flwr_fco.testing import check_strategy\n"
        "from my_strategy import FedTracking\ncheck_strategy(FedTracking)\n"
        "assert signature(FedTracking).parameters['client_lr'].default == 0.1\n",
        encoding="utf-8",
    )
    done = run_file(path)
    assert done.returncode == 0, done.stderr
