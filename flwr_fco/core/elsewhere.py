"""Vectors that lie in another process, of which only weighted sums are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError


class Keeper(Protocol):
    """Whoever has such vectors."""

    def sums(self, name: str, factors: Sequence[tuple[Elsewhere, float]]) -> Sequence[NDArray[np.float64]]:
        """Return arrays whose sum is that of factors times vectors."""

    def whole(self, vector: Elsewhere) -> NDArray[np.float64]:
        """Return a vector."""


class Elsewhere(NDArrayOperatorsMixin):
    """A vector that its keeper has; anything but a weighted sum of such is an error in words.

    Parameters
    ----------
    keeper : Keeper
    place : Any
        Where the keeper has it.
    name : str
        Such as ``"increment"``.
    shape : tuple of int
    norm : float
        Euclidean.
    ends : tuple of (float, float)
        Its first and last entries.
    """

    __slots__ = ("ends", "keeper", "name", "norm", "place", "shape")
    dtype = np.dtype(np.float64)

    def __init__(
        self,
        keeper: Keeper,
        place: Any,
        name: str,
        shape: tuple[int, ...],
        norm: float,
        ends: tuple[float, float],
    ) -> None:
        self.keeper, self.place, self.name = keeper, place, name
        self.shape, self.norm, self.ends = shape, norm, ends

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape))

    def item(self, place: int) -> float:
        """Return the first or the last entry.

        Parameters
        ----------
        place : {0, -1}
        """
        return self.ends[place]

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        raise ConfigurationError(
            f"partial_sums=True: the server gets weighted sums of what clients send, but this method or one of its "
            f"options needs every client's {self.name!r} by itself; run it without partial_sums"
        )

    __array__ = __array_ufunc__ = __array_function__ = __getitem__ = __iter__ = __len__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse()
