"""The interface of a client's loss F_m."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.work import FirstOrder

#: A batch for a stochastic gradient: any item yielded by the objective's own `batches`. None means all examples.
Batch = Any
#: Iterations of the power method that estimates an unknown constant.
PROBES = 12
#: Length of the finite differences that replace products with the Hessian, relative to 1 + ||w||.
_PROBE_LENGTH = 1e-4


class Place(NamedTuple):
    """Where the vectors of a client's steps are: in NumPy's memory, or in that of the device that computes a loss.

    Parameters
    ----------
    put : callable
        ``(vector) -> copy there``.
    get : callable
        ``(copy there) -> vector``.
    gradient : callable
        ``(w) -> grad h(w)``, a new vector.
    retrieve : callable
        ``(z, t, out)`` writes the primal point of a dual; `out` may be `z`.

    Examples
    --------
    >>> import numpy as np
    >>> here = Place(np.array, np.asarray, np.copy, lambda z, t, out: np.copyto(out, z))
    >>> here.get(here.put(np.ones(2)))
    array([1., 1.])
    """

    put: Callable[[Vector], Any]
    get: Callable[[Any], Vector]
    gradient: Callable[[Any], Any]
    retrieve: Callable[[Any, float, Any], Any]


class Line:
    """F_m along a line: values, slopes and gradients at w + step * direction.

    Returned by :meth:`Objective.along`. This one evaluates the loss at each trial point. A linear model's stores the
    examples' scores at `w` and along `direction`, so that another step size needs no new pass over the features.

    Parameters
    ----------
    objective : Objective
        F_m.
    w, direction : ndarray of float64, shape (layout.size,)
        The start and the direction; copied.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), intercept=False)
    >>> line = objective.along(np.zeros(1), np.ones(1))
    >>> line(1.0), line.gradient(1.0)
    ((0.5, 3.0), array([3.]))
    """

    def __init__(self, objective: Objective, w: Vector, direction: Vector) -> None:
        self.objective = objective
        self.w = w.copy()
        self.direction = direction.copy()
        #: The last step size, with the value and the derivatives there.
        self._last: tuple[float, float, float, NDArray[np.float64]] = (math.nan, 0.0, 0.0, w)

    def _at(self, step: float) -> tuple[float, float, NDArray[np.float64]]:
        if step != self._last[0]:
            self._last = step, *self._measured(self.w + step * self.direction, step)
        return self._last[1:]

    def _measured(self, w: Vector, step: float) -> tuple[float, float, NDArray[np.float64]]:
        """Return the value, the derivative along the line, and what :meth:`gradient` takes: here the gradient."""
        value, gradient = self.objective.value_and_gradient(w)
        return value, float(gradient @ self.direction), np.array(gradient)

    def __call__(self, step: float) -> tuple[float, float]:
        """Return F_m and its derivative with respect to the step size, at w + step * direction."""
        return self._at(step)[:2]

    def gradient(self, step: float) -> Vector:
        """Return the full gradient at w + step * direction, a new vector.

        Parameters
        ----------
        step : float
            The step size.
        """
        return self._at(step)[2].copy()

    def turn(self, step: float, direction: Vector) -> Line:
        """Return a line from this line's point w + step * direction along another direction.

        Parameters
        ----------
        step : float
            The step size.
        direction : ndarray of float64, shape (layout.size,)
            The direction of the new line.
        """
        return Line(self.objective, self.w + step * self.direction, direction)

    def curvature(self, step: float) -> Callable[[Vector], Vector]:
        """Return v -> H v with the Hessian at w + step * direction, for many products there.

        Parameters
        ----------
        step : float
            The step size.

        Raises
        ------
        ConfigurationError
            If the Hessian is not known.
        """
        return partial(self.objective.hessian_product, self.w + step * self.direction)

    def diagonal(self, step: float) -> Vector:
        """Return the scale of each coordinate's curvature at w + step * direction, such as the Hessian's diagonal.

        Parameters
        ----------
        step : float
            The step size.
        """
        return np.ones_like(self.w)


class Objective(ABC):
    """A smooth or convex loss F_m(w), the mean over the client's examples, on flat float64 vectors.

    Subclasses set :attr:`layout` and :attr:`num_examples` and implement :meth:`value` and :meth:`gradient`; all other
    methods have defaults. A saddle-point objective returns the operator (grad_x f, -grad_y f) from :meth:`gradient`.

    The defaults call these two, and nothing looks at which of them a subclass overrides: another linear loss is another
    :class:`~flwr_fco.objectives.Link`, not a :class:`~flwr_fco.objectives.LeastSquares` with another gradient.

    Attributes
    ----------
    smooth : bool, default True
        Class attribute; False if the loss is convex and :meth:`gradient` returns a subgradient.
        :meth:`lipschitz` and :meth:`hessian_product` are then unknown, and local minimisations need a `minimiser`.
    quadratic : bool, default False
        Whether the Hessian is the same everywhere, and :meth:`hessian_block` is known.
    minimiser : callable, optional
        The loss's own local minimisation: a method ``minimiser(pull, penalty, start, work, duality)`` that returns the
        :class:`flwr_fco.engines.Minimum` of F_m(w) - <pull, w> + penalty/2 ||w||^2, as exact as `work` says.
    layout : Layout
        The model's arrays. By default the regularizer acts on all of them except the intercept.
    num_examples : int
        The client's number of examples, which is its weight in the pooled empirical risk.
    folds : ndarray of int, shape (num_examples,), optional
        Fold of each example in a cross-validation, from 0; None if they are dealt at random. Examples of one patient
        belong in one fold.
    clusters : ndarray of int, shape (num_examples,), optional
        Cluster of each example, such as its patient, by which standard errors are clustered.
    feature_names : sequence of str, optional
        Names of the features in their order; linear models have those of a data frame. A run refuses clients whose
        names differ; of clients without names it takes the order on trust.
    class_names : sequence of str, optional
        Names of the classes in the order of their codes, which are compared likewise.
    ascends : slice or ndarray of bool, optional
        Entries of the flat vector that belong to a maximising player; None if there is none.
    compiled : tuple, optional
        What compiled loops take of a loss of linear predictions (:attr:`Linear.compiled`); None for any other loss.
    least : float, optional
        A number that no value of G = F_m - l2/2 ||W||^2 is below, which says that G is convex and gives the loss a
        duality gap; None, the default, where it need not be convex.
    l2 : float, default 0.0
        Strength of a ridge term in F_m, which acts on all but the intercept: the last array of the layout, if its name
        is ``intercept``.

    Examples
    --------
    >>> import numpy as np
    >>> class Distance(Objective):
    ...     def __init__(self, points):
    ...         self.points, self.num_examples = points, len(points)
    ...         self.layout = Layout.from_arrays({"center": points[0]})
    ...     def value(self, w):
    ...         return 0.5 * float(np.square(self.points - w).sum(axis=1).mean())
    ...     def gradient(self, w, batch=None, out=None):
    ...         rows = self.points if batch is None else self.points[batch]
    ...         return np.subtract(w, rows.mean(axis=0), out=out)
    >>> objective = Distance(np.array([[0.0, 0.0], [2.0, 4.0]]))
    >>> objective
    Distance(Layout(center[2]*; size 2, * regularized))
    >>> objective.value_and_gradient(np.zeros(2))
    (5.0, array([-1., -2.]))
    """

    smooth: ClassVar[bool] = True
    quadratic: bool = False
    minimiser: Callable[..., Any] | None = None
    layout: Layout
    num_examples: int
    folds: NDArray[np.int64] | None = None
    clusters: NDArray[np.int64] | None = None
    feature_names: Sequence[str] | None = None
    class_names: Sequence[str] | None = None
    ascends: slice | NDArray[np.bool_] | None = None
    compiled: tuple[Any, ...] | None = None
    least: float | None = None
    l2: float = 0.0

    def __repr__(self) -> str:
        # Not of how many rows: an error may show this to a server. One that is not made yet has no layout.
        return f"{type(self).__name__}({getattr(self, 'layout', None)})"

    @abstractmethod
    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples, at a point w of shape (layout.size,)."""

    @abstractmethod
    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean over a batch.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        batch : optional
            A batch from :meth:`batches`; all examples by default.
        out : ndarray, optional
            Where to write the result; must not be `w`.
        """

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place; subclasses may do this in one pass.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        batch
            A batch from :meth:`batches`; None for all examples.
        scale : float
            Usually minus the step size.
        out : ndarray of float64, shape (layout.size,)
            Changed in place.
        """
        out += scale * gradient_of(self, w, batch)

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean over a batch and its gradient; subclasses may do this in one pass over the data.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        batch : optional
            A batch from :meth:`batches`; all examples by default.
        out : ndarray, optional
            Where to write the gradient; must not be `w`.

        Raises
        ------
        ConfigurationError
            If the value on a batch is not known.
        """
        if batch is not None:
            self._does_not_know("its value on a batch", "ask for that of all examples (batch=None)")
        return self.value(w), gradient_of(self, w, None, out)

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Batch]:
        """Yield the batches for a round's stochastic gradients: shuffled epochs that keep the last partial batch.

        By default batches are row numbers. An objective that overrides this method yields anything that its own
        :meth:`gradient` accepts, such as a draw of noise or a tensor. No other code inspects a batch.

        Parameters
        ----------
        rng : numpy.random.Generator
            Draws one permutation per epoch; not used for full batches.
        work : FirstOrder
            The number of steps or epochs, and the batch size. A batch size of None yields None, for all examples.
        per_step : int, default 1
            Batches per step, 2 for extragradient methods. The batches of epochs are rounded up to whole steps.

        Examples
        --------
        >>> from flwr_fco.objectives import LeastSquares
        >>> objective = LeastSquares(np.eye(5), np.ones(5))
        >>> [len(rows) for rows in objective.batches(np.random.default_rng(0), FirstOrder(epochs=1, batch_size=2))]
        [2, 2, 1]
        """
        size = work.batch_size
        if size is None:
            return repeat(None, work.num_draws(self.num_examples, per_step))
        used = work.epoch_sizes(self.num_examples, per_step)
        orders = (rng.permutation(self.num_examples)[:rows] for rows in used)
        return (order[start : start + size] for order in orders for start in range(0, order.size, size))

    def dual_terms(self, points: Sequence[Vector], shares: Sequence[float]) -> tuple[float, Vector]:
        """Return what a duality gap takes of a convex loss G = F_m - l2/2 ||W||^2: G*(r), or more, and r.

        r is the mixture of the gradients of G at some points. By convexity G*(r) is at most the mixture of
        <grad G(w), w> - G(w), and for the shares that are missing of `-least`; losses that know more are closer.

        Parameters
        ----------
        points : sequence of ndarray of float64, shape (layout.size,)
            The points.
        shares : sequence of float
            Of each point, >= 0, of a sum of at most 1.

        Raises
        ------
        ConfigurationError
            If the loss does not say that it is convex (:attr:`least`).

        Examples
        --------
        >>> from flwr_fco.objectives import LeastSquares
        >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), intercept=False)
        >>> objective.dual_terms([np.zeros(1)], [0.5])
        (-1.875, array([-3.5]))
        """
        if self.least is None:
            self._does_not_know("a duality gap", "if it is convex, set its `least`, a lower bound of its values")
        total = -(1.0 - sum(shares)) * self.least
        mixture = np.zeros(self.layout.size)
        for point, share in zip(points, shares, strict=True):
            value, gradient = self.value_and_gradient(point)
            ridge = self.l2 * self.ridged(point)
            mixture += share * (gradient - ridge)
            total += share * (float(gradient @ point) - value - 0.5 * float(ridge @ point))
        return total, mixture

    def ridged(self, w: Vector) -> Vector:
        """Return a copy of w with 0 where the ridge term does not act: in the intercept."""
        ridged = w.copy()
        ridged[w.size - num_intercepts(self.layout) :] = 0.0
        return ridged

    def lipschitz(self, norm: str = "l2") -> float:
        """Return a Lipschitz constant of the gradient.

        Parameters
        ----------
        norm : {"l2", "l1"}, default "l2"
            ``"l2"``: ||grad(u) - grad(v)||_2 <= L ||u - v||_2. ``"l1"``: ||.||_inf on the left, ||.||_1 on the right.

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("its Lipschitz constant", "give the rates by hand")

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Return the counterpart of :meth:`lipschitz` for minibatch gradients.

        By default it is the constant of all examples. Linear models return the larger constant of a minibatch.

        Parameters
        ----------
        batch_size : int or None
            None for full batches.
        norm : {"l2", "l1"}, default "l2"
            As in :meth:`lipschitz`.

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        return self.lipschitz(norm)

    def smoothness_near(self, w: Vector, batch_size: int | None) -> float:
        """Return what stands for :meth:`batch_lipschitz` near a point, where no constant is known.

        By default it is the largest curvature that a power iteration on differences of full gradients finds there.
        """
        length = _PROBE_LENGTH * (1.0 + float(np.linalg.norm(w)))
        direction = np.random.default_rng(0).standard_normal(w.size)
        largest = 0.0
        start = np.array(gradient_of(self, w))
        for _ in range(PROBES):
            direction /= float(np.linalg.norm(direction)) or 1.0
            direction = (gradient_of(self, w + length * direction) - start) / length
            largest = max(largest, float(np.linalg.norm(direction)))
        return largest

    def strong_convexity(self) -> float:
        """Return mu >= 0 with <grad(u) - grad(v), u - v> >= mu ||u - v||^2 for all u and v.

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("its strong convexity", "give it by hand; 0 is right for every convex loss")

    def largest_square(self) -> float:
        """Return a number that no second derivative in one coefficient is above, anywhere, without the l2 term.

        By it, a duality gap proves coefficients zero (:func:`flwr_fco.strategies.proved_zero`).

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("its largest_square()", "nothing is proved zero without it")

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian over all examples at `w` times `v`, both of shape (layout.size,).

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("its Hessian", "choose a method that takes gradients only")

    def hessian_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian over all examples at `w`, restricted to some coordinates, as a packed triangle.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        indices : ndarray of int64, shape (k,)
            Ascending coordinates of the flat vector.

        Returns
        -------
        ndarray of float64, shape (k (k + 1) / 2,)
            The upper triangle by rows, ``H[np.triu_indices(k)]``.

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("its Hessian", "choose a method that takes gradients only, such as FedDAGT")

    def newton_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the matrix of a Newton step, in the form of :meth:`hessian_block`, which it is by default.

        A loss whose Hessian is 0 in places, where a Newton step has no length, returns a larger matrix here.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
            The point.
        indices : ndarray of int64, shape (k,)
            Ascending coordinates of the flat vector.
        """
        return self.hessian_block(w, indices)

    def subset(self, rows: NDArray[np.int64]) -> tuple[Objective, float]:
        """Return the loss of some of the examples, and their share of this loss's weight.

        Parameters
        ----------
        rows : ndarray of int64, shape (k,)
            Row numbers, at least one.

        Raises
        ------
        ConfigurationError
            If it is not known.
        """
        self._does_not_know("the loss of some of its examples", "cross-validate a linear model's loss")

    def along(self, w: Vector, direction: Vector) -> Line:
        """Return F_m along a line; of a linear model, trial points there need no further pass over the features.

        Parameters
        ----------
        w, direction : ndarray of float64, shape (layout.size,)
            Both may change afterwards, because no reference to them is kept.
        """
        return Line(self, w, direction)

    def place(self, psi: Any) -> Place | None:
        """Return where a client's steps are taken, if this loss is computed on a device that has vectors of its own.

        :meth:`add_gradient` takes these vectors too. The geometry is Euclidean.

        Parameters
        ----------
        psi : BoundRegularizer or None
            None for none.
        """
        return None

    def take_training_loss(self) -> float | None:
        """Return the mean loss of the minibatches since the last call; None if it was not recorded.

        An objective that obtains the loss along with each gradient records it for the round's metrics. By default
        nothing is recorded, because a loss would cost as much as the gradient.
        """
        return None

    def buffers(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the model that are not optimised (counters, running statistics), by name."""
        return {}

    def load_buffers(self, buffers: Mapping[str, NDArray[Any]]) -> None:
        """Set the arrays of the model that are not optimised.

        Parameters
        ----------
        buffers : mapping of str to ndarray
            All of these arrays, with the names in :meth:`buffers`.

        Raises
        ------
        ConfigurationError
            If names are missing or unknown, or a shape differs; an objective without buffers accepts only an empty
            mapping.
        """
        if buffers:
            prefix = f"the model has arrays besides the optimised ones, {sorted(buffers)}"
            raise ConfigurationError(f"{prefix}; {type(self).__name__} has none. Leave them out of the initial arrays")

    def recall(self, state: MutableMapping[str, Any]) -> None:  # noqa: B027, most losses keep nothing
        """Take what earlier messages of a run have left for the loss at its client, before another one is answered.

        Parameters
        ----------
        state : mapping of str to record
            What the client keeps between the messages of a run.
        """

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the evaluation metrics at a point w of shape (layout.size,) as Python numbers; at least the loss."""
        return {"loss": self.value(w)}

    def _check(self, w: Vector) -> None:
        if w.shape != (self.layout.size,):
            prefix = f"the vector has shape {w.shape}, expected ({self.layout.size},): {self.layout!r}"
            raise ConfigurationError(f"{prefix}. layout.flatten(arrays) builds it from named arrays")

    def _does_not_know(self, prefix: str, instead: str) -> NoReturn:
        raise ConfigurationError(f"{type(self).__name__} does not know {prefix}; {instead}")


def gradient_of(objective: Objective, w: Vector, *batch_and_out: Any) -> Vector:
    """Return a gradient that has the model's shape: a scalar would be added to every coordinate."""
    gradient = np.asarray(objective.gradient(w, *batch_and_out))
    if gradient.shape != w.shape:
        raise ConfigurationError(f"the gradient has shape {gradient.shape}; expected {w.shape}, that of the model")
    return gradient


def num_intercepts(layout: Layout) -> int:
    """Return the size of the layout's last array if it is the intercept, else 0."""
    last = layout.optimized[-1]
    return last.size if last.name == "intercept" and last.block.stop == layout.size else 0
