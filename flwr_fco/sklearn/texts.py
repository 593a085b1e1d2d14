"""Numbers and names as texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.logs import printable


def aligned_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table's lines, the header first; missing cells are empty. Names of sites' columns are shown as text."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [["", *map(printable, names[1:])], *([_cell(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return [
        "    " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in cells
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


def class_names(classes: NDArray[Any], weights: NDArray[np.float64] | None = None) -> tuple[str, ...]:
    """Return classes as texts, of which 0 and '0' differ, and 0 and 0.0 do not; with their weights."""
    names = [repr(label) if isinstance(label, str) else f"{label:.17g}" for label in classes.tolist()]
    factors = [""] * len(names) if weights is None else [f" of weight {factor:.6g}" for factor in weights]
    return tuple(name + factor for name, factor in zip(names, factors, strict=True))
