"""Short messages for models that are mostly zero: both halves, NumPy only.

The server sends the indices of a model's non-zeros and their values. A client sends its increments there, and of all
others the largest, some times as many as there are non-zeros: from them the server learns what to let in. The client
remembers nothing, and its code sees models as ``FedAvg`` sends them: :func:`short_mod` is all that it adds.

What the arrays of a message hold, both ways, one after the other:

- ``short:indices``: a bit for each entry that may be there, deflated. Down: of the arrays that
  travel short. Up: of those of their entries that are 0 in the model.
- ``short:scales``: for each array what its values are multiplied by; 0 says that they are all 0, and not there.
- ``short:values``: in int8 or float16, rounded at random up and to the nearest down. Array by array: at the non-zeros
  that both sides know, then at the indices.
- ``short:rest``: the arrays that do not travel short, as they are.

Arrays that are not optimised travel beside them under their own names.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.random import Generator
from numpy.typing import NDArray

from flwr_fco.core.computing import random_generator
from flwr_fco.core.files import parse_json
from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, Choice, checked, refusing
from flwr_fco.errors import SHORT_MOD, ConfigurationError, FormError, ProtocolError, in_words
from flwr_fco.messages import records
from flwr_fco.messages.records import FLOATS, check_array, from_array, record_of, to_array

#: The record that says what the arrays of a short message are.
SHORT = "fco-short"
PLACES, SCALES, VALUES, REST = _PARTS = tuple(f"short:{part}" for part in ("indices", "scales", "values", "rest"))
#: The stream of a client's random rounding, beside those of :func:`random_generator`.
_ROUNDING = 7
#: The largest number in a form, whose scale makes it the largest value.
_LARGEST = {"int8": 127.0, "float16": 1.0, "exact": math.inf}
Kind = Literal["int8", "float16"]
Mask = NDArray[np.bool_]
Values = NDArray[Any]
Arrays = Mapping[str, Values]


@refusing
@dataclass(frozen=True)
class Short(Choice):
    """Short messages, for a model that becomes sparse by ``density=``; clients need :func:`flwr_fco.short_mod`.

    Parameters
    ----------
    down, up : {"int8", "float16"}, default "int8"
        Form of the values that the server and the clients send, with one scale for each array. Increments are rounded
        at random, so that their mean is exact; the seed, the round and the partition say how.
    growth : float, default 0.3
        Largest number of increments off the non-zeros that a client sends of each array, times the number of its
        non-zeros. Without them nothing that is 0 comes back.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Short(down="float16")
    Short(down='float16', up='int8', growth=0.3)
    """

    down: Kind = "int8"
    up: Kind = "int8"
    growth: float = field(default=0.3, metadata=NON_NEGATIVE)

    #: As of a :class:`Wire`.
    dtype: ClassVar[None] = None
    sparse: ClassVar[bool] = False

    def most_indices(self, nonzeros: int) -> int:
        """Return how many increments a client may send off the non-zeros of an array."""
        return math.ceil(self.growth * nonzeros)


class Form(NamedTuple):
    """What both sides know of the messages of a round.

    Parameters
    ----------
    wire : Short
        The strategy's option.
    layout : Layout
        The model's arrays that are optimised; those that travel short are its regularized ones.
    vector : str
        The name under which all of them travel as one vector, to clients of this package; else empty.
    order : sequence of str
        The names of all arrays of a message as ``FedAvg`` sends it.
    seed : int
        The run's.
    """

    wire: Short
    layout: Layout
    vector: str
    order: Sequence[str]
    seed: int

    @property
    def header(self) -> str:
        """The form as JSON."""
        return json.dumps(self._asdict() | {"wire": vars(self.wire), "layout": self.layout.to_header()})

    @classmethod
    def of(cls, text: object, most: float) -> Form:
        """Return the form of a server's message.

        Raises
        ------
        ProtocolError
            If it is none.
        ConfigurationError
            If the model is larger than the client's owner allows.
        """
        with in_words("the server's short message cannot be read", passing=()):
            said: Any = parse_json(str(text))
            form = cls(**said | {"wire": Short(**said["wire"]), "layout": Layout.from_header(said["layout"])})
            for name, kind in (("vector", str), ("order", Sequence[str]), ("seed", int)):
                checked(name, getattr(form, name), kind)
        if not all(entry.optimized and entry.dtype in FLOATS for entry in form.layout.entries):
            raise ProtocolError("the server's short message has arrays of other numbers than it can have")
        if (size := form.layout.size) > most:
            prefix = f"the server asks for a model of {size} parameters; this client allows max_parameters={most:g}"
            raise ConfigurationError(f"{prefix}. Its owner can raise it: short_mod(max_parameters=...)")
        return form


# --- bits and values --------------------------------------------------------------------------------------------------


def bits_of(mask: Mask) -> NDArray[np.uint8]:
    """Return a mask as bytes, deflated.

    Examples
    --------
    >>> bits_of(np.ones(80_000, bool)).size < 100, mask_of(bits_of(np.array([True, False])), 2).tolist()
    (True, [True, False])
    """
    return np.frombuffer(zlib.compress(np.packbits(mask).data, 6), np.uint8)


def mask_of(bits: Values, size: int) -> Mask:
    """Return the mask of some bytes.

    Raises
    ------
    ProtocolError
        If they are none of so many bits.
    """
    length = -(-size // 8)
    inflate = zlib.decompressobj()
    with in_words(f"array {PLACES!r} cannot be read"):
        # No more than there can be, whatever follows.
        data = inflate.decompress(bits.tobytes(), length + 1)
    if len(data) != length or not inflate.eof or inflate.unused_data:
        raise ProtocolError(f"array {PLACES!r} holds other than {size} bits")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=size).astype(np.bool_)


def rounded(values: Values, kind: str, rng: Generator | None) -> tuple[np.float32, Values]:
    """Return the scale of values, and what they are of it.

    Parameters
    ----------
    values : ndarray of float, shape (k,)
        Of an array.
    kind : {"int8", "float16", "exact"}
        Their form.
    rng : numpy.random.Generator or None
        Rounds up or down at random, so that the mean is exact; None rounds to the nearest.

    Examples
    --------
    >>> scale, parts = rounded(np.array([254.0, -1.0]), "int8", None)
    >>> float(scale).__round__(5), parts.tolist()
    (2.0, [127, 0])
    """
    if kind == "exact":
        return np.float32(1.0), values
    with np.errstate(all="ignore"):
        # Above that of the largest, so that no part is larger than it may be.
        scale = np.nextafter(np.float32(np.abs(values).max(initial=0.0) / _LARGEST[kind]), np.float32(np.inf))
        parts = values / scale
        # From one number of the form to the next: float16 has 11 digits, and 2**-24 is the smallest.
        unit = 1.0 if kind == "int8" else np.ldexp(1.0, np.maximum(np.frexp(parts)[1] - 11, -24))
        parts = np.rint(parts / unit) if rng is None else np.floor(parts / unit + rng.random(parts.size))
        return scale, (parts * unit).astype(kind)


# --- vectors ----------------------------------------------------------------------------------------------------------


def _sent(layout: Layout, known: Mask, more: Mask) -> list[Values]:
    """Return by array the indices of what is sent of it: those that both sides know, then others; or all of them."""
    found = [(entry, [np.flatnonzero(mask[entry.block]) for mask in (known, more)]) for entry in layout.entries]
    return [entry.offset + (np.concatenate(at) if entry.regularized else np.arange(entry.size)) for entry, at in found]


def _written(form: Form, vector: Values, known: Mask, more: Mask, kind: str, rng: Generator | None) -> dict[str, Array]:
    """Return what is sent of a vector: its numbers at indices that the other side knows, and at more of them."""
    layout = form.layout
    scales = np.zeros(len(layout.entries), np.float32)
    values = [np.zeros(0, np.int8)]
    rest = [np.zeros(0, vector.dtype)]
    for i, (entry, indices) in enumerate(zip(layout.entries, _sent(layout, known, more), strict=True)):
        if (part := vector[indices]).any():
            scales[i], held = rounded(part, kind if entry.regularized else "exact", rng)
            (values if entry.regularized else rest).append(held)
    bits = bits_of(more[layout.regularized_mask() & ~known])
    arrays: list[Values] = [bits, scales, np.concatenate(values), np.concatenate(rest)]
    return dict(zip(_PARTS, map(to_array, arrays), strict=True))


def _read(layout: Layout, parts: Arrays, known: Mask, wire: Short | None = None) -> tuple[Values, Mask]:
    """Return a vector that the other side has written, and the indices of it that were not known.

    With `wire` it is a client's, in the form and with no more increments than that allows.
    """
    kinds = ("int8", *FLOATS) if wire is None else (wire.up,)
    scales = _expected(parts, SCALES, len(layout.entries), ("float32",))
    if (scales < 0.0).any():
        raise ProtocolError(f"array {SCALES!r} holds {scales.min()}, expected numbers >= 0")
    more = np.zeros(layout.size, np.bool_)
    candidates = layout.regularized_mask() & ~known
    more[candidates] = mask_of(parts[PLACES], int(candidates.sum()))
    held: dict[bool, list[tuple[Any, Values]]] = {True: [], False: []}
    for entry, scale, at in zip(layout.entries, scales, _sent(layout, known, more), strict=True):
        here, new = (int(mask[entry.block].sum()) for mask in (known, more))
        if new > (allowed := 0 if not scale else math.inf if wire is None else wire.most_indices(here)):
            raise ProtocolError(f"{new} increments off the non-zeros of {entry.name!r}, expected at most {allowed}")
        if scale:
            held[entry.regularized].append((scale if entry.regularized else 1.0, at))
    vector = np.zeros(layout.size)
    for name, dtypes, blocks in ((VALUES, kinds, held[True]), (REST, FLOATS, held[False])):
        numbers = _expected(parts, name, sum(at.size for _, at in blocks), dtypes).astype(np.float64)
        for scale, at in blocks:
            vector[at] = scale * numbers[: at.size]
            numbers = numbers[at.size :]
    return vector, more


# --- down -------------------------------------------------------------------------------------------------------------


def shorten(content: RecordDict, key: str, form: Form, *, exact: bool = False) -> Mask:
    """Make the message of a server short; return where the arrays that travel short are not 0.

    Parameters
    ----------
    content : RecordDict
        Of the message.
    key : str
        Of its arrays.
    form : Form
        Of the round.
    exact : bool, default False
        Whether values are not rounded, as for an evaluation.
    """
    arrays: Any = content[key]
    vector = _flat(form, {name: array.numpy() for name, array in arrays.items()})
    support: Mask = form.layout.regularized_mask() & (vector != 0.0)
    made = _written(form, vector, np.zeros_like(support), support, "exact" if exact else form.wire.down, None)
    own = {form.vector} if form.vector else {*form.layout.names}
    content[key] = record_of(made | {name: array for name, array in arrays.items() if name not in own})
    content[SHORT] = ConfigRecord({"form": form.header})
    return support


def _flat(form: Form, arrays: Arrays) -> Values:
    if form.vector:
        return arrays[form.vector]
    own = [arrays[name].reshape(-1) for name in form.layout.names]
    return np.concatenate(own, dtype=np.result_type(np.float32, *own))


def _expected(parts: Arrays, name: str, size: int, dtypes: Sequence[str]) -> Values:
    """Return an array of so many finite numbers of some dtypes."""
    # Of an empty array the dtype says nothing.
    check_array(name, parts[name], dtypes if size else (parts[name].dtype.name,), (size,))
    return parts[name]


# --- at the client ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class short_mod(Choice):
    """The mod that a client needs if the server has ``wire=Short()``: ``ClientApp(mods=[short_mod()])``.

    It is the first of several mods: those behind it see models as ``FedAvg`` sends them. To other messages it does
    nothing. Other processes can be sent it.

    Parameters
    ----------
    max_parameters : int, default 100000000
        Size of a model that a server may send.

    Raises
    ------
    ConfigurationError
        If the number is no whole number >= 1.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[short_mod()])
    """

    max_parameters: int = field(default=100_000_000, metadata=AT_LEAST_ONE)

    def __call__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        content: Any = message.content
        if SHORT not in content:
            return call_next(message, context)
        form = Form.of(content[SHORT].get("form"), self.max_parameters)
        key, sent = next((pair for pair in content.array_records.items() if PLACES in pair[1]), ("", ArrayRecord()))
        if missing := {*_PARTS} - sent.keys():
            raise ProtocolError(f"the server's short message lacks {sorted(missing)}")
        parts = {name: from_array(name, sent[name]) for name in _PARTS}
        start, support = _read(form.layout, parts, np.zeros(form.layout.size, np.bool_))
        start = start.astype(parts[REST].dtype)
        given = {form.vector: start} if form.vector else form.layout.unflatten(start)
        arrays = dict(sent) | {name: to_array(array) for name, array in given.items()}
        content[key] = record_of({name: arrays[name] for name in form.order if name in arrays})
        del content[SHORT]
        reply = call_next(message, context)
        # A handler that returns nothing is silent in Flower.
        answered = reply is not None and reply.has_content() and message.metadata.message_type.startswith("train")
        if answered and len(reply.content.array_records) == 1:
            partition = records.partition_of(context)
            with in_words("the message's round cannot be read"):
                rng = random_generator(form.seed, int(message.metadata.group_id), partition, _ROUNDING)
            ((name, record),) = reply.content.array_records.items()
            reply.content[name] = _reply(form, record, given, support, rng)
            # Those of a client that returns what it was sent have the same names.
            reply.content[SHORT] = ConfigRecord()
        return reply


def _reply(form: Form, record: ArrayRecord, given: Arrays, support: Mask, rng: Generator) -> ArrayRecord:
    """Return the short form of a client's arrays."""
    layout = form.layout
    shapes = {"increment": (layout.size,)} if form.vector else layout.shapes
    found = {name: from_array(name, record[name]) for name in shapes if name in record}
    if {name: array.shape for name, array in found.items()} != shapes:
        raise ProtocolError(f"{records.OTHER_NAMES}, or their shapes are not: the ClientApp returned {sorted(record)}")
    # A client that works in less precision has got a rounded model.
    moves = {name: array - given[name].astype(array.dtype) for name, array in found.items() if name in given}
    moved = found["increment"] if form.vector else _flat(form, moves)
    more = np.zeros(layout.size, np.bool_)
    for block in [entry.block for entry in layout.entries if entry.regularized]:
        # The largest moves off the non-zeros, none of them 0.
        sizes = np.where(support[block], 0.0, np.abs(moved[block]))
        if count := min(form.wire.most_indices(int(support[block].sum())), int(np.count_nonzero(sizes))):
            more[block][np.argpartition(-sizes, count - 1)[:count]] = True
    made = _written(form, moved, support, more, form.wire.up, rng)
    return record_of(made | {name: array for name, array in record.items() if name not in shapes})


# --- what comes back --------------------------------------------------------------------------------------------------


def read_reply(form: Form, support: Mask, content: RecordDict) -> tuple[Vector, RecordDict]:
    """Return a client's increment, and the rest of its reply.

    Parameters
    ----------
    form : Form
        Of the round.
    support : ndarray of bool, shape (d,)
        Where the model that was sent is not 0.
    content : RecordDict
        Of the reply.

    Raises
    ------
    ProtocolError
        If it is no short message of this form.
    """
    arrays = dict(records.only(ArrayRecord, content))
    if SHORT not in content or not {*_PARTS} <= arrays.keys():
        raise FormError(f"its arrays are {sorted(arrays)!s:.200}, no short message. {SHORT_MOD}")
    increment = _read(form.layout, {name: from_array(name, arrays.pop(name)) for name in _PARTS}, support, form.wire)[0]
    return increment, RecordDict({**content.metric_records, "arrays": record_of(arrays)})


def bytes_in(content: RecordDict) -> int:
    """Return the bytes of the arrays of a message."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
