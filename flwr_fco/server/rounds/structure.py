"""What psi promises, looked at in the model of each round: zeros, low rank, feasibility."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.sparse import NonZeros
from flwr_fco.regularizers.base import Array, BoundRegularizer
from flwr_fco.regularizers.separable import Zero
from flwr_fco.regularizers.spectral import MatrixRegularizer

#: What rounding leaves of a zero singular value, in units of eps times the largest one times the longer side.
_NOISE = 64.0
#: Random directions that a large matrix is first multiplied with.
_DIRECTIONS = 64


def structure(psi: BoundRegularizer, layout: Layout, w: Vector | NonZeros) -> dict[str, int | float]:
    """Return what a model has of what psi promises.

    Parameters
    ----------
    psi : BoundRegularizer
    layout : Layout
        With the user's dtypes: a float32 model that is on the boundary of a set up to float32 is feasible.
    w : ndarray of float64, shape (d,), or NonZeros
        The flat model.

    Returns
    -------
    dict of str to number
        ``density``, the fraction of the entries that are not exactly 0, of all arrays with a psi that is not about
        matrices; ``rank``, the largest rank of the arrays with one that is; ``feasible``, 1 or 0, where a psi is a
        constraint. Nothing without psi.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"coefficients": np.zeros(4), "intercept": np.zeros(1)})
    >>> structure(L1(1.0).bind(layout), layout, np.array([0.0, 0.0, 0.0, 1.0, 5.0]))
    {'density': 0.25}
    """
    if isinstance(psi.regularizer, Zero):
        return {}
    if isinstance(w, NonZeros):
        density = _density(psi, w)
        if density is not None:
            return density
        w = w.to_dense()
    parts = [(w[block], shape, own) for block, shape, own in psi.blocks]
    if not parts and psi.scope == "joint":
        scattered = w[layout.regularized_mask()]
        parts = [(scattered, scattered.shape, psi.regularizer)]
    found: dict[str, int | float] = {}
    nonzero = size = rank = 0
    feasible = True
    for part, shape, own in parts:
        if isinstance(own, Zero) or not part.size:
            continue
        array = (part if layout.double else part.astype(np.float32)).reshape(shape)
        if isinstance(own, MatrixRegularizer):
            rank = max(rank, _rank(own.matrix(array)))
            found["rank"] = rank
        else:
            nonzero, size = nonzero + int(np.count_nonzero(part)), size + part.size
            found["density"] = nonzero / size
        if own.constraint:
            feasible = feasible and math.isfinite(own.value(array))
            found["feasible"] = int(feasible)
    return found


def _density(psi: BoundRegularizer, w: NonZeros) -> dict[str, int | float] | None:
    """Return the density of a model by its non-zeros; None where psi promises something else."""
    if psi.scope == "joint" or any(isinstance(own, MatrixRegularizer) or own.constraint for *_, own in psi.blocks):
        return None
    nonzero = size = 0
    for block, _, own in psi.blocks:
        if not isinstance(own, Zero):
            begin, end = np.searchsorted(w.indices, (block.start, block.stop))
            nonzero, size = nonzero + int(np.count_nonzero(w.values[begin:end])), size + block.stop - block.start
    return {"density": nonzero / size} if size else {}


@lru_cache(maxsize=8)
def _directions(length: int, number: int) -> Array:
    """Return random directions, the same ones at every call."""
    return np.random.default_rng(0).standard_normal((length, number))


def _rank(matrix: Array) -> int:
    """Return the numerical rank; of large matrices of low rank from their products with a few random directions.

    A product with more random directions than its rank has a matrix's rank, at the price of a few local steps' matrix
    products instead of that of a singular value decomposition.
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
