"""One adversarial client among those with training loops of their own, or with code that cannot be changed."""

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import Array, MetricRecord
from networks import accuracy, load, loop_app, run, unmodified_app

from flwr_fco.strategies import Bounds, Epochs, FedDualAvg, Steps

LIAR = 1


def times(factor, *patterns):
    """Multiply the arrays whose names hold a pattern."""

    def lie(metrics, arrays):
        for name, array in list(arrays.items()):
            if any(pattern in name for pattern in patterns):
                arrays[name] = Array(np.asarray(factor * array.numpy(), array.numpy().dtype))

    return lie


def heavier(metrics, arrays):
    metrics["num-examples"] *= 900
    times(-900.0, "weight", "bias", "increment")(metrics, arrays)


def longer(metrics, arrays):
    """Nine hundred times the work, says it."""
    for name in {"local-steps", "elapsed"} & metrics.keys():
        metrics[name] = type(metrics[name])(metrics[name] * 900)


def shorter(metrics, arrays):
    """No lie: a hundredth of the work, on a hundredth of the rows."""
    metrics["num-examples"] = 2
    metrics["local-steps"], metrics["elapsed"] = 1, metrics["elapsed"] / metrics["local-steps"]


def trained(client, lie, **options):
    """Return the result of three rounds with a client that alters its replies."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == LIAR:
            metrics = dict(reply.content["metrics"])
            lie(metrics, reply.content["arrays"])
            reply.content["metrics"] = MetricRecord(metrics)
        return reply

    work = {"work": Epochs(1, batch_size=25), "bounds": Bounds(own_loops=True)}
    app = loop_app(mods=[mod])
    if client == "unmodified":
        work = {"work": Steps(8)}
        app = unmodified_app(mods=[mod], metrics={"local-steps": 8})
    return run(FedDualAvg(client=client, client_lr=0.2, fraction_evaluate=0.0, **work, **options), app, 3)


@pytest.mark.parametrize(
    ("lie", "aggregation", "left_out"),
    [
        (heavier, "mean", True),
        (times(2**58, "num_batches"), "mean", True),
        (heavier, "median", True),
        # Within the bounds, these change little of a median.
        (longer, "median", None),
        (times(-900.0, "running_var"), "median", None),
    ],
)
@pytest.mark.parametrize("client", ["composite", "unmodified"])
def test_one_of_four_changes_little(client, lie, aggregation, left_out):
    given, plain = (trained(client, each, aggregation=aggregation) for each in (lie, lambda *_: None))
    assert plain.left_out == []
    if left_out:
        assert {row.partition_id for row in given.left_out} == {LIAR}
    liar, honest = load(given.arrays), load(plain.arrays)
    assert all(torch.isfinite(value).all() for value in liar.state_dict().values())
    assert accuracy(liar) > accuracy(honest) - 0.1
    assert (liar[1].running_var > 0).all()
    assert int(liar[1].num_batches_tracked) == int(honest[1].num_batches_tracked)


def test_honest_loops_of_shards_that_differ_by_100_lose_nothing():
    assert trained("composite", shorter).left_out == []
