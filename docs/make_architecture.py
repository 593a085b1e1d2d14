"""Draw docs/images/architecture.png: which part of the package imports which. Run: python docs/make_architecture.py.

The arrows are read from the imports of the modules, so the picture cannot differ from the code. An arrow that follows
from others is left out (`strategies` imports `errors`, but also `topology`, which imports `errors`).
"""

import ast
from itertools import pairwise
from pathlib import Path

import networkx
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path as Curve
from scipy.optimize import isotonic_regression

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flwr_fco"
#: Colours of the parts that run on one side only; the others are grey.
SIDES = {
    "strategies": ("#fde3cf", "on the server"),
    "client_apps": ("#d6e6f4", "on the clients"),
    "engines": ("#d6e6f4", "on the clients"),
    "server": ("#fde3cf", "on the server"),
}
PLAIN = "#f3f4f6"
WIDTH, HEIGHT, GAP = 1.62, 0.46, 1.0
#: Room for a box, and for an arrow on its way past a layer.
SLOT, LANE = 1.85, 0.34


def read_imports(package: Path = PACKAGE) -> networkx.DiGraph:
    """Return the graph of the parts: an edge goes from a part to one that it imports."""
    graph = networkx.DiGraph()
    for path in sorted(package.rglob("*.py")):
        if path == package / "__init__.py":
            continue
        part = path.relative_to(package).parts[0].removesuffix(".py")
        graph.add_node(part)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                root, _, rest = name.partition(".")
                other = rest.split(".")[0]
                if root == package.name and other not in ("", part):
                    graph.add_edge(part, other)
    return graph


def written(graph: networkx.DiGraph) -> str:
    """Return the arrows that the picture stands for, drawn or implied, as text."""
    return "\n".join(f"{part} -> {other}" for part, other in sorted(graph.edges))


def arrange(graph: networkx.DiGraph) -> tuple[dict[str, tuple[float, float]], list[list[str]]]:
    """Return the centres of boxes and lanes, and each arrow as the list of what it goes through.

    A part lies below everything that it imports. An arrow over several layers has a lane in each of those between, so
    that it passes beside the boxes.
    """
    layers = [sorted(layer) for layer in networkx.topological_generations(graph.reverse())]
    depth = {part: i for i, layer in enumerate(layers) for part in layer}
    routes = []
    neighbours: dict[str, list[str]] = {part: [] for part in depth}
    # Sorted: sets of names have another order in every process.
    for part, other in sorted(graph.edges):
        lanes = {f"{part}>{other}:{i}": i for i in range(depth[part] - 1, depth[other], -1)}
        for lane, i in lanes.items():
            layers[i].append(lane)
            neighbours[lane] = []
        route = [part, *lanes, other]
        for one, next_one in pairwise(route):
            neighbours[one].append(next_one)
            neighbours[next_one].append(one)
        routes.append(route)
    places: dict[str, tuple[float, float]] = {}
    # Sweeps of the barycentre rule, down and up, untangle the arrows.
    for sweep in range(40):
        for i in range(len(layers)) if sweep % 2 == 0 else reversed(range(len(layers))):
            wanted = {}
            for name in layers[i]:
                found = [places[other][0] for other in neighbours[name] if other in places]
                wanted[name] = sum(found) / len(found) if found else 0.0
            layers[i].sort(key=wanted.__getitem__)
            places.update(_row(layers[i], wanted, -i * GAP))
    return places, routes


def _row(layer: list[str], wanted: dict[str, float], y: float) -> dict[str, tuple[float, float]]:
    """Return the centres of a layer in its order: each where it wants to be, as far as the others leave room."""
    rooms = [LANE if ">" in name else SLOT for name in layer]
    offsets, total = [], 0.0
    for room in rooms:
        offsets.append(total + room / 2)
        total += room
    # Least squares under an order is isotonic regression of the wishes without the room that is taken.
    free = isotonic_regression([wanted[name] - offset for name, offset in zip(layer, offsets, strict=True)]).x
    return {name: (float(x) + offset, y) for name, x, offset in zip(layer, free, offsets, strict=True)}


def draw(axes: Axes, graph: networkx.DiGraph) -> None:
    """Draw boxes and arrows."""
    places, routes = arrange(networkx.transitive_reduction(graph))
    for route in routes:
        points = [places[name] for name in route]
        (x, y), (to_x, to_y) = points[0], points[-1]
        # From the top of a box, straight through the lanes, to the bottom of another one.
        stops = [(x, y + HEIGHT / 2)]
        for lane_x, lane_y in points[1:-1]:
            stops += [(lane_x, lane_y - HEIGHT / 2), (lane_x, lane_y + HEIGHT / 2)]
        stops.append((to_x, to_y - HEIGHT / 2 - 0.03))
        vertices, codes = [stops[0]], [Curve.MOVETO]
        for i, (start, end) in enumerate(pairwise(stops)):
            if i % 2:
                vertices.append(end)
                codes.append(Curve.LINETO)
            else:
                middle = (start[1] + end[1]) / 2
                vertices += [(start[0], middle), (end[0], middle), end]
                codes += [Curve.CURVE4] * 3
        look = {"arrowstyle": "-|>", "mutation_scale": 8, "linewidth": 0.8, "color": "0.5", "zorder": 1}
        axes.add_patch(FancyArrowPatch(path=Curve(vertices, codes), **look))
    for part in graph:
        x, y = places[part]
        colour = SIDES.get(part, (PLAIN, ""))[0]
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        style = "round,pad=0,rounding_size=0.08"
        look = {"boxstyle": style, "facecolor": colour, "edgecolor": "0.35", "zorder": 2}
        axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, **look))
        size = 9.5 if len(part) < 11 else 8 if len(part) < 13 else 6.3
        axes.text(x, y - 0.01, part, ha="center", va="center", fontsize=size, family="monospace", zorder=3)
    columns, rows = zip(*places.values(), strict=True)
    axes.set_xlim(min(columns) - WIDTH, max(columns) + WIDTH)
    axes.set_ylim(min(rows) - 0.9, max(rows) + 0.4)
    for i, (colour, text) in enumerate([*dict.fromkeys(SIDES.values()), (PLAIN, "on any side")]):
        x = min(columns) - WIDTH / 2 + i * 3.5
        axes.add_patch(Rectangle((x, min(rows) - 0.8), 0.26, 0.18, facecolor=colour, edgecolor="0.35", linewidth=0.8))
        axes.text(x + 0.36, min(rows) - 0.715, text, va="center", fontsize=8.5, color="0.2")
    axes.set_aspect("equal")
    axes.axis("off")


def main() -> None:
    """Draw the picture."""
    graph = read_imports()
    if not networkx.is_directed_acyclic_graph(graph):
        raise SystemExit(f"imports go in a circle: {networkx.find_cycle(graph)}")
    figure = Figure(figsize=(9.4, 7.2), layout="constrained")
    draw(figure.subplots(), graph)
    path = ROOT / "docs" / "images" / "architecture.png"
    # The arrows by name too: a test compares them with the imports.
    figure.savefig(path, dpi=200, metadata={"Description": written(graph)})
    print(path)


if __name__ == "__main__":
    main()
