"""Minimisation over as many coordinates as there are examples, if there are fewer examples than features.

The loss of a linear model depends on W only through X W, so outside the span of the examples only the quadratic and
linear terms act, and the minimiser is known. With X = L Q', where Q has orthonormal columns::

    W = Q V + W_,   V ~ argmin f_L(V) - <Q' shift, V> + penalty/2 ||V - Q' center||^2,
                    W_ = (I - QQ') (shift + penalty center) / (l2 + penalty)

This is exact, and reduces the cost of each product by the factor n/d. The gradient of the result is computed with the
client's original features, so that its norm remains a valid certificate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.engines.minimisers.problem import LocalProblem, once
from flwr_fco.objectives._linear import LinearModel
from flwr_fco.objectives.design import SparseDesign

#: Smallest number of features per example; with fewer there is little to gain.
FEWEST_FEATURES = 2
#: Largest number of examples for which factorising the features costs less than it saves.
MOST_EXAMPLES = 2048


class RowSpace(NamedTuple):
    """The span of a client's examples.

    Parameters
    ----------
    objective : LinearModel
        The loss in the coordinates V.
    basis : ndarray of float64, shape (d, n)
        Q; a csr_array if the features are sparse.
    """

    objective: LinearModel
    basis: Any

    def coordinates(self, theta: Vector | None) -> Vector | None:
        """Return a point's Q' W, and its intercepts unchanged."""
        if theta is None:
            return None
        weights, intercepts = self._split(theta)
        return np.append((self.basis.T @ weights).reshape(-1), intercepts)

    def point(self, coordinates: Vector, outside: Vector) -> Vector:
        """Return W = Q V + (I - QQ') times another point, and the intercepts of V.

        Parameters
        ----------
        coordinates : ndarray of float64
            V.
        outside : ndarray of float64, shape (d,)
            The other point.
        """
        outputs = self.objective.num_outputs
        size = self.basis.shape[1] * outputs
        inner = coordinates[:size].reshape(-1, outputs)
        weights, _ = self._split(outside)
        weights = weights + self.basis @ (inner - self.basis.T @ weights)
        return np.append(weights.reshape(-1), coordinates[size:])

    def _split(self, theta: Vector) -> tuple[NDArray[np.float64], Vector]:
        size = self.basis.shape[0] * self.objective.num_outputs
        return theta[:size].reshape(-1, self.objective.num_outputs), theta[size:]


def row_space(problem: LocalProblem) -> RowSpace | None:
    """Return the span of the examples, computed once per objective; None if it does not reduce the cost."""
    objective = problem.objective
    data = objective.linear_data()
    if data is None or data.link == "identity" or not isinstance(objective, LinearModel):
        return None
    n, d = data.design.shape
    if n * FEWEST_FEATURES > d or n > MOST_EXAMPLES or not data.l2 + problem.penalty > 0.0:
        return None

    design = data.design
    if isinstance(design, SparseDesign) and n * n > design.matrix.nnz:
        # Products with an n x n matrix would take longer than products with the non-zeros.
        return None

    def space() -> RowSpace:
        if isinstance(design, SparseDesign):
            from scipy.sparse import csr_array

            inner, factor = np.linalg.qr(design.compact.matrix.toarray().T.astype(np.float64))
            width = inner.shape[1]
            ends = np.zeros(d + 1, dtype=np.int64)
            ends[design.columns + 1] = width
            parts = (inner.reshape(-1), np.tile(np.arange(width), inner.shape[0]), np.cumsum(ends))
            return RowSpace(objective.with_features(factor.T), csr_array(parts, shape=(d, width)))
        basis, factor = np.linalg.qr(design.matrix.T.astype(np.float64))
        return RowSpace(objective.with_features(factor.T), basis)

    return once(objective, "row space", space)
