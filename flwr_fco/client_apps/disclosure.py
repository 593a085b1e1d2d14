"""What leaves a site: one rule of its owner's for every answer, and a line of the log about each.

With a limit on rows, no answer, batch, fold or bin is about fewer of them, batches and folds are drawn by a seed that
the server does not know, and folds and bins are of one kind in a run. Every number that leaves counts against a total.
:func:`answered` is the gate: it sees each message first, and each answer last.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NoReturn

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from flwr_fco.core.computing import logger
from flwr_fco.core.validation import AT_LEAST_ONE, Choice, printable
from flwr_fco.errors import ConfigurationError, FlwrFcoError, PublicError
from flwr_fco.objectives import Linear, Objective
from flwr_fco.work import FirstOrder

#: What answers a message, the other mods of a ClientApp in it. Flower moves its own name for this between releases.
Next = Callable[[Message, Context], Message]
#: Indices of rows.
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Disclosure(Choice):
    """Limits that a site's owner sets on what its answers give away of its rows; by default there are none.

    They hold for every answer: training in each strategy, evaluations, questions. A site answers beyond them with an
    error, which names the limit and not the site's own numbers. A site whose owner gives a Disclosure, also one without
    limits, writes a line of its log for each message.

    Parameters
    ----------
    min_rows : int, optional
        Smallest number of rows of an answer, a minibatch, a fold, a bin or one of two clusters. Rates by ``"auto"`` of
        minibatches of b of n rows are smaller then: by n / b times the smoothness of all rows, not by that of the
        longest row.
    min_class_rows : int, optional
        For losses with classes, the smallest number of rows of a class that occurs there. Rows with an event and
        censored rows are two classes. As no minibatch can be sure of it, batches are full (``batch_size=None``).
    min_events : int, optional
        Smallest number of rows with an event, if there are any: deaths of ``CoxRegression``, counts above 0 of
        ``Poisson``, the rows of each class of a loss with classes. A loss of your own says it in an attribute
        ``num_events``. Losses of numbers, such as squares, have no events. Batches are full.
    max_numbers : int, optional
        Most numbers that may leave in a run, of all answers together: increments, gradients, second derivatives, means,
        losses, numbers of rows. As many numbers as the table has are the table, so stay well below rows times columns.

    Raises
    ------
    ConfigurationError
        If a limit is of another type or out of range.

    Examples
    --------
    >>> Disclosure(min_rows=20).check_rows(12, "the gradient of fold 2")
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: the server asks for the gradient of fold 2; this site has fewer rows for it than min_rows=20 allows. Its owner can change the limit: client_app(..., disclosure=Disclosure(min_rows=...))
    """  # noqa: E501

    min_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    min_class_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    min_events: int | None = field(default=None, metadata=AT_LEAST_ONE)
    max_numbers: int | None = field(default=None, metadata=AT_LEAST_ONE)

    @cached_property
    def limits_rows(self) -> bool:
        """Whether there is a limit on the rows that an answer is about."""
        return any(limit is not None for limit in (self.min_rows, self.min_class_rows, self.min_events))

    def check(self, objective: Objective, request: str) -> None:
        """Refuse an answer about the rows of an objective.

        Parameters
        ----------
        objective : Objective
            The loss on these rows.
        request : str
            What the server asks for; begins the error message.

        Raises
        ------
        ConfigurationError
            If they are fewer than the limits, or the objective does not say its classes or events.
        """
        self.check_rows(int(objective.num_examples), request)
        for limit, (counts_of, few, attribute) in _COUNTED.items():
            least = getattr(self, limit)
            counts = [] if least is None else counts_of(objective)
            if counts is None:
                why = f"its {type(objective).__name__} lacks the attribute `{attribute}`: add it, or leave the limit"
                raise ConfigurationError(f"the server asks for {request}; the owner sets {limit}={least}, and {why}")
            # No row with an event is not few.
            if any(0 < count < least for count in counts):
                raise self._refusal(limit, request, f"has {few} than")

    def check_rows(self, rows: int, request: str) -> None:
        """Refuse an answer about fewer rows than `min_rows`; the message does not say how many there are."""
        if self.min_rows is not None and rows < self.min_rows:
            raise self._refusal("min_rows", request, "has fewer rows for it than")

    def check_division(self, loss: Objective, parts: Iterable[Rows], kind: str, asked: Any, context: Context) -> None:
        """Refuse sums over parts of the rows, if one is too small, or if the rows were divided otherwise in this run.

        Sums over all rows less those without a part are those of the part, and differences of parts can be single rows.

        Parameters
        ----------
        loss : Objective
            On all rows.
        parts : iterable of ndarray of int64
            The rows of each part.
        kind : str
            What the parts are, such as folds.
        asked : int, str or bytes
            By which the server says how they are divided.
        context : Context
            The node's; modified.
        """
        for rows in (part for part in parts if part.size):
            self.check(loss.subset(rows)[0], f"sums over {kind}")
        if _kept(context).setdefault(kind, asked) != asked:
            why = f"differences of {kind} can be single rows. Start another run"
            raise ConfigurationError(f"the server asks for other {kind} than before in this run: {why}")

    def allowed(self, work: FirstOrder, rows: int, context: Context) -> FirstOrder:
        """Return a round's work with batches that this site allows, the last of an epoch among them.

        What a batch leaves out is other batches, so that neither it nor the rest is a few rows.

        Raises
        ------
        ConfigurationError
            If the server asks for smaller batches, or for any where classes or events are limited.
        """
        size = min(work.batch_size or rows, rows)
        if self.limits_rows and size < rows:
            if full := [limit for limit in _COUNTED if getattr(self, limit) is not None]:
                why = "takes full batches (batch_size=None) only, which is all that"
                raise self._refusal(full[0], f"batches of {size} rows", why)
            self.check_rows(size, f"batches of {size} rows")
            while 0 < rows % size < (self.min_rows or 0):
                size += 1
            work = replace(work, batch_size=size)
        _kept(context)["batch"] = size
        return work

    def secret(self, context: Context, *, drawn: bool = False) -> int:
        """Return the seed of a site's folds, which stays in its node; `drawn`: whether the run has asked about them."""
        if drawn and "seed" not in _kept(context):
            raise PublicError("this site has lost its folds, as when its SuperNode is restarted: fit again")
        return int(_kept(context).setdefault("seed", f"{secrets.randbits(128)}"))

    def count(self, numbers: int, context: Context) -> int:
        """Count numbers that are about to leave, and return those of the run; more than `max_numbers` are refused."""
        before: int = _kept(context).setdefault("numbers", 0)
        if self.max_numbers is not None and before + numbers > self.max_numbers:
            why = f"has sent {before} in this run, and all together are more than"
            raise self._refusal("max_numbers", f"{numbers} numbers", why)
        _kept(context)["numbers"] = before + numbers
        return before + numbers

    def hide(self, error: Exception, problem: str, context: Context) -> NoReturn:
        """Log an error, and raise one without its text, which may hold values of rows, such as labels."""
        if isinstance(error, PublicError) or self == Disclosure():
            raise error
        logger.error("Run %s: %s", context.run_id, problem, exc_info=error)
        why = "its owner limits what is said of rows, and a text may be about one"
        raise ConfigurationError(f"{problem} ({type(error).__name__}). The reason is in its own log: {why}") from None

    def _refusal(self, limit: str, request: str, why: str) -> ConfigurationError:
        prefix = f"the server asks for {request}; this site {why} {limit}={getattr(self, limit)} allows"
        advice = f"Its owner can change the limit: client_app(..., disclosure=Disclosure({limit}=...))"
        return ConfigurationError(f"{prefix}. {advice}")


def _classes_of(objective: Objective) -> list[int] | None:
    """Return the rows of each class; none of a loss of numbers, and None of one that does not say."""
    labels: Any = getattr(objective, "labels", None)
    if labels is not None:
        return [int(count) for count in np.unique(labels, return_counts=True)[1]]
    return [] if isinstance(objective, Linear) else None


def _events_of(objective: Objective) -> list[int] | None:
    """Return the rows with an event; of a loss with classes those of each class."""
    events: Any = getattr(objective, "num_events", None)
    return _classes_of(objective) if events is None else [int(events)]


#: Limits: what they count, what is said of fewer, and the attribute by which a loss says it.
_COUNTED = {"min_class_rows": (_classes_of, "a class with fewer rows", "labels")}
_COUNTED["min_events"] = (_events_of, "fewer events", "num_events")


def _kept(context: Context) -> Any:
    """Return what a node remembers of what has left; where Flower keeps a context for several runs, of all of them."""
    return context.state.setdefault("fco-disclosed", ConfigRecord())


# --- the gate, and its line of the log --------------------------------------------------------------------------------

#: Below Flower's logger, which prints it, so that an owner can send the record to a file. It has a level of its own,
#: because a simulation silences Flower's.
record = logging.getLogger("flwr.disclosure")
record.setLevel(logging.INFO)

#: Characters of a text from the server and names of what was sent, and characters of an error, at most.
_MOST, _LONGEST = 60, 400


def answered(disclosure: Disclosure, message: Message, context: Context, call_next: Next) -> Message:
    """Answer a message as the outermost mod of a ClientApp: count what leaves, and write a line of the log about it."""
    asked: Any = message.content.get("fco-question", {})
    kind = "/".join(f"{text}" for text in (message.metadata.message_type, dict(asked).get("kind")) if text)
    who = f"run {context.run_id}, partition {context.node_config.get('partition-id', '-')}"
    who += f", round {plain(message.metadata.group_id or '-', 12)}"
    quoted = plain(kind, _MOST).replace("'", "\\'")
    _kept(context).pop("batch", None)
    try:
        answer = call_next(message, context)
        sent = _sent(disclosure, answer, context)
    except BaseException as error:
        sent = f"refused: {type(error).__name__}: {plain(f'{error}', _LONGEST)}"
        if isinstance(error, Exception) and not isinstance(error, FlwrFcoError):
            disclosure.hide(error, "this site cannot answer", context)
        raise
    finally:
        record.info("Disclosure: %s: asked for '%s'; %s", who, quoted, sent)
    return answer


def plain(text: str, most: int) -> str:
    """Return a text, up to so many characters of it, with escapes in place of what a terminal would not print as it is.

    Examples
    --------
    >>> plain("x" * 99, 5), len(plain(chr(27), 5))
    ('xxxxx...', 4)
    """
    return printable(text[:most].replace("\\", "\\\\")) + "..." * (len(text) > most)


def _sent(disclosure: Disclosure, answer: Any, context: Context) -> str:
    """Count the numbers of an answer, and return how many they are, of how many rows and batches, and their names."""
    if answer is None or answer.has_error():
        return "sent nothing" if answer is None else f"sent an error: {plain(answer.error.reason or '', _LONGEST)}"
    named = [each for part in answer.content.values() if not isinstance(part, ConfigRecord) for each in part.items()]
    shapes = [[len(value)] if isinstance(value, list) else list(getattr(value, "shape", ())) for _, value in named]
    count = sum(map(prod, shapes))
    total = disclosure.count(count, context)
    rows, batch = dict(named).get("num-examples"), _kept(context).get("batch")
    about = "" if rows is None else f" about {rows} rows" + ("" if batch is None else f" in batches of {batch}")
    names = [f"{plain(name, _MOST)}{shape or ''}" for (name, _), shape in zip(named, shapes, strict=True)]
    return f"sent {count} numbers{about} ({total} in this run): {', '.join(names[:_MOST]) or 'none'}"
