"""What methods of one exchange a round share: whose an exchange is, what is possible, how far the run is."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from logging import WARNING
from typing import Any, ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Evaluation, Problem, Rejected, Replies, Setting, Uplink, Vector
from flwr_fco.algorithms.newton.model import Indices
from flwr_fco.algorithms.newton.terms import FACTS_OF_LOSS, TERMS, Evaluated, reference_size
from flwr_fco.certificates.told import ROUNDING, check_references, link_of
from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import dense
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import CONVEX, LINKS
from flwr_fco.regularizers.base import BoundRegularizer

_Heard = tuple[Any, Evaluated, float, float]

#: As large a number as a state may hold where nothing is known yet.
UNKNOWN = 1e300
#: By how much an objective may be below a lower bound of it, relative to their sizes, by rounding.
_CONTRADICTION = 1e-11
#: Bytes of a digest that a float64 holds exactly.
_DIGEST = 6


def population_of(replies: Replies) -> float:
    """Return a digest of who has answered, and with which weight, as a whole number that a float64 holds."""
    told = [(None if uplink.node is None else uplink.node.key, uplink.weight) for uplink in replies]
    return float(int.from_bytes(hashlib.sha256(repr(told).encode()).digest()[:_DIGEST], "big"))


def evaluated(psi: BoundRegularizer, w: Vector, replies: Replies) -> Evaluated:
    """Return the weighted means of an exchange about the point w."""
    known = Evaluated.of(psi, w, replies.sum("gradient"), [(own.vectors["terms"], own.weight) for own in replies])
    if known.link == "cox" and known.loss == 0.0 and not known.gradient.any():
        raise ConfigurationError(
            "no client has an event while somebody else of its stratum is at risk, so there is nothing to learn from; "
            "check what `events` and `strata` hold"
        )
    return known


def handed_out(layout: Layout, w: Vector) -> Vector:
    """Return a point as the user gets it, rounded to the dtypes of the model's arrays: what is certified is that."""
    # The sum makes 0.0 of -0.0, whose sign depends on how a coordinate has become zero.
    return layout.rounded(w + 0.0)


def check_terms(terms: Vector, gradient: Vector, w: Vector, tolerance: float) -> None:
    """Check what a client says of its loss at a point.

    Parameters
    ----------
    terms : ndarray, shape (8,)
        In the order of :data:`TERMS`.
    gradient, w : ndarray of float64, shape (d,)
        The gradient that it sends, and the point.
    tolerance : float
        What may be missing to an equality besides rounding: all terms of squares go to 0 where the fit is exact, and a
        lie of this size moves the gap by no more.

    Raises
    ------
    ProtocolError
        If a number is out of the range of its meaning, or the loss, its conjugate and the gradient are not those of one
        function: for losses of predictions, f(m) + f*(u) = u m for u = f'(m).

    Examples
    --------
    >>> check_terms(np.array([-1.0, 0.0, 0.0, 2.0, 1.0, 1.0, 0.0, 1.0]), np.zeros(2), np.zeros(2), 1e-8)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: its loss is -1; expected a number >= 0
    """
    told = dict(zip(TERMS, terms.tolist(), strict=True))
    link, outputs = link_of(told, w.size), told["outputs"]
    if not told["link"]:
        if any(told[name] != 0.0 for name in FACTS_OF_LOSS):
            raise ProtocolError("it says something of a loss whose link it does not know")
        return
    loss, linear, quadratic = told["loss"], told["linear"], told["quadratic"]
    if loss < 0.0 and link not in CONVEX:
        raise ProtocolError(f"its loss is {loss:.6g}; expected a number >= 0")
    if (quadratic < 0.0 or (quadratic and link != "identity")) and link not in CONVEX:
        raise ProtocolError(
            f"its mean square is {quadratic:.6g}; expected a number >= 0, and 0 of other losses than squares"
        )
    most = math.log(max(2.0, outputs)) * (1.0 + ROUNDING)
    if link in ("logistic", "softmax") and not -most <= linear <= 0.0:
        raise ProtocolError(f"the mean of its sums q log q is {linear:.6g}; expected a number from {-most:.4g} to 0")
    count = w.size - int(outputs) * int(told["intercept"])
    ridge = told["l2"] * float(w[:count] @ w[:count])
    pairs = gradient * w
    if link in CONVEX:
        if loss - 0.5 * ridge + quadratic < -ROUNDING * (abs(loss) + ridge + abs(quadratic)) - tolerance:
            raise ProtocolError(f"its loss is {loss:.6g}, and it says that none is below {-quadratic:.6g}")
        quadratic = 0.0
    difference = loss + 0.5 * ridge + linear + quadratic - float(pairs.sum())
    size = abs(loss) + ridge + abs(linear) + quadratic + float(np.abs(pairs).sum())
    most = ROUNDING * size + tolerance
    if not abs(difference) <= most:
        raise ProtocolError(
            f"its loss, conjugate and gradient differ by {difference:.3g} from those of one function; expected at most "
            f"{most:.3g}"
        )
    if link == "identity" and abs(loss - 0.5 * ridge - quadratic) > most:
        raise ProtocolError(
            f"its loss is {loss:.6g} with a mean square of {quadratic:.6g}; expected the same of squares"
        )
    if told["intercept"] and link not in CONVEX:
        # The mean of slopes is at most the root of their mean square, and slopes of chances are at most 1.
        slope, limit = float(np.abs(gradient[count:]).max()), 1.0
        if link == "identity":
            limit = math.sqrt(2.0 * told["factor"]) * (math.sqrt(quadratic) + math.sqrt(most))
        if slope > (1.0 + ROUNDING) * limit:
            raise ProtocolError(f"its loss has the slope {slope:.3g} in an intercept; expected at most {limit:.3g}")


def check_columns(columns: Vector, terms: Vector, square: float = math.inf) -> None:
    """Check the means of a client's columns, of which an intercept's is 1, and the largest of their mean squares.

    Of a convex loss of another kind no bound depends on the means.

    Raises
    ------
    ProtocolError
        If the intercept's is another number, or the square of a mean is above the largest mean square, or this is below
        0: it would take from what other clients' squares leave unproved.
    """
    told = dict(zip(TERMS, terms.tolist(), strict=True))
    if not square >= 0.0:
        raise ProtocolError(f"the largest mean square of its columns is {square:.6g}; expected a number >= 0")
    if told["link"] >= LINKS.index(CONVEX[0]):
        return
    own, ones = np.split(columns, [columns.size - int(told["outputs"] * told["intercept"])])
    if np.abs(ones - 1.0).max(initial=0.0) > ROUNDING:
        raise ProtocolError(f"the mean of its intercept's column is {ones[0]:.6g}; expected 1")
    largest = float(np.abs(own).max(initial=0.0)) ** 2
    if not (1.0 + ROUNDING) * square >= largest:
        raise ProtocolError(
            f"the largest mean square of its columns is {square:.6g}, and the square of a mean {largest:.6g}; expected "
            "no less"
        )


def check_block(block: Vector, on: Indices, terms: Vector, size: int | None, square: float) -> None:
    """Check a client's Hessian on a working set: it is positive semidefinite, and no larger than that of its loss.

    Parameters
    ----------
    block : ndarray of float64, shape (k, k)
        The Hessian.
    on : ndarray of int64, shape (k,)
        The working set.
    terms : ndarray, shape (8,)
        In the order of :data:`TERMS`.
    size : int or None
        Number of coordinates, d; None: no curvature bounds the diagonal.
    square : float
        The largest mean square of its columns.

    Raises
    ------
    ProtocolError
        If it is not.
    """
    told = dict(zip(TERMS, terms.tolist(), strict=True))
    link, diagonal = LINKS[int(told["link"])], np.diag(block)
    if (diagonal < 0.0).any():
        raise ProtocolError(f"its Hessian has the entry {diagonal.min():.3g} on the diagonal; expected none below 0")
    # Second derivatives in a prediction, times the mean square of a column, of which an intercept's is 1.
    curvature = {"identity": told["factor"], "logistic": 0.25, "softmax": 0.25}.get(link, math.inf)
    if size is None:
        curvature = math.inf
    free = on >= (size or 0) - int(told["outputs"] * told["intercept"])
    most = np.where(free, curvature, curvature * square + told["l2"])
    beyond = np.flatnonzero(diagonal > (1.0 + ROUNDING) * most)
    if beyond.size:
        value, limit = diagonal[beyond[0]], most[beyond[0]]
        raise ProtocolError(f"its Hessian has the entry {value:.3g} on the diagonal; expected at most {limit:.3g}")
    roots = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    scaled = block / np.outer(roots, roots)
    empty = diagonal == 0.0
    indefinite = bool((np.abs(block[empty]) > np.finfo(np.float64).tiny).any())
    try:
        np.linalg.cholesky(scaled + (ROUNDING * (1 + diagonal.size)) * np.eye(diagonal.size))
    except np.linalg.LinAlgError:
        indefinite = True
    if indefinite:
        raise ProtocolError("its Hessian is not positive semidefinite")


def check_first(vectors: Mapping[str, Vector], w: Vector, tolerance: float) -> None:
    """Check what a client sends once, if it is there.

    That are the means of its columns, those of its columns times its targets, of which an intercept's are mean targets,
    and references. At w = 0 the targets follow from the gradient.

    Raises
    ------
    ProtocolError
        If shares of classes are none, the mean target of squares is not that of the slopes, a mean is above the root of
        the mean squares of column and target, or a reference is not possible.
    """
    told = dict(zip(TERMS, vectors["terms"].tolist(), strict=True))
    link, outputs = LINKS[int(told["link"])], int(told["outputs"])
    count = w.size - int(told["outputs"] * told["intercept"])
    if "references" in vectors and told["link"] >= LINKS.index(CONVEX[0]):
        loss = told["loss"] - 0.5 * told["l2"] * float(w[:count] @ w[:count])
        check_references(vectors["references"].reshape(-1, w.size + 1), w, loss, tolerance)
    if "columns" not in vectors:
        return
    columns, gradient = vectors["columns"], vectors["gradient"]
    square = float(vectors["square"][0]) if "square" in vectors else math.inf
    check_columns(columns, vectors["terms"], square)
    if told["intercept"] and link == "identity" and "targets" in vectors:
        pairs, target, slope = columns * w, float(vectors["targets"][count]), float(gradient[count]) / told["factor"]
        expected = float(pairs.sum()) - slope
        if abs(target - expected) > ROUNDING * (float(np.abs(pairs).sum()) + abs(slope) + abs(expected)):
            raise ProtocolError(f"its mean target is {target:.6g}, and by its slopes {expected:.6g}")
    if not told["intercept"] or link not in ("logistic", "softmax"):
        return
    targets = vectors.get("targets", columns / max(2, outputs) - gradient)
    shares, each = targets[count:], np.tile(targets[count:], -(-count // outputs))[:count]
    whole = outputs == 1 or abs(float(shares.sum()) - 1.0) <= ROUNDING
    if not (whole and (shares >= -ROUNDING).all() and (shares <= 1.0 + ROUNDING).all()):
        raise ProtocolError(f"its shares of classes are {shares.tolist()}; expected numbers from 0 to 1, together 1")
    # The square may be infinite, and a class empty.
    if (targets[:count] ** 2 > square * ((1.0 + ROUNDING) * np.maximum(each, 0.0) + ROUNDING**2)).any():
        raise ProtocolError("a mean of its columns in a class is above what the largest mean square of a column allows")


def checked(state: Any, uplink: Uplink, tolerance: float) -> dict[str, Vector]:
    """Return the dense vectors of a client that has told of its loss at the trial point, checked by their meaning.

    Raises
    ------
    ProtocolError
        If they are not possible, or what all clients agreed on in the first round is not so any more.
    """
    vectors = {name: dense(vector) for name, vector in uplink.vectors.items()}
    if state.population >= 0.0 and state.facts[0] >= 0.0 and not np.array_equal(vectors["terms"][3:], state.facts):
        raise ProtocolError("its loss is another one than in the first round")
    check_terms(vectors["terms"], vectors["gradient"], state.trial, tolerance)
    check_first(vectors, state.trial, tolerance)
    return vectors


def contradicts(objective: float, lower: float, tolerance: float) -> bool:
    """Whether an objective is below a lower bound of it, and warn: somebody's answers do not fit together.

    A contradiction below the tolerance is none: the bound of an exact fit is rounding, however small the objective.
    """
    below = objective < lower - _CONTRADICTION * (abs(objective) + abs(lower)) - tolerance
    if below:
        text = (
            "The objective, %.9g, is below what an earlier exchange has bounded it by, %.9g: a client's answers "
            "contradict each other. All that is known of the objective is dropped, and asked for again"
        )
        log(WARNING, text, objective, lower)
    return below


def opened(state: Any, psi: BoundRegularizer, replies: Replies) -> tuple[Any, Evaluated] | None:
    """Return the state with what clients say once, and their means; None if others answer than before: all begins anew.

    That are what they agree on, their columns' means, and a digest of who they are.
    """
    first, who = state.population < 0.0, population_of(replies)
    if not first and who != state.population:
        log(WARNING, "Clients, or their numbers of examples, have changed: what is known of the objective begins anew")
        return None
    known = evaluated(psi, state.trial, replies)
    if not first:
        return state, known
    columns = replies.sum("columns")
    targets = replies.sum("targets") if state.trial.any() else known.targets_at_zero(columns)
    references = replies.sum("references") if state.references.size else state.references
    facts = [dense(uplink.vectors["terms"])[3:] for uplink in replies]
    usual, count = Counter(tuple(own.tolist()) for own in facts).most_common(1)[0]
    others = [f"{uplink.node}" for uplink, own in zip(replies, facts, strict=True) if tuple(own.tolist()) != usual]
    if others:
        text = "The losses of %s are of another kind than those of the other %s clients: nothing bounds the objective"
        log(WARNING, text, ", ".join(others[:20]), count)
    agreed = np.full(len(usual), -1.0) if others else np.array(usual)
    return state._replace(columns=columns, targets=targets, references=references, facts=agreed, population=who), known


def heard(state: Any, psi: BoundRegularizer, replies: Replies, tolerance: float) -> _Heard | None:
    """Return what :func:`opened` returns, the objective and the largest lower bound at the trial.

    None if other clients answer than before, or answers contradict each other: then all begins anew.
    """
    told = opened(state, psi, replies)
    if told is None:
        return None
    after, known = told
    objective, lower = known.loss + psi.value(state.trial), state.lower
    if not known.reason and after.facts[0] >= 0.0:
        # The clients' losses are of one kind.
        lower = max(lower, known.dual(psi, after)[0])
    return None if contradicts(min(objective, state.objective), lower, tolerance) else (after, known, objective, lower)


def progress(state: Any) -> dict[str, float | int]:
    """Return the metrics of a state: the objective, and the duality gap or else the residual."""
    if state.population < 0.0 or state.objective == UNKNOWN:
        return {}
    known: dict[str, float | int] = {"objective": state.objective}
    if state.lower > -UNKNOWN:
        return known | {"duality-gap": max(0.0, state.objective - state.lower)}
    return known | {"residual": state.residual}


def distance(state: Any) -> float:
    """Return the duality gap of a state, or else the residual; :data:`UNKNOWN` if there is none yet."""
    told = progress(state)
    return float(told.get("duality-gap", told.get("residual", UNKNOWN)))


def finished(state: Any, tolerance: float, whose: str = "all clients' data") -> str:
    """Return why a run is over, and whose data that is about; an empty string as long as it goes on."""
    told = progress(state)
    for name, text in (("duality-gap", "duality gap"), ("residual", "residual of a proximal gradient step")):
        if name in told and told[name] <= tolerance:
            return f"the {text} of {whose} is {told[name]:.3g}, at most tolerance={tolerance:g}"
    if told and state.stalled:
        name = "duality-gap" if "duality-gap" in told else "residual"
        return (
            f"no step decreases the objective, {state.objective:.9g}, by more than its rounding error; the {name} is "
            f"{told[name]:.3g}, above tolerance={tolerance:g}"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class CertifiedMethod(Algorithm):
    """A method whose rounds are exchanges about one point each, and which ends at a duality gap.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap at which the run ends.
    """

    reads: ClassVar[Any] = "everyone"
    discloses: ClassVar[Mapping[str, Any]] = {"gradient": "derivatives"}

    tolerance: float = 1e-8

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient and terms; of the first round also of what clients say once."""
        shapes = {"gradient": state.trial.shape, "terms": (len(TERMS),)}
        if state.population >= 0.0:
            return shapes
        shapes |= {"columns": state.trial.shape} | ({"targets": state.trial.shape} if state.trial.any() else {})
        return shapes | ({"references": state.references.shape} if state.references.size else {})

    def setting(self, given: Setting, state: Any) -> Setting:
        """Return the user's, with one evaluation as the work."""
        return given._replace(work=Evaluation())

    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the best point whose objective is known."""
        return np.asarray(state.point)

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after what the clients say is checked by its meaning, and the method's step taken.

        Raises
        ------
        Rejected
            If a reply cannot be.
        """
        for uplink in replies:
            try:
                self._check(problem, state, uplink)
            except ProtocolError as error:
                raise Rejected(uplink, str(error)) from error
        return self._step(problem, state, replies)

    @abstractmethod
    def _step(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after a round."""

    def _check(self, problem: Problem, state: Any, uplink: Uplink) -> None:
        """Raise a ProtocolError that says why a reply cannot be."""
        checked(state, uplink, self.tolerance)

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the objective, the duality gap or else the residual, and why the run is over, if it is."""
        count = len(problem.asked)
        over = finished(state, self.tolerance, f"the data of {count} clients" if count else "all clients' data")
        return {**progress(state), **({"finished": over} if over else {})}


def begun_anew(state: Any, **own: Any) -> Any:
    """Return the state at its best point with nothing known of its objective: other clients have another one."""
    nothing = {"objective": UNKNOWN, "lower": -UNKNOWN, "residual": UNKNOWN, "population": -1.0, "stalled": 0.0}
    own |= {"trial": state.point, "round": state.round + 1}
    return state._replace(**nothing, **own)


def beginning(problem: Problem, primal: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the user's start, or the point of psi's domain next to it, and facts and references as yet unknown."""
    feasible = math.isfinite(problem.psi.value(primal))
    start = handed_out(problem.layout, primal if feasible else problem.psi.prox(primal, 0.0))
    return start, np.full(len(FACTS_OF_LOSS), -1.0), np.zeros(reference_size(problem.layout))


def residual_of(psi: BoundRegularizer, w: Vector, gradient: Vector) -> float:
    """Return ||w - prox(w - gradient)||."""
    return float(np.linalg.norm(w - psi.prox(w - gradient, 1.0)))


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
