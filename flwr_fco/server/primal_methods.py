"""What DualFL and the methods that it is measured against have in common: a primal model, clients with memories.

Three layers. :class:`PrimalStrategy`: the server's model is a plain vector, and most of these methods have no place for
psi. :class:`RememberingStrategy`: the clients keep vectors of their own between rounds, of which the server may hold a
ledger. :class:`EveryoneStrategy`: a round counts only if every client has answered.

The warm start of a client's minimisation is its last local solution, which is a function of what it was sent and what
it answered. So the ledger has it too, and a run that is resumed or whose nodes restart gives the same bits.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from logging import INFO, WARNING
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.server.algorithm import ArrayRecord, ConfigRecord, Grid, MetricRecord, log
from flwr_fco.server.clients.memory import Change, ClientMemories
from flwr_fco.server.minimise_options import MinimiseOptions
from flwr_fco.server.options import AT_LEAST_ONE, CommonOptions, MemoryOptions, RateOptions, WorkOptions
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.wire.protocol import ClientState, Downlink, Node, Option, Uplink
from flwr_fco.work import Work

__all__ = [
    "NO_AVERAGE",
    "EveryoneOptions",
    "EveryoneStrategy",
    "PrimalStrategy",
    "RememberingStrategy",
    "scaled_sum",
]

#: The field `total` of a state before there is anything to average.
NO_AVERAGE = np.zeros(0)
#: Seconds between two looks for a node that is not connected.
_PATIENCE = 1.0


def scaled_sum(pairs: Iterable[tuple[float, Vector]], size: int) -> Vector:
    """Return the sum of scaled vectors, in their order.

    Parameters
    ----------
    pairs : iterable of (float, ndarray)
    size : int

    Examples
    --------
    >>> scaled_sum([(2.0, np.ones(2)), (1.0, np.ones(2))], 2)
    array([3., 3.])
    """
    total = np.zeros(size)
    for factor, vector in pairs:
        total += factor * vector
    return total


@dataclass(repr=False, eq=False, kw_only=True)
class PrimalStrategy(CompositeStrategy):
    """A strategy whose state holds the model itself as `primal`; Euclidean, and without psi unless it says so.

    Parameters
    ----------
    regularizer : Regularizer, default Zero()
        psi; no other is possible.
    mirror_map : MirrorMap, default Euclidean()
        h; no other is possible.
    """

    #: Why psi is refused; None: it is not.
    no_psi: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.no_psi is not None and not isinstance(self.regularizer, Zero):
            raise ConfigurationError(
                f"regularizer={self.regularizer!r}: {name} has no place for psi, because {self.no_psi}. Put a smooth "
                "psi (an l2 term) into the clients' losses, or take FedDR, FedDualAvg or FedDAGT"
            )
        if not isinstance(self.mirror_map, Euclidean):
            raise ConfigurationError(
                f"mirror_map={self.mirror_map!r}: {name} averages primal points, so it is Euclidean; use Euclidean(), "
                "or FedMid or FedDualAvg for other geometries"
            )

    def solver_options(self) -> dict[str, Option]:
        """Return the method's own options: a state that other ones have made is not resumed."""
        shared = {option.name for base in _SHARED for option in fields(base)}
        own = {option.name: getattr(self, option.name) for option in fields(self) if option.name not in shared}
        return {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self._capped: int | None = None

    def numbers(self, state: Any) -> dict[str, float]:
        """Return the numbers that the clients are told in this round."""
        return {}

    def job(self, state: Any) -> Work | None:
        """Return what the clients do in this round; None: what the plan says."""
        return None

    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the model."""
        return {"primal": state.primal}

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told."""
        shared = self.current.shared
        if shared is None or shared[0] is not state:
            told = super().downlink(state, node)._replace(numbers=self.numbers(state), work=self.job(state))
            shared = self.current.shared = (state, told)
        return shared[1]

    def retrieve(self, state: Any) -> Vector:
        """Return the model."""
        return np.asarray(state.primal)

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Say who stopped at the cap of the minimisation."""
        super().after_round(before, uplinks)
        capped = [uplink for uplink in uplinks if uplink.metrics.get("capped", 0.0) > 0.0]
        if any("capped" in uplink.metrics for uplink in uplinks):
            self._capped = len(capped)
        if capped:
            text = "Round %s: %s of %s clients stopped before their stopping rule was met, the first is %s"
            log(WARNING, text, self.current.number, len(capped), len(uplinks), capped[0].node)

    def round_metrics(self) -> dict[str, float | int]:
        """Return how many clients stopped their minimisation too early in the last round that counted."""
        metrics = super().round_metrics()
        if self._capped is not None:
            metrics["num-capped"] = self._capped
        return metrics


@dataclass(repr=False, eq=False, kw_only=True)
class RememberingStrategy(MemoryOptions, PrimalStrategy):
    """A strategy whose clients remember vectors between rounds; a subclass says which, and how they change."""

    #: What the clients remember, by the names of the client half; all begin at zero.
    memory_names: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        self.memories: ClientMemories = ClientMemories(
            self.memory_names,
            self.remembered,
            client_state=self.client_state,
            ledger_bytes=self.ledger_bytes,
            weighting=self.weighting,
            client_weights=self.client_weights,
        )
        super().__post_init__()

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        self.memories.forget(0)

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the clients' memories."""
        return [("Client state", str(self.memories))]

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told: for all the same, but for its own memory."""
        restore = node.node_id in self.current.restoring
        return super().downlink(state, node)._replace(stamp=self.memories.stamp(node, restore=restore))

    @abstractmethod
    def remembered(self, before: Any, after: Any, memory: ClientState, uplink: Uplink) -> ClientState:
        """Return what a client remembers after a round that counted: the client's own arithmetic.

        Parameters
        ----------
        before, after : NamedTuple
            The server's states.
        memory : mapping of str to ndarray
            What it remembered.
        uplink : Uplink
        """

    def begins(self, uplink: Uplink) -> bool:
        """Whether the client had no memory in the round that it answers."""
        return uplink.node is None or self.memories.member(uplink.node).accepted < 0

    def weighted_sum(self, uplinks: Sequence[Uplink], name: str = "increment") -> Vector:
        """Return the sum of what clients send, by their weights (not divided by any)."""
        size = self.plan.layout.size
        return scaled_sum(((self.memories.weight_of(uplink), uplink.vectors[name]) for uplink in uplinks), size)

    def weighted_mean(self, uplinks: Sequence[Uplink], name: str = "increment") -> Vector:
        """Return the mean of what clients send, by their weights."""
        total = sum(self.memories.weight_of(uplink) for uplink in uplinks)
        return self.weighted_sum(uplinks, name) / total

    # --- clients that come, go and forget -------------------------------------------------------------------------

    def state_lost(self, node: Node) -> bool:
        """Whether a node that has lost its state can be sent it again; if not, a new epoch begins."""
        return self.memories.lost(node)

    def memories_changed(self, state: Any, change: Change) -> Any:
        """Return the server's state after clients have come or gone, or all have begun anew."""
        return state

    def after_change(self, change: Change | None) -> None:
        """Take note of a change of the clients' memories."""
        if change is None:
            return
        if change.reason is not None:
            log(WARNING, "%s: all clients begin anew", change.reason)
        self.state = self.memories_changed(self.state, change)

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Notice who has come and who has gone."""
        self.after_change(self.memories.notice(self.nodes.ordered))
        return nodes

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Note whose reply has counted."""
        super().after_round(before, uplinks)
        self.after_change(self.memories.note(self.current.number, before, self.state, uplinks))

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the clients' memories."""
        return self.memories.to_arrays()

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        self.memories.from_arrays(arrays)


@dataclass(repr=False, eq=False, kw_only=True)
class EveryoneOptions:
    """Options of a strategy that needs every client in every round.

    Parameters
    ----------
    evict_after : int, default 3
        A client that is silent, gone or bad (an error, NaN, garbage) in this many rounds in a row is given up. (In each
        of them it is asked three times; a client that is not connected is waited for, `node_timeout` seconds each
        time.) The rounds are skipped.
    on_missing : {"error", "reset"}, default "error"
        What then happens. ``"error"``: the run ends with a ConfigurationError that names the client. ``"reset"``: the
        run goes on without it, for the optimum of the others: the model stays as it is, all memories begin anew.
    """

    evict_after: int = field(default=3, metadata=AT_LEAST_ONE)
    on_missing: Literal["error", "reset"] = "error"


#: Whose options are in the plan already, or have no part in what a state means.
_SHARED = (CommonOptions, RateOptions, WorkOptions, MemoryOptions, MinimiseOptions, EveryoneOptions)


@dataclass(repr=False, eq=False, kw_only=True)
class EveryoneStrategy(EveryoneOptions, RememberingStrategy):
    """A strategy that needs every client in every round: a round without one of them is skipped.

    Clients may join between rounds: they begin with a memory of zeros, which changes no weighted sum. Where a client's
    weight changes, what the weighted sums have lost is made good; see :meth:`weights_changed`.
    """

    participation: ClassVar[Literal["sample", "everyone"]] = "everyone"

    choose_nodes: None = field(init=False, default=None)

    def forget(self) -> None:
        """Return to the state before the first round."""
        super().forget()
        #: Rounds in a row in which a client was missing.
        self._failures: dict[tuple[int, int], int] = {}
        self._evicted: set[tuple[int, int]] = set()
        self._absent: set[tuple[int, int]] = set()

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the clients' memories, who has been given up, and whose rounds have failed."""
        failed = sorted(self._failures)
        return {
            **super().saved_arrays(),
            "evicted": np.array(sorted(self._evicted), dtype=np.uint64).reshape(-1, 2),
            "failed": np.array(failed, dtype=np.uint64).reshape(-1, 2),
            "failures": np.array([self._failures[key] for key in failed], dtype=np.int64),
        }

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        super().restore_arrays(arrays)
        self._evicted = {(row[0], row[1]) for row in arrays["evicted"].tolist()}
        failed = [(row[0], row[1]) for row in arrays["failed"].tolist()]
        self._failures = dict(zip(failed, arrays["failures"].tolist(), strict=True))

    def nodes_needed(self) -> int:
        """Return how many nodes must be there before the first round; later those are waited for that were there."""
        return 1 if self.memories.present else super().nodes_needed()

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Return all clients that have not been given up, or nobody if one of them does not come back."""
        self._absent = self._wait_for_members(grid)
        if self._absent:
            log(WARNING, "Round %s is skipped: %s of the clients are gone", server_round, len(self._absent))
            return []
        nodes = [node for node in self.nodes.ordered if node.key not in self._evicted]
        self.after_change(self.memories.notice(nodes))
        return nodes

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Note whose reply has counted, and make good what changed weights have done to the weighted sums."""
        changed = bool(self.memories.reweighed(uplinks))
        super().after_round(before, uplinks)
        if changed:
            self.state = self.weights_changed(self.state, self.memories.means())

    def weights_changed(self, state: Any, means: Mapping[str, Vector]) -> Any:
        """Return the server's state after a round in which a client's weight has changed (only with a ledger).

        As it is, where no weighted sum of what the clients remember has to be anything.

        Parameters
        ----------
        state : NamedTuple
            After the round.
        means : mapping of str to ndarray
            Weighted means of what the clients remember, by the new weights.
        """
        return state

    def _wait_for_members(self, grid: Grid) -> set[tuple[int, int]]:
        """Return the keys of clients that belong here and are not connected, once there is no more time to wait."""
        deadline = time.monotonic() + self.node_timeout
        while True:
            absent = self.memories.present - {node.key for node in self.nodes.ordered}
            if not absent or time.monotonic() >= deadline:
                return absent
            log(INFO, "Waiting for %s clients that were here before", len(absent))
            time.sleep(_PATIENCE)
            self.nodes.meet(grid, list(grid.get_node_ids()))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Any]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As in every strategy; besides, count in how many rounds in a row a client was missing.

        Raises
        ------
        ConfigurationError
            If a client was missing `evict_after` times and ``on_missing="error"``.
        """
        arrays, metrics = super().aggregate_train(server_round, replies)
        current = self.current
        if metrics is None and self._absent:
            metrics = MetricRecord({"num-replies": 0, "num-left-out": len(self.memories.present), "skipped": 1})
            metrics["bytes-down"] = metrics["bytes-up"] = 0
        if current.nodes:
            # A loss that nobody can make good voids all memories now, though the round has not counted.
            self.after_change(self.memories.notice(list(current.nodes.values())))
        silent = {node.key for node_id, node in current.nodes.items() if node_id not in current.answered}
        missing = silent | self._absent
        self._failures = {key: self._failures.get(key, 0) + 1 for key in missing}
        self._give_up({key for key, count in self._failures.items() if count >= self.evict_after})
        return arrays, metrics

    def _give_up(self, gone: set[tuple[int, int]]) -> None:
        """Go on without clients, or end the run."""
        if not gone:
            return
        names = ", ".join(f"partition {key[1]}" if key[0] == 0 else f"node {key[1]}" for key in sorted(gone))
        if self.on_missing == "error":
            raise ConfigurationError(
                f"{names} did not give a good answer in {self.evict_after} rounds in a row, and {type(self).__name__} "
                "needs every client. Mend it, wait longer (timeout, node_timeout, evict_after), or give "
                'on_missing="reset" to go on without it'
            )
        self._evicted |= gone
        self._failures.clear()
        self._absent = set()
        rest = self.memories.present - gone
        if not rest:
            raise ConfigurationError(f"{names} was given up, and nobody is left to go on with")
        for key in gone:
            self.memories.members.pop(key, None)
        self.memories.present = rest
        self.after_change(self.memories.new_epoch(f"{names} is given up"))
