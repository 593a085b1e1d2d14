"""Where a strategy converges: runs on the clients of `check_strategy`, whose solution is known."""

from dataclasses import fields

import numpy as np

from flwr_fco.client_apps import client_app
from flwr_fco.regularizers import L1, Zero
from flwr_fco.simulation import simulate
from flwr_fco.testing import _client
from flwr_fco.work import Epochs, Minimise

LAYOUT = _client(0).layout


class Problem:
    """Four clients with data from different models, or four equal ones; of strength 0.0 without psi."""

    def __init__(self, strength):
        self.strength = strength
        self.different, self.equal = [_client(m) for m in range(4)], [_client(0) for _ in range(4)]
        self.optimum = self.solution(self.different, 1.0)

    def psi(self, factor):
        return (L1(factor * self.strength) if self.strength else Zero()).bind(LAYOUT)

    def solution(self, clients, factor):
        w, psi = np.zeros(LAYOUT.size), self.psi(factor)
        for _ in range(1000):
            w = psi.prox(w - 0.3 * np.mean([client.gradient(w) for client in clients], axis=0), 0.3)
        return w

    def error(self, w):
        return float(np.abs(w - self.optimum).max())

    def gap(self, w, *, equal=False, factor=1.0):
        clients, psi = self.equal if equal else self.different, self.psi(factor)
        here, best = (
            float(np.mean([client.value(x) for client in clients])) + psi.value(x)
            for x in (w, self.solution(clients, factor))
        )
        return here - best

    def support(self, w):
        return int(np.count_nonzero(w[LAYOUT.regularized_mask()]))


def converges(make, limit):
    """Whether a strategy does what `limit(run, problem)` asks of it; options that it lacks are left out."""
    like = make()
    smooth = "regularizer" in like.algorithm.refuses
    problem = Problem(0.0 if smooth else 0.3)

    def run(rounds, *, equal=False, **options):
        """Return the final model, flat."""
        clients = problem.equal if equal else problem.different
        options = {"work": Epochs(1, batch_size=None), "batch_size": None, "on_divergence": "warn", **options}
        if isinstance(getattr(like, "work", None), Minimise):
            options["work"] = Minimise(max_iterations=10_000)
        names = {field.name for field in fields(like) if field.init}
        made = make(
            **{name: options[name] for name in names & options.keys()}, regularizer=problem.psi(1.0).regularizer
        )
        made.fraction_evaluate = 0.0
        app = client_app(lambda context: clients[int(context.node_config["partition-id"])])
        start = LAYOUT.unflatten(np.zeros(LAYOUT.size))
        result = simulate(made, app, num_nodes=4, num_rounds=rounds, initial_arrays=start, progress=False)
        return LAYOUT.flatten({name: array.numpy() for name, array in result.arrays.items()})

    limit(run, problem)
