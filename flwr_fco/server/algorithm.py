"""What an algorithm says of itself: the contract between the plain mathematics and the base that does the messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.convergence import Limit
from flwr_fco.server.options import AUTO, CommonOptions, Rate, RateOptions, WorkOptions, rate_at
from flwr_fco.server.questions.rates import LossFacts
from flwr_fco.server.replies.bounds import LARGEST_FACTOR, check_elapsed, check_examples, check_steps
from flwr_fco.server.replies.checks import LeftOut, Round, mean_increment
from flwr_fco.server.rounds.averaging import PointAverage
from flwr_fco.wire.protocol import OWN_LOOP, Downlink, Node, Option, Plan, Uplink
from flwr_fco.work import FirstOrder, Work

# Flower's names among them are for the algorithms, whose hooks mention them: none of those imports Flower itself.
__all__ = ["AUTOMATIC", "ArrayRecord", "ConfigRecord", "Grid", "MetricRecord", "RecordDict", "ServerHalf", "log"]


#: Options that theory can choose, and what they are until it has.
AUTOMATIC = {"client_lr": 0.1, "server_lr": 1.0, "anchor_weight": 10.0, "smoothness": 10.0, "nu": 0.01, "rho": 0.0}


class ServerHalf(CommonOptions, ABC):
    """The server half of an algorithm: what a strategy must say, and what it may say.

    It must set :attr:`local_solver` and :attr:`limit` and implement :meth:`init_state`, :meth:`vectors`,
    :meth:`aggregate` and :meth:`retrieve`; everything else has a default.

    Attributes
    ----------
    state : NamedTuple or None
        The server's state, float64 arrays and numbers; None before the first round.
    layout : Layout or None
        The model's arrays, from the initial arrays.
    nodes : Nodes
        Who is connected.
    current : Round
        The round under way: who was asked, what they were told.
    left_out : list of LeftOut
        The replies of this run that did not count, with round, node, partition and reason.
    averaging : PointAverage
        What the output is.
    """

    #: Name of the client half in ``flwr_fco.client_apps``.
    local_solver: ClassVar[str]
    #: What the method converges to, with its own check.
    limit: ClassVar[Limit]
    #: ``"everyone"``: all clients take part in every round; silent ones are asked again in the same round.
    participation: ClassVar[Literal["sample", "everyone"]] = "sample"
    #: Whether a run has no random choices whatever the options are, so that its seed has no effect.
    deterministic: ClassVar[bool] = False
    #: For tables: where it is from, what a client sends, what it remembers, vectors down and up in a round.
    source: ClassVar[str] = "your own"
    sends: ClassVar[str] = "z_K - z_0"
    remembers: ClassVar[str] = "nothing"
    traffic: ClassVar[str] = "1 / 1"

    #: Why the server must take the mean of the increments; empty: another centre makes sense.
    needs_mean: ClassVar[str] = "it does not say what another centre than the mean would make of it"
    #: Whether the server takes a plain mean of increments, whose lengths can say how far to go along it.
    extrapolates: ClassVar[bool] = False
    #: Whether the clients run our own solvers, whose `elapsed` is client_lr times steps; others' may have schedules.
    exact_elapsed: ClassVar[bool] = False

    state: Any = None
    #: What was chosen for options that are "auto".
    chosen: dict[str, float]
    #: The clients' memories of a strategy that has them.
    memories: ClientMemories | None = None
    layout: Layout | None
    nodes: Nodes
    current: Round
    left_out: list[LeftOut]
    averaging: PointAverage
    _plan: Plan | None
    #: Of the rates that are functions of the round: the function, the round that it was last asked for, its answer.
    _rates_known: dict[str, tuple[Rate, int, float]]

    # --- the mathematics: what a subclass says --------------------------------------------------------------------

    @abstractmethod
    def init_state(self, primal: Vector) -> Any:
        """Return the state before round 1.

        Parameters
        ----------
        primal : ndarray of float64, shape (d,)
            The user's initial model.
        """

    @abstractmethod
    def vectors(self, state: Any) -> dict[str, Vector]:
        """Return the vectors that the clients are sent, each of shape (d,)."""

    @abstractmethod
    def aggregate(self, state: Any, uplinks: Sequence[Uplink]) -> Any:
        """Return the next state: the server update of the paper's box.

        Parameters
        ----------
        state : NamedTuple
        uplinks : sequence of Uplink
            Sorted by partition id, their weights summing to 1.
        """

    @abstractmethod
    def retrieve(self, state: Any) -> Vector:
        """Return the primal point of a state."""

    def short_wire(self, state: Any) -> bool:
        """Whether float32 is enough for a round's messages with ``wire_dtype="auto"``.

        By default never: what clients remember, and differences of successive broadcasts, need all digits.

        Parameters
        ----------
        state : NamedTuple
        """
        return False

    def output_point(self, state: Any) -> Vector:
        """Return the primal point that evaluation and the user see."""
        return self.averaging.point(state, lambda: self.retrieve(state))

    def node_primals(self) -> NDArray[np.float64] | None:
        """Return the primal points of all nodes of a graph, shape (M, d); None where there is one model for all."""
        return None

    def downlink(self, state: Any, node: Node) -> Downlink:
        """Return what a node is told in this round (the same for all nodes unless a subclass says otherwise)."""
        shared = self.current.shared
        if shared is None or shared[0] is not state:
            elapsed = float(getattr(state, "elapsed", 0.0))
            shared = (state, Downlink(self.plan, self.vectors(state), self.rates()[0], elapsed))
            self.current.shared = shared
        return shared[1]

    def uplink_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each vector that a client sends."""
        return {"increment": (self.plan.layout.size,)}

    def work(self) -> Work:
        """Return what a client does in a round."""
        options: object = self
        if not isinstance(options, WorkOptions):
            raise ConfigurationError(f"{type(self).__name__} does not say what a client does; override `work`")
        return FirstOrder(options.local_steps, options.local_epochs, options.batch_size)

    def rates(self) -> tuple[float, float]:
        """Return the client's and the server's learning rate of the round under way; NaN where there is none."""
        options: object = self
        if not isinstance(options, RateOptions):
            return math.nan, math.nan
        return self._rate("client_lr", options.client_lr), self._rate("server_lr", options.server_lr)

    def client_lr_now(self) -> float:
        """Return the client's learning rate of the round under way, which is worked out once; see :meth:`rates`."""
        current = self.current
        if current.client_lr is None:
            current.client_lr = self.rates()[0]
        return current.client_lr

    def _rate(self, name: str, rate: Rate) -> float:
        return self.number(name) if rate == AUTO else self.rate_now(name, rate)

    def rate_now(self, name: str, rate: Rate) -> float:
        """Return a rate in the round under way; a function of the round is called once in a round.

        Clients and server must mean the same number, also where the function keeps a count of its own.

        Parameters
        ----------
        name : str
            Of the option.
        rate : float or callable
        """
        if not callable(rate):
            return rate_at(name, rate, 1)
        server_round = max(self.current.number, 1)
        known = self._rates_known.get(name)
        if known is None or known[0] is not rate or known[1] != server_round:
            known = self._rates_known[name] = (rate, server_round, rate_at(name, rate, server_round))
        return known[2]

    def number(self, name: str) -> float:
        """Return an option that may be ``"auto"``: what was chosen for it, and before that its default.

        Parameters
        ----------
        name : str
        """
        value = getattr(self, name)
        if value != AUTO:
            return float(value)
        return self.chosen.get(name, AUTOMATIC[name])

    def client_rate(self, smoothness: float, steps: int) -> tuple[float, str]:
        """Return the rate of the local steps that the method's theory allows, and its formula.

        Parameters
        ----------
        smoothness : float
            L, in the norm in which the mirror map is strongly convex.
        steps : int
            K.
        """
        return 1.0 / (4.0 * smoothness), "1/(4 L)"

    def theory(self, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return what theory says for the options that can be ``"auto"``, each with its formula.

        Parameters
        ----------
        facts : LossFacts
        """
        return {"client_lr": self.client_rate(facts.curvature, facts.steps)}

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map of a run that starts at this point: the user's, unless a method shifts or cuts it."""
        return self.mirror_map

    def solver_options(self) -> dict[str, Option]:
        """Return what the local solver must know besides the common settings."""
        return {}

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines that a subclass adds to :meth:`summary`, as pairs of a title and a text."""
        return []

    def centre(self, uplinks: Sequence[Uplink]) -> tuple[Vector, float]:
        """Return the centre of the increments by the option `aggregation`, and the mean of the elapsed times.

        Parameters
        ----------
        uplinks : sequence of Uplink
        """
        normalize = bool(getattr(self, "normalize_local_work", True))
        return mean_increment(uplinks, normalize=normalize, aggregation=self.aggregation, trim=self.trim)

    def step_size(self) -> float:
        """Return what a client adds to its `elapsed` in a step: client_lr, or 1 in a method without rates."""
        client_lr = self.rates()[0]
        return 1.0 if math.isnan(client_lr) else client_lr

    def check_claims(self, node: Node, uplink: Uplink, num_examples: float | None) -> None:
        """Hold what a client says of itself against what the server knows.

        Parameters
        ----------
        node : Node
            Who answers.
        uplink : Uplink
            As it was read, with the client's weight in ``examples``.
        num_examples : float or None
            The client's number of examples; None if it reports none.

        Raises
        ------
        ProtocolError
            With the reason for which the reply is left out.
        """
        current = self.current
        work, own_loop = current.jobs.get(node.node_id) or self.plan.work, OWN_LOOP in uplink.metrics
        # Most clients of a round say the same.
        claims = (work, num_examples, uplink.examples, uplink.steps, uplink.elapsed, own_loop)
        if claims == current.possible:
            return
        check_examples(max(uplink.examples, num_examples or 0.0), self.max_examples)
        if not isinstance(work, FirstOrder):
            check_steps(uplink.steps, work.max_iterations)
            return
        if uplink.elapsed is None:
            return
        if work.steps is None and num_examples is None:
            raise ProtocolError("it does not report 'num-examples', from which its number of steps follows")
        most = max(1, work.num_draws(int(num_examples or 1)))
        check_steps(uplink.steps, LARGEST_FACTOR * most if own_loop else most)
        if current.step_size is None:
            current.step_size = self.step_size()
        check_elapsed(uplink.elapsed, uplink.steps, current.step_size, exact=self.exact_elapsed and not own_loop)
        current.possible = claims

    # --- what a round may need besides ----------------------------------------------------------------------------

    def before_round(
        self, grid: Grid, server_round: int, config: ConfigRecord, nodes: Sequence[Node]
    ) -> Sequence[Node]:
        """Do what a method must do once it knows the nodes and before the messages are made; return whom to ask.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        server_round : int
        config : ConfigRecord
            The user's train config.
        nodes : sequence of Node
            The round's sample.
        """
        return nodes

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Do what follows from a successful round besides its new state: these uplinks have counted.

        Parameters
        ----------
        before : NamedTuple
            The state before the round; ``self.state`` is the one after it.
        uplinks : sequence of Uplink
            Those that were aggregated.
        """

    def state_lost(self, node: Node) -> bool:
        """Whether a node that has lost its state can be sent it again."""
        return False

    def nodes_needed(self) -> int:
        """Return how many nodes must be connected before a round begins."""
        return int(self.min_available_nodes)

    def round_metrics(self) -> dict[str, float | int]:
        """Return the numbers that a method adds to the metrics of each training round."""
        return {}

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what :meth:`save_state` stores besides the state and the pass-through arrays."""
        return {}

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave, after the state has been restored."""

    # --- what the mathematics may use -----------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What all messages of this run have in common."""
        if self._plan is None:
            raise ConfigurationError(
                f"{type(self).__name__} does not know the model yet; call `prepare(initial_arrays)` or `start(...)`"
            )
        return self._plan

    @property
    def psi(self) -> BoundRegularizer:
        """The regularizer on the flat vector."""
        return self.plan.psi

    @property
    def h(self) -> MirrorMap:
        """The mirror map on the flat vector."""
        return self.plan.h

    @property
    def server_round(self) -> int:
        """The round under way, from 1."""
        return self.current.number

    def asked_partitions(self) -> list[int | None]:
        """Return the partition ids of the nodes that were asked last, in the order of their sums."""
        return [node.partition_id for node in self.current.nodes.values()]
