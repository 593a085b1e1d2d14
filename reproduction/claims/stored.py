"""Results of full runs, in one file for each experiment, and the verdicts on the current claims.

Definitions change after their runs. If a claim's runs, seeds and statistic are still those of the file, it is decided
by the stored values, even if its limits and wording have changed; every other claim awaits a run.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fco.models import read_json, write_file
from reproduction.claims.definition import EXPERIMENTS, Claim, Definition, RunLine
from reproduction.claims.reproduction import Report, Verdict, verdict_of, without_values
from reproduction.claims.rules import RULES, Measurement, Rule

#: Values of pages have three digits.
_ROUNDING = 5e-3
AWAITS = "awaits a run"
#: Name of the file in an experiment's folder.
RESULTS = "results.json"

#: Of an experiment: ``seeds``, ``seconds``, ``cpu-seconds``, ``machines`` (on which its values were seen), ``runs`` (by
#: label, a hash of the settings), ``claims`` (by name) and ``tables``, the rest of its page.
Stored = Mapping[str, Any]


def fingerprints(definition: Definition) -> dict[str, str]:
    """Return a hash of the settings behind each label that a claim may name.

    Parameters
    ----------
    definition : Definition

    Returns
    -------
    dict of str to str
    """
    lines: dict[str, list[RunLine]] = {}
    for line in definition.runs:
        for label in dict.fromkeys((line.label, line.group)):
            lines.setdefault(label, []).append(line)
    content: dict[str, list[Any]] = {
        label: [[own.strategy, own.settings.get("problem", definition.problem), own.settings] for own in found]
        for label, found in lines.items()
    }
    for point in definition.tuned:
        tune = point.tune
        content[point.label] = [tune.metric, tune.window, tune.largest, *(content[label] for label, _ in point.runs)]
    return {label: hashlib.sha256(json.dumps(own).encode()).hexdigest()[:12] for label, own in content.items()}


def keep(report: Report) -> None:
    """Write the results of a full run into its folder; results of quick runs or with other settings are not stored.

    Parameters
    ----------
    report : Report
    """
    definition = report.definition
    if definition.shortened or definition.overrides:
        return
    claims = {claim.name: claim for claim in definition.claims}
    runs = [read_json(file) for file in (report.folder / "runs").glob("*.json")]
    stored = {
        "seeds": list(definition.seeds),
        "seconds": round(sum(own["seconds"] for own in runs)),
        # For runs of an earlier version only the wall-clock time is known.
        "cpu-seconds": round(sum(own.get("cpu-seconds", own["seconds"]) for own in runs)),
        "machines": [_machine()],
        "runs": fingerprints(definition),
        "claims": {
            own.name: {
                "rule": claims[own.name].rule,
                "arguments": claims[own.name].arguments,
                "measured": own.measured,
                # JSON has no infinity.
                "values": [value if math.isfinite(value) else str(value) for value in own.values],
                "verdict": own.verdict,
            }
            for own in report.verdicts
            if own.verdict != "outside"
        },
        "tables": report.tables,
    }
    write_file(report.folder / RESULTS, json.dumps(stored, indent=1) + "\n")


def nothing_yet() -> Stored:
    """Return the results of an experiment that has not been run.

    Examples
    --------
    >>> nothing_yet()["claims"]
    {}
    """
    return {"seeds": [], "seconds": 0, "cpu-seconds": 0, "machines": [], "runs": {}, "claims": {}, "tables": ""}


def _machine() -> str:
    """Return a name of this kind of machine: system, processor and release of NumPy decide the last digits."""
    kind = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kind = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), kind)
    return f"{platform.system()}, {kind}, NumPy {np.__version__}"


def seen_again(new: Stored, known: Stored | None) -> Stored:
    """Return new results with the machines on which the known ones were seen, if the values are the same.

    Parameters
    ----------
    new, known : mapping
        As from :func:`read_folders`. The same: to half a percent, in all claims that both have.
    """
    if known is None or not all(_same(own, known["claims"][name]) for name, own in _both(new, known)):
        return new
    return {**new, "machines": sorted({*known.get("machines", []), *new.get("machines", [])})}


def _both(new: Stored, known: Stored) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, own) for name, own in new["claims"].items() if name in known["claims"]]


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = ([float(value) for value in own["values"]] for own in (one, other))
    return len(first) == len(second) and np.allclose(first, second, rtol=_ROUNDING, atol=0.0, equal_nan=True)


def read_folders(folder: Path) -> dict[str, Stored]:
    """Return the stored results of the experiments whose full runs a folder has.

    Parameters
    ----------
    folder : Path
        Contains a folder named after each experiment.

    Returns
    -------
    dict of str to Stored
        Without quick versions and runs with other settings, which have no pages.
    """
    return {name: read_json(file) for name in EXPERIMENTS if (file := folder / name / RESULTS).is_file()}


def read_again(definition: Definition, stored: Stored) -> list[Verdict]:
    """Return the verdicts on the current claims from stored results.

    Parameters
    ----------
    definition : Definition
    stored : mapping
        As from :func:`read_folders`.

    Returns
    -------
    list of Verdict
        One for each claim of the definition.

    Examples
    --------
    >>> from reproduction.claims.definition import load_definition
    >>> read_again(load_definition("fco-theorems"), {})[0].verdict
    'awaits a run'
    """
    now = fingerprints(definition)
    return [_read_claim(definition, claim, stored, now) for claim in definition.claims]


def _read_claim(definition: Definition, claim: Claim, stored: Stored, now: Mapping[str, str]) -> Verdict:
    if claim.outside:
        return without_values(definition, claim, "outside")
    row = stored.get("claims", {}).get(claim.name)
    if row is None:
        return without_values(definition, claim, AWAITS)
    current = list(definition.seeds) == stored["seeds"] and all(
        now[label] == stored["runs"].get(label) for label in claim.labels()
    )
    found = _decide(claim, row) if current else None
    if found is None:
        return without_values(definition, claim, AWAITS, f"before: {row['measured']}")
    verdict = verdict_of(definition, claim, found)
    return replace(verdict, measured=row["measured"]) if claim.arguments == row["arguments"] else verdict


def _decide(claim: Claim, row: Mapping[str, Any]) -> Measurement | None:
    """Return the verdict of the stored values on a claim; nothing if they are for something else, or too coarse."""
    values = [float(value) for value in row["values"]]
    if claim.rule == row["rule"] and claim.arguments == row["arguments"]:
        even = 0.0 if row["verdict"] == "tie" else math.nan
        return Measurement(values, row["verdict"] == "holds", "", even, math.inf)
    rule, before = RULES[claim.rule], RULES[row["rule"]]
    if not isinstance(rule, Rule) or not isinstance(before, Rule):
        return None
    if rule.statistic is not before.statistic or rule.measured(claim.arguments) != before.measured(row["arguments"]):
        return None
    mean = bool(claim.arguments.get("mean"))
    found = rule.decide(values, claim.arguments, mean=mean)
    for factor in (1.0 - _ROUNDING, 1.0 + _ROUNDING):
        near = rule.decide([value * factor for value in values], claim.arguments)
        if (near.holds, near.tie) != (found.holds, found.tie):
            return None
    return found
