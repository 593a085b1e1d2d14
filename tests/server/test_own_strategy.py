"""A strategy of one's own: the page's keeps the contract."""

import re
import sys
import types
from pathlib import Path

from problems import app_of, clients, start_arrays

from flwr_fco.algorithms.contract import halves
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg
from flwr_fco.testing import check_strategy

PAGE = Path(__file__).parents[2] / "docs" / "own-strategy.md"


def page():
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL).group(1)
    module = sys.modules["own_strategy"] = types.ModuleType("own_strategy")  # dataclasses look their module up
    exec(compile(source, "own_strategy", "exec"), module.__dict__)
    return module


def test_the_pages_strategy_keeps_the_contract():
    check_strategy(page().FedTracking)


def test_a_method_whose_module_workers_lack_disturbs_no_run():
    """It is known in this process, and another method runs."""
    page()
    assert "tracking" in halves()
    strategy = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0)
    start = {name: array.numpy() for name, array in start_arrays().items()}
    options = {"num_nodes": 4, "num_rounds": 1, "initial_arrays": start, "progress": False}
    simulate(strategy, app_of(clients()), engine="processes", workers=1, **options)
