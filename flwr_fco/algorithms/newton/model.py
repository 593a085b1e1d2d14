"""The quadratic model of a proximal Newton step, its minimiser, and the coordinates on which it is taken.

These are the non-zeros and the coordinates that violate optimality most, twice as many as there are non-zeros: as in
Massias, Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018). A set that doubles
reaches the support in a few rounds, and is never much larger than it.

Compiled descent (:mod:`flwr_fco.kernels.quadratic`) finds which coordinates are zero. Where H is badly conditioned it
crawls: then the smooth problem on the support, with the signs as they are, is solved by a factorisation, up to the
first coordinate that would change its sign or leave its box.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.quadratic import descend
from flwr_fco.regularizers.base import BoundRegularizer, Sums

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: Sweeps before a factorised solve, and how often the two take turns.
_SWEEPS = 60
_TURNS = 40
#: Factorised solves in a row, each on a smaller support.
_SOLVES = 20
#: The last sweep's moves relative to the first one's, and to the size of the point.
_RELATIVE = 1e-10
_ROUNDING = 4e-16
#: Added to the diagonal, relative to it, so that equal columns have a factorisation.
_DAMPING = 1e-13
#: In the place of a curvature of 0.
_FLAT = 1e-12
_HALVINGS = 30


def minimise_model(hessian: Matrix, gradient: Vector, start: Vector, psi: Sums) -> Vector:
    """Return the minimiser of <gradient, x - start> + 1/2 (x - start)' hessian (x - start) + psi(x).

    Nothing in it depends on the units of the coordinates, for features come in any.

    Parameters
    ----------
    hessian : ndarray of float64, shape (k, k)
        Symmetric and positive semidefinite.
    gradient, start : ndarray of float64, shape (k,)
        The loss's gradient at the point where the step begins.
    psi : Sums
        Of these coordinates.

    References
    ----------
    Friedman, Hastie, Tibshirani: Regularization paths for generalized linear models via coordinate descent (J. Stat.
    Softw. 2010).

    Examples
    --------
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import L1
    >>> psi = L1(1.0).bind(Layout.from_arrays({"w": np.zeros(2)})).sums
    >>> minimise_model(np.eye(2), np.array([-3.0, 0.5]), np.zeros(2), psi)
    array([2., 0.])
    """
    model = _Model(np.ascontiguousarray(hessian), gradient, start, psi)
    x = start.copy()
    if psi.smooth:
        # No coordinate stops at a kink: one factorisation is enough, unless rounding keeps it from any decrease.
        x = model.solved(x)
        if not np.array_equal(x, start):
            return x
    blocks = model.blocks()
    for _ in range(_TURNS):
        size = float(np.max(np.abs(x) * np.sqrt(np.maximum(np.diag(hessian), 0.0)), initial=0.0))
        if descend(model.hessian, model.slope(x), x, psi.table, *blocks, _SWEEPS, _RELATIVE, _ROUNDING * size):
            break
        x = model.solved(x)
    return x


class _Model(NamedTuple):
    """The model."""

    hessian: Matrix
    gradient: Vector
    start: Vector
    psi: Sums

    def blocks(self) -> tuple[Indices, Indices, Vector, Vector]:
        """Return what is visited in turn, coordinates in no group and then groups, with strengths and curvatures."""
        groups, strengths = self.psi.groups, self.psi.strengths
        members = np.argsort(groups, kind="stable")
        alone = np.count_nonzero(groups < 0)
        starts = np.append(np.arange(alone), np.searchsorted(groups[members], np.arange(strengths.size + 1)))
        own = [members[a:b] for a, b in pairwise(starts[alone:])]
        largest = [float(np.linalg.eigvalsh(self.hessian[np.ix_(each, each)])[-1]) for each in own]
        curvatures = np.append(np.diag(self.hessian)[members[:alone]], largest)
        curvatures = np.where(curvatures > 0.0, curvatures, _FLAT)
        return members, starts, np.append(np.zeros(alone), strengths), curvatures

    def slope(self, x: Vector) -> Vector:
        """Return the gradient of the quadratic."""
        return np.asarray(self.gradient + self.hessian @ (x - self.start))

    def value(self, x: Vector) -> float:
        """Return the model's value."""
        move = x - self.start
        return float(move @ (self.gradient + 0.5 * (self.hessian @ move))) + self.psi.value(x)

    def solved(self, x: Vector) -> Vector:
        """Return a point with a smaller value, after factorised steps on its support, as long as they lower it."""
        from scipy.linalg import cho_factor, cho_solve

        (threshold, shrinkage, lower, upper), groups = self.psi.table, self.psi.groups
        for _ in range(_SOLVES):
            # All terms are smooth here; of no group the norm is infinite, and the strength 0.
            norms = np.append(self.psi.norms(x), np.inf)[groups]
            on = np.flatnonzero(((x != 0.0) | (threshold == 0.0)) & (norms > 0.0) & (x > lower) & (x < upper))
            if not on.size:
                return x
            own, group = x[on], groups[on]
            pull, unit = np.append(self.psi.strengths, 0.0)[group], own / norms[on]
            bent = pull / norms[on]
            slope = self.slope(x)[on] + threshold[on] * np.sign(own) + shrinkage[on] * own + pull * unit
            curved = self.hessian[np.ix_(on, on)] + np.diag(shrinkage[on] + bent)
            curved -= bent * (group[:, None] == group) * np.outer(unit, unit)
            diagonal = curved.diagonal()
            curved[np.diag_indices(on.size)] += _DAMPING * np.where(diagonal > 0.0, diagonal, 1.0)
            try:
                direction = np.asarray_chkfinite(cho_solve(cho_factor(curved), -slope))
            except ValueError:
                # Rounding has made it something else than positive definite, or numbers are too large.
                return x
            # Where each coordinate stops: at its bound, or before at a kink.
            ends = np.copysign(np.inf, direction)
            ends[(threshold[on] > 0.0) & (own * direction < 0.0)] = 0.0
            ends = np.clip(ends, lower[on], upper[on])
            with np.errstate(divide="ignore"):
                limits = (ends - own) / direction
            # Near the minimiser of a smooth model a whole step decreases it by less than its rounding.
            before = self.value(x) + _ROUNDING * self.psi.smooth * self.psi.value(x)
            for step in limits.min(initial=1.0) * 0.5 ** np.arange(_HALVINGS):
                new = x.copy()
                new[on] = np.where(limits <= step, ends, own + step * direction)
                if self.value(new) < before:
                    break
            else:
                return x
            x = new
            if step == 1.0:
                return x
        return x


def entries_of(new: Flags) -> Flags:
    """Return which entries of an upper triangle are in a new row or column, shape (k, k)."""
    return np.triu(new[:, None] | new)


def unpacked(entries: Vector, new: Flags | None = None) -> Matrix:
    """Return the symmetric matrix of an upper triangle by rows, or of those of its entries that are in new rows.

    Examples
    --------
    >>> unpacked(np.array([1.0, 2.0, 3.0])).tolist(), unpacked(np.array([2.0, 3.0]), np.array([False, True])).tolist()
    ([[1.0, 2.0], [2.0, 3.0]], [[0.0, 2.0], [2.0, 3.0]])
    """
    new = np.ones(math.isqrt(2 * entries.size), dtype=np.bool_) if new is None else new
    matrix, on = np.zeros((new.size, new.size)), entries_of(new)
    matrix[on] = matrix.T[on] = entries
    return matrix


def factor_of(matrix: Matrix, units: Vector, tolerance: float = -1.0) -> tuple[Matrix, Indices]:
    """Return R of shape (rank, k), R'R a positive semidefinite matrix, and the coordinates that depend on the others.

    Rounding is relative to the squares of units, or to their product with a tolerance.
    """
    from scipy.linalg.lapack import dpstrf

    scales = np.where(units > 0.0, units, 1.0)
    found, order, rank, _ = dpstrf(matrix / np.outer(scales, scales), tol=tolerance)
    factor = np.zeros((rank, scales.size))
    factor[:, order - 1] = np.triu(found)[:rank]
    return factor * scales, order[rank:] - 1


#: Smallest eigenvalue of a matrix that is not singular: relative to the largest one, or where its diagonal is 1.
SINGULAR = 1e-10


def inverse(hessian: Matrix) -> Matrix | None:
    """Return the inverse of a positive definite matrix, in the units of its diagonal; None if it is singular.

    Examples
    --------
    >>> inverse(np.diag([4.0, 1e12])).diagonal()
    array([2.5e-01, 1.0e-12])
    >>> inverse(np.ones((2, 2))) is None
    True
    """
    if not (np.diag(hessian) > 0.0).all():
        return None
    units = np.sqrt(np.diag(hessian))
    values, vectors = np.linalg.eigh(hessian / np.outer(units, units))
    if not values[0] > SINGULAR:
        return None
    return np.asarray((vectors / values) @ vectors.T / np.outer(units, units))


#: Smallest size, and for each class, size as a multiple of the non-zeros, and largest size: its block is then 67 MB. On
#: NCI60, of 14 classes, a smallest size of 100 takes 24 rounds, 140 takes 17 and fewer bytes.
LEAST = 100
_LEAST_OF_A_CLASS = 10
_TIMES = 2
_MOST = 4096


def whole_groups(mask: Flags, psi: BoundRegularizer) -> Flags:
    """Return the mask with the other coordinates of its groups."""
    groups = psi.sums.groups
    return mask | (np.isin(groups, groups[mask]) & (groups >= 0))


def working_set(x: Vector, slopes: Vector, psi: BoundRegularizer, smallest: int = LEAST, outputs: int = 1) -> Flags:
    """Return the mask of the next working set, of 4,096 coordinates at most.

    Parameters
    ----------
    x, slopes : ndarray of float64, shape (d,)
        The next point, and the gradient as far as it is known.
    psi : BoundRegularizer
        The regularizer.
    smallest : int, default 100
        The smallest size of a working set.
    outputs : int, default 1
        Number of the loss's outputs: classes.

    Examples
    --------
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"w": np.zeros(300)})
    >>> mask = working_set(np.eye(1, 300, 7)[0], np.linspace(0.0, 1.0, 300), L1(1.0).bind(layout))
    >>> int(mask.sum()), bool(mask[7]), bool(mask[299])
    (100, True, True)
    """
    # What has no kink, and what is not 0.
    needed = whole_groups((x != 0.0) | ((psi.sums.table[0] == 0.0) & (psi.sums.groups < 0)), psi)
    score = violations(slopes, psi)
    count = int(needed.sum())
    if count < _MOST:
        score[needed] = np.inf
    else:
        # More than fits into one block: those that are farthest from optimal, in turn. Those of the last block are not.
        score = np.abs(x - psi.prox(x - slopes, 1.0))
    size = min(max(smallest, _LEAST_OF_A_CLASS * outputs, _TIMES * count), _MOST)
    mask = np.zeros(x.size, dtype=np.bool_)
    mask[np.argsort(-score, kind="stable")[:size]] = True
    return whole_groups(mask, psi)


def violations(gradient: Vector, psi: BoundRegularizer) -> Vector:
    """Return the size of each coordinate's, or group's, slope at 0 relative to what psi balances; 1 at the boundary."""
    sums = psi.sums
    threshold = sums.table[0]
    size = np.abs(gradient)
    score = np.divide(size, threshold, out=np.full(size.shape, np.inf), where=threshold > 0.0)
    ratio = np.append(sums.norms(np.maximum(size - threshold, 0.0)) / sums.strengths, 0.0)
    return np.where(sums.groups >= 0, ratio[sums.groups], score)
