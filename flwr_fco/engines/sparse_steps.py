"""Local steps on sparse features: a coordinate is retrieved only when a minibatch touches it.

If h and psi are sums over coordinates and groups of them, a minibatch's gradient reads and writes only the columns with
non-zeros in its rows, and those that share a group with them. All other coordinates keep their dual, or change linearly
in the number of steps (a tracker) or in closed form (proximal steps); these changes are applied when a coordinate is
touched next. So the cost of an epoch is proportional to the number of non-zeros in the rows, whatever the size of the
model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.computing import logger
from flwr_fco.core.layout import SparseVector, Vector
from flwr_fco.kernels.dual_averaging import NOTHING, lazy_dual_averaging
from flwr_fco.kernels.prox import at, grouped, separable
from flwr_fco.messages.protocol import Downlink, Plan, ReceivedVectors
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.objectives.linear import Linear
from flwr_fco.objectives.links import Coupled
from flwr_fco.regularizers import Terms

Indices = NDArray[np.integer[Any]]
Move = Callable[[Vector, Any, Any], Vector]
Step = Callable[[Batch, Any, int], None]


@dataclass(frozen=True)
class Shard:
    """The coordinates of a model that a client's sparse rows touch, with the loss, h and psi on them.

    Parameters
    ----------
    objective : Linear
        The client's loss as a function of these coordinates.
    indices : ndarray of int64, shape (k,)
        Their indices in the flat vector of the model, ascending; the intercepts come last. With group norms, these are
        all coordinates of the groups that the rows touch.
    terms : Terms
        psi's terms at these coordinates, each a number or an array of shape (k,).
    everywhere : Terms or None
        psi's terms at all coordinates of the model; None if psi is no sum over these.
    metric : float or ndarray, shape (k,)
        Weights of h.
    groups : ndarray of int64, shape (k,), or None
        Each coordinate's group; -1 for none. None if there are no groups.
    strengths : ndarray of float64
        Weight of each group's norm.
    """

    objective: Linear
    indices: NDArray[np.int64]
    terms: Terms
    everywhere: Terms | None
    metric: Any
    groups: NDArray[np.int64] | None
    strengths: Vector

    def vector(self, downlink: Downlink, name: str) -> Vector:
        """Return the shard's coordinates of a vector from the server."""
        vectors = downlink.vectors
        return vectors.at(name, self.indices) if isinstance(vectors, ReceivedVectors) else vectors[name][self.indices]

    @cached_property
    def alone(self) -> Shard:
        """The same for vectors that have no other coordinates."""
        return replace(self, indices=np.arange(self.indices.size))

    def holds(self, vectors: Mapping[str, Any]) -> bool:
        """Whether vectors are sparse, and at the shard's coordinates."""
        return all(isinstance(v, SparseVector) and np.array_equal(v.indices, self.indices) for v in vectors.values())

    @cached_property
    def without_psi(self) -> Shard:
        """The same coordinates, for steps on which psi does not act."""
        return replace(self, terms=Terms(), everywhere=Terms(), groups=None)

    def retrieve(self, z: Vector, t: float, out: Vector | None = None, on: Any = slice(None)) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) } at the coordinates, or at some of them.

        Parameters
        ----------
        z : ndarray of float64, shape (k,) or shape of `on`
            The dual there.
        t : float
            The weight of psi.
        out : ndarray of float64, optional
            Where to write the result; may be `z`.
        on : ndarray of int, optional
            Positions in the coordinates, whole groups of them; all by default.
        """
        point = np.empty_like(z) if out is None else out
        separable(z, t, self.terms.at(on).rows(z.shape), at(self.metric, on), point)
        if self.groups is not None:
            present, numbers = np.unique(self.groups[on], return_inverse=True)
            grouped(point, 0.0, numbers, np.where(present < 0, 0.0, t * self.strengths[present]), point)
        return point

    def touched(self, batch: Batch) -> Indices | slice:
        """Return the positions of the coordinates that a step on some rows reads and writes; a slice if it is all.

        Parameters
        ----------
        batch : ndarray of int64 or None
            Row numbers; None for all.
        """
        if batch is None:
            return slice(None)
        touched = np.unique(self.objective.features[batch].indices).astype(np.int64)
        positions = flat_indices(touched, self.objective.num_outputs)
        return positions if self.groups is None else closure(positions, self.groups)

    def lazily(self, downlink: Downlink, vector: Vector, rng: np.random.Generator, moved: Move, step: Step) -> int:
        """Take steps on a vector, each at what its rows touch; return their number.

        Parameters
        ----------
        vector : ndarray of float64, shape (k,)
            Changed in place.
        moved : callable
            ``(values, times, on)``: what so many steps make of the coordinates `on`, but for gradients. It is called
            when a batch touches them next, or at the end.
        step : callable
            ``(batch, on, number)``: the rest of a step.
        """
        steps = 0
        last = np.zeros(vector.size, dtype=np.int64)
        for batch in self.objective.batches(rng, downlink.first_order):
            on = self.touched(batch)
            vector[on] = moved(vector[on], steps - last[on], on)
            last[on] = steps
            step(batch, on, steps)
            steps += 1
        vector[:] = moved(vector, steps - last, slice(None))
        return steps

    def dual_steps(self, downlink: Downlink, dual: Vector, rng: np.random.Generator, shift: Vector = NOTHING) -> int:
        """Take the local steps of dual averaging on the dual at the shard's coordinates; return their number.

        Parameters
        ----------
        downlink : Downlink
            The server's message, with the elapsed time and the step size.
        dual : ndarray of float64, shape (k,)
            Changed in place.
        shift : ndarray of float64, shape (k,) or (0,)
            Subtracted in each step; empty for none.
        """
        loss, work, client_lr = self.objective.compiled, downlink.first_order, downlink.client_lr
        rows = self.objective.num_examples
        if work.batch_size is not None and self.groups is None and loss is not None and loss[0] >= 0:
            code, parameter, matrix, *of_rows = loss
            (terms, own), size = self._compiled, min(work.batch_size, rows)
            given = (code, parameter, *of_rows), (matrix.indptr, matrix.indices, matrix.data)
            steps = 0
            for used in work.epoch_sizes(rows):
                order = rng.permutation(rows)[:used]
                elapsed = downlink.elapsed + client_lr * steps
                steps += lazy_dual_averaging(*given, own, order, size, terms, elapsed, client_lr, shift, dual)
            return steps
        primal = np.zeros(dual.size)

        def step(batch: Batch, on: Any, number: int) -> None:
            primal[on] = self.retrieve(dual[on], downlink.elapsed + client_lr * number, on=on)
            self.objective.add_gradient(primal, batch, -client_lr, dual)

        return self.lazily(downlink, dual, rng, lambda z, k, on: z - k * shift[on] if shift.size else z, step)

    @cached_property
    def _compiled(self) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """Terms and weights for the compiled loop, and those of the last coordinate."""
        k = self.indices.size
        table = np.vstack([self.terms.table((k,)), np.broadcast_to(self.metric, (1, k))])
        first, own = (tuple(map(float, column)) for column in (table[:, :1].sum(axis=1), table[:, -1:].sum(axis=1)))
        # A vector of thresholds takes longer for a large model.
        same = (table[:, : k - 1] == table[:, :1]).all()
        return first if same else tuple(table), own

    def proximal_steps(self, downlink: Downlink, primal: Vector, rng: np.random.Generator) -> int | None:
        """Take proximal steps w <- prox(w - client_lr g(w)) on a model; return their number, or None if unsupported.

        A coordinate that m consecutive minibatches do not touch is shrunk m times at once: with l1 and squared l2 terms
        a and b, and r = 1 / (1 + client_lr b), w becomes sign(w) max(r^m |w| - a client_lr (r + ... + r^m), 0).

        Parameters
        ----------
        downlink, rng
            As for :meth:`dual_steps`.
        primal : ndarray of float64, shape (d,)
            Changed in place.
        """
        # Between bounds, or in another metric, repeated steps have no closed form.
        if self.everywhere is None or self.everywhere.is_bounded or np.ndim(self.metric):
            return None
        local = primal[self.indices]
        client_lr = downlink.client_lr
        # The proximal map of a step, too, is left to the next time that a coordinate is read.
        moved: Move = lambda w, times, on: shrunk(w, times, client_lr, self.terms.at(on))  # noqa: E731
        add_gradient = self.objective.add_gradient
        steps = self.lazily(downlink, local, rng, moved, lambda rows, *_: add_gradient(local, rows, -client_lr, local))
        primal[:] = shrunk(primal, steps, client_lr, self.everywhere)
        primal[self.indices] = local
        return steps


#: The shards of this process, with their plans.
_shards: WeakKeyDictionary[Objective, tuple[Plan, Shard | None]] = WeakKeyDictionary()


def shard_of(plan: Plan, objective: Objective) -> Shard | None:
    """Return an objective's shard, or None if steps read every coordinate; for sparse features the reason is logged."""
    if not isinstance(objective, Linear):
        return None
    entry = _shards.get(objective)
    if entry is None or entry[0] is not plan:
        found = _make_shard(plan, objective)
        if isinstance(found, str):
            tell_dense(plan, found)
        _shards[objective] = entry = plan, None if isinstance(found, str) else found
    return entry[1]


def _make_shard(plan: Plan, objective: Linear) -> Shard | str:
    """Return a shard, or why there is none."""
    h = plan.h
    everywhere = terms = plan.psi.terms()
    groups = None
    strengths = NOTHING
    if type(objective).batches is not Linear.batches:
        return f"{type(objective).__name__} has batches of its own"
    if isinstance(objective.link, Coupled):
        return f"a batch of {type(objective).__name__} concerns all rows"
    if objective.l2 != 0.0:
        return "l2 moves every coefficient in every step; a squared l2 term of psi (ElasticNet) does not"
    if terms is None and type(h) is Euclidean and not (sums := plan.psi.sums).others:
        terms, strengths = Terms(*sums.table), sums.strengths
        # Of strength 0 there are none.
        groups = sums.groups if strengths.size else None
    if terms is None or type(h) not in (Euclidean, DiagonalMetric):
        return f"{type(plan.mirror_map).__name__} with {type(plan.regularizer).__name__} is no sum over coordinates"
    outputs, (_, width), size = objective.num_outputs, objective.features.shape, plan.layout.size
    columns = np.append(np.unique(objective.features.indices), np.arange(width, width + objective.intercept))
    known = -1
    while groups is not None and known != columns.size:
        # All columns that share a group with one of them.
        known = columns.size
        columns = np.unique(closure(flat_indices(columns, outputs), groups) // outputs)
    indices = flat_indices(columns, outputs)
    if groups is not None and 2 * indices.size > size:
        return f"the groups of its features have {indices.size:,} of the model's coordinates"
    metric = h.weights[indices] if isinstance(h, DiagonalMetric) else 1.0
    psi = terms.at(indices), everywhere, metric, None if groups is None else groups[indices], strengths
    return Shard(objective.on_columns(columns), indices, *psi)


#: The last plan for which dense steps were logged.
_logged: list[Plan] = []


def tell_dense(plan: Plan, reason: str) -> None:
    """Log once per plan that local steps on sparse features cost as much as on dense ones."""
    if not _logged or _logged[0] is not plan:
        _logged[:] = [plan]
        text = "sparse features, but each local step of %s reads all %s coordinates: %s (docs/how-to/sparse.md)"
        logger.warning(text, plan.solver, f"{plan.layout.size:,}", reason)


def closure(indices: Indices, groups: NDArray[np.int64]) -> Indices:
    """Return the given coordinates and all that share a group with one of them.

    Examples
    --------
    >>> closure(np.array([0, 4]), np.array([0, 0, 1, 1, -1]))
    array([0, 1, 4])
    """
    found = np.zeros(groups.max(initial=-1) + 2, dtype=bool)
    # The last one stands for no group.
    found[groups[indices]] = groups[indices] >= 0
    return np.union1d(np.flatnonzero(found[groups]), indices)


def flat_indices(columns: NDArray[np.int64], outputs: int) -> NDArray[np.int64]:
    """Return the indices of some columns' coefficients in a flat vector with `outputs` coefficients per column.

    Examples
    --------
    >>> flat_indices(np.array([0, 2]), 3)
    array([0, 1, 2, 6, 7, 8])
    """
    return (columns[:, None] * outputs + np.arange(outputs)).reshape(-1)


def shrunk(w: Vector, times: Any, step: float, terms: Terms) -> Vector:
    """Apply the proximal map of step (threshold |.| + shrinkage/2 (.)^2) several times and return the result.

    Examples
    --------
    >>> shrunk(np.array([3.0, -0.5]), 2, 1.0, Terms(0.25))
    array([2.5, 0. ])
    """
    rate = step * np.asarray(terms.shrinkage)
    ratio = np.exp(-times * np.log1p(rate))
    # (1 - ratio) / rate is the sum of r + ... + r^m.
    sums = np.where(rate > 0.0, -np.expm1(-times * np.log1p(rate)) / np.where(rate > 0.0, rate, 1.0), times)
    sizes = np.maximum(np.abs(w) * ratio - step * np.asarray(terms.threshold) * sums, 0.0)
    # Adding 0.0 turns -0.0 into 0.0.
    return np.asarray(np.sign(w) * sizes + 0.0)
