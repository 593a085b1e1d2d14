"""Averaging of primal points, and saddle points: FedMid, FedAvg with subgradients, local SGD, FeDualEx, FedMiP."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.algorithms.mirror_descent import MirrorDescent
from flwr_fco.algorithms.primal_averaging import GradientSteps, SubgradientSteps
from flwr_fco.algorithms.saddle_points import DualExtrapolation, MirrorProx
from flwr_fco.privacy.gaussian_dp import GaussianDP
from flwr_fco.strategies.options import strategy
from flwr_fco.strategies.strategy import StepStrategy


@strategy
class LocalSGD(StepStrategy):
    """FedAvg (local SGD): gradient steps on the clients, averaged by the server.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, y Arcas: Communication-efficient learning of deep networks from decentralized data
    (AISTATS 2017), algorithm 1.
    BibTeX: mcmahan2017communication, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Epochs
    >>> LocalSGD(client_lr=0.1, work=Epochs(5))
    LocalSGD(work=Epochs(5, batch_size=32))
    """

    algorithm = GradientSteps


@strategy
class FedAvgSubgradient(StepStrategy):
    """FedAvg on F_m + psi by subgradients: w <- w - client_lr (g + s), s in the subdifferential of psi.

    The model is dense: an average of points that are almost zero is almost zero, never exactly zero.

    Parameters
    ----------
    mirror_map : MirrorMap, default Euclidean()
        h; only the Euclidean map is possible.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.
    BibTeX: yuan2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedAvgSubgradient(regularizer=L1(0.01), client_lr=0.1).regularizer.strength
    0.01
    """

    algorithm: ClassVar[type[Algorithm] | None] = SubgradientSteps


@strategy
class FedMid(StepStrategy):
    """Federated mirror descent, algorithm 2: local proximal steps, primal averaging, a server proximal step.

    Parameters
    ----------
    client_prox : bool, default True
        Whether psi acts in the local steps.
    server_prox : bool, default True
        Whether psi acts in the server's step. With both, as printed in the paper, psi counts twice: the limit is the
        solution for 2 * strength.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 2.
    BibTeX: yuan2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> FedMid(0.5, server_prox=False)
    FedMid(fraction_train=0.5, server_prox=False)
    """

    algorithm = MirrorDescent
    client_prox: bool = True
    server_prox: bool = True


@strategy
class FedMidOSP(FedMid):
    """Federated mirror descent, only server proximal, algorithm 4: psi acts only in the server's step.

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi acts at all.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 4.
    BibTeX: yuan2021federated, in docs/reference/notation.md.

    Examples
    --------
    >>> FedMidOSP().client_prox
    False
    """

    client_prox: bool = field(init=False, default=False)


@strategy
class FeDualEx(StepStrategy):
    """Federated dual extrapolation, algorithm 1: composite saddle points with exact sparsity, low rank or feasibility.

    Parameters
    ----------
    output : {"last", "ergodic"}, Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or the mean of points of all rounds or the last
        ones (an average is neither sparse nor of low rank). ``"ergodic"``: the mean over rounds r and
        local steps k of retrieve(mean_m omega_{r,k+1/2}^m, t_r + client_lr (k + 1)), which the theorems are about. For
        research: clients also send the duals of all half steps, so the uplink is K + 1 times as large and the server
        computes K more proximal maps a round. It needs ``work=Steps(K)``.
    privacy : GaussianDP, optional
        Differential privacy of the clients: :class:`flwr_fco.GaussianDP`. Replies are then not compared with each
        other, and metrics and result hold nothing from the clients but the noisy model.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 1.
    BibTeX: bai2024local, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.regularizers import L1, PerParameter
    >>> psi = PerParameter({"x": L1(0.1, bound=0.05), "y": L1(0.1, bound=0.05)})
    >>> FeDualEx(regularizer=psi, client_lr=0.1, server_lr=0.1, work=Steps(10, batch_size=1)).output
    'last'
    """

    algorithm = DualExtrapolation
    privacy: GaussianDP | None = None
    output: Literal["last", "ergodic"] | Last | Average = "last"  # type: ignore[assignment]


@strategy
class FedMiP(StepStrategy):
    """Federated mirror prox, algorithm 2 of appendix H: saddle points by primal averaging.

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi also acts in the server's step. If so, as printed in the paper, psi counts twice: the limit is near
        the solution for 2 * strength.
    output : {"last", "ergodic"}, Last or Average, default "last"
        The primal point that evaluation and the user see: the last one, or the mean of points of all
        rounds or the last ones. ``"ergodic"``: the mean over rounds, local steps and clients of the half steps. For
        research: the uplink is K + 1 times as large, and ``work=Steps(K)`` is required.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 2 (appendix H).
    BibTeX: bai2024local, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedMiP(regularizer=L1(0.01), server_prox=False).server_prox
    False
    """

    algorithm = MirrorProx
    server_prox: bool = True
    output: Literal["last", "ergodic"] | Last | Average = "last"  # type: ignore[assignment]
