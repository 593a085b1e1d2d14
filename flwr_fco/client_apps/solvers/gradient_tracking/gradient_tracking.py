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
    """What a client with a tracker knows in a round, for local solvers and users' own training loops.

    Parameters
    ----------
    start : ndarray of float64, shape (d,)
        The dual at which the round begins.
    own : ndarray of float64, shape (d,)
        The client's own control variate: the mean of its gradients when it last took part; 0 before.
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
        """Read it from the server's message and the client's state.

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
        """What is added to every gradient."""
        return self.control - self.own

    def with_own(self, own: Vector) -> ClientState:
        """Return the client's state after a round."""
        return {"own": own, "dual": self.start} if self.remembers else {"own": own}

    def after(self, increment: Vector, elapsed: float) -> ClientState:
        """Return the client's state after a round that moved the dual by this much."""
        return self.with_own(self.own - self.control - increment / elapsed)


@local_solver("gradient_tracking")
def gradient_tracking(
    downlink: Downlink, objective: Objective, state: ClientState | None, rng: np.random.Generator
) -> tuple[Uplink, ClientState]:
    """Take tracked steps, the tracker being control - own: z <- z - client_lr (g(retrieve(z, t)) + control - own).

    `own` is the client's own control variate, the mean of its gradients when it last took part; `control` is the mean
    of `own` over all clients. The latter comes with the message or, if all clients took part in the last round, is
    derived from two successive broadcasts: control = (z_{r-1} - z_r) / advance. Afterwards, with D the mean of the
    client's moves, own <- own - control - D (which is the mean of its gradients).

    Parameters
    ----------
    downlink : Downlink
        With the vectors ``dual`` (left out if the client has it from round 0) and ``control`` (left out if zero or
        derived), and the number ``advance`` if `control` is to be derived. The number ``gradient`` asks for a single
        gradient at the start point instead (round 0). Options of the plan: ``variate`` is ``"average"`` or
        ``"gradient"`` (own <- the full gradient at the start of the round), ``remember`` keeps the dual,
        ``control-apart`` lets a client with sparse features leave out what `control` does to the dual.
    objective : Objective
    state : mapping or None
        ``own`` and, where it may be needed, ``dual``.
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0; with ``variate="gradient"`` also ``variate-increment``, the change of `own`. With
        ``control-apart`` and sparse features the increment is a sparse vector, z_K - z_0 + elapsed control: zero where
        no row of the client has a feature, as `own` is.
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
    """Whether all that a client remembers is at the coordinates of its rows, as it is while its rows are the same."""
    remembered: list[Any] = [] if state is None else list(state.values())
    return all(isinstance(own, SparseVector) and np.array_equal(own.indices, shard.places) for own in remembered)


def _whole(state: ClientState, downlink: Downlink) -> ClientState:
    """Return what a client remembers as whole vectors."""
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
    """Return one stochastic gradient at the start point, in the place of the increment."""
    plan = downlink.plan
    point = plan.point(start, downlink.elapsed)
    batch = next(objective.batches(rng, FirstOrder(steps=1, batch_size=downlink.first_order.batch_size)))
    return Uplink({"increment": as_sent(objective.gradient(point, batch), plan)}, rate_of(downlink), 1)
