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

import math
from dataclasses import dataclass, field
from typing import ClassVar

from flwr_fco.server.algorithm import Problem
from flwr_fco.server.options import POSITIVE, Rate, rate_text
from flwr_fco.strategies.primal_averaging.fed_avg_subgradient import FedAvgSubgradient
from flwr_fco.strategies.primal_averaging.primal import PrimalState
from flwr_fco.wire.protocol import Downlink, Node, Option


@dataclass(repr=False, eq=False, kw_only=True)
class ExtraStepLocalSGD(FedAvgSubgradient):
    """Local extragradient steps with primal averages; inexact with unequal clients or nonsmooth psi.

    References
    ----------
    Beznosikov, Samokhin, Gasnikov: Distributed saddle-point problems: lower bounds, optimal and robust algorithms
    (2020), Extra Step Local SGD.

    Examples
    --------
    >>> ExtraStepLocalSGD(client_lr=0.1, local_steps=5).local_solver
    'extra_step'
    """

    local_solver: ClassVar[str] = "extra_step"
    source: ClassVar[str] = "Beznosikov and others 2020"
    extrapolates: ClassVar[bool] = False
    sends: ClassVar[str] = "z_K - z_0"

    def client_rate(self, problem: Problem, smoothness: float, steps: int) -> tuple[float, str]:
        """Return 1/(sqrt(5) L) of FeDualEx's theory."""
        return 1.0 / (math.sqrt(5.0) * smoothness), "1/(sqrt(5) L)"

    def solver_options(self) -> dict[str, Option]:
        """Return an empty dict: the steps have no options."""
        return {}


@dataclass(repr=False, eq=False, kw_only=True)
class FedAvgS(FedAvgSubgradient):
    """FedAvg on the operator (local gradient descent-ascent), which diverges on unconstrained bilinear problems.

    References
    ----------
    Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021), FedAvg-S.

    Examples
    --------
    >>> FedAvgS(client_lr=0.1, local_steps=5).local_solver
    'descent_ascent'
    """

    local_solver: ClassVar[str] = "descent_ascent"
    source: ClassVar[str] = "Hou and others 2021"
    extrapolates: ClassVar[bool] = False
    sends: ClassVar[str] = "z_K - z_0"

    def solver_options(self) -> dict[str, Option]:
        """Return the options for simultaneous moves of both players along their gradients."""
        return {"alternating": False, "sign-ascent": False}


@dataclass(repr=False, eq=False, kw_only=True)
class DistributedPGDA(FedAvgSubgradient):
    """Projected descent of one player, then ascent of the other, averaged: universal adversarial training.

    Parameters
    ----------
    alternating : bool, default True
        Whether the maximising player moves after the minimising one, at its new point; otherwise both move at once.
    sign_ascent : bool, default False
        Whether the maximising player moves along the sign of its gradient.
    ascent_lr : float or callable, optional
        Step size of the maximising player; client_lr by default.

    References
    ----------
    Shafahi, Najibi, Xu, Dickerson, Davis, Goldstein: Universal Adversarial Training (AAAI 2020), algorithm 3; directly
    aggregated as in section 6 of Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024).

    Examples
    --------
    >>> DistributedPGDA(client_lr=0.1, ascent_lr=0.05, sign_ascent=True, local_steps=5).local_solver
    'descent_ascent'
    """

    local_solver: ClassVar[str] = "descent_ascent"
    source: ClassVar[str] = "Shafahi and others 2020"
    extrapolates: ClassVar[bool] = False
    sends: ClassVar[str] = "z_K - z_0"

    alternating: bool = True
    sign_ascent: bool = False
    own_rates: ClassVar[tuple[str, ...]] = ("ascent_lr",)

    ascent_lr: Rate | None = field(default=None, metadata=POSITIVE)

    def solver_options(self) -> dict[str, Option]:
        """Return how the maximising player moves."""
        return {"alternating": self.alternating, "sign-ascent": self.sign_ascent}

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the maximising player."""
        how = "alternating" if self.alternating else "simultaneous"
        rate = "" if self.ascent_lr is None else f", rate {rate_text(self.ascent_lr)}"
        return [("Ascent", f"{how}{', along the sign' if self.sign_ascent else ''}{rate}")]

    def downlink(self, problem: Problem, state: PrimalState, node: Node | None) -> Downlink:
        """Return the model, and the maximising player's step size if it has its own."""
        told = super().downlink(problem, state, node)
        return told if self.ascent_lr is None else told._replace(numbers={"ascent-lr": problem.numbers["ascent_lr"]})
