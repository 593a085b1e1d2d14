"""What every strategy converges to: checks for `check_strategy(kind, LIMITS[name])`.

A check gets ``run(rounds, *, equal=False, **options)``, which returns the final model of a run with full batches, and
a problem with a known solution: ``error(w)``, a certified ``gap(w, *, equal=False, factor=1.0)`` and ``support(w)``.
"""

from functools import partial

from flwr_fco.work import Steps


def require(condition, message):
    if not condition:
        raise AssertionError(message)


def require_gap(where, gap):
    require(gap <= 1e-8, f"{where} the certified gap is {gap:.2e}, expected at most 1e-8")


def require_shrinking(measured, before, after, times):
    """What is measured, each with where, shrinks so many times."""
    pair = f"{before[0]:.2e} {before[1]} and {after[0]:.2e} {after[1]}"
    require(before[0] >= times * after[0], f"{measured} is {pair}; expected it to shrink at least {times} times")


def require_bias(measured, run, measure, runs, times, steps=1, **options):
    """What is measured shrinks so many times from one (rounds, rate) to the other."""
    work = Steps(steps, batch_size=None)
    coarse, fine = (measure(run(rounds, client_lr=rate, work=work, **options)) for rounds, rate in runs)
    require_shrinking(measured, (coarse, f"at rate {runs[0][1]:g}"), (fine, f"at {runs[1][1]:g}"), times)


def exact(run, problem):
    """The solution, whatever the local work."""
    for steps in (1, 3):
        # A quarter of the rounds is enough for most methods.
        for rounds in (75, 300):
            gap = problem.gap(run(rounds, client_lr=0.3 / steps, work=Steps(steps, batch_size=None)))
            if gap <= 1e-8:
                break
        require_gap(f"with {steps} local steps", gap)


def biased(run, problem):
    """The solution for one local step; for more, an error that shrinks with the rate."""
    require_gap("with 1 local step", problem.gap(run(200, client_lr=0.3, work=Steps(1, batch_size=None))))
    require_bias("with 5 local steps the error", run, problem.error, ((200, 0.05), (500, 0.005)), 5, steps=5)


def biased_half_steps(run, problem):
    """The solution for equal clients; for unequal ones an error that shrinks with the rate, also for one local step.

    The clients' extra steps differ even with one local step: the gradients in the mean are not taken at one point.
    """
    for steps in (1, 3):
        work = Steps(steps, batch_size=None)
        gap = problem.gap(run(150, equal=True, client_lr=0.3 / steps, work=work), equal=True)
        require_gap(f"with {steps} local steps and equal clients", gap)
    for steps in (1, 5):
        runs = (200, 0.25 / steps), (500, 0.025 / steps)
        require_bias(f"with {steps} local steps the error", run, problem.error, runs, 5, steps)


def vanishing(run, problem):
    """The solution, slowly: an error that shrinks at least 3 times in 10 times as many rounds."""
    for steps in (1, 3):
        early, late = (problem.error(run(rounds, work=Steps(steps, batch_size=None))) for rounds in (30, 300))
        pair = (early, "after 30 rounds"), (late, "after 300")
        require_shrinking(f"with {steps} local steps the error", *pair, 3)


def shifted_by(option, values, rounds=400, steps=(1,)):
    """A point at a distance from the solution that shrinks 3 times from one value of an option to the other."""

    def check(run, problem):
        for count in steps:
            work = Steps(count, batch_size=None)
            options = [{option: value} for value in values]
            far, near = (problem.error(run(rounds, **each, client_lr=0.05, work=work)) for each in options)
            measured, where = f"with {count} local steps the error", f"for {option}={values[0]:g}"
            require_shrinking(measured, (far, where), (near, f"for {values[1]:g}"), 3)
            require(far > 1e-8, f"{measured} {where} is {far:.2e}, no distance at all")

    return check


def doubled_strength(run, problem):
    """The solution for twice the strength, because psi acts on the clients and on the server."""
    gap = problem.gap(run(150, equal=True, client_lr=0.3, work=Steps(1, batch_size=None)), equal=True, factor=2.0)
    require_gap("on the problem with twice the strength", gap)


def near_doubled_strength(run, problem):
    """Near the solution for twice the strength: psi acts on clients and server, but once in the extra step."""
    measured, measure = "the certified gap of the problem with twice the strength", partial(problem.gap, equal=True)
    require_bias(measured, run, partial(measure, factor=2.0), ((100, 0.3), (500, 0.03)), 5, equal=True)


def subgradient(run, problem):
    """Near the solution: an error that shrinks at least 3 times when the rate shrinks 10 times."""
    require_bias("the error", run, problem.error, ((400, 0.1), (1000, 0.01)), 3)


def to_zero(run, problem):
    """Exactly zero in the end."""
    support = problem.support(run(300, client_lr=0.3, work=Steps(1, batch_size=None)))
    require(support == 0, f"the last model has {support} non-zero weights")


LIMITS = {
    "DFedDA": biased,
    "DFedDAGT": exact,
    "DReFedDAGT": exact,
    "DualFL": exact,
    "FeDualEx": biased_half_steps,
    "FedAvgSubgradient": subgradient,
    "FedDA": biased,
    "FedDAGT": exact,
    "FedDR": exact,
    "FedDualAvg": biased,
    "FedDualAvgOSP": to_zero,
    "FedMiP": near_doubled_strength,
    "FedMid": doubled_strength,
    "FedMidOSP": biased,
    "FedNewton": exact,
    "LocalSGD": biased,
    "MultistepReFedDAGT": exact,
    "ReFedDAGT": exact,
    "Scaffold": exact,
}
