import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError, NotInstalledError
from reproduction.claims.definition import (
    EXPERIMENTS,
    Claim,
    Definition,
    RunLine,
    _parse,
    load_definition,
    select_experiments,
)
from reproduction.claims.figures import _coloured, _curves
from reproduction.claims.reproduction import judge, reproduce, value_table, verdict_table
from reproduction.claims.rules import Outcome
from reproduction.data import DataNotFoundError
from reproduction.runs.run import run

SMALL = """
title = "Small"
source = "nowhere"
problem = "lasso-small"
seeds = [0, 1]
panels = ["f1", "recovery-error"]

[settings]
num-rounds = 20

[[runs]]
label = "good"
strategy = "FedDualAvg"
set = { client-lr = 0.01, server-lr = 1.0 }

[[runs]]
label = "bad"
strategy = "FedMid"
set = { client-lr = 1.0, server-lr = 1.0 }

[[runs]]
label = "centralized"
strategy = "centralized"

[[runs]]
label = "many"
strategy = "FedDualAvg"
grid = { client-lr = [0.01, 0.03], server-lr = [0.1, 1.0], product = [0.003, 1.0] }

[[claims]]
name = "stable"
sentence = "It is | stable."
number = "always"
rule = "stays-stable"
arguments = { run = "good" }

[[claims]]
name = "also stable"
sentence = "The other one is stable too."
number = "always"
rule = "stays-stable"
arguments = { run = "bad" }
note = "it is not"

[quick]
seeds = [7, 8]
claims = ["stable"]
settings = { num-rounds = 5 }
"""


def small():
    return _parse("small", tomllib.loads(SMALL))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_run_and_has_a_quick_version(name):
    definition = load_definition(name)
    # All of a training set, or all the images of a file, are one data set, whatever the seed, which only splits it.
    whole = name in (*(f"dualfl-fig1{panel}" for panel in "bcef"), "dualfl-mnist60000", "dualfl-cifar10000")
    whole = whole or definition.long
    assert len(definition.seeds) >= (3 if name.startswith("fco-") else 1 if whole else 2)
    assert set(definition.limits) <= set(definition.panels)
    for line in definition.runs:
        definition.run_settings(line, 0)
    for claim in definition.claims:
        assert claim.sentence
        assert claim.number
    quick = definition.quick_version()
    assert len(quick.seeds) >= 2
    assert len(quick.claims) == 1
    labels = {line.label for line in quick.runs} | {line.group for line in quick.runs}
    labels |= {point.label for point in quick.tuned}
    assert {label for point in quick.tuned for label, _ in point.runs} <= {line.label for line in quick.runs}
    assert set(quick.claims[0].labels()) <= labels
    for line in quick.runs:
        quick.run_settings(line, 0)


def test_the_papers_figures_are_there():
    grids = ("grid", "grid-fmri", "grid-l1", "grid-l2")
    first = {f"fco-fig{number}" for number in range(1, 16)} | {
        f"fco-{name}" for name in ("theorems", "curse", "when", "drift", "brain", "brain-rates", *grids)
    }
    third = {f"spp-fig{number}" for number in range(4, 9)} | {"spp-theory"}
    fourth = {f"dualfl-fig1{letter}" for letter in "abcdef"} | {
        f"dualfl-{name}" for name in ("nonsmooth", "alpha", "table2", "theory", "mnist60000", "cifar10000")
    }
    assert first | {"gt-fig1", "gt-fig2", "gt-long1", "gt-long2", "gt-theory", "gt-spread"} | third | fourth == set(
        EXPERIMENTS
    )


#: The methods that a paper proposes or repairs, by the beginning of its experiments' names.
OWN = {
    "fco": {"FedDualAvg"},
    "gt": {"DFedDA", "DFedDAGT", "DReFedDAGT", "MultistepReFedDAGT"},
    "spp": {"FeDualEx", "FedMiP"},
    "dualfl": {"DualFL"},
}


#: Their panels have a legend and colours each.
APART = {"dualfl-theory", "spp-theory"}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if load_definition(name).kind == "curves"])
def test_a_papers_own_method_is_never_grey(name):
    if name in APART:
        return
    definition = load_definition(name)
    own = {line.curve for line in definition.runs if line.strategy in OWN[name.partition("-")[0]]}
    assert own <= {*_coloured(definition)}


def test_a_row_differs_in_known_words_and_inherits_those_of_its_experiment():
    data = tomllib.loads(SMALL)
    data["differs"] = ["data"]
    data["claims"][1]["differs"] = []
    assert [claim.differs for claim in _parse("small", data).claims] == [("data",), ()]
    data["differs"] = ["weather"]
    with pytest.raises(ConfigurationError, match="differs=\\['weather'\\]; expected words among reading, grid"):
        _parse("small", data)


def test_a_long_run_goes_on_where_it_stopped(tmp_path):
    definition = replace(small(), long=True, seeds=(0,), runs=small().runs[:1], claims=small().claims[:1])
    whole = reproduce(replace(definition, long=False), tmp_path / "whole").outcomes
    file = tmp_path / "part" / "runs" / "good-seed-0.json"
    settings = definition.run_settings(definition.runs[0], 0)
    stops = iter([False] * 7)
    stopped = run(settings, folder=file.with_suffix(""), stop=lambda: not next(stops, False))
    assert 0 < stopped.stopped < 20
    part = reproduce(definition, tmp_path / "part").outcomes
    assert part["good"][0].final("f1") == whole["good"][0].final("f1")
    assert [line["round"] for line in part["good"][0].history] == [line["round"] for line in whole["good"][0].history]


def test_all_leaves_long_experiments_out():
    assert not {"gt-long1", "gt-long2"} & {*select_experiments("all", long=False)}
    assert {"gt-long1", "gt-long2"} < {*select_experiments("all")}
    assert select_experiments("gt-long1", long=False) == ("gt-long1",)


def test_the_images_of_an_experiment_are_drawn_and_kept(tmp_path):
    definition = load_definition("spp-fig7").quick_version().with_settings({"num-rounds": 3})
    definition = replace(definition, seeds=(3,))
    reproduce(definition, tmp_path)
    kept = np.load(next((tmp_path / "runs").glob("pgda-*.npz")))["image"]
    assert kept.shape == (64,)
    assert np.abs(kept).max() <= 0.05 + 1e-12
    assert (tmp_path / "figure.png").stat().st_size > 1000
    # Without the array a run is done again.
    for file in (tmp_path / "runs").glob("*.npz"):
        file.unlink()
    reproduce(definition, tmp_path)
    np.testing.assert_array_equal(np.load(next((tmp_path / "runs").glob("pgda-*.npz")))["image"], kept)


def test_a_panel_may_be_of_one_part_alone():
    parts = [("good", "first"), ("bad", "first"), ("good", "second")]
    runs = tuple(RunLine(f"{name}, {part}", "FedDualAvg", {}, name, part) for name, part in parts)
    definition = replace(small(), panels=("f1", "gap, second"), runs=runs, claims=())
    outcome = Outcome([{"round": 1.0, "f1": 0.5, "gap": 0.1}, {"round": 2.0, "f1": 0.6, "gap": 0.01}])
    figure = _curves(definition, {line.label: [outcome] for line in runs})
    assert [axes.get_title() for axes in figure.axes] == ["f1, first", "f1, second", "gap, second"]


def test_a_label_ends_in_its_part():
    (line,) = [line for line in load_definition("spp-fig4").runs if line.label == "FedMid, K = 10"]
    assert (line.curve, line.part, line.group) == ("FedMid", "K = 10", "FedMid, K = 10")


@pytest.mark.parametrize(
    ("strategy", "rates", "text"),
    [
        ("FedDualAvg", {"client-lr": 0.01, "server-lr": 1.0}, "(0.01, 1)"),
        ("Scaffnew", {"client-lr": 0.25}, "0.25"),
        ("FedDualAvg", {"server-lr": 1.0}, "none"),
        ("DualFL", {"nu": 0.01}, "none"),
        ("centralized", {"client-lr": 0.01, "server-lr": 1.0}, "none"),
    ],
)
def test_a_run_says_the_rates_that_it_has(strategy, rates, text):
    assert RunLine("some run", strategy, {"num-rounds": 3, **rates}, "some run").rates == text


def test_patterns_select_experiments():
    assert select_experiments("all") == EXPERIMENTS
    assert select_experiments("fco-fig3") == ("fco-fig3",)
    found = select_experiments("fco-fig*")
    assert set(found) == {name for name in EXPERIMENTS if name.startswith("fco-fig")}
    # In the order of the figures, not of the alphabet.
    assert found.index("fco-fig2") < found.index("fco-fig11")
    with pytest.raises(ConfigurationError, match=r"'fig\*'.*fco-fig1, .*a pattern"):
        select_experiments("fig*")


def test_the_printed_settings():
    """B.2.1: 500 rounds, 10 clients, batch 10, one epoch; B.4: 300 rounds, batch 1; B.5: batch 10, 10 epochs."""
    wanted = {
        "fco-fig3": (500, 10, 10, 1),
        "fco-fig8": (500, 10, 10, 1),
        "fco-fig11": (500, 10, 10, 1),
        "fco-fig5": (300, 10, 1, 1),
    }
    for name, numbers in wanted.items():
        definition = load_definition(name)
        line = next(line for line in definition.runs if line.strategy == "FedDualAvg")
        own = definition.run_settings(line, 0)
        assert (own.num_rounds, own.clients_per_round, own.batch_size, own.local_epochs) == numbers
    own = load_definition("fco-fig13")
    settings = own.run_settings(own.runs[0], 0)
    assert (settings.clients_per_round, settings.batch_size, settings.local_epochs) == (10, 10, 10)


def test_a_grid_keeps_pairs_with_products_in_the_range():
    labels = [line.label for line in small().runs if line.group == "many"]
    # 0.03 * 0.1 is 0.003 up to rounding.
    assert labels == ["many (0.01, 1)", "many (0.03, 0.1)", "many (0.03, 1)"]
    twelve = load_definition("fco-fig12")
    for line in twelve.runs:
        product = line.settings["client-lr"] * line.settings["server-lr"]
        assert 0.00299 < product < 0.301


def test_reproduce_writes_data_verdicts_and_the_figure(tmp_path):
    pytest.importorskip("matplotlib")
    seen = []
    report = reproduce(small(), tmp_path, on_run=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12, 12)
    assert [verdict.holds for verdict in report.verdicts] == [True, False]
    assert report.verdicts[0].rates == "(0.01, 1)"
    assert json.loads((tmp_path / "verdicts.json").read_text())[1]["note"] == "it is not"
    table = (tmp_path / "verdicts.md").read_text()
    assert "\nThe paper: It is | stable.\n" in table
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    kept = json.loads((tmp_path / "runs" / "good-seed-1.json").read_text())
    assert kept["history"] == report.outcomes["good"][1].history
    assert kept["settings"]["seed"] == 1


def test_finished_runs_are_not_repeated_and_changed_ones_are(tmp_path, monkeypatch):
    definition = replace(small(), runs=small().runs[:1], claims=small().claims[:1])
    first = reproduce(definition, tmp_path)
    file = tmp_path / "runs" / "good-seed-0.json"
    content = json.loads(file.read_text())
    content["history"][-1]["f1"] = 0.123
    file.write_text(json.dumps(content))
    assert reproduce(definition, tmp_path).outcomes["good"][0].final("f1") == 0.123
    line = definition.runs[0]
    changed = replace(definition, runs=(line._replace(settings={**line.settings, "num-rounds": 19}),))
    again = reproduce(changed, tmp_path)
    assert again.outcomes["good"][0].final("f1") != 0.123
    assert first.outcomes["good"][0].history[:19] == again.outcomes["good"][0].history[:19]


def test_settings_are_replaced_in_every_run():
    definition = small().with_settings({"num-rounds": 3, "num-clients": 7, "client-lr": "auto"})
    assert definition.title == "Small (set: num-rounds=3, num-clients=7, client-lr=auto)"
    assert definition.folder_name() == "small_num-rounds=3_num-clients=7_client-lr=auto"
    for line in definition.runs:
        own = definition.run_settings(line, 1)
        assert own.problem_options == {"num-clients": 7}
        assert own.num_rounds == 3
        if line.strategy != "centralized":
            assert own.client_lr == "auto"
            assert line.rates.startswith("(auto, ")
    assert small().with_settings({}) == small()
    quick = small().quick_version().with_settings({"num-rounds": 2})
    assert quick.run_settings(quick.runs[0], 7).num_rounds == 2
    assert quick.folder_name() == "small-quick_num-rounds=2"
    assert quick.seeds == (7, 8)


def test_baselines_take_the_problems_options_of_a_definition():
    data = tomllib.loads(SMALL)
    data["settings"] |= {"problem": "lasso-III", "strength": 0.7, "clients-per-round": 3}
    definition = _parse("small", data)
    own = definition.run_settings(definition.runs[2], 0)
    assert (own.problem, own.strategy, own.problem_options) == ("lasso-III", "centralized", {"strength": 0.7})


def test_another_problem_keeps_the_settings_that_it_has():
    definition = load_definition("fco-fig13").quick_version()
    assert definition.runs[0].settings["num-examples"] == 3000
    changed = definition.with_settings({"problem": "digits", "train-fraction": 0.5})
    assert changed.problem == "digits"
    own = changed.run_settings(changed.runs[0], 0)
    # The digits have no num-examples; they have an alpha.
    assert own.problem_options == {"num-clients": 30, "alpha": 1.0, "train-fraction": 0.5}
    assert (own.problem, own.client_lr, own.num_rounds, own.local_epochs) == ("digits", 0.03, 2, 10)
    # A run with a problem of its own too.
    mixed = load_definition("spp-fig6").with_settings({"problem": "adversarial-digits", "num-clients": 5})
    assert {mixed.run_settings(line, 0).problem for line in mixed.runs} == {"adversarial-digits"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.0}, r"unknown key 'alpha'; lasso-small with FedDualAvg has .*num-rounds, .*num-clients"),
        ({"problem": "lasso-V"}, r"problem='lasso-V'; expected one of lasso-I, "),
        ({"problem": "haxby", "num-clients": 3}, r"unknown key 'num-clients'; haxby with FedDualAvg has .*fetch"),
        ({"num-clients": 2.5}, r"num-clients=2.5 is a float; expected a whole number"),
        ({"num-rounds": 0}, r"num-rounds=0; expected a whole number >= 1"),
        ({"seed": 3}, r"seed=3 among the settings.*--seed"),
        ({"strategy": "FedMid"}, r"unknown key 'strategy'"),
    ],
)
def test_settings_are_checked_as_those_of_a_run(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        small().with_settings(settings)


@pytest.mark.parametrize(("name", "key"), [("fco-when", "local-steps"), ("fco-grid-l2", "client-lr")])
def test_a_setting_whose_values_are_compared_is_not_replaced(name, key):
    definition = load_definition(name)
    with pytest.raises(ConfigurationError, match=f"{key}=3: {name} compares several values of {key}"):
        definition.with_settings({key: 3})
    assert definition.with_settings({"num-rounds": 2}).runs[0].settings["num-rounds"] == 2


def test_the_page_and_the_figure_say_what_was_set(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("reproduction.claims.reproduction.draw", lambda figure, path: None)
    monkeypatch.setattr(
        "reproduction.claims.figures.figure_of_curves",
        lambda curves, panels, title, **options: drawn.append((title, options["limits"])),
    )
    definition = replace(small(), limits={"f1": (0.9, 1.0)})
    reproduce(definition, tmp_path / "one")
    assert "not those of the definition" not in (tmp_path / "one" / "verdicts.md").read_text()
    changed = definition.with_settings({"num-clients": 9, "num-rounds": 3})
    reproduce(changed, tmp_path / "two")
    heading, _, sentence, *_ = (tmp_path / "two" / "verdicts.md").read_text().splitlines()
    assert heading == "# small: Small (set: num-clients=9, num-rounds=3)"
    assert "The settings are not those of the definition: num-clients=9, num-rounds=3 in every run" in sentence
    # The definition's limits are where its own curves lie.
    assert drawn == [("Small", definition.limits), ("Small (set: num-clients=9, num-rounds=3)", {})]
    kept = json.loads((tmp_path / "two" / "runs" / "centralized-seed-0.json").read_text())
    assert kept["settings"]["num-clients"] == 9


@pytest.mark.parametrize(
    ("parts", "metrics", "columns"),
    [(("",), ("f1", "density", "recall", "precision"), 0), (("a", "b"), ("f1",), 0), (("a", "b"), ("f1", "recall"), 2)],
)
def test_panels_of_several_parts_and_metrics_have_a_row_a_part(tmp_path, monkeypatch, parts, metrics, columns):
    drawn = []
    monkeypatch.setattr("reproduction.claims.reproduction.draw", lambda figure, path: None)
    monkeypatch.setattr(
        "reproduction.claims.figures.figure_of_curves",
        lambda curves, panels, title, **options: drawn.append((panels, options["columns"])),
    )
    (line,) = small().runs[:1]
    runs = tuple(line._replace(part=part, label=f"{line.label}{part}") for part in parts)
    reproduce(replace(small(), runs=runs, claims=(), panels=metrics), tmp_path)
    ((panels, found),) = drawn
    assert panels == [f"{metric}, {part}" if part else metric for part in parts for metric in metrics]
    assert found == columns


def test_a_folder_holds_one_experiment(tmp_path):
    definition = replace(small(), runs=small().runs[:1], claims=small().claims[:1])
    reproduce(definition, tmp_path)
    before = (tmp_path / "verdicts.md").read_text()
    for other, message in (
        (replace(definition, name="other"), "holds small; expected a folder that is empty or holds other"),
        (definition.with_settings({"num-rounds": 3}), "holds small; .* or holds small --set num-rounds=3"),
        (definition.quick_version(), "holds small; .* or holds small --quick"),
    ):
        with pytest.raises(ConfigurationError, match=f"{message}. Give another by --out"):
            reproduce(other, tmp_path)
    assert (tmp_path / "verdicts.md").read_text() == before
    # Other seeds, and a definition that was edited, go on in it.
    reproduce(replace(definition, seeds=(5,), title="Smaller"), tmp_path)
    (tmp_path / "experiment.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"experiment.json cannot be read"):
        reproduce(definition, tmp_path)


def test_a_folder_in_which_nothing_was_run_is_free(tmp_path, monkeypatch):
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    with pytest.raises(DataNotFoundError):
        reproduce(load_definition("fco-fig13"), tmp_path)
    reproduce(replace(small(), runs=small().runs[:1], claims=small().claims[:1]), tmp_path)
    assert json.loads((tmp_path / "experiment.json").read_text())["experiment"] == "small"


def test_a_problem_without_the_metric_of_a_claim_is_named_after_one_run(tmp_path):
    claim = Claim("c", "s", "n", "final-within", {"run": "good", "metric": "f1", "at_least": 0.4})
    definition = replace(small(), runs=small().runs[:1], claims=(claim,)).with_settings({"problem": "digits"})
    seen = []
    with pytest.raises(ConfigurationError, match="do not report 'f1', but accuracy"):
        reproduce(definition, tmp_path, on_run=lambda done, total: seen.append(done))
    assert seen == []


def test_the_gap_is_above_the_centralized_optimum(tmp_path):
    definition = replace(small(), runs=small().runs[:1], claims=(), gap=True)
    history = reproduce(definition, tmp_path).outcomes["good"][0].history
    assert all(line["gap"] > 0 for line in history)
    assert history[-1]["gap"] < history[0]["gap"] / 5


def test_densities_of_clients_and_mean(tmp_path):
    lines = (RunLine("FedMid", "FedMid", {"client-lr": 0.003, "num-rounds": 5, "server-prox": False}, "FedMid"),)
    definition = Definition("d", "D", "s", "lasso-small", (0,), ("mean-density",), "densities", lines, ())
    history = reproduce(definition, tmp_path).outcomes["FedMid"][0].history
    assert len(history) == 5
    for line in history:
        assert line["client-density"] <= line["mean-density"]
        assert line["server-density"] == line["mean-density"]


# By day tests/runs/test_engines.py holds a sweep in processes against one process.
@pytest.mark.nightly
def test_two_processes_find_the_same(tmp_path):
    definition = replace(small(), runs=small().runs[:1])
    definition = replace(definition, claims=definition.claims[:1])
    one = reproduce(definition, tmp_path / "one")
    two = reproduce(definition, tmp_path / "two", workers=2)
    assert one.outcomes == two.outcomes


def test_verdicts_with_runs_that_diverged_can_be_read():
    definition = small()
    outcomes = {line.label: [Outcome([{"round": 1.0, "f1": 0.5}], 1)] * 2 for line in definition.runs}
    claim = Claim("c", "s", "n", "final-within", {"run": "good", "metric": "f1", "at_least": 0.4})
    (verdict,) = judge(replace(definition, claims=(claim,)), outcomes)
    assert not verdict.holds
    assert "diverged" in verdict.measured
    assert "final-within(run=good" in verdict_table(definition, [verdict])


def test_definitions_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigurationError, match=r"fco-fig99.*fco-fig1"):
        load_definition("fco-fig99")
    data = tomllib.loads(SMALL)
    data["claims"][0]["arguments"]["run"] = "absent"
    with pytest.raises(ConfigurationError, match=r"absent.*good"):
        _parse("small", data)
    data = tomllib.loads(SMALL)
    data["claims"][0]["rule"] = "wish"
    with pytest.raises(ConfigurationError, match="wish"):
        _parse("small", data)


def test_a_table_sets_values_beside_known_ones():
    table = {"metric": "gap", "rounds": [1, 20], "source": "a book", "known": {"good": [3, 0.25]}}
    definition = replace(small(), runs=small().runs[:2], table=table)
    good = [Outcome([{"round": r, "gap": 4.0 / r * factor} for r in (1.0, 2.0, 16.0)]) for factor in (1.0, 3.0)]
    bad = [Outcome([{"round": 1.0, "gap": 7.0}], diverged=2)] * 2
    lines = value_table(definition, {"good": good, "bad": bad}).splitlines()
    assert "a book" in lines[0]
    assert lines[4:] == ["| good | 8 [4, 12] | 0.5 [0.25, 0.75] | 3 / 0.25 |", "| bad | 7 | none (diverged) |  |"]
    late = value_table(replace(definition, table={**table, "rounds": [2, 21]}), {"good": good, "bad": bad})
    assert late.splitlines()[4].startswith("| good | 4 [2, 6] |  |")


def test_the_second_papers_printed_settings():
    """Section 7 and D: M = 16, d = 1,024, s = 16, p = 12, K = 10, batch 10, a chain."""
    for name in ("gt-fig1", "gt-fig2"):
        definition = load_definition(name)
        for line in definition.runs:
            own = definition.run_settings(line, 0)
            data = own.load().dataset
            assert (data.num_clients, data.dimension, data.sparsity) == (16, 1024, 16)
            assert (own.local_steps, own.clients_per_round, own.num_rounds) == (10, 0, 3000)
            # Rows of ours: MReFedDA-GT with the plateau rule, and three methods of a server on the chain.
            plateau, chain = ", plateau" in line.label, line.label.endswith(", on the chain")
            # D.1.2 can be read in two ways.
            assert own.batch_size == (160 if line.label.endswith("M x batch") else 10)
            assert own.stretch == (16 if line.label.endswith("M x batch and rounds") else 1)
            assert (own.plateau, own.plateau_node) == (
                ("gap", 0) if line.strategy.startswith("D") and not chain else ("gap" if plateau else "", -1)
            )
            graph = line.strategy.startswith("D") or chain
            assert own.strategy_options.get("mixing") == ("chain" if graph else None)
            geometry = "euclidean" if line.strategy in ("DFedMid", "FastFedDA", "CFedDA", "MCFedDA") else "p-norm(12)"
            assert own.mirror_map == geometry


def test_the_second_papers_constants_are_those_that_were_tuned():
    """Each run's constants are the bold ones of the page that docs/tune_rates.py wrote."""
    page = Path(__file__).parents[3] / "docs" / "reproduction" / "tracking-rates.md"
    names = {"linear": "gt-fig1", "logistic": "gt-fig2"}
    for part in page.read_text(encoding="utf-8").split("## sparse-")[1:]:
        definition = load_definition(names[part.partition("-")[0]])
        best = [line.split(" | ")[:2] for line in part.splitlines() if line.endswith("** |")]
        assert len(best) == 12
        # Where an exchange counts as 16 rounds, 3,000 rounds are few: the long run has the constants of "M x batch".
        long = load_definition(definition.name.replace("fig", "long"))
        for label, words in ((own.removeprefix("| "), words) for own, words in best):
            if label.endswith("M x batch and rounds"):
                continue
            lines = [line for line in definition.runs if line.label == label]
            assert len(lines) == 1
            if label.endswith("M x batch"):
                lines += [line for line in long.runs if line.label == label.removesuffix(", M x batch")]
                assert len(lines) == 2
            for pair in words.split(", "):
                key, value = pair.split(" ")
                assert all(line.settings[key] == float(value) for line in lines), (label, key)


# By day `.ci/run` reproduces the theorems of each paper.
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_claims_hold(name, tmp_path):
    try:
        report = reproduce(load_definition(name).quick_version(), tmp_path)
    except (DataNotFoundError, NotInstalledError) as error:
        pytest.skip(str(error))
    assert all(verdict.holds for verdict in report.verdicts), report.verdicts
