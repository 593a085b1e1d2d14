"""A saddle-point objective from the user's own partial gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.saddle.base import SaddleObjective, check_examples
from flwr_fco.work import FirstOrder

__all__ = ["FunctionSaddle"]


class FunctionSaddle(SaddleObjective):
    """A saddle function f(x, y) that is given by its partial gradients.

    Parameters
    ----------
    grad_x, grad_y : callable
        ``grad_x(x, y)`` and ``grad_y(x, y)`` return the partial gradients of f, of the shapes of x and of y. Both are
        gradients of f itself: the sign of the maximising player is changed here.
    x, y : int or sequence of int
        Shapes of the players.
    value : callable, optional
        ``value(x, y)`` returns f. Without it :meth:`value` is an error and :meth:`metrics` returns the operator's
        norm.
    num_examples : int, default 1
        The client's weight in pooled means; with `minibatch` the rows that minibatches are drawn from.
    minibatch : bool, default False
        Whether `grad_x` and `grad_y` take row numbers (None: all rows) as a third argument. Otherwise every query is
        for the whole function, whatever the batch size.
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
        finite number >= 0. When it is called: if a gradient is not real or not of its player's shape, or if `value`
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
        self._lipschitz: float | None = checked("lipschitz", lipschitz, float | None)
        if lipschitz is not None and not 0.0 <= lipschitz < np.inf:
            raise ConfigurationError(f"lipschitz={lipschitz!r}; expected a finite number >= 0, or None")
        self._gradients, self._value = (grad_x, grad_y), value
        self.minibatch = minibatch
        self.num_examples = check_examples(num_examples)
        self._set_players({"x": _shape("x", x)}, {"y": _shape("y", y)})

    def value(self, w: Vector) -> float:
        """Return f(x, y).

        Raises
        ------
        ConfigurationError
            If it was not given.
        """
        if self._value is None:
            raise ConfigurationError(
                "the value of this saddle function is not known: give value=, a function of x and y, to from_functions"
            )
        found = self._value(*self._players(w))
        try:
            return float(found)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"value returned a {type(found).__name__}; expected a number") from error

    def gradient(self, w: Vector, batch: NDArray[np.int64] | None = None, out: Vector | None = None) -> Vector:
        """Return the operator (grad_x f, -grad_y f).

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point (x, y).
        batch : ndarray of int64, optional
            Rows; all by default.
        out : ndarray, optional
            Where to write the result; must not be `w`.

        Returns
        -------
        ndarray of float64, shape (layout.size,)
        """
        self._check(w)
        out = np.empty(self.layout.size) if out is None else out
        rows = (batch,) if self.minibatch else ()
        for function, (name, result) in zip(self._gradients, self.layout.views(out).items(), strict=True):
            found = np.asarray(function(*self._players(w), *rows))
            if found.dtype.kind not in "fiub":
                # NumPy would leave an imaginary part behind, and read numbers from text.
                raise ConfigurationError(f"grad_{name} returned dtype {found.dtype}; expected real numbers")
            if found.shape != result.shape:
                raise ConfigurationError(
                    f"grad_{name} returned shape {found.shape}; expected {result.shape}, that of {name}"
                )
            result[...] = found
        out[self.split :] *= -1.0
        return out

    def _players(self, w: Vector) -> tuple[NDArray[np.float64], ...]:
        """Return copies of x and y: what a function does to them is not done to the solver's point."""
        return tuple(self.layout.views(w.copy()).values())

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Any]:
        """Yield the row numbers of each query of a round; None where the functions take none.

        Parameters
        ----------
        rng : numpy.random.Generator
        work : FirstOrder
        per_step : int, default 1
            Queries that a step takes.
        """
        if self.minibatch:
            yield from super().batches(rng, work, per_step)
        else:
            yield from [None] * work.num_draws(1, per_step)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant that was given; it is of the l2 norm."""
        if norm != "l2" or self._lipschitz is None:
            return super().lipschitz(norm)
        return self._lipschitz

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return f as ``loss``, if it is known, and the Euclidean norm of the operator."""
        metrics = {"operator-norm": float(np.linalg.norm(self.gradient(w)))}
        return metrics if self._value is None else {"loss": self.value(w), **metrics}


def _shape(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    shape = tuple(given) if isinstance(given, Sequence | np.ndarray) else (given,)
    if any(isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1 for size in shape):
        raise ConfigurationError(f"{name}={given!r}; expected the shape of a player, whole numbers >= 1")
    return tuple(int(size) for size in shape)
