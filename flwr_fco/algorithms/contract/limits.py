"""What a method converges to, each limit with its own check.

:func:`flwr_fco.testing.check_strategy` gives a limit a way to run the strategy and a problem with a known solution. A
method with another limit defines its own subclass of :class:`Limit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from flwr_fco.core.layout import Vector
from flwr_fco.work import Steps


class Run(Protocol):
    """A run of the strategy on the problem of a check."""

    def __call__(self, rounds: int, *, equal: bool = False, **options: Any) -> Vector:
        """Return the final model, flat.

        Parameters
        ----------
        rounds : int
            Number of rounds.
        equal : bool, default False
            Whether all clients have the same data.
        **options
            Options of the strategy. The rest is fixed: full batches, the problem's regularizer.
        """


class LimitProblem(Protocol):
    """A problem whose solution is known."""

    def error(self, w: Vector) -> float:
        """Return the largest distance of a coefficient to the solution."""

    def gap(self, w: Vector, *, equal: bool = False, factor: float = 1.0) -> float:
        """Return a certified gap of the objective.

        Parameters
        ----------
        w : ndarray of float64
            The point, of d entries.
        equal : bool, default False
            Whether all clients have the same data.
        factor : float, default 1.0
            Factor on the regularizer's strength.
        """

    def support(self, w: Vector) -> int:
        """Return the number of non-zero coefficients among those that psi acts on."""


@dataclass(frozen=True)
class Limit(ABC):
    """The limit of a method.

    Parameters
    ----------
    text : str
        One line for tables, without a full stop.
    problem : {"composite", "smooth"}, default "composite"
        Problem of the check: with psi, or without it for a method that refuses psi.

    Attributes
    ----------
    name : str
        One or two words.

    Examples
    --------
    >>> class Anywhere(Limit):
    ...     name = "anywhere"
    ...     def check(self, run, problem): ...
    >>> str(Anywhere("some point, which nobody knows"))
    'anywhere'
    """

    text: str
    #: Problem of the check: a LASSO, or least squares without psi for methods that refuse psi.
    problem: Literal["composite", "smooth"] = "composite"
    name: ClassVar[str]

    @abstractmethod
    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the strategy converges to this limit.

        Parameters
        ----------
        run : Run
            Runs the strategy.
        problem : LimitProblem
            The problem with a known solution.
        """

    def __str__(self) -> str:
        return self.name


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_gap(where: str, gap: float) -> None:
    """Raise AssertionError unless a certified gap is at most 1e-8."""
    _require(gap <= 1e-8, f"{where} the certified gap is {gap:.2e}, expected at most 1e-8")


def _require_shrinking(what: str, before: tuple[float, str], after: tuple[float, str], times: int) -> None:
    """Raise AssertionError unless what is measured, each with where, shrinks so many times."""
    pair = f"{before[0]:.2e} {before[1]} and {after[0]:.2e} {after[1]}"
    _require(before[0] >= times * after[0], f"{what} is {pair}; expected it to shrink at least {times} times")


def _require_bias(
    what: str, run: Run, measure: Callable[[Vector], float], runs: Any, times: int, steps: int = 1, **options: Any
) -> None:
    """Raise AssertionError unless what is measured shrinks so many times from one (rounds, rate) to the other."""
    work = Steps(steps, batch_size=None)
    coarse, fine = (measure(run(rounds, client_lr=rate, work=work, **options)) for rounds, rate in runs)
    _require_shrinking(what, (coarse, f"at rate {runs[0][1]:g}"), (fine, f"at {runs[1][1]:g}"), times)


@dataclass(frozen=True)
class Exact(Limit):
    """The solution for any number of local steps: a certified gap of at most 1e-8.

    Examples
    --------
    >>> Exact().name, Exact(problem="smooth").problem
    ('exact', 'smooth')
    """

    text: str = "the solution, whatever the local work"
    name: ClassVar[str] = "exact"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the gap is certified with one and with three local steps."""
        for steps in (1, 3):
            # A quarter of the rounds is enough for most methods.
            for rounds in (75, 300):
                gap = problem.gap(run(rounds, client_lr=0.3 / steps, work=Steps(steps, batch_size=None)))
                if gap <= 1e-8:
                    break
            _require_gap(f"with {steps} local steps", gap)


@dataclass(frozen=True)
class Biased(Limit):
    """The solution for one local step; for more, an error that shrinks 5 times when the rate shrinks 10 times.

    Examples
    --------
    >>> Biased().name
    'biased'
    """

    text: str = "the solution; a bias of order client rate x local steps"
    name: ClassVar[str] = "biased"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless one local step is exact and the bias of five shrinks with the rate."""
        _require_gap("with 1 local step", problem.gap(run(200, client_lr=0.3, work=Steps(1, batch_size=None))))
        runs = (200, 0.05), (500, 0.005)
        _require_bias("with 5 local steps the error", run, problem.error, runs, 5, steps=5)


@dataclass(frozen=True)
class ExtrapolationBias(Limit):
    """The solution for equal clients; for unequal ones, an error that shrinks 5 times when the rate shrinks 10 times.

    The clients' extra steps differ even with one local step: the gradients in the mean are not taken at one point.
    """

    text: str = "the solution; unequal clients leave a bias of order client rate, also for one local step"
    name: ClassVar[str] = "biased half steps"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless equal clients are exact and the bias of unequal ones shrinks with the rate."""
        for steps in (1, 3):
            work = Steps(steps, batch_size=None)
            gap = problem.gap(run(150, equal=True, client_lr=0.3 / steps, work=work), equal=True)
            _require_gap(f"with {steps} local steps and equal clients", gap)
        for steps in (1, 5):
            runs = (200, 0.25 / steps), (500, 0.025 / steps)
            _require_bias(f"with {steps} local steps the error", run, problem.error, runs, 5, steps)


@dataclass(frozen=True)
class Vanishing(Limit):
    """The solution, slowly: an error that shrinks at least 3 times in 10 times as many rounds."""

    text: str = "the solution, at the rate of the method's growing weights"
    name: ClassVar[str] = "vanishing"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the error shrinks with the rounds, for one and for three local steps."""
        for steps in (1, 3):
            early, late = (problem.error(run(rounds, work=Steps(steps, batch_size=None))) for rounds in (30, 300))
            pair = (early, "after 30 rounds"), (late, "after 300")
            _require_shrinking(f"with {steps} local steps the error", *pair, 3)


@dataclass(frozen=True)
class ShiftedBy(Limit):
    """A point at a distance from the solution that shrinks at least 3 times when an option changes 10 times.

    Parameters
    ----------
    option : str
        Name of an option of the strategy.
    values : (float, float)
        Values of the option; the second one gives the smaller distance.
    rounds : int, default 400
        Number of rounds of each run.
    steps : tuple of int, default (1,)
        Numbers of local steps with which it is checked.

    Examples
    --------
    >>> ShiftedBy(option="convexity", values=(0.1, 0.01)).option
    'convexity'
    """

    text: str = "a point near the solution, at a distance that an option sets"
    option: str = ""
    values: tuple[float, float] = (1.0, 0.1)
    rounds: int = 400
    steps: tuple[int, ...] = (1,)
    name: ClassVar[str] = "shifted by an option"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the distance is there and shrinks with the option."""
        options: list[dict[str, Any]] = [{self.option: value} for value in self.values]
        for steps in self.steps:
            work = Steps(steps, batch_size=None)
            far, near = (problem.error(run(self.rounds, **each, client_lr=0.05, work=work)) for each in options)
            where = f"for {self.option}={self.values[0]:g}"
            what = f"with {steps} local steps the error"
            _require_shrinking(what, (far, where), (near, f"for {self.values[1]:g}"), 3)
            _require(far > 1e-8, f"{what} {where} is {far:.2e}, no distance at all")


@dataclass(frozen=True)
class DoubledStrength(Limit):
    """The solution for twice the strength, because psi acts on the clients and on the server."""

    text: str = "as printed in the paper, the solution for twice the penalty"
    name: ClassVar[str] = "doubled strength"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless equal clients reach the solution for twice the strength."""
        gap = problem.gap(run(150, equal=True, client_lr=0.3, work=Steps(1, batch_size=None)), equal=True, factor=2.0)
        _require_gap("on the problem with twice the strength", gap)


@dataclass(frozen=True)
class NearDoubledStrength(Limit):
    """Near the solution for twice the strength: a gap that shrinks at least 5 times when the rate shrinks 10 times.

    psi acts on the clients and on the server, but once in the extra step.
    """

    text: str = "as printed in the paper, near the solution for twice the penalty, at a distance of order client rate"
    name: ClassVar[str] = "near doubled strength"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless equal clients approach the solution for twice the strength with the rate."""
        what, measure = "the certified gap of the problem with twice the strength", partial(problem.gap, equal=True)
        _require_bias(what, run, partial(measure, factor=2.0), ((100, 0.3), (500, 0.03)), 5, equal=True)


@dataclass(frozen=True)
class Subgradient(Limit):
    """Near the solution: an error that shrinks at least 3 times when the rate shrinks 10 times.

    Examples
    --------
    >>> Subgradient().text
    'near the solution; never an exact zero'
    """

    text: str = "near the solution; never an exact zero"
    name: ClassVar[str] = "subgradient"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the error shrinks with the rate."""
        _require_bias("the error", run, problem.error, ((400, 0.1), (1000, 0.01)), 3)


@dataclass(frozen=True)
class ToZero(Limit):
    """Exactly zero in the end."""

    text: str = "it shrinks to 0; use an early round"
    name: ClassVar[str] = "zero"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless all coefficients that psi acts on are zero after 300 rounds."""
        support = problem.support(run(300, client_lr=0.3, work=Steps(1, batch_size=None)))
        _require(support == 0, f"the last model has {support} non-zero weights")
