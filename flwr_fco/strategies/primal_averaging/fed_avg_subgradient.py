"""FedAvg with subgradients of psi: the baseline that never produces exact zeros.

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

from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.server.convergence import Limit, Subgradient
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedAvgSubgradient(RateOptions, WorkOptions, PrimalStrategy):
    """FedAvg on F_m + psi by subgradients: w <- w - client_lr (g + s), s in the subdifferential of psi.

    The model is dense: an average of points that are almost zero is almost zero, never exactly zero.

    Parameters
    ----------
    mirror_map : MirrorMap, default Euclidean()
        h; only the Euclidean map is possible.

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
    euclidean: ClassVar[str | None] = None
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
