"""The model that the user sees after a round, as arrays and as a vector."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.core.layout import Vector, all_finite
from flwr_fco.errors import ConfigurationError
from flwr_fco.wire.model import primal_record
from flwr_fco.wire.protocol import Plan


class Output(NamedTuple):
    """A primal model and what it was made from.

    Parameters
    ----------
    state : NamedTuple
        The server's state.
    plan : Plan
        Names, shapes and dtypes of the user's arrays.
    arrays : ArrayRecord
        Under the user's names, in the user's shapes and dtypes.
    point : ndarray of float64, shape (d,)
        The model as one vector.
    passed : dict of str to ndarray
        The arrays that are not optimised.
    """

    state: Any
    plan: Plan
    arrays: ArrayRecord
    point: Vector
    passed: dict[str, NDArray[Any]]

    @classmethod
    def of(
        cls, state: Any, plan: Plan, point: Vector, passed: dict[str, NDArray[Any]], *, takes: bool = False
    ) -> Output:
        """Return a point as the user sees it.

        Parameters
        ----------
        state : NamedTuple
            The server's state.
        plan : Plan
            What the clients were told before round 1.
        point : ndarray of float64, shape (d,)
            The point, flat.
        passed : dict of str to ndarray
            The arrays that are not optimised.
        takes : bool, default False
            Whether the point may be rounded in place, unless it is part of the state.
        """
        takes = takes and not any(isinstance(part, np.ndarray) and np.may_share_memory(part, point) for part in state)
        point = plan.layout.rounded(point, point if takes else None)
        return cls(state, plan, primal_record(plan.layout, point, passed), point, passed)

    def finite(self) -> bool:
        """Whether the model is finite: a map's exponential, or a conversion to the user's dtype, may overflow."""
        if not all_finite(self.point):
            return False
        return all(all_finite(array) for array in self.passed.values() if array.dtype.kind == "f")


def check_state(algorithm: Algorithm, before: Any, after: Any) -> None:
    """Reject what an algorithm's ``aggregate`` has returned, unless it is the next state.

    Raises
    ------
    ConfigurationError
        If it is of another type, or of another round.
    """
    who = f"{type(algorithm).__name__}.aggregate returned"
    if type(after) is not type(before):
        raise ConfigurationError(f"{who} {_kind_of(after)}; expected a {type(before).__name__}, as `init` returns")
    if after.round != before.round + 1:
        raise ConfigurationError(
            f"{who} a state with round={after.round!r} after round={before.round!r}; expected "
            f"{before.round + 1}, the number of rounds that have counted"
        )


def check_point(algorithm: Algorithm, point: Any, size: int) -> None:
    """Reject what an algorithm's ``retrieve`` has returned, unless it is a flat model.

    Raises
    ------
    ConfigurationError
        If it has another shape.
    """
    if np.shape(point) != (size,):
        raise ConfigurationError(
            f"{type(algorithm).__name__}.retrieve returned {_kind_of(point)}; expected an array of shape "
            f"({size},), the flat model"
        )


def _kind_of(value: object) -> str:
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
