"""The rules that decide claims: functions of the histories, so that falsified data flip a verdict.

A rule takes the outcomes by label and the claim's arguments, and returns a value for each seed and whether the claim
holds. Where it compares runs, it compares them seed by seed: the same data, the same samples of clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.errors import ConfigurationError

__all__ = ["RULES", "Measurement", "Outcome", "Outcomes", "Rule"]


class Outcome(NamedTuple):
    """What one run of one seed reported.

    Parameters
    ----------
    history : list of dict of str to float
        A line for each evaluated round, with ``round``.
    diverged : int, default 0
        The round in which it was cut.
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
        if self.diverged:
            return math.nan
        return float(self.series(metric)[1][-window:].mean())


#: By label, then by seed.
Outcomes = Mapping[str, Sequence[Outcome]]


class Measurement(NamedTuple):
    """What a rule found.

    Parameters
    ----------
    values : list of float
        One a seed.
    holds : bool
    meaning : str
        What the values are.
    even : float, optional
        Of a comparison: the value at which both sides are equal.
    noise : float, default 0.0
        Values that are nearer to `even` than that are equal too.
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
        low, high = self.even - self.noise, self.even + self.noise
        return bool(np.min(self.values) <= high and np.max(self.values) >= low)


Rule = Callable[..., Measurement]


def reaches(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    within: float,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> Measurement:
    """Ask that the metric is between bounds for good from a round that is at most `within`, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, metric : str
    within : float
        Rounds.
    at_least, at_most : float

    Returns
    -------
    Measurement
        Rounds; infinite for a run that never gets there, NaN for one that diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> reaches({"a": [own]}, run="a", metric="f1", at_least=0.9, within=5).values
    [1.0]
    """
    values = [_settled(own, metric, at_least, at_most) for own in outcomes[run]]
    bounds = [f">= {at_least:g}"] * (at_least > -math.inf) + [f"<= {at_most:g}"] * (at_most < math.inf)
    return Measurement(
        values, all(value <= within for value in values), f"round from which {metric} {' and '.join(bounds)} for good"
    )


def never_reaches(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> Measurement:
    """Ask that no seed's metric gets between the bounds for good; not so if a run diverged.

    Parameters
    ----------
    outcomes : mapping
    run, metric : str
    at_least, at_most : float

    Returns
    -------
    Measurement
        Rounds; infinite where it never does, NaN where the run diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> never_reaches({"a": [own]}, run="a", metric="f1", at_least=0.9).holds
    False
    """
    found = reaches(outcomes, run=run, metric=metric, within=math.inf, at_least=at_least, at_most=at_most)
    return Measurement(found.values, all(math.isinf(value) for value in found.values), found.meaning)


def final_within(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    window: int = 1,
) -> Measurement:
    """Ask that the mean over the last evaluations is between bounds for every seed; not so if a run diverged.

    Parameters
    ----------
    outcomes : mapping
    run, metric : str
    at_least, at_most : float
    window : int, default 1

    Returns
    -------
    Measurement

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> final_within({"a": [own]}, run="a", metric="f1", at_least=0.9).holds
    True
    """
    values = [own.final(metric, window) for own in outcomes[run]]
    return Measurement(values, _between(values, at_least, at_most), f"final {metric}")


def each_at_least(outcomes: Outcomes, *, runs: Sequence[str], metric: str, at_least: float) -> Measurement:
    """Ask that each of several runs ends with a metric of at least `at_least`, for every seed.

    Parameters
    ----------
    outcomes : mapping
    runs : sequence of str
    metric : str
    at_least : float

    Returns
    -------
    Measurement
        The smallest final value of all runs; NaN where a run diverged.

    Examples
    --------
    >>> one, two = Outcome([{"round": 1.0, "f1": 1.0}]), Outcome([{"round": 1.0, "f1": 0.5}])
    >>> each_at_least({"a": [one], "b": [two]}, runs=["a", "b"], metric="f1", at_least=1.0).values
    [0.5]
    """
    seeds = range(len(outcomes[runs[0]]))
    values = [float(np.min([outcomes[label][seed].final(metric) for label in runs])) for seed in seeds]
    return Measurement(values, _between(values, at_least, math.inf), f"smallest final {metric}")


def always_at_most(outcomes: Outcomes, *, runs: Sequence[str], metric: str, bound: float) -> Measurement:
    """Ask that the metric of several runs is never above a bound, for every seed; not so if a run diverged.

    Parameters
    ----------
    outcomes : mapping
    runs : sequence of str
    metric : str
    bound : float

    Returns
    -------
    Measurement
        The largest value of all runs and rounds; NaN where a run diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "norm": 0.5}, {"round": 1.0, "norm": 1.0}])
    >>> always_at_most({"a": [own]}, runs=["a"], metric="norm", bound=0.9).values
    [1.0]
    """
    values = []
    for seed in range(len(outcomes[runs[0]])):
        own = [outcomes[label][seed] for label in runs]
        lost = any(outcome.diverged for outcome in own)
        values.append(math.nan if lost else float(np.max([outcome.series(metric)[1].max() for outcome in own])))
    return Measurement(values, all(value <= bound for value in values), f"largest {metric}")


def final_better(
    outcomes: Outcomes,
    *,
    run: str,
    than: Sequence[str],
    metric: str,
    largest: bool = False,
    margin: float = 0.0,
    noise: float = 0.0,
    window: int = 1,
) -> Measurement:
    """Ask that a run ends better than each of the others by more than a margin, for every seed.

    A run that diverged is neither better nor worse than anything: no claim holds by it.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    largest : bool, default False
        Whether larger is better.
    margin : float, default 0.0
    noise : float, default 0.0
        Smaller differences are none, such as a few of the images that a test set happens to have: a tie.
    window : int, default 1

    Returns
    -------
    Measurement
        The advantage over the best of the others; NaN where one of the runs diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> final_better({"a": [own], "b": [own]}, run="a", than=["b"], metric="f1", largest=True).values
    [0.0]
    """
    values = _advantages(outcomes, run, than, metric, largest, window)
    least = max(margin, noise)
    return Measurement(values, all(value > least for value in values), f"advantage in final {metric}", 0.0, noise)


def final_not_worse(
    outcomes: Outcomes,
    *,
    run: str,
    than: Sequence[str],
    metric: str,
    largest: bool = False,
    window: int = 1,
) -> Measurement:
    """Ask that a run does not end worse than the best of the others with every seed: better, or a tie.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    largest : bool, default False
        Whether larger is better.
    window : int, default 1

    Returns
    -------
    Measurement
        The advantage over the best of the others; NaN where one of the runs diverged.

    Examples
    --------
    >>> one, two = Outcome([{"round": 1.0, "f1": 1.0}]), Outcome([{"round": 1.0, "f1": 0.5}])
    >>> outcomes = {"a": [one, two], "b": [two, one], "c": [two, two]}
    >>> [final_not_worse(outcomes, run=x, than=[y], metric="f1", largest=True).holds for x, y in ("ab", "ca")]
    [True, True]
    >>> final_not_worse({"a": [one], "b": [two]}, run="b", than=["a"], metric="f1", largest=True).holds
    False
    """
    values = _advantages(outcomes, run, than, metric, largest, window)
    return Measurement(values, bool(np.max(values) >= 0.0), f"advantage in final {metric}")


def _advantages(
    outcomes: Outcomes, run: str, than: Sequence[str], metric: str, largest: bool, window: int
) -> list[float]:
    """Return how much better than the best of the others a run ends, for each seed."""
    sign = 1.0 if largest else -1.0
    return [
        sign * own.final(metric, window)
        - float(np.max([sign * outcomes[label][seed].final(metric, window) for label in than]))
        for seed, own in enumerate(outcomes[run])
    ]


def final_close(
    outcomes: Outcomes, *, run: str, than: Sequence[str], metric: str, tolerance: float, window: int = 1
) -> Measurement:
    """Ask that a run ends within a tolerance of each of the others, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    tolerance : float
    window : int, default 1

    Returns
    -------
    Measurement
        The largest distance; NaN where a run diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> final_close({"a": [own], "b": [own]}, run="a", than=["b"], metric="f1", tolerance=0.1).holds
    True
    """
    values = []
    for seed, own in enumerate(outcomes[run]):
        distances = [abs(own.final(metric, window) - outcomes[label][seed].final(metric, window)) for label in than]
        values.append(float(np.max(distances)))
    return Measurement(values, all(value <= tolerance for value in values), f"difference in final {metric}")


def final_nearer(
    outcomes: Outcomes,
    *,
    run: str,
    leader: str,
    than: Sequence[str],
    metric: str,
    largest: bool = False,
    window: int = 1,
) -> Measurement:
    """Ask that a run ends less far behind a leader than another run behind a leader of its own, for every seed.

    A run that overtakes its leader is not behind it.

    Parameters
    ----------
    outcomes : mapping
    run, leader : str
    than : (str, str)
        Another run and its leader.
    metric : str
    largest : bool, default False
        Whether larger is better.
    window : int, default 1

    Returns
    -------
    Measurement
        By how much less; NaN where a run diverged.

    Examples
    --------
    >>> worse, bad, good = (Outcome([{"round": 1.0, "f1": value}]) for value in (0.5, 0.8, 1.0))
    >>> outcomes = {"a": [bad], "b": [worse], "best": [good]}
    >>> found = final_nearer(outcomes, run="a", leader="best", than=["b", "best"], metric="f1", largest=True)
    >>> round(found.values[0], 9)
    0.3
    """
    other, other_leader = than
    ahead = _advantages(outcomes, run, [leader], metric, largest, window)
    ahead_there = _advantages(outcomes, other, [other_leader], metric, largest, window)
    # Not the built-in minimum, for which a NaN is no number.
    values = [float(np.minimum(a, 0.0) - np.minimum(b, 0.0)) for a, b in zip(ahead, ahead_there, strict=True)]
    return Measurement(values, all(value > 0.0 for value in values), f"less far behind in final {metric}", 0.0)


def stays_stable(outcomes: Outcomes, *, run: str) -> Measurement:
    """Ask that no seed diverges.

    Parameters
    ----------
    outcomes : mapping
    run : str

    Returns
    -------
    Measurement
        The round of divergence; infinite where there is none.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> stays_stable({"a": [own]}, run="a").holds
    True
    """
    values = [float(own.diverged or math.inf) for own in outcomes[run]]
    return Measurement(values, all(math.isinf(value) for value in values), "round of divergence")


def faster(
    outcomes: Outcomes,
    *,
    run: str,
    than: Sequence[str],
    metric: str,
    factor: float,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> Measurement:
    """Ask that a run is between bounds for good after at most 1/factor of the rounds that each of the others takes.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    factor : float
    at_least, at_most : float

    Returns
    -------
    Measurement
        Rounds of the fastest other over the run's; NaN where nobody gets there or one of the runs diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> faster({"a": [own], "b": [own]}, run="a", than=["b"], metric="f1", factor=2.0, at_least=0.9).values
    [1.0]
    """
    values = []
    for seed, own in enumerate(outcomes[run]):
        mine = _settled(own, metric, at_least, at_most)
        others = float(np.min([_settled(outcomes[label][seed], metric, at_least, at_most) for label in than]))
        values.append(math.nan if math.isinf(mine) else others / max(mine, 1.0))
    return Measurement(
        values, all(value >= factor for value in values), f"times fewer rounds to the same {metric}", 1.0
    )


def cheaper(
    outcomes: Outcomes, *, run: str, than: Sequence[str], metric: str, at_most: float, cost: str, factor: float = 1.0
) -> Measurement:
    """Ask that a run pays at most 1/factor of what each of the others pays until the metric is below a bound for good.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    at_most : float
    cost : str
        A metric that grows with the rounds: gradient evaluations, seconds.
    factor : float, default 1.0

    Returns
    -------
    Measurement
        The cost of the cheapest other over the run's; NaN where the run does not get there or one diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "e": 1.0, "s": 0.0}, {"round": 1.0, "e": 0.1, "s": 2.0}])
    >>> cheaper({"a": [own], "b": [own]}, run="a", than=["b"], metric="e", at_most=0.5, cost="s").values
    [1.0]
    """
    values = []
    for seed, own in enumerate(outcomes[run]):
        mine = _paid(own, metric, at_most, cost)
        others = float(np.min([_paid(outcomes[label][seed], metric, at_most, cost) for label in than]))
        values.append(math.nan if math.isinf(mine) else others / max(mine, 1e-300))
    return Measurement(
        values, all(value >= factor for value in values), f"times less {cost} to {metric} {at_most:g}", 1.0
    )


def _paid(own: Outcome, metric: str, at_most: float, cost: str) -> float:
    """Return the cost at the round from which the metric is below a bound for good; as :func:`_settled` without one."""
    settled = _settled(own, metric, -math.inf, at_most)
    if not math.isfinite(settled):
        return settled
    rounds, costs = own.series(cost)
    later = costs[rounds >= settled]
    return float(later[0]) if later.size else math.inf


def always_below(
    outcomes: Outcomes, *, run: str, than: Sequence[str], metric: str, first: float, floor: float = 0.0
) -> Measurement:
    """Ask that a run's curve is below those of all the others from a round on, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    first : float
        The first round that counts.
    floor : float, default 0.0
        Values below it count as it: there is nothing but rounding.

    Returns
    -------
    Measurement
        The share of the rounds in which it is the lowest or as low; NaN where one of the runs diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 1.0, "e": 0.5}, {"round": 2.0, "e": 0.1}])
    >>> always_below({"a": [own], "b": [own]}, run="a", than=["b"], metric="e", first=1).values
    [1.0]
    """
    values = []
    for seed, own in enumerate(outcomes[run]):
        rounds, mine = own.series(metric)
        lowest = np.full(mine.size, math.inf)
        for label in than:
            other_rounds, other = outcomes[label][seed].series(metric)
            reached = np.full(mine.size, math.inf)
            reached[np.isin(rounds, other_rounds)] = other[np.isin(other_rounds, rounds)]
            lowest = np.minimum(lowest, np.maximum(reached, floor))
        counts = rounds >= first
        share = float(np.mean(np.maximum(mine, floor)[counts] <= lowest[counts]))
        lost = any(outcomes[label][seed].diverged for label in (run, *than))
        values.append(math.nan if lost else share)
    return Measurement(values, all(value == 1.0 for value in values), f"share of rounds with the lowest {metric}")


def decays(outcomes: Outcomes, *, run: str, metric: str, exponent: float, first: float, last: float) -> Measurement:
    """Ask that the metric falls at least like round^exponent between two rounds, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, metric : str
    exponent : float
        Such as -1 for 1/R.
    first, last : float
        Rounds.

    Returns
    -------
    Measurement
        log(value at `last` / value at `first`) / log(last / first); NaN where the run diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> decays({"a": [own]}, run="a", metric="f1", exponent=-1.0, first=1, last=2).holds
    False
    """
    values = []
    for own in outcomes[run]:
        if own.diverged:
            values.append(math.nan)
            continue
        rounds, series = own.series(metric)
        a, b = (max(float(series[int(np.abs(rounds - when).argmin())]), 1e-300) for when in (first, last))
        values.append(math.log(b / a) / math.log(last / first))
    return Measurement(values, all(value <= exponent for value in values), f"exponent of the decay of {metric}")


def within_bound(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    of: str,
    factor: float,
    exponent: float = -1.0,
    plus: float = 0.0,
    mean: bool = False,
) -> Measurement:
    """Ask that a metric is at most factor * (the metric `of`) * round^exponent + plus in every round, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, metric, of : str
        `of`: what the theorem's constant is called, such as the diameter of the domain.
    factor : float
    exponent : float, default -1.0
        Such as -1 for 1/R.
    plus : float, default 0.0
        A term that does not fall, such as one of the noise.
    mean : bool, default False
        Whether the seeds' mean is asked for, the theorem being about an expectation.

    Returns
    -------
    Measurement
        The largest share of the bound over the rounds from 1 on; NaN where a run diverged.

    Examples
    --------
    >>> history = [{"round": float(t), "gap": 1.0 / t, "diameter": 2.0} for t in (1, 2, 3)]
    >>> within_bound({"a": [Outcome(history)]}, run="a", metric="gap", of="diameter", factor=1.0).values
    [0.5]
    """
    shares = []
    for own in outcomes[run]:
        rounds, series = own.series(metric)
        constant, later = own.series(of)[1][0], rounds >= 1.0
        bound = factor * constant * rounds[later] ** exponent + plus
        shares.append(np.full(1, math.nan) if own.diverged else series[later] / bound)
    if mean:
        shares = [np.mean(shares, axis=0)]
    values = [float(share.max()) for share in shares]
    whose = f"mean {metric} over the seeds" if mean else metric
    return Measurement(values, _between(values, -math.inf, 1.0), f"largest {whose}, as a share of the bound")


def shrinks(
    outcomes: Outcomes, *, run: str, than: Sequence[str], metric: str, factor: float, window: int = 1
) -> Measurement:
    """Ask that a run's final metric is smaller than that of each of the others by a factor, for every seed.

    A run that diverged is neither smaller nor larger than anything: no claim holds by it.

    Parameters
    ----------
    outcomes : mapping
    run : str
    than : sequence of str
    metric : str
    factor : float
    window : int, default 1

    Returns
    -------
    Measurement
        The factor to the nearest other; NaN where one of the runs diverged.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> shrinks({"a": [own], "b": [own]}, run="a", than=["b"], metric="f1", factor=2.0).values
    [1.0]
    """
    values = []
    for seed, own in enumerate(outcomes[run]):
        nearest = float(np.min([outcomes[label][seed].final(metric, window) for label in than]))
        values.append(nearest / float(np.maximum(own.final(metric, window), 1e-300)))
    return Measurement(values, all(value >= factor for value in values), f"times smaller final {metric}", 1.0)


def ratio(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    to: str,
    at_least: float = 0.0,
    at_most: float = math.inf,
    window: int = 1,
) -> Measurement:
    """Ask that a metric over another one, averaged over the last evaluations, is in a range, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, metric, to : str
    at_least, at_most : float
    window : int, default 1

    Returns
    -------
    Measurement

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> ratio({"a": [own]}, run="a", metric="f1", to="f1").values
    [1.0]
    """
    values = [own.final(metric, window) / max(own.final(to, window), 1e-300) for own in outcomes[run]]
    return Measurement(values, _between(values, at_least, at_most), f"{metric} / {to}")


def final_ratio(
    outcomes: Outcomes,
    *,
    run: str,
    than: str,
    metric: str,
    at_least: float = 0.0,
    at_most: float = math.inf,
    window: int = 1,
) -> Measurement:
    """Ask that a run's final metric over that of another one is in a range, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, than, metric : str
    at_least, at_most : float
    window : int, default 1

    Returns
    -------
    Measurement
        NaN where a run diverged.

    Examples
    --------
    >>> one, two = Outcome([{"round": 1.0, "gap": 4.0}]), Outcome([{"round": 1.0, "gap": 1.0}])
    >>> final_ratio({"a": [one], "b": [two]}, run="a", than="b", metric="gap", at_least=2.0).values
    [4.0]
    """
    pairs = zip(outcomes[run], outcomes[than], strict=True)
    values = [own.final(metric, window) / max(other.final(metric, window), 1e-300) for own, other in pairs]
    return Measurement(values, _between(values, at_least, at_most), f"final {metric}, over that of {than}")


def rounds_ratio(
    outcomes: Outcomes,
    *,
    run: str,
    than: str,
    metric: str,
    below: float,
    at_least: float = 0.0,
    at_most: float = math.inf,
) -> Measurement:
    """Ask that the rounds a run takes until a metric is below a level, over those of another, are in a range.

    Parameters
    ----------
    outcomes : mapping
    run, than, metric : str
    below : float
        The level; the first evaluated round with a smaller or equal value counts.
    at_least, at_most : float

    Returns
    -------
    Measurement
        Infinite where the run does not get there, NaN where the other one does not or one of them diverged.

    Examples
    --------
    >>> slow, fast = Outcome([{"round": 8.0, "gap": 1.0}]), Outcome([{"round": 2.0, "gap": 1.0}])
    >>> rounds_ratio({"a": [slow], "b": [fast]}, run="a", than="b", metric="gap", below=1.0, at_most=5.0).values
    [4.0]
    """
    values = []
    for own, other in zip(outcomes[run], outcomes[than], strict=True):
        mine, theirs = _first(own, metric, below), _first(other, metric, below)
        # The start counts as a round: there is a ratio to a run that begins below the bound.
        values.append(math.nan if math.isinf(theirs) else float(np.maximum(mine, 1.0) / np.maximum(theirs, 1.0)))
    return Measurement(
        values,
        _between(values, at_least, at_most),
        f"rounds until {metric} <= {below:g}, over those of {than}",
    )


def share(
    outcomes: Outcomes,
    *,
    group: str,
    bounds: Mapping[str, Sequence[float]],
    than: Sequence[str] = (),
    at_least: float = 0.0,
    at_most: float = 1.0,
    groups: Mapping[str, Sequence[str]],
) -> Measurement:
    """Ask that the share of a group's settings whose final metrics are in a box is in a range, for every seed.

    With `than` the share must be larger than that of each of these groups as well.

    Parameters
    ----------
    outcomes : mapping
    group : str
        All rates of one strategy.
    bounds : mapping of str to pair of float
        By metric.
    than : sequence of str, default ()
        Other groups.
    at_least, at_most : float
        Of the share.
    groups : mapping of str to sequence of str
        The labels of each group.

    Returns
    -------
    Measurement
        The share; with `than` what it is above the largest of the other groups'.

    Examples
    --------
    >>> own = Outcome([{"round": 0.0, "f1": 0.5}, {"round": 1.0, "f1": 1.0}])
    >>> share({"a": [own]}, group="g", groups={"g": ["a"]}, bounds={"f1": [0.9, 1.0]}).values
    [1.0]
    """

    def inside(labels: Sequence[str], seed: int) -> float:
        finals = [
            all(low <= outcomes[label][seed].final(metric) <= high for metric, (low, high) in bounds.items())
            for label in labels
        ]
        return float(np.mean(finals))

    seeds = range(len(outcomes[groups[group][0]]))
    shares = [inside(groups[group], seed) for seed in seeds]
    box = ", ".join(f"{metric} in [{low:g}, {high:g}]" for metric, (low, high) in bounds.items())
    meaning = f"share of {len(groups[group])} settings with {box}"
    holds = _between(shares, at_least, at_most)
    if not than:
        return Measurement(shares, holds, meaning)
    leads = [own - max(inside(groups[other], seed) for other in than) for seed, own in enumerate(shares)]
    return Measurement(leads, holds and all(lead > 0.0 for lead in leads), f"{meaning}, above the others'", 0.0)


def linear_rate(
    outcomes: Outcomes,
    *,
    run: str,
    metric: str,
    first: float,
    last: float,
    than: str = "",
    at_least: float = 0.0,
    at_most: float = math.inf,
) -> Measurement:
    """Ask that the mean factor by which a metric falls in a round is in a range, for every seed.

    Parameters
    ----------
    outcomes : mapping
    run, metric : str
    first, last : float
        Rounds.
    than : str, default ""
        Another run: then the ratio of both logarithms is in the range, how many times as fast the run is.
    at_least, at_most : float

    Returns
    -------
    Measurement
        (value at `last` / value at `first`)^(1 / rounds between them), or the ratio; NaN where a run diverged.

    Examples
    --------
    >>> fast = Outcome([{"round": 0.0, "gap": 1.0}, {"round": 2.0, "gap": 0.0625}])
    >>> slow = Outcome([{"round": 0.0, "gap": 1.0}, {"round": 2.0, "gap": 0.25}])
    >>> linear_rate({"a": [fast]}, run="a", metric="gap", first=0, last=2, at_most=0.3).values
    [0.25]
    >>> linear_rate({"a": [fast], "b": [slow]}, run="a", than="b", metric="gap", first=0, last=2).values
    [2.0]
    """

    def slope(own: Outcome) -> float:
        if own.diverged:
            return math.nan
        rounds, series = own.series(metric)
        a, b = (max(float(series[int(np.abs(rounds - when).argmin())]), 1e-300) for when in (first, last))
        return math.log(b / a) / (last - first)

    slopes = [slope(own) for own in outcomes[run]]
    if not than:
        values = [math.exp(own) for own in slopes]
        return Measurement(values, _between(values, at_least, at_most), f"factor of {metric} in a round")
    others = [slope(other) for other in outcomes[than]]
    # A run that does not fall at all is no measure of how fast another one is.
    values = [own / other if other < 0.0 else math.nan for own, other in zip(slopes, others, strict=True)]
    return Measurement(values, _between(values, at_least, at_most), f"times as fast a decay of {metric} as {than}")


def _between(values: Sequence[float], at_least: float, at_most: float) -> bool:
    """Whether all values are in the range; a NaN is not."""
    return all(at_least <= value <= at_most for value in values)


def _first(outcome: Outcome, metric: str, below: float) -> float:
    """Return the first evaluated round with a value of at most `below`; infinite if there is none, NaN if diverged."""
    if outcome.diverged:
        return math.nan
    rounds, values = outcome.series(metric)
    found = np.flatnonzero(values <= below)
    return float(rounds[found[0]]) if found.size else math.inf


def _settled(outcome: Outcome, metric: str, at_least: float, at_most: float) -> float:
    """Return the first round from which the metric is between the bounds to the end.

    Infinite if there is none; NaN for a run that diverged, so that no comparison with it holds.
    """
    if outcome.diverged:
        return math.nan
    rounds, values = outcome.series(metric)
    outside = np.flatnonzero(~((values >= at_least) & (values <= at_most)))
    first = 0 if outside.size == 0 else int(outside[-1]) + 1
    return float(rounds[first]) if first < rounds.size else math.inf


#: Rules by the name that a claim uses.
RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "always-at-most": always_at_most,
        "always-below": always_below,
        "cheaper": cheaper,
        "decays": decays,
        "each-at-least": each_at_least,
        "faster": faster,
        "final-better": final_better,
        "final-close": final_close,
        "final-nearer": final_nearer,
        "final-not-worse": final_not_worse,
        "final-ratio": final_ratio,
        "final-within": final_within,
        "linear-rate": linear_rate,
        "never-reaches": never_reaches,
        "ratio": ratio,
        "reaches": reaches,
        "rounds-ratio": rounds_ratio,
        "share": share,
        "shrinks": shrinks,
        "stays-stable": stays_stable,
        "within-bound": within_bound,
    }
)
