"""Sums over risk sets: of those who are under observation when somebody has an event.

Rows are visited stratum by stratum, from the last time to the first, so that a risk set is the one before it with more
rows, less those that have not entered yet. All exponentials are relative to the largest score so far, which keeps sums
of any scores from over- and underflow; where so little is left after rows are taken out that rounding would show, the
sum is done again.
"""

import math

import numpy as np

from flwr_fco.kernels import njit, prox

#: What is left of a sum after subtractions, relative to its largest value, below which it is done again.
_LEFT = 1e-3
#: An exponent next to which numbers overflow.
_FAR = 600.0


@njit(cache=True)
def _add(score, share, row, top, running):  # type: ignore[no-untyped-def]
    """Add share exp(score - top) (1, row) to running sums, of which all are relative to the top; return the new top."""
    if score > top:
        for c in range(running.shape[0]):
            running[c] *= math.exp(top - score)
        top = score
    share = share * math.exp(score - top)
    running[0] += share
    for c in range(row.shape[0]):
        running[1 + c] += share * row[c]
    return top


@njit(cache=True)
def risk_sums(scores, weights, values, order, spans, entry, times, sums, tops):  # type: ignore[no-untyped-def]
    """Write sum_j weights_j exp(scores_j - top) (1, values_j) over each risk set.

    Parameters
    ----------
    scores, weights, entry : ndarray of float64, shape (n,)
        Of each row; it is at risk after its entry.
    values : ndarray of float64, shape (n, k)
        What is summed.
    order : ndarray of int64, shape (2, n)
        Rows by stratum and descending time; and by stratum and descending entry.
    spans : ndarray of int64, shape (G, 5)
        Of each risk set: the first row of its stratum in the order of times, the rows that it has more than the one
        before it (begin and end), and those in the order of entries that have not entered (begin and end).
    times : ndarray of float64, shape (G,)
        When the event is.
    sums : ndarray of float64, shape (G, 1 + k)
        Written.
    tops : ndarray of float64, shape (G,)
        Written: the largest score of a stratum so far.
    """
    # The last one is the largest size of the sum so far.
    running = np.zeros(2 + values.shape[1])
    top = -np.inf
    still = 0
    for g in range(times.shape[0]):
        first, begin, end, late, stop = spans[g]
        if begin == first:
            running[:] = 0.0
            top = -np.inf
            still = first
        for j in order[0, begin:end]:
            top = _add(scores[j], weights[j], values[j], top, running)
        running[-1] = max(running[-1], running[0])
        for j in order[1, late:stop]:
            top = _add(scores[j], -weights[j], values[j], top, running)
        if stop > late and running[0] < _LEFT * running[-1]:
            running[:] = 0.0
            top = -np.inf
            # Who has not entered yet does not come back.
            while entry[order[0, still]] >= times[g]:
                still += 1
            for j in order[0, still:end]:
                if entry[j] < times[g]:
                    top = _add(scores[j], weights[j], values[j], top, running)
            running[-1] = running[0]
        # To assign to sums[g] would compile the text of an error, for three quarters of the time of this kernel.
        prox.scale(running[:-1], 1.0, sums[g])
        tops[g] = top


@njit(cache=True)
def spread(scores, shares, tops, order, spans, entry, times, out):  # type: ignore[no-untyped-def]
    """Write sum_g shares_g exp(scores_j - top_g) over the risk sets that each row is in: the adjoint of the sums.

    Parameters
    ----------
    scores, order, spans, entry, times, tops
        As in :func:`risk_sums`.
    shares : ndarray of float64, shape (G,)
        Of each risk set; of any sign.
    out : ndarray of float64, shape (n,)
        Written; 0 for a row that is in no risk set.
    """
    n, count = scores.shape[0], times.shape[0]
    out[:] = 0.0
    # What had been summed when a row entered, and on which scale; sums of the sizes say how much of them is left.
    entered = np.zeros((n, 2))
    scale = -np.inf
    total = size = 0.0
    last = count
    scales = np.full(n, -np.inf)
    for g in range(count - 1, -1, -1):
        first, begin, end, late, stop = spans[g]
        if -tops[g] > scale:
            factor = math.exp(scale + tops[g])
            total *= factor
            size *= factor
            scale = -tops[g]
        share = shares[g] * math.exp(-tops[g] - scale)
        total += share
        size += abs(share)
        for j in order[1, late:stop]:
            entered[j, 0], entered[j, 1], scales[j] = total, size, scale
        for j in order[0, begin:end]:
            past = math.exp(scales[j] - scale) if scales[j] > -np.inf else 0.0
            left = size - past * entered[j, 1]
            # Of a batch the shares next to the scale may be 0.
            if scores[j] + scale < _FAR and (past == 0.0 or left >= _LEFT * size):
                out[j] = math.exp(scores[j] + scale) * (total - past * entered[j, 0])
                continue
            # From the last of its risk sets, which follow each other, to the first: of a short row they are few.
            for other in range(g, last):
                if entry[j] >= times[other]:
                    break
                out[j] += shares[other] * math.exp(scores[j] - tops[other])
        if begin == first:
            scale = -np.inf
            total = size = 0.0
            last = g


@njit(cache=True)
def _count(tree, rank, change):  # type: ignore[no-untyped-def]
    """Add so many rows of a rank, from 1, to a Fenwick tree."""
    while rank < tree.size:
        tree[rank] += change
        rank += rank & -rank


@njit(cache=True)
def _up_to(tree, rank):  # type: ignore[no-untyped-def]
    """Return how many rows of a Fenwick tree have at most a rank."""
    count = 0
    while rank > 0:
        count += tree[rank]
        rank -= rank & -rank
    return count


@njit(cache=True)
def concordant(ranks, dead, sizes, order, spans):  # type: ignore[no-untyped-def]
    """Return how many rows at risk have a smaller rank than an event there, an equal one, as its own, by half.

    Parameters
    ----------
    ranks : ndarray of int64, shape (n,)
        Of the rows, from 1; those of a stratum are below those of the strata before it.
    dead, sizes : ndarray of int64, shape (E,) and (G,)
        The rows with an event by risk set, and how many there are of each.
    order, spans
        As in :func:`risk_sums`.
    """
    tree = np.zeros(ranks.max() + 1, dtype=np.int64)
    ordered = 0.0
    ends = np.cumsum(sizes)
    for g in range(spans.shape[0]):
        _, begin, end, late, stop = spans[g]
        for j in order[0, begin:end]:
            _count(tree, ranks[j], 1)
        for j in order[1, late:stop]:
            _count(tree, ranks[j], -1)
        for j in dead[ends[g] - sizes[g] : ends[g]]:
            ordered += 0.5 * (_up_to(tree, ranks[j] - 1) + _up_to(tree, ranks[j]))
    return ordered
