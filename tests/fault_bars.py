"""Every strategy under faults, beside a run in which they are missing; the table of docs/benchmarks/faults.md.

python tests/fault_bars.py            all strategies, 200 rounds each: some four minutes of one core
python tests/fault_bars.py FedDAGT    these only; the page stays as it is
python tests/fault_bars.py rivals     those of reproduction/rivals; the table of docs/reproduction/rivals.md
python tests/fault_bars.py liar       one liar of ten in every round, or two that collude; the table of
                                      docs/benchmarks/robustness.md: some two minutes of one core; `liar rivals` too
"""

import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from faults import FaultyGrid, _changed, lying
from fitting import fitting
from flwr.app import Array, ArrayRecord
from lies_of_one import regressions
from problems import CONSTANTS, SADDLE, app_of, kind_of, trackers_of

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.logs import quiet
from flwr_fco.core.sparse import dense
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import STRATEGIES, Everyone, Steps, Trimmed, run_of
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.pooled import centralized_solution, saddle_point

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "faults.md"
RIVALS_PAGE = PAGE.parents[1] / "reproduction" / "rivals.md"
CLIENTS, ROUNDS = 8, 200
#: Sums over all rounds: what one reply has put into them stays there, divided by the number of rounds.
REMEMBER = ("FastFedDA", "CFedDA", "MCFedDA")
KINDS = {
    "malformed": {"faults": {"malformed": 0.2}},
    "bytes": {"faults": {"garbage": 0.2}},
    "absurd numbers": {"faults": {"absurd": 0.2}},
    "one altered reply": {"faults": {lying(10.0): 1.0}, "partitions": [2]},
}


def beyond_all(delivery):
    """One number of a reply is beyond anything: increments of 1e300, 1e18 examples, or elapsed 1e12."""

    def change(arrays, metrics):
        kind = ("increment", "num-examples", "elapsed")[int(delivery.rng.integers(3))]
        if kind == "num-examples":
            metrics[kind] = 10**18
        elif kind == "elapsed" and kind in metrics:
            metrics[kind] = 1e12
        else:
            for name, array in arrays.items():
                arrays[name] = Array(np.full(array.shape, 1e300, dtype=array.dtype))

    return _changed(delivery, change)


def no_examples(delivery):
    """An honest reply that says that it is about no examples."""
    return _changed(delivery, lambda arrays, metrics: metrics.update({"num-examples": 0}))


SOAK = {
    "malformed": {"faults": {"malformed": 0.2}},
    "bytes": {"faults": {"garbage": 0.2}},
    "beyond all": {"faults": {beyond_all: 0.2}},
    "no examples": {"faults": {no_examples: 0.2}},
    "one altered reply": {"faults": {lying(10.0): 1.0}, "partitions": [2]},
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


def saddles(number=CLIENTS, seed=4):
    """Strongly convex and concave clients with saddle points of their own."""
    objectives = []
    for m in range(number):
        rng = np.random.default_rng((seed, m))
        coupling, shifts = 0.5 * rng.standard_normal((3, 3)), rng.standard_normal((2, 3))
        more = {"linear": shifts[0], "offset": shifts[1], "num_examples": 30}
        objectives.append(QuadraticSaddle(np.eye(3), coupling, np.eye(3), **more))
    return objectives


class Problem(NamedTuple):
    objectives: list
    psi: object
    optimum: np.ndarray


@cache
def problem_for(kind, number):
    if kind == "saddle":
        return Problem(saddles(number), Zero(), saddle_point(saddles(number)))
    objectives, psi = regressions(number), L1(0.3) if kind == "composite" else Zero()
    return Problem(objectives, psi, centralized_solution(objectives, psi, tol=1e-12))


def problem_of(name, number=CLIENTS):
    if name in SADDLE:
        return problem_for("saddle", number)
    smooth = "regularizer" in kind_of(name).algorithm.refuses
    return problem_for("smooth" if smooth else "composite", number)


def make(name, **more):
    options = {
        "regularizer": problem_of(name).psi,
        "client_lr": 0.1,
        "work": Steps(4, batch_size=None),
        "batch_size": None,
        **more,
    }
    # A round without one of them is skipped, and a client that is bad in every third round is not given up here.
    options |= {"participation": Everyone(evict_after=10**6), **CONSTANTS.get(name, {})}
    kind = kind_of(name)
    strategy = kind(**fitting(kind, options))
    strategy.fraction_evaluate = 0.0
    return strategy


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
        if hasattr(strategy.state, "control") and len(members) == len(memories.present):
            pairs.append((np.array([trackers_of(strategy)[key] for key in members]), 0.0, weights))
        for factors, field in BALANCED.get(type(strategy).__name__, []):
            if len(members) == len(memories.present):
                rows = [
                    sum(f * dense(member.memory[name]) for name, f in factors.items()) for member in members.values()
                ]
                pairs.append((np.array(rows), 0.0 if field is None else getattr(strategy.state, field), weights))
    worst = 0.0
    for rows, expected, weights in pairs:
        mean = weights @ rows / weights.sum()
        worst = max(worst, float(np.abs(mean - expected).max() / max(np.abs(rows).max(), 1e-300)))
    return worst


class Outcome(NamedTuple):
    """What a run comes to."""

    error: float
    imbalance: float
    grid: FaultyGrid
    strategy: object
    result: object


def run(name, kind, num_rounds, *, missing=False, kinds=KINDS, clients=CLIENTS):
    """Run a strategy under a kind of faults; or with the same replies missing."""
    options = dict(kinds[kind])
    if kind.startswith("one "):
        options["rounds"] = [num_rounds // 4]
    problem, worst = problem_of(name, clients), [0.0]
    layout = problem.objectives[0].layout
    grid = FaultyGrid(app_of(problem.objectives), clients, seed=5, missing=missing, **options)
    strategy = make(name)

    def check(number, arrays, metrics):
        for field, value in strategy.state._asdict().items():
            assert np.isfinite(value).all(), f"state.{field} after round {number}"
        for array, value in arrays.items():
            assert np.isfinite(value.numpy()).all(), f"{array} after round {number}"
        worst[0] = max(worst[0], imbalance(strategy))

    start = ArrayRecord({n: Array(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    with grid.identity(), quiet(50), single_threaded_blas():
        result = strategy.start(grid, start, num_rounds, callbacks=[check])
    w = layout.flatten({key: array.numpy() for key, array in result.arrays.items()})
    return Outcome(float(np.abs(w - problem.optimum).max()), worst[0], grid, strategy, result)


def hold_the_bar(name, kind, num_rounds, **options):
    """Run both and hold the bar; return the errors with the faults and without these replies, and the imbalance."""
    outcome, twin = run(name, kind, num_rounds, **options), run(name, kind, num_rounds, missing=True, **options)
    # Where everybody must answer, silence is asked again in the round, and what is absurd is not.
    assert set(outcome.grid.injected) == set(twin.grid.injected)
    assert outcome.grid.injected
    assert outcome.imbalance <= 1e-10, f"a sum that must be 0 is {outcome.imbalance:.2g}"
    if kind not in NOT_COUNTED:
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
    told = [entry for entry in run_of(outcome.strategy).left_out if entry.round > 0]
    assert sorted((entry.round, entry.partition_id) for entry in told) == sorted(
        {(fault.server_round, fault.partition) for fault in hit}
    )
    assert all(entry.reason for entry in told)


def table(names):
    """Return the table in Markdown, and how many cells hold."""
    lines = ["| strategy | " + " | ".join(KINDS) + " | largest imbalance |", "|---" * (len(KINDS) + 2) + "|"]
    held = 0
    for name in names:
        cells, worst = [], 0.0
        for kind in KINDS:
            try:
                error, without, imbalanced, _ = hold_the_bar(name, kind, ROUNDS)
            except AssertionError as failure:
                cells.append(f"does not hold: {failure}")
                continue
            held, worst = held + 1, max(worst, imbalanced)
            remembers = kind == "one altered reply" and name in REMEMBER
            cells.append(f"{error:.1e}, {without:.1e}" + (" (remembers)" if remembers else ""))
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {worst:.0e} |")
        print(lines[-1], flush=True)
    return "\n".join(lines), held


# --- one liar in every round ----------------------------------------------------------------------------------------


def persistent(kind):
    """Return a fault that lies in the same way in every round, from round 1 on."""
    kept = {}

    def fault(delivery):
        number, partition = delivery.message.metadata.group_id, delivery.context.node_config["partition-id"]

        def change(arrays, metrics):
            if number == "0":
                return
            for name, array in arrays.items():
                value = array.numpy()
                if value.dtype.kind != "f" or value.size == 0:
                    continue
                if kind == "replay":
                    arrays[name] = kept.setdefault((partition, name), array) if int(number) >= 10 else array
                elif kind in ("sign flip", "10 times"):
                    arrays[name] = Array(value * (-1.0 if kind == "sign flip" else 10.0))
                else:
                    # The same direction in every round; two that collude have the same one.
                    seed = 7 if kind == "collusion" else partition
                    direction = np.random.default_rng(seed).standard_normal(value.size)
                    length = float(np.linalg.norm(value)) / float(np.linalg.norm(direction))
                    arrays[name] = Array((3.0 if kind == "collusion" else 1.0) * length * direction)

        return _changed(delivery, change)

    fault.__name__ = kind
    return fault


LIES = ("none", "sign flip", "10 times", "replay", "random direction", "collusion")
ROBUST = {"mean": "mean", "trimmed": Trimmed(), "median": "median", "geometric-median": "geometric-median"}
#: One method of each family with a robust centre.
OF_FAMILIES = ("FedDualAvg", "FedMid", "FeDualEx", "LocalSGD")
OTHER_PAGE = PAGE.parents[1] / "benchmarks" / "robustness.md"


def under_a_liar(name, kind, aggregation):
    """Return the error after 200 rounds of ten clients of whom one lies, or two that collude; a word where it ends."""
    problem = problem_of(name, 10)
    layout = problem.objectives[0].layout
    liars = [] if kind == "none" else [4, 7] if kind == "collusion" else [4]
    grid = FaultyGrid(app_of(problem.objectives), 10, {persistent(kind): 1.0}, partitions=liars)
    strategy = make(name, aggregation=ROBUST[aggregation])
    start = ArrayRecord({n: Array(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    try:
        with grid.identity(), quiet(50), single_threaded_blas():
            result = strategy.start(grid, start, ROUNDS)
    except Exception as error:  # a run that ends is what the table shows
        return type(error).__name__
    w = layout.flatten({key: array.numpy() for key, array in result.arrays.items()})
    assert np.isfinite(w).all(), f"{name}, {kind}, {aggregation}"
    return f"{np.abs(w - problem.optimum).max():.0e}"


def liars(names):
    """Return the table of persistent liars in Markdown."""
    lines = ["| strategy | aggregation | " + " | ".join(LIES) + " |", "|---" * (len(LIES) + 2) + "|"]
    for name in names:
        for aggregation in ROBUST:
            if aggregation != "mean" and name not in OF_FAMILIES:
                continue
            cells = [under_a_liar(name, kind, aggregation) for kind in LIES]
            lines.append(f"| `{name}` | {aggregation} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def written(page, kind, command, text):
    """Put a table between its markers on a page."""
    begin, end = f"<!-- {kind}: begin ({command}) -->", f"<!-- {kind}: end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main():
    words = sys.argv[1:]
    liar = words[:1] == ["liar"]
    names, pages = words[liar:], (None, None)
    if not names:
        # FedNewton is done before the altered reply, and each number of its own is checked.
        names, pages = [name for name in STRATEGIES if name != "FedNewton"], (PAGE, OTHER_PAGE)
    elif names == ["rivals"]:
        from reproduction.rivals import RIVALS

        names, pages = list(RIVALS), (RIVALS_PAGE, RIVALS_PAGE)
    if liar:
        kind, command, text = "liars", "python tests/fault_bars.py liar", liars(names)
    else:
        kind, command, (text, held) = "bars", "python tests/fault_bars.py", table(names)
        text += f"\n\n{held} of {len(names) * len(KINDS)} hold."
    if pages[liar] is not None:
        written(pages[liar], kind, command, text)


if __name__ == "__main__":
    main()
