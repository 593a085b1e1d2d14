"""Second derivatives of losses with respect to the margins, for Hessian products."""

from flwr_fco.kernels import njit


@njit(cache=True)
def softmax_curvature(chances, change, weight):  # type: ignore[no-untyped-def]
    """Replace each row c of `change` with weight (diag(p) - pp') c, where p is the row of `chances`.

    Parameters
    ----------
    chances : ndarray of float64 or float32, shape (n, k)
        Probabilities of the classes.
    change : ndarray of the same type and shape
        Margins of a direction; changed in place.
    """
    n, k = change.shape
    for i in range(n):
        mean = 0.0
        for c in range(k):
            mean += chances[i, c] * change[i, c]
        for c in range(k):
            change[i, c] = weight * chances[i, c] * (change[i, c] - mean)


@njit(cache=True)
def logistic_curvature(chances, change, weight):  # type: ignore[no-untyped-def]
    """Replace each entry c of `change` with weight p (1 - p) c, where p is the entry of `chances`.

    Parameters
    ----------
    chances : ndarray of float64 or float32, shape (n,)
        Probabilities of one of the two labels.
    change : ndarray of the same type and shape
        Margins of a direction; changed in place.
    """
    for i in range(change.shape[0]):
        change[i] = weight * chances[i] * (1.0 - chances[i]) * change[i]
