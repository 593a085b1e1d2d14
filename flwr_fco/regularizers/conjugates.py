"""Convex conjugates of regularizers in closed form, for duality gaps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, SeparableTerms
from flwr_fco.regularizers.constraints import L1Ball, L2Ball, Simplex
from flwr_fco.regularizers.spectral import MatrixRegularizer, Nuclear, NuclearBall, SpectralBall

Array = NDArray[np.float64]


def conjugate(regularizer: Regularizer | BoundRegularizer, v: Array) -> float:
    """Return psi*(v) = max_w <v, w> - psi(w).

    Known for sums over coordinates (l1, squared l2, elastic net, boxes), the l1 and l2 balls, the simplex, the nuclear
    norm (also within a spectral ball), the nuclear ball and the spectral ball.

    Parameters
    ----------
    regularizer : Regularizer or BoundRegularizer
        psi, convex. A BoundRegularizer takes its model's flat vector; where psi does not act, psi* is 0 at 0, else inf.

    Returns
    -------
    float
        The maximum; may be infinite.

    Raises
    ------
    ConfigurationError
        If psi* is not known.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import L1
    >>> conjugate(L1(1.0, bound=0.5), np.array([3.0, -0.5])), conjugate(L1(1.0), np.array([3.0, -0.5]))
    (1.0, inf)
    """
    if isinstance(regularizer, BoundRegularizer):
        free = np.ones(v.size, dtype=np.bool_)
        total = 0.0
        for place, shape, part in regularizer.blocks:
            free[place] = False
            total += conjugate(part, v[place].reshape(shape))
        return math.inf if v[free].any() else total
    terms = regularizer.separable_terms(v.shape)
    if terms is not None:
        return _separable_conjugate(terms, v)
    if isinstance(regularizer, Simplex):
        return regularizer.radius * float(v.max())
    if isinstance(regularizer, L1Ball):
        weights = np.ones(v.shape) if regularizer.weights is None else np.broadcast_to(regularizer.weights, v.shape)
        if v[weights == 0.0].any():
            return math.inf
        return regularizer.radius * float((np.abs(v[weights > 0.0]) / weights[weights > 0.0]).max(initial=0.0))
    if isinstance(regularizer, L2Ball):
        return regularizer.radius * float(np.linalg.norm(v))
    if isinstance(regularizer, MatrixRegularizer):
        values = np.linalg.svd(regularizer.matrix(v), compute_uv=False)
        if isinstance(regularizer, Nuclear):
            bound = np.inf if regularizer.bound is None else regularizer.bound
            return _separable_conjugate(SeparableTerms(regularizer.strength, 0.0, -bound, bound), values)
        if isinstance(regularizer, SpectralBall):
            return regularizer.radius * float(values.sum())
        if isinstance(regularizer, NuclearBall):
            return regularizer.radius * float(values.max(initial=0.0))
    raise ConfigurationError(
        f"the conjugate of {regularizer!r} is not known in closed form, so there is no duality gap"
    )


def _separable_conjugate(terms: SeparableTerms, v: Array) -> float:
    """Return the sum over coordinates of max_w v w - a |w| - b/2 w^2 over lower <= w <= upper."""
    slope, curvature, lower, upper = (np.broadcast_to(np.asarray(term, dtype=np.float64), v.shape) for term in terms)
    pull = np.sign(v) * np.maximum(np.abs(v) - slope, 0.0)
    # Without curvature, a coordinate with a non-zero slope goes to its bound.
    best = np.where(pull == 0.0, 0.0, np.copysign(np.inf, pull))
    np.divide(pull, curvature, out=best, where=curvature > 0.0)
    best = np.clip(best, lower, upper)
    if not np.isfinite(best).all():
        return math.inf
    return float((v * best - slope * np.abs(best) - 0.5 * curvature * best**2).sum())
