"""Gradient tracking: FedDA-GT, its restricted and multistep forms, SCAFFOLD, and all of them on graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from flwr_fco.algorithms import decentralized, restricted_gradient_tracking
from flwr_fco.algorithms.contract.choices import Reference
from flwr_fco.algorithms.gradient_tracking import GradientTracking
from flwr_fco.algorithms.restricted_gradient_tracking import MultistepGradientTracking, Stage
from flwr_fco.core.validation import checked_stages
from flwr_fco.server.options import GraphOptions, MemoryOptions, StepOptions, TrackerOptions
from flwr_fco.server.strategy import CompositeStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedDAGT(
    TrackerOptions,
    MemoryOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=GradientTracking,
):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, at FedAvg's traffic.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1 with U = 11'/M, and
    equation (4) with its erratum for partial participation.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = FedDAGT(mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10, batch_size=10))
    >>> strategy.tracker_start
    'gradient'
    """


@dataclass(repr=False, eq=False, kw_only=True)
class Scaffold(
    FedDAGT,
):
    """SCAFFOLD, option 2, with control variates that start at 0; psi and other mirror maps are extensions.

    References
    ----------
    Karimireddy and others: SCAFFOLD (ICML 2020), algorithm 1.
    BibTeX: karimireddy2020scaffold, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> Scaffold(client_lr=0.1, work=Steps(5)).tracker_start
    'zero'
    """

    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")


@dataclass(repr=False, eq=False, kw_only=True)
class ReFedDAGT(
    MemoryOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=restricted_gradient_tracking.RestrictedGradientTracking,
):
    """Restricted FedDA-GT, algorithm 2: around the start point, within a ball of the map's norm.

    The trackers start at 0. The mirror map must be ``PNorm`` or ``Euclidean``. The paper's output is
    ``output=Average(nonzeros=s)``: the s largest entries of the mean over the rounds r = 0 .. R-1 of their initial
    primals.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; no limit by default.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> from flwr_fco.strategies import Average
    >>> ReFedDAGT(mirror_map=PNorm(12.0), radius_squared=25_000.0, output=Average(nonzeros=16)).output
    Average(window=None, nonzeros=16)
    """

    radius_squared: float | None = None

    def __check__(self) -> None:
        super().__check__()
        restricted_gradient_tracking.restricted_map(self.mirror_map, np.zeros(1), self.radius_squared)


@dataclass(repr=False, eq=False, kw_only=True)
class MultistepReFedDAGT(ReFedDAGT, algorithm=MultistepGradientTracking):
    """Multistep ReFedDA-GT, algorithm 3: stages of ReFedDA-GT, each from the sparsified mean of the previous one.

    The trackers start at 0 in every stage. The mirror map must be ``PNorm`` or ``Euclidean``. A rate that is a function
    gets the round of the whole run; a stage's own rate takes precedence.

    Parameters
    ----------
    stages : sequence of Stage, optional
        The schedule; :func:`theorem_stages` returns the theoretical one. The settings of the last stage stay in force
        after it. By default one stage without an end.
    radius_squared : float, optional
        Q_0, the first radius; without it and without radii in the stages there is no ball.
    reference : Reference, default Reference()
        Which points of a stage the next one begins from, and how many of their entries it keeps:
        :class:`flwr_fco.strategies.Reference`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 3.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> stages = [Stage(300), Stage(300), Stage(300, local_steps=20)]
    >>> more = {"mirror_map": PNorm(12.0), "radius_squared": 25_000.0, "reference": Reference(sparsity=16)}
    >>> strategy = MultistepReFedDAGT(stages=stages, **more)
    >>> len(strategy.stages)
    3
    """

    stages: Sequence[Stage] | None = None
    reference: Reference = field(default=Reference())

    def __check__(self) -> None:
        self.stages = checked_stages(self.stages)
        super().__check__()


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDA(
    GraphOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=decentralized.DecentralizedDualAveraging,
):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    On a graph it is biased even with one local step, the more the nodes' gradients differ; :class:`DFedDAGT` is not.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> from flwr_fco.topology import chain
    >>> DFedDA(mixing=chain(16), mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10)).mixing.num_nodes
    16
    """


@dataclass(repr=False, eq=False, kw_only=True)
class DFedDAGT(
    TrackerOptions,
    GraphOptions,
    StepOptions,
    CompositeStrategy,
    algorithm=decentralized.DecentralizedGradientTracking,
):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> DFedDAGT(mixing="ring", tracker_start="zero").weighting
    'uniform'
    """


@dataclass(repr=False, eq=False, kw_only=True)
class DReFedDAGT(DFedDAGT, algorithm=decentralized.DecentralizedRestricted):
    """ReFedDA-GT on a graph: :class:`DFedDAGT` around a reference point, within a ball of the map's norm.

    With `stages` it is Multistep ReFedDA-GT on a graph, as in the authors' public code: a new stage begins at the
    sparsified mean over all nodes, which the relay knows and a node would not. The trackers start at 0 in every stage.
    The mirror map must be ``PNorm`` or ``Euclidean``.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the reference, at first the start point; no limit by default.
    stages : sequence of Stage, optional
        As in :class:`MultistepReFedDAGT`; by default one stage without an end.
    reference : Reference, default Reference()
        As in :class:`MultistepReFedDAGT`. The authors' code has ``Reference(sparsity=s, window=100, newest=True)``.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithms 2 and 3 with general
    U.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = DReFedDAGT(mixing="ring", mirror_map=PNorm(12.0), radius_squared=25_000.0, stages=[Stage(300)] * 3)
    >>> len(strategy.stages)
    3
    """

    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")
    radius_squared: float | None = None
    stages: Sequence[Stage] | None = None
    reference: Reference = field(default=Reference())

    def __check__(self) -> None:
        self.stages = checked_stages(self.stages)
        super().__check__()
        restricted_gradient_tracking.restricted_map(self.mirror_map, np.zeros(1), self.radius_squared)
