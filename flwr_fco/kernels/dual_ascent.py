"""Dual coordinate ascent for the hinge loss."""

from flwr_fco.kernels import njit


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
        ascent = 1.0 - signs[i] * margin
        old = alpha[i]
        projected = ascent
        if (old <= 0.0 and ascent < 0.0) or (old >= 1.0 and ascent > 0.0):
            projected = 0.0
        worst = max(worst, abs(projected))
        if projected == 0.0:
            continue
        if squares[i] > 0.0:
            new = min(1.0, max(0.0, old + ascent / (scale * squares[i])))
        else:
            new = 1.0 if ascent > 0.0 else 0.0
        if new != old:
            alpha[i] = new
            move = scale * signs[i] * (new - old)
            for j in range(d):
                theta[j] += move * row[j]
    return worst
