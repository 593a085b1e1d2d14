"""A ClientApp of FedAvg that meets a strategy which sends duals is told what to do, on every way there."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.client_apps import client_app, numpy_client_app
from flwr_fco.errors import ClientError, NothingTrainedError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import FedDualAvg, Wire

START = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.zeros(3, np.float32)}
ADVICE = 'give the strategy client="unmodified"'


def pytorch(arrays):
    """As `load_state_dict`, which refuses other names."""
    if set(arrays) != set(START):
        raise RuntimeError(f"Error(s) in loading state_dict for Net: Unexpected key(s) in state_dict: {set(arrays)}")
    return arrays


def loosely(arrays):
    """As `load_state_dict(strict=False)`, which takes what it knows."""
    return ArrayRecord({name: Array(array) for name, array in START.items()})


def numpy(arrays):
    """Takes arrays as they come."""
    return ArrayRecord([0.7 * array + 0.3 for array in arrays.to_numpy_ndarrays()])


def by_name(arrays):
    """As JAX's trees."""
    return ArrayRecord({name: Array(0.7 * arrays[name].numpy()) for name in START})


def scikit_learn(arrays):
    weight, bias = arrays.to_numpy_ndarrays()
    return ArrayRecord([weight, bias])


def keras(arrays):
    """As `set_weights`."""
    if len(arrays) != len(START):
        raise ValueError("You called `set_weights(weights)` on layer 'dense' with a weight list of length 1")
    return arrays


KINDS = [pytorch, loosely, numpy, by_name, scikit_learn, keras]


def fed_avg_app(trained):
    app = ClientApp()

    @app.train()
    def train(message, context):
        content = {"arrays": trained(message.content["arrays"]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def go(app, num_rounds=3, **options):
    given = {"num_nodes": 2, "num_rounds": num_rounds, "initial_arrays": START, "progress": False, **options}
    return simulate(given.pop("strategy", FedDualAvg(regularizer=L1(0.1), fraction_evaluate=0.0)), app, **given)


@pytest.mark.parametrize("trained", KINDS)
def test_the_error_of_a_run_says_what_to_do(trained):
    with pytest.raises((ClientError, NothingTrainedError)) as caught:
        go(fed_avg_app(trained))
    assert ADVICE in str(caught.value)


class Elsewhere:
    """A grid that says no more of its nodes than Flower's do."""

    def __init__(self, inner):
        self.get_node_ids, self._inner = inner.get_node_ids, inner

    def send_and_receive(self, messages, *, timeout=None):
        return self._inner.send_and_receive(list(messages), timeout=timeout)


@pytest.mark.parametrize("trained", KINDS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_reason_of_a_reply_that_does_not_count_says_what_to_do(trained, elsewhere):
    grid = InProcessGrid(fed_avg_app(trained), 2, raise_errors=False)
    start = ArrayRecord({name: Array(array) for name, array in START.items()})
    with grid.identity(), pytest.raises(NothingTrainedError) as caught:
        FedDualAvg(fraction_evaluate=0.0).start(Elsewhere(grid) if elsewhere else grid, start, 1)
    rows = caught.value.result.left_out
    assert len(rows) == 2
    assert all(ADVICE in row.reason for row in rows)


def test_an_error_of_a_client_of_ours_or_of_a_numpy_client_gets_no_advice_about_duals():
    def broken(context):
        raise FileNotFoundError("rows.csv")

    with pytest.raises(ClientError, match=r"rows\.csv") as caught:
        go(client_app(broken))
    assert ADVICE not in str(caught.value)
    with pytest.raises(ClientError, match=r"rows\.csv") as caught:
        go(numpy_client_app(broken), strategy=FedDualAvg(client="unmodified", fraction_evaluate=0.0))
    assert ADVICE not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "dtype", "expected"),
    [
        (("0.weight", "0.bias"), np.float32, "auto"),
        (("0.weight", "0.bias"), np.float64, "float64"),
        (("coefficients", "intercept"), np.float32, "float64"),
    ],
)
def test_a_network_in_single_precision_is_sent_in_it(names, dtype, expected):
    arrays = zip(names, (np.ones((3, 2), dtype), np.zeros(3, dtype)), strict=True)
    record = ArrayRecord({name: Array(array) for name, array in arrays})
    for wire, dtype_of_messages in ((Wire(), expected), (Wire("float32"), "float32")):
        assert FedDualAvg(wire=wire).prepare(record).problem.plan.wire_dtype == dtype_of_messages
