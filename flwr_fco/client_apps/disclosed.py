"""The record of what has left a site, and folds and bins that must not be of two kinds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from flwr_fco.algorithms.contract.disclosure import Disclosure
from flwr_fco.client_apps.answers import bins_of, judged
from flwr_fco.core.logs import log, printable
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.messages.protocol import EDGE, FOLDS, Answer, Downlink, Question
from flwr_fco.messages.records import plan_text, read_plan
from flwr_fco.objectives.base import Objective

_DISCLOSED = "fco-disclosed"


def _first(context: Context, kind: str, what: str) -> str:
    """Return what of a kind has left a client first in this run, else this: differences could be single rows."""
    record: Any = context.state.setdefault(_DISCLOSED, ConfigRecord())
    return f"{record.setdefault(kind, what)}"


def check_folds(downlink: Downlink, disclosure: Disclosure, context: Context) -> None:
    """Refuse to deal a site's rows into folds in a second way in the same run, if its owner limits rows.

    Sums over folds of both ways tell those over their differences, which may be a single row.

    Parameters
    ----------
    downlink : Downlink
        What the server asks for.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.

    Raises
    ------
    ConfigurationError
        If the number of folds, or the seed, is another than in the run's earlier messages.
    """
    folds, seed = int(downlink.numbers.get(FOLDS, 0.0)), downlink.plan.seed
    if folds < 1 or not disclosure.limits_rows:
        return
    asked = f"{folds} (seed={seed})"
    if (before := _first(context, "folds", asked)) != asked:
        what = f"the server asks for {folds} folds (seed={seed}), and has asked for {before} before in this run"
        why = "differences of folds can be single rows, and this site's owner sets a smallest number of rows"
        raise ConfigurationError(f"{what}: {why}. Start another run")


def as_bins_may_leave(
    answer: Answer, question: Question, objective: Objective, disclosure: Disclosure, context: Context
) -> Answer:
    """Return a site's answer about bins, without them if its owner limits rows and one bin holds fewer, but some.

    Bins of a second model, or between other edges, are kept back too in the same run: differences of both may be single
    rows.

    Parameters
    ----------
    answer : Answer
        What the site would say.
    question : Question
        The question about bins.
    objective : Objective
        The loss on the site's rows.
    disclosure : Disclosure
        What the owner allows.
    context : Context
        The node's context; modified.
    """
    if not disclosure.limits_rows:
        return answer
    numbers = sorted((name, value) for name, value in question.numbers.items() if name.startswith(EDGE))
    content = repr(numbers).encode() + question.vectors["primal"].tobytes()
    place, _ = bins_of(question, judged(objective))
    try:
        for number in np.unique(place):
            disclosure.check(objective.subset(np.flatnonzero(place == number))[0], "a bin")
        digest = blake2b(content, digest_size=16).hexdigest()
        if _first(context, "bins", digest) != digest:
            raise ConfigurationError("the server asks for other bins than before in this run")
    except ConfigurationError as error:
        log(INFO, "Run %s: kept back bins of scores: %s", context.run_id, error)
        zeros = {name: np.zeros(own.shape) for name, own in answer.vectors.items()}
        return answer._replace(numbers={"told": 0.0}, vectors=zeros)
    return answer


#: Below Flower's logger, which prints it, so that an owner can send the record to a file. It has a level of its own,
#: because a simulation silences Flower's.
record = logging.getLogger("flwr.disclosure")
record.setLevel(logging.INFO)

#: Letters of a text from the server, of an error, and names of what was sent, at most.
_LETTERS, _LONGEST, _MOST = 60, 400, 32
_KINDS = {
    "evaluate": "an evaluation",
    "query.names": "the names of its columns and classes",
    "query.table": "the names and scales of its columns",
    "query.partition": "its partition",
}


def recorded(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Answer a message, as a mod of a ClientApp that sees what leaves, and write a line of the log about it."""
    try:
        answer = call_next(message, context)
    except FlwrFcoError as error:
        _write(message, context, f"refused: {plain(str(error), _LONGEST)}")
        raise
    except Exception as error:
        _write(message, context, f"failed: {plain(f'{type(error).__name__}: {error}', _LONGEST)}")
        raise
    _write(message, context, f"sent {_sent(answer)}")
    return answer


def plain(text: str, most: int) -> str:
    """Return a text, up to so many letters of it, with escapes in place of what a terminal would not print as it is.

    Examples
    --------
    >>> plain("x" * 99, 5), len(plain(chr(27), 5))
    ('xxxxx...', 4)
    """
    return printable(text[:most].replace("\\", "\\\\")) + "..." * (len(text) > most)


def _write(message: Message, context: Context, what: str) -> None:
    who = f"run {context.run_id}, partition {context.node_config.get('partition-id', '-')}"
    number = plain(message.metadata.group_id or "-", 12)
    record.info("Disclosure: %s, round %s: asked for %s; %s", who, number, _asked(message), what)


def _asked(message: Message) -> str:
    """Return what a message asks for; texts of the server's choice are in quotes."""
    kind = message.metadata.message_type
    if kind == "train":
        try:
            solver = read_plan(message.content, plan_text(message.content)).solver
        except FlwrFcoError:
            return "training"
        return f"training by {_quoted(solver)}"
    if kind == "query.question":
        question: Any = message.content.get("fco-question")
        asked = question.get("kind") if isinstance(question, Mapping) else None
        return f"an answer to the question {_quoted(asked)}"
    return _KINDS.get(kind, f"an answer to {_quoted(kind)}")


def _quoted(text: object) -> str:
    return "'" + plain(f"{text}", _LETTERS).replace("'", "\\'") + "'"


def _sent(answer: Message) -> str:
    """Return the names of what an answer holds: arrays with their shapes, and numbers."""
    nothing: Any = answer
    if nothing is None:
        return "nothing"
    if answer.has_error():
        return f"an error: {plain(answer.error.reason or '', _LONGEST)}"
    arrays, numbers = [], []
    kept_back = any(record.get("told") == 0.0 for record in answer.content.metric_records.values())
    for part in answer.content.values():
        if isinstance(part, ArrayRecord):
            # An answer that is kept back has its arrays all the same, of zeros.
            zeros = " of zeros" if kept_back and not any(array.numpy().any() for array in part.values()) else ""
            arrays += [f"{plain(n, _LETTERS)}[{', '.join(map(str, array.shape))}]{zeros}" for n, array in part.items()]
        else:
            numbers += [plain(n, _LETTERS) + _count(value) for n, value in part.items()]
    return f"arrays: {_listed(arrays)}; numbers: {_listed(numbers)}"


def _count(value: object) -> str:
    return f"[{len(value)}]" if isinstance(value, list) else ""


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return (", ".join(names[:_MOST]) or "none") + more
