"""Metrics: the numbers that clients report, checked and averaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from flwr_fco.errors import ConfigurationError, ProtocolError

#: Whole numbers up to this are exact as floats, and always finite.
LARGEST_COUNT = 2**53
#: Prefix of a clients' metric that has the name of one of the server's.
CLIENTS = "clients-"
#: Maximum number of a reply's metrics, of a name's characters, and of all numbers in lists: they go into every table.
MOST_METRICS, LONGEST_NAME, MOST_NUMBERS = 1_000, 200, 100_000
#: Names that have been checked.
_known: set[str] = set()


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
    _check_names(metrics)
    if weighted_by_key not in metrics:
        raise ProtocolError(f"the MetricRecord lacks the weight key {weighted_by_key!r}; it has {sorted(metrics)}")
    weight = metrics[weighted_by_key]
    if type(weight) is int and 0 <= weight <= LARGEST_COUNT:
        return metrics, float(weight)
    if not is_number(weight) or weight < 0:
        raise ProtocolError(f"the weight {weighted_by_key!r} is {weight!r}, expected a finite number >= 0")
    return metrics, float(weight)


def _check_names(metrics: Mapping[str, Any]) -> None:
    """Reject metrics that are too many, or have names that cannot be shown."""
    if len(metrics) > MOST_METRICS:
        raise ProtocolError(f"it reports {len(metrics)} metrics, expected at most {MOST_METRICS}")
    if list in map(type, metrics.values()):
        numbers = sum(len(value) for value in metrics.values() if type(value) is list)
        if numbers > MOST_NUMBERS:
            raise ProtocolError(f"it reports lists of {numbers} numbers, expected at most {MOST_NUMBERS}")
    if metrics.keys() <= _known:
        return
    for name in metrics:
        if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
            what = f"it reports a metric {name!r:.100}"
            raise ProtocolError(f"{what}, expected a name of at most {LONGEST_NAME} printable characters")
    if len(_known) < 10 * MOST_METRICS:
        _known.update(metrics)


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
    # Clients in this process that say the same share their numbers.
    said = {id(content): content for content in contents}
    read = {key: metrics_of(content, weighted_by_key) for key, content in said.items()}
    reports = [read[id(content)] for content in contents]
    if len(read) == 1 and reports[0][1] > 0.0:
        numbers = reports[0][0].items()
        return MetricRecord({name: value for name, value in numbers if name != weighted_by_key})
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
    return MetricRecord(means)


def as_metrics(metrics: Any, who: str, when: str = "") -> MetricRecord | None:
    """Return metrics of a hook or a function as a MetricRecord; a plain dict will do.

    Parameters
    ----------
    metrics : MetricRecord, mapping or None
        What was returned.
    who : str
        Who returned it, for the message.
    when : str
        When, for the message.

    Raises
    ------
    ConfigurationError
        If it is something else.

    Examples
    --------
    >>> as_metrics({"loss": 0.5}, "evaluate_fn")
    {'loss': 0.5}
    """
    if metrics is None or isinstance(metrics, MetricRecord):
        return metrics
    try:
        if isinstance(metrics, Mapping):
            plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in metrics.items()}
            return MetricRecord(plain)
        said = f"a {type(metrics).__name__}{when}"
    except (TypeError, ValueError) as error:
        said = f"{metrics!r}{when} ({error})"
    what = f"{who} returned {said}; expected a MetricRecord, such as MetricRecord({{'loss': 0.5}})"
    raise ConfigurationError(f"{what}, a dict of numbers, or None")


def joined_metrics(theirs: Mapping[str, Any], ours: Mapping[str, int | float]) -> MetricRecord:
    """Return the clients' averaged metrics with the server's own; one of theirs with a name of ours gets a prefix."""
    renamed = {f"{CLIENTS}{name}" if name in ours else name: value for name, value in theirs.items()}
    return MetricRecord({**renamed, **ours})


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
            changed[key] = MetricRecord({**record, name: value})
    return changed


def without_metric(content: Any, name: str) -> Any:
    """Return a reply's content without a metric; a reply without a message is its metrics."""
    if type(content) is dict:
        return {own: value for own, value in content.items() if own != name} if name in content else content
    changed = content.copy()
    for key, record in content.items():
        if isinstance(record, MetricRecord):
            changed[key] = MetricRecord({own: value for own, value in record.items() if own != name})
    return changed


def number_of(name: str, value: Any) -> float:
    """Return a metric after checking that it is a finite number."""
    if not is_number(value):
        raise ProtocolError(f"the metric {name!r} is {value!r}, expected a finite number")
    return float(value)
