"""FedAvg on this package's objectives, known in theory as local SGD.

McMahan, Moore, Ramage, Hampson, y Arcas (AISTATS 2017), algorithm 1; their symbols in brackets::

    each client of the sample: start at primal [w_t]; for each minibatch:  primal <- primal - client_lr [eta] gradient
        send the increment
    server: primal <- primal + server_lr mean(increment)

The class is called LocalSGD because Flower has a ``FedAvg`` that users import together with this package, and that
every strategy here derives from: one name for two classes with different clients would be a trap.

Differs from the paper in: 1. a server rate (1.0 is the paper's); 2. unequal local work is normalised
(``normalize_local_work``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flwr_fco.server.convergence import Biased, Limit
from flwr_fco.server.options import RateOptions, WorkOptions
from flwr_fco.strategies.primal_averaging.primal import PrimalStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class LocalSGD(RateOptions, WorkOptions, PrimalStrategy):
    """FedAvg (local SGD): gradient steps on the clients, averaged by the server.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, y Arcas: Communication-efficient learning of deep networks from decentralized data
    (AISTATS 2017), algorithm 1.

    Examples
    --------
    >>> LocalSGD(client_lr=0.1, local_epochs=5).local_solver
    'client_momentum'
    """

    local_solver: ClassVar[str] = "client_momentum"
    limit: ClassVar[Limit] = Biased(problem="smooth")
    source: ClassVar[str] = "McMahan and others 2017"
    sends: ClassVar[str] = "w_K - w_0"
    extrapolates: ClassVar[bool] = True
    no_psi: ClassVar[str | None] = "its local steps are plain gradient steps (FedAvgSubgradient takes subgradients)"
