"""FedPD: a primal-dual method in which every client keeps its own multiplier.

Zhang, Hong, Dhople, Yin, Liu (2021), algorithm 1; their symbols in brackets::

    each client, `repeats` times: local [x_i] ~ argmin f_i(x) + <dual [lambda_i], x - x_0> + ||x - x_0||^2 / (2 eta)
                                  dual <- dual + (local - x_0)/eta;  x_0 [x_{0,i}] <- local + eta dual
    send the change of x_0
    server: primal [x_0] <- mean(x_0)

With exact minimisations and zeros at the start, FedPD(eta) equals FedDR(eta, alpha = 1) and FedDyn(alpha = 1/eta),
iterate by iterate.

Differs from the paper in: 1. client i has weight p_i, not 1/N; 2. the paper averages with probability 1 - p after every
step, this implementation after every `repeats`-th step; 3. the local minimisation is as exact as its stopping rule
says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.errors import ConfigurationError
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.convergence import Exact, Limit
from flwr_fco.server.options import AT_LEAST_ONE, POSITIVE, EveryoneOptions, MemoryOptions, MinimiseOptions
from flwr_fco.server.replies.replies import Replies
from flwr_fco.strategies.primal_averaging.primal import PrimalState, PrimalStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedPD(MinimiseOptions, EveryoneOptions, MemoryOptions, PrimalStrategy):
    """FedPD: clients minimise their augmented Lagrangians and update their own multipliers.

    The multipliers are sums of sent values: on a float32 wire the method stalls at 1e-8.

    Parameters
    ----------
    step : float, default 1.0
        eta.
    repeats : int, default 1
        Local minimisations between two averages. With more than one, a client's memory is not a function of what it
        sends, so the server cannot keep a ledger: ``client_state`` is ``"reset"``.

    References
    ----------
    Zhang, Hong, Dhople, Yin, Liu: FedPD, a federated learning framework with adaptivity to non-iid data (IEEE
    Transactions on Signal Processing, 2021), algorithm 1.

    Examples
    --------
    >>> FedPD(step=2.0).local_solver
    'fed_pd'
    """

    local_solver: ClassVar[str] = "fed_pd"
    limit: ClassVar[Limit] = Exact("the solution", problem="smooth")
    deterministic: ClassVar[bool] = True
    source: ClassVar[str] = "Zhang and others 2021"
    sends: ClassVar[str] = "the change of x_{0,i}"
    remembers: ClassVar[str] = "lambda_i, x_i"
    no_psi: ClassVar[str | None] = "its fixed points are zeros of the clients' mean gradient"

    step: float = field(default=1.0, metadata=POSITIVE)
    repeats: int = field(default=1, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        if self.repeats > 1:
            if self.client_state == "ledger":
                raise ConfigurationError(
                    f'client_state="ledger" with repeats={self.repeats}: what a client remembers then is no function '
                    'of what it sends; use client_state="reset", or repeats=1'
                )
            self.client_state = "reset"
        super().__post_init__()

    def numbers(self, state: PrimalState) -> dict[str, float]:
        """Return eta and the number of local minimisations."""
        return {"step": self.step, "repeats": float(self.repeats)}

    def aggregate(self, problem: Problem, state: PrimalState, replies: Replies) -> PrimalState:
        """Return the mean of the clients' x_0."""
        return PrimalState(state.primal + replies.sum() / replies.weight, state.round + 1)
