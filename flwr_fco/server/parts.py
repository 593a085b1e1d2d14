"""What several strategies share is a part that they hold: it acts around a round, and is saved with the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from flwr_fco.server.algorithm import Algorithm, Problem
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.replies.checks import Round
from flwr_fco.wire.protocol import Downlink, Node, Plan, Uplink

#: A node, and what it is told.
Letter = tuple[Node, Downlink]


class StartRound(NamedTuple):
    """What came of a round 0.

    Parameters
    ----------
    problem : Problem
        What it was about.
    uplinks : list of Uplink
        With weights.
    bytes_down, bytes_up : int
    """

    problem: Problem
    uplinks: list[Uplink]
    bytes_down: int
    bytes_up: int


class Host(Protocol):
    """What parts know of the strategy that holds them.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state; None before the first round.
    answered_start : set of int
        Ids of nodes that have answered round 0 just before this round.
    """

    state: Any
    answered_start: set[int]

    @property
    def algorithm(self) -> Algorithm:
        """The functions of the method."""

    @property
    def problem(self) -> Problem:
        """What they may know of the run."""

    @property
    def plan(self) -> Plan:
        """What all messages of the run have in common."""

    @property
    def nodes(self) -> Nodes:
        """Who is connected."""

    @property
    def current(self) -> Round:
        """The round under way: who was asked, what they were told."""

    def peek(self) -> Any:
        """Return the state to one who keeps nothing of it."""

    def look_again(self) -> None:
        """Look who is connected."""

    def run_start_round(self) -> StartRound:
        """Run a training round 0 with all connected nodes, which changes no state."""


class Part:
    """A part that does nothing; each method is a place at which a part can act."""

    def forget(self) -> None:
        """Return to the state before the first round."""

    def nodes_needed(self, minimum: int) -> int:
        """Return how many nodes must be connected before a round begins.

        Parameters
        ----------
        minimum : int
            What the options and the other parts say.
        """
        return minimum

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Act once the nodes of a round are known, and before messages are made; return the nodes to ask.

        Parameters
        ----------
        host : Host
        nodes : sequence of Node
            The round's sample.
        """
        return nodes

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Act after a successful round, whose new state is ``host.state``.

        Parameters
        ----------
        host : Host
        before : NamedTuple
            The state before the round.
        uplinks : sequence of Uplink
            Those that were aggregated.
        """

    def end_round(self, host: Host) -> None:
        """Act at the end of every round, also of one that is skipped.

        Parameters
        ----------
        host : Host
        """

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what is saved with the state."""
        return {}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`to_arrays` gave.

        Parameters
        ----------
        arrays : mapping of str to ndarray
        """

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return numbers for the metrics of a training round.

        Parameters
        ----------
        host : Host
        """
        return {}

    def describe(self) -> list[tuple[str, str]]:
        """Return lines of ``summary()``, as pairs of a title and a text."""
        return []
