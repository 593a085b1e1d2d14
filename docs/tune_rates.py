"""Tune the rates of the experiments as the papers do, over their grids, and write the pages of docs/reproduction.

    python docs/tune_rates.py sweeps             # rates.md: goes on where stopped; without the page three hours
    python docs/tune_rates.py sweeps --only haxby    # rates.md, of one problem
    python docs/tune_rates.py sweeps --saddle bilinear-l1    # saddle-rates.md: ten minutes, all problems four hours
    python docs/tune_rates.py sweeps --dualfl    # dualfl-rates.md: without the page two hours
    python docs/tune_rates.py sweeps --tracking  # tracking-rates.md: without the page two hours and a half

The definitions of the experiments (`reproduction/definitions`) take the best pairs from there by hand.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import write_file
from reproduction.runs.settings import RunSettings
from reproduction.runs.sweep import CRITERIA, Trial, run_sweep

HERE = Path(__file__).parent / "reproduction"
FOUR = ("FedDualAvg", "FedDualAvgOSP", "FedMid", "FedMidOSP")
FIVE = (*FOUR, "FedAvgSubgradient")
#: B.2 and B.3: 49 pairs. B.5: 25 pairs; it prints 0.1 twice in the server's list, read as 0.1 and 1.
CLIENT_49, SERVER_49 = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
CLIENT_25, SERVER_25 = (0.001, 0.003, 0.01, 0.03, 0.1), (0.01, 0.03, 0.1, 0.3, 1.0)


Point = tuple[float, ...]
#: Values that a constant can be widened to, smallest first.
DECADES = tuple(round(digit * 10.0**power, 10) for power in range(-6, 5) for digit in (1, 2, 3, 6))
#: Of the first paper, whose grids have two values a decade.
HALVES = tuple(value for value in DECADES if f"{value:e}"[0] in "13")
#: Where fco-grid has found the best pairs beyond the paper's grid: the regressions' grids go on from there too. The
#: scores have a ridge of small client rates with large server rates, to which single steps do not lead.
ON_RIDGE = ((0.0003, 3.0), (0.0003, 10.0), (0.0001, 10.0))
#: No grid grows by more points than that.
MOST_NEW = 30


@dataclass(frozen=True)
class Ladder:
    """The values of a constant.

    Parameters
    ----------
    first : sequence of float
        What the grid begins with.
    rungs : sequence of float
        What it can be widened to; where they end the constant has a bound.
    """

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
    more: Sequence[Point] = (),
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
        best = min(scores, key=lambda point: scores[point])
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


@dataclass(frozen=True)
class Stage:
    """A grid that is run on a problem, and that may grow from there.

    Parameters
    ----------
    problems, strategies : sequence of str
    pairs : sequence of (float, float)
        Client rates and server rates.
    rule, words : str
        Of :data:`CRITERIA`; what to say above the table.
    settings : sequence of (str, value)
        The first is the number of rounds.
    seeds : sequence of int
    grows : bool, default True
        Whether the neighbours of a best pair are tried too.
    """

    problems: Sequence[str]
    strategies: Sequence[str]
    pairs: Sequence[tuple[float, float]]
    rule: str
    words: str
    settings: Sequence[tuple[str, Any]]
    seeds: Sequence[int] = (0,)
    grows: bool = True

    def scores(
        self, problem: str, strategy: str, known: Mapping[Point, float], folder: Path
    ) -> tuple[dict[Point, float], list[Trial]]:
        """Return the mean score at each pair, infinite where a seed diverged, and the trials that were run for it."""
        trials: list[Trial] = []

        def score(point: Point) -> float:
            if point in known:
                return known[point]
            found: list[float] = []
            for seed in self.seeds:
                rates = {"client-lr": point[0], "server-lr": point[1]}
                settings = RunSettings.of(problem, strategy, {**rates, **dict(self.settings)}, seed)
                trials.extend(run_sweep([settings], folder, CRITERIA[self.rule], engine="in-process"))
                found.append(trials[-1]["score"])
                if not math.isfinite(found[-1]):
                    break
            return statistics.mean(found)

        if not self.grows:
            return {point: score(point) for point in self.pairs}, trials
        more = [*self.pairs, *(ON_RIDGE if self.rule == "recovery-error" else ()), *known]
        return widen([Ladder((), HALVES)] * 2, score, more, products=True), trials


PAIRS_25 = tuple(itertools.product(CLIENT_25, SERVER_25))
PAIRS_49 = tuple(itertools.product(CLIENT_49, SERVER_49))
_CHECKPOINTS_50 = (("num-rounds", 1000), ("objective-every", 20), ("structure-every", 20))
STAGES = (
    Stage(
        [f"lasso-{variant}" for variant in ("I", "II", "III", "IV")],
        FIVE,
        PAIRS_49,
        "recovery-error",
        "49 pairs and beyond, 500 rounds, three seeds.",
        (("num-rounds", 500),),
        seeds=(0, 1, 2),
    ),
    Stage(
        [f"low-rank-{variant}" for variant in ("I", "II", "III", "IV")],
        FIVE,
        PAIRS_49,
        "recovery-error",
        "49 pairs and beyond, 200 rounds (the paper: 500), one seed.",
        (("num-rounds", 200), ("objective-every", 200)),
    ),
    Stage(
        ["low-rank-IV"],
        ("FedMid", "FedMidOSP", "FedAvgSubgradient"),
        ((0.001, 1.0), (0.001, 3.0), (0.0003, 3.0), (0.0003, 10.0)),
        "recovery-error",
        "The best pair changes with the number of rounds: the candidates with 500 rounds and three seeds.",
        (("num-rounds", 500), ("objective-every", 500)),
        seeds=(0, 1, 2),
        grows=False,
    ),
    Stage(
        ["mnist-l2-ball"],
        FOUR,
        PAIRS_25,
        "objective",
        "25 pairs and beyond, 100 rounds with 25 checkpoints, one seed. Of the 25 the ball acts for the last pair "
        "alone: for the others the four methods are one.",
        (("num-rounds", 100), ("objective-every", 4), ("structure-every", 4)),
    ),
    Stage(
        ["mnist-l2-ball"],
        FOUR,
        ((0.1, 1.0), (0.03, 1.0), (0.01, 1.0), (0.003, 1.0), (0.03, 0.3)),
        "objective",
        "The pairs among which the best changes with the number of rounds, and beyond, 1,000 rounds with 50 "
        "checkpoints, one seed.",
        _CHECKPOINTS_50,
    ),
    Stage(
        ["mnist-l1-ball"],
        FOUR,
        PAIRS_25,
        "objective",
        "25 pairs and beyond, 30 rounds with 10 checkpoints, one seed: no pair of the 25 reaches the ball's surface "
        "within them, so that the four methods are one there.",
        (("num-rounds", 30), ("objective-every", 3), ("structure-every", 3)),
    ),
    Stage(
        ["mnist-l1-ball"],
        FOUR,
        ((0.1, 1.0), (0.03, 1.0)),
        "objective",
        "The two best of the 25 pairs, and beyond, 1,000 rounds with 50 checkpoints, one seed.",
        _CHECKPOINTS_50,
    ),
    Stage(
        ["two-layers-mnist"],
        FOUR,
        ((0.03, 1.0), (0.1, 1.0), (0.3, 1.0)),
        "objective",
        "A network of two hidden layers: three client rates with the server rate 1, and beyond, 40 rounds with 20 "
        "checkpoints, one seed.",
        (("num-rounds", 40), ("objective-every", 2), ("structure-every", 2)),
    ),
    Stage(
        ["haxby"],
        FIVE,
        # B.4.2 keeps products from 0.003 to 0.3; FedDualAvg is still better beyond.
        tuple(pair for pair in PAIRS_49 if pair[1] >= 0.03 and 0.00299 < pair[0] * pair[1] < 3.01),
        "validation-objective",
        "The pairs with server rates from 0.03 and products from 0.003 to 3, and beyond, 300 rounds, three of the six "
        "splits.",
        (("num-rounds", 300), ("objective-every", 300), ("structure-every", 300)),
        seeds=(0, 1, 2),
    ),
)


#: Of the third paper, A.1, A.2 and A.3.
SERVER_5 = (1.0, 0.3, 0.1, 0.03, 0.01)
CLIENT_7 = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
CLIENT_9 = (10.0, 3.0, *CLIENT_7)
#: Of the bilinear games: label, strategy, settings. An average is a method of its own, with rates of its own.
GAME_METHODS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("FeDualEx", "FeDualEx", {}),
    ("FeDualEx, average", "FeDualEx", {"output": "ergodic"}),
    ("FedMiP", "FedMiP", {}),
    ("FedMiP, average", "FedMiP", {"output": "ergodic"}),
    ("FedMiP, psi once", "FedMiP", {"server-prox": False}),
    ("FedMiP, psi once, average", "FedMiP", {"server-prox": False, "output": "ergodic"}),
    ("FedDualAvg", "FedDualAvg", {}),
    ("FedDualAvg, average", "FedDualAvg", {"output": "average"}),
    ("FedMid", "FedMid", {}),
    ("FedMid, average", "FedMid", {"output": "average"}),
    ("ExtraStepLocalSGD", "ExtraStepLocalSGD", {}),
)
#: Noise of their own drives several clients apart in ten steps, which one client does not show: their grids begin with
#: more than its best pair.
_COARSE = ((0.3, 0.1, 0.03, 0.01), (1.0, 0.3))
#: The client rates of the paper's grid, the methods, and by local steps how many clients the tables after the first
#: have: a trial with matrices and all 100 costs 15 to 35 CPU seconds with K = 1, twice that with K = 10.
GAMES: Mapping[str, tuple[Sequence[float], Sequence[str], Mapping[int, Sequence[int]]]] = {
    "bilinear-l1": (CLIENT_7, [label for label, _, _ in GAME_METHODS], {1: (100,), 10: (100,)}),
    "bilinear-nuclear": (
        CLIENT_9,
        [label for label, _, _ in GAME_METHODS if label == "FeDualEx, average" or "average" not in label],
        {1: (10, 100), 10: (10, 100)},
    ),
}
#: How many points a grid grows by at most that begins where 10 clients end.
_MOST_NEAR = 12


def tune_game(
    problem: str,
    label: str,
    shared: Mapping[str, Any],
    first: Sequence[Ladder],
    more: Sequence[Point],
    most_new: int,
    sweeps: Path,
    *,
    products: bool = False,
) -> tuple[dict[Point, float], list[Trial]]:
    """Return the duality gap at each pair of rates of a method, and the trials."""
    strategy, own = next((strategy, own) for name, strategy, own in GAME_METHODS if name == label)
    # From outside the balls the methods that average primal points never enter them with server_lr < 1.
    if problem == "bilinear-nuclear" and strategy not in ("FeDualEx", "FedDualAvg"):
        own = {**own, "start": "projected"}
    trials: list[Trial] = []

    def score(point: Point) -> float:
        rates = {"client-lr": point[0], "server-lr": point[1]}
        settings = RunSettings.of(problem, strategy, {**shared, **own, **rates}, 0)
        trials.extend(run_sweep([settings], sweeps / f"{problem}-games", CRITERIA["gap"], engine="in-process"))
        return trials[-1]["score"]  # type: ignore[no-any-return]

    return widen(first, score, more, products=products, most_new=most_new), trials


def game_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the tables of a bilinear game: the paper's grid for one client, then the best pairs for several."""
    client_rates, labels, many = GAMES[problem]
    for steps, rounds in ((1, 100), (10, 20)):
        shared = {"num-rounds": rounds, "local-steps": steps, "structure-every": rounds, "objective-every": rounds}
        best: dict[str, Point] = {}
        before = 0
        for clients in (1, *many[steps]):
            heading = f"{problem}, K = {steps}, {clients} client{'s' * (clients > 1)}, {rounds} rounds"
            if part := section("saddle-rates.md", heading):
                best, before = best_pairs(part), clients
                yield f"## {heading}\n\n{part.strip()}\n"
                continue
            coarse = _COARSE if before == 1 and steps > 1 else ((), ())
            few = {"num-clients": clients, **({"noise": 0.01} if clients == 1 else {})}
            scores: dict[str, dict[Point, float]] = {}
            seconds, count = 0.0, 0
            for label in labels:
                grids = coarse if before else (client_rates, SERVER_5)
                more = [best[label]] if label in best else []
                first = [Ladder(rates) for rates in grids]
                most = _MOST_NEAR if before == 10 else MOST_NEW
                # Of 100 clients FedMid's first pair has no better neighbour on either axis alone, and is not the best.
                own = {**shared, **few}
                scores[label], trials = tune_game(problem, label, own, first, more, most, sweeps, products=before == 10)
                best[label] = min(scores[label], key=lambda pair: scores[label][pair])
                seconds += sum(trial["seconds"] for trial in trials)
                count += len(trials)
            yield f"## {heading}\n"
            words = _begins(clients, before, coarse is _COARSE)
            yield f"{words} One seed; {count} trials in {seconds / 60:.0f} minutes.\n"
            yield _table_of_pairs(scores)
            before = clients


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


#: How many of the best pairs are run with more seeds.
_AGAIN = 8
#: Of universal adversarial training: label, strategy, settings; problem: rounds, images of a client, seeds.
ATTACK_METHODS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("FeDualEx", "FeDualEx", {}),
    ("DistributedPGDA", "DistributedPGDA", {}),
    ("FeDualEx, ergodic average", "FeDualEx", {"output": "ergodic"}),
)
ATTACKS: Mapping[str, tuple[int, int, Sequence[int]]] = {
    "adversarial-mnist": (20, 600, (0, 1)),
    "adversarial-cifar10": (40, 500, (0,)),
}


def attack_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the table of universal adversarial training on a data set: the paper's grid, and beyond."""
    rounds, images, seeds = ATTACKS[problem]
    if part := section("saddle-rates.md", f"{problem}, {rounds} rounds"):
        yield f"## {problem}, {rounds} rounds\n\n{part.strip()}\n"
        return
    shared = {"num-rounds": rounds, "num-clients": 10, "num-examples": 10 * images}
    shared |= {"structure-every": rounds, "objective-every": rounds}
    trials: list[Trial] = []

    def tune(strategy: str, own: Mapping[str, Any]) -> dict[Point, float]:
        def score(point: Point, seeds: Sequence[int] = seeds) -> float:
            rates = {"client-lr": point[0], "server-lr": point[1]}
            settings = [RunSettings.of(problem, strategy, {**shared, **own, **rates}, seed) for seed in seeds]
            rule = CRITERIA["training-loss"]
            found = run_sweep(settings, sweeps / f"{problem}-attacks", rule, engine="in-process")
            trials.extend(found)
            return statistics.mean(trial["score"] for trial in found)

        found = widen([Ladder(CLIENT_9), Ladder(SERVER_5)], score)
        # Next to the largest stable rates one seed converges and another does not.
        best = sorted(found, key=lambda point: found[point])[:_AGAIN]
        return found | {point: score(point, range(5)) for point in best}

    scores = {label: tune(strategy, own) for label, strategy, own in ATTACK_METHODS}
    minutes = sum(trial["seconds"] for trial in trials) / 60
    yield f"## {problem}, {rounds} rounds\n"
    yield (
        f"K = 5, all 45 pairs of the paper, and beyond. 10 clients (the paper: 100) with {images} images; seeds: "
        f"{len(seeds)}, of the best {_AGAIN} pairs five. {len(trials)} trials in {minutes:.0f} minutes. The mean "
        "training loss after the last round.\n"
    )
    yield _table_of_pairs(scores)


#: How a part says that the best pair of each method has the mean of three seeds.
_THREE = "of the best pair three until it stays the best"
#: Of a network instead of the linear classifier: problem: rounds, settings. A trial costs a minute.
NETWORKS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "adversarial-network-cifar10": (
        40,
        {"num-clients": 20, "num-examples": 10_000, "batch-size": 16, "local-steps": 5},
    ),
}


def network_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield the table of a network's adversarial training: three client rates, and beyond."""
    rounds, own = NETWORKS[problem]
    heading = f"{problem}, {rounds} rounds"
    part = section("saddle-rates.md", heading)
    known = known_pairs(part, ()) if part else {}
    shared = {"num-rounds": rounds, "structure-every": rounds, "objective-every": rounds, **own}
    trials: list[Trial] = []

    def run(strategy: str, point: Point, seed: int) -> float:
        settings = RunSettings.of(problem, strategy, {**shared, "client-lr": point[0], "server-lr": point[1]}, seed)
        rule = CRITERIA["training-loss"]
        trials.extend(run_sweep([settings], sweeps / f"{problem}-networks", rule, engine="in-process"))
        return trials[-1]["score"]  # type: ignore[no-any-return]

    def tune(strategy: str) -> dict[Point, float]:
        scores = dict(known.get(strategy, {}))

        def score(point: Point) -> float:
            if point not in scores:
                scores[point] = run(strategy, point, 0)
            return scores[point]

        # Next to the largest stable rates one seed converges and another does not.
        again: set[Point] = set()
        while True:
            found = widen([Ladder((0.03, 0.1, 0.3), HALVES), Ladder((1.0,), HALVES)], score)
            best = min(found, key=lambda point: found[point])
            if best in again:
                return found
            again.add(best)
            if _THREE not in part:
                scores[best] = statistics.mean([scores[best], run(strategy, best, 1), run(strategy, best, 2)])

    scores = {strategy: tune(strategy) for strategy in ("FeDualEx", "DistributedPGDA")}
    yield f"## {heading}\n"
    yield (
        f"K = {own['local-steps']}, the client rates 0.03, 0.1 and 0.3 with the server rate 1, and from there on "
        f"(1, 3, 10, ...). {own['num-clients']} clients (the paper: 100) with "
        f"{own['num-examples'] // own['num-clients']} images, minibatches of {own['batch-size']}. One seed, {_THREE}. "
        f"{of_earlier_runs(sum(map(len, known.values())), trials)} The training loss after the last round.\n"
    )
    yield _table_of_pairs(scores)


def _table_of_pairs(scores: Mapping[str, Mapping[Point, float]]) -> str:
    """Return a table of pairs of rates and methods, the best pair of each in bold."""
    lines = [f"| client, server | {' | '.join(scores)} |", "|---" * (len(scores) + 1) + "|"]
    for pair in sorted({pair for own in scores.values() for pair in own}, reverse=True):
        cells = []
        for own in scores.values():
            score = own.get(pair)
            text = "" if score is None else f"{score:.4g}" if math.isfinite(score) else "diverged"
            cells.append(f"**{text}**" if score is not None and score == min(own.values()) else text)
        lines.append(f"| {pair[0]:g}, {pair[1]:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def saddle_tables(sweeps: Path, problem: str) -> Iterator[str]:
    """Yield a problem's parts of the page of the third paper's rates, running what is missing."""
    tables = game_tables if problem in GAMES else network_tables if problem in NETWORKS else attack_tables
    yield from tables(sweeps, problem)


def kept(name: str, problem: str) -> list[str]:
    """Return the parts of a page that are about a problem."""
    sections = (HERE / name).read_text(encoding="utf-8").split("\n## ")[1:]
    return [f"## {section.rstrip()}\n" for section in sections if section.startswith(f"{problem}, ")]


#: Steps of a round.
STEPS = (1, 3, 10, 30, 100)
#: Methods that minimise exactly; their local work is what it is.
EXACT = ("DualFL", "FedPD", "FedDR", "FedDyn", "APDAInexact", "FiveGCS")
#: Of the fourth paper, table 2, whose grids are powers of ten (of the relaxation: 1 and 2, which FedDR excludes). Its
#: steps are for sums of losses: for means of them they begin some powers later. By label: strategy, settings, ladders.
DUALFL_METHODS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Ladder]]] = {
    "DualFL": ("DualFL", {"nu": 0.01}, {"rho": Ladder((0.0, 0.001, 0.003), (0.0, *DECADES))}),
    "FedPD": ("FedPD", {}, {"step": Ladder((3.0, 10.0, 30.0))}),
    "FedDR": (
        "FedDR",
        {},
        {"step": Ladder((3.0, 10.0)), "relaxation": Ladder((1.5, 1.9), (1.0, 1.3, 1.5, 1.7, 1.9, 1.95, 1.99))},
    ),
    "FedDyn": ("FedDyn", {}, {"penalty": Ladder((0.03, 0.1, 0.3))}),
    "APDAInexact": ("APDAInexact", {}, {"primal-step": Ladder((3.0, 10.0)), "damping": Ladder((0.01, 1.0, 100.0))}),
    "FiveGCS": ("FiveGCS", {}, {"step": Ladder((3.0, 10.0, 30.0))}),
    "FedAvg": ("FedDualAvg", {}, {"client-lr": Ladder((0.03, 0.1, 0.3)), "local-steps": Ladder((10, 30), STEPS)}),
    "FedDualAvg": (
        "FedDualAvg",
        {"l2-as-psi": True},
        {"client-lr": Ladder((0.1, 0.3, 1.0)), "local-steps": Ladder((10, 30), STEPS)},
    ),
    "Scaffnew": (
        "Scaffnew",
        {},
        {"client-lr": Ladder((0.03, 0.1, 0.3)), "probability": Ladder((0.03, 0.1), (0.01, 0.03, 0.1, 0.3, 1.0))},
    ),
    "FedCM": ("FedCM", {}, {"client-lr": Ladder((0.03, 0.1)), "local-steps": Ladder((10, 30), STEPS)}),
    # Two gradients a step.
    "FedSAM": ("FedSAM", {}, {"client-lr": Ladder((0.03, 0.1)), "local-steps": Ladder((10, 30), STEPS[:-1])}),
}


@dataclass(frozen=True)
class Part:
    """The images on which the fourth paper's methods are tuned.

    Parameters
    ----------
    problem : str
    images, num_rounds : int
    seeds : sequence of int
    labels : sequence of str
        Of :data:`DUALFL_METHODS`.
    smaller : str, default ""
        The heading of a table with fewer images: of each method the best constants there and all their neighbours are
        tried, and so on from the best of those.
    """

    problem: str
    images: int
    num_rounds: int
    seeds: Sequence[int] = (0, 1)
    labels: Sequence[str] = tuple(DUALFL_METHODS)
    smaller: str = ""


#: Those whose steps are not a grid of the experiment itself.
_AGAIN_LARGE = ("FedDR", "FedDualAvg", "Scaffnew")
#: How many points their grids grow by at most: a trial takes one to eight minutes.
_MOST_LARGE = 8
DUALFL_PARTS: Mapping[str, Part] = {
    "logistic-mnist": Part("logistic-mnist", 2400, 20),
    "logistic-cifar10": Part("logistic-cifar10", 640, 20),
    "logistic-mnist, 60,000 images": Part("logistic-mnist", 60_000, 30, (0,), _AGAIN_LARGE, "logistic-mnist"),
    "logistic-cifar10, 10,000 images": Part("logistic-cifar10", 10_000, 15, (0,), _AGAIN_LARGE, "logistic-cifar10"),
}


def tune_dualfl(
    part: Part, label: str, best: Mapping[str, Point], sweeps: Path
) -> tuple[dict[Point, float], dict[Point, list[Trial]]]:
    """Return the mean score of each point of a method, infinite where the method does not allow it, and the trials.

    `best` has the best points of fewer images, from which the grid grows where there are some.
    """
    strategy, fixed, axes = DUALFL_METHODS[label]
    exact = {"tolerance": 1e-8} if strategy in EXACT else {}
    shared = {"num-rounds": part.num_rounds, "num-examples": part.images, **exact, **fixed}
    rule, folder = CRITERIA["energy-error"], sweeps / f"{part.problem}-dualfl"
    trials: dict[Point, list[Trial]] = {}

    def score(point: Point) -> float:
        own = {**shared, **dict(zip(axes, point, strict=True))}
        settings = [RunSettings.of(part.problem, strategy, own, seed) for seed in part.seeds]
        try:
            trials[point] = run_sweep(settings, folder, rule, engine="in-process")
        except ConfigurationError:
            trials[point] = []
            return math.inf
        return statistics.mean(trial["score"] for trial in trials[point])

    ladders = list(axes.values())
    if label in best:
        # The rung itself: a page does not say that steps are whole numbers.
        point = tuple(own.rungs[own.rungs.index(value)] for own, value in zip(ladders, best[label], strict=True))
        return widen([Ladder((), own.rungs) for own in ladders], score, [point], most_new=_MOST_LARGE), trials
    return widen(ladders, score), trials


def dualfl_tables(sweeps: Path, parts: Mapping[str, Part]) -> Iterator[str]:
    """Yield the parts of the page of the fourth paper's rates, running what is missing."""
    written: dict[str, str] = {}
    for heading, part in parts.items():
        if text := section("dualfl-rates.md", heading).strip():
            written[heading] = text
        else:
            best = best_of_methods(written[part.smaller]) if part.smaller else {}
            written[heading] = dualfl_table(part, best, sweeps)
        yield f"## {heading}\n\n{written[heading]}\n"


def dualfl_table(part: Part, best: Mapping[str, Point], sweeps: Path) -> str:
    """Return what the page has below a heading: what was run, and a row for each trial."""
    lines = ["| method | settings | energy error | passes |", "|---" * 4 + "|"]
    done: list[Trial] = []
    for label in part.labels:
        scores, trials = tune_dualfl(part, label, best, sweeps)
        winner = min(scores, key=lambda point: scores[point])
        for point in sorted(scores):
            words = ", ".join(f"{axis} {value:g}" for axis, value in zip(DUALFL_METHODS[label][2], point, strict=True))
            cells = ["diverged" if trials[point] else "not allowed", ""]
            if math.isfinite(scores[point]):
                passes = statistics.mean(trial["last"]["passes"] for trial in trials[point])
                text = f"{scores[point]:.3g}"
                cells = [f"**{text}**" if point == winner else text, f"{passes:,.0f}"]
            lines.append(f"| {label} | {words} | {' | '.join(cells)} |")
            done += trials[point]
    minutes = sum(trial["seconds"] for trial in done) / 60
    begins = f" From the best constants of fewer images on, at most {_MOST_LARGE} more." if part.smaller else ""
    words = (
        f"{part.images:,} images on 8 clients, {part.num_rounds} rounds, seeds: {len(part.seeds)}; {len(done)} trials "
        f"in {minutes:.0f} minutes.{begins} The mean relative energy error after the last round, and the passes over "
        "its data (gradients and products with the Hessian) that a client has made for it."
    )
    return "\n".join([words, "", *lines])


def best_of_methods(part: str) -> dict[str, Point]:
    """Return the best constants of each method in a table with a row for each trial."""
    rows = (line[1:-1].split(" | ") for line in part.splitlines() if line.startswith("| ") and "**" in line)
    return {label.strip(): point_of(words) for label, words, *_ in rows}


def point_of(words: str) -> Point:
    """Return the values of constants as the pages print them: `"step 10, relaxation 1.9"`."""
    return tuple(float(pair.rsplit(" ", 1)[1]) for pair in words.split(", "))


#: Of the second paper: section 7 tunes all constants for the smallest L1 error and prints neither them nor the grids.
#: What all runs of its two figures share; a chain's rates are halved on the plateau that its first node sees.
TRACKING_SHARED = {
    "num-rounds": 3000,
    "structure-every": 10,
    "objective-every": 10,
    "batch-size": 10,
    "local-steps": 10,
    "sampling": "gradients",
}
ON_CHAIN = {"mixing": "chain", "plateau": "gap", "plateau-node": 0, "server-lr": 1.0}
IN_STAGES = {"server-lr": 1.0, "restart-window": 100, "sparsity": 16, "mirror-map": "p-norm(12)"}
LIANG = {"variant": "liang", "mirror-map": "euclidean"}
#: How many of the points are tried with more seeds: one seed alone may prefer the wrong one.
_FINALISTS = 3
#: How many points a method's constants grow by at most.
_MOST_BEYOND = 12


@dataclass(frozen=True)
class Constants:
    """What a method's constants are tuned over.

    Parameters
    ----------
    label, strategy : str
    fixed : mapping
    axes : sequence of str
        The settings that vary.
    points : sequence of tuple
        Their values, tried with seed 0; the best of them with seeds 1 and 2 too, and their best median is taken.
    """

    label: str
    strategy: str
    fixed: Mapping[str, Any]
    axes: Sequence[str]
    points: Sequence[Point]

    def settings(self, problem: str, point: Point, seed: int) -> RunSettings:
        """Return the settings of a trial."""
        values = (int(value) if axis == "stage-rounds" else value for axis, value in zip(self.axes, point, strict=True))
        own = {**TRACKING_SHARED, **self.fixed, **dict(zip(self.axes, values, strict=True))}
        return RunSettings.of(problem, self.strategy, own, seed)


def tracking_grids(kind: str) -> Iterator[Constants]:
    """Yield what is tuned for ``"linear"`` or ``"logistic"``."""
    linear = kind == "linear"
    chain = {**ON_CHAIN, "mirror-map": "p-norm(12)"}
    stages = {**IN_STAGES, "radius-squared": 25000.0 if linear else 4.0, "stage-rounds": 300}
    c_axes, fast_axes = ("convexity", "smoothness", "strength"), ("convexity", "strength")
    fast: Sequence[Point]
    if linear:
        fast = ((8.0, 0.3), (4.0, 0.1), (4.0, 0.05), (8.0, 0.1), (4.0, 0.15), (2.0, 0.1))
        c = (
            (1.0, 10.0, 0.03),
            (1.0, 10.0, 0.01),
            (2.0, 10.0, 0.03),
            (4.0, 10.0, 0.03),
            (1.0, 10.0, 0.05),
            (1.0, 10.0, 0.1),
        )
        mid = ((0.001, 0.1), (0.001, 0.03), (0.001, 0.01), (0.003, 0.03), (0.003, 0.1), (0.01, 0.03))
        once, steps = ((0.03,), (0.05,), (0.1,), (0.2,)), ((0.05,), (0.1,), (0.2,))
    else:
        fast = ((1.0, 0.0005), (0.5, 0.0005), (2.0, 0.0005), (1.0, 0.0003), (1.0, 0.001))
        c = ((1.0, 3.0, 0.0005), (0.5, 3.0, 0.0005), (1.0, 3.0, 0.001), (1.0, 3.0, 0.0003))
        mid = ((0.003, 0.002), (0.003, 0.001), (0.01, 0.002), (0.001, 0.002), (0.003, 0.004))
        once, steps = ((0.05,), (0.1,), (0.2,), (0.5,), (1.0,)), ((0.1,), (0.2,), (0.5,))
    yield Constants("Fast-FedDA", "FastFedDA", LIANG, fast_axes, fast)
    yield Constants("C-FedDA", "CFedDA", LIANG, c_axes, c)
    yield Constants("DFedMid", "DFedMid", {**ON_CHAIN, "mirror-map": "euclidean"}, ("client-lr", "strength"), mid)
    yield Constants("DFedDA", "DFedDA", chain, ("client-lr",), once)
    yield Constants("DFedDA-GT", "DFedDAGT", chain, ("client-lr",), once)
    yield Constants("MReFedDA-GT", "MultistepReFedDAGT", stages, ("client-lr",), steps)
    # A sixteenth of the exchanges: cheap enough for whole grids.
    wide = {"stretch": 16}
    weights, smooth = ((1.0, 2.0, 4.0), (1.0, 3.0, 10.0)) if linear else ((0.5, 1.0, 2.0), (1.0, 3.0))
    strengths = (0.01, 0.03, 0.1) if linear else (0.0005, 0.001, 0.002)
    largest = (0.2, 0.4, 0.7) if linear else (1.0, 2.0, 4.0)
    yield Constants(
        "Fast-FedDA, M x batch and rounds",
        "FastFedDA",
        {**LIANG, **wide},
        fast_axes,
        tuple(itertools.product((1.0, 2.0, 4.0) if linear else (0.5, 1.0, 2.0), strengths)),
    )
    yield Constants(
        "C-FedDA, M x batch and rounds",
        "CFedDA",
        {**LIANG, **wide},
        c_axes,
        tuple(itertools.product(weights, smooth, strengths)),
    )
    yield Constants(
        "MReFedDA-GT, M x batch and rounds",
        "MultistepReFedDAGT",
        {**stages, **wide, "restart-window": 10},
        ("client-lr", "stage-rounds"),
        tuple(itertools.product(largest, (480, 750, 1500))),
    )
    # The other reading: as many exchanges, with 160 examples a step.
    batch = {"batch-size": 160}
    if linear:
        fast = ((4.0, 0.03), (4.0, 0.05), (4.0, 0.015), (4.0, 0.007), (2.0, 0.015), (4.0, 0.0035), (2.0, 0.007))
        c, steps = ((1.0, 10.0, 0.01), (1.0, 10.0, 0.03), (1.0, 10.0, 0.005)), ((0.1,), (0.2,), (0.4,))
    else:
        fast = ((0.5, 0.0002), (1.0, 0.0005), (0.5, 0.0001), (0.25, 0.0002))
        c, steps = ((0.5, 3.0, 0.0002), (1.0, 3.0, 0.0005), (0.5, 3.0, 0.0001)), ((0.5,), (1.0,), (2.0,))
    yield Constants("Fast-FedDA, M x batch", "FastFedDA", {**LIANG, **batch}, fast_axes, fast)
    yield Constants("C-FedDA, M x batch", "CFedDA", {**LIANG, **batch}, c_axes, c)
    yield Constants("MReFedDA-GT, M x batch", "MultistepReFedDAGT", {**stages, **batch}, ("client-lr",), steps)


def tune_constants(
    own: Constants, problem: str, known: Mapping[Point, Sequence[float]], sweeps: Path
) -> tuple[dict[Point, list[float]], list[Trial]]:
    """Return the L1 errors of each point, one a seed, and the trials; of the best points there are three seeds.

    The points grow by the values beyond the ones that were tried on an axis at whose end the best one is.
    """
    trials: list[Trial] = []
    scores = {point: list(found) for point, found in known.items()}

    def run(point: Point, *seeds: int) -> None:
        wanted = [own.settings(problem, point, seed) for seed in seeds]
        trials.extend(run_sweep(wanted, sweeps / f"{problem}-tracking", CRITERIA["l1-error"], engine="in-process"))
        scores.setdefault(point, []).extend(trial["score"] for trial in trials[-len(seeds) :])

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
            return scores, trials


def beyond(axes: Sequence[str], points: Sequence[Point], best: Point) -> list[Point]:
    """Return the points next to the best one on the axes at whose end it is.

    No stage is longer than the run, and no smaller smoothness is tried than the convexity.
    """
    bounds = {"smoothness": (dict(zip(axes, best, strict=True)).get("convexity", 0.0), math.inf)}
    bounds["stage-rounds"] = 0.0, float(TRACKING_SHARED["num-rounds"])
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
    return min((point for point in scores if len(scores[point]) == 3), key=lambda p: statistics.median(scores[p]))


def known_constants(part: str) -> dict[str, dict[Point, list[float]]]:
    """Return the L1 errors of a stored table by method and point."""
    known: dict[str, dict[Point, list[float]]] = {}
    for label, words, *cells, _ in rows_of(part)[1:]:
        errors = [math.inf if cell == "diverged" else float(cell) for cell in cells if cell]
        known.setdefault(label, {})[point_of(words)] = errors
    return known


def tracking_tables(sweeps: Path) -> Iterator[str]:
    """Yield the parts of the page of the second paper's constants, running what is missing."""
    for kind, figure in (("linear", "gt-fig1"), ("logistic", "gt-fig2")):
        problem = f"sparse-{kind}-graph"
        heading = f"{problem}, {figure}"
        known = known_constants(section("tracking-rates.md", heading))
        lines = ["| method | constants | seed 0 | seed 1 | seed 2 | median |", "|---" * 6 + "|"]
        trials: list[Trial] = []
        for own in tracking_grids(kind):
            scores, new = tune_constants(own, problem, known.get(own.label, {}), sweeps)
            trials += new
            best = best_constants(scores)
            for point, found in scores.items():
                words = ", ".join(f"{axis} {value:g}" for axis, value in zip(own.axes, point, strict=True))
                cells = [f"{score:.3g}" if math.isfinite(score) else "diverged" for score in found]
                middle = f"{statistics.median(found):.3g}" if len(found) == 3 else ""
                cells += [""] * (3 - len(cells)) + [f"**{middle}**" if point == best else middle]
                lines.append(f"| {own.label} | {words} | {' | '.join(cells)} |")
        before = sum(len(found) for points in known.values() for found in points.values())
        yield f"## {heading}\n"
        yield f"{of_earlier_runs(before, trials)} The L1 error after round 3,000.\n"
        yield "\n".join(lines) + "\n"


def tables(sweeps: Path, stages: Sequence[Stage], problems: Sequence[str]) -> Iterator[str]:
    """Yield the parts of the page: of the given problems what is missing is run, of the others the rows are kept."""
    for stage in stages:
        num_rounds = stage.settings[0][1]
        for problem in stage.problems:
            heading = f"{problem}, {num_rounds:,} rounds"
            kept_part = section("rates.md", heading)
            if kept_part and problem not in problems:
                yield f"## {heading}\n\n{kept_part.strip()}\n"
                continue
            known = known_pairs(kept_part, stage.pairs)
            found = {
                strategy: stage.scores(problem, strategy, known.get(strategy, {}), sweeps / f"{problem}-{num_rounds}")
                for strategy in stage.strategies
            }
            trials = [trial for _, own in found.values() for trial in own]
            yield f"## {heading}\n"
            yield f"{stage.words} {of_earlier_runs(sum(map(len, known.values())), trials)}\n"
            yield table({strategy: scores for strategy, (scores, _) in found.items()}, stage.pairs) + "\n"


def of_earlier_runs(known: int, trials: Sequence[Trial]) -> str:
    """Say how many scores are of earlier runs, and what this one's trials took."""
    minutes = sum(trial["seconds"] for trial in trials) / 60
    before = f"{known} scores are of earlier runs" if known else ""
    new = f"{len(trials)} trials in {minutes:.0f} minutes" if trials or not known else ""
    return f"{'; '.join(filter(None, (before, new)))}."


def section(name: str, heading: str) -> str:
    """Return what a page has below a heading, or nothing."""
    page = HERE / name
    parts = page.read_text(encoding="utf-8").split("\n## ")[1:] if page.is_file() else []
    return next((part.partition("\n")[2] for part in parts if part.partition("\n")[0] == heading), "")


def rows_of(part: str) -> list[list[str]]:
    """Return the cells of a part's table, without the marks of the best, the head first."""
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("*") for cell in line[1:-1].split(" | ")] for line in lines]


def best_pairs(part: str) -> dict[str, Point]:
    """Return the best pair of each method in a part's table."""
    lines = [line[1:-1].split(" | ") for line in part.splitlines() if line.startswith("| ")]
    (_, *methods), *rows = lines
    return {
        method.strip(): tuple(map(float, pair.split(", ")))
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
                known[method][client, server] = math.inf if cell == "diverged" else float(cell)
    return known


def table(scores: Mapping[str, Mapping[Point, float]], pairs: Sequence[Point]) -> str:
    """Return the scores as Markdown: the best of all pairs in bold, the best of the stage's own in italics."""
    lines = [f"| client, server | {' | '.join(scores)} |", "|---" * (len(scores) + 1) + "|"]
    lost = 0
    for pair in sorted({pair for own in scores.values() for pair in own}):
        cells = []
        for own in scores.values():
            score = own.get(pair, math.nan)
            text = f"{score:.4g}" if math.isfinite(score) else "diverged" if pair in own else ""
            best = pair == min(own, key=lambda p: own[p])
            stages_best = pair == min(pairs, key=lambda p: own[p])
            cells.append(f"**{text}**" if best else f"*{text}*" if stages_best else text)
        if set(cells) == {"diverged"}:
            lost += 1
        else:
            lines.append(f"| {pair[0]:g}, {pair[1]:g} | " + " | ".join(cells) + " |")
    if lost:
        lines.append(f"\nAll methods diverge at the other {lost} pairs, in at least one seed.")
    return "\n".join(lines)


def write_page(name: str, title: str, arguments: str, words: str, parts: Iterator[str]) -> None:
    """Write a page: its heading, the command that wrote it, what the numbers are, and the tables."""
    written = f"Written by `python docs/tune_rates.py sweeps{arguments}`; nothing here is typed by hand. {words}\n"
    write_file(HERE / name, "\n".join([f"# {title}\n", written, *parts]))


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
        write_page(
            "tracking-rates.md",
            "The constants of the gradient-tracking experiments, tuned over grids",
            " --tracking",
            "Section 7 tunes 'by selecting the values that yield the minimum L1 error' and prints neither grids nor "
            "constants. All methods were tuned in the same way: every point with seed 0, the best three of them with "
            "two more seeds, and the best median of those (bold) is what the definitions take. Where that is the "
            "smallest or the largest value that was tried of a constant, the next one beyond it is tried in the same "
            f"way (1, 2, 3, 6, 10, ...; about {_MOST_BEYOND} points at most; no stage is longer than the run, no "
            "smaller smoothness is tried than the convexity). Of MReFedDA-GT the radius is stated, not tuned; "
            "DReFedDA-GT takes the rates of DFedDA-GT. On the chain both rates are halved where the gap of node 0 has"
            " not reached a new best in 30 looks. D.1.2's 'increase the batch size and communication rounds for "
            "evaluation by a factor of M' is read in two ways: 'M x batch and rounds' has 160 examples a step and an "
            "exchange that counts as 16 rounds, 'M x batch' has 160 examples a step and as many exchanges. Rows that "
            "the page has are not run again.",
            tracking_tables(options.sweeps),
        )
    elif options.dualfl:
        write_page(
            "dualfl-rates.md",
            "The rates of the DualFL experiments, tuned over grids",
            " --dualfl",
            "The paper has one value a method in its table 2 and says that a grid search found it, not by what. Here "
            "the best setting of each method is bold: the smallest energy error after the last round, whatever a round "
            "costs. Every method's grid grows by the same rule: its first points are tried, then the neighbours of "
            "the best one on each axis (1, 2, 3, 6, 10, ...), until the best has some on both sides, with at most "
            f"{MOST_NEW} points more than the first ones. Bounds: rho is at least 0; the relaxation is below 2; steps "
            "of gradient methods are at most 100 a round (a probability of 0.01), as much work as the exact "
            "minimisations are; what a method refuses is 'not allowed'. A table that the page has is not run again: "
            "to do so, remove it. FedAvg is FedDualAvg with the l2 term in the losses; FedDualAvg has it as psi. With "
            "exact minimisations FedPD(step) is FedDR(step, relaxation 1) and FedDyn(1/step), iterate by iterate. "
            "DualFL has nu = mu = 0.01. FedCM keeps its momentum of 0.9, FedSAM its radius of 0.05. The exact methods "
            "minimise to a gradient of norm 1e-8, for DualFL a certified gap of 5e-15.",
            dualfl_tables(options.sweeps, DUALFL_PARTS),
        )
    elif options.saddle:
        parts = {name: saddle_tables(options.sweeps, name) for name in options.saddle}
        write_page(
            "saddle-rates.md",
            "The rates of the saddle-point experiments, tuned over grids",
            " --saddle PROBLEM",
            "A table that the page has is not run again: to do so, remove it. A trial is what `python -m "
            "reproduction sweep bilinear-l1 --strategy FeDualEx --set client-lr=1,0.3,... --set "
            "server-lr=1,0.3,... --rule gap` runs. A "
            "score is the duality gap of the last round, or the training loss under the attack: the paper does not "
            "say what its rates are best for. The best pair of each method is bold. All grids grow by one rule: the "
            "neighbours of the best pair are tried (1, 2, 3, 6, 10, ...) until it has some on all sides, at most "
            f"{MOST_NEW} pairs more where nothing else is said. The minutes are of one core of a machine in use.",
            itertools.chain.from_iterable(parts.get(name) or kept("saddle-rates.md", name) for name in problems),
        )
    else:
        write_page(
            "rates.md",
            "The rates of the experiments, tuned over the paper's grids",
            "",
            "A score is the mean recovery error over the last 100 rounds (B.2, B.3), the objective on the held-out "
            "sessions at the end (B.4), or the mean training objective over the last 10 checkpoints (B.5); a mean "
            "over the seeds. The best pair of each method is bold; where the paper's grid (or the pairs that are "
            "named) does not have it, the best one of those is in italics. Grids grow by one rule: the neighbours of "
            "the best pair are tried (1, 3, 10, ..., of each rate and of both with the same product) until it has some "
            f"on all sides, at most {MOST_NEW} pairs; those of the regressions go on also from the pairs that fco-grid "
            "has found best. Rows that the page has are not run again (without the page all are). The minutes are of "
            "one core of a machine in use.",
            tables(options.sweeps, STAGES, options.only),
        )


if __name__ == "__main__":
    main()
