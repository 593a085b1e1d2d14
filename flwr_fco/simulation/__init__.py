"""Simulation: an in-process Flower Grid, and `simulate` on top of it."""

from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.simulation.simulate import simulate
from flwr_fco.simulation.warmup import warmup

__all__ = ["InProcessGrid", "simulate", "warmup"]
