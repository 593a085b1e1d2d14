"""What a client says of its loss at a point besides derivatives, and what a duality gap takes of it.

The terms of an evaluation are eight numbers: the loss, the conjugate at the slopes u_i = f_i'(m_i) in two parts, and
facts about the loss that must agree between clients::

    mean f_i*(sigma u_i) <= sigma linear + sigma^2 quadratic

with equality for squares; for chances (logistic, softmax) ``linear`` is the mean of sum q log q, and the bound follows
from convexity, because f_i*(0) = 0. Of any other convex loss they are the conjugates at the gradient and at 0, and the
mixture that makes the dual point feasible is with references (:func:`flwr_fco.objectives.duality.references`) that each
client sends once.

A dual point must sum to 0 over the examples if psi leaves the intercept alone. For squares the mean slope is taken off.
For chances it is a mixture of the slopes with those of a constant prediction c,

    u = sigma (q - y) + mu (c - y),    sigma g_b + mu (c - ybar) = 0,    sigma + mu <= 1,

whose gradient X'u follows from that of the slopes, the column means and X'y by linearity, and whose conjugate is at
most sigma linear + mu sum c log c by convexity. So every exchange has a valid lower bound of the optimum, and needs no
second one. Scaling alone would not do: it ignores the intercept.

The same dual points prove coefficients zero. The losses have a second derivative of at most c in the predictions (the
factor of squares, 1/4 logistic, 1/2 softmax), so that f* is 1/c strongly convex: with u* the only optimal slopes, and a
gap Phi(w) - D(u) = G,

    mean |u_i - u*_i|^2 <= 2 c G,    |x_j'u - x_j'u*| / n <= sqrt(2 c G) s_j,    s_j^2 = mean x_ij^2

or the variance of x_j, where u and u* sum to 0. A coefficient with |x_j'u*| / n below its l1 threshold is 0 in every
optimum. Of the s_j the server knows a bound: the weighted mean of each client's largest, one number in the first round.
With intercepts of their own u and u* sum to 0 at each client, which says c s_j^2 with the variance there.

Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017), section 2, has
the scaled dual points, and section 3 the radius.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.certificates import dual
from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.sparse import SparseVector, is_shorter
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import CONVEX, ENTROPY, FACTS, LINKS, SLOPES
from flwr_fco.objectives.base import DualTerms, LinearData, Objective, num_intercepts
from flwr_fco.objectives.duality import duality_terms, num_references, references
from flwr_fco.objectives.linear import Linear
from flwr_fco.regularizers.base import BoundRegularizer

#: Rounding errors of a gap and of a mean square, relative to their terms.
_GAP, _SQUARE = 1e-11, 1e-9
#: A share of examples that is 0 up to rounding.
_NOBODY = 1e-13
#: An intercept with which no events are expected.
_NO_EVENTS = -1e6
#: Numbers of an evaluation, in their order.
TERMS = ("loss", "linear", "quadratic", "link", "outputs", "intercept", "l2", "factor")
#: Those in which clients must agree.
FACTS_OF_LOSS = TERMS[3:]


def evaluation_terms(objective: Objective, w: Vector) -> Vector:
    """Return the terms of a client's loss at a point, in the order of :data:`TERMS`.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> objective = LeastSquares(np.array([[1.0], [3.0]]), np.array([1.0, 2.0]), scale=0.5)
    >>> dict(zip(TERMS, evaluation_terms(objective, np.zeros(2)), strict=True))["quadratic"]
    np.float64(1.25)
    """
    numbers, _ = duality_terms(objective, w, {"stage": FACTS})
    numbers = {"linear": 0.0, "quadratic": 0.0, **numbers}
    link = LINKS[int(numbers["link"])]
    if link == "identity" or link in CONVEX:
        numbers |= duality_terms(objective, w, {"stage": SLOPES})[0]
    elif link in ("logistic", "softmax"):
        numbers["linear"] = duality_terms(objective, w, {"stage": ENTROPY, "scaling": 1.0})[0]["entropy"]
    return np.array([numbers[name] for name in TERMS])


def constant_terms(objective: Objective, w: Vector) -> dict[str, Vector]:
    """Return the gradients of predictions that are the same for all examples: A'1/n and A'y/n, of shape (d,) each.

    A has a column of ones for the intercept; with several outputs, each has its own y. At w = 0 the gradient is one of
    these already, so A'y/n is left out (:meth:`Evaluated.targets_at_zero`). Counts have rates instead of 1/n, those at
    w = 0; of other convex losses nothing is known, and both are 0.
    """
    data, size = objective.duality(), objective.layout.size
    columns, targets = np.zeros(size), np.zeros(size)
    if isinstance(data, DualTerms) and data.link == "poisson" and num_intercepts(objective.layout):
        nobody = np.zeros(size)
        nobody[-1] = _NO_EVENTS
        columns = objective.gradient(np.zeros(size)) - objective.gradient(nobody)
    elif isinstance(data, LinearData):
        n, outputs = objective.num_examples, data.num_outputs
        y = data.targets
        if data.link == "logistic":
            y = 0.5 * (1.0 + data.targets)
        elif data.link == "softmax":
            y = np.eye(outputs)[data.targets]
        shares: Any = 1.0 / n if data.weights is None else (data.weights / n).reshape(-1, *[1] * (np.ndim(y) - 1))
        assert isinstance(objective, Linear)
        objective._add_product(objective.features, np.broadcast_to(shares, np.shape(y)).copy(), columns)
        objective._add_product(objective.features, np.asarray(y, dtype=np.float64) * shares, targets)
    return {"columns": columns, "targets": targets} if w.any() else {"columns": columns}


def largest_square(objective: Objective) -> Vector:
    """Return the largest mean square of a client's columns, shape (1,); 0 if its loss is not one of predictions.

    With an intercept of its own it is the largest variance, times the curvature.

    Raises
    ------
    ConfigurationError
        If a loss under the link ``"profiled"`` has none, or one that is no finite number >= 0.
    """
    data = objective.duality()
    if isinstance(data, DualTerms) and data.link == "profiled":
        square = float(objective.largest_square())
        if not 0.0 <= square < math.inf:
            raise ConfigurationError(
                f"{type(objective).__name__}.largest_square()={square}; expected a finite number >= 0, which no second "
                "derivative in one coefficient is above"
            )
        return np.array([square])
    if not isinstance(data, LinearData):
        return np.zeros(1)
    assert isinstance(objective, Linear)
    return np.array([objective.largest_square() / objective._bounds()[1]])


def short(objective: Objective, vectors: dict[str, Vector]) -> dict[str, Any]:
    """Return vectors of shape (d,) as they are sent: of a client with sparse features, at the columns of its rows.

    Elsewhere they are 0, because the loss does not depend on these coordinates.
    """
    data = objective.duality()
    if not isinstance(data, LinearData) or isinstance(data.features, np.ndarray) or data.l2 != 0.0:
        return dict(vectors)
    size, outputs = objective.layout.size, data.num_outputs
    columns = np.unique(data.features.indices).astype(np.int64)[:, None] * outputs + np.arange(outputs)
    on = np.concatenate([columns.reshape(-1), np.arange(data.features.shape[1] * outputs, size)]).astype(np.int32)
    if not is_shorter(on.size, size):
        return dict(vectors)
    return {name: SparseVector(on, vector[on], size) for name, vector in vectors.items()}


def terms_at(objective: Objective, w: Vector, gradient: Vector, first: bool) -> dict[str, Any]:
    """Return what a client says of its loss at a point; in the first round also what never changes.

    That are :func:`constant_terms` and, of a loss whose intercept's gap needs them, references.
    """
    sent = short(objective, {"gradient": gradient, **(constant_terms(objective, w) if first else {})})
    if first and num_references(objective.layout):
        rows = references(objective).reshape(-1)
        sent["references"] = rows if rows.any() else SparseVector(np.zeros(0, np.int32), np.zeros(0), rows.size)
    return sent | {"terms": evaluation_terms(objective, w)}


def reference_size(layout: Layout) -> int:
    """Return the length of the references in :func:`terms_at`; 0 if there are none."""
    return num_references(layout) * (layout.size + 1)


class Evaluated(NamedTuple):
    """The weighted means of an exchange, at a point.

    Parameters
    ----------
    w : ndarray of float64, shape (d,)
        The point.
    gradient : ndarray of float64, shape (d,)
        Of the pooled loss.
    loss, linear, quadratic : float
        Weighted means of the clients' terms.
    facts : dict of str to float
        What the clients agree on.
    reason : str
        Why there is no duality gap; empty if there is one.
    """

    w: Vector
    gradient: Vector
    loss: float
    linear: float
    quadratic: float
    facts: dict[str, float]
    reason: str

    @classmethod
    def of(cls, psi: BoundRegularizer, w: Vector, gradient: Vector, each: Sequence[tuple[Vector, float]]) -> Evaluated:
        """Return the means of the clients' terms.

        Parameters
        ----------
        psi : BoundRegularizer
            The regularizer.
        w, gradient : ndarray of float64, shape (d,)
            The point, and the gradient of the pooled loss.
        each : sequence of (ndarray, float)
            Terms and weight of each client; the weights sum to 1.
        """
        told = [dict(zip(TERMS, own.tolist(), strict=True)) for own, _ in each]
        pairs = [(weight, own) for (_, weight), own in zip(each, told, strict=True)]
        loss, linear, quadratic = (math.fsum(weight * own[name] for weight, own in pairs) for name in TERMS[:3])
        facts = {name: told[0][name] for name in FACTS_OF_LOSS}
        return cls(w, gradient, loss, linear, quadratic, facts, dual.why_none(told, psi, w))

    @property
    def link(self) -> str:
        """Name of the loss's link."""
        return LINKS[int(self.facts["link"])]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return int(self.facts["outputs"])

    def targets_at_zero(self, columns: Vector) -> Vector:
        """Return A'y/n, from the gradient at w = 0 and the column means."""
        if self.link == "identity":
            return np.asarray(-self.gradient / self.facts["factor"])
        if self.link in ("logistic", "softmax"):
            return np.asarray(columns / max(2, self.outputs) - self.gradient)
        return np.asarray(columns - self.gradient) if self.link == "poisson" else np.zeros(columns.size)

    def has_free_intercept(self, psi: BoundRegularizer) -> bool:
        """Whether there is an intercept on which psi does not act."""
        return self.outputs > 0 and dual.free_intercept(self.facts, psi, self.w)

    def shares(self, targets: Vector) -> Vector:
        """Return the share of each class, the intercepts' entries of A'y/n; of two classes the second one's.

        Raises
        ------
        ConfigurationError
            If no client has an example of some class, or none that counts, whose free intercept then has no optimum.
        """
        shares = targets[self.w.size - self.outputs :]
        both = np.array([1.0 - shares[0], shares[0]]) if self.outputs == 1 else shares
        if (both < _NOBODY).any():
            raise ConfigurationError(
                f"no client has an example of class {int(np.argmin(both))}, or it weighs less than {_NOBODY:g} of "
                "all, and the intercept is not regularized: the loss has no minimum. Leave this class out "
                "(num_classes=), or make psi act on the intercept: arrays=Arrays(apply_to=...)"
            )
        return np.asarray(shares)

    def dual(self, psi: BoundRegularizer, once: Any) -> tuple[float, Vector]:
        """Return a number that no value of the pooled objective is below, and the dual point that it is the value of.

        That is a gradient A'u/n, shape (d,).

        Parameters
        ----------
        psi : BoundRegularizer
            The regularizer, for which :attr:`reason` is empty.
        once
            A state, with the weighted means of :func:`constant_terms`, `columns` and `targets`; `references`, that of
            :func:`terms_at`, if any.
        """
        outputs, l2, squares = self.outputs, self.facts["l2"], self.link == "identity"
        count = self.w.size - outputs if self.facts["intercept"] else self.w.size
        slopes = self.gradient.copy()
        slopes[:count] -= l2 * self.w[:count]
        linear, quadratic, total = self.linear, self.quadratic, 1.0
        if self.link in CONVEX:
            free = once.references.size and self.has_free_intercept(psi)
            others = once.references.reshape(-1, self.w.size + 1) if free else None
            return dual.convex_bound(psi, slopes, (linear, quadratic), l2, self.w.size - count, others)
        if self.has_free_intercept(psi):
            mean = slopes[count:].copy()
            if squares:
                slopes -= mean[0] * once.columns
                linear -= float(mean[0] * once.targets[count])
                quadratic = max(0.0, quadratic - float(mean[0]) ** 2 / (2.0 * self.facts["factor"]))
            else:
                shares = self.shares(once.targets)
                ratio, constant = _mixture(mean, shares)
                # np.resize would take longer than a client's gradient: it joins as many arrays as there are features.
                each = np.tile(constant, -(-slopes.size // outputs))[: slopes.size]
                slopes += ratio * (each * once.columns - once.targets)
                linear, total = linear + ratio * _entropy(constant), 1.0 + ratio
            slopes[count:] = 0.0
        return dual.scaled_bound(psi, slopes, (linear, quadratic, 0.0), l2, count, total=total, squares=squares)

    def zeros(self, psi: BoundRegularizer, objective: float, lower: float, slopes: Vector, once: Any) -> Vector:
        """Return 1.0 for each coefficient that is 0 in every optimum of the pooled problem, 0.0 for all others.

        Parameters
        ----------
        psi : BoundRegularizer
            The regularizer, for which :attr:`reason` is empty; nothing is said of one that is no sum over coordinates.
        objective : float
            Phi at any point.
        lower, slopes : float and ndarray of float64, shape (d,)
            Of :meth:`dual`.
        once
            As for :meth:`dual`, with `square`, the weighted mean of :func:`largest_square`.
        """
        terms = psi.terms()
        # The squares of clients with intercepts of their own have the curvature in them.
        curvatures = {"identity": self.facts["factor"], "logistic": 0.25, "softmax": 0.5, "profiled": 1.0}
        curvature = curvatures.get(self.link)
        if terms is None or curvature is None or lower == -math.inf:
            return np.zeros(self.w.size)
        gap = max(objective - lower, 0.0) + _GAP * (abs(objective) + abs(lower))
        centred = once.columns**2 if self.has_free_intercept(psi) else 0.0
        reach = np.sqrt(2.0 * curvature * gap * np.maximum((1.0 + _SQUARE) * once.square - centred, 0.0))
        proved = (np.abs(slopes) + reach < terms.threshold) & (terms.lower <= 0.0) & (terms.upper >= 0.0)
        if self.facts["intercept"]:
            proved[self.w.size - self.outputs :] = False
        return np.asarray(proved, dtype=np.float64)


def _mixture(mean: Vector, shares: Vector) -> tuple[float, Vector]:
    """Return rho = mu / sigma as small as possible, and a constant c >= 0 with mean + rho (c - shares) = 0."""
    if mean.size == 1:
        ratio = max(float(mean[0] / shares[0]), -float(mean[0]) / (1.0 - float(shares[0])))
        top = 1.0
    else:
        ratio, top = float((mean / shares).max()), np.inf
    return (0.0, shares) if ratio <= 0.0 else (ratio, np.clip(shares - mean / ratio, 0.0, top))


def _entropy(constant: Vector) -> float:
    """Return sum c log c of a constant prediction; with one output, c and 1 - c."""
    from scipy.special import xlogy

    both = np.array([1.0 - constant[0], constant[0]]) if constant.size == 1 else constant
    return float(xlogy(both, both).sum())
