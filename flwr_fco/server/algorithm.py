"""The contract of an algorithm: functions of (problem, state), which know neither Flower nor messages.

An algorithm defines the state (:meth:`Algorithm.init`), the message to the clients (:meth:`Algorithm.downlink`), the
next state from their replies (:meth:`Algorithm.aggregate`), and the model of a state (:meth:`Algorithm.retrieve`). A
strategy runs it through Flower; a dozen lines of NumPy run it on paper::

    problem = Problem.of(plan, client_lr=0.1, server_lr=1.0)
    state = algorithm.init(problem, start)
    for _ in range(rounds):
        downlink = algorithm.downlink(problem, state, None)
        uplinks = [...]                                     # a local solver's answers, with weights that sum to 1
        state = algorithm.aggregate(problem, state, Replies(uplinks))
    model = algorithm.retrieve(problem, state)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

from flwr_fco.algorithms.contract import ClientHalf, halves
from flwr_fco.core.layout import Layout, Vector
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer
from flwr_fco.server.clients.graph import Graph, Matrix
from flwr_fco.server.clients.memory import Change, ClientMemories
from flwr_fco.server.convergence import Limit
from flwr_fco.server.questions.rates import LossFacts
from flwr_fco.server.replies.replies import Replies
from flwr_fco.wire.protocol import Downlink, Node, Option, Plan


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
    num_rounds : int or None
        Total number of rounds, if known.
    memories : ClientMemories or None
        The server's record of clients with memories.
    graph : Graph or None
        The communication graph.
    restoring : set of int
        Ids of nodes that have lost their state, and receive it again.
    answered_start : set of int
        Ids of nodes that have answered round 0 for the state of this round.
    numbers : mapping of str to float
        Values in this round of the options that may be ``"auto"`` or a function of the round.
    """

    plan: Plan
    layout: Layout
    h: MirrorMap
    psi: BoundRegularizer
    client_lr: float = math.nan
    server_lr: float = math.nan
    round: int = 0
    asked: Sequence[Node] = ()
    num_rounds: int | None = None
    memories: ClientMemories | None = None
    graph: Graph | None = None
    restoring: AbstractSet[int] = frozenset()
    answered_start: AbstractSet[int] = frozenset()
    numbers: Mapping[str, float] = MappingProxyType({})

    @classmethod
    def of(cls, plan: Plan, **others: Any) -> Problem:
        """Return the problem of a plan.

        Parameters
        ----------
        plan : Plan
        **others
            The fields after `psi`.
        """
        return cls(plan, plan.layout, plan.h, plan.psi, **others)

    @property
    def clients(self) -> ClientMemories:
        """The server's record of clients, for methods whose clients remember something."""
        assert self.memories is not None
        return self.memories

    def with_plan(self, plan: Plan) -> Problem:
        """Return the problem with another plan.

        Parameters
        ----------
        plan : Plan
        """
        return self._replace(plan=plan, layout=plan.layout, h=plan.h, psi=plan.psi)

    def retrieve(self, dual: Vector, elapsed: float) -> Vector:
        """Return argmin_w -<dual, w> + elapsed psi(w) + h(w).

        Parameters
        ----------
        dual : ndarray of float64, shape (d,)
        elapsed : float
            The weight of psi.
        """
        return self.plan.point(dual, elapsed)


class Algorithm(ABC):
    """The server half of a method: functions of (problem, state), and class variables that describe the method.

    A state is a NamedTuple of float64 arrays and numbers with a field ``round``, the number of successful rounds. It
    holds all that changes: the functions modify neither the state nor the algorithm.
    """

    #: Name of the client half in ``flwr_fco.client_apps``.
    local_solver: ClassVar[str]
    #: The limit of the method, with its own check.
    limit: ClassVar[Limit]
    #: ``"everyone"``: all clients take part in every round; silent ones are asked again in the same round.
    participation: ClassVar[Literal["sample", "everyone"]] = "sample"
    #: Whether each node gets its own message.
    personal: ClassVar[bool] = False
    #: The method's own options that may be functions of the round.
    own_rates: ClassVar[tuple[str, ...]] = ()
    #: Whether a run is free of random choices for all options, so that its seed has no effect.
    deterministic: ClassVar[bool] = False
    #: For tables: the source, what a client sends and remembers, vectors down and up per round.
    source: ClassVar[str] = "your own"
    sends: ClassVar[str] = "z_K - z_0"
    remembers: ClassVar[str] = "nothing"
    traffic: ClassVar[str] = "1 / 1"

    #: Whether the option `sparsity` also applies to the last point, not only to averages.
    sparse_last: ClassVar[bool] = True
    #: Why psi is refused; None if it is allowed.
    no_psi: ClassVar[str | None] = None
    #: Why non-Euclidean geometries are refused; None if they are allowed.
    euclidean: ClassVar[str | None] = None
    #: Why the server must take the mean of the increments; empty if another centre makes sense.
    needs_mean: ClassVar[str] = "it does not say what another centre than the mean would make of it"
    #: Whether the server takes a plain mean of increments, so that their norms can set its step size.
    extrapolates: ClassVar[bool] = False
    #: Whether the clients run this package's solvers, whose `elapsed` is client_lr times steps; others may use
    #: schedules.
    exact_elapsed: ClassVar[bool] = False

    # --- the mathematics ------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1.

        Parameters
        ----------
        problem : Problem
        primal : ndarray of float64, shape (d,)
            The user's initial model.
        """

    @abstractmethod
    def downlink(self, problem: Problem, state: Any, node: Node | None) -> Downlink:
        """Return the message to a node in this round.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        node : Node or None
            None unless the method is `personal`: all nodes get the same message.
        """

    @abstractmethod
    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the next state: the server update of the paper's box.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        replies : Replies
            Sorted by partition id, with weights that sum to 1.
        """

    @abstractmethod
    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the primal point of a state.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """

    @classmethod
    def client_half(cls) -> type[ClientHalf] | None:
        """Return the method's client half; None for a local solver that is a function of the user's."""
        return halves().get(cls.local_solver)

    # --- what else a method may say --------------------------------------------------------------------------------

    def at(self, problem: Problem, state: Any) -> Problem:
        """Return the problem with the changes of a state, such as the rates of a stage.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """
        return problem

    def geometry(self, mirror_map: MirrorMap, primal: Vector) -> MirrorMap:
        """Return the mirror map of a run: the user's, unless a method shifts or restricts it.

        Parameters
        ----------
        mirror_map : MirrorMap
            The user's.
        primal : ndarray of float64, shape (d,)
            Start point of the run.
        """
        return mirror_map

    def stage_geometry(self, mirror_map: MirrorMap, state: Any) -> MirrorMap | None:
        """Return the mirror map of the state's stage; None without stages, for the mirror map of the run.

        Parameters
        ----------
        mirror_map : MirrorMap
            The user's.
        state : NamedTuple
        """
        return None

    def psi_at(self, layout: Layout, regularizer: Regularizer, state: Any) -> Regularizer:
        """Return the regularizer of a state: the user's, unless a method changes it between rounds.

        Parameters
        ----------
        layout : Layout
        regularizer : Regularizer
            The user's.
        state : NamedTuple or None
            None before there is one.
        """
        return regularizer

    def begins_stage(self, before: Any, after: Any) -> bool:
        """Return whether a new stage begins: another geometry, and a restart of memories and averages.

        Parameters
        ----------
        before, after : NamedTuple
        """
        return False

    def averaged_points(self, problem: Problem, before: Any, after: Any, replies: Replies) -> Iterable[Vector]:
        """Return the points of a round for an averaged output; by default only the last point.

        Parameters
        ----------
        problem : Problem
        before, after : NamedTuple
        replies : Replies
        """
        return (self.retrieve(problem, after),)

    def node_points(self, problem: Problem, state: Any) -> Matrix | None:
        """Return the primal points of all nodes of a graph, shape (M, d); None if all nodes share one model.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """
        return None

    def start_trackers(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after a round 0 in which every client has sent a gradient.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        replies : Replies
        """
        return state

    def memories_changed(self, problem: Problem, state: Any, change: Change) -> Any:
        """Return the state after clients have joined or left, or all clients have restarted.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        change : Change
        """
        return state

    def nodes_changed(self, problem: Problem, state: Any, left: Sequence[int]) -> Any:
        """Return the state with a row for each node of the graph, after nodes have left.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        left : sequence of int
            Rows of the nodes that have left since the last round.
        """
        return state

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each vector that a client sends.

        Parameters
        ----------
        problem : Problem
        """
        return {"increment": (problem.layout.size,)}

    def solver_options(self) -> dict[str, Option]:
        """Return the settings of the local solver that are not common to all methods."""
        return {}

    def short_wire(self, problem: Problem, state: Any) -> bool:
        """Whether float32 is enough for a round's messages with ``wire_dtype="auto"``.

        By default it is not: clients' memories and differences of successive broadcasts need all digits.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """
        return False

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return the theoretical step size of the local steps, and its formula.

        Parameters
        ----------
        problem : Problem
        smoothness : float
            L, in the norm in which the mirror map is strongly convex.
        steps : int
            K.
        """
        return 1.0 / (4.0 * smoothness), "1/(4 L)"

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return the theoretical values of the options that can be ``"auto"``, each with its formula.

        Parameters
        ----------
        problem : Problem
        facts : LossFacts
        """
        return {"client_lr": self.client_rate(problem, facts.curvature, facts.steps)}

    def metrics(self, problem: Problem, state: Any) -> dict[str, float | int]:
        """Return the numbers that the method adds to the metrics of each training round.

        Parameters
        ----------
        problem : Problem
        state : NamedTuple
        """
        return {}

    def describe(self) -> list[tuple[str, str]]:
        """Return the method's lines in ``summary()``, as pairs of a title and a text."""
        return []
