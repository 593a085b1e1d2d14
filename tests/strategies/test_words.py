"""What a run says before it begins, when it ends, and of what it cannot use."""

import logging

import numpy as np
import pytest
from faulty import strategy
from flwr.serverapp.strategy import FedAvg
from problems import app_of, clients, foreign_app, run, simulated

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, MultinomialLogistic
from flwr_fco.regularizers import Zero
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Arrays, FedDualAvg, Steps


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


@pytest.mark.parametrize(("option", "number"), [("min_train_nodes", 9), ("min_available_nodes", 5)])
def test_a_sample_larger_than_the_number_of_nodes_is_refused_at_once(option, number):
    with pytest.raises(ConfigurationError, match=f"{option}={number}"):
        run(strategy(**{option: number}), clients(), 1)


def test_a_foreign_strategy_gets_an_error_that_names_the_cause():
    with pytest.raises(ClientError, match="comes from a strategy that is not of flwr_fco"):
        simulated(FedAvg(fraction_evaluate=0.0), app_of(clients()), 1)


def test_a_run_in_which_nobody_trains_says_so(caplog):
    caplog.set_level(logging.WARNING, logger="flwr")
    result = run(FedDualAvg(fraction_train=0.0, client_lr=0.1), clients(), 3)
    assert not result.train_metrics_clientapp
    assert caplog.messages == ["configure_train: fraction_train=0.0, so no client trains and the model stays as it is"]


def test_start_ends_with_the_final_results(caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        result = run(strategy(), clients(), 3, verbose=True)
    said = [line.strip() for line in str(result).splitlines()]
    assert [line.strip() for line in caplog.messages[-len(said) :]] == said


def test_an_array_that_messages_cannot_hold_is_named():
    class Tensor:
        """As PyTorch's in bfloat16: NumPy has no such dtype."""

        dtype, shape = "torch.bfloat16", (2,)

        def __array__(self, *arguments, **options):
            raise TypeError("Got unsupported ScalarType BFloat16")

        detach = cpu = numpy = __array__

    with pytest.raises(ConfigurationError, match=r"array 'weight' is torch.bfloat16.*\.float\(\)"):
        simulated(strategy(), client_app(lambda context: None), 1, initial_arrays={"weight": Tensor()})


def test_the_log_is_silent_on_options_that_unmodified_clients_ignore(caplog):
    def logged(**options):
        caplog.clear()
        with caplog.at_level(logging.INFO, "flwr"):
            strategy(**options).summary()
        return caplog.text

    theirs = logged(client="unmodified", density=0.1, regularizer=Zero())
    reported = logged(client="unmodified", work=Steps(3), client_lr=0.25)
    ours = logged(work=Steps(3), client_lr=0.25)
    assert "client (the clients' own) | server (1)" in theirs
    # A density is the psi.
    assert "Density: Density(share=0.1" in theirs
    assert "Regularizer" not in theirs
    assert "Regularizer" in reported
    assert "Local work: the clients' own" in theirs
    assert "client (0.25)" in reported
    assert "batches of" not in theirs + reported
    assert "client (0.25)" in ours
    assert "batches of" in ours


def test_models_and_running_statistics_in_another_float_dtype_count():
    app = foreign_app(lambda arrays, *_: {name: a.astype(np.float64) + 0.5 for name, a in arrays.items()})
    own = FedDualAvg(client="unmodified", fraction_evaluate=0.0, arrays=Arrays(pass_through=["running_mean"]))
    start = {"w": np.zeros((2, 2), np.float32), "running_mean": np.zeros(2, np.float32)}
    result = simulated(own, app, 2, initial_arrays=start)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), np.ones(start[name].shape, np.float32))
        assert array.dtype == "float32"
