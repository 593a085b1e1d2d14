"""Weighted sums of the vectors sent by clients with memories."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fco.core import sparse
from flwr_fco.core.layout import Vector
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.wire.protocol import Uplink


def memories_of(problem: Problem) -> ClientMemories:
    """Return the record of the clients' memories, for methods that always have one.

    Parameters
    ----------
    problem : Problem
    """
    assert problem.memories is not None
    return problem.memories


def weighted_sum(problem: Problem, uplinks: Sequence[Uplink], name: str = "increment") -> Vector:
    """Return the weighted sum of the clients' vectors (not divided by the total weight).

    Parameters
    ----------
    problem : Problem
    uplinks : sequence of Uplink
    name : str, default "increment"
    """
    memories = memories_of(problem)
    pairs = ((memories.weight_of(uplink), uplink.vectors[name]) for uplink in uplinks)
    total: Vector = sparse.weighted_sum(pairs, (problem.layout.size,))
    return total


def weighted_mean(problem: Problem, uplinks: Sequence[Uplink], name: str = "increment") -> Vector:
    """Return the weighted mean of the clients' vectors.

    Parameters
    ----------
    problem : Problem
    uplinks : sequence of Uplink
    name : str, default "increment"
    """
    memories = memories_of(problem)
    return weighted_sum(problem, uplinks, name) / sum(memories.weight_of(uplink) for uplink in uplinks)
