"""What the server knows about clients with a memory: who they are, what counted last, and what they remember.

A client's state here is a function of the uplinks that the server has seen, so the server can keep a copy
(``client_state="ledger"``) and send it to a node that has lost its own, at no cost in rounds in which nobody has. Or it
keeps none (``client_state="reset"``): then a loss begins a new epoch, in which all clients start from nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.parameters import Vector
from flwr_fco.protocol import ClientStamp, Node, Uplink
from flwr_fco.strategies.base import CompositeOptions, ConfigRecord, Grid, log
from flwr_fco.strategies.outputs import PointOutputs

__all__ = ["ClientMemory", "Member"]

Key = tuple[int, int]


@dataclass
class Member:
    """A client as the server remembers it.

    Parameters
    ----------
    examples : float or None
        Its weight, as it was reported first; None before that. (Fixed, because the invariants need fixed weights.)
    accepted : int
        The last round of this epoch in which its reply counted; -1 if there is none.
    memory : ndarray of float64, shape (d,), or None
        The ledger's copy of what it remembers; None stands for zeros.
    """

    examples: float | None = None
    accepted: int = -1
    memory: Vector | None = None


class ClientMemory(PointOutputs):
    """Strategies whose clients remember one vector.

    Parameters
    ----------
    client_state : {"ledger", "reset"}, optional
        ``"ledger"``: the server keeps a copy of every client's vector and restores it where it is lost.
        ``"reset"``: a loss, or a client that leaves for good, begins a new epoch, in which all vectors are zero.
        By default a ledger if it fits into `ledger_bytes`.
    ledger_bytes : int, default 256 MiB
        What the default may use: 8 bytes for each client and coordinate.
    **options
        See :class:`PointOutputs`.
    """

    def __init__(
        self,
        *,
        client_state: Literal["ledger", "reset"] | None = None,
        ledger_bytes: int = 256 * 2**20,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(window=window, sparsity=sparsity, **options)
        if client_state not in ("ledger", "reset", None):
            raise ConfigurationError(f"client_state={client_state!r}; expected 'ledger', 'reset' or None (by memory)")
        self.client_state = client_state
        self.ledger_bytes = ledger_bytes

    def _forget(self) -> None:
        super()._forget()
        self._members: dict[Key, Member] = {}
        self._present: set[Key] = set()
        self._epoch = 0
        self._keeps_ledger: bool | None = None
        self._lost = False

    # --- what a subclass says ---------------------------------------------------------------------------------

    @abstractmethod
    def remembered(self, before: Any, memory: Vector, uplink: Uplink) -> Vector:
        """Return what a client remembers after a round that counted: the client's own arithmetic.

        Parameters
        ----------
        before : NamedTuple
            The server's state in which the round began.
        memory : ndarray of float64, shape (d,)
            What the client remembered.
        uplink : Uplink
            What it answered.
        """

    @abstractmethod
    def after_change(self, state: Any, population: float, mean: Vector | None) -> Any:
        """Return the state after clients have come or gone, or all have forgotten.

        Parameters
        ----------
        state : NamedTuple
        population : float
            Sum of the weights of the clients that are there.
        mean : ndarray of float64, shape (d,), or None
            The weighted mean of what they remember; None: as it was, up to the weights.
        """

    # --- members ----------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> bool:
        """Whether the server keeps a copy of what the clients remember."""
        return bool(self._keeps_ledger)

    def member(self, node: Node) -> Member:
        """Return what is known about a client."""
        return self._members.setdefault(node.key, Member())

    def weight_of(self, uplink: Uplink) -> float:
        """Return a client's weight in the invariants: as it was first reported, or 1."""
        if self.weighting == "uniform":
            return 1.0
        known = None if uplink.node is None else self.member(uplink.node).examples
        return uplink.examples if known is None else known

    def population(self, uplinks: Sequence[Uplink] = ()) -> float:
        """Return the sum of the weights of all clients that are there; a client that never answered counts as the mean.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Answers that are about to count.
        """
        present = self._present | {uplink.node.key for uplink in uplinks if uplink.node is not None}
        if self.weighting == "uniform":
            return float(max(len(present), len(uplinks)))
        known = {key: self._members[key].examples for key in present if key in self._members}
        for i, uplink in enumerate(uplinks):
            known[(2, i) if uplink.node is None else uplink.node.key] = self.weight_of(uplink)
        weights = [weight for weight in known.values() if weight is not None]
        if not weights:
            return float(len(present))
        return float(sum(weights)) + float(np.mean(weights)) * (len(present | known.keys()) - len(weights))

    def everybody(self, uplinks: Sequence[Uplink]) -> bool:
        """Whether all clients that are there have answered."""
        return len(uplinks) >= len(self._present)

    def stamp(self, node: Node) -> ClientStamp:
        """Return what a client is told about its memory."""
        member = self.member(node)
        if node.node_id not in self._round.restoring or member.accepted < 0 or not self.ledger:
            return ClientStamp(self._epoch, member.accepted)
        memory = np.zeros(self.plan.layout.size) if member.memory is None else member.memory
        return ClientStamp(self._epoch, member.accepted, {"own": memory})

    def state_lost(self, node: Node) -> bool:
        """Whether a node that has lost its state can be sent it again; if not, a new epoch begins after the round."""
        if not self.ledger:
            self._lost = True
        return self.ledger

    def mean_memory(self) -> Vector:
        """Return the weighted mean of what the clients that are there remember (with a ledger)."""
        total, mean = self.population(), np.zeros(self.plan.layout.size)
        known = [self._members[key].examples or 0.0 for key in self._present if key in self._members]
        typical = float(np.mean([weight for weight in known if weight > 0.0] or [1.0]))
        for key in sorted(self._present):
            member = self._members.get(key)
            if member is not None and member.memory is not None:
                weight = 1.0 if self.weighting == "uniform" else member.examples
                mean += ((typical if weight is None else weight) / total) * member.memory
        return mean

    def _new_epoch(self, reason: str) -> None:
        log(WARNING, "%s: all clients begin anew (client_state='reset')", reason)
        self._epoch += 1
        self._lost = False
        for member in self._members.values():
            member.accepted, member.memory = -1, None
        self.state = self.after_change(self.state, self.population(), np.zeros(self.plan.layout.size))

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Notice who has come and who has gone, so that the invariants hold for those who are there."""
        present = {node.key for node in self._ordered}
        if self._keeps_ledger is None:
            size = 8 * len(present) * self.plan.layout.size
            self._keeps_ledger = self.client_state == "ledger" or (
                self.client_state is None and size <= self.ledger_bytes
            )
            log(INFO, "The clients' memories: %s (%.1f MiB in a ledger)", self._memory_text(), size / 2**20)
        gone, self._present, changed = self._present - present, present, self._present != present
        if (gone or self._lost) and not self.ledger:
            self._new_epoch("a client has left" if gone else "a client has lost its state")
        elif changed:
            self.state = self.after_change(
                self.state, self.population(), self.mean_memory() if self.ledger and self._members else None
            )
        return nodes

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Note whose reply has counted and, in the ledger, what those clients remember now."""
        for uplink in uplinks:
            assert uplink.node is not None
            member = self.member(uplink.node)
            if self.ledger:
                memory = np.zeros(self.plan.layout.size) if member.memory is None else member.memory
                member.memory = self.remembered(before, memory, uplink)
            member.examples = uplink.examples if member.examples is None else member.examples
            member.accepted = self._round.number
        if self._lost:
            self._new_epoch("a client has lost its state")

    # --- saving and the look ----------------------------------------------------------------------------------

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the members: keys, weights, accepted rounds and, with a ledger, memories."""
        keys = sorted(self._members)
        members = [self._members[key] for key in keys]
        nothing = np.zeros(self.plan.layout.size)
        arrays: dict[str, NDArray[Any]] = {
            "epoch": np.array(self._epoch),
            "ledger": np.array(-1 if self._keeps_ledger is None else int(self._keeps_ledger)),
            "members": np.array(keys, dtype=np.int64).reshape(-1, 2),
            "present": np.array(sorted(self._present), dtype=np.int64).reshape(-1, 2),
            "accepted": np.array([member.accepted for member in members], dtype=np.int64),
            "examples": np.array([np.nan if m.examples is None else m.examples for m in members]),
        }
        if self.ledger and members:
            arrays["memories"] = np.array([nothing if m.memory is None else m.memory for m in members])
        return arrays

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self._epoch = int(arrays["epoch"])
        self._keeps_ledger = None if arrays["ledger"] < 0 else bool(arrays["ledger"])
        memories = arrays.get("memories")
        self._members, self._present = {}, {(row[0], row[1]) for row in arrays["present"].tolist()}
        for i, row in enumerate(arrays["members"].tolist()):
            key, examples = (row[0], row[1]), float(arrays["examples"][i])
            self._members[key] = Member(
                None if np.isnan(examples) else examples,
                int(arrays["accepted"][i]),
                None if memories is None else memories[i],
            )

    def _memory_text(self) -> str:
        if self._keeps_ledger is None and self.client_state is None:
            return f"ledger up to {self.ledger_bytes / 2**20:.0f} MiB, else reset"
        return "ledger" if self.ledger or self.client_state == "ledger" else "reset"

    def settings(self) -> list[tuple[str, str]]:
        """Return the line about the clients' memory."""
        return [*super().settings(), ("Client state", self._memory_text())]
