"""A client's memory between rounds, in two phases in ``context.state``: committed and pending."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from flwr_fco.core.layout import Vector
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.arrays import arrays_of, finite, from_array, sparse_vector, vectors_of
from flwr_fco.wire.envelope import StateAlteredError, StateMissingError
from flwr_fco.wire.keys import INDICES, METRICS, PASS
from flwr_fco.wire.protocol import ClientStamp, ClientState

_DISCLOSED = "fco-disclosed"
_STAMPS, _COMMITTED, _PENDING = "fco-stamps", "fco-committed", "fco-pending"
_DIGEST = "-digest"


class Disclosed(NamedTuple):
    """What has left a client in a run, of which differences could be single rows.

    Parameters
    ----------
    folds : int
        Number of folds of a cross-validation that it was about; 0 for none.
    seed : int
        From which its rows were dealt into these folds.
    bins : int
        A digest of the bins of scores that it was about; 0 for none.
    """

    folds: int = 0
    seed: int = 0
    bins: int = 0


def read_disclosed(context: Context) -> Disclosed:
    """Return what has left the node in this run."""
    record: Any = context.state.get(_DISCLOSED)
    return Disclosed() if record is None else Disclosed(**{name: int(record[name]) for name in Disclosed._fields})


def store_disclosed(context: Context, disclosed: Disclosed) -> None:
    """Store what has left the node in this run."""
    context.state[_DISCLOSED] = ConfigRecord(disclosed._asdict())


def state_vectors(record: ArrayRecord, size: int) -> dict[str, Vector]:
    """Return the vectors of a client's memory; with sparse features they may be sparse."""
    vectors: dict[str, Any] = {}
    arrays = dict(record.items())
    for name, array in arrays.items():
        if name.startswith(INDICES):
            continue
        indices = arrays.get(INDICES + name)
        shape = (size,) if indices is None else tuple(indices.shape)
        vector = finite(name, from_array(name, array, ("float64",), shape), "the remembered vector")
        vectors[name] = vector if indices is None else sparse_vector(name, indices, vector, size)
    return vectors


def read_state(context: Context, stamp: ClientStamp, size: int) -> ClientState | None:
    """Return the state that the client continues from; commits or discards the pending state as the server says.

    Nothing is written until the next :func:`store_pending`, so a handler that fails in between changes nothing.

    Parameters
    ----------
    context : Context
        Context of the node.
    stamp : ClientStamp
        Stamp from the server's message.
    size : int
        Length of the flat vector.

    Returns
    -------
    mapping of str to ndarray, or None
        None if the client starts afresh.

    Raises
    ------
    StateMissingError
        If the client does not have the state of that round, or if the server accepted other bytes than the client sent
        (:class:`StateAlteredError`).
    """
    if stamp.restored is not None:
        return stamp.restored
    if stamp.accepted < 0:
        return None
    stamps = context.state.get(_STAMPS)
    if isinstance(stamps, ConfigRecord) and stamps["epoch"] == stamp.epoch:
        for key in (_PENDING, _COMMITTED):
            if stamps[key] == stamp.accepted:
                sent = stamps.get(key + _DIGEST)
                if stamp.digest and sent and sent != stamp.digest:
                    raise StateAlteredError(f"what this node answered in round {stamp.accepted} is not what counted")
                return state_vectors(context.state[key], size)  # type: ignore[arg-type]
    raise StateMissingError(f"this node does not have its state of round {stamp.accepted} (epoch {stamp.epoch})")


def store_pending(
    context: Context, stamp: ClientStamp, server_round: int, before: ClientState | None, after: ClientState, digest: str
) -> None:
    """Store the state after a round as pending, next to the state before it.

    Parameters
    ----------
    context : Context
        Context of the node; modified.
    stamp : ClientStamp
        Stamp from the server's message.
    server_round : int
        Round that was answered.
    before : mapping of str to ndarray, or None
        Return value of :func:`read_state`.
    after : mapping of str to ndarray
        Return value of the local solver.
    digest : str
        Digest of the content to be sent; the server will say whether it accepted exactly this.
    """
    earlier = context.state.get(_STAMPS)
    stamps: dict[str, Any] = {"epoch": stamp.epoch, _COMMITTED: stamp.accepted, _PENDING: server_round}
    stamps[_COMMITTED + _DIGEST], stamps[_PENDING + _DIGEST] = stamp.digest, digest
    context.state[_STAMPS] = ConfigRecord(stamps)
    if stamp.restored is None and before is not None and earlier[_PENDING] == stamp.accepted:  # type: ignore[index]
        # The usual case: the pending state counts now, and is already stored as bytes.
        context.state[_COMMITTED] = context.state[_PENDING]
    else:
        context.state[_COMMITTED] = _flower.array_record(arrays_of(before or {}))
    context.state[_PENDING] = _flower.array_record(arrays_of(after))


def uplink_digest(content: RecordDict) -> str:
    """Return a digest of the bytes of an uplink that determine the client's memory: its vectors and ``elapsed``.

    It is not a digest of the memory itself, which server and client compute with different rounding.

    Parameters
    ----------
    content : RecordDict
        Records of the answer.
    """
    metrics = content.get(METRICS)
    elapsed = None if metrics is None else metrics.get("elapsed")
    return _digest({name: (array.data,) for name, array in vectors_of(content).items()}, elapsed)


def vectors_digest(vectors: Mapping[str, Any], elapsed: float | None) -> str:
    """Return the digest of an uplink that is delivered without a message."""
    arrays = arrays_of(vectors)
    parts = {name: (_flower.form_of(v.dtype, v.shape).header, v.data) for name, v in arrays.items()}
    return _digest(parts, None if elapsed is None else float(elapsed))


def _digest(parts: Mapping[str, Iterable[Any]], elapsed: Any) -> str:
    digest = hashlib.sha256()
    for name in sorted(parts):
        if not name.startswith(PASS):
            digest.update(name.encode())
            for part in parts[name]:
                digest.update(part)
    digest.update(repr(elapsed).encode())
    return digest.hexdigest()[:32]
