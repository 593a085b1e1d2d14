"""Draw the proximal maps of one or two numbers, images/prox.png: `python benchmarks/pages/make_prox_pictures.py`."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from writing import OURS, save

from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    Regularizer,
    Simplex,
    SparseGroupLasso,
)

THEIRS = "0.65"
#: Two rows of six, by what the maps do.
GROUPS = {
    "Shrink": {
        "L1(1)": L1(1.0),
        "L1(1, bound=1.5)": L1(1.0, bound=1.5),
        "L2Squared(1)": L2Squared(1.0),
        "ElasticNet(2)": ElasticNet(2.0),
        "SparseGroupLasso(1)": SparseGroupLasso(1.0, groups=np.array([0, 0])),
        "L2(1)": L2(1.0),
    },
    "Project": {
        "L1Ball(1)": L1Ball(1.0),
        "L2Ball(1)": L2Ball(1.0),
        "LInfinityBall(1)": LInfinityBall(1.0),
        "Simplex()": Simplex(),
        "HardSparsity(1)": HardSparsity(1),
        "Box(-1, 2)": Box(-1.0, 2.0),
    },
}
#: Those that act on a single number.
SCALAR = (L1, Box, ElasticNet, L2Squared)


def draw(axes: Axes, psi: Regularizer) -> None:
    """Draw what a map makes of numbers, or of points on a circle."""
    if isinstance(psi, SCALAR):
        grid = np.linspace(-3, 3, 601)
        axes.plot(grid, grid, color=THEIRS, linewidth=1)
        axes.plot(grid, [psi.prox(np.array([x]), 1.0)[0] for x in grid], color=OURS, linewidth=2)
        axes.set(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
        axes.set(xlabel="v", ylabel="prox")
    else:
        for angle in np.linspace(0, 2 * np.pi, 25)[:-1]:
            v = 2.2 * np.array([np.cos(angle), np.sin(angle)])
            p = psi.prox(v, 1.0)
            axes.plot(*np.transpose([v, p]), color=THEIRS, linewidth=0.8)
            axes.plot(*v, ".", color=THEIRS, markersize=4)
            axes.plot(*p, "o", color=OURS, markersize=4)
        axes.set(xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal", xticks=(-2, 0, 2), yticks=(-2, 0, 2))
        axes.set(xlabel="v, first", ylabel="v, second")


def main() -> None:
    """Draw the picture."""
    figure = Figure(figsize=(11.4, 5.1), layout="constrained")
    indices = iter(figure.subplots(2, 6).flat)
    for group, maps in GROUPS.items():
        for number, (title, psi) in enumerate(maps.items()):
            axes = next(indices)
            draw(axes, psi)
            axes.set_title(title, fontsize=10, loc="left")
            if not number:
                axes.annotate(group, (0, 1.22), xycoords="axes fraction", fontsize=12, fontweight="bold")
            axes.tick_params(labelsize=8)
    save(figure, "prox.png", "What each psi does: grey is what comes in, blue what goes out", colours=64)


if __name__ == "__main__":
    main()
