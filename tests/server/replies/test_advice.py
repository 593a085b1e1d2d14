"""A ClientApp of FedAvg that meets a strategy which sends duals is told what to do, on every way there."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.errors import ClientError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import FedDualAvg, Wire, run_of

START = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.zeros(3, np.float32)}


def fed_avg_app(strict=True):
    """As with PyTorch: `load_state_dict` refuses other names; with ``strict=False`` it takes what it knows."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        names = set(message.content["arrays"])
        if strict and names != set(START):
            raise RuntimeError(f"Error(s) in loading state_dict for Net: Unexpected key(s) in state_dict: {names}")
        arrays = ArrayRecord({name: Array(array) for name, array in START.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    return app


def strategy():
    return FedDualAvg(regularizer=L1(0.1), fraction_evaluate=0.0)


def initial():
    return ArrayRecord({name: Array(array) for name, array in START.items()})


def test_in_process_the_error_says_what_to_do():
    with pytest.raises(ClientError, match=r'client="unmodified" \(FedDualAvg\), or train with'):
        simulate(strategy(), fed_avg_app(), num_nodes=2, num_rounds=1, initial_arrays=initial(), progress=False)


@pytest.mark.parametrize("strict", [True, False])
def test_through_messages_the_reason_says_what_to_do(strict):
    own = strategy()
    grid = InProcessGrid(fed_avg_app(strict), 2, raise_errors=False)
    messages = own.configure_train(1, initial(), ConfigRecord(), grid)
    own.aggregate_train(1, grid.send_and_receive(messages))
    assert len(run_of(own).left_out) == 2
    assert all('client="unmodified"' in row.reason for row in run_of(own).left_out)


@pytest.mark.parametrize(
    ("names", "dtype", "expected"),
    [
        (("0.weight", "0.bias"), np.float32, "auto"),
        (("0.weight", "0.bias"), np.float64, "float64"),
        (("coefficients", "intercept"), np.float32, "float64"),
    ],
)
def test_a_network_in_single_precision_is_sent_in_it(names, dtype, expected):
    own = strategy()
    arrays = zip(names, (np.ones((3, 2), dtype), np.zeros(3, dtype)), strict=True)
    run_of(own).prepare(ArrayRecord({name: Array(array) for name, array in arrays}))
    assert run_of(own).plan.wire_dtype == expected
    own.wire = Wire("float32")
    run_of(own).prepare(run_of(own).primal_arrays())
    assert run_of(own).plan.wire_dtype == "float32"
