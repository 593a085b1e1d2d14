"""Clients in other processes: the bits of one process, whoever dies, and nothing left behind."""

import copy
import os
import signal
import threading
import time

import numpy as np
import pytest
from flwr.app import ArrayRecord
from representatives import by_class
from scipy import sparse

from flwr_fco.client_apps import client_app, find_solver
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, Processes, RayActors, WorkerGrid, simulate
from flwr_fco.strategies import FedAvgSubgradient, FedDAGT, FedDualAvg, run_of
from flwr_fco.wire import flower
from tests.fault_bars import make, problem_of
from tests.problems import app_of, clients, solved_by, start_arrays


@pytest.fixture(scope="module")
def mortal():
    """Workers that tests kill."""
    with Processes(2) as both:
        yield both


def outcome(grid, strategy, start, rounds=4, **options):
    with flower.identity(grid.run_id), flower.quiet(50):
        result = strategy.start(grid, start, rounds, **options)
    state = [np.asarray(value).tobytes() for value in strategy.state]
    arrays = {name: array.numpy().tobytes() for name, array in result.arrays.items()}
    metrics = {k: dict(v) for k, v in result.train_metrics_clientapp.items()}
    return arrays, state, metrics, run_of(strategy).left_out, dict(sorted(grid.states().items()))


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


def gives_the_bits_of_one_process(name, workers):
    objectives = problem_of(name).objectives
    layout = objectives[0].layout
    start = ArrayRecord({n: flower.serialised(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    here = outcome(InProcessGrid(app_of(copy.deepcopy(objectives)), len(objectives)), make(name), start)
    with WorkerGrid(workers, app_of(copy.deepcopy(objectives)), len(objectives)) as grid:
        assert outcome(grid, make(name), start) == here


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_gives_the_bits_of_one_process(name, workers):
    gives_the_bits_of_one_process(name, workers)


def killing(workers, worker, number):
    def callback(server_round, arrays, metrics):
        if server_round == number:
            os.kill(workers.pids()[worker], signal.SIGKILL)

    return callback


@pytest.mark.parametrize(
    "make_strategy",
    [
        pytest.param(strategy, marks=pytest.mark.nightly),
        pytest.param(lambda: strategy(fraction_train=0.5, seed=3), marks=pytest.mark.nightly),
        pytest.param(lambda: strategy(FedDAGT, client_state="ledger"), marks=pytest.mark.nightly),
        lambda: strategy(FedDAGT, client_state="ledger", fraction_train=0.5),
    ],
    ids=["stateless", "a sample", "a ledger", "a ledger, a sample"],
)
def test_no_reply_is_lost_and_no_bit_changes_when_a_worker_dies(make_strategy, mortal):
    here = outcome(InProcessGrid(app_of(clients()), 4), make_strategy(), start_arrays(), 12)
    with WorkerGrid(mortal, app_of(clients()), 4) as grid:
        there = outcome(grid, make_strategy(), start_arrays(), 12, callbacks=[killing(mortal, 0, 6)])
    assert there[:2] == here[:2]
    for number, metrics in there[2].items():
        assert metrics["num-replies"] == here[2][number]["num-replies"]
        assert metrics["skipped"] == 0


def sparse_load(context):
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = sparse.random_array((20, 3000), density=0.002, rng=rng, format="csr")
    return LeastSquares(features, np.asarray(features.sum(axis=1)).ravel())


def test_sparse_vectors_travel_to_workers_too(mortal):
    start = ArrayRecord(
        {"coefficients": flower.serialised(np.zeros(3000)), "intercept": flower.serialised(np.zeros(1))}
    )
    here = outcome(InProcessGrid(client_app(sparse_load), 4), strategy(), start, 8)
    with WorkerGrid(mortal, client_app(sparse_load), 4) as grid:
        there = outcome(grid, strategy(), start, 8, callbacks=[killing(mortal, 1, 4)])
    assert there[:2] == here[:2]
    assert [m["bytes-up"] for m in there[2].values()][:4] == [m["bytes-up"] for m in here[2].values()][:4]
    assert here[2][3]["bytes-up"] < 4 * 3000 * 8 / 2


def test_a_worker_that_dies_while_it_computes_is_replaced(tmp_path, mortal):
    """Killed by its client itself, in the midst of round 3 and of this round only."""
    mark = tmp_path / "killed"

    def suicidal(downlink, objective, state, rng):
        if downlink.vectors["primal"].any() and objective.num_examples == 7 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return find_solver("subgradient")(downlink, objective, state, rng)

    app = app_of(clients())
    options = {"client_lr": 0.02, "fraction_evaluate": 0.0}
    plain = outcome(InProcessGrid(app, 4), FedAvgSubgradient(**options), start_arrays())
    own = solved_by(FedAvgSubgradient, "test-suicidal", suicidal)
    with WorkerGrid(mortal, app, 4) as grid:
        assert outcome(grid, own(**options), start_arrays())[0] == plain[0]
    assert mark.exists()


def test_a_worker_that_dies_is_missed_though_a_program_of_its_client_lives_on(tmp_path):
    objectives = clients()

    def load(context):
        if context.node_config["partition-id"] == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.system("sleep 60 & echo $! > " + str(tmp_path / "program"))
            os.kill(os.getpid(), signal.SIGKILL)
        return objectives[context.node_config["partition-id"]]

    began = time.monotonic()
    simulate(
        strategy(),
        client_app(load),
        num_nodes=4,
        num_rounds=1,
        initial_arrays=start_arrays(),
        engine="processes",
        workers=2,
    )
    seconds = time.monotonic() - began
    os.kill(int((tmp_path / "program").read_text()), signal.SIGKILL)
    assert seconds < 50


def test_clients_that_always_kill_their_worker_end_in_an_error():
    app = client_app(lambda context: os._exit(3))
    with pytest.raises(FlwrFcoError, match="died 3 times in the same call: exit status 3"):
        simulate(
            strategy(), app, num_nodes=2, num_rounds=2, initial_arrays=start_arrays(), engine="processes", workers=1
        )


def test_an_error_of_a_client_is_that_of_one_process(workers):
    def load(context):
        if context.node_config["partition-id"] == 1:
            raise ZeroDivisionError("no rows")
        return clients()[0]

    texts = []
    for engine in ("in-process", workers):
        with pytest.raises(ClientError) as caught:
            simulate(
                strategy(),
                client_app(load),
                num_nodes=4,
                num_rounds=2,
                initial_arrays=start_arrays(),
                engine=engine,
            )
        texts.append((str(caught.value), caught.value.node_id))
    assert texts[0] == texts[1]


def test_an_app_that_cannot_travel_is_refused_and_one_with_data_is_named(workers, caplog):
    lock = threading.Lock()
    with pytest.raises(ConfigurationError, match="inside load_objective"):
        WorkerGrid(workers, client_app(lambda context: lock), 2)
    many = LeastSquares(np.ones((2000, 600)), np.ones(2000))
    with WorkerGrid(workers, client_app(lambda context: many), 2):
        assert "carries 10 MB of data" in caplog.text


def test_every_worker_loads_its_own_clients_only(tmp_path, workers):
    def load(context):
        partition = context.node_config["partition-id"]
        (tmp_path / f"{os.getpid()}-{partition}").touch()
        return clients()[partition]

    for _ in range(2):
        simulate(
            strategy(),
            client_app(load),
            num_nodes=4,
            num_rounds=3,
            initial_arrays=start_arrays(),
            engine=workers,
        )
    loaded = sorted(path.name.split("-") for path in tmp_path.iterdir())
    assert sorted(int(partition) for _, partition in loaded) == [0, 1, 2, 3]
    assert {int(pid) for pid, _ in loaded} == set(workers.pids())


def test_what_the_nodes_remember_is_saved_and_restored(workers):
    with WorkerGrid(workers, app_of(clients()), 4) as grid:
        outcome(grid, strategy(FedDAGT), start_arrays())
        saved = grid.to_arrays()
    other = InProcessGrid(app_of(clients()), 4)
    other.from_arrays(saved)
    with WorkerGrid(workers, app_of(clients()), 4) as grid:
        grid.from_arrays(saved)
        assert grid.states() == other.states()
        assert len(grid.states()) == 4
        with pytest.raises(ValueError, match="of 4 nodes, and there are 3"):
            InProcessGrid(app_of(clients()), 3).from_arrays(saved)


def test_no_process_is_left_where_a_run_is_interrupted():
    pids = []

    def callback(server_round, arrays, metrics):
        raise KeyboardInterrupt

    with Processes(1) as own:
        pids += own.pids()
        result = simulate(
            strategy(),
            app_of(clients()),
            num_nodes=4,
            num_rounds=9,
            initial_arrays=start_arrays(),
            engine=own,
            callbacks=[callback],
        )
    assert max(result.train_metrics_clientapp) == 1
    time.sleep(0.1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_have_ended_take_no_run():
    with Processes(1) as ended:
        pass
    ended.close()
    with pytest.raises(ConfigurationError, match="Processes are closed; run inside of their `with` block"):
        simulate(strategy(), app_of(clients()), num_nodes=4, num_rounds=1, initial_arrays=start_arrays(), engine=ended)


def test_workers_are_for_engines_that_have_them():
    with pytest.raises(ConfigurationError, match="engine='processes'"):
        simulate(strategy(), app_of(clients()), num_nodes=4, num_rounds=1, initial_arrays=start_arrays(), workers=2)


def two_raylets():
    """A cluster of two machines on this one; a raylet may not come up in time on a busy machine."""
    from ray.cluster_utils import Cluster

    for attempt in range(3):
        try:
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
            return cluster, cluster.add_node(num_cpus=1)
        except Exception:
            if attempt == 2:
                raise
    raise AssertionError


@pytest.mark.flower
@pytest.mark.nightly
def test_on_a_cluster_of_two_machines_one_may_go():
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(), start_arrays(), 10)
    cluster, second = two_raylets()

    def callback(server_round, arrays, metrics):
        if server_round == 5:
            cluster.remove_node(second, allow_graceful=False)

    try:
        with RayActors(2, address=cluster.address) as actors, WorkerGrid(actors, app_of(clients()), 4) as grid:
            there = outcome(grid, strategy(), start_arrays(), 10, callbacks=[callback])
    finally:
        cluster.shutdown()
    assert there[:2] == here[:2]
    assert {metrics["num-replies"] for metrics in there[2].values()} == {4}


@pytest.mark.flower
@pytest.mark.slow
def test_actors_of_rays_give_the_bits_of_one_process_and_one_that_dies_is_replaced():
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(), start_arrays(), 10)

    def callback(server_round, arrays, metrics):
        if server_round == 5:
            actors.kill(0)

    with RayActors(2, num_cpus=0.5) as actors, WorkerGrid(actors, app_of(clients()), 4) as grid:
        there = outcome(grid, strategy(), start_arrays(), 10, callbacks=[callback])
    assert there[:2] == here[:2]
    assert {metrics["num-replies"] for metrics in there[2].values()} == {4}


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_a_number_of_workers_that_is_none_is_refused(number):
    with pytest.raises(ConfigurationError, match=f"workers={number!r}"):
        Processes(number)
