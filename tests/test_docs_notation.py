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


def test_each_strategy_names_entries_of_the_bibliography_and_no_others():
    papers = (ROOT / "docs" / "reference" / "papers.bib").read_text(encoding="utf-8")
    entries = set(re.findall(r"^@\w+\{(\w+),$", papers, flags=re.MULTILINE))
    line = re.compile(r"^ *BibTeX: ([\w, ]+), in docs/reference/papers\.bib\.$", flags=re.MULTILINE)
    named = {name: line.findall(kind.__doc__ or "") for name, kind in strategies.STRATEGIES.items()}
    assert [name for name, found in named.items() if len(found) != 1] == []
    assert {key for (found,) in named.values() for key in found.split(", ")} == entries
