"""What clients leave undone: their answers, in methods that need every client; minimisations, blocks, other losses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from logging import INFO, WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import choices
from flwr_fco.algorithms.newton.terms import FACTS_OF_LOSS, TERMS
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import dense
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.clients.nodes import nap
from flwr_fco.server.clients.remembering import Remembering
from flwr_fco.server.parts import Host, Key, Part, array_of, saved_keys
from flwr_fco.server.replies.checks import LeftOut, Round
from flwr_fco.server.replies.metrics import others_than_most
from flwr_fco.wire.protocol import Node, Uplink


class Everyone(Part):
    """Asks all clients in every round, and skips a round if one of them is missing.

    Clients may join between rounds: they start with a memory of zeros, which changes no weighted sum.

    Parameters
    ----------
    name : str
        Name of the strategy, for messages.
    remembering : Remembering or None
        For clients that remember something: it knows who takes part.
    patience : flwr_fco.strategies.Everyone
        How long the server waits for a client, and what happens then.
    """

    def __init__(self, name: str, remembering: Remembering | None, patience: choices.Everyone) -> None:
        self._name, self._remembering, self.patience = name, remembering, patience
        self.forget()

    def forget(self) -> None:
        #: Rounds in a row in which a client was missing.
        self._failures: dict[Key, int] = {}
        self._evicted: set[Key] = set()
        self.absent: set[Key] = set()
        #: Who was asked last, if clients remember nothing.
        self._asked: set[Key] = set()

    @property
    def present(self) -> AbstractSet[Key]:
        """Keys of the clients that were there in the last round."""
        return self._asked if self._remembering is None else self._remembering.memories.present

    def nodes_needed(self, minimum: int) -> int:
        """Return the number of nodes for the first round; later rounds wait for the nodes that were there before."""
        return 1 if self.present else minimum

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return all clients that have not been given up, or none if one of them does not return."""
        self.absent = self._wait_for_members(host)
        if self.absent:
            log(WARNING, "Round %s is skipped: %s of the clients are gone", host.problem.round, len(self.absent))
            return []
        asked = [node for node in host.nodes.ordered if node.key not in self._evicted]
        # With nobody, a round in which one is missing is skipped.
        self._asked = {node.key for node in asked} or self._asked
        return asked

    def _wait_for_members(self, host: Host) -> set[Key]:
        """Return the keys of known clients that are not connected, once there is no more time to wait."""
        deadline = time.monotonic() + self.patience.node_timeout
        while True:
            absent = set(self.present - {node.key for node in host.nodes.ordered})
            if not absent or time.monotonic() >= deadline:
                return absent
            log(INFO, "Waiting for %s clients that were here before", len(absent))
            nap(deadline)
            host.refresh_nodes()

    def metrics_of_absence(self) -> dict[str, float | int] | None:
        """Return the metrics of a round that asked no client because one is absent; None if none is absent."""
        if not self.absent:
            return None
        left_out = len(self.present)
        return {"num-replies": 0, "num-left-out": left_out, "skipped": 1, "bytes-down": 0, "bytes-up": 0}

    def end_round(self, host: Host) -> None:
        """Count the rounds in a row in which each client was missing, and give up clients with too many.

        Raises
        ------
        ConfigurationError
            If a client was missing `evict_after` times and ``on_missing="error"``.
        """
        current = host.current
        silent = {node.key for node_id, node in current.nodes.items() if node_id not in current.answered}
        missing = silent | self.absent
        self._failures = {key: self._failures.get(key, 0) + 1 for key in missing}
        if missing:
            text = (
                "%s gave no good answer in round %s; rounds in a row without one: %s, evict_after=%s (on_missing=%r). "
                "A SuperNode that has died can be started again with its key about a minute later"
            )
            most, patience = max(self._failures.values()), self.patience
            log(WARNING, text, _names(missing), current.number, most, patience.evict_after, patience.on_missing)
        self._give_up(host, {key for key, count in self._failures.items() if count >= self.patience.evict_after})

    def _give_up(self, host: Host, gone: set[Key]) -> None:
        """Continue without clients, or end the run."""
        if not gone:
            return
        names = _names(gone)
        if self.patience.on_missing == "error":
            raise ConfigurationError(
                f"{names} did not give a good answer in {self.patience.evict_after} rounds in a row, and {self._name} "
                f"needs every client{_why(host, gone)}. Mend it, wait longer (timeout, node_timeout, evict_after), or "
                'give on_missing="reset" to go on without it'
            )
        self._evicted |= gone
        self._failures.clear()
        self.absent = set()
        rest, least = len(self.present - gone), self.patience.min_replies
        if rest < least:
            raise ConfigurationError(
                f"{names} was given up, and {rest} clients are left to go on with{_why(host, gone)}; expected at least "
                f"min_replies={least}. Mend them, or wait longer (timeout, node_timeout, evict_after)"
            )
        if self._remembering is not None:
            self._remembering.drop(host, gone, f"{names} is given up")
            return
        log(WARNING, "%s is given up: the run goes on without them", names)
        self._asked -= gone

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the clients that have been given up, and the counts of missed rounds."""
        failed = sorted(self._failures)
        failures = np.array([self._failures[key] for key in failed], dtype=np.int64)
        who = {"evicted": self._evicted, "failed": failed, "present": self._asked}
        return {"failures": failures, **{name: array_of(keys) for name, keys in who.items()}}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        failed, evicted, asked = (saved_keys(arrays, name) for name in ("failed", "evicted", "present"))
        failures = saved_array(arrays, "failures", np.int64, (len(failed),), smallest=0)
        self._failures, self._evicted = dict(zip(failed, failures.tolist(), strict=True)), set(evicted)
        self._asked = set(asked)


def _names(keys: set[Key]) -> str:
    return ", ".join(f"partition {key[1]}" if key[0] == 0 else f"node {key[1]}" for key in sorted(keys))


def _why(host: Host, keys: set[Key]) -> str:
    """Return why the last answer of one of these clients was left out, if there was one."""
    reasons = [row.reason for row in host.current.left_out if (0, row.partition_id) in keys]
    return f" (its last answer: {reasons[-1].partition(chr(10))[0][:200]})" if reasons else ""


class CappedMinimisations(Part):
    """Logs and counts the clients that hit `max_iterations`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._capped: int | None = None

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Forget the count of the last round: this one may be skipped."""
        self.forget()
        return nodes

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Log clients that hit `max_iterations`."""
        capped = [uplink for uplink in uplinks if uplink.metrics.get("capped", 0.0) > 0.0]
        if any("capped" in uplink.metrics for uplink in uplinks):
            self._capped = len(capped)
        if capped:
            text = "Round %s: %s of %s clients stopped before their stopping rule was met, the first is %s"
            log(WARNING, text, host.current.number, len(capped), len(uplinks), capped[0].node)

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return the number of clients that stopped too early; nothing for a round that was skipped."""
        return {} if self._capped is None else {"num-capped": self._capped}


class OtherLosses(Part):
    """Names the clients whose losses are of another kind than most clients': there is no duality gap of both.

    Their sums count, for the objective is the mean of all losses; the run ends at a residual.
    """

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Report them in the round in which clients say what never changes."""
        # The one exchange of an inference asks for nothing that never changes.
        if getattr(before, "population", 0.0) >= 0.0:
            return
        said = [dict(zip(TERMS, dense(uplink.vectors["terms"]).tolist(), strict=True)) for uplink in uplinks]
        for i, reason in others_than_most(said, FACTS_OF_LOSS).items():
            _report(host.current, uplinks[i], f"{reason}: no duality gap bounds the objective; its sums count")


def _report(current: Round, uplink: Uplink, reason: str) -> None:
    """Log what a client leaves undone, and add a row to the table of what was left out."""
    log(WARNING, "Round %s: %s: %s", current.number, uplink.node, reason)
    current.left_out.append(LeftOut(current.number, *(uplink.node or Node(-1, None)), reason))
