"""Downlinks as records: the server's data for a client in a round, written by the server and read by the client."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from flwr_fco.core.files import parse_json
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.core.spec import Spec
from flwr_fco.errors import ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.arrays import arrays_of, from_array, labelled, read_pass_through, sparse_vector, vectors_of
from flwr_fco.wire.client_state import read_state, state_vectors
from flwr_fco.wire.envelope import PlanMissingError, RoundCache, StateMissingError
from flwr_fco.wire.keys import FCO, INDICES, NONZEROS, NUMBER, PASS, PLAN, POINTS, RESTORED
from flwr_fco.wire.metrics import is_number
from flwr_fco.wire.protocol import (
    ClientStamp,
    ClientState,
    DenseVectors,
    Downlink,
    Plan,
    ReceivedNumbers,
    ReceivedVectors,
)
from flwr_fco.work import work_from_header


def downlink_records(
    downlink: Downlink,
    *,
    digest: str,
    arrayrecord_key: str,
    configrecord_key: str,
    config: ConfigRecord,
    plan: Spec | None,
    serialised: RoundCache,
    wire_dtype: str = "float64",
) -> RecordDict:
    """Return a downlink as records.

    Parameters
    ----------
    digest : str
        The plan's hash.
    arrayrecord_key, configrecord_key : str
        The strategy's record keys.
    config : ConfigRecord
        The user's train config, with the round; copied.
    plan : Spec or None
        The plan, for nodes that do not have it yet.
    serialised : RoundCache
        Shares serialised arrays between nodes.
    wire_dtype : {"float64", "float32"}
        Precision of the vectors.
    """
    dtype = None if wire_dtype == "float64" else wire_dtype
    arrays = {
        name: serialised.array(array, None if name.startswith((INDICES, NONZEROS)) else dtype)
        for name, array in arrays_of(downlink.vectors, downlink=True).items()
    }
    if downlink.pass_through:
        arrays.update({PASS + name: serialised.array(array) for name, array in downlink.pass_through.items()})
    fco: dict[str, str | float | int] = {"plan": digest, "elapsed": float(downlink.elapsed)}
    if not math.isnan(downlink.client_lr):
        fco["client-lr"] = float(downlink.client_lr)
    if downlink.work is not None:
        fco["work"] = json.dumps(downlink.work.to_header())
    fco |= {NUMBER + name: float(number) for name, number in downlink.numbers.items()}
    records: dict[str, tuple[type[Any], dict[str, Any]]] = {
        arrayrecord_key: (ArrayRecord, arrays),
        configrecord_key: (ConfigRecord, dict(config.items())),
    }
    if plan is not None:
        fco["plan-header"] = plan.to_json()
        if plan.arrays:
            records[PLAN] = (ArrayRecord, {name: serialised.array(array) for name, array in plan.arrays.items()})
    if downlink.stamp is not None:
        fco["epoch"], fco["accepted"] = downlink.stamp.epoch, downlink.stamp.accepted
        fco |= {"digest": downlink.stamp.digest} if downlink.stamp.digest else {}
        if downlink.stamp.restored is not None:
            restored = arrays_of(downlink.stamp.restored).items()
            records[RESTORED] = (ArrayRecord, {name: serialised.array(vector) for name, vector in restored})
    records[FCO] = (ConfigRecord, fco)
    return _flower.packed(records)


#: Plans by hash: parsed once per process instead of once per message.
_plans: dict[str, Plan] = {}


def _plan_of(content: RecordDict, fco: Mapping[str, Any], context: Context) -> Plan:
    """Return the plan of a message: from the message, this process's memory or the node's state."""
    digest = str(fco["plan"])
    if "plan-header" in fco:
        context.state[FCO] = ConfigRecord({"plan": digest, "plan-header": str(fco["plan-header"])})
        if PLAN in content:
            context.state[PLAN] = content[PLAN]
        elif PLAN in context.state:
            del context.state[PLAN]
    stored = context.state.get(FCO)
    if not isinstance(stored, ConfigRecord) or stored.get("plan") != digest:
        raise PlanMissingError(f"this node does not have the plan {digest}")
    plan = _plans.get(digest)
    if plan is None:
        arrays = context.state.get(PLAN, ArrayRecord())
        named = {name: labelled(name, array) for name, array in arrays.items()}  # type: ignore[arg-type]
        spec = Spec(parsed(str(stored["plan-header"])), named)
        if spec.digest() != digest:
            raise ProtocolError(f"the plan's hash is {spec.digest()}, the message says {digest}")
        plan = Plan.from_spec(spec)
        if len(_plans) >= 64:
            _plans.clear()
        _plans[digest] = plan
    return plan


def method_of(content: RecordDict) -> str | None:
    """Return the method that a training message asks for; None if its plan has not been read in this process."""
    record = content.get(FCO)
    plan = _plans.get(str(record.get("plan"))) if isinstance(record, ConfigRecord) else None
    return None if plan is None else plan.solver


def store_plan(contexts: Sequence[Context], plan: Spec, digest: str, header: str) -> Plan:
    """Give clients in this process the plan of a run, as their first messages would.

    There is at least one context, and all are modified; `digest` and `header` are the plan's hash and JSON.
    """
    content = _flower.packed({PLAN: (ArrayRecord, dict(plan.arrays))} if plan.arrays else {})
    for context in contexts:
        stored = _plan_of(content, {"plan": digest, "plan-header": header}, context)
    return stored


def _stamp_of(content: RecordDict, fco: Mapping[str, Any], size: int) -> ClientStamp:
    """Return what the server says of a client's memory."""
    restored = None
    if RESTORED in content:
        restored = state_vectors(content[RESTORED], size)  # type: ignore[arg-type]
    epoch, accepted = fco.get("epoch"), fco["accepted"]
    if not (type(epoch) is type(accepted) is int and 0 <= epoch < 2**62 and -1 <= accepted < 2**62):
        raise ProtocolError(f"the server's stamp is epoch={epoch!r}, accepted={accepted!r}; expected whole numbers")
    return ClientStamp(epoch, accepted, restored, str(fco.get("digest", "")))


def read_downlink(
    message: Message, context: Context, check_header: Callable[[object], None] | None = None, *, as_sent: bool = False
) -> Downlink:
    """Read a training message.

    Parameters
    ----------
    check_header : callable, optional
        Raises an error if a plan's JSON is too long to parse.
    as_sent : bool, default False
        Whether vectors keep the precision in which they were sent, without a copy; otherwise they become float64.

    Raises
    ------
    PlanMissingError
        If only the hash of a plan was sent, and this node does not have the plan.
    ProtocolError
        If the message is not from this package.
    """
    content = message.content
    if FCO not in content:
        raise ProtocolError(
            "this training message comes from a strategy that is not of flwr_fco (it lacks the 'fco' record). "
            'Use one of flwr_fco.strategies on the server, without client="unmodified".'
        )
    fco: dict[str, Any] = dict(content[FCO].items())
    if check_header is not None and "plan-header" in fco:
        check_header(fco["plan-header"])
    plan = _plan_of(content, fco, context)
    arrays = vectors_of(content)
    # These name the missing value, in any local solver that asks for it.
    size = _size_of(plan, fco.get(NUMBER + POINTS, 1.0))
    vectors, numbers = _vectors_in(arrays, plan, size, as_sent=as_sent), ReceivedNumbers()
    passed: Mapping[str, NDArray[Any]] = {}
    if len(vectors) < len(arrays):
        entries = {PASS + entry.name: entry for entry in plan.layout.passed_through}
        unknown = arrays.keys() - vectors.keys() - entries.keys()
        unknown -= {kind + name for name in vectors for kind in (INDICES, NONZEROS)}
        if unknown:
            raise ProtocolError(f"the message has the arrays {sorted(unknown)}, which the plan does not")
        passed = {e.name: read_pass_through(e, arrays[key]) for key, e in entries.items() if key in arrays}
    stamp = work = None
    # Besides the plan, elapsed and perhaps a rate there are the method's numbers, or a stamp.
    if len(fco) > 2 + ("client-lr" in fco):
        numbers.update({key.removeprefix(NUMBER): value for key, value in fco.items() if key.startswith(NUMBER)})
        if "accepted" in fco:
            stamp = _stamp_of(content, fco, plan.layout.size)
    if "work" in fco:
        work = work_from_header(parsed(str(fco["work"])))
    client_lr, elapsed = _rate_and_elapsed(fco)
    for name, number in numbers.items():
        if not is_number(number):
            raise ProtocolError(f"the server's number {name!r} is {number!r}, expected a finite number")
    return Downlink(plan, vectors, client_lr, elapsed, numbers, stamp, work, passed)


def _vectors_in(arrays: Mapping[str, Array], plan: Plan, size: int, *, as_sent: bool) -> ReceivedVectors:
    """Return the vectors of a message, sparse ones with the indices beside them."""
    dtypes = ("float64", "float32") if plan.wire_dtype == "auto" else ("float64",)
    vectors = ReceivedVectors.to_look_at({}, set())
    for name, array in arrays.items():
        if not name.startswith((PASS, INDICES, NONZEROS)):
            indices = arrays.get(INDICES + name)
            kind = SparseVector
            if indices is None and (indices := arrays.get(NONZEROS + name)) is not None:
                kind = NonZeros
            vector = from_array(name, array, dtypes, (size,) if indices is None else tuple(indices.shape))
            if array.dtype != "float64" and not as_sent:
                vector = vector.astype(np.float64)
                # Read-only, like arrays read from bytes: other clients in this process may receive the same array.
                vector.flags.writeable = False
            vectors[name] = vector if indices is None else sparse_vector(name, indices, vector, size, kind)
            vectors.unseen.add(name)
    return vectors


def _rate_and_elapsed(fco: Mapping[str, Any]) -> tuple[float, float]:
    """Return the client's learning rate, NaN without one, and the weight of psi."""
    rate, elapsed = fco.get("client-lr"), fco.get("elapsed")
    client_lr = math.nan if rate is None else float(rate)
    # As `is_number`, in one comparison for values that this package's server sends.
    sound = 0.0 <= elapsed < math.inf if type(elapsed) is float else is_number(elapsed) and elapsed >= 0.0  # type: ignore[operator]
    if not sound or not (0.0 < client_lr < math.inf or rate is None):
        what = f"the server says elapsed={elapsed!r}, client-lr={client_lr!r}"
        raise ProtocolError(f"{what}; expected finite numbers, the rate above 0")
    return client_lr, float(elapsed)  # type: ignore[arg-type]


def _size_of(plan: Plan, points: Any) -> int:
    """Return the length of a message's vectors, which may hold several points, one after the other.

    Raises
    ------
    ProtocolError
        If the number of points is no whole number above 0, or their places are too many.
    """
    size = plan.layout.size
    if points != 1.0 and not (is_number(points) and points >= 1.0 and points == int(points) and points * size < 2**31):
        what = f"the server tells {points!r} points of {size} numbers"
        raise ProtocolError(f"{what}; expected 1 or more, below 2**31 numbers")
    return size * int(points)


def received(
    downlinks: Sequence[Downlink], digest: str, contexts: Sequence[Context]
) -> list[tuple[Downlink, ClientState | None]] | None:
    """Return downlinks as the clients in this process would read them from messages with the plan's hash.

    Parameters
    ----------
    downlinks : sequence of Downlink
        One for each client.
    digest : str
        The plan's hash.
    contexts : sequence of Context
        The clients' contexts.

    Returns
    -------
    list of (Downlink, mapping of str to ndarray or None), or None
        Each with the client's memory. None if messages are needed: a client lacks the plan or its state, or would
        reject its message.
    """
    plan, views, read, results = _plans.get(digest), dict[int, Any](), dict[int, Downlink](), []
    if plan is None:
        return None
    for context in contexts:
        stored = context.state.get(FCO)
        if not isinstance(stored, ConfigRecord) or stored.get("plan") != digest:
            return None
    for downlink, context in zip(downlinks, contexts, strict=True):
        # Most clients of a round get the same downlink.
        copy: Any = read.get(id(downlink))
        if copy is None:
            copy = _as_read(downlink, plan, views)
            if copy is None:
                return None
            read[id(downlink)] = copy
        stamp = downlink.stamp
        try:
            state = None if stamp is None else read_state(context, stamp, plan.layout.size)
        except StateMissingError:
            return None
        vectors, numbers = type(copy.vectors)(copy.vectors), ReceivedNumbers(copy.numbers)
        results.append((Downlink(plan, vectors, copy.client_lr, copy.elapsed, numbers, stamp, copy.work), state))
    return results


def precision_of(downlink: Downlink) -> str:
    """Return the dtype of a downlink's vectors."""
    vectors: list[Any] = list(downlink.vectors.values())[:1]
    held = [vector.values if isinstance(vector, SparseVector) else vector for vector in vectors]
    return f"{held[0].dtype}" if held else "float64"


def _as_read(downlink: Downlink, plan: Plan, views: dict[int, Any]) -> Downlink | None:
    """Return a downlink as read from a message; None if it would be rejected."""
    client_lr, elapsed, stamp = float(downlink.client_lr), float(downlink.elapsed), downlink.stamp
    sound = 0.0 <= elapsed < math.inf and (math.isnan(client_lr) or 0.0 < client_lr < math.inf)
    numbers = {name: float(number) for name, number in downlink.numbers.items()}
    restores = stamp is not None and stamp.restored is not None
    if restores or not sound or downlink.pass_through or not all(map(math.isfinite, numbers.values())):
        return None
    vectors = {}
    for name, vector in downlink.vectors.items():
        view = views.get(id(vector))
        if view is None:
            view = _view(vector, _size_of(plan, numbers.get(POINTS, 1.0)), plan.wire_dtype)
            if view is None or name.startswith(PASS):
                return None
            views[id(vector)] = view
        vectors[name] = view
    sparse = any(isinstance(view, SparseVector) for view in vectors.values())
    held: Any = ReceivedVectors(vectors) if sparse else DenseVectors(vectors)
    return Downlink(plan, held, client_lr, elapsed, numbers, stamp, downlink.work)


def _view(vector: Any, size: int, wire_dtype: str) -> Any:
    """Return a vector as read from a message; None if it would be rejected."""
    if isinstance(vector, SparseVector):
        values = _view(vector.values, vector.values.size, wire_dtype)
        return None if values is None or vector.size != size else type(vector)(vector.indices, values, size)
    if vector.dtype == np.float32 and wire_dtype == "auto":
        vector = vector.astype(np.float64)
    if vector.dtype != np.float64 or vector.shape != (size,) or not vector.flags.c_contiguous:
        return None
    if not math.isfinite(np.vdot(vector, vector)):
        return None
    view = vector.view()
    view.flags.writeable = False
    return view


#: Maximum length of a plan's JSON; its arrays are sent separately.
_LONGEST_JSON = 4_000_000


def parsed(text: str) -> Any:
    """Return a server's JSON as Python objects."""
    if len(text) > _LONGEST_JSON:
        raise ProtocolError(f"the server's plan has {len(text)} characters, expected at most {_LONGEST_JSON}")
    try:
        return parse_json(text)
    except ValueError as error:
        raise ProtocolError(f"the server's plan is no JSON: {error}") from error
