"""Momentum of the server: it accumulates the centres of earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.means import Mean
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import saved_array
from flwr_fco.server.parts import Host, Part
from flwr_fco.wire.protocol import Uplink


class Momentum(Part):
    """Replaces a centre: velocity <- beta velocity + centre, and likewise for `elapsed`.

    Parameters
    ----------
    beta : float
        In (0, 1).
    centre : Mean
        Centre of a round's increments.
    """

    def __init__(self, beta: float, centre: Mean) -> None:
        self.beta, self.centre, self._size = beta, centre, 0
        self.forget()

    def forget(self) -> None:
        self._velocity: tuple[Vector, float] | None = None
        self._next: tuple[Vector, float] | None = None

    def start(self, size: int) -> None:
        """Take note of the size of the model."""
        self._size = size

    def __call__(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the velocity after a round, which counts once the round has succeeded.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        mean, elapsed = self.centre(uplinks)
        if self._velocity is not None:
            mean += self.beta * self._velocity[0]
            elapsed += self.beta * self._velocity[1]
        self._next = (mean.copy(), elapsed)
        return mean, elapsed

    def mean(self, uplinks: Sequence[Uplink], name: str = "increment", *, normalize: bool = False) -> Vector:
        """Return the plain weighted mean of a vector that clients send, without momentum.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        name : str, default "increment"
            Name of the vector.
        normalize : bool, default False
            Whether all clients are scaled to the same work, if the strategy does that.
        """
        return self.centre.mean(uplinks, name, normalize=normalize)

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Keep the velocity of a successful round."""
        self._velocity = self._next

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the velocity."""
        velocity, elapsed = (np.zeros(0), 0.0) if self._velocity is None else self._velocity
        return {"velocity": velocity, "elapsed": np.array(elapsed)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        velocity, elapsed = (
            saved_array(arrays, "velocity", np.float64, (None,)),
            saved_array(arrays, "elapsed", float, ()),
        )
        if velocity.size not in (0, self._size):
            raise ValueError(f"its velocity has {velocity.size} entries, expected {self._size}")
        self._velocity = (velocity, float(elapsed)) if velocity.size else None

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the momentum."""
        return [("Server momentum", f"{self.beta:g}")]
