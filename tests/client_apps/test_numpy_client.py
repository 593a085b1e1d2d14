"""Clients of Flower's earlier interface: a NumPyClient trains, and what cannot run says so in words."""

import numpy as np
import pytest
from flwr.app import ConfigRecord

from flwr_fco.client_apps import numpy_client_app
from flwr_fco.errors import ClientError, ConfigurationError, UnknownOptionError
from flwr_fco.privacy import GaussianDP
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDualAvg

TARGETS = [np.random.default_rng(0).normal(size=(6, 5)), np.ones(3)]
DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}


def client_class(seen):
    flower = pytest.importorskip("flwr.client")

    class Client(flower.NumPyClient):
        def fit(self, parameters, config):
            seen.append(dict(config))
            moved = [w + 0.5 * (end - w) for w, end in zip(parameters, TARGETS, strict=True)]
            return moved, 10, {"train_loss": 0.5, "note": "text"}

        def evaluate(self, parameters, config):
            return 0.25, 10, {"accuracy": 0.5}

    return Client


def go(app, options, **more):
    start = {"a": np.zeros((6, 5)), "b": np.zeros(3)}
    return simulate(FedDualAvg(**options), app, num_nodes=3, num_rounds=8, initial_arrays=start, progress=False, **more)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_numpy_client_trains_and_evaluates(wrapped):
    seen = []
    kind = client_class(seen)
    app = numpy_client_app(lambda context: kind().to_client() if wrapped else kind())
    result = go(app, {"client": "unmodified"}, train_config=ConfigRecord({"lr": 0.1}))
    np.testing.assert_allclose(result.arrays["a"].numpy(), (1 - 0.5**8) * TARGETS[0])
    assert result.train_metrics_clientapp[8]["train_loss"] == 0.5
    assert (result.evaluate_metrics_clientapp[8]["loss"], result.evaluate_metrics_clientapp[8]["accuracy"]) == (
        0.25,
        0.5,
    )
    assert seen[0] == {"lr": 0.1, "server-round": 1, "server_round": 1}


def test_it_becomes_sparse():
    kind = client_class([])
    model = go(numpy_client_app(lambda context: kind()), {**DENSE, "density": 0.4}).arrays["a"].numpy()
    assert np.count_nonzero(model) == 12


def test_numbers_of_numpy_are_numbers_and_the_loss_is_the_client_s():
    class Client:
        def fit(self, parameters, config):
            return parameters, np.int64(10), {"f": np.float32(0.5), "i": np.int64(3), "b": True, "num-examples": 0}

        def evaluate(self, parameters, config):
            return np.float32(0.25), 10, {"loss": 7.0, "accuracy": np.float32(0.5)}

    result = go(numpy_client_app(lambda context: Client()), {"client": "unmodified"})
    assert [result.train_metrics_clientapp[8][name] for name in ("f", "i", "b")] == [0.5, 3, 1]
    assert [result.evaluate_metrics_clientapp[8][name] for name in ("loss", "accuracy")] == [0.25, 0.5]
    assert not result.left_out


@pytest.mark.parametrize(
    ("answer", "said"), [(None, "a NoneType"), ([], "a list"), (([], 10), "2 values"), (([], 10, None), "3 values")]
)
def test_what_fit_leaves_out_is_said(answer, said):
    class Client:
        def fit(self, parameters, config):
            return answer

    with pytest.raises(ClientError, match=rf"`fit` returned {said}; expected \(arrays, number of examples, metrics"):
        go(numpy_client_app(lambda context: Client()), DENSE)


def test_other_answers_of_fit_are_errors_in_words():
    class Client:
        def fit(self, parameters, config):
            return parameters[:1], 10, {}

    with pytest.raises(ClientError, match="`fit` returned 1 arrays; expected 2: a, b"):
        go(numpy_client_app(lambda context: Client()), DENSE)
    with pytest.raises(ClientError, match="client_fn returned a int"):
        go(numpy_client_app(lambda context: 3), DENSE)


def test_the_app_of_the_earlier_interface_is_told_of_this_one():
    flower = pytest.importorskip("flwr.client")
    kind = client_class([])
    app = flower.ClientApp(client_fn=lambda context: kind().to_client())
    with pytest.raises(ClientError, match=r"numpy_client_app\(client_fn\)"):
        go(app, DENSE)


@pytest.mark.parametrize("name", ["initialize_parameters", "configure_fit", "aggregate_fit", "evaluate"])
def test_the_server_of_the_earlier_interface_is_told_of_start(name):
    with pytest.raises(AttributeError, match=r"strategy.start\(grid, initial_arrays, num_rounds\)"):
        getattr(FedDualAvg(), name)
    assert not hasattr(FedDualAvg(), name)
    with pytest.raises(AttributeError, match="'FedDualAvg' object has no attribute 'something'"):
        _ = FedDualAvg().something


@pytest.mark.parametrize(
    ("kind", "name", "value", "advice"),
    [
        (FedDualAvg, "on_fit_config_fn", print, "train_config="),
        (FedDualAvg, "initial_parameters", None, "initial_arrays="),
        (FedDualAvg, "initial_arrays", None, "`start` or `simulate`"),
        (FedDualAvg, "accept_failures", True, "min_replies"),
        (FedDualAvg, "proximal_mu", 0.1, '"proximal-mu": 0.1'),
        (FedDualAvg, "min_eval_clients", 2, "did you mean min_evaluate_nodes"),
        (FedDualAvg, "evaluate_fn", print, "evaluate_fn="),
        (FedDualAvg, "num_rounds", 3, "num_rounds="),
        (FedDualAvg, "l1", 0.1, r"regularizer=L1\(0.1\)"),
    ],
)
def test_names_of_other_interfaces_get_the_right_advice(kind, name, value, advice):
    with pytest.raises(UnknownOptionError, match=advice):
        kind(**{name: value})


def test_private_options_name_all_that_is_missing():
    with pytest.raises(ConfigurationError, match="without clip, delta, noise_multiplier or target_epsilon"):
        GaussianDP()
    with pytest.raises(ConfigurationError, match="without delta, noise_multiplier or target_epsilon"):
        GaussianDP(clip=1.0)
    with pytest.raises(ConfigurationError, match=r"GaussianDP without noise_multiplier or target_epsilon;"):
        GaussianDP(clip=1.0, delta=1e-5)
