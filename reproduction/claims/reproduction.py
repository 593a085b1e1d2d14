"""Run an experiment, judge its claims, and write data, figure and verdicts."""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import parse_json, read_json, read_npz, write_file, write_npz
from reproduction.claims.definition import Claim, Definition, RunLine
from reproduction.claims.densities import measure_densities
from reproduction.claims.figures import figure_of
from reproduction.claims.rules import RULES, Measurement, Outcome, Outcomes
from reproduction.pictures.report import draw, require_matplotlib, table_of
from reproduction.problems.baselines import BASELINES, solve_baseline
from reproduction.problems.named import load_task
from reproduction.runs.run import run
from reproduction.runs.settings import RunSettings, format_assignments, plain
from reproduction.runs.sweep import results_of


@dataclass(frozen=True)
class Verdict:
    """A row of the table.

    Parameters
    ----------
    name, sentence, number : str
        The claim as in the paper.
    measured : str
        Median and band over the seeds.
    values : tuple of float
        One per seed.
    rates : str
        The (client, server) rates of the claim's run.
    verdict : {"holds", "does not hold", "tie", "outside", "awaits a run"}
        ``"tie"``: neither side of the comparison wins on every seed. ``"outside"``: the claim cannot be tested here.
        ``"awaits a run"``: the stored results have no values for the claim as it is now defined.
    rule : str
        The rule's name and arguments.
    note : str
    scale : str
        How the runs differ from those of the sentence.
    differs : tuple of str
        In what they differ, in the words of :data:`reproduction.claims.definition.DIFFERENCES`.
    ours : bool
        Whether the sentence is ours, not the paper's.
    repeats : str
        The claim of another experiment that makes the same statement about the same runs.
    """

    name: str
    sentence: str
    number: str
    measured: str = ""
    values: tuple[float, ...] = ()
    rates: str = ""
    verdict: str = ""
    rule: str = ""
    note: str = ""
    scale: str = ""
    differs: tuple[str, ...] = ()
    ours: bool = False
    repeats: str = ""

    @property
    def holds(self) -> bool:
        """Whether the verdict is "holds"."""
        return self.verdict == "holds"

    @property
    def words(self) -> str:
        """The verdict as the pages have it."""
        text = f"**{self.verdict}**" if self.verdict == "does not hold" else self.verdict
        return f"ours: {text}" if self.ours else text

    @property
    def differing(self) -> str:
        """In what a row of the paper's differs."""
        return "" if self.ours else ", ".join(self.differs)


class Report(NamedTuple):
    """The result of :func:`reproduce`.

    Parameters
    ----------
    definition : Definition
    verdicts : list of Verdict
    outcomes : dict of str to list of Outcome
    folder : Path
    seconds : float
    tables : str, default ""
        Further tables of the experiment's page.
    """

    definition: Definition
    verdicts: list[Verdict]
    outcomes: Outcomes
    folder: Path
    seconds: float
    tables: str = ""


class _Job(NamedTuple):
    line: RunLine
    settings: RunSettings
    definition: Definition
    file: Path
    #: The array that is kept for the figure.
    array: str

    @property
    def kept(self) -> Path:
        """Where the array for the figure is kept."""
        return self.file.with_suffix(".npz")


def judge(definition: Definition, outcomes: Outcomes) -> list[Verdict]:
    """Return the verdicts of an experiment's claims.

    Parameters
    ----------
    definition : Definition
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.

    Returns
    -------
    list of Verdict

    Examples
    --------
    >>> from reproduction.claims.definition import load_definition
    >>> definition = load_definition("fco-theorems").quick_version()
    >>> history = [{"round": float(r), "gap": 1.0 / r**2} for r in (10, 100)]
    >>> [verdict.holds for verdict in judge(definition, {definition.runs[0].label: [Outcome(history)] * 2})]
    [True]
    """
    outcomes = {**outcomes, **{point.label: point.best(outcomes).outcomes for point in definition.tuned}}
    return [_judge(definition, claim, outcomes) for claim in definition.claims]


def reproduce(
    definition: Definition,
    folder: Path,
    *,
    workers: int = 1,
    engine: str = "processes",
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    on_run: Callable[[int, int], None] | None = None,
) -> Report:
    """Run an experiment; runs already in the folder are not repeated.

    Parameters
    ----------
    definition : Definition
    folder : Path
        Gets ``runs/*.json`` (settings and metrics of each round), ``figure.png`` and ``.svg``, ``verdicts.json`` and
        ``verdicts.md``, and ``experiment.json``, which identifies the experiment.
    workers : int, default 1
        Number of runs at a time; with 1 they run one by one in this process.
    engine : {"processes", "in-process", "ray"}, default "processes"
        ``"ray"``: as Ray tasks, on the cluster of RAY_ADDRESS or on this machine; all machines must share `folder`.
    num_cpus, num_gpus : float, default 1 and 0
        Resources that Ray reserves for a run.
    on_run : callable, optional
        Called with ``(finished, total)`` after each run.

    Returns
    -------
    Report

    Raises
    ------
    DataNotFoundError
        If the problem's files are missing.
    NotInstalledError
        If the problem needs a package that is not installed.
    ConfigurationError
        If matplotlib is not installed, or the folder holds another experiment, its quick version, or the same one with
        other settings: before the runs. If no machine of the cluster has what is to be reserved.

    Examples
    --------
    >>> import tempfile
    >>> from reproduction.claims.definition import load_definition
    >>> definition = load_definition("fco-theorems").quick_version()
    >>> report = reproduce(definition, Path(tempfile.mkdtemp()))
    >>> [verdict.holds for verdict in report.verdicts]
    [True]
    """
    if engine not in ("processes", "in-process", "ray") or (engine == "in-process" and workers > 1):
        raise ConfigurationError(
            f"engine={engine!r} with workers={workers}; expected 'processes' or 'ray', or 'in-process' with one"
        )
    if engine == "ray":
        folder = folder.resolve()
    require_matplotlib("the figure of an experiment needs matplotlib")
    began = time.perf_counter()
    _claim_folder(definition, folder)
    (folder / "runs").mkdir(exist_ok=True)
    array = definition.panels[0] if definition.kind == "images" else ""
    jobs = [
        _Job(line, definition.run_settings(line, seed), definition, folder / "runs" / _slug(line.label, seed), array)
        for seed in definition.seeds
        for line in definition.runs
    ]
    # Curves of several panels may be the same run.
    alike: dict[str, list[_Job]] = {}
    for job in jobs:
        alike.setdefault(json.dumps(job.settings.to_config(), sort_keys=True), []).append(job)
    by_job: dict[Path, Outcome] = {}
    firsts = [group[0] for group in alike.values()]
    with _outcomes(firsts, workers, engine, num_cpus, num_gpus) as found:
        for group, outcome in zip(alike.values(), found, strict=True):
            for job in group:
                _require_metrics(definition, job.line, outcome)
                by_job[job.file] = outcome
            if on_run is not None:
                on_run(len(by_job), len(jobs))
    outcomes: dict[str, list[Outcome]] = {}
    for job in jobs:
        outcomes.setdefault(job.line.label, []).append(by_job[job.file])
    verdicts = judge(definition, outcomes)
    seconds = time.perf_counter() - began
    write_file(folder / "verdicts.json", json.dumps([asdict(verdict) for verdict in verdicts], indent=2) + "\n")
    asked = ((definition.tuned, tuned_table), (definition.table, value_table))
    tables = "\n".join(table(definition, outcomes) for wanted, table in asked if wanted).strip()
    page = _page(definition, verdicts) + (f"\n{tables}\n" if tables else "")
    write_file(folder / "verdicts.md", page)
    kept = {job.line.label: job.kept for job in jobs if array and job.settings.seed == definition.seeds[0]}
    images = {label: read_npz(file)["image"] for label, file in kept.items()}
    draw(figure_of(definition, outcomes, images), folder / "figure.png")
    return Report(definition, verdicts, outcomes, folder, seconds, tables)


def _claim_folder(definition: Definition, folder: Path) -> None:
    """Record the experiment in the folder: runs of two experiments have the same names, and a folder has one page."""
    wanted = {"experiment": definition.name, "quick": definition.shortened, "set": dict(definition.overrides)}
    file = folder / "experiment.json"
    # A folder without any run, for example because data were missing, may be used by any experiment.
    if file.is_file() and any((folder / "runs").glob("*.json")):
        try:
            held = read_json(file, {"experiment": str, "quick": bool, "set": dict})
        except (ConfigurationError, OSError) as error:
            raise ConfigurationError(
                f"{file} cannot be read: {error}. It says which experiment the folder holds: remove the folder, or "
                "give another by --out"
            ) from error
        if held != wanted:
            raise ConfigurationError(
                f"{folder} holds {_described(held)}; expected a folder that is empty or holds {_described(wanted)}. "
                "Give another by --out"
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_file(file, json.dumps(wanted) + "\n")


def _described(held: Mapping[str, Any]) -> str:
    given = "".join(f" --set {text}" for text in format_assignments(held.get("set") or {}))
    return f"{held.get('experiment')}{' --quick' if held.get('quick') else ''}{given}"


def _page(definition: Definition, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts, with a note on settings that differ from the definition."""
    text = verdict_table(definition, verdicts)
    if not definition.overrides:
        return text
    heading, _, rest = text.partition("\n\n")
    note = (
        f"The settings are not those of the definition: {', '.join(format_assignments(definition.overrides))} in "
        "every run (of baselines: the options of the problem). The labels and notes are the definition's, and the "
        "claims are judged as they are there."
    )
    if "problem" in definition.overrides:
        note += f" Options of the definition that {definition.problem} does not have are left out."
    return f"{heading}\n\n{note}\n\n{rest}"


def _require_metrics(definition: Definition, line: RunLine, outcome: Outcome) -> None:
    """Raise the errors of judging before the other runs: another problem may not report the claims' metrics."""
    for claim in definition.claims if definition.overrides else ():
        if "metric" in claim.arguments and {line.label, line.group} & set(claim.labels()):
            outcome.series(claim.arguments["metric"])


def verdict_table(definition: Definition, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a Markdown table.

    Parameters
    ----------
    definition : Definition
    verdicts : sequence of Verdict

    Returns
    -------
    str

    Examples
    --------
    >>> from reproduction.claims.definition import load_definition
    >>> print(verdict_table(load_definition("fco-fig3"), []).splitlines()[0])
    # fco-fig3: LASSO I, half of the truth is not zero
    """
    seeds = ", ".join(map(str, definition.seeds))
    head = ("claim", "its number", "measured", "reading / scale / data", "rates (client, server)", "verdict", "rule")
    about = [f"Problem {definition.problem}, seeds {seeds}", *filter(None, [definition.scale])]
    text = f"# {definition.name}: {definition.title}\n\n{definition.source}. {'; '.join(about)}; measured: median "
    text += "[smallest, largest] over them.\n"
    groups: dict[tuple[str, bool], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.sentence, verdict.ours), []).append(verdict)
    for (sentence, ours), own in groups.items():
        rows = [
            (
                f"{verdict.name} ({verdict.scale})" if verdict.scale != definition.scale else verdict.name,
                verdict.number,
                verdict.measured,
                verdict.differing,
                verdict.rates,
                verdict.words
                + (f" (as {verdict.repeats})" if verdict.repeats else "")
                + (f"; {verdict.note}" if verdict.note else ""),
                f"`{verdict.rule}`" if verdict.rule else "",
            )
            for verdict in own
        ]
        text += f"\n{'Ours' if ours else 'The paper'}: {sentence}\n\n{table_of(head, rows)}"
    return text


def value_table(definition: Definition, outcomes: Outcomes) -> str:
    """Return each run's values at the rounds of the definition's table, next to the published values.

    Parameters
    ----------
    definition : Definition
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.

    Returns
    -------
    str

    Examples
    --------
    >>> from dataclasses import replace
    >>> from reproduction.claims.definition import load_definition
    >>> definition = load_definition("gt-fig1")
    >>> line = definition.runs[0]
    >>> history = [{"round": float(r), "l1-error": 300.0 / r} for r in (100, 300, 1000, 3000)]
    >>> table = value_table(replace(definition, runs=(line,)), {line.label: [Outcome(history)]})
    >>> table.splitlines()[2].partition(" | known")[0]
    '| l1-error after round | 100 | 300 | 1,000 | 3,000'
    """
    table = definition.table
    metric, rounds, known = table["metric"], table["rounds"], table.get("known", {})
    text = f"Median [smallest, largest] over the seeds{'; known: ' + table['source'] if known else ''}.\n\n"
    head = [f"{metric} after round", *(f"{when:,}" for when in rounds), *(["known"] if known else [])]
    rows = []
    for line in definition.runs:
        # A run that has ended has no value at a later round.
        last = line.settings.get("num-rounds", math.inf)
        cells = [
            _band([_value_at(own, metric, when) for own in outcomes[line.label]]) if when <= last else ""
            for when in rounds
        ]
        if known:
            cells.append(" / ".join(f"{value:g}" for value in known.get(line.label, [])))
        rows.append([line.label, *cells])
    return text + table_of(head, rows)


def tuned_table(definition: Definition, outcomes: Outcomes) -> str:
    """Return the results of each method at its best rates, and these rates.

    Parameters
    ----------
    definition : Definition
        A definition with tuned methods.
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.

    Returns
    -------
    str
    """
    tune = definition.tuned[0].tune
    text = f"At the best rates of each seed by {'largest' if tune.largest else 'smallest'} {tune.metric}"
    text += f" (mean of the last {tune.window} evaluations)" if tune.window > 1 else ""
    text += ": median [smallest, largest] over the seeds; (client, server) rates of the first seed.\n"
    parts: dict[str, dict[str, list[str]]] = {}
    values: dict[str, dict[str, None]] = {}
    for point in definition.tuned:
        best, part = point.best(outcomes), point.variation.part
        first = best.rates[0]
        cell = _band(best.values) + (f" ({first[0]:g}, {first[1]:g})" if first else "")
        parts.setdefault(part, {}).setdefault(point.method, []).append(cell)
        values.setdefault(part, {})[str(point.value)] = None
    for part, rows in parts.items():
        text += "\n" + table_of([part, *values[part]], [[method, *cells] for method, cells in rows.items()])
    return text


def _value_at(outcome: Outcome, metric: str, when: float) -> float:
    """Return the value at the last evaluation up to a round; NaN for a run that was cut before it."""
    rounds, values = outcome.series(metric)
    reached = np.flatnonzero(rounds <= when)
    cut = outcome.diverged and outcome.diverged <= when
    return math.nan if cut or not reached.size else float(values[reached[-1]])


def _judge(definition: Definition, claim: Claim, outcomes: Outcomes) -> Verdict:
    if claim.outside:
        return without_values(definition, claim, "outside")
    groups = {"groups": definition.groups} if claim.rule == "share" else {}
    found = RULES[claim.rule](outcomes, **groups, **claim.arguments)
    return verdict_of(definition, claim, found)


def verdict_of(definition: Definition, claim: Claim, found: Measurement) -> Verdict:
    """Return the row of a claim from the measurement of its rule."""
    text = ", ".join(f"{key}={plain(value)}" for key, value in claim.arguments.items())
    subjects = claim.arguments.get("runs", [claim.arguments.get("run")])
    rates = dict.fromkeys(line.rates for line in definition.runs if line.label in subjects)
    verdict = "holds" if found.holds else "tie" if found.tie else "does not hold"
    return replace(
        without_values(definition, claim, verdict, f"{found.meaning}: {_band(found.values, _NO_VALUE)}"),
        number=f"{claim.number} (the limit is ours)" if claim.has_limit_of_ours else claim.number,
        values=tuple(found.values),
        rates="; ".join(rates) or "all of the grid",
        rule=f"{claim.rule}({text})",
    )


def without_values(definition: Definition, claim: Claim, verdict: str, measured: str = "") -> Verdict:
    """Return the row of a claim that cannot be tested here, or has not been tested as it is now defined."""
    own = {name: getattr(claim, name) for name in ("name", "sentence", "number", "differs", "ours", "repeats")}
    scale, note = claim.scale or definition.scale, claim.outside or claim.note
    return Verdict(**own, measured=measured, verdict=verdict, note=note, scale=scale)


#: What a claim has measured where no seed has a number: the run that another one is compared with may be too short too.
_NO_VALUE = "none (diverged, or has too few rounds)"


def _band(values: Sequence[float], none: str = "none (diverged)") -> str:
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return none
    lost = len(values) - len(numbers)
    text = median(numbers)
    if min(numbers) != max(numbers):
        text += f" [{min(numbers):.3g}, {max(numbers):.3g}]".replace("inf", "never")
    return text + (f", {lost} of {len(values)} seeds without a value" if lost else "")


def median(values: Sequence[float]) -> str:
    """Return the median with three digits."""
    return f"{float(np.median(values)):.3g}".replace("inf", "never")


def _slug(label: str, seed: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', label).strip('-').lower()}-seed-{seed}.json"


@contextmanager
def _outcomes(
    jobs: Sequence[_Job], workers: int, engine: str, num_cpus: float, num_gpus: float
) -> Iterator[Iterable[Outcome]]:
    """Yield the jobs' outcomes, in the order of the jobs."""
    if engine != "ray" and workers <= 1:
        yield map(_do, jobs)
        return
    with results_of(_do, [(job,) for job in jobs], engine, workers, num_cpus, num_gpus) as found:
        yield found


def _finished(file: Path) -> dict[str, Any]:
    """Return the content of a job's file; nothing if it is damaged, so that the job is repeated."""
    try:
        known = read_json(file)
    except (ConfigurationError, OSError):
        return {}
    lines = known.get("history")
    whole = isinstance(lines, list) and lines and all(map(_is_line, lines)) and type(known.get("diverged")) is int
    return known if whole else {}


def _is_line(line: Any) -> bool:
    """Whether this is what a run says of a round."""
    return isinstance(line, dict) and "round" in line and all(type(value) in (int, float) for value in line.values())


def _do(job: _Job) -> Outcome:
    """Return the outcome of a job, from its file if it was run with the same settings."""
    config = job.settings.to_config()
    if job.file.is_file() and (not job.array or job.kept.is_file()):
        known = _finished(job.file)
        if known.get("settings") == config:
            return Outcome(known["history"], known["diverged"])
    measure = measure_densities if job.definition.kind == "densities" and job.line.strategy not in BASELINES else run
    # What takes many minutes is saved as it goes.
    saved: dict[str, Any] = {"folder": job.file.with_suffix(""), "resume": True} if job.definition.long else {}
    # Some pairs of a grid are expected to diverge.
    began = time.process_time()
    with _errors_only() if job.definition.kind == "tuned" else nullcontext():
        result = measure(job.settings, **saved)
    cost = {"seconds": round(result.seconds, 3), "cpu-seconds": round(time.process_time() - began, 3)}
    history = result.history
    if job.definition.gap and "objective" in history[-1]:
        best = _optimum(job.settings)
        history = [{**line, "gap": line["objective"] - best} if "objective" in line else line for line in history]
    content = {"settings": config, "diverged": result.diverged, **cost, "history": history}
    if job.array:
        write_npz(job.kept, {"image": result.arrays[job.array]})
    write_file(job.file, json.dumps(content))
    return Outcome(history, result.diverged)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Keep Flower's logger to errors."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(max(logging.ERROR, before))
    try:
        yield
    finally:
        logger.setLevel(before)


def _optimum(settings: RunSettings) -> float:
    """Return the objective of the centralized solution."""
    return _solved(settings.problem, settings.seed, json.dumps(settings.problem_options, sort_keys=True))


@cache
def _solved(problem: str, seed: int, options: str) -> float:
    task = load_task(problem, seed, parse_json(options))
    return task.objective(solve_baseline(task, "centralized", tol=1e-10).w)
