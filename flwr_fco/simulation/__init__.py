"""Simulation: an in-process Flower Grid, workers in other processes, and `simulate` on top of them."""

from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.simulation.processes import Processes
from flwr_fco.simulation.ray_actors import RayActors
from flwr_fco.simulation.simulate import simulate
from flwr_fco.simulation.warmup import warmup
from flwr_fco.simulation.workers import WorkerGrid

__all__ = ["InProcessGrid", "Processes", "RayActors", "WorkerGrid", "simulate", "warmup"]
