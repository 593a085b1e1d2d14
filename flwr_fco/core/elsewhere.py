"""Vectors that are stored in another process, which returns only weighted sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError


class Keeper(Protocol):
    """The owner of such vectors."""

    def sums(self, name: str, factors: Sequence[tuple[Elsewhere, float]]) -> Sequence[NDArray[np.float64]]:
        """Return arrays whose sum is the sum of factors times vectors."""

    def whole(self, vector: Elsewhere) -> NDArray[np.float64]:
        """Return a vector."""


class Elsewhere(NDArrayOperatorsMixin):
    """A vector stored by its keeper; all operations except weighted sums raise an error.

    Parameters
    ----------
    keeper : Keeper
    place : Any
        The keeper's reference to it.
    name : str
        Name of the vector, such as ``"increment"``.
    shape : tuple of int
    norm : float
        Euclidean norm.
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
