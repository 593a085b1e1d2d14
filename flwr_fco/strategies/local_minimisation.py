"""Methods whose clients minimise, or take shifted steps between rare averages: DualFL, FedDR, FedDyn, FedProx."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.algorithms.contract.limits import Exact, ShiftedBy
from flwr_fco.algorithms.dual_fl import DualAcceleration, next_momentum
from flwr_fco.algorithms.fed_dr import DouglasRachford
from flwr_fco.algorithms.fed_dyn import DynamicRegularization
from flwr_fco.algorithms.proximal_point import ProximalPoint
from flwr_fco.algorithms.scaffnew import ShiftedSteps
from flwr_fco.core.validation import AT_LEAST_ONE, CHANCE, NON_NEGATIVE, POSITIVE
from flwr_fco.server import options
from flwr_fco.server.options import ClientOptions, EveryoneOptions, MemoryOptions, MinimiseOptions, Rate
from flwr_fco.server.strategy import CompositeStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedProx(
    ClientOptions,
    MinimiseOptions,
    CompositeStrategy,
    algorithm=ProximalPoint,
    limit=ShiftedBy(
        "a point near the solution, at a distance of the order of 1/penalty",
        option="penalty",
        values=(3.0, 30.0),
        problem="smooth",
    ),
    source="Li and others 2020",
    sends="w_k - w",
):
    """FedProx: local minimisations around the model, averaged by the server.

    Parameters
    ----------
    penalty : float, default 0.1
        mu of the paper; a larger value gives a smaller bias and smaller steps.
    client : {"composite", "unmodified"}, default "composite"
        ``"unmodified"``: any ClientApp that returns its new model, and adds the proximal term to its own training; it
        gets the penalty as ``proximal-mu`` in its config, as from Flower's ``FedProx``.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks (MLSys 2020),
    algorithm 2.
    BibTeX: li2020federated, in docs/reference/notation.md.

    Examples
    --------
    >>> FedProx(penalty=1.0, fraction_train=0.5)
    FedProx(fraction_train=0.5, penalty=1.0)
    """

    penalty: float = field(default=0.1, metadata=POSITIVE)


@dataclass(repr=False, eq=False, kw_only=True)
class FedDR(
    MinimiseOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=DouglasRachford,
    limit=Exact("the solution"),
    source="Tran-Dinh and others 2021",
    sends="the change of 2 x_i - y_i",
    remembers="y_i, x_i",
):
    """FedDR: randomised Douglas-Rachford splitting; psi acts on the server, and its zeros are exact.

    Parameters
    ----------
    regularizer : Regularizer, default Zero()
        psi.
    step : float, default 1.0
        eta, of the proximal steps of clients and server.
    relaxation : float, default 1.0
        alpha in (0, 2], in theory below 2: at 2 (Peaceman-Rachford) it converges only for some losses.

    References
    ----------
    Tran-Dinh, Pham, Phan, Nguyen: FedDR, randomized Douglas-Rachford splitting algorithms for nonconvex federated
    composite optimization (NeurIPS 2021), algorithm 1.
    BibTeX: trandinh2021feddr, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedDR(regularizer=L1(0.01), fraction_train=0.5).relaxation
    1.0
    """

    step: float = field(default=1.0, metadata=POSITIVE)
    relaxation: float = field(default=1.0, metadata={"range": (lambda rho: 0.0 < rho <= 2.0, "0 < relaxation <= 2")})


@dataclass(repr=False, eq=False, kw_only=True)
class FedDyn(
    MinimiseOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=DynamicRegularization,
    limit=Exact("the solution", problem="smooth"),
    source="Acar and others 2021",
    sends="theta_i - theta",
    remembers="g_i, theta_i",
):
    """FedDyn: every client's loss gets a dynamic linear term, so that its minimiser tends to the pooled one.

    Parameters
    ----------
    penalty : float, default 0.1
        alpha.

    References
    ----------
    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization (ICLR 2021),
    algorithm 1.
    BibTeX: acar2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> FedDyn(penalty=0.2, fraction_train=0.5)
    FedDyn(fraction_train=0.5, penalty=0.2)
    """

    penalty: float = field(default=0.1, metadata=POSITIVE)


@dataclass(repr=False, eq=False, kw_only=True)
class DualFL(
    MinimiseOptions,
    EveryoneOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=DualAcceleration,
    limit=Exact("the solution", problem="smooth"),
    source="[4], algorithm 1",
    sends="theta_j - theta",
    remembers="zeta_j, a_j, theta_j",
):
    """DualFL: accelerated exact local minimisations, O(sqrt(kappa) log 1/eps) rounds to the pooled minimiser.

    The losses must be strongly convex (with `alpha` or without) but need not be smooth: if not, they
    bring a `minimiser` of their own.

    Parameters
    ----------
    nu : float or "auto", optional
        In (0, mu]: at most the modulus of strong convexity of every client's loss, such as the weight of an l2 term on
        all of its parameters. By default `alpha`, or 0.01 if that is 0. The theory does not hold for a larger nu. Only
        the rule ``"gap"`` checks it: clients refuse that rule unless they know that nu < mu. ``"auto"``: mu + alpha,
        where mu is the smallest modulus that the clients report before round 1 (nine tenths of it for the rule
        ``"gap"``).
    rho : float or "auto", optional
        In [0, nu/L], below 1: how quickly the momentum settles. By default nu / (L + alpha) if `smoothness` is given;
        otherwise 0, which needs no constant and gives O(1/n^2). ``"auto"``: nu / (L + alpha) with the largest L that
        the clients report; 0 if a loss does not know its L.
    smoothness : float, optional
        L, of all clients' losses; only for the default of `rho`.
    alpha : float, default 0.0
        Weight of the term alpha/2 ||x||^2, which makes the losses strongly convex; the limit is then the minimiser of
        the regularized problem.
    schedule : {"fixed", "sublinear", "linear"}, default "fixed"
        ``"fixed"``: `rule` and `tolerance` in every round. ``"sublinear"``, ``"linear"``: the rule is the gap, with the
        tolerance of theorem 3.2 or 3.3 in round n, but never below `tolerance`.
    gamma : float, default 0.5
        gamma of theorems 3.2 and 3.3.

    References
    ----------
    Park, Xu: DualFL, a duality-based federated learning algorithm with communication acceleration in the general
    convex regime, algorithm 1.
    BibTeX: park2023dualfl, in docs/reference/notation.md.

    Examples
    --------
    >>> strategy = DualFL(nu=0.01, smoothness=1.0)
    >>> strategy.nu, strategy.rho
    (0.01, 0.01)
    """

    nu: float | Literal["auto"] | None = field(default=None, metadata=POSITIVE)
    rho: float | Literal["auto"] | None = None
    smoothness: float | None = field(default=None, metadata=POSITIVE)
    alpha: float = field(default=0.0, metadata=NON_NEGATIVE)
    schedule: Literal["fixed", "sublinear", "linear"] = "fixed"
    gamma: float = field(default=0.5, metadata=POSITIVE)

    def __check__(self) -> None:
        super().__check__()
        if self.nu is None:
            self.nu = self.alpha or 0.01
        if self.rho is None:
            known = self.smoothness is not None and self.nu != options.AUTO
            self.rho = float(self.nu) / (float(self.smoothness or 0.0) + self.alpha) if known else 0.0
        next_momentum(1.0, options.AUTOMATIC["rho"] if self.rho == options.AUTO else float(self.rho))


@dataclass(repr=False, eq=False, kw_only=True)
class Scaffnew(
    EveryoneOptions,
    MemoryOptions,
    CompositeStrategy,
    algorithm=ShiftedSteps,
    limit=Exact("the solution (with full batches)", problem="smooth"),
    source="Mishchenko and others 2022",
    sends="x_K - x_0",
    remembers="h_i, x_K",
):
    """Scaffnew (ProxSkip): shifted local gradient steps, with a coin that decides when to communicate.

    With p = kappa^(-1/2) it needs O(sqrt(kappa) log 1/eps) rounds.

    Parameters
    ----------
    client_lr : float, callable or "auto", default 0.1
        gamma, at most 1/L in theory; or a function of Flower's round (from 1).
    probability : float, default 0.1
        p, the probability that the clients communicate after a step.
    coin : {"random", "periodic"}, default "random"
        Whether the coin is tossed, or falls after every 1/p-th step.
    batch_size : int or None, default None
        Rows in a minibatch; None: full batches, as in the paper.

    References
    ----------
    Mishchenko, Malinovsky, Stich, Richtarik: ProxSkip, yes! Local gradient steps provably lead to communication
    acceleration! Finally! (ICML 2022), algorithm 2.
    BibTeX: mishchenko2022proxskip, in docs/reference/notation.md.

    Examples
    --------
    >>> Scaffnew(client_lr=0.1, probability=0.2, coin="periodic")
    Scaffnew(probability=0.2, coin='periodic')
    """

    client_lr: Rate = field(default=0.1, metadata=POSITIVE)
    probability: float = field(default=0.1, metadata=CHANCE)
    coin: Literal["random", "periodic"] = "random"
    batch_size: int | None = field(default=None, metadata=AT_LEAST_ONE)
