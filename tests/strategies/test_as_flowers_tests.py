"""What Flower's own strategy tests ask of a strategy, asked of ours: hooks with replies made by hand."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian, FedTrimmedAvg
from flwr.serverapp.strategy.strategy import Strategy

from flwr_fco import FedDualAvg
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Trimmed

MODELS = [[1.0, 0.2, 0.5, 1.0], [0.2, 0.5, 1.0, 0.2], [0.5, 1.0, 0.2, 0.5], [9.0, -9.0, 9.0, 0.3], [0.3, 0.4, 0.5, 0.6]]


def arrays(values):
    return ArrayRecord({"w": Array(np.array(values))})


def content(values, examples=5):
    return RecordDict({"arrays": arrays(values), "metrics": MetricRecord({"num-examples": examples, "loss": 0.5})})


def unmodified(**options):
    return FedDualAvg(client="unmodified", fraction_evaluate=0.0, **options)


def rounds(strategy: Strategy, examples=(5, 5, 5, 5, 5), count=1):
    """Answer what `configure_train` sends; return the model after the last round and its metrics."""
    grid, model, metrics = InProcessGrid(lambda message, context: message, len(MODELS)), arrays([0.0] * 4), None
    with grid.identity():
        strategy.summary()
        if hasattr(strategy, "current_arrays"):
            # FedAvgM keeps the model that `start` has given it.
            strategy.current_arrays = model
        for number in range(1, count + 1):
            messages = sorted(
                strategy.configure_train(number, model, ConfigRecord({"lr": 0.1}), grid),
                key=lambda message: message.metadata.dst_node_id,
            )
            for message in messages:
                (config,) = message.content.config_records.values()
                assert (config["lr"], config["server-round"]) == (0.1, number)
                np.testing.assert_allclose(message.content["arrays"]["w"].numpy(), model["w"].numpy(), atol=1e-15)
            replies = [
                Message(content(np.array(own) / number, weight), reply_to=message)
                for own, weight, message in zip(MODELS, examples, messages, strict=True)
            ]
            for reply, message in zip(replies, messages, strict=True):
                reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            found, metrics = strategy.aggregate_train(number, replies)
            model = model if found is None else found
    return model["w"].numpy(), metrics


@pytest.mark.parametrize(
    ("ours", "flowers", "examples"),
    [
        (lambda: unmodified(), lambda: FedAvg(), (5, 2, 9, 1, 3)),
        (lambda: unmodified(aggregation="median", normalize_local_work=False), lambda: FedMedian(), (5,) * 5),
        (
            lambda: unmodified(aggregation=Trimmed(0.2), normalize_local_work=False),
            lambda: FedTrimmedAvg(beta=0.2),
            (5,) * 5,
        ),
        (lambda: unmodified(server_momentum=0.5), lambda: FedAvgM(server_momentum=0.5), (5, 2, 9, 1, 3)),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_without_psi_the_hooks_give_flowers_model(ours, flowers, examples, count):
    model, metrics = rounds(ours(), examples, count)
    expected, theirs = rounds(flowers(), examples, count)
    np.testing.assert_allclose(model, expected, rtol=0, atol=1e-12)
    assert metrics["loss"] == theirs["loss"] == 0.5
