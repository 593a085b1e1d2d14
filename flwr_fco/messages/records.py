"""Flower's records of tasks, replies, questions and answers: the only module that knows their keys.

A training message holds the model's vectors under the strategy's key (``arrays``), the user's config under its key
(``config``), and our own record ``fco``: the plan's JSON, rate, weight of psi, stamp and the method's numbers. The
plan's arrays are in ``fco-plan``, a memory for a client that has lost its own in ``fco-restored``. A reply has
``arrays`` and ``metrics``. A peer's bytes are compared with what is expected, and never unpickled.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, TypeVar, cast
from zlib import crc32

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from flwr_fco.core.files import npy_header, parse_json
from flwr_fco.core.layout import COUNTERS, Layout, NonZeros, SparseVector, Vector, all_finite
from flwr_fco.core.spec import Spec
from flwr_fco.errors import ConfigurationError, FormError, ProtocolError, in_words
from flwr_fco.messages import protocol
from flwr_fco.messages.protocol import Answer, Described, Downlink, Node, Plan, Question, Received, Uplink, parsed_plan
from flwr_fco.work import LocalWork

_Record = TypeVar("_Record", ArrayRecord, MetricRecord)
#: Records of a task, a question and a table; of a reply; and the prefix of the method's numbers.
FCO, PLAN, RESTORED, QUESTION, NAMES = "fco", "fco-plan", "fco-restored", "fco-question", "fco-names"
ARRAYS, METRICS, NUMBER = "arrays", "metrics", "number:"
#: Metrics that a client of ours reports of its round, and the one that says that its memory is lost.
EXAMPLES, STEPS, ELAPSED, LOST = OWN_METRICS = "num-examples", "local-steps", "elapsed", "fco-memory-lost"
#: Of a client's table, and of a task.
SIZE, RATE = "size", "client-lr"
#: What is no number in the records of tasks and questions; and the stamp of a client that begins.
_TEXTS, _BEGIN = frozenset(("plan", "stamp", "work", "kind", "layout")), "begin"
_LARGEST = sys.float_info.max
_DOUBLE = ("float64",)
#: The largest number of characters of a plan's JSON that is parsed at all.
LONGEST_PLAN = 4_000_000
#: Flower's name of NumPy's format.
NUMPY = "numpy.ndarray"
#: Prefixes of the indices of a sparse vector, of those of all its non-zeros, and of an array that passes through.
INDICES, NONZEROS, PASS = "indices:", "nonzeros:", "pass:"
#: Why an array, or a reply with other arrays, is left out.
NOT_FINITE = "NaN or infinite values"
OTHER_NAMES = "the arrays' names are not those of the model that `start` was given"
#: Floating-point dtypes, in any of which a model's array may return.
FLOATS = ("float64", "float32", "float16")
#: What JAX makes of whole numbers.
_IN_JAX = {"int64": "int32", "uint64": "uint32"}
_DTYPES = frozenset(np.dtype(code).name for code in "?bhiqBHIQefd")
#: Bytes that a header may have: what it says takes a hundred, the rest is padding.
_LONGEST_HEADER = 4096
_EMPTY = ArrayRecord()


# --- arrays -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy computes each time."""
    return dtype.name


@lru_cache(maxsize=256)
def _blank(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array of Flower's that has a header, and no numbers yet."""
    header = io.BytesIO()
    npy.write_array_header_1_0(header, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return Array(dtype, shape, NUMPY, header.getvalue())


def to_array(value: NDArray[Any]) -> Array:
    """Return Flower's array of a NumPy array: what ``Array(value)`` makes with three copies of the data."""
    if not (value.flags.c_contiguous and value.dtype.isnative):
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
    # A copy takes half the time of Flower's constructor.
    array = copy(_blank(name_of(value.dtype), value.shape))
    array.data = b"".join((array.data, value.data))
    return array


def from_array(name: str, array: Array) -> NDArray[Any]:
    """Return a read-only view of an array's bytes.

    They must be exactly those of NumPy's format for the dtype and the shape of the array's label.

    Parameters
    ----------
    name : str
        For the error.
    array : flwr.app.Array
        From a peer.

    Raises
    ------
    ProtocolError
        If they are not.
    """
    label = array.dtype
    shape = tuple(array.shape)
    data = array.data
    sizes = {*map(type, shape)} <= {int} and min(shape, default=0) >= 0
    if label not in _DTYPES or array.stype != NUMPY or not sizes:
        shown = f"array {name!r} is {label!r:.50}{list(shape)} in {array.stype!r:.50}"
        raise ProtocolError(f"{shown}, expected numbers (no bfloat16) in native byte order, sizes >= 0, in {NUMPY!r}")
    dtype = np.dtype(label)
    header = _blank(label, shape).data
    begin, columns_first = len(header), False
    if not data.startswith(header):
        # Of another version, padding or memory order: an expression in Python, which a peer can fill with anything.
        with in_words(f"array {name!r} cannot be read"):
            file = io.BytesIO(data[:_LONGEST_HEADER])
            said, columns_first, held = npy_header(file)
        begin = file.tell()
        if said != shape or held != dtype:
            raise ProtocolError(f"array {name!r} holds {held!s:.50}{list(said)}, its label says {dtype}{list(shape)}")
    if (size := len(data) - begin) != math.prod(shape) * dtype.itemsize:
        raise ProtocolError(f"array {name!r} cannot be read: {size} bytes are no {label}{list(shape)}")
    value = np.frombuffer(data, dtype, offset=begin)
    return value if len(shape) == 1 else value.reshape(shape, order="F" if columns_first else "C")


def check_array(name: str, array: Any, dtypes: Sequence[str], shape: tuple[int, ...], *, finite: bool = True) -> None:
    """Check that an array, or a sparse vector, is of one of some dtypes, of a shape, and `finite`.

    Raises
    ------
    FormError
        If its dtype or shape is another one.
    ProtocolError
        If an entry is not finite.
    """
    held = array.values if isinstance(array, SparseVector) else array
    if array.shape != shape or name_of(held.dtype) not in dtypes:
        expected = f"expected {' or '.join(dict.fromkeys(dtypes))}{list(shape)}"
        raise FormError(f"array {name!r} is {held.dtype}{list(array.shape)}, {expected}")
    if finite and held.dtype.kind == "f" and not all_finite(held):
        raise ProtocolError(f"array {name!r} holds {held.size - np.isfinite(held).sum()} {NOT_FINITE}")


def check_passed(layout: Layout, passed: Mapping[str, NDArray[Any]]) -> None:
    """Check that arrays that pass through are some of those of a model, as :func:`check_array` checks them."""
    entries = {entry.name: entry for entry in layout.passed_through} if passed else {}
    if wrong := sorted(passed.keys() - entries.keys()):
        raise FormError(f"the message has the arrays {wrong}, which the plan does not")
    for name, array in passed.items():
        check_array(name, array, (entries[name].dtype,), entries[name].shape)


def pack(vectors: Mapping[str, Any]) -> dict[str, Array]:
    """Return Flower's arrays of vectors, of which sparse ones have their indices beside them."""
    arrays = {}
    for name, vector in vectors.items():
        if isinstance(vector, SparseVector):
            kind = NONZEROS if isinstance(vector, NonZeros) else INDICES
            arrays[name], arrays[kind + name] = to_array(vector.values), to_array(vector.indices)
        else:
            arrays[name] = to_array(np.asarray(vector))
    return arrays


def unpack(arrays: Mapping[str, Array], size: int, shapes: Mapping[str, Any] = protocol.NOTHING_MORE) -> dict[str, Any]:
    """Return what :func:`pack` has packed.

    Parameters
    ----------
    arrays : mapping of str to Array
        From a peer.
    size : int
        Length of the sparse vectors.
    shapes : mapping of str to tuple of int
        Of those that have another length.

    Raises
    ------
    ProtocolError
        If an array cannot be read, or indices do not fit.
    """
    vectors: dict[str, Any] = {name: from_array(name, array) for name, array in arrays.items()}
    for prefix, kind in ((INDICES, SparseVector), (NONZEROS, NonZeros)):
        for entry in [name for name in vectors if name.startswith(prefix)]:
            name = entry.removeprefix(prefix)
            indices, values = vectors.pop(entry), vectors.get(name)
            if not isinstance(values, np.ndarray):
                raise ProtocolError(f"{entry!r:.100} have no values of their own beside them, or indices of two kinds")
            with in_words(f"array {name!r}", passing=ProtocolError):
                vectors[name] = kind(indices, values, math.prod(shapes.get(name, (size,))))
    return vectors


def split_passed(vectors: dict[str, Any], layout: Layout | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the vectors of a message, and its arrays that pass through, checked if the layout is given."""
    passed = {name.removeprefix(PASS): vectors.pop(name) for name in list(vectors) if name.startswith(PASS)}
    if layout is not None:
        check_passed(layout, passed)
    return vectors, passed


def digest_of(vectors: Mapping[str, Any], elapsed: float | None) -> str:
    """Return what names a client's reply, which has the same name in a message, where `elapsed` is one of Python's.

    Examples
    --------
    >>> of = [digest_of({"increment": np.zeros(2)}, elapsed) for elapsed in (1.0, 1.5, np.float64(1.0), 1)]
    >>> [own == of[0] for own in of]
    [True, False, True, True]
    """
    # Processors have instructions for it: it takes half the time of BLAKE2.
    digest = sha256(repr(None if elapsed is None else float(elapsed)).encode())
    for name, part in _parts(vectors):
        digest.update(f"{name} {part.dtype.str}".encode())
        digest.update(part.data)
    return digest.hexdigest()[:32]


def stamp_of(digest: str, number: int, memory: Mapping[str, Any]) -> str:
    """Return what names the memory after a reply of a round: equal replies may leave different memories."""
    check = 0
    for _, part in _parts(memory):
        check = crc32(np.ascontiguousarray(part).data, check)
    return f"{digest}-{number}-{check:08x}"


def _parts(vectors: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays that vectors are made of, by name."""
    for name, vector in sorted(vectors.items()):
        for part in vector.parts if isinstance(vector, SparseVector) else (vector,):
            yield name, part


# --- models -----------------------------------------------------------------------------------------------------------


def layout_of(arrays: Mapping[str, Array], apply_to: Any, pass_through: Any) -> Layout:
    """Return the layout of a model under the user's names."""
    # Counters of batches pass through, in whatever dtype a framework holds them.
    model = {name: from_array(name, array) for name, array in arrays.items()}
    model |= {name: np.zeros_like(own, np.int64) for name, own in model.items() if fnmatchcase(name, COUNTERS)}
    return Layout.from_arrays(model, apply_to=apply_to, pass_through=pass_through)


def model_record(layout: Layout, primal: Vector, passed: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return a model under the user's names and in the user's dtypes."""
    arrays = {**passed, **layout.views(primal)}
    return record_of({e.name: to_array(arrays[e.name].astype(e.dtype, copy=False)) for e in layout.entries})


def record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return a record of arrays as they are: Flower's constructor makes new ones."""
    record = _EMPTY.copy()
    record.update(arrays)
    return record


def model_vector(layout: Layout, arrays: Mapping[str, Array]) -> tuple[Vector, dict[str, NDArray[Any]]]:
    """Return a model as one vector, and its arrays that pass through.

    Parameters
    ----------
    layout : Layout
        Of the model.
    arrays : mapping of str to Array
        Under the user's names; floating-point arrays may be of another floating dtype.

    Raises
    ------
    ProtocolError
        If names, shapes or dtypes differ, or an entry is not finite.
    """
    if set(arrays) != set(layout.names):
        missing, more = (sorted(each) for each in (set(layout.names) - set(arrays), set(arrays) - set(layout.names)))
        raise FormError(f"{OTHER_NAMES}: missing {missing}, unexpected {more}")
    vector = np.empty(layout.size)
    passed = {}
    for entry in layout.entries:
        value = from_array(entry.name, arrays[entry.name])
        floats = FLOATS if entry.dtype in FLOATS or fnmatchcase(entry.name, COUNTERS) else ()
        check_array(entry.name, value, (entry.dtype, _IN_JAX.get(entry.dtype, entry.dtype), *floats), entry.shape)
        if entry.optimized:
            vector[entry.block] = value.reshape(-1)
            continue
        if value.dtype.kind == "f" and entry.dtype[0] in "iu":
            # FedAvg averages the counters of batch normalisation.
            value = np.rint(np.clip(value, 0.0, 2.0**53))
        passed[entry.name] = value.astype(entry.dtype, copy=False)
    return vector, passed


# --- tasks and replies ------------------------------------------------------------------------------------------------


def encoder(config: ConfigRecord, arrayrecord_key: str, configrecord_key: str) -> Callable[[Downlink], RecordDict]:
    """Return what writes the tasks of a round: what several clients are sent is serialised once.

    Parameters
    ----------
    config : ConfigRecord
        The user's, with the round.
    arrayrecord_key, configrecord_key : str
        The strategy's record keys.
    """
    #: Sources are held with what was made of them: an id is unique only as long as its object lives.
    made: dict[int, tuple[Any, Any]] = {}

    def once(source: Any, make: Callable[[Any], Any]) -> Any:
        if id(source) not in made:
            made[id(source)] = source, make(source)
        return made[id(source)][1]

    def packed(vectors: Mapping[str, Any], prefix: str = "", dtype: str | None = None) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name, vector in vectors.items():
            own = once(vector, lambda own: pack({"": own if dtype is None else own.astype(dtype, copy=False)}))
            arrays |= {kind + prefix + name: array for kind, array in own.items()}
        return arrays

    def encoded(down: Downlink) -> RecordDict:
        about: dict[str, Any] = {"plan": down.plan.text, ELAPSED: float(down.elapsed)}
        about |= {} if math.isnan(down.client_lr) else {RATE: float(down.client_lr)}
        about |= {} if down.work is None else {"work": down.work.to_spec().to_json()}
        # Flower's message_size_mod refuses an empty text.
        about |= {} if down.stamp is None else {"stamp": down.stamp or _BEGIN}
        about |= {NUMBER + name: float(number) for name, number in down.numbers.items()}
        arrays = packed(down.vectors, dtype=down.dtype) | packed(down.pass_through, PASS)
        records: dict[str, Any] = {arrayrecord_key: record_of(arrays), configrecord_key: config}
        records[FCO] = ConfigRecord(about)
        if down.plan.spec.arrays:
            records[PLAN] = record_of(packed(down.plan.spec.arrays))
        if down.restored is not None:
            records[RESTORED] = record_of(pack(down.restored))
        return RecordDict(records)

    # Of their own for each client: the server's hooks may change them.
    return lambda down: isolated(once(down, encoded))


def _checked_text(text: Any, most: float) -> str:
    """Return JSON as it came, unless it is longer than the client allows."""
    if len(text) > most:
        prefix = f"the server asks for a plan of {len(text)} characters; this client allows max_plan={most:g}"
        raise ConfigurationError(f"{prefix}. Its owner can raise it: client_app(..., limits=Limits(max_plan=...))")
    return str(text)


@in_words("the server's message cannot be read")
def decode_downlink(content: RecordDict, most_characters: float = LONGEST_PLAN, *, as_sent: bool = False) -> Downlink:
    """Return the task of a training message; a plan without arrays is parsed once in a process.

    Parameters
    ----------
    content : RecordDict
        Of the message.
    most_characters : float, default 4e6
        Of a plan's JSON.
    as_sent : bool, default False
        Whether vectors keep the precision in which they came; otherwise they become float64.

    Raises
    ------
    ProtocolError, SpecError
        If it cannot be read, or has other numbers than a server of ours sends.
    ConfigurationError
        If the plan is too long.
    """
    if FCO not in content:
        prefix = f"this training message comes from a strategy that is not of flwr_fco (it lacks the {FCO!r} record)"
        raise ProtocolError(f'{prefix}. Use one of flwr_fco.strategies on the server, without client="unmodified"')
    about: Any = Received(content[FCO].items())
    text = _checked_text(about["plan"], most_characters)
    found: Any = content.get(PLAN, {})
    of_plan = {name: from_array(name, array) for name, array in found.items()}
    plan = Plan.from_spec(Spec(parse_json(text), of_plan)) if of_plan else parsed_plan(text)
    work: Any = about.get("work")
    if work is not None:
        work = LocalWork.from_spec(Spec(parse_json(_checked_text(work, most_characters)), {}))
    restored = memory_in(content[RESTORED], plan.layout.size) if RESTORED in content else None
    numbers = _numbers_in(about)
    elapsed = float(numbers.pop(ELAPSED))
    rate = float(numbers.pop(RATE, math.nan))
    size, points = plan.layout.size, numbers.get(protocol.POINTS, 1.0)
    # Vectors may hold several points, one after the other.
    if points != 1.0 and not (points >= 1.0 and points == int(points) and points * size < 2**31):
        raise ProtocolError(f"the server sends {points!r} points of {size} numbers; expected 1 or more, below 2**31")
    vectors, passed = split_passed(unpack(only(ArrayRecord, content), size * int(points)), plan.layout)
    allowed = ("float64", "float32") if plan.wire_dtype == "auto" else _DOUBLE
    for name, vector in vectors.items():
        check_array(name, vector, allowed, (size * int(points),), finite=False)
    dtype = next((name_of(getattr(own, "values", own).dtype) for own in vectors.values()), "float64")
    stamp = "" if about.get("stamp") == _BEGIN else about.get("stamp")
    down = Downlink(plan, vectors, rate, elapsed, numbers, stamp, work, passed, restored, dtype)
    return down.as_received(as_sent=as_sent)


def memory_in(record: Any, size: int) -> Received:
    """Return a client's memory.

    Raises
    ------
    ProtocolError
        If a vector is of another length, or not finite.
    """
    memory = unpack(record, size)
    for name, vector in memory.items():
        check_array(name, vector, _DOUBLE, (size,))
    return Received(memory)


def _numbers_in(record: Mapping[str, Any]) -> Received:
    """Return the numbers of a record by name; all of them are finite."""
    numbers = Received({key.removeprefix(NUMBER): own for key, own in record.items() if key not in _TEXTS})
    for name, number in numbers.items():
        if not is_number(number):
            raise ProtocolError(f"the server's number {name!r} is {number!r:.50}, expected a finite number")
    return numbers


def encode_uplink(up: Uplink | None) -> RecordDict:
    """Return the records of a reply; None says that the memory which the task's stamp names is lost."""
    if up is None:
        return RecordDict({METRICS: MetricRecord({LOST: 1})})
    metrics = _work_record(int(up.examples), int(up.steps or 1), up.elapsed and float(up.elapsed)).copy()
    for name, value in up.metrics.items():
        if name in OWN_METRICS:
            raise ProtocolError(f"a client reports the metric {name!r}, which is the protocol's own; rename it")
        metrics[name] = value if isinstance(value, list) else float(value)
    arrays = pack({**up.vectors, **{PASS + name: value for name, value in up.pass_through.items()}})
    return RecordDict({ARRAYS: record_of(arrays), METRICS: metrics})


@lru_cache(maxsize=64)
def _work_record(examples: int, steps: int, elapsed: float | None) -> MetricRecord:
    """Return what a reply says of a client's work: most of a round say the same, and Flower checks each number."""
    return MetricRecord({EXAMPLES: examples, STEPS: steps, **({} if elapsed is None else {ELAPSED: elapsed})})


def metric_record(numbers: Mapping[str, Any], before: MetricRecord | None) -> MetricRecord:
    """Return a record of numbers, most of which those of the round before are: a copy checks none of them again."""
    if before is None or [*before] != [*numbers]:
        return MetricRecord(dict(numbers))
    record = before.copy()
    for (name, number), old in zip(numbers.items(), before.values(), strict=True):
        if type(number) is not type(old) or number != old:
            record[name] = number
    return record


def decode_uplink(content: RecordDict, size: int, shapes: Mapping[str, tuple[int, ...]]) -> Uplink | None:
    """Return the reply of a message, of which only the form is checked; None if the client has lost its memory.

    Parameters
    ----------
    content : RecordDict
        Of the message.
    size : int
        Number of the model's entries.
    shapes : mapping of str to tuple of int
        Names and shapes of the vectors that a client sends.
    """
    metrics: dict[str, Any] = dict(only(MetricRecord, content).items())
    if metrics.keys() == {LOST}:
        return None
    vectors, passed = split_passed(unpack(only(ArrayRecord, content), size, shapes))
    elapsed, steps, examples = (metrics.pop(name, None) for name in (ELAPSED, STEPS, EXAMPLES))
    return Uplink(vectors, elapsed, steps, examples=examples, metrics=metrics, pass_through=passed)


def only(kind: type[_Record], content: RecordDict) -> _Record:
    """Return the one record of a kind that is neither a plan nor a memory.

    Raises
    ------
    ProtocolError
        If there is none, or more than one.
    """
    found: Any = [part for key, part in content.items() if type(part) is kind and key not in (PLAN, RESTORED)]
    if len(found) != 1:
        raise FormError(f"expected exactly one {kind.__name__}, got {len(found)}")
    return cast(_Record, found[0])


def is_number(value: object) -> bool:
    """Whether something is a finite number."""
    # A whole number beyond the floats is finite, and no number to compute with.
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


# --- questions --------------------------------------------------------------------------------------------------------


def encode_question(asked: Question) -> RecordDict:
    """Return the records of a question."""
    arrays = {**asked.vectors, **{PASS + name: value for name, value in asked.pass_through.items()}}
    about: dict[str, Any] = {"kind": asked.kind, "layout": json.dumps(asked.layout.to_header())}
    about |= {NUMBER + name: float(number) for name, number in asked.numbers.items()}
    return RecordDict({ARRAYS: record_of(pack(arrays)), QUESTION: ConfigRecord(about)})


@in_words("the server's question cannot be read")
def decode_question(content: RecordDict, most_characters: float = LONGEST_PLAN) -> Question:
    """Return the question of a message.

    Raises
    ------
    ProtocolError
        If it cannot be read.
    ConfigurationError
        If the description of its model is too long.
    """
    about: Any = Received(content[QUESTION].items())
    layout = Layout.from_header(parse_json(_checked_text(about["layout"], most_characters)))
    vectors, passed = split_passed(unpack(only(ArrayRecord, content), layout.size))
    for name, vector in vectors.items():
        check_array(name, vector, _DOUBLE, (layout.size,))
    return Question(str(about["kind"]), layout, protocol.ReceivedVectors(vectors), _numbers_in(about), passed)


def encode_answer(answer: Answer) -> RecordDict:
    """Return the records of an answer to a question."""
    metrics: dict[str, Any] = {**{n: float(v) for n, v in answer.numbers.items()}, EXAMPLES: int(answer.examples)}
    return RecordDict({ARRAYS: record_of(pack(answer.vectors)), METRICS: MetricRecord(metrics)})


def decode_answer(content: RecordDict, size: int) -> Answer:
    """Return the answer of a message, of which only the form is checked."""
    metrics: dict[str, Any] = dict(only(MetricRecord, content).items())
    return Answer(metrics, unpack(only(ArrayRecord, content), size), metrics.pop(EXAMPLES, None))


def encode_described(said: Described) -> RecordDict:
    """Return the records of what a client says of its table."""
    deviations = {} if said.deviations is None else {"deviations": np.asarray(said.deviations, np.float64)}
    about = ConfigRecord({name: list(own) for name in ("columns", "classes") if (own := getattr(said, name))})
    numbers: Any = {n: own for n, own in ((EXAMPLES, said.examples), (SIZE, said.size or None)) if own is not None}
    return RecordDict({NAMES: about, ARRAYS: record_of(pack(deviations)), METRICS: MetricRecord(numbers)})


@in_words("what it says of its table cannot be read")
def decode_described(content: RecordDict) -> Described:
    """Return what a client says of its table.

    Raises
    ------
    ProtocolError
        If it cannot be read.
    """
    about: Any = content[NAMES]
    columns, classes = names = [tuple(about.get(name, ())) or None for name in ("columns", "classes")]
    if not all(isinstance(one, str) for each in names for one in each or ()):
        raise ProtocolError(f"its columns and classes are {names!r:.100}, expected texts")
    deviations = unpack(only(ArrayRecord, content), 0).get("deviations")
    if deviations is not None:
        check_array("deviations", deviations, _DOUBLE, (max(1, deviations.size),))
    numbers: Any = dict(only(MetricRecord, content))
    if not all(map(is_number, numbers.values())):
        raise ProtocolError(f"its rows and the size of its entries are {numbers!r:.100}, expected finite numbers")
    return Described(columns, classes, deviations, numbers.get(EXAMPLES), numbers.get(SIZE, 0.0))


def isolated(content: RecordDict) -> RecordDict:
    """Return a copy that shares only what nobody can change, bytes and numbers."""
    twins = content.copy()
    for key, record in content.items():
        twins[key] = twin = record.copy()
        # Not `isinstance`, which is slow for these types.
        kind = Array if type(record) is ArrayRecord else list
        for name, item in record.items():
            if isinstance(item, kind):
                twin[name] = copy(item)  # type: ignore[assignment]
    return twins


# --- messages ---------------------------------------------------------------------------------------------------------

#: A client and its task; a client and its reply, None if its memory is lost.
Task = tuple[Node, Downlink]
Reply = tuple[Node, Uplink | None]
#: Types of messages: which partition a client has, what its table is, or its names only, and questions about its loss.
PARTITION, TABLE, NAMES_ONLY, QUESTIONS = "query.partition", "query.table", "query.names", "query.question"


def addressed(grid: Any, contents: Iterable[tuple[int, RecordDict]], kind: str, number: int) -> list[Message]:
    """Return messages to nodes; the round travels as their group, which survives every way that Flower has.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        A grid of this package says whose messages these are.
    contents : iterable of (int, RecordDict)
        Node ids, and what each is sent.
    kind : str
        Flower's message type.
    number : int
        The round.
    """
    about: Any = {"message_type": kind, "group_id": str(number)}
    with getattr(grid, "identity", nullcontext)():
        return [Message(content, dst_node_id=node_id, **about) for node_id, content in contents]


Messages = Sequence[Message]


class _Box(Messages):
    """Messages that are made when somebody looks at them; from then on they count, as they may have been changed."""

    opened = False

    def __init__(self, count: int, make: Callable[[], list[Message]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return len(self._messages) if self.opened else self._count

    def __getitem__(self, index: Any) -> Any:
        if not self.opened:
            self._messages = self._make()
            self.opened = True
        return self._messages[index]


class Outbox(_Box):
    """The messages of a training round, which ``configure_train`` returns.

    A grid of this package takes the tasks of one that nobody has opened. Flower's grids, its mods, other ClientApps and
    the hooks of a subclass open it, and get messages.

    Parameters
    ----------
    number : int
        The round.
    tasks : sequence of (Node, Downlink)
        The clients with their tasks.
    make : callable
        Makes the messages, in the order of the tasks.
    """

    def __init__(self, number: int, tasks: Sequence[Task], make: Callable[[], list[Message]]) -> None:
        super().__init__(len(tasks), make)
        self.number = number
        self.tasks = tasks


class Inbox(_Box):
    """The replies to an outbox that nobody has opened, which ``aggregate_train`` takes as they are.

    Parameters
    ----------
    outbox : Outbox
        The tasks.
    replies : sequence of (Node, Uplink or None)
        The clients with their replies.
    """

    def __init__(self, outbox: Outbox, replies: Sequence[Reply]) -> None:
        # Without a reference to itself: else a round's vectors stay until Python looks for such circles, seldom so.
        super().__init__(len(replies), partial(_written, outbox, replies))
        self.replies = replies


def _written(outbox: Outbox, replies: Sequence[Reply]) -> list[Message]:
    asked = {message.metadata.dst_node_id: message for message in outbox}
    return [Message(encode_uplink(up), reply_to=asked[node.node_id]) for node, up in replies]


@in_words("this node's 'partition-id' is no whole number", advice="; set another one in its --node-config")
def partition_of(context: Context) -> int:
    """Return the client's partition, or its node id where there is none."""
    return int(context.node_config.get("partition-id", context.node_id))


def partition_reply(message: Message, context: Context) -> Message:
    """Answer the question which partition a client has."""
    record = MetricRecord({"partition-id": partition_of(context)} if "partition-id" in context.node_config else {})
    return Message(RecordDict({METRICS: record}), reply_to=message)


def decode_partition(content: RecordDict) -> int | None:
    """Return the partition that a client says it has; None if it has none."""
    said: Any = only(MetricRecord, content).get("partition-id")
    return said if type(said) is int and 0 <= said < 2**63 else None
