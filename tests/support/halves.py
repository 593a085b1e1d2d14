"""Client halves of methods, called without Flower."""

from flwr_fco.algorithms.contract import Disclosure
from flwr_fco.client_apps.client import half_of
from flwr_fco.engines.run import answer as run_half


def find_solver(name):
    """Return ``(downlink, objective, memory, rng) -> (uplink, memory)`` of a method's client half."""
    half = half_of(name)

    def solve(downlink, objective, memory, rng):
        return run_half(half, downlink, objective, memory, rng, Disclosure())

    return solve
