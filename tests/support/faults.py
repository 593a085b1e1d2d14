"""Fault injection: a grid and a mod that lose, damage and forge replies with seeded probabilities.

The fault of a reply is drawn only from (seed, round, partition). So two runs with the same seed have the same faults,
whatever else differs between them, and a node that receives another message in a round has the same fault again.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from flwr_fco.simulation.grid import CLIENT_APP_RAISED, InProcessGrid


class InjectedError(RuntimeError):
    """The exception raised by the fault ``"raise"``."""


@dataclass
class Delivery:
    """A message on its way to a client; the argument of a fault, which returns the messages that reach the server."""

    message: Message
    #: A fault may change its state.
    context: Context
    #: For this (seed, round, partition).
    rng: np.random.Generator
    #: Delivers the message to the client and returns its reply.
    deliver: Callable[[], Message | None]


class Injected(NamedTuple):
    """A fault that was injected."""

    server_round: int
    partition: int
    fault: str


# --- faults ----------------------------------------------------------------------------------------------------------


def _drop(delivery):
    """Lose the reply of a client that has done its work."""
    delivery.deliver()
    return []


def _lose(delivery):
    """Lose the message: it never reaches the client."""
    return []


def _raise(delivery):
    """Raise before the client does anything."""
    raise InjectedError("this client raises on purpose")


def _restart(delivery):
    """Reply as a new process, without the client's state; at most one restart per client and round."""
    number = _round_of(delivery.message)
    mark = delivery.context.state.get("restarted")
    if mark is None or mark["round"] != number:
        delivery.context.state = RecordDict({"restarted": ConfigRecord({"round": number})})
    return _there(delivery.deliver())


def altered(message, reply, change):
    """Return a reply whose arrays and metrics ``change(arrays, metrics)`` has changed in place; None has none.

    Arrays are NumPy's; one of Flower's that the function puts in their place is sent as it is.
    """
    if reply is None or not reply.has_content():
        return reply
    content = reply.content.copy()
    arrays = {name: array.numpy().copy() for name, array in content.get("arrays", {}).items()}
    metrics = dict(content.get("metrics", {}))
    change(arrays, metrics)
    if "arrays" in content:
        made = {name: own if isinstance(own, Array) else Array(np.asarray(own)) for name, own in arrays.items()}
        content["arrays"] = ArrayRecord(made)
    if "metrics" in content:
        content["metrics"] = MetricRecord(metrics)
    return Message(content, reply_to=message)


def altering(change):
    """Return a fault: ``change(arrays, metrics, rng)`` changes what a reply with arrays holds."""

    def fault(delivery):
        def of_arrays(arrays, metrics):
            if arrays:
                change(arrays, metrics, delivery.rng)

        return _there(altered(delivery.message, delivery.deliver(), of_arrays))

    fault.__name__ = change.__name__
    return fault


@altering
def _malformed(arrays, metrics, rng):
    """Violate the protocol: NaN, another shape, dtype or name, a metric missing or out of range."""
    name = _some(rng, sorted(arrays))
    value = arrays[name]
    kind = _some(rng, ("NaN", "infinite", "shape", "dtype", "name", "extra", "none", "weight", "metrics"))
    if kind in ("NaN", "infinite") and value.dtype.kind == "f":
        value.flat[int(rng.integers(value.size))] = np.nan if kind == "NaN" else np.inf
    elif kind == "shape":
        arrays[name] = value.reshape(-1)[:-1]
    elif kind in ("dtype", "NaN", "infinite"):
        arrays[name] = value.astype(np.float16)
    elif kind == "name":
        arrays["another-name"] = arrays.pop(name)
    elif kind == "extra":
        arrays["one-too-many"] = value
    elif kind == "none":
        arrays.clear()
    elif kind == "weight":
        metrics["num-examples"] = -3
    else:
        metrics.clear()


def _npy(header):
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


@altering
def _garbage(arrays, metrics, rng):
    """Replace an array's bytes with crafted or random ones."""
    name = _some(rng, sorted(arrays))
    array = Array(arrays[name])
    kinds = (*_GARBAGE, rng.bytes(64), array.data[:-3], array.data + b"more")
    arrays[name] = Array(array.dtype, tuple(array.shape), array.stype, _some(rng, kinds))


@altering
def _absurd(arrays, metrics, rng):
    """Make one number in a well-formed reply absurd: elapsed, steps, examples, or the length of the increment.

    An increment shorter than 1 is first scaled to length 1, because 1e12 times a tiny one could look honest.
    """
    name = _some(rng, ("elapsed", "local-steps", "num-examples", "increment"))
    if name == "increment" or name not in metrics:
        factor = _some(rng, (1e12, -1e12, 1e300))
        for key, value in arrays.items():
            length = float(np.linalg.norm(value.astype(np.float64)))
            direction = value / min(length, 1.0) if length > 0.0 else np.ones_like(value)
            with np.errstate(over="ignore"):
                arrays[key] = (direction * factor).astype(value.dtype)
    elif name == "elapsed":
        metrics[name] *= _some(rng, (1e12, 1e-12, 1e300))
    else:
        metrics[name] = int(_some(rng, (10**15, 10**18)))


def lying(factor):
    """Return a fault that multiplies every array of a reply; by 10 it is within honest heterogeneity."""

    def scale(arrays, metrics, rng):
        for name, value in arrays.items():
            arrays[name] = (value * factor).astype(value.dtype)

    scale.__name__ = f"lying({factor:g})"
    return altering(scale)


#: Faults of a client or of the network, by name.
FAULTS = {
    fault.__name__.removeprefix("_"): fault for fault in (_absurd, _drop, _garbage, _lose, _malformed, _raise, _restart)
}

# --- injection -------------------------------------------------------------------------------------------------------


class Schedule:
    """The random choice of each message's fault: ``faults`` have probabilities, and a reply has at most one."""

    def __init__(self, faults, seed=0, rounds=None, partitions=None, message_types=("train",)):
        self.faults = dict(faults)
        self.seed = seed
        self.message_types = message_types
        self.rounds = rounds
        self.partitions = partitions

    def draw(self, message, partition):
        """Return the fault of a message and the generator for its own draws; None without a fault."""
        number = _round_of(message)
        allowed = ((self.rounds, number), (self.partitions, partition))
        may_hit = all(those is None or own in those for those, own in allowed)
        if not may_hit or message.metadata.message_type not in self.message_types:
            return None
        rng = np.random.default_rng((self.seed, number, partition, 11))
        drawn = float(rng.random())
        for fault, probability in self.faults.items():
            if drawn < probability:
                return fault, rng
            drawn -= probability
        return None


#: Rounds for which a node that leaves is away.
ABSENCE = 3


class FaultyGrid(InProcessGrid):
    """An in-process grid that injects faults with seeded probabilities.

    Names of faults are the keys of :data:`FAULTS`, ``"delay"`` (the reply arrives in the next round) and ``"leave"``
    (the node disconnects, and returns after some rounds with another id and without its state). With `missing`
    the message is lost instead: a server that leaves faulty replies out should give nearly the same run. A client's
    exception becomes an error reply by default. `injected` has the faults so far.
    """

    def __init__(self, client_app, num_nodes, faults, *, missing=False, raise_errors=False, **where):
        super().__init__(client_app, num_nodes, raise_errors=raise_errors)
        self.schedule = Schedule(faults, **where)
        self.missing = missing
        self.injected = []
        self._round = 0
        self._late = []
        #: Absent nodes: the round in which the node connects, its id and its context.
        self._away = []
        self._new_ids = itertools.count(num_nodes + 2)

    def get_node_ids(self):
        """Return the ids of the nodes that are connected for the next round."""
        due = [entry for entry in self._away if entry[0] <= self._round + 1]
        self._away = [entry for entry in self._away if entry[0] > self._round + 1]
        for _, node_id, context in due:
            self.contexts[node_id] = context
            self.partition_ids[node_id] = int(context.node_config["partition-id"])
        return super().get_node_ids()

    def send_and_receive(self, messages, *, timeout=None):
        """Deliver messages one by one and return the replies, starting with late replies from the last round."""
        messages = list(messages)
        late = []
        if messages and messages[0].metadata.message_type in self.schedule.message_types:
            late, self._late = self._late, []
        return [*late, *(reply for message in messages for reply in self._answers_to(message))]

    def _answers_to(self, message):
        node_id = message.metadata.dst_node_id
        if message.metadata.message_type == "train":
            self._round = max(self._round, _round_of(message))
        if node_id not in self.partition_ids:
            return []
        partition = self.partition_ids[node_id]
        drawn = self.schedule.draw(message, partition)
        if drawn is None:
            return _there(self.reply(message))
        fault, rng = drawn
        name = fault if isinstance(fault, str) else fault.__name__
        self.injected.append(Injected(_round_of(message), partition, name))
        if self.missing:
            return []
        if fault == "delay":
            self._late.extend(_there(self.reply(message)))
            return []
        if fault == "leave":
            self._leave(node_id)
            return []
        delivery = Delivery(message, self.context(node_id), rng, lambda: self.reply(message))
        try:
            return list(FAULTS.get(fault, fault)(delivery))
        except InjectedError as error:
            return [Message(Error(CLIENT_APP_RAISED, f"{error}"), reply_to=message)]

    def _leave(self, node_id):
        old = self.context(node_id)
        del self.contexts[node_id], self.partition_ids[node_id]
        new_id = next(self._new_ids)
        made = {"node_id": new_id, "node_config": dict(old.node_config), "run_config": dict(old.run_config)}
        context = Context(run_id=self.run_id, state=RecordDict(), **made)
        self._away.append((self._round + 1 + ABSENCE, new_id, context))


def fault_mod(faults, **where):
    """Return a Flower mod that makes a client fail, also in Flower's own simulation and in a deployment.

    Without the network's faults (``"drop"``, ``"lose"``, ``"delay"``, ``"leave"``): it returns exactly one message.
    """
    schedule = Schedule(faults, **where)

    def injecting(message, context, call_next):
        partition = int(context.node_config.get("partition-id", context.node_id))
        drawn = schedule.draw(message, partition)
        if drawn is None:
            return call_next(message, context)
        fault, rng = drawn
        return FAULTS.get(fault, fault)(Delivery(message, context, rng, lambda: call_next(message, context)))[0]

    return injecting


# --- helpers ---------------------------------------------------------------------------------------------------------


def _there(reply):
    return [] if reply is None else [reply]


def _some(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def _round_of(message):
    text = message.metadata.group_id
    return int(text) if text.isdecimal() else 0
