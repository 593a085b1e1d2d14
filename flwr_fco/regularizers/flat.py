"""From arrays of any shape and memory order to kernels on contiguous vectors."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from flwr_fco.regularizers.base import Array, Regularizer
from flwr_fco.regularizers.validation import check_step, destination


class FlatRegularizer(Regularizer):
    """A psi that reads any array as one vector; subclasses implement :meth:`solve` on contiguous 1-D arrays."""

    @abstractmethod
    def solve(self, v: Array, step: float, out: Array, shape: tuple[int, ...]) -> None:
        """Write argmin_w step * psi(w) + 1/2 ||w - v||^2 to `out`.

        Parameters
        ----------
        v : ndarray of float64 or float32, shape (n,)
            Contiguous; may share memory with `out`.
        step : float
            Finite and non-negative.
        out : ndarray, shape (n,)
            Contiguous.
        shape : tuple of int
            The original shape of the array, for weights that broadcast to it.
        """

    def prox(self, v: Array, step: float, out: Array | None = None) -> Array:
        """Return argmin_w step * psi(w) + 1/2 ||w - v||^2; see the class for its closed form."""
        result = destination(self, v, out)
        step = check_step(self, step)
        if not v.flags.c_contiguous or not v.flags.writeable:
            # Kernels are compiled for each memory layout; a copy is cheaper than seconds of compilation.
            v = v.copy()
        if result.flags.c_contiguous:
            self.solve(v.reshape(-1), step, result.reshape(-1), v.shape)
        else:
            flat = np.empty(v.size, v.dtype)
            self.solve(v.reshape(-1), step, flat, v.shape)
            result[...] = flat.reshape(v.shape)
        return result
