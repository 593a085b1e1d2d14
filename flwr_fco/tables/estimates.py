"""Estimates without shrinkage and their covariances, from the sums of the sites' derivatives.

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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln, xlogy

from flwr_fco.algorithms.newton.model import Matrix, unpacked
from flwr_fco.algorithms.newton.model import inverse as inverse_of
from flwr_fco.client_apps.client import answers_to
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, SeparableError
from flwr_fco.kernels.quadratic import descend
from flwr_fco.messages.protocol import Answer, Question
from flwr_fco.objectives import CoxRegression, LeastSquares, Linear, Logistic, Objective, Poisson, SiteIntercept
from flwr_fco.objectives.site_intercept import FEWEST_ROWS, unwarned
from flwr_fco.objectives.survival import time_trend

#: Strengths of the lasso, times the noise, and of the nodewise lassos, relative to sqrt(log d / n), for columns of
#: variance 1. Large ones leave a bias that intervals do not know of (docs/how-to/inference.md).
_LASSO = 0.65
_NODEWISE = 0.1
#: Newton steps and halvings of one at most; the square of a step that is the last one, and of one that may be, in
#: standard errors; a change of a loss that is rounding; and how many times the variance at the start that at the
#: minimum is where an estimate grows without end.
_STEPS = 60
_HALVINGS = 30
_LAST = 1e-16
_SHORT = 1e-10
_NO_CHANGE = 1e-14
_SEPARABLE = 1e6
#: Rows for each parameter, beside one for each intercept that stays at a site, from which on the Hessian of squares is
#: inverted.
_ROWS = 2
#: Variance of a column that is constant.
_CONSTANT = 1e-14
#: Residual squares that are rounding: relative to those of the model, and to those of 0.
_EXACT = 1e-13
_ROUNDING = 1e-24
#: Information of a site on a column, and of a contrast of sites, relative to others, that is rounding.
_SINGULAR = 1e-9
#: Sweeps of a lasso, its precision, and how often the noise is estimated.
_SWEEPS = 500
_RELATIVE = 1e-4
_ABSOLUTE = 1e-5
_TIMES = 20
#: Rows of squares, and events of other losses, that a site needs for each of its columns.
_OWN_ROWS = 10
_OWN_EVENTS = 5
#: Clusters of a site below which its own errors would be too small.
CLUSTERS = 40


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


def rao(sums: Sums, found: Estimates, columns: NDArray[np.int64], centre: Vector) -> tuple[Vector, Vector, Vector]:
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
    statistic, degrees = np.full(columns.size, math.nan), np.full(columns.size, math.nan)
    if found.inverse is None or len(sums.each) < 2:
        return statistic, degrees, statistic.copy()
    size = sums.point.size
    whole = found.inverse
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
    if not loss > max(_EXACT * sums.loss, _ROUNDING * at_zero):
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


def refuse(wrong: NDArray[np.bool_], names: Sequence[str], why: str) -> None:
    """Raise an error that names columns, if some are wrong."""
    columns = [name for name, bad in zip(names, wrong[: len(names)], strict=True) if bad]
    if wrong.any():
        shown = ", ".join(columns[:5]) + ", ..." * (len(columns) > 5) or "that of the intercept"
        raise ConfigurationError(f"there are no intervals: a column {why}: {shown}. Leave one such column out")


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
        others = np.delete(np.arange(count), j)
        own = _lasso(gram, gram[j], _NODEWISE * base, np.zeros(count), others)
        own[others], own[j] = -own[others], 1.0
        theta[j] = own / float(gram[j] @ own)
    covariance = noise / n * theta @ gram @ theta.T / np.outer(units, units)
    estimate = b + theta @ (product - gram @ b)
    how = f"de-biased lasso ({np.count_nonzero(b)} of {count} not 0), nodewise"
    return Estimates(estimate / units, covariance, degrees, how)


def _lasso(gram: Matrix, product: Vector, strength: float, start: Vector, on: NDArray[np.int64]) -> Vector:
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
            if len(sums) == 2 and (facts := getattr(objective, "facts", None)):
                # Each of two sums follows from their sum and that of their squares.
                fewest = np.unique(np.asarray(objective.clusters), return_counts=True)[1].min()
                facts.disclosure.check_rows(int(fewest), "sums over two clusters")
            meat[:count, :count] = sums.T @ sums / used.num_examples
            clusters = float(len(sums))
    vectors = {"gradient": gradient, "block": block[upper]} | ({"meat": meat[upper]} if numbers["clustered"] else {})
    return Answer({"loss": loss, "clusters": clusters}, vectors)


def _summed(rows: NDArray[np.float64], clusters: NDArray[np.int64] | None) -> NDArray[np.float64]:
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
    names = "reported", "events", "others", "mean", "saturated"
    numbers = map(float, (found is not None, *events_of(objective), *counted(objective)))
    vectors = np.zeros((3, objective.layout.size)) if found is None else found
    own = dict(zip(("estimate", "error", "degrees"), vectors, strict=True))
    return Answer(dict(zip(names, numbers, strict=True)), own)


def counted(objective: Any) -> tuple[float, float]:
    """Return the means of counts and of their log likelihoods at themselves; 0 of other losses."""
    if not isinstance(getattr(objective, "with_intercept", objective), Poisson):
        return 0.0, 0.0
    y = objective.targets
    each = xlogy(y, y) - y - gammaln(y + 1.0)
    return float(np.average(y, weights=objective.weights)), float(np.average(each, weights=objective.weights))


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
            if len(each) < CLUSTERS:
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
