"""The code of docs/tutorials/privacy.md and docs/how-to/disclosure.md runs as it stands."""

import re
from pathlib import Path

import pytest
from fresh import run_file

pytest.importorskip("dp_accounting")
DOCS = Path(__file__).parents[2] / "docs"
PAGES = [(DOCS / page).read_text(encoding="utf-8") for page in ("tutorials/privacy.md", "how-to/disclosure.md")]
PAGE = PAGES[1]


def run_block(block, folder):
    """Run a block of the pages."""
    code = re.findall(r"```python\n(.*?)```", "".join(PAGES), flags=re.DOTALL)[block]
    (folder / "mine.py").write_text(code, encoding="utf-8")
    return run_file(folder / "mine.py")


def lines_of(block, folder):
    """Return what a block of the pages prints."""
    return run_block(block, folder).stdout.splitlines()


def test_the_code_of_the_page_keeps_its_promise(tmp_path):
    epsilon, delta, density = map(float, re.findall(r"[\d.e-]*\d", " ".join(lines_of(0, tmp_path)[-2:])))
    assert epsilon <= 4.0
    assert delta == 1e-3
    assert density < 1.0


def test_the_refusal_of_the_page_is_as_printed(tmp_path):
    printed = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)[1].splitlines()
    done = run_block(1, tmp_path)
    # What Flower and the strategy log stands between.
    assert [line for line in done.stdout.splitlines() if line in printed] == printed
    record = re.search(r"^(Disclosure: run )\d+(, .*)$", PAGE, flags=re.MULTILINE)
    assert re.search(rf"{record[1]}\d+{re.escape(record[2])}$", done.stderr, flags=re.MULTILINE)
