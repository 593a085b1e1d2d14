"""Clients of Flower's earlier interface: a NumPyClient trains, and what cannot run says so in words."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from problems import refused, simulated

from flwr_fco import FedDualAvg, Short, short_mod
from flwr_fco.client_apps import numpy_client_app
from flwr_fco.errors import ClientError

flower, common = pytest.importorskip("flwr.client"), pytest.importorskip("flwr.common")

TARGETS = [np.random.default_rng(0).normal(size=(6, 5)), np.ones(3)]
START = {"a": np.zeros((6, 5)), "b": np.zeros(3)}
DENSE = {"client": "unmodified", "fraction_evaluate": 0.0}


def go(client, options=None, mods=None, **more):
    strategy = FedDualAvg(**{"client": "unmodified", **(options or {})})
    return simulated(strategy, numpy_client_app(lambda _: client, mods), 8, num_nodes=3, initial_arrays=START, **more)


def halfway(parameters):
    return [w + 0.5 * (end - w) for w, end in zip(parameters, TARGETS, strict=True)]


SEEN = []


class NumPyClient(flower.NumPyClient):
    def fit(self, parameters, config):
        SEEN.append(dict(config))
        return halfway(parameters), 10, {"note": "0.5"}

    def evaluate(self, parameters, config):
        return 0.25, 10, {"accuracy": 0.5}


class Client(flower.Client):
    """A low-level one, whose methods take and return Flower's earlier messages."""

    good = common.Status(common.Code.OK, "")

    def fit(self, ins):
        SEEN.append(dict(ins.config))
        arrays = common.ndarrays_to_parameters(halfway(common.parameters_to_ndarrays(ins.parameters)))
        return common.FitRes(self.good, arrays, 10, {"note": "0.5"})

    def evaluate(self, ins):
        return common.EvaluateRes(self.good, 0.25, 10, {"accuracy": 0.5})


@pytest.mark.parametrize("made", [NumPyClient, lambda: NumPyClient().to_client(), lambda: Client().to_client()])
def test_a_client_of_the_earlier_interface_trains_and_evaluates(made):
    SEEN.clear()
    config, texts = ConfigRecord({"lr": 0.1}), lambda contents, _: {"train_loss": float(contents[0]["config"]["note"])}
    result = go(made(), {"train_metrics_aggr_fn": texts}, train_config=config)
    np.testing.assert_allclose(result.arrays["a"].numpy(), (1 - 0.5**8) * TARGETS[0])
    assert result.train_metrics_clientapp[8]["train_loss"] == 0.5
    assert [result.evaluate_metrics_clientapp[8][name] for name in ("loss", "accuracy")] == [0.25, 0.5]
    assert (dict(config), SEEN[0]) == ({"lr": 0.1}, {"lr": 0.1, "server-round": 1, "server_round": 1})
    short = go(made(), {**DENSE, "density": 0.4, "wire": Short()}, [short_mod()])
    assert np.count_nonzero(short.arrays["a"].numpy()) == 12


def test_numbers_of_numpy_and_arrays_without_axes_are_numbers_and_the_loss_is_the_clients():
    class Own:
        def fit(self, parameters, config):
            return parameters, np.int64(10), {"f": np.float32(0.5), "i": np.int64(3), "b": True, "num-examples": 0}

        def evaluate(self, parameters, config):
            return np.float32(0.25), 10, {"loss": 7.0, "accuracy": np.array(0.5), "curve": np.ones(2)}

    result = go(Own())
    numbers = {**result.train_metrics_clientapp[8], **result.evaluate_metrics_clientapp[8], "out": len(result.left_out)}
    assert [numbers[name] for name in ("f", "i", "b", "loss", "accuracy", "out")] == [0.5, 3, 1, 0.25, 0.5, 0]


BAD = common.FitRes(common.Status(common.Code.FIT_NOT_IMPLEMENTED, "no GPU"), common.Parameters([], ""), 0, {})
ODD = [(None, "a NoneType"), (([], 10), "2 values"), (([], 10, None), "3 values")]


ANSWERS = [
    *((type("", (), {"fit": lambda *_, own=given: own}), f"`fit` returned {said}; expected") for given, said in ODD),
    (type("", (), {"fit": lambda self, w, c: (w[:1], 10, {})}), "`fit` returned 1 arrays; `start` has 2: a, b"),
    (type("", (flower.Client,), {"fit": lambda self, ins: BAD}), "`fit` says FIT_NOT_IMPLEMENTED: no GPU"),
    (lambda: 3, "client_fn returned an int"),
]


@pytest.mark.parametrize(("client", "said"), ANSWERS)
def test_other_answers_of_fit_are_errors_in_words(client, said):
    refused(said, go, client(), DENSE, kind=ClientError)


def test_client_fn_gets_what_its_argument_says():
    """As Flower itself reads it: the partition id as text under `cid` or as a text, otherwise the context."""
    made = []

    def typed(i: "str"):
        return made.append(i) or NumPyClient()

    of_context = lambda context: typed(str(context.node_config["partition-id"]))  # noqa: E731
    for client_fn in (lambda cid: typed(cid), typed, of_context):
        simulated(FedDualAvg(**DENSE), numpy_client_app(client_fn), 1, num_nodes=3, initial_arrays=START)
    assert made == ["0", "1", "2"] * 3


def test_what_is_no_function_of_one_argument_is_refused():
    for client_fn in (lambda: None, lambda node_id, partition_id: None, 3):
        refused(r"a function \(context\) -> client, or \(cid\) -> client", numpy_client_app, client_fn)
    with pytest.raises(ClientError, match=r"client_fn\(i\) is given a Context: .*call its argument cid"):
        simulated(FedDualAvg(**DENSE), numpy_client_app(lambda i: [3][i]), 1)


@pytest.mark.parametrize("base", ["Client", "NumPyClient"])
@pytest.mark.parametrize(("name", "advice"), [("evaluate", "fraction_evaluate=0.0"), ("fit", "expected a NumPyClient")])
def test_a_client_without_the_method_is_told_what_to_write(base, name, advice):
    """Flower's base classes have methods that do nothing: they would count as 0 examples."""
    kind = type("Mine", (getattr(flower, base),), {})
    for client in (kind(), kind().to_client()):
        refused(rf"has no `{name}`.*{advice}", go, client, {"fraction_train": float(name == "fit")}, kind=ClientError)


@pytest.mark.parametrize("name", ["initialize_parameters", "configure_fit", "aggregate_fit", "evaluate"])
def test_the_server_of_the_earlier_interface_is_told_of_start(name):
    refused(r"strategy.start\(grid, initial_arrays, num_rounds\)", getattr, FedDualAvg(), name, kind=AttributeError)
    assert not hasattr(FedDualAvg(), name)
    refused("'FedDualAvg' object has no attribute 'something'", getattr, FedDualAvg(), "something", kind=AttributeError)
