"""Uplinks as records: a client's answer, written by the client, read and checked by the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector, euclidean_norm
from flwr_fco.core.schema import Grades, grades_in
from flwr_fco.core.sparse import SparseVector
from flwr_fco.errors import FOR_A_MODEL, ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.arrays import arrays_of, primal_increment, read_pass_through, read_vectors, vectors_of
from flwr_fco.wire.envelope import OWN_METRICS, content_of, reply
from flwr_fco.wire.keys import ARRAYS, INDICES, METRICS, NONZEROS, OWN_ARRAYS, PASS, SCHEMA, UNITS
from flwr_fco.wire.metrics import LARGEST_COUNT, is_number, metrics_of, number_of
from flwr_fco.wire.protocol import Uplink

_FLOAT64 = np.dtype(np.float64)
#: Precisions of vectors that need no records.
_PRECISIONS = (_FLOAT64, np.dtype(np.float32))
_NOTHING: Mapping[str, NDArray[Any]] = MappingProxyType({})


class Sent(NamedTuple):
    """The answer of a client in this process, without a message.

    Parameters
    ----------
    vectors : dict of str to ndarray of float64 or float32, or SparseVector
        Read-only; empty if the vectors have other types, which are then in the records.
    content : RecordDict or dict
        All other data; only the metrics if the vectors are held above.
    digest : str, default ""
        Digest of the data that determines a client's memory, if it has one.
    units : sequence of int
        As of :class:`Uplink`: beside the metrics, which most clients of a round then share.
    """

    vectors: dict[str, Any]
    content: RecordDict | dict[str, Any]
    digest: str = ""
    units: Grades = ()


def uplink_answer(message: Message, uplink: Uplink, *, num_examples: int, wire_dtype: str) -> Message:
    """Return the reply to a training message that holds an uplink.

    Parameters
    ----------
    message : Message
        The message being answered; the arrays are sent under the key of its vectors.
    num_examples : int
        The client's number of examples.
    wire_dtype : {"float64", "float32", "auto"}
        ``"auto"``: the precision of the vectors in `message`.
    """
    key, received = next(
        (key, record)
        for key, record in message.content.items()
        if isinstance(record, ArrayRecord) and key not in OWN_ARRAYS
    )
    if wire_dtype == "auto":
        beside = (PASS, INDICES, NONZEROS)
        wire_dtype = next((array.dtype for name, array in received.items() if not name.startswith(beside)), "float64")
    arrays = arrays_of(_rounded(uplink.vectors, wire_dtype))
    if uplink.pass_through:
        arrays.update({PASS + name: array for name, array in uplink.pass_through.items()})
    metrics = _with_units(_reported(uplink, num_examples), uplink.units)
    return reply(message, _flower.packed({key: (ArrayRecord, arrays), METRICS: (MetricRecord, metrics)}))


def _rounded(vectors: Mapping[str, Any], wire_dtype: str) -> Mapping[str, Any]:
    """Return vectors in the wire's precision."""
    if wire_dtype == "float64":
        return vectors
    return {name: vector.astype(wire_dtype, copy=False) for name, vector in vectors.items()}


def _reported(uplink: Uplink, num_examples: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {"num-examples": int(num_examples), "local-steps": int(uplink.steps)}
    if uplink.elapsed is not None:
        metrics["elapsed"] = float(uplink.elapsed)
    for name, value in uplink.metrics.items() if uplink.metrics else ():
        if name in OWN_METRICS:
            raise ProtocolError(f"a client reports the metric {name!r}, which is the protocol's own; rename it")
        metrics[name] = float(value)
    return metrics


def _with_units(metrics: dict[str, Any], units: Grades) -> dict[str, Any]:
    return {**metrics, UNITS: np.asarray(units).tolist()} if len(units) else metrics


def _positive(metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    if type(value) is float and 0.0 < value < math.inf:
        return value
    if value is None or not is_number(value) or value <= 0:
        raise ProtocolError(f"the metric {name!r} is {value!r}, expected a finite number > 0")
    return float(value)


def _count(metrics: Mapping[str, Any], name: str) -> int:
    count = metrics.get(name)
    if type(count) is int and 1 <= count <= LARGEST_COUNT:
        return count
    value = _positive(metrics, name)
    if value < 1.0 or value != int(value):
        raise ProtocolError(f"the metric {name!r} is {value!r}, expected a whole number >= 1")
    return int(value)


def num_examples(content: RecordDict | dict[str, Any]) -> float | None:
    """Return the number of examples in a reply of this package's ClientApp; None if missing or invalid."""
    metrics: Any = content if type(content) is dict else content.get(METRICS)
    value = None if metrics is None else metrics.get("num-examples")
    return float(value) if isinstance(value, int | float) else None


def vector_names(reply: Message) -> frozenset[str]:
    """Return the names of the vectors in a reply; empty if it has none."""
    try:
        content = content_of(reply)
        arrays = {} if content is None else vectors_of(content)
    except ProtocolError:
        return frozenset()
    return frozenset(name for name in arrays if not name.startswith((INDICES, PASS)))


def read_uplink(
    content: RecordDict,
    layout: Layout,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    wire_dtype: str,
    weighted_by_key: str,
    timed: bool = True,
) -> Uplink:
    """Read and check a reply of this package's ClientApp; its vectors keep their precision, without a copy.

    Parameters
    ----------
    content : RecordDict
        The reply.
    layout : Layout
        The model's arrays.
    shapes : mapping of str to tuple of int
        Name and shape of each required vector.
    wire_dtype : {"float64", "float32"}
        Precision that the clients were asked for; other floating dtypes are also accepted.
    weighted_by_key : str
        Key of the weight in the MetricRecord.
    timed : bool, default True
        Whether the reply must have a sum of step sizes; after a minimisation there is none.

    Raises
    ------
    ProtocolError
        With the reason, if anything is missing, extra, of another shape or dtype, NaN or infinite.
    """
    arrays = vectors_of(content)
    through = {PASS + entry.name: entry for entry in layout.passed_through} if layout.passed_through else {}
    if arrays.keys() - through.keys() - {INDICES + name for name in shapes} != shapes.keys():
        advice = f". {FOR_A_MODEL}" if arrays.keys() == set(layout.names) else ""
        raise ProtocolError(f"the arrays are {sorted(arrays)}, expected {sorted(shapes)}{advice}")
    vectors, norms = read_vectors(arrays, shapes, wire_dtype)
    passed = {e.name: read_pass_through(e, arrays[key]) for key, e in through.items() if key in arrays}
    return _uplink_of(vectors, norms, passed or _NOTHING, metrics_of(content, weighted_by_key), weighted_by_key, timed)


def _uplink_of(
    vectors: dict[str, Any],
    norms: dict[str, float],
    passed: Mapping[str, NDArray[Any]],
    said: tuple[Mapping[str, Any], float],
    weighted_by_key: str,
    timed: bool,
) -> Uplink:
    metrics, examples = said
    others = {}
    if len(metrics) > (3 if timed else 2):
        names = metrics.keys() - OWN_METRICS - {weighted_by_key}
        others = {name: number_of(name, metrics[name]) for name in sorted(names)}
    return Uplink(
        vectors,
        _positive(metrics, "elapsed") if timed else None,
        _count(metrics, "local-steps"),
        examples=examples,
        metrics=others,
        pass_through=passed,
        norms=norms,
        units=grades_in(metrics[UNITS]) if UNITS in metrics else (),
    )


def sent(uplink: Uplink, num_examples: int, wire_dtype: str) -> Sent:
    """Return the answer of a client in this process, without a message; its vectors have the wire's precision."""
    metrics, rounded = _reported(uplink, num_examples), _rounded(uplink.vectors, wire_dtype)
    vectors: dict[str, Any] = {}
    for name, vector in rounded.items():
        if isinstance(vector, np.ndarray) and vector.dtype in _PRECISIONS:
            flags = vector.flags
            if flags.writeable or not flags.owndata:
                # A local solver may use its arrays again.
                vector = np.array(vector)
                vector.flags.writeable = False
            vectors[name] = vector
        elif isinstance(vector, SparseVector) and vector.values.dtype in _PRECISIONS:
            values, indices = vector.values.copy(), vector.indices.copy()
            values.flags.writeable = indices.flags.writeable = False
            vectors[name] = SparseVector(indices, values, vector.size)
        else:
            return Sent({}, as_records(Sent(dict(rounded), metrics, "", uplink.units)))
    return Sent(vectors, metrics, "", uplink.units)


class SentReader:
    """Reads and checks the answers of clients in this process in a round, as :func:`read_uplink` reads a message.

    Parameters
    ----------
    layout, shapes, weighted_by_key, timed
        As for :func:`read_uplink`.
    """

    def __init__(
        self, layout: Layout, *, shapes: Mapping[str, tuple[int, ...]], weighted_by_key: str, timed: bool = True
    ) -> None:
        self._layout, self._shapes, self._key, self._timed = layout, shapes, weighted_by_key, timed
        # Most clients of a round report the same numbers: those of the last answer, with its uplink.
        self._last: tuple[Any, Uplink | None] = (None, None)

    def __call__(self, sent: Sent) -> tuple[Uplink, Any]:
        """Return the uplink of an answer and its content, one object for answers that say the same."""
        vectors, content, digest, units = sent
        norms, shapes = {}, self._shapes
        plain = vectors.keys() == shapes.keys()
        for name, vector in vectors.items() if plain else ():
            held = vector.values if type(vector) is SparseVector else vector
            norm = math.sqrt(np.vdot(held, held)) if held.dtype is _FLOAT64 else euclidean_norm(held)
            norms[name] = norm
            plain = plain and vector.shape == shapes[name] and math.isfinite(norm)
        if not plain:
            # This raises the error, if there is one.
            options: dict[str, Any] = {"shapes": shapes, "weighted_by_key": self._key, "timed": self._timed}
            uplink = read_uplink(as_records(sent), self._layout, wire_dtype="float64", **options)
            return uplink._replace(digest=digest), content
        said, last = self._last
        if last is None or (content is not said and content != said):
            metrics = metrics_of(content, self._key)
            self._last = said, last = content, _uplink_of(vectors, norms, _NOTHING, metrics, self._key, self._timed)
        # `_replace` would take four times as long.
        return Uplink(vectors, *last[1:8], digest, norms, grades_in(units) if len(units) else ()), said


def as_reply(message: Message, sent: Sent) -> Message:
    """Return an answer without a message as the reply to a training message."""
    return reply(message, as_records(sent))


def as_records(sent: Sent) -> RecordDict:
    """Return an answer as the records of a message."""
    if isinstance(sent.content, RecordDict):
        return sent.content
    arrays, metrics = arrays_of(sent.vectors), _with_units(sent.content, sent.units)
    return _flower.packed({ARRAYS: (ArrayRecord, arrays), METRICS: (MetricRecord, metrics)})


def read_unmodified(
    content: RecordDict, layout: Layout, *, sent: Vector, client_lr: float, local_steps: int, weighted_by_key: str
) -> Uplink:
    """Read and check a reply of an ordinary FedAvg ClientApp, which returns its new model.

    Parameters
    ----------
    content : RecordDict
        The reply.
    sent : ndarray of float64, shape (layout.size,)
        The model as sent, in the user's dtypes.
    client_lr : float
        The client's learning rate according to the user.
    local_steps : int
        The client's number of steps according to the user; the reply's metrics ``elapsed`` and ``local-steps`` take
        precedence.
    """
    increment, passed, norm = primal_increment(layout, vectors_of(content), sent)
    metrics, examples = metrics_of(content, weighted_by_key)
    steps = _count(metrics, "local-steps") if "local-steps" in metrics else local_steps
    elapsed = _positive(metrics, "elapsed") if "elapsed" in metrics else client_lr * steps
    own = OWN_METRICS | {SCHEMA, weighted_by_key}
    others: Any = {name: value for name, value in metrics.items() if name not in own}
    norms = {"increment": norm}
    return Uplink({"increment": increment}, elapsed, steps, float("nan"), None, examples, others, passed, "", norms)
