"""Draw docs/images/round.png: one round of federated dual averaging. Run: python docs/make_round.py."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

DUAL, PRIMAL, GREY = "#1f77b4", "#d95f02", "0.35"


def box(axes: Axes, x: float, y: float, width: float, height: float, title: str, lines: str) -> None:
    """Draw a box with a title and some lines."""
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.08", facecolor="#f6f8fa", edgecolor=GREY)
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height - 0.12, title, ha="center", va="top", fontsize=10.5, weight="bold")
    axes.text(x + width / 2, y + (height - 0.35) / 2, lines, ha="center", va="center", fontsize=9.5, linespacing=1.55)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """Draw an arrow."""
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, linewidth=1.8, color=color))


def main() -> None:
    """Draw the picture."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 10)
    axes.set_ylim(0, 4.4)
    axes.axis("off")
    server = (
        "2.  average the duals:   $z \\leftarrow z + \\eta_s$ mean(increments),   "
        "$t \\leftarrow t + \\eta_s$ mean(elapsed)\n"
        "3.  one proximal step:   $w = \\mathrm{prox}_{t\\psi}(z)$   — exactly sparse"
    )
    box(axes, 0.3, 3.05, 6.6, 1.2, "server: the strategy", server)
    for i, x in enumerate((0.3, 2.65, 5.0)):
        name = ("client 1", "client 2", "client M")[i]
        client = "each minibatch:\n$w = \\mathrm{prox}_{t\\psi}(z)$\n$z \\leftarrow z - \\eta_c\\,\\nabla F(w)$"
        box(axes, x, 0.15, 1.9, 1.35, name, client)
        arrow(axes, (x + 0.6, 2.95), (x + 0.6, 1.62), DUAL)
        arrow(axes, (x + 1.3, 1.62), (x + 1.3, 2.95), DUAL)
    axes.text(4.775, 0.75, "…", fontsize=16, ha="center")
    axes.text(0.78, 2.28, "4.  dual $z$, $t$", fontsize=9.5, color=DUAL, ha="right", va="center", rotation=90)
    axes.text(1.72, 2.28, "1.  increment", fontsize=9.5, color=DUAL, ha="left", va="center", rotation=90)
    box(axes, 8.0, 3.05, 1.7, 1.2, "you", "evaluation,\nResult.arrays")
    arrow(axes, (7.02, 3.6), (7.9, 3.6), PRIMAL)
    axes.text(7.46, 3.75, "primal $w$", fontsize=9.5, color=PRIMAL, ha="center")
    note = (
        "Averages of sparse models are not sparse;\n"
        "so duals are averaged, and the model\n"
        "comes out of a proximal step last.\n\n"
        "Clients that cannot be changed\n"
        '(client="unmodified") get the primal $w$\n'
        "and return their new model."
    )
    axes.text(7.25, 2.3, note, fontsize=9, va="top", linespacing=1.4, color="0.25")
    path = Path(__file__).parent / "images" / "round.png"
    figure.savefig(path, dpi=110)
    print(path)


if __name__ == "__main__":
    main()
