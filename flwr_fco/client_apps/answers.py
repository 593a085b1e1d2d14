"""Answers to the server's questions about a client's loss: pure functions without Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.client_apps.own_estimates import events_of, own_estimates
from flwr_fco.core.schema import DEVIATIONS, MEANS, MOMENTS, VARIANCES
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives._linear import LinearModel
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.curvature import probed_curvature
from flwr_fco.objectives.duality import duality_terms
from flwr_fco.wire.questions import ESTIMATES, Answer, Question

#: ``(question, objective) -> Answer``.
AnswerFunction = Callable[[Question, Objective], Answer]

_ANSWERS: dict[str, AnswerFunction] = {}


def answer(kind: str) -> Callable[[AnswerFunction], AnswerFunction]:
    """Register a function that answers questions of a kind."""

    def register(function: AnswerFunction) -> AnswerFunction:
        other = _ANSWERS.get(kind)
        if other is not None and other.__module__ != function.__module__:
            raise ConfigurationError(f"an answer to {kind!r} exists already; give yours another name")
        _ANSWERS[kind] = function
        return function

    return register


def find_answer(kind: str) -> AnswerFunction:
    """Return the function that answers questions of a kind.

    Raises
    ------
    ConfigurationError
        If no function is registered for this kind.

    Examples
    --------
    >>> find_answer("gradient").__name__
    'gradient'
    """
    if kind not in _ANSWERS:
        raise ConfigurationError(
            f"the server asks a question of the kind {kind!r}; this client answers {', '.join(sorted(_ANSWERS))}. "
            "Install the server's version of flwr-fco"
        )
    return _ANSWERS[kind]


@contextmanager
def server_buffers(objective: Objective, passed: Mapping[str, NDArray[Any]]) -> Iterator[None]:
    """Temporarily replace an objective's arrays that are not optimised with the server's.

    Parameters
    ----------
    passed : mapping of str to ndarray
        All of these arrays, or an empty mapping to keep the objective's own.
    """
    before = {name: array.copy() for name, array in objective.buffers().items()}
    try:
        if before and passed:
            objective.load_buffers(passed)
        yield
    finally:
        if before:
            objective.load_buffers(before)


@answer("gradient")
def gradient(question: Question, objective: Objective) -> Answer:
    """Return the loss and its full gradient at ``primal``.

    With the numbers ``deviations`` and ``moments`` also those of a linear model's columns.
    """
    value, vector = objective.value_and_gradient(question.vectors["primal"])
    vectors = {"gradient": np.asarray(vector, dtype=np.float64)}
    if DEVIATIONS in question.numbers and isinstance(objective, LinearModel):
        vectors[DEVIATIONS] = objective.design.deviations()
    if MOMENTS in question.numbers and isinstance(objective, LinearModel):
        vectors[MEANS], vectors[VARIANCES] = objective.moments()
    return Answer({"loss": float(value)}, vectors)


@answer("validation")
def validation(question: Question, objective: Objective) -> Answer:
    """Return the loss at ``primal``; the ClientApp passes the objective of the held-out data."""
    return Answer({"loss": float(objective.value(question.vectors["primal"]))})


@answer("duality")
def duality(question: Question, objective: Objective) -> Answer:
    """Return a client's share of a duality gap; see :func:`flwr_fco.objectives.duality.duality_terms`."""
    numbers, vectors = duality_terms(objective, question.vectors["primal"], question.numbers)
    return Answer(numbers, vectors)


@answer(ESTIMATES)
def estimates(question: Question, objective: Objective) -> Answer:
    """Return the site's own estimates and standard errors, with ``told`` 1; zeros, with 0, if it has none.

    ``events`` and ``others`` are the rows of both classes (:func:`flwr_fco.client_apps.own_estimates.events_of`), and
    ``weighted`` is 1 if rows have unequal weights. The point of the question is not used.
    """
    events, others = events_of(objective)
    found = own_estimates(objective)
    zeros = np.zeros(objective.layout.size)
    estimate, error = (zeros, zeros) if found is None else found
    unequal = isinstance(objective, LinearModel) and objective.weighs_rows
    numbers = {"told": float(found is not None), "events": float(events), "others": float(others)}
    numbers["weighted"] = float(unequal)
    return Answer(numbers, {"estimate": estimate, "error": error})


@answer("smoothness")
def smoothness(question: Question, objective: Objective) -> Answer:
    """Return Lipschitz constants of the gradients of minibatches, and the strong convexity.

    The question has the vector ``primal`` and the number ``batch-size``, 0 for full batches. The answer has ``l2`` and
    ``l1``, :meth:`Objective.batch_lipschitz` in either norm, and ``convexity``, 0 if unknown. If the objective does not
    know the l2 constant, ``probed`` is 1 and ``l2`` is the largest curvature that a power iteration on differences of
    full gradients finds at ``primal``, a lower bound there; ``l1`` is at most ``l2``. For a non-smooth loss both
    constants are 0.
    """
    batch = int(question.numbers["batch-size"]) or None
    constants: dict[str, float] = {"probed": 0.0}
    if not objective.smooth:
        return Answer({"l2": 0.0, "l1": 0.0, "convexity": float(objective.strong_convexity()), "probed": 1.0})
    try:
        constants["l2"] = float(objective.batch_lipschitz(batch, "l2"))
    except ConfigurationError:
        constants["l2"] = probed_curvature(objective, question.vectors["primal"])
        constants["probed"] = 1.0
    try:
        # No entry of a Hessian is larger than its largest eigenvalue.
        constants["l1"] = min(float(objective.batch_lipschitz(batch, "l1")), constants["l2"])
    except ConfigurationError:
        constants["l1"] = constants["l2"]
    try:
        constants["convexity"] = float(objective.strong_convexity())
    except ConfigurationError:
        constants["convexity"] = 0.0
    return Answer(constants)
