"""The rules that decide claims: functions of the histories, so that falsified data flip a verdict.

A rule is a statistic and a comparison. The statistic is a number for each seed, computed from one run, or from one run
and others of the same seed, which have the same data and the same samples of clients. The comparison decides from these
numbers whether the claim holds: all between two bounds, all above one, not all below one. :data:`RULES` maps the names
of ``claims.csv`` to these pairs; a claim's arguments are passed to both by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.errors import ConfigurationError

#: The arguments of a claim that name runs, in the order in which a statistic gets them.
SUBJECTS = ("run", "than")
#: Replaces a divisor of 0.
_TINY = 1e-300


class Outcome(NamedTuple):
    """The reported metrics of one run with one seed.

    Parameters
    ----------
    history : list of dict of str to float
        A line for each evaluated round, with ``round``.
    diverged : int, default 0
        The round in which it was cut; 0 if it was not.
    """

    history: list[dict[str, float]]
    diverged: int = 0

    def series(self, metric: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the rounds and the values of a metric."""
        pairs = [(line["round"], line[metric]) for line in self.history if metric in line]
        if not pairs and not self.diverged:
            known = sorted({key for line in self.history for key in line})
            raise ConfigurationError(f"the runs do not report {metric!r}, but {', '.join(known)}")
        return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])

    def final(self, metric: str, window: int = 1) -> float:
        """Return the mean over the last evaluations; NaN for a run that diverged."""
        return math.nan if self.diverged else float(self.series(metric)[1][-window:].mean())

    def decay(self, metric: str, first: float, last: float) -> float:
        """Return log(value at `last` / value at `first`), at the evaluations nearest to them; NaN if it diverged."""
        if self.diverged:
            return math.nan
        rounds, series = self.series(metric)
        a, b = (max(float(series[int(np.abs(rounds - when).argmin())]), _TINY) for when in (first, last))
        return math.log(b / a)


#: By label, then by seed.
Outcomes = Mapping[str, Sequence[Outcome]]


class Measurement(NamedTuple):
    """The result of a rule.

    Parameters
    ----------
    values : list of float
        One per seed.
    holds : bool
    meaning : str
        What the values mean.
    even : float, optional
        For a comparison: the value at which both sides are equal.
    noise : float, default 0.0
        Values closer to `even` than this also count as equal.
    """

    values: list[float]
    holds: bool
    meaning: str
    even: float = math.nan
    noise: float = 0.0

    @property
    def tie(self) -> bool:
        """Whether neither side of a comparison wins on every seed: the seeds are on both sides of equality, or on it.

        Examples
        --------
        >>> Measurement([0.1, -0.2], False, "advantage", even=0.0).tie
        True
        >>> Measurement([-0.1, -0.2], False, "advantage", even=0.0).tie
        False
        >>> Measurement([-0.1, -0.2], False, "advantage", even=0.0, noise=0.1).tie
        True
        """
        return bool(np.min(self.values) <= self.even + self.noise and np.max(self.values) >= self.even - self.noise)


# --- statistics: of the runs of one seed, the one that the claim is about first; NaN where one of them diverged ------


def _final(runs: Sequence[Outcome], metric: str, window: int = 1) -> float:
    """Return the mean of a metric over the last evaluations."""
    return runs[0].final(metric, window)


def _smallest_final(runs: Sequence[Outcome], metric: str) -> float:
    return float(np.min([own.final(metric) for own in runs]))


def _advantage(runs: Sequence[Outcome], metric: str, largest: bool = False, window: int = 1) -> float:
    """Return how much better a run ends than the best of the others."""
    sign = 1.0 if largest else -1.0
    mine, *others = (sign * own.final(metric, window) for own in runs)
    return mine - float(np.max(others))


def _less_behind(runs: Sequence[Outcome], metric: str, largest: bool = False, window: int = 1) -> float:
    """Return how much less a run is behind its leader than another run: run, leader, other, the other's leader.

    A run that overtakes its leader is 0 behind it.
    """
    ahead, ahead_there = (_advantage(pair, metric, largest, window) for pair in (runs[:2], runs[2:]))
    # Not the built-in minimum, which mishandles NaN.
    return float(np.minimum(ahead, 0.0) - np.minimum(ahead_there, 0.0))


def _distance(runs: Sequence[Outcome], metric: str, window: int = 1) -> float:
    """Return the largest distance of a run's final value from those of the others."""
    mine, *others = (own.final(metric, window) for own in runs)
    return float(np.max([abs(mine - other) for other in others]))


def _times_smaller(runs: Sequence[Outcome], metric: str, window: int = 1) -> float:
    """Return the factor between a run's final value and the nearest of the others."""
    mine, *others = (own.final(metric, window) for own in runs)
    return float(np.min(others)) / float(np.maximum(mine, _TINY))


def _ratio(runs: Sequence[Outcome], metric: str, to: str, window: int = 1) -> float:
    """Return a run's metric divided by another of its metrics."""
    return runs[0].final(metric, window) / max(runs[0].final(to, window), _TINY)


def _ratio_of_finals(runs: Sequence[Outcome], metric: str, window: int = 1) -> float:
    """Return a run's metric divided by the same metric of another run."""
    return runs[0].final(metric, window) / max(runs[1].final(metric, window), _TINY)


def _divergence(runs: Sequence[Outcome]) -> float:
    """Return the round of divergence; infinite if there is none."""
    return float(runs[0].diverged or math.inf)


def _settled(runs: Sequence[Outcome], metric: str, at_least: float = -math.inf, at_most: float = math.inf) -> float:
    """Return the first round from which a run's metric stays between the bounds; infinite if there is none."""
    if runs[0].diverged:
        return math.nan
    rounds, values = runs[0].series(metric)
    inside = (values >= at_least) & (values <= at_most)
    return _first(rounds, np.logical_and.accumulate(inside[::-1])[::-1])


def _first(rounds: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]) -> float:
    return float(rounds[chosen.argmax()]) if chosen.any() else math.inf


def _times_faster(
    runs: Sequence[Outcome], metric: str, at_least: float = -math.inf, at_most: float = math.inf
) -> float:
    """Return the rounds of the fastest other run divided by those of the run; NaN if the run does not get there."""
    mine, *others = (_settled([own], metric, at_least, at_most) for own in runs)
    return math.nan if math.isinf(mine) else float(np.min(others)) / max(mine, 1.0)


def _times_cheaper(runs: Sequence[Outcome], metric: str, at_most: float, cost: str) -> float:
    """Return the cost of the cheapest other run divided by that of the run; NaN if the run does not get there.

    The cost until the level is reached is a metric that grows with the rounds: gradient evaluations, CPU seconds.
    """

    def paid(own: Outcome) -> float:
        settled = _settled([own], metric, at_most=at_most)
        if not math.isfinite(settled):
            return settled
        rounds, costs = own.series(cost)
        later = costs[rounds >= settled]
        return float(later[0]) if later.size else math.inf

    mine, *others = map(paid, runs)
    return math.nan if math.isinf(mine) else float(np.min(others)) / max(mine, _TINY)


def _ratio_of_rounds(runs: Sequence[Outcome], metric: str, below: float, than_below: float | None = None) -> float:
    """Return the rounds until a run reaches a level, divided by those of another run, which may have its own level.

    Infinite if the run does not reach it, NaN if the other run does not.
    """

    def until(own: Outcome, level: float) -> float:
        rounds, values = own.series(metric)
        return math.nan if own.diverged else _first(rounds, values <= level)

    mine = until(runs[0], below)
    theirs = until(runs[1], below if than_below is None else than_below)
    # The start counts as a round: there is a ratio to a run that begins below the bound.
    return math.nan if math.isinf(theirs) else float(np.maximum(mine, 1.0) / np.maximum(theirs, 1.0))


def _share_of_lowest(runs: Sequence[Outcome], metric: str, first: float, floor: float = 0.0) -> float:
    """Return the share of the rounds from `first` on in which no curve is below the run's.

    Values below the floor count as the floor, because they are only rounding errors.
    """
    rounds, mine = runs[0].series(metric)
    lowest = np.full(mine.size, math.inf)
    for own in runs[1:]:
        other_rounds, other = own.series(metric)
        reached = np.full(mine.size, math.inf)
        reached[np.isin(rounds, other_rounds)] = other[np.isin(other_rounds, rounds)]
        lowest = np.minimum(lowest, np.maximum(reached, floor))
    counts = rounds >= first
    share = float(np.mean(np.maximum(mine, floor)[counts] <= lowest[counts]))
    return math.nan if any(own.diverged for own in runs) else share


def _exponent_of_decay(runs: Sequence[Outcome], metric: str, first: float, last: float) -> float:
    """Return the exponent with which a metric falls between two rounds, such as -1 for 1/R."""
    return runs[0].decay(metric, first, last) / math.log(last / first)


def _linear_rate(runs: Sequence[Outcome], metric: str, first: float, last: float) -> float:
    """Return the mean factor of a metric per round; given another run, how many times as fast it falls."""
    slope, *other = (own.decay(metric, first, last) / (last - first) for own in runs)
    if not other:
        return math.exp(slope)
    # A run that does not fall at all cannot measure how fast another one is.
    return slope / other[0] if other[0] < 0.0 else math.nan


def _shares_of_bound(
    runs: Sequence[Outcome], metric: str, of: str, factor: float, exponent: float = -1.0, plus: float = 0.0
) -> np.ndarray[Any, Any]:
    """Return a metric as a share of a theorem's bound, in every round from 1 on."""
    rounds, series = runs[0].series(metric)
    _, bound = bound_series(runs[0], metric, of, factor, exponent, plus)
    return np.full(1, math.nan) if runs[0].diverged else np.asarray(series[rounds >= 1.0] / bound)


def bound_series(
    own: Outcome, metric: str, of: str, factor: float, exponent: float = -1.0, plus: float = 0.0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rounds of a metric from 1 on and factor * (the metric `of` at first) * round^exponent + plus.

    `of` names the theorem's constant, and `plus` is a term that does not fall, such as a noise term.
    """
    rounds = own.series(metric)[0]
    later = rounds[rounds >= 1.0]
    return later, factor * own.series(of)[1][0] * later**exponent + plus


# --- comparisons: of the values of all seeds; a NaN is on no side of anything ----------------------------------------

Values = Sequence[float]
Comparison = Callable[[Values, Mapping[str, Any]], bool]


def _between(low: float | str = -math.inf, high: float | str = math.inf, **defaults: float) -> Comparison:
    """All values are between two bounds: numbers, or the names of arguments, which may have defaults."""

    def holds(values: Values, arguments: Mapping[str, Any]) -> bool:
        given = {**defaults, **arguments}
        least, most = (given[bound] if isinstance(bound, str) else bound for bound in (low, high))
        return all(least <= value <= most for value in values)

    return holds


def _above(values: Values, arguments: Mapping[str, Any]) -> bool:
    """All values are above the margin and above the noise."""
    least = max(arguments.get("margin", 0.0), arguments.get("noise", 0.0))
    return all(value > least for value in values)


def _not_all_below(values: Values, arguments: Mapping[str, Any]) -> bool:
    """At least one value, for some seed, is at least 0."""
    return bool(np.max(values) >= 0.0)


_RANGE = _between("at_least", "at_most", at_least=-math.inf, at_most=math.inf)
_RANGE_FROM_0 = _between("at_least", "at_most", at_least=0.0, at_most=math.inf)
_BY_FACTOR = _between("factor", factor=1.0)
_NEVER = _between(math.inf)


@dataclass(frozen=True)
class Rule:
    """A statistic and a comparison.

    Parameters
    ----------
    statistic : callable
        ``(runs of one seed, **arguments) -> float``, or an array, whose largest number counts.
    holds : callable
        ``(values of all seeds, arguments) -> bool``.
    meaning : str or callable
        What the values mean, with the names of arguments in braces; or a function of the arguments.
    even : float, optional
        As in :class:`Measurement`.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> RULES["reaches"]({"a": [own]}, run=["a"], metric="f1", at_least=0.9, within=5).values
    [1.0]
    >>> RULES["final-better"]({"a": [own], "b": [own]}, run=["a"], than=["b"], metric="f1").tie
    True
    """

    statistic: Callable[..., Any]
    holds: Comparison
    meaning: str | Callable[[Mapping[str, Any]], str]
    even: float = math.nan

    def __call__(self, outcomes: Outcomes, *, mean: bool = False, **arguments: Any) -> Measurement:
        """Return the result of the rule.

        Parameters
        ----------
        outcomes : mapping of str to sequence of Outcome
            By label, then by seed.
        mean : bool, default False
            Whether to compute the statistic from the mean over the seeds, for theorems about an expectation.
        **arguments
            The claim's arguments: labels of runs, a metric, bounds.
        """
        labels = [label for key in SUBJECTS for label in arguments.get(key, ())]
        own = self.measured(arguments)
        found = [self.statistic(runs, **own) for runs in zip(*(outcomes[label] for label in labels), strict=True)]
        if mean:
            found = [np.mean(np.broadcast_arrays(*found), axis=0)]
        return self.decide([float(np.max(one)) for one in found], mean=mean, **arguments)

    def decide(self, values: list[float], *, mean: bool = False, **arguments: Any) -> Measurement:
        """Return the comparison's decision on the statistic's values, which may be those of an earlier run."""
        named = {**arguments, "than": ", ".join(arguments.get("than", ()))}
        meaning = self.meaning.format(**named) if isinstance(self.meaning, str) else self.meaning(named)
        if mean:
            meaning = meaning.replace(arguments["metric"], f"mean {arguments['metric']} over the seeds", 1)
        even = arguments.get("even", self.even)
        noise = arguments.get("noise", 0.0)
        return Measurement(values, self.holds(values, arguments), meaning, float(even), float(noise))

    def measured(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the values depend on, beside the runs; all others affect only the decision."""
        return {key: value for key, value in arguments.items() if key in signature(self.statistic).parameters}


def _from_when(arguments: Mapping[str, Any]) -> str:
    bounds = [f"{sign} {arguments[key]:g}" for key, sign in (("at_least", ">="), ("at_most", "<=")) if key in arguments]
    return f"round from which {arguments['metric']} {' and '.join(bounds)} for good"


def _how_fast(arguments: Mapping[str, Any]) -> str:
    metric = arguments["metric"]
    than = arguments.get("than")
    return f"times as fast a decay of {metric} as {than}" if than else f"factor of {metric} in a round"


def _over_rounds(arguments: Mapping[str, Any]) -> str:
    other = f" to {arguments['than_below']:g}" if "than_below" in arguments else ""
    return f"rounds until {arguments['metric']} <= {arguments['below']:g}, over those of {arguments['than']}{other}"


def _share(runs: Sequence[Outcome], bounds: Mapping[str, Sequence[float]], sizes: Sequence[int]) -> float:
    """Return the share of a group's settings with final metrics in a box, less the largest share of the other groups.

    `sizes` are the numbers of runs of the groups.
    """
    inside = [all(low <= own.final(metric) <= high for metric, (low, high) in bounds.items()) for own in runs]
    mine, *others = (float(np.mean(part)) for part in np.split(np.array(inside), np.cumsum(sizes)[:-1]))
    return mine - max(others, default=0.0)


def _larger_share(values: Values, arguments: Mapping[str, Any]) -> bool:
    if arguments.get("than"):
        return all(value > 0.0 for value in values)
    return all(value >= arguments.get("at_least", 0.0) for value in values)


def _in_the_box(arguments: Mapping[str, Any]) -> str:
    box = ", ".join(f"{metric} in [{low:g}, {high:g}]" for metric, (low, high) in arguments["bounds"].items())
    meaning = f"share of {arguments['sizes'][0]} settings with {box}"
    return f"{meaning}, above the others'" if arguments["than"] else meaning


_ADVANTAGE = "advantage in final {metric}"

#: Rules by the name that a claim uses.
RULES: dict[str, Rule] = {
    "always-below": Rule(_share_of_lowest, _between(1.0), "share of rounds with the lowest {metric}"),
    "cheaper": Rule(_times_cheaper, _BY_FACTOR, "times less {cost} to {metric} {at_most:g}", 1.0),
    "decays": Rule(_exponent_of_decay, _between(high="exponent"), "exponent of the decay of {metric}"),
    "each-at-least": Rule(_smallest_final, _between(low="at_least"), "smallest final {metric}"),
    "faster": Rule(_times_faster, _BY_FACTOR, "times fewer rounds to the same {metric}", 1.0),
    "final-better": Rule(_advantage, _above, _ADVANTAGE, 0.0),
    "final-close": Rule(_distance, _between(high="tolerance"), "difference in final {metric}"),
    "final-nearer": Rule(_less_behind, _above, "less far behind in final {metric}", 0.0),
    "final-not-worse": Rule(_advantage, _not_all_below, _ADVANTAGE),
    "final-ratio": Rule(_ratio_of_finals, _RANGE_FROM_0, "final {metric}, over that of {than}"),
    "final-within": Rule(_final, _RANGE, "final {metric}"),
    "linear-rate": Rule(_linear_rate, _RANGE_FROM_0, _how_fast),
    "never-reaches": Rule(_settled, _NEVER, _from_when),
    "ratio": Rule(_ratio, _RANGE_FROM_0, "{metric} / {to}"),
    "reaches": Rule(_settled, _between(high="within"), _from_when),
    "rounds-ratio": Rule(_ratio_of_rounds, _RANGE_FROM_0, _over_rounds),
    "share": Rule(_share, _larger_share, _in_the_box, 0.0),
    "shrinks": Rule(_times_smaller, _BY_FACTOR, "times smaller final {metric}", 1.0),
    "stays-stable": Rule(_divergence, _NEVER, "round of divergence"),
    "within-bound": Rule(_shares_of_bound, _between(high=1.0), "largest {metric}, as a share of the bound"),
}
