"""The ClientApp: what it loads, how often, and local solvers as plain functions."""

from dataclasses import dataclass
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
from faulty import strategy
from fresh import run_code
from problems import SIZES, app_of, clients, flat, numpy_of, refused, simulated, start_arrays

from flwr_fco import L1, simulate, strategies
from flwr_fco.algorithms import DualAveraging
from flwr_fco.client_apps import client, client_app
from flwr_fco.client_apps.client import server_buffers
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError, ProtocolError
from flwr_fco.messages.records import partition_of
from flwr_fco.objectives import LeastSquares
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, DualFL, FedDualAvg


def test_data_are_loaded_once_a_run_and_partition_and_then_forgotten(monkeypatch):
    loads, made, before = [], [], len(client._objectives)
    # The method is made once a run: a notebook may define its class anew.
    monkeypatch.setattr(client, "method_of", lambda *own, make=client.method_of: made.append(1) or make(*own))
    app = client_app(lambda context: loads.append(m := context.node_config["partition-id"]) or clients((6,) * 4)[m])
    for repeat in (1, 2):
        simulated(strategy(), app, 3)
        assert sorted(loads) == sorted([0, 1, 2, 3] * repeat)
        assert (len(client._objectives), len(made)) == (before, repeat)


def test_another_thread_may_load_while_a_run_is_forgotten_or_forget_first():
    def loads(run_id=0, other=0):
        client._objectives["", "train", 0, len(client._objectives)] = None

    loads(loads())
    client.forget_objectives(type("Meanwhile", (int,), {"__eq__": loads, "__hash__": int.__hash__})())
    client.forget_objectives(0)
    state = type("State", (dict,), {"__iter__": lambda own: iter(["fco-memory gone"])})()
    client.remember(SimpleNamespace(state=state), "", None, "new", {})
    assert dict.keys(state) == {"fco-memory ", "fco-memory new"}


def test_copies_of_an_app_find_what_the_first_has_loaded(capsys):
    """Flower's simulation may pickle the app with every message."""
    grid = InProcessGrid(app := client_app(lambda context: print("loaded") or clients()[0]), 2)
    with grid.identity():
        for _ in range(2):
            grid.client_app = cloudpickle.loads(cloudpickle.dumps(app))
            strategy().start(grid, start_arrays(), 1)
    client.forget_objectives(grid.run_id)
    assert capsys.readouterr().out.count("loaded") == 2


def test_classes_of_a_script_run_in_another_process_too():
    """As joblib sends them to it: by value, and without their names at first."""

    class Method(DualAveraging):
        name = "of-a-script"

    @strategies.strategy
    class Own(FedDualAvg):
        algorithm = Method
        option: float = 0.5

    @dataclass(frozen=True)
    class Psi(L1):
        kind = "of-a-script"

    def run():
        start = {"coefficients": np.zeros(3), "intercept": np.zeros(1)}
        found = simulate(Own(regularizer=Psi(0.1)), app, num_nodes=2, num_rounds=2, initial_arrays=start)
        return found.arrays["coefficients"].numpy().tolist()

    rows = np.random.default_rng(0).normal(size=(9, 3))
    app = client_app(lambda context: LeastSquares(rows, rows[:, 0]), mods=[lambda *given: given[2](*given[:2])])
    done = run_code(f"import pickle\n\nprint(pickle.loads({cloudpickle.dumps(run)!r})())\n")
    assert done.stdout.splitlines()[-1] == str(first := run())
    # A notebook's cell that is run again, in which its author has changed what clients do.
    changed = {"local": lambda self, client, down, memory: client.dual_steps(down.vectors["dual"], psi=False)}
    Own.algorithm = type("", (Method,), {**vars(Method), "__qualname__": Method.__qualname__, **changed})
    assert run() != first


def test_evaluation_may_have_data_of_its_own():
    test = clients((9, 8, 7, 6), seed=7)
    held_out = {"load_evaluation_objective": lambda context: test[context.node_config["partition-id"]]}
    chosen = strategy(fraction_evaluate=1.0, bounds=Bounds(rows=dict(enumerate(SIZES))))
    result = simulated(chosen, app_of(clients(), **held_out), 3)
    expected = np.average([o.value(flat(result.arrays)) for o in test], weights=[o.num_examples for o in test])
    assert result.evaluate_metrics_clientapp[3]["loss"] == pytest.approx(expected, rel=1e-14)


def test_what_is_no_objective_is_refused():
    refused("load_objective returned 3", simulated, strategy(), client_app(lambda context: 3), 1, kind=ClientError)
    refused(r"load_objective=.* is a LeastSquares; expected a function of 1 arg", client_app, clients()[0])
    own = type("Own", (LeastSquares,), {"metrics": lambda self, w: {"loss": None}})(np.eye(6), np.ones(6))
    said = r"Own.metrics\(w\), by default {'loss': value\(w\)}: .*None.*; expected numbers by name"
    refused(said, simulated, strategy(fraction_evaluate=1.0), app_of([own] * 4), 1, kind=ClientError)
    # An error of a client of ours is no sign of a ClientApp of FedAvg.
    own = type("Own", (LeastSquares,), {"batches": lambda *_, **more: {}["dual"]})(np.eye(6), np.ones(6))
    refused(r"\(train\): 'dual'$", simulated, strategy(), app_of([own] * 4), 1, kind=ClientError)
    said = r"load_evaluation_objective=.* is a list; expected a function of 1 argument or None"
    refused(said, client_app, lambda context: clients()[0], load_evaluation_objective=clients())
    named = SimpleNamespace(node_config={"partition-id": "north"}, node_id=2)
    refused("'partition-id' is no whole number: .*'north'; set another", partition_of, named, kind=ProtocolError)


class Counting(LeastSquares):
    """Least squares with a counter of rounds, which is part of the model but not optimised."""

    count = np.array(0)
    stride = 1

    def batches(self, rng, work, per_step=1):
        self.count = self.count + self.stride
        yield from super().batches(rng, work, per_step)

    def buffers(self):
        return {"count": int(self.count)}

    def load_buffers(self, buffers):
        assert buffers.keys() == {"count"}
        self.count = buffers["count"]

    def metrics(self, w):
        return super().metrics(w) | {"count": float(self.count)}


@pytest.mark.parametrize("mods", [(), (lambda message, context, call_next: call_next(message, context),)])
def test_buffers_travel_both_ways(mods):
    """What the server has is loaded before the local solver and before metrics; what the client has is answered."""
    start = {**numpy_of(start_arrays()), "count": np.array(4)}
    objectives = [Counting(own.features, own.targets) for own in clients()]
    for m, own in enumerate(objectives, start=1):
        own.layout = Layout.from_arrays(start, apply_to="coefficients")
        own.stride = m
    # An answer about the server's buffers leaves the client's own.
    with server_buffers(own := objectives[0], {"count": np.array(9)}):
        assert own.count == 9
    assert own.count == 0
    chosen = strategy(fraction_evaluate=1.0, weighting="uniform")
    result = simulated(chosen, app_of(objectives, mods), 2, initial_arrays=start)
    # Of 4 + (1, 2, 3, 4) the mean is 6.5; whole numbers go on, those of the model that is evaluated.
    counts = [result.evaluate_metrics_clientapp[number]["count"] for number in (1, 2)]
    assert counts[1] == result.arrays["count"].numpy()
    assert counts in ([6, 8], [6, 9], [7, 9], [7, 10])


@pytest.mark.parametrize(("kind", "options"), [(FedDualAvg, {"client_lr": 0.01}), (DualFL, {"nu": 0.1})])
def test_a_run_whose_clients_are_forgotten_has_the_same_bits(kind, options):
    held = []

    def load(context):
        held.append(len(client._objectives))
        own = clients()[context.node_config["partition-id"]]
        return LeastSquares(own.features, own.targets, l2=0.1)

    def end(**limits):
        held.clear()
        return flat(simulated(kind(**options), client_app(load, **limits), 3).arrays)

    whole = end()
    assert len(held) == 4
    before = len(client._objectives)
    np.testing.assert_array_equal(end(max_objectives=1), whole)
    assert len(held) >= 12
    assert max(held) <= before + 1
