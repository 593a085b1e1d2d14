"""A round's replies, as an algorithm reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np

from flwr_fco.algorithms.contract.client import ClientHalf, without_common
from flwr_fco.algorithms.contract.means import Direction, Mean, factors_of
from flwr_fco.algorithms.contract.problem import Memories
from flwr_fco.core.layout import Vector
from flwr_fco.core.sparse import SparseVector, add_to, dense, weighted_sum
from flwr_fco.wire.protocol import Downlink, Uplink


class Replies(Sequence[Uplink]):
    """The replies that count, sorted by partition id, with weights that sum to 1.

    Iterated over, they are uplinks with dense float64 vectors. Means and sums read vectors as they arrived (sparse, or
    float32) and cost no copies.

    Parameters
    ----------
    uplinks : sequence of Uplink
        Those of the round, with weights.
    centre : callable, optional
        The direction of the server's step; by default the mean, with all clients scaled to the same work.
    memories : Memories, optional
        The record of clients that remember something.
    half : type of ClientHalf, optional
        The method's client half.
    message : callable, optional
        Returns the whole message that the clients answer.

    Examples
    --------
    >>> replies = Replies([Uplink({"increment": np.ones(2)}, 0.5, 1, weight=w) for w in (0.25, 0.75)])
    >>> replies.mean()
    (array([1., 1.]), 0.5)
    """

    def __init__(
        self,
        uplinks: Sequence[Uplink],
        centre: Direction | None = None,
        memories: Memories | None = None,
        half: type[ClientHalf] | None = None,
        message: Callable[[], Downlink] | None = None,
    ) -> None:
        self._uplinks, self._centre, self._memories = uplinks, Mean() if centre is None else centre, memories
        self._half, self._whole = half, message

    def __len__(self) -> int:
        """Return the number of replies."""
        return len(self._uplinks)

    @overload
    def __getitem__(self, i: int) -> Uplink: ...

    @overload
    def __getitem__(self, i: slice) -> list[Uplink]: ...

    def __getitem__(self, i: int | slice) -> Uplink | list[Uplink]:
        """Return a reply with dense float64 vectors."""
        return [_whole(uplink) for uplink in self._uplinks[i]] if isinstance(i, slice) else _whole(self._uplinks[i])

    def __iter__(self) -> Iterator[Uplink]:
        """Yield the replies with dense float64 vectors."""
        return map(_whole, self._uplinks)

    def mean(self) -> tuple[Vector, float]:
        """Return the mean of the increments, or the centre that ``aggregation=`` chose, and of the elapsed times.

        With unequal work all clients are scaled to the same, if the strategy does that. The vector is a new array.
        """
        mean, elapsed = self._centre(self._uplinks)
        apart = [isinstance(uplink.vectors["increment"], SparseVector) for uplink in self._uplinks]
        if self._half is not None and self._half.common is not None and any(apart):
            # Clients with sparse features leave the effect of the common vector out.
            assert isinstance(self._centre, Mean)
            factors, _ = factors_of(self._uplinks, normalize=self._centre.normalize)
            parts = zip(factors, self._uplinks, apart, strict=True)
            times = sum(factor * uplink.step_sizes for factor, uplink, without in parts if without)
            mean -= times * self._message().vectors[self._half.common]
        return mean, elapsed

    def plain_mean(self, name: str, *, normalize: bool = False) -> Vector:
        """Return the weighted mean of a vector, whatever ``aggregation=`` is.

        Parameters
        ----------
        name : str
            Name of the vector.
        normalize : bool, default False
            Whether all clients are scaled to the same work, if the strategy does that.
        """
        return self._centre.mean(self._uplinks, name, normalize=normalize)

    def sum(self, name: str = "increment", *, over: float = 1.0) -> Vector:
        """Return the sum of the clients' weights, each divided by a number, times a vector.

        Parameters
        ----------
        name : str, default "increment"
            Name of the vector.
        over : float, default 1.0
            By what the weights are divided.
        """
        pairs = [(self._weight(uplink) / over, uplink.vectors[name]) for uplink in self._uplinks]
        total: Vector = weighted_sum(pairs, pairs[0][1].shape)
        return total

    def changes(self, onto: Vector) -> None:
        """Add, in the order of the clients, their weights times the method's ``change`` of what each of them remembers.

        Parameters
        ----------
        onto : ndarray of float64, shape (d,)
            Changed in place.
        """
        half, message = self._half, self._message()
        assert half is not None
        for uplink in self._uplinks:
            sent = {name: vector.astype(np.float64, copy=False) for name, vector in uplink.vectors.items()}
            some = sent["increment"]
            if isinstance(some, SparseVector):
                where = some.indices
                here = message._replace(vectors={name: vector[where] for name, vector in message.vectors.items()})
                values = {name: vector.values for name, vector in sent.items()}
                change: Any = some.with_values(half.change(without_common(half, here), values, uplink.elapsed))
            else:
                change = half.change(message, sent, uplink.elapsed)
            add_to(onto, self._weight(uplink), change)

    @property
    def weight(self) -> float:
        """Sum of the clients' weights in sums."""
        return sum(self._weight(uplink) for uplink in self._uplinks)

    @property
    def population(self) -> float:
        """Sum of the weights of all current clients, those without a reply too; of methods with memories."""
        return self._record().population(self._uplinks)

    @property
    def everybody(self) -> bool:
        """Whether all current clients have answered; of methods with memories."""
        return self._record().everybody(self._uplinks)

    @property
    def comparable(self) -> bool:
        """Whether the mean is of equal work: all did the same, or are scaled to it."""
        equal = all(uplink.elapsed == self._uplinks[0].elapsed for uplink in self._uplinks)
        return equal or bool(getattr(self._centre, "normalize", True))

    def _weight(self, uplink: Uplink) -> float:
        return uplink.weight if self._memories is None else self._memories.weight_of(uplink)

    def _record(self) -> Memories:
        assert self._memories is not None
        return self._memories

    def _message(self) -> Downlink:
        assert self._whole is not None
        return self._whole()


def _whole(uplink: Uplink) -> Uplink:
    """Return an uplink with dense float64 vectors."""
    if all(type(vector) is np.ndarray and vector.dtype == np.float64 for vector in uplink.vectors.values()):
        return uplink
    return uplink._replace(vectors={name: dense(vector) for name, vector in uplink.vectors.items()})
