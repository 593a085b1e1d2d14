"""Distance of a point from the optimum, computed from the clients' answers: duality gaps and residuals.

This is the server's half of the mathematics; the clients' half is :mod:`flwr_fco.objectives.duality`. A certificate is
a generator that yields :class:`Request` and receives the answers, so the clients may be objectives in one place or
nodes of a federation (:mod:`flwr_fco.strategies.questions`).

For Phi(w) = sum_m p_m F_m(w) + psi(w) with losses of linear predictions, Fenchel duality gives
Phi(w) - min Phi <= Phi(w) + mean f*(u) + psi*(-X'u) for any slopes u. The slopes at w are used, corrected so that they
sum to 0 over the examples if psi does not act on the intercept, and scaled until psi* is finite. Of other convex losses
mixtures of gradients are dual points (:func:`flwr_fco.certificates.dual.convex_bound`). psi* is known

- for any convex psi if the losses have an l2 term, through psi's proximal map;
- for sums over coordinates (l1, squared l2, elastic net, boxes, l1 in a box), balls and the simplex
  (:mod:`flwr_fco.regularizers.conjugates`);
- for norms with a strength: 0 up to the strength in the dual norm, infinite beyond.

In all other cases, also where psi leaves coefficients alone that no l2 term holds, the certificate is the norm of the
proximal gradient mapping, ||w - prox(w - g)||, which is 0 exactly at the minimisers but does not bound the distance
from the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from flwr_fco.certificates import dual
from flwr_fco.certificates.told import Told
from flwr_fco.core.layout import Vector
from flwr_fco.errors import NoAnswerError
from flwr_fco.messages.protocol import BALANCE, CONVEX, ENTROPY, FACTS, LINKS, SLOPES, Answer
from flwr_fco.regularizers import BoundRegularizer

_NOBODY = "no client answered, so nothing is known about this point"
_AGREED = ("link", "outputs", "intercept", "l2", "factor")
_FACTS = ("loss", *_AGREED, "slope")
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
    point : ndarray of float64, shape (d,), optional
        Another point that is asked about.
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
    point: Vector | None = None
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
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.objectives.duality import duality_terms
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> w = np.array([1.5, 0.0])
    >>> settle(certificate(L1(0.5).bind(client.layout), w),
    ...        lambda request: [Answer(*duality_terms(client, w, request.numbers), weight=1.0)])
    Certificate(kind='duality-gap', value=0.0, objective=0.875, reason='', clients=1)
    """
    told = Told(w)
    answers = yield Request("duality", {"stage": FACTS}, _FACTS, agreed=_AGREED, check=told.facts)
    if not answers:
        raise NoAnswerError(_NOBODY)
    objective = _mean(answers, "loss") + psi.value(w)
    reason = dual.why_none([answer.numbers for answer in answers], psi, w)
    if reason:
        return (yield from _residual(psi, w, objective, reason))
    facts = answers[0].numbers
    link, l2 = LINKS[int(facts["link"])], facts["l2"]
    corrections: dict[str, float] = {}
    outputs = int(facts["outputs"])
    free = dual.free_intercept(facts, psi, w)
    count = w.size - outputs if facts["intercept"] else w.size
    if free and link == "identity":
        corrections["centre"] = _mean(answers, "slope")
    elif free and link not in CONVEX:
        corrections = yield from _balance(max(2, outputs), told)
    linear, quadratic, slopes = yield from _slopes(told, w, corrections)
    if link in CONVEX:
        references = None
        if free:
            numbers, shapes = {"stage": float(BALANCE)}, {"references": (max(2, outputs), w.size + 1)}
            answers = yield Request("duality", numbers, (), shapes, check=told.references)
            references = _mean_vector(answers, "references")
        lower, _ = dual.convex_bound(psi, slopes, (linear, quadratic), l2, w.size - count, references)
        if lower == -math.inf:
            return (yield from _residual(psi, w, objective, "the loss has no minimum in the intercept"))
        return _gap(objective, lower)
    if free:
        # 0 up to rounding, because of the correction of the slopes.
        slopes[w.size - outputs :] = 0.0
    if dual.largest_scaling(psi, -slopes, l2) == 0.0:
        return (yield from _residual(psi, w, objective, "psi does not act in some directions"))
    scaling = dual.best_scaling(psi, slopes, linear, quadratic, l2, squares=link == "identity", most=1.0)
    conjugates = scaling * linear + scaling**2 * quadratic
    if link in ("logistic", "softmax"):
        numbers = {"stage": float(ENTROPY), "scaling": scaling, **corrections}
        answers = yield Request("duality", numbers, ("entropy",), check=partial(told.entropy, scaling=scaling))
        conjugates = _mean(answers, "entropy")
    return _gap(objective, -(conjugates + dual.conjugate_at(psi, -scaling * slopes, l2, count)))


def _slopes(
    told: Told, w: Vector, corrections: Mapping[str, float]
) -> Generator[Request, Sequence[Answer], tuple[float, float, Vector]]:
    """Return the linear and the quadratic part of the pooled conjugate, and the gradient, at corrected slopes."""
    check = partial(told.slopes, centre=corrections.get("centre", 0.0))
    numbers, wanted = {"stage": float(SLOPES), **corrections}, ("linear", "quadratic")
    answers = yield Request("duality", numbers, wanted, {"gradient": w.shape}, check=check)
    return _mean(answers, "linear"), _mean(answers, "quadratic"), _mean_vector(answers, "gradient")


def _gap(objective: float, lower: float) -> Certificate:
    """Return the gap to a lower bound, which is not above the objective."""
    gap = float(objective - lower)
    if gap < -_NEGATIVE * (abs(objective) + abs(lower)):
        raise NoAnswerError(
            f"the objective, {objective:.9g}, is below a lower bound of all its values, {lower:.9g}: the clients' "
            "answers contradict each other"
        )
    return Certificate("duality-gap", max(gap, 0.0), objective)


def _residual(psi: BoundRegularizer, w: Vector, objective: float, reason: str) -> Asking:
    answers = yield Request("gradient", {}, ("loss",), {"gradient": w.shape})
    step = w - _mean_vector(answers, "gradient")
    return Certificate("residual", float(np.linalg.norm(w - psi.prox(step, 1.0))), objective, reason)


def _balance(classes: int, told: Told) -> Generator[Request, Sequence[Answer], dict[str, float]]:
    """Return a mixture that makes the mean predictions equal the class shares, with the smallest valid weight.

    With the best intercept the predictions already have this property. A class that no client has is marked by -1; its
    probability is redistributed to all other classes, so the clients are then asked for the mean predictions again.
    """
    numbers: dict[str, float] = {"stage": float(BALANCE)}
    shapes = {"predicted": (classes,), "present": (classes,)}
    answers = yield Request("duality", numbers, (), shapes, check=told.chances)
    predicted, present = _mean_vector(answers, "predicted"), _mean_vector(answers, "present")
    here = present > 0.0
    if not here.all():
        numbers.update({f"common-{i}": float(present[i] if here[i] else -1.0) for i in range(classes)}, mix=0.0)
        answers = yield Request("duality", numbers, (), shapes, check=told.chances)
        predicted = _mean_vector(answers, "predicted")
    excess = np.where(here, predicted - present, 0.0)
    ratio = float((excess[here] / present[here]).max(initial=0.0))
    common = np.maximum(present - excess / ratio, 0.0) if ratio > 0.0 else present
    common = np.where(here, common, -1.0)
    return {"mix": ratio / (1.0 + ratio), **{f"common-{i}": float(value) for i, value in enumerate(common)}}


def _mean(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(answer.weight * answer.numbers[name] for answer in answers)


def _mean_vector(answers: Sequence[Answer], name: str) -> Vector:
    if not answers:
        raise NoAnswerError(_NOBODY)
    total = np.zeros(answers[0].vectors[name].shape)
    for answer in answers:
        total += answer.weight * answer.vectors[name]
    return total
