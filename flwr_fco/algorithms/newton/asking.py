"""What the methods ask in a round: a client's answer, what of it is possible, and what a duality gap takes of all.

The terms of an answer are seven numbers: the loss, the conjugate at its gradient, and what the loss says of itself. The
gap is that of :mod:`flwr_fco.certificates`, with conjugates by convexity, so that it needs no second question. The
gradients at points of the intercept alone, which make a mixture feasible, are sent once. Of squares and classes they
follow from the column means A'1/n and from A'y/n, which the method begins with anyway: A'1/n times a prediction that is
the same for all examples, less A'y/n. For squares a prediction that is taken off is exact.

The same dual points prove coefficients zero. Where second derivatives in the predictions are at most c, G* is 1/c
strongly convex: with u* the only optimal slopes, and a gap Phi(w) - D(u) = Gap,

    mean |u_i - u*_i|^2 <= 2 c Gap,    |x_j'u - x_j'u*| / n <= sqrt(2 c Gap) s_j,    s_j^2 = mean x_ij^2

or the variance of x_j, where u and u* sum to 0. A coefficient with |x_j'u*| / n below its l1 threshold is 0 in every
optimum. Of the c s_j^2 the server knows a bound: the weighted mean of each client's largest, one number in the first
round (:meth:`flwr_fco.objectives.Objective.largest_square`).

Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017), section 2, has
the scaled dual points, and section 3 the radius.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from flwr_fco import certificates as gaps
from flwr_fco.algorithms.contract import Replies
from flwr_fco.algorithms.newton.model import Flags, Indices, entries_of, factor_of, unpacked
from flwr_fco.certificates import CONSTANT, FACTORS, LINKS, NUMBERS, ROUNDING, Terms, check_loss, check_means
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Layout, NonZeros, SparseVector, Vector, dense, is_shorter
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import ReceivedVectors, Uplink
from flwr_fco.objectives.base import Objective, num_intercepts
from flwr_fco.objectives.links import Categories, LogisticLoss, PoissonLoss, Squares
from flwr_fco.objectives.survival import PartialLikelihood
from flwr_fco.regularizers.base import BoundRegularizer

_NAMES: dict[type, str] = {PartialLikelihood: "cox", PoissonLoss: "poisson"}
_NAMES |= {Squares: "identity", LogisticLoss: "logistic", Categories: "softmax"}
#: An intercept beside which all others are 0.
_FAR = 1e6
NOTHING: Vector = np.zeros(0)
#: As large a number as a state may hold where nothing is known yet.
UNKNOWN = 1e300
#: Rounding errors of a gap and of a mean square, relative, and of a sum of slopes that is 0.
_GAP = 1e-11
_SQUARE = 1e-9
_BALANCED = 1e-11
#: Rounding error of what an intercept takes off a bound, relative to its parts.
_CANCELLED = 1e-15
#: A share of examples that is 0 up to rounding.
_NOBODY = 1e-13
#: What may be short by its non-zeros.
_BY_COORDINATE = {"gradient", "elsewhere", "square", "columns", "targets", "references"}
#: Bytes of a digest that a float64 holds exactly.
_DIGEST = 6


# --- a client ---------------------------------------------------------------------------------------------------------


def answer(objective: Objective, w: Vector, first: bool, on: Indices | None = None) -> dict[str, Vector]:
    """Return what a client says of its loss at a point: the gradient and the terms, at first also what never changes.

    Parameters
    ----------
    objective : Objective
        The loss.
    w : ndarray of float64, shape (d,)
        The point.
    first : bool
        Whether it is the first exchange.
    on : ndarray of int64, shape (k,), optional
        Coordinates on which the Hessian is wanted.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5)
    >>> Terms(*answer(objective, np.zeros(2), False)["terms"].tolist()).conjugate
    -1.25
    """
    row: Any = getattr(objective, "link", None)
    if isinstance(getattr(row, "link", None), Squares):
        # Squares less what an intercept of the site's own takes off are squares.
        row = row.link
    link = "none" if objective.least is None else _NAMES.get(type(row), "convex")
    if link in FACTORS and np.any(getattr(objective, "offset", 0.0)):
        # Predictions are not the same for all examples then.
        link = "convex"
    loss, gradient = objective.value_and_gradient(w)
    terms = Terms(loss, *[0.0] * (NUMBERS - 1))
    if objective.least is not None:
        conjugate = float(gradient @ w) - loss - 0.5 * objective.l2 * float(objective.ridged(w) @ w)
        scale = row.parameter if link == "identity" else 0.0
        about = LINKS.index(link), getattr(row, "outputs", 1), objective.l2, scale
        terms = Terms(loss, conjugate, objective.least, *about)
    once = _once(objective, w, terms) if first else {}
    sent = {"gradient": gradient, **once, "terms": np.array(terms, dtype=np.float64)}
    return sent if on is None else sent | {"block": objective.newton_block(w, on)}


def _largest_square(objective: Objective) -> Vector:
    """Return the largest square and 1; twice 0 if it is not known."""
    try:
        square = float(objective.largest_square())
    except ConfigurationError:
        return np.zeros(2)
    if not 0.0 <= square < math.inf:
        prefix = f"{type(objective).__name__}.largest_square()={square}; expected a finite number >= 0"
        raise ConfigurationError(f"{prefix}, which no second derivative in one coefficient is above")
    # Slopes of several outputs move together.
    whole, entry = getattr(getattr(objective, "link", None), "bounds", None) or (1.0, 1.0)
    return np.array([square * whole / entry, 1.0])


def _once(objective: Objective, w: Vector, reported: Terms) -> dict[str, Vector]:
    """Return what a client sends in the first exchange only; 0 of what nothing is known of."""
    size = w.size
    count = num_intercepts(objective.layout)
    once = {name: np.zeros(shape) for name, shape in shapes_of_first(objective.layout, not w.any()).items()}
    once["square"] = _largest_square(objective)
    if count and reported.name in (*CONSTANT, "poisson"):
        far = np.zeros(size)
        at_zero = objective.gradient(np.zeros(size))
        far[size - count] = -_FAR if reported.name == "poisson" else _FAR
        change = objective.gradient(far) - at_zero
        # Of several outputs the first one's columns are those of each.
        columns = -change if reported.name == "poisson" else np.repeat(change[::count] / change[size - count], count)
        once["columns"] = columns
        if "targets" in once:
            once["targets"] = reported.targets_at_zero(at_zero, columns)
    if count and reported.link and reported.name not in CONSTANT:
        dual = [objective.dual_terms([point], [1.0]) for point in gaps.references(objective)]
        once["references"] = np.concatenate([np.append(slopes, value) for value, slopes in dual])
    return once


def shortened(sent: dict[str, Vector]) -> dict[str, Any]:
    """Return vectors of the coordinates by their non-zeros, if these are few: as of rows with sparse features."""
    made: dict[str, Any] = dict(sent)
    for name in _BY_COORDINATE & set(sent):
        vector = sent[name]
        on = np.flatnonzero(vector).astype(np.int32)
        if is_shorter(on.size, vector.size, vector.itemsize):
            made[name] = SparseVector(on, vector[on], vector.size)
    return made


def laid_out(mask: Flags, rows: Vector) -> NonZeros:
    """Return a point, or several one after the other, by the coordinates where the mask is."""
    return NonZeros(np.flatnonzero(mask).astype(np.int32), rows[mask], mask.size)


def parted(vectors: Any, name: str, size: int) -> list[tuple[Vector, Indices]]:
    """Return the points of a message, 0 where nothing is sent, and the coordinates that are sent of each."""
    reported = vectors.as_sent(name) if isinstance(vectors, ReceivedVectors) else vectors[name]
    if not isinstance(reported, SparseVector) or reported.size % size:
        prefix = f"the server sends {reported.size} coordinates of points with {size} each"
        raise ProtocolError(f"{prefix}; expected the non-zeros of whole points")
    sent = np.zeros(reported.size, dtype=np.bool_)
    sent[reported.indices] = True
    points, sets = dense(reported).reshape(-1, size), sent.reshape(-1, size)
    return [(point, np.flatnonzero(on)) for point, on in zip(points, sets, strict=True)]


# --- an answer about one of many points, as it travels ---------------------------------------------------------------

#: Bits of a gradient's entries outside of the working set, and of those of null models; of a Hessian's new rows.
HALF, SINGLE, DOUBLE = 16.0, 32.0, 64.0


def short_answer(answer: dict[str, Any], inside: Indices, wanted: Vector, bits: float) -> dict[str, Any]:
    """Return an answer as it travels.

    Parameters
    ----------
    answer : dict of str to ndarray
        What :func:`asking.answer` returns.
    inside : ndarray of int64
        The working set, on which the gradient is wanted in full.
    wanted : ndarray of float64, shape (k,)
        Bits of the Hessian's rows that are wanted; 0 of one whose entries in other such rows are known.
    bits : float
        Bits of the gradient elsewhere; 0 if it is not wanted there.
    """
    gradient = answer["gradient"]
    inside = np.arange(gradient.size) if bits == DOUBLE else inside
    answer["gradient"] = gradient[inside]
    if bits:
        elsewhere = np.delete(gradient, inside)
        scale = float(np.abs(elsewhere).max(initial=0.0))
        answer |= {"elsewhere": (elsewhere / (scale or 1.0)).astype(np.float16), "scales": np.array([scale])}
    if "block" in answer:
        rank, block = factored(answer["block"], wanted > 0.0)
        answer["block"] = block.astype(np.float32 if (wanted == SINGLE).any() else np.float64)
        answer["ranks"] = np.array([float(rank)])
    return answer


def factored(triangle: Vector, new: Flags) -> tuple[int, Vector]:
    """Return what determines a positive semidefinite matrix of which a part is known, in as few numbers as it takes.

    Parameters
    ----------
    triangle : ndarray of float64, shape (k (k + 1) / 2,)
        Its upper triangle by rows.
    new : ndarray of bool, shape (k,)
        Which rows and columns are not known yet.

    Returns
    -------
    int
        The rank r, if the next is a factor; else 0.
    ndarray of float64
        R of shape (r, k) by rows, with R'R the matrix; or the triangle's entries in new rows or columns.

    Examples
    --------
    >>> rank, factor = factored(np.ones(10), np.full(4, True))
    >>> rank, factor.round(12)
    (1, array([1., 1., 1., 1.]))
    >>> factored(np.arange(3.0), np.array([False, True]))
    (0, array([1., 2.]))
    """
    matrix, entries = unpacked(triangle), entries_of(new)
    factor, _ = factor_of(matrix, np.sqrt(np.maximum(matrix.diagonal(), 0.0)))
    return (len(factor), factor.reshape(-1)) if 0 < factor.size < entries.sum() else (0, matrix[entries])


def length_of_block(rank: float, new: Flags) -> int:
    """Return how many numbers a Hessian takes that travels with a rank."""
    if rank not in range(new.size + 1):
        raise ProtocolError(f"the rank of its Hessian of {new.size} coordinates is {rank:g}")
    known = int(new.size - new.sum())
    return int(rank) * new.size if rank else (new.size * (new.size + 1) - known * (known + 1)) // 2


def folds_of(objective: Objective, folds: int, seed: int) -> list[Indices]:
    """Return the rows of each fold of a client, those of a cluster in one; of labels each has the same shares."""
    if not folds:
        return []
    rows = objective.num_examples
    if objective.folds is not None:
        given = np.asarray(objective.folds)
        if given.shape != (rows,) or not np.isin(given, range(folds)).all():
            prefix = f"the folds of a loss of {rows} examples have shape {given.shape}, or one is not below {folds}"
            raise ConfigurationError(f"{prefix}; expected the number of a fold, from 0, of each example")
        return [np.flatnonzero(given == fold) for fold in range(folds)]
    rng = np.random.default_rng((seed, rows))
    clusters = np.arange(rows) if objective.clusters is None else objective.clusters
    _, first, of = np.unique(clusters, return_index=True, return_inverse=True)
    order = rng.permutation(first.size)
    if (labels := getattr(objective, "labels", None)) is not None:
        order = order[np.argsort(np.asarray(labels)[first[order]], kind="stable")]
    # Of few rows not always the same folds are empty.
    own = ((np.arange(first.size) + rng.integers(folds)) % folds)[np.argsort(order)][of]
    return [np.flatnonzero(own == fold) for fold in range(folds)]


# --- what of an answer is possible ------------------------------------------------------------------------------------


def shapes_of_first(layout: Layout, begins_at_zero: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what clients send once, besides gradient and terms."""
    size, count = layout.size, num_intercepts(layout)
    targets = {} if begins_at_zero else {"targets": (size,)}
    of_intercepts = {"columns": (size,), **targets, "references": (max(2, count) * (size + 1),)}
    return {"square": (2,), **(of_intercepts if count else {})}


def checked(layout: Layout, state: Any, uplink: Uplink, tolerance: float) -> dict[str, Vector]:
    """Return the dense vectors of a client that has reported its loss at the trial point, checked by their meaning.

    Parameters
    ----------
    layout : Layout
        The model's arrays.
    state : NamedTuple
        The state of the message.
    uplink : Uplink
        The reply.
    tolerance : float
        What may be missing to an equality besides rounding: all terms of squares go to 0 where the fit is exact, and a
        lie of this size moves the gap by no more.

    Raises
    ------
    ProtocolError
        If the numbers are not those of one convex function, or what all clients agreed on in the first round is not so
        any more.
    """
    vectors = {name: dense(vector) for name, vector in uplink.vectors.items()}
    reported = Terms(*vectors["terms"].tolist())
    w = state.trial
    if state.facts[0] >= 0.0 and reported[3:] != tuple(state.facts.tolist()):
        raise ProtocolError("its loss is another one than in the first round")
    if reported.link not in range(len(LINKS)) or reported.scale < 0.0 or not 0.0 <= reported.outputs <= w.size:
        raise ProtocolError(f"it says {reported._asdict()} of its loss; no loss of this package has these")
    if not reported.link:
        if any(reported[1:]):
            raise ProtocolError("it says something of a loss whose link it does not know")
        return vectors
    count = w.size - num_intercepts(layout)
    rows = np.append(vectors["gradient"], reported.conjugate)[None]
    rows[0, :count] -= reported.l2 * w[:count]
    if "references" in vectors and reported.name not in CONSTANT:
        rows = np.concatenate([rows, vectors["references"].reshape(-1, w.size + 1)])
    check_loss(rows, w, reported.loss, reported.l2, w[:count], reported.least, tolerance)
    if "square" in vectors:
        check_means(vectors, reported, w, w.size - count)
    return vectors


# --- all clients together ---------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """The weighted means of an exchange, at a point.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer.
    gradient : ndarray of float64, shape (d,)
        Of the pooled loss.
    reported : Terms
        Means, and what the first client says of its loss.
    """

    psi: BoundRegularizer
    gradient: Vector
    reported: Terms

    @staticmethod
    def gradient_of(replies: Replies) -> Vector:
        """Return the mean gradient; entries that travel rounded are as large as they may be."""
        gradient = replies.sum("gradient")
        if "errors" in next(iter(replies)).vectors:
            gradient += np.sign(gradient) * replies.sum("errors")
        return gradient

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return max(1, int(self.reported.outputs))

    def shares(self, targets: Vector) -> Vector:
        """Return the share of each class, the intercepts' entries of A'y/n; of one output there are two classes.

        Raises
        ------
        ConfigurationError
            If no client has an example of some class, or none that counts, whose free intercept then has no optimum.
        """
        shares = targets[targets.size - self.outputs :]
        both = np.array([1.0 - shares[0], shares[0]]) if self.outputs == 1 else shares
        if (both < _NOBODY).any():
            prefix = f"no client has an example of class {int(np.argmin(both))} (of 0, 1, ...), or it weighs less than"
            why = f"{_NOBODY:g} of all, and the intercept is not regularized: the loss has no minimum"
            advice = "Take fewer folds, join this class with another, or make psi act on the intercept"
            raise ConfigurationError(f"{prefix} {why}. {advice}: arrays=Arrays(apply_to=...)")
        return np.asarray(both)

    def dual(self, once: Any) -> tuple[float, Vector]:
        """Return a number that no value of the pooled objective is below, and the dual point that it is the value of.

        That is a gradient A'u/n, shape (d,). Of losses of several kinds, or not known to be convex, there is none.

        Parameters
        ----------
        once
            A state: the `trial` point, the `facts`, and the means of `columns`, `targets` and `references`.
        """
        psi, reported, size = self.psi, self.reported, self.gradient.size
        if once.facts[0] <= 0.0 or gaps.why_none(psi, reported.l2):
            return -math.inf, np.zeros(size)
        count, slopes = gaps.free_intercepts(psi), size - num_intercepts(psi.layout)
        gradient = self.gradient.copy()
        gradient[:slopes] -= reported.l2 * once.trial[:slopes]
        value, others = reported.conjugate, np.zeros((0, size + 1))
        if count and reported.name == "identity":
            mean = float(gradient[-1])
            gradient -= mean * once.columns
            gradient[-1] = 0.0
            moved = mean * float(once.targets[-1]), mean**2 / (2.0 * reported.factor)
            # Of targets far from 0 these are large and almost cancel; a bound is no bound without their rounding.
            value += _CANCELLED * (abs(moved[0]) + moved[1]) - sum(moved)
        elif count and reported.name in CONSTANT:
            # With s_c of the gradient where all rows are of class c, g + s - sum(s) shares is 0: s = sum(s) shares - g.
            both, g = self.shares(once.targets), gradient[size - count :]
            g = g if count > 1 else np.append(-g, g)
            total = max(0.0, float((g / both).max()))
            mixed = np.tile((total * both - g)[-count:], size // count) * once.columns - total * once.targets
            gradient = (gradient + mixed) / (1.0 + total)
            gradient[size - count :] *= np.abs(g.sum()) > _BALANCED
            value /= 1.0 + total
        elif count:
            others = once.references.reshape(-1, size + 1)
        rows = np.vstack([np.append(gradient, value), others])
        if (found := gaps.feasible(psi, rows[:, :-1], reported.l2)) is None:
            return -math.inf, np.zeros(size)
        shares, point = found
        value = float(shares @ rows[:, -1]) - (1.0 - float(shares.sum())) * reported.least
        return -value - gaps.conjugate_at(psi, -point, reported.l2), point

    def zeros(self, objective: float, lower: float, slopes: Vector, once: Any) -> Vector:
        """Return 1.0 for each coefficient that is 0 in every optimum of the pooled problem, 0.0 for all others.

        Nothing is said where psi is no sum over coordinates.

        Parameters
        ----------
        objective : float
            Phi at any point.
        lower, slopes : float and ndarray of float64, shape (d,)
            Of :meth:`dual`.
        once
            As for :meth:`dual`, with `square`, the weighted mean of the clients' largest squares.
        """
        psi, reported, terms = self.psi, self.reported, self.psi.terms()
        if terms is None or once.square == UNKNOWN or lower == -math.inf:
            return np.zeros(slopes.size)
        gap = max(objective - lower, 0.0) + _GAP * (abs(objective) + abs(lower))
        centred = reported.factor * once.columns**2 if gaps.free_intercepts(psi) and reported.name in CONSTANT else 0.0
        reach = np.sqrt(2.0 * gap * np.maximum((1.0 + _SQUARE) * once.square - centred, 0.0))
        proved = (np.abs(slopes) + reach < terms.threshold) & (terms.lower <= 0.0) & (terms.upper >= 0.0)
        proved[slopes.size - num_intercepts(psi.layout) :] = False
        return np.asarray(proved, dtype=np.float64)


def population_of(replies: Replies) -> float:
    """Return a digest of who has answered, and with which weight, as a whole number that a float64 holds."""
    reported = [(None if uplink.node is None else uplink.node.key, uplink.weight) for uplink in replies]
    return float(int.from_bytes(hashlib.sha256(repr(reported).encode()).digest()[:_DIGEST], "big"))


class Restart(Exception):
    """Answers do not fit those of before, so nothing is known of the objective any more."""


def opened(state: Any, psi: BoundRegularizer, replies: Replies) -> tuple[Any, Known]:
    """Return the state with what clients say once, and their means.

    What they say once are the facts that they agree on, what never changes, and a digest of who they are.

    Raises
    ------
    Restart
        If others answer than before.
    """
    first = state.population < 0.0
    who = population_of(replies)
    if not first and who != state.population:
        raise Restart("Clients, or their numbers of examples, have changed: what is known of the objective restarts")
    terms = [(uplink.weight, dense(uplink.vectors["terms"]).tolist()) for uplink in replies]
    facts = [tuple(own[3:]) for _, own in terms]
    reported = Terms(*(math.fsum(weight * own[k] for weight, own in terms) for k in range(3)), *facts[0])
    known = Known(psi, Known.gradient_of(replies), reported)
    if reported.name == "cox" and reported.loss <= reported.least + _GAP and not known.gradient.any():
        prefix = "no client has an event while somebody else of its stratum is at risk, so there is nothing to learn"
        raise ConfigurationError(f"{prefix} from; check what `events` and `strata` hold")
    if not first:
        return state, known
    square, share = replies.sum("square").tolist()
    once: dict[str, Any] = {"square": square if share > 1.0 - ROUNDING else UNKNOWN, "population": who}
    if num_intercepts(psi.layout):
        once |= {name: replies.sum(name) for name in ("columns", "references")}
        zero = reported.targets_at_zero(known.gradient, once["columns"])
        once["targets"] = replies.sum("targets") if state.trial.any() else zero
    usual, count = Counter(facts).most_common(1)[0]
    others = [f"{uplink.node}" for uplink, own in zip(replies, facts, strict=True) if own != usual]
    if others:
        text = "The losses of %s are of another kind than those of the other %s clients: nothing bounds the objective"
        logger.warning(text, ", ".join(others[:20]), count)
    return state._replace(**once, facts=np.full(len(usual), -1.0) if others else np.array(usual)), known


def handed_out(layout: Layout, w: Vector) -> Vector:
    """Return a point as the user gets it, rounded to the dtypes of the model's arrays: what is certified is that."""
    # The sum makes 0.0 of -0.0, whose sign depends on how a coordinate has become zero.
    return layout.rounded(w + 0.0)


def finished(state: Any, tolerance: float, whose: str = "all clients' data") -> str:
    """Return why a run is over, and whose data that is about; an empty string as long as it goes on."""
    (name, left), text = state.left, "duality gap"
    if name == "residual":
        # In small units a gradient is small wherever it is; what the next step promises is not.
        text, left = "residual of a proximal gradient step", max(left, -state.slope)
    if left <= tolerance:
        return f"the {text} of {whose} is {left:.3g}, at most tolerance={tolerance:g}"
    if state.stalled:
        prefix = f"no step decreases the objective, {state.objective:.9g}, by more than its rounding error"
        return f"{prefix}; the {name} is {left:.3g}, above tolerance={tolerance:g}"
    return ""
