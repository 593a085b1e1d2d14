"""What the README shows is what happens."""

import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fco import strategies as exported
from flwr_fco.client_apps.threads import single_threaded_blas
from flwr_fco.simulation import InProcessGrid
from flwr_fco.wire import flower as _flower

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def quickstart():
    names = {}
    exec(BLOCKS[0], names)
    return names


def test_the_quickstart_has_twelve_lines_and_does_what_its_comment_says(quickstart, capsys):
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) == 12
    printed = float(re.search(r"# ([\d.]+):", BLOCKS[0])[1])
    coefficients = quickstart["result"].arrays["coefficients"].numpy()
    # A few of 640 may differ with another BLAS.
    assert np.mean(coefficients != 0) == pytest.approx(printed, abs=0.02)


def test_the_graph_agrees_as_its_comment_says(quickstart):
    names = dict(quickstart)
    exec(BLOCKS[2], names)
    tracked, biased = re.search(r"# ([\d.]+); DFedDA, without tracking: ([\d.]+)", BLOCKS[2]).groups()
    last = names["result"].train_metrics_clientapp[400]
    assert last["consensus-error"] == pytest.approx(float(tracked), rel=0.02)
    without = exported.DFedDA(mixing=names["ring"](10), **names["options"])
    result = names["simulate"](without, names["clients"], num_nodes=10, num_rounds=400, initial_arrays=names["start"])
    assert result.train_metrics_clientapp[400]["consensus-error"] == pytest.approx(float(biased), rel=0.02)


def test_the_server_app_runs_the_same_objects_to_the_same_bits(quickstart, capsys):
    names = dict(quickstart)
    exec(BLOCKS[1], names)
    grid = InProcessGrid(names["clients"], 10)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config={})
    # As `simulate` does: each message would look for the BLAS libraries again, which takes longer than the round.
    with _flower.identity(grid.run_id), single_threaded_blas():
        names["app"](grid, context)
    np.testing.assert_array_equal(
        names["strategy"].primal_arrays()["coefficients"].numpy(),
        quickstart["result"].arrays["coefficients"].numpy(),
    )


def test_every_strategy_is_in_the_table():
    table = README[README.index("## Algorithms") : README.index("## Layout")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(exported.STRATEGIES)


def test_the_layout_names_the_places_that_people_look_for():
    layout = README[README.index("## Layout") :]
    for place in ("strategies", "client_apps", "tests", "examples"):
        assert f"{place}](" in layout


def test_there_are_exactly_two_commands():
    commands = re.search(r"## Two commands.*?```shell\n(.*?)```", README, flags=re.DOTALL)[1]
    assert [line.split("#")[0].strip() for line in commands.splitlines()] == ["make run", "make test"]
