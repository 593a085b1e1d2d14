"""Clients on Ray actors: the bits of one process whoever dies, what is reserved, and nobody else's code."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock, patch

import numpy as np
import pytest
from fault_bars import make, problem_of
from problems import REPRESENTATIVES, SADDLE, after, app_of, clients, nightly, outcome, refused, simulated, start_arrays

from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ClientError, FlwrFcoError, RunInterrupted
from flwr_fco.regularizers import L1
from flwr_fco.regularizers.kinds import FACTORIES
from flwr_fco.simulation import InProcessGrid, RayGrid, grid, room_of
from flwr_fco.strategies import STRATEGIES, FedAvgSubgradient, FedDAGT, FedDualAvg

pytest.importorskip("ray")


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


def on_ray(test):
    return pytest.mark.slow(pytest.mark.flower(test))


#: What one worker reserves, and what the grid that tests share leaves free.
CPUS, FREE = 0.25, 0.5


@pytest.fixture(scope="module")
def ray():
    """A Ray that several grids share, as a user's own would be."""
    module = grid.import_ray()
    grid.start_ray(module, None)
    yield module
    module.shutdown()


def on_actors(app, number=4, **options):
    return RayGrid(app, number, **{"workers": 2, "num_cpus": CPUS, **options})


@pytest.fixture(scope="module")
def actors(ray, tmp_path_factory):
    """A grid that tests share, as a worker imports all of Flower first; and the methods that it has to know by then."""
    mark = tmp_path_factory.mktemp("actors") / "killed"

    def dies(downlink, objective):
        if downlink.vectors["dual"].any() and objective.num_examples == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    dying = after(FedDAGT, "test-suicidal", dies)
    failing = after(FedAvgSubgradient, "test-failing-actor", lambda _, own: 1 // (own.num_examples - 25))
    with on_actors(app_of(clients()), num_cpus=(ray.cluster_resources()["CPU"] - FREE) / 2) as shared:
        yield SimpleNamespace(grid=shared, dying=dying, failing=failing, mark=mark)


# --- the bits of one process --------------------------------------------------------------------------------------


@on_ray
# Whether for saddle points, and by day: all of those are.
@pytest.mark.parametrize("kinds", [(False, True), (True, True), *nightly((False, False))])
def test_every_strategy_gives_the_bits_of_one_process(kinds, actors):
    """One after the other on the same nodes, which keep what the one before has left."""
    # Those that have the same clients.
    names = [name for name in STRATEGIES if (name in SADDLE, name in REPRESENTATIVES) == kinds]
    given = problem_of(names[0], 4) if kinds[0] else SimpleNamespace(objectives=clients(), start=start_arrays())
    here, app = InProcessGrid(app_of(copy.deepcopy(given.objectives)), 4), app_of(copy.deepcopy(given.objectives))
    # That there are several workers is for the other kinds to show.
    with on_actors(app, workers=1) if kinds[0] else contextlib.nullcontext(actors.grid) as there:
        there.restore({})
        for name in names:
            made = [make(name, client_lr=0.02) for _ in range(2)]
            assert outcome(there, made[0], given.start) == outcome(here, made[1], given.start), name


@on_ray
@pytest.mark.parametrize("how", [KeyboardInterrupt, *nightly(RuntimeError, None)])
def test_a_run_leaves_no_actor_on_a_users_ray_however_it_ends(how, ray, actors, tmp_path, monkeypatch):
    """An interrupt comes while a client hangs, before the last actor has been asked, and saves the run."""
    here = os.getpid()

    def hangs(downlink, objective):
        if how is KeyboardInterrupt and downlink.vectors["primal"].any() and objective.num_examples == 7:
            os.kill(here, signal.SIGINT)
            time.sleep(10_000)

    def ends(server_round, arrays, metrics):
        if server_round == 2 and how is not None:
            raise how("enough")

    def slowly(grid, method, node_ids, given):
        # The second actor is asked when the first is at work.
        return ask(grid, method, node_ids, lambda own: (0 in own or time.sleep(1.0), given(own))[1])

    ask = RayGrid._ask
    monkeypatch.setattr(RayGrid, "_ask", slowly)
    saved = Checkpoint(tmp_path / "run.npz")
    own = strategy(after(FedAvgSubgradient, "test-hanging", hangs))
    options = {"engine": "ray", "workers": 2, "num_cpus": CPUS, "callbacks": [ends, saved]}
    error = RunInterrupted if how is KeyboardInterrupt else how
    with pytest.raises(error) if error else contextlib.nullcontext():
        simulated(own, app_of(clients()), 4, on_interrupt="raise", **options)
    assert (saved.saved_round, ray.is_initialized()) == ({KeyboardInterrupt: 1, RuntimeError: 0}.get(how, 4), True)
    assert any(ray.available_resources().get("CPU") == FREE or time.sleep(0.1) for _ in range(100))


@on_ray
def test_no_reply_is_lost_and_no_bit_changes_when_actors_die(ray, actors):
    """Between rounds of a sample of clients with memories, and by one of them in the midst of a round."""
    options = {"fraction_train": 0.5, "seed": 3}
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(FedDAGT, **options), start_arrays(), 10)

    def kills(server_round, arrays, metrics):
        # The one whose clients do not kill it.
        if server_round == 5:
            ray.kill(actors.grid._actors[1])

    there = outcome(actors.grid, strategy(actors.dying, **options), start_arrays(), 10, callbacks=[kills])
    assert (there[:2], there[3], here[3], actors.mark.exists()) == (here[:2], [], [], True)


@on_ray
def test_an_error_of_a_client_is_that_of_one_process(actors):
    found = []
    here = InProcessGrid(app_of(clients()), 4)
    for there, engine in ((here, {}), (actors.grid, {"engine": "ray", "workers": 1, "num_cpus": CPUS})):
        chosen = strategy(actors.failing)
        with pytest.raises(ClientError) as caught:
            outcome(there, chosen, start_arrays())
        result = simulated(chosen, app_of(clients()), 2, raise_errors=False, **engine)
        found.append((str(caught.value), caught.value.node_id, [row.reason for row in result.left_out]))
    assert found[0] == found[1]
    assert ["ZeroDivisionError: integer " in reason for reason in found[0][2]] == [True, True]


@on_ray
def test_two_programs_on_a_cluster_do_not_wait_for_each_other(actors, monkeypatch):
    """Each may have a part of the workers that it wants, and wait for what the other one has. States are restored."""
    monkeypatch.setattr(grid, "_PATIENCE", 5.0)
    refused("room for .*; take fewer", on_actors, app_of(clients()), workers=999)
    first, other = (InProcessGrid(app_of(clients()), 4) for _ in range(2))
    outcome(first, strategy(FedDAGT), start_arrays())
    saved = first.states()
    with on_actors(app_of(clients()), workers=None) as there:
        assert there.workers == 2
        there.restore(saved)
        assert (there.states(), len(saved)) == (saved, 4)
        other.restore(there.states())
    assert other.states() == saved


# Sent to another process, it is an error there, as a GPU's arrays where there is none.
NOWHERE = type("Nowhere", (), {"__reduce__": lambda self: (eval, ("1 / 0",))})()


@on_ray
@pytest.mark.parametrize(("held", "cause"), [(NOWHERE, "ZeroDivisionError: division by zero"), (None, "memory is low")])
def test_a_worker_that_cannot_live_is_said_with_its_cause(held, cause, ray, actors, monkeypatch):
    given = partial(simulated, engine="ray", workers=1, num_cpus=CPUS), strategy(), client_app(lambda _: held), 2
    # Each death starts a process.
    monkeypatch.setattr(grid, "_REPEATS", 1 if held else 0)
    if held is None:
        # Of memory Ray has an error of its own.
        monkeypatch.setattr(ray, "get", Mock(side_effect=ray.exceptions.OutOfMemoryError(cause)))
        given = outcome, actors.grid, strategy(), start_arrays()
    refused(f"worker 0 died {2 if held else 1} times.*: {cause}", *given, kind=FlwrFcoError)


# --- before Ray is started ----------------------------------------------------------------------------------------


def test_an_app_that_cannot_travel_is_refused():
    lock = threading.Lock()
    refused("inside load_objective", RayGrid, client_app(lambda context: lock), 2)


def test_what_a_user_has_registered_goes_to_the_actors():
    # Methods of other tests, made here a second time, would be changed ones.
    with patch.dict(FACTORIES, own=len), patch.object(grid, "methods", dict):
        made = grid._pickled({"client_app": app_of(clients()), "num_nodes": 4})
    grid._Actor(made)
    assert FACTORIES.pop("own") is len


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
    monkeypatch.setattr(grid, "import_ray", lambda address: pytest.fail("Ray is imported"))
    refused(message, simulated, strategy(), app_of(clients()), 1, **{"engine": "ray", **options})


def test_an_address_without_a_cluster_is_an_error_at_once():
    refused("address='ray://127.0.0.1:1': .*; expected a running", grid.start_ray, None, "ray://127.0.0.1:1")


# --- who may use it -----------------------------------------------------------------------------------------------

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

OURS = """
import os, subprocess, sys
from flwr_fco import client_app
from flwr_fco.simulation import RayGrid

STRANGER = '''
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran as", ray.get(ray.remote(lambda: 42).remote(), timeout=60))
'''

with RayGrid(client_app(print), 1, workers=1):
    import ray
    command = [sys.executable, "-c", STRANGER, ray.get_runtime_context().gcs_address]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, os.environ):
        done = subprocess.run(command, env={**environment, **token}, capture_output=True, text=True, timeout=200)
        print("reported", done.returncode, "ran as 42" in done.stdout, "uthenti" in done.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_stranger_is_refused_and_who_has_the_token_is_not(tmp_path):
    pytest.importorskip("ray", minversion="2.52", reason="it has no tokens")
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", OURS], env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    reported = [line for line in done.stdout.splitlines() if line.startswith("reported")]
    assert reported == ["reported 1 False True"] * 2 + ["reported 0 True False"], done.stderr[-2000:]
    assert "demands no token" not in done.stderr


def test_what_the_environment_says_stays(monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    first, second = grid.token_settings(), grid.token_settings()
    assert (first["RAY_AUTH_MODE"], len(first["RAY_AUTH_TOKEN"]), first == second) == ("token", 64, False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/some/file")
    assert grid.token_settings() == {"RAY_AUTH_MODE": "token"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert grid.token_settings() == {}


#: Whether it demands a token, and what is said.
CLUSTERS = [(None, True, ""), (None, False, "on this machine"), ("h:1", False, "cluster at h:1"), ("h:1", True, "")]


@pytest.mark.parametrize(("address", "demands", "said"), CLUSTERS)
def test_where_anybody_can_run_code_it_is_said(monkeypatch, caplog, address, demands, said):
    monkeypatch.setitem(sys.modules, "ray", object())
    monkeypatch.setattr(grid, "_demands_token", lambda: demands)
    before = dict(os.environ)
    assert grid.import_ray(address) is sys.modules["ray"]
    warnings = [record.getMessage() for record in caplog.records if "demands no token" in record.getMessage()]
    assert [said in text for text in warnings] == [True] * bool(said)
    # It is imported already: what is set now would be the raylets' alone.
    assert dict(os.environ) == before
