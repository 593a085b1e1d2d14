"""Local dual averaging with a tracker: the client half of FedDA-GT, ReFedDA-GT and SCAFFOLD."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from flwr_fco.client_apps.solvers.sparse_steps import Shard, shard_of
from flwr_fco.client_apps.solvers.steps import as_sent, rate_of, take_dual_steps
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.errors import ProtocolError
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import ClientState, Downlink, ReceivedState, Uplink
from flwr_fco.work import FirstOrder


class Tracking(NamedTuple):
    """The vectors of a client with a tracker in a round, for local solvers and custom training loops.

    Parameters
    ----------
    start : ndarray of float64, shape (d,)
        The dual at the start of the round.
    own : ndarray of float64, shape (d,)
        The client's own control variate: the mean of its gradients when it last took part, initially 0.
    control : ndarray of float64, shape (d,)
        The mean of all clients' `own`.
    remembers : bool
        Whether the dual is part of the client's state.

    Examples
    --------
    >>> now = Tracking(np.zeros(1), np.array([3.0]), np.array([1.0]), False)
    >>> now.tracker, now.after(np.array([-0.5]), 0.5)["own"]
    (array([-2.]), array([3.]))
    """

    start: Vector
    own: Vector
    control: Vector
    remembers: bool

    @classmethod
    def of(cls, downlink: Downlink, state: ClientState | None) -> Self:
        """Read the vectors from the server's message and the client's state.

        Parameters
        ----------
        downlink : Downlink
            As for :func:`gradient_tracking`.
        state : mapping or None
        """
        vectors, numbers = downlink.vectors, downlink.numbers
        start = vectors["dual"] if "dual" in vectors or state is None else state["dual"]
        own = np.zeros_like(start) if state is None else state["own"]
        if "control" in vectors:
            control = vectors["control"]
        elif "advance" in numbers and state is not None:
            if not numbers["advance"] > 0:
                raise ProtocolError(f"the server's advance is {numbers['advance']!r}; expected a number > 0")
            control = (state["dual"] - start) / numbers["advance"]
        else:
            control = np.zeros_like(start)
        return cls(start, own, control, bool(downlink.plan.options.get("remember", False)))

    @property
    def tracker(self) -> Vector:
        """The vector that is added to every gradient."""
        return self.control - self.own

    def with_own(self, own: Vector) -> ClientState:
        """Return the client's state with a new control variate."""
        return {"own": own, "dual": self.start} if self.remembers else {"own": own}

    def after(self, increment: Vector, elapsed: float) -> ClientState:
        """Return the client's state after a round that changed the dual by `increment`."""
        return self.with_own(self.own - self.control - increment / elapsed)


@local_solver("gradient_tracking")
def gradient_tracking(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Take steps with the tracker control - own: z <- z - client_lr (g(retrieve(z, t)) + control - own).

    `own` is the client's own control variate, the mean of its gradients when it last took part; `control` is the mean
    of `own` over all clients. `control` comes with the message or, if all clients took part in the last round, is
    derived from two successive broadcasts: control = (z_{r-1} - z_r) / advance. After the steps,
    own <- own - control - D, where D is the increment divided by the elapsed time; this is the mean of the client's
    gradients.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``dual`` (omitted if the client has it from round 0) and ``control``
        (omitted if zero or derived), and the number ``advance`` if `control` is derived. The number ``gradient``
        requests a single gradient at the start point instead (round 0). Options of the plan: ``variate`` is
        ``"average"`` or ``"gradient"`` (own <- the full gradient at the start of the round), ``remember`` stores the
        dual in the state, ``control-apart`` lets a client with sparse features omit the effect of `control` on the
        dual.
    objective : Objective
    state : mapping or None
        ``own`` and, if it may be needed, ``dual``.
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0; with ``variate="gradient"`` also ``variate-increment``, the change of `own`. With
        ``control-apart`` and sparse features the increment is the sparse vector z_K - z_0 + elapsed control, which,
        like `own`, is zero for features that are zero in all of the client's rows.
    mapping
        The next state; sparse if the increment is.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 1 and 2; Karimireddy
    and others: SCAFFOLD (ICML 2020), algorithm 1.
    """
    plan = downlink.plan
    variate = plan.options.get("variate", "average")
    if variate not in ("average", "gradient"):
        raise ProtocolError(f"the plan's variate is {variate!r}; expected 'average' or 'gradient'")
    shard = shard_of(plan, objective) if plan.options.get("control-apart", False) else None
    if shard is not None and shard.is_short(plan) and _is_at(shard, state):
        return _at_its_features(shard, downlink, state, rng, variate)
    now = Tracking.of(downlink, None if state is None else _whole(state, downlink))
    start = now.start
    if "gradient" in downlink.numbers:
        uplink = first_gradient(downlink, objective, start, rng)
        return uplink, now.with_own(uplink.vectors["increment"])
    dual = start.copy()
    steps = descend(downlink, objective, dual, now.tracker, rng)
    elapsed = downlink.client_lr * steps
    increment = as_sent(dual - start, plan)
    if variate == "gradient":
        point = plan.point(start, downlink.elapsed)
        change = as_sent(objective.gradient(point) - now.own, plan)
        sent = {"increment": increment, "variate-increment": change}
        return Uplink(sent, elapsed, steps), now.with_own(now.own + change)
    return Uplink({"increment": increment}, elapsed, steps), now.after(increment, elapsed)


def _is_at(shard: Shard, state: ClientState | None) -> bool:
    """Whether a client's state is stored at the coordinates of its rows, which holds as long as its rows are the same.

    It also holds for a client without state.
    """
    remembered: list[Any] = [] if state is None else list(state.values())
    return all(isinstance(own, SparseVector) and np.array_equal(own.indices, shard.places) for own in remembered)


def _whole(state: ClientState, downlink: Downlink) -> ClientState:
    """Return a client's state as dense vectors."""
    needed = "dual" not in downlink.vectors or "advance" in downlink.numbers
    if needed and isinstance(state.get("dual"), SparseVector):
        raise ProtocolError("this client's features are not those of its last round, and it remembers these only")
    if SparseVector not in map(type, state.values()):
        return state
    return ReceivedState({name: dense(vector) for name, vector in state.items()})


def _at_its_features(
    shard: Shard, downlink: Downlink, state: ClientState | None, rng: np.random.Generator, variate: str
) -> tuple[Uplink, ClientState]:
    """Take the steps of :func:`gradient_tracking` on the coordinates of a client's sparse rows."""
    plan, known = downlink.plan, None
    if state is not None:
        known = ReceivedState({name: own.values for name, own in state.items()})
    here = downlink._replace(vectors={name: shard.told(downlink, name) for name in downlink.vectors})
    now = Tracking.of(here, known)
    start, loss = now.start, shard.objective
    elapsed, steps = rate_of(downlink), 1
    if "gradient" in downlink.numbers:
        batch = next(loss.batches(rng, FirstOrder(steps=1, batch_size=downlink.first_order.batch_size)))
        increment = as_sent(loss.gradient(shard.coordinates.retrieve(start, downlink.elapsed), batch), plan)
        sent, after = {"increment": increment}, now.with_own(increment)
    else:
        dual = start.copy()
        steps = shard.local_dual_steps(downlink, dual, rng, elapsed * now.tracker)
        elapsed *= steps
        increment = as_sent(dual - start + elapsed * now.control, plan)
        sent, after = {"increment": increment}, now.with_own(now.own - increment / elapsed)
        if variate == "gradient":
            point = shard.coordinates.retrieve(start, downlink.elapsed)
            change = sent["variate-increment"] = as_sent(loss.gradient(point) - now.own, plan)
            after = now.with_own(now.own + change)
    state = {name: shard.sparse(own, plan) for name, own in after.items()}
    return Uplink({name: shard.sparse(own, plan) for name, own in sent.items()}, elapsed, steps), state


def descend(
    downlink: Downlink, objective: Objective, dual: Vector, tracker: Vector | None, rng: np.random.Generator
) -> int:
    """Take the local steps, changing `dual` in place; return their number."""
    shift = None if tracker is None else rate_of(downlink) * tracker
    return take_dual_steps(downlink, objective, dual, rng, shift)


def first_gradient(downlink: Downlink, objective: Objective, start: Vector, rng: np.random.Generator) -> Uplink:
    """Return an uplink with one stochastic gradient at the start point instead of the increment."""
    plan = downlink.plan
    point = plan.point(start, downlink.elapsed)
    batch = next(objective.batches(rng, FirstOrder(steps=1, batch_size=downlink.first_order.batch_size)))
    return Uplink({"increment": as_sent(objective.gradient(point, batch), plan)}, rate_of(downlink), 1)
