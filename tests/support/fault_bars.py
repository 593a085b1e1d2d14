"""Every strategy under faults, beside a run in which the replies that are wrong are missing."""

from functools import cache
from types import SimpleNamespace

import numpy as np
from adversarial_clients import make as plain
from adversarial_clients import regressions
from faults import FaultyGrid, altering, lying
from problems import CONSTANTS, SADDLE, app_of, kind_of, numpy_of, started, trackers_of, zeros

from flwr_fco.core.layout import dense
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import Everyone, run_of
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.pooled import centralized_solution

CLIENTS = 8
ROUNDS = 200
#: Sums over all rounds: what one reply has put into them stays there, divided by the number of rounds.
REMEMBER = ("FastFedDA", "CFedDA", "MCFedDA")
KINDS = {
    "malformed": {"faults": {"malformed": 0.2}},
    "bytes": {"faults": {"garbage": 0.2}},
    "absurd numbers": {"faults": {"absurd": 0.2}},
    "one altered reply": {"faults": {lying(10.0): 1.0}, "partitions": [2]},
}


@altering
def no_examples(arrays, metrics, rng):
    """An honest reply that says that it is about no examples."""
    metrics["num-examples"] = 0


SOAK = {
    **KINDS,
    "no examples": {"faults": {no_examples: 0.2}},
    "one turned reply": {"faults": {lying(-1.0): 1.0}, "partitions": [2]},
}
#: A reply without examples weighs nothing, or as much as any other; it is left out where memories have weights.
NOT_COUNTED = ("one altered reply", "one turned reply", "no examples")
#: What the weighted mean of the clients' memories is in the server's state, by the ledger's names and their factors.
BALANCED = {
    "DualFL": [({"control": 1.0}, None), ({"anchor": 1.0}, None)],
    "Scaffnew": [({"shift": 1.0}, None)],
    "APDAInexact": [({"sent": 1.0}, "mean"), ({"local": 1.0}, "primal")],
    "FedDR": [({"local": 2.0, "center": -1.0}, "mean")],
    "FedDyn": [({"own": 1.0}, "mean")],
    "FiveGCS": [({"dual": 1.0}, "mean")],
}


def saddles(number):
    """Strongly convex and concave clients with saddle points of their own."""
    objectives = []
    for m in range(number):
        rng = np.random.default_rng((4, m))
        coupling = 0.5 * rng.standard_normal((3, 3))
        linear, offset = rng.standard_normal((2, 3))
        more = {"linear": linear, "offset": offset, "num_examples": 30}
        objectives.append(QuadraticSaddle(np.eye(3), coupling, np.eye(3), **more))
    return objectives


@cache
def problem_for(kind, number):
    psi = L1(0.3) if kind == "composite" else Zero()
    if kind == "saddle":
        objectives = saddles(number)
        optimum = QuadraticSaddle.pooled(objectives, np.full(number, 1 / number)).solution
    else:
        objectives = regressions(number)
        optimum = centralized_solution(objectives, psi, tol=1e-12)
    start = zeros(objectives[0].layout)
    return SimpleNamespace(objectives=objectives, psi=psi, optimum=optimum, start=start)


def problem_of(name, number=CLIENTS):
    if name in SADDLE:
        return problem_for("saddle", number)
    smooth = "regularizer" in kind_of(name).algorithm.refuses
    return problem_for("smooth" if smooth else "composite", number)


def make(name, **more):
    # A round without one of them is skipped, and a client that is bad in every third round is not given up here.
    given = {"regularizer": problem_of(name).psi, "participation": Everyone(evict_after=10**6), **more}
    return plain(name, **{**given, **CONSTANTS.get(name, {})})


def imbalance(strategy):
    """Return how far the method's weighted sums are from what they must be, relative to what is summed."""
    pairs = []
    rows = getattr(strategy.state, "trackers", None)  # of a graph: in the server's state, or nobody's
    if rows is not None and np.ndim(rows) == 2 and len(rows) > 1:
        pairs.append((rows, 0.0, np.ones(len(rows))))
    memories = strategy.memories
    if memories is not None:
        there = {key: member for key, member in memories.members.items() if key in memories.present}
        members = {key: member for key, member in there.items() if member.memory is not None}
        weights = np.array([1.0 if memories.uniform else member.examples for member in members.values()])
        sums = []
        if len(members) == len(memories.present):
            sums = BALANCED.get(type(strategy).__name__, [])
            if hasattr(strategy.state, "control"):
                pairs.append((np.array([trackers_of(strategy)[key] for key in members]), 0.0, weights))
        for factors, field in sums:
            own = [{name: dense(member.memory[name]) for name in factors} for member in members.values()]
            rows = np.array([sum(factor * of[name] for name, factor in factors.items()) for of in own])
            pairs.append((rows, 0.0 if field is None else getattr(strategy.state, field), weights))
    worst = 0.0
    for rows, expected, weights in pairs:
        mean = weights @ rows / weights.sum()
        worst = max(worst, float(np.abs(mean - expected).max() / max(np.abs(rows).max(), 1e-300)))
    return worst


def run(name, kind, num_rounds, *, missing=False, kinds=KINDS, clients=CLIENTS):
    """Run a strategy under a kind of faults; or with the same replies missing."""
    options = dict(kinds[kind])
    if kind.startswith("one "):
        # FedNewton has its solution after six.
        options["rounds"] = [2 if name == "FedNewton" else num_rounds // 4]
    problem = problem_of(name, clients)
    worst = [0.0]
    layout = problem.objectives[0].layout
    grid = FaultyGrid(app_of(problem.objectives), clients, seed=5, missing=missing, **options)
    strategy = make(name)

    def check(number, arrays, metrics):
        for name, value in {**strategy.state._asdict(), **numpy_of(arrays)}.items():
            assert np.isfinite(value).all(), f"{name} after round {number}"
        worst[0] = max(worst[0], imbalance(strategy))

    result = started(strategy, grid, num_rounds, problem.start, callbacks=[check])
    error = float(np.abs(layout.flatten(numpy_of(result.arrays)) - problem.optimum).max())
    return SimpleNamespace(error=error, imbalance=worst[0], grid=grid, strategy=strategy, result=result)


def hold_the_bar(name, kind, num_rounds, **options):
    """Run both and hold the bar; return the errors with the faults and without these replies, and the imbalance."""
    outcome = run(name, kind, num_rounds, **options)
    twin = run(name, kind, num_rounds, missing=True, **options)
    # Where everybody must answer, silence is asked again in the round, and what is absurd is not.
    assert set(outcome.grid.injected) == set(twin.grid.injected)
    assert outcome.grid.injected
    assert outcome.imbalance <= 1e-10, f"a sum that must be 0 is {outcome.imbalance:.2g}"
    # What FedNewton sees in a step only is not counted where another's bad answer leaves none to take.
    if kind not in NOT_COUNTED and (name, kind) != ("FedNewton", "absurd numbers"):
        _hold_the_count(outcome)
    if not kind.startswith("one ") or name not in REMEMBER:
        text = f"error {outcome.error:.2g}, {twin.error:.2g} without these replies"
        assert outcome.error <= max(2.0 * twin.error, 1e-8), text
    return outcome.error, twin.error, outcome.imbalance, len(outcome.result.left_out)


def _hold_the_count(outcome):
    """Everything that was wrong is left out, counted and told, and nothing else."""
    hit = [fault for fault in outcome.grid.injected if fault.server_round > 0]
    metrics = outcome.result.train_metrics_clientapp
    left_out = {number: metrics[number]["num-left-out"] for number in metrics}
    # Where everybody must answer, a bad answer is asked for again: a node counts once, and has one row.
    assert left_out == {n: len({fault.partition for fault in hit if fault.server_round == n}) for n in left_out}
    reported = [entry for entry in run_of(outcome.strategy).left_out if entry.round > 0]
    assert sorted((entry.round, entry.partition_id) for entry in reported) == sorted(
        {(fault.server_round, fault.partition) for fault in hit}
    )
    assert all(entry.reason for entry in reported)
