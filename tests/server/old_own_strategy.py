"""my_strategy.py: federated dual averaging with the coordinate-wise median of the clients' increments."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flwr_fco import L1, CompositeStrategy, LeastSquares, client_app, simulate
from flwr_fco.server.convergence import Limit
from flwr_fco.server.options import POSITIVE, RateOptions, WorkOptions


class MedianState(NamedTuple):
    """What the server keeps: float64 arrays and numbers. `round` counts the rounds that were successful."""

    dual: np.ndarray
    elapsed: float
    round: int
    total: np.ndarray
    averaged: int


@dataclass(frozen=True)
class EqualClients(Limit):
    """What the method converges to, and how `check_strategy` checks that."""

    text: str = "the solution where all clients have the same data; the median is not the mean"
    name = "equal clients"

    def check(self, run, problem):
        gap = problem.gap(run(600, equal=True, client_lr=0.3, local_steps=1), equal=True)
        if gap > 1e-8:
            raise AssertionError(f"with equal clients the certified gap is {gap:.2e}, expected at most 1e-8")


@dataclass(repr=False, eq=False, kw_only=True)
class MedianDualAvg(RateOptions, WorkOptions, CompositeStrategy):
    """Dual averaging that a minority of wrong clients cannot lead away.

    Parameters
    ----------
    shrink : float, default 1.0
        What the median is multiplied by.
    """

    # The client half: the name of a solver in flwr_fco.client_apps, which every `client_app` can run.
    local_solver = "dual_averaging"
    limit = EqualClients()

    shrink: float = field(default=1.0, metadata=POSITIVE)

    def init_state(self, primal):
        return MedianState(self.h.gradient(primal), 0.0, 0, self.averaging.start(primal.size), 0)

    def vectors(self, state):
        """What the clients are sent; `elapsed` is read off the state."""
        return {"dual": state.dual}

    def aggregate(self, state, uplinks):
        """The next state from the replies, sorted by partition, whose weights sum to 1."""
        rate = self.shrink * self.rates()[1]
        # All clients take equally many steps here: one number stands for all of their elapsed times.
        middle = np.median([uplink.vectors["increment"] for uplink in uplinks], axis=0)
        elapsed = float(np.median([uplink.elapsed for uplink in uplinks]))
        following = state._replace(
            dual=state.dual + rate * middle, elapsed=state.elapsed + rate * elapsed, round=state.round + 1
        )
        return self.averaging.add(following, lambda: self.retrieve(following))

    def retrieve(self, state):
        """The primal point: zeros are exact, because psi's proximal map comes last."""
        return self.h.retrieve(state.dual, state.elapsed, self.psi)


def load(context):
    partition = int(context.node_config["partition-id"])
    features = np.random.default_rng(partition).standard_normal((60, 8))
    targets = features @ np.array([2.0, -1.0, 1.0, 0, 0, 0, 0, 0])
    # One client of seven has its signs wrong.
    return LeastSquares(features, -targets if partition == 3 else targets)


if __name__ == "__main__":
    result = simulate(
        MedianDualAvg(regularizer=L1(0.1), client_lr=0.02, local_steps=5, fraction_evaluate=0.0),
        client_app(load),
        num_nodes=7,
        num_rounds=200,
        initial_arrays={"coefficients": np.zeros(8), "intercept": np.zeros(1)},
        progress=False,
    )
    print(np.round(result.arrays["coefficients"].numpy(), 1))
    print(result)
