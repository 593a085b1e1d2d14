"""The question before all others to a client: whether its table is the others', by names, order, classes and scales."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import RecordDict

from flwr_fco.core.logs import printable
from flwr_fco.core.schema import Names, Scales, difference, listed
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.boxes import NAMES_ONLY, TABLE, addressed
from flwr_fco.messages.protocol import Described, Node
from flwr_fco.messages.records import decode_described
from flwr_fco.strategies.ledger import Key
from flwr_fco.strategies.replies import cause_of

#: Sites in an error, and characters of the reason of one.
_SHOWN, _LONGEST = 5, 500


class Tables:
    """What clients have said of their tables.

    Data without names agree with all others.

    Parameters
    ----------
    own : Described
        The server's names, if it has any: clients are compared with these, otherwise with most of them.
    settled : bool, default False
        Whether nobody is asked: whoever begins the run has the rows, and has compared them.
    """

    def __init__(self, own: Described | None = None, *, settled: bool = False) -> None:
        self.own, self._settled = own or Described(), settled
        self._said: dict[Key, tuple[Node, Described]] = {}
        #: How many clients have each of the names of columns, and of classes.
        self._names: tuple[Counter[Names], Counter[Names]] = Counter(), Counter()
        self._scales: Scales | None = None

    @property
    def columns(self) -> Names:
        """The names of columns of most clients that have any; None if none has."""
        return _most(self._names[0])

    @property
    def all_named(self) -> bool:
        """Whether all clients have named their columns."""
        return self._names[0].total() == len(self._said)

    def look(self, run: Any, nodes: Sequence[Node]) -> None:
        """Ask those of some clients that have not been asked, and compare what they say with the others.

        Parameters
        ----------
        run : Run
            Of the strategy.
        nodes : sequence of Node
            Who is asked something next.
        """
        shape = run.problem.layout.shapes.get("coefficients")
        asks = shape and not run.options._unmodified and not self._settled
        if shape and asks and any(node.key not in self._said for node in nodes):
            # Deviations have no noise: a private run asks for names only.
            self.ask(run.grid, nodes, run.timeout, scales=run.privacy is None)
            self.compare(int(shape[0]))

    def ask(self, grid: Any, nodes: Sequence[Node], timeout: float, *, scales: bool = True) -> dict[Node, str]:
        """Ask clients that have not been asked what their tables are; return who has not said it, and why.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            One of this package answers without messages.
        nodes : sequence of Node
            The clients.
        timeout : float
            Seconds to wait.
        scales : bool, default True
            Whether the scales of their columns are asked for, besides names.
        """
        new = [node for node in nodes if node.key not in self._said]
        # As for its other messages: where errors are replies, messages are sent.
        direct = getattr(grid, "direct", None) is not None and grid.raise_errors
        found, failed = (grid.described(new, scales), {}) if direct else _answers(grid, new, timeout, scales)
        for node in new:
            said = found.get(node, Described())
            if said.deviations is not None:
                self._scales = self._scales or Scales(said.deviations.size)
                self._scales.add(_name(node), said.deviations)
            for place, names in enumerate(self._names):
                names.update([each] if (each := _of(said, place)) else ())
            self._said[node.key] = node, said._replace(deviations=None)
        return failed

    def compare(self, d: int) -> None:
        """Compare what all clients have said, and warn of columns whose scales differ as those of other units do.

        Parameters
        ----------
        d : int
            Number of columns.

        Raises
        ------
        ConfigurationError
            If clients have other columns, another order of columns or other classes; it names them.
        """
        for place in (0, 1):
            self._compare_names(place)
        if self._scales is not None:
            columns = self.own.columns or self.columns
            known = columns if columns and len(columns) == d else [f"column {j}" for j in range(d)]
            if text := self._scales.differing(known):
                warnings.warn(text, UserWarning, stacklevel=2)

    def _compare_names(self, place: int) -> None:
        own = _of(self.own, place)
        theirs = own or _most(self._names[place])
        if not self._names[place].keys() - {theirs}:
            return
        named = [(node, each) for node, said in self._said.values() if (each := _of(said, place))]
        odd = [(node, each) for node, each in named if each != theirs]
        right = [node for node, each in named if each == theirs]
        others = "the ServerApp" if own else f"{right[0]}" + f" and {len(right) - 1} more" * (len(right) > 1)
        shown = [difference(f"{node}", each, others, theirs, classes=place == 1) for node, each in odd[:_SHOWN]]
        more = f"; and {len(odd) - _SHOWN} more sites" if len(odd) > _SHOWN else ""
        advice = "Code the classes in the same way at every site"
        if self.own.classes:
            advice += ", and give all of them as classes=[...] to client_app and to fit"
        if place == 0:
            advice = f"Take the same columns in the same order at every site, X[[{listed(theirs or ())}]]"
        raise ConfigurationError(f"the sites' data do not fit together: {'; '.join(shown)}{more}. {advice}")


def _of(said: Described, place: int) -> Names:
    return said.classes if place else said.columns


def _most(names: Counter[Names]) -> Names:
    """Return the names of most clients: with three sites, one alone does not have them."""
    return names.most_common(1)[0][0] if names else None


def _name(node: Node) -> str:
    return f"node {node.node_id}" if node.partition_id is None else f"partition {node.partition_id}"


def _answers(
    grid: Any, nodes: Sequence[Node], timeout: float, scales: bool
) -> tuple[Mapping[Node, Described], dict[Node, str]]:
    """Ask clients by messages; return what they say, and why others have not said it."""
    by_id, said = {node.node_id: node for node in nodes}, dict[Node, Described]()
    failed = dict.fromkeys(nodes, "no reply")
    questions = addressed(grid, ((node_id, RecordDict()) for node_id in by_id), TABLE if scales else NAMES_ONLY, 0)
    for answer in grid.send_and_receive(questions, timeout=timeout) if questions else ():
        node = by_id.get(answer.metadata.src_node_id)
        if node is None:
            continue
        try:
            if answer.has_error():
                reason = cause_of(answer.error.reason or "")
                raise ProtocolError(f"error {answer.error.code}: {reason[:_LONGEST]}")
            said[node] = decode_described(answer.content)
            failed.pop(node, None)
        except ProtocolError as error:
            failed[node] = printable(str(error))
    return said, failed
