"""Draw the proximal maps of one or a few numbers: `python docs/make_prox_pictures.py` writes images/prox.png."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from flwr_fco.regularizers import (
    L1,
    Box,
    ElasticNet,
    FusedLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinity,
    LInfinityBall,
    NonNegative,
    Simplex,
    SparseGroupLasso,
    TotalVariation,
)

SCALAR = {
    "L1(1)": L1(1.0),
    "L1(1, bound=1.5)": L1(1.0, bound=1.5),
    "L2Squared(1)": L2Squared(1.0),
    "ElasticNet(2)": ElasticNet(2.0),
    "Box(-1, 2)": Box(-1.0, 2.0),
    "NonNegative()": NonNegative(),
}
PLANE = {
    "L1Ball(1)": L1Ball(1.0),
    "L2Ball(1)": L2Ball(1.0),
    "LInfinityBall(1)": LInfinityBall(1.0),
    "LInfinity(1)": LInfinity(1.0),
    "Simplex()": Simplex(),
    "SparseGroupLasso(1)": SparseGroupLasso(1.0, groups=np.array([0, 0])),
    "HardSparsity(1)": HardSparsity(1),
}
SEQUENCE = {"TotalVariation(2)": TotalVariation(2.0), "FusedLasso(0.3, 2)": FusedLasso(0.3, 2.0)}


def main() -> None:
    figure, all_axes = plt.subplots(3, 5, figsize=(12, 7.2), layout="constrained")
    axes = iter(all_axes.flat)
    grid = np.linspace(-3, 3, 601)
    for title, psi in SCALAR.items():
        ax = next(axes)
        ax.plot(grid, grid, color="0.8", linewidth=1)
        ax.plot(grid, [psi.prox(np.array([x]), 1.0)[0] for x in grid])
        ax.set(title=title, xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    angles = np.linspace(0, 2 * np.pi, 25)[:-1]
    for title, psi in PLANE.items():
        ax = next(axes)
        for angle in angles:
            v = 2.2 * np.array([np.cos(angle), np.sin(angle)])
            p = psi.prox(v, 1.0)
            ax.plot(*np.transpose([v, p]), color="0.75", linewidth=0.8)
            ax.plot(*v, ".", color="0.6", markersize=3)
            ax.plot(*p, ".", color="C3", markersize=5)
        ax.set(title=title, xlim=(-2.5, 2.5), ylim=(-2.5, 2.5), aspect="equal")
    rng = np.random.default_rng(0)
    signal = np.repeat([0.0, 2.0, 0.5, -1.0, 0.0], 20) + 0.4 * rng.normal(size=100)
    for title, psi in SEQUENCE.items():
        ax = next(axes)
        ax.plot(signal, ".", color="0.7", markersize=3)
        ax.plot(psi.prox(signal, 1.0), color="C3", drawstyle="steps-mid")
        ax.set(title=title)
    for ax in all_axes.flat:
        ax.title.set_fontsize(10)
        ax.tick_params(labelsize=7)
    path = Path(__file__).parent / "images" / "prox.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    main()
