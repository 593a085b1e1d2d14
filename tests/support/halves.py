"""Client halves of methods, called without Flower, and clients with their memories that are asked in turn."""

import numpy as np
from problems import quadratics

from flwr_fco.algorithms.contract import method_of
from flwr_fco.engines import client as engine
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.work import Minimise


def find_solver(name):
    """Return ``(downlink, objective, memory, rng) -> (uplink, memory)`` of a method's client half.

    The message's numbers are options too, where the method has them.
    """

    def solve(downlink, objective, memory, rng):
        numbers = {name.replace("-", "_"): value for name, value in downlink.numbers.items()}
        method = method_of(name, {**numbers, **downlink.plan.options})
        uplink = engine.Client(downlink, objective, rng, downlink.plan.seed).answer(method, memory)
        return uplink, method.remembered(downlink, memory, uplink) or None

    return solve


MU, TOP, D = 0.5, 8.0, 6
EXACT = Minimise(tolerance=1e-13)
#: For any method that minimises.
NUMBERS = {"rho": 0.0, "momentum": 0.3, "step": 0.4, "relaxation": 1.2, "penalty": 2.0, "dual_step": 1.0}
NUMBERS |= {"primal_step": 0.25, "damping": 0.1, "extrapolation": 0.9, "duality": MU, "nu": MU, "convexity": MU}


class Clients:
    """Clients with their memories, asked in turn."""

    def __init__(self, solver, objectives, work=EXACT):
        self.solver = solver
        self.objectives = objectives
        self.memories = [None] * len(objectives)
        self.uplinks = []
        self.plan = Plan("test", objectives[0].layout, Zero(), Euclidean(), work=work)

    def ask(self, vectors, **numbers):
        """Return the mean of the increments."""
        numbers = {name.replace("_", "-"): float(value) for name, value in numbers.items()}
        for vector in vectors.values():
            vector.flags.writeable = False
        downlink = Downlink(self.plan, vectors, np.nan, numbers=numbers)
        self.uplinks = []
        for m, objective in enumerate(self.objectives):
            uplink, self.memories[m] = self.solver(downlink, objective, self.memories[m], None)
            self.uplinks.append(uplink)
        return np.mean([uplink.vectors["increment"] for uplink in self.uplinks], axis=0)


def begins_where_it_ended(solver, monkeypatch, minimisations=2):
    """The second minimisation of a client begins where its first one ended."""
    starts = []
    original = engine.minimise

    def watched(*args, start=None, **options):
        starts.append(start.copy())
        return original(*args, start=start, **options)

    monkeypatch.setattr(engine, "minimise", watched)
    clients = Clients(solver, quadratics(count=1))
    primal = np.linspace(-1, 1, D)
    clients.ask({"primal": primal}, **NUMBERS)
    last = clients.memories[0]["local"]
    clients.ask({"primal": 0.5 * primal, "dual-mean": 0.1 * primal}, **NUMBERS)
    np.testing.assert_array_equal(starts[0], primal)
    np.testing.assert_array_equal(starts[-1], last)
    assert len(starts) == minimisations
