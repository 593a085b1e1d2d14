"""How good a fitted model is, from sums over the sites' rows: order, calibration, Brier's score, bins.

The scores s_i of a model are its log odds, or log hazard ratios; a site is a stratum.

    concordance        pairs within sites that are in the order of their events, over all pairs that can be compared:
                       of classes the area under the ROC curve within sites
    calibration        the model a + b s_i of the same kind that fits the rows best: b = 1 and a = 0 where it is exact
    bins               expected and observed events between quantiles of a normal distribution of the scores

References: Harrell, Califf, Pryor, Lee, Rosati: Evaluating the yield of medical tests (JAMA 1982). Cox: Two further
applications of a model for binary regression (Biometrika 1958). Brier: Verification of forecasts expressed in terms of
probability (Mon. Weather Rev. 1950). van Houwelingen: Validation, calibration, revision and combination of prognostic
survival models (Stat. Med. 2000).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from flwr_fco.certificates import Request
from flwr_fco.client_apps.answers import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, Logistic, Objective
from flwr_fco.objectives.survival import concordance, expected_events
from flwr_fco.strategies import questions
from flwr_fco.strategies.run import Run
from flwr_fco.tables.estimates import Sums, minimum
from flwr_fco.tables.intervals import CLASSES
from flwr_fco.tables.reports import Reported, aligned_columns, asked_of
from flwr_fco.tables.sites import reasons_of, site_of

#: Bins, and how many of them are merged where a site keeps smaller ones back.
_BINS = 8
_MERGED = (1, 2, 4)
#: How the numbers of a question begin that are edges of bins.
_EDGE = "edge-"
#: The numbers of a calibration.
_CALIBRATED = ("slope", "intercept")
_WANTED = ("mean", "square", "brier", "ordered", "compared", "events")


# --- at a site --------------------------------------------------------------------------------------------------------


@answers_to("quality")
def quality(question: Question, objective: Objective) -> Answer:
    """Return pairs in the order of the events, the events, mean and mean square of the scores, and Brier's score."""
    own = judged(objective)
    w = question.vectors["primal"]
    scores = own.scores(w)
    numbers = {"mean": float(scores.mean()), "square": float(scores @ scores / scores.size), "brier": 0.0}
    if isinstance(own, CoxRegression):
        ordered, compared = concordance(own, w)
        events = own.num_events
    else:
        events = int((own.labels == 1).sum())
        ones = own.labels == 1
        # Mann and Whitney's U.
        ordered = float(stats.rankdata(scores)[ones].sum()) - 0.5 * events * (events + 1)
        compared = float(events) * (ones.size - events)
        numbers["brier"] = float(np.square(expit(scores) - ones).mean())
    return Answer(numbers | {"ordered": ordered, "compared": compared, "events": float(events)})


@answers_to("calibration")
def calibration(question: Question, objective: Objective) -> Answer:
    """Return the loss of ``slope`` times the scores plus ``intercept``, and its derivatives by these two numbers."""
    own = judged(objective)
    w = question.vectors["primal"]
    last = np.zeros(w.size)
    last[-1] = 1.0
    along = np.array([w, last] if own.intercept else [w])
    point = np.array([question.numbers[name] for name in _CALIBRATED[: len(along)]]) @ along
    value, gradient = own.value_and_gradient(point)
    curved = np.array([own.hessian_product(point, direction) for direction in along])
    return Answer({"loss": float(value)}, {"gradient": along @ gradient, "hessian": (along @ curved.T).ravel()})


def bins_of(question: Question, own: Any) -> tuple[NDArray[np.int64], int]:
    """Return the bin of each row, and how many bins there are, with neighbours merged as the question says."""
    numbers = question.numbers
    edges = sorted(numbers[name] for name in numbers if name.startswith(_EDGE))
    merged = int(numbers["merged"])
    if merged < 1 or merged & (merged - 1):
        # Differences of bins that are not nested are smaller than any of them.
        raise ConfigurationError(f"the server asks to merge {merged} neighbouring bins; expected 1, 2, 4, 8, ...")
    place = np.searchsorted(edges, own.scores(question.vectors["primal"]))
    return place // merged, len(edges) // merged + 1


def judged(objective: Objective) -> Any:
    """Return the loss that says how good a model is, without weights; an error of other losses."""
    if not isinstance(objective, CoxRegression | Logistic):
        prefix = f"the server asks how good a model of {type(objective).__name__} is"
        raise ConfigurationError(f"{prefix}; only CoxRegression and Logistic, of two classes, can say it")
    # Weights are the fit's: probabilities are judged by what happened.
    return objective.unweighted()


def division_of_bins(question: Question, objective: Objective) -> tuple[bytes, Iterable[NDArray[np.int64]]]:
    """Return the edges of the bins at a point, of which merged neighbours are no others, and the rows of each bin."""
    place, count = bins_of(question, judged(objective))
    edges = sorted((name, value) for name, value in question.numbers.items() if name.startswith(_EDGE))
    parts = (np.flatnonzero(place == number) for number in range(count))
    return repr(edges).encode() + question.vectors["primal"].tobytes(), parts


@answers_to("bins", division=division_of_bins)
def bins(question: Question, objective: Objective) -> Answer:
    """Return rows, expected and observed events between the edges of the scores, as shares of the rows."""
    own = judged(objective)
    w = question.vectors["primal"]
    place, count = bins_of(question, own)
    expected = expected_events(own, w) if isinstance(own, CoxRegression) else expit(own.scores(w))
    each = {"rows": np.ones(place.size), "expected": expected, "observed": (own.labels == 1).astype(np.float64)}
    return Answer({"reported": 1.0}, {name: np.bincount(place, own, count) / place.size for name, own in each.items()})


# --- of all sites -----------------------------------------------------------------------------------------------------


class Quality(Reported):
    """How good a model is on some rows: a text, which printing and a notebook show, and its numbers.

    Attributes
    ----------
    overall : dict of str to float
        Of all rows: ``concordance``, of the ``pairs`` within sites; ``slope`` of the calibration and ``slope error``;
        of classes ``intercept``, ``intercept error`` and ``Brier``. NaN where the rows do not determine it.
    rows : list of dict
        Of each site: ``site``, ``rows``, ``events``, ``concordance``, and of classes ``Brier``.
    bins : list of dict
        Of each bin of scores, from the lowest: the score ``up to`` which it goes, ``rows``, ``expected`` and
        ``observed`` events. Empty if a site keeps them back.

    Examples
    --------
    >>> from flwr_fco.tables import FederatedLogisticRegression
    >>> X, y = [np.array([[0.0], [1.0], [2.0]])] * 2, [np.array([0, 1, 1]), np.array([0, 0, 1])]
    >>> quality = FederatedLogisticRegression().fit(X, y).quality(X, y)
    >>> [row["events"] for row in quality.rows], quality.overall["concordance"]
    ([2, 1], 1.0)
    """

    overall: dict[str, float]
    bins: list[dict[str, float]]


def quality_of(model: Any, X: Any, y: Any, groups: Any) -> Quality:
    """Return how good a fitted estimator is on the rows of several sites."""
    point = np.ravel(np.append(model.coef_, model.intercept_) if model.fit_intercept else model.coef_)
    made: Quality = asked_of(model, X, y, groups, partial(_quality, model=model, point=point))
    return made


def _quality(run: Run, model: Any, point: Vector, sites: Sequence[Any] = ()) -> Quality:
    """Ask all sites about a model.

    Parameters
    ----------
    run : Run
        A run of the sites, whose tables have the names of columns and classes that these must have.
    model : estimator
        What was fitted.
    point : ndarray of float64, shape (d,)
        Coefficients, then the intercept, if there is one.
    sites : sequence, optional
        Names of the sites by partition.
    """

    def ask(question: str, numbers: dict[str, float], shapes: Any, *wanted: str) -> list[Answer]:
        """Return the answers of sites that have said how good the model is."""
        answered = questions.ask(run, Request(question, numbers, wanted, shapes), point)
        return [answer for answer in answered if answer.node_id in nodes]

    answers = questions.ask(run, Request("quality", {}, _WANTED, check=_check), point)
    left_out = reasons_of(run, sites)
    if not answers:
        raise ConfigurationError(f"no site says how good the model is: {'; '.join(left_out)}")
    nodes = {answer.node_id for answer in answers}

    def derivatives(at: Vector) -> Sums:
        shapes = {"gradient": (at.size,), "hessian": (at.size**2,)}
        kept = ask("calibration", dict(zip(_CALIBRATED, at.tolist(), strict=False)), shapes, "loss")
        if len(kept) < len(nodes):
            prefix = f"{len(kept)} of {len(nodes)} sites say how the model is calibrated"
            raise ConfigurationError(f"{prefix}, of which all have said how good it is; ask again")
        weights = [answer.examples for answer in kept]
        gradient, hessian = (np.average([a.vectors[name] for a in kept], 0, weights) for name in shapes)
        return Sums(at, gradient, hessian.reshape(at.size, at.size), _mean(kept, "loss"), rows)

    rows = sum(answer.examples for answer in answers)
    overall = _overall(model, answers) | _calibrated(derivatives, "intercept" in run.problem.layout.shapes)
    bins = []
    withheld = ""
    mean, square = (_mean(answers, name) for name in ("mean", "square"))
    deviation = math.sqrt(max(square - mean**2, 0.0))
    if deviation > 0.0:
        edges = mean + deviation * stats.norm.ppf(np.arange(1, _BINS) / _BINS)
        numbers = {f"{_EDGE}{i}": float(edge) for i, edge in enumerate(edges)}
        for merged in _MERGED:
            shapes = dict.fromkeys(("rows", "expected", "observed"), (_BINS // merged,))
            reported = ask("bins", {**numbers, "merged": float(merged)}, shapes, "reported")
            if len(reported) == len(nodes) and all(answer.numbers["reported"] for answer in reported):
                bins = _binned(reported, edges[merged - 1 :: merged])
                break
        else:
            withheld = "withheld by a site, whose owner allows no bin of so few rows, or a site has not answered"
    of_sites: list[dict[str, Any]] = [
        {"site": site_of(own, sites), "rows": int(own.examples), "events": int(own.numbers["events"])}
        | _overall(model, [own])
        for own in answers
    ]
    lines = [("Data", f"{rows:.0f} rows, {sum(own['events'] for own in of_sites)} events, of {len(answers)} sites")]
    lines += [*_lines(overall), *[("Bins", withheld)] * bool(withheld), *(("Left out", text) for text in left_out)]
    if model._weighted:
        lines.append(("Weights", "none: every row counts once, unlike in the fit"))
    for own in of_sites:
        del own["pairs"]
    text = [*aligned_columns(of_sites), *aligned_columns([{"bin": "scores", **own} for own in bins])]
    return Quality.of(f"Quality of {type(model).__name__}", lines, text, overall=overall, rows=of_sites, bins=bins)


def _overall(model: Any, answers: Sequence[Answer]) -> dict[str, float]:
    ordered, pairs = (sum(answer.numbers[name] for answer in answers) for name in ("ordered", "compared"))
    found = {"concordance": ordered / pairs if pairs else math.nan, "pairs": pairs}
    return found | ({"Brier": _mean(answers, "brier")} if model._kind is CLASSES else {})


def _lines(overall: dict[str, float]) -> list[tuple[str, str]]:
    """Return what is known of all rows in words."""
    text = f"{overall['concordance']:.4g}, of {overall['pairs']:.0f} pairs within sites (0.5: no better than chance)"
    lines = [("Concordance", text)]
    if math.isnan(overall["slope"]):
        text = "the rows determine no slope: scores or outcomes are all the same, or in order without error"
    else:
        text = f"slope {overall['slope']:.4g} +- {overall['slope error']:.3g} (1 where the model is exact)"
        if "intercept" in overall:
            text += f", intercept {overall['intercept']:.4g} +- {overall['intercept error']:.3g} (0)"
    lines.append(("Calibration", text))
    if "Brier" in overall:
        lines.append(("Brier's score", f"{overall['Brier']:.4g} (0.25: every chance is a half)"))
    return lines


def _mean(answers: Sequence[Answer], name: str) -> float:
    """Return the mean of a number over the rows."""
    return sum(own.examples * own.numbers[name] for own in answers) / sum(own.examples for own in answers)


def _check(answer: Answer) -> None:
    """Refuse numbers that no rows have."""
    reported, n = answer.numbers, answer.examples
    if not 0.0 <= reported["ordered"] <= reported["compared"] <= 0.5 * n * (n - 1.0):
        text = f"{reported['ordered']:g} of {reported['compared']:g} pairs are in order, of {n:.0f} rows"
        raise ProtocolError(text)
    if not 0.0 <= reported["events"] <= n:
        raise ProtocolError(f"{reported['events']:g} events of {n:.0f} rows")
    if not (0.0 <= reported["brier"] <= 1.0 and reported["square"] >= (1.0 - 1e-9) * reported["mean"] ** 2):
        text = f"Brier's score is {reported['brier']:g}, and the scores' mean square {reported['square']:g}"
        raise ProtocolError(text)


def _calibrated(derivatives: Any, intercept: bool) -> dict[str, float]:
    """Return slope and intercept with their standard errors, by Newton's method; NaN if they are not determined."""
    names = _CALIBRATED[: 1 + intercept]
    found = minimum(derivatives, np.array([1.0, 0.0])[: len(names)])
    if found is None:
        return dict.fromkeys([*names, *(f"{name} error" for name in names)], math.nan)
    sums, covariance, step = found
    errors = {
        f"{name} error": float(own) for name, own in zip(names, np.sqrt(np.diag(covariance) / sums.rows), strict=True)
    }
    return dict(zip(names, (sums.point - step).tolist(), strict=True)) | errors


def _binned(answers: Sequence[Answer], edges: Vector) -> list[dict[str, float]]:
    names = ("rows", "expected", "observed")
    sums = np.sum([[answer.examples * answer.vectors[name] for name in names] for answer in answers], axis=0)
    rows = zip([*edges.tolist(), math.inf], sums.T.tolist(), strict=True)
    return [{"up to": end, **dict(zip(names, own, strict=True))} for end, own in rows]
