"""A table of intervals: what the sites are asked for it, before and after a fit, and what it says.

Its estimates without shrinkage and their covariances are those of the sums of the sites' derivatives.

With H, g and F the Hessian, gradient and loss of n rows at a point w, and d parameters:

    w - H^-1 g,                         n well above d, or a generalised linear model at its unpenalised minimiser:
    covariance s H^-1 / n               s = 1, or for squares s = 2 n F(w - H^-1 g) / (n - d)
    covariance c H^-1 M H^-1            M the sum over the clusters of s s', s the sum of their rows' gradients
    b - Theta grad F(b),                squares otherwise: b the lasso at a small strength of its own, Theta the
    covariance s Theta H Theta' / n     nodewise lassos' approximate inverse of H, s = 2 n F(b) / (n - nonzeros)

All of it is a function of sums: the sites' Hessians add up, and the nodewise lassos need nothing else. c is G/(G - 1)
of G clusters, for squares times (n - 1)/(n - d), and 1 for survival times, as in R's vcovCL and coxph.

References: van de Geer, Buehlmann, Ritov, Dezeure: On asymptotically optimal confidence regions and tests for
high-dimensional models (Ann. Stat. 2014), the nodewise lasso. Xia, Nan, Li: Debiased lasso for generalized linear
models with a diverging number of covariates (Biometrics 2023): in generalised linear models, invert the Hessian. Liang,
Zeger: Longitudinal data analysis using generalized linear models (Biometrika 1986), the clusters.

Then: whether sites differ, by Rao's test at the common estimates, and by a meta-analysis of the sites' own estimates.

References: Cochran: The combination of estimates from different experiments (Biometrics 1954). DerSimonian, Laird:
Meta-analysis in clinical trials (Control. Clin. Trials 1986). Higgins, Thompson: Quantifying heterogeneity in a
meta-analysis (Stat. Med. 2002). Hartung, Knapp: A refined method for the meta-analysis of controlled clinical trials
with binary outcome (Stat. Med. 2001).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from flwr_fco.algorithms.newton.model import Flags, Indices, Matrix, unpacked
from flwr_fco.algorithms.newton.model import inverse as inverse_of
from flwr_fco.certificates import Request, check_semidefinite
from flwr_fco.client_apps.client import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import Choice, printable
from flwr_fco.errors import ConfigurationError, ProtocolError, SeparableError
from flwr_fco.kernels.quadratic import descend
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, LeastSquares, Linear, Logistic, Objective, SiteIntercept
from flwr_fco.objectives.site_intercept import FEWEST_ROWS, unwarned
from flwr_fco.objectives.survival import time_trend
from flwr_fco.tables.sites import Sites, called, counted

#: Columns of a model whose Hessian is asked for as a whole: 16 MB a site.
MOST_COLUMNS = 2_000
#: Events, or rows of the rarer class, for each column, below which intervals of a generalised linear model are refused,
#: and below which there is a warning (docs/benchmarks/intervals.md).
_EVENTS, _FEW_EVENTS = 5, 10
#: The smallest standard error of one site, relative to that of all sites together; and its largest estimate, relative
#: to the median of the sites.
_SMALLEST, _LARGEST = 1.0 / 3.0, 1_000.0
#: Rounding error of a site's derivatives, relative to others that bound them.
_ROUNDING = 1e-6
#: Clusters below which their intervals are too short.
_FEW_CLUSTERS = 20
#: Sites from which on a spread between them can be estimated.
_SITES = 3
#: Names of sites in a line, and a count of their rows below which it is not shown.
_SHOWN, _SMALL = 5, 5
_DISTINCT = {"range": (lambda columns: 0 < len(set(columns)) == len(columns), "other columns")}
#: Strengths of the lasso, times the noise, and of the nodewise lassos, relative to sqrt(log d / n), for columns of
#: variance 1. Large ones leave a bias that intervals do not know of (docs/how-to/inference.md).
_LASSO, _NODEWISE = 0.65, 0.1
#: Newton steps and halvings of one at most; the square of a step that is the last one, and of one that may be, in
#: standard errors; a change of a loss that is rounding; and how many times the variance at the start that at the
#: minimum is where an estimate grows without end.
_STEPS, _HALVINGS = 60, 30
_LAST, _SHORT, _NO_CHANGE, _SEPARABLE = 1e-16, 1e-10, 1e-14, 1e6
#: Rows for each parameter, beside one for each intercept that stays at a site, from which on the Hessian of squares is
#: inverted.
_ROWS = 2
#: Variance of a column that is constant.
_CONSTANT = 1e-14
#: Residual squares that are rounding: relative to those of the model, and to those of 0.
_EXACT, _NOTHING = 1e-13, 1e-24
#: Information of a site on a column, and of a contrast of sites, relative to others, that is rounding.
_SINGULAR = 1e-9
#: Sweeps of a lasso, its precision, and how often the noise is estimated.
_SWEEPS, _RELATIVE, _ABSOLUTE, _TIMES = 500, 1e-4, 1e-5, 20
#: Rows of squares, and events of other losses, that a site needs for each of its columns.
_OWN_ROWS, _OWN_EVENTS = 10, 5
#: What a site says of its own estimates, and beside them: whether it has some, rows of both classes, and of counts
#: their mean, and the mean of their log likelihoods by a parameter each.
_OWN, _BESIDE = ("estimate", "error", "degrees"), ("reported", "events", "others", "mean", "saturated")
#: Clusters of a site below which its own errors would be too small.
_CLUSTERS = 40


@dataclass(frozen=True)
class Intervals(Choice):
    """Which intervals are in a table.

    Parameters
    ----------
    level : float, default 0.95
        Their level.
    columns : sequence of str or int, optional
        The features that they are asked for, by name or place; by default all. The false discovery rates are over
        these, so they are to be chosen before the data are seen. The estimates are of the model with all its columns.
    largest : float, default 1e5
        How many times the sites' median the second derivative of one of them may be: columns in other units make it as
        large, and standard errors would be those of one site. Infinite where one site's column does spread so much.

    Raises
    ------
    ConfigurationError
        If the level is out of range, or no column is named.

    Examples
    --------
    >>> Intervals(columns=["age", "dose"]).indices(["weight", "age", "dose"])
    [1, 2]
    """

    level: float = field(default=0.95, metadata={"range": (lambda level: 0.5 <= level < 1.0, "from 0.5 to below 1")})
    columns: Sequence[str | int] | None = field(default=None, metadata=_DISTINCT)
    largest: float = field(default=1e5, metadata={"range": (lambda ratio: ratio > 1.0, "a number > 1")})

    def indices(self, names: Sequence[str]) -> list[int]:
        """Return the places of the columns among the features' names.

        Parameters
        ----------
        names : sequence of str
            The features.

        Raises
        ------
        ConfigurationError
            If a column is none of them, or there are more than 2,000 features.
        """
        if len(names) > MOST_COLUMNS:
            prefix = f"intervals of a model of {len(names)} columns; at most {MOST_COLUMNS} are possible"
            raise ConfigurationError(f"{prefix}: fit on fewer columns, chosen without the targets")
        known: dict[str | int, int] = {name: j for j, name in enumerate(names)} | {j: j for j in range(len(names))}
        columns = range(len(names)) if self.columns is None else self.columns
        if unknown := [column for column in columns if column not in known]:
            prefix = f"Intervals(columns=...) has {unknown[:5]}, which are no features"
            raise ConfigurationError(f"{prefix}; they are {', '.join(names[:10])}{', ...' * (len(names) > 10)}")
        return [known[column] for column in columns]


class Kind(NamedTuple):
    """What is fitted, as a table of intervals distinguishes it.

    Parameters
    ----------
    counted : str
        What a column needs enough of, in words.
    ratio : str, default ""
        What the exponential of a coefficient is called.
    most : float, default 100.0
        How many times what its events and rows suggest a site may say that it knows, which the largest counts
        determine; and that its clusters vary.
    """

    counted: str
    ratio: str = ""
    most: float = 100.0


#: Kinds of models. The sums of squares at any point determine their minimum.
SQUARES = Kind("rows")
CLASSES = Kind("rows of the rarer class", "odds ratio")
COUNTS = Kind("rows with events", "rate ratio")
TIMES = Kind("events", "hazard ratio", 10.0)
KINDS = (SQUARES, CLASSES, COUNTS, TIMES)


def _check_saturated(answer: Answer) -> None:
    """Refuse a mean of counts' log likelihoods at themselves that no counts of this mean have; it is convex in them."""
    mean, saturated = answer.numbers["mean"], answer.numbers["saturated"]
    rounding = min(1.0, _ROUNDING * (1.0 + abs(mean)))
    if mean < 0.0 or not -0.5 * math.log(2.0 * math.pi * (mean + 1.0)) - 1.0 <= saturated <= rounding:
        raise ProtocolError(f"its mean count is {mean:.3g}, and its log likelihood of them {saturated:.3g}")


def _check_possible(answer: Answer) -> None:
    """Refuse second derivatives that no convex loss has, and what no clusters of the rows have."""
    check_semidefinite(unpacked(answer.vectors["block"]))
    check_semidefinite(unpacked(answer.vectors.get("meat", np.zeros(1))), "sum over its clusters")
    clusters, rows = answer.numbers["clusters"], answer.examples
    if not 0.0 <= clusters <= rows:
        raise ProtocolError(f"it says {clusters:g} clusters of {rows:g} rows")


class Table(NamedTuple):
    """The table, and what is said of it.

    Parameters
    ----------
    rows : dict of int to dict
        For each column asked for, by its place, numbers by name; NaN where there is none.
    sites : tuple of str
        The names of the sites' own estimates among them.
    lines : list of (str, str)
        Lines of a summary.
    found : Estimates
        The estimates of all columns.
    rows_of : tuple of float
        Of how many rows and sites they are, and how many intercepts have stayed there.
    intercepts : list of dict
        Of a common intercept, observed and expected events of each site.
    clustered : bool
        Whether the errors are of clusters, or of rows with weights, so that the fit has no likelihood.
    """

    rows: dict[int, dict[str, float]]
    sites: tuple[str, ...]
    lines: list[tuple[str, str]]
    found: Estimates
    rows_of: tuple[float, ...]
    intercepts: list[dict[str, Any]]
    clustered: bool


#: What of a table stands in one part of a text.
_RATIOS = [f"{ratio} ratio{end}" for ratio in ("odds", "rate", "hazard") for end in ("", " lower", " upper")]
ESTIMATED = ["estimate", "standard error", "lower", "upper", *_RATIOS, "p", "q", "p of trend"]
COMPARED = ["Rao", "p of Rao", "Q", "p of Q", "I2", "fixed", "DerSimonian-Laird"]
COMPARED += ["Hartung-Knapp lower", "Hartung-Knapp upper", "sites"]


# --- of sums ----------------------------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """Sums of the sites' derivatives at a point.

    Parameters
    ----------
    point, gradient : ndarray of float64, shape (d,)
        Coefficients, then the intercept, if there is one in these sums; and the gradient of the mean loss.
    hessian : ndarray of float64, shape (d, d)
        The Hessian.
    loss, rows : float
        The mean loss there, and of how many rows.
    mass : float, optional
        The sum of the rows' weights, if they have any.
    intercepts : float, default 0.0
        How many intercepts have stayed at the sites, at whose best values these derivatives are.
    each : tuple of Answer
        Of each site: ``gradient`` and ``block`` of its mean loss, the Hessian as a packed triangle, and of clusters
        its ``meat``.
    meat, clusters : ndarray of float64, shape (d, d), and float, optional
        The sum over the clusters of the outer products of the sums of their rows' gradients of the mean loss; and how
        many there are.
    """

    point: Vector
    gradient: Vector
    hessian: Matrix
    loss: float
    rows: float
    mass: float | None = None
    intercepts: float = 0.0
    each: tuple[Answer, ...] = ()
    meat: Matrix | None = None
    clusters: float = 0.0

    @property
    def total(self) -> float:
        """What all rows weigh."""
        return self.rows if self.mass is None else self.mass


class Estimates(NamedTuple):
    """Estimates of the p coefficients, and what follows from them.

    Parameters
    ----------
    estimate : ndarray of float64, shape (p,)
        The estimates.
    covariance : ndarray of float64, shape (p, p)
        Their covariance.
    degrees : float
        Degrees of freedom of t; infinite for a normal distribution.
    how : str
        In words.
    noise : float, default 1.0
        The variance of squares' residuals.
    inverse : ndarray of float64, shape (d, d), optional
        That of the mean loss's Hessian.
    log_likelihood : float
        Of the fit; NaN if there is none.
    """

    estimate: Vector
    covariance: Matrix
    degrees: float
    how: str
    noise: float = 1.0
    inverse: Matrix | None = None
    log_likelihood: float = math.nan

    @property
    def error(self) -> Vector:
        """The standard errors, shape (p,)."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))

    def inferred(self, values: Vector, errors: Vector, level: float) -> dict[str, Vector]:
        """Return some estimates with their errors, limits at a level, and p, by names of a table's columns."""
        t = stats.t(self.degrees)
        half = t.isf(0.5 * (1.0 - level)) * errors
        limits = {"lower": values - half, "upper": values + half}
        return {"estimate": values, "standard error": errors, **limits, "p": 2.0 * t.sf(np.abs(values) / errors)}


def minimum(
    derivatives: Callable[[Vector], Sums], start: Vector, invert: Any = inverse_of, *, squares: bool = False
) -> tuple[Sums, Matrix, Vector] | None:
    """Return the sums next to a loss's minimum, the inverse of their Hessian, and the Newton step that is left.

    Parameters
    ----------
    derivatives : callable
        ``(point) -> Sums``.
    start : ndarray of float64, shape (d,)
        Where it begins.
    invert : callable, optional
        The inverse of a Hessian, or None.
    squares : bool, default False
        Whether one step leads to the minimum.

    Returns
    -------
    tuple, or None
        None if the Hessian has no inverse, or no step leads to a minimum.

    Raises
    ------
    SeparableError
        If parameters grow without end.
    """
    found = derivatives(start)
    first = None
    left = math.inf
    for number in range(_STEPS):
        inverse = invert(found.hessian)
        if inverse is None:
            return None
        variances = np.diag(inverse)
        first = variances if first is None else first
        if (grown := np.flatnonzero(variances > _SEPARABLE * first)).size:
            raise SeparableError("the outcome is separable", indices=grown.tolist())
        step = inverse @ found.gradient
        before, left = left, found.rows * float(found.gradient @ step)
        # Steps that do not get shorter are rounding.
        if left <= _LAST or 0.25 * before < left <= _SHORT or (squares and number):
            return found, inverse, step
        for _ in range(_HALVINGS):
            trial = derivatives(found.point - step)
            if trial.loss <= found.loss + _NO_CHANGE * abs(found.loss):
                break
            step = 0.5 * step
        found = trial
    return None


def estimated(sums: Sums, names: Sequence[str], *, squares: bool = False, of_times: bool = False) -> Estimates:
    """Return the estimates of a mean of negative log likelihoods, from sums next to its minimiser; of squares anywhere.

    Parameters
    ----------
    sums : Sums
        The sums.
    names : sequence of str
        Names of the p coefficients.
    squares, of_times : bool, default False
        Whether the loss is half a mean of squares, or a partial likelihood.

    Raises
    ------
    ConfigurationError
        If the columns are linearly dependent or constant; or of squares the fit is exact, or too few rows are left for
        the noise.

    Examples
    --------
    >>> X, y = np.array([[-1.0], [0.0], [1.0], [2.0]]), np.array([-1.0, 0.5, 0.5, 2.0])
    >>> sums = Sums(np.zeros(1), -X.T @ y / 4, X.T @ X / 4, float(y @ y) / 8, 4.0)
    >>> found = estimated(sums, ["x"], squares=True)
    >>> found.estimate.round(6), found.error.round(6), found.degrees
    (array([0.916667]), array([0.159571]), 3.0)
    """
    n = sums.rows
    count = len(names)
    if squares and n - sums.intercepts < _ROWS * sums.point.size:
        if sums.meat is not None:
            prefix = f"clustered or weighted intervals of {count} columns from {n:.0f} rows; expected at least {_ROWS}"
            raise ConfigurationError(f"{prefix} a column, beside one for each site's intercept: take fewer columns")
        return _nodewise(sums, names)
    inverse = invertible(sums.hessian, names)
    step = inverse @ sums.gradient
    noise, degrees, how = 1.0, math.inf, "unpenalised fit, inverse of the Hessian"
    likelihood = -sums.total * sums.loss
    factor = 1.0 if of_times else sums.clusters / max(sums.clusters - 1.0, 1.0)
    if squares:
        degrees = n - sums.point.size - sums.intercepts
        remaining = 2.0 * _remaining(sums, sums.loss - 0.5 * float(sums.gradient @ step))
        likelihood = -0.5 * n * (math.log(2.0 * math.pi * remaining) + 1.0) if sums.mass is None else math.nan
        noise, how = n * remaining / degrees, "least squares"
        factor = factor * (n - 1.0) / degrees
    covariance = noise * inverse / sums.total
    if sums.meat is not None:
        covariance = factor * inverse @ sums.meat @ inverse
        degrees = min(degrees, sums.clusters - 1.0)
    return Estimates((sums.point - step)[:count], covariance[:count, :count], degrees, how, noise, inverse, likelihood)


def rao(sums: Sums, found: Estimates, columns: Indices, centre: Vector) -> tuple[Vector, Vector, Vector]:
    """Return Rao's test that each of some parameters is the same at all sites: statistic, degrees of freedom and p.

    With s_m and H_m the sites' parts of the gradient and the Hessian at the common estimates, I = sum_m H_m, and j the
    parameter: s' V^- s, s the s_mj, V = diag(H_m[j, j]) - A I^-1 A', the rows of A those of H_m[j]. No fit of a site
    alone is needed, so that it is there whatever the sites' sizes. With clusters within sites, M_m the sums of their
    outer products and B the M_m[j]: V = diag(M_m[j, j]) - A I^-1 B' - B I^-1 A' + A I^-1 (sum_m M_m) I^-1 A'.

    Parameters
    ----------
    sums : Sums
        The sums at the minimiser; of squares anywhere.
    found : Estimates
        The estimates.
    columns : ndarray of int64, shape (k,)
        Which parameters.
    centre : ndarray of float64, shape (d,)
        Where lines of different slopes meet beside an intercept, the last parameter: at the columns' means, as far
        from them levels that differ look like slopes that do. 0 for each other parameter.

    References
    ----------
    Rao: Large sample tests of statistical hypotheses concerning several parameters (Math. Proc. Cambridge 1948).
    """
    statistic, degrees = np.full((2, columns.size), math.nan)
    if (whole := found.inverse) is None or len(sums.each) < 2:
        return statistic, degrees, statistic.copy()
    size = sums.point.size
    move = -whole @ sums.gradient
    blocks = [site.weight * site.vectors["block"] for site in sums.each]
    gradients = np.array([site.weight * site.vectors["gradient"][:size] for site in sums.each])
    # Without clusters the variance of a site's slopes is its Hessian, times the noise of a mean.
    spreads, covariance, noise = blocks, whole, found.noise / sums.total
    if all("meat" in site.vectors for site in sums.each):
        spreads, noise = [site.vectors["meat"] for site in sums.each], 1.0
        covariance = whole @ unpacked(np.sum(spreads, axis=0))[:size, :size] @ whole
    indices = unpacked(np.arange(blocks[0].size, dtype=np.float64)).astype(np.int64)[:size, :size]
    for place, j in enumerate(columns.tolist()):
        rows, own = (np.array([x[indices[j]] - centre[j] * x[indices[-1]] for x in of]) for of in (blocks, spreads))
        mixed = rows @ whole @ own.T
        crossed = mixed + mixed.T - rows @ covariance @ rows.T
        slopes = gradients[:, j] - centre[j] * gradients[:, -1] + rows @ move
        curved = own[:, j] - centre[j] * own[:, -1]
        on = np.flatnonzero(curved > _SINGULAR * curved.max())
        if on.size < 2:
            continue
        units = np.sqrt(curved[on])
        values, vectors = np.linalg.eigh(np.eye(on.size) - crossed[np.ix_(on, on)] / np.outer(units, units))
        kept = values > _SINGULAR
        s = vectors.T @ (slopes[on] / units)
        statistic[place] = float((s[kept] ** 2 / values[kept]).sum()) / noise
        degrees[place] = np.count_nonzero(kept)
    return statistic, degrees, np.asarray(stats.chi2.sf(statistic, np.maximum(degrees, 1.0)))


def _remaining(sums: Sums, loss: float) -> float:
    """Return the loss of a fit, if it is more than rounding."""
    w = sums.point
    at_zero = sums.loss - float(sums.gradient @ w) + 0.5 * float(w @ sums.hessian @ w)
    if not loss > max(_EXACT * sums.loss, _NOTHING * at_zero):
        raise ConfigurationError("y is linear in X, or constant: without noise there are no standard errors")
    return loss


def invertible(hessian: Matrix, names: Sequence[str]) -> Matrix:
    """Return the inverse; columns that keep it from being one are named."""
    units = np.sqrt(np.diag(hessian))
    refuse(units == 0.0, names, "is 0 at all sites, or its curvature is")
    found = inverse_of(hessian)
    if found is None:
        _, vectors = np.linalg.eigh(hessian / np.outer(units, units))
        largest = np.abs(vectors[:, 0]) > 0.1 * np.abs(vectors[:, 0]).max()
        refuse(largest, names, "is linearly dependent on other columns, or constant")
    return np.asarray(found)


def refuse(wrong: Flags, names: Sequence[str], why: str, advice: str = "Leave one such column out") -> None:
    """Raise an error that names columns, if some are wrong."""
    columns = [name for name, bad in zip(names, wrong[: len(names)], strict=True) if bad]
    if wrong.any():
        shown = ", ".join(columns[:5]) + ", ..." * (len(columns) > 5) or "that of the intercept"
        raise ConfigurationError(f"there are no intervals: a column {why}: {shown}. {advice}")


def _nodewise(sums: Sums, names: Sequence[str]) -> Estimates:
    """Return the de-biased lasso."""
    count = len(names)
    n = sums.rows
    w = sums.point[:count]
    # At the best intercept, if there is one.
    border, corner, slope = sums.hessian[count:, :count], sums.hessian[count:, count:], sums.gradient[count:]
    moved = np.linalg.solve(corner, np.column_stack([border, slope]))
    gradient = sums.gradient[:count] - border.T @ moved[:, -1]
    loss = sums.loss - 0.5 * float(slope @ moved[:, -1])
    gram = sums.hessian[:count, :count] - border.T @ moved[:, :-1]
    variances = np.diag(gram).copy()
    refuse(variances <= _CONSTANT * np.diag(sums.hessian)[:count], names, "is constant at all sites together")
    units = np.sqrt(variances)
    gram = np.ascontiguousarray(gram / np.outer(units, units))
    product = gram @ (units * w) - gradient / units
    squares = 2.0 * loss + float((units * w) @ (product + gradient / units)) - 2.0 * float(gradient @ w)
    base = math.sqrt(math.log(max(count, 2)) / n)
    b, noise = np.zeros(count), squares
    # The lasso whose strength fits the variance of its residuals.
    for _ in range(_TIMES):
        b = _lasso(gram, product, _LASSO * base * math.sqrt(noise), b, np.arange(count))
        degrees = n - np.count_nonzero(b) - (sums.point.size - count + sums.intercepts)
        if degrees < 0.25 * n:
            prefix = f"there are no intervals: of {n:.0f} rows {degrees:.0f} are left for the noise, after a lasso"
            raise ConfigurationError(f"{prefix} of {count} columns; take more rows or fewer columns")
        before, noise = noise, (squares + float(b @ (gram @ b - 2.0 * product))) * n / degrees
        if not abs(noise - before) > 1e-3 * noise:
            break
    _remaining(sums, 0.5 * noise)
    theta = np.empty((count, count))
    for j in range(count):
        own = -_lasso(gram, gram[j], _NODEWISE * base, np.zeros(count), np.delete(np.arange(count), j))
        own[j] = 1.0
        theta[j] = own / float(gram[j] @ own)
    covariance = noise / n * theta @ gram @ theta.T / np.outer(units, units)
    estimate = b + theta @ (product - gram @ b)
    how = f"de-biased lasso ({np.count_nonzero(b)} of {count} not 0), nodewise"
    return Estimates(estimate / units, covariance, degrees, how)


def _lasso(gram: Matrix, product: Vector, strength: float, start: Vector, on: Indices) -> Vector:
    """Return argmin over the coordinates `on` of 1/2 b' gram b - <product, b> + strength ||b||_1."""
    b = start.copy()
    terms = np.outer((strength, 0.0, -np.inf, np.inf), np.ones(b.size))
    blocks = on, np.arange(on.size + 1), np.zeros(on.size), np.ones(on.size)
    descend(gram, gram @ b - product, b, terms, *blocks, _SWEEPS, _RELATIVE, _ABSOLUTE)
    return b


def between(estimates: Matrix, errors: Matrix, degrees: Matrix | float = math.inf) -> dict[str, Vector]:
    """Return the meta-analysis of the sites' estimates of p coefficients, by names of a table's columns, shape (p,).

    ``Q``, ``p of Q`` and ``I2`` are Cochran's Q, its p of a chi-squared distribution with k - 1 degrees of freedom, and
    I2, from 0 to 1. Of errors with so few degrees of freedom that they vary, p is Welch's. ``fixed`` is the mean by
    inverse variances, if all sites estimate the same; ``DerSimonian-Laird`` that of sites whose effects are drawn from
    a distribution; of both there is the standard error. ``Hartung-Knapp error`` is another one of the latter, for
    quantiles of t with k - 1 degrees of freedom.

    Parameters
    ----------
    estimates, errors : ndarray of float64, shape (k, p)
        Each site's estimates and standard errors > 0, of at least two sites.
    degrees : ndarray of float64, shape (k, p), or float
        The degrees of freedom of the errors.

    References
    ----------
    Welch: On the comparison of several mean values: an alternative approach (Biometrika 1951).

    Examples
    --------
    >>> found = between(np.array([[0.0], [1.0], [2.0]]), np.full((3, 1), 0.5))
    >>> float(found["Q"][0]), float(found["I2"][0]), float(found["DerSimonian-Laird"][0])
    (8.0, 0.75, 1.0)
    """
    weights = errors**-2.0
    count = len(estimates) - 1
    total = weights.sum(axis=0)
    fixed = (weights * estimates).sum(axis=0) / total
    q = (weights * (estimates - fixed) ** 2).sum(axis=0)
    spread = np.maximum(0.0, q - count) / (total - (weights**2).sum(axis=0) / total)
    shrunk = 1.0 / (errors**2.0 + spread)
    mass = shrunk.sum(axis=0)
    random = (shrunk * estimates).sum(axis=0) / mass
    refined = np.sqrt((shrunk * (estimates - random) ** 2).sum(axis=0) / (count * mass))
    share = np.maximum(0.0, q - count) / np.where(q > 0.0, q, 1.0)
    doubt = ((1.0 - weights / total) ** 2 / degrees).sum(axis=0)
    few = doubt > 0.0
    pairs = count * (count + 2.0)
    ratio = q / count / (1.0 + 2.0 * (count - 1.0) / pairs * doubt)
    p = np.where(few, stats.f.sf(ratio, count, pairs / (3.0 * np.where(few, doubt, 1.0))), stats.chi2.sf(q, count))
    found = {"Q": q, "p of Q": p, "I2": share, "fixed": fixed, "fixed error": total**-0.5}
    means = {"DerSimonian-Laird": random, "DerSimonian-Laird error": mass**-0.5}
    return found | means | {"Hartung-Knapp error": refined}


# --- at a site --------------------------------------------------------------------------------------------------------


@answers_to("derivatives", hessians=2)
def derivatives(question: Question, objective: Objective) -> Answer:
    """Return loss, gradient and Hessian (a packed triangle) at ``primal``, on all of its coordinates.

    With an intercept of the site's own, the loss is at the best one for its rows, and an intercept in ``primal`` moves
    nothing. With ``clustered``, also the sum over the clusters of the outer products of their gradients, over the rows,
    and their number: by default each row is a cluster.
    """
    w, numbers = question.vectors["primal"], question.numbers
    used: Any = objective
    if numbers["own"] and getattr(objective, "intercept", False):
        few = isinstance(objective, Logistic) and objective.num_examples < FEWEST_ROWS
        # Few rows of classes share an intercept, if any.
        used = (objective if numbers["pooled"] else None) if few else unwarned(used)
    size = w.size
    upper = np.triu_indices(size)
    loss = clusters = 0.0
    gradient, block, meat = np.zeros(size), *np.zeros((2, size, size))
    if used is not None:
        count = used.layout.size
        loss, gradient[:count] = used.value_and_gradient(w[:count])
        block[np.triu_indices(count)] = used.hessian_block(w[:count], np.arange(count))
        if numbers["clustered"]:
            sums = _summed(used.row_gradients(w[:count]), objective.clusters)
            if len(sums) == 2 and hasattr(objective, "disclosure"):
                # Each of two sums follows from their sum and that of their squares.
                fewest = np.unique(np.asarray(objective.clusters), return_counts=True)[1].min()
                objective.disclosure.check_rows(int(fewest), "sums over two clusters")
            meat[:count, :count] = sums.T @ sums / used.num_examples
            clusters = float(len(sums))
    vectors = {"gradient": gradient, "block": block[upper]} | ({"meat": meat[upper]} if numbers["clustered"] else {})
    return Answer({"loss": loss, "clusters": clusters}, vectors)


def _summed(rows: Matrix, clusters: Indices | None) -> Matrix:
    """Return the sums of rows with the same cluster; the rows themselves without clusters."""
    if clusters is None:
        return rows
    codes = np.unique(clusters, return_inverse=True)[1]
    return np.column_stack([np.bincount(codes, own) for own in rows.T])


@answers_to("estimates", hessians=1)
def estimates(question: Question, objective: Objective) -> Answer:
    """Return the site's own estimates and their errors, with ``reported`` 1; zeros, with 0, if it has none.

    ``events`` and ``others`` are the rows of both classes (:func:`events_of`). Of counts
    ``mean`` is their mean, and ``saturated`` that of their log likelihoods by a parameter each, of which the loss is
    what is missing; else 0. The point is not used.
    """
    found = own_estimates(objective)
    numbers = map(float, (found is not None, *events_of(objective), *counted(objective)))
    vectors = np.zeros((3, objective.layout.size)) if found is None else found
    return Answer(dict(zip(_BESIDE, numbers, strict=True)), dict(zip(_OWN, vectors, strict=True)))


def own_estimates(objective: Objective) -> tuple[Vector, Vector, Vector] | None:
    """Return a site's unpenalised minimiser, its standard errors, and their degrees of freedom, of its rows alone.

    Errors of clusters vary as a chi-squared with so many degrees of freedom as there would be equal clusters:
    (sum v)^2 / sum v^2, with v each cluster's part of the variance. Of the others they are taken as known, and 0.

    Parameters
    ----------
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    tuple of ndarray of float64, shape (d,) each, or None
        None with fewer than 10 rows a coefficient (of losses other than squares, 5 events, or rows without one), if
        columns are linearly dependent, or if classes can be separated without error.
    """
    squares = _is_squares(objective)
    columns = int(np.prod(objective.layout["coefficients"].shape))
    if min(events_of(objective)) < columns * (_OWN_ROWS if squares else _OWN_EVENTS):
        return None
    size = objective.layout.size
    intercepts = float(isinstance(objective, SiteIntercept) and not objective.adds_nothing)

    def derivatives(w: Vector) -> Sums:
        value, gradient = objective.value_and_gradient(w)
        hessian = unpacked(objective.hessian_block(w, np.arange(size)))
        return Sums(w, gradient, hessian, value, objective.num_examples, intercepts=intercepts)

    try:
        if (ended := minimum(derivatives, np.zeros(size), squares=squares)) is None:
            return None
        (sums, inverse, _), freedom, names = ended, np.zeros(size), [""] * size
        if isinstance(objective, Linear) and (objective.clusters is not None or objective.weighs_rows):
            each = _summed(objective.row_gradients(sums.point), objective.clusters) / sums.rows
            if len(each) < _CLUSTERS:
                return None
            sums = sums._replace(meat=each.T @ each, clusters=float(len(each)))
            parts = np.square(each @ inverse)
            freedom = parts.sum(axis=0) ** 2 / np.maximum((parts**2).sum(axis=0), np.finfo(np.float64).tiny)
        found = estimated(sums, names, squares=squares, of_times=isinstance(objective, CoxRegression))
    except ConfigurationError:
        # Such as an exact fit.
        return None
    return (found.estimate, found.error, freedom) if found.error.all() else None


def events_of(objective: Any) -> tuple[int, int]:
    """Return the rows of both classes; of a loss without classes its `num_events`, for squares its rows, and its rows.

    With an intercept of its own, the rows of a site of one class say nothing, and do not count.

    Parameters
    ----------
    objective : Objective
        The loss. Deaths are events: a loss of times says how many in an attribute ``num_events``.
    """
    rows = objective.num_examples
    if _is_squares(objective):
        return rows, rows
    if hasattr(objective, "num_events") or not hasattr(objective, "labels"):
        return getattr(objective, "num_events", 0), rows
    ones = int(np.count_nonzero(np.asarray(objective.labels) == 1))
    return (0, 0) if getattr(objective, "adds_nothing", False) else (ones, rows - ones)


def _is_squares(objective: Objective) -> bool:
    return isinstance(getattr(objective, "with_intercept", objective), LeastSquares)


@answers_to("trend", of=CoxRegression)
def trend(question: Question, objective: Any) -> Answer:
    """Return the trend of a Cox model's residuals over time (:func:`flwr_fco.objectives.survival.time_trend`)."""
    found, squares = time_trend(objective, question.vectors["primal"])
    return Answer({"squares": squares, "events": float(objective.num_events)}, {"trend": found})


# --- of all sites -----------------------------------------------------------------------------------------------------


class Inference:
    """A table in the making; when it begins, before a fit, the sites are asked about their own estimates.

    Parameters
    ----------
    model : estimator
        What is fitted.
    sites : Sites
        The sites of the fit.

    Raises
    ------
    ConfigurationError
        If a column says nothing; or of a generalised linear model with fewer than 5 rows of the rarer class, or events,
        a column.
    """

    def __init__(self, model: Any, sites: Sites) -> None:
        self.asked, self.kind, self.cluster, self.sites = model._intervals, model._kind, model.cluster, sites
        self.names: Sequence[str] = (names := model._names(model.n_features_in_))
        #: Whether sites have intercepts of their own in the table.
        self.own = own = bool(model.fit_intercept and model.site_intercepts != "common")
        self._every = [*names, "the intercept"]
        # Before the fit: what cannot be is refused at once.
        self.indices = np.array(self.asked.indices(names))
        levels = "stratum, whose own hazard" if self.kind is TIMES else "site, whose own level" * own
        why = f"is constant {f'at each {levels} takes it up' if levels else 'at all sites together'}"
        advice = "Leave it out" + ", or give site_intercepts='common' if it differs between sites" * own
        refuse(sites.within if levels else sites.idle, names, why, advice)
        shapes = dict.fromkeys(_OWN, (sites.size,))
        request = Request("estimates", {}, _BESIDE, shapes, check=_check_saturated)
        self.reported = sites.ask(request, np.zeros(sites.size))
        self.left_out = sites.silent
        self._count_intercepts()
        #: An intercept of the model that no site uses is no parameter.
        self.used = len(names) if own and not self.pooled else self.sites.size
        if self.kind is not SQUARES:
            self._check_events()

    def _named(self, answer: Answer) -> str:
        return called(answer.partition, self.sites.called)

    def _count_intercepts(self) -> None:
        """Say which sites have an intercept of their own: those that are too small share one, and others need none."""
        reported = self.reported if self.own else []
        counts = np.array([[own.numbers["events"], own.numbers["others"]] for own in reported]).reshape(-1, 2)
        # A model whose intercepts stay at the sites has refused those that are too small.
        shares = self.kind is CLASSES and "intercept" in self.sites.start
        small = np.array([shares and own.examples < FEWEST_ROWS for own in reported], dtype=bool)
        together = counts[small].sum(axis=0)
        pooled = small & bool(together.sum() >= FEWEST_ROWS and together.min() >= 1.0)
        idle = ~pooled & (small | (counts.min(axis=1) < 1.0))
        self.pooled, self.idle = ([self._named(reported[m]) for m in np.flatnonzero(on)] for on in (pooled, idle))
        #: Those of sites that share one counted once.
        self.intercepts = len(reported) - len(self.idle) - len(self.pooled) + bool(self.pooled)

    def _check_events(self) -> None:
        """Refuse too few events for the columns, and warn of few; an intercept of a site's own biases as they do."""
        # No site has more of them than rows, and where all are of one class they say nothing beside its intercept.
        of = [answer for answer in self.reported if self._named(answer) not in self.idle]
        counts = [[min(max(0.0, own.numbers[name]), own.examples) for own in of] for name in ("events", "others")]
        events = min(map(sum, counts))
        columns = len(self.names) + self.intercepts
        kind = f"events ({self.kind.counted})" if self.kind is CLASSES else self.kind.counted
        own = f" and {self.intercepts} intercepts" * bool(self.intercepts)
        prefix = f"intervals of {len(self.names)} columns{own} from {events:.0f} {kind}"
        if events < _EVENTS * columns and self.left_out:
            raise ConfigurationError(f"the sites' numbers of events are not known: {'; '.join(self.left_out)}")
        if events < _EVENTS * columns:
            advice = "take fewer columns, chosen without these rows, or fit without intervals"
            raise ConfigurationError(f"{prefix}; expected at least {_EVENTS} a column: {advice}")
        if events < _FEW_EVENTS * columns:
            more = f"from {_FEW_EVENTS} a column on the estimates are less far from 0"
            warnings.warn(f"{prefix}: {events / columns:.1f} a column; {more}", UserWarning, stacklevel=6)

    # --- the sums of all sites ------------------------------------------------------------------------------------

    def table(self, start: Vector) -> Table:
        """Return the table of the unpenalised fit.

        Parameters
        ----------
        start : ndarray of float64, shape (d,)
            Where the fit begins: of all the model's arrays. The derivatives of squares at any point are enough.

        Raises
        ------
        ConfigurationError
            If a site does not answer, the columns are linearly dependent, an estimate grows without end, or the sums
            have no estimates.
        """
        if self.kind is SQUARES:
            sums = self._sums(start)
        else:
            found = minimum(self._sums, start, lambda hessian: invertible(hessian, self.names))
            if found is None:
                raise ConfigurationError("the unpenalised fit has no end: no step lowers it; look at columns and sites")
            sums = found[0]
            if self.kind in (COUNTS, TIMES):
                # Second derivatives at the estimates that are far more than events and variances suggest.
                rates = {a.node_id: a.numbers["mean"] or a.numbers["events"] / a.examples for a in self.reported}
                weights = np.array([[own.weight] for own in sums.each])
                usual = [rates.get(own.node_id, 0.0) * self.sites.squares[own.partition] for own in sums.each]
                curved = weights * _diagonals(sums.each)[:, : len(self.names)]
                self._check_shares(sums.each, curved, weights * usual, "information about", self.kind.most)
        if self.cluster is not None or self.sites.weighted:
            if self.kind is SQUARES:
                sums = self._sums(sums.point - invertible(sums.hessian, self.names) @ sums.gradient)
            sums = self._clustered(sums)
        return self._made(sums, self._trends(sums) if self.kind is TIMES else None)

    def _answers(self, point: Vector, *, clustered: bool) -> list[Answer]:
        """Return what all sites say of their derivatives at a point."""
        triangle = (self.sites.size * (self.sites.size + 1) // 2,)
        numbers = {"own": float(self.own), "pooled": float(bool(self.pooled)), "clustered": float(clustered)}
        shapes = {"gradient": (self.sites.size,), "block": triangle} | ({"meat": triangle} if clustered else {})
        request = Request("derivatives", numbers, ("loss", "clusters"), shapes, (), _check_possible)
        answers = self.sites.ask(request, point)
        if self.sites.silent:
            raise ConfigurationError(f"the sites' second derivatives are not known: {'; '.join(self.sites.silent)}")
        return answers

    def _sums(self, point: Vector) -> Sums:
        """Return the sums at a point."""
        answers = self._answers(point, clustered=False)
        self._check_sites(answers)
        used = self.used
        gradient, block = (np.sum([a.weight * a.vectors[name] for a in answers], 0) for name in ("gradient", "block"))
        hessian = unpacked(block)[:used, :used]
        loss = sum(a.weight * a.numbers["loss"] for a in answers)
        known = self.sites.rows, self.sites.total if self.sites.weighted else None
        return Sums(point[:used], gradient[:used], hessian, loss, *known, len(answers) * self.own, tuple(answers))

    def _clustered(self, sums: Sums) -> Sums:
        """Return the sums at a minimiser with those of clusters; of sites also those of rows with weights."""
        if self.cluster != "site" or self.sites.weighted:
            answers = self._answers(sums.point, clustered=True)
            # A mean over rows whose weights have a mean of 1.
            meats = [a.weight**2 / a.examples * a.vectors["meat"] for a in answers]
            each = tuple(a._replace(vectors={**a.vectors, "meat": own}) for a, own in zip(answers, meats, strict=True))
            # Errors of a cluster's rows add up, or their squares.
            scale = (2.0 * sums.loss if self.kind is SQUARES else 1.0) / sums.rows
            rows = np.array([[scale * a.weight * a.examples / max(a.numbers["clusters"], 1.0)] for a in answers])
            usual = rows * _diagonals(answers)
            self._check_shares(answers, _diagonals(each, "meat"), usual, "spread of clusters by", SQUARES.most)
            meat = unpacked(np.sum(meats, axis=0))[: self.used, : self.used]
            sums = sums._replace(meat=meat, clusters=sum(a.numbers["clusters"] for a in answers), each=each)
        if self.cluster == "site":
            own = np.array([a.weight * a.vectors["gradient"][: self.used] for a in sums.each])
            sums = sums._replace(meat=own.T @ own, clusters=float(len(own)))
            varies = (_diagonals(sums.each) > 0.0).sum(axis=0)
            # The sum of such a site is 0 at the estimates, and an error would be next to 0.
            refuse(varies[: len(self.names)] < min(2, len(own)), self.names, "varies in one cluster only")
        if sums.clusters < 2.0:
            prefix = f"intervals by cluster={self.cluster!r}, of which there is one"
            raise ConfigurationError(f"{prefix}; expected two clusters or more, from {_FEW_CLUSTERS} on enough of them")
        return sums

    def _check_sites(self, answers: Sequence[Answer]) -> None:
        """Refuse sums that one site's second derivatives make up, or what its own loss and columns do not allow."""
        own = _diagonals(answers)
        said = np.stack([own, np.abs([answer.vectors["gradient"] for answer in answers])], axis=1)
        with np.errstate(invalid="ignore", over="ignore"):  # of a mean that a site makes up
            room = np.array([self._most(answer, curved) for answer, curved in zip(answers, own, strict=True)])
            room += _ROUNDING * np.maximum(room, room.max(axis=0) * [[0.0], [1.0]])
        for m, k, j in np.argwhere(said > room)[:1].tolist():
            prefix = f"{self._named(answers[m])} says a {('second derivative', 'slope')[k]} of {self._every[j]} of"
            most = f"with its loss, rows, mean and variance at most {room[m, k, j]:.3g} is possible"
            raise ConfigurationError(f"{prefix} {said[m, k, j]:.3g}; {most}")
        usual = np.broadcast_to(np.sort(own, axis=0)[(len(own) - 1) // 2], own.shape)
        self._check_shares(answers, own, usual, "second derivative of", self.asked.largest, 0.0)

    def _check_shares(self, answers: Any, own: Any, usual: Any, about: str, most: float, part: float = 0.5) -> None:
        """Refuse a site that says more than a part of what all say, and so many times what is usual for its rows."""
        ratio = np.divide(own, usual, out=np.zeros_like(own), where=usual > 0.0)
        middle = np.maximum(np.sort(ratio, axis=0)[(len(own) - 1) // 2], 1.0)
        wrong = (ratio > most * middle) & ~(own <= part * own.sum(axis=0)) & math.isfinite(self.asked.largest)
        for m, j in np.argwhere(wrong)[:1]:
            prefix = f"{about} {self._every[j]} is {ratio[m, j]:.3g} times what is usual for its rows"
            than = f"{middle[j]:.3g} times at the median of the sites: standard errors would be those of one site"
            advice = "Check its units; if it does spread so much there, give intervals=Intervals(largest=math.inf)"
            raise ConfigurationError(f"the {prefix} at {self._named(answers[m])}, and {than}. {advice}")

    def _most(self, answer: Answer, curved: Vector) -> Any:
        """Return the largest second derivatives and slopes of columns of these means and variances, shape (2, size)."""
        rows, loss = answer.examples, max(answer.numbers["loss"], 0.0)
        squares = np.append(self.sites.squares[answer.partition], 1.0)[: self.sites.size]
        if self.kind is SQUARES:
            # The square of a mean of products is at most the product of the mean squares.
            return squares, np.sqrt(2.0 * loss * curved)
        if self.kind is CLASSES:
            # No row's loss is above the sum of all; p (1 - p) of a class is below the loss of its row, and (1 - p)^2
            # below 0.41 times it.
            largest = 0.25 if self.sites.weighted else min(0.25, rows * loss)
            return largest * squares, np.sqrt(min(1.0, 0.41 * loss) * squares)
        numbers = next((own.numbers for own in self.reported if own.node_id == answer.node_id), None)
        if numbers is None or self.sites.weighted:
            return np.full((2, self.sites.size), math.inf)
        if self.kind is TIMES:
            # In a risk set the square of the range is at most twice the sum of all squares, and a variance a fourth.
            events = min(max(numbers["events"], 0.0), rows)
            return 0.5 * events * squares, events * np.sqrt(2.0 * squares / rows)
        # Half a deviance is convex in count and rate together, and at least (root of rate - root of count)^2.
        largest = rows * (math.sqrt(max(0.0, numbers["mean"])) + math.sqrt(loss)) ** 2
        return largest * squares, 2.0 * np.sqrt(loss * curved) + loss * np.sqrt(rows * squares)

    def _trends(self, sums: Sums) -> tuple[Vector, float]:
        """Return p of a trend over time of each coefficient, and of all; NaN if not all sites say possible ones.

        Schoenfeld's residuals are compared with the rank of their time. With u the sum over the events of (g_i - mean)
        times residual, g_i the rank of event i at its site over their number, V the inverse of the information, D
        events, and S the sum of squares of g_i - mean:

            coefficient j      (V u)_j^2 D / (V_jj S), chi-squared with 1 degree of freedom
            all of them        u' V u D / S, with as many as there are coefficients

        Notes
        -----
        Grambsch, Therneau: Proportional hazards tests and diagnostics based on weighted residuals (Biometrika 1994);
        the means and squares are of each site, a stratum.
        """
        size = sums.point.size
        answers = self.sites.ask(Request("trend", {}, ("squares", "events"), {"trend": (size,)}), sums.point)
        # Of so many ranks, from 0 to 1 less their mean.
        most = (1.0 + 1e-9) / 12.0
        possible = [0.0 <= a.numbers["squares"] <= most * min(a.numbers["events"], a.examples) for a in answers]
        trend = np.sum([answer.vectors["trend"] for answer in answers], axis=0)
        squares, events = (sum(answer.numbers[name] for answer in answers) for name in ("squares", "events"))
        if len(answers) < len(sums.each) or not all(possible) or not squares > 0.0:
            return np.full(size, math.nan), math.nan
        covariance = invertible(sums.hessian, self.names) / sums.rows
        moved = covariance @ trend
        each = moved**2 * events / (np.diag(covariance) * squares)
        return stats.chi2.sf(each, 1), float(stats.chi2.sf(trend @ moved * events / squares, size))

    # --- what the table says --------------------------------------------------------------------------------------

    def _made(self, sums: Sums, trend: tuple[Vector, float] | None) -> Table:
        """Return the table of sums at the estimates, and of p of a change of hazard ratios over time."""
        names, kind, level, indices = self.names, self.kind, self.asked.level, self.indices
        found = estimated(sums, names, squares=kind is SQUARES, of_times=kind is TIMES)
        # A loss of counts is what is missing to their likelihood by a parameter each.
        saturated = sum(own.weight * own.numbers["saturated"] for own in self.reported) * self.sites.total
        missing = math.nan if self.left_out and kind is COUNTS else 0.0
        found = found._replace(log_likelihood=found.log_likelihood + saturated + missing)
        columns = found.inferred(found.estimate[indices], found.error[indices], level)
        # Beside a ratio, limits of its logarithm would be read as its own.
        for end in ("estimate", "lower", "upper") if kind.ratio else ():
            columns[f"{kind.ratio} {end}".removesuffix(" estimate")] = np.exp(np.minimum(columns[end], 700.0))
        columns["q"] = stats.false_discovery_control(columns["p"])
        columns |= {} if trend is None else {"p of trend": trend[0][indices]}
        columns = {name: columns[name] for name in ("estimate", kind.ratio, *ESTIMATED) if name in columns}
        own, doubted = self._plausible(found, sums)
        tests = rao(sums, found, indices, (self.sites.mean - self.sites.origin) * (sums.point.size > len(names)))
        columns |= dict(zip(("Rao", "degrees of Rao", "p of Rao"), tests, strict=True))
        columns |= _compared(own, indices, len(sums.each), columns["upper"] - columns["estimate"], level)
        for site, (values, errors, _) in own.items():
            columns |= {site: values[indices], f"{site} error": errors[indices]}
        rows = {int(j): {name: float(column[i]) for name, column in columns.items()} for i, j in enumerate(indices)}
        intercepts, more = self._intercepts(sums, found)
        if kind is not SQUARES:
            more.append(("Rows with events" if kind is COUNTS else "Events", self._events()))
        lines = [("Intervals", f"{100 * level:g} %, {self._how(found, sums)}; q over {len(indices)} columns"), *more]
        few = "no Hartung-Knapp interval with fewer than three sites: nothing here covers a spread between sites"
        covers = few if len(own) < _SITES else "Hartung-Knapp's interval covers a spread"
        doubt = f"an insignificant Rao or Q does not show that they agree; {covers}"
        text = f"of {len(own)} of {len(sums.each)} sites{self._reasons(doubted)}"
        lines += [("Own estimates", text), ("Between sites", doubt)] * (len(sums.each) > 1)
        if trend is not None:
            text = "not tested: a site has not answered" if math.isnan(trend[1]) else f"p = {trend[1]:.3g} over all"
            text += " of rows, as if they were independent" * (sums.meat is not None)
            lines.append(("Proportional hazards", f"{text}; a small 'p of trend': a hazard ratio changes over time"))
        # A model is kept without the sites' Hessians.
        of = sums.rows, float(len(sums.each)), sums.intercepts
        return Table(rows, tuple(own), lines, found._replace(inverse=None), of, intercepts, sums.meat is not None)

    def _events(self) -> str:
        """Return the sites' events in words, but for counts as small as sites withhold in other answers."""
        texts = []
        # Of one class at all its rows, a site with an intercept of its own may say none.
        for own in (answer for answer in self.reported if self._named(answer) not in self.idle):
            events, rows = own.numbers["events"], own.examples
            shown = f"{events:.0f}" if _SMALL <= events <= rows - _SMALL else "-"
            texts.append(f"{shown} of {rows:.0f} rows at {self._named(own)}")
        return first_of(texts) + f"; - is below {_SMALL}, or all but so few" * ("- of" in " ".join(texts[:_SHOWN]))

    def _how(self, found: Estimates, sums: Sums) -> str:
        """Return in words how the estimates and their errors are made."""
        text = found.how + ("" if math.isinf(found.degrees) else f", {found.degrees:.0f} degrees of freedom")
        if sums.meat is None:
            return text
        by = {None: "rows, which have weights", "site": "sites"}.get(self.cluster, f"{self.cluster}")
        few = f", which are few: below {_FEW_CLUSTERS} such intervals are too short" * (sums.clusters < _FEW_CLUSTERS)
        return f"{text}, clustered by {sums.clusters:.0f} {by}{few}"

    def _intercepts(self, sums: Sums, found: Estimates) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Return observed and expected events of the sites beside a common intercept, and what is said of them."""
        if self.own:
            lines = [("Intercepts of the table", "one of each site, which has stayed there")]
            shared = "Sites that share an intercept", self.pooled, "too few rows for their own"
            nothing = "Sites that add nothing", self.idle, "one class only, or no events"
            lines += [(title, f"{first_of(which)}: {why}") for title, which, why in (shared, nothing) if which]
            return [], lines
        if sums.point.size == len(self.names) or found.inverse is None or len(sums.each) < 2:
            return [], []
        _, degrees, p = rao(sums, found, np.array([sums.point.size - 1]), np.zeros(sums.point.size))
        # Where all chances are a half; events that weigh what their rows do, as those expected.
        slopes = {own.node_id: float(own.vectors["gradient"][-1]) for own in self.sites.answers}
        rows = []
        for answer in sums.each:
            site = self._named(answer)
            mass = sums.total * answer.weight
            excess = -mass * float(answer.vectors["gradient"][-1])
            if self.kind in (SQUARES, COUNTS):
                rows.append({"site": site, "rows": answer.examples, "mean residual": excess / mass})
            else:
                observed = round(mass * (0.5 - slopes[answer.node_id]), 9)
                ratio = observed / (observed - excess) if observed > excess else math.nan
                rows.append({"site": site, "observed": observed, "expected": observed - excess, "ratio": ratio})
        text = f"one of all sites; p = {p[0]:.3g} of Rao's test that it is, {degrees[0]:.0f} degrees of freedom"
        return rows, [("Intercept of the table", f"{text}; where they differ, site_intercepts=None is right")]

    def _plausible(self, found: Estimates, sums: Sums) -> tuple[dict[str, tuple[Vector, ...]], list[str]]:
        """Return each site's own estimates, errors and degrees of freedom, and who is left out for impossible ones."""
        count = len(self.names)
        together = found.error
        if self.cluster == "site" and found.inverse is not None:
            # A site's own error knows of no spread between sites, and of no unit of the weights.
            together = np.sqrt(found.noise * np.diag(found.inverse)[:count] / sums.rows)
        said = [own for own in self.reported if own.numbers["reported"]]
        given = {self._named(own): tuple(own.vectors[name][:count] for name in _OWN) for own in said}
        sizes = [np.abs(estimate) + np.abs(error) for estimate, error, _ in given.values()]
        usual = np.sort([np.zeros(count), *sizes], axis=0)[(len(sizes) + 1) // 2]
        doubted = []
        for (site, (estimate, error, _)), size in zip([*given.items()], sizes, strict=True):
            # What all rows together say of a coefficient is no less than what one site's say.
            small, large = error < _SMALLEST * together, size > _LARGEST * usual
            for j in np.flatnonzero(small if small.any() else large)[:1].tolist():
                name = self.names[j]
                why = f"estimate of {name} is {estimate[j]:.3g} +- {error[j]:.3g}, of most sites below {usual[j]:.3g}"
                if small[j]:
                    why = f"standard error of {name} is {error[j]:.3g}, and of all sites together {together[j]:.3g}"
                del given[site]
                doubted.append(f"{site} is left out: its {why}")
        return given, doubted

    def _reasons(self, doubted: list[str]) -> str:
        """Return why sites have no estimates of their own; an empty string if all of them have."""
        silent = [self._named(answer) for answer in self.reported if not answer.numbers["reported"]]
        texts = [*doubted, *self.left_out]
        if silent:
            few = f" or {_CLUSTERS} clusters" * (self.cluster is not None or self.sites.weighted)
            least = _OWN_ROWS if self.kind is SQUARES else _OWN_EVENTS
            text = f"fewer than {least} {self.kind.counted} a column{few}, no unique fit, or withheld"
            texts.append(f"none of {first_of(silent)}: {text}")
        return "".join(f"; {text}" for text in texts)


def _diagonals(answers: Sequence[Answer], name: str = "block") -> Matrix:
    """Return the diagonals of the sites' packed triangles, shape (sites, d)."""
    return np.array([np.diag(unpacked(answer.vectors[name])) for answer in answers])


def first_of(sites: Sequence[str]) -> str:
    """Return the names of the first sites, and how many more there are.

    Examples
    --------
    >>> first_of(["north", "south"])
    'north, south'
    """
    return ", ".join(map(printable, sites[:_SHOWN])) + f" and {len(sites) - _SHOWN} more" * (len(sites) > _SHOWN)


def _compared(own: dict[str, Any], indices: Indices, count: int, half: Vector, level: float) -> dict[str, Vector]:
    """Return the meta-analysis; NaN where too few sites have estimates of their own."""
    nothing = np.full(indices.size, math.nan)
    columns = dict.fromkeys(COMPARED[2:], nothing) | {"sites": np.full(indices.size, float(len(own)))}
    if len(own) < 2:
        return columns
    values, errors, degrees = (np.array([each[i][indices] for each in own.values()]) for i in range(3))
    columns |= between(values, errors, np.where(degrees > 0.0, degrees, math.inf))
    mean, refined = columns["DerSimonian-Laird"], columns.pop("Hartung-Knapp error")
    if len(own) < count:
        columns |= dict.fromkeys(("Q", "p of Q", "I2"), nothing)
    if len(own) >= _SITES:
        wide = np.maximum(half, stats.t.isf(0.5 * (1.0 - level), len(own) - 1) * refined)
        columns |= {"Hartung-Knapp lower": mean - wide, "Hartung-Knapp upper": mean + wide}
    return columns
