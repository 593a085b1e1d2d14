"""What an algorithm sees: of a run apart from its state, and of a client in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.engines.client import Client, Moved, Sent, Step
from flwr_fco.messages.protocol import Node, Plan
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer
from flwr_fco.work import Work

__all__ = ["NO_POINTS", "AtMost", "Change", "Client", "Memory", "Moved", "Problem", "Sent", "Setting", "Step", "To"]

#: Of a state whose output averages no other points than those that it retrieves.
NO_POINTS = np.zeros((0, 0))
#: A client's vectors by name, between rounds.
Memory = Mapping[str, Vector]


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
        The communication graph, of methods that have one.
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
    graph: Any = None
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
