"""The client halves of the baselines for saddle points: descent-ascent and extragradient steps."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Client, Memory, Moved, Start, Step
from flwr_fco.algorithms.mirror_descent import PrimalSteps
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class DescentAscent(PrimalSteps):
    """Descend for the minimising player, ascend for the maximising one, each projected onto psi's constraint.

    Simultaneous, with one batch per step, a subgradient s of the finite part of psi, and the projection P::

        (x, y) <- P((x, y) - client_lr (g(x, y) + s(x, y)))

    Alternating, on the same batch: first x, then y at the new x with step size ``ascent-lr``, along the gradient or its
    sign::

        x <- P(x - client_lr (grad_x f(x, y) + s(x)))
        y <- P(y + ascent_lr (grad_y f(x, y) - s(y)))        or  ascent_lr sign( . )

    The message has the vector ``primal`` and the number ``ascent-lr`` (default client_lr). The plan's option
    ``alternating`` selects one of the two, and ``sign-ascent`` whether y moves along the sign. The geometry is
    Euclidean. A plain loss has no maximising player and is minimised.

    Simultaneous: Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021),
    FedAvg-S. Alternating: Shafahi et al.: Universal Adversarial Training (AAAI 2020), algorithm 3.
    """

    name: ClassVar[str] = "descent_ascent"

    @staticmethod
    def step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a step of both players."""
        plan, rate, objective = client.plan, client.rate, client.objective
        ascent_lr = downlink.numbers.get("ascent-lr", rate)
        psi = plan.psi
        y = slice(objective.layout.size, None) if objective.ascends is None else objective.ascends
        x = slice(y.start) if isinstance(y, slice) else ~y

        def direction(primal: Vector, batch: Batch) -> Vector:
            result = psi.subgradient(primal)
            objective.add_gradient(primal, batch, 1.0, result)
            return result

        def step(primal: Vector, batch: Batch) -> None:
            against = direction(primal, batch)
            primal[x] -= rate * against[x]
            if plan.options["alternating"]:
                # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
                # Here only x is projected; y ascends from its current value.
                kept = primal[y].copy()
                psi.prox(primal, 0.0, primal)
                primal[y] = kept
                against = direction(primal, batch)
            ascent = np.sign(against[y]) if plan.options["sign-ascent"] else against[y]
            primal[y] -= ascent_lr * ascent
            psi.prox(primal, 0.0, primal)

        return step


class ExtraStep(PrimalSteps):
    """Extragradient steps, projected onto psi's constraint, with two new batches each.

    For k < K, with a subgradient s of the finite part of psi (sign(0) = 0) and the projection P::

        half   = P(primal - client_lr (g(primal) + s(primal)))
        primal <- P(primal - client_lr (g(half) + s(half)))

    The geometry is Euclidean. Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems (2020), Extra Step
    Local SGD; with subgradients and projection as in section 6 of Bai, Bullins: Local Composite Saddle Point
    Optimization (ICLR 2024).
    """

    name: ClassVar[str] = "extra_step"
    engine: ClassVar[str | None] = None

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Take the steps."""
        psi, rate, add_operator = client.plan.psi, client.rate, client.objective.add_gradient

        def step(primal: Vector, pair: Batch) -> None:
            half = primal - rate * psi.subgradient(primal)
            add_operator(primal, pair[0], -rate, half)
            # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
            psi.prox(half, 0.0, half)
            primal -= rate * psi.subgradient(half)
            add_operator(half, pair[1], -rate, primal)
            psi.prox(primal, 0.0, primal)

        moved = client.take_steps(downlink.vectors["primal"], step, in_pairs=True)
        return {"increment": moved.increment}, moved
