"""Simulation: an in-process Flower Grid, workers in other processes, and `simulate` on top of them."""

from flwr_fco.simulation.fit_path import PathResult, fit_path
from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.simulation.processes import Processes
from flwr_fco.simulation.ray_actors import RayActors, check_reservation, import_ray, room_of, token_settings
from flwr_fco.simulation.simulate import simulate
from flwr_fco.simulation.worker import end_with
from flwr_fco.simulation.workers import WorkerGrid

__all__ = [
    "InProcessGrid",
    "PathResult",
    "Processes",
    "RayActors",
    "WorkerGrid",
    "check_reservation",
    "end_with",
    "fit_path",
    "import_ray",
    "room_of",
    "simulate",
    "token_settings",
]
