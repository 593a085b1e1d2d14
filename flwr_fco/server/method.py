"""What a strategy class says of itself: its algorithm, its limit with the check of it, and facts for the docs' tables.

:func:`flwr_fco.testing.check_strategy` gives a limit a way to run the strategy and a problem with a known solution. A
method with another limit defines its own subclass of :class:`Limit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.contract.choices import Everyone
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.server.options import EveryoneOptions
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
    _require(
        before[0] >= times * after[0],
        f"{what} is {before[0]:.2e} {before[1]} and {after[0]:.2e} {after[1]}; expected it to shrink at least {times} "
        "times",
    )


@dataclass(frozen=True)
class Exact(Limit):
    """The solution for any number of local steps: a certified gap of at most 1e-8."""

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
    """The solution for one local step; for more, an error that shrinks 5 times when the rate shrinks 10 times."""

    text: str = "the solution; a bias of order client rate x local steps"
    name: ClassVar[str] = "biased"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless one local step is exact and the bias of five shrinks with the rate."""
        _require_gap("with 1 local step", problem.gap(run(200, client_lr=0.3, work=Steps(1, batch_size=None))))
        coarse = problem.error(run(200, client_lr=0.05, work=Steps(5, batch_size=None)))
        fine = problem.error(run(500, client_lr=0.005, work=Steps(5, batch_size=None)))
        _require_shrinking("with 5 local steps the error", (coarse, "at rate 0.05"), (fine, "at 0.005"), 5)


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
            gap = problem.gap(
                run(150, equal=True, client_lr=0.3 / steps, work=Steps(steps, batch_size=None)), equal=True
            )
            _require_gap(f"with {steps} local steps and equal clients", gap)
        for steps in (1, 5):
            coarse = problem.error(run(200, client_lr=0.25 / steps, work=Steps(steps, batch_size=None)))
            fine = problem.error(run(500, client_lr=0.025 / steps, work=Steps(steps, batch_size=None)))
            what = f"with {steps} local steps the error"
            _require_shrinking(what, (coarse, "at a rate"), (fine, "at a tenth of it"), 5)


@dataclass(frozen=True)
class Vanishing(Limit):
    """The solution, slowly: an error that shrinks at least 3 times in 10 times as many rounds."""

    text: str = "the solution, at the rate of the method's growing weights"
    name: ClassVar[str] = "vanishing"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the error shrinks with the rounds, for one and for three local steps."""
        for steps in (1, 3):
            early, late = (problem.error(run(rounds, work=Steps(steps, batch_size=None))) for rounds in (30, 300))
            what = f"with {steps} local steps the error"
            _require_shrinking(what, (early, "after 30 rounds"), (late, "after 300"), 3)


@dataclass(frozen=True)
class Shifted(Limit):
    """A point at a distance from the solution that shrinks at least 3 times when `convexity` shrinks 10 times."""

    text: str = "a point near the solution, at a distance of the order of the option `convexity`"
    name: ClassVar[str] = "shifted"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the distance shrinks with the option `convexity`."""
        for steps in (1, 3):
            far, near = (
                problem.error(run(150, convexity=mu, work=Steps(steps, batch_size=None))) for mu in (0.1, 0.01)
            )
            what = f"with {steps} local steps the error"
            _require_shrinking(what, (far, "for convexity=0.1"), (near, "for 0.01"), 3)


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
    """

    text: str = "a point near the solution, at a distance that an option sets"
    option: str = ""
    values: tuple[float, float] = (1.0, 0.1)
    rounds: int = 400
    name: ClassVar[str] = "shifted by an option"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the distance is there and shrinks with the option."""
        options: list[dict[str, Any]] = [{self.option: value} for value in self.values]
        far, near = (
            problem.error(run(self.rounds, **each, client_lr=0.05, work=Steps(1, batch_size=None))) for each in options
        )
        where = f"for {self.option}={self.values[0]:g}"
        _require_shrinking("the error", (far, where), (near, f"for {self.values[1]:g}"), 3)
        _require(far > 1e-8, f"the error {where} is {far:.2e}, no distance at all")


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
        coarse, fine = (
            problem.gap(run(rounds, equal=True, client_lr=rate, work=Steps(1, batch_size=None)), equal=True, factor=2.0)
            for rounds, rate in ((100, 0.3), (500, 0.03))
        )
        what = "the certified gap of the problem with twice the strength"
        _require_shrinking(what, (coarse, "at rate 0.3"), (fine, "at 0.03"), 5)


@dataclass(frozen=True)
class Subgradient(Limit):
    """Near the solution: an error that shrinks at least 3 times when the rate shrinks 10 times."""

    text: str = "near the solution; never an exact zero"
    name: ClassVar[str] = "subgradient"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless the error shrinks with the rate."""
        coarse = problem.error(run(400, client_lr=0.1, work=Steps(1, batch_size=None)))
        fine = problem.error(run(1000, client_lr=0.01, work=Steps(1, batch_size=None)))
        _require_shrinking("the error", (coarse, "at rate 0.1"), (fine, "at 0.01"), 3)


@dataclass(frozen=True)
class ToZero(Limit):
    """Exactly zero in the end."""

    text: str = "it shrinks to 0; use an early round"
    name: ClassVar[str] = "zero"

    def check(self, run: Run, problem: LimitProblem) -> None:
        """Raise AssertionError unless all coefficients that psi acts on are zero after 300 rounds."""
        support = problem.support(run(300, client_lr=0.3, work=Steps(1, batch_size=None)))
        _require(support == 0, f"the last model has {support} non-zero weights")


class Method(NamedTuple):
    """The method of a strategy class.

    Parameters
    ----------
    algorithm : type of Algorithm, optional
        Both halves; None for a base class.
    choose : callable, optional
        ``(strategy) -> type of Algorithm``, where an option chooses another algorithm than `algorithm`.
    limit : Limit, optional
        What it converges to, with its own check.
    source : str
        Where it is from.
    sends, remembers : str
        What a client sends, and what it remembers between rounds.
    traffic : str
        Vectors down and up in a round.
    """

    algorithm: type[Algorithm] | None = None
    choose: Callable[[Any], type[Algorithm]] | None = None
    limit: Limit | None = None
    source: str = "your own"
    sends: str = "z_K - z_0"
    remembers: str = "nothing"
    traffic: str = "1 / 1"


_METHODS: WeakKeyDictionary[type, Method] = WeakKeyDictionary()


def declare(strategy: type, **says: Any) -> None:
    """Record what a strategy class says of its method; what it does not say is its base class's.

    Parameters
    ----------
    strategy : type
        The class.
    **says
        Fields of :class:`Method`.
    """
    inherited = next((_METHODS[base] for base in strategy.__mro__[1:] if base in _METHODS), Method())
    unknown = sorted(says.keys() - set(Method._fields))
    if unknown:
        raise ConfigurationError(
            f"class {strategy.__name__}(..., {unknown[0]}=...): a strategy class says {', '.join(Method._fields)}"
        )
    algorithm = says.get("algorithm")
    if algorithm is not None and not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise ConfigurationError(
            f"class {strategy.__name__}(..., algorithm={algorithm!r}): expected a subclass of "
            "flwr_fco.algorithms.Algorithm"
        )
    if algorithm is not None:
        inherited = inherited._replace(choose=None)
    _METHODS[strategy] = inherited._replace(**says)


def method_of(strategy: object) -> Method:
    """Return the method of a strategy, or of a class of strategies.

    Parameters
    ----------
    strategy : CompositeStrategy or type
        The strategy, or its class.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDAGT
    >>> str(method_of(FedDAGT).limit), method_of(FedDAGT).algorithm.__name__
    ('exact', 'GradientTracking')
    """
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return _METHODS.get(kind, Method())


def algorithm_class(options: object) -> type[Algorithm]:
    """Return the class of a strategy's algorithm.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.

    Raises
    ------
    ConfigurationError
        If the strategy's class says none, or one that a density would replace.
    """
    method = method_of(options)
    kind = method.algorithm if method.choose is None else method.choose(options)
    if kind is None:
        name = type(options).__name__
        raise ConfigurationError(
            f"{name} does not say what it runs: class {name}(..., CompositeStrategy, algorithm=...) takes a subclass "
            "of flwr_fco.algorithms.Algorithm"
        )
    if getattr(options, "density", None) is None or issubclass(kind, SparseDualAveraging):
        return kind
    if kind is not DualAveraging:
        raise ConfigurationError(
            f"density={getattr(options, 'density', None)!r}: {type(options).__name__} runs {kind.__name__}, and a "
            "density is an algorithm of its own, flwr_fco.algorithms.SparseDualAveraging: make yours a subclass of it, "
            "or leave density out"
        )
    return SparseDualAveraging


def algorithm_of(options: object) -> Algorithm:
    """Return a strategy's algorithm, with the strategy's options of the same names.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.

    Raises
    ------
    ConfigurationError
        If the strategy lacks an option that the algorithm needs.
    """
    kind: Any = algorithm_class(options)
    arguments = [option for option in fields(kind) if option.init] if is_dataclass(kind) else []
    values = {option.name: getattr(options, option.name) for option in arguments if hasattr(options, option.name)}
    for option in arguments:
        if option.name not in values and option.default is MISSING and option.default_factory is MISSING:
            raise ConfigurationError(
                f"{kind.__name__} needs the option {option.name!r}, which {type(options).__name__} does not have: "
                f"add a field `{option.name}: ...` to it, or give it a default in {kind.__name__}"
            )
    algorithm: Algorithm = kind(**values)
    return algorithm


def check_choices(options: Any, kind: type[Algorithm]) -> None:
    """Check that a strategy's options are among those that its algorithm has a place for.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.
    kind : type of Algorithm
        The class of its algorithm.

    Raises
    ------
    ConfigurationError
        If one is not, with the reason and what to take.
    """
    name, refuses = type(options).__name__, kind.refuses
    if options.aggregation != "mean" and kind.reads != "mean":
        rows, sums = (
            "gossip reads each reply by itself",
            "its sums (trackers, duals) hold only with the clients' weights",
        )
        why = rows if kind.reads == "rows" else sums
        raise ConfigurationError(
            f"aggregation={options.aggregation!r}: {name} needs the mean: {why}. Take FedDualAvg, FedMid or "
            "FedAvgSubgradient for robust aggregation, or tighter bounds=Bounds(max_ratio=..., max_increment_norm=...)"
        )
    if "regularizer" in refuses and not isinstance(options.regularizer, Zero):
        raise ConfigurationError(
            f"regularizer={options.regularizer!r}: {name} has no place for psi, because {refuses['regularizer']}. Put "
            "a smooth psi (an l2 term) into the clients' losses, or take FedDR, FedDualAvg or FedDAGT"
        )
    if "mirror_map" in refuses and not isinstance(options.mirror_map, Euclidean):
        raise ConfigurationError(
            f"mirror_map={options.mirror_map!r}: {name} {refuses['mirror_map']}, so it is Euclidean; use Euclidean(), "
            "or FedMid or FedDualAvg for other geometries"
        )
    if options.mirror_map.never_supports(options.regularizer):
        options.mirror_map.require(options.regularizer)
    everyone = kind.reads == "everyone"
    if everyone and options.fraction_train != 1.0:
        raise ConfigurationError(
            f"fraction_train={options.fraction_train}: {name} needs every client in every round; "
            "leave fraction_train=1.0, or take a strategy that samples clients, such as Scaffold"
        )
    waits = isinstance(options.participation, Everyone)
    if (waits and not everyone) or (isinstance(options, EveryoneOptions) and not waits):
        expected = "an Everyone, for the method needs every client: EveryoneOptions before CompositeStrategy has it"
        if not everyone:
            expected = f'a Participation, or set {kind.__name__}.reads to "everyone", or leave EveryoneOptions out'
        raise ConfigurationError(f"participation={options.participation!r} of {name}; expected {expected}")
