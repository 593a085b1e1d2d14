"""Local steps on sparse features: a coordinate is retrieved only when a minibatch touches it.

If h and psi are sums over coordinates, a minibatch's gradient reads and writes only the columns with non-zeros in its
rows. All other coordinates keep their dual, or change linearly in the number of steps (a tracker) or in closed form
(proximal steps); these changes are applied when a coordinate is touched next. So the cost of an epoch is proportional
to the number of non-zeros in the rows, whatever the size of the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import SparseVector, is_shorter
from flwr_fco.kernels.dual_averaging import NOTHING
from flwr_fco.kernels.prox import grouped, separable
from flwr_fco.kernels.sparse import lazy_dual_averaging
from flwr_fco.messages.protocol import Downlink, Plan, ReceivedVectors
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap
from flwr_fco.objectives.base import Batch, Objective, shuffled_epochs
from flwr_fco.objectives.linear import Linear
from flwr_fco.objectives.links import Coupled
from flwr_fco.regularizers import BoundRegularizer, Terms

Indices = NDArray[np.integer[Any]]
#: Steps are dense if the groups of a client's features cover more than 1/_DENSE of the model's coordinates.
_DENSE = 2
#: ``(z, t, places) -> w``: the primal point at some of a shard's coordinates.
Retrieve = Callable[[Vector, float, Indices], Vector]


class Groups(NamedTuple):
    """psi as a sum over coordinates plus a sum over groups.

    Parameters
    ----------
    terms : Terms
        The terms of the first sum, with arrays of shape (d,).
    numbers : ndarray of int64, shape (d,)
        Each coordinate's group number; the last number for coordinates in no group.
    weights : ndarray of float64
        Weight of each group's norm; the last is 0.
    """

    terms: Terms
    numbers: NDArray[np.int64]
    weights: Vector

    def closure(self, indices: Indices) -> Indices:
        """Return the given coordinates and all coordinates that share a group with one of them."""
        touched = np.zeros(self.weights.size, dtype=bool)
        touched[self.numbers[indices]] = True
        touched &= self.weights > 0.0
        return np.union1d(np.flatnonzero(touched[self.numbers]), indices)


def groups_of(h: MirrorMap, psi: BoundRegularizer) -> Groups | None:
    """Return psi as a sum over coordinates plus a sum over groups; None if psi or h does not allow this."""
    table, groups, strengths, others = psi.sums
    if type(h) is not Euclidean or others or not strengths.size:
        return None
    return Groups(Terms(*table), np.where(groups < 0, strengths.size, groups), np.append(strengths, 0.0))


@dataclass(frozen=True)
class Coordinates:
    """h and psi at some coordinates: h is Euclidean or a diagonal metric, psi a sum over them and over groups of them.

    Parameters
    ----------
    terms : Terms
        psi's terms: each a number or an array of shape (k,).
    metric : ndarray, shape (k,), or None
        Weights of the diagonal metric; None for Euclidean h.
    numbers : ndarray of int64, shape (k,), or None
        Each coordinate's group number, from 0; None for no groups.
    weights : ndarray of float64
        Weight of each group's norm.

    Examples
    --------
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import GroupLasso
    >>> psi = GroupLasso(1.0, groups=np.array([0, 0, 1, 1]), weights=np.ones(2))
    >>> psi = psi.bind(Layout.from_arrays({"w": np.zeros(4)}))
    >>> here = Coordinates.of_groups(groups_of(Euclidean(), psi), np.array([0, 1]))
    >>> here.retrieve(np.array([3.0, 4.0]), 2.5)
    array([1.5, 2. ])
    """

    terms: Terms
    metric: Vector | None = None
    numbers: NDArray[np.int64] | None = None
    weights: Vector = field(default_factory=lambda: NOTHING)

    @classmethod
    def of(cls, h: MirrorMap, psi: BoundRegularizer, indices: Indices) -> Coordinates | None:
        """Return h and psi at some coordinates, or None if one of them is no sum over coordinates."""
        terms = psi.terms()
        if type(h) not in (Euclidean, DiagonalMetric) or terms is None:
            return None
        return cls(terms.at(indices), h.weights[indices] if isinstance(h, DiagonalMetric) else None)

    @classmethod
    def of_groups(cls, groups: Groups, indices: Indices) -> Coordinates:
        """Return psi at the coordinates of some whole groups."""
        present, numbers = np.unique(groups.numbers[indices], return_inverse=True)
        return cls(groups.terms.at(indices), None, numbers, groups.weights[present])

    def without_psi(self) -> Coordinates:
        """Return the same coordinates without psi."""
        return Coordinates(Terms(), self.metric)

    def members(self, positions: Indices) -> Indices:
        """Return the positions of all coordinates in the groups of the given ones, group by group.

        Parameters
        ----------
        positions : ndarray of int
            Positions in these coordinates, without duplicates.
        """
        if self.numbers is None:
            return positions
        order, begins, ends = self._order
        numbers = self.numbers[positions]
        coupled = self.weights[numbers] > 0.0
        touched = np.zeros(self.weights.size, dtype=bool)
        touched[numbers[coupled]] = True
        groups = np.flatnonzero(touched)
        sizes = ends[groups] - begins[groups]
        # begin, begin + 1, ..., end - 1 for each group.
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.concatenate([order[np.repeat(begins[groups], sizes) + within], positions[~coupled]])

    @cached_property
    def _order(self) -> tuple[Indices, Indices, Indices]:
        """The coordinates sorted by group, and the start and end of each group."""
        assert self.numbers is not None
        sizes = np.bincount(self.numbers, minlength=self.weights.size)
        ends = np.cumsum(sizes)
        return np.argsort(self.numbers, kind="stable"), ends - sizes, ends

    def retrieve(self, z: Vector, t: float, positions: Indices | None = None) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) } at the coordinates, or at some of them.

        Parameters
        ----------
        z : ndarray of float64, shape (k,) or shape of `positions`
            The dual there.
        t : float
            The weight of psi.
        positions : ndarray of int, optional
            Positions in the coordinates, group by group; all by default.
        """
        terms, metric, numbers, weights = self.terms, self.metric, self.numbers, self.weights
        if positions is not None:
            terms = terms.at(positions)
            metric = None if metric is None else metric[positions]
        point = np.empty_like(z)
        separable(z, t, terms.rows(z.shape), 1.0 if metric is None else metric, point)
        if numbers is None:
            return point
        if positions is not None:
            here = numbers[positions]
            begins = np.ones(here.size, dtype=bool)
            np.not_equal(here[1:], here[:-1], out=begins[1:])
            numbers, weights = np.cumsum(begins) - 1, weights[here[begins]]
        grouped(point, 0.0, numbers, t * weights, point)
        return point


@dataclass(frozen=True)
class Shard:
    """The coordinates of a model that a client's sparse rows touch, with the loss, h and psi on them.

    Parameters
    ----------
    objective : Linear
        The client's loss as a function of these coordinates.
    coordinates : Coordinates
        h and psi on these coordinates.
    indices : ndarray of int64, shape (k,)
        Their indices in the flat vector of the model, ascending; the intercepts come last. With group norms, these are
        all coordinates of the groups that the rows touch.
    """

    objective: Linear
    coordinates: Coordinates
    indices: NDArray[np.int64]

    def vector(self, downlink: Downlink, name: str) -> Vector:
        """Return the shard's coordinates of a vector from the server."""
        vectors = downlink.vectors
        return vectors.at(name, self.indices) if isinstance(vectors, ReceivedVectors) else vectors[name][self.indices]

    def sparse(self, values: Vector, plan: Plan) -> SparseVector:
        """Return values at the shard's coordinates as a sparse vector of the model's length."""
        return SparseVector(self._int32_indices, values, plan.layout.size)

    def is_short(self, plan: Plan) -> bool:
        """Whether sending the shard's coordinates takes fewer bytes than sending all coordinates."""
        return is_shorter(self.indices.size, plan.layout.size)

    @cached_property
    def _int32_indices(self) -> NDArray[np.int32]:
        return self.indices.astype(np.int32)

    def dual_steps(
        self, downlink: Downlink, dual: Vector, rng: np.random.Generator, shift: Vector | None, psi: bool = True
    ) -> int:
        """Take the local steps of dual averaging on a model's dual; return their number.

        Parameters
        ----------
        downlink, rng
            As for :meth:`local_dual_steps`.
        dual : ndarray of float64, shape (d,)
            Changed in place.
        shift : ndarray of float64, shape (d,), or None
            Subtracted in each step.
        psi : bool, default True
            Whether psi acts.
        """
        local = dual[self.indices]
        steps = self.local_dual_steps(downlink, local, rng, None if shift is None else shift[self.indices], psi)
        if shift is not None:
            dual -= steps * shift
        dual[self.indices] = local
        return steps

    def local_dual_steps(
        self, downlink: Downlink, dual: Vector, rng: np.random.Generator, shift: Vector | None = None, psi: bool = True
    ) -> int:
        """Take the local steps of dual averaging on the dual at the shard's coordinates; return their number.

        Parameters
        ----------
        downlink : Downlink
            The server's message, with the elapsed time and the step size.
        dual : ndarray of float64, shape (k,)
            Changed in place.
        shift : ndarray of float64, shape (k,), optional
            Subtracted in each step.
        psi : bool, default True
            As in :meth:`dual_steps`.
        """
        coordinates = self.coordinates if psi else self.coordinates.without_psi()
        client_lr, work = downlink.client_lr, downlink.first_order
        loss, terms = self.objective.compiled, self._terms[psi]
        move = NOTHING if shift is None else shift
        if work.batch_size is None or terms is None or loss is None or loss[0] < 0 or loss[4].size or loss[5].size:
            return self._lazy_steps(downlink, rng, dual, move, coordinates.retrieve)
        last = np.empty(move.size, dtype=np.int64)
        code, parameter, matrix, targets, *_ = loss
        steps, rows = 0, len(targets)
        size, stored = min(work.batch_size, rows), (matrix.indptr, matrix.indices, matrix.data)
        take = partial(lazy_dual_averaging, code, parameter, stored, self.objective.intercept, targets)
        for order in shuffled_epochs(rows, rng, work):
            elapsed = downlink.elapsed + client_lr * steps
            steps += take(order, size, terms, elapsed, client_lr, move, last, dual)
        return steps

    def _lazy_steps(
        self, downlink: Downlink, rng: np.random.Generator, dual: Vector, shift: Vector, retrieve: Retrieve
    ) -> int:
        """Take the steps z <- z - client_lr g(retrieve(z, t)) - shift, one minibatch at a time."""
        client_lr, steps = downlink.client_lr, 0
        primal, last = np.zeros(dual.size), np.zeros(dual.size, dtype=np.int64)
        for batch in self.objective.batches(rng, downlink.first_order):
            touched = self.touched(batch)
            if shift.size:
                dual[touched] -= (steps - last[touched]) * shift[touched]
                last[touched] = steps
            primal[touched] = retrieve(dual[touched], downlink.elapsed + client_lr * steps, touched)
            self.objective.add_gradient(primal, batch, -client_lr, dual)
            steps += 1
        if shift.size:
            dual -= (steps - last) * shift
        return steps

    def proximal_steps(
        self, downlink: Downlink, primal: Vector, rng: np.random.Generator, psi: bool = True
    ) -> int | None:
        """Take proximal steps w <- prox(w - client_lr g(w)) on a model; return their number, or None if unsupported.

        A coordinate that m consecutive minibatches do not touch is shrunk m times at once: with l1 and squared l2 terms
        a and b, and r = 1 / (1 + client_lr b), w becomes sign(w) max(r^m |w| - a client_lr (r + ... + r^m), 0).

        Parameters
        ----------
        downlink, rng
            As for :meth:`local_dual_steps`.
        primal : ndarray of float64, shape (d,)
            Changed in place.
        psi : bool, default True
            Whether psi acts.
        """
        plan, client_lr, local = downlink.plan, downlink.client_lr, primal[self.indices]
        coordinates = self.coordinates if psi else self.coordinates.without_psi()
        everywhere = plan.psi.terms()
        if everywhere is None or coordinates.metric is not None or coordinates.numbers is not None:
            return None
        if np.any(np.greater(everywhere.lower, -np.inf)) or np.any(np.less(everywhere.upper, np.inf)):
            # Repeated steps have no closed form.
            return None
        terms, steps, last = coordinates.terms, 0, np.zeros(local.size, dtype=np.int64)
        for batch in self.objective.batches(rng, downlink.first_order):
            touched = self.touched(batch)
            missed = steps - last[touched]
            local[touched] = shrunk(local[touched], missed, client_lr, *terms.at(touched)[:2])
            self.objective.add_gradient(local, batch, -client_lr, local)
            local[touched] = coordinates.retrieve(local[touched], client_lr, touched)
            steps += 1
            last[touched] = steps
        local = shrunk(local, steps - last, client_lr, *terms[:2])
        if psi:
            primal[:] = shrunk(primal, steps, client_lr, *everywhere[:2])
        primal[self.indices] = local
        return steps

    def touched(self, batch: Batch) -> Indices:
        """Return the coordinates that the gradient on some rows reads and writes.

        Parameters
        ----------
        batch : ndarray of int64 or None
            Row numbers; None for all.
        """
        outputs, matrix = self.objective.num_outputs, self.objective.features
        columns = np.unique((matrix if batch is None else matrix[batch]).indices).astype(np.int64)
        intercepts = np.arange(matrix.shape[1] * outputs, self.indices.size)
        return self.coordinates.members(np.concatenate([flat_indices(columns, outputs), intercepts]))

    @cached_property
    def _terms(self) -> dict[bool, NDArray[np.float64] | None]:
        """Terms for the compiled loop, with and without psi; None if the loop does not support them."""
        return {psi: self._compiled(psi) for psi in (False, True)}

    def _compiled(self, psi: bool) -> NDArray[np.float64] | None:
        coordinates = self.coordinates if psi else self.coordinates.without_psi()
        if coordinates.numbers is not None:
            return None
        fields = [*coordinates.terms, 1.0 if coordinates.metric is None else coordinates.metric]
        k, intercept = self.indices.size, self.objective.intercept
        table = np.array([np.broadcast_to(field, k) for field in fields], dtype=np.float64)
        plain = table[:, : k - intercept]
        free = not intercept or bool((table[[0, 1], -1] == 0.0).all() and table[4, -1] == 1.0)
        bounded = np.isfinite(table[2:4]).any()
        if free and not bounded and (plain == plain[:, :1]).all():
            # A vector of thresholds doubles the time for a large model. Without any columns there are no terms.
            return np.ascontiguousarray(plain[:, :1]) if plain.size else np.array([[0.0], [0.0], [0.0], [0.0], [1.0]])
        return table


def has_sparse_rows(objective: Objective) -> bool:
    """Whether an objective's features are sparse."""
    # Called for every client in every round, most of them dense: isinstance is slower for an abstract class.
    return type(getattr(objective, "features", None)) is not np.ndarray and isinstance(objective, Linear)


#: The shards of this process, with their plans.
_shards: WeakKeyDictionary[Objective, tuple[Plan, Shard | None]] = WeakKeyDictionary()


def shard_of(plan: Plan, objective: Objective) -> Shard | None:
    """Return an objective's shard, or None if steps read every coordinate; for sparse features the reason is logged."""
    if not has_sparse_rows(objective):
        return None
    assert isinstance(objective, Linear)
    entry = _shards.get(objective)
    if entry is None or entry[0] is not plan:
        _shards[objective] = entry = (plan, _make_shard(plan, objective))
    return entry[1]


def _make_shard(plan: Plan, objective: Linear) -> Shard | None:
    matrix = objective.features
    width = matrix.shape[1]
    outputs, reason = objective.num_outputs, ""
    groups = groups_of(plan.h, plan.psi)
    columns = np.unique(matrix.indices).astype(np.int64)
    if groups is not None:
        columns = _whole_groups(groups, columns, outputs, width)
    indices = flat_indices(columns, outputs)
    indices = np.concatenate([indices, np.arange(width * outputs, objective.layout.size)])
    coordinates = Coordinates.of(plan.h, plan.psi, indices)
    if groups is not None and _DENSE * indices.size <= objective.layout.size:
        coordinates = Coordinates.of_groups(groups, indices)
    if type(objective).batches is not Linear.batches:
        reason = f"{type(objective).__name__} has batches of its own"
    elif isinstance(objective.link, Coupled):
        reason = f"a batch of {type(objective).__name__} concerns all rows"
    elif objective.l2 != 0.0:
        reason = "l2 moves every coefficient in every step; a squared l2 term of psi (ElasticNet) does not"
    elif coordinates is None and groups is not None:
        reason = f"the groups of its features have {indices.size:,} of the model's coordinates"
    elif coordinates is None:
        reason = f"{type(plan.mirror_map).__name__} with {type(plan.regularizer).__name__} is no sum over coordinates"
    if reason:
        tell_dense(plan, reason)
    if reason or coordinates is None:
        return None
    return Shard(objective.on_columns(columns), coordinates, indices)


def _whole_groups(groups: Groups, columns: NDArray[np.int64], outputs: int, number: int) -> NDArray[np.int64]:
    """Extend columns until they contain every column that shares a group with one of them."""
    while True:
        indices = groups.closure(flat_indices(columns, outputs))
        further = np.unique(indices[indices < number * outputs] // outputs).astype(np.int64)
        if further.size == columns.size:
            return columns
        columns = further


#: The last plan for which dense steps were logged.
_logged: list[Plan] = []


def tell_dense(plan: Plan, reason: str) -> None:
    """Log once per plan that local steps on sparse features cost as much as on dense ones."""
    if not _logged or _logged[0] is not plan:
        _logged[:] = [plan]
        log(
            logging.WARNING,
            "sparse features, but each local step of %s reads all %s coordinates: %s (docs/how-to/sparse.md)",
            plan.solver,
            f"{plan.layout.size:,}",
            reason,
        )


def flat_indices(columns: NDArray[np.int64], outputs: int) -> NDArray[np.int64]:
    """Return the indices of some columns' coefficients in a flat vector with `outputs` coefficients per column.

    Examples
    --------
    >>> flat_indices(np.array([0, 2]), 3)
    array([0, 1, 2, 6, 7, 8])
    """
    if outputs == 1:
        return columns
    return (columns[:, None] * outputs + np.arange(outputs)).reshape(-1)


def shrunk(w: Vector, times: Any, step: float, threshold: Any, shrinkage: Any) -> Vector:
    """Apply the proximal map of step (threshold |.| + shrinkage/2 (.)^2) several times and return the result.

    Examples
    --------
    >>> shrunk(np.array([3.0, -0.5]), 2, 1.0, 0.25, 0.0)
    array([2.5, 0. ])
    """
    rate = step * np.asarray(shrinkage)
    ratio = np.exp(-times * np.log1p(rate))
    # (1 - ratio) / rate is the sum of r + ... + r^m.
    sums = np.where(rate > 0.0, -np.expm1(-times * np.log1p(rate)) / np.where(rate > 0.0, rate, 1.0), times)
    sizes = np.maximum(np.abs(w) * ratio - step * np.asarray(threshold) * sums, 0.0)
    # Adding 0.0 turns -0.0 into 0.0.
    return np.asarray(np.sign(w) * sizes + 0.0)
