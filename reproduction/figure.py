"""A figure of a paper: the runs that it shows and the claims that are made about them.

A function with the decorator :func:`figure` describes each one; ``claims.csv`` has the words of the claims.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from flwr_fco.errors import ConfigurationError
from reproduction.problems.baselines import BASELINES
from reproduction.problems.named import find_problem
from reproduction.rules import RULES, SUBJECTS, Outcome, Outcomes
from reproduction.settings import RunSettings, option_names

HERE = Path(__file__).parent
#: The describing functions by the names of the figures.
DESCRIBED: dict[str, Callable[[], Figure]] = {}


class Run(NamedTuple):
    """A curve: a strategy or baseline with its settings; curves of one group share a claim and a part its panels."""

    label: str
    strategy: str
    settings: Mapping[str, Any]
    group: str
    part: str = ""

    @property
    def curve(self) -> str:
        """The label without the part, as in a legend."""
        return self.label.removesuffix(f", {self.part}") if self.part else self.label


class Check(NamedTuple):
    """What decides a claim: a rule of :data:`reproduction.rules.RULES` and its arguments."""

    rule: str
    arguments: Mapping[str, Any]

    def labels(self) -> list[str]:
        """Return the labels that the rule uses."""
        return [label for key in SUBJECTS for label in self.arguments.get(key, ())]


class Tune(NamedTuple):
    """How a method's best rates are chosen: a metric, and the candidates of each grid (none: all rates)."""

    metric: str
    window: int = 1
    largest: bool = False
    grids: Mapping[str, Sequence[Any]] = {"": ()}
    against: str = ""


class Best(NamedTuple):
    """A method at its best rates, a point of a figure: `runs` has the labels and rates of the candidates."""

    label: str
    method: str
    part: str
    value: Any
    runs: Sequence[tuple[str, tuple[float, float]]]

    def of(self, outcomes: Outcomes, tune: Tune) -> list[tuple[Outcome, tuple[float, float] | None]]:
        """Return the best outcome of every seed, with its rates; without rates if all runs of the seed diverged.

        Every seed has its own rates, so that one run that nearly diverges does not decide for all seeds.
        """
        found: list[tuple[Outcome, tuple[float, float] | None]] = []
        sign = -1.0 if tune.largest else 1.0
        for seed in range(len(outcomes[self.runs[0][0]])):
            values = [outcomes[label][seed].final(tune.metric, tune.window) for label, _ in self.runs]
            scores = [math.inf if math.isnan(value) else sign * value for value in values]
            best = scores.index(min(scores))
            label, rates = self.runs[best]
            found.append((outcomes[label][seed], None if math.isnan(values[best]) else rates))
        return found


@dataclass
class Figure:
    """The runs of a figure, what it shows of them, and the checks of its claims.

    Parameters
    ----------
    problem : str
    panels : sequence of str
        Metrics over rounds, or over a cost: ``"energy-error against passes"``; of one part alone: ``"gap, K = 1"``.
    seeds : int or sequence of int, default 3
    kind : {"curves", "densities", "scatter", "images", "tuned"}
        ``"densities"`` compares the clients' models and their mean; ``"images"`` draws the array that the only panel
        names; ``"tuned"`` shows every method at its best rates.
    gap : bool, default False
        Whether the runs also report the objective above the centralized optimum.
    hours : bool, default False
        Whether the runs take hours: ``all`` leaves such figures out.
    limits, targets : mapping of str
        By metric: limits of the axis; a level to mark.
    axes : mapping of str to str
        By part: what its horizontal axis counts, if not rounds.
    table : mapping
        A table of a metric at some rounds: ``metric``, ``rounds``; with ``known``, published numbers by label.
    """

    problem: str
    panels: Sequence[str]
    seeds: Any = 3
    kind: str = "curves"
    gap: bool = False
    hours: bool = False
    limits: Mapping[str, Sequence[float]] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    table: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    about: str = ""
    checks: dict[str, Check] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    bests: list[Best] = field(default_factory=list)
    tune: Tune | None = None
    shortened: bool = False

    def __post_init__(self) -> None:
        self.seeds = tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)
        self._part = ""
        self._of_part = dict[str, Any]()
        self._varied: list[tuple[str, str, Sequence[Any], Mapping[str, Any]]] = []
        #: Leaves only what :meth:`quick` says.
        self.shorten: Callable[[], None] = lambda: None

    def settings(self, **settings: Any) -> None:
        """Set what all runs share; ``every=10``: rounds between two evaluations of any metric."""
        self.shared = _evaluated(settings)

    def part(self, name: str, **settings: Any) -> None:
        """Begin a part of the figure, with panels of its own and what its runs share."""
        self._part = name
        self._of_part = settings

    def run(self, label: str, strategy: str = "", **settings: Any) -> None:
        """Add a curve, or several with semicolons between; without a strategy it is the one that the label names."""
        for own_label in label.split("; "):
            full = f"{own_label}, {self._part}" if self._part else own_label
            own = {**self.shared, **_evaluated(self._of_part), **_evaluated(settings)}
            self.runs.append(Run(full, strategy or own_label, own, full, self._part))

    def pairs(self, labels: str, **settings: Any) -> None:
        """Add strategies at the rates that their labels have: ``"FedMid (0.001, 0.1); FedDualAvg (0.001, 1)"``."""
        for label in labels.split("; "):
            strategy, client_lr, server_lr = re.split(r"[ (),]+", label.rstrip(")"))
            self.run(label, strategy, client_lr=float(client_lr), server_lr=float(server_lr), **settings)

    def grid(
        self,
        strategy: str,
        client_lr: Sequence[float],
        server_lr: Sequence[float],
        product: Sequence[float],
        group: str = "",
        **settings: Any,
    ) -> list[Run]:
        """Add a strategy at every pair of rates whose product is in a range."""
        group, (low, high) = group or strategy, product
        new = []
        for client, server in itertools.product(client_lr, server_lr):
            # The product of two decimals is not exact: 0.03 * 0.1 < 0.003.
            if low * (1 - 1e-9) <= client * server <= high * (1 + 1e-9):
                own = {**self.shared, **settings, "client_lr": float(client), "server_lr": float(server)}
                new.append(Run(f"{group} ({client:g}, {server:g})", strategy, own, group))
        self.runs += new
        return new

    def vary(self, part: str, key: str = "", values: Sequence[Any] = ("",), **settings: Any) -> None:
        """Add a panel of a ``"tuned"`` figure: a setting with its values; without one its grids are across."""
        self._varied.append((part, key, values, settings))

    def best(self, methods: str, **grid: Any) -> None:
        """Show a method at its best rates of a grid, in every panel; ``**grid`` as of :meth:`grid`."""
        assert self.tune is not None
        for method, (part, key, values, settings) in itertools.product(methods.split("; "), self._varied):
            for value in values:
                group = f"{method}, {part}" if value == "" else f"{method}, {part} {value}"
                new = self.grid(method, **grid, group=group, **settings, **({key: value} if key else {}))
                rates = [(one.label, (one.settings["client_lr"], one.settings["server_lr"])) for one in new]
                self.runs[-len(new) :] = [one._replace(part=part) for one in new]
                for name, own in self.tune.grids.items():
                    kept = [(label, pair) for label, pair in rates if not own or pair[0] in own or pair in own]
                    label = f"{group}, {name}" if name else group
                    self.bests.append(Best(label, method, part, value if key else name, kept))

    def quick(self, claim: str, keep_every: int = 1, but: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Say what a quick version runs: what a claim needs, two seeds, other settings, other arguments of the rule."""

        def shorten() -> None:
            self.checks = {claim: Check(self.checks[claim].rule, {**self.checks[claim].arguments, **(but or {})})}
            labels = set(self.checks[claim].labels())
            self.bests = [point for point in self.bests if point.label in labels]
            labels |= {label for point in self.bests for label, _ in point.runs}
            kept = [one for one in self.runs if one.label in labels or one.group in labels][::keep_every]
            self.runs = [one._replace(settings={**one.settings, **_evaluated(settings)}) for one in kept]
            known = {one.label for one in kept}
            self.bests = [p._replace(runs=[pair for pair in p.runs if pair[0] in known]) for p in self.bests]
            self.seeds = (0, 1)
            self.limits = {}
            self.table = {}
            self.shortened = True

        self.shorten = shorten

    def replace(self, overrides: Mapping[str, Any]) -> Figure:
        """Replace settings of every run, or its problem, whose own options alone the runs keep; return the figure."""
        problem = overrides.get("problem")
        gone: set[str] = set()
        if problem is not None:
            gone = {key.replace("-", "_") for key in find_problem(self.problem).options}
            gone -= {key.replace("-", "_") for key in find_problem(problem).options}
        own = {key.replace("-", "_"): value for key, value in overrides.items()}
        for number, one in enumerate(self.runs):
            kept = {key: value for key, value in one.settings.items() if key not in gone}
            self.runs[number] = one._replace(settings={**kept, **own})
        if overrides:
            self.title += f" (set: {', '.join(f'{key}={value}' for key, value in overrides.items())})"
            self.limits = {}
        return self

    @property
    def groups(self) -> dict[str, list[str]]:
        """The labels of each group of runs."""
        found: dict[str, list[str]] = {}
        for one in self.runs:
            found.setdefault(one.group, []).append(one.label)
        return found

    def run_settings(self, one: Run, seed: int) -> RunSettings:
        """Return the settings of a run with a seed."""
        own = dict(one.settings)
        problem = str(own.pop("problem", self.problem))
        if one.strategy in BASELINES:
            # A baseline takes the problem's options and its own; rates and rounds belong to a federation.
            taken = {key.replace("-", "_") for key in find_problem(problem).options}
            taken |= {*option_names(one.strategy), "num_rounds"}
            own = {key: value for key, value in own.items() if key in taken}
        return RunSettings.of(problem, one.strategy, own, seed)


def figure(problem: str, panels: str, **own: Any) -> Callable[[Callable[[Figure], None]], Callable[[Figure], None]]:
    """Return a decorator that makes a figure of a function, whose docstring begins with its title and its source."""

    def register(function: Callable[[Figure], None]) -> Callable[[Figure], None]:
        name = function.__name__.replace("_", "-")
        title, about, *_ = [" ".join(text.split()) for text in (function.__doc__ or "").split("\n\n")]

        def describe() -> Figure:
            found = Figure(problem, panels.split("; "), name=name, title=title.rstrip("."), about=about, **own)
            function(found)
            return found

        DESCRIBED[name] = describe
        return function

    return register


def _evaluated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `every` as the intervals of cheap and of other metrics."""
    own = dict(settings)
    every = own.pop("every", None)
    return own if every is None else {"structure_every": every, "objective_every": every, **own}


@cache
def claims() -> pd.DataFrame:
    """Return the table of all claims, a row each, in the order of the figures.

    `rule` is a name in :data:`reproduction.rules.RULES`; `run`, `than` and `arguments` are what it is given, with
    semicolons between several, and `at` the part with which all labels end. `sentence` and `number` are the paper's,
    `note` and `scale` say how the runs are to be read, `differs` in what they are not the paper's: reading, grid, scale
    or data. `limit` is "printed" if the numbers among the arguments are the paper's, `ours` marks a sentence of ours,
    `outside` says why a claim cannot be tested here, and `repeats` names the ``"FIGURE: CLAIM"`` that says the same
    about the same runs.
    """
    return pd.read_csv(HERE / "claims.csv", keep_default_na=False)


def check_of(row: Any) -> Check:
    """Return what decides the claim of a row of :func:`claims`."""

    def labels(cell: str) -> list[str]:
        return [f"{label}, {row.at}" if row.at else label for label in cell.split("; ")] if cell else []

    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return text

    given = dict(pair.split("=", 1) for pair in row.arguments.split("; ") if pair)
    found = {"run": labels(row.run), "than": labels(row.than), **{key: value(text) for key, text in given.items()}}
    return Check(row.rule, {key: own for key, own in found.items() if own != []})


def find_figure(name: str, *, quick: bool = False) -> Figure:
    """Return a figure, or its quick version, by its name."""
    import reproduction.figures  # noqa: F401

    if name not in DESCRIBED:
        raise ConfigurationError(f"figure={name!r}; expected one of {', '.join(DESCRIBED)}")
    found = DESCRIBED[name]()
    labels = {label for one in found.runs for label in (one.label, one.group)} | {own.label for own in found.bests}
    rows = claims()[claims().figure == name]
    found.checks = {row.claim: check_of(row) for row in rows.itertuples() if not row.outside}
    for claim, check in found.checks.items():
        if check.rule not in RULES or not {*check.labels()} <= labels:
            raise ConfigurationError(f"{name}, {claim!r}: no rule {check.rule!r}, or runs of {check.labels()}")
    if quick:
        found.shorten()
    return found
