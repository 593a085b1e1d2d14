"""docs/reference/notation.md names options and files that there are."""

import re
from pathlib import Path

from flwr_fco import strategies

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "reference" / "notation.md").read_text(encoding="utf-8")


def test_its_files_are_there():
    named = set(re.findall(r"`(flwr_fco/[\w/.]+)`", TEXT))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_its_methods_and_options_are_there():
    for line in re.findall(r"^Methods?: (.*)$", TEXT, flags=re.MULTILINE):
        assert set(re.findall(r"`(\w+)`", line)) <= strategies.STRATEGIES.keys()
    options = {name for kind in strategies.STRATEGIES.values() for name in kind.__dataclass_fields__}
    cells = [row.split("|")[3] for row in TEXT.splitlines() if row.startswith("|") and "`flwr_fco" in row]
    written = {name for cell in cells for name in re.findall(r"`(\w+)=", cell)}
    assert len(written) >= 4
    assert written <= options


def test_each_strategy_names_entries_of_the_bibliography_and_no_others():
    papers = (ROOT / "docs" / "reference" / "papers.bib").read_text(encoding="utf-8")
    entries = set(re.findall(r"^@\w+\{(\w+),$", papers, flags=re.MULTILINE))
    line = re.compile(r"^ *BibTeX: ([\w, ]+), in docs/reference/papers\.bib\.$", flags=re.MULTILINE)
    named = {name: line.findall(kind.__doc__ or "") for name, kind in strategies.STRATEGIES.items()}
    assert [name for name, found in named.items() if len(found) != 1] == []
    assert {key for (found,) in named.values() for key in found.split(", ")} == entries
