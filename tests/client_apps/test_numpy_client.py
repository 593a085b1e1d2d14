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


@pytest.mark.parametrize("kind", ["cid", "cid: str", "i: str", "context"])
def test_client_fn_gets_what_its_argument_says(kind):
    """As Flower itself reads it: the partition id as text under `cid` or as a text, otherwise the context."""
    made = []

    class Client:
        def fit(self, parameters, config):
            return parameters, 10, {}

    functions = {
        "cid": lambda cid: made.append(cid) or Client(),
        "context": lambda context: made.append(str(context.node_config["partition-id"])) or Client(),
    }

    def typed(cid: str):
        return functions["cid"](cid)

    def text(i: "str"):
        return functions["cid"](i)

    go(numpy_client_app({"cid: str": typed, "i: str": text, **functions}[kind]), DENSE)
    assert made[:3] == ["0", "1", "2"]


@pytest.mark.parametrize("client_fn", [lambda: None, lambda node_id, partition_id: None, 3])
def test_what_is_no_function_of_one_argument_is_refused_at_once(client_fn):
    with pytest.raises(ConfigurationError, match=r"expected a function \(context\) -> client, or \(cid\) -> client"):
        numpy_client_app(client_fn)


def test_a_partition_id_under_another_name_is_told_what_to_write():
    with pytest.raises(ClientError, match=r"client_fn\(i\) is given a Context, .*call its argument cid"):
        go(numpy_client_app(lambda i: [3][i]), DENSE)


def low_level(**methods):
    """Return a low-level Client, whose methods take and return Flower's earlier messages."""
    flower = pytest.importorskip("flwr.client")
    return type("Client", (flower.Client,), methods)


def test_a_low_level_client_trains_and_evaluates():
    common = pytest.importorskip("flwr.common")
    good, seen = common.Status(common.Code.OK, ""), []

    def fit(self, ins):
        seen.append(dict(ins.config))
        arrays = [
            0.5 * (w + end) for w, end in zip(common.parameters_to_ndarrays(ins.parameters), TARGETS, strict=True)
        ]
        return common.FitRes(good, common.ndarrays_to_parameters(arrays), 10, {"train_loss": 0.5})

    def evaluate(self, ins):
        return common.EvaluateRes(good, 0.25, 10, {"accuracy": 0.5})

    kind = low_level(fit=fit, evaluate=evaluate)
    result = go(numpy_client_app(lambda context: kind().to_client()), {"client": "unmodified"})
    np.testing.assert_allclose(result.arrays["a"].numpy(), (1 - 0.5**8) * TARGETS[0])
    assert result.train_metrics_clientapp[8]["train_loss"] == 0.5
    assert result.evaluate_metrics_clientapp[8]["loss"] == 0.25
    assert seen[0]["server_round"] == 1


def test_a_status_that_is_not_good_is_told():
    common = pytest.importorskip("flwr.common")
    bad = common.FitRes(common.Status(common.Code.FIT_NOT_IMPLEMENTED, "no GPU"), common.Parameters([], ""), 0, {})
    kind = low_level(fit=lambda self, ins: bad)
    with pytest.raises(ClientError, match="`fit` says FIT_NOT_IMPLEMENTED: no GPU"):
        go(numpy_client_app(lambda context: kind()), DENSE)


def own_without(name):
    """A class that is none of Flower's."""
    methods = {"fit": lambda self, w, config: (w, 10, {}), "evaluate": lambda self, w, config: (0.0, 10, {})}
    return type("Client", (), {other: method for other, method in methods.items() if other != name})


@pytest.mark.parametrize("base", [None, "Client", "NumPyClient"])
@pytest.mark.parametrize(
    ("name", "advice"), [("evaluate", "fraction_evaluate=0.0, or write one"), ("fit", "write one")]
)
def test_a_client_without_the_method_is_told_what_to_write(base, name, advice):
    """Flower's base classes have methods that do nothing: they would count as 0 examples."""
    kind = own_without(name)
    if base is not None:
        methods = {n: m for n, m in vars(kind).items() if n in ("fit", "evaluate") and base == "NumPyClient"}
        kind = type("Mine", (getattr(pytest.importorskip("flwr.client"), base),), methods)
    for made in (kind, lambda: kind().to_client()) if base else (kind,):
        app = numpy_client_app(lambda context, made=made: made())
        strategy = FedDualAvg(client="unmodified", fraction_train=float(name == "fit"))
        with pytest.raises(ClientError, match=rf"{kind.__name__} has no `{name}`: .*{advice}"):
            simulate(strategy, app, num_nodes=2, num_rounds=1, initial_arrays={"w": np.zeros(3)}, progress=False)


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
    ("name", "value", "advice"),
    [
        ("on_fit_config_fn", print, "train_config="),
        ("initial_parameters", None, "initial_arrays="),
        ("initial_arrays", None, "`start` or `simulate`"),
        ("accept_failures", True, "min_replies"),
        ("proximal_mu", 0.1, '"proximal-mu"'),
        ("min_eval_clients", 2, "min_evaluate_nodes"),
        ("evaluate_fn", print, "`start` or `simulate`"),
        ("num_rounds", 3, "`start` or `simulate`"),
        ("l1", 0.1, r"regularizer=L1\("),
    ],
)
def test_names_of_other_interfaces_get_the_right_advice(name, value, advice):
    with pytest.raises(UnknownOptionError, match=f"{name}=.*FedDualAvg has no such option; .*{advice}"):
        FedDualAvg(**{name: value})


def test_private_options_name_all_that_is_missing():
    with pytest.raises(ConfigurationError, match="without clip, delta, noise_multiplier or target_epsilon"):
        GaussianDP()
    with pytest.raises(ConfigurationError, match="without delta, noise_multiplier or target_epsilon"):
        GaussianDP(clip=1.0)
    with pytest.raises(ConfigurationError, match=r"GaussianDP without noise_multiplier or target_epsilon;"):
        GaussianDP(clip=1.0, delta=1e-5)
