"""Tune the rates of the experiments as the papers do, over their grids, and write the pages of docs/reproduction.

    python docs/tune_rates.py sweeps             # rates.md: goes on where stopped; without the page three hours
    python docs/tune_rates.py sweeps --only haxby    # rates.md, of one problem
    python docs/tune_rates.py sweeps --saddle bilinear-l1    # saddle-rates.md: ten minutes, all problems four hours
    python docs/tune_rates.py sweeps --dualfl    # dualfl-rates.md: without the page two hours
    python docs/tune_rates.py sweeps --tracking  # tracking-rates.md: without the page two hours and a half

tune_rates.toml has the methods, their grids and the words of the pages. The definitions of the experiments
(`reproduction/definitions`) take the best pairs from there by hand.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import write_file
from reproduction.runs.settings import RunSettings
from reproduction.runs.sweep import CRITERIA, Trial, run_sweep

HERE = Path(__file__).parent / "reproduction"
PLAN: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GAMES, ATTACKS, NETWORKS = (PLAN[kind]["problems"] for kind in ("games", "attacks", "networks"))
DUALFL_METHODS: Mapping[str, Mapping[str, Any]] = PLAN["dualfl"]["methods"]

Point = tuple[float, ...]
#: Values that a constant can be widened to, smallest first.
DECADES = tuple(round(digit * 10.0**power, 10) for power in range(-6, 5) for digit in (1, 2, 3, 6))
#: Of the first paper, whose grids have two values a decade.
HALVES = tuple(value for value in DECADES if f"{value:e}"[0] in "13")
#: Where fco-grid has found the best pairs beyond the paper's grid: the regressions' grids go on from there too. The
#: scores have a ridge of small client rates with large server rates, to which single steps do not lead.
ON_RIDGE = ((0.0003, 3.0), (0.0003, 10.0), (0.0001, 10.0))
#: No grid grows by more points than that; nor one that begins where 10 clients end, nor one of the fourth paper's large
#: problems, whose trials take one to eight minutes, nor a method's constants of the second paper.
MOST_NEW, _MOST_NEAR, _MOST_LARGE, _MOST_BEYOND = 30, 12, 8, 12
#: Noise of their own drives several clients apart in ten steps, which one client does not show: their grids begin with
#: more than its best pair.
_COARSE = ((0.3, 0.1, 0.03, 0.01), (1.0, 0.3))
#: How many of the best pairs of an attack are run with more seeds, and how many points of the second paper: one seed
#: alone may prefer the wrong one.
_AGAIN, _FINALISTS = 8, 3
#: How a part says that the best pair of each method has the mean of three seeds.
_THREE = "of the best pair three until it stays the best"
_RATES = ("client-lr", "server-lr")


class Ladder(NamedTuple):
    """The values of a constant: what the grid begins with, and what it can be widened to, which ends at a bound."""

    first: Sequence[float]
    rungs: Sequence[float] = DECADES

    def neighbours(self, value: float) -> list[float]:
        """Return the rungs next to one."""
        found = (self.beside(value, step) for step in (-1, 1))
        return [rung for rung in found if rung is not None]

    def beside(self, value: float, step: int) -> float | None:
        """Return the rung that many rungs above one; None beyond the ends."""
        place = self.rungs.index(value) + step
        return self.rungs[place] if 0 <= place < len(self.rungs) else None


def widen(
    ladders: Sequence[Ladder],
    score: Callable[[Point], float],
    more: Iterable[Point] = (),
    *,
    products: bool = False,
    most_new: int = MOST_NEW,
) -> dict[Point, float]:
    """Return the scores of a grid that has grown until its best point has neighbours on both sides of every axis.

    The grid's points (and `more`) are tried, then, while one is missing, the neighbours of the best point so far; with
    `products` also the two points of two axes at which their product is the same.
    """
    first = dict.fromkeys([*itertools.product(*(ladder.first for ladder in ladders)), *more])
    scores = {point: score(point) for point in first}
    most = len(scores) + most_new
    while len(scores) < most:
        best = best_of(scores)
        sides = [ladder.neighbours(value) for ladder, value in zip(ladders, best, strict=True)]
        around = [(*best[:axis], value, *best[axis + 1 :]) for axis, values in enumerate(sides) for value in values]
        if products:
            turns = [(ladders[0].beside(best[0], step), ladders[1].beside(best[1], -step)) for step in (-1, 1)]
            around += [(a, b) for a, b in turns if a is not None and b is not None]
        new = [point for point in around if point not in scores][: most - len(scores)]
        if not new:
            break
        scores |= {point: score(point) for point in new}
    return scores


def best_of(scores: Mapping[Point, float]) -> Point:
    """Return the point with the smallest score."""
    return min(scores, key=lambda point: scores[point])


@dataclass
class Trials:
    """The trials that are run for a table, on a problem, in a folder, with a rule of :data:`CRITERIA`."""

    problem: str
    folder: Path
    rule: str
    done: list[Trial] = field(default_factory=list)

    def run(self, strategy: str, own: Mapping[str, Any], *seeds: int) -> list[Trial]:
        """Run trials with some seeds."""
        settings = [RunSettings.of(self.problem, strategy, own, seed) for seed in seeds]
        found = run_sweep(settings, self.folder, CRITERIA[self.rule], engine="in-process")
        self.done += found
        return found

    def mean(self, strategy: str, own: Mapping[str, Any], point: Point, seeds: Iterable[int] = (0,)) -> float:
        """Return the mean score at a client rate and a server rate; no seed is run after one that diverged."""
        found: list[float] = []
        for seed in seeds:
            found.append(self.run(strategy, {**own, **dict(zip(_RATES, point, strict=True))}, seed)[0]["score"])
            if not math.isfinite(found[-1]):
                break
        return statistics.mean(found)

    def took(self) -> str:
        """Return how many trials there were, and how long they took."""
        return f"{len(self.done)} trials in {sum(trial['seconds'] for trial in self.done) / 60:.0f} minutes"

    def after(self, known: int) -> str:
        """Say how many scores are of earlier runs, and what these trials took."""
        before = f"{known} scores are of earlier runs" if known else ""
        return f"{'; '.join(filter(None, (before, self.took() if self.done or not known else '')))}."


class Stage(NamedTuple):
    """A grid of pairs that is run on problems of the first paper, and that may grow from there."""

    problems: Sequence[str]
    strategies: Sequence[str]
    pairs: Sequence[Point]
    rule: str
    words: str
    settings: Mapping[str, Any]
    seeds: Sequence[int] = (0,)
    grows: bool = True

    @classmethod
    def of(
        cls,
        *,
        client: Sequence[float] = (),
        server: Sequence[float] = (),
        product: Sequence[float] = (0.0, math.inf),
        pairs: Iterable[Sequence[float]] = (),
        **own: Any,
    ) -> Stage:
        """Return a stage of the plan."""
        low, high = product
        grid = tuple(pair for pair in itertools.product(client, server) if low < pair[0] * pair[1] < high)
        return cls(pairs=(*grid, *map(tuple, pairs)), **own)

    def scores(self, trials: Trials, strategy: str, known: Mapping[Point, float]) -> dict[Point, float]:
        """Return the mean score at each pair, infinite where a seed diverged."""

        def score(point: Point) -> float:
            return known[point] if point in known else trials.mean(strategy, self.settings, point, self.seeds)

        if not self.grows:
            return {point: score(point) for point in self.pairs}
        more = [*self.pairs, *(ON_RIDGE if self.rule == "recovery-error" else ()), *known]
        return widen([Ladder((), HALVES)] * 2, score, more, products=True)


STAGES = tuple(Stage.of(**own) for own in PLAN["rates"])


def tables(sweeps: Path, stages: Sequence[Stage], problems: Sequence[str]) -> Iterator[str]:
    """Yield the parts of the page: of the given problems what is missing is run, of the others the rows are kept."""
    for stage in stages:
        num_rounds = stage.settings["num-rounds"]
        for problem in stage.problems:
            heading = f"{problem}, {num_rounds:,} rounds"
            kept_part = section("rates.md", heading)
            if kept_part and problem not in problems:
                yield f"## {heading}\n\n{kept_part.strip()}\n"
                continue
            known = known_pairs(kept_part, stage.pairs)
            trials = Trials(problem, sweeps / f"{problem}-{num_rounds}", stage.rule)
            found = {name: stage.scores(trials, name, known.get(name, {})) for name in stage.strategies}
            words = f"{stage.words} {trials.after(sum(map(len, known.values())))}"
            yield f"## {heading}\n\n{words}\n\n{pair_table(found, stage.pairs)}\n"


def game_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the tables of a bilinear game: the paper's grid for one client, then the best pairs for several."""
    plan, methods = GAMES[problem], PLAN["games"]["methods"]
    for steps, rounds in ((1, 100), (10, 20)):
        shared = {"num-rounds": rounds, "local-steps": steps, "structure-every": rounds, "objective-every": rounds}
        best: dict[str, Point] = {}
        before = 0
        for clients in (1, *plan["clients"]):
            heading = f"{problem}, K = {steps}, {clients} client{'s' * (clients > 1)}, {rounds} rounds"
            part = section("saddle-rates.md", heading)
            if not part:
                coarse = _COARSE if before == 1 and steps > 1 else ((), ())
                grids = coarse if before else (plan["client"], PLAN["games"]["server"])
                few = {"num-clients": clients, **({"noise": 0.01} if clients == 1 else {})}
                trials = Trials(problem, sweeps / f"{problem}-games", "gap")
                # Of 100 clients FedMid's first pair has no better neighbour on either axis alone, and is not the best.
                how: Any = {"products": True, "most_new": _MOST_NEAR} if before == 10 else {}
                scores = {}
                for label in plan.get("methods", methods):
                    strategy, own = methods[label]["strategy"], {**shared, **few, **methods[label].get("set", {})}
                    if strategy in plan.get("projected", ()):
                        own["start"] = "projected"
                    more = [best[label]] if label in best else []
                    score = partial(trials.mean, strategy, own)
                    scores[label] = widen([Ladder(rates) for rates in grids], score, more, **how)
                words = f"{_begins(clients, before, coarse is _COARSE)} One seed; {trials.took()}."
                part = f"{words}\n\n{pair_table(scores)}"
            best, before = best_pairs(part), clients
            yield f"## {heading}\n\n{part.strip()}\n"


def _begins(clients: int, before: int, coarse: bool) -> str:
    """Return where the grids of a table begin; `before` is how many clients the table before has."""
    if not before:
        return "One client with a tenth of the noise, whose mean is that of 100: the paper's whole grid, and beyond."
    if before == 10:
        return (
            f"{clients} clients with the paper's noise: the best pair of 10 clients, and from there on (also the "
            f"neighbours of both rates with about the same product), at most {_MOST_NEAR} pairs more."
        )
    few = "one client" if before == 1 else f"{before} clients"
    more = " and the client rates 0.3 to 0.01 with the server rates 1 and 0.3" if coarse else ""
    return f"{clients} clients with the paper's noise: the best pair of {few}{more}, and from there on."


def attack_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the table of universal adversarial training on a data set: the paper's grid, and beyond."""
    rounds, images, seeds = (ATTACKS[problem][key] for key in ("rounds", "images", "seeds"))
    part = section("saddle-rates.md", f"{problem}, {rounds} rounds")
    if not part:
        shared = {"num-rounds": rounds, "num-clients": 10, "num-examples": 10 * images}
        shared |= {"structure-every": rounds, "objective-every": rounds}
        trials = Trials(problem, sweeps / f"{problem}-attacks", "training-loss")

        def tune(strategy: str, own: Mapping[str, Any]) -> dict[Point, float]:
            grid = [Ladder(PLAN["attacks"][rates]) for rates in ("client", "server")]
            found = widen(grid, lambda point: trials.mean(strategy, own, point, seeds))
            # Next to the largest stable rates one seed converges and another does not.
            best = sorted(found, key=lambda point: found[point])[:_AGAIN]
            return found | {point: trials.mean(strategy, own, point, range(5)) for point in best}

        methods = PLAN["attacks"]["methods"].items()
        scores = {label: tune(own["strategy"], {**shared, **own.get("set", {})}) for label, own in methods}
        part = (
            f"K = 5, all 45 pairs of the paper, and beyond. 10 clients (the paper: 100) with {images} images; seeds: "
            f"{len(seeds)}, of the best {_AGAIN} pairs five. {trials.took()}. The mean training loss after the last "
            f"round.\n\n{pair_table(scores)}"
        )
    yield f"## {problem}, {rounds} rounds\n\n{part.strip()}\n"


def network_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the table of a network's adversarial training: three client rates, and beyond."""
    rounds, own = NETWORKS[problem]["rounds"], NETWORKS[problem]["set"]
    heading = f"{problem}, {rounds} rounds"
    part = section("saddle-rates.md", heading)
    known = known_pairs(part, ())
    shared = {"num-rounds": rounds, "structure-every": rounds, "objective-every": rounds, **own}
    trials = Trials(problem, sweeps / f"{problem}-networks", "training-loss")

    def tune(strategy: str) -> dict[Point, float]:
        scores = dict(known.get(strategy, {}))

        def score(point: Point) -> float:
            if point not in scores:
                scores[point] = trials.mean(strategy, shared, point)
            return scores[point]

        # Next to the largest stable rates one seed converges and another does not.
        again: set[Point] = set()
        while True:
            found = widen([Ladder((0.03, 0.1, 0.3), HALVES), Ladder((1.0,), HALVES)], score)
            best = best_of(found)
            if best in again:
                return found
            again.add(best)
            if _THREE not in part:
                others = (trials.mean(strategy, shared, best, (seed,)) for seed in (1, 2))
                scores[best] = statistics.mean([scores[best], *others])

    scores = {strategy: tune(strategy) for strategy in ("FeDualEx", "DistributedPGDA")}
    words = (
        f"K = {own['local-steps']}, the client rates 0.03, 0.1 and 0.3 with the server rate 1, and from there on "
        f"(1, 3, 10, ...). {own['num-clients']} clients (the paper: 100) with "
        f"{own['num-examples'] // own['num-clients']} images, minibatches of {own['batch-size']}. One seed, {_THREE}. "
        f"{trials.after(sum(map(len, known.values())))} The training loss after the last round."
    )
    yield f"## {heading}\n\n{words}\n\n{pair_table(scores)}\n"


def saddle_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield a problem's parts of the page of the third paper's rates, running what is missing."""
    make = game_tables if problem in GAMES else network_tables if problem in NETWORKS else attack_tables
    yield from make(sweeps, problem)


@dataclass(frozen=True)
class Part:
    """The images on which the fourth paper's methods are tuned; `smaller` is the heading of a table with fewer."""

    problem: str
    images: int
    num_rounds: int
    seeds: Sequence[int] = (0, 1)
    labels: Sequence[str] = tuple(DUALFL_METHODS)
    smaller: str = ""


DUALFL_PARTS = {heading: Part(**own) for heading, own in PLAN["dualfl"]["parts"].items()}


def dualfl_tables(sweeps: Path, parts: Mapping[str, Part]) -> Iterator[str]:
    """Yield the parts of the page of the fourth paper's rates, running what is missing."""
    written: dict[str, str] = {}
    for heading, part in parts.items():
        if not (text := section("dualfl-rates.md", heading).strip()):
            text = dualfl_table(part, best_of_methods(written[part.smaller]) if part.smaller else {}, sweeps)
        written[heading] = text
        yield f"## {heading}\n\n{text}\n"


def dualfl_table(part: Part, best: Mapping[str, Point], sweeps: Path) -> str:
    """Return what the page has below a heading: what was run, and a row for each trial.

    `best` has the best points of fewer images, from which the grid of a method grows where there are some.
    """
    lines = ["| method | settings | energy error | passes |", "|---" * 4 + "|"]
    trials = Trials(part.problem, sweeps / f"{part.problem}-dualfl", "energy-error")
    for label in part.labels:
        scores, passes = tune_dualfl(part, label, best, trials)
        winner = best_of(scores)
        for point in sorted(scores):
            cells = ["diverged" if point in passes else "not allowed", ""]
            if math.isfinite(scores[point]):
                text = f"{scores[point]:.3g}"
                cells = [f"**{text}**" if point == winner else text, f"{passes[point]:,.0f}"]
            lines.append(f"| {label} | {in_words(DUALFL_METHODS[label]['axes'], point)} | {' | '.join(cells)} |")
    begins = f" From the best constants of fewer images on, at most {_MOST_LARGE} more." if part.smaller else ""
    words = (
        f"{part.images:,} images on 8 clients, {part.num_rounds} rounds, seeds: {len(part.seeds)}; {trials.took()}."
        f"{begins} The mean relative energy error after the last round, and the passes over its data (gradients and "
        "products with the Hessian) that a client has made for it."
    )
    return "\n".join([words, "", *lines])


def tune_dualfl(
    part: Part, label: str, best: Mapping[str, Point], trials: Trials
) -> tuple[dict[Point, float], dict[Point, float]]:
    """Return the mean score of each point of a method, infinite where it is not allowed, and the mean passes."""
    plan, passes = DUALFL_METHODS[label], {}
    shared = {"num-rounds": part.num_rounds, "num-examples": part.images, **plan.get("set", {})}
    shared |= {"tolerance": 1e-8} if plan.get("exact") else {}

    def score(point: Point) -> float:
        own = {**shared, **dict(zip(plan["axes"], point, strict=True))}
        try:
            found = trials.run(plan.get("strategy", label), own, *part.seeds)
        except ConfigurationError:
            return math.inf
        passes[point] = statistics.mean(trial["last"].get("passes", 0.0) for trial in found)
        return float(statistics.mean(trial["score"] for trial in found))

    ladders = [Ladder(first, _rungs(*rungs)) for first, *rungs in plan["axes"].values()]
    if label not in best:
        return widen(ladders, score), passes
    # The rung itself: a page does not say that steps are whole numbers.
    start = tuple(own.rungs[own.rungs.index(value)] for own, value in zip(ladders, best[label], strict=True))
    return widen([Ladder((), own.rungs) for own in ladders], score, [start], most_new=_MOST_LARGE), passes


def _rungs(given: Sequence[float] | str = DECADES) -> Sequence[float]:
    return (0.0, *DECADES) if isinstance(given, str) else given


class Constants(NamedTuple):
    """What a method's constants are tuned over: the settings that vary, and their values."""

    label: str
    strategy: str
    fixed: Mapping[str, Any]
    axes: Sequence[str]
    points: Sequence[Point]


def tracking_grids(kind: str) -> Iterator[Constants]:
    """Yield what is tuned for ``"linear"`` or ``"logistic"``."""
    plan = PLAN["tracking"]
    for own in plan["methods"]:
        fixed = {**plan["set"], **plan["like"][own["like"]], **own.get("set", {})}
        if own["like"] == "stages":
            fixed["radius-squared"] = plan["figures"][kind]["radius-squared"]
        points = itertools.product(*own[kind]) if own.get("grid") else map(tuple, own[kind])
        yield Constants(own["label"], own["strategy"], fixed, own["axes"], tuple(points))


def tune_constants(own: Constants, known: Mapping[Point, Sequence[float]], trials: Trials) -> dict[Point, list[float]]:
    """Return the L1 errors of each point, one a seed; of the best points there are three seeds.

    The points grow by the values beyond the ones that were tried on an axis at whose end the best one is.
    """
    scores = {point: list(found) for point, found in known.items()}

    def run(point: Point, *seeds: int) -> None:
        values = [int(value) if axis == "stage-rounds" else value for axis, value in zip(own.axes, point, strict=True)]
        found = trials.run(own.strategy, {**own.fixed, **dict(zip(own.axes, values, strict=True))}, *seeds)
        scores.setdefault(point, []).extend(trial["score"] for trial in found)

    new = [point for point in own.points if point not in scores]
    most = len(own.points) + _MOST_BEYOND
    while True:
        for point in new:
            run(point, 0)
        for point in sorted(scores, key=lambda point: scores[point][0])[:_FINALISTS]:
            if len(scores[point]) == 1:
                run(point, 1, 2)
        new = [point for point in beyond(own.axes, list(scores), best_constants(scores)) if point not in scores]
        if not new or len(scores) >= most:
            return scores


def beyond(axes: Sequence[str], points: Sequence[Point], best: Point) -> list[Point]:
    """Return the points next to the best one on the axes at whose end it is.

    No stage is longer than the run, and no smaller smoothness is tried than the convexity.
    """
    bounds = {"smoothness": (dict(zip(axes, best, strict=True)).get("convexity", 0.0), math.inf)}
    bounds["stage-rounds"] = 0.0, float(PLAN["tracking"]["set"]["num-rounds"])
    found = []
    for i, axis in enumerate(axes):
        values = {point[i] for point in points}
        below = [rung for rung in DECADES if rung < min(values)][-1:] if best[i] == min(values) else []
        above = [rung for rung in DECADES if rung > max(values)][:1] if best[i] == max(values) else []
        low, high = bounds.get(axis, (0.0, math.inf))
        found += [(*best[:i], rung, *best[i + 1 :]) for rung in below + above if low <= rung <= high]
    return found


def best_constants(scores: Mapping[Point, Sequence[float]]) -> Point:
    """Return the point with the best median, of those with three seeds."""
    return best_of({point: statistics.median(found) for point, found in scores.items() if len(found) == 3})


def tracking_tables(sweeps: Path) -> Iterator[str]:
    """Yield the parts of the page of the second paper's constants, running what is missing."""
    for kind, plan in PLAN["tracking"]["figures"].items():
        problem = f"sparse-{kind}-graph"
        heading = f"{problem}, {plan['figure']}"
        known = known_constants(section("tracking-rates.md", heading))
        lines = ["| method | constants | seed 0 | seed 1 | seed 2 | median |", "|---" * 6 + "|"]
        trials = Trials(problem, sweeps / f"{problem}-tracking", "l1-error")
        for own in tracking_grids(kind):
            scores = tune_constants(own, known.get(own.label, {}), trials)
            best = best_constants(scores)
            for point, found in scores.items():
                cells = [f"{score:.3g}" if math.isfinite(score) else "diverged" for score in found]
                middle = f"{statistics.median(found):.3g}" if len(found) == 3 else ""
                cells += [""] * (3 - len(cells)) + [f"**{middle}**" if point == best else middle]
                lines.append(f"| {own.label} | {in_words(own.axes, point)} | {' | '.join(cells)} |")
        before = sum(len(found) for points in known.values() for found in points.values())
        words = f"{trials.after(before)} The L1 error after round 3,000."
        yield "\n".join([f"## {heading}\n", f"{words}\n", *lines, ""])


def section(name: str, heading: str) -> str:
    """Return what a page has below a heading, or nothing."""
    return dict(part.partition("\n")[::2] for part in parts_of(name)).get(heading, "")


def parts_of(name: str) -> list[str]:
    """Return the parts of a page, each with its heading."""
    return (HERE / name).read_text(encoding="utf-8").split("\n## ")[1:] if (HERE / name).is_file() else []


def kept(name: str, problem: str) -> list[str]:
    """Return the parts of a page that are about a problem."""
    return [f"## {part.rstrip()}\n" for part in parts_of(name) if part.startswith(f"{problem}, ")]


def rows_of(part: str) -> list[list[str]]:
    """Return the cells of a part's table, the head first; the best have their marks."""
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in part.splitlines() if line.startswith("| ")]


def best_pairs(part: str) -> dict[str, Point]:
    """Return the best pair of each method in a part's table."""
    (_, *methods), *rows = rows_of(part)
    return {
        method: tuple(map(float, pair.split(", ")))
        for pair, *cells in rows
        for method, cell in zip(methods, cells, strict=True)
        if "**" in cell
    }


def known_pairs(part: str, pairs: Sequence[Point]) -> dict[str, dict[Point, float]]:
    """Return the scores of a stored table by method; the pairs without a row diverged for all."""
    if not part:
        return {}
    (_, *methods), *rows = rows_of(part)
    known = {method: dict.fromkeys(pairs, math.inf) if "All methods diverge" in part else {} for method in methods}
    for pair, *cells in rows:
        client, server = map(float, pair.split(", "))
        for method, cell in zip(methods, cells, strict=True):
            if cell:
                known[method][client, server] = _number(cell)
    return known


def best_of_methods(part: str) -> dict[str, Point]:
    """Return the best constants of each method in a table with a row for each trial."""
    return {label: point_of(words) for label, words, *cells in rows_of(part) if "**" in cells[0]}


def known_constants(part: str) -> dict[str, dict[Point, list[float]]]:
    """Return the L1 errors of a stored table by method and point."""
    known: dict[str, dict[Point, list[float]]] = {}
    for label, words, *cells, _ in rows_of(part)[1:]:
        known.setdefault(label, {})[point_of(words)] = [_number(cell) for cell in cells if cell]
    return known


def _number(cell: str) -> float:
    return math.inf if cell == "diverged" else float(cell.strip("*"))


def in_words(axes: Iterable[str], point: Point) -> str:
    """Return the values of constants as the pages print them: `"step 10, relaxation 1.9"`."""
    return ", ".join(f"{axis} {value:g}" for axis, value in zip(axes, point, strict=True))


def point_of(words: str) -> Point:
    """Return the values that :func:`in_words` has printed."""
    return tuple(float(pair.rsplit(" ", 1)[1]) for pair in words.split(", "))


def pair_table(scores: Mapping[str, Mapping[Point, float]], pairs: Sequence[Point] = ()) -> str:
    """Return scores as Markdown, the best pair of each method in bold.

    Given the pairs of a stage, the best of those is in italics, and where all methods diverge there is no row.
    """
    lines = [f"| client, server | {' | '.join(scores)} |", "|---" * (len(scores) + 1) + "|"]
    lost = 0
    for pair in sorted({pair for own in scores.values() for pair in own}, reverse=not pairs):
        cells = []
        for own in scores.values():
            score = own.get(pair, math.nan)
            text = f"{score:.4g}" if math.isfinite(score) else "diverged" if pair in own else ""
            stages_best = pairs and pair == min(pairs, key=lambda p: own[p])
            cells.append(f"**{text}**" if pair == best_of(own) else f"*{text}*" if stages_best else text)
        if pairs and set(cells) == {"diverged"}:
            lost += 1
        else:
            lines.append(f"| {pair[0]:g}, {pair[1]:g} | " + " | ".join(cells) + " |")
    if lost:
        lines.append(f"\nAll methods diverge at the other {lost} pairs, in at least one seed.")
    return "\n".join(lines)


def write_page(name: str, parts: Iterable[str]) -> None:
    """Write a page: its heading, the command that wrote it, what the numbers are, and the tables."""
    title, arguments, words = (PLAN["pages"][name][key] for key in ("title", "arguments", "words"))
    written = f"Written by `python docs/tune_rates.py sweeps{arguments}`; nothing here is typed by hand. "
    written += words.format(most=MOST_NEW, beyond=_MOST_BEYOND) + "\n"
    write_file(HERE / f"{name}.md", "\n".join([f"# {title}\n", written, *parts]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", type=Path, help="a folder for the trials")
    problems = [*GAMES, *ATTACKS, *NETWORKS]
    parser.add_argument("--saddle", nargs="+", choices=problems, help="problems of the third paper, not the first's")
    parser.add_argument("--dualfl", action="store_true", help="the fourth paper's methods")
    parser.add_argument("--tracking", action="store_true", help="the second paper's methods")
    first = list(dict.fromkeys(problem for stage in STAGES for problem in stage.problems))
    parser.add_argument("--only", nargs="+", choices=first, default=first, help="problems of the first paper")
    options = parser.parse_args()
    if options.tracking:
        write_page("tracking-rates", tracking_tables(options.sweeps))
    elif options.dualfl:
        write_page("dualfl-rates", dualfl_tables(options.sweeps, DUALFL_PARTS))
    elif options.saddle:
        parts = {name: saddle_tables(options.sweeps, name) for name in options.saddle}
        found = (parts.get(name) or kept("saddle-rates.md", name) for name in problems)
        write_page("saddle-rates", itertools.chain.from_iterable(found))
    else:
        write_page("rates", tables(options.sweeps, STAGES, options.only))


if __name__ == "__main__":
    main()
