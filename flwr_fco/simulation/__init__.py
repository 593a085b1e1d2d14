"""Simulation: a Flower Grid in this process, one on Ray actors, and `simulate` on top of them."""

from flwr_fco.simulation.fit_path import PathResult, fit_path
from flwr_fco.simulation.grid import InProcessGrid, RayGrid, import_ray, room_of, token_settings
from flwr_fco.simulation.simulate import simulate

__all__ = ["InProcessGrid", "PathResult", "RayGrid", "fit_path", "import_ray", "room_of"]
__all__ += ["simulate", "token_settings"]
