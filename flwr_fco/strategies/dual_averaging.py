"""Dual averaging: FedDualAvg, FedDA, and the methods with quadratic lower models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.algorithms.contract.choices import Average, Last
from flwr_fco.algorithms.contract.limits import Biased, ShiftedBy, ToZero, Vanishing
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.fast_dual_averaging import ConstrainedFastDualAveraging, FastDualAveraging, ModelStage
from flwr_fco.core.validation import POSITIVE, checked_stages
from flwr_fco.errors import ConfigurationError
from flwr_fco.server import options
from flwr_fco.server.options import GraphOptions, MomentumOptions, PrivacyOptions, StepOptions, UnmodifiedOptions
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.topology import Mixing


@dataclass(repr=False, eq=False, kw_only=True)
class FedDualAvg(
    PrivacyOptions,
    MomentumOptions,
    UnmodifiedOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=DualAveraging,
    limit=Biased(),
    source="[1], algorithm 3",
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
class FedDualAvgOSP(FedDualAvg, limit=ToZero(), source="[1], algorithm 5"):
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
class FedDA(FedDualAvg, limit=Biased("as `FedDualAvg`, which it is"), source="[2], algorithm 1 without tracking"):
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


@dataclass(repr=False, eq=False, kw_only=True)
class FastFedDA(
    GraphOptions,
    options.WorkOptions,
    CompositeStrategy,
    algorithm=FastDualAveraging,
    limit=ShiftedBy(
        "a point near the solution, at a distance of the order of the option `convexity`",
        option="convexity",
        values=(0.1, 0.01),
        rounds=150,
        steps=(1, 3),
    ),
    source="Bao and others 2022; as run by [2]",
    sends="sums of gradients and points",
    traffic="3 / 2",
):
    """Fast-FedDA: every local point enters the model.

    Parameters
    ----------
    variant : {"bao", "liang"}, default "bao"
        Algorithm of Bao and others, or of Liang and others; see the module docstring.
    convexity : float, default 0.1
        mu. Bao's LASSO experiments use 0.1, EMNIST 1e-3, Liang's linear regression 8.
    anchor_weight : float or "auto", default 10.0
        gamma, Bao only: at least the losses' curvature. Bao's experiments use 550 (LASSO) and 25 (EMNIST). ``"auto"``:
        the smoothness L that the clients report before round 1.
    last_point : bool, default True
        Bao only: whether a client's last local point enters the model, as in the authors' code. No gradient is taken
        there, so a round adds K + 1 points for K gradients, and the limit is not the optimum but the minimiser of
        F + psi - mu/(4K) ||w||^2. False leaves that point out: the limit is the optimum.
    mixing : Topology, array of shape (M, M), str or None, default None
        Liang only: the graph; with None the server takes the mean.
    weighting : {"examples", "uniform"}, optional
        Client weights p_m: numbers of examples (the default without a graph) or equal (the default and only choice on a
        graph).

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).
    BibTeX: bao2022fast, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> FastFedDA(convexity=0.1, anchor_weight=550.0, work=Steps(10)).variant
    'bao'
    """

    variant: Literal["bao", "liang"] = "bao"
    convexity: float = field(default=0.1, metadata=POSITIVE)
    anchor_weight: float | Literal["auto"] = field(default=10.0, metadata=POSITIVE)
    last_point: bool = True
    mixing: Mixing | None = None  # type: ignore[assignment]
    weighting: Literal["examples", "uniform"] | None = None  # type: ignore[assignment]

    def __check__(self) -> None:
        if self.weighting is None:
            self.weighting = "examples" if self.mixing is None else "uniform"
        super().__check__()
        if self.variant == "bao" and self.mixing is not None:
            raise ConfigurationError('variant="bao" has no form on a graph; take variant="liang", or mixing=None')
        if self.variant == "liang" and self.work.steps is None:
            raise ConfigurationError(
                'variant="liang" counts its steps, so all clients must take the same number: work=Steps(...)'
            )


@dataclass(repr=False, eq=False, kw_only=True)
class CFedDA(FastFedDA, algorithm=ConstrainedFastDualAveraging, limit=Vanishing(), traffic="3 / 1; Liang's 3 / 2"):
    """C-FedDA: only the server's points enter the model, and an l1 ball may bound them.

    Bao's LASSO experiments use anchor_weight 600.

    Parameters
    ----------
    smoothness : float or "auto", default 10.0
        L, Liang only. ``"auto"``: the value that the clients report before round 1.
    radius : float, optional
        Radius of the l1 ball around the start point; no ball by default, as in Bao's experiments.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).
    BibTeX: bao2022fast, in docs/reference/notation.md.

    Examples
    --------
    >>> CFedDA(radius=30.0, anchor_weight=600.0).radius
    30.0
    """

    #: No local point enters the model.
    last_point: bool = field(init=False, default=True)
    smoothness: float | Literal["auto"] = field(default=10.0, metadata=POSITIVE)
    radius: float | None = field(default=None, metadata=POSITIVE)


@dataclass(repr=False, eq=False, kw_only=True)
class MCFedDA(FastFedDA, algorithm=ConstrainedFastDualAveraging, limit=Vanishing(), traffic="3 / 1; Liang's 3 / 2"):
    """MC-FedDA: C-FedDA in stages, each around the previous stage's point, with a smaller ball and a weaker psi.

    Parameters
    ----------
    stages : sequence of ModelStage, optional
        The schedule; the last stage has no end. Bao's LASSO experiments: rounds 250, 250, 1500, radius 1e4 / 2^s,
        strengths 1/8, 1/16, 1/32 for s = 1, 2, 3. By default one stage without a ball, which is C-FedDA.
    smoothness : float or "auto", default 10.0
        L, Liang only. ``"auto"``: the value that the clients report before round 1.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).
    BibTeX: bao2022fast, in docs/reference/notation.md.

    Examples
    --------
    >>> len(MCFedDA(stages=[ModelStage(250, 5e3, 1 / 8), ModelStage(250, 2.5e3, 1 / 16)]).stages)
    2
    """

    #: No local point enters the model.
    last_point: bool = field(init=False, default=True)
    smoothness: float | Literal["auto"] = field(default=10.0, metadata=POSITIVE)
    stages: Sequence[ModelStage] | None = None

    def __check__(self) -> None:
        self.stages = checked_stages(self.stages)
        super().__check__()
