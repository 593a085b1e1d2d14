"""A round 0 in which every client sends one gradient at the start point, from which trackers start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.logs import log
from flwr_fco.server.clients.remembering import Remembering
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.replies.mail import Mail
from flwr_fco.wire.protocol import Node


class FirstGradients(Part):
    """Runs round 0 before round 1.

    Parameters
    ----------
    mail : Mail
        The messages of the run.
    remembering : Remembering or None
        For clients that remember what they send.
    """

    def __init__(self, mail: Mail, remembering: Remembering | None) -> None:
        self._mail, self._remembering = mail, remembering
        self.forget()

    def forget(self) -> None:
        self._bytes: tuple[int, int] | None = None

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Ask all clients for a gradient, unless that has been done."""
        host.answered_start.clear()
        if host.state.round > 0 or host.state.started:
            return nodes
        mail, everybody = self._mail, host.nodes.ordered
        problem = mail.open(0, everybody, mail.config, host.problem._replace(round=0), host.state)
        good = mail.exchange(mail.letters(everybody))
        uplinks, self._bytes = mail.weighted(good), (mail.current.bytes_down, mail.bytes_up(good))
        log(INFO, "Round 0: %s of %s nodes answered, %s bytes down, %s up", len(good), len(everybody), *self._bytes)
        if not uplinks:
            log(WARNING, "No client has sent a gradient that counts: trackers start at 0, if the round counts")
            return nodes
        if self._remembering is not None:
            self._remembering.after_round(host, host.state, uplinks)
        host.state = host.algorithm.aggregate(problem, host.state, host.replies(problem, host.state, uplinks))
        host.answered_start.update(u.node.node_id for u in uplinks if u.node is not None)
        log(INFO, "Trackers start from the gradients of %s clients", len(uplinks))
        return nodes

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the traffic of round 0, if there was one."""
        return {} if self._bytes is None else {"bytes": np.array(self._bytes)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._bytes = tuple(arrays["bytes"].tolist()) if "bytes" in arrays else None

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return the traffic of round 0, in the first round that counts."""
        if self._bytes is None or host.state.round != 1:
            return {}
        return {"bytes-down-round-0": self._bytes[0], "bytes-up-round-0": self._bytes[1]}
