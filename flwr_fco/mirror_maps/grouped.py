"""Group norms in the Euclidean geometry, at the coordinates of some groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.kernels.prox import group_norms, group_shrink
from flwr_fco.mirror_maps.base import Coordinates, Euclidean, Indices, MirrorMap, terms_at
from flwr_fco.regularizers.base import BoundRegularizer, SeparableTerms
from flwr_fco.regularizers.groups import GroupLasso, SparseGroupLasso


class Groups(NamedTuple):
    """psi as a sum over coordinates plus a sum over groups.

    Parameters
    ----------
    terms : SeparableTerms
        The terms of the first sum, with arrays of shape (d,).
    numbers : ndarray of int64, shape (d,)
        Each coordinate's group number; the last number for coordinates in no group.
    weights : ndarray of float64
        Weight of each group's norm; the last is 0.
    """

    terms: SeparableTerms
    numbers: NDArray[np.int64]
    weights: Vector

    def closure(self, indices: Indices) -> Indices:
        """Return the given coordinates and all coordinates that share a group with one of them."""
        touched = np.zeros(self.weights.size, dtype=bool)
        touched[self.numbers[indices]] = True
        touched &= self.weights > 0.0
        return np.union1d(np.flatnonzero(touched[self.numbers]), indices)


#: Cached results of :func:`groups_of`.
_groups: WeakKeyDictionary[BoundRegularizer, Groups | None] = WeakKeyDictionary()


def groups_of(geometry: MirrorMap, regularizer: BoundRegularizer) -> Groups | None:
    """Return psi as a sum over coordinates plus a sum over groups; None if psi or h does not allow this.

    Parameters
    ----------
    regularizer : BoundRegularizer
        h and psi.
    """
    if type(geometry) is not Euclidean:
        return None
    if regularizer not in _groups:
        _groups[regularizer] = _split(regularizer)
    return _groups[regularizer]


def _split(regularizer: BoundRegularizer) -> Groups | None:
    terms, others = regularizer.split_terms()
    numbers = np.full(regularizer.layout.size, -1, dtype=np.int64)
    weights: list[Vector] = []
    count = 0
    for place, shape, psi in others:
        if not isinstance(psi, GroupLasso | SparseGroupLasso):
            return None
        l1, group_numbers, factors = psi.group_terms(shape)
        terms.threshold[place] = l1  # type: ignore[index]
        numbers[place] = group_numbers + count
        weights.append(factors)
        count += factors.size
    numbers[numbers < 0] = count
    return Groups(terms, numbers, np.concatenate([*weights, np.zeros(1)])) if others else None


@dataclass(frozen=True)
class GroupedCoordinates:
    """Euclidean h and psi with group norms, at the coordinates of some groups.

    Parameters
    ----------
    plain : Coordinates
        h and the sum over coordinates at these coordinates.
    numbers : ndarray of int64, shape (k,)
        Each coordinate's group number, from 0.
    weights : ndarray of float64
        Weight of each group's norm.

    Examples
    --------
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import GroupLasso
    >>> psi = GroupLasso(1.0, groups=np.array([0, 0, 1, 1]), weights=np.ones(2))
    >>> psi = psi.bind(Layout.from_arrays({"w": np.zeros(4)}))
    >>> here = GroupedCoordinates.of(Euclidean(), psi, np.array([0, 1]))
    >>> here.retrieve(np.array([3.0, 4.0]), 2.5)
    array([1.5, 2. ])
    """

    plain: Coordinates
    numbers: NDArray[np.int64]
    weights: Vector

    @classmethod
    def of(cls, geometry: MirrorMap, regularizer: BoundRegularizer, indices: Indices) -> GroupedCoordinates | None:
        """Return h and psi at some coordinates, or None if psi is not a sum over coordinates and groups.

        Parameters
        ----------
        places : ndarray of int, shape (k,)
            The coordinates; if they contain one coordinate of a group, they must contain the whole group.
        """
        groups = groups_of(geometry, regularizer)
        if groups is None:
            return None
        present, numbers = np.unique(groups.numbers[indices], return_inverse=True)
        plain = Coordinates(geometry, regularizer, None, terms_at(groups.terms, indices))
        return cls(plain, numbers, groups.weights[present])

    def without_psi(self) -> Coordinates:
        """Return the same coordinates without psi."""
        return self.plain.without_psi()

    def members(self, positions: Indices) -> Indices:
        """Return the positions of all coordinates in the groups of the given ones, group by group.

        Parameters
        ----------
        places : ndarray of int
            Positions in these coordinates, without duplicates.
        """
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
        sizes = np.bincount(self.numbers, minlength=self.weights.size)
        ends = np.cumsum(sizes)
        return np.argsort(self.numbers, kind="stable"), ends - sizes, ends

    def retrieve(self, z: Vector, t: float, positions: Indices | None = None, out: Vector | None = None) -> Vector:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) } at the coordinates, or at the coordinates of some whole groups.

        Parameters
        ----------
        z : ndarray of float64, shape (k,) or shape of `positions`
            The dual there.
        t : float
            The weight of psi.
        positions : ndarray of int, optional
            Positions in the coordinates, group by group; all by default.
        out : ndarray, shape of z, optional
            Where to write the result; may be `z`.
        """
        point = self.plain.retrieve(z, t, positions, out)
        numbers, weights = self.numbers, self.weights
        if positions is not None:
            here = numbers[positions]
            begins = np.ones(here.size, dtype=bool)
            np.not_equal(here[1:], here[:-1], out=begins[1:])
            numbers, weights = np.cumsum(begins) - 1, weights[here[begins]]
        group_shrink(point, numbers, group_norms(point, numbers, weights.size), float(t), weights, point)
        return point
