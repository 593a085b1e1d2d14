"""Experiments: runs, claims and a quick version, read from a TOML file of the package."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, NamedTuple

from flwr_fco.errors import ConfigurationError
from reproduction.claims.rules import RULES
from reproduction.claims.tuning import Tune, Tuned, Variation
from reproduction.problems.baselines import BASELINES
from reproduction.problems.named import find_problem
from reproduction.runs.methods import option_names
from reproduction.runs.settings import RunSettings, format_assignments, short_name
from reproduction.values import suggestion

#: In what a row may differ from the paper.
DIFFERENCES = ("reading", "grid", "scale", "data")
#: Arguments of rules that are numerical limits.
_LIMITS = frozenset(
    {"within", "at_least", "at_most", "bounds", "below", "exponent", "factor", "margin", "noise", "tolerance"}
)


class RunLine(NamedTuple):
    """A curve of the figure: a strategy with its settings.

    Parameters
    ----------
    label : str
    strategy : str
    settings : dict of str to value
        In kebab-case.
    group : str
        Curves of one group (a strategy at many rates) share a colour and a claim.
    part : str, default ""
        The part of the figure with the curve, with its own panels; the label ends in it.
    """

    label: str
    strategy: str
    settings: dict[str, Any]
    group: str
    part: str = ""

    @property
    def curve(self) -> str:
        """The label without the part, as in the legend."""
        return self.label.removesuffix(f", {self.part}") if self.part else self.label

    @property
    def rates(self) -> str:
        """The client's and the server's learning rate."""
        if self.strategy in BASELINES or "client-lr" not in self.settings:
            return "none"
        # Some methods have only a client rate; "auto" is not a number.
        given = [self.settings[name] for name in ("client-lr", "server-lr") if name in self.settings]
        known = [value if isinstance(value, str) else f"{value:g}" for value in given]
        return f"({', '.join(known)})" if len(known) > 1 else known[0]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and the rule that decides it.

    Parameters
    ----------
    name : str
    sentence : str
        As printed.
    number : str
        The paper's number.
    rule : str
        A name in :data:`reproduction.claims.rules.RULES`.
    arguments : dict
        The rule's arguments; ``run`` and ``than`` are labels.
    note : str, default ""
        Notes on the rates or the interpretation.
    scale : str, default ""
        How the runs differ from those of the sentence; replaces the experiment's `scale`.
    differs : tuple of {"reading", "grid", "scale", "data"}, optional
        In what the runs are not the paper's: one of several readings of its words, constants off its grid, a smaller
        size, other data. Such a row does not count as the paper's. Default: the experiment's `differs`.
    limit : {"", "printed"}
        Whether the numbers among the arguments are printed in the paper; by default they are ours, and the table says
        so.
    ours : bool, default False
        Whether the sentence is ours, not the paper's.
    outside : str, default ""
        Why it cannot be tested here; the claim then has no rule.
    repeats : str, default ""
        ``"EXPERIMENT: CLAIM"`` that makes the same claim about the same runs; the first page counts it once.
    """

    name: str
    sentence: str
    number: str
    rule: str
    arguments: dict[str, Any]
    note: str = ""
    scale: str = ""
    differs: tuple[str, ...] = ()
    limit: str = ""
    ours: bool = False
    outside: str = ""
    repeats: str = ""

    @property
    def has_limit_of_ours(self) -> bool:
        """Whether the rule uses a number that the paper does not print."""
        # A factor of 1 and a margin of 0 mean only "better".
        asked = {key: value for key, value in self.arguments.items() if key in _LIMITS}
        idle = {"factor": 1.0, "margin": 0.0, "noise": 0.0}
        return self.limit != "printed" and any(value != idle.get(key) for key, value in asked.items())

    def labels(self) -> list[str]:
        """Return the labels that the rule uses."""
        found: list[str] = []
        for key in ("run", "leader", "than", "runs", "group"):
            value = self.arguments.get(key, [])
            found += [value] if isinstance(value, str) else list(value)
        return found


@dataclass(frozen=True)
class Definition:
    """An experiment.

    Parameters
    ----------
    name, title, source : str
        `source`: where the paper has it.
    problem : str
    seeds : tuple of int
    panels : tuple of str
        Metrics that the figure shows, over rounds, or over another metric: ``"energy-error against cpu-seconds"``;
        of one part alone: ``"gap, K = 1"``.
    kind : {"curves", "densities", "scatter", "images", "tuned"}
        Kind of the figure. ``"densities"`` compares the densities of the clients' models and of their mean. For
        ``"images"`` the only panel is the name of the array to draw, for the first seed. ``"tuned"`` shows every method
        at its best rates, over the varied factor.
    runs : tuple of RunLine
    claims : tuple of Claim
    scale : str, default ""
        How the runs are smaller or larger than the paper's; shown in the heading of every row.
    long : bool, default False
        Whether a run takes many minutes: then it is saved as it goes, and a repeated command goes on where it stopped.
        ``all`` leaves such experiments out, except in their quick versions.
    coloured : tuple of str
        Labels of the curves with their own colour in the figure; by default the curves with the most claims.
    gap : bool, default False
        Whether the runs also report ``gap``, the objective above the centralized optimum.
    quick : mapping
        The changes of :meth:`quick_version`.
    limits : mapping of str to (low, high)
        Limits of the figure's axes by metric.
    axes : mapping of str to str
        By part of the figure what its horizontal axes count, if it is not rounds; ``""`` for a figure without parts.
    targets : mapping of str to float
        By metric a value that the paper names or a claim asks for, shown as a dotted line.
    table : mapping
        A table of a metric's values at some rounds next to published values: ``metric``, ``rounds``, ``source`` and
        ``known``, a list of published numbers by label. Empty: no table.
    tuned : tuple of Tuned
        The points of a ``"tuned"`` figure; claims may use their labels.
    shortened : bool, default False
        Whether it is a :meth:`quick_version`.
    overrides : mapping of str to value
        The settings replaced by :meth:`with_settings` in every run.
    """

    name: str
    title: str
    source: str
    problem: str
    seeds: tuple[int, ...]
    panels: tuple[str, ...]
    kind: str
    runs: tuple[RunLine, ...]
    claims: tuple[Claim, ...]
    scale: str = ""
    long: bool = False
    coloured: tuple[str, ...] = ()
    gap: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()
    shortened: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The labels of each group of runs."""
        found: dict[str, list[str]] = {}
        for line in self.runs:
            found.setdefault(line.group, []).append(line.label)
        return found

    def quick_version(self) -> Definition:
        """Return the same experiment with fewer rounds, seeds and runs, and the claims that it can decide."""
        quick = self.quick
        wanted = [claim for claim in self.claims if claim.name in quick["claims"]]
        claims = tuple(replace(c, arguments={**c.arguments, **quick.get("arguments", {})}) for c in wanted)
        labels = {label for claim in claims for label in claim.labels()}
        tuned = tuple(point for point in self.tuned if point.label in labels)
        labels |= {label for point in tuned for label, _ in point.runs}
        runs = tuple(
            line._replace(settings={**line.settings, **quick.get("settings", {})})
            for line in self.runs
            if line.label in labels or line.group in labels
        )
        if "keep-every" in quick:
            runs = runs[:: quick["keep-every"]]
            kept = {line.label for line in runs}
            tuned = tuple(point._replace(runs=tuple(own for own in point.runs if own[0] in kept)) for point in tuned)
        problem = str(quick.get("settings", {}).get("problem", self.problem))
        own: dict[str, Any] = {"title": f"{self.title} (quick)", "problem": problem, "seeds": tuple(quick["seeds"])}
        return replace(
            self, runs=runs, claims=claims, quick={}, limits={}, table={}, tuned=tuned, shortened=True, **own
        )

    def with_settings(self, overrides: Mapping[str, Any]) -> Definition:
        """Return the same experiment and claims with some settings of every run replaced.

        Parameters
        ----------
        overrides : mapping of str to value
            Run settings in kebab-case, and ``problem``. Baselines take the problem's options. With another problem, the
            runs keep only the options that it also has.

        Returns
        -------
        Definition

        Raises
        ------
        ConfigurationError
            If a run has no such setting, a value is of the wrong type or out of range, or the experiment compares
            several values of the setting.

        Examples
        --------
        >>> load_definition("fco-fig3").with_settings({"problem": "lasso-small", "num-rounds": 50}).title
        'LASSO I, half of the truth is not zero (set: problem=lasso-small, num-rounds=50)'
        """
        if not overrides:
            return self
        if "seed" in overrides:
            raise ConfigurationError(
                f"seed={overrides['seed']!r} among the settings of an experiment, which runs {len(self.seeds)} seeds; "
                "give the first of them by --seed"
            )
        compared = {"client-lr", "server-lr", *(point.variation.key for point in self.tuned)} if self.tuned else set()
        for key in sorted(compared & overrides.keys()):
            raise ConfigurationError(
                f"{key}={overrides[key]!r}: {self.name} compares several values of {key}, which its tables name; "
                "replace other settings, or run one value with `python -m reproduction run`"
            )
        problem = str(overrides.get("problem", self.problem))
        lines = []
        for line in self.runs:
            before = str(line.settings.get("problem", self.problem))
            after = str(overrides.get("problem", before))
            gone = find_problem(before).options().keys() - find_problem(after).options().keys()
            kept = {key: value for key, value in line.settings.items() if key not in gone}
            lines.append(line._replace(settings={**kept, **overrides}))
        changed = replace(
            self,
            title=f"{self.title} (set: {', '.join(format_assignments(overrides))})",
            problem=problem,
            runs=tuple(lines),
            # The definition's limits suit only its own curves.
            limits={},
            overrides={**self.overrides, **overrides},
        )
        for line in changed.runs:
            own = changed.run_settings(line, self.seeds[0])
            # Before anything is run.
            find_problem(own.problem).checked_options(own.problem_options)
        return changed

    def folder_name(self) -> str:
        """Return a name for the experiment's folder that contains the replaced settings.

        Examples
        --------
        >>> load_definition("fco-fig13").quick_version().with_settings({"problem": "digits"}).folder_name()
        'fco-fig13-quick_problem=digits'
        """
        name = self.name + ("-quick" if self.shortened else "")
        return short_name([name, *format_assignments(self.overrides)], self.overrides)

    def run_settings(self, line: RunLine, seed: int) -> RunSettings:
        """Return the settings of a run.

        Parameters
        ----------
        line : RunLine
        seed : int

        Returns
        -------
        RunSettings
        """
        own = dict(line.settings)
        problem = str(own.pop("problem", self.problem))
        if line.strategy in BASELINES:
            # A baseline takes the problem's options and its own; rates and rounds belong to a federation.
            taken = {*find_problem(problem).options(), *option_names(line.strategy), "num-rounds"}
            own = {key: value for key, value in own.items() if key in taken}
        return RunSettings.of(problem, line.strategy, own, seed)


def _names() -> tuple[str, ...]:
    folder = resources.files("reproduction") / "definitions"
    names = [entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(names, key=lambda name: (name.partition("-")[0], len(name), name)))


#: Names of all experiments.
EXPERIMENTS: tuple[str, ...] = _names()


def select_experiments(pattern: str, *, long: bool = True) -> tuple[str, ...]:
    """Return the experiments matched by a name, a pattern or ``all``.

    Parameters
    ----------
    pattern : str
        A shell pattern: ``fco-*``, ``fco-fig1?``.
    long : bool, default True
        Whether ``all`` has the experiments that take hours too.

    Returns
    -------
    tuple of str

    Raises
    ------
    ConfigurationError
        If there is none.

    Examples
    --------
    >>> select_experiments("fco-fig1[34]")
    ('fco-fig13', 'fco-fig14')
    """
    found = tuple(name for name in EXPERIMENTS if pattern == "all" or fnmatchcase(name, pattern))
    if not found:
        raise ConfigurationError(
            f"experiment={pattern!r}; expected one of {', '.join(EXPERIMENTS)}, a pattern such as 'fco-*', or 'all'"
            f"{suggestion(pattern, EXPERIMENTS)}"
        )
    return found if long or pattern != "all" else tuple(name for name in found if not load_definition(name).long)


def load_definition(name: str) -> Definition:
    """Return an experiment.

    Parameters
    ----------
    name : str

    Returns
    -------
    Definition

    Raises
    ------
    ConfigurationError
        If there is no experiment of that name, or its file is inconsistent.

    Examples
    --------
    >>> load_definition("fco-fig3").problem
    'lasso-I'
    """
    if name not in EXPERIMENTS:
        raise ConfigurationError(f"experiment={name!r}; expected one of {', '.join(EXPERIMENTS)}")
    file = resources.files("reproduction") / "definitions" / f"{name}.toml"
    return _parse(name, tomllib.loads(file.read_text(encoding="utf-8")))


def _parse(name: str, data: Mapping[str, Any]) -> Definition:
    shared = data.get("settings", {})
    varied = (
        Variation(own["part"], own.get("key", ""), tuple(own.get("values", ("",))), own.get("set", {}))
        for own in data.get("vary", [])
    )
    points_of_panels = [(variation, value) for variation in varied for value in variation.values]
    runs: list[RunLine] = []
    tuned: list[Tuned] = []
    for own in data["runs"]:
        if "tune" not in data:
            runs += _expand(own, shared)
        for variation, value in points_of_panels:
            lines, points = _vary(own, shared, variation, value, Tune(**data["tune"]))
            runs += lines
            tuned += points
    labels = {line.label for line in runs} | {line.group for line in runs} | {point.label for point in tuned}
    claims = []
    common = data.get("differs", [])
    for own in data["claims"]:
        claim = Claim(**{"rule": "", "arguments": {}, **own, "differs": tuple(own.get("differs", common))})
        wrong = ""
        if bool(claim.outside) == bool(claim.rule):
            wrong = f"rule={claim.rule!r} and outside={claim.outside!r}; expected a rule, or the reason why it cannot "
            wrong += "be tested"
        elif claim.limit not in ("", "printed"):
            wrong = f"limit={claim.limit!r}; expected 'printed' or none"
        elif odd := [word for word in claim.differs if word not in DIFFERENCES]:
            wrong = f"differs={odd}; expected words among {', '.join(DIFFERENCES)}"
        elif (unknown := [label for label in claim.labels() if label not in labels]) or claim.rule not in ("", *RULES):
            wrong = f"rule {claim.rule!r} with runs {unknown}; expected labels among {sorted(labels)} and a rule among "
            wrong += f"{sorted(RULES)}"
        if wrong:
            raise ConfigurationError(f"{name}, claim {claim.name!r}: {wrong}")
        claims.append(claim)
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    own = {"kind": "curves", **{key: own[key] for key in own.keys() & Definition.__dataclass_fields__.keys()}}
    limits = {metric: (float(low), float(high)) for metric, (low, high) in data.get("limits", {}).items()}
    found = {"runs": tuple(runs), "claims": tuple(claims), "tuned": tuple(tuned), "limits": limits}
    return Definition(**{**own, "name": name, **found})


def _vary(
    own: Mapping[str, Any], shared: Mapping[str, Any], variation: Variation, value: Any, tune: Tune
) -> tuple[list[RunLine], list[Tuned]]:
    """Return a method's runs at a value, one for each pair of rates, and its points, one for each grid."""
    method, group = str(own["label"]), variation.name(str(own["label"]), value)
    settings = {**shared, **variation.settings, **({variation.key: value} if variation.key else {})}
    lines = _expand({**own, "label": group, "part": ""}, settings)
    rates = [(line.label, (line.settings["client-lr"], line.settings["server-lr"])) for line in lines]
    points = [
        Tuned(
            tune,
            tune.name(group, grid),
            method,
            variation,
            value if variation.key else grid,
            tuple((label, pair) for label, pair in rates if tune.has(grid, pair)),
        )
        for grid in tune.grids
    ]
    return [line._replace(part=variation.part) for line in lines], points


def _expand(own: Mapping[str, Any], shared: Mapping[str, Any]) -> list[RunLine]:
    """Return the run, or one run for each pair of rates if they are lists."""
    settings = {**shared, **own.get("set", {})}
    label, strategy, part = str(own["label"]), str(own["strategy"]), str(own.get("part", ""))
    grid = own.get("grid")
    if grid is None:
        full = f"{label}, {part}" if part else label
        return [RunLine(full, strategy, settings, full, part)]
    low, high = grid.get("product", (0.0, float("inf")))
    found = []
    for client_lr, server_lr in itertools.product(grid["client-lr"], grid["server-lr"]):
        # The product of two decimals is not exact: 0.03 * 0.1 < 0.003.
        if low * (1 - 1e-9) <= client_lr * server_lr <= high * (1 + 1e-9):
            rates = {"client-lr": client_lr, "server-lr": server_lr}
            found.append(RunLine(f"{label} ({client_lr:g}, {server_lr:g})", strategy, {**settings, **rates}, label))
    return found
