"""A meta-analysis of several sites' own estimates of the same coefficients, and false discovery rates.

References: Cochran: The combination of estimates from different experiments (Biometrics 1954). DerSimonian, Laird:
Meta-analysis in clinical trials (Control. Clin. Trials 1986). Higgins, Thompson: Quantifying heterogeneity in a
meta-analysis (Stat. Med. 2002). Hartung, Knapp: A refined method for the meta-analysis of controlled clinical trials
with binary outcome (Stat. Med. 2001). Benjamini, Hochberg: Controlling the false discovery rate (J. R. Stat. Soc. B
1995).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Between(NamedTuple):
    """A meta-analysis of each of p coefficients, from k sites.

    Parameters
    ----------
    q, q_p, i2 : ndarray of float64, shape (p,)
        Cochran's Q, its p of a chi-squared distribution with k - 1 degrees of freedom, and I2, from 0 to 1.
    fixed, fixed_error : ndarray of float64, shape (p,)
        The mean by inverse variances, and its standard error, if all sites estimate the same.
    random, random_error : ndarray of float64, shape (p,)
        DerSimonian and Laird's mean, and its standard error, of sites whose effects are drawn from a distribution.
    hartung_knapp : ndarray of float64, shape (p,)
        Hartung and Knapp's standard error of that mean, for quantiles of t with k - 1 degrees of freedom.
    """

    q: Vector
    q_p: Vector
    i2: Vector
    fixed: Vector
    fixed_error: Vector
    random: Vector
    random_error: Vector
    hartung_knapp: Vector


def between(estimates: Matrix, errors: Matrix) -> Between:
    """Return the meta-analysis of the sites' estimates.

    Parameters
    ----------
    estimates, errors : ndarray of float64, shape (k, p)
        Each site's estimates and standard errors > 0, of at least two sites.

    Examples
    --------
    >>> found = between(np.array([[0.0], [1.0], [2.0]]), np.full((3, 1), 0.5))
    >>> float(found.q[0]), float(found.i2[0]), float(found.random[0])
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
    return Between(q, stats.chi2.sf(q, degrees), share, fixed, total**-0.5, random, mass**-0.5, refined)


def benjamini_hochberg(p: Vector) -> Vector:
    """Return the smallest false discovery rate at which each hypothesis is rejected, from their p of shape (m,).

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.01, 0.5, 0.02, 0.9])).tolist()
    [0.04, 0.6666666666666666, 0.04, 0.9]
    """
    order = np.argsort(p)[::-1]
    scaled = p[order] * p.size / np.arange(p.size, 0, -1)
    rates = np.empty(p.size)
    rates[order] = np.minimum.accumulate(np.minimum(scaled, 1.0))
    return rates
