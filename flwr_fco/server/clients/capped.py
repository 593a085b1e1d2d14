"""Counts the clients whose minimisation stopped at `max_iterations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.logs import log
from flwr_fco.server.parts import Host, Part
from flwr_fco.wire.protocol import Uplink


class CappedMinimisations(Part):
    """Logs and counts the clients that hit `max_iterations`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._capped: int | None = None

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Log clients that hit `max_iterations`."""
        capped = [uplink for uplink in uplinks if uplink.metrics.get("capped", 0.0) > 0.0]
        if any("capped" in uplink.metrics for uplink in uplinks):
            self._capped = len(capped)
        if capped:
            text = "Round %s: %s of %s clients stopped before their stopping rule was met, the first is %s"
            log(WARNING, text, host.current.number, len(capped), len(uplinks), capped[0].node)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the count, if there is one."""
        return {} if self._capped is None else {"capped": np.array(self._capped)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._capped = int(arrays["capped"]) if "capped" in arrays else None

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return the number of clients that stopped too early in the last round that counted."""
        return {} if self._capped is None else {"num-capped": self._capped}
