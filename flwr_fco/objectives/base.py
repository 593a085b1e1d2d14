"""The contract of a client's loss F_m."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.dual_averaging import Retrieval
from flwr_fco.parameters import Layout, Vector

__all__ = ["Batch", "DualAveragingKernel", "Objective"]

#: Row numbers of a minibatch; None stands for all rows.
Batch = NDArray[np.int64] | None


class Objective(ABC):
    """A smooth loss F_m(w), a mean over the client's examples, on flat float64 vectors.

    Subclasses set :attr:`layout` and :attr:`num_examples` and implement :meth:`value` and :meth:`gradient`.
    A saddle-point objective returns the operator (grad_x f, -grad_y f) from :meth:`gradient`.

    Attributes
    ----------
    layout : Layout
        The model's arrays. The regularizer's default is all but the intercept.
    num_examples : int
        Number of the client's examples: its weight in the pooled empirical risk.
    """

    layout: Layout
    num_examples: int

    @abstractmethod
    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples."""

    @abstractmethod
    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean over a batch.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        batch : ndarray of int64, optional
            Rows; all by default.
        out : ndarray, optional
            Where to write the result; must not be `w`.
        """

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place; fused where a subclass can do it in one pass."""
        out += scale * self.gradient(w, batch)

    def minibatches(
        self,
        rng: np.random.Generator,
        batch_size: int | None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the row numbers of each minibatch: shuffled epochs, the last partial batch kept.

        Parameters
        ----------
        rng : numpy.random.Generator
            One permutation is drawn from it per epoch.
        batch_size : int or None
            None: every step uses all rows, nothing is drawn.
        epochs : int, optional
            Number of passes over the data.
        steps : int, optional
            Number of minibatches, from as many shuffled epochs as it takes. Exactly one of `epochs` and `steps`.
        """
        for order in self.orders(rng, batch_size, epochs=epochs, steps=steps):
            if order is None or batch_size is None:
                yield None
            else:
                for start in range(0, order.size, batch_size):
                    yield order[start : start + batch_size]

    def orders(
        self,
        rng: np.random.Generator,
        batch_size: int | None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> Iterator[Batch]:
        """Yield the order of the rows in each epoch, the last one cut to the steps that are left.

        Parameters
        ----------
        rng, batch_size, epochs, steps
            As in :meth:`minibatches`, which cuts the orders into minibatches. None stands for a step on all rows.
        """
        if (epochs is None) == (steps is None):
            raise ConfigurationError(f"give exactly one of epochs and steps, got epochs={epochs} and steps={steps}")
        if batch_size is not None and batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size}; expected a positive number or None for full batches")
        per_epoch = 1 if batch_size is None else -(-self.num_examples // batch_size)
        remaining = steps if epochs is None else epochs * per_epoch
        assert remaining is not None
        while remaining > 0:
            if batch_size is None:
                yield None
            else:
                order = rng.permutation(self.num_examples)
                yield order if remaining >= per_epoch else order[: remaining * batch_size]
            remaining -= per_epoch

    def lipschitz(self, norm: str = "l2") -> float:
        """Return a Lipschitz constant of the gradient.

        Parameters
        ----------
        norm : {"l2", "l1"}
            ``"l2"``: ||grad(u) - grad(v)||_2 <= L ||u - v||_2. ``"l1"``: ||.||_inf on the left, ||.||_1 on the right.
        """
        raise ConfigurationError(f"{type(self).__name__} does not know its Lipschitz constant; give the rates by hand")

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return what evaluation should report, as Python numbers; at least the loss."""
        return {"loss": self.value(w)}


class DualAveragingKernel(ABC):
    """Mixin of objectives that run a whole epoch of local dual averaging in one compiled call.

    Only worth its code where a step is so cheap that calling it costs as much.
    """

    @abstractmethod
    def dual_averaging_epoch(
        self,
        order: NDArray[np.int64],
        batch_size: int,
        retrieval: Retrieval,
        elapsed: float,
        client_lr: float,
        shift: Vector,
        dual: Vector,
    ) -> int:
        """Take the steps of local dual averaging over these minibatches, as ``client_apps`` takes them one by one.

        Parameters
        ----------
        order : ndarray of int64
            Row numbers, cut into minibatches from the front.
        batch_size : int
        retrieval : Retrieval
            What retrieve is.
        elapsed : float
            The weight of psi at the first step.
        client_lr : float
        shift : ndarray of float64, shape (layout.size,) or (0,)
            Subtracted from the dual in each step: client_lr times a tracker.
        dual : ndarray of float64, shape (layout.size,)
            Changed in place.

        Returns
        -------
        int
            The number of steps.
        """
