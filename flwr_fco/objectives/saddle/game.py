"""Matrix games: two players, each with a probability distribution over moves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.bilinear import add_both_products
from flwr_fco.objectives.saddle.base import NoisyOperator, as_matrix


class MatrixGame(NoisyOperator):
    """The matrix game f(x, y) = x' P y: the row player x pays the column player y.

    Its operator is (P y, -P' x). Its :meth:`lipschitz` in the l1 norm, the largest |P_ij|, is also the constant for
    ||(x, y)||^2 = ||x||_1^2 + ||y||_1^2, in which the product of two simplex entropies is 1-strongly convex.

    Both players' arrays are distributions. The simplex is imposed by the geometry, ``Product({"*": SimplexEntropy()})``
    (multiplicative weight updates), or by the regularizer, ``PerParameter({"*": Simplex()})`` (Euclidean projections).

    Parameters
    ----------
    payoff : array-like, shape (rows, columns)
        P, the row player's payments.
    noise : float, default 0.0
        Standard deviation of the Gaussian noise in each coordinate of a query with a batch size.
    num_examples : int, default 1
        The client's weight in pooled means.

    Attributes
    ----------
    layout : Layout
        ``x`` of shape (rows,), minimised, then ``y`` of shape (columns,), maximised.

    Raises
    ------
    ConfigurationError
        If the payoff is not a matrix of finite numbers, or the noise is negative.

    Examples
    --------
    >>> import numpy as np
    >>> pennies = MatrixGame([[1.0, -1.0], [-1.0, 1.0]])
    >>> pennies.value(np.array([1.0, 0.0, 0.5, 0.5])), pennies.gradient(np.array([1.0, 0.0, 0.5, 0.5]))
    (0.0, array([ 0.,  0., -1.,  1.]))
    """

    def __init__(self, payoff: ArrayLike, *, noise: float = 0.0, num_examples: int = 1) -> None:
        self.payoff = as_matrix(self, "payoff", payoff, (None, None))
        rows, columns = self.payoff.shape
        self._set_players({"x": (rows,)}, {"y": (columns,)})
        self._set_operator(self.payoff, noise, num_examples)

    def value(self, w: Vector) -> float:
        """Return x' P y, the row player's expected payment."""
        return float(w[: self.split] @ self.payoff @ w[self.split :])

    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale (P y, -P' x), in one pass over the payoff."""
        split = self.split
        add_both_products(self.payoff, w[:split], w[split:], scale, -scale, out[:split], out[split:])

    @classmethod
    def pooled(cls, objectives: Sequence[MatrixGame], shares: ArrayLike) -> MatrixGame:
        """Return the game of the clients' mean payoff, without noise.

        Parameters
        ----------
        objectives : sequence of MatrixGame
            The clients' functions.
        shares : array-like, shape (num_clients,)
            The weights p_m, which sum to 1.
        """
        weights = np.asarray(shares, dtype=np.float64)
        return cls(np.asarray(sum(p * objective.payoff for p, objective in zip(weights, objectives, strict=True))))
