"""Parts, which several strategies share: a part acts around a round, and is saved with the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Problem, Replies
from flwr_fco.core.validation import saved_array
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.replies.checks import Round
from flwr_fco.wire.protocol import Downlink, Node, Plan, Uplink

Key = tuple[int, int]
#: A node and the message to it.
Letter = tuple[Node, Downlink]


class Host(Protocol):
    """The strategy's interface for the parts that it holds.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state; None before the first round.
    answered_start : set of int
        Ids of nodes that have answered round 0 just before this round.
    num_rounds : int or None
        Total number of rounds, if known.
    """

    state: Any
    answered_start: set[int]
    num_rounds: int | None

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's functions."""

    @property
    def problem(self) -> Problem:
        """The context of the current round for the algorithm's functions."""

    @property
    def plan(self) -> Plan:
        """The settings that all messages of the run share."""

    @property
    def nodes(self) -> Nodes:
        """The connected nodes."""

    @property
    def current(self) -> Round:
        """The current round: the nodes that were asked and the messages sent to them."""

    def replies(self, problem: Problem, state: Any, uplinks: Sequence[Uplink]) -> Replies:
        """Return a round's replies as the algorithm reads them."""

    def refresh_nodes(self) -> None:
        """Update the list of connected nodes."""


class Part:
    """A part that does nothing; each method is a place where a part can act."""

    def forget(self) -> None:
        """Return to the state before the first round."""

    def start(self, size: int) -> None:
        """Act once the model is known, before round 1.

        Parameters
        ----------
        size : int
            Length d of the model's flat vector.
        """

    def nodes_needed(self, minimum: int) -> int:
        """Return how many nodes must be connected before a round begins.

        Parameters
        ----------
        minimum : int
            Number required by the options and the other parts.
        """
        return minimum

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Act once the nodes of a round are known, and before messages are made; return the nodes to ask.

        Parameters
        ----------
        host : Host
            The run.
        nodes : sequence of Node
            The round's sample.
        """
        return nodes

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Act after a successful round, whose new state is ``host.state``.

        Parameters
        ----------
        host : Host
            The run.
        before : NamedTuple
            The state before the round.
        uplinks : sequence of Uplink
            The aggregated uplinks.
        """

    def end_round(self, host: Host) -> None:
        """Act at the end of every round, even if it is skipped.

        Parameters
        ----------
        host : Host
            The run.
        """

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save with the state."""
        return {}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            The part's state by name.
        """

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return numbers for the metrics of a training round.

        Parameters
        ----------
        host : Host
            The run.
        """
        return {}

    def describe(self) -> list[tuple[str, str]]:
        """Return lines for ``summary()``, as pairs of a title and a text."""
        return []


def rounded(letters: Sequence[Letter], wire_dtype: str) -> list[Letter]:
    """Return letters whose vectors have the wire's precision."""
    told = {id(each): each for _, each in letters}
    for key, each in told.items():
        vectors: Any = {name: vector.astype(wire_dtype) for name, vector in each.vectors.items()}
        told[key] = each._replace(vectors=vectors)
    return [(node, told[id(each)]) for node, each in letters]


def under(start: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with `start`, by the rest of their names."""
    return {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}


def array_of(keys: Iterable[Key]) -> NDArray[np.uint64]:
    """Return the keys of nodes as an array; Flower's node ids use all 64 bits."""
    return np.array(sorted(keys), dtype=np.uint64).reshape(-1, 2)


def saved_keys(arrays: Mapping[str, NDArray[Any]], name: str) -> list[Key]:
    """Return the keys that :func:`array_of` has made an array of, after checking it."""
    return [(first, second) for first, second in saved_array(arrays, name, np.uint64, (None, 2)).tolist()]
