"""The server's record of clients with a memory: their identities, last accepted rounds, and memories.

A client's memory is a function of the uplinks that the server has seen, so the server can keep a copy
(``client_state="ledger"``) and send it to a node that has lost its own, at no cost in other rounds. Without copies
(``client_state="reset"``), a loss starts a new epoch, in which all clients start from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from logging import INFO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Change
from flwr_fco.algorithms.contract.choices import Ledger
from flwr_fco.core.layout import Vector, euclidean_norm
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import SparseVector, add_to
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.server.clients.nodes import Numbered
from flwr_fco.server.parts import Key, array_of, saved_keys
from flwr_fco.wire.protocol import ClientStamp, ClientState, Node, Uplink

#: The first part of the key of a node without a partition; see :attr:`Node.key`.
_WITHOUT_PARTITION = 1
#: Suffixes after the name of sparse memories in a file: all coordinates, and the end of each client's.
_PLACES, _ENDS = "-places", "-ends"
#: Whole numbers of a member, which are saved as they are, and their smallest values.
_COUNTS = {"accepted": -1, "counted": 0, "altered": -1}

#: ``(memory, uplink, begins) -> memory``: a client's memory after a round that counted, in the client's own arithmetic;
#: `begins`: whether it had none before.
Remembered = Callable[[ClientState, Uplink, bool], ClientState]


class Said(NamedTuple):
    """What an answer implies of a client's loss.

    Parameters
    ----------
    length : float
        Of its gradient.
    product : float
        Inner product of the changes of point and gradient since the last answer, less what the convexity that the
        method needs makes of it: of an honest client, 0 or more.
    most : float
        Product of their lengths.
    """

    length: float
    product: float = 0.0
    most: float = 0.0


@dataclass
class Member:
    """A client in the server's record.

    Parameters
    ----------
    examples : float or None
        Its weight in the invariants: the number in its first answer that counted; None before that.
    accepted : int
        Last round of this epoch in which its reply counted; -1 if there is none.
    digest : str
        Digest of the uplink that counted then, as received by the server.
    counted : int
        Number of its replies that have counted in this epoch.
    altered : int
        Last epoch in which the first reply that counted was not the one that the client had sent; -1 if none.
    memory : dict of str to ndarray of float64, shape (d,), or SparseVector; or None
        The ledger's copy of its memory; None stands for zeros.
    first : float
        Length of the first gradient that its answers have implied; 0 if there is none.
    product, most : float
        Sums of what its answers have implied; see :class:`Said`.
    left : bool
        Whether it was asked in vain so often that it counts as having left.
    """

    examples: float | None = None
    accepted: int = -1
    digest: str = ""
    counted: int = 0
    altered: int = -1
    memory: dict[str, Any] | None = None
    first: float = 0.0
    product: float = 0.0
    most: float = 0.0
    left: bool = False

    def begin_anew(self) -> None:
        """Void its memory: its next answer is its first one."""
        self.accepted, self.digest, self.counted, self.memory = -1, "", 0, None

    def note(self, said: Said) -> None:
        """Note what an answer that counted implies.

        Parameters
        ----------
        said : Said
            What it implies.
        """
        self.first = self.first or said.length
        self.product += said.product
        self.most += said.most


class Partitions(Set[Key]):
    """The keys of nodes with the partitions 0, 1, 2, ...

    Parameters
    ----------
    number : int
        Number of keys.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def _from_iterable(cls, keys: Iterable[Any]) -> Any:
        return set(keys)

    def __contains__(self, key: object) -> bool:
        """Whether this is one of the keys."""
        return isinstance(key, tuple) and key[0] != _WITHOUT_PARTITION and 0 <= key[1] < self.number

    def __iter__(self) -> Iterator[Key]:
        """Return the keys in order."""
        return ((0, partition) for partition in range(self.number))

    def __len__(self) -> int:
        """Return the number of keys."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Whether these are the same keys."""
        return self.number == other.number if isinstance(other, Partitions) else super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


_LIMITS = {"ledger": math.inf, "reset": -math.inf}


class ClientMemories:
    """The server's record of the clients' memories.

    Parameters
    ----------
    names : tuple of str
        Names of the vectors that the ledger keeps for each client; all start at zero.
    client_state : {"ledger", "reset"} or Ledger
        Whether the server keeps a copy of the memories; :class:`flwr_fco.strategies.Ledger` if it fits.
    weighting : {"examples", "uniform"} or mapping of int to float
        The clients' weights; a mapping has the user's, by partition.
    may_be_sparse : bool, default False
        Whether memories may be sparse: a ledger is then started in any case, and given up if it does not fit.

    Attributes
    ----------
    members : dict of (int, int) to Member
        The clients, by :attr:`Node.key`.
    present : set or Partitions of (int, int)
        Keys of the connected clients.
    epoch : int
        Current epoch; memories of other epochs are void.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        client_state: str | Ledger,
        weighting: str | Mapping[int, float],
        may_be_sparse: bool = False,
    ) -> None:
        self.names, self.weighting, self.may_be_sparse = names, weighting, may_be_sparse
        self.client_state = client_state
        #: The user's weights of the clients, by partition.
        self.client_weights = weighting if isinstance(weighting, Mapping) else None
        #: The most bytes of a ledger.
        self._limit = client_state.max_bytes if isinstance(client_state, Ledger) else _LIMITS[client_state]
        self.forget(0)

    def forget(self, size: int) -> None:
        """Return to the state before the first round.

        Parameters
        ----------
        size : int
            Length d of the model's flat vector.
        """
        self.size = size
        self.members: dict[Key, Member] = {}
        self.present: Set[Key] = set()
        self.epoch = 0
        self._keeps_ledger: bool | None = None
        self._lost = False

    # --- members ----------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> bool:
        """Whether the server keeps copies of the clients' memories."""
        return bool(self._keeps_ledger)

    def member(self, node: Node) -> Member:
        """Return the record of a client."""
        return self.members.setdefault(node.key, Member())

    def memory(self, key: Key) -> dict[str, Any]:
        """Return a client's memory from the ledger."""
        member = self.members.get(key)
        if member is None or member.memory is None:
            return {name: np.zeros(self.size) for name in self.names}
        return member.memory

    def weight_of(self, uplink: Uplink) -> float:
        """Return a client's weight in the invariants: its first reported number of examples, or 1."""
        return 1.0 if self.weighting == "uniform" else uplink.examples

    def check_weight(self, node: Node, examples: float) -> None:
        """Reject an answer whose number of examples is missing, or differs from the client's first one that counted.

        The weighted sums of the memories hold only for the weights used in the sums.

        Parameters
        ----------
        node : Node
            The node that answered.
        examples : float
            The reported number of examples.

        Raises
        ------
        ProtocolError
            If the number differs.
        """
        if self.weighting == "uniform":
            return
        first = self.member(node).examples
        if examples <= 0.0:
            raise ProtocolError(f"it reports {examples:g} examples, and what it remembers has a weight")
        if first is not None and first != examples:
            raise ProtocolError(
                f"it reports {examples:g} examples, in its first answer that counted it was {first:g}; what clients "
                "remember keeps its weight (weighting={partition: weight} would prescribe it)"
            )

    def population(self, uplinks: Sequence[Uplink] = ()) -> float:
        """Return the total weight of all current clients; a client that never answered counts as the mean.

        With user-defined weights nothing is guessed: clients without a weight never count.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Answers that are about to count.
        """
        keys = [(2, i) if uplink.node is None else uplink.node.key for i, uplink in enumerate(uplinks)]
        unnamed = sum(uplink.node is None for uplink in uplinks)
        new = {key for key in keys if key[0] < 2 and key not in self.present}
        count = len(self.present) + len(new)
        if self.client_weights is not None:
            return sum(self._given_weights(self.present, new)) or float(count)
        if self.weighting == "uniform":
            return float(max(count, len(uplinks)))
        # Iterates over the clients seen so far, because there may be a million.
        by_key = {key: member.examples for key, member in self.members.items() if key in new or key in self.present}
        by_key.update(zip(keys, map(self.weight_of, uplinks), strict=True))
        weights = [weight for weight in by_key.values() if weight is not None]
        if not weights:
            return float(count)
        return float(sum(weights)) + float(np.mean(weights)) * (count + unnamed - len(weights))

    def everybody(self, uplinks: Sequence[Uplink]) -> bool:
        """Whether all current clients whose answers can count have answered."""
        here = sum(uplink.node is None or uplink.node.key in self.present for uplink in uplinks)
        return here >= len(self.present if self.client_weights is None else self._given_weights(self.present))

    def _given_weights(self, *clients: Set[Key]) -> list[float]:
        """Return the user's weights of clients, without clients that have none."""
        weights = self.client_weights or {}
        return [weights[who] for who in sorted(weights) if any((0, who) in some for some in clients)]

    def means(self) -> dict[str, Vector]:
        """Return the weighted means of the memories of the current clients (with a ledger)."""
        total, means = self.population(), {name: np.zeros(self.size) for name in self.names}
        seen = sorted(key for key in self.members if key in self.present)
        counts = [self.members[key].examples or 0.0 for key in seen]
        typical = float(np.mean([weight for weight in counts if weight > 0.0] or [1.0]))
        for key in seen:
            member = self.members[key]
            if member.memory is None:
                continue
            weight = 1.0 if self.weighting == "uniform" else member.examples
            share = (typical if weight is None else weight) / total
            for name in self.names:
                add_to(means[name], share, member.memory[name])
        return means

    # --- a round ----------------------------------------------------------------------------------------------

    def stamp(self, node: Node, *, restore: bool) -> ClientStamp:
        """Return a node's stamp, with its restored memory if needed.

        Parameters
        ----------
        node : Node
            A node that was asked.
        restore : bool
            Whether the client has lost its memory and gets it again, if there is a ledger.
        """
        member = self.member(node)
        memory = self.memory(node.key) if restore and member.accepted >= 0 and self.ledger else None
        return ClientStamp(self.epoch, member.accepted, memory, member.digest)

    def altered(self, node: Node) -> None:
        """Record that the accepted reply is not what a client has sent: its answers are altered in transit.

        A single case is an accident, which the ledger or a new epoch repairs. Without a ledger, two in succession show
        a permanent fault, with which every epoch would end at once.

        Raises
        ------
        ConfigurationError
            If there is no ledger, and the first answer of this client in the last epoch was altered as well.
        """
        member = self.member(node)
        if self.ledger or member.counted != 1:
            return
        if 0 <= member.altered == self.epoch - 1:
            raise ConfigurationError(
                f"the answers of {node} are altered on their way, again and again (by a mod that scales, clips or adds "
                'noise?), and client_state="reset" begins anew each time. With client_state="ledger" the server keeps '
                "what every client remembers, as it follows from the answers that arrive"
            )
        member.altered = self.epoch

    def lost(self, node: Node) -> bool:
        """Whether a node's lost memory can be restored; if not, a new epoch begins after the round."""
        self._lost = self._lost or not self.ledger
        return self.ledger

    def notice(self, nodes: Sequence[Node]) -> Change | None:
        """Record clients that have joined or left; return the resulting change for the strategy's state.

        Parameters
        ----------
        nodes : sequence of Node
            All connected nodes.
        """
        present: Set[Key] = Partitions(len(nodes)) if isinstance(nodes, Numbered) else {node.key for node in nodes}
        if isinstance(self.present, Partitions) and self.present == present and not self._lost:
            return None
        if self._keeps_ledger is None:
            size = 8 * len(present) * self.size * len(self.names)
            # For clients with sparse features this is known only after they have answered.
            self._keeps_ledger = size <= self._limit or (self.may_be_sparse and self._limit >= 0)
            most = "at most " if self.may_be_sparse else ""
            log(INFO, "The clients' memories: %s (%s%.1f MiB in a ledger)", self, most, size / 2**20)
        gone, self.present, changed = self.present - present, present, self.present != present
        self._evict()
        if (gone or self._lost) and not self.ledger:
            return self.new_epoch("a client has left" if gone else "a client has lost its state")
        if changed:
            return Change(None, self.means() if self.ledger and self.members else None, self.population())
        return None

    def _evict(self) -> None:
        """Forget absent members that cannot be recognised again: without a partition, their only key is the node id.

        A node that is absent for a while may return unchanged, so as many absent members are kept as there are nodes.
        """
        away = [key for key in self.members if key not in self.present and key[0] == _WITHOUT_PARTITION]
        away.sort(key=lambda key: self.members[key].accepted)
        for key in away[: max(0, len(away) - len(self.present))]:
            del self.members[key]

    def commit(self, number: int, uplinks: Sequence[Uplink], remembered: Remembered) -> Change | None:
        """Record the replies that have counted in a round and, in the ledger, the new memories of those clients.

        Parameters
        ----------
        number : int
            The round.
        uplinks : sequence of Uplink
            The uplinks that counted.
        remembered : callable
            See :data:`Remembered`.
        """
        for uplink in uplinks:
            assert uplink.node is not None
            key = uplink.node.key
            member = self.members.setdefault(key, Member())
            if self.ledger:
                member.memory = dict(remembered(self.memory(key), uplink, member.accepted < 0))
            if member.left:
                # Its answer is already part of the state.
                self.present, member.left = {*self.present, key}, False
            member.examples = uplink.examples
            member.accepted, member.digest = number, uplink.digest
            member.counted += 1
        self._keep_within_limits()
        return self.new_epoch("a client has lost its state") if self._lost else None

    def weighted(self, key: Key) -> bool:
        """Whether a client's answers can count: with the user's weights only if it has one."""
        weights = self.client_weights
        return weights is None or (key[0] != _WITHOUT_PARTITION and key[1] in weights)

    def drop(self, keys: Set[Key]) -> Change | None:
        """Go on without clients that are asked in vain: they come back as clients that begin.

        Parameters
        ----------
        keys : set of (int, int)
            Their keys.
        """
        if not keys:
            return None
        self.present = set(self.present - keys)
        for key in keys:
            member = self.members.setdefault(key, Member())
            member.begin_anew()
            member.left = True
        if not self.ledger:
            return self.new_epoch("clients were asked in vain")
        return Change(None, self.means(), self.population())

    def _keep_within_limits(self) -> None:
        """Drop what departed clients remember if the ledger becomes too large, then the ledger itself."""
        dense = 8 * self.size * len(self.names)
        if not self.ledger or len(self.members) * dense <= self._limit:
            return
        held = {key: _bytes_of(member.memory) for key, member in self.members.items() if member.memory}
        total = sum(held.values())
        for key in sorted(held.keys() - self.present, key=lambda key: self.members[key].accepted):
            if total <= self._limit:
                break
            total -= held.pop(key)
            self.members[key].begin_anew()
        # A single client that claims all features does not represent the others.
        sizes = sorted(held.values())
        usual = sizes[(len(sizes) - 1) // 2] if sizes else 0
        if max(total, usual * len(self.present)) > self._limit:
            self._keeps_ledger = False
            for member in self.members.values():
                member.memory = None
            log(INFO, "The clients' memories: reset, for a ledger would take more than %s bytes", self._limit)

    def new_epoch(self, reason: str) -> Change:
        """Void all clients' memories, without a separate message."""
        self.epoch += 1
        self._lost = False
        for member in self.members.values():
            member.begin_anew()
        return Change(reason, {name: np.zeros(self.size) for name in self.names}, self.population())

    # --- saving and description --------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the members: keys, weights, accepted rounds and, with a ledger, memories."""
        members = [self.members[key] for key in sorted(self.members)]
        arrays: dict[str, NDArray[Any]] = {
            "epoch": np.array(self.epoch),
            "lost": np.array(self._lost),
            "ledger": np.array(-1 if self._keeps_ledger is None else int(self._keeps_ledger)),
            "members": array_of(self.members),
            "present": array_of(self.present),
            "digests": np.array([member.digest for member in members], dtype="U32"),
            "examples": np.array([np.nan if m.examples is None else m.examples for m in members]),
            "firsts": np.array([[m.first, m.product, m.most] for m in members], dtype=np.float64).reshape(-1, 3),
            **{name: np.array([getattr(m, name) for m in members], dtype=np.int64) for name in _COUNTS},
        }
        for name in self.names if self.ledger and members else ():
            arrays.update(_saved_rows(f"memory-{name}", [(m.memory or {}).get(name) for m in members], self.size))
        return arrays

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        epoch = int(saved_array(arrays, "epoch", np.int64, (), smallest=0))
        ledger = int(saved_array(arrays, "ledger", np.int64, (), smallest=-1))
        present, keys = saved_keys(arrays, "present"), saved_keys(arrays, "members")
        count = len(keys)
        counts = {n: saved_array(arrays, n, np.int64, (count,), smallest=least) for n, least in _COUNTS.items()}
        digests, examples = arrays["digests"], arrays["examples"]
        firsts = saved_array(arrays, "firsts", np.float64, (count, 3))
        if digests.dtype.kind != "U" or digests.shape != (count,):
            raise ValueError(f"its digests are {digests.dtype}{list(digests.shape)}")
        # NaN stands for a client that has not reported anything yet.
        saved_array({"examples": np.nan_to_num(examples)}, "examples", np.float64, (count,), smallest=0)
        if np.isinf(examples).any():
            raise ValueError("its examples hold infinite values")
        wanted = {f"memory-{name}" for name in self.names} if ledger == 1 and count else set()
        allowed = wanted | {name + end for name in wanted for end in (_PLACES, _ENDS)}
        if not wanted <= {name for name in arrays if name.startswith("memory-")} <= allowed:
            raise ValueError(f"its memories are not {sorted(wanted)}")
        rows = {name: _rows_of(arrays, f"memory-{name}", count, self.size) for name in self.names if wanted}
        lost = bool(saved_array(arrays, "lost", np.bool_, ()))
        self.epoch, self._lost, self._keeps_ledger = epoch, lost, None if ledger < 0 else bool(ledger)
        self.members, self.present = {}, set(present)
        for i, (key, own, said) in enumerate(zip(keys, examples.tolist(), firsts.tolist(), strict=True)):
            memory = {name: vectors[i] for name, vectors in rows.items()} or None
            first = None if math.isnan(own) else own
            member = self.members[key] = Member(first, digest=str(digests[i]), memory=memory)
            member.first, member.product, member.most = said
            for name, numbers in counts.items():
                setattr(member, name, int(numbers[i]))

    def __str__(self) -> str:
        if self._keeps_ledger is None and isinstance(self.client_state, Ledger):
            return f"ledger up to {self._limit / 2**20:.0f} MiB, else reset"
        return "ledger" if self.ledger or self.client_state == "ledger" else "reset"


def length_of(vector: Any) -> float:
    """Return the Euclidean norm of a vector that a client remembers, sparse or not."""
    return euclidean_norm(vector.values if isinstance(vector, SparseVector) else vector)


def _bytes_of(memory: ClientState) -> int:
    rows = (row.parts if isinstance(row, SparseVector) else [row] for row in memory.values())
    return sum(part.nbytes for parts in rows for part in parts)


def _saved_rows(name: str, rows: Sequence[Any], size: int) -> dict[str, NDArray[Any]]:
    """Return vectors, with None for zeros, as the arrays of a file: sparse if any of them is."""
    if not any(isinstance(row, SparseVector) for row in rows):
        return {name: np.array([np.zeros(size) if row is None else row for row in rows])}
    nothing, everywhere = (np.zeros(0), np.zeros(0, dtype=np.int32)), np.arange(size, dtype=np.int32)
    parts = [nothing if r is None else r.parts if isinstance(r, SparseVector) else (r, everywhere) for r in rows]
    return {
        name: np.concatenate([values for values, _ in parts]),
        name + _PLACES: np.concatenate([indices for _, indices in parts]),
        name + _ENDS: np.cumsum([values.size for values, _ in parts]),
    }


def _rows_of(arrays: Mapping[str, NDArray[Any]], name: str, count: int, size: int) -> Any:
    """Return the vectors that :func:`_saved_rows` has saved."""
    if name + _ENDS not in arrays:
        return saved_array(arrays, name, np.float64, (count, size))
    ends = saved_array(arrays, name + _ENDS, np.int64, (count,), smallest=0)
    total = int(ends[-1])
    if (np.diff(ends) < 0).any():
        raise ValueError(f"its {name + _ENDS} do not ascend")
    values = np.split(saved_array(arrays, name, np.float64, (total,)), ends[:-1])
    places = np.split(saved_array(arrays, name + _PLACES, np.int32, (total,)), ends[:-1])
    try:
        rows = [SparseVector(indices, entries, size) for indices, entries in zip(places, values, strict=True)]
    except ConfigurationError as error:
        raise ValueError(f"its {name}: {error}") from error
    return [row.to_dense() if row.indices.size == size else row for row in rows]
