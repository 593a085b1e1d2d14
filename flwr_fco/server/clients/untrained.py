"""Arrays that nobody trains, and arrays that are one array under two names: psi leaves them alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Setting
from flwr_fco.core.files import json_object
from flwr_fco.core.layout import Entry, Layout, Vector
from flwr_fco.core.logs import log
from flwr_fco.server.clients.unmodified import UnmodifiedClients
from flwr_fco.server.parts import Part
from flwr_fco.server.replies.mail import Mail
from flwr_fco.wire.protocol import Uplink

#: Rounds in a row in which an increment of exactly 0 from everyone means that nobody trains an array.
_ROUNDS = 2
#: Entries that are looked at first: where an array is trained, one of these has moved.
_FIRST = 256
_SHOWN = 5


class Untrained(Part):
    """What psi leaves alone in the models of clients whose code is not known.

    A frozen backbone or a buffer in a ``state_dict`` has an increment of 0: psi would take it apart although no client
    can answer that. After two rounds with increments of exactly 0 from everyone, an array is again what it was in the
    first of them, and stays so until it moves. Arrays that are equal, not constant, and have equal increments are one
    array under two names (tied weights): the second is a copy of the first as long as their increments are equal.

    Parameters
    ----------
    clients : UnmodifiedClients
        Who were sent the model.
    """

    def __init__(self, clients: UnmodifiedClients) -> None:
        self._clients = clients
        self.forget()

    def forget(self) -> None:
        #: By array: rounds in a row without an increment, and the array as it was before them.
        self._still: dict[str, tuple[int, Vector]] = {}
        #: Arrays that were equal from the start, second and first; None before the first round.
        self._pairs: dict[str, str] | None = None
        self._layouts: tuple[Layout, frozenset[str], Layout] | None = None
        #: Rounds in a row in which nothing has moved.
        self._idle = 0

    @property
    def _frozen(self) -> set[str]:
        return {name for name, (rounds, _) in self._still.items() if rounds >= _ROUNDS}

    def given(self, given: Setting) -> Setting:
        """Return the user's setting, in whose layout psi leaves these arrays alone.

        Parameters
        ----------
        given : Setting
            The user's.
        """
        held = frozenset({*self._frozen, *(self._pairs or {})})
        if not held:
            return given
        sizes = {entry.name: entry.size for entry in given.layout.optimized}
        for name, size in {name: value.size for name, (_, value) in self._still.items()}.items():
            if sizes.get(name) != size:
                raise ValueError(f"the untrained array {name!r} has {size} entries, expected {sizes.get(name, 'none')}")
        for pair in (self._pairs or {}).items():
            if sizes.get(pair[0], -1) != sizes.get(pair[1]):
                raise ValueError(f"the arrays {pair} are not of one size")
        if self._layouts is None or self._layouts[:2] != (given.layout, held):
            self._layouts = given.layout, held, given.layout.leaving(held)
        return given._replace(layout=self._layouts[2])

    def observe(self, layout: Layout, mail: Mail, uplinks: Sequence[Uplink]) -> None:
        """Observe what the clients of a round have trained.

        Parameters
        ----------
        layout : Layout
            The user's.
        mail : Mail
            The messages of the run, with the model that they got.
        uplinks : sequence of Uplink
            What they sent.
        """
        _, sent = self._clients.sent_model(mail)
        everything = sorted((e for e in layout.optimized if e.size), key=lambda entry: not entry.regularized)
        entries = [entry for entry in everything if entry.regularized]
        increments = [np.asarray(uplink.vectors["increment"]) for uplink in uplinks]
        before, tied = self._frozen, set(self._pairs or {})
        still = {e.name: e for e in entries if not any(_moves(increment[e.block]) for increment in increments)}
        self._idle = self._idle + 1 if len(still) == len(entries) else 0
        if self._idle == _ROUNDS:
            log(WARNING, "the clients return the model that they got: in %s rounds nobody trained any array", _ROUNDS)
        if self._idle:
            return
        self._still = {
            name: (self._still[name][0] + 1, self._still[name][1]) if name in self._still else (1, sent[e.block].copy())
            for name, e in still.items()
        }
        blocks = {entry.name: entry.block for entry in everything}
        # Of two tied arrays the one that psi acts on is the first.
        pairs = _equal_pairs(everything, sent) if self._pairs is None else self._pairs
        self._pairs = {
            second: first
            for second, first in pairs.items()
            if all(np.array_equal(each[blocks[first]], each[blocks[second]]) for each in increments)
        }
        self._tell(before, tied)

    def take(self, layout: Layout, point: Vector, before: Vector) -> None:
        """Hold from now on what a hook of a subclass has made of arrays.

        Parameters
        ----------
        layout : Layout
            Places of the arrays.
        point : ndarray of float64, shape (d,)
            The model of the hook.
        before : ndarray of float64, shape (d,)
            The model that the hook got.
        """
        for entry in layout.optimized if self._still else ():
            if entry.name in self._still and not np.array_equal(point[entry.block], before[entry.block]):
                self._still[entry.name] = self._still[entry.name][0], point[entry.block].copy()

    def hold(self, values: Vector, layout: Layout) -> None:
        """Put frozen arrays back into a dual (Euclidean) or a model, in place.

        Parameters
        ----------
        values : ndarray of float64, shape (d,)
            The dual, or the model.
        layout : Layout
            Places of the arrays.
        """
        blocks = {entry.name: entry.block for entry in layout.optimized} if self._still else {}
        for name in self._frozen:
            values[blocks[name]] = self._still[name][1]

    def copy(self, point: Vector, values: Vector, layout: Layout) -> None:
        """Copy the first of two tied arrays of a model to the second one, in place.

        Parameters
        ----------
        point : ndarray of float64, shape (d,)
            The model.
        values : ndarray of float64, shape (d,)
            The dual, or the model, that it comes from.
        layout : Layout
            Places of the arrays.
        """
        blocks = {entry.name: entry.block for entry in layout.optimized} if self._pairs else {}
        for second, first in (self._pairs or {}).items():
            point[blocks[second]] = values[blocks[second]] = point[blocks[first]]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        rounds = {name: number for name, (number, _) in self._still.items()}
        values = {f"still/{name}": value for name, (_, value) in self._still.items()}
        return {"untrained": np.array(json.dumps({"rounds": rounds, "pairs": self._pairs})), **values}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.forget()
        saved = json_object(str(arrays["untrained"]), {"rounds": dict[str, int], "pairs": dict[str, str] | None})
        self._pairs = saved["pairs"]
        self._still = {name: (number, np.asarray(arrays[f"still/{name}"])) for name, number in saved["rounds"].items()}

    def _tell(self, before: set[str], tied: set[str]) -> None:
        frozen = self._frozen
        if frozen - before:
            text = "nobody has trained %s for %s rounds: psi leaves them as they were until they move"
            log(INFO, text, _listed(frozen - before), _ROUNDS)
        if before - frozen:
            log(INFO, "clients train %s now: psi acts on them", _listed(before - frozen))
        for second, first in (self._pairs or {}).items():
            if second not in tied:
                text = "%r is %r under another name (equal, and trained equally): they move together"
                log(INFO, text, second, first)


def _listed(names: set[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(sorted(names)[:_SHOWN]) + (f" and {more} more arrays" if more > 0 else "")


def _moves(increment: NDArray[Any]) -> bool:
    return bool(increment[:_FIRST].any() or increment.any())


def _equal_pairs(entries: Sequence[Entry], model: Vector) -> dict[str, str]:
    """Return the arrays of several elements that equal an earlier one and are not constant, with that one."""
    firsts: dict[tuple[Any, ...], list[Entry]] = {}
    pairs: dict[str, str] = {}
    for entry in entries:
        array = model[entry.block]
        if entry.size < 2 or (array[0] == array).all():
            continue
        alike = firsts.setdefault((entry.shape, *array[:_FIRST].tolist()), [])
        first = next((each for each in alike if np.array_equal(model[each.block], array)), None)
        if first is None:
            alike.append(entry)
        else:
            pairs[entry.name] = first.name
    return pairs
