"""The sites of a fit: how they are reached, and what each says first, of its loss at 0, its rows and its columns."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from flwr_fco.certificates import Request
from flwr_fco.client_apps import client_app as make_app
from flwr_fco.client_apps.client import answers_to, forget_objectives
from flwr_fco.core.computing import quiet, single_threaded_blas
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import names_of
from flwr_fco.core.validation import printable
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.messages.protocol import Answer, Described, Question
from flwr_fco.objectives import CoxRegression, Linear, Objective, Poisson
from flwr_fco.objectives.design import dense, moments
from flwr_fco.objectives.linear import CENTRE
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, FedNewton
from flwr_fco.strategies.nodes import Tables
from flwr_fco.strategies.questions import ask, prepared
from flwr_fco.strategies.run import Run
from flwr_fco.tables.reading import is_grid, place_of

#: Seconds to wait for a site's answer.
TIMEOUT = 600.0
#: The numbers and vectors of a first answer, besides the gradient: the sum of the rows' weights, whether they are
#: unequal, whether columns are dense, the mean of counts; and columns' means, variances, and these again where a column
#: varies in a stratum.
_NUMBERS = ("loss", "mass", "weighted", "dense", "mean")
_COLUMNS = ("means", "variances", "within")
#: Rows without which nothing is said of columns that are constant, or of sums that are the same.
ROWS = 10
#: Ratio of a deviation to that at most sites above which there is a warning; and of a mean weight to the sites' median.
_UNITS, _HEAVIEST = 5.0, 10.0
#: Ratio of a mean to the deviation above which columns are centred: squares of them lose twice its digits.
_FAR = 1e2
#: Rounding error of a mean, relative to it.
_ROUNDING = 1e-12
#: Taken by who asks the sites of a grid: they have the centre of one fit, which other questions take away.
TURN = RLock()


# --- at a site --------------------------------------------------------------------------------------------------------


def ready(question: Question, objective: Any) -> None:
    """Refuse a question about another codebook's columns, or another estimator's loss; end the centre of columns."""
    asked = question.numbers.get("codebook", 0.0)
    # A loss of one's own has no codebook, and may be of any kind.
    if asked != getattr(objective, "digest", asked % 1.0):
        advice = "give all sites one file and one kind of client_app"
        raise PublicError(f"this site has another codebook or estimator than the server: {advice}")
    # Of a fit that has not ended.
    objective.shift(np.zeros(objective.features.shape[1]))


@answers_to("first", of=Linear)
def first(question: Question, objective: Any) -> Answer:
    """Return loss and gradient at ``primal``, the sum of the rows' weights, and the columns' means and variances.

    The loss is counted from the least that it can be, as that of weighted survival times may be below 0. ``weighted``
    is 1 if the weights are unequal. ``within`` are the variances of columns that vary in a stratum of survival times.
    """
    ready(question, objective)
    has = objective.clusters is not None
    if question.numbers.get("clustered", has) != has:
        raise PublicError(f"this site gives {'' if has else 'no '}clusters, unlike the server: give both one cluster=")
    objective.state.pop(CENTRE, None)
    value, gradient = objective.value_and_gradient(question.vectors["primal"])
    known = objective.moments()
    vectors = {"gradient": gradient, **dict(zip(_COLUMNS, (*known, varied(objective, *known)), strict=True))}
    numbers = {"loss": value - objective.least, "mass": objective.mass, "weighted": objective.weighs_rows}
    numbers |= {"dense": isinstance(objective.features, np.ndarray), "mean": counted(objective)[0]}
    return Answer({name: float(number) for name, number in numbers.items()}, vectors)


def counted(objective: Any) -> tuple[float, float]:
    """Return the means of counts and of their log likelihoods at themselves; 0 of other losses."""
    if not isinstance(getattr(objective, "with_intercept", objective), Poisson):
        return 0.0, 0.0
    y = objective.targets
    each = xlogy(y, y) - y - gammaln(y + 1.0)
    return float(np.average(y, weights=objective.weights)), float(np.average(each, weights=objective.weights))


def varied(objective: Objective, means: Vector, variances: Vector) -> Vector:
    """Return the variances of columns, and 0 of those that are constant in each stratum.

    Not those within strata, as what is missing to the whole is a row, if a stratum has one.
    """
    if not isinstance(objective, CoxRegression) or not (codes := objective.link.of_row.strata).any():
        return variances
    rows = dense(objective.features)
    counts = np.bincount(codes)
    parts = [count * moments(rows[codes == code], np.full(count, 1.0 / count))[1] for code, count in enumerate(counts)]
    return np.where(_constant(np.sqrt(np.abs(sum(parts)) / codes.size), means), 0.0, variances)


@answers_to("centred", of=Linear)
def centred(question: Question, objective: Any) -> Answer:
    """Take the first numbers of ``primal`` as the centre of columns and targets, until the next fit."""
    centre = question.vectors["primal"][: objective.features.shape[1] + 1]
    if not centre.any() and CENTRE not in objective.state:
        raise PublicError("this site has lost its columns' centre, as when its SuperNode is restarted: fit again")
    # The next message, perhaps another process's, shifts by it: see `recall`.
    objective.state[CENTRE] = ArrayRecord({CENTRE: Array(centre)})
    return Answer({})


# --- how sites are reached --------------------------------------------------------------------------------------------


@contextmanager
def connected(X: Any, objectives: Sequence[Objective]) -> Iterator[Any]:
    """Yield what connects the sites: a grid that is given, for one thread at a time, or one of a site for each loss."""
    if is_grid(X):
        with TURN:
            yield X
        return
    app = make_app(lambda context: objectives[int(context.node_config["partition-id"])])
    grid = InProcessGrid(app, len(objectives))
    try:
        with quiet(), single_threaded_blas():
            yield grid
    finally:
        forget_objectives(grid.run_id)


@contextmanager
def asked_of(model: Any, X: Any, y: Any, groups: Any) -> Iterator[tuple[Run, Sequence[Any]]]:
    """Yield a run in which the sites of a fitted model are asked, and if they are here their names."""
    # A copy, because a fitted model is not changed; splits of its cross-validation are not of these rows.
    model = copy.copy(model)
    model.cv = None
    clients = [] if is_grid(X) else model._clients(X, y, None, groups, reset=False)
    names = names_of(getattr(model, "feature_names_in_", None))
    # Rows that are here are compared as those of a fit.
    tables = Tables(Described(names, model._names_of_classes()), settled=bool(clients))
    with connected(X, model._objectives(clients)) as grid:
        run = prepared(asking(len(clients) or model.num_clients, tables), grid, model._start(), TIMEOUT)
        yield run, [own.site for own in clients] or list(getattr(model.codebook, "sites", ()))


class SomeNodes:
    """The nodes of a grid that have answered, which are not asked again who they are."""

    def __init__(self, grid: Any, answers: Sequence[Answer]) -> None:
        self._grid = grid
        self._nodes: list[Any] = [own.node_id for own in answers]
        self.partition_ids = {own.node_id: own.partition for own in answers if own.partition != own.node_id}

    def get_node_ids(self) -> list[int]:
        """Return their ids."""
        return self._nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def asking(number: int, tables: Tables, **options: Any) -> FedNewton:
    """Return a strategy of so many sites, of which questions are asked, or which is run, at however many.

    Parameters
    ----------
    number : int
        How many sites there are.
    tables : Tables
        What is known of their tables.
    **options
        Of the strategy.
    """
    strategy = FedNewton(min_available_nodes=number, min_train_nodes=1, fraction_evaluate=0.0, **options)
    strategy.tables = tables
    return strategy


def called(place: Any, sites: Sequence[Any]) -> str:
    """Return what texts call the site of a partition, by its name among `sites` if it has one there."""
    return f"site {sites[place] if 0 <= place < len(sites) else place}"


def reasons_of(run: Run, sites: Sequence[Any]) -> list[str]:
    """Return who has not answered, and why."""
    # A node that hangs has not said its partition.
    names = [f"node {row.node_id}" if (own := row.partition_id) is None else called(own, sites) for row in run.left_out]
    return [f"{name}: {row.reason}" for name, row in zip(names, run.left_out, strict=True)]


def check_count(answers: int, least: int, reasons: Sequence[str]) -> None:
    """Refuse too few answers; the reasons are those of the other sites."""
    if answers < least:
        prefix = f"{answers} of num_clients={least} sites have answered; the reasons of the others"
        raise ConfigurationError(f"{prefix}: {'; '.join(reasons)}")


def check_masses(answers: Sequence[Answer], sites: Sequence[Any]) -> None:
    """Refuse rows that weigh nothing, or ten times the median: these would decide alone."""
    means = np.array([answer.numbers["mass"] / (answer.examples or math.inf) for answer in answers])
    usual = np.sort(means)[(means.size - 1) // 2]
    for m in np.flatnonzero(~((means > 0.0) & (means <= _HEAVIEST * usual)))[:1]:
        prefix = f"{called(answers[m].partition, sites)} says that its rows weigh {means[m]:.3g} in the mean"
        most = f"at most {_HEAVIEST:g} times as much as the sites' median, {usual:.3g}"
        raise ConfigurationError(f"{prefix}; expected more than 0 and {most}: give all sites weights on one scale")


def same_rows(sites: Sequence[str], sums: Sequence[Any], odd: Any) -> Iterator[tuple[int, str]]:
    """Yield the places of sites whose sums, the first of them rows, are identical to others', and what that means.

    Few rows are the same at two sites by chance, as are columns that are not `odd`: those of two values.
    """
    known = dict[tuple[str, ...], str]()
    for place, (site, own) in enumerate(zip(sites, sums, strict=True)):
        key = tuple(f"{number + 0.0:.10g}" for number in own)
        if own[0] >= ROWS and odd[place] and (other := known.setdefault(key, site)) != site:
            yield place, f"has the same rows as {other}: all sums are identical. Was one file used at both?"


# --- all sites of a fit -----------------------------------------------------------------------------------------------


class Sites:
    """The sites of a fit, how they are reached, and what they have said first; a warning where sums are the same.

    Parameters
    ----------
    model : estimator
        What is fitted, without which site of a grid, and how long an answer is waited for.
    grid : Grid
        Connects them.
    tables : Tables
        What they have said of their tables.
    here : int
        How many have their rows in this process; 0 over a grid.

    Attributes
    ----------
    answers : list of Answer
        What they have said first; the weight of each is the share of its rows.
    names : sequence of str
        What errors call them, in the order of the answers.
    rows, total : float
        How many there are at all, and what they weigh.
    weighted : bool
        Whether rows have weights other than 1.
    size, rounds : int
        Of the model, with its intercept; and how many messages each of them has had.
    means, variances : ndarray of float64, shape (number of sites, d)
        Of the columns.
    at_zero, level : float
        The loss at 0, of all rows; and of squares the mean of the targets, if it is far from 0 beside their deviation.
    slopes : ndarray of float64
        The derivatives at 0, of all rows.
    mean, deviations, scales, origin : ndarray of float64, shape (d,)
        Of the columns at all sites; the deviations with 1 for those that are constant up to rounding, as in
        scikit-learn's ``StandardScaler``; and the centres of those that are far from 0.
    squares : dict of int to ndarray of float64
        At least the mean squares of each partition's columns about the origin.
    within, idle : ndarray of bool, shape (d,)
        Which columns are constant at each site, or in each stratum, and say nothing beside its own level; and which say
        nothing in this model.
    """

    def __init__(self, model: Any, grid: Any, tables: Tables, here: int) -> None:
        self.grid = grid
        self.start: ArrayRecord = model._start()
        self.timeout: float = model._timeout
        self.tables = tables
        self.called: Sequence[Any] = model._sites
        least = here or model.num_clients
        run = prepared(asking(least, tables), grid, self.start, self.timeout)
        self.size = run.problem.layout.size
        shapes = {"gradient": (self.size,), **dict.fromkeys(_COLUMNS, (model.n_features_in_,))}
        numbers = {"codebook": model._digest}
        # Without intervals, or with sites as clusters, those within sites do not matter.
        if model.cluster != "site" and (model.cluster or model._intervals):
            numbers["clustered"] = float(model.cluster is not None)
        answers = ask(run, Request("first", numbers, _NUMBERS, shapes), np.zeros(self.size))
        self.rounds = 1
        check_count(len(answers), least, reasons_of(run, self.called))
        if not here:
            if model.without_ is not None:
                # A codebook names the sites by partition.
                without = model._sites.index(model.without_) if model.without_ in model._sites else model.without_
                answers.pop(place_of(without, [answer.partition for answer in answers]))
            check_masses(answers, self.called)
            # The fit is of these and of nobody who comes later.
            self.grid = SomeNodes(grid, answers)
        self.names = [called(own.partition, self.called) for own in answers]
        self.means, self.variances, within = (np.array([a.vectors[name] for a in answers]) for name in _COLUMNS)
        self.rows = math.fsum(own.examples for own in answers)
        self.total = math.fsum(own.numbers["mass"] for own in answers)
        self.weighted = any(own.numbers["weighted"] or own.numbers["mass"] != own.examples for own in answers)
        self.answers = [own._replace(weight=own.numbers["mass"] / self.total) for own in answers]
        self.at_zero = math.fsum(own.weight * own.numbers["loss"] for own in self.answers)
        self.slopes = np.sum([own.weight * own.vectors["gradient"] for own in self.answers], axis=0)
        mean = -float(self.slopes[-1])
        self.level = mean if mean * mean > _FAR**2 * abs(2.0 * self.at_zero - mean * mean) else 0.0
        shares = np.array([[own.weight] for own in self.answers])
        with np.errstate(over="ignore", invalid="ignore"):  # of a mean that a site makes up
            share = self.means % 1.0
            binary = np.isclose(self.variances, share * (1.0 - share), atol=_ROUNDING).all(axis=1)
            self.mean = (shares * self.means).sum(axis=0)
            self.deviations = np.sqrt((shares * (self.variances + np.square(self.means - self.mean))).sum(axis=0))
        sums = [np.hstack([own.examples, own.vectors["means"], own.vectors["gradient"]]) for own in answers]
        for place, text in same_rows(self.names, sums, ~binary):
            warnings.warn(f"{self.names[place]} {text}", UserWarning, stacklevel=4)
        # A mean or a variance that overflows leaves no deviation, which is not one of 1.
        self.scales = np.where(_constant(self.deviations, self.mean), 1.0, self.deviations)
        self.within = np.all(_constant(np.sqrt(np.abs(within)), self.means), axis=0)
        self.idle = self.within if model._own_levels else _constant(self.deviations, self.mean)
        # Sparse rows would be dense about another centre.
        dense = all(own.numbers["dense"] > 0.0 for own in self.answers)
        far = (np.abs(self.mean) > _FAR * self.deviations) & np.isfinite(self.deviations) & dense
        if not (model.fit_intercept or model._own_levels):
            # A constant column is the intercept then, and columns about a centre are another model's.
            self.within, self.idle, far = (own & (self.mean == 0.0) for own in (self.within, self.idle, far))
        self.origin = np.where(far, self.mean, 0.0)
        with np.errstate(over="ignore"):
            # A mean has a rounding error, which is large beside the deviations of columns far from 0.
            squares = self.variances + np.square(np.abs(self.means - self.origin) + _ROUNDING * np.abs(self.means))
        self.squares = dict(zip([own.partition for own in answers], squares, strict=True))

    def strategy(self, **options: Any) -> FedNewton:
        """Return a strategy with these options."""
        rows: Any = {own.partition: own.examples for own in self.answers}
        strategy = asking(len(self.answers), self.tables, bounds=Bounds(rows=rows), **options)
        # In rows, whatever the unit of their weights: by these it is seen whether columns are more.
        weights: Any = {own.partition: own.weight * self.rows for own in self.answers}
        strategy.site_weights = weights if self.weighted else None
        return strategy

    def ask(self, request: Request, point: Vector) -> list[Answer]:
        """Ask all sites at a point, which zeros make as long as the model; `silent` says who has not answered."""
        run = prepared(self.strategy(), self.grid, self.start, self.timeout)
        answers = ask(run, request, np.append(point, np.zeros(self.size))[: self.size])
        self.rounds += 1
        self.silent = reasons_of(run, self.called)
        return answers

    def centre(self, centre: Vector) -> None:
        """Have all sites subtract a centre from their columns, and of squares its last number from the targets."""
        self.ask(Request("centred"), centre)
        if self.silent:
            raise ConfigurationError(f"sites have not centred their columns: {'; '.join(self.silent)}")

    def at_mean(self) -> tuple[float, float]:
        """Return the logarithm of the counts' mean rate, and the loss there; 0 and that at 0 without counts."""
        mean = math.fsum(answer.weight * answer.numbers["mean"] for answer in self.answers)
        exposure = mean + float(self.slopes[-1])
        if not (mean > 0.0 and exposure > 0.0):
            return 0.0, self.at_zero
        level = math.log(mean / exposure)
        return level, self.at_zero + mean - exposure - mean * level

    def settle(self, arrays: ArrayRecord, centre: Vector) -> None:
        """Make the coefficients of columns that say nothing 0, and the intercepts those of columns about 0."""
        coefficients = arrays["coefficients"].numpy().copy()
        each = coefficients.reshape(self.mean.size, -1)
        # What a column that says nothing adds is a part of the intercept.
        moved = (centre[:-1] - np.where(self.idle, self.mean, 0.0)) @ each
        each[self.idle] = 0.0
        arrays["coefficients"] = Array(coefficients)
        if "intercept" in arrays:
            arrays["intercept"] = Array(arrays["intercept"].numpy() + centre[-1] - moved)

    def check_scales(self, columns: Sequence[Any]) -> None:
        """Warn of features whose standard deviation is far above that at most sites, which a single site can make it.

        Raises
        ------
        ConfigurationError
            If it is infinite, or a site says a variance below 0.
        """
        scales = self.deviations
        for m, j in np.argwhere(self.variances < 0.0)[:1]:
            said = f"{self.names[m]} says a variance of {self.variances[m, j]:.3g}"
            raise ConfigurationError(f"{said}; expected none below 0")
        means, own = self.means, np.sqrt(self.variances)
        usual = np.sort(own, axis=0)[(len(own) - 1) // 2]
        for j in np.flatnonzero(~(scales <= _UNITS * usual) & ((usual > 0.0) | ~np.isfinite(scales)))[:5]:
            m = int(np.argmax(np.maximum(own[:, j], np.abs(means[:, j]))))
            prefix = f"the standard deviation of {printable(str(columns[j]))} over all sites is {scales[j]:.3g}"
            says = f"{self.names[m]} says a mean of {means[m, j]:.3g} and a deviation of {own[m, j]:.3g}"
            text = f"{prefix}, within most up to {usual[j]:.3g}: {says}. This weakens its penalty; check the unit there"
            if not np.isfinite(scales[j]):
                raise ConfigurationError(text)
            warnings.warn(text, UserWarning, stacklevel=4)


def _constant(deviations: Vector, means: Vector) -> NDArray[np.bool_]:
    """Which columns are constant up to rounding."""
    return np.asarray(np.isfinite(deviations) & (deviations <= 10.0 * np.finfo(np.float64).eps * np.abs(means)))
