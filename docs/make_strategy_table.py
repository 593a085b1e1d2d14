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
from flwr_fco.models import write_file
from flwr_fco.regularizers import Adapter, AffineSubspace, FusedLasso, Monotone, TotalVariation
from flwr_fco.strategies import STRATEGIES as LIBRARY
from flwr_fco.strategies import CompositeStrategy, method_of, run_of

sys.path.insert(0, str(Path(__file__).parent))
from make_tables import MIRROR_MAPS, HalfSquare
from make_tables import REGULARIZERS as _LOCAL

from reproduction.rivals import RIVALS

OWN_BEGIN = "<!-- strategies: begin (python docs/make_strategy_table.py) -->"
OWN_END = "<!-- strategies: end -->"
BEGIN = "<!-- table: begin (python docs/make_strategy_table.py) -->"
END = "<!-- table: end -->"

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


def start_arrays(row: str) -> ArrayRecord:
    """Return a start point inside the domain of every map, of the shape that a psi takes."""
    vector = isinstance(REGULARIZERS[row], TotalVariation | FusedLasso | Monotone | AffineSubspace)
    return ArrayRecord({"w": Array(np.full(6 if vector else (2, 3), 1.0 / 6.0))})


@cache
def supported(strategy: str, column: str, row: str) -> bool:
    """Whether a strategy can be prepared with a mirror map and a psi."""
    try:
        made = STRATEGIES[strategy](mirror_map=MIRROR_MAPS[column], regularizer=REGULARIZERS[row])
        run_of(made).prepare(start_arrays(row))
    except ConfigurationError:
        return False
    return True


def table(of: Strategies) -> str:
    """Return the table in Markdown, and the psi behind the cells that are neither all nor none."""
    lines = ["| strategy \\ h | " + " | ".join(MIRROR_MAPS) + " |", "|---" * (len(MIRROR_MAPS) + 1) + "|"]
    groups: dict[tuple[str, ...], int] = {}
    for name in of:
        cells = []
        for column in MIRROR_MAPS:
            found = tuple(row for row in REGULARIZERS if supported(name, column, row))
            if len(found) == len(REGULARIZERS):
                cells.append("all psi")
            elif found:
                cells.append(f"set {groups.setdefault(found, len(groups) + 1)}")
            else:
                cells.append("refused")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    sets = [f"- set {number}: {'; '.join(found)}" for found, number in groups.items()]
    return "\n".join([*lines, "", *sets])


def own_table(of: Strategies) -> str:
    """Return what the strategies say of themselves, in the order of their modules' sources."""
    vectors = "vectors down / up a round"
    head = ["strategy", "from", "a client sends", vectors, "a client remembers", "what it converges to"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, cls in sorted(of.items(), key=lambda item: (method_of(item[1]).source, item[0])):
        cells = [
            f"`{name}`",
            method_of(cls).source,
            method_of(cls).sends,
            method_of(cls).traffic,
            method_of(cls).remembers,
            method_of(cls).limit.text,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replaced(page: str, begin: str, end: str, table: str) -> str:
    """Return a page with another table between its markers."""
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def rendered(page: Path) -> str:
    """Return a page with the generated tables in place of those it has."""
    of = PAGES[page]
    text = replaced(page.read_text(encoding="utf-8"), OWN_BEGIN, OWN_END, own_table(of))
    return replaced(text, BEGIN, END, table(of))


if __name__ == "__main__":
    for page in PAGES:
        text = rendered(page)
        if "--check" not in sys.argv[1:]:
            write_file(page, text)
        elif text != page.read_text(encoding="utf-8"):
            sys.exit(f"{page.name} is out of date")
