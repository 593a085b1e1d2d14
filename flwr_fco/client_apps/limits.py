"""What the owner of a client allows a server to ask for: a message beyond it is answered by an error, at once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from flwr_fco.errors import CompositeError, ConfigurationError, ProtocolError
from flwr_fco.parameters import all_finite
from flwr_fco.protocol import Downlink, Plan
from flwr_fco.questions import Question
from flwr_fco.work import FirstOrder

__all__ = ["Given", "Limits", "clear_errors", "timed"]

_Item = TypeVar("_Item")

#: When the local solver of this message must be done, and the seconds that it was given.
_deadline: ContextVar[tuple[float, float]] = ContextVar("deadline", default=(math.inf, math.inf))


@dataclass(frozen=True)
class Limits:
    """What a client does for a server at most; what is beyond is refused before any work is done.

    The defaults leave room for every run of the papers, with some orders of magnitude to spare; who lends a small
    machine, or does not trust the server, sets tighter ones.

    Parameters
    ----------
    max_steps : int, default 1000000
        Local steps in a round, also where the server counts them in epochs.
    max_iterations : int, default 1000000
        Iterations of a minimisation.
    max_seconds : float, default 3600
        For the local solver in a round; looked at between two minibatches (compiled loops: between two epochs), so a
        solver may exceed it by what one of these takes.
    max_parameters : int, default 100000000
        Numbers in the model, and in a reply with the points of all local steps; each takes eight bytes.
    max_plan : int, default 1000000
        Characters of the JSON in which the plan (regularizer, mirror map, names of arrays) is written.
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
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigurationError(f"{field.name}={value!r}; expected a number > 0")

    def check_header(self, header: object) -> None:
        """Refuse a plan that is too long to be parsed.

        Parameters
        ----------
        header : object
            What the message has as the plan's JSON.
        """
        if not isinstance(header, str):
            raise ProtocolError(f"the plan is a {type(header).__name__}; expected JSON as text")
        if len(header) > self.max_plan:
            raise self._beyond("a plan of", len(header), "characters", "max_plan")

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan whose model is too large, before anything of that size is made.

        Parameters
        ----------
        plan : Plan
        """
        if plan.layout.size > self.max_parameters:
            raise self._beyond("a model of", plan.layout.size, "parameters", "max_parameters")
        if not isinstance(plan.options, Mapping):
            raise ProtocolError(f"the plan's options are {plan.options!r}; expected names and values")
        for name, value in plan.options.items():
            if not isinstance(value, str | bool):
                self._check_number(f"the plan's option {name!r}", value)

    def check_downlink(self, downlink: Downlink, num_examples: int) -> None:
        """Refuse too much work, and numbers that are not finite or absurdly large.

        Parameters
        ----------
        downlink : Downlink
        num_examples : int
            The client's, from which the steps of an epoch follow.
        """
        job = downlink.job
        if isinstance(job, FirstOrder):
            steps = job.num_draws(num_examples)
            if steps > self.max_steps:
                raise self._beyond(f"{job}:", steps, "local steps", "max_steps")
            if downlink.plan.options.get("trajectory") and steps * downlink.plan.layout.size > self.max_parameters:
                asked = steps * downlink.plan.layout.size
                raise self._beyond(f"all {steps} local points:", asked, "numbers in the reply", "max_parameters")
        elif job.max_iterations > self.max_iterations:
            raise self._beyond("a minimisation of", job.max_iterations, "iterations", "max_iterations")
        # NaN stands for a method that has no learning rate; `rate_of` refuses it where there must be one.
        if not math.isnan(downlink.client_lr):
            self._check_number("client-lr", downlink.client_lr)
            if downlink.client_lr <= 0:
                raise ProtocolError(f"the server's client-lr is {downlink.client_lr!r}; expected a number > 0")
        self._check_number("elapsed", downlink.elapsed)
        if downlink.elapsed < 0:
            raise ProtocolError(f"the server's elapsed is {downlink.elapsed!r}; expected a number >= 0")
        for name, number in downlink.numbers.items():
            self._check_number(name, number)
        for name, vector in downlink.vectors.items():
            _check_vector(name, vector)
        if downlink.stamp is not None and downlink.stamp.restored is not None:
            for name, vector in downlink.stamp.restored.items():
                _check_vector(f"restored {name}", vector)

    def check_question_header(self, record: object) -> None:
        """Refuse a question whose description of the model is too long to be parsed.

        Parameters
        ----------
        record : object
            The question's record, whatever it is.
        """
        if isinstance(record, Mapping):
            self.check_header(record.get("layout"))

    def check_question(self, question: Question) -> None:
        """Refuse a question about too large a model, and numbers that are not finite or absurdly large.

        Parameters
        ----------
        question : Question
        """
        if question.layout.size > self.max_parameters:
            raise self._beyond("a model of", question.layout.size, "parameters", "max_parameters")
        for name, number in question.numbers.items():
            self._check_number(name, number)
        for name, vector in question.vectors.items():
            _check_vector(name, vector)

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Start the time of a local solver; :func:`timed` raises within the block once it is over."""
        token = _deadline.set((time.monotonic() + self.max_seconds, self.max_seconds))
        try:
            yield
        finally:
            _deadline.reset(token)

    def _check_number(self, name: str, value: object) -> None:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ProtocolError(f"the server's {name} is {value!r}; expected a finite number")
        if abs(value) > self.max_number:
            raise self._beyond(f"{name}", value, "", "max_number")

    def _beyond(self, what: str, asked: float, unit: str, limit: str) -> ConfigurationError:
        text = " ".join(filter(None, (what, f"{asked:g}" if isinstance(asked, float) else _short(asked), unit)))
        return ConfigurationError(
            f"the server asks for {text}; this client allows {limit}={getattr(self, limit):g}. Its owner can raise "
            f"the limit: client_app(..., limits=Limits({limit}=...))"
        )


class Given(dict[str, Any]):
    """What a server says by name; asking for what it has not said is an error that names it.

    Parameters
    ----------
    what : str
        What the values are, for the message.
    values : mapping

    Examples
    --------
    >>> Given("vector", {"dual": 0})["primal"]
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the server's message lacks the vector 'primal'; it has dual
    """

    def __init__(self, what: str, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.what = what

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(
            f"the server's message lacks the {self.what} {name!r}; it has {', '.join(sorted(self)) or 'none'}"
        )


@contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Turn whatever goes wrong with what a server said into one of the package's errors.

    Parameters
    ----------
    what : str
        What cannot be done.

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
    except CompositeError:
        raise
    except Exception as error:
        # Any type: what a server may send has no end, and no code of the client's owner runs in these blocks.
        text = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"{what}: {text if len(text) <= 500 else text[:500] + ' ...'}") from error


def timed(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield the items of an iterable until the time of the local solver is over.

    A local solver of one's own loops over ``timed(objective.batches(...))`` as those of this package do.

    Parameters
    ----------
    items : iterable
        Minibatches or epochs.

    Raises
    ------
    ConfigurationError
        Before the first item that comes after `max_seconds` of the client's limits.

    Examples
    --------
    >>> list(timed([1, 2]))
    [1, 2]
    """
    end, seconds = _deadline.get()
    clock = time.monotonic
    for done, item in enumerate(items):
        if clock() > end:
            raise ConfigurationError(
                f"the local solver was stopped after {seconds:g} seconds, in which it took {done} minibatches or "
                "epochs: this client's limit is max_seconds. Ask for less work, or let the client's owner raise the "
                "limit: client_app(..., limits=Limits(max_seconds=...))"
            )
        yield item


def _check_vector(name: str, vector: Any) -> None:
    if not all_finite(vector):
        raise ProtocolError(f"the server's vector {name!r} holds NaN or infinite values")


def _short(number: int) -> str:
    return f"{number}" if number < 10**15 else f"about 10^{number.bit_length() * 3 // 10}"
