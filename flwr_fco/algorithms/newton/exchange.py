"""What methods of one exchange a round share: whose an exchange is, what is possible, how far the run is."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Evaluation, Problem, Replies, Setting, Vector
from flwr_fco.algorithms.newton.terms import TERMS, Evaluated
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ProtocolError
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.wire.questions import LINKS

#: As large a number as a state may hold where nothing is known yet.
UNKNOWN = 1e300
#: Rounding error of a client's sums, relative to the sums of absolute values.
_ROUNDING = 1e-6
#: Bytes of a digest that a float64 holds exactly.
_DIGEST = 6


class Known(Protocol):
    """What a state knows of its best point."""

    @property
    def point(self) -> Vector:
        """The best point whose objective is known."""

    @property
    def objective(self) -> float:
        """Phi at the point."""

    @property
    def lower(self) -> float:
        """The largest lower bound of min Phi so far."""

    @property
    def residual(self) -> float:
        """||w - prox(w - gradient)|| at the point."""

    @property
    def population(self) -> float:
        """A digest of the clients; -1 before the first round."""

    @property
    def stalled(self) -> float:
        """1.0 if no step decreases the objective by more than its rounding error."""


def population_of(replies: Replies) -> float:
    """Return a digest of who has answered, and with which weight, as a whole number that a float64 holds."""
    told = [(None if uplink.node is None else uplink.node.key, uplink.weight) for uplink in replies]
    return float(int.from_bytes(hashlib.sha256(repr(told).encode()).digest()[:_DIGEST], "big"))


def evaluated(psi: BoundRegularizer, w: Vector, replies: Replies) -> Evaluated:
    """Return the weighted means of an exchange about the point w."""
    each = [(uplink.vectors["terms"], uplink.weight) for uplink in replies]
    return Evaluated.of(psi, w, replies.sum("gradient"), [terms for terms, _ in each], [weight for _, weight in each])


def handed_out(layout: Layout, w: Vector) -> Vector:
    """Return a point as the user gets it, rounded to the dtypes of the model's arrays: what is certified is that."""
    # The sum makes 0.0 of -0.0, whose sign depends on how a coordinate has become zero.
    rounded = w + 0.0
    for entry in layout.optimized:
        if entry.dtype != "float64":
            rounded[entry.block] = w[entry.block].astype(entry.dtype)
    return rounded


def check_terms(terms: Vector, gradient: Vector, w: Vector) -> None:
    """Check what a client says of its loss at a point.

    Raises
    ------
    ProtocolError
        If a number is out of the range of its meaning, or the loss, its conjugate and the gradient are not those of one
        function: for losses of predictions, f(m) + f*(u) = u m for u = f'(m).

    Examples
    --------
    >>> check_terms(np.array([-1.0, 0.0, 0.0, 2.0, 1.0, 1.0, 0.0, 1.0]), np.zeros(2), np.zeros(2))
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: its loss is -1; expected a number >= 0
    """
    told = dict(zip(TERMS, terms.tolist(), strict=True))
    number = told["link"]
    if number not in range(len(LINKS)):
        raise ProtocolError(f"the link of its loss is {number:g}; expected a whole number below {len(LINKS)}")
    if number == 0:
        return
    link, outputs = LINKS[int(number)], told["outputs"]
    if outputs not in range(1, w.size + 1) or told["intercept"] not in (0.0, 1.0):
        raise ProtocolError(f"its loss has {outputs:g} outputs and intercept={told['intercept']:g}: no such model")
    if told["l2"] < 0.0 or not told["factor"] > 0.0:
        raise ProtocolError(f"its loss has l2={told['l2']:g} and factor={told['factor']:g}; expected >= 0 and > 0")
    loss, linear, quadratic = told["loss"], told["linear"], told["quadratic"]
    if loss < 0.0:
        raise ProtocolError(f"its loss is {loss:.6g}; expected a number >= 0")
    if quadratic < 0.0:
        raise ProtocolError(f"its mean square is {quadratic:.6g}; expected a number >= 0")
    most = math.log(max(2.0, outputs)) * (1.0 + _ROUNDING)
    if link in ("logistic", "softmax") and not -most <= linear <= 0.0:
        raise ProtocolError(f"the mean of its sums q log q is {linear:.6g}; expected a number from {-most:.4g} to 0")
    count = w.size - int(outputs) * int(told["intercept"])
    ridge = told["l2"] * float(w[:count] @ w[:count])
    pairs = gradient * w
    difference = loss + 0.5 * ridge + linear + quadratic - float(pairs.sum())
    size = loss + ridge + abs(linear) + quadratic + float(np.abs(pairs).sum())
    if abs(difference) > _ROUNDING * size:
        raise ProtocolError(
            f"its loss, conjugate and gradient differ by {difference:.3g} from those of one function; expected at most "
            f"{_ROUNDING * size:.3g}"
        )


def progress(state: Known) -> dict[str, float | int]:
    """Return the metrics of a state: the objective, and the duality gap or else the residual."""
    if state.population < 0.0 or state.objective == UNKNOWN:
        return {}
    known: dict[str, float | int] = {"objective": state.objective}
    if state.lower > -UNKNOWN:
        return known | {"duality-gap": max(0.0, state.objective - state.lower)}
    return known | {"residual": state.residual}


def distance(state: Known) -> float:
    """Return the duality gap of a state, or else the residual; :data:`UNKNOWN` if there is none yet."""
    told = progress(state)
    return float(told.get("duality-gap", told.get("residual", UNKNOWN)))


def finished(state: Known, tolerance: float) -> str:
    """Return why a run is over; an empty string as long as it goes on."""
    told = progress(state)
    for name, text in (("duality-gap", "duality gap"), ("residual", "residual of a proximal gradient step")):
        if name in told and told[name] <= tolerance:
            return f"the {text} of all clients' data is {told[name]:.3g}, at most tolerance={tolerance:g}"
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

    engine: ClassVar[str | None] = None
    reads: ClassVar[Any] = "sums"
    everyone: ClassVar[bool] = True
    compared: ClassVar[bool] = False

    tolerance: float = 1e-8

    def setting(self, given: Setting, state: Any) -> Setting:
        """Return the user's, with one evaluation as the work."""
        return given._replace(work=Evaluation())

    def retrieve(self, problem: Problem, state: Known) -> Vector:
        """Return the best point whose objective is known."""
        return state.point

    def finished(self, problem: Problem, state: Known) -> str:
        """Return why the run is over: a duality gap, or a residual, below the tolerance, or rounding."""
        return finished(state, self.tolerance)

    def describe(self, state: Any) -> list[tuple[str, str]]:
        """Return the line about when the run ends."""
        return [("Ends", f"at a duality gap of {self.tolerance:g}, of the data of all clients")]


def feasible_start(problem: Problem, primal: Vector) -> Vector:
    """Return the user's start, or the point of psi's domain next to it, as it is handed out."""
    feasible = math.isfinite(problem.psi.value(primal))
    return handed_out(problem.layout, primal if feasible else problem.psi.prox(primal, 0.0))
