"""FedDR: randomised Douglas-Rachford splitting.

Tran-Dinh, Pham, Phan, Nguyen (NeurIPS 2021), algorithm 1; their symbols in brackets::

    each client of the sample: center [y_i] <- center + alpha (primal [x-bar] - local [x_i])
                               local <- prox_{eta f_i}(center); send the change of 2 local - center [x-hat_i]
    server: mean [x-tilde] <- mean of all clients' last 2 local - center; primal <- prox_{eta psi}(mean)

Differs from the paper in: 1. client i has weight p_i, not 1/n; 2. centers and local points begin at 0, without the
paper's round that asks all clients for prox_{eta f_i}(x^0): the method converges from any start, and a client that was
never asked counts as 0; 3. the local minimisation is as exact as its stopping rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr_fco.algorithms.contract import Downlink, Problem, Replies, Vector
from flwr_fco.algorithms.contract.client import ORIGIN, Client, Memory, Moved, Start, zeros_like
from flwr_fco.algorithms.primal_averaging import MeanOfMemories, MeanState, rescaled
from flwr_fco.regularizers.base import BoundRegularizer


def _center(downlink: Downlink, memory: Memory) -> Vector:
    return memory["center"] + downlink.numbers["relaxation"] * (downlink.vectors["primal"] - memory["local"])


def _last(memory: Memory) -> Vector:
    """Return 2 x - y of the client's last round."""
    return 2.0 * memory["local"] - memory["center"]


def advance(state: MeanState, change: Vector, step: float, psi: BoundRegularizer | None = None) -> MeanState:
    """Return the state after a round.

    Parameters
    ----------
    state : MeanState
        Its mean is over 2 local - center.
    change : ndarray of float64, shape (d,)
        Sum of the clients' increments, weighted by their share of all clients, absent ones included.
    step : float
        eta.
    psi : BoundRegularizer, optional
        The regularizer; without one, the retrieval is the mean.
    """
    mean = state.mean + change
    primal = mean if psi is None else psi.prox(mean, step)
    return state._replace(primal=primal, mean=mean, round=state.round + 1)


@dataclass(frozen=True, kw_only=True)
class DouglasRachford(MeanOfMemories):
    """Take a Douglas-Rachford step: y <- y + alpha (primal - x), x <- prox_{eta f}(y), send the change of 2 x - y.

    The message has the vector ``primal`` (x-bar) and the numbers ``step`` (eta) and ``relaxation`` (alpha).
    Tran-Dinh, Pham, Phan, Nguyen: FedDR (NeurIPS 2021), algorithm 1.

    Parameters
    ----------
    step : float
        eta, of the proximal steps of clients and server.
    relaxation : float
        alpha.

    Examples
    --------
    >>> DouglasRachford.engine, DouglasRachford.memory, DouglasRachford.reads
    ('minimise', ('center', 'local'), 'sums')
    >>> DouglasRachford(step=0.5).options({})
    {'step': 0.5, 'relaxation': 1.0}
    """

    name, memory = "fed_dr", ("center", "local")

    step: float = 1.0
    relaxation: float = 1.0

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return x = y = 0; the minimisation begins at the model all the same."""
        zeros = zeros_like(downlink)
        return {"center": zeros, "local": zeros, "start": downlink.vectors["primal"]}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the last x, with the proximal term around the new y."""
        start = memory["start"] if "start" in memory else memory["local"]
        return Start(start, center=_center(downlink, memory), penalty=1.0 / downlink.numbers["step"], base=ORIGIN)

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Send the change of 2 x - y."""
        return {"increment": 2.0 * moved.increment - _center(downlink, memory) - _last(memory)}

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return y and x, from the change that was sent."""
        center = _center(downlink, memory)
        return {"center": center, "local": 0.5 * (_last(memory) + sent["increment"] + center)}

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return 2 x_i - y_i."""
        return 2.0 * remembered["local"] - remembered["center"]

    def numbers(self, problem: Problem, state: MeanState) -> dict[str, float]:
        """Return eta and alpha."""
        return {"step": self.step, "relaxation": self.relaxation}

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of all clients' points and its prox_{eta psi}."""
        state = rescaled(state, replies.population)
        return advance(state, replies.sum() / state.population, self.step, problem.psi)
