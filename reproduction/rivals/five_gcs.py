"""5GCS: client sampling for local training of the fifth generation.

Grudzien, Malinovsky, Richtarik (2022), algorithm 1; their symbols in brackets, all duals multiplied by M::

    server: primal [x_hat] <- (x - gamma dual [v]) / (1 + gamma mu)
    each client of the cohort: y ~ argmin f(y) - mu/2 ||y||^2 + tau/2 ||y - (primal + own [u] / tau)||^2
                               own <- own + tau (primal - y); send the change
    server: dual+ <- mean of all clients' own; x <- primal - gamma M/C (dual+ - dual)

Differs from the paper in: 1. client m has weight p_m, not 1/M, and M/C is the weight of all clients over that of the
cohort; 2. the duals are M times the paper's and tau M times the paper's tau, so that no client has to know M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flwr_fco.algorithms import Client, Downlink, MeanOfMemories, MeanState, Memory, Moved, Problem, Replies, rescaled
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Vector
from flwr_fco.strategies import POSITIVE, Ledger, MinimiseStrategy, strategy


@dataclass(frozen=True, kw_only=True)
class FifthGeneration(MeanOfMemories):
    """Minimise f(y) - mu/2 ||y||^2 + tau/2 ||y - (x_hat + u/tau)||^2; u <- u + tau (x_hat - y), send its change.

    u is M times the paper's u_m, and tau is M times the paper's, so that clients need to know neither M nor their
    weights. The message has the vector ``primal`` (x_hat) and the numbers ``dual-step`` (tau) and ``convexity`` (mu).
    Grudzien, Malinovsky, Richtarik: Can 5th generation local training methods support client sampling? Yes! (2022),
    algorithm 1.

    Parameters
    ----------
    step : float
        gamma.
    dual_step : float
        tau times the number of clients.
    convexity : float
        mu.
    """

    name = "five_gcs"
    memory = ("dual", "local")
    refuses = {**MeanOfMemories.refuses, "regularizer": "its server step is that of mu/2 ||x||^2 and of nothing else"}

    step: float = 1.0
    dual_step: float = 0.5
    convexity: float = 0.01

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Minimise from the last y; send the change of u."""
        tau = self.dual_step
        primal = downlink.vectors["primal"]
        known = self._known(downlink, memory)
        y, moved = client.minimise(known["local"], shift=known["dual"] + tau * primal, penalty=tau - self.convexity)
        return {"increment": tau * (primal - y)}, moved

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return u and y."""
        increment = sent["increment"]
        return {
            "dual": self._known(downlink, memory)["dual"] + increment,
            "local": downlink.vectors["primal"] - increment / self.dual_step,
        }

    def _known(self, downlink: Downlink, memory: Memory | None) -> Memory:
        """Return the memory; u = 0 and the model of a client that begins."""
        primal = downlink.vectors["primal"]
        return {"dual": np.zeros_like(primal), "local": primal} if memory is None else memory

    def init(self, problem: Problem, primal: Vector) -> MeanState:
        """Return the state before round 1: v = 0, so that the first point sent is x / (1 + gamma mu)."""
        return super().init(problem, primal / (1.0 + self.step * self.convexity))

    def part_of(self, remembered: Mapping[str, Vector]) -> Vector:
        """Return u_m: the mean is the dual v."""
        return remembered["dual"]

    def aggregate(self, problem: Problem, state: MeanState, replies: Replies) -> MeanState:
        """Return the mean of all clients' duals and the server's step against it."""
        state = rescaled(state, replies.population)
        change = replies.sum() / replies.population
        dual = state.mean + change
        # M/C is the weight of all clients over that of the cohort.
        x = state.primal - self.step * (replies.population / replies.weight) * change
        primal = (x - self.step * dual) / (1.0 + self.step * self.convexity)
        return state._replace(primal=primal, mean=dual, round=state.round + 1)


@strategy
class FiveGCS(MinimiseStrategy):
    """5GCS: a primal-dual method with accelerated communication and client sampling.

    Parameters
    ----------
    step : float, default 1.0
        gamma, the server's step size.
    dual_step : float, optional
        tau times the number of clients; by default 1/(2 gamma), the largest that the theory allows. Must exceed
        `convexity`.
    convexity : float, default 0.01
        mu, at most the modulus of strong convexity of every client's loss.

    References
    ----------
    Grudzien, Malinovsky, Richtarik: Can 5th generation local training methods support client sampling? Yes! (2022),
    algorithm 1.

    Examples
    --------
    >>> FiveGCS(step=0.5, convexity=0.01).dual_step
    1.0
    """

    algorithm = FifthGeneration
    client_state: Ledger = field(default=Ledger())
    step: float = field(default=1.0, metadata=POSITIVE)
    dual_step: float | None = field(default=None, metadata=POSITIVE)
    convexity: float = field(default=0.01, metadata=POSITIVE)

    def _check(self) -> None:
        super()._check()
        if self.dual_step is None:
            self.dual_step = 0.5 / self.step
        if self.dual_step <= self.convexity:
            raise ConfigurationError(
                f"dual_step={self.dual_step:g}; expected more than convexity={self.convexity:g}, or else the clients' "
                "minimisations are not convex. Lower `step`"
            )
