"""The model that the user sees after a round, as arrays and as a vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector, all_finite
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
    """

    state: Any
    plan: Plan
    arrays: ArrayRecord
    point: Vector

    @classmethod
    def of(
        cls, state: Any, plan: Plan, point: Vector, passed: Mapping[str, NDArray[Any]], *, takes: bool = False
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
        passed : mapping of str to ndarray
            The arrays that are not optimised.
        takes : bool, default False
            Whether the point may be rounded in place, unless it is part of the state.
        """
        takes = takes and not any(isinstance(own, np.ndarray) and np.may_share_memory(own, point) for own in state)
        point = plan.layout.rounded(point, point if takes else None)
        return cls(state, plan, primal_record(plan.layout, point, passed), point)

    def finite(self) -> bool:
        """Whether the model is finite: a map's exponential, or a conversion to the user's dtype, may overflow."""
        if not all_finite(self.point):
            return False
        passed = (self.arrays[entry.name].numpy() for entry in self.plan.layout.passed_through)
        return all(all_finite(array) for array in passed if array.dtype.kind == "f")
