"""The messages of a strategy: requests to the nodes in a round, and the valid answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from logging import INFO
from typing import Any, Protocol

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Problem, To, named
from flwr_fco.algorithms.dual_averaging import short_wire
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import NonZeros, SparseVector, is_shorter
from flwr_fco.core.spec import Spec
from flwr_fco.errors import ClientError, ConfigurationError, ProtocolError
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.clients.remembering import variate_objections
from flwr_fco.server.clients.schemas import Schemas
from flwr_fco.server.options import CommonOptions, max_ratio_of, weights_of
from flwr_fco.server.parts import Letter, Part, rounded
from flwr_fco.server.replies import bounds, checks
from flwr_fco.server.replies.checks import LeftOut, Reply, Round, compared_metrics
from flwr_fco.server.replies.metrics import evaluation_objections, metric_objections, training_metrics
from flwr_fco.server.rounds.output import Output
from flwr_fco.wire.arrays import config_of_round
from flwr_fco.wire.client_state import uplink_digest
from flwr_fco.wire.downlink import downlink_records
from flwr_fco.wire.envelope import RoundCache, addressed, count_bytes, send_and_receive
from flwr_fco.wire.flower import bytes_of
from flwr_fco.wire.keys import SCHEMA, UNITS
from flwr_fco.wire.metrics import average_metrics, check_metrics, with_metric, without_metric
from flwr_fco.wire.protocol import Downlink, Node, Plan, Uplink
from flwr_fco.wire.uplink import Sent, SentReader, as_reply, num_examples, read_uplink, vector_names
from flwr_fco.work import FirstOrder

#: Number of repeated requests to silent nodes if all clients must take part.
_REPEATS = 2
#: Maximum growth of the number of examples behind a client's steps, from one of its answers to the next.
_GROWTH = 2.0


#: Bytes of clients' coordinates that the server remembers; other clients get whole vectors.
MOST_PLACES = 2**28
#: Model size from which on the server checks whether most of a broadcast is zero.
LONG = 10_000


class Language(Protocol):
    """The way to address clients of one kind, and to read their answers."""

    def content(self, mail: Mail, node: Node, downlink: Downlink, serialised: RoundCache) -> RecordDict:
        """Return the content of a node's message."""

    def read(self, mail: Mail, content: RecordDict) -> Uplink:
        """Return the uplink of a reply, or raise :class:`ProtocolError` with the reason why it does not count."""

    def check(self, mail: Mail, node: Node, uplink: Uplink, num_examples: float | None) -> None:
        """Check a client's claims against the server's knowledge.

        Raises
        ------
        ProtocolError
            With the reason why the reply does not count.
        """


class OwnClients:
    """The language of this package's ClientApp."""

    def content(self, mail: Mail, node: Node, downlink: Downlink, serialised: RoundCache) -> RecordDict:
        """Return the content of a node's message, with the plan on the first occasion."""
        informed = node.node_id in mail.nodes.informed
        records = serialised.content(downlink, informed)
        if records is None:
            passed = mail.pass_through_arrays
            records = downlink_records(
                downlink._replace(pass_through=passed) if passed else downlink,
                digest=mail.digest,
                arrayrecord_key=mail.options.arrayrecord_key,
                configrecord_key=mail.options.configrecord_key,
                config=mail.config_of_round,
                plan=None if informed else mail.spec,
                serialised=serialised,
                wire_dtype=mail.current.wire_dtype if mail.plan.wire_dtype == "auto" else "float64",
            )
            serialised.keep(downlink, informed, records)
        return records

    def read(self, mail: Mail, content: RecordDict) -> Uplink:
        """Return the uplink of a reply."""
        plan, current = mail.plan, mail.current
        return read_uplink(
            content,
            plan.layout,
            shapes=current.shapes,
            wire_dtype=current.wire_dtype if plan.wire_dtype == "auto" else plan.wire_dtype,
            weighted_by_key=mail.options.weighted_by_key,
            timed=isinstance(plan.work, FirstOrder),
        )

    def check(self, mail: Mail, node: Node, uplink: Uplink, num_examples: float | None) -> None:
        """Check a client's claims against the server's knowledge."""
        current = mail.current
        work = current.works.get(node.node_id) or mail.plan.work
        declared = mail.declared.get(node.node_id, num_examples) if mail.declared else num_examples
        # Most clients of a round report the same.
        claims = (work, num_examples, declared, uplink.examples, uplink.steps, uplink.elapsed)
        if claims == current.possible:
            return
        bounds.check_examples(max(uplink.examples, num_examples or 0.0), mail.options.bounds.max_examples)
        if not isinstance(work, FirstOrder):
            bounds.check_steps(uplink.steps, work.max_iterations)
            return
        if uplink.elapsed is None:
            return
        if work.steps is None and num_examples is None:
            raise ProtocolError("it does not report 'num-examples', from which its number of steps follows")
        # Data may grow, but not suddenly.
        count = num_examples if declared is None else min(num_examples or 1.0, _GROWTH * declared)
        most = max(1, work.num_draws(int(count or 1)))
        if mail.own_loops:
            bounds.check_steps(uplink.steps, bounds.LARGEST_FACTOR * most)
        else:
            bounds.check_steps(uplink.steps, most, bounds.OWN_LOOPS)
        # A method's own loop may take steps of other sizes.
        exact = not mail.own_loops and (mail.algorithm.engine is not None or mail.rateless)
        bounds.check_elapsed(uplink.elapsed, uplink.steps, mail.step_size(), exact=exact)
        current.possible = claims


class Mail(Part):
    """Messages of a training round: made, sent again after losses, and checked on return.

    Parameters
    ----------
    options : CommonOptions
        The strategy, whose options these are.
    kind : type of Algorithm
        The class of the strategy's algorithm.

    Attributes
    ----------
    algorithm : Algorithm
        The algorithm whose messages these are, once there is a run.
    language : Language
        The language of the clients.
    nodes : Nodes
        The connected nodes.
    current : Round
        The current round.
    schemas : Schemas
        What the nodes have said of their columns and classes.
    left_out : list of LeftOut
        The replies that did not count, with reasons.
    bounds : IncrementBounds
        Bounds on the length of increments.
    declared : dict of int to float
        Last reported numbers of examples by node id, if the numbers of steps follow from them.
    pass_through_arrays : dict of str to ndarray
        The model's arrays that are not optimised.
    grid : flwr.serverapp.Grid or None
        The grid that connects the nodes, once it is known.
    timeout : float
        Seconds to wait for the replies of a round.
    config : ConfigRecord
        The user's train config.
    num_needed : int
        Number of nodes that must be connected before a round begins.
    output : Output or None
        The model of the state, if the user sees it unchanged.
    """

    def __init__(self, options: CommonOptions, kind: type[Algorithm]) -> None:
        self.options, self._kind = options, kind
        self.algorithm: Algorithm
        self.language: Language = OwnClients()
        self.asks = True
        self.timeout = 3600.0
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        # A grid holds connections, or the clients themselves; the next round brings its own.
        return {**self.__dict__, "grid": None}

    def forget(self) -> None:
        options = self.options
        self.nodes = Nodes(options.seed, options.participation.node_timeout, asks=self.asks)
        self.current, self.schemas = Round(0), Schemas()
        #: The user's weights by partition, read once a round.
        self._client_weights = weights_of(options)
        self.left_out: list[LeftOut] = []
        self.places: dict[tuple[int, int], NDArray[np.int32]] = {}
        self.bounds = bounds.IncrementBounds(max_ratio_of(options), options.bounds.max_increment_norm)
        self.declared: dict[int, float] = {}
        self.pass_through_arrays: dict[str, NDArray[Any]] = {}
        self.grid: Grid | None = None
        self.config = ConfigRecord()
        self.num_needed = 0
        self.output: Output | None = None
        self.spec: Spec | None = None
        self.digest = ""
        self._plan: Plan | None = None
        self._wire_dtype = "float64"

    @property
    def own_loops(self) -> bool:
        """Whether the clients run their own training loops, as unmodified ones always do."""
        return not self.asks or self.options.bounds.own_loops

    @property
    def plan(self) -> Plan:
        """The settings that all messages of this run share."""
        if self._plan is None:
            raise ConfigurationError(
                f"{type(self.options).__name__} does not know the model yet; call `prepare(initial_arrays)` or "
                "`start(...)`"
            )
        return self._plan

    def announce(self, plan: Plan) -> None:
        """Adopt a new plan, which every node receives in its next message.

        Parameters
        ----------
        plan : Plan
            What the clients were told before round 1.
        """
        self._plan = plan
        self.spec = plan.to_spec()
        self.digest = self.spec.digest()
        self.nodes.informed = set()

    # --- a round on its way ---------------------------------------------------------------------------------------

    def exchange(self, letters: Sequence[Letter]) -> list[Reply[Uplink]]:
        """Send downlinks to nodes, and return the replies that count; with or without messages.

        Parameters
        ----------
        letters : sequence of (Node, Downlink)
            Each node with what it is told.

        Returns
        -------
        list of Reply
            Sorted by partition id: the node, and its uplink with its weight in ``examples``.
        """
        assert self.grid is not None
        if self.current.wire_dtype != "float64":
            letters = rounded(letters, self.current.wire_dtype)
        strangers = {node.node_id for node, _ in letters} - self.nodes.informed
        with self.explained(self.grid, self.current):
            sent = self._without_messages(letters, strangers)
            if sent is not None and all(sent):
                replies = [(node, answer) for (node, _), answer in zip(letters, sent, strict=True) if answer]
                # If all clients must take part, a client whose answer cannot count is asked again, by message.
                good = self._read_sent(replies, all_or_none=self._kind.reads == "everyone")
                if good is not None:
                    plans = [] if self.spec is None else [self.spec.arrays] * len(strangers)
                    self.current.bytes_down += bytes_of([*(downlink.vectors for _, downlink in letters), *plans])
                    return self._bounded(good)
                sent = None
            # Clients that have answered are not asked again: those in a new process lack data that only messages carry.
            asked = list(zip(self.post(letters), sent or [None] * len(letters), strict=True))
            answered = [as_reply(message, answer) for message, answer in asked if answer is not None]
            rest = [message for message, answer in asked if answer is None]
            return self.collect([*answered, *send_and_receive(self.grid, rest, self.timeout)])

    @contextmanager
    def explained(self, grid: Grid | None, current: Round) -> Iterator[None]:
        """End, after clients' errors about a model of another shape, with one that says which columns they lack.

        Parameters
        ----------
        grid : flwr.serverapp.Grid or None
            Flower's connection to the nodes.
        current : Round
            What they are asked.
        """
        nodes = current.nodes.values()
        try:
            yield
        except ClientError as error:
            self.schemas.explain(grid, {node: f"{error}" for node in nodes if node.node_id == error.node_id}, nodes)
            raise
        if current.rows:
            reasons = {Node(row.node_id, row.partition_id): row.reason for row in current.left_out[-current.rows :]}
            self.schemas.explain(grid, reasons, nodes)

    def _without_messages(self, letters: Sequence[Letter], strangers: set[int]) -> Sequence[Sent | None] | None:
        """Return the answers of clients that need no message, in their order; None if all clients need one.

        `strangers` are the ids of those that lack the plan.
        """
        current, options, exchange = self.current, self.options, getattr(self.grid, "exchange", None)
        if (
            exchange is None
            or type(self.language) is not OwnClients
            or self.plan.wire_dtype == "float32"
            or options.train_metrics_aggr_fn is not average_metrics
            or self.pass_through_arrays
        ):
            return None
        if strangers:
            grid: Any = self.grid
            grid.introduce(self.spec, self.digest, strangers)
        answers: Sequence[Sent | None] | None = exchange(letters, current.number, self.digest)
        return answers

    def _read_sent(self, sent: Sequence[tuple[Node, Sent]], *, all_or_none: bool) -> list[Reply[Uplink]] | None:
        """Return the good answers among those without messages; the others are left out and logged.

        With `all_or_none` it returns None, and records nothing, if one answer cannot count.
        """
        current, plan, key = self.current, self.plan, self.options.weighted_by_key
        current.check_names(self._kind, plan.layout, [each.vectors.keys() for _, each in sent])
        timed = isinstance(plan.work, FirstOrder)
        read = SentReader(plan.layout, shapes=current.shapes, weighted_by_key=key, timed=timed)
        good: list[Reply[Uplink]] = []
        for node, each in sent:
            try:
                uplink, content = read(each)
                self._possible(node, uplink, content)
            except ProtocolError as error:
                if all_or_none:
                    return None
                current.leave_out(node, f"{error}")
            else:
                good.append(Reply(node, uplink, content))
        current.answered = {reply.node.node_id for reply in good}
        log(INFO, "%s: Received %s results and %s failures", current.caller, len(good), len(sent) - len(good))
        return good

    def bytes_up(self, good: Sequence[Reply[Uplink]]) -> int:
        """Return the bytes of arrays in these replies.

        Parameters
        ----------
        good : sequence of Reply
            The replies that passed all checks.
        """
        if self.current.messages:
            return count_bytes(reply.content for reply in good)
        return bytes_of([reply.value.vectors for reply in good])

    @property
    def config_of_round(self) -> ConfigRecord:
        """The user's train config with the round, for messages."""
        current = self.current
        if current.config is None:
            current.config = config_of_round(self.config, current.number)
        return current.config

    def open(
        self,
        server_round: int,
        nodes: Sequence[Node],
        config: ConfigRecord,
        problem: Problem,
        state: Any,
        answered_start: AbstractSet[int] = frozenset(),
    ) -> Problem:
        """Begin a round with its nodes; return the problem with the information on the round.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        nodes : sequence of Node
            Sorted by partition id.
        config : ConfigRecord
            The user's train config.
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        answered_start : set of int
            Ids of nodes that have answered round 0 just before this round.
        """
        self._client_weights = weights_of(self.options)
        self.config = config
        self.current = current = Round(
            server_round,
            {node.node_id: node for node in nodes},
            left_out=self.left_out,
            state=state,
            answered_start=answered_start,
            caller="configure_train",
        )
        for node_id, first in self.nodes.refused.items() if nodes else ():
            reason = f"it claims the partition id {first.partition_id}, which node {first.node_id} had first"
            current.leave_out(Node(node_id, first.partition_id), reason)
        current.refused, current.caller = current.rows, "aggregate_train" if server_round else "round 0"
        current.problem = problem = problem._replace(asked=nodes)
        current.shapes = self.algorithm.shapes(problem, state)
        if problem.plan.wire_dtype == "auto" and isinstance(self.language, OwnClients):
            current.wire_dtype = "float32" if short_wire(self.algorithm, problem, state) else "float64"
            if current.wire_dtype != self._wire_dtype:
                text = "configure_train: the messages' vectors are %s from round %s on"
                log(INFO, text, current.wire_dtype, server_round)
                self._wire_dtype = current.wire_dtype
        return problem

    def letters(self, nodes: Iterable[Node]) -> list[Letter]:
        """Return the downlinks for these nodes in the current round.

        Parameters
        ----------
        nodes : iterable of Node
            The nodes to ask.
        """
        current, algorithm = self.current, self.algorithm
        problem, state = current.problem, current.state
        assert problem is not None
        if problem.memories is None and problem.graph is None:
            downlink = algorithm.downlink(problem, state, None)
            nodes = list(nodes)
            strangers = not self.places or not all(node.key in self.places for node in nodes)
            short = self._by_non_zeros(downlink, {}) if strangers else downlink
            letters = [(node, downlink if self.places and node.key in self.places else short) for node in nodes]
        else:
            letters, shared = [], dict[int, Any]()
            for node in nodes:
                downlink = self._downlink(problem, node)
                letters.append((node, downlink if node.key in self.places else self._by_non_zeros(downlink, shared)))
        for node, downlink in letters:
            if downlink.work is not None:
                current.works[node.node_id] = downlink.work
        if self.places:
            letters = [(node, self._at_its_places(node, downlink)) for node, downlink in letters]
        return self.schemas.asking(letters) if self._columns else letters

    @property
    def _columns(self) -> int:
        """Number of columns whose units are compared; 0 if none are."""
        private = getattr(self.options, "privacy", None) is not None
        shape = self.plan.layout.shapes.get("coefficients", ())
        return 0 if private or not shape or type(self.language) is not OwnClients else int(shape[0])

    def _at_its_places(self, node: Node, downlink: Downlink) -> Downlink:
        """Return a node's downlink at the coordinates of its features, if the node has reported them."""
        places = self.places.get(node.key)
        if places is None:
            return downlink
        size = self.plan.layout.size
        vectors: Any = {name: SparseVector(places, vector[places], size) for name, vector in downlink.vectors.items()}
        return downlink._replace(vectors=vectors)

    def _by_non_zeros(self, downlink: Downlink, shared: dict[int, Any]) -> Downlink:
        """Return the downlink for nodes that have not reported their features: shorter while most of it is zero.

        `shared` holds vectors of several nodes by id.
        """
        seldom = self.places or self.current.number <= 1
        if not (seldom and self.plan.options.get("sparse-wire", True)):
            return downlink
        vectors: dict[str, Any] = {**downlink.vectors}
        for name, vector in downlink.vectors.items():
            if id(vector) not in shared:
                short = vector.size >= LONG and is_shorter(int(np.count_nonzero(vector)), vector.size)
                shared[id(vector)] = NonZeros.of(vector) if short else vector
            vectors[name] = shared[id(vector)]
        return downlink._replace(vectors=vectors)

    def _note_places(self, good: Sequence[Reply[Uplink]]) -> None:
        """Record the clients' features from their last answers."""
        for node in self.current.nodes.values() if self.places else ():
            self.places.pop(node.key, None)
        for node, uplink, _ in good:
            vector = uplink.vectors.get("increment")
            if isinstance(vector, SparseVector) and is_shorter(vector.indices.size, vector.size):
                self.places[node.key] = vector.indices
        held = sum(places.nbytes for places in self.places.values())
        while held > MOST_PLACES:
            held -= self.places.pop(next(iter(self.places))).nbytes

    def _downlink(self, problem: Problem, node: Node) -> Downlink:
        """Return the downlink for a node."""
        memories: Any = problem.memories
        if memories is None:
            return self.algorithm.downlink(problem, self.current.state, To(node.key))
        lost, answered = node.node_id in self.current.restoring, node.node_id in self.current.answered_start
        member = memories.member(node)
        to = To(node.key, member.accepted < 0, lost, answered, member.left)
        message = self.algorithm.downlink(problem, self.current.state, to)
        return message._replace(stamp=memories.stamp(node, restore=lost))

    def post(self, letters: Sequence[Letter]) -> list[Message]:
        """Return letters as Flower's messages.

        Parameters
        ----------
        letters : sequence of (Node, Downlink)
            Each node with what it is told.
        """
        current, cache = self.current, RoundCache()
        contents = [(node.node_id, self.language.content(self, node, downlink, cache)) for node, downlink in letters]
        messages = addressed(self.grid, contents, "train", str(current.number))
        current.bytes_down += count_bytes(content for _, content in contents)
        if current.messages:
            current.repeats += messages
        else:
            current.messages = messages
        return messages

    # --- what comes back ------------------------------------------------------------------------------------------

    def collect(self, replies: Iterable[Message]) -> list[Reply[Uplink]]:
        """Return the replies that count, including those of nodes that had to be asked again.

        Parameters
        ----------
        replies : iterable of Message
            The nodes' answers as they came.
        """
        return self._bounded(self.current.good(self.retry_missing(replies), self._read))

    def _bounded(self, good: list[Reply[Uplink]]) -> list[Reply[Uplink]]:
        """Return the replies that are within all bounds, with their weights."""
        current, options = self.current, self.options
        # Before a site with other columns is left out for the length of its increment.
        said = {reply.node: number for reply in good if (number := reply.value.metrics.get(SCHEMA))}
        if said and (reasons := self.schemas.compare(self.grid, said)):
            good = current.without(good, {i: reasons[r.node] for i, r in enumerate(good) if r.node in reasons})
        columns = self._columns
        if columns and not self.schemas.measured.issuperset([reply.node for reply in good]):
            self.schemas.compare_units(self.grid, columns, {reply.node: reply.value.units for reply in good})
            cut = [without_metric(reply.content, UNITS) for reply in good]
            # In process it is no metric, and most replies stay as they are.
            pairs = zip(good, cut, strict=True)
            good = [reply if content is reply.content else reply._replace(content=content) for reply, content in pairs]
        uplinks = [reply.value for reply in good]
        if self._kind.holds:
            uplinks = [uplink._replace(vectors={}) for uplink in uplinks]
        # Only a weight that a client claims is compared with those of others.
        weights = None if options.weighting == "examples" else [1.0] * len(good)
        objections = self.bounds.objections(
            uplinks,
            remember=current.number > 0,
            weights=weights,
            passed=self.pass_through_arrays,
            step_size=self.step_size() if self.own_loops else None,
        )
        metrics = training_metrics(good, named(self._kind, "losses"))
        objections = metric_objections(metrics, max_ratio_of(options), self.bounds, "metric ") | objections
        if objections:
            good = current.without(good, objections)
        if current.problem is not None and current.number:
            implied = variate_objections(self.algorithm, current, good)
            good = current.without(good, implied) if implied else good
        self.nodes.informed.update([reply.node.node_id for reply in good])
        work = self.plan.work
        if isinstance(work, FirstOrder) and work.steps is None:
            counted = [(node.node_id, self._examples(uplink, content)) for node, uplink, content in good]
            self.declared.update([(node_id, number) for node_id, number in counted if number is not None])
        if self._kind.sparse:
            self._note_places(good)
        if self._client_weights is None:
            return good
        weighed = ((reply, self.given_weight(reply.node)) for reply in good)
        return [reply._replace(value=reply.value._replace(examples=weight)) for reply, weight in weighed]

    def collect_metrics(self, replies: Iterable[Message]) -> list[RecordDict]:
        """Return the contents of the evaluations that count, with the weights of training.

        Parameters
        ----------
        replies : iterable of Message
            The nodes' answers as they came.
        """
        options, current, key = self.options, self.current, self.options.weighted_by_key

        def read(node: Node, content: RecordDict) -> Mapping[str, Any]:
            metrics = check_metrics(content, key)
            bounds.check_examples(metrics[key], options.bounds.max_examples)
            self.given_weight(node)
            return metrics

        good = compared_metrics(current, self.schemas, self.grid, current.good(replies, read))
        ratio = max_ratio_of(options)
        if ratio is not None:
            good = current.without(good, evaluation_objections([r.value for r in good], key, ratio, self.bounds))
        if options.weighting == "examples":
            return [reply.content for reply in good]
        return [with_metric(reply.content, key, self.given_weight(reply.node)) for reply in good]

    @property
    def _memories(self) -> Any:
        return None if self.current.problem is None else self.current.problem.memories

    @property
    def rateless(self) -> bool:
        """Whether the method has no rates, so that a client's `elapsed` is its number of steps."""
        problem = self.current.problem
        return problem is None or math.isnan(problem.client_lr)

    def step_size(self) -> float:
        """Return the increase of a client's `elapsed` per step: client_lr, or 1 in a method without rates."""
        problem = self.current.problem
        return 1.0 if problem is None or math.isnan(problem.client_lr) else problem.client_lr

    def _read(self, node: Node, content: RecordDict) -> Uplink:
        """Return the uplink of a reply whose claims are possible."""
        uplink = self._possible(node, self.language.read(self, content), content)
        return uplink if self._memories is None else uplink._replace(digest=uplink_digest(content))

    def _possible(self, node: Node, uplink: Uplink, content: Any) -> Uplink:
        self.language.check(self, node, uplink, self._examples(uplink, content))
        problem, memories = self.current.problem, self._memories
        if type(self.algorithm).check is not Algorithm.check and problem is not None:
            self.algorithm.check(problem, self.current.state, uplink)
        if self._client_weights is not None:
            self.given_weight(node)
        elif memories is not None:
            memories.check_weight(node, uplink.examples)
        return uplink

    def _examples(self, uplink: Uplink, content: Any) -> float | None:
        """Return a client's number of examples, which is not its weight if the strategy weighs by another key."""
        return uplink.examples if self.options.weighted_by_key == "num-examples" else num_examples(content)

    def given_weight(self, node: Node) -> float:
        """Return the user's weight of a node's partition; 1 if the user gives none by partition.

        Parameters
        ----------
        node : Node
            A node that was asked.

        Raises
        ------
        ProtocolError
            If the user gives weights, and none to it.
        """
        weights, partition = self._client_weights, node.partition_id
        if weights is None:
            return 1.0
        if partition is None or partition not in weights:
            raise ProtocolError("its partition is not one of those in weighting")
        return weights[partition]

    def retry_missing(self, replies: Iterable[Message]) -> list[Message]:
        """Ask nodes again that have lost the plan or their state (both are lost with a SuperNode), and send it.

        If all clients must take part, nodes that are silent, or whose answer is an error or cannot count, are asked
        again as well.

        Parameters
        ----------
        replies : iterable of Message
            The nodes' answers as they came.

        Returns
        -------
        list of Message
            The answers to keep, from all requests.
        """
        kept = list(replies)
        self.current.check_names(self._kind, self.plan.layout, map(vector_names, kept if self.asks else ()))
        everyone = self._kind.reads == "everyone"
        # At most twice: a node may detect a lost state only once it has the plan.
        for _ in range(_REPEATS if self.grid is not None else 0):
            if everyone:
                # A bad answer is treated as silence, and must not count in addition to the node's next answer.
                kept = self.current.usable(kept, self._read)
            kept, again = self.current.to_ask_again(kept, state_lost=self._state_lost, silent=everyone)
            if not again:
                break
            for node, missing in again:
                if missing == "plan":
                    self.nodes.informed.discard(node.node_id)
                lost = f", with its {missing}" if missing else ""
                log(INFO, "%s: %s is asked again%s", self.current.caller, node, lost)
            self.current.restoring.update(node.node_id for node, missing in again if missing)
            messages = self.post(self.letters(node for node, _ in again))
            assert self.grid is not None
            kept.extend(send_and_receive(self.grid, messages, self.timeout))
        return kept

    def _state_lost(self, node: Node, altered: bool) -> bool:
        """Whether a node that has lost its state, or whose answer was altered, can get it again."""
        memories = self._memories
        if memories is None:
            return False
        if altered:
            memories.altered(node)
        return bool(memories.lost(node))

    def weighted(self, good: Sequence[Reply[Uplink]]) -> list[Uplink]:
        """Return the uplinks of replies with weights that sum to 1; empty if the total weight is zero.

        Parameters
        ----------
        good : sequence of Reply
            The replies that passed all checks.
        """
        uniform = self.options.weighting == "uniform"
        weights = checks.weights_of([reply.value.examples for reply in good], uniform=uniform)
        return checks.weighted(good, weights) if weights else []

    # --- saving ---------------------------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the basis of the checks: medians of earlier rounds, and earlier claims of clients."""
        return {
            **self.bounds.to_arrays(),
            "declared-by": np.array(list(self.declared), dtype=np.uint64),
            "declared": np.array(list(self.declared.values()), dtype=np.float64),
        }

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.bounds.from_arrays({name: np.asarray(value) for name, value in arrays.items()})
        self.declared = dict(zip(arrays["declared-by"].tolist(), arrays["declared"].tolist(), strict=True))
