"""Dual coordinate ascent for the hinge loss."""

from flwr_fco.kernels import njit


@njit(cache=True)
def _ascend(i, margin, signs, squares, scale, alpha):  # type: ignore[no-untyped-def]
    """Maximise over a coordinate in [0, 1]; return its projected gradient, and the change of theta in units of x_i."""
    ascent, curvature, old = 1.0 - signs[i] * margin, scale * squares[i], alpha[i]
    if (old <= 0.0 and ascent < 0.0) or (old >= 1.0 and ascent > 0.0):
        return 0.0, 0.0
    if curvature > 0.0:
        alpha[i] = min(1.0, max(0.0, old + ascent / curvature))
    else:
        alpha[i] = 1.0 if ascent > 0.0 else 0.0
    return abs(ascent), scale * signs[i] * (alpha[i] - old)


@njit(cache=True, fastmath={"reassoc", "contract"})
def hinge_epoch(features, signs, squares, order, scale, alpha, theta):  # type: ignore[no-untyped-def]
    """Maximise the dual of the hinge loss exactly over one coordinate at a time; return the largest violation.

    Parameters
    ----------
    features : ndarray of float64 or float32, shape (n, d), C-contiguous
        The x_i.
    signs : ndarray of float64, shape (n,)
        -1 or +1.
    squares : ndarray of float64, shape (n,)
        ||x_i||^2.
    order : ndarray of int64
        The coordinates to visit.
    scale : float
        1 / (modulus n): the change of theta per unit of alpha_i, in units of s_i x_i.
    alpha : ndarray of float64, shape (n,)
        In [0, 1]; changed in place.
    theta : ndarray of float64, shape (d,)
        v + scale sum_i alpha_i s_i x_i; changed in place.

    Returns
    -------
    float
        The largest projected gradient encountered; 0 at the maximum.
    """
    d = features.shape[1]
    worst = 0.0
    for i in order:
        row = features[i]
        margin = 0.0
        for j in range(d):
            margin += row[j] * theta[j]
        violation, move = _ascend(i, margin, signs, squares, scale, alpha)
        worst = max(worst, violation)
        if move != 0.0:
            for j in range(d):
                theta[j] += move * row[j]
    return worst


@njit(cache=True)
def sparse_hinge_epoch(starts, indices, values, signs, squares, order, scale, alpha, theta):  # type: ignore[no-untyped-def]
    """Maximise the hinge loss's dual like :func:`hinge_epoch`, on sparse rows.

    Parameters
    ----------
    starts, indices, values
        As in :func:`flwr_fco.kernels.sparse.row_scores`.
    signs, squares, order, scale, alpha, theta
        As in :func:`hinge_epoch`.
    """
    worst = 0.0
    for i in order:
        margin = 0.0
        for p in range(starts[i], starts[i + 1]):
            margin += values[p] * theta[indices[p]]
        violation, move = _ascend(i, margin, signs, squares, scale, alpha)
        worst = max(worst, violation)
        if move != 0.0:
            for p in range(starts[i], starts[i + 1]):
                theta[indices[p]] += move * values[p]
    return worst
