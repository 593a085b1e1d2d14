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
from flwr_fco.wire import flower as _flower

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STRATEGIES = (ROOT / "docs" / "reference" / "strategies.md").read_text(encoding="utf-8")
INTO_FLOWER = (ROOT / "docs" / "get-started" / "into-flower.md").read_text(encoding="utf-8")
WHEN = (ROOT / "docs" / "choose" / "when-it-pays.md").read_text(encoding="utf-8")
QUICKSTART = README[README.index("## Quickstart") :]


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


BLOCKS = blocks_of(QUICKSTART)


@pytest.fixture(scope="module")
def quickstart():
    names = {}
    exec(BLOCKS[0], names)
    return names


def test_the_quickstart_has_at_most_twelve_lines_and_does_what_its_comment_says(quickstart, capsys):
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12
    printed = float(re.search(r"# ([\d.]+):", BLOCKS[0])[1])
    coefficients = quickstart["result"].arrays["coefficients"].numpy()
    # A few of 640 may differ with another BLAS.
    assert np.mean(coefficients != 0) == pytest.approx(printed, abs=0.02)


def test_the_graph_agrees_as_its_comment_says(quickstart):
    names = dict(quickstart)
    (block,) = blocks_of(STRATEGIES)
    exec(block, names)
    tracked = re.search(r"# ([\d.]+); DFedDA, without tracking", block)[1]
    assert names["result"].train_metrics_clientapp[400]["consensus-error"] == pytest.approx(float(tracked), rel=0.02)


# By day tests/strategies/on_graphs compares methods with and without tracking.
@pytest.mark.nightly
def test_without_tracking_the_graph_does_not_agree(quickstart):
    names = dict(quickstart)
    (block,) = blocks_of(STRATEGIES)
    exec(block, names)
    biased = re.search(r"; DFedDA, without tracking: ([\d.]+)", block)[1]
    without = exported.DFedDA(mixing=names["ring"](10), **names["options"])
    result = names["simulate"](without, names["clients"], num_nodes=10, num_rounds=400, initial_arrays=names["start"])
    assert result.train_metrics_clientapp[400]["consensus-error"] == pytest.approx(float(biased), rel=0.02)


def test_the_server_app_runs_the_same_objects_to_the_same_bits(quickstart, capsys):
    names = dict(quickstart)
    (block,) = blocks_of(INTO_FLOWER)
    exec(block, names)
    grid = InProcessGrid(names["clients"], 10)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config={})
    # As `simulate` does: each message would look for the BLAS libraries again, which takes longer than the round.
    with _flower.identity(grid.run_id), single_threaded_blas():
        names["app"](grid, context)
    np.testing.assert_array_equal(
        run_of(names["strategy"]).primal_arrays()["coefficients"].numpy(),
        quickstart["result"].arrays["coefficients"].numpy(),
    )


def test_the_layout_names_the_places_that_people_look_for():
    layout = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8").partition("## Layout")[2]
    for place in ("strategies", "client_apps", "tests", "examples"):
        assert f"{place}](" in layout


def test_it_is_short_and_leads_to_everything():
    assert len(README.splitlines()) <= 120
    assert README.index("make run ") < README.index("## Quickstart")
    pages = set(re.findall(r"\]\((docs/[\w/-]+\.md)", README))
    assert {f"docs/reproduction/{name}.md" for name in ("fco", "gradient-tracking", "saddle", "dualfl")} <= pages
    assert {"docs/index.md", "docs/how-to/index.md", "docs/understand/faq.md"} <= pages


def test_the_line_that_changes_builds_a_strategy():
    changed = re.search(r"```diff\n- +strategy = FedAvg\(\)\n\+ +(strategy = .*)\n```", README)[1]
    names = {"FedDualAvg": exported.FedDualAvg}
    exec(changed, names)
    assert names["strategy"].density == 0.1
    assert changed in (ROOT / "docs" / "index.md").read_text(encoding="utf-8").replace("   #", "  #")


def test_every_page_is_on_the_site():
    """A page that no table of contents names is found by nobody."""
    docs = ROOT / "docs"
    for page in docs.glob("*/*.md"):
        index = page.parent / "index.md"
        if page != index and index.is_file():
            assert page.stem in index.read_text(encoding="utf-8").splitlines(), page


def gaps_of_the_full_run():
    """Return the medians of `fco-when` by what varies and its value, then by method."""
    page = (ROOT / "docs" / "reproduction" / "details" / "fco-when.md").read_text(encoding="utf-8")
    found = {}
    for table in page.split("\n\n"):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if table.startswith("| ") and rows[-1][0] == "FedDAGT":
            for column, value in enumerate(rows[0][1:], start=1):
                numbers = {row[0]: float(row[column].split()[0]) for row in rows[2:]}
                found[rows[0][0].split(",")[0].split(" of the ")[0], float(value)] = numbers
    return found


def test_when_it_pays_says_what_its_table_says():
    gaps = gaps_of_the_full_run()
    assert len(gaps) == 15
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in WHEN[WHEN.index("| what varies") : WHEN.index("- **Noise")].splitlines()[3:]
        if line.startswith("|")
    ]
    varied, seen = "", 0
    for what, value, lead, tracked in rows:
        varied = what.split(",")[0].split(" of the ")[0] if what else varied
        key = (varied, float(re.match(r"[\d.]+", value)[0]))
        key = next(own for own in gaps if own[0].startswith(key[0]) and own[1] == key[1])
        own = gaps[key]
        best = min(own[name] for name in ("FedMid", "FedMidOSP", "FedAvgSubgradient"))
        assert float(lead.split(",")[0]) == pytest.approx(best / own["FedDualAvg"], rel=0.03), key
        assert float(tracked) == pytest.approx(own["FedDAGT"] / own["FedDualAvg"], abs=6e-3), key
        seen += 1
    assert seen == 10


def test_there_are_exactly_two_commands():
    commands = re.search(r"## Two commands.*?```shell\n(.*?)```", README, flags=re.DOTALL)[1]
    assert [line.split("#")[0].strip() for line in commands.splitlines()] == ["make run", "make test"]
