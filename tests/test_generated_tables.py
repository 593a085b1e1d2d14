"""The tables psi x h, and strategy x mirror map x psi: what pages show is generated, and what the code does."""

import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from problems import by_class, clients, fitting, flat, run

from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedAvgSubgradient, Steps
from flwr_fco.testing import check_pair

sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "pages"))
pairs, strategies = map(import_module, ("make_tables", "make_strategy_table"))


def test_every_exported_class_has_a_row_or_a_column():
    assert not pairs.missing()


def test_the_table_of_pairs_is_the_generated_one():
    assert pairs.PAGE.read_text(encoding="utf-8") == pairs.rendered(), "run: python benchmarks/pages/make_pairs.py"


@pytest.mark.parametrize("column", pairs.MIRROR_MAPS)
@pytest.mark.parametrize("row", [row for row, psi in pairs.REGULARIZERS.items() if psi.convex])
def test_every_cell_is_true(row, column):
    """Supported: retrieve is a minimiser. Refused: by name, before anything is computed."""
    check_pair(pairs.MIRROR_MAPS[column], pairs.REGULARIZERS[row].bind(pairs.LAYOUT), pairs.LAYOUT.size)


@pytest.mark.parametrize("page", strategies.PAGES)
def test_the_committed_table_is_the_generated_one(page):
    assert page.read_text(encoding="utf-8") == strategies.rendered(page), "run: make_strategy_table.py"


@pytest.mark.parametrize("page", strategies.PAGES)
def test_every_strategy_has_a_row_that_says_what_it_converges_to(page):
    lines = page.read_text(encoding="utf-8").split("<!--")[0].splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(strategies.PAGES[page])


@pytest.mark.parametrize(
    "name", by_class(name for name, cls in strategies.STRATEGIES.items() if not issubclass(cls, FedAvgSubgradient))
)
@pytest.mark.parametrize("column", strategies.MIRROR_MAPS)
def test_what_is_supported_runs(name, column):
    if not strategies.supported(name, column, "L1") or column == "SimplexEntropy":
        return
    mirror_map = strategies.MIRROR_MAPS[column]
    if column == "DiagonalMetric":
        mirror_map = type(mirror_map)(np.linspace(0.5, 2.0, 7))
    options = fitting(strategies.STRATEGIES[name], {"client_lr": 0.01, "work": Steps(2, batch_size=None)})
    strategy = strategies.STRATEGIES[name](mirror_map=mirror_map, regularizer=L1(0.01), **options)
    w = flat(run(strategy, clients(), 30).arrays)
    objectives = clients()
    loss = np.mean([f.value(w) for f in objectives])
    assert loss < 0.9 * np.mean([f.value(np.zeros(7)) for f in objectives])
