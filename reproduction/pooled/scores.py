"""Scores of a solution's structure: its support, its rank, its distance to the truth. Functions on arrays."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.errors import ConfigurationError


class SupportScores(NamedTuple):
    """Precision, recall and F1 of a solution's support with respect to the true support.

    Examples
    --------
    >>> SupportScores(precision=0.5, recall=1.0, f1=0.67).recall
    1.0
    """

    precision: float
    recall: float
    f1: float


def density(w: ArrayLike, threshold: float = 0.0) -> float:
    """Return the fraction of entries with |w| > threshold.

    Parameters
    ----------
    w : array-like
        Coefficients, of any shape; without the intercept, which is not meant to be sparse.
    threshold : float, default 0.0
        Entries up to it count as zero.

    Examples
    --------
    >>> density([0.0, -0.5, 2.0, 0.0])
    0.5
    """
    return float((np.abs(np.asarray(w)) > threshold).mean())


def support_scores(w: ArrayLike, reference: ArrayLike, threshold: float = 0.0) -> SupportScores:
    """Return precision, recall and F1 of the support of w as a prediction of the reference's support.

    Parameters
    ----------
    w : array-like
        Coefficients, of any shape; without the intercept.
    reference : array-like, shape of w
        The true coefficients; entries that are not exactly 0 count as non-zero.
    threshold : float, default 0.0
        Entries with |w| above it count as non-zero.

    Returns
    -------
    SupportScores
        The precision of an empty support is 1.0 (nothing was selected wrongly), as is the recall of an empty reference.

    Examples
    --------
    >>> support_scores([1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0])
    SupportScores(precision=0.5, recall=0.5, f1=0.5)
    """
    estimated = np.abs(np.ravel(w)) > threshold
    truth = np.ravel(reference) != 0.0
    # Not scikit-learn's function: it takes a millisecond, and experiments call this in every round.
    both, selected, true = (int(np.count_nonzero(part)) for part in (estimated & truth, estimated, truth))
    return SupportScores(
        both / selected if selected else 1.0,
        both / true if true else 1.0,
        2.0 * both / (selected + true) if selected + true else 1.0,
    )


def numerical_rank(matrix: ArrayLike, threshold: float) -> int:
    """Return the number of singular values above a threshold.

    Parameters
    ----------
    matrix : array-like, shape (rows, columns)
        The matrix.
    threshold : float
        The papers use 1e-2.

    Raises
    ------
    ConfigurationError
        If the array is not two-dimensional.

    Examples
    --------
    >>> import numpy as np
    >>> numerical_rank(np.diag([1.0, 1e-3]), threshold=1e-2)
    1
    """
    array = np.asarray(matrix)
    if array.ndim != 2:
        raise ConfigurationError(f"the array has shape {array.shape}; expected a matrix")
    return int(np.linalg.matrix_rank(array, tol=threshold))


def recovery_error(w: ArrayLike, reference: ArrayLike, norm: Literal["l2", "l1"] = "l2") -> float:
    """Return ||w - reference|| in the Euclidean (Frobenius) norm, or the sum of absolute differences.

    Parameters
    ----------
    w, reference : array-like of the same shape
        The estimate and the truth.
    norm : {"l2", "l1"}, default "l2"
        Euclidean (Frobenius), or the sum of absolute values.

    Examples
    --------
    >>> recovery_error([1.0, 2.0], [1.0, 0.0])
    2.0
    >>> recovery_error([1.0, 2.0], [0.0, 0.0], norm="l1")
    3.0
    """
    difference = np.subtract(w, reference, dtype=np.float64).reshape(-1)
    return float(np.linalg.norm(difference, 1 if norm == "l1" else 2))
