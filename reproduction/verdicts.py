"""What runs say about the claims of their figure, and the results of full runs that are stored.

``results.jsonl`` has a line for each figure: what its runs cost, the machines on which its values were seen, its table,
and by claim a fingerprint and the values of all seeds. Where the kernels of BLAS decide, there is the smallest value of
each seed on several of them, then the largest. A claim whose runs, seeds or statistic have changed since has another
fingerprint, and awaits a run; with new limits or words it is decided anew by the stored values.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from reproduction.figure import HERE, Check, Figure, claims
from reproduction.rules import RULES, Outcome, Outcomes
from reproduction.running import Record, key_of

AWAITS = "awaits a run"
RESULTS = HERE / "results.jsonl"
#: Values are printed with three digits.
_ROUNDING = 5e-3


def outcomes_of(figure: Figure, records: Mapping[str, Record]) -> dict[str, list[Outcome]]:
    """Return the outcomes of a figure's runs, and of its methods at their best rates, by label, then by seed."""
    found: dict[str, list[Outcome]] = {}
    for one in figure.runs:
        own = [records[key_of(figure.run_settings(one, seed).to_config())] for seed in figure.seeds]
        found[one.label] = [Outcome(record["history"], record["diverged"]) for record in own]
    if figure.tune is not None:
        found |= {point.label: [own for own, _ in point.of(found, figure.tune)] for point in figure.bests}
    return found


def measure(figure: Figure, outcomes: Outcomes) -> dict[str, list[float]]:
    """Return the values of each claim's statistic, one per seed."""
    return {name: RULES[own.rule](outcomes, **own.arguments).values for name, own in _expanded(figure).items()}


def _expanded(figure: Figure) -> dict[str, Check]:
    """Return the checks with the labels of all runs in the place of a group's."""
    found = dict(figure.checks)
    for name, check in figure.checks.items():
        if check.rule == "share":
            members = {key: [figure.groups[own] for own in check.arguments.get(key, ())] for key in ("run", "than")}
            own = {key: [label for labels in groups for label in labels] for key, groups in members.items()}
            sizes = [len(labels) for groups in members.values() for labels in groups]
            # A share that is compared with no other is on no side of equality.
            even = {} if own["than"] else {"even": math.nan}
            found[name] = Check("share", {**check.arguments, **own, **even, "sizes": sizes})
    return found


def decide(figure: Figure, values: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Return the rows of a figure's claims with `verdict`, `measured` (in words) and `values`.

    Parameters
    ----------
    figure : Figure
    values : mapping of str to sequence of float
        By claim; a claim without any awaits a run.
    """
    checks = _expanded(figure)
    rows = claims()[claims().figure == figure.name]
    # A quick version has one claim.
    rows = rows[[not figure.shortened or row.claim in checks for row in rows.itertuples()]]
    found = []
    for row in rows.itertuples():
        own = list(values.get(str(row.claim), ()))
        if row.outside or not own:
            found.append(("outside" if row.outside else AWAITS, "", own))
            continue
        check = checks[str(row.claim)]
        measured = RULES[check.rule].decide(own, **check.arguments)
        verdict = "holds" if measured.holds else "tie" if measured.tie else "does not hold"
        found.append((verdict, f"{measured.meaning}: {band(own)}", own))
    return rows.assign(**dict(zip(("verdict", "measured", "values"), zip(*found, strict=True), strict=True)))


def band(values: Sequence[float]) -> str:
    """Return the median and the range of the values of all seeds, with three digits.

    Examples
    --------
    >>> band([0.1, 0.2, 0.4]), band([math.nan]), band([2.0, math.inf])
    ('0.2 [0.1, 0.4]', 'none (diverged, or has too few rounds)', 'never [2, never]')
    """
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return "none (diverged, or has too few rounds)"
    text = median(numbers)
    if min(numbers) != max(numbers):
        text += f" [{min(numbers):.3g}, {max(numbers):.3g}]".replace("inf", "never")
    lost = len(values) - len(numbers)
    return text + (f", {lost} of {len(values)} seeds without a value" if lost else "")


def median(values: Sequence[float]) -> str:
    """Return the median with three digits."""
    return f"{float(np.median(values)):.3g}".replace("inf", "never")


def fingerprint(figure: Figure, claim: str) -> str:
    """Return a hash of all that the values of a claim depend on: the seeds, the runs, the rule's statistic."""
    check = figure.checks[claim]
    runs = {one.label: one for one in figure.runs}
    members = {**figure.groups, **{point.label: [label for label, _ in point.runs] for point in figure.bests}}
    settings = [
        figure.run_settings(runs[own], 0).to_config()
        for label in check.labels()
        for own in ([label] if label in runs else members[label])
    ]
    rule = RULES[check.rule]
    tune = figure.tune._asdict() if figure.tune is not None else {}
    asked = {key: own for key, own in check.arguments.items() if key == "mean"} | rule.measured(check.arguments)
    content = [figure.seeds, settings, tune, rule.statistic.__name__, asked]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def result_of(figure: Figure, values: Mapping[str, Sequence[float]], records: Iterable[Record], table: str) -> Record:
    """Return what is stored of a full run."""
    records = list(records)
    # JSON has no infinity.
    own = {
        name: [fingerprint(figure, name), [one if math.isfinite(one) else str(one) for one in found]]
        for name, found in values.items()
    }
    cost = round(sum(one["cpu-seconds"] for one in records))
    return {"figure": figure.name, "cpu-seconds": cost, "machines": [_machine()], "claims": own, "table": table}


def _machine() -> str:
    """Return a name of this kind of machine: system, processor and release of NumPy decide the last digits."""
    kind = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        kind = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), kind)
    return f"{platform.system()}, {kind}, NumPy {np.__version__}"


def read_results() -> dict[str, Record]:
    """Return the stored results by figure."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return {own["figure"]: own for own in map(json.loads, lines)}


def stored_values(figure: Figure, stored: Mapping[str, Record]) -> dict[str, list[float]]:
    """Return the stored values of the claims whose fingerprint is still the same."""
    own = stored.get(figure.name, {}).get("claims", {})
    return {
        name: [float(value) for value in own[name][1]]
        for name in figure.checks
        if name in own and own[name][0] == fingerprint(figure, name)
    }


def unlike(values: Mapping[str, Sequence[float]], known: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the claims whose values are not those that are known, to half a percent; counts of rounds to 1.

    A known claim may have twice as many values: the smallest of each seed, then the largest.

    Examples
    --------
    >>> known = {"a": [24.0, 25.0, 25.0, 37.0]}
    >>> unlike({"a": [25.0, 38.0]}, known), unlike({"a": [25.0, 39.0]}, known)
    ([], ['a'])
    """

    def same(one: Sequence[float], other: Sequence[float]) -> bool:
        low, high = np.split(np.array(other), 2) if len(other) == 2 * len(one) else (np.array(other),) * 2
        counts = all(value == round(value) > 1 for value in [*one, *other] if math.isfinite(value))
        tolerance = {"rtol": _ROUNDING, "atol": 1.0 if counts else 0.0}
        return np.allclose(one, np.clip(one, low, high), equal_nan=True, **tolerance)

    return [name for name, own in values.items() if name in known and not same(own, known[name])]


def write_results(new: Mapping[str, Record], order: Iterable[str]) -> None:
    """Store results in the order of the figures, with the machines on which the same values were seen before."""
    known = read_results() if RESULTS.is_file() else {}
    for name, own in new.items():
        before = known.get(name, {"claims": {}, "machines": []})
        own_values, known_values = (
            {claim: [float(value) for value in found] for claim, (_, found) in one["claims"].items()}
            for one in (own, before)
        )
        other = unlike(own_values, known_values)
        # The range over several kernels stays, unless a value is outside.
        ranges = {
            claim: found
            for claim, found in before["claims"].items()
            if claim not in other and len(found[1]) == 2 * len(own_values.get(claim, ()))
        }
        again = [] if other else before["machines"]
        known[name] = {**own, "claims": {**own["claims"], **ranges}, "machines": sorted({*own["machines"], *again})}
    lines = [json.dumps(known[name]) + "\n" for name in order if name in known]
    RESULTS.write_text("".join(lines), encoding="utf-8")
