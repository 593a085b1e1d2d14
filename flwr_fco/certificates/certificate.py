"""Distance of a point from the optimum, computed from the clients' answers: duality gaps and residuals.

A certificate is a generator that yields :class:`Request` and receives the answers, so the clients may be objectives in
one place or nodes of a federation (:mod:`flwr_fco.strategies.questions`). It has two questions: gradients with their
conjugates, and then the conjugate at the mixture that is a dual point (:mod:`flwr_fco.certificates.gap`). The losses
are convex, and need not be of one kind. psi* is known

- for any convex psi if the losses have an l2 term, through psi's proximal map;
- for all regularizers of this package that are convex but :class:`~flwr_fco.regularizers.Adapter`
  (:meth:`~flwr_fco.regularizers.Regularizer.conjugate`).

In all other cases, also where psi leaves coefficients alone that no l2 term holds, the certificate is the norm of the
proximal gradient mapping, ||w - prox(w - g)||, which is 0 exactly at the minimisers but does not bound the distance
from the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.certificates.gap import conjugate_at, feasible, free_intercepts, why_none
from flwr_fco.certificates.possible import check_conjugates, check_loss
from flwr_fco.core.layout import Vector
from flwr_fco.errors import NoAnswerError, ProtocolError
from flwr_fco.messages.protocol import Answer
from flwr_fco.objectives.base import num_intercepts
from flwr_fco.regularizers import BoundRegularizer

#: Numbers that are the same for all clients.
_AGREED = ("l2", "convex")
#: By how much a lower bound may be above the objective by rounding, relative to both.
_NEGATIVE = 1e-9


class Request(NamedTuple):
    """A question to all clients about the point.

    Parameters
    ----------
    kind : str
        Kind of question.
    numbers : mapping of str to float
        Numbers sent with the question.
    wanted : tuple of str
        Names of the numbers in the answer.
    shapes : mapping of str to tuple of int
        Names and shapes of the vectors in the answer.
    agreed : tuple of str
        Names of numbers that are the same for all clients.
    check : callable, optional
        Raises :class:`ProtocolError` with the reason why a client's answer does not count.

    Examples
    --------
    >>> Request("duality", {"stage": 0.0}, wanted=("loss",)).wanted
    ('loss',)
    """

    kind: str
    numbers: Mapping[str, float] = MappingProxyType({})
    wanted: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    agreed: tuple[str, ...] = ()
    check: Callable[[Answer], None] | None = None


class Certificate(NamedTuple):
    """A certificate of a point.

    Parameters
    ----------
    kind : {"duality-gap", "residual"}
        ``"duality-gap"``: `value` bounds Phi(w) - min Phi. ``"residual"``: `value` is the norm of the proximal gradient
        mapping.
    value : float
        The bound, or the norm.
    objective : float
        Phi(w).
    reason : str
        Why there is no duality gap; empty if there is one.
    clients : int
        Number of clients that answered; the certificate is about their pooled problem.

    Examples
    --------
    >>> Certificate("duality-gap", 0.01, objective=0.875, clients=3).value
    0.01
    """

    kind: str
    value: float
    objective: float
    reason: str = ""
    clients: int = 0


Asking = Generator[Request, Sequence[Answer], Certificate]


def settle(certificate: Asking, ask: Callable[[Request], Sequence[Answer]]) -> Certificate:
    """Run a certificate's questions to the end and return the certificate.

    Parameters
    ----------
    certificate : generator
        From :func:`certificate`.
    ask : callable
        Asks all clients and returns their answers, whose weights sum to 1.

    Examples
    --------
    >>> def one_question():
    ...     answers = yield Request("duality", wanted=("loss",))
    ...     return Certificate("residual", 0.0, answers[0].numbers["loss"])
    >>> settle(one_question(), lambda request: [Answer({"loss": 2.0}, {}, weight=1.0)])
    Certificate(kind='residual', value=0.0, objective=2.0, reason='', clients=1)
    """
    clients = 0
    try:
        request = next(certificate)
        while True:
            answers = ask(request)
            clients = len(answers)
            request = certificate.send(answers)
    except StopIteration as stop:
        result: Certificate = stop.value
        return result._replace(clients=clients)


def certificate(psi: BoundRegularizer, w: Vector) -> Asking:
    """Yield the questions to ask, and return the certificate of a point.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the clients' layout.
    w : ndarray of float64, shape (d,)
        The point.

    Raises
    ------
    NoAnswerError
        If no client answers, or a gap is negative beyond rounding: then answers contradict each other.

    Examples
    --------
    >>> from flwr_fco.certificates import reported_at
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> w = np.array([1.5, 0.0])
    >>> settle(certificate(L1(0.5).bind(client.layout), w),
    ...        lambda request: [Answer(*reported_at(client, w, request.numbers), weight=1.0)])
    Certificate(kind='duality-gap', value=0.0, objective=0.875, reason='', clients=1)
    """
    count = num_intercepts(psi.layout)
    wanted = free_intercepts(psi)
    ridged = np.append(w[: w.size - count], np.zeros(count))
    reported: dict[int | None, tuple[NDArray[np.float64], float]] = {}

    # By Fenchel's inequality all that a client says must be of one function: a certificate is then one of some data.
    def check_rows(answer: Answer) -> None:
        rows, (loss, l2, convex) = answer.vectors["rows"], (answer.numbers[name] for name in wanted_first)
        if convex not in (0.0, 1.0):
            raise ProtocolError(f"it says convex={convex:g}; expected 0 or 1")
        if convex:
            reported[answer.node_id] = rows, check_loss(rows, w, loss, l2, ridged)

    def check_conjugate(answer: Answer) -> None:
        if answer.node_id in reported:
            rows, loss = reported[answer.node_id]
            check_conjugates(np.append(shares @ rows[:, :-1], answer.numbers["conjugate"])[None], w, loss)

    about = {"references": float(wanted)}
    wanted_first = ("loss", *_AGREED)
    shape = (1 + max(wanted, 2) if wanted else 1, w.size + 1)
    answers = yield Request("duality", about, wanted_first, {"rows": shape}, _AGREED, check_rows)
    if not answers:
        raise NoAnswerError("no client answered, so nothing is known about this point")
    loss, l2 = _mean(answers, "loss"), _mean(answers, "l2")
    gradients = np.sum([answer.weight * answer.vectors["rows"][:, :-1] for answer in answers], axis=0)
    objective = loss + psi.value(w)
    convex = all(answer.numbers["convex"] for answer in answers)
    reason = why_none(psi, l2) if convex else "the losses of some clients are not known to be convex"
    found = None if reason else feasible(psi, gradients, l2)
    if found is None:
        residual = w - psi.prox(w - gradients[0] - l2 * ridged, 1.0)
        reason = reason or "the loss has no minimum in the intercept"
        return Certificate("residual", float(np.linalg.norm(residual)), objective, reason)
    shares, point = found
    about |= {f"share-{k}": float(share) for k, share in enumerate(shares)}
    answers = yield Request("duality", about, ("conjugate",), check=check_conjugate)
    lower = -_mean(answers, "conjugate") - conjugate_at(psi, -point, l2)
    gap = float(objective - lower)
    if gap < -_NEGATIVE * (abs(objective) + abs(lower)):
        raise NoAnswerError(
            f"the objective, {objective:.9g}, is below a lower bound of all its values, {lower:.9g}: the clients' "
            "answers contradict each other"
        )
    return Certificate("duality-gap", max(gap, 0.0), objective)


def _mean(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(answer.weight * answer.numbers[name] for answer in answers)
