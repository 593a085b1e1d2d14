"""A client's round: its half of the method, run by an engine, on all coordinates or on those of its sparse features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from flwr_fco.algorithms.contract import ClientHalf, Disclosure, Memory, Moved, Start, without_common
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.engines.client import LocalClient, as_sent
from flwr_fco.engines.dual_steps import dual_steps, extragradient
from flwr_fco.engines.minimise import minimise
from flwr_fco.engines.sparse_steps import Shard, shard_of
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import ClientState, Downlink, Received, Uplink
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import SparseDesign
from flwr_fco.work import Minimise


def minimised(client: LocalClient, start: Start) -> Moved:
    """Minimise f(x) - <shift, x> + penalty/2 ||x - center||^2.

    The message's number ``duality`` is DualFL's nu, on which the certified gap depends.

    Raises
    ------
    ConfigurationError
        If the server requests gradient steps.
    """
    downlink = client.downlink
    work = downlink.local_work
    if not isinstance(work, Minimise):
        what = f"the local solver {downlink.plan.solver!r} minimises, it cannot take {work}"
        raise ConfigurationError(f"{what}. Its strategy takes work=Minimise(...)")
    minimum = minimise(
        client.objective,
        work,
        shift=0.0 if start.shift is None else start.shift,
        center=0.0 if start.center is None else start.center,
        penalty=start.penalty,
        start=start.point,
        duality=downlink.numbers.get("duality", 0.0),
    )
    metrics = {name: value for name, value in minimum.metrics.items() if np.isfinite(value)}
    moved = minimum.point - (start.point if start.base is None else start.base)
    # A sufficiently good warm start needs no iteration, but 0 steps in a reply would mean that the client did no work.
    return Moved(moved, None, max(minimum.iterations, 1), metrics)


def primal_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps."""
    return client.take_steps(start.point, client.half.local_step(client, client.downlink, start))


def proximal_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps, which are proximal ones; with sparse features only where these are."""
    shard = client.features
    if shard is not None:
        point = start.point.copy()
        steps = shard.proximal_steps(client.downlink, point, client.rng)
        if steps is not None:
            return Moved(point - start.point, client.rate * steps, steps)
    return primal_steps(client, start)


def gradient_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps, x <- x - client_lr scale g(x) - shift; with sparse features only where these are.

    Parameters
    ----------
    start : Start
        Gradients are multiplied by `scale`, and `shift` is subtracted in each step.
    """
    shard = client.features
    if shard is None or shard.coordinates.metric is not None:
        return primal_steps(client, start)
    point, rate = start.point.copy(), client.rate
    here = client.downlink._replace(client_lr=rate * start.scale)
    steps = shard.dual_steps(here, point, client.rng, start.shift, psi=False)
    return Moved(point - start.point, rate * steps, steps)


Engine = Callable[[LocalClient, Start], Moved]

#: What runs a client half, by the names that halves say.
ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "dual steps": dual_steps,
        "primal steps": primal_steps,
        "proximal steps": proximal_steps,
        "gradient steps": gradient_steps,
        "extragradient": extragradient,
        "minimise": minimised,
    }
)
_NO_LIMITS = Disclosure()
#: Engines whose steps can be done on the coordinates of sparse features.
_ON_FEATURES = ("dual steps", "proximal steps", "gradient steps")


def answer(
    half: type[ClientHalf],
    downlink: Downlink,
    objective: Objective,
    state: ClientState | None,
    rng: np.random.Generator,
    disclosure: Disclosure = _NO_LIMITS,
) -> tuple[Uplink, Any]:
    """Return a client's answer in a round, and what it remembers then.

    Parameters
    ----------
    downlink : Downlink
        The server's message; its vectors are read-only.
    state : mapping or None
        The client's memory; None for a client that begins, and for a method without one.
    rng : numpy.random.Generator
        The generator of this (seed, round, partition).
    disclosure : Disclosure, optional
        What may leave, as the client's owner says.
    """
    features, plan = None, downlink.plan
    # Most clients' features are dense: asking `shard_of` would take longer.
    if half.engine in _ON_FEATURES and type(getattr(objective, "design", None)) is SparseDesign:
        features = None if plan.options.get("trajectory", False) else shard_of(plan, objective)
    shard = features if features is not None and _suffices(features, half, downlink, state) else None
    if shard is None:
        memory = state if state is None else _whole(state, downlink)
        return _answer(LocalClient(half, downlink, objective, rng, ENGINES, disclosure, features), memory)
    here = downlink._replace(vectors={name: shard.vector(downlink, name) for name in downlink.vectors})
    memory = None if state is None else Received({name: vector.values for name, vector in state.items()})
    uplink, after = _answer(LocalClient(half, here, shard.objective, rng, ENGINES, disclosure, shard, shard), memory)
    vectors = {name: shard.sparse(values, plan) for name, values in uplink.vectors.items()}
    if after is not None:
        after = {name: shard.sparse(values, plan) for name, values in after.items()}
    return uplink._replace(vectors=vectors), after


def _answer(client: LocalClient, state: Memory | None) -> tuple[Uplink, Any]:
    half, downlink, memory = client.half, client.downlink, state
    if half.memory:
        downlink = half.hear(downlink, state)
        memory = half.fresh(downlink) if state is None else state
    if half.engine is None:
        sent, moved = half.local(client, downlink, state)
    else:
        start = half.begin(downlink, memory or {})
        point = start.point if isinstance(start, Start) else None
        if not isinstance(point, np.ndarray) or point.dtype != np.float64 or point.ndim != 1:
            said = type(start).__name__ if point is None else f"Start({type(point).__name__})"
            what = f"{half.__module__}.{half.__name__}.begin returned a {said}"
            raise ConfigurationError(f"{what}; expected a Start with an array of float64 and shape (d,)")
        moved = ENGINES[half.engine](client, start)
        if client.shard is not None and half.common is not None and "gradient" not in downlink.numbers:
            # As every client's dual moves by it, the server adds it, and what is sent is 0 where the features are.
            assert moved.elapsed is not None
            moved = moved._replace(increment=moved.increment + moved.elapsed * downlink.vectors[half.common])
        sent = half.send(client, downlink, memory or {}, moved)
        # An engine has made it for this answer: it need not be copied.
        moved.increment.flags.writeable = False
    after = None
    if memory is not None:
        sent = {name: as_sent(vector, client.plan) for name, vector in sent.items()}
        received = downlink if client.shard is None else without_common(half, downlink)
        after = {**half.remember(received, memory, sent, moved.elapsed), **half.keep(downlink), **moved.kept}
    return Uplink(sent, moved.elapsed, moved.steps, metrics=moved.metrics), after


def _suffices(shard: Shard, half: type[ClientHalf], downlink: Downlink, state: ClientState | None) -> bool:
    """Whether all of a client's round can be done on the coordinates of its features.

    What a client remembers is at the coordinates of its rows as long as these are the same.
    """
    allowed = half.sparse and downlink.plan.options.get("sparse-wire", True)
    if not allowed or not shard.is_short(downlink.plan):
        return False
    remembered: list[Any] = [] if state is None else list(state.values())
    return all(
        isinstance(vector, SparseVector) and np.array_equal(vector.indices, shard.indices) for vector in remembered
    )


def _whole(state: ClientState, downlink: Downlink) -> ClientState:
    """Return a client's memory as dense vectors."""
    if SparseVector not in map(type, state.values()):
        return state
    needed = "dual" not in downlink.vectors or "advance" in downlink.numbers
    if needed and isinstance(state.get("dual"), SparseVector):
        raise ProtocolError("this client's features are not those of its last round, and it remembers these only")
    return Received({name: dense(vector) for name, vector in state.items()})
