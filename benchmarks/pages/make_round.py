"""Draw docs/images/round.png: one round of federated dual averaging. Run: python benchmarks/pages/make_round.py."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from writing import OURS, save

DUAL = OURS
MODEL = "black"
GREY = "0.35"


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
    figure = Figure(figsize=(8.8, 3.3), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0, 10.1)
    axes.set_ylim(0, 3.5)
    axes.axis("off")
    box(axes, 0.1, 1.06, 1.7, 1.3, "1  server", "sends its dual\n$z$ and $t$, the sum\nof step sizes")
    for i, y in enumerate((2.4, 1.25, 0.1)):
        steps = "$w = \\mathrm{prox}_{t\\psi}(z)$\n$z \\leftarrow z - \\eta_c\\,\\nabla F(w)$, repeated"
        box(axes, 2.8, y + 0.04, 2.5, 0.92, f"2  client {'12M'[i]}", steps)
        arrow(axes, (1.9, 1.71), (2.68, y + 0.46), DUAL)
        arrow(axes, (5.42, y + 0.46), (6.2, 1.71), DUAL)
    axes.text(5.86, 2.62, "increments\nof $z$", fontsize=9.5, color=DUAL, va="bottom")
    box(axes, 6.3, 1.06, 1.8, 1.3, "3  server", "adds their mean to $z$,\nthen $w = \\mathrm{prox}_{t\\psi}(z)$")
    arrow(axes, (8.2, 1.71), (8.78, 1.71), MODEL)
    box(axes, 8.88, 1.06, 1.05, 1.3, "you", "get $w$,\nexactly\nsparse")
    save(figure, "round.png", "One round: duals are averaged, and the proximal step comes last")


if __name__ == "__main__":
    main()
