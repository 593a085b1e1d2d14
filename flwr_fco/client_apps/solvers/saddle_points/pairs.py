"""Two fresh batches per step, for methods with an extra step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from flwr_fco.client_apps.quotas import timed
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink

__all__ = ["in_pairs", "plan_pairs"]


def in_pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield batches in pairs.

    Parameters
    ----------
    batches : iterable
        An even number of them.

    Examples
    --------
    >>> list(in_pairs("abcd"))
    [('a', 'b'), ('c', 'd')]
    """
    one_by_one = iter(batches)
    return zip(one_by_one, one_by_one, strict=True)


def plan_pairs(downlink: Downlink, objective: Objective, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of a round two by two; an epoch counts batches, not steps.

    Parameters
    ----------
    downlink : Downlink
    objective : Objective
    rng : numpy.random.Generator
    """
    return in_pairs(timed(objective.batches(rng, downlink.first_order, per_step=2)))
