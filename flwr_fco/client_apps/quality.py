"""What a site's own rows say of a model: sums that order, calibration and proportional hazards are judged by."""

from __future__ import annotations

from hashlib import blake2b
from logging import INFO
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Disclosure
from flwr_fco.client_apps.answers import answer
from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression, Logistic
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.survival import concordance, expected_events, time_trend
from flwr_fco.wire.client_state import read_disclosed, store_disclosed
from flwr_fco.wire.questions import BINS, CALIBRATION, EDGE, QUALITY, TREND, Answer, Question


@answer(QUALITY)
def quality(question: Question, objective: Objective) -> Answer:
    """Return pairs in the order of the events, the events, mean and mean square of the scores, and Brier's score."""
    own, w = _judged(objective), question.vectors["primal"]
    scores = own.margins(w)
    numbers = {"mean": float(scores.mean()), "square": float(scores @ scores / scores.size), "brier": 0.0}
    if isinstance(own, CoxRegression):
        ordered, compared = concordance(own, w)
        events = own.num_events
    else:
        events = int((own.labels == 1).sum())
        zeros, ones = np.sort(scores[own.labels != 1]), scores[own.labels == 1]
        places = sum(np.searchsorted(zeros, ones, side=side).sum() for side in ("left", "right"))
        ordered, compared = 0.5 * float(places), float(zeros.size) * ones.size
        numbers["brier"] = float(np.square(_chances(scores) - (own.labels == 1)).mean())
    return Answer(numbers | {"ordered": ordered, "compared": compared, "events": float(events)})


@answer(CALIBRATION)
def calibration(question: Question, objective: Objective) -> Answer:
    """Return the loss of ``slope`` times the scores plus ``intercept``, and its derivatives by these two numbers."""
    own, w = _judged(objective), question.vectors["primal"]
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


@answer(BINS)
def bins(question: Question, objective: Objective) -> Answer:
    """Return rows, expected and observed events between the edges of the scores, as shares of the rows."""
    own, w = _judged(objective), question.vectors["primal"]
    place, count = _bins(question, own)
    expected = expected_events(own, w) if isinstance(own, CoxRegression) else _chances(own.margins(w))
    each = {"rows": np.ones(place.size), "expected": expected, "observed": (own.labels == 1).astype(np.float64)}
    return Answer({"told": 1.0}, {name: np.bincount(place, own, count) / place.size for name, own in each.items()})


@answer(TREND)
def trend(question: Question, objective: Objective) -> Answer:
    """Return the trend of a Cox model's residuals over time (:func:`flwr_fco.objectives.survival.time_trend`)."""
    if not isinstance(objective, CoxRegression):
        raise ConfigurationError(f"{type(objective).__name__} has no times; a trend is of CoxRegression")
    found, squares = time_trend(objective, question.vectors["primal"])
    return Answer({"squares": squares, "events": float(objective.num_events)}, {"trend": found})


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
    digest = int.from_bytes(blake2b(content, digest_size=7).digest())
    before, (place, _) = read_disclosed(context), _bins(question, _judged(objective))
    try:
        if before.bins not in (0, digest):
            raise ConfigurationError("the server asks for other bins than before in this run")
        for number in np.unique(place):
            disclosure.check(objective.subset(np.flatnonzero(place == number))[0], "a bin")
    except ConfigurationError as error:
        log(INFO, "Run %s: kept back bins of scores: %s", context.run_id, error)
        zeros = {name: np.zeros(own.shape) for name, own in answer.vectors.items()}
        return answer._replace(numbers={"told": 0.0}, vectors=zeros)
    store_disclosed(context, before._replace(bins=digest))
    return answer


def _bins(question: Question, own: Any) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each row, and how many bins there are, with neighbours merged as the question says."""
    numbers = question.numbers
    edges = sorted(numbers[name] for name in numbers if name.startswith(EDGE))
    merged = int(numbers["merged"])
    if merged < 1 or merged & (merged - 1):
        # Differences of bins that are not nested are smaller than any of them.
        raise ConfigurationError(f"the server asks to merge {merged} neighbouring bins; expected 1, 2, 4, 8, ...")
    place = np.searchsorted(edges, own.margins(question.vectors["primal"]))
    return place // merged, len(edges) // merged + 1


def _judged(objective: Objective) -> Any:
    if not isinstance(objective, CoxRegression | Logistic):
        what = f"the server asks how good a model of {type(objective).__name__} is"
        raise ConfigurationError(f"{what}; only CoxRegression and Logistic, of two classes, can say it")
    # Weights are the fit's: chances are judged by what happened.
    return objective.unweighted()


def _chances(scores: Vector) -> Vector:
    return np.asarray(np.exp(-np.logaddexp(0.0, -scores)))
