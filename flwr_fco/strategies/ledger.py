"""The server's copy of what every client remembers: a lost reply, or a client that restarts, corrupts nothing.

A memory is named by the digest and the round of the reply that it follows from, and by a check sum of its own. A task's
stamp says which one counts; a client that does not have it says so, and is sent the ledger's. What a round does to a
memory is the method's ``remember``, called by the client and here, with the same bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Change
from flwr_fco.algorithms.contract.replies import weighted_sum
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import SparseVector, Vector
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages.protocol import Downlink, Node, Uplink
from flwr_fco.messages.records import stamp_of

#: Replies of a client that are known again.
_SENT = 16
#: A client from round to round: :attr:`Node.key`.
Key = tuple[int, int]


class Member(NamedTuple):
    """A client: the weight of its first reply, what names its memory, and the memory.

    `sent` has the digests of the last replies that counted, also of one that has left.
    """

    examples: float | None = None
    digest: str = ""
    memory: Mapping[str, Any] | None = None
    sent: tuple[str, ...] = ()


_NOBODY = Member()
_MORE = "; set TMPDIR to one on a larger disk, or give more memory: client_state=Ledger(max_bytes=...)"


class Ledger:
    """The clients' memories and weights; methods see it as ``problem.memories``.

    Parameters
    ----------
    names : tuple of str
        Of the vectors that a client remembers.
    uniform : bool
        Whether all clients have the same weight.
    size : int
        Number of the model's entries.
    max_bytes : int
        Size above which memories lie in a temporary file that is mapped into memory.

    Attributes
    ----------
    members : dict of (int, int) to Member
        Clients seen so far.
    present : set of (int, int)
        Clients that the method's sums are over.
    missed : dict of (int, int) to int
        Rounds in a row in which a client was asked in vain.
    """

    saved = ("members", "present", "missed")

    def __init__(self, names: tuple[str, ...], uniform: bool, size: int, max_bytes: int) -> None:
        self.names = names
        self.uniform = uniform
        self.size = size
        self.max_bytes = max_bytes
        self.members: dict[Key, Member] = {}
        self.present: set[Key] = set()
        self.missed: dict[Key, int] = {}
        self._file: Rows | None = None

    def member(self, key: Key) -> Member:
        """Return what is known of a client."""
        return self.members.get(key, _NOBODY)

    # --- what methods ask -----------------------------------------------------------------------------------------

    def memory(self, key: Key) -> Mapping[str, Any]:
        """Return a client's memory, zeros before its first round."""
        held = self.member(key).memory
        return {name: np.zeros(self.size) for name in self.names} if held is None else held

    def weight_of(self, uplink: Uplink) -> float:
        """Return the weight of a reply in sums."""
        return 1.0 if self.uniform else uplink.examples

    def population(self, uplinks: Sequence[Uplink] = ()) -> float:
        """Return the weight of all clients; one without a reply yet counts as the mean of the others."""
        replied = {up.node.key: self.weight_of(up) for up in uplinks if up.node is not None}
        everyone = self.present | replied.keys()
        members = {key: member.examples for key, member in self.members.items() if key in everyone}
        by_key = (dict.fromkeys(members, 1.0) if self.uniform else members) | replied
        weights = [weight for weight in by_key.values() if weight is not None]
        rest = len(everyone) - len(weights)
        return float(sum(weights)) + float(np.mean(weights)) * rest if weights else float(len(everyone))

    def means(self) -> dict[str, Vector]:
        """Return the weighted means of the memories of those who are there."""
        total = self.population()
        here = [self.members[key] for key in sorted(self.members.keys() & self.present)]
        held = [(1.0 if self.uniform else own.examples or 0.0, own.memory) for own in here if own.memory]
        each = {name: [(weight / total, memory[name]) for weight, memory in held] for name in self.names}
        return {name: weighted_sum(pairs, (self.size,)) for name, pairs in each.items()}

    # --- a round --------------------------------------------------------------------------------------------------

    def notice(self, nodes: Iterable[Node], patience: int) -> Change | None:
        """Take note of who is there; return the change of the method's sums, if somebody has come or gone.

        What they remember is dropped who were asked in vain in so many rounds in a row.
        """
        before = self.present
        self.present = {node.key for node in self.there(nodes, patience)}
        if silent := {key for key in before - self.present if self.missed.get(key, 0) >= patience}:
            text = "%s gave no good reply in %s rounds in a row: what they remember is dropped"
            logger.warning(text, named(silent), patience)
            self.members |= {key: self.member(key)._replace(digest="", memory=None) for key in silent}
        if before == self.present:
            return None
        return Change(self.means() if self.members else None, self.population())

    def note_weights(self, uplinks: Sequence[Uplink]) -> None:
        """Keep the weights of clients that remember nothing."""
        for up in uplinks:
            if up.node is not None:
                self.members.setdefault(up.node.key, Member(up.examples))

    def commit(self, method: Algorithm, number: int, message: Downlink, uplinks: Sequence[Uplink]) -> None:
        """Move the memories of those whose replies count.

        Parameters
        ----------
        method : Algorithm
            The method.
        number : int
            The round.
        message : Downlink
            Its whole message.
        uplinks : sequence of Uplink
            The replies.
        """
        for up in uplinks:
            assert up.node is not None
            key = up.node.key
            member = self.member(key)
            after = method.remembered(message, member.memory, up)
            sent = (*member.sent[1 - _SENT :], up.digest)
            stamp = stamp_of(up.digest, number, after)
            self.members[key] = Member(up.examples, stamp, self._kept(key, after), sent)
            # One that counted as having left, and is in the sums again.
            self.present.add(key)

    def _kept(self, key: Key, memory: dict[str, Any]) -> dict[str, Any]:
        """Return a memory as it is held: in memory, or in the file."""
        if self._file is None:
            if 8 * self.size * len(self.names) * len(self.members) <= self.max_bytes:
                return memory
            text = "the memories of %s clients lie in a temporary file, as they take more than %.0f MiB"
            logger.info(text, len(self.members), self.max_bytes / 2**20)
            self._file = Rows(self.size)
        if any(isinstance(vector, SparseVector) for vector in memory.values()):
            return memory
        # Copies: a vector may be a row that another one of the client is about to take.
        copies = {name: np.array(vector) for name, vector in memory.items()}
        return {name: self._file.put((key, name), vector) for name, vector in copies.items()}

    def miss(self, asked: Iterable[Key], uplinks: Sequence[Uplink]) -> None:
        """Count in how many rounds in a row clients were asked in vain.

        Parameters
        ----------
        asked : iterable of (int, int)
            In this round.
        uplinks : sequence of Uplink
            The replies that count.
        """
        here = {up.node.key for up in uplinks if up.node is not None}
        again = {key: self.missed.get(key, 0) + 1 for key in asked}
        self.missed = {key: count for key, count in (self.missed | again).items() if key not in here}

    def there(self, nodes: Iterable[Node], patience: int) -> list[Node]:
        """Return the nodes but for those that count as having left."""
        return [node for node in nodes if not self.missed or self.missed.get(node.key, 0) < patience]

    def restart(self) -> None:
        """Drop all memories, as for a new stage: every client begins again, and may send what it sent as it began."""
        logger.warning("a new stage: all clients' memories restart")
        self.members = {key: Member(member.examples) for key, member in self.members.items()}


class Rows:
    """Vectors in a temporary file that is mapped into memory; the file goes with the last of them.

    Parameters
    ----------
    size : int
        Of a vector.
    """

    def __init__(self, size: int) -> None:
        # Open as long as the ledger: the system removes it then.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._size = size
        self._numbers: dict[tuple[Key, str], int] = {}
        self._rows: Any = ()

    def put(self, name: tuple[Key, str], vector: Vector) -> Vector:
        """Write a vector into its row, over the one before; return a read-only view of it."""
        number = self._numbers.setdefault(name, len(self._numbers))
        # Not into the map: where a full disk has no place, that is no error, but ends the process.
        with in_words(f"the clients' memories do not fit into {tempfile.gettempdir()}", ConfigurationError, _MORE):
            if number >= len(self._rows):
                # Each map is an open file: there are few, as each has twice as many rows.
                count = 2 * number + 64
                self._file.truncate(8 * self._size * count)
                self._rows = np.memmap(self._file, np.float64, "r", shape=(count, self._size))
            self._file.seek(8 * self._size * number)
            self._file.write(vector.data)
            self._file.flush()
        row: Vector = self._rows[number]
        return row


def named(keys: Iterable[Key]) -> str:
    """Return clients in words."""
    words = [f"partition {number}" if kind == 0 else f"node {number}" for kind, number in sorted(keys)]
    return ", ".join(words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")
