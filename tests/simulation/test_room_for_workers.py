"""What Ray reserves for a worker: how many fit on which machines, and what is refused before Ray starts."""

from types import SimpleNamespace

import numpy as np
import pytest

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import RayActors, simulate
from flwr_fco.simulation.ray_actors import room_of
from flwr_fco.strategies import FedDualAvg


def cluster(*machines):
    """Stand in for Ray, connected to machines with so many cores and GPUs, and one that is gone."""
    nodes = [{"Alive": True, "Resources": {"CPU": float(cpus), "GPU": float(gpus)}} for cpus, gpus in machines]
    return SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}])


@pytest.mark.parametrize(
    ("machines", "num_cpus", "num_gpus", "room"),
    [
        ([(4, 0)], 1, 0, 4),
        ([(8, 0), (8, 0)], 3, 0, 4),
        ([(8, 1), (8, 0)], 1, 0.25, 4),
        ([(0.3, 0)], 0.1, 0, 3),
        ([(2, 2), (16, 0)], 0, 1, 2),
        ([(2, 0)], 0, 0, np.inf),
    ],
)
def test_a_worker_is_on_one_machine(machines, num_cpus, num_gpus, room):
    assert room_of(cluster(*machines), num_cpus, num_gpus) == room


@pytest.mark.parametrize(("num_cpus", "num_gpus"), [(3, 0), (1, 1), (0, 0.5)])
def test_what_no_machine_has_is_an_error_and_not_a_wait(num_cpus, num_gpus):
    with pytest.raises(ConfigurationError, match="there are machines with 2 cores and 0 GPUs; reserve less"):
        room_of(cluster((2, 0), (2, 0)), num_cpus, num_gpus)


@pytest.mark.parametrize("reserved", [(-1, 0), (np.nan, 0), (np.inf, 0), (1, -0.5), (1, np.nan), (1, 1.5)])
def test_what_ray_cannot_reserve_is_refused_before_it_starts(reserved):
    with pytest.raises(ConfigurationError, match="expected numbers of at least 0, and above 1 whole GPUs"):
        RayActors(2, num_cpus=reserved[0], num_gpus=reserved[1])


def test_workers_that_reserve_nothing_are_counted():
    with pytest.raises(ConfigurationError, match="say how many"):
        RayActors(num_cpus=0)


@pytest.mark.parametrize("engine", ["in-process", "processes"])
@pytest.mark.parametrize("reserved", [{"num_gpus": 1}, {"num_cpus": 0.5}])
def test_a_reservation_is_rays(engine, reserved):
    with pytest.raises(ConfigurationError, match="which reserves nothing; give engine='ray'"):
        simulate(
            FedDualAvg(client_lr=0.1),
            client_app(lambda context: None),
            num_nodes=2,
            num_rounds=1,
            initial_arrays={"coefficients": np.zeros(2)},
            engine=engine,
            **reserved,
        )
