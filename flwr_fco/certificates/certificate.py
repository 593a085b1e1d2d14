"""Distance of a point from the optimum, computed from the clients' answers: duality gaps and residuals.

This is the server's half of the mathematics; the clients' half is :mod:`flwr_fco.objectives.duality`. A certificate is
a generator that yields :class:`Request` and receives the answers, so the clients may be objectives in one place
(:mod:`flwr_fco.pooled`) or nodes of a federation (:mod:`flwr_fco.server.questions.certifying`).

For Phi(w) = sum_m p_m F_m(w) + psi(w) with losses of linear predictions, Fenchel duality gives
Phi(w) - min Phi <= Phi(w) + mean f*(u) + psi*(-X'u) for any slopes u. The slopes at w are used, corrected so that they
sum to 0 over the examples if psi does not act on the intercept, and scaled until psi* is finite. psi* is known

- for any convex psi if the losses have an l2 term, through psi's proximal map;
- for sums over coordinates (l1, squared l2, elastic net, boxes, l1 in a box), balls and the simplex
  (:mod:`flwr_fco.regularizers.conjugates`);
- for norms with a strength: 0 up to the strength in the dual norm, infinite beyond.

In all other cases the certificate is the norm of the proximal gradient mapping, ||w - prox(w - g)||, which is 0 exactly
at the minimisers but does not bound the distance from the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, NoAnswerError
from flwr_fco.regularizers import BoundRegularizer, Regularizer
from flwr_fco.regularizers.conjugates import conjugate
from flwr_fco.wire.questions import BALANCE, ENTROPY, FACTS, LINKS, SLOPES, Answer

#: Factor that keeps a scaled dual vector within the domain of psi* despite rounding.
_INWARDS = 1.0 - 1e-15
_NOBODY = "no client answered, so nothing is known about this point"
_FACTS = ("loss", "link", "outputs", "intercept", "l2", "factor", "slope")


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
    """

    kind: str
    numbers: Mapping[str, float] = MappingProxyType({})
    wanted: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})


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
        If no client answers.

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
    answers = yield Request("duality", {"stage": FACTS}, _FACTS)
    if not answers:
        raise NoAnswerError(_NOBODY)
    objective = _mean(answers, "loss") + psi.value(w)
    reason = _why_none(answers, psi, w)
    if reason:
        return (yield from _residual(psi, w, objective, reason))
    facts = answers[0].numbers
    link, l2 = LINKS[int(facts["link"])], facts["l2"]
    corrections: dict[str, float] = {}
    outputs = int(facts["outputs"])
    free = _free_intercept(facts, psi, w)
    if free and link == "identity":
        corrections["centre"] = _mean(answers, "slope")
    elif free:
        corrections = yield from _balance(max(2, outputs))
    numbers = {"stage": float(SLOPES), **corrections}
    answers = yield Request("duality", numbers, ("linear", "quadratic"), {"gradient": w.shape})
    dual = -_mean_vector(answers, "gradient")
    if free:
        # 0 up to rounding, because of the correction of the slopes.
        dual[w.size - outputs :] = 0.0
    count = w.size - outputs if facts["intercept"] else w.size
    limit = _largest_scaling(psi, dual, l2)
    if limit == 0.0:
        return (yield from _residual(psi, w, objective, "psi does not act in some directions"))
    linear, quadratic = _mean(answers, "linear"), _mean(answers, "quadratic")
    if link == "identity" and _only_norms(psi, l2):
        # The conjugates are a parabola in the scaling: take its vertex, or the end of the feasible interval.
        vertex = -linear / (2.0 * quadratic) if quadratic > 0.0 else 1.0
        scaling = min(max(vertex, -limit), limit)
    else:
        scaling = min(1.0, limit)
    conjugates = scaling * linear + scaling**2 * quadratic
    if link in ("logistic", "softmax"):
        numbers = {"stage": float(ENTROPY), "scaling": scaling, **corrections}
        answers = yield Request("duality", numbers, ("entropy",))
        conjugates = _mean(answers, "entropy")
    gap = objective + conjugates + _conjugate(psi, scaling * dual, l2, count)
    return Certificate("duality-gap", max(float(gap), 0.0), objective)


def _residual(psi: BoundRegularizer, w: Vector, objective: float, reason: str) -> Asking:
    answers = yield Request("gradient", {}, ("loss",), {"gradient": w.shape})
    step = w - _mean_vector(answers, "gradient")
    return Certificate("residual", float(np.linalg.norm(w - psi.prox(step, 1.0))), objective, reason)


def _balance(classes: int) -> Generator[Request, Sequence[Answer], dict[str, float]]:
    """Return a mixture that makes the mean predictions equal the class shares, with the smallest valid weight.

    With the best intercept the predictions already have this property. A class that no client has is marked by -1; its
    probability is redistributed to all other classes, so the clients are then asked for the mean predictions again.
    """
    numbers: dict[str, float] = {"stage": float(BALANCE)}
    shapes = {"predicted": (classes,), "present": (classes,)}
    answers = yield Request("duality", numbers, (), shapes)
    predicted, present = _mean_vector(answers, "predicted"), _mean_vector(answers, "present")
    here = present > 0.0
    if not here.all():
        numbers.update({f"common-{i}": float(present[i] if here[i] else -1.0) for i in range(classes)}, mix=0.0)
        answers = yield Request("duality", numbers, (), shapes)
        predicted = _mean_vector(answers, "predicted")
    excess = np.where(here, predicted - present, 0.0)
    ratio = float((excess[here] / present[here]).max(initial=0.0))
    common = np.maximum(present - excess / ratio, 0.0) if ratio > 0.0 else present
    common = np.where(here, common, -1.0)
    return {"mix": ratio / (1.0 + ratio), **{f"common-{i}": float(value) for i, value in enumerate(common)}}


def _why_none(answers: Sequence[Answer], psi: BoundRegularizer, w: Vector) -> str:
    """Return the reason why there is no duality gap; an empty string if there is one."""
    facts = answers[0].numbers
    for name in ("link", "outputs", "intercept", "l2", "factor"):
        if any(answer.numbers[name] != facts[name] for answer in answers):
            return f"the clients' losses differ in their {name}"
    if not 0.0 < facts["link"] < len(LINKS) or facts["link"] != int(facts["link"]) or not facts["factor"] > 0.0:
        return "the conjugate of the clients' loss is not known"
    if not 1.0 <= facts["outputs"] <= w.size or facts["l2"] < 0.0:
        return "what the clients say of their loss is not possible"
    if not psi.convex:
        return f"{psi.regularizer!r} is not convex"
    acts = psi.layout.regularized_mask()
    coefficients = acts[: w.size - int(facts["outputs"])] if facts["intercept"] else acts
    if facts["intercept"] and acts[w.size - int(facts["outputs"]) :].any() and facts["l2"] > 0.0:
        return "psi acts on the intercept, which the l2 term leaves alone"
    if facts["l2"] > 0.0:
        return ""
    if not coefficients.all():
        return "psi leaves coefficients alone"
    terms = psi.separable_terms(w.shape)
    if terms is not None:
        unbounded = ~np.isfinite(terms.lower) | ~np.isfinite(terms.upper)
        idle = (np.asarray(terms.threshold) == 0.0) & (np.asarray(terms.shrinkage) == 0.0) & unbounded & acts
        return "psi does not act in some directions" if bool(idle.any()) else ""
    try:
        for _, shape, regularizer in psi.blocks:
            if not _is_norm(regularizer, shape):
                conjugate(regularizer, np.zeros(shape))
    except ConfigurationError:
        return f"the conjugate of {psi.regularizer!r} is not known"
    return "" if psi.blocks else f"the conjugate of {psi.regularizer!r} is not known"


def _is_norm(regularizer: Regularizer, shape: tuple[int, ...]) -> bool:
    """Whether psi is strength times a norm: psi* is 0 up to the strength in the dual norm, and infinite beyond."""
    if not getattr(regularizer, "strength", 0.0) > 0.0 or getattr(regularizer, "bound", None) is not None:
        return False
    if type(regularizer).strength_max is Regularizer.strength_max:
        return False
    terms = regularizer.separable_terms(shape)
    if terms is None:
        return True
    curved = bool(np.any(np.asarray(terms.shrinkage) > 0.0))
    return not curved and not np.isfinite(np.concatenate([np.ravel(terms.lower), np.ravel(terms.upper)])).any()


def _only_norms(psi: BoundRegularizer, l2: float) -> bool:
    """Whether psi* takes only the values 0 and infinity, so that any scaling within the limit is feasible."""
    return l2 == 0.0 and bool(psi.blocks) and all(_is_norm(regularizer, shape) for _, shape, regularizer in psi.blocks)


def _free_intercept(facts: Mapping[str, float], psi: BoundRegularizer, w: Vector) -> bool:
    """Whether there is an intercept on which psi does not act."""
    return bool(facts["intercept"]) and not psi.layout.regularized_mask()[w.size - int(facts["outputs"]) :].any()


def _largest_scaling(psi: BoundRegularizer, dual: Vector, l2: float) -> float:
    """Return the largest factor for which psi* of the scaled dual vector is finite."""
    if l2 > 0.0:
        return math.inf
    terms = psi.separable_terms(dual.shape)
    if terms is not None:
        a, b, lower, upper = (np.broadcast_to(np.asarray(term, dtype=np.float64), dual.shape) for term in terms)
        bound = (b == 0.0) & np.where(dual > 0.0, np.isinf(upper), np.isinf(lower)) & (dual != 0.0)
        return float((a[bound] / np.abs(dual[bound])).min(initial=math.inf))
    limits = [math.inf]
    for block, shape, regularizer in psi.blocks:
        if _is_norm(regularizer, shape):
            largest = regularizer.strength_max(dual[block].reshape(shape))
            limits.append(getattr(regularizer, "strength", 0.0) / largest if largest > 0.0 else math.inf)
    return min(limits)


def _conjugate(psi: BoundRegularizer, u: Vector, l2: float, count: int) -> float:
    """Return psi*(u), with l2/2 ||.||^2 on the first `count` coordinates; u is scaled so that this is finite."""
    if l2 > 0.0:
        # For any psi, the maximiser in the conjugate is a proximal point.
        best = psi.prox(u / l2, 1.0 / l2)
        best[count:] = 0.0
        return float(u @ best) - psi.value(best) - 0.5 * l2 * float(best @ best)
    # For a norm it is 0, but at the end of the interval rounding may give infinity.
    return sum(
        0.0 if _is_norm(regularizer, shape) else conjugate(regularizer, u[block].reshape(shape) * _INWARDS)
        for block, shape, regularizer in psi.blocks
    )


def _mean(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(answer.weight * answer.numbers[name] for answer in answers)


def _mean_vector(answers: Sequence[Answer], name: str) -> Vector:
    if not answers:
        raise NoAnswerError(_NOBODY)
    total = np.zeros(answers[0].vectors[name].shape)
    for answer in answers:
        total += answer.weight * answer.vectors[name]
    return total
