"""A strategy of one's own: the page's keeps the contract."""

import re
import sys
import types
from pathlib import Path

import pytest
from problems import app_of, clients, start_arrays

from flwr_fco.algorithms import ClientHalf, DualAveraging, MirrorDescent, Start
from flwr_fco.algorithms.contract import halves
from flwr_fco.client_apps.table import find_solver
from flwr_fco.errors import ConfigurationError
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


@pytest.mark.parametrize(
    ("engine", "says", "missing"),
    [
        ("dual steps", {}, "needs begin of"),
        ("minimise", {}, "needs begin of"),
        ("primal steps", {}, "needs begin and local_step of"),
        ("gradient steps", {"begin": staticmethod(Start)}, "needs local_step of"),
        (None, {"begin": staticmethod(Start)}, "needs local of"),
    ],
)
def test_a_method_without_what_its_engine_needs_is_refused_when_it_is_defined(engine, says, missing):
    with pytest.raises(ConfigurationError, match=missing):
        type("Lacking", (ClientHalf,), {"name": "lacking", "engine": engine, **says})
    assert "lacking" not in halves()


def test_an_engine_that_is_not_there_is_named():
    type("Misspelt", (ClientHalf,), {"name": "misspelt", "engine": "dual step", "begin": staticmethod(Start)})
    with pytest.raises(ConfigurationError, match="engine='dual step'; expected one of dual steps, "):
        find_solver("misspelt")


@pytest.mark.parametrize("name", sorted(name for name in vars(ClientHalf) if name[0] != "_" and name != "name"))
def test_a_subclass_that_changes_the_client_half_needs_a_name(name):
    """Clients find their half by its name, so a change without one would never run."""
    kind = MirrorDescent if name == "local_step" else DualAveraging
    with pytest.raises(ConfigurationError, match=f"changes {name} of the method {kind.name!r}.* give yours a `name`"):
        type("Changed", (kind,), {name: object()})
