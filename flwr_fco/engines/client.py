"""A client's round: its loops, on all coordinates or on those of its sparse features, and the method's half."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from flwr_fco.core.layout import SparseVector, Vector, dense, is_shorter
from flwr_fco.core.validation import plain, short
from flwr_fco.engines.minimise import minimise
from flwr_fco.engines.sparse_steps import Shard, shard_of, tell_dense
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.kernels.dual_averaging import NOTHING, dual_averaging
from flwr_fco.messages.protocol import NOTHING_MORE, ClientState, Downlink, Plan, Received, Uplink
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.objectives.base import Batch, Objective, Place, gradient_of
from flwr_fco.work import FirstOrder, Minimise

#: ``(point, batch)``: a local step, which changes the point in place, and returns what it passes if that is sent.
Step = Callable[[Vector, Batch], Any]
#: The vectors to send by name.
Sent = dict[str, Vector]


class Moved(NamedTuple):
    """What a client says of its work.

    Parameters
    ----------
    elapsed : float or None
        Sum of the step sizes; None after a minimisation.
    steps : int
        Number of steps, or of a minimisation's iterations.
    metrics : mapping of str to float
        Numbers to report.

    Examples
    --------
    >>> moved = Moved(elapsed=0.5, steps=5)
    >>> moved.elapsed / moved.steps
    0.1
    """

    elapsed: float | None
    steps: int
    metrics: Mapping[str, float] = NOTHING_MORE


#: What a loop returns.
Done = tuple[Sent, Moved]


class Client(NamedTuple):
    """A client in a round: its loss, its generator, and the loops.

    The loops return what a method sends, ``{"increment": last point - start}``, and a :class:`Moved`.

    Parameters
    ----------
    downlink : Downlink
        The message; at the coordinates of the shard if there is one.
    objective : Objective
        The client's loss; as a function of these coordinates if there is a shard.
    rng : numpy.random.Generator
        The generator of this (seed, round, partition).
    seed : int
        Of what is the same in all rounds, such as folds.
    shard : Shard or None
        What the client's sparse features touch, if all of the round is done on these coordinates.

    Examples
    --------
    >>> from flwr_fco import Euclidean, LeastSquares, Zero
    >>> loss = LeastSquares(np.eye(2), np.array([1.0, 2.0]))
    >>> downlink = Downlink(Plan("gradient_steps", loss.layout, Zero(), Euclidean()), {}, client_lr=0.1)
    >>> Client(downlink, loss, np.random.default_rng(0)).rate
    0.1
    """

    downlink: Downlink
    objective: Objective
    rng: np.random.Generator
    seed: int = 0
    shard: Shard | None = None

    @property
    def plan(self) -> Plan:
        """The settings that all rounds share."""
        return self.downlink.plan

    @property
    def rate(self) -> float:
        """The step size.

        Raises
        ------
        ProtocolError
            If the server's message has none.
        """
        rate = self.downlink.client_lr
        if math.isnan(rate):
            prefix = f"the method {self.downlink.plan.solver!r} needs a learning rate"
            raise ProtocolError(f"{prefix}; the server's message has no client-lr")
        return rate

    def point(self, dual: Vector, elapsed: float) -> Vector:
        """Return retrieve(dual, elapsed) at the coordinates that the client works on."""
        return self.plan.point(dual, elapsed) if self.shard is None else self.shard.retrieve(dual, elapsed)

    def as_sent(self, vector: Vector) -> Vector:
        """Round a vector to the wire's precision, so that both sides remember the same numbers."""
        # With "auto" a client with memories sends all digits.
        return vector.astype(np.float32).astype(np.float64) if self.plan.wire_dtype == "float32" else vector

    # --- loops ----------------------------------------------------------------------------------------------------

    def gradient(self, dual: Vector) -> Done:
        """Send one stochastic gradient, at retrieve(dual, the message's elapsed)."""
        work = FirstOrder(steps=1, batch_size=self.downlink.first_order.batch_size)
        batch = next(self.objective.batches(self.rng, work))
        # A copy: an objective may use its array again.
        return self._moved(np.array(gradient_of(self.objective, self.point(dual, self.downlink.elapsed), batch)), 1)

    def dual_steps(self, dual: Vector, shift: Vector | float = 0.0, *, psi: bool = True, pairs: bool = False) -> Done:
        """Take steps z <- z - rate (g(retrieve(z, t)) + shift), on sparse features or in a compiled loop if possible.

        If the output averages all local steps, all z_k - z_0 are sent as well, as ``"trajectory"``.

        Parameters
        ----------
        dual : ndarray of float64, shape (d,)
            z_0.
        shift : ndarray of float64, shape (d,), or float, default 0.0
            Added to every gradient.
        psi : bool, default True
            Whether psi acts.
        pairs : bool, default False
            Whether a step takes two batches, as in :meth:`extragradient`, which has no shift.
        """
        # NumPy takes long to look at one number.
        moves = np.any(shift) if isinstance(shift, np.ndarray) else shift != 0.0
        move = self.rate * np.broadcast_to(shift, dual.shape) if moves else NOTHING
        if (features := None if pairs else self.features(psi)) is not None:
            on = features.indices
            local = dual[on]
            steps = features.dual_steps(self.downlink, local, self.rng, move[on] if moves else move)
            # Elsewhere the shift alone moves the dual.
            increment = -steps * move if moves else np.zeros(dual.size)
            increment[on] = local - dual[on]
            return self._moved(increment, steps)
        point = dual.copy()
        if (done := self.compiled_steps(point, move, psi, pairs)) is not None:
            return self._moved(point - dual, done)
        place = self._place(psi)
        primal, half = place.put(dual), place.put(dual)
        along = place.put(move) if moves else None
        rate, elapsed, add_gradient = self.rate, self.downlink.elapsed, self.objective.add_gradient
        numbers = count()

        def step(there: Any, batch: Batch) -> Any:
            k = next(numbers)
            place.retrieve(there, elapsed + rate * k, primal)
            if pairs:
                half[:] = there
                add_gradient(primal, batch[0], -rate, half)
                place.retrieve(half, elapsed + rate * (k + 1), primal)
            add_gradient(primal, batch[1] if pairs else batch, -rate, there)
            if along is not None:
                there -= along
            return half if pairs else there

        return self.steps(dual, step, pairs=pairs, place=place)

    def extragradient(self, dual: Vector) -> Done:
        """Take steps of dual extrapolation, with two new batches each; the trajectory is all omega_{k+1/2} - omega_0.

        Parameters
        ----------
        dual : ndarray of float64, shape (d,)
            omega_0.
        """
        return self.dual_steps(dual, pairs=True)

    def compiled_steps(self, dual: Vector, shift: Vector, psi: bool, pairs: bool) -> int | None:
        """Take the steps in a compiled loop, with psi or without; return their number.

        None, without a step, if psi, h or the objective is not for compiled loops, or all points are sent.
        """
        downlink, objective = self.downlink, self.objective
        retrieval = None if self.plan.sends_every_step else self.plan.local_retrievals[psi]
        work = downlink.first_order
        loss = objective.compiled
        # The loop cuts shuffled epochs into batches itself.
        if retrieval is None or work.batch_size is None or type(objective).batches is not Objective.batches:
            return None
        if loss is None or loss[0] < 0 or not isinstance(loss[2], np.ndarray):
            return None
        rows = loss[2].shape[0]
        size = min(work.batch_size, rows)
        steps = 0
        epochs = iter(work.epoch_sizes(rows, 1 + pairs))
        # Two epochs at a time have whole pairs of batches, and need no memory for all of them.
        while orders := [self.rng.permutation(rows)[:used] for used in islice(epochs, 2)]:
            rates = downlink.elapsed + self.rate * steps, self.rate, objective.l2
            steps += dual_averaging(loss, np.concatenate(orders), rows, size, pairs, retrieval, *rates, shift, dual)
        return steps

    def _moved(self, increment: Vector, steps: int) -> Done:
        """Return what steps have changed, a vector that was made for this answer: it need not be copied."""
        increment.flags.writeable = False
        return {"increment": increment}, Moved(self.rate * steps, steps)

    def features(self, psi: bool = True) -> Shard | None:
        """Return the coordinates of sparse features, on which alone steps are taken if not all of them are sent."""
        all_move = self.plan.sends_every_step or isinstance(getattr(self.objective, "features", None), np.ndarray)
        found = self.shard or (None if all_move else shard_of(self.plan, self.objective))
        return found if psi or found is None else found.without_psi

    def proximal_steps(self, primal: Vector, *, psi: bool = True, pairs: bool = False) -> Done:
        """Take steps w <- retrieve(grad h(w) - rate g(w), rate); with sparse features only where these are.

        Parameters
        ----------
        primal : ndarray of float64, shape (d,)
            The start.
        psi : bool, default True
            Whether psi acts; without it, w <- grad h*(grad h(w) - rate g(w)).
        pairs : bool, default False
            Whether a step takes two batches, as in :meth:`proximal_extragradient`.
        """
        rate, add_gradient = self.rate, self.objective.add_gradient
        if psi and self.shard is not None and not self.plan.smooth:
            prefix = f"{self.plan.solver!r}: a proximal step moves coordinates without features too"
            raise ConfigurationError(f"{prefix}, which a `sparse` method does not send; set sparse = False")
        if (features := None if pairs else self.features(psi)) is not None:
            point = primal.copy()
            if (steps := features.proximal_steps(self.downlink, point, self.rng)) is not None:
                return self._moved(point - primal, steps)
        place = self._place(psi)
        half = place.put(primal)

        def step(point: Any, batch: Batch) -> Any:
            dual = place.gradient(point)
            passed = point
            if pairs:
                passed, moved = half, 1.0 * dual
                add_gradient(point, batch[0], -rate, moved)
                place.retrieve(moved, rate, half)
            add_gradient(passed, batch[1] if pairs else batch, -rate, dual)
            place.retrieve(dual, rate, point)
            return passed

        return self.steps(primal, step, pairs=pairs, place=place)

    def proximal_extragradient(self, primal: Vector) -> Done:
        """Take proximal steps along the gradient at extrapolated points, with two new batches each.

        The trajectory is all z_{k+1/2} - z_0.

        Parameters
        ----------
        primal : ndarray of float64, shape (d,)
            z_0.
        """
        return self.proximal_steps(primal, pairs=True)

    def steps(self, point: Vector, step: Step, *, pairs: bool = False, place: Place | None = None) -> Done:
        """Take steps of the method's own, each with one batch or with a pair of them.

        If the output averages all local steps, what each returns, or else where it ends, is sent as well, less `point`,
        as ``"trajectory"``.

        Parameters
        ----------
        point : ndarray of float64, shape (d,)
            The point before the first step; not changed.
        step : callable
            ``step(point, batch)`` changes the point in place.
        pairs : bool, default False
            Whether a step gets a pair of batches.
        place : Place, optional
            Where the points of the steps are; by default in NumPy's memory.
        """
        every = self.plan.sends_every_step
        if issparse(getattr(self.objective, "features", None)):
            tell_dense(self.plan, f"{self.plan.solver} {'sends' if every else 'moves'} all of them in every step")
        moving = point.copy() if place is None else place.put(point)
        get = np.asarray if place is None else place.get
        passed = list[Vector]()
        steps = 0
        drawn = iter(self.objective.batches(self.rng, self.downlink.first_order, per_step=2 if pairs else 1))
        for batch in zip(drawn, drawn, strict=True) if pairs else drawn:
            there = step(moving, batch)
            steps += 1
            if every:
                passed.append(get(moving if there is None else there) - point)
        sent, moved = self._moved(get(moving) - point, steps)
        return (sent | {"trajectory": np.array(passed)} if every else sent), moved

    def minimise(self, start: Vector, **terms: Any) -> tuple[Vector, Moved]:
        """Return argmin f(x) - <shift, x> + penalty/2 ||x - center||^2.

        Parameters
        ----------
        start : ndarray of float64, shape (d,)
            Where the minimisation begins.
        **terms : ndarray of float64, shape (d,), or float
            `shift`, `center` and `penalty`, as in the formula; and DualFL's nu, `duality`.

        Raises
        ------
        ConfigurationError
            If the server requests gradient steps.
        """
        work = self.downlink.local_work
        if not isinstance(work, Minimise):
            prefix = f"the method {self.plan.solver!r} minimises, it cannot take {work}"
            raise ConfigurationError(f"{prefix}. Its strategy takes work=Minimise(...)")
        minimum = minimise(self.objective, work, start=start, **terms)
        # A sufficiently good warm start needs no iteration, but 0 steps in a reply would mean that no work was done.
        return minimum.point, Moved(None, max(minimum.iterations, 1), minimum.metrics)

    def _place(self, psi: bool) -> Place:
        """Return where the steps are taken: where the loss is computed, if it has vectors of its own."""
        plan = self.plan
        if self.shard is not None and (own := self.features(psi)) is not None:
            return Place(np.array, np.asarray, lambda w: own.metric * w, own.retrieve)
        place = self.objective.place(plan.psi if psi else None) if type(plan.h) is Euclidean else None
        retrieve = plan.point_in_loops if psi else lambda z, _, out: plan.h.conjugate_gradient(z, out)
        return Place(np.array, np.asarray, plan.h.gradient, retrieve) if place is None else place

    # --- a round --------------------------------------------------------------------------------------------------

    def answer(self, method: Any, memory: ClientState | None) -> Uplink:
        """Return the answer to the message; if possible all of it is done at the coordinates of the client's features.

        Parameters
        ----------
        method : Algorithm
            As :func:`~flwr_fco.algorithms.contract.method_of` makes it from the plan.
        memory : mapping or None
            What the client remembers; None for a client that begins, and for a method without memories.
        """
        client, plan = self, self.plan
        shard = self.features() if method.sparse and plan.options.get("sparse_wire", True) else None
        # What a client remembers is at the coordinates of its rows as long as these are the same.
        if shard is not None and not (is_shorter(shard.indices.size, plan.layout.size) and shard.holds(memory or {})):
            shard = None
        if shard is not None:
            vectors = {name: shard.vector(self.downlink, name) for name in self.downlink.vectors}
            downlink = self.downlink._replace(vectors=vectors)
            client = Client(downlink, shard.objective, self.rng, self.seed, shard.alone)
        if memory is not None:
            memory = Received({name: dense(own) if shard is None else own.values for name, own in memory.items()})
        sent, moved = _checked(method, method.local(client, client.downlink, memory))
        if shard is not None:
            if method.sparse in vectors:
                # As every client's dual moves by it, the server adds it; what is sent is 0 where the features are not.
                sent = {**sent, "increment": sent["increment"] + (moved.elapsed or 0.0) * vectors[str(method.sparse)]}
            on = shard.indices.astype(np.int32)
            sent = {name: SparseVector(on, values, plan.layout.size) for name, values in sent.items()}
        return Uplink(sent, moved.elapsed, moved.steps, metrics=moved.metrics)


def _checked(method: Any, found: Any) -> tuple[dict[str, Any], Moved]:
    pair = isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], dict) and isinstance(found[1], Moved)
    if not pair or not all(isinstance(vector, np.ndarray | SparseVector) for vector in found[0].values()):
        prefix = f"{type(method).__module__}.{type(method).__name__}.local returned {short(found)}"
        raise ConfigurationError(f"{prefix}; expected a dict of arrays by name, and a Moved")
    sent, moved = found
    if any(hasattr(own, "tolist") for own in (moved.elapsed, moved.steps, *moved.metrics.values())):
        metrics = {name: plain(own) for name, own in moved.metrics.items()}
        moved = Moved(plain(moved.elapsed), plain(moved.steps), metrics)
    return sent, moved
