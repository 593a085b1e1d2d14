"""Estimates without shrinkage and their standard errors, from the sums of the clients' derivatives.

With H, g and F the Hessian, gradient and loss of n rows at a point w, and d parameters:

    w - H^-1 g,                         n well above d, or a generalised linear model at its unpenalised minimiser:
    covariance s H^-1 / n               s = 1, or for squares s = 2 n F(w - H^-1 g) / (n - d)
    b - Theta grad F(b),                squares otherwise: b the lasso at a small strength of its own, Theta the
    covariance s Theta H Theta' / n     nodewise lassos' approximate inverse of H, s = 2 n F(b) / (n - nonzeros)

All of it is a function of sums: the clients' Hessians add up, and the nodewise lassos need nothing else.

References: van de Geer, Buehlmann, Ritov, Dezeure: On asymptotically optimal confidence regions and tests for
high-dimensional models (Ann. Stat. 2014), the nodewise lasso. Xia, Nan, Li: Debiased lasso for generalized linear
models with a diverging number of covariates (Biometrics 2023): in generalised linear models, invert the Hessian.

Then: a meta-analysis of several sites' own estimates of the same coefficients.

References: Cochran: The combination of estimates from different experiments (Biometrics 1954). DerSimonian, Laird:
Meta-analysis in clinical trials (Control. Clin. Trials 1986). Higgins, Thompson: Quantifying heterogeneity in a
meta-analysis (Stat. Med. 2002). Hartung, Knapp: A refined method for the meta-analysis of controlled clinical trials
with binary outcome (Stat. Med. 2001).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flwr_fco.algorithms.newton.information import Sums
from flwr_fco.algorithms.newton.information import inverse as inverse_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.quadratic import descend

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

#: Strengths of the lasso, times the noise, and of the nodewise lassos, relative to sqrt(log d / n), for columns of
#: variance 1. Large ones leave a bias that intervals do not know of (docs/how-to/inference.md).
_LASSO, _NODEWISE = 0.65, 0.1
#: Rows for each parameter from which on the Hessian of squares is inverted.
_ROWS = 2
#: Variance of a column that is constant.
_CONSTANT = 1e-14
#: Square of the last Newton step, in standard errors, that is left to one step.
_SOLVED = 1e-8
#: Residual squares that are rounding: relative to those of the model, and to those of 0.
_EXACT, _ROUNDING = 1e-13, 1e-24
#: Sweeps of a lasso, its precision, and how often the noise is estimated.
_SWEEPS, _RELATIVE, _ABSOLUTE, _TIMES = 500, 1e-4, 1e-5, 20
_NONE = np.zeros(0, dtype=np.int64)


class Estimates(NamedTuple):
    """Estimates of the coefficients.

    Parameters
    ----------
    estimate, error : ndarray of float64, shape (p,)
        Estimates and standard errors.
    degrees : float
        Degrees of freedom of t; infinite for a normal distribution.
    how : str
        In words.
    """

    estimate: Vector
    error: Vector
    degrees: float
    how: str


def of_likelihood(sums: Sums, names: Sequence[str]) -> Estimates:
    """Return the estimates of a mean of negative log likelihoods, from sums at its minimiser, or next to it.

    Parameters
    ----------
    sums : Sums
        The sums.
    names : sequence of str
        Names of the p coefficients.

    Raises
    ------
    ConfigurationError
        If the Hessian is singular, or the point is no minimiser.
    """
    inverse = _inverse(sums.hessian, names)
    step = inverse @ sums.gradient
    left = sums.rows * float(sums.gradient @ step)
    if not left <= _SOLVED:
        raise ConfigurationError(
            f"the unpenalised fit has not ended: its last step is of {math.sqrt(max(left, 0.0)):.3g} standard errors. "
            "Raise max_rounds or scale the features; if a column tells the classes apart without error, leave it out"
        )
    error = np.sqrt(np.diag(inverse) / sums.rows)
    count = len(names)
    return Estimates((sums.point - step)[:count], error[:count], math.inf, "unpenalised fit, inverse of the Hessian")


def of_squares(sums: Sums, names: Sequence[str]) -> Estimates:
    """Return the estimates of half a mean of squares, from sums at any point.

    Parameters
    ----------
    sums : Sums
        The sums.
    names : sequence of str
        Names of the p coefficients.

    Raises
    ------
    ConfigurationError
        If the columns are linearly dependent or constant, the fit is exact, or too few rows are left for the noise.

    Examples
    --------
    >>> X, y = np.array([[-1.0], [0.0], [1.0], [2.0]]), np.array([-1.0, 0.5, 0.5, 2.0])
    >>> found = of_squares(Sums(np.zeros(1), -X.T @ y / 4, X.T @ X / 4, float(y @ y) / 8, 4.0), ["x"])
    >>> found.estimate.round(6), found.error.round(6), found.degrees
    (array([0.916667]), array([0.159571]), 3.0)
    """
    if sums.rows < _ROWS * sums.parameters:
        return _nodewise(sums, names)
    inverse, count = _inverse(sums.hessian, names), len(names)
    step, degrees = inverse @ sums.gradient, sums.rows - sums.parameters
    noise = 2.0 * sums.rows * _remaining(sums, sums.loss - 0.5 * float(sums.gradient @ step)) / degrees
    error = np.sqrt(noise * np.diag(inverse) / sums.rows)
    return Estimates((sums.point - step)[:count], error[:count], degrees, "least squares")


def _remaining(sums: Sums, loss: float) -> float:
    """Return the loss of a fit, if it is more than rounding."""
    w = sums.point
    at_zero = sums.loss - float(sums.gradient @ w) + 0.5 * float(w @ sums.hessian @ w)
    if loss < -_EXACT * max(sums.loss, at_zero):
        what = "the clients' sums contradict each other"
        raise ConfigurationError(f"{what}: the mean square at their minimum is {2.0 * loss:.3g}")
    if not loss > max(_EXACT * sums.loss, _ROUNDING * at_zero):
        what = "the targets are a linear function of the features, or constant"
        raise ConfigurationError(f"{what}: without noise there are no standard errors")
    return loss


def _inverse(hessian: Matrix, names: Sequence[str]) -> Matrix:
    """Return the inverse; columns that keep it from being one are named."""
    units = np.sqrt(np.diag(hessian))
    _refuse(units == 0.0, names, "is 0 at all sites, or its curvature is")
    found = inverse_of(hessian)
    if found is None:
        _, vectors = np.linalg.eigh(hessian / np.outer(units, units))
        largest = np.abs(vectors[:, 0]) > 0.1 * np.abs(vectors[:, 0]).max()
        _refuse(largest, names, "is linearly dependent on other columns, or constant")
    return np.asarray(found)


def _refuse(wrong: NDArray[np.bool_], names: Sequence[str], why: str) -> None:
    columns = [name for name, bad in zip(names, wrong[: len(names)], strict=True) if bad]
    if wrong.any():
        raise ConfigurationError(
            f"there are no intervals: a column {why}: {', '.join(columns[:5]) or 'that of the intercept'}"
            f"{', ...' * (len(columns) > 5)}. Leave one such column out"
        )


def _nodewise(sums: Sums, names: Sequence[str]) -> Estimates:
    """Return the de-biased lasso."""
    count, n = len(names), sums.rows
    w, gradient, gram, loss = sums.point[:count], sums.gradient[:count], sums.hessian[:count, :count], sums.loss
    if sums.point.size > count:
        # At the best intercept.
        border, corner, slope = sums.hessian[:count, count], sums.hessian[count, count], sums.gradient[count]
        gradient, loss = gradient - border * (slope / corner), loss - 0.5 * slope**2 / corner
        gram = gram - np.outer(border, border) / corner
    variances = np.diag(gram).copy()
    _refuse(variances <= _CONSTANT * np.diag(sums.hessian)[:count], names, "is constant at all sites together")
    units = np.sqrt(variances)
    gram = np.ascontiguousarray(gram / np.outer(units, units))
    product = gram @ (units * w) - gradient / units
    squares = 2.0 * loss + float((units * w) @ (product + gradient / units)) - 2.0 * float(gradient @ w)
    base = math.sqrt(math.log(max(count, 2)) / n)
    b, noise, degrees = _scaled_lasso(gram, product, squares, base, n, sums.parameters - count)
    _remaining(sums, 0.5 * noise)
    theta = np.empty((count, count))
    for j in range(count):
        others = np.delete(np.arange(count), j)
        own = _lasso(gram, gram[j], _NODEWISE * base, np.zeros(count), others)
        own[others], own[j] = -own[others], 1.0
        theta[j] = own / float(gram[j] @ own)
    error = np.sqrt(noise / n * np.einsum("ij,ij->i", theta @ gram, theta))
    estimate = b + theta @ (product - gram @ b)
    how = f"de-biased lasso ({np.count_nonzero(b)} of {count} not 0), nodewise"
    return Estimates(estimate / units, error / units, degrees, how)


def _scaled_lasso(
    gram: Matrix, product: Vector, squares: float, base: float, n: float, intercepts: float
) -> tuple[Vector, float, float]:
    """Return the lasso whose strength fits the variance of its residuals, this variance, and its degrees of freedom."""
    b, noise, everything = np.zeros(product.size), squares, np.arange(product.size)
    for _ in range(_TIMES):
        b = _lasso(gram, product, _LASSO * base * math.sqrt(noise), b, everything)
        degrees = n - np.count_nonzero(b) - intercepts
        if degrees < 0.25 * n:
            raise ConfigurationError(
                f"there are no intervals: of {n:.0f} rows {degrees:.0f} are left for the noise, after a lasso of "
                f"{product.size} columns; take more rows or fewer columns"
            )
        before, noise = noise, (squares + float(b @ (gram @ b - 2.0 * product))) * n / degrees
        if not abs(noise - before) > 1e-3 * noise:
            break
    return b, noise, degrees


def _lasso(gram: Matrix, product: Vector, strength: float, start: Vector, on: NDArray[np.int64]) -> Vector:
    """Return argmin over the coordinates `on` of 1/2 b' gram b - <product, b> + strength ||b||_1."""
    b, size = start.copy(), start.size
    terms = np.array([np.full(size, strength), np.zeros(size), np.full(size, -np.inf), np.full(size, np.inf)])
    places = on, _NONE, np.zeros(1, dtype=np.int64), np.zeros(0), np.ones(on.size)
    descend(gram, gram @ b - product, b, terms, *places, _SWEEPS, _RELATIVE, _ABSOLUTE)
    return b


def between(estimates: Matrix, errors: Matrix) -> dict[str, Vector]:
    """Return the meta-analysis of the sites' estimates of p coefficients, by names of a table's columns, shape (p,).

    ``Q``, ``p of Q`` and ``I2`` are Cochran's Q, its p of a chi-squared distribution with k - 1 degrees of freedom, and
    I2, from 0 to 1. ``fixed`` is the mean by inverse variances, if all sites estimate the same; ``DerSimonian-Laird``
    that of sites whose effects are drawn from a distribution; of both there is the standard error. ``Hartung-Knapp
    error`` is another one of the latter, for quantiles of t with k - 1 degrees of freedom.

    Parameters
    ----------
    estimates, errors : ndarray of float64, shape (k, p)
        Each site's estimates and standard errors > 0, of at least two sites.

    Examples
    --------
    >>> found = between(np.array([[0.0], [1.0], [2.0]]), np.full((3, 1), 0.5))
    >>> float(found["Q"][0]), float(found["I2"][0]), float(found["DerSimonian-Laird"][0])
    (8.0, 0.75, 1.0)
    """
    weights, degrees = errors**-2.0, len(estimates) - 1
    total = weights.sum(axis=0)
    fixed = (weights * estimates).sum(axis=0) / total
    q = (weights * (estimates - fixed) ** 2).sum(axis=0)
    spread = np.maximum(0.0, q - degrees) / (total - (weights**2).sum(axis=0) / total)
    shrunk = 1.0 / (errors**2.0 + spread)
    mass = shrunk.sum(axis=0)
    random = (shrunk * estimates).sum(axis=0) / mass
    refined = np.sqrt((shrunk * (estimates - random) ** 2).sum(axis=0) / (degrees * mass))
    share = np.maximum(0.0, q - degrees) / np.where(q > 0.0, q, 1.0)
    found = {"Q": q, "p of Q": stats.chi2.sf(q, degrees), "I2": share, "fixed": fixed, "fixed error": total**-0.5}
    means = {"DerSimonian-Laird": random, "DerSimonian-Laird error": mass**-0.5}
    return found | means | {"Hartung-Knapp error": refined}
