"""FedAvg with subgradients of psi: the baseline that never gives an exact zero.

Algorithm ('FedAvg (d)' of Yuan, Zaheer, Reddi 2021, section 5), their symbols in brackets::

    server: primal [w_0]
    each round:
        each client: start at primal; for each minibatch:
            primal <- primal - client_lr (gradient + s)      s in the subdifferential of psi, sign(0) = 0
            send the increment [w_K - w_0]
        server: primal <- primal + server_lr * mean(increment)

Differs from the paper in: 1. clients with more steps do not weigh more (``normalize_local_work``); 2. constraints
contribute no subgradient, so the iterates may leave the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.server.convergence import Limit, Subgradient
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.wire.protocol import Uplink

__all__ = ["FedAvgSubgradient", "PrimalState"]


class PrimalState(NamedTuple):
    """State of a strategy that averages primal points.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        The model, w_r.
    round : int
        Number of successful rounds, r.
    total : ndarray of float64
        What the output averages; see :class:`PointAverage`.
    averaged : int
        Number of points in `total`.
    """

    primal: Vector
    round: int
    total: Vector
    averaged: int


@dataclass(repr=False, eq=False, kw_only=True)
class FedAvgSubgradient(RateOptions, WorkOptions, CompositeStrategy):
    """FedAvg on F_m + psi by subgradients: w <- w - client_lr (g + s), s in the subdifferential of psi.

    Dense: an average of points that are almost zero is almost zero, never zero.

    Parameters
    ----------
    mirror_map : MirrorMap, default Euclidean()
        h; no other is possible.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedAvgSubgradient(regularizer=L1(0.01), client_lr=0.1, local_epochs=1).local_solver
    'subgradient'
    """

    local_solver: ClassVar[str] = "subgradient"
    limit: ClassVar[Limit] = Subgradient()
    source: ClassVar[str] = "[1], 'FedAvg'"
    sends: ClassVar[str] = "w_K - w_0"
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = ""
    extrapolates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f"{type(self).__name__} averages primal points, mirror_map={self.mirror_map!r} has no part in it; "
                "use Euclidean(), or FedMid or FedDualAvg for other geometries"
            )

    def init_state(self, primal: Vector) -> PrimalState:
        """Return the state before round 1."""
        return PrimalState(primal, 0, self.averaging.start(primal.size), 0)

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the primal point."""
        return {"primal": state.primal}

    def aggregate(self, state: PrimalState, uplinks: Sequence[Uplink]) -> PrimalState:
        """Return the state with primal + server_lr * mean(increment)."""
        mean, _ = self.centre(uplinks)
        primal = state.primal + self.rates()[1] * mean
        return self.averaging.add(state._replace(primal=primal, round=state.round + 1), primal)

    def retrieve(self, state: PrimalState) -> Vector:
        """Return the primal point."""
        return state.primal
