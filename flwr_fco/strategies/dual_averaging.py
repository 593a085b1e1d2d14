"""Dual averaging: FedDualAvg and FedDA."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.server.options import MomentumOptions, PrivacyOptions, StepOptions, UnmodifiedOptions
from flwr_fco.server.strategy import CompositeStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvg(
    PrivacyOptions,
    MomentumOptions,
    UnmodifiedOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=DualAveraging,
):
    """Federated dual averaging, algorithm 3: an exactly sparse (low-rank, feasible) global model.

    Parameters
    ----------
    output : {"last", "shadow"}, Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or the mean of points of all
        rounds or the last ones (an average is neither sparse nor of low rank). ``"shadow"``: the mean over rounds r and
        local steps k of retrieve(mean_m z_{r,k}^m, t_r + client_lr k), which the theory analyses. For research: the
        uplink holds all local steps, so it needs ``work=Steps(K)``.

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

    #: Whether psi acts in the local steps.
    client_prox: bool = field(init=False, default=True)
    output: Literal["last", "shadow"] | Last | Average = "last"  # type: ignore[assignment]


@dataclass(repr=False, eq=False, kw_only=True)
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


@dataclass(repr=False, eq=False, kw_only=True)
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
