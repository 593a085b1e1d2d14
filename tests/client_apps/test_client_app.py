"""The ClientApp: what it loads, how often, and local solvers as plain functions."""

import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from flwr.app import Array
from problems import FEATURES, clients, run, solved_by, start_arrays

from flwr_fco.client_apps import client_app, find_solver, training
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Epochs, FedDualAvg, FedMidOSP, Steps
from flwr_fco.wire.protocol import Downlink, Plan, Uplink
from flwr_fco.work import FirstOrder


def strategy(**options):
    return FedDualAvg(
        **{
            "regularizer": L1(0.3),
            "client_lr": 0.02,
            "work": Epochs(1, batch_size=5),
            "fraction_evaluate": 0.0,
            **options,
        }
    )


def go(app, rounds=3, chosen=None, nodes=4):
    return simulate(
        chosen or strategy(), app, num_nodes=nodes, num_rounds=rounds, initial_arrays=start_arrays(), progress=False
    )


def test_data_are_loaded_once_a_run_and_partition_and_then_forgotten():
    loads = []
    objectives = clients()
    before = len(training._objectives)

    def load(context):
        loads.append(context.node_config["partition-id"])
        return objectives[loads[-1]]

    app = client_app(load)
    go(app)
    assert sorted(loads) == [0, 1, 2, 3]
    assert len(training._objectives) == before
    go(app)
    assert len(loads) == 8


def test_two_apps_do_not_share_data():
    one, two = clients(seed=0), clients(seed=1)

    def app_of(objectives):
        return client_app(lambda context: objectives[context.node_config["partition-id"]])

    first, second = go(app_of(one)), go(app_of(two))
    assert first.arrays["coefficients"] != second.arrays["coefficients"]


def test_copies_of_an_app_find_what_the_first_has_loaded():
    """Flower's simulation may pickle the app with every message."""
    from flwr_fco.simulation import InProcessGrid
    from flwr_fco.wire import flower as _flower

    loads = []
    objectives = clients()
    training._test_loads = loads

    def load(context):
        from flwr_fco.client_apps import training as module

        module._test_loads.append(1)
        return objectives[0]

    app = client_app(load)
    grid = InProcessGrid(app, 2)
    chosen = strategy()
    try:
        with _flower.identity(grid.run_id):
            for _ in range(2):
                grid.client_app = cloudpickle.loads(cloudpickle.dumps(app))
                chosen.start(grid, start_arrays(), 1)
        assert len(loads) == 2
    finally:
        training.forget_objectives(grid.run_id)
        del training._test_loads


def test_evaluation_may_have_data_of_its_own():
    train, test = clients(seed=0), clients(seed=7)
    app = client_app(
        lambda context: train[context.node_config["partition-id"]],
        load_evaluation_objective=lambda context: test[context.node_config["partition-id"]],
    )
    result = go(app, chosen=strategy(fraction_evaluate=1.0))
    w = np.concatenate([result.arrays[name].numpy() for name in ("coefficients", "intercept")])
    expected = np.average([o.value(w) for o in test], weights=[o.num_examples for o in test])
    assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(expected, rel=1e-14)


def test_what_is_no_objective_is_refused():
    with pytest.raises(ClientError, match="load_objective returned 3"):
        go(client_app(lambda context: 3))


def test_what_cannot_load_an_objective_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="load_objective is a LeastSquares; expected a function"):
        client_app(clients()[0])
    with pytest.raises(ConfigurationError, match="load_evaluation_objective is a list; expected a function"):
        client_app(lambda context: clients()[0], load_evaluation_objective=clients())


def plan(batch_size=None):
    layout = clients()[0].layout
    settings = {"client-prox": True, "trajectory": False}
    work = FirstOrder(batch_size=batch_size)
    return Plan("dual_averaging", layout, L1(0.3), Euclidean(), work=work, options=settings)


def test_a_local_solver_is_a_pure_function():
    objective = clients()[0]
    dual = np.linspace(-1.0, 1.0, FEATURES + 1)
    dual.flags.writeable = False
    downlink = Downlink(plan(), {"dual": dual}, client_lr=0.1, elapsed=0.5)
    uplink, state = find_solver("dual_averaging")(downlink, objective, None, np.random.default_rng(0))
    primal = Euclidean().retrieve(dual.copy(), 0.5, L1(0.3).bind(objective.layout))
    np.testing.assert_allclose(uplink.vectors["increment"], -0.1 * objective.gradient(primal), rtol=1e-13)
    assert (uplink.elapsed, uplink.steps, state) == (0.1, 1, None)


class Counting(LeastSquares):
    """Least squares with a counter of rounds, which is part of the model but not optimised."""

    def __init__(self, features, targets, stride):
        super().__init__(features, targets)
        self.count, self.stride = np.array(0), stride
        arrays = self.layout.views(np.zeros(self.layout.size)) | {"count": self.count}
        self.layout = Layout.from_arrays(arrays, apply_to="coefficients")

    def batches(self, rng, work, per_step=1):
        self.count += self.stride
        yield from super().batches(rng, work, per_step)

    def buffers(self):
        return {"count": self.count.copy()}

    def load_buffers(self, buffers):
        if buffers.keys() != {"count"}:
            raise ConfigurationError(f"got {sorted(buffers)}, expected count")
        self.count = buffers["count"].copy()

    def metrics(self, w):
        return super().metrics(w) | {"count": float(self.count)}


def test_buffers_travel_both_ways(monkeypatch):
    """What the server has is loaded before the local solver and before metrics; what the client has is answered."""
    objectives = [Counting(o.features, o.targets, m) for m, o in enumerate(clients(), start=1)]
    read, write, answered = training.read_downlink, training.uplink_answer, []

    def read_downlink(*arguments, **options):
        return read(*arguments, **options)._replace(pass_through={"count": np.array(10)})

    def uplink_answer(message, uplink, **options):
        answered.append(dict(uplink.pass_through))
        return write(message, uplink, **options)

    monkeypatch.setattr(training, "read_downlink", read_downlink)
    monkeypatch.setattr(training, "uplink_answer", uplink_answer)
    start = start_arrays()
    start["count"] = Array(np.array(4))
    app = client_app(lambda context: objectives[context.node_config["partition-id"]])
    result = simulate(
        strategy(fraction_evaluate=1.0), app, num_nodes=4, num_rounds=2, initial_arrays=start, progress=False
    )
    assert [buffers["count"] for buffers in answered] == [11, 12, 13, 14] * 2
    # The model that is evaluated is the server's, on every client.
    assert result.evaluate_metrics_clientapp[2]["count"] == result.arrays["count"].numpy()


def test_an_algorithm_that_the_client_does_not_have_is_named():
    with pytest.raises(ConfigurationError, match=r"'quantum_descent'; this client knows .*, dual_averaging, "):
        find_solver("quantum_descent")


def test_a_solver_of_ones_own():
    def one_step(downlink, objective, state, rng):
        primal = downlink.vectors["primal"]
        step = -downlink.client_lr * objective.gradient(primal)
        return Uplink({"increment": step}, downlink.client_lr, 1), state

    own = solved_by(FedMidOSP, "one step of a test", one_step)
    ours = run(own(regularizer=L1(0.3), client_lr=0.05), clients(), 5)
    theirs = run(FedMidOSP(regularizer=L1(0.3), client_lr=0.05, work=Steps(1, batch_size=None)), clients(), 5)
    np.testing.assert_allclose(
        ours.arrays["coefficients"].numpy(), theirs.arrays["coefficients"].numpy(), rtol=0, atol=1e-15
    )


@pytest.mark.parametrize(("name", "frozen"), [("flwr-clientapp", True), ("notebook", False)])
def test_only_a_process_of_one_message_ends_without_a_search_for_garbage(name, frozen, tmp_path):
    path = tmp_path / "told"
    code = (
        f"import gc, sys; sys.argv = ['/bin/{name}']\n"
        "from flwr_fco import client_app\n"
        "client_app(lambda context: None)\n"
        f"file = open({str(path)!r}, 'w'); file.write(str(gc.get_freeze_count() > 0))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    # What is open is written all the same.
    assert path.read_text() == str(frozen)
