"""Metrics: the numbers that clients report, checked and averaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from flwr_fco.errors import ProtocolError
from flwr_fco.wire import flower as _flower

#: Whole numbers up to this are exact as floats, and always finite.
LARGEST_COUNT = 2**53


def is_number(value: Any) -> bool:
    """Whether a metric is a finite number that fits into a float."""
    try:
        return math.isfinite(value) and type(value) is not bool
    except (TypeError, OverflowError):
        return False


def metrics_of(content: RecordDict | dict[str, Any], weighted_by_key: str) -> tuple[dict[str, Any], float]:
    """Return the metrics of a reply, and its weight among them; a reply without a message is its metrics."""
    if type(content) is dict:
        metrics = content
    else:
        kinds = [each for each in content.values() if type(each) is not ArrayRecord]
        records = [each for each in kinds if isinstance(each, MetricRecord)]
        if len(records) != 1:
            raise ProtocolError(f"expected exactly one MetricRecord, got {len(records)}")
        metrics = dict(records[0].items())
    if weighted_by_key not in metrics:
        raise ProtocolError(f"the MetricRecord lacks the weight key {weighted_by_key!r}; it has {sorted(metrics)}")
    weight = metrics[weighted_by_key]
    if type(weight) is int and 0 <= weight <= LARGEST_COUNT:
        return metrics, float(weight)
    if not is_number(weight) or weight < 0:
        raise ProtocolError(f"the weight {weighted_by_key!r} is {weight!r}, expected a finite number >= 0")
    return metrics, float(weight)


def exact_mean(values: Sequence[float], shares: Sequence[float]) -> float:
    """Return the mean of numbers with weights that sum to 1, rounded once.

    Examples
    --------
    >>> exact_mean([1.0, 3.0], [0.25, 0.75])
    2.5
    """
    return math.fsum(value * share for value, share in zip(values, shares, strict=True))


def average_metrics(
    contents: list[RecordDict],
    weighted_by_key: str,
    centre: Callable[[Sequence[float], Sequence[float]], float] = exact_mean,
) -> MetricRecord:
    """Return the weighted means of the replies' metrics, like Flower's own function but about four times as fast.

    Differs from Flower's function in two ways: 1. a metric that is equal in all replies keeps its value to the bit;
    2. a metric that some replies lack, report as no finite number, or as a list of another length, is averaged over the
    other replies if these are more than half, and left out otherwise.

    Parameters
    ----------
    contents : list of RecordDict
        Replies with one MetricRecord each, at least one.
    weighted_by_key : str
        Key of the weight; not averaged itself.
    centre : callable, default exact_mean
        ``(values, shares)``: the mean, or another centre, of numbers with weights that sum to 1.
    """
    reports: list[tuple[dict[str, Any], float]] = []
    for i, content in enumerate(contents):
        # Clients of workers that say the same share their numbers.
        same = i > 0 and content is contents[i - 1]
        reports.append(reports[-1] if same else metrics_of(content, weighted_by_key))
    total = math.fsum(weight for _, weight in reports)
    shares = [weight / total for _, weight in reports]
    means: dict[str, int | float | list[int] | list[float]] = {}
    names = dict.fromkeys(reports[0][0])
    if any(metrics.keys() != names.keys() for metrics, _ in reports):
        names = dict.fromkeys(name for metrics, _ in reports for name in metrics)
    for name in names:
        if name == weighted_by_key:
            continue
        values: list[Any] = [metrics[name] for metrics, _ in reports if name in metrics]
        first, weights = values[0], shares
        if len(values) < len(reports) or len({*map(_form_of, values)}) > 1:
            # The replies disagree about this name: only a majority of more than half is averaged.
            form, agreeing = Counter(map(_form_of, values)).most_common(1)[0]
            if 2 * agreeing <= len(reports):
                continue
            agree = [name in metrics and _form_of(metrics[name]) == form for metrics, _ in reports]
            part = math.fsum(share for share, kept in zip(shares, agree, strict=True) if kept)
            if part <= 0.0:
                continue
            weights = [share / part for share, kept in zip(shares, agree, strict=True) if kept]
            values = [value for value in values if _form_of(value) == form]
            first = values[0]
        if values.count(first) == len(values):
            means[name] = first
        elif isinstance(first, list):
            means[name] = [centre(column, weights) for column in zip(*values, strict=True)]
        else:
            means[name] = centre(values, weights)
    return _flower.filled(MetricRecord, means)


def joined_metrics(theirs: MetricRecord, ours: Mapping[str, int | float]) -> MetricRecord:
    """Return the clients' averaged metrics together with the server's own, which take precedence."""
    return _flower.filled(MetricRecord, {**dict(theirs.items()), **ours})


def _form_of(value: Any) -> int:
    """Return the length of a list of numbers, -1 for a number, -2 for what is not finite."""
    if isinstance(value, list):
        return len(value) if all(map(is_number, value)) else -2
    return -1 if is_number(value) else -2


def check_metrics(content: RecordDict, weighted_by_key: str) -> dict[str, Any]:
    """Return the metrics of an evaluation, one MetricRecord of finite numbers and a weight, or raise an error."""
    metrics, _ = metrics_of(content, weighted_by_key)
    for name, value in metrics.items():
        if not all(is_number(item) for item in (value if isinstance(value, list) else [value])):
            raise ProtocolError(f"the metric {name!r} is {value!r}")
    return metrics


def with_metric(content: RecordDict, name: str, value: float) -> RecordDict:
    """Return a reply's content with another value of a metric."""
    changed = content.copy()
    for key, record in content.items():
        if isinstance(record, MetricRecord):
            changed[key] = _flower.filled(MetricRecord, {**dict(record.items()), name: value})
    return changed


def number_of(name: str, value: Any) -> float:
    """Return a metric after checking that it is a finite number."""
    if not is_number(value):
        raise ProtocolError(f"the metric {name!r} is {value!r}, expected a finite number")
    return float(value)
