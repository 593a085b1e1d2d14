"""The strategies: each names its method, and is a dataclass of the options that it adds.

Dual averaging and tracking (FedDualAvg, FedDA, FedDAGT, SCAFFOLD, the restricted forms), all of these on graphs, primal
averaging and saddle points (FedMid, FedAvg with subgradients, local SGD, FeDualEx, FedMiP), methods whose clients
minimise (FedDR, DualFL), and proximal Newton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco import algorithms
from flwr_fco.algorithms.contract.choices import SHARE, Average, Density, Everyone, Last, Ledger, Reference, Strengths
from flwr_fco.algorithms.dual_fl import next_momentum
from flwr_fco.algorithms.newton import NewtonPath, QuasiNewton
from flwr_fco.algorithms.restricted_gradient_tracking import Stage
from flwr_fco.core.validation import MOMENTUM, NON_NEGATIVE, POSITIVE
from flwr_fco.errors import ConfigurationError
from flwr_fco.privacy import GaussianDP
from flwr_fco.strategies.options import AUTO, AUTOMATIC, strategy
from flwr_fco.strategies.strategy import CompositeStrategy, MinimiseStrategy, StepStrategy, run_of
from flwr_fco.topology import Mixing

__all__ = ["FedDA", "FedDAGT", "FedDualAvg", "FedDualAvgOSP", "MultistepReFedDAGT", "ReFedDAGT", "Scaffold"]
__all__ += ["DFedDA", "DFedDAGT", "DReFedDAGT", "FeDualEx", "FedAvgSubgradient", "FedMiP", "FedMid", "FedMidOSP"]
__all__ += ["DualFL", "FedDR", "FedNewton", "LocalSGD", "proved_zero"]


@strategy
class FedDualAvg(StepStrategy):
    """Federated dual averaging, algorithm 3: an exactly sparse (low-rank, feasible) global model.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

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
        unchanged, and the dual of the others fades by half in a round; clients take plain steps. No theory covers it. A
        :class:`~flwr_fco.regularizers.PerParameter` excludes arrays from it: ``Zero()`` keeps an array dense. An
        array that no client changes in the first round stays whole until one does.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 3.
    BibTeX: yuan2021federated, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> strategy = FedDualAvg(fraction_train=0.5, regularizer=L1(0.01), client_lr=0.1, server_lr=1.0)
    >>> strategy.regularizer.strength
    0.01
    """

    algorithm = algorithms.DualAveraging
    server_momentum: float = field(default=0.0, metadata=MOMENTUM)
    privacy: GaussianDP | None = None
    client: Literal["composite", "unmodified"] = "composite"
    density: float | Density | None = field(default=None, metadata=SHARE)
    #: Whether psi acts in the local steps.
    client_prox: bool = field(init=False, default=True)
    output: Literal["last", "shadow"] | Last | Average = "last"  # type: ignore[assignment]


@strategy
class FedDualAvgOSP(FedDualAvg):
    """Federated dual averaging, only server proximal, algorithm 5: psi acts in retrieval alone.

    Erratum: psi never acts on the dual, which is therefore FedAvg's iterate while the weight of psi grows, and the
    output tends to exactly 0. Only an early window of rounds is useful.

    Its options are those of :class:`FedDualAvg`, which it is with ``client="unmodified"``: these begin at the model.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 5.
    BibTeX: yuan2021federated, in docs/reference/papers.bib.

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

    Its options are those of :class:`FedDualAvg`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 without tracking and
    with U = 11'/M.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> FedDA(mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10, batch_size=10)).work.steps
    10
    """


@strategy
class FedDAGT(StepStrategy):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, for one more vector down.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

    Parameters
    ----------
    client_state : Ledger, default Ledger()
        Where the server keeps its copy of the clients' memories, from which lost ones are restored. A client's weight
        is that of its first reply that counts: a later reply with another number of examples is left out.
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every client for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers start at 0, without a round 0.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 with U = 11'/M, and
    equation (4) with its erratum for partial participation.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = FedDAGT(mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10, batch_size=10))
    >>> strategy.tracker_start
    'gradient'
    """

    algorithm = algorithms.GradientTracking
    theory = "1/(L K)"
    client_state: Ledger = field(default=Ledger())
    tracker_start: Literal["gradient", "zero"] = "gradient"


@strategy
class Scaffold(FedDAGT):
    """SCAFFOLD, option 2, with control variates that start at 0; psi and other mirror maps are extensions.

    Its options are those of :class:`FedDAGT`.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), algorithm 1.
    BibTeX: karimireddy2020scaffold, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> Scaffold(client_lr=0.1, work=Steps(5)).tracker_start
    'zero'
    """

    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")


@strategy
class ReFedDAGT(StepStrategy):
    """Restricted FedDA-GT, algorithm 2: around the start point, within a ball of the map's norm.

    The trackers start at 0. The mirror map must be ``PNorm`` or ``Euclidean``. The paper's output is the s largest
    entries of the mean over the rounds of their primals: of ``output=Average()``, which keeps all.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; no limit by default.
    client_state : Ledger, default Ledger()
        Where the server keeps its copy of the clients' memories, from which lost ones are restored. A client's weight
        is that of its first reply that counts: a later reply with another number of examples is left out.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> ReFedDAGT(mirror_map=PNorm(12.0), radius_squared=25_000.0).radius_squared
    25000.0
    """

    algorithm = algorithms.RestrictedGradientTracking
    theory = "1/(L K)"
    client_state: Ledger = field(default=Ledger())
    radius_squared: float | None = field(default=None, metadata=POSITIVE)


@strategy
class MultistepReFedDAGT(ReFedDAGT):
    """Multistep ReFedDA-GT, algorithm 3: stages of ReFedDA-GT, each from the sparsified mean of the previous one.

    The trackers start at 0 in every stage. The mirror map must be ``PNorm`` or ``Euclidean``. A rate that is a function
    gets the round of the whole run; a stage's own rate takes precedence.

    Its other options are those of :class:`ReFedDAGT`.

    Parameters
    ----------
    stages : sequence of Stage, default ()
        The schedule. The settings of the last stage stay in force after it. By default one stage without an end.
    radius_squared : float, optional
        Q_0, the first radius; without it and without radii in the stages there is no ball.
    reference : Reference, default Reference()
        Which points of a stage the next one begins from, and how many of their entries it keeps:
        :class:`flwr_fco.strategies.Reference`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 3.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> stages = [Stage(300), Stage(300), Stage(300, local_steps=20)]
    >>> more = {"mirror_map": PNorm(12.0), "radius_squared": 25_000.0, "reference": Reference(sparsity=16)}
    >>> strategy = MultistepReFedDAGT(stages=stages, **more)
    >>> len(strategy.stages)
    3
    """

    algorithm = algorithms.MultistepGradientTracking
    stages: Sequence[Stage] = ()
    reference: Reference = field(default=Reference())


@strategy
class DFedDA(StepStrategy):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    On a graph it is biased even with one local step, the more the nodes' gradients differ; :class:`DFedDAGT` is not.
    All nodes have the same weight, however many examples they have.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"complete"``, ``"ring"``, ``"star"``) for the
        number of nodes before round 1. Row m belongs to the m-th node in the order of partition ids.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> from flwr_fco.topology import chain
    >>> DFedDA(mixing=chain(16), mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10)).mixing.num_nodes
    16
    """

    algorithm = algorithms.DecentralizedDualAveraging
    theory = "1/(tau L K)"
    mixing: Mixing = field(default="complete", metadata={"example": '"ring" or a topology.from_graph(graph)'})
    weighting: Literal["uniform"] = "uniform"


@strategy
class DFedDAGT(DFedDA):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

    All nodes have the same weight, however many examples they have.

    Its other options are those of :class:`DFedDA`.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every client for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers start at 0, without a round 0.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> DFedDAGT(mixing="ring", tracker_start="zero").weighting
    'uniform'
    """

    algorithm = algorithms.DecentralizedGradientTracking
    theory = "1/(tau^2 L K)"
    tracker_start: Literal["gradient", "zero"] = "gradient"


@strategy
class DReFedDAGT(DFedDAGT):
    """ReFedDA-GT on a graph: :class:`DFedDAGT` around a reference point, within a ball of the map's norm.

    With `stages` it is Multistep ReFedDA-GT on a graph, as in the authors' public code: a new stage begins at the
    sparsified mean over all nodes, which the relay knows and a node would not. The trackers start at 0 in every stage.
    The mirror map must be ``PNorm`` or ``Euclidean``.

    Its other options are those of :class:`DFedDAGT`.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the reference, at first the start point; no limit by default.
    stages : sequence of Stage, default ()
        As in :class:`MultistepReFedDAGT`; by default one stage without an end.
    reference : Reference, default Reference()
        As in :class:`MultistepReFedDAGT`. The authors' code has ``Reference(sparsity=s, window=100, newest=True)``.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 2 and 3 with general
    U.
    BibTeX: liang2023gradient, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = DReFedDAGT(mixing="ring", mirror_map=PNorm(12.0), radius_squared=25_000.0, stages=[Stage(300)] * 3)
    >>> len(strategy.stages)
    3
    """

    algorithm = algorithms.DecentralizedRestricted
    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")
    radius_squared: float | None = field(default=None, metadata=POSITIVE)
    stages: Sequence[Stage] = ()
    reference: Reference = field(default=Reference())


@strategy
class LocalSGD(StepStrategy):
    """FedAvg (local SGD): gradient steps on the clients, averaged by the server.

    Its options are those of :class:`StepStrategy` and :class:`Options`.

    References
    ----------
    McMahan, Moore, Ramage, Hampson, y Arcas: Communication-efficient learning of deep networks from decentralized data
    (AISTATS 2017), algorithm 1.
    BibTeX: mcmahan2017communication, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Epochs
    >>> LocalSGD(client_lr=0.1, work=Epochs(5))
    LocalSGD(work=Epochs(5, batch_size=32))
    """

    algorithm = algorithms.GradientSteps


@strategy
class FedAvgSubgradient(StepStrategy):
    """FedAvg on F_m + psi by subgradients: w <- w - client_lr (g + s), s in the subdifferential of psi.

    The model is dense: an average of points that are almost zero is almost zero, never exactly zero.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

    Parameters
    ----------
    mirror_map : MirrorMap, default Euclidean()
        h; only the Euclidean map is possible.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), section 5, 'FedAvg'.
    BibTeX: yuan2021federated, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedAvgSubgradient(regularizer=L1(0.01), client_lr=0.1).regularizer.strength
    0.01
    """

    algorithm: ClassVar[type[algorithms.Algorithm] | None] = algorithms.SubgradientSteps


@strategy
class FedMid(StepStrategy):
    """Federated mirror descent, algorithm 2: local proximal steps, primal averaging, a server proximal step.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

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
    BibTeX: yuan2021federated, in docs/reference/papers.bib.

    Examples
    --------
    >>> FedMid(0.5, server_prox=False)
    FedMid(fraction_train=0.5, server_prox=False)
    """

    algorithm = algorithms.MirrorDescent
    client_prox: bool = True
    server_prox: bool = True


@strategy
class FedMidOSP(FedMid):
    """Federated mirror descent, only server proximal, algorithm 4: psi acts only in the server's step.

    Its other options are those of :class:`FedMid`.

    Parameters
    ----------
    server_prox : bool, default True
        Whether psi acts at all.

    References
    ----------
    Yuan, Zaheer, Reddi: Federated Composite Optimization (ICML 2021), algorithm 4.
    BibTeX: yuan2021federated, in docs/reference/papers.bib.

    Examples
    --------
    >>> FedMidOSP().client_prox
    False
    """

    client_prox: bool = field(init=False, default=False)


@strategy
class FeDualEx(StepStrategy):
    """Federated dual extrapolation, algorithm 1: composite saddle points with exact sparsity, low rank or feasibility.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

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
    BibTeX: bai2024local, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.regularizers import L1, PerParameter
    >>> psi = PerParameter({"x": L1(0.1, bound=0.05), "y": L1(0.1, bound=0.05)})
    >>> FeDualEx(regularizer=psi, client_lr=0.1, server_lr=0.1, work=Steps(10, batch_size=1)).output
    'last'
    """

    algorithm = algorithms.DualExtrapolation
    theory = "1/(sqrt(5) L)"
    privacy: GaussianDP | None = None
    output: Literal["last", "ergodic"] | Last | Average = "last"  # type: ignore[assignment]


@strategy
class FedMiP(StepStrategy):
    """Federated mirror prox, algorithm 2 of appendix H: saddle points by primal averaging.

    Its other options are those of :class:`StepStrategy` and :class:`Options`.

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
    BibTeX: bai2024local, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedMiP(regularizer=L1(0.01), server_prox=False).server_prox
    False
    """

    algorithm = algorithms.MirrorProx
    theory = "1/(sqrt(5) L)"
    server_prox: bool = True
    output: Literal["last", "ergodic"] | Last | Average = "last"  # type: ignore[assignment]


@strategy
class FedDR(MinimiseStrategy):
    """FedDR: randomised Douglas-Rachford splitting; psi acts on the server, and its zeros are exact.

    Its other options are those of :class:`MinimiseStrategy` and :class:`Options`.

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
    BibTeX: trandinh2021feddr, in docs/reference/papers.bib.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> FedDR(regularizer=L1(0.01), fraction_train=0.5).relaxation
    1.0
    """

    algorithm = algorithms.DouglasRachford
    client_state: Ledger = field(default=Ledger())
    step: float = field(default=1.0, metadata=POSITIVE)
    relaxation: float = field(default=1.0, metadata={"range": (lambda rho: 0.0 < rho <= 2.0, "0 < relaxation <= 2")})


@strategy
class DualFL(MinimiseStrategy):
    """DualFL: accelerated exact local minimisations, O(sqrt(kappa) log 1/eps) rounds to the pooled minimiser.

    The losses must be strongly convex (with `alpha` or without) but need not be smooth: if not, they bring a
    `minimiser` of their own.

    Its other options are those of :class:`MinimiseStrategy` and :class:`Options`.

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
        L, of all clients' losses; only for `rho`, in the place of what they report.
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
    BibTeX: park2023dualfl, in docs/reference/papers.bib.

    Examples
    --------
    >>> strategy = DualFL(nu=0.01, smoothness=1.0)
    >>> strategy.nu, strategy.rho
    (0.01, 0.01)
    """

    algorithm = algorithms.DualAcceleration
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
            steepest = (self.smoothness or math.inf) + self.alpha
            self.rho = float(self.nu) / steepest if self.nu != AUTO else AUTO if self.smoothness else 0.0
        next_momentum(1.0, AUTOMATIC["rho"] if self.rho == AUTO else float(self.rho))


@strategy
class FedNewton(CompositeStrategy):
    """Federated proximal Newton: the pooled solution to a certified duality gap, in about a dozen rounds.

    Minimises sum_m p_m F_m(w) + psi(w) for losses with a second derivative and psi an l1 norm, elastic net, l2 term,
    box, group lasso or sparse group lasso, none, or these by ``PerParameter``. Each round the clients evaluate loss,
    gradient and a block of the Hessian at the server's point; the server sums them, and takes the step of the method
    on the pooled data. All clients take part in every round, and remember nothing.

    Each round's metrics hold ``objective`` and ``duality-gap``, a bound on how far the model is above the optimum that
    holds for the data of all clients; the run ends when it is at most `tolerance`. Without a known conjugate, and where
    psi leaves coefficients alone, such as a confounder's (an intercept may be left alone), there is ``residual``
    instead: the norm of a proximal gradient step, which is 0 at the solution but bounds nothing.

    :func:`~flwr_fco.strategies.proved_zero` says which coefficients every optimum of the pooled problem has at zero.

    What a client sends are derivatives and, in the first round, the means of its columns and the largest of their mean
    squares, at the precision of its data: sums over its rows, which single rows can be found from if there are few.

    Its other options are those of :class:`Options`.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap, or residual, at which the run ends.
    hessian : {"block", "none"}, default "block"
        ``"none"``: clients send no second derivatives. Proximal quasi-Newton steps take the place of Newton steps, with
        the same certificate, in some tens to hundreds of rounds. Blocks of 1,000 classes take minutes and gigabytes.
    strengths : Strengths, optional
        Solve for a path of strengths of the regularizer, and its cross-validation, in the rounds of the hardest of
        them; the strength of `regularizer` is ignored. :func:`flwr_fco.fit_path` returns all models of it.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014). Massias,
    Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018). Ndiaye, Fercoq, Gramfort,
    Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017).
    BibTeX: lee2014proximal, massias2018celer, ndiaye2017gap, in docs/reference/papers.bib.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, LeastSquares, client_app, simulate
    >>> features = np.random.default_rng(0).standard_normal((2, 40, 5))
    >>> load = lambda context: LeastSquares(features[context.node_config["partition-id"]], np.arange(40.0))
    >>> start = {"coefficients": np.zeros(5), "intercept": np.zeros(1)}
    >>> strategy = FedNewton(regularizer=L1(0.5), fraction_evaluate=0.0)
    >>> result = simulate(strategy, client_app(load), num_nodes=2, num_rounds=20, initial_arrays=start, progress=False)
    >>> len(result.train_metrics_clientapp) <= 5, result.rows()[-1]["train/duality-gap"] <= 1e-8
    (True, True)
    """

    algorithm = algorithms.ProximalNewton
    participation: Everyone = field(default=Everyone())
    tolerance: float = field(default=1e-8, metadata=POSITIVE)
    hessian: Literal["block", "none"] = "block"
    strengths: Strengths | None = None

    def _kind(self) -> type[algorithms.Algorithm]:
        kind = super()._kind()
        own = NewtonPath if self.strengths is not None else QuasiNewton if self.hessian == "none" else kind
        return own if kind is algorithms.ProximalNewton else kind

    def _check(self) -> None:
        super()._check()
        wrong = ""
        path = self.strengths is not None
        if path and not hasattr(self.regularizer, "strength"):
            wrong = f"regularizer={self.regularizer!r} has no strength to be chosen; take L1(1.0), or no strengths"
        elif path and (self.hessian == "none" or self.certificate_every is not None):
            given = f"hessian={self.hessian!r}, certificate_every={self.certificate_every!r}"
            wrong = f"strengths={self.strengths!r} with {given}: a path needs blocks, and has gaps; leave both out"
        elif self.output != "last":
            wrong = f"output={self.output!r}: FedNewton certifies its last point, which is sparse by psi; leave it out"
        elif self.wire.dtype == "float32":
            wrong = f"wire={self.wire!r}: the duality gap of FedNewton would be that of rounded sums; leave it out"
        if wrong:
            raise ConfigurationError(wrong)


def proved_zero(strategy: FedNewton) -> dict[str, NDArray[np.bool_]]:
    """Return which coefficients are zero in every optimum of the pooled problem, by name of array: gap safe rules.

    A coefficient is, if at the dual point of some round, whose gap is G,
    ``|slope_j| + sqrt(2 c G) s_j < threshold_j``: c is the losses' largest second derivative in a prediction (twice the
    scale of squares, 1/4 logistic, 1/2 multinomial, 1 Huber), s_j bounds the root mean square of column j, about its
    mean if there is an intercept that psi leaves alone, about its mean at each client if these have intercepts of their
    own, and threshold_j is psi's l1 strength. A duality gap of 0 would prove all but those on the boundary. It holds as
    far as the clients' sums are right, as the gap does.

    Nothing is proved without a duality gap, for a psi that is no sum over coordinates, for counts and survival times,
    and of a path of strengths.

    Parameters
    ----------
    strategy : FedNewton
        After a run, or within one.

    Returns
    -------
    dict of str to ndarray of bool
        A mask for each array; empty before the first round.

    References
    ----------
    Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017).

    Examples
    --------
    >>> proved_zero(FedNewton())
    {}
    """
    if strategy.state is None:
        return {}
    layout = run_of(strategy).problem.layout
    proved = getattr(strategy.state, "proved", np.zeros(layout.size))
    return {name: np.asarray(own > 0.0) for name, own in layout.views(proved).items()}
