"""What the scripts of this folder share: tables between the markers of a page, runs in this process, and pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from flwr_fco.client_apps import client_app
from flwr_fco.models import write_file
from flwr_fco.simulation import simulate

DOCS = Path(__file__).parents[2] / "docs"
OURS = "#0072B2"


def partition(context: Any) -> int:
    """Return which client it is."""
    return int(context.node_config["partition-id"])


def federate(strategy: Any, clients: Any, rounds: int, start: Any, *, nodes: int = 0, **options: Any) -> Any:
    """Run a strategy over clients, a function of their context that returns a loss, or the losses that they hold."""
    load = clients if callable(clients) else lambda context: clients[partition(context)]
    app = clients if isinstance(clients, ClientApp) else client_app(load)
    given = {"num_nodes": nodes or len(clients), "num_rounds": rounds, "initial_arrays": start, "progress": False}
    return simulate(strategy, app, **given, **options)


def row_of(cells: Iterable[object]) -> str:
    """Return a row of a table of Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table_of(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table of Markdown."""
    names = list(head)
    return "\n".join([row_of(names), "|---" * len(names) + "|", *map(row_of, rows)])


def markers(name: str, command: str) -> tuple[str, str]:
    """Return what a generated table of a page begins and ends with."""
    return f"<!-- {name}: begin (python benchmarks/pages/{command}) -->", f"<!-- {name}: end -->"


def between(page: str, marks: tuple[str, str]) -> str:
    """Return what a page has between its markers."""
    return page.split(marks[0])[1].split(marks[1])[0].strip()


def replaced(page: str, marks: tuple[str, str], text: str) -> str:
    """Return a page with another text between its markers."""
    before, rest = page.split(marks[0])
    _, after = rest.split(marks[1])
    return f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}"


def write_pages(rendered: Callable[[Path], str], *pages: Path) -> None:
    """Write pages; with --check on the command line exit with 1 if one is not as it would be written."""
    for page in pages:
        if "--check" not in sys.argv[1:]:
            write_file(page, rendered(page))
        elif rendered(page) != page.read_text(encoding="utf-8"):
            sys.exit(f"{page.name} is out of date")


def without_frame(axes: Axes) -> None:
    """Remove the frame at the top and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, name: str, title: str, *, colours: int = 0, **size: float) -> None:
    """Write a picture into images/ with its title, where asked with a few colours: a quarter of the bytes."""
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", **size)
    path = DOCS / "images" / name
    if colours:
        file = BytesIO()
        figure.savefig(file, dpi=200)
        Image.open(file).quantize(colours).save(path, optimize=True)
    else:
        figure.savefig(path, dpi=200)
    print(path)
