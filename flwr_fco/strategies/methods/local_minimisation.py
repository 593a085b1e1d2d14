"""Methods whose clients minimise: DualFL and FedDR."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flwr_fco.algorithms.contract.choices import Everyone, Ledger
from flwr_fco.algorithms.dual_fl import DualAcceleration, next_momentum
from flwr_fco.algorithms.fed_dr import DouglasRachford
from flwr_fco.core.validation import NON_NEGATIVE, POSITIVE
from flwr_fco.strategies.options import AUTO, AUTOMATIC, strategy
from flwr_fco.strategies.strategy import MinimiseStrategy


@strategy
class FedDR(MinimiseStrategy):
    """FedDR: randomised Douglas-Rachford splitting; psi acts on the server, and its zeros are exact.

    Parameters
    ----------
    regularizer : Regularizer, default Zero()
        psi.
    step : float, default 1.0
        eta, of the proximal steps of clients and server.
    relaxation : float, default 1.0
        alpha in (0, 2], in theory below 2: at 2 (Peaceman-Rachford) it converges only for some losses.
    client_state : Ledger, default Ledger()
        Where the server keeps its copy of the clients' memories, from which lost ones are restored. A client's weight
        is that of its first reply that counts: a later reply with another number of examples is left out.

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

    algorithm = DouglasRachford
    client_state: Ledger = field(default=Ledger())
    step: float = field(default=1.0, metadata=POSITIVE)
    relaxation: float = field(default=1.0, metadata={"range": (lambda rho: 0.0 < rho <= 2.0, "0 < relaxation <= 2")})


@strategy
class DualFL(MinimiseStrategy):
    """DualFL: accelerated exact local minimisations, O(sqrt(kappa) log 1/eps) rounds to the pooled minimiser.

    The losses must be strongly convex (with `alpha` or without) but need not be smooth: if not, they bring a
    `minimiser` of their own.

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
    client_state : Ledger, default Ledger()
        Where the server keeps its copy of the clients' memories, from which lost ones are restored. A client's weight
        is that of its first reply that counts: a later reply with another number of examples is left out.

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

    algorithm = DualAcceleration
    client_state: Ledger = field(default=Ledger())
    participation: Everyone = field(default=Everyone())
    nu: float | Literal["auto"] | None = field(default=None, metadata=POSITIVE)
    rho: float | Literal["auto"] | None = None
    smoothness: float | None = field(default=None, metadata=POSITIVE)
    alpha: float = field(default=0.0, metadata=NON_NEGATIVE)
    schedule: Literal["fixed", "sublinear", "linear"] = "fixed"
    gamma: float = field(default=0.5, metadata=POSITIVE)

    def _check(self) -> None:
        super()._check()
        if self.nu is None:
            self.nu = self.alpha or 0.01
        if self.rho is None:
            known = self.smoothness is not None and self.nu != AUTO
            self.rho = float(self.nu) / (float(self.smoothness or 0.0) + self.alpha) if known else 0.0
        next_momentum(1.0, AUTOMATIC["rho"] if self.rho == AUTO else float(self.rho))
