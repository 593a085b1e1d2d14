"""Clients on Ray actors: the bits of one process whoever dies, what is reserved, and nobody else's code."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fault_bars import make, problem_of
from problems import REPRESENTATIVES, SADDLE, after, app_of, clients, nightly, outcome, simulated, start_arrays, zeros

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError, ConfigurationError, RunInterrupted
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, RayGrid, ray_grid, room_of
from flwr_fco.strategies import STRATEGIES, FedAvgSubgradient, FedDAGT, FedDualAvg

pytest.importorskip("ray")


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


def on_ray(test):
    return pytest.mark.slow(pytest.mark.flower(test))


@pytest.fixture(scope="module")
def ray():
    """A Ray that several grids share, as a user's own would be."""
    module = ray_grid.import_ray()
    ray_grid.start_ray(module, None)
    yield module
    module.shutdown()


def on_actors(app, number=4, **options):
    return RayGrid(app, number, **{"workers": 2, "num_cpus": 0.5, **options})


# --- the bits of one process --------------------------------------------------------------------------------------


# An actor's process imports all of Flower before it does anything: strategies share their actors.
@on_ray
@pytest.mark.parametrize("saddle", [False, True])
@pytest.mark.parametrize("day", [True, *nightly(False)])
def test_every_strategy_gives_the_bits_of_one_process(saddle, day, ray):
    """One after the other on the same nodes, which keep what the one before has left."""
    # Those that have the same clients.
    names = [name for name in STRATEGIES if (name in SADDLE) == saddle and (name in REPRESENTATIVES) == day]
    objectives = problem_of(names[0]).objectives
    start = zeros(objectives[0].layout)
    number = len(objectives)
    here = InProcessGrid(app_of(copy.deepcopy(objectives)), number)
    with on_actors(app_of(copy.deepcopy(objectives)), number) as there:
        for name in names:
            assert outcome(there, make(name), start) == outcome(here, make(name), start), name


@on_ray
@pytest.mark.parametrize("how", [KeyboardInterrupt, *nightly(RuntimeError, None)])
def test_a_run_leaves_no_actor_on_a_users_ray_however_it_ends(how, ray):
    # What is free now may lack actors of a test before, which Ray is still ending.
    everything = ray.cluster_resources()["CPU"]

    def ends(server_round, arrays, metrics):
        if server_round == 2 and how is not None:
            raise how("enough")

    options = {"engine": "ray", "workers": 2, "num_cpus": 0.5, "callbacks": [ends]}
    error = RunInterrupted if how is KeyboardInterrupt else how
    with pytest.raises(error) if error else contextlib.nullcontext():
        simulated(strategy(), app_of(clients()), 4, on_interrupt="raise", **options)
    assert ray.is_initialized()
    for _ in range(100):
        if ray.available_resources().get("CPU") == everything:
            break
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == everything


@on_ray
def test_no_reply_is_lost_and_no_bit_changes_when_an_actor_dies(ray):
    """Of a sample of clients with memories."""
    options = {"cls": FedDAGT, "fraction_train": 0.5, "seed": 3}
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(**options), start_arrays(), 10)
    with on_actors(app_of(clients())) as grid:

        def kills(server_round, arrays, metrics):
            if server_round in (5, 6):
                ray.kill(grid._actors[server_round - 5])

        there = outcome(grid, strategy(**options), start_arrays(), 10, callbacks=[kills])
    assert there[:2] == here[:2]
    assert there[3] == here[3] == []


@on_ray
def test_an_actor_that_dies_while_it_computes_is_replaced(tmp_path, ray):
    """Killed by its client itself, in the midst of round 3 and of this round only."""
    mark = tmp_path / "killed"

    def dies(downlink, objective):
        if downlink.vectors["primal"].any() and objective.num_examples == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    plain = outcome(InProcessGrid(app_of(clients()), 4), strategy(FedAvgSubgradient), start_arrays())
    own = strategy(after(FedAvgSubgradient, "test-suicidal", dies))
    with on_actors(app_of(clients())) as grid:
        assert outcome(grid, own, start_arrays())[0] == plain[0]
    assert mark.exists()


@on_ray
def test_an_error_of_a_client_is_that_of_one_process(ray):
    def fails(downlink, objective):
        if objective.num_examples == 25:
            raise ZeroDivisionError("no rows")

    found = []
    for engine in ({}, {"engine": "ray", "workers": 1, "num_cpus": 0.5}):
        chosen = strategy(after(FedAvgSubgradient, "test-failing-actor", fails))
        with pytest.raises(ClientError) as caught:
            simulated(chosen, app_of(clients()), 2, **engine)
        result = simulated(chosen, app_of(clients()), 2, raise_errors=False, **engine)
        found.append((str(caught.value), caught.value.node_id, [row.reason for row in result.left_out]))
    assert found[0] == found[1]
    assert "node 3 (partition 1) raised ZeroDivisionError in round 1 (train): no rows" in found[0][0]
    assert len(found[0][2]) == 2
    assert "ZeroDivisionError: no rows" in found[0][2][0]


@on_ray
def test_what_the_nodes_remember_is_saved_and_restored(ray):
    first, other = (InProcessGrid(app_of(clients()), 4) for _ in range(2))
    outcome(first, strategy(FedDAGT), start_arrays())
    saved = first.states()
    assert len(saved) == 4
    with on_actors(app_of(clients())) as grid:
        grid.restore(saved)
        assert grid.states() == saved
        other.restore(grid.states())
    assert other.states() == saved


# --- before Ray is started ----------------------------------------------------------------------------------------


def test_an_app_that_cannot_travel_is_refused():
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="inside load_objective"):
        RayGrid(client_app(lambda context: lock), 2)


def cluster(*machines):
    """Stand in for Ray, connected to machines with so many cores and GPUs, and one that is gone."""
    nodes = [{"Alive": True, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}} for cpus, gpus in machines]
    return SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}])


ROOMS = [([(8, 0), (8, 0)], 3, 0, 4), ([(8, 1), (8, 0)], 1, 0.25, 4)]
ROOMS += [([(2, 2), (16, 0)], 0, 1, 2), ([(2, 0)], 0, 0, np.inf)]


@pytest.mark.parametrize(("machines", "num_cpus", "num_gpus", "room"), ROOMS)
def test_a_worker_is_on_one_machine(machines, num_cpus, num_gpus, room):
    assert room_of(cluster(*machines), num_cpus, num_gpus) == room


NO_NUMBER = "expected (a finite number >= 0|part of 1, or a whole number)"


NO_RESERVATIONS = [
    *(({"num_cpus": number}, NO_NUMBER) for number in (-1, np.nan, np.inf)),
    *(({"num_cpus": 1, "num_gpus": number}, NO_NUMBER) for number in (-0.5, np.nan, 1.5)),
    *(({"workers": number}, f"workers={number!r}") for number in (0, -1, 1.5, True, "2")),
    ({"engine": "in-process", "num_gpus": 1}, "num_gpus=1 with engine='in-process', which has none"),
    ({"engine": "in-process", "workers": 2}, "workers=2 with engine='in-process', which has none"),
    ({"engine": "processes"}, "engine='processes'"),
]


@pytest.mark.parametrize(("options", "message"), NO_RESERVATIONS)
def test_what_cannot_be_reserved_is_refused_before_ray_starts(options, message, monkeypatch):
    monkeypatch.setattr(ray_grid, "import_ray", lambda address: pytest.fail("Ray is imported"))
    with pytest.raises(ConfigurationError, match=message):
        simulated(strategy(), app_of(clients()), 1, **{"engine": "ray", **options})


def test_an_address_without_a_cluster_is_an_error_at_once():
    with pytest.raises(ConfigurationError, match=r"address='ray://127.0.0.1:1': .*; expected a running cluster"):
        ray_grid.start_ray(None, "ray://127.0.0.1:1")


# --- who may use it -----------------------------------------------------------------------------------------------

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

OURS = """
import os, subprocess, sys
from flwr_fco import client_app
from flwr_fco.simulation import RayGrid

STRANGER = '''
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran as", ray.get(ray.remote(lambda: 42).remote(), timeout=60))
'''

with RayGrid(client_app(print), 1, workers=1):
    import ray
    address = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        done = subprocess.run([sys.executable, "-c", STRANGER, address], env={**environment, **token},
                              capture_output=True, text=True, timeout=200)
        print("stranger", done.returncode, "ran as" in done.stdout, "uthenti" in done.stderr, flush=True)
    done = subprocess.run([sys.executable, "-c", STRANGER, address], capture_output=True, text=True, timeout=200)
    print("friend", done.returncode, "ran as 42" in done.stdout, flush=True)
"""


@pytest.mark.slow
def test_a_stranger_is_refused_and_who_has_the_token_is_not(tmp_path):
    if not ray_grid.token_settings():
        pytest.skip("this Ray has no tokens, or the environment says something else")
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OURS], env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    reported = [line for line in done.stdout.splitlines() if line.startswith(("stranger", "friend"))]
    assert reported == ["stranger 1 False True"] * 2 + ["friend 0 True"], done.stderr[-2000:]
    assert "demands no token" not in done.stderr


def test_what_the_environment_says_stays(monkeypatch):
    monkeypatch.setattr(ray_grid, "version", lambda name: "2.55.1")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    first, second = ray_grid.token_settings(), ray_grid.token_settings()
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first != second
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/some/file")
    assert ray_grid.token_settings() == {"RAY_AUTH_MODE": "token"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert ray_grid.token_settings() == {}


#: Whether it demands a token, and what is said.
CLUSTERS = [(None, True, ""), (None, False, "on this machine"), ("h:1", False, "cluster at h:1"), ("h:1", True, "")]


@pytest.mark.parametrize(("address", "demands", "said"), CLUSTERS)
def test_where_anybody_can_run_code_it_is_said(monkeypatch, caplog, address, demands, said):
    monkeypatch.setitem(sys.modules, "ray", object())
    monkeypatch.setattr(ray_grid, "_demands_token", lambda: demands)
    before = dict(os.environ)
    assert ray_grid.import_ray(address) is sys.modules["ray"]
    warnings = [record.getMessage() for record in caplog.records if "demands no token" in record.getMessage()]
    assert len(warnings) == bool(said)
    assert not said or said in warnings[0]
    # It is imported already: what is set now would be the raylets' alone.
    assert dict(os.environ) == before
