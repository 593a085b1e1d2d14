"""Baselines for FeDualEx: methods for smooth saddle points, with subgradients of psi and projections.

ExtraStepLocalSGD (Beznosikov, Samokhin, Gasnikov 2020), FedAvg-S (Hou, Thekumparampil, Fanti, Oh 2021) and the direct
aggregation of projected descent-ascent (Shafahi et al. 2020, algorithm 3), their symbols in brackets::

    server: primal [z = (x, y)]
    each round:
        each client: start at primal; K local steps on (x, y), with the operator g = (grad_x f, -grad_y f), s a
            subgradient of psi's finite part (sign(0) = 0) and P the projection onto psi's constraint:
            ExtraStepLocalSGD:  half <- P(z - client_lr (g(z) + s(z)));  z <- P(z - client_lr (g(half) + s(half)))
            FedAvgS:            z <- P(z - client_lr (g(z) + s(z)))
            DistributedPGDA:    x <- P(x - client_lr (grad_x f(x, y) + s(x))), then at the new x
                                y <- P(y + ascent_lr (grad_y f(x, y) - s(y)))              or along the sign of that
            send the increment [z_K - z_0]
        server: primal <- primal + server_lr mean(increment)

Means of points in a convex set stay in it for server_lr <= 1. No entry is ever exactly zero.

Differs from the papers in: 1. the methods are for smooth problems, without (ExtraStepLocalSGD) or with projections;
Bai, Bullins (ICLR 2024, section 6) run them with subgradients on composite problems; 2. clients with more steps do not
weigh more (``normalize_local_work``); 3. DistributedPGDA's descent has no momentum; with ``sign_ascent=True`` and
``ascent_lr`` set to the radius of the ball, its ascent is that of Shafahi et al.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fco.algorithms import Client, Downlink, Memory, Moved, PrimalAveraging, Sent
from flwr_fco.objectives import Batch, Vector
from flwr_fco.strategies import FedAvgSubgradient, Scaffold, strategy

_REFUSES = {**PrimalAveraging.refuses, "server_lr": "its clients' increments are no gradients at one point"}


@dataclass(frozen=True, kw_only=True)
class DescentAscent(PrimalAveraging):
    """Descend for the minimising player, ascend for the maximising one, each projected onto psi's constraint.

    Simultaneous, with one batch per step, a subgradient s of the finite part of psi, and the projection P::

        (x, y) <- P((x, y) - client_lr (g(x, y) + s(x, y)))

    Alternating, on the same batch: first x, then y at the new x::

        x <- P(x - client_lr (grad_x f(x, y) + s(x)))
        y <- P(y + client_lr (grad_y f(x, y) - s(y)))

    The message has the vector ``primal``. The geometry is Euclidean. A plain loss has no maximising player and is
    minimised.

    Simultaneous: Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021),
    FedAvg-S. Alternating: Shafahi et al.: Universal Adversarial Training (AAAI 2020), algorithm 3.

    Parameters
    ----------
    alternating : bool, default False
        Whether y follows x on the same batch.
    """

    name = "descent_ascent"
    refuses = _REFUSES

    alternating: bool = False

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take steps of both players."""
        psi = client.plan.psi
        rate = client.rate
        objective = client.objective
        y = slice(objective.layout.size, None) if objective.ascends is None else objective.ascends
        x = slice(y.start) if isinstance(y, slice) else ~y

        def direction(primal: Vector, batch: Batch) -> Vector:
            result = psi.subgradient(primal)
            objective.add_gradient(primal, batch, 1.0, result)
            return result

        def step(primal: Vector, batch: Batch) -> None:
            against = direction(primal, batch)
            primal[x] -= rate * against[x]
            if self.alternating:
                # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
                # Here only x is projected; y ascends from its current value.
                kept = primal[y].copy()
                psi.prox(primal, 0.0, primal)
                primal[y] = kept
                against = direction(primal, batch)
            primal[y] -= rate * against[y]
            psi.prox(primal, 0.0, primal)

        return client.steps(downlink.vectors["primal"], step)


@dataclass(frozen=True, kw_only=True)
class ExtraStep(PrimalAveraging):
    """Extragradient steps, projected onto psi's constraint, with two new batches each.

    For k < K, with a subgradient s of the finite part of psi (sign(0) = 0) and the projection P::

        half   = P(primal - client_lr (g(primal) + s(primal)))
        primal <- P(primal - client_lr (g(half) + s(half)))

    The geometry is Euclidean. Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems (2020), Extra Step
    Local SGD; with subgradients and projection as in section 6 of Bai, Bullins: Local Composite Saddle Point
    Optimization (ICLR 2024).
    """

    name = "extra_step"
    refuses = _REFUSES

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take the steps."""
        psi = client.plan.psi
        rate = client.rate
        add_operator = client.objective.add_gradient

        def step(primal: Vector, pair: Batch) -> None:
            half = primal - rate * psi.subgradient(primal)
            add_operator(primal, pair[0], -rate, half)
            # At step 0 the proximal map of a sum of a norm and a constraint is the projection onto the constraint.
            psi.prox(half, 0.0, half)
            primal -= rate * psi.subgradient(half)
            add_operator(half, pair[1], -rate, primal)
            psi.prox(primal, 0.0, primal)

        return client.steps(downlink.vectors["primal"], step, pairs=True)


@strategy
class ExtraStepLocalSGD(FedAvgSubgradient):
    """Local extragradient steps with primal averages; inexact with unequal clients or nonsmooth psi.

    References
    ----------
    Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems: lower bounds, optimal and robust algorithms
    (2020), Extra Step Local SGD.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> ExtraStepLocalSGD(client_lr=0.1, work=Steps(5)).work.steps
    5
    """

    algorithm = ExtraStep
    theory = "1/(sqrt(5) L)"


@strategy
class FedAvgS(FedAvgSubgradient):
    """FedAvg on the operator (local gradient descent-ascent), which diverges on unconstrained bilinear problems.

    References
    ----------
    Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021), FedAvg-S.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> FedAvgS(client_lr=0.1, work=Steps(5)).work.steps
    5
    """

    algorithm = DescentAscent


@strategy
class DistributedPGDA(FedAvgSubgradient):
    """Projected descent of one player, then ascent of the other, averaged: universal adversarial training.

    Parameters
    ----------
    alternating : bool, default True
        Whether the maximising player moves after the minimising one, at its new point; otherwise both move at once.

    References
    ----------
    Shafahi, Najibi, Xu, Dickerson, Davis, Goldstein: Universal Adversarial Training (AAAI 2020), algorithm 3; directly
    aggregated as in section 6 of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024).

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> DistributedPGDA(client_lr=0.1, work=Steps(5)).alternating
    True
    """

    algorithm = DescentAscent
    alternating: bool = True


@strategy
class ScaffoldS(Scaffold):
    """SCAFFOLD on the operator of a saddle function: exact for any local work if the operator is strongly monotone.

    References
    ----------
    Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021), SCAFFOLD-S.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> ScaffoldS(client_lr=0.1, work=Steps(5)).tracker_start
    'zero'
    """
