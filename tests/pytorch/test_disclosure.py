"""What the owner of a client with a training loop of its own may forbid, and its record."""

import re

import numpy as np
import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

import torch
from flwr.app import Message, MetricRecord, RecordDict

from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg
from flwr_fco.torch import ClientApp, local_training

ROWS = (12, 25, 7, 16)


def app_of(**options):
    """Return a ClientApp of four sites with a step of one gradient."""
    app = ClientApp(**options)

    def rows(context):
        return {"num-examples": ROWS[int(context.node_config["partition-id"])]}

    @app.train()
    def train(message, context):
        net = torch.nn.Linear(2, 1, dtype=torch.float64)
        with local_training(message, context, net) as training:
            net(torch.ones(3, 2, dtype=torch.float64)).mean().backward()
            training.optimizer.step()
        return training.reply(rows(context))

    @app.evaluate()
    def evaluate(message, context):
        metrics = {"loss": 1.0, **rows(context)}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def run(app, **options):
    strategy = FedDualAvg(client_lr=0.02, min_train_nodes=1, min_evaluate_nodes=1)
    start = {"weight": np.zeros((1, 2)), "bias": np.zeros(1)}
    return simulate(strategy, app, num_nodes=4, num_rounds=2, initial_arrays=start, progress=False, **options)


def test_answers_about_few_rows_do_not_leave_a_training_loop():
    result = run(app_of(disclosure=Disclosure(min_rows=10)), raise_errors=False)
    assert {(row.kind, row.partition_id) for row in result.left_out} == {("train", 2), ("evaluate", 2)}
    for row in result.left_out:
        assert re.search(f"an answer to '{row.kind}'; this site has fewer rows for it than min_rows=10", row.reason)
    assert run(app_of(disclosure=Disclosure(min_rows=7))).left_out == []


@pytest.mark.parametrize("limit", [{"min_class_rows": 5}, {"min_events": 5, "min_rows": 3}])
def test_a_limit_that_a_loop_cannot_keep_is_refused_at_once(limit):
    with pytest.raises(ConfigurationError, match=rf"disclosure has {next(iter(limit))}, .*only how many rows"):
        ClientApp(disclosure=Disclosure(**limit))
    with pytest.raises(ConfigurationError, match="disclosure=20 is a int; expected"):
        ClientApp(disclosure=20)


def test_each_message_is_a_line(caplog):
    def lines():
        return [record.getMessage() for record in caplog.records if record.name == "flwr.disclosure"]

    run(app_of())
    assert lines() == []
    run(app_of(disclosure=Disclosure(min_rows=10)), raise_errors=False)
    trained = [line for line in lines() if ": asked for 'train'; " in line]
    assert len(trained) == 2 * 4
    assert sum(": increment[3], num-examples" in line and "sent 6 numbers about" in line for line in trained) == 2 * 3
    assert sum("refused: " in line and "min_rows=10" in line for line in trained) == 2
    assert sum("asked for 'evaluate'; sent 2 numbers about " in line for line in lines()) == 6
