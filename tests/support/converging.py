"""Where each strategy converges: runs on the clients of `check_strategy`, whose solution is known.

A limit gets ``run(rounds, *, equal=False, **options)``, which returns the final model of a run with full batches, and
a problem with a known solution: ``error(w)`` and a certified ``gap(w, *, equal=False, factor=1.0)``.
"""

from functools import cache, partial

import numpy as np
from problems import app_of, numpy_of, simulated, zeros

from flwr_fco.regularizers import L1, Zero
from flwr_fco.testing import _client
from flwr_fco.work import Epochs, Minimise, Steps

LAYOUT = _client(0).layout


@cache
class Problem:
    """Four clients with data from different models, or four equal ones; of strength 0.0 without psi."""

    def __init__(self, strength):
        self.strength = strength
        self.clients = {equal: [_client(0 if equal else m) for m in range(4)] for equal in (False, True)}
        self.optimum = self.solution(False, 1.0)

    def psi(self, factor):
        return (L1(factor * self.strength) if self.strength else Zero()).bind(LAYOUT)

    @cache  # noqa: B019
    def solution(self, equal, factor):
        w = np.zeros(LAYOUT.size)
        psi = self.psi(factor)
        for _ in range(1000):
            w = psi.prox(w - 0.3 * np.mean([client.gradient(w) for client in self.clients[equal]], axis=0), 0.3)
        return w

    def error(self, w):
        return float(np.abs(w - self.optimum).max())

    def gap(self, w, *, equal=False, factor=1.0):
        psi = self.psi(factor)
        points = (w, self.solution(equal, factor))
        here, best = (np.mean([client.value(x) for client in self.clients[equal]]) + psi.value(x) for x in points)
        return float(here - best)


def converges(make, limit):
    """Whether a strategy does what `limit(run, problem)` asks of it; options that it lacks are left out."""
    like = make()
    problem = Problem(0.0 if "regularizer" in like.algorithm.refuses else 0.3)

    def run(rounds, *, equal=False, **options):
        """Return the final model, flat."""
        options = {"work": Epochs(1, batch_size=None), "batch_size": None, "on_divergence": "warn", **options}
        if isinstance(getattr(like, "work", None), Minimise):
            options["work"] = Minimise(max_iterations=10_000)
        return run_with(rounds, equal, **{name: options[name] for name in options.keys() & like.__dataclass_fields__})

    # Runs that differ in nothing that the strategy has are one.
    @cache
    def run_with(rounds, equal, **options):
        made = make(**options, regularizer=problem.psi(1.0).regularizer)
        made.fraction_evaluate = 0.0
        result = simulated(made, app_of(problem.clients[equal]), rounds, initial_arrays=zeros(LAYOUT))
        return LAYOUT.flatten(numpy_of(result.arrays))

    limit(run, problem)


def shrinks(run, measure, runs, times, steps=1, **options):
    """What is measured shrinks so many times from one (rounds, rate) to the other."""
    work = Steps(steps, batch_size=None)
    coarse, fine = (measure(run(rounds, client_lr=rate, work=work, **options)) for rounds, rate in runs)
    assert coarse >= times * fine, f"{steps} local steps"


def exact(run, problem):
    """The solution, whatever the local work."""
    for steps in (1, 3):
        options = {"client_lr": 0.3 / steps, "work": Steps(steps, batch_size=None)}
        # A few rounds are enough for most methods.
        assert any(problem.gap(run(rounds, **options)) <= 1e-8 for rounds in (40, 75, 300)), f"{steps} local steps"


def biased(run, problem):
    """The solution for one local step; for more, an error that shrinks with the rate."""
    assert any(problem.gap(run(rounds, client_lr=0.3, work=Steps(1, batch_size=None))) <= 1e-8 for rounds in (75, 200))
    shrinks(run, problem.error, ((100, 0.05), (200, 0.01)), 3, steps=5)


def biased_half_steps(run, problem):
    """The solution for equal clients; for unequal ones an error that shrinks with the rate, also for one local step.

    The clients' extra steps differ even with one local step: the gradients in the mean are not taken at one point.
    """
    for steps in (1, 3):
        w = run(75, equal=True, client_lr=0.3 / steps, work=Steps(steps, batch_size=None))
        assert problem.gap(w, equal=True) <= 1e-8
    for steps in (1, 5):
        shrinks(run, problem.error, ((100, 0.25 / steps), (200, 0.05 / steps)), 3, steps)


def doubled_strength(run, problem):
    """The solution for twice the strength, because psi acts on the clients and on the server."""
    w = run(75, equal=True, client_lr=0.3, work=Steps(1, batch_size=None))
    assert problem.gap(w, equal=True, factor=2.0) <= 1e-8


def near_doubled_strength(run, problem):
    """Near the solution for twice the strength: psi acts on clients and server, but once in the extra step."""
    shrinks(run, partial(problem.gap, equal=True, factor=2.0), ((60, 0.3), (200, 0.06)), 5, equal=True)


def subgradient(run, problem):
    """Near the solution: an error that shrinks at least 3 times when the rate shrinks 5 times."""
    shrinks(run, problem.error, ((200, 0.1), (400, 0.02)), 3)


def to_zero(run, problem):
    """Exactly zero in the end."""
    assert not run(300, client_lr=0.3, work=Steps(1, batch_size=None))[LAYOUT.regularized_mask()].any()


_EXACT = "DFedDAGT DReFedDAGT DualFL FedDAGT FedDR FedNewton MultistepReFedDAGT ReFedDAGT Scaffold"
LIMITS = {
    **dict.fromkeys(_EXACT.split(), exact),
    **dict.fromkeys(("DFedDA", "FedDA", "FedDualAvg", "FedMidOSP", "LocalSGD"), biased),
    "FeDualEx": biased_half_steps,
    "FedAvgSubgradient": subgradient,
    "FedDualAvgOSP": to_zero,
    "FedMiP": near_doubled_strength,
    "FedMid": doubled_strength,
}
