"""The contract of a saddle-point objective f(x, y), to be minimised over x and maximised over y."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.work import FirstOrder

if TYPE_CHECKING:
    from flwr_fco.objectives.saddle.functions import FunctionSaddle

__all__ = ["NoisyOperator", "SaddleObjective"]

#: A player's arrays: names and shapes.
Player = Mapping[str, Sequence[int]]


class SaddleObjective(Objective):
    """A smooth saddle function f(x, y) of a client, to be minimised over x and maximised over y.

    :meth:`value` is f. :meth:`gradient` is not its gradient but the operator

        g(x, y) = (grad_x f(x, y), -grad_y f(x, y)),

    so that every local solver that steps against a gradient descends for x and ascends for y, unchanged. With
    regularizers the problem is min_x max_y f(x, y) + psi_1(x) - psi_2(y): psi is the sum psi_1(x) + psi_2(y) of the
    players' own convex functions, ``PerParameter({"x": psi_1, "y": psi_2})``, and enters the maximising player's side
    with a minus. Geometries are ``Product({"x": ..., "y": ...})``.

    A player is one or more named arrays; the minimising player's come first in the flat vector.

    Attributes
    ----------
    layout : Layout
        The arrays of x, then those of y.
    split : int
        Where y begins in the flat vector (x, y).
    num_examples : int
        The client's weight in pooled means.
    monotone : bool
        Whether f is convex in x and concave in y, so that <g(u) - g(v), u - v> >= 0 for all u, v.
    """

    monotone: ClassVar[bool] = True
    split: int

    @staticmethod
    def from_functions(
        grad_x: Callable[..., NDArray[Any]],
        grad_y: Callable[..., NDArray[Any]],
        *,
        x: int | Sequence[int],
        y: int | Sequence[int],
        value: Callable[[Any, Any], float] | None = None,
        num_examples: int = 1,
        minibatch: bool = False,
        lipschitz: float | None = None,
    ) -> FunctionSaddle:
        """Return the objective of your own functions; see :class:`FunctionSaddle`.

        Parameters
        ----------
        grad_x, grad_y : callable
            The partial gradients of f at (x, y), arrays of the shapes of x and y. Both are gradients of f itself: the
            sign of the maximising player is changed here.
        x, y : int or sequence of int
            Shapes of the two players.
        value : callable, optional
            f(x, y).
        num_examples : int, default 1
            The client's weight in pooled means; with `minibatch` the rows that minibatches are drawn from.
        minibatch : bool, default False
            Whether `grad_x` and `grad_y` take row numbers (None: all rows) as a third argument.
        lipschitz : float, optional
            Lipschitz constant of the operator in the l2 norm.

        Returns
        -------
        FunctionSaddle

        Examples
        --------
        >>> import numpy as np
        >>> objective = SaddleObjective.from_functions(lambda x, y: y, lambda x, y: x, x=1, y=1)
        >>> objective.gradient(np.array([2.0, 3.0]))
        array([ 3., -2.])
        """
        from flwr_fco.objectives.saddle.functions import FunctionSaddle

        return FunctionSaddle(
            grad_x, grad_y, x=x, y=y, value=value, num_examples=num_examples, minibatch=minibatch, lipschitz=lipschitz
        )

    @property
    def min_arrays(self) -> tuple[str, ...]:
        """Names of the minimising player's arrays."""
        return tuple(entry.name for entry in self.layout.optimized if entry.offset < self.split)

    @property
    def max_arrays(self) -> tuple[str, ...]:
        """Names of the maximising player's arrays."""
        return tuple(entry.name for entry in self.layout.optimized if entry.offset >= self.split)

    def _set_players(self, x: Player, y: Player, apply_to: Sequence[str] | None = None) -> None:
        """Describe the players' arrays; the regularizer acts on all of them unless `apply_to` names some."""
        arrays = {name: np.empty(tuple(shape)) for player in (x, y) for name, shape in player.items()}
        self.layout = Layout.from_arrays(arrays, apply_to=tuple(arrays) if apply_to is None else tuple(apply_to))
        self.split = self.layout[next(iter(y))].offset

    @property
    def ascends(self) -> slice:  # type: ignore[override]
        """Which entries of the flat vector are y."""
        return slice(self.split, None)

    def _check(self, w: Vector) -> None:
        if w.shape != (self.layout.size,):
            raise ConfigurationError(
                f"the vector has shape {w.shape}, expected ({self.layout.size},): {self.layout!r}. "
                "layout.flatten(arrays) builds it from named arrays."
            )


class NoisyOperator(SaddleObjective):
    """A saddle function known in full, whose operator can be asked for with Gaussian noise.

    A batch is a draw of the noise: one standard normal number per coordinate. Whatever its ``batch_size``, a query gets
    noise of standard deviation `noise`; ``batch_size=None`` (and ``noise=0``) asks for the exact operator and draws
    nothing. Subclasses implement :meth:`add_operator`.

    Attributes
    ----------
    noise : float
        Standard deviation of the noise in each coordinate of a query.
    """

    noise: float = 0.0
    num_examples = 1

    @abstractmethod
    def add_operator(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale times the exact operator (grad_x f, -grad_y f) to `out`, which is not `w`.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        scale : float
        out : ndarray of float64, shape (layout.size,)
        """

    def gradient(self, w: Vector, batch: NDArray[Any] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator (grad_x f, -grad_y f), plus noise times a draw.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point (x, y).
        batch : ndarray of float64, shape (layout.size,), optional
            A draw of :meth:`batches`; none by default: the exact operator.
        out : ndarray, optional
            Where to write the result; must not be `w`.

        Returns
        -------
        ndarray of float64, shape (layout.size,)
        """
        if out is None:
            out = np.zeros(self.layout.size)
        else:
            out[:] = 0.0
        self.add_gradient(w, batch, 1.0, out)
        return out

    def add_gradient(self, w: Vector, batch: NDArray[Any] | None, scale: float, out: Vector) -> None:
        """Add scale times the operator to `out` in place.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        batch : ndarray of float64, shape (layout.size,), or None
            A draw of :meth:`batches`; None: the exact operator.
        scale : float
        out : ndarray of float64, shape (layout.size,)
            May be `w`.
        """
        self._check(w)
        self.add_operator(w.copy() if out is w else w, scale, out)
        if batch is not None:
            out += (scale * self.noise) * batch

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield a draw of the noise for each query of a round; None where there is no noise.

        Parameters
        ----------
        rng : numpy.random.Generator
        work : FirstOrder
            An epoch is one query.
        per_step : int, default 1
            Queries that a step takes.
        """
        for _ in range(work.num_draws(self.num_examples, per_step)):
            exact = work.batch_size is None or self.noise == 0.0
            yield None if exact else rng.standard_normal(self.layout.size)

    def _set_noise(self, noise: float, num_examples: int) -> None:
        if isinstance(noise, bool) or not 0.0 <= float(noise) < np.inf:
            raise ConfigurationError(f"noise={noise!r}; expected a finite number >= 0, a standard deviation")
        self.noise = float(noise)
        self.num_examples = check_examples(num_examples)


def check_examples(num_examples: int) -> int:
    """Return a number of examples, or raise unless it is a whole number >= 1."""
    if isinstance(num_examples, bool) or not isinstance(num_examples, int | np.integer) or num_examples < 1:
        raise ConfigurationError(f"num_examples={num_examples!r}; expected a whole number >= 1, the client's weight")
    return int(num_examples)


def as_matrix(owner: object, name: str, given: Any, shape: tuple[int | None, ...]) -> NDArray[np.float64]:
    """Return an argument as a C-contiguous float64 array of finite numbers and of a shape (None: any size > 0)."""
    array = np.asarray(given)
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
