"""Fault injection: a grid and a mod that lose, damage and forge replies with seeded probabilities.

The fault of a reply is drawn only from (seed, round, partition). So two runs with the same seed have the same faults,
whatever else differs between them, and a node that receives another message in a round has the same fault again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.simulation.grid import CLIENT_APP_RAISED, InProcessGrid

#: Key in a client's state for the round in which it was restarted.
_RESTARTED = "restarted"

Arrays = dict[str, Array]
Metrics = dict[str, Any]


class InjectedError(RuntimeError):
    """The exception raised by the fault ``"raise"``."""


@dataclass
class Delivery:
    """A message on its way to a client; the argument of a fault.

    Parameters
    ----------
    message : flwr.app.Message
        The server's message.
    context : flwr.app.Context
        The node's context; a fault may change its state.
    rng : numpy.random.Generator
        The generator for this (seed, round, partition).
    deliver : callable
        ``() -> Message or None``: delivers the message to the client and returns its reply.
    """

    message: Message
    context: Context
    rng: np.random.Generator
    deliver: Callable[[], Message | None]


#: ``(delivery) -> replies``: the messages that reach the server instead of the one reply.
Fault = Callable[[Delivery], Sequence[Message]]


class Injected(NamedTuple):
    """A fault that was injected.

    Parameters
    ----------
    fault : str
        Name of the fault.
    """

    server_round: int
    partition: int
    fault: str


# --- faults ----------------------------------------------------------------------------------------------------------


def _drop(delivery: Delivery) -> list[Message]:
    """Lose the reply of a client that has done its work."""
    delivery.deliver()
    return []


def _lose(delivery: Delivery) -> list[Message]:
    """Lose the message: it never reaches the client."""
    return []


def _raise(delivery: Delivery) -> list[Message]:
    """Raise before the client does anything."""
    raise InjectedError("this client raises on purpose")


def _restart(delivery: Delivery) -> list[Message]:
    """Reply as a new process, without the client's state; at most one restart per client and round."""
    number = _round_of(delivery.message)
    mark = delivery.context.state.get(_RESTARTED)
    if not isinstance(mark, ConfigRecord) or mark["round"] != number:
        delivery.context.state = RecordDict({_RESTARTED: ConfigRecord({"round": number})})
    return _answers(delivery)


def _corrupt(delivery: Delivery) -> list[Message]:
    """Flip one bit of one array's data; the array can still be read and may be finite."""

    def change(arrays: Arrays, metrics: Metrics) -> None:
        name = _some(delivery.rng, sorted(arrays))
        array = arrays[name]
        data = bytearray(array.data)
        start = min(128, len(data) - 1)
        place = int(delivery.rng.integers(start, len(data)))
        data[place] ^= 1 << int(delivery.rng.integers(8))
        arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, bytes(data))

    return _changed(delivery, change)


def _malformed(delivery: Delivery) -> list[Message]:
    """Violate the protocol: NaN, another shape, dtype or name, a metric missing or out of range."""

    def change(arrays: Arrays, metrics: Metrics) -> None:
        name = _some(delivery.rng, sorted(arrays))
        value = arrays[name].numpy().copy()
        kind = _some(delivery.rng, ("NaN", "infinite", "shape", "dtype", "name", "extra", "none", "weight", "metrics"))
        if kind in ("NaN", "infinite") and value.dtype.kind == "f":
            value.flat[int(delivery.rng.integers(value.size))] = np.nan if kind == "NaN" else np.inf
            arrays[name] = Array(value)
        elif kind == "shape":
            arrays[name] = Array(value.reshape(-1)[:-1])
        elif kind in ("dtype", "NaN", "infinite"):
            arrays[name] = Array(value.astype(np.float16))
        elif kind == "name":
            arrays["another-name"] = arrays.pop(name)
        elif kind == "extra":
            arrays["one-too-many"] = Array(value)
        elif kind == "none":
            arrays.clear()
        elif kind == "weight":
            metrics["num-examples"] = -3
        else:
            metrics.clear()

    return _changed(delivery, change)


def _npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


#: Bytes that are not an array of the protocol; some make general-purpose readers raise their own errors.
_GARBAGE = (
    b"",
    b"not an array",
    b"PK\x03\x04junk",
    b"\x93NUMPY",
    _npy(b"-" * 9_000),
    _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
    _npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (7,), }\n"),
    _npy(b"{'': {"),
)


def _garbage(delivery: Delivery) -> list[Message]:
    """Replace an array's bytes with crafted or random ones."""

    def change(arrays: Arrays, metrics: Metrics) -> None:
        name = _some(delivery.rng, sorted(arrays))
        array = arrays[name]
        data = _some(delivery.rng, (*_GARBAGE, delivery.rng.bytes(64), array.data[:-3], array.data + b"more"))
        arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, data)

    return _changed(delivery, change)


def _absurd(delivery: Delivery) -> list[Message]:
    """Make one number in a well-formed reply absurd: elapsed, steps, examples, or the length of the increment.

    An increment shorter than 1 is first scaled to length 1, because 1e12 times a tiny one could look honest.
    """

    def change(arrays: Arrays, metrics: Metrics) -> None:
        name = _some(delivery.rng, ("elapsed", "local-steps", "num-examples", "increment"))
        if name == "increment" or name not in metrics:
            factor = _some(delivery.rng, (1e12, -1e12, 1e100))
            for key, array in arrays.items():
                value = array.numpy()
                length = float(np.linalg.norm(value.astype(np.float64)))
                direction = value / min(length, 1.0) if length > 0.0 else np.ones_like(value)
                with np.errstate(over="ignore"):
                    arrays[key] = Array((direction * factor).astype(value.dtype))
        elif name == "elapsed":
            metrics[name] *= _some(delivery.rng, (1e12, 1e-12, 1e300))
        else:
            metrics[name] = int(_some(delivery.rng, (10**15, 10**18)))

    return _changed(delivery, change)


def lying(factor: float) -> Fault:
    """Return a fault that multiplies every array of a reply by a factor.

    Parameters
    ----------
    factor : float
        The factor. -1 reverses the increment; 10 is within the range of honest heterogeneity, so no bound detects it.

    Examples
    --------
    >>> lying(-1.0).__name__
    'lying(-1)'
    """

    def fault(delivery: Delivery) -> list[Message]:
        return _changed(delivery, lambda arrays, metrics: _scale(arrays, factor))

    fault.__name__ = f"lying({factor:g})"
    fault.__doc__ = f"Every array of the reply times {factor:g}."
    return fault


#: Faults of a client or of the network, by name.
FAULTS: dict[str, Fault] = {
    fault.__name__.removeprefix("_"): fault
    for fault in (_absurd, _corrupt, _drop, _garbage, _lose, _malformed, _raise, _restart)
}

# --- injection -------------------------------------------------------------------------------------------------------


class _Schedule:
    """The random choice of each message's fault."""

    def __init__(
        self,
        faults: Mapping[str | Fault, float],
        seed: int,
        rounds: Container[int] | None,
        partitions: Container[int] | None,
        message_types: Sequence[str],
    ) -> None:
        self.seed, self.rounds, self.partitions, self.message_types = seed, rounds, partitions, message_types
        self.faults = dict(faults)

    def draw(self, message: Message, partition: int) -> tuple[str | Fault, np.random.Generator] | None:
        """Return the fault of a message and the generator for its own draws; None without a fault."""
        number = _round_of(message)
        may_hit = (
            message.metadata.message_type in self.message_types
            and (self.rounds is None or number in self.rounds)
            and (self.partitions is None or partition in self.partitions)
        )
        if not may_hit:
            return None
        rng = np.random.default_rng((self.seed, number, partition, 11))
        chance = float(rng.random())
        for fault, probability in self.faults.items():
            if chance < probability:
                return fault, rng
            chance -= probability
        return None


class FaultyGrid(InProcessGrid):
    """An in-process grid that injects faults with seeded probabilities.

    Parameters
    ----------
    client_app : flwr.clientapp.ClientApp
        The clients' app.
    num_nodes : int
        Node m has partition id m.
    faults : mapping of (str or callable) to float
        Probability of each fault; a reply has at most one. Names are the keys of :data:`FAULTS`, ``"delay"`` (the reply
        arrives in the next round) and ``"leave"`` (the node disconnects, and returns after `absence` rounds with
        another id and without its state). A custom function takes a :class:`Delivery` and returns the messages that
        reach the server.
    seed : int, default 0
        Seed of the faults.
    rounds, partitions : container of int, optional
        Rounds and partitions with faults; by default all of them.
    message_types : sequence of str, default ("train",)
        Types of the messages with faults.
    absence : int or None, default 3
        Number of rounds that a node is absent after ``"leave"``; None for the rest of the run.
    missing : bool, default False
        Whether to lose the message instead of injecting the fault. A server that excludes faulty replies should give
        nearly the same run.
    **options
        Options of :class:`flwr_fco.simulation.InProcessGrid`; a client's exception becomes an error reply by default.

    Attributes
    ----------
    injected : list of Injected
        The faults injected so far.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.core.logs import quiet
    >>> from flwr.app import Array, ArrayRecord
    >>> from flwr_fco.client_apps import client_app
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.strategies import FedDualAvg
    >>> app = client_app(lambda context: LeastSquares(np.eye(2), np.ones(2)))
    >>> grid = FaultyGrid(app, 4, {"drop": 0.2, "malformed": 0.2}, seed=1)
    >>> start = ArrayRecord({"coefficients": Array(np.zeros(2)), "intercept": Array(np.zeros(1))})
    >>> with grid.identity(), quiet(50):
    ...     result = FedDualAvg(client_lr=0.1, fraction_evaluate=0.0).start(grid, start, 10)
    >>> left_out = sum(metrics["num-left-out"] for metrics in result.train_metrics_clientapp.values())
    >>> left_out == len(grid.injected) > 5
    True
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        faults: Mapping[str | Fault, float],
        *,
        seed: int = 0,
        rounds: Container[int] | None = None,
        partitions: Container[int] | None = None,
        message_types: Sequence[str] = ("train",),
        absence: int | None = 3,
        missing: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(client_app, num_nodes, **{"raise_errors": False, **options})
        self.schedule = _Schedule(faults, seed, rounds, partitions, message_types)
        self.absence, self.missing = absence, missing
        self.injected: list[Injected] = []
        self._round = 0
        self._late: list[Message] = []
        #: Absent nodes: the round in which the node connects, its id and its context.
        self._away: list[tuple[int, int, Context]] = []
        self._new_ids, self._numbers = itertools.count(num_nodes + 2), itertools.count(1)

    def get_node_ids(self) -> Sequence[int]:
        """Return the ids of the nodes that are connected for the next round."""
        due = [entry for entry in self._away if entry[0] <= self._round + 1]
        self._away = [entry for entry in self._away if entry[0] > self._round + 1]
        for _, node_id, context in due:
            self.contexts[node_id] = context
            self.partition_ids[node_id] = int(context.node_config["partition-id"])
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages at once and store each one's first reply for :meth:`pull_messages`."""
        numbers = []
        for message in messages:
            answers = self._answers_to(message)
            number = f"{next(self._numbers)}"
            numbers.append(number)
            if answers:
                self._replies[number] = answers[0]
        return numbers

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Deliver messages one by one and return the replies, starting with late replies from the last round."""
        messages = list(messages)
        replies: list[Message] = []
        if messages and messages[0].metadata.message_type in self.schedule.message_types:
            replies, self._late = self._late, []
        for message in messages:
            replies.extend(self._answers_to(message))
        return replies

    def _answers_to(self, message: Message) -> list[Message]:
        node_id = message.metadata.dst_node_id
        if message.metadata.message_type == "train":
            self._round = max(self._round, _round_of(message))
        if node_id not in self.partition_ids:
            return []
        partition = self.partition_ids[node_id]
        drawn = self.schedule.draw(message, partition)
        if drawn is None:
            reply = self.reply(message)
            return [] if reply is None else [reply]
        fault, rng = drawn
        delivery = Delivery(message, self.context(node_id), rng, lambda: self.reply(message))
        self.injected.append(Injected(_round_of(message), partition, _name(fault)))
        if self.missing:
            return []
        if fault == "delay":
            self._late.extend(_answers(delivery))
            return []
        if fault == "leave":
            self._leave(node_id)
            return []
        function = FAULTS[fault] if isinstance(fault, str) else fault
        try:
            return list(function(delivery))
        except InjectedError as error:
            return [Message(Error(CLIENT_APP_RAISED, f"{error}"), reply_to=message)]

    def _leave(self, node_id: int) -> None:
        old = self.context(node_id)
        self._disconnect(node_id)
        if self.absence is not None:
            new_id = next(self._new_ids)
            made = {"node_id": new_id, "node_config": dict(old.node_config), "run_config": dict(old.run_config)}
            context = Context(run_id=self.run_id, state=RecordDict(), **made)
            self._away.append((self._round + 1 + self.absence, new_id, context))

    def _disconnect(self, node_id: int) -> None:
        del self.contexts[node_id], self.partition_ids[node_id]


def fault_mod(
    faults: Mapping[str | Fault, float],
    *,
    seed: int = 0,
    rounds: Container[int] | None = None,
    partitions: Container[int] | None = None,
    message_types: Sequence[str] = ("train",),
) -> Callable[[Message, Context, Callable[[Message, Context], Message]], Message]:
    """Return a Flower mod that makes a client fail, also in Flower's own simulation and in a deployment.

    Parameters
    ----------
    faults : mapping of (str or callable) to float
        As for :class:`FaultyGrid`, without the network's (``"drop"``, ``"lose"``, ``"delay"``, ``"leave"``): a mod
        returns exactly one message.
    seed, rounds, partitions, message_types
        As for :class:`FaultyGrid`.

    Examples
    --------
    >>> from flwr_fco.client_apps import client_app
    >>> app = client_app(lambda context: ..., mods=[fault_mod({"absurd": 1.0}, partitions=[3])])
    """
    schedule = _Schedule(faults, seed, rounds, partitions, message_types)

    def injecting(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        partition = int(context.node_config.get("partition-id", context.node_id))
        drawn = schedule.draw(message, partition)
        if drawn is None:
            return call_next(message, context)
        fault, rng = drawn
        function = FAULTS[fault] if isinstance(fault, str) else fault
        return function(Delivery(message, context, rng, lambda: call_next(message, context)))[0]

    return injecting


# --- helpers ---------------------------------------------------------------------------------------------------------


def _answers(delivery: Delivery) -> list[Message]:
    reply = delivery.deliver()
    return [] if reply is None else [reply]


def _changed(delivery: Delivery, change: Callable[[Arrays, Metrics], None]) -> list[Message]:
    """Return the client's reply with changed arrays and metrics; a reply without arrays is unchanged."""
    reply = delivery.deliver()
    if reply is None:
        return []
    if not reply.has_content():
        return [reply]
    content = reply.content.copy()
    for key, record in reply.content.items():
        if not isinstance(record, ArrayRecord) or not record:
            continue
        metric_keys = [name for name, other in reply.content.items() if isinstance(other, MetricRecord)]
        arrays: Arrays = dict(record)
        metrics: Metrics = dict(reply.content[metric_keys[0]]) if metric_keys else {}
        change(arrays, metrics)
        content[key] = ArrayRecord(arrays)
        if metric_keys:
            content[metric_keys[0]] = MetricRecord(metrics)
    return [Message(content, reply_to=delivery.message)]


def _scale(arrays: Arrays, factor: float) -> None:
    for name, array in arrays.items():
        value = array.numpy()
        arrays[name] = Array((value * factor).astype(value.dtype))


def _some(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _round_of(message: Message) -> int:
    text = message.metadata.group_id
    return int(text) if text.isdecimal() else 0


def _name(fault: str | Fault) -> str:
    return fault if isinstance(fault, str) else getattr(fault, "__name__", type(fault).__name__)
