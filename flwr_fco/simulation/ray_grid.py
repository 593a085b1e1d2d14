"""The nodes of a simulation on Ray actors: each holds a grid in its process, and answers for its nodes."""

from __future__ import annotations

import logging
import math
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from socket import create_connection
from typing import Any, Self

import cloudpickle
from flwr.app import Message

from flwr_fco.algorithms.contract import methods, register
from flwr_fco.core.logs import logger
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, checked
from flwr_fco.errors import ConfigurationError, FlwrFcoError, in_words, installed
from flwr_fco.messages.protocol import Described, Node
from flwr_fco.messages.records import Reply, Task
from flwr_fco.regularizers.named import FACTORIES, Adapter
from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.strategies.replies import cause_of

#: Times that a call is repeated because its actor died.
_REPEATS = 2
#: Seconds in which one more actor begins, or there are no more; and that a busy one has when the run is saved.
_PATIENCE = 30.0
_MOMENT = 5.0
#: What Ray reserves of GPUs: parts of one, or whole ones.
_GPUS = {"range": (lambda n: 0 <= n < math.inf and (n <= 1 or n % 1 == 0), "part of 1, or a whole number")}
#: Size of an app in bytes above which it probably carries its data.
_LARGE_APP = 8 * 2**20


@dataclass(eq=False, repr=False, kw_only=True)
class RayGrid(InProcessGrid):
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
        #: What actors have been asked, by worker, until it is answered.
        self._pending = dict[int, Any]()
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

    def __enter__(self) -> Self:
        """Return the grid."""
        return self

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
        waiting = [*self._pending.values()]
        busy = self._ray.wait(waiting, num_returns=len(waiting), timeout=_MOMENT)[1] if waiting else ()
        idle = [actor for k, actor in enumerate(self._actors) if self._pending.get(k) not in busy]
        of_actors = self._ray.get([actor.call.remote("states") for actor in idle])
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
            self._pending = {k: self._actors[k].call.remote(method, *given(own)) for k, own in left.items()}
            for worker, answer in [*self._pending.items()]:
                try:
                    for i, each in zip(left[worker], self._ray.get(answer), strict=True):
                        found[i] = each
                    del left[worker], self._pending[worker]
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
        text = (
            "%s demands no token: it listens on all interfaces, and whoever reaches its ports runs code as this user. "
        )
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
