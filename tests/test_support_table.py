"""The table psi x h of docs/how-to/geometries.md is what the code answers, and what the code answers is true."""

import importlib.util
from pathlib import Path

import pytest

from flwr_fco.testing import check_pair

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "pages" / "make_tables.py"
spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


def test_every_exported_class_has_a_row_or_a_column():
    assert not tables.missing()


def test_the_committed_table_is_the_generated_one():
    assert tables.PAGE.read_text(encoding="utf-8") == tables.rendered(), "run: python benchmarks/pages/make_tables.py"


@pytest.mark.parametrize("column", tables.MIRROR_MAPS)
@pytest.mark.parametrize("row", [row for row, psi in tables.REGULARIZERS.items() if psi.convex])
def test_every_cell_is_true(row, column):
    """Supported: retrieve is a minimiser. Refused: by name, before anything is computed."""
    check_pair(tables.MIRROR_MAPS[column], tables.REGULARIZERS[row].bind(tables.LAYOUT), tables.LAYOUT.size)
