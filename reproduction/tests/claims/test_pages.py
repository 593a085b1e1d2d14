"""Pages of a reproduction say what the stored results say, and nothing that these do not."""

import json
import re
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from reproduction.claims.definition import EXPERIMENTS, load_definition
from reproduction.claims.pages import findings, short_table, write_pages
from reproduction.claims.reproduction import reproduce
from reproduction.claims.stored import AWAITS, fingerprints, keep, read_again, read_folders

PAGES = Path(__file__).parents[3] / "docs" / "reproduction"
STORED = json.loads((PAGES / "results.json").read_text(encoding="utf-8"))
CONTENT = tomllib.loads(
    (resources.files("reproduction.claims") / "pages.toml").read_text(encoding="utf-8"),
)
READERS = [page["file"] for page in CONTENT["pages"]]


@pytest.fixture(scope="module")
def verdicts():
    return {name: read_again(load_definition(name), STORED[name]) for name in EXPERIMENTS}


def test_the_pages_are_those_of_the_stored_results(tmp_path):
    written = write_pages(STORED, tmp_path, "{}.png", rates="")
    # No page of an experiment that has gone.
    assert {path.name for path in (PAGES / "details").iterdir()} == {f"{name}.md" for name in STORED}
    for path in written:
        name = path.relative_to(tmp_path)
        assert (PAGES / name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), (
            f"{name}: python docs/collect_reproduction.py"
        )


@pytest.mark.parametrize("file", ["README.md", *READERS, *(f"details/{name}.md" for name in STORED)])
def test_a_page_is_short_and_its_links_lead_somewhere(file):
    text = (PAGES / file).read_text(encoding="utf-8")
    assert len(text.encode()) <= 60_000
    for target in re.findall(r"\]\(([^)]+)\)", text):
        place, _, anchor = target.partition("#")
        page = (PAGES / file).parent / place if place else PAGES / file
        assert page.is_file(), target
        assert not anchor or f"\n## {anchor}\n" in page.read_text(encoding="utf-8"), target


@pytest.mark.parametrize("page", [*CONTENT["pages"], {"findings": CONTENT["surprises"], "file": "README.md"}])
def test_five_findings_rest_on_verdicts_that_are_still_so(page, verdicts):
    assert len(page["findings"]) == 5
    assert len(findings(page["findings"], verdicts, dict.fromkeys(verdicts, ""))) == 5, page["file"]


def test_a_finding_goes_with_its_verdict(verdicts):
    (page,) = [page for page in CONTENT["pages"] if page["file"] == "dualfl.md"]
    name = "dualfl-nonsmooth"
    other = [replace(own, verdict="does not hold") for own in verdicts[name]]
    left = findings(page["findings"], {**verdicts, name: other}, dict.fromkeys(verdicts, ""))
    assert len(left) == 4
    assert not any(name in text for text in left)


def test_the_verdicts_are_those_of_the_stored_values(verdicts):
    """A limit that is changed in a definition changes its verdict, without a run."""
    definition = load_definition("spp-fig4")
    name = "FeDualEx at 1e-1, K = 1"

    def verdict(**changed):
        claims = tuple(replace(c, arguments={**c.arguments, **changed}) for c in definition.claims if c.name == name)
        (own,) = read_again(replace(definition, claims=claims), STORED["spp-fig4"])
        return own

    largest = max(STORED["spp-fig4"]["claims"][name]["values"])
    assert verdict().verdict == "holds"
    assert verdict(at_most=1.02 * largest).verdict == "holds"
    assert verdict(at_most=0.98 * largest).verdict == "does not hold"
    # Three digits, which older results have, do not say on which side of the limit the largest value is.
    assert verdict(at_most=largest).verdict == AWAITS
    assert verdict(metric="density").verdict == AWAITS
    assert verdict(run="FedMiP, K = 1").verdict == AWAITS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_claim_that_does_not_hold_says_why(name, verdicts):
    unexplained = [own.name for own in verdicts[name] if own.verdict == "does not hold" and not own.note]
    assert not unexplained, name


def test_other_settings_and_seeds_await_a_run():
    definition = load_definition("dualfl-fig1c")
    before = read_again(definition, STORED["dualfl-fig1c"])
    assert AWAITS not in [own.verdict for own in before]
    seeds = replace(definition, seeds=(0, 1, 2))
    assert {own.verdict for own in read_again(seeds, STORED["dualfl-fig1c"])} == {AWAITS}
    label = "rho = 0.0"
    runs = tuple(
        line._replace(settings={**line.settings, "nu": 0.005}) if line.label == label else line
        for line in definition.runs
    )
    for own, old in zip(read_again(replace(definition, runs=runs), STORED["dualfl-fig1c"]), before, strict=True):
        assert (own.verdict == AWAITS) == (f"{label}," in old.rule)
        # What the last run had is still said.
        assert old.measured in own.measured


def test_fingerprints_depend_on_what_is_run_alone():
    definition = load_definition("fco-when")
    renamed = replace(definition, title="Another", claims=())
    assert fingerprints(renamed) == fingerprints(definition)
    (line, *rest) = definition.runs
    changed = replace(definition, runs=(line._replace(settings={**line.settings, "num-rounds": 7}), *rest))
    ours, theirs = fingerprints(definition), fingerprints(changed)
    differing = {label for label in ours if ours[label] != theirs[label]}
    assert {line.label, line.group} <= differing
    # The points that are tuned over it too.
    assert {point.label for point in definition.tuned if line.label in dict(point.runs)} <= differing


def test_a_full_run_keeps_what_its_pages_need(tmp_path):
    pytest.importorskip("matplotlib")
    small = load_definition("fco-theorems")
    claims = tuple(c for c in small.claims if c.name in small.quick["claims"])
    labels = {label for claim in claims for label in claim.labels()}
    runs = tuple(
        line._replace(settings={**line.settings, "num-rounds": 40}) for line in small.runs if line.label in labels
    )
    small = replace(small, claims=claims, runs=runs, seeds=(0,))
    report = reproduce(small, tmp_path / small.name)
    keep(report)
    (stored,) = read_folders(tmp_path).values()
    (again,) = read_again(small, stored)
    assert again == report.verdicts[0]
    assert again.measured in short_table([again])
    (tmp_path / small.name / "results.json").unlink()
    keep(report._replace(definition=replace(small, shortened=True)))
    assert not read_folders(tmp_path)
