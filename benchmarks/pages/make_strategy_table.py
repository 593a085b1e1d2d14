"""Write the generated tables of strategies: which mirror map and psi each takes.

    python benchmarks/pages/make_strategy_table.py            # rewrite the tables between their markers
    python benchmarks/pages/make_strategy_table.py --check    # exit with 1 if one of them would change

Every cell is tried: the strategy is built and prepared with each psi of docs/how-to/geometries.md.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import Adapter
from flwr_fco.strategies import STRATEGIES as LIBRARY
from flwr_fco.strategies import CompositeStrategy

sys.path.insert(0, str(Path(__file__).parent))
from make_tables import MIRROR_MAPS
from make_tables import REGULARIZERS as _LOCAL
from writing import DOCS, markers, replaced, table_of, write_pages

from reproduction.rivals import RIVALS

# An operator of one's own reaches the clients under a registered name only.
REGULARIZERS = {**_LOCAL, "Adapter": Adapter("half-square-of-the-tables")}

Strategies = dict[str, type[CompositeStrategy]]
STRATEGIES: Strategies = {**LIBRARY, **RIVALS}
#: The strategies of each page, in the order of the table.
PAGES: dict[Path, Strategies] = {
    DOCS / "reference" / "strategies.md": LIBRARY,
    DOCS / "reproduction" / "rivals.md": RIVALS,
}


def start_arrays() -> ArrayRecord:
    """Return a start point inside the domain of every map, of a shape that every psi takes."""
    return ArrayRecord({"w": Array(np.full((2, 3), 1.0 / 6.0))})


@cache
def supported(strategy: str, column: str, row: str) -> bool:
    """Whether a strategy can be prepared with a mirror map and a psi."""
    try:
        made = STRATEGIES[strategy](mirror_map=MIRROR_MAPS[column], regularizer=REGULARIZERS[row])
        made.prepare(start_arrays())
    except ConfigurationError:
        return False
    return True


def table(of: Strategies) -> str:
    """Return the table in Markdown, strategies of equal cells in one row, and the psi behind cells that are some."""
    groups: dict[tuple[str, ...], int] = {}

    def cell(name: str, column: str) -> str:
        found = tuple(row for row in REGULARIZERS if supported(name, column, row))
        if len(found) in (0, len(REGULARIZERS)):
            return "all psi" if found else "refused"
        return f"set {groups.setdefault(found, len(groups) + 1)}"

    alike: dict[tuple[str, ...], list[str]] = {}
    for name in of:
        alike.setdefault(tuple(cell(name, column) for column in MIRROR_MAPS), []).append(name)
    rows = [[", ".join(names), *cells] for cells, names in alike.items()]
    sets = [f"- set {number}: {'; '.join(found)}" for found, number in groups.items()]
    return "\n".join([table_of(["strategy \\ h", *MIRROR_MAPS], rows), "", *sets])


def rendered(page: Path) -> str:
    """Return a page with the generated table in place of the one it has."""
    text = page.read_text(encoding="utf-8")
    return replaced(text, markers("table", "make_strategy_table.py"), table(PAGES[page]))


if __name__ == "__main__":
    write_pages(rendered, *PAGES)
