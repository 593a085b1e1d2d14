"""Bilinear saddle points, of vectors and of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.bilinear import add_both_products
from flwr_fco.objectives.saddle.base import NoisyOperator, as_matrix


class BilinearSaddle(NoisyOperator):
    """The bilinear saddle function f(x, y) = <A x - b, y>, of vectors or of matrices.

    Its operator is (A' y, b - A x). With matrices <A X - B, Y> = Tr((A X - B)' Y).

    Parameters
    ----------
    matrix : array-like, shape (n, m)
        A. Clients with the same float64 array share its memory.
    offset : array-like, shape (n,) or (n, p), optional
        b; its shape determines whether the players are vectors or matrices with p columns. 0 by default.
    noise : float, default 0.0
        Standard deviation of the Gaussian noise in each coordinate of a query with a batch size.
    num_examples : int, default 1
        The client's weight in pooled means.

    Attributes
    ----------
    layout : Layout
        ``x`` of shape (m,) or (m, p), minimised, then ``y`` of the shape of the offset, maximised.

    Raises
    ------
    ConfigurationError
        If shapes do not match, a number is not finite, or the noise is negative.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), section 6, appendices A.1 and A.2.

    Examples
    --------
    >>> import numpy as np
    >>> objective = BilinearSaddle([[2.0, 0.0], [0.0, 1.0]], [1.0, 0.0])
    >>> objective.value(np.array([1.0, 1.0, 3.0, 0.0])), objective.gradient(np.array([1.0, 1.0, 3.0, 0.0]))
    (3.0, array([ 6.,  0., -1., -1.]))
    """

    def __init__(
        self, matrix: ArrayLike, offset: ArrayLike | None = None, *, noise: float = 0.0, num_examples: int = 1
    ) -> None:
        self.matrix = as_matrix(self, "matrix", matrix, (None, None))
        rows, columns = self.matrix.shape
        vector = np.zeros(rows) if offset is None else np.asarray(offset)
        self.offset = as_matrix(self, "offset", vector, (rows, None) if vector.ndim == 2 else (rows,))
        self._set_players({"x": (columns, *self.offset.shape[1:])}, {"y": self.offset.shape})
        self._set_operator(self.matrix, noise, num_examples)

    def value(self, w: Vector) -> float:
        """Return <A x - b, y>."""
        x, y = self.players(w)
        return float(np.vdot(self.matrix @ x - self.offset, y))

    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale (A' y, b - A x); for vectors in one pass over the matrix."""
        (x, y), (towards_x, towards_y) = self.players(w), self.players(out)
        towards_y += scale * self.offset
        if x.ndim == 1:
            add_both_products(self.matrix, y, x, -scale, scale, towards_y, towards_x)
        else:
            towards_x += scale * (self.matrix.T @ y)
            towards_y -= scale * (self.matrix @ x)

    def players(self, w: Vector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return views of x and y in a point of shape (layout.size,)."""
        shape = self.offset.shape
        return w[: self.split].reshape(-1, *shape[1:]), w[self.split :].reshape(shape)

    @classmethod
    def pooled(cls, objectives: Sequence[BilinearSaddle], shares: ArrayLike) -> BilinearSaddle:
        """Return the mean of the clients' functions, which is also bilinear, without noise.

        Parameters
        ----------
        objectives : sequence of BilinearSaddle
            The clients' functions.
        shares : array-like, shape (num_clients,)
            The weights p_m, which sum to 1.
        """
        first, weights = objectives[0], np.asarray(shares, dtype=np.float64)
        if all(objective.matrix is first.matrix and objective.offset is first.offset for objective in objectives):
            return cls(first.matrix, first.offset)
        return cls(
            np.asarray(sum(p * objective.matrix for p, objective in zip(weights, objectives, strict=True))),
            np.asarray(sum(p * objective.offset for p, objective in zip(weights, objectives, strict=True))),
        )
