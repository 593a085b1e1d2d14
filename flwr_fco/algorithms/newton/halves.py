"""A path of strengths on complementary halves of the rows, in the same messages: what a stability selection takes.

Every client deals its rows into two halves, several times. A problem is a strength and a half, which the other one
leaves out as a fold is left out; nothing is validated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Downlink, Problem, To, Vector
from flwr_fco.algorithms.newton.path import DONE, NewtonPath, PathState
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.keys import HALVES


@dataclass(frozen=True, kw_only=True)
class NewtonHalves(NewtonPath):
    """The method of a path; the folds of its strengths are halves."""

    _after: ClassVar[float] = DONE

    def downlink(self, problem: Problem, state: PathState, to: To | None) -> Downlink:
        """Return the points of all open problems, and that the folds are halves."""
        told = super().downlink(problem, state, to)
        return told._replace(numbers={**told.numbers, HALVES: 1.0})

    def _check_shares(self, shares: Vector) -> None:
        apart = np.abs(shares[::2] + shares[1::2] - 1.0).max()
        if apart > 1e-6:
            raise ProtocolError(
                f"its rows in two complementary halves are {1.0 + apart:.6g} or {1.0 - apart:.6g} times all; expected 1"
            )


def models_of_halves(state: PathState) -> NDArray[np.float64]:
    """Return the models of each half, shape (halves, strengths, d), from the largest strength."""
    folds = len(state.populations)
    points = np.array(state.points).reshape(-1, folds, state.points.shape[1])
    return points[1:, 1:].transpose(1, 0, 2)
