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
#: An answer of which the vectors stay with the worker: what is known of them, and all else.
Digested = tuple[dict[str, Any], Any, str]


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
        self.digests = [None if answer is None else self._keep(answer) for answer in answers]

    def _keep(self, answer: Sent) -> Digested:
        facts: dict[str, Any] = {}
        for name, vector in answer.vectors.items():
            if isinstance(vector, SparseVector) or not vector.size:
                # Short as it is.
                return answer.vectors, answer.content, answer.digest
            norm = math.sqrt(np.vdot(vector, vector))
            if not math.isfinite(norm):
                # The server says what is wrong with it.
                return answer.vectors, answer.content, answer.digest
            facts[name] = vector.shape, norm, (vector.item(0), vector.item(-1))
        self._vectors.append(answer.vectors)
        return {"": len(self._vectors) - 1, **facts}, answer.content, answer.digest

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

    def sent(self, worker: int, digested: Digested | None) -> Sent | None:
        """Return a client's answer, its vectors elsewhere.

        Parameters
        ----------
        worker : int
        digested : tuple or None
        """
        if digested is None:
            return None
        facts, content, digest = digested
        if "" in facts:
            place = worker, facts.pop("")
            facts = {name: Elsewhere(self, place, name, *known) for name, known in facts.items()}
        return Sent(facts, content, digest)

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
            if any(digested is None for own in again.values() for digested in own):
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
