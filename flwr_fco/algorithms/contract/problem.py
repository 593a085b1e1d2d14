"""What an algorithm sees: of a run apart from its state, and of a client in a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from flwr_fco.algorithms.contract.graph import Graph
from flwr_fco.core.layout import Layout, Vector
from flwr_fco.messages.protocol import Node, Plan
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer
from flwr_fco.work import Work

#: Of a state whose output averages no other points than those that it retrieves.
NO_POINTS = np.zeros((0, 0))
#: A client's vectors by name, between rounds.
Memory = Mapping[str, Vector]
#: ``(point, batch) -> None``: a local step, which changes the point in place.
Step = Callable[[Vector, Batch], None]
#: The vectors to send by name.
Sent = dict[str, Vector]


class AtMost(tuple[int, ...]):
    """The shape of a vector that may be shorter.

    Examples
    --------
    >>> AtMost((3,)) == (3,)
    True
    """

    __slots__ = ()


class To(NamedTuple):
    """The client that a message goes to: all that a shorter message may depend on.

    Parameters
    ----------
    key : (int, int)
        :attr:`Node.key` of the client.
    begins : bool, default False
        Whether it has no memory yet: none of its replies has counted since memories last restarted.

    Examples
    --------
    >>> To((7, 0)).begins
    False
    """

    key: tuple[int, int]
    begins: bool = False


class Setting(NamedTuple):
    """Geometry, regularizer, work and rates: the user's, or those of a state's stage.

    Parameters
    ----------
    layout : Layout
        The model's arrays.
    start : ndarray of float64, shape (d,)
        Start point of the run.
    num_rounds : int or None
        Total number of rounds, if known.
    mirror_map : MirrorMap
        Gradient of h, between primal and dual points.
    regularizer : Regularizer
        Psi, before it is bound to the arrays.
    work : Work or None
        A client's work in a round; None if no group of options says it, and the algorithm must.
    client_lr, server_lr : float, optional
        Rates of a stage; None: the user's of the round.
    stage : int, default 0
        Number of the stage. With a new one, memories and averages restart.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, Euclidean
    >>> layout = Layout.from_arrays({"coef": np.zeros(2)})
    >>> Setting(layout, np.zeros(2), 10, Euclidean(), L1(0.1), None).stage
    0
    """

    layout: Layout
    start: Vector
    num_rounds: int | None
    mirror_map: MirrorMap
    regularizer: Regularizer
    work: Work | None
    client_lr: float | None = None
    server_lr: float | None = None
    stage: int = 0


class Problem(NamedTuple):
    """The context of a run for an algorithm's functions, apart from the state.

    Parameters
    ----------
    plan : Plan
        Settings that all messages of the run share.
    layout : Layout
        The model's arrays.
    h : MirrorMap
        Mirror map on the flat vector.
    psi : BoundRegularizer
        Regularizer on the flat vector.
    client_lr, server_lr : float
        Learning rates of this round; NaN for a method without them.
    round : int
        Current round, from 1; 0 before round 1, and in a round 0 that asks for first gradients.
    asked : sequence of Node
        Clients that are asked in this round, sorted by partition id.
    memories : Ledger or None
        The server's record of clients with memories: ``memory(key)``, and ``present``, the keys of those who are there.
    graph : Graph or None
        The communication graph.
    numbers : mapping of str to float
        Values in this round of the options that may be ``"auto"`` or a function of the round.
    given : Setting or None
        The user's geometry, regularizer and work, for methods that change them from state to state.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, Euclidean
    >>> plan = Plan("dual_averaging", Layout.from_arrays({"coef": np.zeros(2)}), L1(1.0), Euclidean())
    >>> Problem.of(plan, client_lr=0.1).retrieve(np.array([3.0, -0.5]), 1.0)
    array([2., 0.])
    """

    plan: Plan
    layout: Layout
    h: MirrorMap
    psi: BoundRegularizer
    client_lr: float = math.nan
    server_lr: float = math.nan
    round: int = 0
    asked: Sequence[Node] = ()
    memories: Any = None
    graph: Graph | None = None
    numbers: Mapping[str, float] = MappingProxyType({})
    given: Setting | None = None

    @classmethod
    def of(cls, plan: Plan, **others: Any) -> Problem:
        """Return the problem of a plan.

        Parameters
        ----------
        plan : Plan
            What the clients were sent before round 1.
        **others
            The fields after `psi`.
        """
        return cls(plan, plan.layout, plan.h, plan.psi, **others)

    def with_plan(self, plan: Plan) -> Problem:
        """Return the problem with another plan."""
        return self._replace(plan=plan, layout=plan.layout, h=plan.h, psi=plan.psi)

    def points(self) -> Vector:
        """Return room in a first state for the points of a round's local steps, if clients send them."""
        return np.zeros((self.plan.steps, self.layout.size)) if self.plan.sends_every_step else NO_POINTS

    def retrieve(self, dual: Vector, elapsed: float) -> Vector:
        """Return argmin_w -<dual, w> + elapsed psi(w) + h(w).

        Parameters
        ----------
        dual : ndarray of float64, shape (d,)
            The dual point.
        elapsed : float
            The weight of psi.
        """
        return self.plan.point(dual, elapsed)


class Change(NamedTuple):
    """A change of the federation that the state must follow.

    Parameters
    ----------
    means : mapping of str to ndarray, or None
        Weighted means of the memories of the current clients; None if unchanged up to the weights.
    population : float
        Sum of the weights of the current clients.
    left : sequence of int, default ()
        On a graph: rows of the nodes that have left since the last round.

    Examples
    --------
    >>> Change(None, population=3.0, left=[1]).left
    [1]
    """

    means: Mapping[str, Vector] | None
    population: float
    left: Sequence[int] = ()


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
