"""Limits set by a client's owner: a message that exceeds them is refused at once with an error."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields

from flwr_fco.core.computing import deadline
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError, FlwrFcoError, ProtocolError
from flwr_fco.wire.keys import POINTS
from flwr_fco.wire.protocol import Downlink, Plan
from flwr_fco.wire.questions import Question
from flwr_fco.work import FirstOrder

#: A limit may be infinite.
_ABOVE_ZERO = {"range": (lambda value: value > 0.0, "a number > 0")}


@dataclass(frozen=True)
class Limits:
    """Limits on the work a client does for a server; a message that exceeds them is refused before any work is done.

    The defaults exceed every run in the papers by orders of magnitude. Set tighter limits on a small machine or if you
    do not trust the server.

    Parameters
    ----------
    max_steps : int, default 1000000
        Local steps in a round, including those requested as epochs.
    max_iterations : int, default 1000000
        Iterations of a minimisation.
    max_seconds : float, default 3600
        Seconds for the local solver in a round; checked between minibatches (between epochs in compiled loops, between
        gradients or Hessian products in minimisations), so a solver may exceed it by the time of one of these.
    max_parameters : int, default 100000000
        Numbers in the model, in all points that a message asks about, and in a reply that holds the points of all local
        steps; eight bytes each.
    max_plan : int, default 1000000
        Characters in the plan's JSON (regularizer, mirror map, names of arrays).
    max_number : float, default 1e15
        Absolute value of learning rates, sums of step sizes and other numbers.

    Raises
    ------
    ConfigurationError
        If a limit is not a number > 0.

    Examples
    --------
    >>> Limits(max_steps=500, max_seconds=10.0).max_parameters
    100000000
    >>> Limits(max_steps=0)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: max_steps=0; expected a number > 0
    """

    max_steps: int = 1_000_000
    max_iterations: int = 1_000_000
    max_seconds: float = 3600.0
    max_parameters: int = 100_000_000
    max_plan: int = 1_000_000
    max_number: float = 1e15

    def __post_init__(self) -> None:
        for field in fields(self):
            checked(field.name, getattr(self, field.name), float, _ABOVE_ZERO)

    def check_header(self, header: object) -> None:
        """Refuse a plan that is too long to be parsed.

        Parameters
        ----------
        header : object
            The plan's JSON as received.
        """
        if not isinstance(header, str):
            raise ProtocolError(f"the plan is a {type(header).__name__}; expected JSON as text")
        self._check("max_plan", len(header), "a plan of", "characters")

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan whose model is too large, before memory of that size is allocated.

        Parameters
        ----------
        plan : Plan
            As read from the message.
        """
        self._check("max_parameters", plan.layout.size, "a model of", "parameters")
        options = {f"the plan's option {name!r},": value for name, value in plan.options.items()}
        self._check_numbers({what: value for what, value in options.items() if not isinstance(value, str | bool)})

    def check_downlink(self, downlink: Downlink, num_examples: int | None) -> None:
        """Refuse too much work and absurdly large numbers.

        Parameters
        ----------
        downlink : Downlink
            As read from the message.
        num_examples : int or None
            The client's number of examples, which determines the steps in an epoch; None for a custom training loop,
            whose steps are checked by :meth:`check_steps`.
        """
        plan = downlink.plan
        work = plan.work if downlink.work is None else downlink.work
        if isinstance(work, FirstOrder) and num_examples is not None:
            trajectory = plan.options.get("trajectory")
            # An epoch has at most one step per example: count the steps only if that bound exceeds the limit.
            if trajectory or (work.steps or (work.epochs or 1) * int(num_examples)) > self.max_steps:
                steps = work.num_draws(num_examples)
                self.check_steps(steps, work)
                if trajectory:
                    what = f"all {steps} local points:"
                    self._check("max_parameters", steps * plan.layout.size, what, "numbers in the reply")
        elif not isinstance(work, FirstOrder):
            self._check("max_iterations", work.max_iterations, "a minimisation of", "iterations")
        if POINTS in downlink.numbers:
            points = downlink.numbers[POINTS]
            what = f"answers about {points:g} points:"
            self._check("max_parameters", int(points) * plan.layout.size, what, "numbers")
        # `read_downlink` has checked that they are finite. A learning rate of NaN means that the method has none.
        self._check_numbers({"client-lr": downlink.client_lr, "elapsed": downlink.elapsed, **downlink.numbers})

    def check_steps(self, steps: int, work: FirstOrder | None = None) -> None:
        """Refuse more local steps than are allowed.

        Parameters
        ----------
        steps : int
            Steps of the round so far, or of the whole round.
        work : FirstOrder, optional
            The requested work; used in the error message.
        """
        self._check("max_steps", steps, f"{work}:" if work else "a round of", "local steps")

    def check_question_header(self, record: object) -> None:
        """Refuse a question whose description of the model is too long to be parsed.

        Parameters
        ----------
        record : object
            The question's record, of any type.
        """
        if isinstance(record, Mapping):
            self.check_header(record.get("layout"))

    def check_question(self, question: Question) -> None:
        """Refuse a question with too large a model or absurdly large numbers.

        Parameters
        ----------
        question : Question
            As read from the message.
        """
        self._check("max_parameters", question.layout.size, "a model of", "parameters")
        self._check_numbers(question.numbers)

    def end(self) -> tuple[float, float]:
        """Return when a local solver that begins now must have ended, and its seconds."""
        return time.monotonic() + self.max_seconds, self.max_seconds

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Start a local solver's time limit: within the block, :func:`timed` raises once the time is up."""
        before, deadline.at = deadline.at, self.end()
        try:
            yield
        finally:
            deadline.at = before

    def _check_numbers(self, numbers: Mapping[str, float]) -> None:
        for what, number in numbers.items():
            if abs(number) > self.max_number:
                self._check("max_number", number, what)

    def _check(self, limit: str, asked: float, what: str, unit: str = "") -> None:
        """Refuse more than a limit allows."""
        most = getattr(self, limit)
        if abs(asked) > most:
            text = " ".join(filter(None, (what, f"{asked:g}" if isinstance(asked, float) else _short(asked), unit)))
            text = f"the server asks for {text}; this client allows {limit}={most:g}. Its owner can raise the limit"
            raise ConfigurationError(f"{text}: client_app(..., limits=Limits({limit}=...))")


@contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Turn any error in handling a server's message into one of the package's errors.

    Parameters
    ----------
    what : str
        The failure, used as the start of the error message.

    Examples
    --------
    >>> with clear_errors("the server's plan cannot be read"):
    ...     int("ten")
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the server's plan cannot be read: ValueError: invalid literal for int() with base 10: 'ten'
    """  # noqa: E501
    try:
        yield
    except FlwrFcoError:
        raise
    except Exception as error:
        # Catch every type: a server can send anything, and none of the client owner's code runs in these blocks.
        text = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"{what}: {text if len(text) <= 500 else text[:500] + ' ...'}") from error


def _short(number: int) -> str:
    return f"{number}" if number < 10**15 else f"about 10^{number.bit_length() * 3 // 10}"
