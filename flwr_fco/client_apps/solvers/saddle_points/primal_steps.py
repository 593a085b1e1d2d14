"""Primal steps for saddle-point problems: the client halves of the strategies that average primal points."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink


@local_solver("descent_ascent")
def descent_ascent(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Descend for the minimising player, ascend for the maximising one, each projected onto psi's constraint.

    Simultaneous, with one batch per step, a subgradient s of the finite part of psi, and the projection P::

        (x, y) <- P((x, y) - client_lr (g(x, y) + s(x, y)))

    Alternating, on the same batch: first x, then y at the new x with step size ``ascent-lr``, along the gradient or its
    sign::

        x <- P(x - client_lr (grad_x f(x, y) + s(x)))
        y <- P(y + ascent_lr (grad_y f(x, y) - s(y)))        or  ascent_lr sign( . )

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal`` and the number ``ascent-lr`` (default client_lr). The plan's
        option ``alternating`` selects one of the two, and ``sign-ascent`` whether y moves along the sign. The geometry
        is Euclidean.
    objective : Objective
        The gradient of a saddle function is the operator g; a plain loss has no maximising player and is minimised.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = (x, y)_K - (x, y)_0, ``elapsed`` = client_lr K.
    None
        No client state.

    References
    ----------
    Simultaneous: Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021),
    FedAvg-S. Alternating: Shafahi et al.: Universal Adversarial Training (AAAI 2020), algorithm 3.
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
    ascent_lr = downlink.numbers.get("ascent-lr", client_lr)
    psi = plan.psi
    y = slice(objective.layout.size, None) if objective.ascends is None else objective.ascends
    x = slice(y.start) if isinstance(y, slice) else ~y

    def direction(primal: Vector, batch: Batch) -> Vector:
        result = psi.subgradient(primal)
        objective.add_gradient(primal, batch, 1.0, result)
        return result

    def step(primal: Vector, batch: Batch) -> None:
        against = direction(primal, batch)
        primal[x] -= client_lr * against[x]
        if plan.options["alternating"]:
            # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint. Here
            # only x is projected; y ascends from its current value.
            kept = primal[y].copy()
            psi.prox(primal, 0.0, primal)
            primal[y] = kept
            against = direction(primal, batch)
        ascent = np.sign(against[y]) if plan.options["sign-ascent"] else against[y]
        primal[y] -= ascent_lr * ascent
        psi.prox(primal, 0.0, primal)

    return primal_steps(downlink, objective, rng, step), state


@local_solver("extra_step")
def extra_step(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take extragradient steps, projected onto psi's constraint, with two new batches per step.

    For k < K, with a subgradient s of the finite part of psi (sign(0) = 0) and the projection P::

        half   = P(primal - client_lr (g(primal) + s(primal)))
        primal <- P(primal - client_lr (g(half) + s(half)))

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal``. The geometry is Euclidean.
    objective : Objective
        The objective, whose gradient is the operator g.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, ``elapsed`` = client_lr K.
    None
        No client state.

    References
    ----------
    Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems (2020), Extra Step Local SGD; with subgradients
    and projection as in section 6 of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024).
    """
    psi, client_lr = downlink.plan.psi, rate_of(downlink)

    def step(primal: Vector, pair: Batch) -> None:
        half = primal - client_lr * psi.subgradient(primal)
        objective.add_gradient(primal, pair[0], -client_lr, half)
        # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
        psi.prox(half, 0.0, half)
        primal -= client_lr * psi.subgradient(half)
        objective.add_gradient(half, pair[1], -client_lr, primal)
        psi.prox(primal, 0.0, primal)

    return primal_steps(downlink, objective, rng, step, in_pairs=True), state


@local_solver("mirror_prox")
def mirror_prox(downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator) -> tuple[Uplink, Any]:
    """Take proximal steps along the operator at extrapolated points, with two new batches per step.

    For k < K::

        half   = retrieve(grad h(primal) - client_lr g(primal), client_lr)
        primal <- retrieve(grad h(primal) - client_lr g(half), client_lr)

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vector ``primal``. The plan's option ``trajectory`` requests all half steps, K
        times the uplink.
    objective : Objective
        The objective, whose gradient is the operator g.
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` = z_K - z_0, ``elapsed`` = client_lr K; with ``trajectory`` also z_{k+1/2} - z_0 for k = 0..K-1,
        of shape (K, d).
    None
        No client state.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 2 (appendix H).
    """
    plan, client_lr = downlink.plan, rate_of(downlink)
    start = downlink.vectors["primal"]
    half, halves = np.empty_like(start), []

    def step(primal: Vector, pair: Batch) -> None:
        dual = plan.h.gradient(primal)
        moved = dual.copy()
        objective.add_gradient(primal, pair[0], -client_lr, moved)
        plan.point(moved, client_lr, half)
        objective.add_gradient(half, pair[1], -client_lr, dual)
        plan.point(dual, client_lr, primal)
        if plan.options["trajectory"]:
            halves.append(half - start)

    uplink = primal_steps(downlink, objective, rng, step, in_pairs=True)
    if plan.options["trajectory"]:
        uplink = uplink._replace(vectors={**uplink.vectors, "trajectory": np.array(halves)})
    return uplink, state
