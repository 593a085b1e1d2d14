"""Partial sums: workers keep what their clients answer, and send the server one weighted sum each.

The server gets the norm and the numbers of each answer, checks them as always, and knows the weights of a round only
when it has all of them. Then it asks each worker once for the sum of factors times vectors. So its own work with
vectors, and what it is sent, is that of as many vectors as there are workers, not clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.elsewhere import Elsewhere
from flwr_fco.core.sparse import SparseVector, weighted_sum
from flwr_fco.errors import FlwrFcoError
from flwr_fco.wire.uplink import Sent

#: By worker, a method's name and arguments.
Calls = Mapping[int, tuple[Any, ...]]
Ask = Callable[[Calls], dict[int, Any]]
#: What vectors that stay with a worker look like: the name and the shape of each.
Form = tuple[tuple[str, tuple[int, ...]], ...]
#: An answer of which the vectors stay: where, which of the forms, of each vector (norm, first, last entry), and all
#: else; or the whole answer. Plain tuples, whose pickles are read faster than others.
Digested = tuple[int, int, tuple[tuple[float, float, float], ...], Any, str] | Sent


class KeptHere:
    """In a worker: the vectors of its clients' last answers.

    Parameters
    ----------
    number : int
        Of the exchange.
    answers : sequence of Sent or None
    """

    def __init__(self, number: int, answers: Sequence[Sent | None]) -> None:
        self.number = number
        self._vectors: list[Mapping[str, NDArray[np.float64]]] = []
        self._forms: dict[Form, int] = {}
        digests = [None if answer is None else self._keep(answer) for answer in answers]
        self.told: tuple[list[Form], list[Digested | None]] = list(self._forms), digests

    def _keep(self, answer: Sent) -> Digested:
        vectors, content, digest = answer
        facts = []
        for vector in vectors.values():
            if isinstance(vector, SparseVector) or not vector.size:
                # Short as it is.
                return answer
            norm = math.sqrt(np.vdot(vector, vector))
            if not math.isfinite(norm):
                # The server says what is wrong with it.
                return answer
            facts.append((norm, vector.item(0), vector.item(-1)))
        form = tuple((name, vector.shape) for name, vector in vectors.items())
        self._vectors.append(vectors)
        return len(self._vectors) - 1, self._forms.setdefault(form, len(self._forms)), tuple(facts), content, digest

    def sum(self, name: str, places: Sequence[int], factors: Sequence[float]) -> NDArray[np.float64]:
        """Return the sum of factors times the vectors of a name.

        Parameters
        ----------
        name : str
        places : sequence of int
        factors : sequence of float
        """
        vectors = [self._vectors[place][name] for place in places]
        found: NDArray[np.float64] = weighted_sum(zip(factors, vectors, strict=True), vectors[0].shape)
        return found


class KeptThere:
    """On the server: what the workers have kept of an exchange; the keeper of its vectors.

    Parameters
    ----------
    ask : callable
        As :meth:`Workers.ask`.
    run_id, number : int
        Of the run and of the exchange.
    calls : mapping of int to tuple
        By which workers that know nothing of the run would be asked the same.
    """

    def __init__(self, ask: Ask, run_id: int, number: int, calls: Calls) -> None:
        self._ask, self._run_id, self._number, self._calls = ask, run_id, number, calls

    def sent(self, worker: int, told: tuple[list[Form], list[Digested | None]]) -> list[Sent | None]:
        """Return the answers of a worker's clients, their vectors elsewhere.

        Parameters
        ----------
        worker : int
        told : tuple of (list, list)
            What it has said of them: :attr:`KeptHere.told`.
        """
        forms, found = told[0], list[Sent | None]()
        for digested in told[1]:
            if digested is None or isinstance(digested, Sent):
                found.append(digested)
                continue
            place, form, facts, content, digest = digested
            vectors = {
                name: Elsewhere(self, (worker, place), name, shape, norm, (first, last))
                for (name, shape), (norm, first, last) in zip(forms[form], facts, strict=True)
            }
            found.append(Sent(vectors, content, digest))
        return found

    def sums(self, name: str, factors: Sequence[tuple[Elsewhere, float]]) -> list[NDArray[np.float64]]:
        """Return the weighted sum of each worker's vectors, in the order of the workers.

        Parameters
        ----------
        name : str
        factors : sequence of (Elsewhere, float)

        Raises
        ------
        FlwrFcoError
            If a worker has died, and its clients remembered what nobody else knows.
        """
        asked: dict[int, tuple[list[int], list[float]]] = {}
        for vector, factor in factors:
            worker, place = vector.place
            places, own = asked.setdefault(worker, ([], []))
            places.append(place)
            own.append(factor)
        calls = {k: ("sum", self._run_id, self._number, name, *asked[k]) for k in sorted(asked)}
        found = self._ask(calls)
        lost = {k: self._calls[k] for k, answer in found.items() if answer is None}
        if lost:
            # Another worker in the place of one that has died since: its clients answer again, the same.
            again = self._ask(lost)
            if any(digested is None for _, own in again.values() for digested in own):
                raise FlwrFcoError(
                    "a worker died between its clients' answers and their sum, and they remembered what is nowhere "
                    "else; go on from a checkpoint, or run without partial_sums"
                )
            found |= self._ask({k: calls[k] for k in lost})
        return [found[k] for k in calls]

    def whole(self, vector: Elsewhere) -> NDArray[np.float64]:
        """Return a vector: the sum of it alone.

        Parameters
        ----------
        vector : Elsewhere
        """
        return self.sums(vector.name, [(vector, 1.0)])[0]
