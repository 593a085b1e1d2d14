"""Tuning goes on from the rows of the pages, which are not run again, and grows a grid where its best is at an end."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAIRS = ((0.01, 0.1), (0.01, 1.0), (0.1, 0.1), (0.1, 1.0))
TABLE = """
Words.

| client, server | A | B |
|---|---|---|
| 0.01, 0.1 | 2 | **3** |
| 0.01, 1 | **1.25** | diverged |
| 0.01, 10 | 1.5 |  |

All methods diverge at the other 2 pairs, in at least one seed.
"""


@pytest.fixture(scope="module")
def tune_rates():
    spec = importlib.util.spec_from_file_location("tune_rates_too", DOCS / "tune_rates.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune_rates_too"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune_rates_too"]


def test_the_rows_of_a_page_are_read_as_they_were_written(tune_rates):
    known = tune_rates.known_pairs(TABLE, PAIRS)
    assert known == {
        "A": {(0.01, 0.1): 2.0, (0.01, 1.0): 1.25, (0.01, 10.0): 1.5, (0.1, 0.1): math.inf, (0.1, 1.0): math.inf},
        "B": {(0.01, 0.1): 3.0, (0.01, 1.0): math.inf, (0.1, 0.1): math.inf, (0.1, 1.0): math.inf},
    }
    assert tune_rates.pair_table(known, PAIRS) in TABLE


def test_the_best_pairs_of_a_stored_table_are_where_the_next_one_begins(tune_rates):
    assert tune_rates.best_pairs(TABLE) == {"A": (0.01, 1.0), "B": (0.01, 0.1)}


def test_a_table_of_a_game_that_the_page_has_is_not_run_again(tune_rates, monkeypatch, tmp_path):
    monkeypatch.setattr(tune_rates, "run_sweep", lambda *args, **kwargs: pytest.fail("nothing is to be run"))
    parts = list(tune_rates.game_tables(tmp_path, "bilinear-l1"))
    page = (DOCS / "reproduction" / "saddle-rates.md").read_text(encoding="utf-8")
    assert len(parts) == 4
    assert all(part.strip() in page for part in parts)


def test_a_table_of_the_fourth_paper_that_the_page_has_is_not_run_again(tune_rates, monkeypatch, tmp_path):
    monkeypatch.setattr(tune_rates, "run_sweep", lambda *args, **kwargs: pytest.fail("nothing is to be run"))
    page = (DOCS / "reproduction" / "dualfl-rates.md").read_text(encoding="utf-8")
    assert page.endswith("\n".join(tune_rates.dualfl_tables(tmp_path, tune_rates.DUALFL_PARTS)))
    # A heading that begins with another one's words is not that one.
    assert "seeds: 2" in tune_rates.section("dualfl-rates.md", "logistic-mnist")


def test_the_best_of_the_papers_grid_is_in_italics_where_a_better_pair_is_beyond_it(tune_rates):
    written = tune_rates.pair_table({"A": {**dict.fromkeys(PAIRS, 3.0), (0.01, 0.1): 2.0, (0.001, 0.1): 1.0}}, PAIRS)
    assert "| 0.001, 0.1 | **1** |" in written
    assert "| 0.01, 0.1 | *2* |" in written


def test_a_stage_runs_only_what_the_page_does_not_have(tune_rates, monkeypatch, tmp_path):
    ran = []

    def run_sweep(settings, folder, criterion, *, engine):
        (own,) = settings
        ran.append((own.to_config()["client-lr"], own.to_config()["server-lr"], own.seed))
        return [{"score": math.inf if ran[-1][0] < 0.005 else 5.0, "seconds": 0.0}]

    monkeypatch.setattr(tune_rates, "run_sweep", run_sweep)
    own = ("objective", "", {"num-rounds": 3})
    stage = tune_rates.Stage(["lasso-small"], ["FedDualAvg"], PAIRS, *own, seeds=(0, 1))
    known = {**dict.fromkeys(PAIRS, 3.0), (0.01, 0.1): 2.0}
    scores = stage.scores(tune_rates.Trials("lasso-small", tmp_path, "objective"), "FedDualAvg", known)
    # Six neighbours of the best pair are new; two diverge with the first seed and are not run with the second one.
    stable = ((0.03, 0.1), (0.01, 0.03), (0.01, 0.3), (0.03, 0.03))
    assert set(ran) == {(0.003, 0.1, 0), (0.003, 0.3, 0), *((*pair, seed) for pair in stable for seed in (0, 1))}
    assert len(ran) == 10
    assert scores[0.003, 0.1] == math.inf
    assert min(scores, key=scores.get) == (0.01, 0.1)


def test_an_axis_grows_at_the_end_at_which_its_best_value_is(tune_rates):
    points = [(1.0, 10.0), (2.0, 10.0), (4.0, 10.0)]
    assert tune_rates.beyond(("convexity", "smoothness"), points, (1.0, 10.0)) == [(0.6, 10.0), (1.0, 6.0), (1.0, 20.0)]
    assert tune_rates.beyond(("convexity", "smoothness"), [*points, (2.0, 6.0), (2.0, 20.0)], (2.0, 10.0)) == []
    # No smaller smoothness is tried than the convexity, and a stage of 3,000 rounds is the whole run.
    assert tune_rates.beyond(("convexity", "smoothness"), [(1.0, 1.0), (0.6, 3.0), (2.0, 3.0)], (1.0, 1.0)) == []
    assert tune_rates.beyond(("stage-rounds",), [(1500.0,), (3000.0,)], (3000.0,)) == []


def test_constants_grow_and_only_the_best_get_more_seeds(tune_rates, monkeypatch, tmp_path):
    ran = []

    def run_sweep(settings, folder, criterion, *, engine):
        rates = [(own.to_config()["client-lr"], own.seed) for own in settings]
        ran.extend(rates)
        return [{"score": abs(math.log(rate / 0.05)), "seconds": 0.0} for rate, _ in rates]

    monkeypatch.setattr(tune_rates, "run_sweep", run_sweep)
    plan = tune_rates.PLAN["tracking"]
    fixed = {**plan["set"], **plan["like"]["chain"]}
    own = tune_rates.Constants("A", "DFedDA", fixed, ("client-lr",), ((0.1,), (0.2,), (0.3,)))
    known = {(0.1,): [0.7, 0.7, 0.7], (0.2,): [1.4, 1.4, 1.4], (0.3,): [1.8]}
    trials = tune_rates.Trials("sparse-linear-graph", tmp_path, "l1-error")
    scores = tune_rates.tune_constants(own, known, trials)
    assert ran == [(0.3, 1), (0.3, 2), (0.06, 0), (0.06, 1), (0.06, 2), (0.03, 0), (0.03, 1), (0.03, 2)]
    assert tune_rates.best_constants(scores) == (0.06,)
    assert len(trials.done) == len(ran)
