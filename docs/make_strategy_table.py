"""Write the generated tables of strategies: what each says of itself, and which mirror map and psi it takes.

    python docs/make_strategy_table.py            # rewrite reference/strategies.md and the rivals' page between markers
    python docs/make_strategy_table.py --check    # exit with 1 if a committed table is not the generated one

What a strategy says of itself are attributes of its class (`source`, `sends`, `remembers`, `traffic`, `limit`). Every
cell of the other table is tried: the strategy is built and prepared with each psi of docs/how-to/geometries.md.
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
from flwr_fco.strategies import CompositeStrategy, method_of, run_of

sys.path.insert(0, str(Path(__file__).parent))
from make_tables import MIRROR_MAPS, HalfSquare
from make_tables import REGULARIZERS as _LOCAL
from writing import markers, replaced, table_of, write_pages

from reproduction.rivals import RIVALS

# An operator of one's own reaches the clients under a registered name only.
Adapter.register("half-square-of-the-table", HalfSquare)
REGULARIZERS = {**_LOCAL, "Adapter": Adapter(name="half-square-of-the-table")}

Strategies = dict[str, type[CompositeStrategy]]
STRATEGIES: Strategies = {**LIBRARY, **RIVALS}
#: The strategies of each page, in the order of the table.
PAGES: dict[Path, Strategies] = {
    Path(__file__).parent / "reference" / "strategies.md": LIBRARY,
    Path(__file__).parent / "reproduction" / "rivals.md": RIVALS,
}


def start_arrays() -> ArrayRecord:
    """Return a start point inside the domain of every map, of a shape that every psi takes."""
    return ArrayRecord({"w": Array(np.full((2, 3), 1.0 / 6.0))})


@cache
def supported(strategy: str, column: str, row: str) -> bool:
    """Whether a strategy can be prepared with a mirror map and a psi."""
    try:
        made = STRATEGIES[strategy](mirror_map=MIRROR_MAPS[column], regularizer=REGULARIZERS[row])
        run_of(made).prepare(start_arrays())
    except ConfigurationError:
        return False
    return True


def table(of: Strategies) -> str:
    """Return the table in Markdown, and the psi behind the cells that are neither all nor none."""
    groups: dict[tuple[str, ...], int] = {}

    def cell(name: str, column: str) -> str:
        found = tuple(row for row in REGULARIZERS if supported(name, column, row))
        if len(found) in (0, len(REGULARIZERS)):
            return "all psi" if found else "refused"
        return f"set {groups.setdefault(found, len(groups) + 1)}"

    rows = [[name, *(cell(name, column) for column in MIRROR_MAPS)] for name in of]
    sets = [f"- set {number}: {'; '.join(found)}" for found, number in groups.items()]
    return "\n".join([table_of(["strategy \\ h", *MIRROR_MAPS], rows), "", *sets])


def own_table(of: Strategies) -> str:
    """Return what the strategies say of themselves, in the order of their modules' sources."""
    vectors = "vectors down / up a round"
    head = ["strategy", "from", "a client sends", vectors, "a client remembers", "what it converges to"]
    known = sorted((method_of(cls).source, name, method_of(cls)) for name, cls in of.items())
    rows = ([f"`{name}`", source, m.sends, m.traffic, m.remembers, m.limit.text] for source, name, m in known)
    return table_of(head, rows)


def rendered(page: Path) -> str:
    """Return a page with the generated tables in place of those it has."""
    text = page.read_text(encoding="utf-8")
    for name, make in (("strategies", own_table), ("table", table)):
        text = replaced(text, markers(name, "make_strategy_table.py"), make(PAGES[page]))
    return text


if __name__ == "__main__":
    write_pages(rendered, *PAGES)
