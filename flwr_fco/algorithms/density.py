"""Dual averaging with a density instead of a strength: how many entries of each array stay in a round, and in the end.

psi is the indicator of at most so many entries that are not 0. It is not convex, so dual averaging with it is, in
effect, iterative hard thresholding on a dual: the largest entries of the dual are the model, as they are. Those that
are 0 come back once their dual has grown; it fades by a part in every round. No theory covers it. Soft thresholds,
which theory covers, shrink what stays, ahead of the gradients of a network: it dies before it has learnt anything.

MEMORY and FURTHER were chosen on networks and seeds of their own, which no reported number is about: digits with layers
of 64, 100, 50 and 10, five layers of 80, or two and four small convolutions, seeds 10 and 11. GAIN was not searched
for: of PyTorch's value, of 1 and of no limit the first did no harm to networks that learn (digits, seeds 3 and 4) and
helped those that do not yet (digits with seven layers as PyTorch makes them, seed 3). That there is such a thing came
from the deep network on CIFAR-10 of docs/benchmarks/networks.md, with SGD in 24 rounds.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from flwr_fco.algorithms.contract import Downlink, Problem, Replies, Setting, To
from flwr_fco.algorithms.contract.choices import Arrays, Density
from flwr_fco.algorithms.dual_averaging import DualAveraging, DualState
from flwr_fco.core.layout import Entry, Layout, Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import HardSparsity, PerParameter, Regularizer
from flwr_fco.regularizers.base import BoundRegularizer, Scope

#: What a round keeps of the dual of entries that are 0: 1 is dual averaging, 0 iterative hard thresholding. With 1,
#: what was right for another network comes back all at once; with 0 nothing small ever comes back.
MEMORY = 0.5
#: How many times as far as clients have gone the entries go that stay. Clients train all weights: those that stay move
#: less than if they were alone, and what the others have done is cut.
FURTHER = 1.5
#: Cutting brings no array below this root mean square of its singular values (or it stays where it was, if that is
#: less): what the initial weights of PyTorch's square layers have. An array of random entries passes on a signal of
#: that share; weaker ones, one after another, pass on none, and a network that has not begun to learn never does.
GAIN = 3.0**-0.5
#: In the Erdos-Renyi way no array has less than this share of the density of the whole.
_FLOOR = 0.5
#: Stands for a size of 0.
_LEAST = 5e-324
#: What every array is sure of, of its Erdos-Renyi count; the rest goes to the largest entries wherever they are.
_SURE = 0.5


def rounds_of(end: Density, num_rounds: int | None) -> int:
    """Return in how many rounds the density falls to the one that is asked for.

    Parameters
    ----------
    end : Density
        The user's, which may say it; otherwise it is three quarters of the rounds of the run.
    num_rounds : int or None
        Of the run; None if unknown.

    Raises
    ------
    ConfigurationError
        If neither is known.
    """
    if end.rounds is None and num_rounds is None:
        prefix = f"density={end.share:g} without this package's `start`, as in one of your own"
        advice = f"the number of rounds is not known; give density=Density({end.share:g}, rounds=...)"
        raise ConfigurationError(f"{prefix}: {advice}")
    # Rounded up: of three rounds the last one is the first with the density that is asked for.
    return end.rounds or max(1, -(-3 * (num_rounds or 0) // 4))


def erdos_renyi(shapes: Sequence[tuple[int, ...]], density: float) -> list[int]:
    """Return how many entries each array keeps, so that all of them together have a density.

    The share of an array of shape (a, b, ...) is proportional to (a + b + ...) / (a b ...), so that small layers, of
    which a network needs more, stay denser than large ones; at most 1, and at least half of the density of the whole.
    The last digit goes to the largest array, so that the sum is right to the entry.

    Parameters
    ----------
    shapes : sequence of tuple of int
        Shapes of the arrays that share the density.
    density : float
        0 < density <= 1.

    References
    ----------
    Mocanu et al.: Scalable training of artificial neural networks with adaptive sparse connectivity inspired by network
    science (Nature Communications 2018); for convolutions: Evci et al.: Rigging the lottery (ICML 2020). The floor is
    an addition.

    Examples
    --------
    >>> erdos_renyi([(256, 100), (10, 256)], 0.1)
    [1612, 1204]
    """
    sizes = [math.prod(shape) for shape in shapes]
    total = round(density * sum(sizes))
    raw = [sum(shape) / size if size else 0.0 for shape, size in zip(shapes, sizes, strict=True)]

    def counts(scale: float) -> list[float]:
        return [size * min(1.0, max(_FLOOR * density, scale * r)) for size, r in zip(sizes, raw, strict=True)]

    low = 0.0
    high = 1.0 / min((r for r in raw if r), default=1.0)
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(counts(middle)) < total else (low, middle)
    numbers = [min(size, max(1, round(count))) for size, count in zip(sizes, counts(high), strict=True)]
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        numbers[index] = min(max(numbers[index] + total - sum(numbers), min(1, sizes[index])), sizes[index])
    return numbers


def allotted(arrays: Sequence[Vector], least: Sequence[int], total: int) -> list[int]:
    """Return how many entries each array keeps: the largest of all arrays, but of each array at least so many.

    Parameters
    ----------
    arrays : sequence of ndarray of float64, shape (size,)
        Their signs do not matter.
    least : sequence of int
        For each array.
    total : int
        Of all arrays together.

    Examples
    --------
    >>> import numpy as np
    >>> allotted([np.array([9.0, 8.0, 7.0]), np.array([2.0, 1.0])], [1, 1], 3)
    [2, 1]
    """
    ends = np.cumsum([0, *(array.size for array in arrays)])
    blocks = [slice(*pair) for pair in pairwise(ends.tolist())]
    # So small that it counts as the 0 that it is, and large enough to be seen among those that stay.
    sizes = np.maximum(np.abs(np.concatenate(arrays)), _LEAST)
    for block, count in zip(blocks, least, strict=True):
        own = sizes[block]
        if count:
            own[HardSparsity(count).prox(own, 0.0) > 0.0] = math.inf
    kept = HardSparsity(total).prox(sizes, 0.0) if total else np.zeros(0)
    return [int(np.count_nonzero(kept[block])) for block in blocks]


def psi_of(
    layout: Layout, given: Regularizer, density: float, way: float, scope: Scope, dual: Vector | None
) -> Regularizer:
    """Return psi of a moment: at most so many entries that are not 0, array by array.

    Every array is sure of half of its Erdos-Renyi count; the other half goes to the largest entries of the dual,
    wherever they are.

    Parameters
    ----------
    layout : Layout
        Names and shapes of the model's arrays.
    given : Regularizer
        The user's. A :class:`PerParameter` names the arrays that have no share in the density: those with Zero() stay
        whole, those with a HardSparsity come to a count or a density of their own, others have the constraint that
        they say.
    density : float
        What the arrays that share it come to in the end.
    way : float
        How far they have come, 0 to 1: the densities of this moment are those of the end to this power.
    scope : {"each", "joint"}
        Whether every array is sure of a share, or the largest entries of all arrays stay.
    dual : ndarray of float64, shape (d,), or None
        The dual point, whose largest entries stay; None before the run, whose model has every array.

    Raises
    ------
    ConfigurationError
        Before the run, if a pattern matches no array, or no array has a share.
    """
    acted_on = [entry for entry in layout.optimized if entry.regularized]
    if not acted_on:  # nobody trains what psi is to act on
        return HardSparsity(density=1.0)
    if scope == "joint":
        return HardSparsity(density=density**way)
    special: dict[str, Regularizer] = {}
    if isinstance(given, PerParameter):
        if dual is None:
            given.bind(layout)
        named = ((entry.name, given.for_array(entry.name)) for entry in acted_on)
        special = {name: psi for name, psi in named if psi is not None}
    shared = [entry for entry in acted_on if entry.name not in special]
    if dual is None and not shared:
        prefix = f"density={density:g} has no array to act on: {given!r} says something else about each of"
        advice = "Leave a pattern out, or name other arrays: arrays=Arrays(apply_to=...)"
        raise ConfigurationError(f"{prefix} {[entry.name for entry in acted_on]}. {advice}")
    for entry in acted_on:
        psi = special.get(entry.name)
        if isinstance(psi, HardSparsity) and entry.size:
            share = psi.count_of(entry.size) / entry.size
            special[entry.name] = HardSparsity(max(1, round(share**way * entry.size)))
    even = erdos_renyi([entry.shape for entry in shared], density**way)
    least = [math.ceil(_SURE * count) for count in even]
    counts = even if dual is None or not shared else allotted([dual[entry.block] for entry in shared], least, sum(even))
    kept = {entry.name: HardSparsity(max(1, count)) for entry, count in zip(shared, counts, strict=True)}
    # Names, not patterns.
    return PerParameter({glob.escape(name): psi for name, psi in (special | kept).items()})


def sparse_step(psi: BoundRegularizer, primal: Vector, dual: Vector, new: Vector) -> None:
    """Make a step of dual averaging one of a model that becomes sparse, in place.

    Array by array: entries that are 0 keep a part of their dual, and the step of the others is made as long as that of
    the whole array was, but at most `FURTHER` times as long as it is.

    Parameters
    ----------
    psi : BoundRegularizer
        Of the round.
    primal, dual : ndarray of float64, shape (d,)
        The model and the dual before the step.
    new : ndarray of float64, shape (d,)
        The dual after it; takes the result.

    Examples
    --------
    >>> import numpy as np
    >>> psi = HardSparsity(1).bind(Layout.from_arrays({"weight": np.zeros((1, 2))}))
    >>> new = np.array([2.1, 1.1])
    >>> sparse_step(psi, np.array([2.0, 0.0]), np.array([2.0, 1.0]), new)
    >>> new.round(6)
    array([2.141421, 0.6     ])
    """
    for place, _, part in psi.parts:
        before = dual[place]
        step = new[place] - dual[place]
        if part.count_of(1) is None:
            new[place] += (1.0 - MEMORY) * (primal[place] - before)
            continue
        kept = primal[place] != 0.0
        own = float(step[kept] @ step[kept])
        factor = min(FURTHER, math.sqrt(float(step @ step) / own)) if own > 0.0 else 1.0
        new[place] = np.where(kept, before + factor * step, MEMORY * before + step)


def keep_gain(psi: BoundRegularizer, primal: Vector, dual: Vector) -> None:
    """Lengthen what the next model keeps of weak arrays by as much as cutting shortens them, in place.

    Array by array: what stays is scaled so that its norm is that of all entries which were not 0 before, or that of an
    array whose singular values have the root mean square `GAIN`, whichever is less; nothing is shortened. The norm of a
    matrix is that root mean square times the square root of its smaller side.

    Parameters
    ----------
    psi : BoundRegularizer
        Of the next model.
    primal : ndarray of float64, shape (d,)
        The model before; its memory is used.
    dual : ndarray of float64, shape (d,)
        Of the next model; takes the result.

    Examples
    --------
    >>> import numpy as np
    >>> psi = HardSparsity(1).bind(Layout.from_arrays({"weight": np.zeros((1, 2))}))
    >>> dual = np.array([0.4, 0.3])
    >>> keep_gain(psi, np.array([0.4, 0.2]), dual)
    >>> dual
    array([0.5, 0.3])
    """
    entries = sparse_entries(psi)
    squares = [_square_where(primal[entry.block], dual[entry.block]) for entry in entries]
    kept = psi.prox(dual, 1.0, out=primal)
    for entry, square in zip(entries, squares, strict=True):
        own = kept[entry.block]
        wanted = min(square, GAIN**2 * smaller_side(entry.shape))
        if 0.0 < (there := _square_where(own, dual[entry.block])) < wanted:
            dual[entry.block][own != 0.0] *= math.sqrt(wanted / there)


def sparse_entries(psi: BoundRegularizer) -> list[Entry]:
    """Return the arrays of which psi keeps so many entries.

    Parameters
    ----------
    psi : BoundRegularizer
        Of a round.

    Examples
    --------
    >>> layout = Layout.from_arrays({"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
    >>> [entry.name for entry in sparse_entries(HardSparsity(1).bind(layout))]
    ['weight']
    """
    sparse = np.zeros(psi.layout.size, dtype=np.bool_)
    for place, _, part in psi.parts:
        sparse[place] = part.count_of(1) is not None
    return [entry for entry in psi.layout.optimized if sparse[entry.block].any()]


def _square_where(primal: Vector, dual: Vector) -> float:
    """Return the squared norm of a dual where the primal is not 0."""
    there = dual[primal != 0.0]
    return float(there @ there)


def smaller_side(shape: tuple[int, ...]) -> int:
    """Return the smaller side of an array as the matrix that it is: outputs, by all that goes into one of them.

    Of a kernel of convolutions, the channels that come out are the first axis (PyTorch) or the last one (JAX, Keras),
    and the other end is its width, which is less.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.

    Examples
    --------
    >>> [smaller_side(shape) for shape in [(120, 400), (400, 120), (16, 6, 5, 5), (5, 5, 6, 16)]]
    [120, 120, 16, 16]
    """
    outs = max([*shape[:1], *shape[-1:], 1])
    return min(outs, math.prod(shape) // outs)


@dataclass(frozen=True, kw_only=True)
class SparseDualAveraging(DualAveraging):
    """Dual averaging of a model that becomes sparse: psi allows so many entries, fewer from round to round.

    psi is not convex and changes from round to round; the dual fades where the model is 0, and what stays of it goes
    further or is lengthened. No theory covers it. psi belongs to the server alone: clients take plain steps, from the
    model, whether they know of psi or not.

    Parameters
    ----------
    density : float or Density
        What is not 0 in the end.
    arrays : Arrays, default Arrays()
        Whether each array is sure of a share, in its scope.

    Examples
    --------
    >>> SparseDualAveraging.name, SparseDualAveraging.memory, SparseDualAveraging.reads
    ('dual_averaging', (), 'mean')
    """

    density: float | Density
    arrays: Arrays = field(default=Arrays())
    #: Clients take plain steps.
    client_prox: bool = field(init=False, default=False)

    @property
    def _end(self) -> Density:
        return self.density if isinstance(self.density, Density) else Density(self.density)

    @property
    def _scope(self) -> Scope:
        return "joint" if self._end.scope == "global" else self.arrays.scope

    def setting(self, given: Setting, state: DualState | None) -> Setting:
        """Return psi of the state: at most as many entries that are not 0 as the round is to have."""
        number, dual = (0.0, None) if state is None else (state.elapsed, state.dual)
        way = min(1.0, number / rounds_of(self._end, given.num_rounds))
        psi = psi_of(given.layout, given.regularizer, self._end.share, way, self._scope, dual)
        return given._replace(regularizer=psi)

    def downlink(self, problem: Problem, state: DualState, to: To | None) -> Downlink:
        """Return the dual whose point without psi is the model."""
        model = problem.h.gradient(problem.retrieve(state.dual, state.elapsed))
        return Downlink(problem.plan, {"dual": model}, problem.client_lr, state.elapsed)

    def aggregate(self, problem: Problem, state: DualState, replies: Replies) -> DualState:
        """Return the dual after the step, faded and lengthened, and the number of rounds that have gone by."""
        following = super().aggregate(problem, state, replies)
        primal = problem.retrieve(state.dual, state.elapsed)
        sparse_step(problem.psi, primal, state.dual, following.dual)
        following = following._replace(elapsed=float(problem.round))
        assert problem.given is not None
        psi = self.setting(problem.given._replace(layout=problem.layout), following).regularizer
        keep_gain(psi.bind(problem.layout, scope=self._scope), primal, following.dual)
        return following
