"""Local gradient descent-ascent: the client half of FedAvgS and DistributedPGDA."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fco.client_apps.solvers.steps import primal_steps, rate_of
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch, Objective
from flwr_fco.wire.protocol import Downlink, Uplink

__all__ = ["descent_ascent"]


@local_solver("descent_ascent")
def descent_ascent(
    downlink: Downlink, objective: Objective, state: Any, rng: np.random.Generator
) -> tuple[Uplink, Any]:
    """Descend for the minimising player, ascend for the maximising one, each projected onto psi's constraint.

    Simultaneously, from one batch a step, with s a subgradient of the finite part of psi and P the projection::

        (x, y) <- P((x, y) - client_lr (g(x, y) + s(x, y)))

    Alternating, on the same batch: first x, then y at the new x, by ``ascent-lr``, along the gradient or its sign::

        x <- P(x - client_lr (grad_x f(x, y) + s(x)))
        y <- P(y + ascent_lr (grad_y f(x, y) - s(y)))        or  ascent_lr sign( . )

    Parameters
    ----------
    downlink : Downlink
        With the vector ``primal``, and the number ``ascent-lr`` (default client_lr). The plan's option ``alternating``
        chooses between the two, ``sign-ascent`` whether y moves along the sign. The geometry is Euclidean.
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
            # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
            psi.prox(primal, 0.0, primal)
            against = direction(primal, batch)
        ascent = np.sign(against[y]) if plan.options["sign-ascent"] else against[y]
        primal[y] -= ascent_lr * ascent
        psi.prox(primal, 0.0, primal)

    return primal_steps(downlink, objective, rng, step), state
