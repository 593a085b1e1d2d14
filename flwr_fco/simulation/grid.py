"""Flower Grids that take tasks from our strategies, and messages from all others: with nodes here, or on Ray actors."""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from importlib import import_module
from socket import create_connection
from typing import Any

import cloudpickle
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid

from flwr_fco.algorithms.contract import methods, register
from flwr_fco.client_apps.client import Client, TaskApp
from flwr_fco.core.computing import logger, single_threaded_blas, temporarily
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, checked, of_type
from flwr_fco.errors import ClientError, ConfigurationError, FlwrFcoError, advice_on, in_words, installed
from flwr_fco.messages.protocol import Described, Downlink, Node, Received, ReceivedVectors, Uplink
from flwr_fco.messages.records import FCO, NAMES_ONLY, TABLE, Inbox, Outbox, Reply, Task, isolated
from flwr_fco.messages.short import SHORT
from flwr_fco.regularizers.kinds import FACTORIES, Adapter
from flwr_fco.strategies.replies import cause_of

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # releases before TaskIdentity take the run from the grid
    TaskIdentity = None  # type: ignore[assignment, misc]

#: Flower's error code in a reply whose ClientApp raised an exception.
CLIENT_APP_RAISED = 2
#: The first node id: 1 is the SuperLink.
_FIRST = 2


def _own(message: Message) -> Message:
    """Return a copy of a message, so that its sender sees no change that a node makes."""
    own = copy(message)
    own.content = isolated(message.content)
    return own


class _RunConfig(dict[str, Any]):
    """A node's ``context.run_config``, which says where an entry that is missing would come from."""

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"no {key!r} in context.run_config; give simulate or the grid run_config={{{key!r}: ...}}")


_IDENTITY = ("run_id", "node_id", "task_id")
_identities: list[Any] = []


def identity(run_id: int) -> AbstractContextManager[None]:
    """Make this process the ServerApp of a run, as ``Message(...)`` requires."""
    return nullcontext() if TaskIdentity is None else temporarily(_identities, _identity, _identify, (run_id, 1, 1))


def _identity() -> list[Any]:
    before: dict[str, Any] = dict.fromkeys(_IDENTITY)
    for name in before:
        with suppress(RuntimeError):
            before[name] = getattr(TaskIdentity, name)
    return [*before.values()]


def _identify(values: Sequence[Any]) -> None:
    for name, value in zip(_IDENTITY, values, strict=True):
        setattr(TaskIdentity, name, value)


@dataclass(eq=False, repr=False)
class InProcessGrid(Grid):
    """Grid of nodes in this process: breakpoints work, and a run with the same seed gives the same bits.

    Records of every message are copied in both directions (the bytes of arrays are immutable and shared), so no client
    can change another client's input or the server's.

    Parameters
    ----------
    client_app : flwr.clientapp.ClientApp
        Called for each message.
    num_nodes : int
        Number of nodes; node m has partition id m.
    run_config : mapping, optional
        ``context.run_config`` of the nodes.
    node_config : callable, optional
        ``partition_id -> mapping``: entries of a node's ``context.node_config`` in addition to ``partition-id``, and to
        ``num-partitions`` if the nodes are some of more.
    raise_errors : bool, default True
        Raise a client's exception as :class:`ClientError` with node and round; if False, turn it into an error reply,
        as Flower's simulation does.
    run_id : int, optional
        Id of this grid's run; random by default, as in Flower.

    Attributes
    ----------
    contexts : dict of int to Context
        The contexts of the nodes that were used, by node id.
    partition_ids : dict of int to int
        The nodes' partition ids by node id.
    report : callable
        Called with the number of each round of training that has been delivered.
    foreign : bool
        Whether the ClientApp is Flower's own, which knows nothing of this package's tasks.

    Examples
    --------
    >>> grid = InProcessGrid(ClientApp(), 3)
    >>> list(grid.partition_ids.values())
    [0, 1, 2]
    """

    client_app: ClientApp
    num_nodes: int
    _: KW_ONLY
    run_config: Mapping[str, Any] | None = None
    node_config: Callable[[int], Mapping[str, Any]] | None = None
    raise_errors: bool = True
    run_id: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.run_id = secrets.randbits(62) if self.run_id is None else self.run_id
        # A copy: nodes are made one by one, and may not differ in what their owner changes meanwhile.
        self.run_config = dict(self.run_config or {})
        self.partition_ids = {partition + _FIRST: partition for partition in range(self.num_nodes)}
        self.contexts: dict[int, Context] = {}
        self.report: Callable[[int], object] = lambda number: None
        self.foreign = isinstance(self.client_app, ClientApp) and not isinstance(self.client_app, TaskApp)
        self._replies: dict[str, Message] = {}

    def context(self, node_id: int) -> Context:
        """Return a node's context, made when it is first used.

        Raises
        ------
        ConfigurationError
            If `node_config` returns no mapping, or another partition.
        """
        found = self.contexts.get(node_id)
        if found is None:
            partition = self.partition_ids[node_id]
            settings: Any = {} if self.node_config is None else self.node_config(partition)
            checked(f"node_config({partition})", settings, Mapping)
            config = {"num-partitions": self.num_nodes, **settings, "partition-id": partition}
            if config != {**config, **settings}:
                own = f"node_config({partition}) has partition-id={settings['partition-id']!r}"
                raise ConfigurationError(f"{own}; node m has m here: leave it out, and name the data by another entry")
            # With keywords: the order of the arguments differs between releases.
            about: Any = {"node_config": config, "run_config": _RunConfig(self.run_config or {})}
            found = self.contexts[node_id] = Context(run_id=self.run_id, node_id=node_id, state=RecordDict(), **about)
        return found

    def states(self) -> dict[int, bytes]:
        """Return the clients' memories by node id, in the bytes in which Flower sends records."""
        used = {node_id: context.state for node_id, context in sorted(self.contexts.items()) if context.state}
        return {node_id: recorddict_to_proto(state).SerializeToString() for node_id, state in used.items()}

    def restore(self, states: Mapping[int, bytes]) -> None:
        """Give the clients the memories that :meth:`states` returned; all others have none.

        Raises
        ------
        ConfigurationError
            If they are of other nodes.
        """
        for node_id in self.contexts.keys() | states.keys():
            self.context(node_id).state = recorddict_from_proto(ProtoRecordDict.FromString(states.get(node_id, b"")))

    # --- Flower's interface ---------------------------------------------------------------------------------------

    def identity(self) -> Any:
        """Return a context in which this process is the ServerApp of the grid's run."""
        return identity(self.run_id)

    def set_run(self, run: Any) -> None:
        """Do nothing: the grid has one run."""

    @property
    def run(self) -> Any:
        """The run; there is no record of one outside a SuperLink."""
        raise AttributeError("an in-process grid has no Run record; its number is `run_id`")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        with self.identity():
            return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self.partition_ids)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once; their replies wait for :meth:`pull_messages`."""
        replies = {secrets.token_hex(8): reply for reply in self.replies([_own(message) for message in messages])}
        self._replies |= {number: reply for number, reply in replies.items() if reply is not None}
        return [*replies]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Sequence[Message]:
        """Deliver messages and return the replies; an outbox that nobody has opened goes without messages."""
        if isinstance(messages, Outbox) and not messages.opened and self.raise_errors and self.direct is not None:
            inbox = Inbox(messages, self.uplinks(messages.number, messages.tasks))
            self.report(messages.number)
            return inbox
        # Of messages that are made here nobody else has the records.
        made_here = isinstance(messages, Outbox) and not messages.opened
        messages = list(messages) if made_here else [_own(message) for message in messages]
        replies = [reply for reply in self.replies(messages) if reply is not None]
        if messages and messages[0].metadata.message_type == "train" and messages[0].metadata.group_id.isdigit():
            self.report(int(messages[0].metadata.group_id))
        return replies

    @property
    def direct(self) -> Client | None:
        """The client that tasks go to without messages, if the ClientApp is of this package and has no mods."""
        return getattr(self.client_app, "direct", None)

    # --- the nodes ------------------------------------------------------------------------------------------------

    def uplinks(self, number: int, tasks: Sequence[Task]) -> list[Reply]:
        """Return the clients' replies to tasks, without messages.

        Parameters
        ----------
        number : int
            The round.
        tasks : sequence of (Node, Downlink)
            Most of a round are one object.
        """
        received = dict[int, Downlink]()

        def answer(client: Client, context: Context, down: Downlink) -> Uplink | None:
            if id(down) not in received:
                received[id(down)] = down.as_received()
            task = received[id(down)]
            # Mappings of its own: no client changes what another one reads.
            vectors, numbers = ReceivedVectors(task.vectors), Received(task.numbers)
            return client.answer(context, number, task._replace(vectors=vectors, numbers=numbers))

        with single_threaded_blas():
            return [(node, self._asked(node, f"{number}", "train", answer, down)) for node, down in tasks]

    def described(self, nodes: Sequence[Node], scales: bool) -> list[Described]:
        """Return what clients say of their tables, `scales` or names only, without messages."""
        return [self._asked(node, "", "its table", Client.described, scales) for node in nodes]

    def _asked(self, node: Node, number: str, kind: str, call: Callable[..., Any], given: Any) -> Any:
        """Return what a client does with its context and what it is given."""
        context = self.context(node.node_id)
        try:
            return call(self.direct, context, given)
        except (Exception, SystemExit) as error:
            raise self._raised(error, node.node_id, number, kind) from error

    def replies(self, messages: Sequence[Message]) -> list[Message | None]:
        """Return the nodes' replies to messages that they may change, in their order; None of a node that is silent."""
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message | None:
        """Return a node's reply to a message, of which it keeps nothing; the message is the node's to change."""
        about, content = message.metadata, message.content
        context = self.context(about.dst_node_id)
        state = context.state if self.raise_errors else isolated(context.state)
        try:
            reply: Message | None = self.client_app(message, context)
            if reply is not None and not isinstance(reply, Message):
                raise TypeError(f"the ClientApp returned {of_type(reply)}; expected a Message")
        except (Exception, SystemExit) as error:
            # Who does not say what its table is has none; an error in loading it comes with its task again.
            if self.raise_errors and about.message_type not in (TABLE, NAMES_ONLY):
                raise self._raised(error, about.dst_node_id, about.group_id, about.message_type, content) from error
            context.state = state
            reason = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
            reply = Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)
        # A ClientApp should return a message; one that returns nothing is silent in Flower, and also here.
        if reply is not None and reply.has_content():
            reply.content = isolated(reply.content)
        return reply

    def _raised(self, error: BaseException, node_id: int, number: str, kind: str, sent: Any = ()) -> ClientError:
        """Return the error of a node, after a message's content that was `sent`, with what to do about it."""
        where = f"node {node_id} (partition {self.partition_ids[node_id]})"
        when = f" in round {number}" * (number not in {"", "0"})
        text = f"{where} raised {type(error).__name__}{when} ({kind.removeprefix('query.')}): {error}"
        text += advice_on(f"{type(error).__name__}: {error}", foreign=self.foreign and FCO in sent, short=SHORT in sent)
        return ClientError(text, node_id=node_id, server_round=number)


# --- on Ray actors: each holds a grid in its process, and answers for its nodes ---------------------------------------

#: Times that a call is repeated because its actor died.
_REPEATS = 2
#: Seconds in which one more actor begins, or there are no more; and that a busy one has when the run is saved.
_PATIENCE, _MOMENT = 30.0, 5.0
#: What Ray reserves of GPUs: parts of one, or whole ones.
_GPUS = {"range": (lambda n: 0 <= n < math.inf and (n <= 1 or n % 1 == 0), "part of 1, or a whole number")}
#: Size of an app in bytes above which it probably carries its data.
_LARGE_APP = 8 * 2**20


@dataclass(eq=False, repr=False, kw_only=True)
class RayGrid(InProcessGrid, AbstractContextManager["RayGrid"]):
    """A grid whose nodes are on Ray actors; a node stays on its actor, where its data are.

    Parameters
    ----------
    client_app, num_nodes, run_config, node_config, raise_errors
        As for :class:`InProcessGrid`.
    workers : int, optional
        Number of actors; by default as many as the cluster has room for, and at most one for each node. There are
        fewer, with a warning, where others use the cluster.
    address : str, optional
        Of a cluster, such as ``"auto"`` on one of its machines. By default Ray is started on this machine if it does
        not run in this process yet, and ended with the grid.
    num_cpus, num_gpus : float, default 1 and 0
        What is reserved for each actor, on one machine.

    Raises
    ------
    ConfigurationError
        If the ClientApp cannot be sent to another process, no machine of the cluster has room for an actor, or Ray does
        not know such a reservation.
    NotInstalledError
        Without Ray.
    """

    workers: int | None = None
    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        num_cpus = checked("num_cpus", self.num_cpus, float, NON_NEGATIVE)
        num_gpus = checked("num_gpus", self.num_gpus, float, _GPUS)
        workers = checked("workers", self.workers, int | None, AT_LEAST_ONE)
        made = _pickled({own.name: getattr(self, own.name) for own in fields(InProcessGrid)})
        self._ray = ray = import_ray(self.address)
        self._owns = not ray.is_initialized()
        self._actors = list[Any]()
        #: Workers that have been asked something, or are about to be, until they have answered.
        self._busy = set[int]()
        if self._owns:
            start_ray(ray, self.address)
        try:
            actor = ray.remote(_Actor).options(max_restarts=0, num_cpus=num_cpus, num_gpus=num_gpus)
            self._make: Callable[[], Any] = lambda: actor.remote(made)
            room = room_of(ray, num_cpus, num_gpus)
            count = workers or int(min(room, self.num_nodes))
            if room < count:
                prefix = f"{count} workers with {num_cpus=:g}, {num_gpus=:g}, but the cluster has room for {room:g}"
                raise ConfigurationError(f"{prefix}; take fewer, or reserve less")
            self._actors = [self._make() for _ in range(count)]
            self._begin()
        except BaseException:
            self.__exit__()
            raise

    def _begin(self) -> None:
        """Wait for the actors, until no more come: who waits for room that others hold may hold what they wait for."""
        ready = {actor.call.remote("states"): actor for actor in self._actors}
        up, late, before = list[Any](), [*ready], -1
        while late and (not up or len(up) > before):
            before = len(up)
            up, late = self._ray.wait([*ready], num_returns=len(ready), timeout=_PATIENCE)
            if not up:
                logger.warning("simulate waits for a worker; if others use what it reserves, `ray status` shows it")
        if late:
            logger.warning("simulate has %d of %d workers: others use the rest of the cluster", len(up), len(ready))
        for answer in late:
            self._ray.kill(ready[answer])
        self._actors = [ready[answer] for answer in up]
        self.workers = len(up)

    def __exit__(self, *error: object) -> None:
        """End the actors, busy ones too, and Ray where it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owns:
            # Once: Ray may have been started again since, by somebody else.
            self._owns = False
            self._ray.shutdown()

    def uplinks(self, number: int, tasks: Sequence[Task]) -> list[Reply]:
        # What is one object here, as the task of most clients, is sent once to an actor, and one object there.
        return self._ask("uplinks", [node.node_id for node, _ in tasks], lambda own: (number, [tasks[i] for i in own]))

    def replies(self, messages: Sequence[Message]) -> list[Message | None]:
        ids = [message.metadata.dst_node_id for message in messages]
        return self._ask("replies", ids, lambda own: ([messages[i] for i in own],))

    def described(self, nodes: Sequence[Node], scales: bool) -> list[Described]:
        return self._ask("described", [node.node_id for node in nodes], lambda own: ([nodes[i] for i in own], scales))

    def states(self) -> dict[int, bytes]:
        """Return the clients' memories by node id, from all actors but those that an interrupt has left at work."""
        asked = [actor.call.remote("states") for actor in self._actors]
        late = [asked[k] for k in self._busy]
        at_work = self._ray.wait(late, num_returns=len(late), timeout=_MOMENT)[1] if late else ()
        of_actors = self._ray.get([answer for answer in asked if answer not in at_work])
        return dict(sorted(pair for states in of_actors for pair in states.items()))

    def restore(self, states: Mapping[int, bytes]) -> None:
        parts = [{i: s for i, s in states.items() if self._worker_of(i) == k} for k in range(len(self._actors))]
        self._ray.get([actor.call.remote("restore", part) for actor, part in zip(self._actors, parts, strict=True)])

    def _worker_of(self, node_id: int) -> int:
        return self.partition_ids[node_id] % len(self._actors)

    def _ask(self, method: str, node_ids: Sequence[int], given: Callable[[Sequence[int]], Any]) -> list[Any]:
        """Call a method of each actor about its nodes; an actor that dies is replaced, and its call made again."""
        left: dict[int, list[int]] = {}
        for i, node_id in enumerate(node_ids):
            left.setdefault(self._worker_of(node_id), []).append(i)
        found: list[Any] = [None] * len(node_ids)
        for attempt in range(_REPEATS + 1):
            # Before they are asked: an interrupt may come while they are, of whom one never answers.
            self._busy = set(left)
            answers = {k: self._actors[k].call.remote(method, *given(own)) for k, own in left.items()}
            for worker, answer in answers.items():
                try:
                    for i, each in zip(left[worker], self._ray.get(answer), strict=True):
                        found[i] = each
                    del left[worker]
                    self._busy.remove(worker)
                except self._ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from None
                # Its actor has died, in whichever of Ray's words: of memory they are others.
                except self._ray.exceptions.RayError as error:
                    if attempt == _REPEATS:
                        prefix = f"worker {worker} died {attempt + 1} times in the same round: {cause_of(str(error))}"
                        why = "Its clients need more memory than there is, end their process, or hold what no other"
                        raise FlwrFcoError(f"{prefix:.500}. {why} process can load, as a GPU's arrays") from error
                    logger.warning("worker %s died; its clients run again in another one", worker)
                    self._actors[worker] = self._make()
        return found


class _Actor:
    """An actor: a grid of all nodes, of which it is asked for some."""

    def __init__(self, made: bytes) -> None:
        options, own = cloudpickle.loads(made)
        for entry in own:
            # Without it the run ends in a sentence that names it, if clients are asked for it.
            with suppress(ImportError, AttributeError):
                cloudpickle.loads(entry)()
        self._grid = InProcessGrid(**options)

    def call(self, method: str, *given: Any) -> Any:
        """Return what a method of the grid returns."""
        with self._grid.identity():
            return getattr(self._grid, method)(*given)


def _pickled(options: Mapping[str, Any]) -> bytes:
    """Return what an actor is made of, with what the user has registered, which a new process would lack."""
    entries: list[partial[Any]] = [partial(register, kind) for kind in methods().values()]
    entries += [partial(Specified.enter, kind) for kind in Specified.registered()]
    own = [entry for entry in entries if not entry.args[0].__module__.startswith("flwr_fco.")]
    own += [partial(Adapter.register, *pair) for pair in FACTORIES.items()]
    advice = ". Open files, locks and connections inside load_objective, not outside; or take engine='in-process'"
    with in_words("the ClientApp cannot be sent to other processes", ConfigurationError, advice, passing=()):
        # One by one: an actor may lack the module of something that this run does not need.
        text: bytes = cloudpickle.dumps((options, [*map(cloudpickle.dumps, own)]))
    if len(text) > _LARGE_APP:
        advice = "Load them inside load_objective, by context.node_config['partition-id']"
        logger.warning("simulate: the ClientApp carries %.0f MB of data to every worker. %s", len(text) / 1e6, advice)
    return text


# --- Ray itself -------------------------------------------------------------------------------------------------------


def start_ray(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start Ray on this machine; actors import what this process can, on one core each.

    Parameters
    ----------
    ray : module
        Of :func:`import_ray`.
    address : str or None
        Of a cluster.

    Raises
    ------
    ConfigurationError
        If there is no cluster at the address.
    """
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"runtime_env": {"env_vars": {**threads, "PYTHONPATH": paths}}}
    options |= {} if address else {"include_dashboard": False}
    host, _, port = (address or "").rpartition(":")
    try:
        if host and port.isdigit():
            # Ray waits many minutes for a head that is not there.
            create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=10.0).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, ValueError, OverflowError) as error:
        expected = "expected a running cluster, as `ray start --head` makes it, or no address for this machine alone"
        raise ConfigurationError(f"address={address!r}: {error}; {expected}") from error


def room_of(ray: Any, num_cpus: float, num_gpus: float) -> float:
    """Return how many workers a cluster has room for, infinity if they reserve nothing.

    A worker is on one machine: 3 cores fit once into 4, and once into each of two machines with 4.

    Parameters
    ----------
    ray : module
        Connected to the cluster.
    num_cpus, num_gpus : float
        What each worker reserves.

    Raises
    ------
    ConfigurationError
        If no machine has room for one.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> machines = [{"Alive": True, "Resources": {"CPU": 4.0}}] * 2
    >>> room_of(SimpleNamespace(nodes=lambda: machines), num_cpus=3, num_gpus=0)
    2.0
    """
    wanted = {name: each for name, each in (("CPU", num_cpus), ("GPU", num_gpus)) if each > 0}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # 0.3 / 0.1 is below 3.
    rooms = (min((machine.get(name, 0.0) / each + 1e-9) // 1 for name, each in wanted.items()) for machine in machines)
    room = sum(rooms) if wanted else math.inf
    if not room:
        there = {f"{machine.get('CPU', 0.0):g} cores and {machine.get('GPU', 0.0):g} GPUs" for machine in machines}
        prefix = f"num_cpus={num_cpus:g}, num_gpus={num_gpus:g}: no machine of the cluster has that much"
        raise ConfigurationError(f"{prefix}; there are machines with {', or '.join(sorted(there))}; reserve less")
    return room


def import_ray(address: str | None = None) -> Any:
    """Import Ray, and demand a token of everybody who uses what is started here.

    Ray listens on all interfaces. From 2.52 on it demands a token if ``RAY_AUTH_MODE=token`` is set before it is
    imported; here it is set, with a token of this process's own, unless the environment says something else. Where that
    is too late, or Ray is older, or a cluster is without tokens, there is a warning.

    Parameters
    ----------
    address : str, optional
        Of a cluster, which has its own settings.

    Raises
    ------
    NotInstalledError
        If Ray is not.
    """
    if not address and "ray" not in sys.modules:
        os.environ.update(token_settings())
    ray = installed("ray", "engine='ray' needs Ray: pip install ray (the extra [sweep]), or take engine='in-process'")
    if not _demands_token():
        where = f"The Ray cluster at {address}" if address else "Ray, which is started on this machine,"
        text = "%s demands no token: whoever reaches its ports, on all interfaces, runs code as this user. "
        text += "Set RAY_AUTH_MODE=token before Ray starts (Ray >= 2.52; docs/tutorials/ray-cluster.md), or close them"
        logger.warning(text, where)
    return ray


def token_settings() -> dict[str, str]:
    """Return the variables with which a Ray >= 2.52 that is started demands a token, beside those that are set already.

    Examples
    --------
    >>> set(token_settings()) <= {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    True
    """
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return {"RAY_AUTH_MODE": "token", **({} if given else {"RAY_AUTH_TOKEN": secrets.token_hex(32)})}


def _demands_token() -> bool:
    """Whether Ray in this process demands and gives a token, which it decides when it is imported."""
    try:
        raylet: Any = import_module("ray._raylet")
        return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)
    except (ImportError, AttributeError):
        return False
