"""Client halves of methods, called without Flower."""

from flwr_fco.algorithms.contract.algorithm import method_of
from flwr_fco.engines.client import answer


def find_solver(name):
    """Return ``(downlink, objective, memory, rng) -> (uplink, memory)`` of a method's client half.

    The message's numbers are options too, where the method has them.
    """

    def solve(downlink, objective, memory, rng):
        numbers = {name.replace("-", "_"): value for name, value in downlink.numbers.items()}
        return answer(method_of(name, {**numbers, **downlink.plan.options}), downlink, objective, memory, rng)

    return solve
