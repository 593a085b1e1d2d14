"""One liar among clients with training loops of their own, or with code that cannot be changed."""

import numpy as np
import pytest
from together import together

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import Array, MetricRecord
from networks import accuracy, load, loop_app, run, unmodified_app

from flwr_fco.strategies import Bounds, Epochs, FedDualAvg, Steps

ROUNDS, LIAR = 3, 1


def mod_of(lie):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == LIAR:
            metrics = dict(reply.content["metrics"])
            lie(metrics, reply.content["arrays"])
            reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return mod


def longer(metrics, arrays):
    """Nine hundred times the work, says it."""
    for name in ("local-steps", "elapsed"):
        if name in metrics:
            metrics[name] = type(metrics[name])(metrics[name] * 900)


def heavier(metrics, arrays):
    metrics["num-examples"] *= 900
    for name, array in list(arrays.items()):
        value = array.numpy()
        if value.dtype.kind == "f" and "running" not in name:
            arrays[name] = Array((-900.0 * value).astype(value.dtype))


def negative_variance(metrics, arrays):
    for name, array in list(arrays.items()):
        if "running_var" in name:
            arrays[name] = Array((-900.0 * array.numpy()).astype(array.numpy().dtype))


def counter(metrics, arrays):
    for name, array in list(arrays.items()):
        if "num_batches" in name:
            arrays[name] = Array(np.array(2**62, dtype=array.numpy().dtype))


def strategy(client, **options):
    more = (
        {"work": Steps(8), "client_lr": 0.2}
        if client == "unmodified"
        else {"client_lr": 0.2, "work": Epochs(1, batch_size=25), "bounds": Bounds(own_loops=True)}
    )
    return FedDualAvg(client=client, fraction_evaluate=0.0, **more, **options)


def of_one(client, lie, **options):
    """Return the results of a run with a liar, and of one without."""
    own = {"local-steps": 8} if client == "unmodified" else None
    make = (lambda mods: unmodified_app(mods=mods, metrics=own)) if own else (lambda mods: loop_app(mods=mods))
    return [run(strategy(client, **options), make(mods), ROUNDS) for mods in ([mod_of(lie)], [])]


def changed_little(liar, honest):
    liar, honest = load(liar.arrays), load(honest.arrays)
    assert all(torch.isfinite(value).all() for value in liar.state_dict().values())
    assert accuracy(liar) > accuracy(honest) - 0.1
    assert (liar[1].running_var > 0).all()
    assert int(liar[1].num_batches_tracked) == int(honest[1].num_batches_tracked)


@together("aggregation", ["mean", "median"])
@together("lie", [heavier, counter])
@together("client", ["composite", "unmodified"])
def test_one_of_four_is_left_out(client, lie, aggregation):
    liar, honest = of_one(client, lie, aggregation=aggregation)
    changed_little(liar, honest)
    assert honest.left_out == []
    assert {row.partition_id for row in liar.left_out} == {LIAR}


@together("lie", [longer, negative_variance])
@together("client", ["composite", "unmodified"])
def test_a_lie_within_the_bounds_changes_little_of_a_median(client, lie):
    changed_little(*of_one(client, lie, aggregation="median"))


def test_honest_loops_of_shards_that_differ_by_100_lose_nothing():
    def shorter(metrics, arrays):
        """One that has done a hundredth of the work, on a hundredth of the rows."""
        metrics["num-examples"] = 2
        metrics["local-steps"], metrics["elapsed"] = 1, metrics["elapsed"] / metrics["local-steps"]

    result = run(strategy("composite"), loop_app(mods=[mod_of(shorter)]), 2)
    assert result.left_out == []
