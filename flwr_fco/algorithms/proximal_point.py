"""Local minimisation around the model: the client half of FedProx."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import ClientHalf, Memory, Start
from flwr_fco.wire.protocol import Downlink


class ProximalPoint(ClientHalf):
    """Minimise f(theta) - <shift, theta> + penalty/2 ||theta - center||^2, and send theta - primal.

    The message has the vectors ``primal``, ``shift`` (default 0) and ``center`` (default `primal`), and the number
    ``penalty`` (default 0). Li and others: Federated optimization in heterogeneous networks (MLSys 2020), algorithm 2.
    """

    name: ClassVar[str] = "local_minimization"
    engine: ClassVar[str | None] = "minimise"

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Begin at the server's model."""
        vectors, primal = downlink.vectors, downlink.vectors["primal"]
        return Start(
            primal,
            vectors.get("shift"),
            center=vectors.get("center", primal),
            penalty=downlink.numbers.get("penalty", 0.0),
        )
