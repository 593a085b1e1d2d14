"""One exchange about one point: the sums of the clients' losses, gradients and Hessians on all coordinates.

    server: w = the user's start
    every client: loss, gradient, and the whole Hessian (a triangle) at w
    server: their sums with the clients' weights, and the number of rows behind them

The clients do what they do in a round of :mod:`.method`, and what they say is checked in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract.problem import Problem, To
from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.algorithms.newton.asking import Known
from flwr_fco.algorithms.newton.method import ProximalNewton, unpacked
from flwr_fco.algorithms.newton.model import Matrix
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Downlink, Uplink

#: How many times the clients' median a client's second derivative may be: units differ by less, and so do all features
#: but those that only one in ten thousand rows of most clients has.
_LARGEST = 1e4
#: Smallest eigenvalue of a Hessian whose diagonal is 1 and that is not singular.
_SINGULAR = 1e-10


class Sums(NamedTuple):
    """Sums of the clients' derivatives at a point, which an exchange has told.

    Parameters
    ----------
    point, gradient : ndarray of float64, shape (d,)
        Coefficients, then the intercept, if there is one; and the gradient there.
    hessian : ndarray of float64, shape (d, d)
        The Hessian.
    loss, rows : float
        The mean loss there, and of how many rows.
    intercepts : float, default 0.0
        How many intercepts stay at the clients, whose best values these derivatives are at.
    sites : float, default 0.0
        Of how many clients all of it is.
    round : int, default 0
        1 after the exchange.
    """

    point: Vector
    gradient: Vector
    hessian: Matrix
    loss: float
    rows: float
    intercepts: float = 0.0
    sites: float = 0.0
    round: int = 0

    @property
    def parameters(self) -> float:
        """How many parameters are fitted, those that stay at the clients among them."""
        return self.point.size + self.intercepts


@dataclass(frozen=True, kw_only=True)
class Information(ProximalNewton):
    """The exchange; the point is not changed."""

    #: :func:`_check_curvatures` says more, and whose they are.
    bounded: ClassVar[bool] = False

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before the exchange."""
        return Sums(primal, np.zeros(primal.size), np.zeros((primal.size, primal.size)), 0.0, 0.0)

    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the point, and that all coordinates are asked for."""
        return super().downlink(problem, self._asked(problem, state), to)

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of gradient, block and terms."""
        return super().shapes(problem, self._asked(problem, state))

    def _check(self, problem: Problem, state: Any, uplink: Uplink) -> None:
        """Check an answer as one of the method's rounds."""
        super()._check(problem, self._asked(problem, state), uplink)

    def _step(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the sums."""
        known = Known.of(problem.psi, state.point, replies)
        _check_curvatures(replies)
        hessian, rows = unpacked(replies.sum("block")), float(sum(uplink.examples for uplink in replies))
        told = {"gradient": known.gradient, "hessian": hessian, "loss": known.told.loss, "rows": rows}
        return state._replace(**told, sites=float(len(replies)), round=state.round + 1)

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the objective, which is the loss, and that one exchange is all."""
        return {"objective": state.loss, **({"finished": "all that is asked for is known"} if state.round else {})}

    def _asked(self, problem: Problem, state: Sums) -> Any:
        """Return the state of the method before a round about the point, in which what never changes is known."""
        everything = np.ones(state.point.size)
        return super().init(problem, state.point)._replace(mask=everything, population=0.0)


def inverse(hessian: Matrix) -> Matrix | None:
    """Return the inverse of a positive definite matrix, in the units of its diagonal; None if it is singular.

    Examples
    --------
    >>> inverse(np.diag([4.0, 1e12])).diagonal()
    array([2.5e-01, 1.0e-12])
    >>> inverse(np.ones((2, 2))) is None
    True
    """
    if not (np.diag(hessian) > 0.0).all():
        return None
    units = np.sqrt(np.diag(hessian))
    values, vectors = np.linalg.eigh(hessian / np.outer(units, units))
    if not values[0] > _SINGULAR:
        return None
    return np.asarray((vectors / values) @ vectors.T / np.outer(units, units))


def _check_curvatures(replies: Replies) -> None:
    """Refuse sums that one client's second derivatives make up: standard errors would be what it says.

    Raises
    ------
    ConfigurationError
        If one of them is more than 10,000 times the clients' median.
    """
    told = np.array([unpacked(uplink.vectors["block"]).diagonal() for uplink in replies])
    usual = np.sort(told, axis=0)[(len(told) - 1) // 2]
    for uplink, own in zip(replies, told, strict=True):
        wrong = np.flatnonzero((own > _LARGEST * usual) & (usual > 0.0))
        if wrong.size:
            raise ConfigurationError(
                f"the second derivative of {uplink.node} in coordinate {wrong[0]} is {own[wrong[0]]:.3g}, and the "
                f"clients' median {usual[wrong[0]]:.3g}: standard errors would be those of one client. Its units, or "
                "its code, are other ones"
            )
