"""A client in a round, as its half of the method and the engines see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract import ClientHalf, Disclosure, Moved, Start, Step
from flwr_fco.core.layout import Vector
from flwr_fco.engines.sparse_steps import Shard, has_sparse_rows, tell_dense
from flwr_fco.errors import ProtocolError
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.objectives.base import Objective


def pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield batches in pairs.

    Parameters
    ----------
    batches : iterable
        An even number of batches.

    Examples
    --------
    >>> list(pairs("abcd"))
    [('a', 'b'), ('c', 'd')]
    """
    one_by_one = iter(batches)
    return zip(one_by_one, one_by_one, strict=True)


def as_sent(vector: Vector, plan: Plan) -> Vector:
    """Round to the wire's precision, so that the client stores the same numbers that the server receives."""
    # With "auto" a client with state sends all digits.
    rounded = vector.astype(np.float32) if plan.wire_dtype == "float32" else vector
    return rounded.astype(np.float64, copy=False)


class LocalClient(NamedTuple):
    """A client in a round: what its half of an algorithm gets.

    Parameters
    ----------
    half : type of ClientHalf
        The half of the algorithm that it runs.
    downlink : Downlink
        The whole message; at the coordinates of the shard if there is one.
    objective : Objective
        The client's loss; as a function of these coordinates if there is a shard.
    rng : numpy.random.Generator
        The generator of this (seed, round, partition).
    engines : mapping of str to callable
        What runs a client half, by name.
    disclosure : Disclosure
        What may leave, as the client's owner says.
    features : Shard or None
        The coordinates of the client's sparse features, if an engine's steps can be done on these.
    shard : Shard or None
        The same, if all of the round is done on these.

    Examples
    --------
    >>> from flwr_fco import Euclidean, LeastSquares, Zero
    >>> from flwr_fco.algorithms import GradientSteps
    >>> loss = LeastSquares(np.eye(2), np.array([1.0, 2.0]))
    >>> downlink = Downlink(Plan("gradient_steps", loss.layout, Zero(), Euclidean()), {}, client_lr=0.1)
    >>> LocalClient(GradientSteps, downlink, loss, np.random.default_rng(0), {}, Disclosure()).rate
    0.1
    """

    half: type[ClientHalf]
    downlink: Downlink
    objective: Objective
    rng: np.random.Generator
    engines: Mapping[str, Callable[[Any, Start], Moved]]
    disclosure: Disclosure
    features: Shard | None = None
    shard: Shard | None = None

    @property
    def plan(self) -> Plan:
        """The settings that all rounds share."""
        return self.downlink.plan

    @property
    def rate(self) -> float:
        """The step size.

        Raises
        ------
        ProtocolError
            If the server's message has none.
        """
        rate = self.downlink.client_lr
        if math.isnan(rate):
            what = f"the local solver {self.downlink.plan.solver!r} needs a learning rate"
            raise ProtocolError(f"{what}; the server's message has no client-lr")
        return rate

    def run(self, engine: str, start: Start) -> Moved:
        """Run an engine, by its key in :data:`flwr_fco.engines.ENGINES`."""
        return self.engines[engine](self, start)

    def take_steps(self, point: Vector, step: Step, *, in_pairs: bool = False) -> Moved:
        """Take primal steps, each with one batch or with a pair of them.

        Parameters
        ----------
        point : ndarray of float64, shape (d,)
            The point before the first step; not changed.
        step : callable
            ``step(point, batch)`` changes the point in place.
        in_pairs : bool, default False
            Whether a step gets a pair of batches.
        """
        plan, rate = self.plan, self.rate
        if has_sparse_rows(self.objective):
            tell_dense(plan, f"{plan.solver} moves all of them in every step")
        moved, steps = point.copy(), 0
        drawn = self.objective.batches(self.rng, self.downlink.first_order, per_step=2 if in_pairs else 1)
        for batch in pairs(drawn) if in_pairs else drawn:
            step(moved, batch)
            steps += 1
        return Moved(moved - point, rate * steps, steps)

    def as_sent(self, vector: Vector) -> Vector:
        """Round a vector to the wire's precision, so that both sides remember the same numbers."""
        return as_sent(vector, self.plan)

    def point(self, dual: Vector, elapsed: float) -> Vector:
        """Return retrieve(dual, elapsed) at the coordinates that the client works on."""
        if self.shard is not None:
            return self.shard.coordinates.retrieve(dual, elapsed)
        return self.plan.point(dual, elapsed)
