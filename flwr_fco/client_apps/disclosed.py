"""What has left a site in a run, counted and recorded, and what may still leave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message

from flwr_fco.algorithms.contract import COLUMNS_LEFT, HESSIAN_SHARE, ClientHalf, Disclosure, named
from flwr_fco.core.logs import log, printable
from flwr_fco.core.sparse import SparseVector
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import LinearData
from flwr_fco.wire.client_state import read_disclosed, store_disclosed
from flwr_fco.wire.downlink import method_of
from flwr_fco.wire.keys import FOLDS, HALVES
from flwr_fco.wire.protocol import Downlink, Uplink
from flwr_fco.wire.questions import Answer


def as_may_leave(
    uplink: Uplink, disclosure: Disclosure, context: Context, half: type[ClientHalf], objective: Objective
) -> Uplink:
    """Return an uplink as it may leave, and count it.

    Parameters
    ----------
    uplink : Uplink
        What the method would send.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.
    half : type of ClientHalf
        The method's client half, which says what its vectors hold.
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    Uplink
        Without its Hessian blocks, if the owner's `hessian_share` does not allow them; with a share, the metrics of a
        method that sends blocks say how many columns are left for the next one.
    """
    share, blocks = disclosure.hessian_share, named(half, "columns")
    if share is None and not blocks:
        return uplink
    vectors, sums, outputs = dict(uplink.vectors), half.sums(uplink.vectors), _outputs(objective)
    columns = sum(sums[name] for name in blocks if name in vectors)
    rest = sum(sums.values()) - columns
    most = disclosure.most_sums(objective.num_examples)
    before = read_disclosed(context).sums
    if columns and before + outputs * (rest + columns) > most:
        text = (
            "Run %s: kept back a Hessian block of %s columns: %s sums over its rows have left (hessian_share=%.3g: %s)"
        )
        log(INFO, text, context.run_id, columns, before, share, most)
        nothing = np.zeros(0, np.int32), np.zeros(0)
        vectors |= {name: SparseVector(*nothing, vectors[name].size) for name in blocks if name in vectors}
        columns = 0
    count(rest + columns, disclosure, context, objective, columns=columns)
    if share is None or not blocks:
        return uplink
    # The next answer holds a gradient as well.
    left = max(0, (most - read_disclosed(context).sums) // outputs - 1)
    metrics = {**uplink.metrics, COLUMNS_LEFT: left, HESSIAN_SHARE: share}
    return uplink._replace(vectors=vectors, metrics=metrics)


def count(vectors: int, disclosure: Disclosure, context: Context, objective: Objective, *, columns: int = 0) -> None:
    """Count an answer in the node's context, and log what has left by now, at the 1st, 2nd, 4th, 8th, ... answer.

    Parameters
    ----------
    vectors : int
        Gradients and columns of Hessian blocks in the answer, and vectors like them.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.
    objective : Objective
        The loss on the site's rows.
    columns : int, default 0
        Columns of the Hessian blocks among them.
    """
    before = read_disclosed(context)
    sums = before.sums + vectors * _outputs(objective)
    now = before._replace(answers=before.answers + 1, sums=sums, columns=max(before.columns, columns))
    store_disclosed(context, now)
    if now.answers & before.answers == 0:
        rows, share = objective.num_examples, disclosure.hessian_share
        limit = f"{rows} rows, and no hessian_share"
        if share is not None:
            most = disclosure.most_sums(rows)
            percent = f"{now.sums / most:.0%} of " if most else ""
            limit = f"{percent}the {most} that hessian_share={share:.3g} allows with a Hessian block"
        text = "Run %s: this site has sent %s answers, Hessian blocks of up to %s columns, %s sums over its rows; %s"
        log(INFO, text, context.run_id, now.answers, now.columns, now.sums, limit)


def withheld(answer: Answer, disclosure: Disclosure, context: Context, objective: Objective) -> Answer:
    """Return a site's answer about its own estimates, without them if the owner's `hessian_share` does not allow them.

    Their standard errors are second derivatives: they leave as a Hessian block does.

    Parameters
    ----------
    answer : Answer
        What the site would say.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context.
    objective : Objective
        The loss on the site's rows.
    """
    sums = read_disclosed(context).sums + len(answer.vectors) * _outputs(objective)
    if sums <= disclosure.most_sums(objective.num_examples):
        return answer
    zeros = {name: np.zeros(vector.shape) for name, vector in answer.vectors.items()}
    return answer._replace(numbers={**answer.numbers, "told": 0.0}, vectors=zeros)


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
    # Halves are another way than as many folds.
    ways, what = (folds, "folds") if HALVES not in downlink.numbers else (-folds, "halves")
    if folds < 1 or not disclosure.limits_rows:
        return
    before = read_disclosed(context)
    if not before.folds:
        store_disclosed(context, before._replace(folds=ways, seed=seed))
    elif (before.folds, before.seed) != (ways, seed):
        earlier = f"{before.folds}" if before.folds > 0 else f"{-before.folds} halves"
        raise ConfigurationError(
            f"the server asks for {folds} {what} (seed={seed}), and has asked for {earlier} (seed={before.seed}) "
            "before in this run: differences of folds can be single rows, and this site's owner sets a smallest number "
            "of rows. Start another run"
        )


def _outputs(objective: Objective) -> int:
    data = objective.dual_terms()
    return data.num_outputs if isinstance(data, LinearData) else int(getattr(objective, "num_outputs", 1))


#: Below Flower's logger, which prints it, so that an owner can send the record to a file. It has a level of its own,
#: because a simulation silences Flower's.
record = logging.getLogger("flwr.disclosure")
record.setLevel(logging.INFO)

#: Letters of a text from the server, of an error, and names of what was sent, at most.
_LETTERS, _LONGEST, _MOST = 60, 400, 32
_KINDS = {
    "evaluate": "an evaluation",
    "query.names": "the names of its columns and classes",
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
        method = method_of(message.content)
        return "training" if method is None else f"training by {_quoted(method)}"
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
