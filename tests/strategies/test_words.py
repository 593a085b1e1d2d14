"""What a run says before it begins, when it ends, and of what it cannot use."""

import numpy as np
import pytest
from faulty import strategy
from problems import foreign_app, simulated

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError
from flwr_fco.objectives import LeastSquares, MultinomialLogistic
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Arrays, FedDualAvg


@pytest.mark.parametrize(
    ("objective", "start", "said"),
    [
        (LeastSquares(np.ones((4, 2)), np.ones(4)), {"coefficients": np.zeros(3)}, "the server's model is"),
        (
            LeastSquares(np.ones((4, 3)), np.ones(4)),
            {"coefficients": np.zeros(3, int)},
            "here coefficients. Give float",
        ),
        (
            MultinomialLogistic(np.ones((4, 3)), [0, 1, 0, 1]),
            {"coefficients": np.zeros((3, 4)), "intercept": np.zeros(4)},
            "give all of them the same num_classes=",
        ),
    ],
    ids=["another shape", "whole numbers", "fewer classes"],
)
def test_a_model_that_is_not_the_clients_is_an_error_that_says_so(objective, start, said):
    start = {"intercept": np.zeros(1), **start}
    with pytest.raises(ClientError, match=said):
        simulate(strategy(), client_app(lambda context: objective), num_nodes=4, num_rounds=1, initial_arrays=start)


def test_models_and_running_statistics_in_another_float_dtype_count():
    app = foreign_app(lambda arrays, *_: {name: a.astype(np.float64) + 0.5 for name, a in arrays.items()})
    own = FedDualAvg(client="unmodified", fraction_evaluate=0.0, arrays=Arrays(pass_through=["running_mean"]))
    start = {"w": np.zeros((2, 2), np.float32), "running_mean": np.zeros(2, np.float32)}
    result = simulated(own, app, 2, initial_arrays=start)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), np.ones(start[name].shape, np.float32))
        assert array.dtype == "float32"
