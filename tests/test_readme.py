"""What the README shows is what happens."""

import re
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fco import strategies as exported
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import run_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INTO_FLOWER = (ROOT / "docs" / "get-started" / "into-flower.md").read_text(encoding="utf-8")
QUICKSTART = README[README.index("## Quickstart") :]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


BLOCKS = blocks_of(QUICKSTART)


@pytest.fixture(scope="module")
def quickstart():
    names = {}
    exec(BLOCKS[0], names)
    return names


def test_the_quickstart_is_short_and_does_what_its_comment_says(quickstart, capsys):
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12
    printed = float(re.search(r"# ([\d.]+):", BLOCKS[0])[1])
    coefficients = quickstart["result"].arrays["coefficients"].numpy()
    # A few of 640 may differ with another BLAS.
    assert np.mean(coefficients != 0) == pytest.approx(printed, abs=0.02)


def test_the_server_app_runs_the_same_objects_to_the_same_bits(quickstart, capsys):
    names = dict(quickstart)
    (block,) = blocks_of(INTO_FLOWER)
    exec(block, names)
    grid = InProcessGrid(names["clients"], 10)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config={})
    # As `simulate` does: each message would look for the BLAS libraries again, which takes longer than the round.
    with grid.identity(), single_threaded_blas():
        names["app"](grid, context)
    np.testing.assert_array_equal(
        run_of(names["strategy"]).arrays["coefficients"].numpy(),
        quickstart["result"].arrays["coefficients"].numpy(),
    )


def test_the_line_that_changes_builds_a_strategy():
    changed = re.search(r"```diff\n- +strategy = FedAvg\(\)\n\+ +(strategy = .*)\n```", README)[1]
    names = {"FedDualAvg": exported.FedDualAvg}
    exec(changed, names)
    assert names["strategy"].density == 0.1
    assert changed in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").replace("   #", "  #")
