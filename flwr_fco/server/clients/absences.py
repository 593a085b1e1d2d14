"""Clients that are asked in vain: after some rounds in a row they count as clients that have left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.logs import log
from flwr_fco.core.validation import saved_array
from flwr_fco.server.parts import Host
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
