"""Losses of linear predictions: a link, a design, weights, offsets and a ridge term; all else is written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.schema import names_of
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, checked, refusing
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_batch, add_batch_of_classes, add_sparse_rows, fill_scores, row_scores
from flwr_fco.objectives import design, links
from flwr_fco.objectives.base import Batch, Line, Objective
from flwr_fco.objectives.links import Coupled, Link, Scores

#: Largest order for which a Gram matrix is formed and its eigenvalues are computed directly; above it, Lanczos.
LARGEST_GRAM = 2048
#: Relative tolerance of Lanczos; its estimate, a lower bound, is increased by this factor.
LANCZOS_TOLERANCE = 1e-9
#: Rows of a Hessian's block at a time, at least.
_TOGETHER = 1024
#: Numbers of a matrix below which kernels for several outputs, or of sparse rows, take less time than BLAS and SciPy.
_SMALL = 2**14
#: What kernels take of a loss. A subclass may set `compiled` to None and still use them for its batches.
_DATA = attrgetter("link.code", "link.parameter", "features", "targets", "weights", "offset")
#: Numbers of classes.
_CLASSES = {"range": (lambda count: count >= 2, "at least 2")}
#: Rounding error of a mean, relative to it.
_ROUNDING = 1e-15
#: What a client keeps of a run in which the server has asked for another centre of the columns.
CENTRE = "fco-centre"


class RowOptions(TypedDict, total=False):
    """The options that all losses of linear predictions share; see :class:`Linear`.

    Examples
    --------
    >>> RowOptions(l2=0.1)
    {'l2': 0.1}
    """

    intercept: bool
    l2: float
    sample_weight: ArrayLike | None
    offset: ArrayLike | None


def _without_rounding(numbers: Any, centre: Vector) -> Any:
    """Return numbers less their centre; rounding of a mean is no spread of a constant column."""
    moved = numbers - centre
    moved[np.abs(moved) <= _ROUNDING * np.abs(centre)] = 0.0
    return moved


@refusing
class Linear(Objective):
    """F(W, b) = mean_i v_i phi(W' x_i + b + o_i, y_i) + l2/2 ||W||^2, with weights v_i of mean 1 and offsets o_i.

    A batch's mean is over v_i phi_i too, so that the batches of an epoch average to the whole.

    Parameters
    ----------
    link : Link
        phi, in five formulas.
    features : array-like, shape (n, ...), or sparse, shape (n, d)
        The x_i. float32 and float64 are used as they are, without a copy if C-contiguous (also a memory map), or sorted
        by rows and columns if sparse; sums are in float64. The coefficients of each output have the shape of a row.
    targets : array-like, shape (n,)
        The y_i, as the link takes them.
    intercept : bool, default True
        Whether to fit an intercept b, on which the regularizer and `l2` do not act.
    l2 : float, default 0.0
        Strength of a ridge term on the coefficients, not on the intercept.
    sample_weight : array-like, shape (n,), optional
        Weight > 0 of each row in the mean; 1 by default. Only their ratios matter: a client counts by its rows in the
        pooled mean, so where they have other mean weights take :mod:`flwr_fco.tables`, which weighs sites by sums.
    offset : array-like, shape (n,) or (n, outputs), optional
        Added to each score x_i' w + b, with a coefficient that is not fitted; 0 by default.

    Attributes
    ----------
    layout : Layout
        ``coefficients``, with a last axis for several outputs, then ``intercept`` of shape (outputs,).
    features : ndarray or csr_array, shape (n, d)
        The matrix; shares memory with the argument if possible.
    targets : ndarray, shape (n,)
        As the link's formulas take them.
    num_examples : int
        The number of rows, over which the loss is a mean: not to be set.
    num_outputs : int
        Number of columns of the coefficients.
    mass : float
        The sum of the weights that the rows were given: their number without any.
    compiled : tuple
        What compiled loops take of the loss: code, parameter, features, targets, weights and offset. Codes are those of
        :func:`flwr_fco.kernels.losses.slope`, -1 if the link has no compiled slope, and -2 with several outputs.

    Raises
    ------
    ConfigurationError
        If shapes do not match, there is no example, a number is not finite, or a target, `l2` or a weight is out of
        range.

    Examples
    --------
    >>> from flwr_fco.objectives.links import Squares
    >>> objective = Linear(Squares(1.0), [[1.0], [3.0]], [1.0, 2.0])
    >>> objective.value(np.zeros(2)), objective.gradient(np.zeros(2))
    (1.25, array([-3.5, -1.5]))
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = [name for name in ("value", "gradient", "value_and_gradient", "hessian_product") if name in vars(cls)]
        if own:
            prefix = f"{cls.__name__}.{own[0]}: a loss of linear predictions calls its link, and never this method"
            raise ConfigurationError(f"{prefix}; give Linear a Link, or take another base (docs/how-to/own-loss.md)")

    def __init__(
        self,
        link: Link,
        features: Any,
        targets: ArrayLike,
        *,
        intercept: bool = True,
        l2: float = 0.0,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> None:
        if not isinstance(link, Link):
            raise ConfigurationError(f"link={link!r:.80}; expected a Link, such as Squares()")
        self.link = link
        self.intercept: bool = checked("intercept", intercept, bool)
        self.l2 = checked("l2", l2, float, NON_NEGATIVE)
        self._set_features(design.as_rows(features), np.shape(features)[1:])
        self._raw: Any = None
        self._centre = np.zeros(0)
        self.state: MutableMapping[str, Any] = {}
        self.feature_names = names_of(getattr(features, "columns", None))
        n = self.num_examples
        self.targets = link.encoded(design.with_rows(link.targets, targets, (n,)))
        if self.targets.dtype == np.float64:
            design.check_finite(link.targets, self.targets)
        weights = design.as_weights(sample_weight, n)
        self.mass = float(weights.sum())
        self.weights = weights / float(weights.mean())
        shape = (n,) if link.outputs == 1 else (n, link.outputs)
        self.offset = np.zeros(shape) if offset is None else design.as_numbers("offset", offset, shape)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Numbers of a copy may all be written, and none that processes share: kernels would be compiled for both again.
        if isinstance(self.features, np.ndarray):
            self.features.flags.writeable = False
        for name in ("targets", "weights", "offset"):
            if not state[name].flags.writeable:
                setattr(self, name, state[name].copy())

    def _set_features(self, features: Any, shape: tuple[int, ...]) -> None:
        outputs = self.link.outputs
        if isinstance(features, np.ndarray):
            # As a memory map may be, so that kernels are compiled for only one of the two types.
            features.flags.writeable = False
        self.features = features
        self._row_shape = shape
        self._single = None
        self.layout = _layout_of((*shape, *[outputs] * (outputs > 1)), outputs if self.intercept else 0)
        self.num_examples = features.shape[0]
        self._size = features.shape[1] * outputs

    # Every round asks every client for this one, which a function in Python would answer more slowly.
    compiled: tuple[Any, ...] = property(_DATA, doc="Code, parameter and rows.")  # type: ignore[assignment]
    num_outputs: int = property(attrgetter("link.outputs"), doc="Columns of W.")  # type: ignore[assignment]
    quadratic = property(attrgetter("link.quadratic"), doc="Whether the Hessian is the same everywhere.")
    least = property(attrgetter("link.least"), doc="A number that no value without the l2 term is below.")

    # --- one pass over the rows ---------------------------------------------------------------------------------------

    def scores(self, w: Vector) -> Scores:
        """Return the scores W' x_i + b + o_i of all rows, shape (n,) or (n, outputs)."""
        return self._predicted(w) + self.offset

    def _predicted(self, w: Vector) -> Scores:
        """Return the scores of all rows, without offsets."""
        self._check(w)
        if self.num_outputs == 1 and isinstance(self.features, np.ndarray):
            scores = np.empty(self.num_examples)
            fill_scores(self.features, np.arange(scores.size), w, scores)
            return scores
        return np.concatenate([self._product(block, w) for _, block in self._blocks()])

    def _blocks(self, batch: Batch = None, least: int = 0, dtype: Any = np.float64) -> Iterable[tuple[Any, Any]]:
        """Return some rows at a time, with their numbers; all of them for a loss of all rows."""
        features = self.features
        if dtype is np.float32:
            # Converted once.
            self._single = features = features.astype(dtype, copy=False) if self._single is None else self._single
        return design.blocks(features, batch, self.num_examples if isinstance(self.link, Coupled) else least, dtype)

    def _product(self, block: Any, w: Vector) -> Scores:
        """Return the scores of some rows, without offsets."""
        matrix, intercepts = self._split(w)
        scores: Scores = block @ matrix
        if self.intercept:
            scores += intercepts
        return scores

    def _add_product(self, block: Any, slopes: Scores, out: Vector) -> None:
        """Add the adjoint of :meth:`_product` to `out`."""
        matrix, intercepts = self._split(out)
        matrix += block.T @ slopes
        if self.intercept:
            intercepts += np.add.reduce(slopes)

    def _adjoint(self, slopes: Scores) -> Vector:
        """Return the mean over all rows of their features times slopes, by the weights."""
        out = np.zeros(self.layout.size)
        slopes = self._weighted(slopes) / self.num_examples
        for rows, block in self._blocks():
            self._add_product(block, slopes[rows], out)
        return out

    def _split(self, w: Vector) -> tuple[NDArray[np.float64], Vector]:
        """Return views of the coefficients, a matrix if there are several outputs, and of the intercepts."""
        matrix = w[: self._size]
        return matrix if self.link.outputs == 1 else matrix.reshape(-1, self.link.outputs), w[self._size :]

    def _weighted(self, each: NDArray[np.float64], rows: Any = slice(None)) -> NDArray[np.float64]:
        """Return numbers of some rows times the rows' weights."""
        return np.asarray((each.T * self.weights[rows]).T)

    def _mean(self, each: NDArray[Any]) -> float:
        """Return the mean of a number of each row, by the weights."""
        return float(self.weights @ each) / self.num_examples

    def _ridge(self, w: Vector) -> float:
        coefficients = w[: self._size]
        return 0.5 * self.l2 * float(coefficients @ coefficients) if self.l2 else 0.0

    def _add_ridge(self, w: Vector, scale: float, out: Vector) -> None:
        if self.l2:
            out[: self._size] += (scale * self.l2) * w[: self._size]

    def _pass(self, w: Vector, batch: Batch, scale: float, out: Vector, value: bool = False) -> float:
        """Add scale times the gradient to `out`, in one pass over the rows; return the mean loss if it is asked for."""
        link = self.link
        if isinstance(link, Coupled) and batch is not None:
            counts = np.bincount(batch, minlength=self.num_examples).astype(np.float64)
            link = link.sample(counts * (self.num_examples / len(batch)))
            batch = None
        count = self.num_examples if batch is None else len(batch)
        total = 0.0
        w = w.copy() if out is w else w
        for rows, block in self._blocks(batch):
            scores = self._product(block, w) + self.offset[rows]
            y = self.targets[rows]
            if value:
                each, slopes = link.value_and_slope(scores, y)
                total += float(self.weights[rows] @ each)
            else:
                slopes = link.slope(scores, y)
            self._add_product(block, self._weighted(slopes, rows) * (scale / count), out)
        self._add_ridge(w, scale, out)
        return total / count

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term."""
        return self._mean(self.link.value(self.scores(w), self.targets)) + self._ridge(w)

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean over a batch, plus l2 times the coefficients; a batch is row numbers."""
        self._check(w)
        out = np.zeros(w.size) if out is None else out
        out[:] = 0.0
        self.add_gradient(w, batch, 1.0, out)
        return out

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean over a batch and its gradient, both with the l2 term, in one pass over the rows.

        Agrees with :meth:`value` and :meth:`gradient` up to rounding. BLAS multiplies a block of rows at a time, which
        stays in the cache between its two products.
        """
        self._check(w)
        out = np.zeros(w.size) if out is None else out
        out[:] = 0.0
        return self._pass(w, batch, 1.0, out, value=True) + self._ridge(w), out

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place, in one pass over the rows; `out` may be `w`."""
        link = self.link
        dense = isinstance(self.features, np.ndarray)
        numbers = np.arange(self.num_examples) if batch is None else batch
        whole = batch is None and self.features.size > _SMALL
        if dense and link.code >= 0:
            # The kernel reads a row less often than BLAS does.
            add_batch(*_DATA(self), numbers, w, scale, self.l2, out)  # type: ignore[call-arg]
        elif isinstance(link, Coupled) or (dense and link.code == -1) or whole:
            self._pass(w, batch, scale, out)
        elif dense:
            add_batch_of_classes(link.outputs, *_DATA(self)[2:], numbers, w, scale, self.l2, out)  # type: ignore[call-arg]
        else:
            self._add_sparse(w, numbers, scale, out)

    def _add_sparse(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        outputs, (coefficients, intercepts), rows = self.link.outputs, self._split(w), self.features
        stored = (rows.indptr, rows.indices, rows.data)
        scores = np.empty((batch.size, outputs))
        row_scores(*stored, batch, coefficients.reshape(-1, outputs), intercepts, scores)
        scores = (scores.reshape(-1) if outputs == 1 else scores) + self.offset[batch]
        slopes = self._weighted(self.link.slope(scores, self.targets[batch]), batch) * (scale / batch.size)
        self._add_ridge(w, scale, out)
        coefficients, intercepts = self._split(out)
        add_sparse_rows(*stored, batch, slopes.reshape(-1, outputs), coefficients.reshape(-1, outputs), intercepts)

    # --- curvature ----------------------------------------------------------------------------------------------------

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian over all examples at `w` times `v`."""
        self._check(v)
        # The curvature of a square is the same everywhere.
        return self._times_hessian(np.zeros(self.num_examples) if self.quadratic else self.scores(w))(v)

    def _times_hessian(self, scores: Scores, dtype: Any = np.float64) -> Callable[[Vector], Vector]:
        """Return v -> H v with the Hessian where all rows have these scores, for many products in a precision."""
        factors = self._weighted(np.full(self.num_examples, 1.0 / self.num_examples)).astype(dtype)
        curve = self.link.curvature_times(scores, self.targets, factors)

        def multiply(v: Vector) -> Vector:
            product = np.zeros(v.size)
            move = v.astype(dtype)
            # OpenBLAS's products in single precision can raise this flag on AVX-512, of numbers that are all finite.
            with np.errstate(invalid="ignore"):
                for rows, block in self._blocks(dtype=dtype):
                    self._add_product(block, curve(self._product(block, move), rows), product)
            self._add_ridge(v, 1.0, product)
            return product

        return multiply

    def hessian_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian at `w` on some coordinates, (A' diag(phi''/n) A + l2 I) on them, as a packed triangle.

        A is the matrix of these columns; an intercept's is 1. Costs n k^2 operations, and memory for k columns.
        """
        self._check(w)
        return np.asarray(self._hessian(w, indices)[np.tri(indices.size, dtype=np.bool_).T])

    def newton_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the block with the link's steady curvature, which gives steps a length where phi'' is 0."""
        return self._with(link=self.link.steady()).hessian_block(w, indices)

    def _hessian(self, w: Vector, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Hessian at `w` on some coordinates."""
        column, output = np.divmod(indices, self.link.outputs)
        own = {c: np.flatnonzero(output == c) for c in np.unique(output).tolist()}
        products: dict[tuple[int, int], Any] = {(a, c): 0.0 for c in own for a in own if a <= c}
        for rows, block in self._blocks(least=_TOGETHER):
            taken = {c: design.columns_of(block, column[at]) for c, at in own.items()}
            curvatures = self._curvatures(self._product(block, w) + self.offset[rows], rows, own)
            for c, curved in zip(own, curvatures, strict=True):
                for a in (a for a in own if a <= c):
                    products[a, c] += design.product_of(taken[a], curved[:, a], taken[c])
        hessian = np.empty((indices.size, indices.size))
        for (a, c), product in products.items():
            hessian[np.ix_(own[a], own[c])] = product
            hessian[np.ix_(own[c], own[a])] = product.T
        ridged = np.flatnonzero(indices < self._size)
        hessian[ridged, ridged] += self.l2
        return hessian

    def _curvatures(self, scores: Scores, rows: Any, some: Iterable[int]) -> Iterator[NDArray[np.float64]]:
        """Yield the second derivatives of the mean loss by some outputs' scores and all, shape (b, outputs) each."""
        # One output at a time: of 1,000 classes all pairs would be 26 GB.
        for c in some:
            unit = np.zeros_like(scores)
            unit.reshape(-1, self.link.outputs)[:, c] = 1.0
            curved = self._weighted(self.link.curvature(scores, self.targets[rows], unit), rows) / self.num_examples
            yield curved.reshape(unit.shape[0], -1)

    def row_gradients(self, w: Vector) -> NDArray[np.float64]:
        """Return the gradient of each row's part of the loss, shape (n, layout.size).

        Their mean is the gradient without the l2 term; what clustered standard errors are made of.
        """
        columns = np.arange(self.features.shape[1] + self.intercept)
        values = design.dense(design.columns_of(self.features, columns)).astype(np.float64)
        slopes = self._weighted(self.link.slope(self.scores(w), self.targets)).reshape(self.num_examples, 1, -1)
        return np.asarray(self._centred(values, w)[:, :, None] * slopes).reshape(self.num_examples, -1)

    def _centred(self, values: NDArray[np.float64], w: Vector) -> NDArray[np.float64]:
        """Return the rows' columns less what is profiled out of the loss: nothing."""
        return values

    def along(self, w: Vector, direction: Vector) -> Line:
        """Return F_m along a line, which stores the scores of `w` and `direction`, one feature product each.

        A value costs O(n) operations per output; a gradient or a turn costs one product with the features.
        """
        return _LinearLine(self, w, self.scores(w), direction)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant of the gradient over the client's examples; see :meth:`Objective.lipschitz`.

        With A the features (and a column of ones for the intercept), n examples and c the link's largest second
        derivative, the Hessian is at most H = c A'A / n + l2 I. ``"l2"`` is the largest eigenvalue of H, ``"l1"`` its
        largest entry, which is on the diagonal: the largest mean square of a feature. It is exact for least squares;
        for other losses it is the smallest constant valid for all labels. (l2 does not act on the intercept; with fewer
        examples than features, the l2 norm's constant ignores this and exceeds the exact one by at most l2.)

        Notes
        -----
        Uses a Gram matrix of the smaller dimension up to order 2,048, and above that Lanczos iterations, whose estimate
        is increased by the tolerance.
        """
        spectral, entrywise = self._bounds()
        if checked("norm", norm, Literal["l2", "l1"]) == "l1":
            return max(self.largest_square() + self.l2, entrywise * self.intercept)
        flat = self._flat(spectral)
        n, order = self.num_examples, flat.layout.size
        if n < order and n <= LARGEST_GRAM:
            rows = self.features.astype(np.float64, copy=False)
            roots = np.sqrt(self.weights * (spectral / n))
            gram = (design.dense(rows @ rows.T) + self.intercept) * np.outer(roots, roots)
            return float(np.linalg.eigvalsh(gram)[-1]) + self.l2
        if order <= LARGEST_GRAM:
            return float(np.linalg.eigvalsh(flat._hessian(np.zeros(order), np.arange(order)))[-1])

        # Imported here: a deployment imports this module for every message, but never needs this import.
        from scipy.sparse.linalg import LinearOperator, eigsh

        operator: Any = LinearOperator((order, order), flat._times_hessian(np.zeros(n)))
        start = np.random.default_rng(0).normal(size=order)
        estimate = eigsh(operator, k=1, which="LA", v0=start, tol=LANCZOS_TOLERANCE, return_eigenvectors=False)
        return float(estimate[0]) * (1.0 + LANCZOS_TOLERANCE)

    def _bounds(self) -> tuple[float, float]:
        if self.link.bounds is None:
            self._does_not_know("its Lipschitz constant, for there is none", "give the rates, or client_lr='auto'")
        return self.link.bounds

    def _flat(self, curvature: float) -> Linear:
        """Return squares of these rows, whose curvature c is the same everywhere: their Hessian is c A'A / n + l2 I."""
        about = {"link": links.Squares(curvature), "offset": np.zeros(self.num_examples)}
        return self._with(self.features, self.features.shape[1:], **about)

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Return the expected smoothness of minibatches without replacement.

        As the batch size b grows from 1 to n, it decreases from the largest constant of a single example,
        L_max = max_i c ||x_i||^2 (plus 1 for the intercept, plus l2), to the constant L of all n examples::

            n (b - 1) / (b (n - 1)) L + (n - b) / (b (n - 1)) L_max

        Parameters
        ----------
        batch_size : int or None
            b; None for full batches.
        norm : {"l2", "l1"}, default "l2"
            As in :meth:`lipschitz`; ``"l1"`` inserts that norm's constants, which no theorem covers.

        References
        ----------
        Gower, Loizou, Qian, Sailanbayev, Shulgin, Richtarik: SGD, general analysis and improved rates (ICML 2019).

        Examples
        --------
        >>> objective = LeastSquares(np.eye(4), np.ones(4), scale=0.5, intercept=False)
        >>> [objective.batch_lipschitz(size) for size in (1, 2, None)]
        [1.0, 0.5, 0.25]
        """
        full = self.lipschitz(norm)
        n = self.num_examples
        b = n if batch_size is None else min(batch_size, n)
        if b == n:
            return full
        spectral, entrywise = self._bounds()
        if norm == "l2":
            single = spectral * float((self.weights * (design.square_lengths(self.features) + self.intercept)).max())
        else:
            largest = max(float(self.features.max()), -float(self.features.min()))
            single = entrywise * float(self.weights.max()) * max(largest * largest, float(self.intercept))
        return (n * (b - 1) * full + (n - b) * max(single + self.l2, full)) / (b * (n - 1))

    @np.errstate(over="ignore")
    def largest_square(self) -> float:
        """Return the largest mean square of a feature times the bound of the second derivative's entries."""
        squares: Any = sum(self.weights[rows] @ block**2 for rows, block in design.blocks(self.features))
        return self._bounds()[1] * float(squares.max()) / self.num_examples

    def strong_convexity(self) -> float:
        """Return the strong convexity of F_m in the l2 norm.

        For least squares it is the smallest eigenvalue of the Hessian, computed directly up to order 2,048; above that
        a lower bound, the contribution of l2. The curvature of other losses vanishes far from 0, so for them it is l2,
        or 0 with an intercept, on which l2 does not act.
        """
        n, order = self.num_examples, self.layout.size
        if not self.quadratic:
            return 0.0 if self.intercept else self.l2
        factor = self._bounds()[0]
        if order <= LARGEST_GRAM and (n >= order or self.intercept):
            spectrum = np.linalg.eigvalsh(self._hessian(np.zeros(order), np.arange(order)))
            # For a singular matrix rounding leaves a small value of either sign.
            return float(spectrum[0]) if spectrum[0] > order * np.finfo(np.float64).eps * spectrum[-1] else 0.0
        if not self.intercept:
            return self.l2
        # X'X / n is at least the outer product of the column means, which leaves a two-dimensional problem.
        mean = float(np.linalg.norm(self.weights @ self.features)) / n
        bound = factor * np.array([[mean * mean, mean], [mean, 1.0]]) + np.diag([self.l2, 0.0])
        # Compute the smaller root from the product of both, which avoids cancellation.
        return factor * self.l2 / float(np.linalg.eigvalsh(bound)[-1])

    # --- duality ------------------------------------------------------------------------------------------------------

    def dual_terms(self, points: Sequence[Vector], shares: Sequence[float]) -> tuple[float, Vector]:
        """Return G*(r) and r; see :meth:`Objective.dual_terms`. The mixture is one of each row's slopes."""
        if self.link.conjugate is None:
            return super().dual_terms(points, shares)
        slopes = np.zeros_like(self.offset)
        for point, share in zip(points, shares, strict=True):
            slopes += share * self.link.slope(self.scores(point), self.targets)
        shifts = (slopes * self.offset).reshape(self.num_examples, -1).sum(axis=1)
        return self._mean(self.link.conjugate(slopes, self.targets) - shifts), self._adjoint(slopes)

    # --- rows and columns ---------------------------------------------------------------------------------------------

    def _with(self, features: Any = None, shape: tuple[int, ...] = (), **changed: Any) -> Self:
        """Return the same loss with other attributes, and of other rows or columns if they are given."""
        other = object.__new__(type(self))
        vars(other).update(vars(self) | changed)
        if features is not None:
            other._set_features(features, shape)
        return other

    def subset(self, rows: NDArray[np.int64]) -> tuple[Self, float]:
        chosen = {name: vars(self)[name][rows] for name in {"targets", "labels", "offset"} & vars(self).keys()}
        chosen["link"] = self.link.of_rows(rows) if isinstance(self.link, Coupled) else self.link
        weights = self.weights[rows]
        mean = float(weights.mean())
        share = rows.size / self.num_examples * mean
        chosen |= {"weights": weights / mean, "mass": self.mass * share, "feature_names": None}
        return self._with(self.features[rows], self._row_shape, **chosen), share

    def on_columns(self, columns: NDArray[np.int64]) -> Self:
        """Return the same loss on some columns of sparse features, ascending, which hold all that is not 0.

        An intercept is a column of ones, and has the number after the last one.
        """
        return self._with(design.columns_of(self.features, columns), columns.shape, intercept=False)

    def moments(self) -> tuple[Vector, Vector]:
        """Return mean and variance of each feature by the weights of the rows, shape (num_features,) each."""
        return design.moments(self.features, self.weights / self.num_examples)[:2]

    def shift(self, centre: Vector) -> None:
        """Subtract a number from each column of dense features, in the place of those before; zeros end it.

        Columns far from 0 lose digits. Coefficients are the same about any centre; the intercept is that there. One
        number more is subtracted from the targets of squares.

        Examples
        --------
        >>> from flwr_fco.objectives.links import Squares
        >>> objective = Linear(Squares(1.0), [[1e9], [1e9 + 2.0]], [1.0, 2.0])
        >>> objective.shift(np.array([1e9]))
        >>> objective.gradient(np.zeros(2))
        array([-2. , -1.5])
        """
        if np.array_equal(centre, self._centre) or not (centre.any() or self._centre.any()):
            return
        raw, targets = (self.features, self.targets) if self._raw is None else self._raw
        own, level = np.split(centre, [raw.shape[1]])
        self.targets = _without_rounding(targets, level) if level.any() else targets
        if isinstance(raw, np.ndarray):
            self._set_features(_without_rounding(raw, own) if own.any() else raw, self._row_shape)
        self._raw = raw, targets
        self._centre = centre

    def recall(self, state: MutableMapping[str, Any]) -> None:
        self.state = state
        # Flower's `get` raises an error, and catches it, where there is nothing.
        if CENTRE in state:
            self.shift(state[CENTRE][CENTRE].numpy())

    @property
    def weighs_rows(self) -> bool:
        """Whether rows have unequal weights."""
        return bool(np.ptp(self.weights) > 0.0)

    def unweighted(self) -> Self:
        """Return the same loss with rows of equal weights."""
        return self._with(weights=np.ones(self.num_examples))

    # --- predictions --------------------------------------------------------------------------------------------------

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the predictions for the client's examples."""
        return self.link.predicted(self.scores(w))

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``loss``, :meth:`value`, and what the link scores besides, by the sample weights."""
        scores = self.scores(w)
        loss = self._mean(self.link.value(scores, self.targets)) + self._ridge(w)
        return {"loss": loss, **self.link.scored(scores, self.targets, self._mean)}


class _LinearLine(Line):
    """A linear model along a line, with the scores of the start and of the direction."""

    def __init__(self, model: Linear, w: Vector, scores: Scores, direction: Vector) -> None:
        super().__init__(model, w, direction)
        self.model = model
        self.scores = scores
        self.change = model._predicted(direction)

    def _measured(self, w: Vector, step: float) -> tuple[float, float, Scores]:
        """Return the value, the derivative along the line, and the slopes of the rows."""
        model = self.model
        each, slopes = model.link.value_and_slope(self.scores + step * self.change, model.targets)
        ridge = model.l2 * float(w[: model._size] @ self.direction[: model._size])
        slope = float(np.vdot(model._weighted(slopes), self.change)) / model.num_examples
        return model._mean(each) + model._ridge(w), slope + ridge, slopes

    def gradient(self, step: float) -> Vector:
        out = self.model._adjoint(self._at(step)[2])
        self.model._add_ridge(self.w + step * self.direction, 1.0, out)
        return out

    def turn(self, step: float, direction: Vector) -> Line:
        return _LinearLine(self.model, self.w + step * self.direction, self.scores + step * self.change, direction)

    def curvature(self, step: float) -> Callable[[Vector], Vector]:
        # In single precision where that is enough for steps that are corrected by the next one: half of the time.
        narrow = not (isinstance(self.model.link, Coupled) or self.model.quadratic or self.model.link.bounds is None)
        dtype = np.float32 if narrow else np.float64
        return self.model._times_hessian(self.scores + step * self.change, dtype)

    def diagonal(self, step: float) -> Vector:
        model = self.model
        if isinstance(model.link, Coupled):
            # Its second derivatives are by all scores: one of each row says nothing.
            return super().diagonal(step)
        scores = self.scores + step * self.change
        curved = model._curvatures(scores, slice(None), range(model.link.outputs))
        each = np.column_stack([own[:, c] for c, own in enumerate(curved)]).reshape(scores.shape)
        diagonal = np.zeros(self.w.size)
        for rows, block in model._blocks():
            model._add_product(block**2, each[rows], diagonal)
        model._add_ridge(np.ones(self.w.size), 1.0, diagonal)
        return diagonal


class LeastSquares(Linear):
    """Least squares: F(w, b) = scale * mean_i (<x_i, w> + b - y_i)^2 + l2/2 ||w||^2.

    Parameters
    ----------
    features, targets, intercept, l2, sample_weight, offset
        As for :class:`Linear`.
    scale : float, default 1.0
        1.0: the mean of the squares. 0.5: half the mean, as in `sklearn.linear_model.Lasso`.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``alpha = strength / (2 scale)``: with the default `scale`,
    ``L1(0.1)`` corresponds to ``Lasso(alpha=0.05)``; with ``scale=0.5`` the two scales agree
    (:func:`sklearn_strength`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]))
    >>> w = objective.layout.flatten({"coefficients": [1.0], "intercept": [0.0]})
    >>> objective.value(w), objective.gradient(w)
    (0.5, array([3., 1.]))
    """

    def __init__(self, features: Any, targets: ArrayLike, *, scale: float = 1.0, **options: Unpack[RowOptions]) -> None:
        about = {"range": (POSITIVE["range"][0], "a finite number > 0: 1.0 for mean squares, 0.5 for scikit-learn's")}
        self.scale = checked("scale", scale, float, about)
        super().__init__(links.Squares(2.0 * self.scale), features, targets, **options)


class TraceRegression(LeastSquares):
    """Least squares on matrices: F(W, b) = scale * mean_i (<X_i, W> + b - y_i)^2 + l2/2 ||W||_F^2.

    Parameters
    ----------
    matrices : array-like, shape (n, rows, columns)
        The X_i; float32 and float64 are used as they are.
    targets, scale, intercept, l2, sample_weight, offset
        As for :class:`LeastSquares`.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (rows, columns), then ``intercept`` of shape (1,).

    Examples
    --------
    >>> import numpy as np
    >>> objective = TraceRegression(np.array([np.eye(2), np.ones((2, 2))]), np.array([2.0, 3.0]), intercept=False)
    >>> objective.layout
    Layout(coefficients[2, 2]*; size 4, * regularized)
    >>> objective.value(np.eye(2).reshape(-1))
    0.5
    """

    def __init__(self, matrices: Any, targets: ArrayLike, *, scale: float = 1.0, **options: Unpack[RowOptions]) -> None:
        if np.ndim(matrices) != 3:
            raise ConfigurationError(f"matrices have shape {np.shape(matrices)}; expected (examples, rows, columns)")
        super().__init__(matrices, targets, scale=scale, **options)


class Huber(Linear):
    """Robust regression: F(w, b) = mean_i h(<x_i, w> + b - y_i) + l2/2 ||w||^2.

    h(r) = r^2/2 for |r| <= delta, and delta (|r| - delta/2) beyond: its slope is never more than delta.

    Parameters
    ----------
    features, targets, intercept, l2, sample_weight, offset
        As for :class:`Linear`.
    delta : float, default 1.35
        Where the loss becomes linear, in units of the targets: 1.35 standard deviations of the noise keep 95 % of the
        efficiency of least squares. It is not estimated, and must be the same on every client.

    References
    ----------
    Huber: Robust estimation of a location parameter (Ann. Math. Stat. 1964).

    Examples
    --------
    >>> objective = Huber(np.array([[1.0], [3.0]]), np.array([1.0, 9.0]), delta=2.0, intercept=False)
    >>> objective.value(np.array([1.0])), objective.gradient(np.array([1.0]))
    (5.0, array([-3.]))
    """

    def __init__(
        self, features: Any, targets: ArrayLike, *, delta: float = 1.35, **options: Unpack[RowOptions]
    ) -> None:
        self.delta = checked("delta", delta, float, POSITIVE)
        super().__init__(links.HuberLoss(self.delta), features, targets, **options)


class Poisson(Linear):
    """Poisson regression with the logarithm as link: half the mean deviance, plus l2/2 ||w||^2.

    F(w, b) = mean_i [ mu_i - y_i + y_i log(y_i / mu_i) ] + l2/2 ||w||^2 with mu_i = exp(<x_i, w> + b + o_i): the
    negative log likelihood less its smallest value, so that it is never negative.

    Parameters
    ----------
    features, intercept, l2, sample_weight
        As for :class:`Linear`.
    counts : array-like, shape (n,)
        The y_i >= 0; fractions are allowed.
    offset : array-like, shape (n,), optional
        The o_i: the logarithm of the exposure, such as person-years, whose rate of events is modelled.

    Notes
    -----
    Its gradient has no Lipschitz constant: :meth:`lipschitz` raises an error, and ``client_lr="auto"`` takes the
    smoothness between the start and the counts (:meth:`smoothness_near`). Where log mu_i > 300 the loss goes on by its
    tangent. In scikit-learn's ``PoissonRegressor`` ``alpha`` is `l2`.

    Examples
    --------
    >>> objective = Poisson(np.array([[1.0], [1.0]]), np.array([2.0, 0.0]), intercept=False)
    >>> round(objective.value(np.zeros(1)), 6), objective.gradient(np.zeros(1))
    (0.693147, array([0.]))
    """

    def __init__(self, features: Any, counts: ArrayLike, **options: Unpack[RowOptions]) -> None:
        super().__init__(links.PoissonLoss(), features, counts, **options)

    def smoothness_near(self, w: Vector, batch_size: int | None) -> float:
        """Return the smoothness of minibatches on the way from a point to where every row is fitted.

        A row's second derivative is mu_i, which goes from its value at w to y_i.
        """
        rates = np.maximum(self.link.predicted(np.minimum(self.scores(w), self.link.parameter)), self.targets)
        return self._flat(1.0)._with(weights=rates * self.weights).batch_lipschitz(batch_size)

    @property
    def num_events(self) -> int:
        """Number of rows with a count above 0."""
        return int(np.count_nonzero(self.targets))


class _Classes(Linear):
    """A loss of two classes, which keeps their coding."""

    def __init__(self, link: Link, features: Any, labels: ArrayLike, **options: Unpack[RowOptions]) -> None:
        super().__init__(link, features, labels, **options)
        self.labels = np.asarray(labels)
        self._negative = -1 if (self.labels == -1).any() else 0
        # Of labels that are all 1 the other one is not known.
        self.class_names = (f"{self._negative}", "1") if (self.labels != 1).any() else None

    def predict(self, w: Vector) -> NDArray[Any]:
        """Return the more likely label of each of the client's examples, in the coding of `labels`.

        Returns
        -------
        ndarray of int64, shape (num_examples,)
            The negative label at a score of exactly 0, as in scikit-learn.
        """
        return np.where(self.scores(w) > 0.0, 1, self._negative)


class Logistic(_Classes):
    """Logistic regression: F(w, b) = mean_i log(1 + exp(-s_i (<x_i, w> + b))) + l2/2 ||w||^2, s_i = -1 or +1.

    Parameters
    ----------
    features, intercept, l2, sample_weight, offset
        As for :class:`Linear`.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1; one class alone is fine.

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``C = 1 / (n strength)`` in ``LogisticRegression`` with the l1
    penalty, where n is the number of examples of all clients (:func:`sklearn_strength`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = Logistic(np.array([[1.0], [-1.0]]), np.array([1, 0]))
    >>> round(objective.value(np.zeros(2)), 6), objective.gradient(np.zeros(2))
    (0.693147, array([-0.5,  0. ]))
    """

    def __init__(self, features: Any, labels: ArrayLike, **options: Unpack[RowOptions]) -> None:
        super().__init__(links.LogisticLoss(), features, labels, **options)


class SquaredHinge(_Classes):
    """Support vector machines: F(w, b) = mean_i max(0, 1 - s_i (<x_i, w> + b))^2 + l2/2 ||w||^2, s_i = -1 or +1.

    Parameters
    ----------
    features, intercept, l2, sample_weight, offset
        As for :class:`Linear`.
    labels : array-like, shape (n,)
        0 and 1, or -1 and +1.

    Notes
    -----
    In scikit-learn's ``LinearSVC`` without an intercept ``C`` is 1 / (n l2), where n is the number of all rows.

    Examples
    --------
    >>> objective = SquaredHinge(np.array([[1.0], [-1.0]]), np.array([1, 0]))
    >>> objective.value(np.zeros(2)), objective.gradient(np.zeros(2))
    (1.0, array([-2.,  0.]))
    """

    def __init__(self, features: Any, labels: ArrayLike, **options: Unpack[RowOptions]) -> None:
        super().__init__(links.SquaredHingeLoss(), features, labels, **options)


class MultinomialLogistic(Linear):
    """Multinomial logistic regression: the mean cross entropy of softmax(W' x_i + b), plus l2/2 ||W||_F^2.

    F(W, b) = mean_i [ log sum_c exp(m_ic) - m_{i, y_i} ] + l2/2 ||W||_F^2 with m_i = W' x_i + b.

    Parameters
    ----------
    features, intercept, l2, sample_weight, offset
        As for :class:`Linear`.
    labels : array-like, shape (n,)
        Integers 0 .. num_classes - 1.
    num_classes : int, optional
        Number of classes in the whole federation. By default one more than the largest label, if every class occurs.
        Required if a client may lack a class, because all clients' models must have the same shape.

    Attributes
    ----------
    layout : Layout
        ``coefficients`` of shape (d, num_classes), then ``intercept`` of shape (num_classes,).

    Notes
    -----
    The strength of psi on scikit-learn's scale is ``C = 1 / (n strength)`` in ``LogisticRegression`` with the l1
    penalty, where n is the number of examples of all clients (:func:`sklearn_strength`).

    Examples
    --------
    >>> import numpy as np
    >>> objective = MultinomialLogistic(np.array([[1.0], [2.0]]), np.array([0, 2]), num_classes=3, intercept=False)
    >>> w = np.array([0.0, 0.0, 1.0])
    >>> round(objective.value(w), 6), objective.predict(w)
    (0.895495, array([2, 2]))
    """

    def __init__(
        self, features: Any, labels: ArrayLike, *, num_classes: int | None = None, **options: Unpack[RowOptions]
    ) -> None:
        given = np.asarray(labels)
        if num_classes is None:
            values = np.unique(given) if links.is_integral(given) else given[:0]
            num_classes = values.size
            if num_classes < 2 or values[0] != 0 or values[-1] != num_classes - 1:
                prefix = f"labels hold {links.examples_of(given)}, so the number of classes cannot be read off them"
                why = "some class is missing on this client, or they are no integers 0, 1, ..."
                raise ConfigurationError(f"{prefix}: {why} Give num_classes=, that of the whole federation")
        self.num_classes: int = checked("num_classes", num_classes, int, _CLASSES)
        super().__init__(links.Categories(self.num_classes), features, given, **options)
        self.labels = self.targets


@lru_cache(maxsize=64)
def _layout_of(coefficients: tuple[int, ...], num_intercepts: int) -> Layout:
    """Return the model's arrays; one object for all clients of a run."""
    arrays = {"coefficients": np.broadcast_to(np.zeros(1), coefficients)}
    if num_intercepts:
        arrays["intercept"] = np.zeros(num_intercepts)
    return Layout.from_arrays(arrays, apply_to="coefficients")


# --- strengths on scikit-learn's scale --------------------------------------------------------------------------------


def sklearn_strength(strength: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression) for a strength in this package.

    scikit-learn's objectives differ by a factor, so the same solution has a different strength there:

    ======================================  =================================  ============================
    ours                                    scikit-learn's                     the same solution
    ======================================  =================================  ============================
    scale mean (r_i^2) + strength psi0(w)   1/2 mean (r_i^2) + alpha psi0(w)   alpha = strength / (2 scale)
    mean loss_i + strength psi0(w)          C sum loss_i + psi0(w)             C = 1 / (n strength)
    ======================================  =================================  ============================

    where psi0 is the l1 norm or the elastic net's mixture, and means are over all n examples of all clients.

    Parameters
    ----------
    strength : float
        Strength of ``L1``, ``ElasticNet`` or ``L2Squared``; > 0 for a ``C``.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a strength without a counterpart.

    Examples
    --------
    >>> import numpy as np
    >>> sklearn_strength(0.1, LeastSquares(np.eye(2), np.ones(2)))
    0.05
    >>> sklearn_strength(0.1, Logistic(np.eye(2), np.ones(2)), num_examples=50)
    0.2
    """
    if isinstance(objective, LeastSquares):
        return float(checked("strength", strength, float, NON_NEGATIVE) / (2.0 * objective.scale))
    return 1.0 / (_count(objective, num_examples) * float(checked("strength", strength, float, POSITIVE)))


def strength_of_sklearn(value: float, objective: Objective, num_examples: int | None = None) -> float:
    """Return this package's strength for scikit-learn's ``alpha`` (least squares) or ``C`` (logistic regression).

    Parameters
    ----------
    value : float
        ``alpha`` >= 0, or ``C`` > 0.
    objective : LeastSquares, TraceRegression, Logistic or MultinomialLogistic
        Any client's objective.
    num_examples : int, optional
        Number of examples of all clients; the objective's own by default. ``alpha`` does not depend on it.

    Raises
    ------
    ConfigurationError
        For another objective, or a value out of range.

    Examples
    --------
    >>> import numpy as np
    >>> strength_of_sklearn(0.05, LeastSquares(np.eye(2), np.ones(2)))
    0.1
    """
    if isinstance(objective, LeastSquares):
        return float(2.0 * objective.scale * checked("alpha", value, float, NON_NEGATIVE))
    return 1.0 / (_count(objective, num_examples) * float(checked("C", value, float, POSITIVE)))


def _count(objective: Objective, num_examples: int | None) -> int:
    if not isinstance(objective, Logistic | MultinomialLogistic):
        prefix = f"{type(objective).__name__} has no counterpart in scikit-learn that is known here"
        raise ConfigurationError(f"{prefix}; expected LeastSquares, TraceRegression, Logistic or MultinomialLogistic")
    count = objective.num_examples if num_examples is None else num_examples
    return int(checked("num_examples", count, int, AT_LEAST_ONE))
