"""What the linear models share: validated data, the layout, the l2 term, exact Lipschitz constants."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_least_squares_gradient
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.parameters import Layout, Vector

#: Rows or columns that are widened to float64 at a time.
CHUNK = 4096
#: Up to this order a Gram matrix is formed and its largest eigenvalue computed directly; beyond it, Lanczos.
LARGEST_GRAM = 2048
#: Relative tolerance of Lanczos, and what its estimate (from below) is raised by.
LANCZOS_TOLERANCE = 1e-9


class LinearModel(Objective):
    """An objective mean_i loss(<x_i, w> + b; y_i) + l2/2 ||w||^2.

    Subclasses set `_targets` and implement :meth:`value` and :meth:`add_gradient`; the gradient is the latter on
    zeros.
    """

    #: Bounds on the second derivative of the loss in the margins: as a matrix norm, and entry by entry.
    _curvature: tuple[float, float]

    features: NDArray[Any]
    intercept: bool
    l2: float

    def _set_data(
        self, features: NDArray[Any], coefficients: tuple[int, ...], intercept: tuple[int, ...] | None, l2: float
    ) -> None:
        """Store the features as rows of a matrix and describe the model's arrays."""
        if not (math.isfinite(l2) and l2 >= 0.0):
            raise ConfigurationError(f"l2={l2!r}; expected a finite number that is not negative")
        arrays = {"coefficients": np.empty(coefficients)}
        if intercept is not None:
            arrays["intercept"] = np.empty(intercept)
        self.layout = Layout.from_arrays(arrays, apply_to="coefficients")
        self.features = features
        self.num_examples = features.shape[0]
        self.intercept = intercept is not None
        self.l2 = float(l2)
        self._num_coefficients = math.prod(coefficients)
        self._rows = np.arange(self.num_examples)

    @abstractmethod
    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place, in one pass over the rows; `out` may be `w`."""

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean over a batch, plus l2 times the coefficients.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        batch : ndarray of int64, optional
            Rows; all by default.
        out : ndarray, optional
            Where to write the result; must not be `w`.

        Returns
        -------
        ndarray of float64, shape (layout.size,)
        """
        self._check(w)
        if out is None:
            out = np.zeros(self.layout.size)
        else:
            out[:] = 0.0
        self.add_gradient(w, batch, 1.0, out)
        return out

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant of the gradient over the client's examples.

        With A the features (and a column of ones for the intercept), n examples and c the largest second derivative
        of the loss, the Hessian is at most H = c A'A / n + l2 I. ``"l2"`` is the largest eigenvalue of H, ``"l1"`` its
        largest entry, which is on the diagonal: the largest mean square of a feature. Exact for least squares; for
        the others it is the smallest constant that holds whatever the labels are. (l2 does not act on the intercept;
        with fewer examples than features the l2 norm's constant ignores that and exceeds the exact one by at most l2.)

        Parameters
        ----------
        norm : {"l2", "l1"}
            ``"l2"``: ||grad(u) - grad(v)||_2 <= L ||u - v||_2. ``"l1"``: ||.||_inf on the left, ||.||_1 on the right.

        Returns
        -------
        float

        Raises
        ------
        ConfigurationError
            For another norm.

        Notes
        -----
        A Gram matrix of the smaller dimension up to order 2,048; above that Lanczos iterations, whose estimate is
        raised by its tolerance.
        """
        spectral, entrywise = self._curvature
        if norm == "l1":
            squares = np.einsum("ij,ij->j", self.features, self.features, dtype=np.float64) / self.num_examples
            largest = entrywise * float(squares.max()) + self.l2
            return max(largest, entrywise) if self.intercept else largest
        if norm == "l2":
            return self._largest_eigenvalue(spectral)
        raise ConfigurationError(f"norm={norm!r}; expected 'l2' or 'l1'")

    def _largest_eigenvalue(self, curvature: float) -> float:
        n, d = self.features.shape
        order = d + self.intercept
        if n < order and n <= LARGEST_GRAM:
            gram = np.full((n, n), float(self.intercept))
            for part in _widened(self.features, axis=1):
                gram += part @ part.T
            return float(curvature / n * _top(gram) + self.l2)
        if order <= LARGEST_GRAM:
            hessian = np.zeros((order, order))
            for part in _widened(self.features, axis=0):
                hessian[:d, :d] += part.T @ part
                if self.intercept:
                    hessian[:d, d] += part.sum(axis=0)
            if self.intercept:
                hessian[d, :d] = hessian[:d, d]
                hessian[d, d] = n
            hessian *= curvature / n
            hessian[np.arange(d), np.arange(d)] += self.l2
            return _top(hessian)

        # Here and not at the top: a deployment imports this module for every message, and needs this for none.
        from scipy.sparse.linalg import LinearOperator, eigsh

        def multiply(v: Vector) -> Vector:
            # The gradient of least squares with targets 0 is the Hessian times the point.
            product = np.zeros(order)
            vector = np.ascontiguousarray(v.reshape(-1))
            add_least_squares_gradient(self.features, zeros, self._rows, vector, curvature, self.l2, product)
            return product

        zeros = np.zeros(n)
        operator = LinearOperator((order, order), matvec=multiply, dtype=np.float64)
        start = np.random.default_rng(0).normal(size=order)
        estimate = eigsh(operator, k=1, which="LA", v0=start, tol=LANCZOS_TOLERANCE, return_eigenvectors=False)
        return float(estimate[0]) * (1.0 + LANCZOS_TOLERANCE)

    def _check(self, w: Vector) -> None:
        if w.shape != (self.layout.size,):
            raise ConfigurationError(
                f"the vector has shape {w.shape}, expected ({self.layout.size},): {self.layout!r}. "
                "layout.flatten(arrays) builds it from named arrays."
            )

    def _l2_value(self, w: Vector) -> float:
        if self.l2 == 0.0:
            return 0.0
        coefficients = w[: self._num_coefficients]
        return 0.5 * self.l2 * float(coefficients @ coefficients)


def as_features(name: str, features: ArrayLike, ndim: int) -> NDArray[Any]:
    """Return the features as a C-contiguous float64 or float32 array, the same memory where that is possible."""
    # asarray also turns a memory map into an ordinary view of it, which kernels accept faster.
    array = np.asarray(features)
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers")
    if array.ndim != ndim:
        wanted = "(examples, features)" if ndim == 2 else "(examples, rows, columns)"
        raise ConfigurationError(f"{name} have shape {array.shape}; expected {wanted}. Reshape them first.")
    if 0 in array.shape:
        raise ConfigurationError(
            f"{name} have shape {array.shape}; expected at least one example and one feature. "
            "A client without data should not take part."
        )
    # A byte order or a precision of its own is converted once, here.
    dtype = np.dtype(np.float32) if array.dtype == np.float32 else np.dtype(np.float64)
    array = np.require(array, dtype, ["C", "A"])
    _check_finite(name, array)
    return array


def as_targets(name: str, targets: ArrayLike, num_examples: int) -> Vector:
    """Return the targets as a float64 vector with one finite number an example."""
    array = as_labels(name, targets, num_examples)
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers")
    array = np.ascontiguousarray(array, dtype=np.float64)
    _check_finite(name, array)
    return array


def as_labels(name: str, labels: ArrayLike, num_examples: int) -> NDArray[Any]:
    """Return the labels as a vector with one entry an example."""
    array = np.asarray(labels)
    if array.shape != (num_examples,):
        raise ConfigurationError(
            f"{name} have shape {array.shape}, but there are {num_examples} examples; expected ({num_examples},)"
        )
    return array


def examples_of(values: NDArray[Any], limit: int = 6) -> str:
    """Return the distinct values for an error message, cut short."""
    found = [str(value) for value in values[:limit].tolist()]
    return ", ".join(found) + (f", ... ({values.size} different ones)" if values.size > limit else "")


def _check_finite(name: str, array: NDArray[Any]) -> None:
    for start in range(0, array.shape[0], CHUNK):
        finite = np.isfinite(array[start : start + CHUNK])
        if not finite.all():
            place = np.argwhere(~finite)[0]
            value = array[start : start + CHUNK][tuple(place)]
            place[0] += start
            raise ConfigurationError(
                f"{name}{place.tolist()} is {value}; expected finite numbers. Impute or drop such examples first."
            )


def _widened(features: NDArray[Any], axis: int) -> Iterator[NDArray[np.float64]]:
    """Yield slices along an axis as float64, a limited number of rows or columns at a time."""
    step = features.shape[axis] if features.dtype == np.float64 else CHUNK
    for start in range(0, features.shape[axis], step):
        block = features[start : start + step] if axis == 0 else features[:, start : start + step]
        yield block.astype(np.float64, copy=False)


def _top(matrix: NDArray[np.float64]) -> float:
    last = matrix.shape[0] - 1
    return float(eigh(matrix, eigvals_only=True, subset_by_index=[last, last])[0])
