"""Quadratic saddle points, strongly convex and strongly concave, with exactly known solutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.saddle.base import NoisyOperator, as_matrix


class QuadraticSaddle(NoisyOperator):
    """The quadratic saddle function f(x, y) = 1/2 x'P x + <a, x> + <A x - b, y> - 1/2 y'Q y.

    Its operator is affine, (P x + A' y + a, Q y - A x + b).

    Parameters
    ----------
    convexity : array-like, shape (m, m)
        P, symmetric and positive semidefinite.
    coupling : array-like, shape (n, m)
        A.
    concavity : array-like, shape (n, n)
        Q, symmetric and positive semidefinite.
    linear : array-like, shape (m,), optional
        a; 0 by default.
    offset : array-like, shape (n,), optional
        b; 0 by default.
    noise : float, default 0.0
        Standard deviation of the Gaussian noise in each coordinate of a query with a batch size.
    num_examples : int, default 1
        The client's weight in pooled means.

    Attributes
    ----------
    layout : Layout
        ``x`` of shape (m,), minimised, then ``y`` of shape (n,), maximised.

    Raises
    ------
    ConfigurationError
        If shapes do not match, a number is not finite, P or Q is not symmetric and positive semidefinite, or the noise
        is negative.

    Examples
    --------
    >>> objective = QuadraticSaddle([[2.0]], [[1.0]], [[1.0]], linear=[-3.0])
    >>> objective.solution, objective.gradient(objective.solution)
    (array([1., 1.]), array([0., 0.]))
    """

    def __init__(
        self,
        convexity: ArrayLike,
        coupling: ArrayLike,
        concavity: ArrayLike,
        *,
        linear: ArrayLike | None = None,
        offset: ArrayLike | None = None,
        noise: float = 0.0,
        num_examples: int = 1,
    ) -> None:
        self.coupling = as_matrix(self, "coupling", coupling, (None, None))
        rows, columns = self.coupling.shape
        self.convexity = as_matrix(self, "convexity", convexity, (columns, columns))
        self.concavity = as_matrix(self, "concavity", concavity, (rows, rows))
        self.linear = as_matrix(self, "linear", np.zeros(columns) if linear is None else linear, (columns,))
        self.offset = as_matrix(self, "offset", np.zeros(rows) if offset is None else offset, (rows,))
        self._least = min(_least_curvature("convexity", self.convexity), _least_curvature("concavity", self.concavity))
        jacobian = np.block([[self.convexity, self.coupling.T], [-self.coupling, self.concavity]])
        self._constant = np.concatenate([self.linear, self.offset])
        self._set_players({"x": (columns,)}, {"y": (rows,)})
        self._set_operator(jacobian, noise, num_examples)

    def value(self, w: Vector) -> float:
        """Return f(x, y)."""
        x, y = w[: self.split], w[self.split :]
        curved = 0.5 * (x @ self.convexity @ x - y @ self.concavity @ y)
        return float(curved + self.linear @ x + (self.coupling @ x - self.offset) @ y)

    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale (P x + A' y + a, Q y - A x + b)."""
        out += scale * (self._operator @ w + self._constant)

    @cached_property
    def solution(self) -> Vector:
        """The saddle point (x, y), at which the operator is 0.

        Raises
        ------
        ConfigurationError
            If P, Q and A do not determine a unique saddle point.
        """
        try:
            return np.asarray(np.linalg.solve(self._operator, -self._constant))
        except np.linalg.LinAlgError as error:
            raise ConfigurationError(
                "the quadratic has no unique saddle point: its operator's matrix is singular. Make convexity and "
                "concavity positive definite"
            ) from error

    def strong_convexity(self) -> float:
        """Return the modulus of strong monotonicity: the smaller of the smallest eigenvalues of P and Q."""
        return self._least

    @classmethod
    def pooled(cls, objectives: Sequence[QuadraticSaddle], shares: ArrayLike) -> QuadraticSaddle:
        """Return the mean of the clients' functions, which is also quadratic, without noise.

        Parameters
        ----------
        objectives : sequence of QuadraticSaddle
            The clients' functions.
        shares : array-like, shape (num_clients,)
            The weights p_m, which sum to 1.
        """
        weights = np.asarray(shares, dtype=np.float64)

        def mean(name: str) -> Vector:
            return np.asarray(
                sum(p * getattr(objective, name) for p, objective in zip(weights, objectives, strict=True))
            )

        return cls(mean("convexity"), mean("coupling"), mean("concavity"), linear=mean("linear"), offset=mean("offset"))


def _least_curvature(name: str, matrix: Vector) -> float:
    """Return the smallest eigenvalue of a matrix; raise unless it is symmetric and positive semidefinite."""
    scale = float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-12 * scale):
        raise ConfigurationError(f"QuadraticSaddle({name}=...) is not symmetric; give 1/2 (matrix + matrix.T)")
    least = float(np.linalg.eigvalsh(matrix)[0])
    if least < -1e-10 * scale:
        raise ConfigurationError(
            f"QuadraticSaddle({name}=...) has the eigenvalue {least:g}; expected a positive semidefinite matrix: f is "
            "convex in x and concave in y"
        )
    return max(least, 0.0)
