"""What an exchange asks besides where psi leaves coefficients alone: losses and gradients at some points about them.

They are the corners of a simplex (:mod:`flwr_fco.certificates.dual`), asked for once, in a message of the method, as
soon as the optimum in the free coefficients is near. Their sums stay dual points of the same clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Problem, Replies, Vector
from flwr_fco.algorithms.newton.terms import TERMS, Evaluated
from flwr_fco.certificates.dual import as_row, corners, mixed_coordinates, surround
from flwr_fco.certificates.told import check_tangents
from flwr_fco.core.sparse import SparseVector, is_shorter
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.duality import num_intercepts
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.wire.questions import LINKS

Indices = NDArray[np.int64]

#: How often the points may be asked for.
_TRIES = 5


def mixed(psi: BoundRegularizer) -> Indices:
    """Return the coordinates that psi leaves alone, if a bound needs more than an intercept's correction; else none."""
    return mixed_coordinates(psi, num_intercepts(psi.layout))


def mixing_sizes(psi: BoundRegularizer) -> tuple[int, int]:
    """Return the sizes of a state's corners, and of its rows; 0 if there are none."""
    count = mixed(psi).size
    return count and (count + 1) * count, count and (count + 1) * (psi.layout.size + 2)


def parted(told: Any, size: int) -> list[tuple[Vector, Indices]]:
    """Return the points of a message, 0 where nothing is told, and the coordinates that are told of each."""
    points = []
    ends = np.searchsorted(told.indices, np.arange(0, told.size + size, size))
    for k, (begin, end) in enumerate(pairwise(ends.tolist())):
        on = told.indices[begin:end].astype(np.int64) - k * size
        point = np.zeros(size)
        point[on] = told.values[begin:end]
        points.append((point, on))
    return points


def corner_points(w: Vector, told: Sequence[tuple[Vector, Indices]]) -> list[Vector]:
    """Return the corners of a message, which are the point itself but for the coordinates that are told."""
    return [np.where(np.isin(np.arange(w.size), on), values, w) for values, on in told]


def corners_of(state: Any, psi: BoundRegularizer) -> list[Vector]:
    """Return the corners that a state asks about."""
    on = mixed(psi)
    points = np.tile(state.trial, (state.corners.size // on.size, 1))
    points[:, on] = state.corners.reshape(-1, on.size)
    return list(points)


def corner_answers(objective: Objective, points: Sequence[Vector]) -> Any:
    """Return a client's gradient and loss at each corner, in one vector."""
    each = [objective.value_and_gradient(point) for point in points]
    told = np.concatenate([np.append(gradient, loss) for loss, gradient in each])
    on = np.flatnonzero(told)
    return SparseVector(on.astype(np.int32), told[on], told.size) if is_shorter(on.size, told.size) else told


def check_corners(state: Any, psi: BoundRegularizer, vectors: Any, tolerance: float) -> None:
    """Check a client's corners: a convex loss is above its tangents, at the corners those of the trial point and back.

    Raises
    ------
    ProtocolError
        If it is below one of them.
    """
    told = dict(zip(TERMS, vectors["terms"].tolist(), strict=True))
    if not told["link"] or told["l2"] > 0.0:
        return
    here, squares = (told["loss"], vectors["gradient"]), LINKS[int(told["link"])] == "identity"
    for point, own in zip(corners_of(state, psi), vectors["corners"].reshape(-1, state.trial.size + 1), strict=True):
        check_tangents(here, (float(own[-1]), own[:-1]), point - state.trial, squares=squares, tolerance=tolerance)


def with_corners(state: Any, psi: BoundRegularizer, replies: Replies) -> Any:
    """Return the state with the dual points of the corners, if they surround 0 in what psi leaves alone."""
    if not state.asking:
        return state
    told = replies.sum("corners").reshape(-1, state.trial.size + 1)
    pairs = zip(told, corners_of(state, psi), strict=True)
    rows = np.array([as_row(own[:-1], point, float(own[-1])) for own, point in pairs])
    state = state._replace(asking=0.0)
    return state._replace(rows=rows.reshape(-1)) if surround(rows[:, mixed(psi)]) else state


def asking(
    problem: Problem, state: Any, known: Evaluated, gradient: Vector, block: NDArray[np.float64], on: Indices
) -> Any:
    """Return the state that asks about corners in the next exchange, if it needs some and knows where.

    Parameters
    ----------
    gradient : ndarray of float64, shape (d,)
        At the trial point, as the quadratic model predicts it.
    block : ndarray of float64, shape (k, k)
        The Hessian on the coordinates `on`.
    """
    free = mixed(problem.psi) if state.rows.size and not state.rows.any() else np.zeros(0, dtype=np.int64)
    known_there = free.size and block.size and np.isin(free, on).all()
    if not known_there or known.reason or known.facts["l2"] > 0.0 or state.tries >= _TRIES:
        return state
    places = np.searchsorted(on, free)
    bend, room = block[np.ix_(places, places)], known.loss - known.least
    # The first ones are smaller than a certificate's, which can ask again at once.
    found = corners(state.trial[free], gradient[free], bend, room, 1 + int(state.tries))
    # The model is that of squares; of other losses only near its minimum.
    if known.link != "identity" and math.sqrt(-2.0 * state.slope) > found.near:
        return state
    return state._replace(corners=found.values.reshape(-1), asking=1.0, tries=state.tries + 1.0)


def corner_shapes(state: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of :func:`corner_answers`, if a state asks for them."""
    return {"corners": (state.rows.size - state.rows.size // (state.trial.size + 2),)} if state.asking else {}
