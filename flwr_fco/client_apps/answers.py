"""Answers to the server's questions about a client's loss, and its own estimates: pure functions without Flower."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from flwr_fco.algorithms.newton.method import unpacked
from flwr_fco.algorithms.newton.model import inverse
from flwr_fco.certificates import told_at
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import MASS, MEANS, MOMENTS, VARIANCES
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import BINS, CALIBRATION, EDGE, ESTIMATES, QUALITY, TREND, Answer, Question
from flwr_fco.objectives import CoxRegression, LeastSquares, Linear, Logistic, SiteIntercept
from flwr_fco.objectives.base import Objective, probed_curvature
from flwr_fco.objectives.survival import concordance, expected_events, time_trend

#: ``(question, objective) -> Answer``.
AnswerFunction = Callable[[Question, Objective], Answer]


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


def gradient(question: Question, objective: Objective) -> Answer:
    """Return the loss and its full gradient at ``primal``.

    With the number ``moments`` also those of a linear model's columns, with ``mass`` its rows'.
    """
    value, vector = objective.value_and_gradient(question.vectors["primal"])
    vectors = {"gradient": np.asarray(vector, dtype=np.float64)}
    if MOMENTS in question.numbers and isinstance(objective, Linear):
        vectors[MEANS], vectors[VARIANCES] = objective.moments()
    mass = {MASS: objective.mass} if MASS in question.numbers and isinstance(objective, Linear) else {}
    return Answer({"loss": float(value), **mass}, vectors)


def validation(question: Question, objective: Objective) -> Answer:
    """Return the loss at ``primal``; the ClientApp passes the objective of the held-out data."""
    return Answer({"loss": float(objective.value(question.vectors["primal"]))})


def duality(question: Question, objective: Objective) -> Answer:
    """Return a client's part of a duality gap; see :func:`flwr_fco.certificates.told_at`."""
    return Answer(*told_at(objective, question.vectors["primal"], question.numbers))


def estimates(question: Question, objective: Objective) -> Answer:
    """Return the site's own estimates and standard errors, with ``told`` 1; zeros, with 0, if it has none.

    ``events`` and ``others`` are the rows of both classes (:func:`flwr_fco.client_apps.answers.events_of`), and
    ``weighted`` is 1 if rows have unequal weights. ``intercepts`` counts those that stay at the site. The point of the
    question is not used.
    """
    events, others = events_of(objective)
    found = own_estimates(objective)
    zeros = np.zeros(objective.layout.size)
    estimate, error = (zeros, zeros) if found is None else found
    unequal = isinstance(objective, Linear) and objective.weighs_rows
    numbers = {"told": float(found is not None), "events": float(events), "others": float(others)}
    numbers |= {"weighted": float(unequal), "intercepts": float(_own_intercepts(objective))}
    return Answer(numbers, {"estimate": estimate, "error": error})


def smoothness(question: Question, objective: Objective) -> Answer:
    """Return Lipschitz constants of the gradients of minibatches, and the strong convexity.

    The question has the vector ``primal`` and the number ``batch-size``, 0 for full batches. The answer has ``l2`` and
    ``l1``, :meth:`Objective.batch_lipschitz` in either norm, and ``convexity``, 0 if unknown. If the objective does not
    know the l2 constant, ``probed`` is 1 and ``l2`` is the largest curvature that a power iteration on differences of
    full gradients finds at ``primal``, a lower bound there; ``l1`` is at most ``l2``. For a non-smooth loss both
    constants are 0.
    """
    batch = int(question.numbers["batch-size"]) or None
    if not objective.smooth:
        return Answer({"l2": 0.0, "l1": 0.0, "convexity": float(objective.strong_convexity()), "probed": 1.0})
    l2 = _known(lambda: objective.batch_lipschitz(batch, "l2"))
    l1 = _known(lambda: objective.batch_lipschitz(batch, "l1"))
    largest = probed_curvature(objective, question.vectors["primal"]) if l2 is None else l2
    # No entry of a Hessian is larger than its largest eigenvalue.
    numbers = {"probed": float(l2 is None), "l2": largest, "l1": largest if l1 is None else min(l1, largest)}
    return Answer({**numbers, "convexity": _known(objective.strong_convexity) or 0.0})


def _known(constant: Callable[[], float]) -> float | None:
    try:
        return float(constant())
    except ConfigurationError:
        return None


#: Rows of squares, and events of other losses, that a site needs for each of its columns.
ROWS, EVENTS = 10, 5
#: Newton steps and halvings at most, and the square of a step that is the last one, in standard errors.
_STEPS, _HALVINGS, _SOLVED = 50, 30, 1e-10
#: How many times the variance at 0 that at the minimum is where classes are told apart: estimates grow without end.
_SEPARABLE = 1e6


def own_estimates(objective: Objective) -> tuple[Vector, Vector] | None:
    """Return a site's unpenalised minimiser and its standard errors, shape (d,) each, of its rows alone.

    Parameters
    ----------
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    tuple of ndarray of float64, or None
        None with fewer than 10 rows a coefficient (of losses other than squares, 5 events, or rows without one), if
        columns are linearly dependent, or if classes can be told apart without error.
    """
    columns = int(np.prod(objective.layout["coefficients"].shape))
    enough = min(events_of(objective)) >= columns * (ROWS if _is_squares(objective) else EVENTS)
    return _minimum(objective) if enough else None


def events_of(objective: Objective) -> tuple[int, int]:
    """Return the rows of both classes; of a loss without classes its `num_events`, for squares its rows, and its rows.

    With an intercept of its own, the rows of a site of one class tell nothing, and do not count.

    Parameters
    ----------
    objective : Objective
        The loss. Deaths are events: a loss of times says how many in an attribute ``num_events``.
    """
    rows, labels = objective.num_examples, getattr(objective, "labels", None)
    if _is_squares(objective):
        return rows, rows
    if labels is None or hasattr(objective, "num_events"):
        return int(getattr(objective, "num_events", 0)), rows
    idle = isinstance(objective, SiteIntercept) and objective.adds_nothing
    ones = int(np.count_nonzero(np.asarray(labels) == 1))
    return (0, 0) if idle else (ones, rows - ones)


def _is_squares(objective: Objective) -> bool:
    return isinstance(objective.with_intercept if isinstance(objective, SiteIntercept) else objective, LeastSquares)


def _own_intercepts(objective: Objective) -> int:
    return int(isinstance(objective, SiteIntercept) and not objective.adds_nothing)


def _minimum(objective: Objective) -> tuple[Vector, Vector] | None:
    """Return the unpenalised minimiser and its standard errors; None if rounding or the data have none."""
    w, rows, squares = np.zeros(objective.layout.size), objective.num_examples, _is_squares(objective)
    degrees = rows - w.size - _own_intercepts(objective)
    if squares and degrees < 1:
        return None
    value, gradient = objective.value_and_gradient(w)
    most = np.full(w.size, np.inf)
    for number in range(_STEPS):
        covariance = inverse(unpacked(objective.hessian_block(w, np.arange(w.size))))
        if covariance is None or (np.diag(covariance) > most).any():
            return None
        most = _SEPARABLE * np.diag(covariance) if number == 0 else most
        step = covariance @ gradient
        # Of squares, whose Hessian has no noise in it, the loss estimates it, whatever its scale.
        noise = 2.0 * value * rows / degrees if squares else 1.0
        if rows * float(gradient @ step) <= _SOLVED * noise:
            error = np.sqrt(noise * np.diag(covariance) / rows)
            return (w - step, error) if error.all() else None
        for _ in range(_HALVINGS):
            after, slope = objective.value_and_gradient(w - step)
            if after <= value:
                break
            step *= 0.5
        w, value, gradient = w - step, after, slope
    return None


# --- how good a model is ------------------------------------------------------------------------------------------


def quality(question: Question, objective: Objective) -> Answer:
    """Return pairs in the order of the events, the events, mean and mean square of the scores, and Brier's score."""
    own, w = judged(objective), question.vectors["primal"]
    scores = own.scores(w)
    numbers = {"mean": float(scores.mean()), "square": float(scores @ scores / scores.size), "brier": 0.0}
    if isinstance(own, CoxRegression):
        ordered, compared = concordance(own, w)
        events = own.num_events
    else:
        events = int((own.labels == 1).sum())
        zeros, ones = np.sort(scores[own.labels != 1]), scores[own.labels == 1]
        places = sum(np.searchsorted(zeros, ones, side=side).sum() for side in ("left", "right"))
        ordered, compared = 0.5 * float(places), float(zeros.size) * ones.size
        numbers["brier"] = float(np.square(expit(scores) - (own.labels == 1)).mean())
    return Answer(numbers | {"ordered": ordered, "compared": compared, "events": float(events)})


def calibration(question: Question, objective: Objective) -> Answer:
    """Return the loss of ``slope`` times the scores plus ``intercept``, and its derivatives by these two numbers."""
    own, w = judged(objective), question.vectors["primal"]
    more = np.zeros(w.size)
    if own.intercept:
        more[-1] = 1.0
    point = question.numbers["slope"] * w + question.numbers["intercept"] * more
    value, gradient = own.value_and_gradient(point)
    curved = own.hessian_product(point, w)
    numbers = {"loss": value, "by-slope": gradient @ w, "slope-slope": curved @ w}
    numbers |= dict.fromkeys(("by-intercept", "slope-intercept", "intercept-intercept"), 0.0)
    if own.intercept:
        numbers |= {"by-intercept": gradient[-1], "slope-intercept": curved[-1]}
        numbers["intercept-intercept"] = own.hessian_product(point, more)[-1]
    return Answer({name: float(number) for name, number in numbers.items()})


def bins(question: Question, objective: Objective) -> Answer:
    """Return rows, expected and observed events between the edges of the scores, as shares of the rows."""
    own, w = judged(objective), question.vectors["primal"]
    place, count = bins_of(question, own)
    expected = expected_events(own, w) if isinstance(own, CoxRegression) else expit(own.scores(w))
    each = {"rows": np.ones(place.size), "expected": expected, "observed": (own.labels == 1).astype(np.float64)}
    return Answer({"told": 1.0}, {name: np.bincount(place, own, count) / place.size for name, own in each.items()})


def trend(question: Question, objective: Objective) -> Answer:
    """Return the trend of a Cox model's residuals over time (:func:`flwr_fco.objectives.survival.time_trend`)."""
    if not isinstance(objective, CoxRegression):
        raise ConfigurationError(f"{type(objective).__name__} has no times; a trend is of CoxRegression")
    found, squares = time_trend(objective, question.vectors["primal"])
    return Answer({"squares": squares, "events": float(objective.num_events)}, {"trend": found})


def bins_of(question: Question, own: Any) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each row, and how many bins there are, with neighbours merged as the question says."""
    numbers = question.numbers
    edges = sorted(numbers[name] for name in numbers if name.startswith(EDGE))
    merged = int(numbers["merged"])
    if merged < 1 or merged & (merged - 1):
        # Differences of bins that are not nested are smaller than any of them.
        raise ConfigurationError(f"the server asks to merge {merged} neighbouring bins; expected 1, 2, 4, 8, ...")
    place = np.searchsorted(edges, own.scores(question.vectors["primal"]))
    return place // merged, len(edges) // merged + 1


def judged(objective: Objective) -> Any:
    """Return the loss that says how good a model is, without weights; an error of other losses."""
    if not isinstance(objective, CoxRegression | Logistic):
        what = f"the server asks how good a model of {type(objective).__name__} is"
        raise ConfigurationError(f"{what}; only CoxRegression and Logistic, of two classes, can say it")
    # Weights are the fit's: chances are judged by what happened.
    return objective.unweighted()


_ANSWERS: dict[str, AnswerFunction] = {
    "gradient": gradient,
    "validation": validation,
    "duality": duality,
    ESTIMATES: estimates,
    "smoothness": smoothness,
    QUALITY: quality,
    CALIBRATION: calibration,
    BINS: bins,
    TREND: trend,
}


#: How many Hessians at all coordinates an answer of a kind takes, if any.
_HESSIANS = {ESTIMATES: 1}


def entries_of(asked: Question) -> int:
    """Return how many second derivatives an answer takes, by which a client's owner may refuse it."""
    return _HESSIANS.get(asked.kind, 0) * asked.layout.size * (asked.layout.size + 1) // 2


def answers_to(kind: str, *, hessians: int = 0) -> Callable[[AnswerFunction], AnswerFunction]:
    """Return a decorator of a function that answers questions of a kind, at clients that import its module.

    Parameters
    ----------
    kind : str
        Kind of question.
    hessians : int, default 0
        How many matrices of second derivatives, or of their size, it takes.

    Examples
    --------
    >>> @answers_to("rows")
    ... def rows(question, objective):
    ...     return Answer({"rows": float(objective.num_examples)})
    >>> find_answer("rows") is rows
    True
    """

    def register(answer: AnswerFunction) -> AnswerFunction:
        _ANSWERS[kind], _HESSIANS[kind] = answer, hessians
        return answer

    return register


def find_answer(kind: str) -> AnswerFunction:
    """Return the function that answers questions of a kind.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if kind not in _ANSWERS:
        what = f"the server asks a question of the kind {kind!r}; this client answers {', '.join(sorted(_ANSWERS))}"
        raise ConfigurationError(f"{what}. Install the server's version of flwr-fco")
    return _ANSWERS[kind]
