"""Numbers that decide when a run stops and which model is best: bounds on them, and their centre.

A metric of one client can be a lie like an increment of one client. So it is bounded like one, and a strategy with a
robust centre of increments takes the same centre of metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import RecordDict

from flwr_fco.algorithms.contract.replies import Mean
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import dense
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.options import MetricsFunction
from flwr_fco.server.replies.bounds import ENOUGH, LONGEST, IncrementBounds
from flwr_fco.server.replies.checks import Reply
from flwr_fco.wire.envelope import OWN_METRICS
from flwr_fco.wire.keys import SCHEMA
from flwr_fco.wire.metrics import as_metrics, average_metrics, exact_mean, is_number
from flwr_fco.wire.protocol import Uplink

#: Metrics that have checks of their own.
OTHERS = OWN_METRICS | {SCHEMA}
#: Fraction of ``max_ratio`` that an evaluation may be away from the median.
EVALUATION = 0.1
#: Factor by which bounds are wider with so few replies that their median may be the lie.
_FEW = 1_000.0


def training_metrics(good: Sequence[Reply[Uplink]], decides: Sequence[str]) -> list[dict[str, Any]]:
    """Return the numbers of training replies that decide: their metrics without those that have checks of their own.

    Parameters
    ----------
    good : sequence of Reply
        The replies that passed all checks.
    decides : sequence of str
        Names of vectors whose entries decide as metrics do.
    """
    found: list[dict[str, Any]] = [
        {name: value for name, value in uplink.metrics.items() if name not in OTHERS} if uplink.metrics else {}
        for _, uplink, _ in good
    ]
    if not decides:
        return found
    return [
        own | {name: dense(uplink.vectors[name]).tolist() for name in decides if name in uplink.vectors}
        for own, (_, uplink, _) in zip(found, good, strict=True)
    ]


def metric_objections(
    metrics: Sequence[Mapping[str, Any]],
    ratio: float | None,
    bounds: IncrementBounds,
    what: str = "",
    *,
    least: float = 1.0,
) -> dict[int, str]:
    """Return the replies whose metrics must not be averaged with those of others, by position, with reasons.

    A metric may differ from the median by at most `ratio` times the usual size: the largest of the median's size, the
    median distance from it, and the largest median of earlier rounds. With fewer than five replies the median may be
    the lie: a metric is then at most `ratio` times as large as the usual size, or the lower median of the sizes, and a
    thousand times that before any usual size is known. Numbers above 1e15 are always out of bounds.

    Parameters
    ----------
    metrics : sequence of mapping of str to number or list
        Metrics of each reply.
    ratio : float or None
        None for no bound.
    bounds : IncrementBounds
        Bounds of the run, which remember the usual sizes.
    what : str, default ""
        Prefix of the names under which they are remembered.
    least : float, default 1.0
        A usual size below it, but for 0, counts as this much: the sizes of residuals that are 0 up to rounding differ
        by any factor.

    Examples
    --------
    >>> said = [{"loss": loss} for loss in (0.5, 0.4, 0.6, 0.5, -1e9)]
    >>> metric_objections(said, 100.0, IncrementBounds(1000.0, None))
    {4: "its loss is -1e+09; expected at most 100 times 1 away from 0.5, the clients' median"}
    """
    reasons: dict[int, str] = {}
    if ratio is None:
        return reasons
    for name in dict.fromkeys(name for reply in metrics for name in reply):
        values = [reply.get(name) for reply in metrics]
        columns = [values]
        if any(isinstance(value, list) for value in values):
            longest = max(len(value) for value in values if isinstance(value, list))
            rows = [value if isinstance(value, list) else [] for value in values]
            columns = [[row[k] if k < len(row) else None for row in rows] for k in range(longest)]
        for column in columns:
            numbers: Any = enumerate(column)
            said = {i: float(value) for i, value in numbers if is_number(value)}
            if not said:
                continue
            far, usual = _far(said, ratio, bounds.largest.get(f"{what}{name}", 0.0), least)
            for i, reason in far.items():
                reasons.setdefault(i, f"its {name} is {said[i]:.3g}; {reason}")
            # What a minority reports is not averaged, and is nothing usual.
            if 2 * len(said) > len(metrics) and 2 * len(far) < len(said):
                bounds.largest[f"{what}{name}"] = usual
    return reasons


def _far(said: Mapping[int, float], ratio: float, before: float, least: float) -> tuple[dict[int, str], float]:
    """Return why numbers are far from the others, by reply, and their usual size."""
    middle = (len(said) - 1) // 2
    if len(said) >= ENOUGH:
        centre = sorted(said.values())[middle]
        size, spread = abs(centre), sorted(abs(value - centre) for value in said.values())[middle]
        usual, room = max(size, before), ratio
    else:
        centre, size, spread = 0.0, sorted(map(abs, said.values()))[middle], 0.0
        usual = min(max(size, before), ratio * max(before, 1.0)) if before else size
        room = ratio if before else ratio * _FEW
    size = max(usual, spread)
    size = max(size, least) if size > 0.0 else 0.0
    limit, text = room * size, f"{room:g} times {size:.3g} away from {centre:.3g}, the clients' median"
    if len(said) < ENOUGH:
        text = f"{room:g} times {size:.3g}, the usual size"
    if not 0.0 < limit < LONGEST:
        limit, text = LONGEST, f"{LONGEST:g}"
    far = {i: f"expected at most {text}" for i, value in said.items() if not abs(value - centre) <= limit}
    return far, min(usual, LONGEST)


def evaluation_objections(
    metrics: Sequence[Mapping[str, Any]], weighted_by_key: str, ratio: float, bounds: IncrementBounds
) -> dict[int, str]:
    """Return the evaluations that must not be averaged with the others, by position, with reasons.

    Numbers of examples are bounded as in training, other metrics by a tenth of `ratio`.

    Parameters
    ----------
    metrics, weighted_by_key, ratio, bounds
        As for :func:`training_metrics` and :func:`metric_objections`.
    """
    examples = [float(reply[weighted_by_key]) for reply in metrics]
    reasons = bounds.compare_examples("number of examples of an evaluation", examples)
    others = [{name: each for name, each in reply.items() if name != weighted_by_key} for reply in metrics]
    return metric_objections(others, EVALUATION * ratio, bounds, "evaluated ") | reasons


def others_than_most(said: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[int, str]:
    """Return the replies that say other numbers than more than half of them, by position, with reasons.

    Parameters
    ----------
    said : sequence of mapping of str to float
        Numbers of each reply.
    names : sequence of str
        Those that are the same for all clients.

    Examples
    --------
    >>> others_than_most([{"l2": 0.1}, {"l2": 0.1}, {"l2": -5.0}], ["l2"])
    {2: 'its l2 is -5, that of 2 of 3 clients is 0.1'}
    """
    each = [tuple(numbers[name] for name in names) for numbers in said]
    if len(set(each)) < 2:
        return {}
    usual, count = Counter(each).most_common(1)[0]
    if 2 * count <= len(each):
        return {}
    reasons = {}
    for i, own in enumerate(each):
        apart = [(n, a, b) for n, a, b in zip(names, own, usual, strict=True) if a != b]
        if apart:
            name, value, other = apart[0]
            reasons[i] = f"its {name} is {value:g}, that of {count} of {len(each)} clients is {other:g}"
    return reasons


def centre_of(mean: Mean) -> Callable[[Sequence[float], Sequence[float]], float]:
    """Return the centre of numbers with weights that sum to 1: the exact mean, or the strategy's robust centre.

    Parameters
    ----------
    mean : Mean
        The strategy's centre of increments.

    Examples
    --------
    >>> centre_of(Mean(aggregation="median"))([1.0, 2.0, -1e9], [0.3, 0.3, 0.4])
    1.0
    """
    return exact_mean if mean.aggregation == "mean" else partial(_robust, mean)


def _robust(mean: Mean, values: Sequence[float], shares: Sequence[float]) -> float:
    return float(mean.of([np.array([value], dtype=np.float64) for value in values], shares)[0])


def averaged(
    aggregate: MetricsFunction, contents: list[RecordDict], weighted_by_key: str, mean: Mean
) -> dict[str, Any]:
    """Return the averaged metrics of replies; empty, with a warning, if they cannot be averaged.

    Parameters
    ----------
    aggregate : callable
        ``train_metrics_aggr_fn`` or ``evaluate_metrics_aggr_fn``; the default takes the strategy's centre.
    contents : list of RecordDict
        The replies that count.
    weighted_by_key : str
        The metric that is the weight.
    mean : Mean
        The strategy's centre of increments.
    """
    if not contents:
        return {}
    try:
        if aggregate is average_metrics:
            metrics: Any = average_metrics(contents, weighted_by_key, centre_of(mean))
        else:
            metrics = aggregate(contents, weighted_by_key)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        log(WARNING, "the clients' metrics cannot be averaged, so the round reports none of them: %s", error)
        return {}
    who = f"{getattr(aggregate, '__name__', repr(aggregate))}, which averages the clients' metrics,"
    found = as_metrics(metrics, who)
    if found is None:
        raise ConfigurationError(f"{who} returned a NoneType; expected a MetricRecord or a dict of numbers")
    numbers = dict(found.items())
    if "elapsed" in numbers:
        # In messages it accompanies a dual; in a table of metrics it would be read as seconds.
        numbers["sum-of-step-sizes"] = numbers.pop("elapsed")
    numbers.pop(SCHEMA, None)
    return numbers
