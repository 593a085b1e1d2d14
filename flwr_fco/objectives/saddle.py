"""Saddle-point objectives min over x, max over y of f(x, y); their gradient is the operator (grad_x f, -grad_y f)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, checked, of_type
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_both_products
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import as_numbers
from flwr_fco.work import FirstOrder


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
    >>> game = BilinearSaddle([[1.0, -1.0], [-1.0, 1.0]])
    >>> isinstance(game, SaddleObjective), game.split, game.layout.names
    (True, 2, ('x', 'y'))
    """

    monotone: ClassVar[bool] = True
    split: int
    #: The objective for user-defined functions: :class:`FunctionSaddle`.
    from_functions: ClassVar[type[FunctionSaddle]]

    def _set_players(self, x: int | Sequence[int], y: int | Sequence[int]) -> None:
        """Set two players of one array each, on both of which the regularizer acts."""
        self.layout = Layout.from_arrays({"x": np.empty(x), "y": np.empty(y)}, apply_to=("x", "y"))
        self.split = self.layout["y"].offset

    @property
    def ascends(self) -> slice:  # type: ignore[override]
        """The entries of y in the flat vector."""
        return slice(self.split, None)


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
        If a gradient or `value` is no function, `lipschitz` not a finite number >= 0, or `num_examples` not a whole
        number >= 1. When called: if a gradient does not have its player's shape.

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
        for name, function in {"grad_x": grad_x, "grad_y": grad_y, "value": value or grad_x}.items():
            if not callable(function):
                raise ConfigurationError(f"{name} is {of_type(function)}; expected a function of x and y")
        self._gradients = (grad_x, grad_y)
        self._value = value
        self._lipschitz: float | None = checked("lipschitz", lipschitz, float | None, NON_NEGATIVE)
        self.minibatch = minibatch
        self.num_examples = checked("num_examples", num_examples, int, AT_LEAST_ONE)
        self._set_players(x, y)

    def value(self, w: Vector) -> float:
        """Return f(x, y).

        Raises
        ------
        ConfigurationError
            If `value` was not given.
        """
        if self._value is None:
            self._does_not_know("its value", "give value=, a function of x and y, to from_functions")
        return float(self._value(*self._players(w)))

    def gradient(self, w: Vector, batch: NDArray[np.int64] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator (grad_x f, -grad_y f) at the point (x, y); a batch is row numbers."""
        self._check(w)
        out = np.empty(self.layout.size) if out is None else out
        rows = (batch,) if self.minibatch else ()
        for function, (name, result) in zip(self._gradients, self.layout.views(out).items(), strict=True):
            gradient = np.asarray(function(*self._players(w), *rows))
            if gradient.shape != result.shape:
                raise ConfigurationError(f"grad_{name} returned shape {gradient.shape}; expected {result.shape}")
            result[...] = gradient
        out[self.split :] *= -1.0
        return out

    def _players(self, w: Vector) -> tuple[NDArray[np.float64], ...]:
        """Return copies of x and y, so that a function that changes them does not change the solver's point."""
        return tuple(self.layout.views(w.copy()).values())

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield the row numbers of each query of a round; None if the functions do not take any."""
        return super().batches(rng, work, per_step) if self.minibatch else repeat(None, work.num_draws(1, per_step))

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the given Lipschitz constant, which is for the l2 norm."""
        return super().lipschitz(norm) if norm != "l2" or self._lipschitz is None else self._lipschitz

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return f as ``loss`` if it is known, and the Euclidean norm of the operator."""
        metrics = {"operator-norm": float(np.linalg.norm(self.gradient(w)))}
        return metrics if self._value is None else {"loss": self.value(w), **metrics}


SaddleObjective.from_functions = FunctionSaddle


class BilinearSaddle(SaddleObjective):
    """The bilinear saddle function f(x, y) = <A x - b, y>, of vectors or of matrices.

    Its operator is (A' y, b - A x). With matrices <A X - B, Y> = Tr((A X - B)' Y). A matrix game x' P y is
    ``BilinearSaddle(P.T)`` with both players on simplices, by the geometry or by psi.

    A batch is a draw of the noise: a standard normal number for each coordinate. A query has this noise whatever its
    ``batch_size``; ``batch_size=None`` gives the exact operator without any draw. A subclass with another linear
    operator overrides :meth:`add_operator`, :meth:`value` and the attribute `operator`.

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
        self.matrix = _finite("matrix", matrix, 2)
        rows, columns = self.matrix.shape
        self.offset = np.zeros(rows) if offset is None else _finite("offset", offset, 1, 2)
        if len(self.offset) != rows:
            raise ConfigurationError(f"offset has shape {self.offset.shape}; expected {rows} rows, as the matrix has")
        self._set_players((columns, *self.offset.shape[1:]), self.offset.shape)
        #: The matrix of the operator's linear part, up to signs and transposes; for its Lipschitz constants.
        self.operator = self.matrix
        self.noise = checked("noise", noise, float, NON_NEGATIVE)
        self.num_examples = checked("num_examples", num_examples, int, AT_LEAST_ONE)

    def value(self, w: Vector) -> float:
        """Return <A x - b, y>."""
        x, y = self.players(w)
        return float(np.vdot(self.matrix @ x - self.offset, y))

    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale (A' y, b - A x); for vectors in one pass over the matrix."""
        (x, y), (towards_x, towards_y) = self.players(w), self.players(out)
        if x.ndim == 1:
            towards_y += scale * self.offset
            add_both_products(self.matrix, x, y, scale, towards_x, towards_y)
            return
        with np.errstate(over="ignore", invalid="ignore"):
            towards_x += scale * (self.matrix.T @ y)
            towards_y -= scale * (self.matrix @ x - self.offset)

    def players(self, w: Vector) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return views of x and y in a point of shape (layout.size,)."""
        shape = self.offset.shape
        return w[: self.split].reshape(-1, *shape[1:]), w[self.split :].reshape(shape)

    def add_gradient(self, w: Vector, batch: NDArray[Any] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator to `out` in place, which may be `w`.

        A batch is a draw from :meth:`batches`; None for the exact operator.
        """
        self._check(w)
        self.add_operator(w.copy() if out is w else w, scale, out)
        if batch is not None:
            out += (scale * self.noise) * batch

    def gradient(self, w: Vector, batch: NDArray[Any] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator, with a draw of the noise from :meth:`batches`, or without any."""
        out = np.empty(self.layout.size) if out is None else out
        out[:] = 0.0
        self.add_gradient(w, batch, 1.0, out)
        return out

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield a draw of the noise for each query of a round; None if there is no noise. An epoch is one query."""
        for _ in range(work.num_draws(1, per_step)):
            exact = work.batch_size is None or self.noise == 0.0
            yield None if exact else rng.standard_normal(self.layout.size)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant of the operator: the spectral norm, or largest entry, of its matrix."""
        checked("norm", norm, Literal["l2", "l1"])
        return float(np.linalg.norm(self.operator, 2) if norm == "l2" else np.abs(self.operator).max())

    def strong_convexity(self) -> float:
        """Return 0, because a bilinear function is neither strongly convex in x nor strongly concave in y."""
        return 0.0


def _finite(name: str, value: ArrayLike, *dimensions: int) -> NDArray[np.float64]:
    """Return an argument as a C-contiguous float64 array of finite numbers, with one of these numbers of dimensions."""
    if np.ndim(value) not in dimensions or not np.size(value):
        wanted = " or ".join(map(str, dimensions))
        raise ConfigurationError(f"{name} has shape {np.shape(value)}; expected numbers in {wanted} dimensions")
    return as_numbers(name, value, np.shape(value))
