"""Base classes of the linear models: the layout, the l2 term, and everything derived from a loss of predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.schema import is_missing
from flwr_fco.core.validation import NON_NEGATIVE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.kernels.losses import add_scalar_gradient
from flwr_fco.objectives.base import Batch, DualTerms, Line, Objective
from flwr_fco.objectives.design import CHUNK, Design, LinearData, Scores, SparseDesign, check_finite, dense
from flwr_fco.objectives.links import Link

#: Largest order for which a Gram matrix is formed and its eigenvalues are computed directly; above it, Lanczos.
LARGEST_GRAM = 2048
#: Relative tolerance of Lanczos; its estimate, a lower bound, is increased by this factor.
LANCZOS_TOLERANCE = 1e-9


class LinearModel(Objective):
    """An objective mean_i a_i loss(x_i' W + b + o_i; y_i) + l2/2 ||W||^2, with weights a_i of mean 1 and offsets o_i.

    Subclasses set `_curvature` and `_targets`, and `_link` if there are compiled loops for the loss, and implement the
    private methods on scores. Scores are the predictions x_i' W + b + o_i: one number per example, or one row if there
    are several outputs. A batch's mean is over a_i loss_i too, so that the batches of an epoch average to the whole.
    """

    _link: ClassVar[Literal["identity", "logistic", "softmax"] | None] = None
    #: Bounds on the loss's second derivative with respect to the scores: in the matrix norm, and for each entry.
    _curvature: tuple[float, float]
    #: a, and o in the shape of the scores; None for ones and zeros.
    _weights: Vector | None = None
    _mean_weight: float = 1.0
    _offset: Scores | None = None
    #: Factor of the loss.
    _factor: float = 1.0
    #: y, in the form that the kernels require.
    _targets: NDArray[Any]

    design: Design
    intercept: bool
    l2: float

    def _set_data(
        self, design: Design, coefficients: tuple[int, ...], *, intercept: bool, l2: float, num_outputs: int = 1
    ) -> None:
        """Store the features and describe the model's arrays."""
        self.layout = _layout_of(coefficients, num_outputs if intercept else 0)
        self.design, self.feature_names = design, design.names
        self._num_examples = design.shape[0]
        self.intercept = intercept
        self.l2 = checked("l2", l2, float, NON_NEGATIVE)
        self._num_outputs = num_outputs
        self._num_coefficients = math.prod(coefficients)

    def _refuse_number(self, number: int) -> None:
        raise ConfigurationError(
            f"num_examples={number!r}: of this loss it is its number of rows, {self._num_examples}, over which it is a "
            "mean. Clients that shall count alike whatever their rows: give the strategy weighting='uniform'"
        )

    # A getter without a Python frame, because it is called for every client in every round.
    num_examples: int = property(  # type: ignore[assignment]
        attrgetter("_num_examples"), _refuse_number, doc="The number of rows."
    )

    def _set_rows(self, sample_weight: ArrayLike | None = None, offset: ArrayLike | None = None) -> None:
        """Check and store the weights and offsets of the rows."""
        n, outputs = self.num_examples, self._num_outputs
        if sample_weight is not None:
            weights = as_targets("sample_weight", sample_weight, n)
            if not (weights > 0.0).all():
                row = int(np.argmin(weights))
                raise ConfigurationError(
                    f"sample_weight[{row}] is {weights[row]:g}; expected numbers > 0. Leave out rows that do not count"
                )
            self._mean_weight = float(weights.mean())
            self._weights = weights / self._mean_weight
        if offset is not None:
            self._offset = as_targets("offset", offset, n, outputs)

    # The next three do not exist where a row has no loss of its own, as in Cox regression.
    def _losses(self, scores: Scores, targets: NDArray[Any]) -> Vector:
        """Return each example's loss."""
        raise NotImplementedError

    def _slopes(self, scores: Scores, targets: NDArray[Any], weight: float) -> float:
        """Replace scores with weight times the derivatives of their losses; return the sum of the losses."""
        raise NotImplementedError

    def _bend(self, scores: Scores, targets: NDArray[Any], change: Scores, weight: float) -> Scores:
        """Return weight times the losses' second derivatives times a change in the scores."""
        raise NotImplementedError

    def _bent(self, scores: Scores, dtype: DTypeLike) -> Callable[[Scores, slice], Scores]:
        """Return (change, rows) -> the mean loss's second derivatives at some scores times a change in those of rows.

        Parameters
        ----------
        dtype : dtype
            Precision of the change.
        """
        each = self._bend(scores, self._targets, np.ones_like(scores), 1.0 / self.num_examples)
        each = (each if self._weights is None else each * self._weights).astype(dtype)
        return lambda change, rows: each[rows] * change

    def _mean_loss(self, scores: Scores) -> float:
        """Return the mean loss over all examples."""
        return self._mean(self._losses(scores, self._targets))

    def _mean(self, each: NDArray[Any]) -> float:
        """Return the mean of a number of each example, by the weights."""
        return float(each.mean() if self._weights is None else self._weights @ each / self.num_examples)

    def _weighted_slopes(self, scores: Scores, rows: Any, weight: float) -> float:
        """Replace the scores of some rows, all if None, as :meth:`_slopes` does, times the rows' weights."""
        targets = self._targets if rows is None else self._targets[rows]
        if self._weights is None:
            return self._slopes(scores, targets, weight)
        weights = self._weights if rows is None else self._weights[rows]
        total = float(weights @ self._losses(scores, targets))
        self._slopes(scores, targets, weight)
        self._weigh(scores, weights)
        return total

    @staticmethod
    def _weigh(each: NDArray[Any], weights: Vector) -> None:
        """Multiply each row by its weight, in place."""
        each *= weights.reshape(-1, *[1] * (each.ndim - 1))

    def _shifted(self, scores: Scores, rows: Any = None) -> Scores:
        """Return the scores of some rows, all if None, with their offsets."""
        if self._offset is None:
            return scores
        return scores + (self._offset if rows is None else self._offset[rows])

    #: What there is of each row.
    _by_row: ClassVar[tuple[str, ...]] = ("_targets", "targets", "labels", "_weights", "_offset")
    #: Whether the loss is a sum over rows, so that a batch concerns only the features of its rows.
    _separable: ClassVar[bool] = True
    #: Whether `_add_compiled` is there for dense features.
    _compiled: ClassVar[bool] = True

    def _add_compiled(self, w: Vector, rows: NDArray[np.int64], scale: float, out: Vector) -> None:
        """Add scale times the gradient on rows of dense features to `out`, by a compiled loop; `out` may be `w`."""
        logistic, factor, shrinkage = self._link == "logistic", self._factor * scale, self.l2 * scale
        add_scalar_gradient(logistic, self.design.matrix, self._targets, rows, w, factor, shrinkage, out)

    def _accumulate(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place, in one pass over the rows; `out` may be `w`."""
        plain = self._weights is None and self._offset is None
        if self._compiled and plain and type(self.design) is not SparseDesign:
            self._add_compiled(w, self.design.rows if batch is None else batch, scale, out)
            return
        scores = self._shifted(self.design.predict(w, batch, self._num_outputs), batch)
        self._weighted_slopes(scores, batch, scale / scores.shape[0])
        self._add_ridge(w, scale, out)
        self.design.add_rows(scores, out, batch)

    def moments(self) -> tuple[Vector, Vector]:
        """Return mean and variance of each feature by the weights of the rows, shape (num_features,) each."""
        return self.design.moments(self._weights)

    @property
    def weighs_rows(self) -> bool:
        """Whether rows have unequal weights."""
        return self._weights is not None and bool(np.ptp(self._weights) > 0.0)

    @property
    def mass(self) -> float:
        """The sum of the weights that the rows were given: their number without any."""
        return self._mean_weight * self.num_examples

    def unweighted(self) -> Self:
        """Return the same loss with rows of equal weights."""
        other = copy.copy(self)
        other._weights = None
        return other

    @property
    def num_outputs(self) -> int:
        """Number of columns of the coefficients."""
        return self._num_outputs

    def with_features(self, features: ArrayLike | Design) -> Self:
        """Return the same loss for the same examples with other features."""
        design = features if isinstance(features, Design) else Design.of(features)
        other = copy.copy(self)
        shape = (design.shape[1], *self.layout["coefficients"].shape[1:])
        other._set_data(design, shape, intercept=self.intercept, l2=self.l2, num_outputs=self._num_outputs)
        return other

    def subset(self, rows: NDArray[np.int64]) -> tuple[Self, float]:
        other = self.with_features(type(self.design)(self.design.matrix[rows]))
        for name in self._by_row:
            if vars(self).get(name) is not None:
                setattr(other, name, getattr(self, name)[rows])
        share = rows.size / self.num_examples
        if other._weights is not None:
            mean = float(other._weights.mean())
            other._weights, share = other._weights / mean, share * mean
        return other, share

    @property
    def features(self) -> NDArray[Any]:
        """The features as a matrix, shape (n, d), or a csr_array; shares memory with the argument if possible."""
        return self.design.matrix  # type: ignore[no-any-return]

    def linear_data(self) -> LinearData | None:
        # The compiled loops know neither weights nor offsets.
        return self._data() if self._weights is None and self._offset is None else None

    @property
    def _kind(self) -> str:
        """The loss and its parameters, for :class:`DualTerms`."""
        return f"{type(self).__name__} with offsets"

    def duality(self) -> LinearData | DualTerms | None:
        data = self._data() if self._offset is None else None
        return DualTerms(self._kind, l2=self.l2) if data is None else data

    least = 0.0

    def _of_row(self) -> Link:
        """Return the loss of a row."""
        raise NotImplementedError

    def dual_terms(self, points: Sequence[Vector], shares: Sequence[float]) -> tuple[float, Vector]:
        """Return G*(r) and r; see :meth:`Objective.dual_terms`. The mixture is one of each row's slopes."""
        for point in points:
            self._check(point)
        link, total, mixture = self._of_row(), 0.0, np.zeros(self.layout.size)
        for part, block in self.design.blocks():
            y, slopes = self._targets[part], np.zeros((block.shape[0], *[self._num_outputs] * (self._num_outputs > 1)))
            for point, share in zip(points, shares, strict=True):
                slopes += share * link.slope(self._shifted(self._product(block, point), part), y)
            each = link.conjugate(slopes, y)
            if self._offset is not None:
                each = each - (slopes * self._offset[part]).reshape(each.size, -1).sum(axis=1)
            if self._weights is not None:
                each = each * self._weights[part]
                self._weigh(slopes, self._weights[part])
            total += float(each.sum())
            self._add_product(block, slopes / self.num_examples, mixture)
        return total / self.num_examples, mixture

    def _data(self) -> LinearData | None:
        if self._link is None:
            return None
        design, factor, outputs = self.design, self._factor, self._num_outputs
        return LinearData(design, self._link, self._targets, self.intercept, self.l2, factor, outputs, self._weights)

    def value(self, w: Vector) -> float:
        """Return F_m(w), the mean over all examples plus the l2 term."""
        return self._mean_loss(self._scores(w)) + self._l2_value(w)

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the mean over a batch, plus l2 times the coefficients; a batch is row numbers."""
        self._check(w)
        out = self._zeros(out)
        self._accumulate(w, batch, 1.0, out)
        return out

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient to `out` in place, in one pass over the rows; `out` may be `w`."""
        self._accumulate(w, batch, scale, out)

    def value_and_gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> tuple[float, Vector]:
        """Return the mean over a batch and its gradient, both with the l2 term, in one pass over the rows.

        Agrees with :meth:`value` and :meth:`gradient` up to rounding. BLAS multiplies a block of rows at a time, which
        stays in the cache between its two products.
        """
        self._check(w)
        out = self._zeros(out)
        count, total = self.num_examples if batch is None else batch.size, 0.0
        for part, block in self.design.blocks(batch):
            rows = part if batch is None else batch[part]
            scores = self._shifted(self._product(block, w), rows)
            total += self._weighted_slopes(scores, rows, 1.0 / count)
            self._add_product(block, scores, out)
        self._add_ridge(w, 1.0, out)
        return total / count + self._l2_value(w), out

    def hessian_product(self, w: Vector, v: Vector) -> Vector:
        """Return the Hessian over all examples at `w` times `v`, in one pass over the rows."""
        self._check(w)
        self._check(v)
        product = np.zeros(self.layout.size)
        for part, block in self.design.blocks():
            change = self._product(block, v)
            # The curvature of a square is constant.
            scores = change if self.quadratic else self._shifted(self._product(block, w), part)
            bent = self._bend(scores, self._targets[part], change, 1.0 / self.num_examples)
            if self._weights is not None:
                self._weigh(bent, self._weights[part])
            self._add_product(block, bent, product)
        self._add_ridge(v, 1.0, product)
        return product

    def hessian_block(self, w: Vector, indices: NDArray[np.int64]) -> Vector:
        """Return the Hessian at `w` on some coordinates, (A' diag(loss''/n) A + l2 I) on them, as a packed triangle.

        A is the matrix of these columns; an intercept's is 1. Costs n k^2 operations, and memory for k columns.
        """
        self._check(w)
        shares = np.full(self.num_examples, 1.0 / self.num_examples)
        if self._weights is not None:
            shares *= self._weights
        outputs = self._num_outputs
        column, output = np.divmod(indices, outputs)
        hessian = np.zeros((indices.size, indices.size))
        places = [np.flatnonzero(output == c) for c in range(outputs)]
        for part, block in self.design.blocks():
            scores = self._shifted(self._product(block, w), part)
            features = [_columns(block, column[place]) for place in places]
            for c, right in enumerate(places):
                change = np.zeros_like(scores)
                change.reshape(-1, outputs)[:, c] = 1.0
                bent = self._bend(scores, self._targets[part], change, 1.0).reshape(-1, outputs)
                if outputs > 1:
                    # Rows of a softmax's Hessian sum to 0; p (1 - p) is 0 where p rounds to 1, the others are not.
                    bent[:, c] = -np.delete(bent, c, axis=1).sum(axis=1)
                for a, left in enumerate(places[: c + 1]):
                    weights = shares[part] * bent[:, a]
                    if left.size and right.size:
                        hessian[np.ix_(left, right)] += _product(features[a], weights, features[c])
        for c, right in enumerate(places):
            for left in places[:c]:
                hessian[np.ix_(right, left)] = hessian[np.ix_(left, right)].T
        if self.l2 != 0.0:
            own = np.flatnonzero(indices < self._num_coefficients)
            hessian[own, own] += self.l2
        return hessian[np.triu_indices(indices.size)]

    def along(self, w: Vector, direction: Vector) -> Line:
        """Return F_m along a line, which stores the scores of `w` and `direction`, one feature product each.

        A value costs O(n) operations per output; a gradient or a turn costs one product with the features.
        """
        self._check(w)
        self._check(direction)
        scores = self._shifted(self.design.predict(w, num_outputs=self._num_outputs))
        return _LinearLine(self, w, scores, direction)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the Lipschitz constant of the gradient over the client's examples; see :meth:`Objective.lipschitz`.

        With A the features (and a column of ones for the intercept), n examples and c the loss's largest second
        derivative, the Hessian is at most H = c A'A / n + l2 I. ``"l2"`` is the largest eigenvalue of H, ``"l1"`` its
        largest entry, which is on the diagonal: the largest mean square of a feature. It is exact for least squares;
        for other losses it is the smallest constant valid for all labels. (l2 does not act on the intercept; with fewer
        examples than features, the l2 norm's constant ignores this and exceeds the exact one by at most l2.)

        Notes
        -----
        Uses a Gram matrix of the smaller dimension up to order 2,048, and above that Lanczos iterations, whose estimate
        is increased by the tolerance.
        """
        spectral, entrywise = self._curvature
        if norm == "l1":
            largest = entrywise * float(self.design.mean_squares(self._weights).max()) + self.l2
            return max(largest, entrywise) if self.intercept else largest
        if norm == "l2":
            return self._largest_eigenvalue(spectral)
        raise ConfigurationError(f"norm={norm!r}; expected 'l2' or 'l1'")

    def batch_lipschitz(self, batch_size: int | None, norm: str = "l2") -> float:
        """Return the expected smoothness of minibatches without replacement.

        As the batch size b grows from 1 to n, it decreases from the largest constant of a single example,
        L_max = max_i c ||x_i||^2 (plus 1 for the intercept, plus l2), to the constant L of all n examples::

            n (b - 1) / (b (n - 1)) L + (n - b) / (b (n - 1)) L_max

        Parameters
        ----------
        batch_size : int or None
            b; None for full batches.
        norm : {"l2", "l1"}
            As in :meth:`lipschitz`; ``"l1"`` inserts that norm's constants, which no theorem covers.

        References
        ----------
        Gower, Loizou, Qian, Sailanbayev, Shulgin, Richtarik: SGD, general analysis and improved rates (ICML 2019).

        Examples
        --------
        >>> from flwr_fco.objectives import LeastSquares
        >>> objective = LeastSquares(np.eye(4), np.ones(4), scale=0.5, intercept=False)
        >>> [objective.batch_lipschitz(size) for size in (1, 2, None)]
        [1.0, 0.5, 0.25]
        """
        full, n = self.lipschitz(norm), self.num_examples
        b = n if batch_size is None else min(batch_size, n)
        if b == n:
            return full
        spectral, entrywise = self._curvature
        # The weight of a row is a factor of its loss.
        weights = np.ones(1) if self._weights is None else self._weights
        if norm == "l2":
            single = spectral * float((weights * (self.design.row_squares() + self.intercept)).max()) + self.l2
        else:
            largest = max(self.design.largest_square(), float(self.intercept))
            single = entrywise * float(weights.max()) * largest + self.l2
        return (n * (b - 1) * full + (n - b) * max(single, full)) / (b * (n - 1))

    def strong_convexity(self) -> float:
        """Return the strong convexity of F_m in the l2 norm.

        For least squares it is the smallest eigenvalue of the Hessian, computed directly up to order 2,048; above that
        a lower bound, the contribution of l2. The curvature of other losses vanishes far from 0, so for them it is l2,
        or 0 with an intercept, on which l2 does not act.
        """
        if not self.quadratic:
            return 0.0 if self.intercept else self.l2
        n, d = self.design.shape
        order = d + self.intercept
        if order <= LARGEST_GRAM and (n >= order or self.intercept):
            spectrum = _eigenvalues(self._hessian_bound(self._factor))
            smallest, largest = float(spectrum[0]), float(spectrum[-1])
            # For a singular matrix rounding leaves a small value of either sign.
            return smallest if smallest > order * np.finfo(np.float64).eps * largest else 0.0
        if not self.intercept:
            return self.l2
        # X'X / n is at least the outer product of the column means, which leaves a two-dimensional problem.
        mean = float(np.linalg.norm(self._column_means()))
        bound = self._factor * np.array([[mean * mean, mean], [mean, 1.0]]) + np.diag([self.l2, 0.0])
        # Compute the smaller root from the product of both, which avoids cancellation.
        return self._factor * self.l2 / float(_eigenvalues(bound)[-1])

    def _column_means(self) -> Vector:
        sums = np.zeros(self.design.shape[1])
        for part, block in self.design.blocks():
            sums += block.sum(axis=0) if self._weights is None else self._weights[part] @ block
        return sums / self.num_examples

    def _hessian_bound(self, curvature: float) -> NDArray[np.float64]:
        """Return curvature * A'A / n + l2 I, which is the Hessian if the curvature is constant."""
        d = self.design.shape[1]
        if self._weights is None:
            hessian = self.design.gram(self.intercept)
        else:
            everything = np.arange(d + self.intercept)
            hessian = np.zeros((everything.size, everything.size))
            for part, block in self.design.blocks():
                columns = _columns(block, everything)
                hessian += _product(columns, self._weights[part], columns)
        hessian *= curvature / self.num_examples
        hessian[np.arange(d), np.arange(d)] += self.l2
        return hessian

    def _largest_eigenvalue(self, curvature: float) -> float:
        n, d = self.design.shape
        order = d + self.intercept
        if n < order and n <= LARGEST_GRAM:
            gram = self.design.gram_of_rows(self.intercept)
            if self._weights is not None:
                gram *= np.sqrt(np.outer(self._weights, self._weights))
            return float(curvature / n * _top(gram) + self.l2)
        if order <= LARGEST_GRAM:
            return _top(self._hessian_bound(curvature))

        # Imported here: a deployment imports this module for every message, but never needs this import.
        from scipy.sparse.linalg import LinearOperator, eigsh

        def multiply(v: Vector) -> Vector:
            product = np.zeros(order)
            vector = np.ascontiguousarray(v.reshape(-1))
            product[: self.design.shape[1]] = self.l2 * vector[: self.design.shape[1]]
            scores = curvature / n * self.design.predict(vector)
            self.design.add_rows(scores if self._weights is None else self._weights * scores, product)
            return product

        operator = LinearOperator((order, order), matvec=multiply, dtype=np.float64)
        start = np.random.default_rng(0).normal(size=order)
        estimate = eigsh(operator, k=1, which="LA", v0=start, tol=LANCZOS_TOLERANCE, return_eigenvectors=False)
        return float(estimate[0]) * (1.0 + LANCZOS_TOLERANCE)

    def _scores(self, w: Vector) -> Scores:
        """Return the scores of all examples."""
        self._check(w)
        return self._shifted(self.design.predict(w, num_outputs=self._num_outputs, size=CHUNK))

    def _split(self, w: Vector) -> tuple[NDArray[np.float64], Vector]:
        """Return views of the coefficients, a matrix if there are several outputs, and of the intercepts."""
        coefficients = w[: self._num_coefficients]
        if self._num_outputs > 1:
            coefficients = coefficients.reshape(-1, self._num_outputs)
        return coefficients, w[self._num_coefficients :]

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
            intercepts += slopes.sum(axis=0)

    def _add_ridge(self, w: Vector, scale: float, out: Vector) -> None:
        """Add scale times the gradient of the l2 term to `out`."""
        if self.l2 != 0.0:
            size = self._num_coefficients
            out[:size] += (scale * self.l2) * w[:size]

    def _zeros(self, out: Vector | None) -> Vector:
        if out is None:
            return np.zeros(self.layout.size)
        out[:] = 0.0
        return out

    def _l2_value(self, w: Vector) -> float:
        if self.l2 == 0.0:
            return 0.0
        coefficients = w[: self._num_coefficients]
        return 0.5 * self.l2 * float(coefficients @ coefficients)


class _LinearLine(Line):
    """A linear model along a line, with the scores of the start and of the direction."""

    def __init__(self, model: LinearModel, w: Vector, scores: Scores, direction: Vector) -> None:
        self.model, self.w, self.direction, self.scores = model, w.copy(), direction.copy(), scores
        self.change = model.design.predict(direction, num_outputs=model._num_outputs)
        size = model._num_coefficients
        start, move = w[:size], direction[:size]
        #: The l2 term is a polynomial in the step size.
        self.ridge = (model._l2_value(w), model.l2 * float(start @ move), 2.0 * model._l2_value(direction))

    def _slopes(self, step: float) -> tuple[float, Scores]:
        """Return the mean loss and its derivatives with respect to the scores."""
        scores = self.scores + step * self.change
        total = self.model._weighted_slopes(scores, None, 1.0 / self.model.num_examples)
        return total / self.model.num_examples, scores

    def __call__(self, step: float) -> tuple[float, float]:
        value, slopes = self._slopes(step)
        constant, linear, square = self.ridge
        value += constant + step * (linear + 0.5 * step * square)
        return value, float(np.vdot(slopes, self.change)) + linear + step * square

    def gradient(self, step: float, out: Vector | None = None) -> Vector:
        _, slopes = self._slopes(step)
        out = self.model._zeros(out)
        self.model.design.add_rows(slopes, out)
        self.model._add_ridge(self.w + step * self.direction, 1.0, out)
        return out

    def curvature(self, step: float) -> Callable[[Vector], Vector]:
        model = self.model
        # In single precision where that is enough for steps that are corrected by the next one: half of the time.
        dtype = np.float64 if model.quadratic or not hasattr(model, "_curvature") else np.float32
        bend = model._bent(self.scores + step * self.change, dtype)

        def multiply(v: Vector) -> Vector:
            move: Any = v.astype(dtype)
            product = np.zeros(v.size)
            for part, block in model.design.blocks(dtype=dtype):
                model._add_product(block, bend(model._product(block, move), part), product)
            model._add_ridge(v, 1.0, product)
            return product

        return multiply

    def diagonal(self, step: float) -> Vector:
        model, outputs = self.model, self.model._num_outputs
        bend, each = model._bent(self.scores + step * self.change, np.float64), np.zeros((model.num_examples, outputs))
        for c in range(outputs):
            unit = np.zeros_like(each)
            unit[:, c] = 1.0
            each[:, c] = bend(unit.reshape(self.scores.shape), slice(None)).reshape(-1, outputs)[:, c]
        diagonal = np.zeros(self.w.size)
        for part, block in model.design.blocks():
            model._add_product(block**2, each[part].reshape(-1, *self.scores.shape[1:]), diagonal)
        model._add_ridge(np.ones(self.w.size), 1.0, diagonal)
        return diagonal

    def turn(self, step: float, direction: Vector) -> Line:
        return _LinearLine(self.model, self.w + step * self.direction, self.scores + step * self.change, direction)


@lru_cache(maxsize=64)
def _layout_of(coefficients: tuple[int, ...], num_intercepts: int) -> Layout:
    """Return the model's arrays; one object for all clients of a run."""
    arrays = {"coefficients": np.broadcast_to(np.zeros(1), coefficients)}
    if num_intercepts:
        arrays["intercept"] = np.zeros(num_intercepts)
    return Layout.from_arrays(arrays, apply_to="coefficients")


def as_targets(name: str, targets: ArrayLike, num_examples: int, outputs: int = 1) -> NDArray[np.float64]:
    """Return the targets as float64 with one finite number per example, and per output if there are several."""
    array = as_labels(name, targets, num_examples, outputs)
    if array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{name} have dtype {array.dtype}; expected numbers")
    # Kernels treat a read-only array as another type, but selected rows of it are not read-only.
    array = np.require(array, np.float64, ["C", "W"])
    check_finite(name, array)
    return array


def as_labels(name: str, labels: ArrayLike, num_examples: int, outputs: int = 1) -> NDArray[Any]:
    """Return the labels as a vector with one entry per example; a row each if there are several outputs."""
    array = np.asarray(labels)
    expected = (num_examples,) if outputs == 1 else (num_examples, outputs)
    if array.shape != expected:
        raise ConfigurationError(
            f"{name} have shape {array.shape}, but there are {num_examples} examples; expected {expected}"
        )
    return array


def as_strata(strata: ArrayLike, num_examples: int) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the sorted labels of strata, and which of them each row has."""
    # As they are: NumPy makes a text of NaN among texts.
    given = as_labels("strata", np.asarray(strata, dtype=object), num_examples).tolist()
    if any(is_missing(label) for label in given):
        raise ConfigurationError("strata hold a label that is missing; give such rows a stratum, or leave them out")
    try:
        labels = list(dict.fromkeys(given))
    except TypeError as error:
        raise ConfigurationError(f"strata hold what is no label: {error}; expected texts or numbers") from error
    with suppress(TypeError):  # Numbers beside texts have no order.
        labels.sort()
    codes = {label: code for code, label in enumerate(labels)}
    return labels, np.array([codes[label] for label in given])


def examples_of(values: NDArray[Any], limit: int = 6) -> str:
    """Return the distinct values for an error message, cut short."""
    texts = [str(value) for value in values[:limit].tolist()]
    return ", ".join(texts) + (f", ... ({values.size} different ones)" if values.size > limit else "")


def _columns(rows: Any, columns: NDArray[np.int64]) -> Any:
    """Return some columns of rows, with 1 in the place of an intercept's, which comes after the features."""
    width = rows.shape[1]
    ones = int((columns >= width).sum())
    found = rows[:, columns[: columns.size - ones]]
    if not ones:
        return found
    column = np.ones((rows.shape[0], ones))
    if isinstance(found, np.ndarray):
        return np.hstack([found, column])
    from scipy.sparse import csr_array, hstack

    return csr_array(hstack([found, column]))


def _product(left: Any, weights: Vector, right: Any) -> NDArray[np.float64]:
    """Return left' diag(weights) right, of dense or of sparse columns."""
    if isinstance(left, np.ndarray):
        return np.asarray((left.T * weights) @ right)
    return dense(left.T @ right.multiply(weights[:, None]).tocsr())


def _top(matrix: NDArray[np.float64]) -> float:
    return float(_eigenvalues(matrix)[-1])


def _eigenvalues(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    # Imported here: not all clients need it, and in a deployment each message starts a new process.
    from scipy.linalg import eigh

    # All of them, by QR steps: LAPACK's bisection for the largest one alone fails where most of them are equal.
    return np.asarray(eigh(matrix, eigvals_only=True))
