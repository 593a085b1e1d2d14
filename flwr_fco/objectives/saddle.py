"""Saddle-point objectives min over x, max over y of f(x, y); their gradient is the operator (grad_x f, -grad_y f)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_adversarial_operator, softmax_slopes
from flwr_fco.kernels.passes import add_both_products
from flwr_fco.objectives.base import Objective, gradient_from_zeros
from flwr_fco.objectives.classification import MultinomialLogistic
from flwr_fco.objectives.design import SparseDesign
from flwr_fco.work import FirstOrder

#: A player's arrays: names and shapes.
Player = Mapping[str, Sequence[int]]


class SaddleObjective(Objective):
    """A client's smooth saddle function f(x, y), to be minimised over x and maximised over y.

    :meth:`value` is f. :meth:`gradient` is not its gradient but the operator

        g(x, y) = (grad_x f(x, y), -grad_y f(x, y)),

    so that any local solver that steps against a gradient descends in x and ascends in y without changes. With
    regularizers the problem is min_x max_y f(x, y) + psi_1(x) - psi_2(y): psi is the sum psi_1(x) + psi_2(y) of the
    players' own convex functions, ``PerParameter({"x": psi_1, "y": psi_2})``, and the maximising player's part enters
    with a minus sign. Geometries are ``Product({"x": ..., "y": ...})``.

    A player has one or more named arrays; the minimising player's arrays come first in the flat vector.

    Attributes
    ----------
    layout : Layout
        The arrays of x, then the arrays of y.
    split : int
        Index of the start of y in the flat vector (x, y).
    num_examples : int
        The client's weight in pooled means.
    monotone : bool
        Whether f is convex in x and concave in y, so that <g(u) - g(v), u - v> >= 0 for all u, v.

    Examples
    --------
    >>> import numpy as np
    >>> game = MatrixGame([[1.0, -1.0], [-1.0, 1.0]])
    >>> isinstance(game, SaddleObjective), game.split, game.min_arrays, game.max_arrays
    (True, 2, ('x',), ('y',))
    """

    monotone: ClassVar[bool] = True
    split: int
    #: The objective for user-defined functions: :class:`FunctionSaddle`.
    from_functions: ClassVar[type[FunctionSaddle]]

    @property
    def min_arrays(self) -> tuple[str, ...]:
        """Names of the minimising player's arrays."""
        return tuple(entry.name for entry in self.layout.optimized if entry.offset < self.split)

    @property
    def max_arrays(self) -> tuple[str, ...]:
        """Names of the maximising player's arrays."""
        return tuple(entry.name for entry in self.layout.optimized if entry.offset >= self.split)

    def _set_players(self, x: Player, y: Player, apply_to: Sequence[str] | None = None) -> None:
        """Set the players' arrays; the regularizer acts on all of them unless `apply_to` selects some."""
        arrays = {name: np.empty(tuple(shape)) for player in (x, y) for name, shape in player.items()}
        self.layout = Layout.from_arrays(arrays, apply_to=tuple(arrays) if apply_to is None else tuple(apply_to))
        self.split = self.layout[next(iter(y))].offset

    @property
    def ascends(self) -> slice:  # type: ignore[override]
        """The entries of y in the flat vector."""
        return slice(self.split, None)


class NoisyOperator(SaddleObjective):
    """A saddle function with an exactly known linear operator, to which Gaussian noise can be added.

    A batch is a draw of the noise: one standard normal number per coordinate. A query has noise of standard deviation
    `noise`, whatever its ``batch_size``; ``batch_size=None`` (or ``noise=0``) gives the exact operator without any
    draw. Subclasses implement :meth:`add_operator`.

    Attributes
    ----------
    noise : float
        Standard deviation of the noise in each coordinate of a query.
    """

    noise: float = 0.0
    num_examples = 1

    @abstractmethod
    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale times the exact operator (grad_x f, -grad_y f) to `out`, which is not `w`."""

    def add_gradient(self, w: Vector, batch: NDArray[Any] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator to `out` in place, which may be `w`.

        A batch is a draw from :meth:`batches`; None for the exact operator.
        """
        self._check(w)
        self.add_operator(w.copy() if out is w else w, scale, out)
        if batch is not None:
            out += (scale * self.noise) * batch

    gradient = gradient_from_zeros(add_gradient)

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield a draw of the noise for each query of a round; None if there is no noise. An epoch is one query."""
        for _ in range(work.num_draws(self.num_examples, per_step)):
            exact = work.batch_size is None or self.noise == 0.0
            yield None if exact else rng.standard_normal(self.layout.size)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant of the operator: the spectral norm, or largest entry, of its matrix."""
        if norm == "l1":
            return float(np.abs(self._operator).max())
        if norm == "l2":
            return self._spectral_norm
        raise ConfigurationError(f"norm={norm!r}; expected 'l2' or 'l1'")

    @cached_property
    def _spectral_norm(self) -> float:
        return float(np.linalg.norm(self._operator, 2))

    def strong_convexity(self) -> float:
        """Return 0, because a bilinear function is neither strongly convex in x nor strongly concave in y."""
        return 0.0

    def _set_operator(self, matrix: NDArray[np.float64], noise: float, num_examples: int) -> None:
        """Set the matrix of the operator's linear part, the noise and the client's weight."""
        self._operator = matrix
        self.noise = checked("noise", noise, float, NON_NEGATIVE)
        self.num_examples = checked("num_examples", num_examples, int, AT_LEAST_ONE)


def as_matrix(owner: object, name: str, value: Any, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
    """Return an argument as a C-contiguous float64 array of finite numbers of a given shape (None: any size > 0)."""
    array = np.asarray(value)
    fits = array.ndim == len(shape) and all(
        size > 0 and (wanted is None or size == wanted) for size, wanted in zip(array.shape, shape, strict=False)
    )
    if array.dtype.kind not in "fiub" or not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ConfigurationError(
            f"{type(owner).__name__}({name}=...) has shape {array.shape} and dtype {array.dtype}; expected numbers of "
            f"shape ({wanted})"
        )
    result = np.ascontiguousarray(array, dtype=np.float64)
    if not np.isfinite(result).all():
        raise ConfigurationError(
            f"{type(owner).__name__}({name}=...) holds NaN or infinite numbers; expected finite ones"
        )
    return result


def _mean(objectives: Sequence[Any], shares: ArrayLike, name: str) -> Vector:
    """Return the mean of an array of the clients."""
    weights = np.asarray(shares, dtype=np.float64)
    return np.asarray(sum(p * getattr(objective, name) for p, objective in zip(weights, objectives, strict=True)))


class FunctionSaddle(SaddleObjective):
    """A saddle function f(x, y) defined by its partial gradients.

    Parameters
    ----------
    grad_x, grad_y : callable
        ``grad_x(x, y)`` and ``grad_y(x, y)`` return the partial gradients of f, with the shapes of x and y. Both are
        gradients of f itself: this class changes the sign for the maximising player.
    x, y : int or sequence of int
        Shapes of the players' arrays.
    value : callable, optional
        ``value(x, y)`` returns f. Without it :meth:`value` raises and :meth:`metrics` returns only the operator's norm.
    num_examples : int, default 1
        The client's weight in pooled means; with `minibatch` also the number of rows that minibatches are drawn from.
    minibatch : bool, default False
        Whether `grad_x` and `grad_y` take row numbers (None: all rows) as a third argument. Otherwise every query uses
        the whole function, whatever the batch size.
    lipschitz : float, optional
        Lipschitz constant of the operator in the l2 norm.

    Attributes
    ----------
    layout : Layout
        ``x``, minimised, then ``y``, maximised.

    Raises
    ------
    ConfigurationError
        If a gradient or `value` is not callable, a shape is not made of whole numbers >= 1, or `lipschitz` is not a
        finite number >= 0. When called: if a gradient is not real or does not have its player's shape, or if `value`
        does not return a number.

    Examples
    --------
    >>> import numpy as np
    >>> objective = FunctionSaddle(
    ...     lambda x, y: x + y, lambda x, y: x - y, x=2, y=2, value=lambda x, y: 0.5 * (x @ x - y @ y) + x @ y
    ... )
    >>> objective.gradient(np.array([1.0, 2.0, 3.0, 4.0]))
    array([4., 6., 2., 2.])
    """

    def __init__(
        self,
        grad_x: Callable[..., NDArray[Any]],
        grad_y: Callable[..., NDArray[Any]],
        *,
        x: int | Sequence[int],
        y: int | Sequence[int],
        value: Callable[[Any, Any], float] | None = None,
        num_examples: int = 1,
        minibatch: bool = False,
        lipschitz: float | None = None,
    ) -> None:
        functions = {"grad_x": grad_x, "grad_y": grad_y, **({} if value is None else {"value": value})}
        for name, function in functions.items():
            if not callable(function):
                raise ConfigurationError(f"{name} is a {type(function).__name__}; expected a function of x and y")
        self._gradients, self._value = (grad_x, grad_y), value
        self._lipschitz: float | None = checked("lipschitz", lipschitz, float | None, NON_NEGATIVE)
        self.minibatch = minibatch
        self.num_examples = checked("num_examples", num_examples, int, AT_LEAST_ONE)
        self._set_players({"x": _shape("x", x)}, {"y": _shape("y", y)})

    def value(self, w: Vector) -> float:
        """Return f(x, y).

        Raises
        ------
        ConfigurationError
            If `value` was not given.
        """
        if self._value is None:
            raise ConfigurationError(
                "the value of this saddle function is not known: give value=, a function of x and y, to from_functions"
            )
        value = self._value(*self._players(w))
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"value returned a {type(value).__name__}; expected a number") from error

    def gradient(self, w: Vector, batch: NDArray[np.int64] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator (grad_x f, -grad_y f) at the point (x, y); a batch is row numbers."""
        self._check(w)
        out = np.empty(self.layout.size) if out is None else out
        rows = (batch,) if self.minibatch else ()
        for function, (name, result) in zip(self._gradients, self.layout.views(out).items(), strict=True):
            gradient = np.asarray(function(*self._players(w), *rows))
            if gradient.dtype.kind not in "fiub":
                # NumPy would drop imaginary parts and convert text to numbers.
                raise ConfigurationError(f"grad_{name} returned dtype {gradient.dtype}; expected real numbers")
            if gradient.shape != result.shape:
                raise ConfigurationError(
                    f"grad_{name} returned shape {gradient.shape}; expected {result.shape}, that of {name}"
                )
            result[...] = gradient
        out[self.split :] *= -1.0
        return out

    def _players(self, w: Vector) -> tuple[NDArray[np.float64], ...]:
        """Return copies of x and y, so that a function that changes them does not change the solver's point."""
        return tuple(self.layout.views(w.copy()).values())

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield the row numbers of each query of a round; None if the functions do not take any."""
        if self.minibatch:
            yield from super().batches(rng, work, per_step)
        else:
            yield from [None] * work.num_draws(1, per_step)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the given Lipschitz constant, which is for the l2 norm."""
        if norm != "l2" or self._lipschitz is None:
            return super().lipschitz(norm)
        return self._lipschitz

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return f as ``loss`` if it is known, and the Euclidean norm of the operator."""
        metrics = {"operator-norm": float(np.linalg.norm(self.gradient(w)))}
        return metrics if self._value is None else {"loss": self.value(w), **metrics}


SaddleObjective.from_functions = FunctionSaddle


def _shape(name: str, sizes: int | Sequence[int]) -> tuple[int, ...]:
    shape = tuple(sizes) if isinstance(sizes, Sequence | np.ndarray) else (sizes,)
    if any(isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1 for size in shape):
        raise ConfigurationError(f"{name}={sizes!r}; expected the shape of a player, whole numbers >= 1")
    return tuple(int(size) for size in shape)


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
        first = objectives[0]
        if all(objective.matrix is first.matrix and objective.offset is first.offset for objective in objectives):
            return cls(first.matrix, first.offset)
        return cls(_mean(objectives, shares, "matrix"), _mean(objectives, shares, "offset"))


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
        return cls(_mean(objectives, shares, "payoff"))


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
        names = ("convexity", "coupling", "concavity", "linear", "offset")
        *matrices, linear, offset = (_mean(objectives, shares, name) for name in names)
        return cls(*matrices, linear=linear, offset=offset)


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


class UniversalAdversarialLogistic(SaddleObjective):
    """Multinomial logistic regression against one perturbation of all examples, which is maximised.

    f(W, b, delta) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] with m_i = W'(x_i + delta) + b. The classifier (W, b)
    minimises f; the perturbation delta, which has the shape of an example and is the same for all examples, maximises
    it.

    Sign of the penalty on the perturbation: the paper prints max over delta of f + lambda ||delta||_1, which would
    reward large perturbations. A penalty that makes an attack sparse must be concave for the maximising player, so it
    enters as - lambda ||delta||_1. In this package psi is always the sum of the players' own convex functions and the
    problem is min max f + psi_1 - psi_2, so the penalty is written with a positive sign:
    ``PerParameter({"perturbation": L1(0.1, bound=0.05)})``, including the box |delta_j| <= 0.05.

    The loss is convex in delta, not concave: there may be no saddle point, and theorems about convex-concave functions
    do not apply. The loss, the accuracy and the operator's natural residual can be measured. Perturbed examples are not
    clipped to the range of the originals.

    Parameters
    ----------
    features : array-like, shape (n, d)
        float32 and float64 are used as they are, without a copy if C-contiguous.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes in the whole federation. By default one more than the largest label, if every class occurs.
    intercept : bool, default True
        Whether to fit an intercept b. The paper's model has none.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d, num_classes) and ``intercept`` of shape (num_classes,), minimised, then
        ``perturbation`` of shape (d,), maximised. The regularizer does not act on the intercept.

    Raises
    ------
    ConfigurationError
        As for :class:`flwr_fco.objectives.MultinomialLogistic`.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), section 6, appendix A.3; Shafahi et al.:
    Universal Adversarial Training (AAAI 2020).

    Examples
    --------
    >>> import numpy as np
    >>> objective = UniversalAdversarialLogistic(np.array([[1.0], [-1.0]]), [0, 1], intercept=False)
    >>> objective.layout
    Layout(coefficients[1, 2]*, perturbation[1]*; size 3, * regularized)
    >>> objective.gradient(np.array([2.0, 0.0, 0.5])).round(3)
    array([-0.103,  0.103, -0.222])
    """

    monotone: ClassVar[bool] = False

    def __init__(
        self, features: ArrayLike, labels: ArrayLike, *, num_classes: int | None = None, intercept: bool = True
    ) -> None:
        # A perturbation shifts every margin by W' delta, which is equivalent to another intercept.
        self._classifier = MultinomialLogistic(features, labels, num_classes=num_classes, intercept=True)
        self.num_classes, self.intercept = self._classifier.num_classes, intercept
        self.num_examples = self._classifier.num_examples
        self._shape = (self._classifier.layout["coefficients"].shape[0], self.num_classes)
        size = (self.num_classes,)
        classifier = {"coefficients": self._shape, "intercept": size} if intercept else {"coefficients": self._shape}
        self._set_players(classifier, {"perturbation": self._shape[:1]}, ("coefficients", "perturbation"))
        self._count = self._shape[0] * self.num_classes

    def value(self, w: Vector) -> float:
        """Return the mean cross entropy of the perturbed examples."""
        return self._classifier.value(self._shifted(w))

    def add_gradient(self, w: Vector, batch: NDArray[np.int64] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator (grad_W f, grad_b f, -grad_delta f) of the mean over a batch to `out` in place.

        With r_i = softmax(m_i) - e_{y_i} and r their mean it is (mean_i (x_i + delta) r_i', r, -W r). This takes two
        products with the examples, as many as plain multinomial logistic regression. A batch is row numbers; `out`
        may be `w`.
        """
        self._check(w)
        design = self._classifier.design
        rows, point = design.rows if batch is None else batch, w.copy() if out is w else w
        intercepts = self.num_classes if self.intercept else 0
        if isinstance(design, SparseDesign):
            self._add_sparse(point, rows, scale, out)
            return
        data = (design.matrix, self._classifier.labels, rows)
        add_adversarial_operator(*data, point, self.num_classes, intercepts, scale, out)

    def _add_sparse(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        """Add the operator for sparse examples, without forming the perturbed ones, which are dense."""
        design, perturbation = self._classifier.design, w[self.split :]
        slopes = design.predict(self._shifted(w), rows, self.num_classes)
        softmax_slopes(slopes, self._classifier.labels[rows], scale / rows.size)
        total, coefficients = slopes.sum(axis=0), w[: self._count].reshape(self._shape)
        design.add_rows(slopes, out[: self.split], rows)
        out[: self._count] += np.outer(perturbation, total).reshape(-1)
        out[self.split :] -= coefficients @ total

    gradient = gradient_from_zeros(add_gradient)

    def predict(self, w: Vector, *, perturbed: bool = True) -> NDArray[np.int64]:
        """Return the most likely class of each of the client's examples, as int64 of shape (num_examples,).

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        perturbed : bool, default True
            Whether the examples are perturbed.
        """
        return self._classifier.predict(self._shifted(w) if perturbed else self._clean(w))

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss`` and ``accuracy``, perturbed, and ``clean-loss`` and ``clean-accuracy`` of the originals."""
        attacked, clean = self._classifier.metrics(self._shifted(w)), self._classifier.metrics(self._clean(w))
        return {**attacked, **{f"clean-{name}": number for name, number in clean.items()}}

    def _clean(self, w: Vector) -> Vector:
        """Return the classifier's coefficients and intercept."""
        self._check(w)
        plain = np.zeros(self._count + self.num_classes)
        plain[: self.split] = w[: self.split]
        return plain

    def _shifted(self, w: Vector) -> Vector:
        """Return coefficients and the intercept shifted by the perturbation."""
        shifted = self._clean(w)
        shifted[self._count :] += w[self.split :] @ w[: self._count].reshape(self._shape)
        return shifted
