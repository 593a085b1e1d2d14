"""What a client can say of its loss: the bounds of all numbers of a gap, a Newton step or a held-out loss.

They follow from what the client itself says: its loss and gradients are those of one convex function, its Hessian is
that of one whose curvature it has named, its columns' means are no larger than their squares, its folds are all of its
rows. A client whose numbers pass has some data of which they are true; that these are its own nobody can check.

Each function raises a :class:`ProtocolError` that says what cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError

Matrix = NDArray[np.float64]

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
        raise ProtocolError(f"its loss is {loss:.6g}, and it says that none is below {least:.6g}")
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
        worst = int(np.argmax(wrong))
        raise ProtocolError(
            f"its loss, gradients and conjugates differ by {above[worst]:.3g} from those of one convex function"
        )


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


def check_hessian(block: Matrix, on: NDArray[np.int64], vectors: Mapping[str, Vector], count: int | None) -> None:
    """Check a Hessian on some coordinates: it is positive semidefinite, and no larger than that of the loss.

    Parameters
    ----------
    block : ndarray of float64, shape (k, k)
        The Hessian.
    on : ndarray of int64, shape (k,)
        The coordinates.
    vectors : mapping of str to ndarray
        What else the client says.
    count : int or None
        Number of coefficients; None: no curvature bounds the diagonal.
    """
    reported = Terms(*vectors["terms"].tolist())
    diagonal = np.diag(block)
    if (diagonal < 0.0).any():
        raise ProtocolError(f"its Hessian has the entry {diagonal.min():.3g} on the diagonal; expected none below 0")
    if count is not None:
        square, known = vectors.get("square", np.zeros(2)).tolist()
        most = np.where(on < count, square + reported.l2 if known else math.inf, reported.factor or math.inf)
        beyond = np.flatnonzero(diagonal > (1.0 + ROUNDING) * most)
        if beyond.size:
            value, limit = diagonal[beyond[0]], most[beyond[0]]
            raise ProtocolError(f"its Hessian has the entry {value:.3g} on the diagonal; expected at most {limit:.3g}")
    roots = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    empty = diagonal == 0.0
    indefinite = bool((np.abs(block[empty]) > np.finfo(np.float64).tiny).any())
    try:
        np.linalg.cholesky(block / np.outer(roots, roots) + (ROUNDING * (1 + diagonal.size)) * np.eye(diagonal.size))
    except np.linalg.LinAlgError:
        indefinite = True
    if indefinite:
        raise ProtocolError("its Hessian is not positive semidefinite")


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
        raise ProtocolError(
            f"its rows without one fold are {shares[1:].sum():.6g} times all; expected {folds - 1}, for each row is "
            "in one fold"
        )


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
        raise ProtocolError(
            f"a loss on left-out rows is {absurd:.3g}; expected none below {least:g} or above {LARGEST_LOSS:g}"
        )


def least_of(link: float) -> float:
    """Return what no loss is below whose link has this number in :data:`LINKS`; -1 if clients have several."""
    return 0.0 if link >= LINKS.index(CONSTANT[0]) else -LARGEST_LOSS
