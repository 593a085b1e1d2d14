"""What the pages and the README show is what happens: their code runs, and prints what stands behind it."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from fresh import DOCS, Done, blocks, run_code, text_of
from problems import by_class, clients, fitting, flat, run
from scipy.sparse import csr_array

import flwr_fco.regularizers as package
from flwr_fco import strategies as exported
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.spec import Specified
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, Regularizer, kinds
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedAvgSubgradient, FedDualAvg, FedNewton, Steps, run_of
from flwr_fco.testing import check_pair, check_regularizer
from reproduction.pooled import certify

ROOT = DOCS.parent
ALL = sorted(str(path.relative_to(DOCS))[:-3] for path in DOCS.glob("*/*.md"))
#: What has tests of its own, or is a part of other programs.
ELSEWHERE = """
get-started/into-flower how-to/disclosure how-to/performance how-to/smaller-networks
reference/strategies tutorials/privacy tutorials/pytorch tutorials/ray-cluster tutorials/tables
"""
PAGES = [page for page in ALL if page not in ELSEWHERE.split()]
#: The output of a block, behind it.
OUTPUT = r"\n```text\n(.*?)```"


@cache
def run_block(page: str, number: int) -> Done:
    """Run a block as a file by itself, once for all tests that look at what it does."""
    return run_code(blocks(page)[number])


def outputs(page):
    """Return what the page shows behind each block, or None."""
    parts = re.split(r"```python\n.*?```\n", text_of(page), flags=re.DOTALL)[1:]
    return [found and found[1] for found in (re.match(OUTPUT, part, flags=re.DOTALL) for part in parts)]


def test_lines_of_code_fit_into_the_site():
    assert [line for page in ALL for block in blocks(page) for line in block.splitlines() if len(line) > 88] == []


#: Takes ten seconds and more, and fit_path has tests of its own.
AT_NIGHT = {("choose/strength", 1): pytest.mark.nightly}


@pytest.mark.parametrize(
    ("page", "number"),
    [pytest.param(page, i, marks=AT_NIGHT.get((page, i), ())) for page in PAGES for i in range(len(blocks(page)))],
)
def test_every_block_runs_by_itself(page, number):
    if "import torch" in blocks(page)[number]:
        pytest.importorskip("torch", reason="pip install torch")
    done = run_block(page, number)
    assert done.returncode == 0, done.stderr


def test_the_reason_for_a_rate_is_as_its_comment_says():
    stated = re.search(r'reasons\["client_lr"\]\)\n# (.*)', blocks("choose/rates")[0])[1]
    assert run_block("choose/rates", 0).stdout.strip() == stated


@pytest.mark.parametrize(
    ("page", "number"), [(page, i) for page in PAGES for i, shown in enumerate(outputs(page)) if shown]
)
def test_an_output_is_as_the_page_shows(page, number):
    """Its words exactly, its numbers to half of the third digit, rounds to 1: the last ones are another processor's."""
    shown, printed = outputs(page)[number].split(), run_block(page, number).stdout.split()
    assert len(printed) == len(shown)
    for before, one, other in zip(["", *shown], printed, shown, strict=False):
        if re.fullmatch(r"-?[\d.]+(e-?\d+)?[,%]?", other):
            wanted = pytest.approx(float(other.strip(",%")), rel=5e-3, abs=1.0 if before == "Rounds:" else 1e-12)
            assert float(one.strip(",%")) == wanted
        else:
            assert one == other


def test_the_sizes_of_a_cluster_are_what_its_block_prints():
    rows = run_block("tutorials/ray-cluster", 0).stdout.strip().splitlines()
    assert len(rows) == 4
    assert [row for row in text_of("tutorials/ray-cluster").splitlines() if row in rows] == rows


@pytest.mark.parametrize("page", ALL)
def test_a_page_says_what_its_blocks_need_beside_the_package(page):
    """By `pip install` and the name of what is imported, or of the extra that brings it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]} | {"flwr_fco", "sklearn"}
    used = {name for block in blocks(page) for name in re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE)}
    used |= {"pandas"} if re.search(r"\.table\(\)|as_frame=True", "".join(blocks(page))) else set()
    said = " ".join(re.findall(r"pip install ([^`]*)", text_of(page))).replace("-", "_")
    assert [name for name in used - known - sys.stdlib_module_names if not re.search(rf"\b{name}\b", said)] == []


def test_an_own_strategy_in_another_file_keeps_the_contract(tmp_path):
    (tmp_path / "my_strategy.py").write_text(blocks("tutorials/own-strategy")[0], encoding="utf-8")
    done = run_code(
        f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        "from inspect import signature\nfrom flwr_fco.testing import check_strategy\n"
        "from my_strategy import FedTracking\ncheck_strategy(FedTracking)\n"
        "assert signature(FedTracking).parameters['client_lr'].default == 0.1\n"
    )
    assert done.returncode == 0, done.stderr


# --- README -----------------------------------------------------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = re.search(r"## Quickstart.*?```python\n(.*?)```", README, flags=re.DOTALL)[1]


@pytest.fixture(scope="module")
def quickstart():
    names = {}
    exec(QUICKSTART, names)
    return names


def test_the_quickstart_is_short_and_does_what_its_comment_says(quickstart):
    assert len([line for line in QUICKSTART.splitlines() if line.strip()]) <= 12
    printed = float(re.search(r"# ([\d.]+):", QUICKSTART)[1])
    coefficients = quickstart["result"].arrays["coefficients"].numpy()
    # A few of 640 may differ with another BLAS.
    assert np.mean(coefficients != 0) == pytest.approx(printed, abs=0.02)


def test_the_server_app_runs_the_same_objects_to_the_same_bits(quickstart):
    names = dict(quickstart)
    (block,) = blocks("get-started/into-flower")
    exec(block, names)
    grid = InProcessGrid(names["clients"], 10)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config={})
    # As `simulate` does: each message would look for the BLAS libraries again, which takes longer than the round.
    with grid.identity(), single_threaded_blas():
        names["app"](grid, context)
    found, expected = (
        result.arrays["coefficients"].numpy() for result in (run_of(names["strategy"]), quickstart["result"])
    )
    np.testing.assert_array_equal(found, expected)


def test_the_line_that_changes_builds_a_strategy():
    changed = re.search(r"```diff\n- +strategy = FedAvg\(\)\n\+ +(strategy = .*)\n```", README)[1]
    names = {"FedDualAvg": exported.FedDualAvg}
    exec(changed, names)
    assert names["strategy"].density == 0.1
    assert changed in text_of("index").replace("   #", "  #")


# --- tutorials/tables.md ----------------------------------------------------------------------------------------------


def test_from_files_to_a_table_as_the_page_shows_it(tmp_path):
    pytest.importorskip("pandas", reason="pip install pandas")
    # The blocks write into the folder that they run in.
    done = run_code(f"import os\n\nos.chdir({str(tmp_path)!r})\n{''.join(blocks('tutorials/tables')[:-2])}")
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    shown = re.search(OUTPUT, text_of("tutorials/tables"), flags=re.DOTALL)[1].splitlines()
    assert printed[: len(shown) + 1] == [*shown, "True"]
    assert re.fullmatch("[0-9a-f]{64}", printed[-1])
    assert (tmp_path / "table.csv").read_text().startswith("feature,coefficient,estimate,odds ratio")


def test_the_recipe_fills_in_missing_values():
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    table = pandas.DataFrame({"age": [60.0, np.nan, 52.0], "bmi": [27.0, 25.0, 30.0], "crp": [1.0, 2.0, 3.0]})
    names = {"table": table.assign(smoker="no")}
    exec(blocks("tutorials/tables")[-2], names)
    assert list(names["features"].columns)[:2] == ["age", "bmi"]
    assert np.asarray(names["features"]).tolist() == [[60.0, 27.0, 1.0], [56.0, 25.0, 2.0], [52.0, 30.0, 3.0]]


# --- choose/regularizers.md -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    """Run the code of the page, whose classes are forgotten afterwards; return its names."""
    pytest.importorskip("pyproximal", reason="pip install pyproximal")
    names = {"__name__": "page"}
    with patch.dict(Specified._families["regularizer"]), patch.dict(kinds.FACTORIES, clear=True):
        exec("\n".join(blocks("choose/regularizers")), names)
        yield names


def test_six_lines_of_terms_work_in_loops_newton_steps_and_certificates(page):
    psi = page["NonNegativeL1"](0.05)
    check_regularizer(psi)
    check_pair(DiagonalMetric(np.linspace(1.0, 2.0, 12)), psi)

    def model(strategy, rounds, kind=np.asarray):
        sites = [LeastSquares(kind(own.features), own.targets, scale=0.5) for own in clients((40, 40, 40))]
        w = flat(run(strategy, sites, rounds).arrays)
        return w, certify(sites, None, psi, w)

    # The second coefficient of the clients' models is -2.
    w, found = model(FedNewton(regularizer=psi, tolerance=1e-12, fraction_evaluate=0.0), 20)
    assert w[1] == 0.0
    assert (w[[0, 2]] > 0.1).all()
    assert found.kind == "duality-gap"
    assert found.value <= 1e-10
    options = {"regularizer": psi, "client_lr": 0.3}
    np.testing.assert_allclose(model(FedDualAvg(**options, work=Steps(1, batch_size=None)), 400)[0], w, atol=1e-5)
    few = [model(FedDualAvg(**options, work=Steps(7, batch_size=5)), 3, kind)[0] for kind in (np.asarray, csr_array)]
    np.testing.assert_allclose(*few, rtol=1e-12, atol=1e-14)


def test_maps_of_other_libraries_minimise_what_they_say(page):
    signal = np.repeat([0.0, 2.0, 0.5], 20) + 0.2 * np.random.default_rng(0).normal(size=60)
    w = page["smooth"].prox(signal, 1.0)
    # Optimal: cumulative sums of w - v are within the strength, and at it where w jumps.
    sums = np.cumsum(w - signal)
    jumps = np.diff(w)
    assert np.abs(sums).max() <= 0.5 + 1e-5
    assert np.abs(sums[:-1] - 0.5 * np.sign(jumps))[np.abs(jumps) > 1e-3].max() <= 1e-4
    assert page["increasing"].prox(np.array([1.0, 4.0, 2.0, 6.0]), 1.0).tolist() == [1.0, 3.0, 3.0, 6.0]
    assert page["increasing"].value(np.array([2.0, 1.0])) == np.inf
    assert page["psi"].prox(np.array([2.0, -0.3, -1.0]), 1.0).tolist() == [1.5, 0.0, -0.5]


def test_every_regularizer_is_on_the_page():
    values = {name: getattr(package, name) for name in package.__all__}
    known = [name for name, kind in values.items() if inspect.isclass(kind) and issubclass(kind, Regularizer)]
    named = re.findall(r"`(\w+)[(`]", text_of("choose/regularizers"))
    assert [name for name in known if not inspect.isabstract(values[name]) and name not in named] == []


# --- generated tables: psi x mirror map, and strategy x mirror map x psi ----------------------------------------------

sys.path.append(str(ROOT / "benchmarks" / "pages"))
pairs, strategies = map(import_module, ("make_tables", "make_strategy_table"))


def test_the_table_of_pairs_has_every_class_and_is_the_generated_one():
    assert not pairs.missing()
    assert pairs.PAGE.read_text(encoding="utf-8") == pairs.rendered(), "run: python benchmarks/pages/make_tables.py"


@pytest.mark.parametrize("column", pairs.MIRROR_MAPS)
@pytest.mark.parametrize("row", [row for row, psi in pairs.REGULARIZERS.items() if psi.convex])
def test_every_cell_is_true(row, column):
    """Supported: retrieve is a minimiser. Refused: by name, before anything is computed."""
    check_pair(pairs.MIRROR_MAPS[column], pairs.REGULARIZERS[row].bind(pairs.LAYOUT), pairs.LAYOUT.size)


@pytest.mark.parametrize("page", strategies.PAGES)
def test_the_table_is_the_generated_one_and_every_strategy_has_a_row(page):
    text = page.read_text(encoding="utf-8")
    assert text == strategies.rendered(page), "run: make_strategy_table.py"
    rows = [line.split("|")[1] for line in text.split("<!--")[0].splitlines() if line.startswith("| `")]
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
    loss, at_zero = (np.mean([f.value(point) for f in clients()]) for point in (w, np.zeros(7)))
    assert loss < 0.9 * at_zero


# --- reference/errors.md ----------------------------------------------------------------------------------------------


def written(node):
    """Return the text of a literal, with a mark where a value is put in, or None."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\.?\d*[sdgr]", "\0", node.value)
    return None


def test_the_package_can_say_every_error_that_the_page_quotes():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "flwr_fco").rglob("*.py")]
    texts = [text for tree in trees for node in ast.walk(tree) if (text := written(node))]
    quoted = re.findall(r'^\| "(.*)" \|', text_of("reference/errors"), flags=re.MULTILINE)
    assert len(quoted) >= 35
    parts = {each: [part.strip() for part in each.split("…")] for each in quoted}
    assert [each for each in quoted if not any(all(part in text for part in parts[each]) for text in texts)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted((DOCS / "gallery").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_of_the_gallery_finds_what_its_title_says(path):
    pytest.importorskip("matplotlib")
    backend = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=backend)
    assert done.returncode == 0, done.stderr
