"""What the sites say of their columns and classes, compared: what differs must not be trained together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from flwr_fco.core.logs import printable
from flwr_fco.core.schema import Grades, Names, Units, difference, digests_of, listed, schema_number
from flwr_fco.errors import OTHER_MODEL, ConfigurationError
from flwr_fco.wire.envelope import NAMES, addressed, names_in, send_and_receive
from flwr_fco.wire.keys import UNITS
from flwr_fco.wire.protocol import Downlink, Node

#: Seconds to wait for the names of sites that differ.
_TIMEOUT = 120.0
#: Sites in an error, and characters of the reason of one.
_SHOWN, _LONGEST = 3, 500
#: Reason where nothing came.
NO_REPLY = "no reply"


class Schemas:
    """What each site has said of its columns and classes with its first answer.

    An answer holds a digest of the names. Only if two sites differ are they asked for the names, for the error. A site
    without names, as of an array, agrees with every other one.

    Attributes
    ----------
    own : tuple of two tuples of str or None
        The ServerApp's names of columns and of classes, if it has any: then sites are compared with these, otherwise
        with the most frequent answer.
    """

    def __init__(self) -> None:
        self.own: tuple[Names, Names] = (None, None)
        self._said: dict[Any, tuple[Node, float]] = {}
        self._compared: set[float] = set()
        #: Why answers of sites do not count, that have not said the names of their digests.
        self._unproved: dict[Any, str] = {}
        #: Sites that were asked for their names in vain.
        self._silent: set[Node] = set()
        #: Sites that have answered a task that asked for units, and what they have said; columns that were warned of.
        self.measured: set[Node] = set()
        self._units: Units | None = None
        self._warned: set[int] = set()

    def compare(self, grid: Grid | None, said: Mapping[Node, float]) -> dict[Node, str]:
        """Compare what sites say with their answers with all that was said before.

        A site that differs and does not say its names when it is asked, or others than those of its digest, is no
        reason to end a run: its answer does not count.

        Parameters
        ----------
        grid : flwr.serverapp.Grid or None
            Flower's connection to the nodes, to ask for names.
        said : mapping of Node to float
            The sites' numbers, of :func:`flwr_fco.core.schema.schema_number`.

        Returns
        -------
        dict of Node to str
            Why answers do not count.

        Raises
        ------
        ConfigurationError
            If sites have other columns, another order of columns or other classes; it names them.
        """
        named = {node: number for node, number in said.items() if number}
        self._said.update((node.key, (node, number)) for node, number in named.items())
        for node, number in named.items():
            if number in self._compared:
                self._unproved.pop(node.key, None)
        if not self._compared.issuperset(named.values()):
            for place in range(len(self.own)):
                self._compare(grid, place)
            self._compared.update(number for key, (_, number) in self._said.items() if key not in self._unproved)
        return {node: self._unproved[node.key] for node in named if node.key in self._unproved}

    def _compare(self, grid: Grid | None, place: int) -> None:
        """Compare the names of columns or classes, until no two proved ones differ."""
        own = self.own[place]
        while True:
            groups: dict[int, list[Node]] = {}
            for node, number in sorted(self._said.values(), key=lambda each: each[0].order):
                if node.key not in self._unproved:
                    groups.setdefault(digests_of(number)[place], []).append(node)
            groups.pop(0, None)
            usual = digests_of(schema_number(*self.own))[place]
            if own is None and groups:
                # The first of the largest groups: with three sites a liar alone is not in it.
                usual = max(groups, key=lambda digest: len(groups[digest]))
            odd = [node for digest, nodes in groups.items() if digest != usual for node in nodes]
            if not odd:
                return
            right = groups.get(usual, [])
            asked = odd + ([] if own else right[:1])
            names = self._asked(grid, place, asked)
            theirs = own or names.get(right[0])
            proved = [node for node in odd if names.get(node) is not None]
            if grid is None or (proved and theirs is not None):
                raise ConfigurationError(self._refusal(place, proved or odd, names, right, theirs))
            others = "the ServerApp" if own else f"{right[0]}"
            for node in asked:
                if names.get(node) is None:
                    less = others if node in odd else f"{odd[0]}"
                    self._unproved[node.key] = difference(f"{node}", None, less, theirs, classes=place == 1)

    def asking(self, letters: Sequence[tuple[Node, Downlink]]) -> list[tuple[Node, Downlink]]:
        """Return letters of which the first to each node asks for the units of its columns.

        Parameters
        ----------
        letters : sequence of tuples of Node and Downlink
            What the nodes are sent.
        """
        if self.measured.issuperset([node for node, _ in letters]):
            return list(letters)
        # One object for all nodes that get the same, as before.
        told = {id(each): each._replace(numbers={**each.numbers, UNITS: 1.0}) for _, each in letters}
        return [(node, each if node in self.measured else told[id(each)]) for node, each in letters]

    def compare_units(self, grid: Grid | None, d: int, said: Mapping[Node, Grades]) -> None:
        """Warn of columns whose standard deviations differ as those of other units do, of each column once.

        Parameters
        ----------
        grid : flwr.serverapp.Grid or None
            Flower's connection to the nodes, to ask one of them for the names of its columns.
        d : int
            Number of columns.
        said : mapping of Node to sequence of int
            The grades that sites have sent (:func:`flwr_fco.core.schema.grades_of`).
        """
        self.measured.update(said)
        if not any(map(len, said.values())):
            return
        self._units = units = self._units or Units(d)
        named = ((f"node {n.node_id}" if n.partition_id is None else f"partition {n.partition_id}", n) for n in said)
        units.add({name: said[node] for name, node in named})
        columns = np.array([j for j in units.differing() if j not in self._warned], np.intp)
        if not columns.size:
            return
        self._warned.update(columns.tolist())
        first = [node for node, number in self._said.values() if digests_of(number)[0]][:1]
        names = next(iter(self._asked(grid, 0, first).values()), None)
        known = names is not None and len(names) == d
        shown = names if names is not None and known else [f"column {j}" for j in range(d)]
        warnings.warn(units.text(columns, shown), UserWarning, stacklevel=2)

    def explain(self, grid: Grid | None, reasons: Mapping[Node, str], others: Iterable[Node]) -> None:
        """Say which columns a site lacks or has besides whose model has other arrays than the server's.

        Parameters
        ----------
        grid : flwr.serverapp.Grid or None
            Flower's connection to the nodes, to ask for names.
        reasons : mapping of Node to str
            Why sites have no answer that counts.
        others : iterable of Node
            Sites whose columns may be right, if none has answered yet.

        Raises
        ------
        ConfigurationError
            If the names of its columns and the right ones are known.
        """
        misfits = (node for node, reason in reasons.items() if OTHER_MODEL in reason and node not in self._silent)
        node = next(misfits, None)
        if node is None:
            return
        self._silent.add(node)
        said = [other for other, number in self._said.values() if digests_of(number)[0]]
        usual = [other for other in (*said, *others) if other != node][:_SHOWN]
        names = self._asked(grid, 0, [node] if self.own[0] else dict.fromkeys([node, *usual]))
        usual = [other for other in usual if names.get(other) is not None][:1]
        theirs = self.own[0] or (names[usual[0]] if usual else None)
        if names.get(node) is not None and theirs is not None and names[node] != theirs:
            raise ConfigurationError(self._refusal(0, [node], names, usual, theirs))

    def _refusal(
        self, place: int, odd: Sequence[Node], names: Mapping[Node, Names], usual: Sequence[Node], theirs: Names
    ) -> str:
        others = "the ServerApp" if self.own[place] else f"{usual[0]}"
        others += f" and {len(usual) - 1} more" * (len(usual) > 1 and not self.own[place])
        shown = [difference(f"{node}", names.get(node), others, theirs, classes=place == 1) for node in odd[:_SHOWN]]
        more = f"; and {len(odd) - _SHOWN} more sites" if len(odd) > _SHOWN else ""
        advice = "Code the classes in the same way at every site"
        if self.own[1]:
            advice += ", and give all of them as classes=[...] to client_app and to fit"
        if place == 0:
            columns = f"X[[{listed(theirs)}]]" if theirs else "X[names]"
            advice = f"Take the same columns in the same order at every site, {columns}"
        return f"the sites' data do not fit together: {'; '.join(shown)}{more}. {advice}"

    def usual_columns(self, grid: Grid, nodes: Iterable[Node]) -> tuple[Names, dict[Node, str]]:
        """Ask sites for the names of their columns; return those of most, None if none has any, and who has failed why.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        nodes : iterable of Node
            The sites.
        """
        said: list[Names] = []
        failed = dict.fromkeys(nodes, NO_REPLY)
        for node, answer in _answers(grid, list(failed)):
            if answer.has_content():
                said.append(names_in(answer.content)[0])
                failed.pop(node, None)
            else:
                # Below an error's own line there is where it was raised.
                line = (answer.error.reason or "").partition("\n")[0]
                failed[node] = printable(f"error {answer.error.code}: {line[:_LONGEST]}")
        named = [names for names in said if names is not None]
        return max(named, key=named.count) if named else None, failed

    def _asked(self, grid: Grid | None, place: int, nodes: Iterable[Node]) -> dict[Node, Names]:
        """Return the names of those nodes that say the same as before, if they have said something."""
        if grid is None:
            return {}
        found: dict[Node, Names] = {}
        for node, answer in _answers(grid, nodes):
            if answer.has_content():
                said, (_, before) = names_in(answer.content), self._said.get(node.key, (node, 0.0))
                if not before or digests_of(schema_number(*said))[place] == digests_of(before)[place]:
                    found[node] = said[place]
        return found


def _answers(grid: Grid, nodes: Iterable[Node]) -> Iterator[tuple[Node, Message]]:
    """Ask nodes for their names."""
    by_id = {node.node_id: node for node in nodes}
    for answer in send_and_receive(grid, addressed(grid, ((own, RecordDict()) for own in by_id), NAMES, "0"), _TIMEOUT):
        if (node := by_id.get(answer.metadata.src_node_id)) is not None:
            yield node, answer
