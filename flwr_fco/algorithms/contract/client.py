"""A client in a round, as a method's half sees it, and what it says of its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.messages.protocol import Plan
from flwr_fco.objectives.base import Batch, Objective

#: A client's vectors by name, between rounds.
Memory = Mapping[str, Vector]
#: ``(point, batch) -> None``: a local step, which changes the point in place.
Step = Callable[[Vector, Batch], None]
#: The vectors to send by name.
Sent = dict[str, Vector]


class Moved(NamedTuple):
    """What a client says of its work.

    Parameters
    ----------
    elapsed : float or None
        Sum of the step sizes; None after a minimisation.
    steps : int
        Number of steps, or of a minimisation's iterations.
    metrics : mapping of str to float
        Numbers to report.

    Examples
    --------
    >>> moved = Moved(elapsed=0.5, steps=5)
    >>> moved.elapsed / moved.steps
    0.1
    """

    elapsed: float | None
    steps: int
    metrics: Mapping[str, float] = MappingProxyType({})


class Client(Protocol):
    """A client in a round: its loss, its generator, and the loops.

    The loops return what a method sends, ``{"increment": last point - start}``, and a :class:`Moved`.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> def shrunk(client: Client, dual):
    ...     return client.point(dual, client.rate)
    >>> shrunk(SimpleNamespace(rate=0.5, point=lambda dual, elapsed: dual - elapsed), 2.0)
    1.5
    """

    @property
    def objective(self) -> Objective:
        """The client's loss."""

    @property
    def rng(self) -> np.random.Generator:
        """The generator of this (seed, round, partition)."""

    @property
    def plan(self) -> Plan:
        """The settings that all rounds share."""

    @property
    def seed(self) -> int:
        """The seed of what is the same in all rounds, such as folds: the run's, or a secret of the client's owner."""

    @property
    def rate(self) -> float:
        """The step size; an error in words if the server's message has none."""

    def point(self, dual: Vector, elapsed: float) -> Vector:
        """Return retrieve(dual, elapsed) at the coordinates that the client works on."""

    def gradient(self, dual: Vector) -> tuple[Sent, Moved]:
        """Send one stochastic gradient, at retrieve(dual, the message's elapsed), in the place of an increment."""

    def dual_steps(
        self, dual: Vector, shift: Vector | float = 0.0, *, psi: bool = True, every: bool = False
    ) -> tuple[Sent, Moved]:
        """Take steps z <- z - rate (g(retrieve(z, t)) + shift), t = elapsed + rate k; without `psi` retrieve(z, 0).

        With `every` all z_k - z_0, k = 1..K, are sent as ``"trajectory"``.
        """

    def extragradient(self, dual: Vector, *, every: bool = False) -> tuple[Sent, Moved]:
        """Take steps of dual extrapolation with two batches each; with `every` send all z_{k+1/2} - z_0 too."""

    def proximal_steps(self, primal: Vector, *, psi: bool = True) -> tuple[Sent, Moved]:
        """Take steps w <- retrieve(grad h(w) - rate g(w), rate), or with `psi` False grad h*( . )."""

    def steps(self, point: Vector, step: Step, *, pairs: bool = False) -> tuple[Sent, Moved]:
        """Take steps of the method's own, each with one batch or with a pair of them."""

    def minimise(
        self,
        start: Vector,
        *,
        shift: Vector | float = 0.0,
        center: Vector | float = 0.0,
        penalty: float = 0.0,
        duality: float = 0.0,
    ) -> tuple[Vector, Moved]:
        """Return argmin f(x) - <shift, x> + penalty/2 ||x - center||^2.

        The certified gap depends on DualFL's nu, `duality`.
        """

    def as_sent(self, vector: Vector) -> Vector:
        """Round a vector to the wire's precision, so that both sides remember the same numbers."""
