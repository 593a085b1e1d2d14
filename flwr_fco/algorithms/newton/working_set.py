"""The coordinates on which a Newton step is taken.

They are the non-zeros and the coordinates that violate optimality most, twice as many as there are non-zeros: as in
Massias, Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018). A set that doubles
reaches the support in a few rounds, and is never much larger than it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.newton.model import Indices, Penalty
from flwr_fco.core.layout import Vector

#: Models of at most so many parameters are their own working set.
SMALL = 64
#: Smallest size, and for each class, size as a multiple of the non-zeros, and largest size: its block is then 67 MB. On
#: NCI60, of 14 classes, a smallest size of 100 takes 24 rounds, 140 takes 17 and fewer bytes.
LEAST, _LEAST_OF_A_CLASS, _TIMES, _MOST = 100, 10, 2, 4096
#: Rounds among which the columns that clients allow are divided, if that is enough.
_ROUNDS = 8


def whole_groups(mask: NDArray[np.bool_], penalty: Penalty) -> NDArray[np.bool_]:
    """Return the mask with the other coordinates of its groups."""
    if not penalty.strengths.size:
        return mask
    held = np.zeros(penalty.strengths.size + 1, dtype=np.bool_)
    held[penalty.groups[mask & (penalty.groups >= 0)]] = True
    return np.asarray(mask | held[penalty.groups])


def working_set(
    x: Vector,
    gradient: Vector,
    penalty: Penalty,
    small: int = SMALL,
    least: int = LEAST,
    *,
    outputs: int = 1,
    most: float = _MOST,
) -> NDArray[np.bool_]:
    """Return the mask of the next working set.

    Parameters
    ----------
    x, gradient : ndarray of float64, shape (d,)
        The next point, and the gradient as far as it is known.
    penalty : Penalty
        psi's terms.
    small, least : int
        The size of a model that is its own working set, and the smallest size of one.
    outputs : int, default 1
        Number of the loss's outputs: classes.
    most : float, default 4096
        Largest size. Of more than so many coordinates that are needed, those that are farthest from optimal, in turn.

    Examples
    --------
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"w": np.zeros(300)})
    >>> mask = working_set(np.eye(1, 300, 7)[0], np.linspace(0.0, 1.0, 300), Penalty.of(L1(1.0).bind(layout)))
    >>> int(mask.sum()), bool(mask[7]), bool(mask[299])
    (100, True, True)
    """
    limited, most = most < _MOST, int(min(most, _MOST))
    least = max(least, _LEAST_OF_A_CLASS * outputs)
    if limited:
        # What clients allow is for the whole run.
        least = min(least, max(1, most // _ROUNDS))
    if x.size <= min(small, least):
        return np.ones(x.size, dtype=np.bool_)
    needed = whole_groups((x != 0.0) | penalty.free, penalty)
    score = _violations(gradient, penalty)
    count = int(needed.sum())
    if count < most:
        score[needed] = np.inf
    else:
        # More than fits into one block: those that are farthest from optimal, in turn. Those of the last block are not.
        score = np.abs(x - penalty.prox(x - gradient))
    size = max(min(max(least, _TIMES * count), most), min(count, most))
    order = np.argsort(-score, kind="stable")
    if limited and penalty.strengths.size:
        return _groups_that_fit(order, penalty.groups, min(max(size, count + penalty.widest), most))
    mask = np.zeros(x.size, dtype=np.bool_)
    mask[order[:size]] = True
    return whole_groups(mask, penalty)


def _groups_that_fit(order: Indices, groups: Indices, most: int) -> NDArray[np.bool_]:
    """Return the mask of at most so many coordinates, in an order, with the other coordinates of their groups."""
    mask = np.zeros(order.size, dtype=np.bool_)
    by_group = np.argsort(groups, kind="stable")
    ends = np.searchsorted(groups[by_group], np.arange(groups.max(initial=-1) + 2))
    seen: set[int] = set()
    for j in order.tolist():
        group = int(groups[j])
        members = np.array([j]) if group < 0 else by_group[ends[group] : ends[group + 1]]
        if group not in seen and members.size <= most:
            mask[members] = True
            most -= members.size
        seen |= {group} if group >= 0 else set()
        if most == 0:
            break
    return mask


def _violations(gradient: Vector, penalty: Penalty) -> Vector:
    """Return the size of each coordinate's, or group's, slope at 0 relative to what psi balances; 1 at the boundary."""
    threshold, size = penalty.terms[0], np.abs(gradient)
    score = np.divide(size, threshold, out=np.full(size.shape, np.inf), where=threshold > 0.0)
    if penalty.strengths.size:
        pulls = penalty.norms(np.maximum(size - threshold, 0.0))
        ratio = np.append(pulls / penalty.strengths, 0.0)
        score = np.where(penalty.groups >= 0, ratio[penalty.groups], score)
    return np.asarray(score)
