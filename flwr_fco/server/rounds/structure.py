"""The structure that psi promises, measured in each round's model: zeros, low rank, feasibility."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.regularizers.base import Array, BoundRegularizer
from flwr_fco.regularizers.separable import Zero
from flwr_fco.regularizers.spectral import MatrixRegularizer

#: Rounding error of a zero singular value, in units of eps times the largest one times the longer side.
_NOISE = 64.0
#: Number of random directions by which a large matrix is multiplied first.
_DIRECTIONS = 64


def structure(psi: BoundRegularizer, layout: Layout, w: Vector) -> dict[str, int | float]:
    """Return metrics of the structure that psi promises, for a model.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the model's arrays.
    layout : Layout
        Layout with the user's dtypes: a float32 model on the boundary of a set, up to float32 rounding, is feasible.
    w : ndarray of float64, shape (d,)
        The flat model.

    Returns
    -------
    dict of str to number
        ``density``, the fraction of non-zero entries over all arrays whose psi is not about matrices; ``rank``, the
        largest rank over the arrays whose psi is about matrices; ``feasible``, 1 or 0, if a psi is a constraint. Empty
        without psi.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"coefficients": np.zeros(4), "intercept": np.zeros(1)})
    >>> structure(L1(1.0).bind(layout), layout, np.array([0.0, 0.0, 0.0, 1.0, 5.0]))
    {'density': 0.25}
    """
    if isinstance(psi.regularizer, Zero):
        return {}
    parts = [(w[block], shape, regularizer) for block, shape, regularizer in psi.blocks]
    if not parts and psi.scope == "joint":
        scattered = w[layout.regularized_mask()]
        parts = [(scattered, scattered.shape, psi.regularizer)]
    numbers: dict[str, int | float] = {}
    nonzero = size = rank = 0
    feasible = True
    for part, shape, regularizer in parts:
        if isinstance(regularizer, Zero) or not part.size:
            continue
        array = (part if layout.double else part.astype(np.float32)).reshape(shape)
        if isinstance(regularizer, MatrixRegularizer):
            rank = max(rank, _rank(regularizer.matrix(array)))
            numbers["rank"] = rank
        else:
            nonzero, size = nonzero + int(np.count_nonzero(part)), size + part.size
            numbers["density"] = nonzero / size
        if regularizer.constraint:
            feasible = feasible and math.isfinite(regularizer.value(array))
            numbers["feasible"] = int(feasible)
    return numbers


@lru_cache(maxsize=8)
def _directions(length: int, number: int) -> Array:
    """Return random directions, the same at every call."""
    return np.random.default_rng(0).standard_normal((length, number))


def _rank(matrix: Array) -> int:
    """Return the numerical rank; large low-rank matrices are first multiplied by a few random directions.

    The product with more random directions than the rank has the matrix's rank. It costs as much as a few local steps'
    matrix products, instead of a singular value decomposition.
    """
    eps, sides = float(np.finfo(matrix.dtype).eps), max(matrix.shape)
    number = _DIRECTIONS
    while 2 * number <= min(matrix.shape):
        rank = _large_values(matrix @ _directions(matrix.shape[1], number), eps * sides)
        if 4 * rank <= 3 * number:
            return rank
        number *= 4
    return _large_values(matrix, eps * sides)


def _large_values(matrix: Array, relative: float) -> int:
    sigma = np.linalg.svd(matrix, compute_uv=False)
    return int((sigma > _NOISE * relative * float(sigma.max(initial=0.0))).sum())
