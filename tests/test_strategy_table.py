"""The table strategy x mirror map x psi of docs/reference/strategies.md is what the code does."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from fitting import fitting
from problems import clients, flat, run
from representatives import by_class

from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedAvgSubgradient, Steps

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "pages" / "make_strategy_table.py"
spec = importlib.util.spec_from_file_location("make_strategy_table", SCRIPT)
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_committed_table_is_the_generated_one(page):
    assert page.read_text(encoding="utf-8") == tables.rendered(page), "run: make_strategy_table.py"


@pytest.mark.parametrize("page", tables.PAGES)
def test_every_strategy_has_a_row_that_says_what_it_converges_to(page):
    lines = page.read_text(encoding="utf-8").split("<!--")[0].splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(tables.PAGES[page])


@pytest.mark.parametrize(
    "name", by_class(name for name, cls in tables.STRATEGIES.items() if not issubclass(cls, FedAvgSubgradient))
)
@pytest.mark.parametrize("column", tables.MIRROR_MAPS)
def test_what_is_supported_runs(name, column):
    if not tables.supported(name, column, "L1") or column == "SimplexEntropy":
        return
    mirror_map = tables.MIRROR_MAPS[column]
    if column == "DiagonalMetric":
        mirror_map = type(mirror_map)(np.linspace(0.5, 2.0, 7))
    options = fitting(tables.STRATEGIES[name], {"client_lr": 0.01, "work": Steps(2, batch_size=None)})
    strategy = tables.STRATEGIES[name](mirror_map=mirror_map, regularizer=L1(0.01), **options)
    w = flat(run(strategy, clients(), 30).arrays)
    objectives = clients()
    loss = np.mean([f.value(w) for f in objectives])
    assert loss < 0.9 * np.mean([f.value(np.zeros(7)) for f in objectives])
