"""Answers to the server's questions about a client's loss: pure functions without Flower, by the question's kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.certificates import LARGEST_LOSS, reported_at
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives.base import Objective

#: ``(question, objective) -> Answer``.
AnswerFunction = Callable[[Question, Objective], Answer]
#: ``(question, objective) -> (what says how the rows are divided, the rows of each part)``.
Division = Callable[[Question, Objective], tuple[bytes, Iterable[NDArray[np.int64]]]]


class Kind(NamedTuple):
    """A kind of question.

    Parameters
    ----------
    answer : callable
        ``(question, objective) -> Answer``.
    hessians : int
        How many matrices of second derivatives, or of their size, an answer takes, by which it may be refused.
    division : callable or None
        Of an answer about parts of the rows, which their owner may not allow: how they are divided, and into which.
    of : type
        Of which losses it is.
    """

    answer: AnswerFunction
    hessians: int = 0
    division: Division | None = None
    of: Any = Objective


_KINDS: dict[str, Kind] = {}


def answers_to(
    kind: str, *, hessians: int = 0, division: Division | None = None, of: Any = Objective
) -> Callable[[AnswerFunction], AnswerFunction]:
    """Return a decorator of a function that answers questions of a kind, at clients that import its module.

    Parameters
    ----------
    kind : str
        Kind of question.
    hessians : int, default 0
        As of :class:`Kind`.
    division : callable, optional
        As of :class:`Kind`.
    of : type, default Objective
        As of :class:`Kind`.

    Examples
    --------
    >>> find_answer("gradient").answer is gradient
    True
    """

    def register(answer: AnswerFunction) -> AnswerFunction:
        _KINDS[kind] = Kind(answer, hessians, division, of)
        return answer

    return register


def find_answer(kind: str) -> Kind:
    """Return a kind of question.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if kind not in _KINDS:
        problem = f"the server asks a question of the kind {kind!r}; this client answers {', '.join(sorted(_KINDS))}"
        raise ConfigurationError(f"{problem}. Install the server's version of flwr-fco, or take model.client_app")
    return _KINDS[kind]


@contextmanager
def server_buffers(objective: Objective, passed: Mapping[str, NDArray[Any]]) -> Iterator[None]:
    """Temporarily replace an objective's arrays that are not optimised with the server's.

    Parameters
    ----------
    passed : mapping of str to ndarray
        All of these arrays, or an empty mapping to keep the objective's own.
    """
    before = {name: np.array(array) for name, array in objective.buffers().items()}
    try:
        if before and passed:
            objective.load_buffers(passed)
        yield
    finally:
        if before:
            objective.load_buffers(before)


@answers_to("gradient")
def gradient(question: Question, objective: Objective) -> Answer:
    """Return the loss and its full gradient at ``primal``."""
    value, vector = objective.value_and_gradient(question.vectors["primal"])
    return Answer({"loss": float(value)}, {"gradient": np.asarray(vector, dtype=np.float64)})


@answers_to("validation")
def validation(question: Question, objective: Objective) -> Answer:
    """Return the loss of the held-out data at ``primal``, and what none is below."""
    least = -LARGEST_LOSS if objective.least is None else float(objective.least)
    return Answer({"loss": float(objective.value(question.vectors["primal"])), "least": least})


@answers_to("duality")
def duality(question: Question, objective: Objective) -> Answer:
    """Return a client's part of a duality gap; see :func:`flwr_fco.certificates.reported_at`."""
    return Answer(*reported_at(objective, question.vectors["primal"], question.numbers))


@answers_to("smoothness")
def smoothness(question: Question, objective: Objective) -> Answer:
    """Return Lipschitz constants of the gradients of minibatches, and the strong convexity.

    The question has the vector ``primal`` and the number ``batch-size``, 0 for full batches. The answer has ``l2`` and
    ``l1``, :meth:`Objective.batch_lipschitz` in either norm, and ``convexity``, 0 if unknown. If the objective does not
    know the l2 constant, ``probed`` is 1 and ``l2`` is that of :meth:`Objective.smoothness_near` at ``primal``; ``l1``
    is at most ``l2``. For a non-smooth loss both constants are 0.
    """
    batch = int(question.numbers["batch-size"]) or None
    convexity = _known(objective.strong_convexity) or 0.0
    if not objective.smooth:
        return Answer({"l2": 0.0, "l1": 0.0, "convexity": convexity, "probed": 1.0})
    l2 = _known(lambda: objective.batch_lipschitz(batch, "l2"))
    l1 = _known(lambda: objective.batch_lipschitz(batch, "l1"))
    largest = objective.smoothness_near(question.vectors["primal"], batch) if l2 is None else l2
    # No entry of a Hessian is larger than its largest eigenvalue.
    entry = largest if l1 is None else min(l1, largest)
    return Answer({"l2": largest, "l1": entry, "convexity": convexity, "probed": float(l2 is None)})


def _known(constant: Callable[[], float]) -> float | None:
    try:
        return float(constant())
    except ConfigurationError:
        return None
