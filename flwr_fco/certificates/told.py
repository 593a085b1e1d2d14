"""What one client may say of its loss for a certificate: its numbers must be those of one function.

For losses f of predictions m and slopes u, Fenchel and Young: f(m) + f*(u) >= u m, with equality at u = f'(m). Summed
over a client's rows this ties its loss, its conjugate and its gradient together, so that none of them can be a lie
alone: a certificate is then one of some data, whatever a client says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError
from flwr_fco.messages.protocol import CONVEX, LINKS, Answer

#: Rounding error of a client's sums, relative to the sums of absolute values.
ROUNDING = 1e-6
Numbers = Mapping[str, float]


class Told:
    """Checks the answers of one certificate, by what each client has said of its loss first.

    Parameters
    ----------
    w : ndarray of float64, shape (d,)
        The point.

    Examples
    --------
    >>> facts = {"link": 1.0, "outputs": 1.0, "intercept": 0.0, "l2": 0.0, "factor": 1.0, "slope": 0.0, "loss": -1.0}
    >>> Told(np.zeros(2)).facts(Answer(facts))
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: its loss is -1; expected a number >= 0
    """

    def __init__(self, w: Vector) -> None:
        self._w = w
        self._facts: dict[int | None, Numbers] = {}
        self._pairs: dict[int | None, float] = {}

    def facts(self, answer: Answer) -> None:
        """Check the loss and what is said of its kind.

        Raises
        ------
        ProtocolError
            If a number is out of the range of its meaning.
        """
        own = answer.numbers
        link, loss = link_of(own, self._w.size), own["loss"]
        if link not in (LINKS[0], *CONVEX):
            ridge = self._ridge(own)
            if loss < 0.0:
                raise ProtocolError(f"its loss is {loss:.6g}; expected a number >= 0")
            if loss < (1.0 - ROUNDING) * ridge:
                raise ProtocolError(f"its loss is {loss:.6g}, and its l2 term alone is {ridge:.6g}")
            # The square of a mean is at most the mean square, which the loss is.
            most = (math.sqrt(2.0 * own["factor"] * loss) if link == "identity" else 0.0) * (1.0 + ROUNDING)
            if abs(own["slope"]) > most:
                raise ProtocolError(f"its mean slope is {own['slope']:.6g}; expected at most {most:.6g} by its loss")
        self._facts[answer.node_id] = own

    def slopes(self, answer: Answer, centre: float) -> None:
        """Check the gradient and the conjugates at slopes of which `centre` is taken off.

        Parameters
        ----------
        answer : Answer
            The client's.
        centre : float
            The correction of slopes of squares.
        """
        own = self._facts.get(answer.node_id)
        gradient, w = answer.vectors["gradient"], self._w
        pairs = gradient * w
        self._pairs[answer.node_id] = float(pairs.sum())
        if own is None or not own["link"]:
            return
        link, ridge, factor = LINKS[int(own["link"])], self._ridge(own), own["factor"]
        linear, quadratic, loss = answer.numbers["linear"], answer.numbers["quadratic"], own["loss"] - ridge
        size = abs(own["loss"]) + ridge + abs(linear) + abs(quadratic) + float(np.abs(pairs).sum())
        if link in ("logistic", "softmax"):
            _expect("conjugates", max(abs(linear), abs(quadratic)), 0.0, 0.0)
            last = gradient[gradient.size - int(own["outputs"] * own["intercept"]) :]
            _at_most("slope in an intercept", float(np.abs(last).max(initial=0.0)), 1.0)
            return
        away = centre**2 / (2.0 * factor) if link == "identity" else 0.0
        most = ROUNDING * (size + away)
        if link in CONVEX:
            if loss + quadratic < -most:
                raise ProtocolError(f"its loss is {own['loss']:.6g}, and it says that none is below {-quadratic:.6g}")
            quadratic = 0.0
        elif link == "identity":
            _expect("mean square", quadratic, loss - centre * own["slope"] / factor + away, most)
        else:
            _expect("mean square", quadratic, 0.0, 0.0)
            _at_most("share of rows below the margin", abs(linear + 0.5), 0.5)
        _expect("loss and conjugate", loss + linear + quadratic, float(pairs.sum()) + away, most)

    def entropy(self, answer: Answer, scaling: float) -> None:
        """Check the conjugate of chances at slopes that are scaled.

        Parameters
        ----------
        answer : Answer
            The client's.
        scaling : float
            By how much.
        """
        own, entropy = self._facts.get(answer.node_id), answer.numbers["entropy"]
        pair = scaling * self._pairs.get(answer.node_id, 0.0)
        if own is None:
            return
        loss = own["loss"] - self._ridge(own)
        size = abs(own["loss"]) + self._ridge(own) + abs(entropy) + abs(pair)
        least = max(-math.log(max(2.0, own["outputs"])), pair - loss)
        if not least - ROUNDING * (1.0 + size) <= entropy <= ROUNDING:
            raise ProtocolError(
                f"the mean of its sums q log q is {entropy:.6g}; expected a number from {least:.6g} to 0 by its loss "
                "and gradient"
            )

    def chances(self, answer: Answer) -> None:
        """Check mean chances and shares of labels.

        Raises
        ------
        ProtocolError
            If they are none.
        """
        for name in ("predicted", "present"):
            shares = answer.vectors[name]
            if (shares < 0.0).any() or abs(shares.sum() - 1.0) > ROUNDING:
                raise ProtocolError(f"its {name} shares of classes are {shares.tolist()}; expected >= 0 with the sum 1")

    def references(self, answer: Answer) -> None:
        """Check further dual points: by Fenchel's inequality their conjugates are at least <u, w> - loss.

        Raises
        ------
        ProtocolError
            If a conjugate is less.
        """
        own = self._facts.get(answer.node_id)
        if own is not None:
            check_references(answer.vectors["references"], self._w, own["loss"] - self._ridge(own))

    def _ridge(self, own: Numbers) -> float:
        coefficients = self._w[: self._w.size - int(own["outputs"]) * int(own["intercept"])]
        return 0.5 * own["l2"] * float(coefficients @ coefficients)


def _expect(what: str, value: float, expected: float, most: float) -> None:
    if not abs(value - expected) <= most:
        raise ProtocolError(
            f"its {what} is {value:.6g}, and by its loss and gradient {expected:.6g}: these are not of one function"
        )


def _at_most(what: str, value: float, most: float) -> None:
    if value > (1.0 + ROUNDING) * most:
        raise ProtocolError(f"its {what} is {value:.6g}; expected at most {most:.6g}")


def link_of(own: Numbers, size: int) -> str:
    """Return the link that a client says its loss has.

    Parameters
    ----------
    own : mapping of str to float
        What it says of the kind of its loss.
    size : int
        Number of entries of the model.

    Raises
    ------
    ProtocolError
        If there is no such loss.
    """
    number, outputs = own["link"], own["outputs"]
    if number not in range(len(LINKS)):
        raise ProtocolError(f"the link of its loss is {number:g}; expected a whole number below {len(LINKS)}")
    if number:
        if outputs not in range(1, size + 1) or own["intercept"] not in (0.0, 1.0):
            raise ProtocolError(f"its loss has {outputs:g} outputs and intercept={own['intercept']:g}: no such model")
        if own["l2"] < 0.0 or not own["factor"] > 0.0:
            raise ProtocolError(f"its loss has l2={own['l2']:g} and factor={own['factor']:g}; expected >= 0 and > 0")
    return LINKS[int(number)]


def check_references(rows: NDArray[np.float64], w: Vector, loss: float, tolerance: float = 0.0) -> None:
    """Check further dual points of a client: by Fenchel's inequality their conjugates are at least <u, w> - loss.

    Parameters
    ----------
    rows : ndarray of float64, shape (k, d + 1)
        The dual points with their conjugates.
    w : ndarray of float64, shape (d,)
        The point.
    loss : float
        The client's loss there, without its l2 term.
    tolerance : float, default 0.0
        What may be missing besides rounding.

    Raises
    ------
    ProtocolError
        If a conjugate is less.
    """
    pairs = rows[:, :-1] * w
    sizes = np.abs(pairs).sum(axis=1) + abs(loss) + np.abs(rows[:, -1])
    if (rows[:, -1] < pairs.sum(axis=1) - loss - ROUNDING * sizes - tolerance).any():
        raise ProtocolError("a conjugate of its references is below what its loss at the point allows")
