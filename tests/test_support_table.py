"""The table psi x h of docs/how-to/geometries.md is what the code answers, and what the code answers is true."""

import importlib.util
from pathlib import Path

import pytest
from together import together

from flwr_fco.errors import UnsupportedPairError
from flwr_fco.testing import check_pair

SCRIPT = Path(__file__).parents[1] / "docs" / "make_tables.py"
spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)

PAIRS = [(row, column) for row in tables.REGULARIZERS for column in tables.MIRROR_MAPS]


def test_every_exported_class_has_a_row_or_a_column():
    assert not tables.missing()


def test_the_committed_table_is_the_generated_one():
    assert tables.PAGE.read_text(encoding="utf-8") == tables.rendered(), "run: python docs/make_tables.py"


def test_the_table_has_a_row_for_each_example_and_three_kinds_of_cells():
    rows = [line for line in tables.table().splitlines() if not line.startswith("|---")]
    assert len(rows) == len(tables.REGULARIZERS) + 1
    cells = {cell.strip() for row in rows[1:] for cell in row.split("|")[2:-1]}
    assert cells == {"closed form", "root find", "refused"}


@together(("row", "column"), PAIRS)
def test_every_cell_is_true(row, column):
    """Supported: retrieve is a minimiser. Refused: by name, before anything is computed."""
    psi, mirror_map = tables.REGULARIZERS[row], tables.MIRROR_MAPS[column]
    regularizer = tables.bound(psi)
    if mirror_map.retrieval_method(regularizer) == "refused":
        with pytest.raises(UnsupportedPairError) as error:
            mirror_map.require(regularizer)
        assert type(psi).__name__ in str(error.value)
        assert type(mirror_map).__name__ in str(error.value)
    if psi.convex:
        check_pair(mirror_map, regularizer, tables.LAYOUT.size)
