"""Who is there: clients that are asked in vain, and methods that need every client in every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from logging import INFO, WARNING
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import choices
from flwr_fco.core.logs import log
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.clients.nodes import nap
from flwr_fco.server.parts import Host, Part
from flwr_fco.wire.protocol import Node, Uplink

Key = tuple[int, int]


class Absences:
    """Counts, for each client, the rounds in a row in which it was asked and no answer of it counted.

    What such a client remembers would stay in the sums of all clients for ever, whatever it is. Rounds that do not
    count are not counted: then nothing was said about who is there.

    Parameters
    ----------
    patience : int
        Number of rounds in a row after which a client has left; it is asked on, and is back with its next answer.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round."""
        self._missed: dict[Key, int] = {}
        #: Keys of the clients that count as having left.
        self.left: set[Key] = set()

    def count(self, host: Host, uplinks: Sequence[Uplink], weighted: Callable[[Key], bool] | None = None) -> set[Key]:
        """Count a round, and return the keys of the clients that count as having left from now on.

        Parameters
        ----------
        host : Host
            The run.
        uplinks : sequence of Uplink
            The replies that have counted.
        weighted : callable, optional
            Whether answers of a client can count at all.
        """
        current = host.current
        if current.number < 1:
            return set()
        here = {uplink.node.key for uplink in uplinks if uplink.node is not None}
        for key in here & self._missed.keys():
            del self._missed[key]
        self.left -= here
        gone = set()
        for node in current.nodes.values():
            if node.key in here or (weighted is not None and not weighted(node.key)):
                continue
            self._missed[node.key] = missed = self._missed.get(node.key, 0) + 1
            if missed >= self.patience and node.key not in self.left:
                gone.add(node.key)
                text = "%s was asked in %s rounds in a row without an answer that counts: what it remembers is dropped"
                log(WARNING, text, node, missed)
        self.left |= gone
        return gone

    def there(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes of clients that have not left.

        Parameters
        ----------
        nodes : sequence of Node
            All connected nodes.
        """
        return [node for node in nodes if node.key not in self.left] if self.left else nodes

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the counts of missed rounds."""
        keys = sorted(self._missed)
        return {
            "missing": np.array(keys, dtype=np.uint64).reshape(-1, 2),
            "missed": np.array([self._missed[key] for key in keys], dtype=np.int64),
            "left": np.array([key in self.left for key in keys], dtype=np.bool_),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        rows = saved_array(arrays, "missing", np.uint64, (None, 2))
        keys = [(row[0], row[1]) for row in rows.tolist()]
        missed = saved_array(arrays, "missed", np.int64, (len(keys),), smallest=1)
        left = saved_array(arrays, "left", np.bool_, (len(keys),))
        self._missed = dict(zip(keys, missed.tolist(), strict=True))
        self.left = {key for key, gone in zip(keys, left.tolist(), strict=True) if gone}


class Roster(Protocol):
    """Who takes part in a run."""

    @property
    def present(self) -> AbstractSet[Key]:
        """Keys of the clients that were there in the last round."""

    def drop(self, host: Host, gone: AbstractSet[Key], reason: str) -> None:
        """Go on without some of them."""


class Attendance(Part):
    """The roster of a method whose clients remember nothing: the clients of the last round."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.present: set[Key] = set()

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Record who is asked; with nobody, a round in which one is missing is skipped."""
        self.present = {node.key for node in nodes} or self.present
        return nodes

    def drop(self, host: Host, gone: AbstractSet[Key], reason: str) -> None:
        """Go on without some clients."""
        log(WARNING, "%s: the run goes on without them", reason)
        self.present -= gone

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return who is there."""
        return {"present": np.array(sorted(self.present), dtype=np.uint64).reshape(-1, 2)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        rows = saved_array(arrays, "present", np.uint64, (None, 2))
        self.present = {(row[0], row[1]) for row in rows.tolist()}


class Everyone(Part):
    """Asks all clients in every round, and skips a round if one of them is missing.

    Clients may join between rounds: they start with a memory of zeros, which changes no weighted sum.

    Parameters
    ----------
    name : str
        Name of the strategy, for messages.
    roster : Roster
        Who takes part.
    patience : flwr_fco.strategies.Everyone
        How long the server waits for a client, and what happens then.
    """

    def __init__(self, name: str, roster: Roster, patience: choices.Everyone) -> None:
        self._name, self._roster, self.patience = name, roster, patience
        self.forget()

    def forget(self) -> None:
        #: Rounds in a row in which a client was missing.
        self._failures: dict[Key, int] = {}
        self._evicted: set[Key] = set()
        self.absent: set[Key] = set()

    def nodes_needed(self, minimum: int) -> int:
        """Return the number of nodes for the first round; later rounds wait for the nodes that were there before."""
        return 1 if self._roster.present else minimum

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return all clients that have not been given up, or none if one of them does not return."""
        self.absent = self._wait_for_members(host)
        if self.absent:
            log(WARNING, "Round %s is skipped: %s of the clients are gone", host.problem.round, len(self.absent))
            return []
        return [node for node in host.nodes.ordered if node.key not in self._evicted]

    def _wait_for_members(self, host: Host) -> set[Key]:
        """Return the keys of known clients that are not connected, once there is no more time to wait."""
        deadline = time.monotonic() + self.patience.node_timeout
        while True:
            absent = set(self._roster.present) - {node.key for node in host.nodes.ordered}
            if not absent or time.monotonic() >= deadline:
                return absent
            log(INFO, "Waiting for %s clients that were here before", len(absent))
            nap(deadline)
            host.refresh_nodes()

    def metrics_of_absence(self) -> dict[str, float | int] | None:
        """Return the metrics of a round that asked no client because one is absent; None if none is absent."""
        if not self.absent:
            return None
        return {
            "num-replies": 0,
            "num-left-out": len(self._roster.present),
            "skipped": 1,
            "bytes-down": 0,
            "bytes-up": 0,
        }

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
            log(
                WARNING,
                "%s gave no good answer in round %s; rounds in a row without one: %s, evict_after=%s (on_missing=%r). "
                "A SuperNode that has died can be started again with its key about a minute later",
                _names(missing),
                current.number,
                max(self._failures.values()),
                self.patience.evict_after,
                self.patience.on_missing,
            )
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
        rest, least = len(self._roster.present - gone), self.patience.min_replies
        if rest < least:
            raise ConfigurationError(
                f"{names} was given up, and {rest} clients are left to go on with{_why(host, gone)}; expected at least "
                f"min_replies={least}. Mend them, or wait longer (timeout, node_timeout, evict_after)"
            )
        self._roster.drop(host, gone, f"{names} is given up")

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the clients that have been given up, and the counts of missed rounds."""
        failed = sorted(self._failures)
        return {
            "evicted": np.array(sorted(self._evicted), dtype=np.uint64).reshape(-1, 2),
            "failed": np.array(failed, dtype=np.uint64).reshape(-1, 2),
            "failures": np.array([self._failures[key] for key in failed], dtype=np.int64),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        evicted, failed = (saved_array(arrays, name, np.uint64, (None, 2)) for name in ("evicted", "failed"))
        failures = saved_array(arrays, "failures", np.int64, (len(failed),), smallest=0)
        self._evicted = {(row[0], row[1]) for row in evicted.tolist()}
        self._failures = {(row[0], row[1]): int(count) for row, count in zip(failed.tolist(), failures, strict=True)}


def _names(keys: set[Key]) -> str:
    return ", ".join(f"partition {key[1]}" if key[0] == 0 else f"node {key[1]}" for key in sorted(keys))


def _why(host: Host, keys: set[Key]) -> str:
    """Return why the last answer of one of these clients was left out, if there was one."""
    reasons = [row.reason for row in host.current.left_out if (0, row.partition_id) in keys]
    return f" (its last answer: {reasons[-1].partition(chr(10))[0][:200]})" if reasons else ""
