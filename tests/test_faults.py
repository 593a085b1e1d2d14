"""The fault-injecting grid and mod: each fault does what it says, and nothing else happens."""

import numpy as np
import pytest
from faults import FAULTS, FaultyGrid, Injected, fault_mod
from problems import app_of, clients, flat, run, simulated, start_arrays
from together import together

from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.logs import quiet
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg


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


def start_on(grid, chosen=None, rounds=6, **options):
    with grid.identity(), quiet(50), single_threaded_blas():
        # Among four clients nothing is compared with a median: absurd numbers may make the run diverge.
        return (chosen or strategy(on_divergence="warn")).start(grid, start_arrays(), rounds, **options)


def faulty(faults, **options):
    return FaultyGrid(app_of(clients()), 4, faults, **options)


@together("fault", [*FAULTS, "delay", "leave"])
def test_the_same_seed_meets_the_same_faults(fault):
    grids = [faulty({fault: 0.3}, seed=seed) for seed in (1, 1, 2)]
    results = [start_on(grid) for grid in grids[:2]]
    start_on(grids[2])
    assert grids[0].injected == grids[1].injected
    assert grids[0].injected != grids[2].injected
    assert grids[0].injected
    np.testing.assert_array_equal(flat(results[0].arrays), flat(results[1].arrays))


def test_where_faults_may_hit():
    grid = faulty({"drop": 1.0}, rounds=[2, 3], partitions={1})
    start_on(grid)
    assert grid.injected == [Injected(2, 1, "drop"), Injected(3, 1, "drop")]


@pytest.mark.parametrize("fault", ["drop", "lose", "raise", "malformed", "garbage", "delay"])
def test_a_run_in_which_the_same_replies_are_missing(fault):
    options = {"seed": 4, "rounds": range(2, 99)}
    # Garbage of one kind or another ends general readers in errors that are no ValueError: see the bars.
    one, other = (start_on(faulty({fault: 0.3}, missing=missing, **options)) for missing in (False, True))
    np.testing.assert_array_equal(flat(one.arrays), flat(other.arrays))


def test_a_node_leaves_and_comes_back_under_another_id():
    grid, seen = faulty({"leave": 1.0}, rounds=[2], partitions=[1], absence=2), {}
    chosen = strategy(min_available_nodes=3)
    start_on(grid, chosen, 6, callbacks=[lambda n, a, m: seen.update({n: sorted(grid.partition_ids.items())})])
    everybody = [(2, 0), (3, 1), (4, 2), (5, 3)]
    without = [entry for entry in everybody if entry[1] != 1]
    assert seen == {1: everybody, 2: without, 3: without, 4: without, 5: [*without, (6, 1)], 6: [*without, (6, 1)]}


def test_the_mod_injects_what_the_grid_injects():
    objectives = clients()

    def load(context):
        return objectives[int(context.node_config["partition-id"])]

    for fault in ("malformed", "raise", "restart"):
        app = client_app(load, mods=[fault_mod({fault: 0.3}, seed=7)])
        with_mod = simulated(strategy(), app, 6, raise_errors=False)
        with_grid = start_on(FaultyGrid(client_app(load), 4, {fault: 0.3}, seed=7))
        np.testing.assert_array_equal(flat(with_mod.arrays), flat(with_grid.arrays))
        assert (
            not np.array_equal(flat(with_mod.arrays), flat(run(strategy(), objectives, 6).arrays)) or fault == "restart"
        )
