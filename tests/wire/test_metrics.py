"""Averages of metrics, and the bytes of a round."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from flwr_fco.wire.envelope import count_bytes
from flwr_fco.wire.metrics import average_metrics


def test_bytes_are_those_of_the_arrays():
    array = Array(np.zeros(100))
    content = RecordDict({"arrays": ArrayRecord({"x": array}), "config": ConfigRecord({"a": "text"})})
    assert count_bytes([content, content]) == 2 * len(array.data)


def metrics(**values):
    return RecordDict({"metrics": MetricRecord(values)})


def test_averages_are_flowers():
    contents = [
        metrics(**{"num-examples": 3, "loss": 0.25, "curve": [1.0, 2.0], "steps": 7}),
        metrics(**{"num-examples": 5, "loss": 0.5, "curve": [3.0, 5.0], "steps": 7}),
    ]
    ours = average_metrics(contents, "num-examples")
    flowers = aggregate_metricrecords(contents, "num-examples")
    assert set(ours) == set(flowers) == {"loss", "curve", "steps"}
    assert ours["steps"] == 7
    for name in ours:
        np.testing.assert_allclose(ours[name], flowers[name], rtol=1e-15)


def test_a_metric_that_not_everybody_reports_is_left_out():
    contents = [metrics(**{"num-examples": 3, "loss": 0.25, "own": 1.0}), metrics(**{"num-examples": 5, "loss": 0.5})]
    assert set(average_metrics(contents, "num-examples")) == {"loss"}


def test_one_odd_metric_costs_nobody_elses():
    def reply(**values):
        return RecordDict({"metrics": MetricRecord({"num-examples": 10, **values})})

    contents = [reply(loss=1.0, own=[1.0, 2.0]), reply(loss=3.0, own=[3.0, 4.0]), reply(loss=[5.0], own=[1.0])]
    assert dict(average_metrics(contents, "num-examples")) == {"loss": 2.0, "own": [2.0, 3.0]}


@pytest.mark.parametrize("weight", [0.5, 0])
def test_answers_that_are_one_object_average_as_copies_of_it_do(weight):
    """In this process clients that say the same share their numbers, which are then not averaged at all."""

    def said():
        return {"examples": weight, "loss": 0.1, "curve": [0.1, math.nan], "steps": 7, "odd": math.inf}

    shared = said()
    if not weight:
        with pytest.raises(ZeroDivisionError):
            average_metrics([shared, shared, shared], "examples")
        return
    apart = average_metrics([said() for _ in range(3)], "examples")
    assert repr(average_metrics([shared, shared, shared], "examples")) == repr(apart)
