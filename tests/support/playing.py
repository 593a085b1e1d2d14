"""Both halves of methods without Flower, in a loop over clients that minimise."""

from dataclasses import replace

import numpy as np
from halves import find_solver
from quadratics import optimum, quadratics

from flwr_fco.algorithms import dual_fl as dual_fl_rule
from flwr_fco.engines import client as engine
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.work import Minimise

dual_fl, fed_dr = map(find_solver, ("dual_fl", "fed_dr"))
MU, TOP, D = 0.5, 8.0, 6
EXACT = Minimise(tolerance=1e-13)
UNEQUAL = np.array([0.1, 0.35, 0.2, 0.05, 0.3])
#: For any method that minimises.
NUMBERS = {
    "duality": MU,
    "nu": MU,
    "rho": 0.0,
    "momentum": 0.3,
    "step": 0.4,
    "relaxation": 1.2,
    "penalty": 2.0,
    "dual_step": 1.0,
    "convexity": MU,
    "primal_step": 0.25,
    "damping": 0.1,
    "extrapolation": 0.9,
}


class Clients:
    """Clients with their memories, asked in turn."""

    def __init__(self, solver, objectives, weights=None, work=EXACT):
        self.solver, self.objectives = solver, objectives
        self.weights = np.full(len(objectives), 1 / len(objectives)) if weights is None else weights
        self.memories = [None] * len(objectives)
        self.plan = Plan("test", objectives[0].layout, Zero(), Euclidean(), work=work)
        self.uplinks = []

    def ask(self, vectors, *, client_lr=np.nan, work=None, rng=None, **numbers):
        """Return the weighted mean of the increments."""
        numbers = {name.replace("_", "-"): float(value) for name, value in numbers.items()}
        vectors = {name: vector.copy() for name, vector in vectors.items()}
        for vector in vectors.values():
            vector.flags.writeable = False
        downlink = Downlink(self.plan, vectors, client_lr, numbers=numbers, work=work)
        self.uplinks = []
        for m, objective in enumerate(self.objectives):
            uplink, self.memories[m] = self.solver(downlink, objective, self.memories[m], rng)
            self.uplinks.append(uplink)
        return self.mean("increment")

    def mean(self, name):
        return sum(p * uplink.vectors[name] for p, uplink in zip(self.weights, self.uplinks, strict=True))

    def memory(self, name):
        return sum(p * memory[name] for p, memory in zip(self.weights, self.memories, strict=True))


def play_dual_fl(objectives, rounds, rho, nu=MU, weights=None, work=EXACT, works=None, start=None, alpha=0.0):
    clients = Clients(dual_fl, objectives, weights, work)
    state = dual_fl_rule.DualFLState(np.zeros(objectives[0].layout.size) if start is None else start)
    states = [state]
    for n in range(rounds):
        numbers = {"nu": nu, "rho": rho, "duality": nu, "momentum": state.momentum, "alpha": alpha}
        mean = clients.ask({"primal": state.primal}, work=None if works is None else works(n), **numbers)
        state = dual_fl_rule.advance(state, mean, rho)
        states.append(state)
    return clients, states


def error(point, objectives, weights=None):
    return float(np.linalg.norm(point - optimum(objectives, weights)))


def begins_where_it_ended(solver, monkeypatch, minimisations=2):
    """The second minimisation of a client begins where its first one ended."""
    starts = []
    original = engine.minimise

    def watched(*args, start=None, **options):
        starts.append(start.copy())
        return original(*args, start=start, **options)

    monkeypatch.setattr(engine, "minimise", watched)
    clients, primal = Clients(solver, quadratics(count=1)), np.linspace(-1, 1, D)
    clients.ask({"primal": primal}, **NUMBERS)
    last = clients.memories[0]["local"]
    clients.ask({"primal": 0.5 * primal, "dual-mean": 0.1 * primal}, **NUMBERS)
    np.testing.assert_array_equal(starts[0], primal)
    np.testing.assert_array_equal(starts[-1], last)
    assert len(starts) == minimisations


def remembers(solver, expected):
    """A memory is a function of the messages, so that a ledger can keep it: ``expected(before, point, vectors)``."""
    clients = Clients(solver, quadratics(count=1), work=Minimise(tolerance=1e-3))
    clients.plan = replace(clients.plan, wire_dtype="float32")
    primal = np.linspace(-1, 1, D)
    clients.ask({"primal": primal}, **NUMBERS)
    before = clients.memories[0]
    clients.ask({"primal": 0.5 * primal, "dual-mean": 0.1 * primal}, **NUMBERS)
    memory, vectors = clients.memories[0], clients.uplinks[0].vectors
    assert (vectors["increment"] == vectors["increment"].astype(np.float32)).all()
    wanted = expected(before, 0.5 * primal, vectors)
    assert memory.keys() == wanted.keys()
    for name, vector in wanted.items():
        np.testing.assert_array_equal(memory[name], vector)
