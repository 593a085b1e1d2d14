"""The figures, the table of claims, the rates, the stored results and the pages fit together."""

import re

import pandas as pd
import pytest

import reproduction.figures  # noqa: F401
from flwr_fco.errors import ConfigurationError
from reproduction import pages
from reproduction.figure import DESCRIBED, HERE, claims, find_figure
from reproduction.pages import DOCS, _say, all_rows, write_pages
from reproduction.verdicts import decide, fingerprint, read_results, stored_values, unlike

RATES = pd.read_csv(HERE / "rates.csv", keep_default_na=False)


def constants(cell):
    return {name: float(value) for name, value in (pair.split("=") for pair in cell.split("; "))}


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_figure_can_be_run_and_its_quick_version_decides_one_claim(name):
    for quick in (False, True):
        own = find_figure(name, quick=quick)
        settings = [own.run_settings(one, seed) for one in own.runs for seed in own.seeds[:1]]
        assert settings
        assert len({one.label for one in own.runs}) == len(own.runs)
    assert (len(own.checks), own.seeds) == (1, (0, 1))
    assert own.about.endswith(".")


def test_every_claim_has_a_figure_and_a_rule_or_a_reason():
    rows = claims()
    assert not rows.duplicated(["figure", "claim"]).any()
    assert {*rows.figure} == {*DESCRIBED}
    names = {*(rows.figure + ": " + rows.claim)}
    for row in rows.itertuples():
        assert bool(row.rule) != bool(row.outside), row.claim
        assert {*filter(None, row.differs.split(", "))} <= {"reading", "grid", "scale", "data"}
        assert row.limit in ("", "printed")
        assert row.ours in ("", "ours")
        assert not row.repeats or row.repeats in names


def test_a_figure_with_runs_that_are_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(DESCRIBED, "fco-fig3", DESCRIBED["fco-fig12"])
    with pytest.raises(ConfigurationError, match=r"fco-fig3.*runs of"):
        find_figure("fco-fig3")
    with pytest.raises(ConfigurationError, match="figure='fco-fig99'"):
        find_figure("fco-fig99")


def test_settings_are_replaced_in_every_run():
    own = find_figure("fco-fig3").replace({"problem": "lasso-small", "num-rounds": 7})
    for one in own.runs:
        settings = own.run_settings(one, 0)
        assert (settings.problem, settings.num_rounds) == ("lasso-small", 7)
    assert own.title.endswith("(set: problem=lasso-small, num-rounds=7)")
    # What another problem has not goes.
    own = find_figure("fco-fig13").replace({"problem": "digits"})
    assert "num-examples" not in own.run_settings(own.runs[0], 0).problem_options


# --- constants that were tuned ----------------------------------------------------------------------------------------


def test_best_constants_are_inside_their_grids_or_at_an_edge_with_a_reason():
    for (section, method), rows in RATES.groupby(["section", "method"], sort=False):
        points = [constants(cell) for cell in rows.constants]
        best, *_ = (pair for pair in zip(points, rows.best, strict=True) if pair[1].startswith("best"))
        edges = []
        for name, value in best[0].items():
            grid = {point[name] for point in points}
            edges += [
                f"{side} {name}" for side, end in (("smallest", min(grid)), ("largest", max(grid))) if end == value
            ]
        known = re.findall(r"; (\w+ [\w-]+): \w", best[1])
        assert sorted(known) == sorted(edges), f"{section}, {method}: widen the grid, or say beside 'best' why not"


@pytest.mark.parametrize(
    ("section", "name", "part"),
    [
        ("logistic-mnist", "dualfl-fig1a", ", a finer grid"),
        ("logistic-cifar10", "dualfl-fig1d", ""),
        ("logistic-mnist, 60,000 images", "dualfl-mnist60000", None),
        ("logistic-cifar10, 10,000 images", "dualfl-cifar10000", None),
        ("sparse-linear-graph, gt-fig1", "gt-fig1", ""),
        ("sparse-logistic-graph, gt-fig2", "gt-fig2", ""),
    ],
)
def test_figures_have_the_best_constants(section, name, part):
    rows = RATES[(RATES.section == section) & RATES.best.str.startswith("best")]
    names = {"FedDR": "FedDR, over-relaxed", "APDAInexact": "APDA-Inexact", "FiveGCS": "5GCS"}
    runs = find_figure(name).runs
    for row in rows[~rows.method.str.endswith("and rounds")].itertuples():
        label = names.get(row.method, row.method)
        alike = [one for one in runs if (one.strategy == row.method if part is None else one.label == label + part)]
        found = [{key: one.settings[key.replace("-", "_")] for key in constants(row.constants)} for one in alike]
        assert constants(row.constants) in found, row.method


# --- stored results and pages -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return all_rows()


def test_the_pages_are_those_of_the_stored_results(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "all_rows", lambda stored: rows)
    write_pages(tmp_path)
    for page in tmp_path.iterdir():
        assert page.read_text() == (DOCS / page.name).read_text(), f"{page.name}: python -m reproduction.pages"


def test_a_sentence_of_a_page_rests_on_verdicts(rows):
    claim = "fco-theorems: theorem 4.1, FedMidOSP"
    homes = {"fco-theorems": ""}
    assert _say(rows, homes, "so {0}", [f"{claim} = holds"]).endswith("([fco-theorems](#fco-theorems))")
    with pytest.raises(ConfigurationError, match="rests on 'tie'"):
        _say(rows, homes, "so {0}", [f"{claim} = tie"])


def test_a_claim_that_does_not_hold_says_why(rows):
    for row in rows[rows.verdict.isin(["does not hold", "outside"])].itertuples():
        assert row.note or row.outside or row.repeats, (row.figure, row.claim)


def test_all_claims_have_stored_values_and_half_of_the_papers_own_hold(rows):
    assert not (rows.verdict == "awaits a run").any()
    papers = rows[(rows.ours == "") & (rows.differs == "") & (rows.repeats == "")]
    assert (papers.verdict == "holds").sum() > len(papers) / 2


def test_fingerprints_depend_on_what_is_run_alone():
    one, seeds, rates, words = (find_figure("fco-grid") for _ in range(4))
    seeds.seeds = (0, 1)
    rates.runs = [run._replace(settings={**run.settings, "local_epochs": 9}) for run in rates.runs]
    words.title, words.about = "", ""
    words.checks = {
        key: check._replace(arguments={**check.arguments, "noise": 9.0}) for key, check in words.checks.items()
    }
    found = [fingerprint(own, next(iter(own.checks))) for own in (one, words, seeds, rates)]
    assert found[0] == found[1]
    assert len({*found}) == 3


def test_stored_values_are_of_the_same_runs_and_are_decided_by_new_limits():
    own = find_figure("fco-fig3")
    stored = read_results()
    values = stored_values(own, stored)
    name = "the strength suits the centralized solver"
    assert decide(own, values).set_index("claim").verdict[name] == "holds"
    own.checks[name] = own.checks[name]._replace(arguments={**own.checks[name].arguments, "at_least": 1.1})
    assert decide(own, stored_values(own, stored)).set_index("claim").verdict[name] == "does not hold"
    own.seeds = (7,)
    assert stored_values(own, stored) == {}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(0.5, 0.502, True), (0.5, 0.51, False), (88.0, 89.0, True), (88.0, 90.0, False), (float("inf"), 5.0, False)],
)
def test_values_are_the_stored_ones_to_half_a_percent_and_counts_to_one(one, other, same):
    assert unlike({"a": [one, one]}, {"a": [other, one]}) == ([] if same else ["a"])
