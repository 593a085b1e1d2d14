"""A forest plot: hazard ratios of all institutions together, of each one, and between them, on one axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

#: Colour, width and marker of an institution's own interval, of that of all together, and of that between them.
LOOKS = {"own": ("#8c8c8c", 0.9, "o"), "all": ("#0072B2", 2.0, "s"), "between": ("#000000", 1.2, "D")}
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


def lines_of(row: Mapping[str, Any], sites: Sequence[str]) -> list[tuple[str, str, float, float, float]]:
    """Return the intervals of a feature: name, look, point and both ends; those that are not known are NaN."""
    # The quantile of the table's level, by which an institution's own standard error is multiplied.
    quantile = (row["upper"] - row["estimate"]) / row["standard error"]
    own = [(row[site], quantile * row[f"{site} error"]) for site in sites]
    lines = [(site, "own", at, at - half, at + half) for site, (at, half) in zip(sites, own, strict=True)]
    between = row["DerSimonian-Laird"], row["Hartung-Knapp lower"], row["Hartung-Knapp upper"]
    together = row["estimate"], row["lower"], row["upper"]
    return [*lines, ("all sites together", "all", *together), ("between sites", "between", *between)]


def forest(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Return the figure of a table of intervals, `model.summary().rows`.

    An interval that is much longer than those of all institutions together leaves the axis.
    """
    sites = [name for name in rows[0] if name.startswith("site ") and f"{name} error" in rows[0]]
    known = [row for row in rows if np.isfinite(row["estimate"])]
    names = []
    heights = []
    height = 0.0
    figure = Figure(figsize=(6.4, 0.21 * (2 + len(known) * (len(sites) + 4))), layout="constrained")
    axes = figure.add_subplot()
    for row in known:
        names.append(str(row["feature"]))
        heights.append(height)
        for name, look, at, lower, upper in lines_of(row, sites):
            height -= 1.0
            if np.isnan(upper - lower):
                continue
            colour, width, marker = LOOKS[look]
            axes.hlines(height, lower, upper, colors=colour, linewidth=width)
            axes.plot(at, height, marker=marker, color=colour, markersize=4.0)
            names.append(name)
            heights.append(height)
        height -= 1.5
    ends = np.array([(row["lower"], row["upper"]) for row in known])
    room = 1.5 * np.ptp(np.append(ends, 0.0))
    axes.set(xlim=(min(ends.min(), 0.0) - 0.3 * room, max(ends.max(), 0.0) + 0.3 * room), ylim=(height, 1.0))
    axes.axvline(0.0, color="black", linewidth=0.7)
    axes.set_xticks([np.log(tick) for tick in TICKS if axes.get_xlim()[0] < np.log(tick) < axes.get_xlim()[1]])
    axes.set_xticklabels([f"{np.exp(tick):.3g}" for tick in axes.get_xticks()])
    axes.set_yticks(heights, names, parse_math=False)
    axes.set_xlabel("hazard ratio (logarithmic axis)")
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    clear = [str(row["feature"]) for row in known if row["q"] <= 0.05]
    title = f"{len(clear)} of {len(known)} features at a false discovery rate of 5 %: {', '.join(clear)}"
    axes.set_title(title.rstrip(": "), fontsize=10, loc="left", parse_math=False)
    return figure
