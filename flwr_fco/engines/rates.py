"""What every engine takes from a message: its step size and the precision of its answer."""

from __future__ import annotations

import math

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.protocol import Downlink, Plan


def rate_of(downlink: Downlink) -> float:
    """Return the step size of a local solver that has one.

    Parameters
    ----------
    downlink : Downlink

    Raises
    ------
    ProtocolError
        If the server's message has no step size.
    """
    if math.isnan(downlink.client_lr):
        raise ProtocolError(
            f"the local solver {downlink.plan.solver!r} needs a learning rate; the server's message has no client-lr"
        )
    return downlink.client_lr


def as_sent(vector: Vector, plan: Plan) -> Vector:
    """Round to the wire's precision, so that the client stores the same numbers that the server receives."""
    # With "auto" a client with state sends all digits.
    rounded = vector.astype(np.float32) if plan.wire_dtype == "float32" else vector
    return rounded.astype(np.float64, copy=False)
