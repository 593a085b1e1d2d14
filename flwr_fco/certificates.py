"""Distance of a point from the optimum, computed from the clients' answers: duality gaps and residuals.

A certificate is a generator that yields :class:`Request` and receives the answers, so the clients may be objectives in
one place or nodes of a federation (:mod:`flwr_fco.strategies.questions`). It has two questions: gradients with their
conjugates, and then the conjugate at the mixture that is a dual point. The losses are convex, and need not be of one
kind. psi* is known

- for any convex psi if the losses have an l2 term, through psi's proximal map;
- for all regularizers of this package that are convex but :class:`~flwr_fco.regularizers.Adapter`
  (:meth:`~flwr_fco.regularizers.Regularizer.conjugate`).

In all other cases, also where psi leaves coefficients alone that no l2 term holds, the certificate is the norm of the
proximal gradient mapping, ||w - prox(w - g)||, which is 0 exactly at the minimisers but does not bound the distance
from the optimum.

There is one gap for every convex loss. For Phi = G + l2/2 ||W||^2 + psi with a convex G, and any r,

    min Phi >= -G*(r) - (psi + l2/2 ||.||^2)*(-r).

r is a mixture of gradients of G: at the point w, and at points of the intercept alone, the :func:`references`, between
which the intercept's slope changes its sign. So some mixture has no slope in an intercept that psi leaves alone, where
psi* would be infinite; scaled down, it is within psi's domain too. As long as the shares sum to 1 at most, every loss
bounds G* of a mixture of its own gradients by convexity, and knows it where it is a sum over rows
(:meth:`flwr_fco.objectives.Objective.dual_terms`). At an optimum r is the gradient itself, and the gap is 0.

What a client can say of its loss, in a gap, a Newton step or on held-out rows, is bounded by what else it says: its
loss and gradients are those of one convex function, its Hessian is that of one whose curvature it has named, its
columns' means are no larger than their squares, its folds are all of its rows. A client whose numbers pass has some
data of which they are true; that these are its own nobody can check. Each of these checks raises a
:class:`ProtocolError` that says what cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, NoAnswerError, ProtocolError
from flwr_fco.messages.protocol import Answer
from flwr_fco.objectives.base import Objective, num_intercepts
from flwr_fco.regularizers import BoundRegularizer

__all__ = ["Answer", "Certificate", "Request", "certificate", "reported_at", "settle"]

Matrix = NDArray[np.float64]
#: Numbers of the first answer; from the second on they are the same for all clients.
_FIRST = ("loss", "l2", "convex")
#: By how much a lower bound may be above the objective by rounding, relative to both: of a model in double precision,
#: and of another one, whose rounding may be beyond a bound.
_NEGATIVE = {True: 1e-9, False: 1e-6}


class Request(NamedTuple):
    """A question to all clients about the point.

    Parameters
    ----------
    kind : str
        Kind of question.
    numbers : mapping of str to float
        Numbers sent with the question.
    wanted : tuple of str
        Names of the numbers in the answer.
    shapes : mapping of str to tuple of int
        Names and shapes of the vectors in the answer.
    agreed : tuple of str
        Names of numbers that are the same for all clients.
    check : callable, optional
        Raises :class:`ProtocolError` with the reason why a client's answer does not count.

    Examples
    --------
    >>> Request("duality", {"stage": 0.0}, wanted=("loss",)).wanted
    ('loss',)
    """

    kind: str
    numbers: Mapping[str, float] = MappingProxyType({})
    wanted: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    agreed: tuple[str, ...] = ()
    check: Callable[[Answer], None] | None = None


class Certificate(NamedTuple):
    """A certificate of a point.

    Parameters
    ----------
    kind : {"duality-gap", "residual"}
        ``"duality-gap"``: `value` bounds Phi(w) - min Phi. ``"residual"``: `value` is the norm of the proximal gradient
        mapping.
    value : float
        The bound, or the norm.
    objective : float
        Phi(w).
    reason : str
        Why there is no duality gap; empty if there is one.
    clients : int
        Number of clients that answered; the certificate is about their pooled problem.

    Examples
    --------
    >>> Certificate("duality-gap", 0.01, objective=0.875, clients=3).value
    0.01
    """

    kind: str
    value: float
    objective: float
    reason: str = ""
    clients: int = 0


Asking = Generator[Request, Sequence[Answer], Certificate]


def settle(certificate: Asking, ask: Callable[[Request], Sequence[Answer]]) -> Certificate:
    """Run a certificate's questions to the end and return the certificate.

    Parameters
    ----------
    certificate : generator
        From :func:`certificate`.
    ask : callable
        Asks all clients and returns their answers, whose weights sum to 1.

    Examples
    --------
    >>> def one_question():
    ...     answers = yield Request("duality", wanted=("loss",))
    ...     return Certificate("residual", 0.0, answers[0].numbers["loss"])
    >>> settle(one_question(), lambda request: [Answer({"loss": 2.0}, {}, weight=1.0)])
    Certificate(kind='residual', value=0.0, objective=2.0, reason='', clients=1)
    """
    answers: Any = None
    try:
        while True:
            answers = ask(certificate.send(answers))
    except StopIteration as stop:
        result: Certificate = stop.value
        return result._replace(clients=len(answers))


def certificate(psi: BoundRegularizer, w: Vector) -> Asking:
    """Yield the questions to ask, and return the certificate of a point.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the clients' layout.
    w : ndarray of float64, shape (d,)
        The point.

    Raises
    ------
    NoAnswerError
        If no client answers, or a gap is negative beyond rounding: then answers contradict each other.

    Examples
    --------
    >>> from flwr_fco.certificates import reported_at
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> client = LeastSquares(np.array([[1.0], [-1.0]]), np.array([2.0, -2.0]), scale=0.5)
    >>> w = np.array([1.5, 0.0])
    >>> settle(certificate(L1(0.5).bind(client.layout), w),
    ...        lambda request: [Answer(*reported_at(client, w, request.numbers), weight=1.0)])
    Certificate(kind='duality-gap', value=0.0, objective=0.875, reason='', clients=1)
    """
    count = num_intercepts(psi.layout)
    wanted = free_intercepts(psi)
    ridged = np.append(w[: w.size - count], np.zeros(count))
    reported: dict[int | None, tuple[NDArray[np.float64], float]] = {}

    # By Fenchel's inequality all that a client says must be of one function: a certificate is then one of some data.
    def check_rows(answer: Answer) -> None:
        rows, (loss, l2, convex) = answer.vectors["rows"], (answer.numbers[name] for name in _FIRST)
        if convex not in (0.0, 1.0):
            raise ProtocolError(f"it says convex={convex:g}; expected 0 or 1")
        if convex:
            reported[answer.node_id] = rows, check_loss(rows, w, loss, l2, ridged)

    def check_conjugate(answer: Answer) -> None:
        if answer.node_id in reported:
            rows, loss = reported[answer.node_id]
            check_conjugates(np.append(shares @ rows[:, :-1], answer.numbers["conjugate"])[None], w, loss)

    about = {"references": float(wanted)}
    shape = (1 + max(wanted, 2) if wanted else 1, w.size + 1)
    answers = yield Request("duality", about, _FIRST, {"rows": shape}, _FIRST[1:], check_rows)
    if not answers:
        raise NoAnswerError("no client answered, so nothing is known about this point")
    loss, l2 = _mean(answers, "loss"), _mean(answers, "l2")
    gradients = np.sum([answer.weight * answer.vectors["rows"][:, :-1] for answer in answers], axis=0)
    objective = loss + psi.value(w)
    convex = all(answer.numbers["convex"] for answer in answers)
    reason = why_none(psi, l2) if convex else "the losses of some clients are not known to be convex"
    found = None if reason else feasible(psi, gradients, l2)
    support = math.inf if found is None else conjugate_at(psi, -found[1], l2)
    if found is None or support == math.inf:
        residual = w - psi.prox(w - gradients[0] - l2 * ridged, 1.0)
        reason = reason or ("psi leaves coefficients alone" if found else "the loss has no minimum in the intercept")
        return Certificate("residual", float(np.linalg.norm(residual)), objective, reason)
    shares, _ = found
    about |= {f"share-{k}": float(share) for k, share in enumerate(shares)}
    answers = yield Request("duality", about, ("conjugate",), check=check_conjugate)
    lower = -_mean(answers, "conjugate") - support
    gap = float(objective - lower)
    if gap < -_NEGATIVE[psi.layout.double] * (abs(objective) + abs(lower)):
        prefix = f"the objective, {objective:.9g}, is below a lower bound of all its values, {lower:.9g}"
        raise NoAnswerError(f"{prefix}: the clients' answers contradict each other")
    return Certificate("duality-gap", max(gap, 0.0), objective)


def _mean(answers: Sequence[Answer], name: str) -> float:
    return math.fsum(answer.weight * answer.numbers[name] for answer in answers)


# --- a dual point, from psi and from gradients ------------------------------------------------------------------------

#: Intercepts that are tried until one is large enough.
_LENGTHS = 4.0 ** np.arange(25)
#: Residual of a mixture that is to be 0, relative to what it balances, and rounding error of its parts.
_UNBALANCED = 1e-9
_BALANCE_ROUNDING = 1e-14
#: Rounding of a sum of shares, less than what conjugates take for rounding.
_SHARES_ROUNDING = 1e-13


def references(objective: Objective) -> list[Vector]:
    """Return points of the intercept alone, too large and too small; of several intercepts each is too large in turn.

    Some mixture of the gradients there with any other gradient is 0 in the intercepts, unless the loss has no minimum
    in these. Without an intercept there are none.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> references(LeastSquares(np.ones((2, 1)), np.array([3.0, 4.0])))
    [array([0., 4.]), array([ 0., -1.])]
    """
    size = objective.layout.size
    count = num_intercepts(objective.layout)
    points = []
    for sides in np.array([[1.0], [-1.0]]) if count == 1 else 2.0 * np.eye(count) - 1.0:
        point = np.zeros(size)
        for length in _LENGTHS:
            point[size - count :] = length * (sides if count == 1 else sides > 0.0)
            gradient = objective.gradient(point)
            slopes = gradient[size - count :] * sides
            # Between two far groups of rows Huber's loss may be level in the intercept; it says which side only beyond.
            if (slopes >= 0.0).all() and (count > 1 or slopes[0] > 0.0 or not gradient.any()):
                break
        points.append(point)
    return points


def reported_at(
    objective: Objective, w: Vector, numbers: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, Vector]]:
    """Return a client's part of a gap: gradients with the conjugates there, or the conjugate at a mixture of them.

    Parameters
    ----------
    objective : Objective
        The loss F = G + l2/2 ||W||^2.
    w : ndarray of float64, shape (d,)
        The point.
    numbers : mapping of str to float
        ``references``, not 0 if these points are wanted besides w; ``share-0``, ``share-1``, ...: of each point in a
        mixture, if the conjugate there is wanted.

    Returns
    -------
    dict of str to float
        ``loss``, ``l2`` and ``convex``, 1.0 if G is known to be; or ``conjugate``, at the mixture.
    dict of str to ndarray
        ``rows``, of shape (number of points, d + 1): the gradient of G at each point, and its conjugate there.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5, intercept=False)
    >>> reported_at(objective, np.zeros(1), {"references": 0.0})
    ({'loss': 1.25, 'l2': 0.0, 'convex': 1.0}, {'rows': array([[-3.5 , -1.25]])})
    """
    convex = objective.least is not None
    points = [w, *references(objective)] if numbers["references"] else [w]
    if "share-0" in numbers:
        shares = [numbers[f"share-{k}"] for k in range(len(points))]
        if min(shares) < 0.0 or sum(shares) > 1.0 + _SHARES_ROUNDING:
            # Beyond, the conjugate is infinite where a single row's is.
            raise ProtocolError(f"the server asks for a mixture of {shares}; expected shares >= 0, together at most 1")
        return {"conjugate": objective.dual_terms(points, shares)[0]}, {}
    loss, gradient = objective.value_and_gradient(w)
    reported = {"loss": float(loss), "l2": float(objective.l2), "convex": float(convex)}
    plain = 0.0, gradient - objective.l2 * objective.ridged(w)
    dual = [objective.dual_terms([point], [1.0]) if convex else plain for point in points]
    return reported, {"rows": np.array([np.append(slopes, value) for value, slopes in dual])}


def free_intercepts(psi: BoundRegularizer) -> int:
    """Return the number of intercepts, the model's last array, if psi leaves them alone; else 0."""
    count = num_intercepts(psi.layout)
    return 0 if count == 0 or psi.layout.regularized_mask()[-count:].any() else count


def why_none(psi: BoundRegularizer, l2: float) -> str:
    """Return why psi has no dual points near an optimum, or none that is known; an empty string if it has.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, bound to the clients' layout.
    l2 : float
        Strength of the losses' l2 term, with which any convex psi has them.
    """
    if not psi.convex:
        return f"{psi.regularizer!r} is not convex"
    count = psi.layout.size - num_intercepts(psi.layout)
    if l2 > 0.0:
        held = psi.layout.regularized_mask()[count:].any()
        return "psi acts on the intercept, which the l2 term leaves alone" if held else ""
    free = psi.free_coordinates()
    if free[:count].any():
        return "psi leaves coefficients alone"
    terms = psi.terms()
    if terms is not None:
        unbounded = ~np.isfinite(terms.lower) | ~np.isfinite(terms.upper)
        idle = (terms.threshold == 0.0) & (terms.shrinkage == 0.0) & unbounded & ~free
        return "psi does not act in some directions" if bool(idle.any()) else ""
    try:
        psi.conjugate(np.zeros(psi.layout.size))
    except ConfigurationError:
        return f"the conjugate of {psi.regularizer!r} is not known"
    return ""


def feasible(psi: BoundRegularizer, gradients: NDArray[np.float64], l2: float) -> tuple[Vector, Vector] | None:
    """Return the shares of gradients in a mixture within psi's domain, and the mixture r; None if there is none.

    Parameters
    ----------
    psi : BoundRegularizer
        The regularizer, for which there is no :func:`why_none`.
    gradients : ndarray of float64, shape (k, d)
        Of G, the first one at the point that the bound is to be close at.
    l2 : float
        Strength of the l2 term.

    Returns
    -------
    tuple of ndarray of float64, shapes (k,) and (d,), or None
        Shares >= 0 of a sum of at most 1, and the mixture.
    """
    shares = np.eye(1, len(gradients))[0]
    count = free_intercepts(psi)
    size = float(np.linalg.norm(gradients[0, -count:])) if count else 0.0
    if size > 0.0 and len(gradients) == 1:
        return None
    if size > 0.0:
        from scipy.optimize import nnls

        try:
            found, rest = nnls(gradients[1:, -count:].T, -gradients[0, -count:] / size)
        except (RuntimeError, ValueError):
            # Of numbers that are none, or too large.
            return None
        shares[1:] = size * found
        if rest > _UNBALANCED + _BALANCE_ROUNDING * float(np.abs(gradients[:, -count:]).max()) / size:
            return None
    point = shares @ gradients
    point[point.size - count :] = 0.0
    scale = min(1.0 / float(shares.sum()), math.inf if l2 > 0.0 else psi.largest_scaling(-point))
    return (scale * shares, scale * point) if scale > 0.0 else None


def conjugate_at(psi: BoundRegularizer, u: Vector, l2: float) -> float:
    """Return (psi + l2/2 ||W||^2)*(u), for u = -r of a :func:`feasible` r."""
    if l2 > 0.0:
        # For any psi, the maximiser in the conjugate is a proximal point.
        best = psi.prox(u / l2, 1.0 / l2)
        best[u.size - num_intercepts(psi.layout) :] = 0.0
        return float(u @ best) - psi.value(best) - 0.5 * l2 * float(best @ best)
    return psi.conjugate(u)


# --- what a client can say of its loss --------------------------------------------------------------------------------

#: What losses are, by their number in messages: not known to be convex; convex; and those of predictions that the
#: method's first step knows more of.
LINKS = ("none", "convex", "cox", "poisson", "identity", "logistic", "softmax")
#: Those whose gradients at points of the intercept alone follow from A'1/n and A'y/n.
CONSTANT = LINKS[4:]
#: The largest second derivative of probabilities in a prediction; that of squares is reported.
FACTORS = {"logistic": 0.25, "softmax": 0.5}
#: Rounding error of a client's sums, relative to the sums of absolute values.
ROUNDING = 1e-6
#: Rounding error of a share of rows.
_SHARE = 1e-9
#: A loss on left-out rows beyond which nothing is finite.
LARGEST_LOSS = 1e100


class Terms(NamedTuple):
    """The numbers of an answer; of all of them, the weighted means of the first three.

    Parameters
    ----------
    loss, conjugate, least : float
        F, the conjugate of G = F - l2/2 ||W||^2 at its gradient, and what no value of G is below.
    link : float
        The number of the loss's link in :data:`LINKS`; from here on clients must agree.
    outputs, l2, scale : float
        Numbers of a row's predictions, the strength of the l2 term, and the second derivative of squares.
    """

    loss: float
    conjugate: float
    least: float
    link: float
    outputs: float
    l2: float
    scale: float

    @property
    def name(self) -> str:
        """Name of the link."""
        return LINKS[int(self.link)]

    @property
    def factor(self) -> float:
        """The largest second derivative in a prediction that is the same for all examples, or 0."""
        return FACTORS.get(self.name, self.scale)

    def targets_at_zero(self, gradient: Vector, columns: Vector) -> Vector:
        """Return A'y/n, from the gradient at w = 0 and A'1/n; 0 of a loss of which it says nothing."""
        if self.name == "identity":
            return np.asarray(-gradient / self.factor)
        levels = {"logistic": 0.5, "softmax": 1.0 / self.outputs if self.outputs else 0.0, "poisson": 1.0}
        return levels[self.name] * columns - gradient if self.name in levels else np.zeros(columns.size)


#: How many numbers an answer has, and how many of them clients agree in.
NUMBERS = 7
FACTS = 4


def check_loss(
    rows: Matrix, w: Vector, loss: float, l2: float, ridged: Vector, least: float = -math.inf, tolerance: float = 0.0
) -> float:
    """Check what a client says at a point of its loss F = G + l2/2 ||W||^2, with a convex G; return G there.

    Parameters
    ----------
    rows : ndarray of float64, shape (k, d + 1)
        Gradients of G, the first of them at the point, and the conjugate at each.
    w : ndarray of float64, shape (d,)
        The point.
    loss, l2 : float
        F at the point, and the strength of its l2 term.
    ridged : ndarray of float64
        The coefficients W at the point, on which the l2 term acts.
    least : float, default -inf
        What G is never below.
    tolerance : float, default 0.0
        What may be missing to an equality besides rounding: all terms of squares go to 0 where the fit is exact.
    """
    if not l2 >= 0.0:
        raise ProtocolError(f"it says l2={l2:g}; expected a number >= 0")
    convex = loss - 0.5 * l2 * float(ridged @ ridged)
    if convex < least - ROUNDING * (abs(loss) + abs(least)) - tolerance:
        raise ProtocolError(f"its loss is {loss:.6g}, and its own lower bound is {least:.6g}")
    check_conjugates(rows, w, convex, exact=True, tolerance=tolerance)
    return convex


def check_conjugates(rows: Matrix, w: Vector, loss: float, *, exact: bool = False, tolerance: float = 0.0) -> None:
    """Check the conjugates of a convex loss G by Fenchel's inequality, G*(r) >= <r, w> - G(w).

    Parameters
    ----------
    rows : ndarray of float64, shape (k, d + 1)
        Points r with the conjugates there.
    w : ndarray of float64, shape (d,)
        A point.
    loss : float
        G(w).
    exact : bool, default False
        Whether the first row is the gradient at w, for which both sides are equal.
    tolerance : float, default 0.0
        What may be missing besides rounding.
    """
    pairs = rows[:, :-1] * w
    above = rows[:, -1] - pairs.sum(axis=1) + loss
    most = ROUNDING * (np.abs(pairs).sum(axis=1) + abs(loss) + np.abs(rows[:, -1])) + tolerance
    # What overflows is no number of a loss.
    wrong = ~((above >= -most) & np.isfinite(most))
    wrong[0] |= exact and above[0] > most[0]
    if wrong.any():
        apart = above[wrong][0]
        raise ProtocolError(f"its loss, gradients and conjugates are {apart:.3g} from those of one convex function")


def check_means(vectors: Mapping[str, Vector], reported: Terms, w: Vector, outputs: int) -> None:
    """Check the largest mean square, and of predictions that are the same for all examples A'1/n and A'y/n.

    Parameters
    ----------
    vectors : mapping of str to ndarray
        What the client says once: `square`, and A'1/n and A'y/n with an intercept, whose entries are the last ones; and
        the gradient.
    reported : Terms
        What else it says.
    w : ndarray of float64, shape (d,)
        The point.
    outputs : int
        Number of intercepts.
    """
    square, known = vectors["square"].tolist()
    if not square >= 0.0 or known not in (0.0, 1.0):
        raise ProtocolError(f"the largest mean square of its columns is {square:.6g}; expected a number >= 0")
    if not outputs or reported.name not in CONSTANT:
        return
    columns = vectors["columns"]
    gradient = vectors["gradient"]
    count = w.size - outputs
    targets = vectors.get("targets", reported.targets_at_zero(gradient, columns))
    if not np.abs(columns[count:] - 1.0).max() <= ROUNDING:
        raise ProtocolError(f"the mean of its intercept's column is {columns[count]:.6g}; expected 1")
    largest = reported.factor * float(np.abs(columns[:count]).max(initial=0.0)) ** 2
    if (1.0 + ROUNDING) * square < largest:
        raise ProtocolError(f"the largest mean square is {square:.6g}, and the square of a mean {largest:.6g}; more")
    if reported.name == "identity":
        pairs = columns * w
        slope = float(gradient[count]) / reported.factor
        target = float(targets[count])
        expected = float(pairs.sum()) - slope
        if abs(target - expected) > ROUNDING * (float(np.abs(pairs).sum()) + abs(slope) + abs(expected)):
            raise ProtocolError(f"its mean target is {target:.6g}, and by its slopes {expected:.6g}")
        return
    shares = targets[count:]
    whole = outputs == 1 or abs(float(shares.sum()) - 1.0) <= ROUNDING
    if not (whole and (shares >= -ROUNDING).all() and (shares <= 1.0 + ROUNDING).all()):
        raise ProtocolError(f"its shares of classes are {shares.tolist()}; expected numbers from 0 to 1, together 1")
    # A class may be empty.
    each = np.tile((1.0 + ROUNDING) * np.maximum(shares, 0.0) + ROUNDING**2, count // outputs)
    if (reported.factor * targets[:count] ** 2 > square * each).any():
        raise ProtocolError("a mean of its columns in a class is above what the largest mean square of a column allows")


def check_hessian(block: Matrix, on: NDArray[np.int64], vectors: Mapping[str, Vector], count: int) -> None:
    """Check a Hessian on some coordinates: it is positive semidefinite, and no larger than that of the loss.

    Parameters
    ----------
    block : ndarray of float64, shape (k, k)
        The Hessian.
    on : ndarray of int64, shape (k,)
        The coordinates.
    vectors : mapping of str to ndarray
        What else the client says.
    count : int
        Number of coefficients.
    """
    reported = Terms(*vectors["terms"].tolist())
    diagonal = np.diag(block)
    square, known = vectors.get("square", np.zeros(2)).tolist()
    most = np.where(on < count, square + reported.l2 if known else math.inf, reported.factor or math.inf)
    beyond = np.flatnonzero(diagonal > (1.0 + ROUNDING) * most)
    if beyond.size:
        value, limit = diagonal[beyond[0]], most[beyond[0]]
        raise ProtocolError(f"its Hessian has the entry {value:.3g} on the diagonal; expected at most {limit:.3g}")
    check_semidefinite(block)


def check_semidefinite(block: Matrix, about: str = "Hessian") -> None:
    """Check that a matrix can be the Hessian of a convex loss, or a sum of squares.

    Parameters
    ----------
    block : ndarray of float64, shape (k, k)
        The matrix.
    about : str, default "Hessian"
        What an error calls it.
    """
    diagonal = np.diag(block)
    roots = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    indefinite = bool((np.abs(block[diagonal <= 0.0]) > np.finfo(np.float64).tiny).any())
    try:
        np.linalg.cholesky(block / np.outer(roots, roots) + (ROUNDING * (1 + diagonal.size)) * np.eye(diagonal.size))
    except np.linalg.LinAlgError:
        indefinite = True
    if indefinite:
        raise ProtocolError(f"its {about} is not positive semidefinite")


def check_folds(shares: Vector) -> None:
    """Check shares of all rows, and of those without each fold.

    Parameters
    ----------
    shares : ndarray of float64, shape (1 + F,)
        The first one is of all rows.
    """
    folds = shares.size - 1
    if not ((shares >= 0.0).all() and shares.max() <= 1.0 + _SHARE and abs(shares[0] - 1.0) < _SHARE):
        raise ProtocolError(f"its shares of rows are {shares.tolist()}; expected numbers from 0 to 1, and 1 of all")
    if folds and abs(shares[1:].sum() - (folds - 1)) > ROUNDING:
        prefix = f"its rows without one fold are {shares[1:].sum():.6g} times all"
        raise ProtocolError(f"{prefix}; expected {folds - 1}, for each row is in one fold")


def check_held_out(losses: Vector, least: float) -> None:
    """Check losses on rows that a model was not fitted to.

    Parameters
    ----------
    losses : ndarray of float64
        Of several models.
    least : float
        What none is below.
    """
    if not ((losses >= least) & (losses <= LARGEST_LOSS)).all():
        absurd = losses.min() if losses.min() < least else losses.max()
        raise ProtocolError(f"a loss on left-out rows is {absurd:.3g}; expected {least:g} to {LARGEST_LOSS:g}")


def least_of(link: float) -> float:
    """Return what no loss is below whose link has this number in :data:`LINKS`; -1 if clients have several."""
    return 0.0 if link >= LINKS.index(CONSTANT[0]) else -LARGEST_LOSS
