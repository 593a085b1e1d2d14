"""Write the generated tables of the documentation.

    python benchmarks/pages/make_tables.py            # rewrite docs/how-to/geometries.md between its markers
    python benchmarks/pages/make_tables.py --check    # exit with 1 if the committed table is not the generated one

The rows and columns are the classes that ``flwr_fco.regularizers`` and ``flwr_fco.mirror_maps`` export; the cells are
what ``MirrorMap.supports`` answers, never what somebody remembers.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np

import flwr_fco.mirror_maps as mirror_maps
import flwr_fco.regularizers as regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, SimplexEntropy
from flwr_fco.regularizers import (
    L1,
    L2,
    Adapter,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NofM,
    NonNegative,
    Nuclear,
    NuclearBall,
    Regularizer,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
    Zero,
)

sys.path.insert(0, str(Path(__file__).parent))
from writing import DOCS, markers, replaced, table_of, write_pages

PAGE = DOCS / "how-to" / "geometries.md"
#: The arrays that the examples act on: a matrix of six elements, so that every psi has something to act on.
LAYOUT = Layout.from_arrays({"w": np.zeros((2, 3))})


class HalfSquare:
    """A foreign operator with pyproximal's interface, for the adapter's row."""

    def __call__(self, x: np.ndarray) -> float:
        """Return 1/2 ||x||^2."""
        return 0.5 * float(x @ x)

    def prox(self, x: np.ndarray, tau: float) -> np.ndarray:
        """Return x / (1 + tau)."""
        return x / (1.0 + tau)


Adapter.register("half-square-of-the-tables", HalfSquare)
#: What a row shows, in the order of the table: label and psi.
REGULARIZERS: dict[str, Regularizer] = {
    "Zero": Zero(),
    "L1": L1(0.3),
    "L1, weights": L1(0.3, weights=np.linspace(0.0, 1.0, 6).reshape(2, 3)),
    "L1, bound": L1(0.3, bound=0.5),
    "L2Squared": L2Squared(0.5),
    "ElasticNet": ElasticNet(0.4),
    "NonNegative": NonNegative(),
    "Box": Box(-0.2, 0.5),
    "LInfinityBall": LInfinityBall(0.5),
    "Simplex": Simplex(),
    "L1Ball": L1Ball(1.5),
    "L1Ball, weights": L1Ball(1.5, weights=np.linspace(0.5, 1.5, 6).reshape(2, 3)),
    "L2Ball": L2Ball(0.9),
    "L2": L2(0.3),
    "GroupLasso": GroupLasso(0.3, groups=np.arange(2)[:, None]),
    "SparseGroupLasso": SparseGroupLasso(0.3, groups=np.arange(2)[:, None]),
    "Nuclear": Nuclear(0.3),
    "NuclearBall": NuclearBall(0.7),
    "SpectralBall": SpectralBall(0.4),
    "HardSparsity": HardSparsity(2),
    "NofM": NofM(1, 3),
    "Adapter": Adapter("half-square-of-the-tables"),
}
#: What a column shows.
MIRROR_MAPS: dict[str, MirrorMap] = {
    "Euclidean": Euclidean(),
    "DiagonalMetric": DiagonalMetric(np.linspace(0.5, 2.0, 6)),
    "PNorm": PNorm(4.0),
    "SimplexEntropy": SimplexEntropy(),
}
#: Classes whose row or column is that of their members, array by array.
BY_ARRAY = {"PerParameter", "Product"}


def exported(package: object, base: type) -> set[str]:
    """Return the names of the concrete classes below `base` that a package exports."""
    classes = {name: getattr(package, name) for name in package.__all__}  # type: ignore[attr-defined]
    return {
        name
        for name, value in classes.items()
        if inspect.isclass(value) and issubclass(value, base) and not inspect.isabstract(value)
    }


def missing() -> set[str]:
    """Return the exported classes that have neither a row nor a column."""
    known = {type(member).__name__ for member in (*REGULARIZERS.values(), *MIRROR_MAPS.values())} | BY_ARRAY
    return (exported(regularizers, Regularizer) | exported(mirror_maps, MirrorMap)) - known


def table() -> str:
    """Return the table of every psi with every h, in Markdown; psi that agree share a row."""
    if absent := missing():
        raise SystemExit(f"add {', '.join(sorted(absent))} to REGULARIZERS or MIRROR_MAPS in {Path(__file__).name}")
    rows: dict[tuple[str, ...], list[str]] = {}
    for label, psi in REGULARIZERS.items():
        cells = tuple("yes" if h.supports(psi.bind(LAYOUT)) else "refused" for h in MIRROR_MAPS.values())
        rows.setdefault(cells, []).append(label)
    return table_of(["psi \\ h", *MIRROR_MAPS], (["; ".join(labels), *cells] for cells, labels in rows.items()))


def rendered(page: Path = PAGE) -> str:
    """Return the page with the generated table in place of the one it has."""
    return replaced(page.read_text(encoding="utf-8"), markers("table", "make_tables.py"), table())


if __name__ == "__main__":
    write_pages(rendered, PAGE)
