"""Methods that the papers compare with, and that nobody would pick for data of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr_fco.algorithms.contract.choices import AT_LEAST_ONE, POSITIVE
from flwr_fco.algorithms.rivals.apda_inexact import APDA
from flwr_fco.algorithms.rivals.client_momentum import ClientMomentum
from flwr_fco.algorithms.rivals.fed_pd import PrimalDual
from flwr_fco.algorithms.rivals.five_gcs import FifthGeneration
from flwr_fco.algorithms.rivals.saddle_baselines import DescentAscent, ExtraStep
from flwr_fco.algorithms.rivals.sharpness_aware import SharpnessAware
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.convergence import Biased, Exact, ShiftedBy
from flwr_fco.server.options import (
    EveryoneOptions,
    MemoryOptions,
    MinimiseOptions,
    Rate,
    RateOptions,
    WorkOptions,
)
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.gradient_tracking import Scaffold
from flwr_fco.strategies.primal_averaging import FedAvgSubgradient


@dataclass(repr=False, eq=False, kw_only=True)
class APDAInexact(
    MinimiseOptions,
    EveryoneOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=APDA,
    limit=Exact("the solution", problem="smooth"),
    source="Sadiev and others 2022",
    sends="the changes of V_m and x_m",
    traffic="1 / 2",
    remembers="V_m, x_m",
):
    """APDA-Inexact: an accelerated primal-dual method on 'all clients agree', with inexact proximal steps.

    Parameters
    ----------
    primal_step : float, default 1.0
        eta_x, of the clients' proximal steps.
    dual_step : float, optional
        eta_y; by default 1/(32 eta_x).
    damping : float, default 0.1
        beta_y; the theory needs at most 1/L.
    convexity : float, default 0.01
        mu, from which the extrapolation follows.

    References
    ----------
    Sadiev, Kovalev, Richtarik: Communication acceleration of local gradient methods via an accelerated primal-dual
    algorithm with an inexact prox (NeurIPS 2022).

    Examples
    --------
    >>> APDAInexact(primal_step=0.25).dual_step
    0.125
    """

    primal_step: float = field(default=1.0, metadata=POSITIVE)
    dual_step: float | None = field(default=None, metadata=POSITIVE)
    damping: float = field(default=0.1, metadata=POSITIVE)
    convexity: float = field(default=0.01, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_step is None:
            self.dual_step = 1.0 / (32.0 * self.primal_step)


@dataclass(repr=False, eq=False, kw_only=True)
class FedPD(
    MinimiseOptions,
    EveryoneOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=PrimalDual,
    limit=Exact("the solution", problem="smooth"),
    source="Zhang and others 2021",
    sends="the change of x_{0,i}",
    remembers="lambda_i, x_i",
):
    """FedPD: clients minimise their augmented Lagrangians and update their own multipliers.

    The multipliers are sums of sent values: on a float32 wire the method stalls at 1e-8.

    Parameters
    ----------
    step : float, default 1.0
        eta.
    repeats : int, default 1
        Local minimisations between two averages. With more than one, a client's memory is not a function of what it
        sends, so the server cannot keep a ledger: ``client_state`` is ``"reset"``.

    References
    ----------
    Zhang, Hong, Dhople, Yin, Liu: FedPD, a federated learning framework with adaptivity to non-iid data (IEEE
    Transactions on Signal Processing, 2021), algorithm 1.

    Examples
    --------
    >>> FedPD(step=2.0)
    FedPD(step=2.0)
    """

    step: float = field(default=1.0, metadata=POSITIVE)
    repeats: int = field(default=1, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        if self.repeats > 1:
            if self.client_state == "ledger":
                raise ConfigurationError(
                    f'client_state="ledger" with repeats={self.repeats}: what a client remembers then is no function '
                    'of what it sends; use client_state="reset", or repeats=1'
                )
            self.client_state = "reset"
        super().__post_init__()


@dataclass(repr=False, eq=False, kw_only=True)
class FiveGCS(
    MinimiseOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=FifthGeneration,
    limit=Exact("the solution", problem="smooth"),
    source="Grudzien and others 2022",
    sends="the change of u_m",
    remembers="u_m, y_m",
):
    """5GCS: a primal-dual method with accelerated communication and client sampling.

    Parameters
    ----------
    step : float, default 1.0
        gamma, the server's step size.
    dual_step : float, optional
        tau times the number of clients; by default 1/(2 gamma), the largest that the theory allows. Must exceed
        `convexity`.
    convexity : float, default 0.01
        mu, at most the modulus of strong convexity of every client's loss.

    References
    ----------
    Grudzien, Malinovsky, Richtarik: Can 5th generation local training methods support client sampling? Yes! (2022),
    algorithm 1.

    Examples
    --------
    >>> FiveGCS(step=0.5, convexity=0.01).dual_step
    1.0
    """

    step: float = field(default=1.0, metadata=POSITIVE)
    dual_step: float | None = field(default=None, metadata=POSITIVE)
    convexity: float = field(default=0.01, metadata=POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dual_step is None:
            self.dual_step = 0.5 / self.step
        if self.dual_step <= self.convexity:
            raise ConfigurationError(
                f"dual_step={self.dual_step:g}; expected more than convexity={self.convexity:g}, or else the clients' "
                "minimisations are not convex. Lower `step`"
            )


@dataclass(repr=False, eq=False, kw_only=True)
class FedCM(
    RateOptions,
    WorkOptions,
    CompositeStrategy,
    algorithm=ClientMomentum,
    limit=Biased(problem="smooth"),
    source="Xu and others 2021",
    sends="x_K - x_0",
    traffic="2 / 1",
):
    """FedCM: every local step is mixed with the federation's last direction.

    Parameters
    ----------
    mix : float, default 0.1
        alpha in (0, 1]: the share of the client's own gradient.

    References
    ----------
    Xu, Wang, Wang, Yao: FedCM, federated learning with client-level momentum (2021), algorithm 2.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> FedCM(mix=0.2, client_lr=0.1, work=Steps(5))
    FedCM(work=Steps(5, batch_size=32), mix=0.2)
    """

    mix: float = field(default=0.1, metadata={"range": (lambda alpha: 0.0 < alpha <= 1.0, "0 < mix <= 1")})


@dataclass(repr=False, eq=False, kw_only=True)
class FedSAM(
    RateOptions,
    WorkOptions,
    CompositeStrategy,
    algorithm=SharpnessAware,
    limit=ShiftedBy(
        "a flat point near the solution, at a distance of the order of the radius and of client rate x local steps",
        option="radius",
        values=(0.1, 0.01),
        problem="smooth",
    ),
    source="Qu and others 2022",
    sends="x_K - x_0",
):
    """FedSAM: sharpness-aware local steps.

    Parameters
    ----------
    radius : float, default 0.05
        rho >= 0; 0 is FedAvg.

    References
    ----------
    Qu, Li, Duan, Liu, Tang, Lu: Generalized federated learning via sharpness aware minimization (ICML 2022),
    algorithm 1.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> FedSAM(radius=0.1, client_lr=0.1, work=Steps(5))
    FedSAM(work=Steps(5, batch_size=32), radius=0.1)
    """

    radius: float = field(default=0.05, metadata={"range": (lambda r: 0.0 <= r < 1e308, "a finite number >= 0")})


@dataclass(repr=False, eq=False, kw_only=True)
class ExtraStepLocalSGD(FedAvgSubgradient, algorithm=ExtraStep, source="Beznosikov and others 2020", sends="z_K - z_0"):
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


@dataclass(repr=False, eq=False, kw_only=True)
class FedAvgS(FedAvgSubgradient, algorithm=DescentAscent, source="Hou and others 2021", sends="z_K - z_0"):
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


@dataclass(repr=False, eq=False, kw_only=True)
class DistributedPGDA(FedAvgSubgradient, algorithm=DescentAscent, source="Shafahi and others 2020", sends="z_K - z_0"):
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
    >>> from flwr_fco.strategies import Steps
    >>> DistributedPGDA(client_lr=0.1, ascent_lr=0.05, sign_ascent=True, work=Steps(5)).alternating
    True
    """

    alternating: bool = True
    sign_ascent: bool = False
    ascent_lr: Rate | None = field(default=None, metadata=POSITIVE)


@dataclass(repr=False, eq=False, kw_only=True)
class ScaffoldS(Scaffold, source="Hou and others 2021"):
    """SCAFFOLD on the operator of a saddle function: exact for any local work if the operator is strongly monotone.

    References
    ----------
    Hou, Thekumparampil, Fanti, Oh: Efficient algorithms for federated saddle point optimization (2021), SCAFFOLD-S.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> ScaffoldS(client_lr=0.1, work=Steps(5)).variate
    'average'
    """
