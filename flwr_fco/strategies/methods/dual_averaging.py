"""Dual averaging: FedDualAvg and FedDA."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flwr_fco.algorithms.contract.choices import SHARE, Average, Density, Last
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.core.validation import MOMENTUM
from flwr_fco.privacy.gaussian_dp import GaussianDP
from flwr_fco.strategies.options import strategy
from flwr_fco.strategies.strategy import StepStrategy
from flwr_fco.strategies.unmodified import check_unmodified


@strategy
class FedDualAvg(StepStrategy):
    """Federated dual averaging, algorithm 3: an exactly sparse (low-rank, feasible) global model.

    Parameters
    ----------
    output : {"last", "shadow"}, Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or the mean of points of all
        rounds or the last ones (an average is neither sparse nor of low rank). ``"shadow"``: the mean over rounds r and
        local steps k of retrieve(mean_m z_{r,k}^m, t_r + client_lr k), which the theory analyses. For research: the
        uplink holds all local steps, so it needs ``work=Steps(K)``.
    server_momentum : float, default 0.0
        Momentum of the server, beta in [0, 1): velocity <- beta velocity + mean(increment), dual += server_lr velocity,
        and likewise for `elapsed`, so that psi keeps its proportion. It makes the steps up to 1 / (1 - beta) times as
        large. An extension; 0 is the paper's method.
    privacy : GaussianDP, optional
        Differential privacy of the clients: :class:`flwr_fco.GaussianDP`. Replies are then not compared with each
        other, and metrics and result hold nothing from the clients but the noisy model.
    client : {"composite", "unmodified"}, default "composite"
        ``"composite"``: the clients run :func:`flwr_fco.client_apps.client_app`. ``"unmodified"``: any FedAvg ClientApp
        that returns its new model (Euclidean geometry only). The server then takes dual += server_lr mean(w_K - w) and
        needs to know how fast the weight of psi grows: from `density` or ``work=Steps(...)``; a constraint has no
        weight and needs neither. With ``Steps(K)``, elapsed += client_lr K, where `client_lr` is the clients' own rate.
    density : float or Density, optional
        Fraction of the regularized entries that are not 0 in the end, for clients of either kind; a number, or
        :class:`flwr_fco.Density` with the scope and the number of rounds. The entries with the largest dual are kept
        unchanged, and the dual of the others fades by half in a round. No theory covers it. A
        :class:`~flwr_fco.regularizers.PerParameter` excludes arrays from it: ``Zero()`` keeps an array dense.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 3.
    BibTeX: yuan2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> strategy = FedDualAvg(fraction_train=0.5, regularizer=L1(0.01), client_lr=0.1, server_lr=1.0)
    >>> strategy.regularizer.strength
    0.01
    """

    algorithm = DualAveraging
    server_momentum: float = field(default=0.0, metadata=MOMENTUM)
    privacy: GaussianDP | None = None
    client: Literal["composite", "unmodified"] = "composite"
    density: float | Density | None = field(default=None, metadata=SHARE)
    #: Whether psi acts in the local steps.
    client_prox: bool = field(init=False, default=True)
    output: Literal["last", "shadow"] | Last | Average = "last"  # type: ignore[assignment]

    def _check(self) -> None:
        super()._check()
        check_unmodified(self)


@strategy
class FedDualAvgOSP(FedDualAvg):
    """Federated dual averaging, only server proximal, algorithm 5: psi acts in retrieval alone.

    Erratum: psi never acts on the dual, which is therefore FedAvg's iterate while the weight of psi grows, and the
    output tends to exactly 0. Only an early window of rounds is useful.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 5.
    BibTeX: yuan2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> FedDualAvgOSP().client_prox
    False
    """

    client_prox: bool = field(init=False, default=False)


@strategy
class FedDA(FedDualAvg):
    """Federated dual averaging as run by Liang, Peng and Zhang: :class:`FedDualAvg` under their name.

    Without tracking, unequal clients and several local steps leave a bias of order client_lr times the local work;
    :class:`FedDAGT` removes it. The paper uses the mirror map ``PNorm(p)`` and ``"uniform"`` weights; psi is
    FedDualAvg's.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 without tracking and
    with U = 11'/M.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> FedDA(mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10, batch_size=10)).work.steps
    10
    """
