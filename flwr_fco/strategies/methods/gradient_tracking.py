"""Gradient tracking: FedDA-GT, its restricted and multistep forms, SCAFFOLD, and all of them on graphs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from flwr_fco.algorithms import decentralized, restricted_gradient_tracking
from flwr_fco.algorithms.contract.choices import Ledger, Reference
from flwr_fco.algorithms.gradient_tracking import GradientTracking
from flwr_fco.algorithms.restricted_gradient_tracking import MultistepGradientTracking, Stage
from flwr_fco.core.validation import checked, kinds_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies.options import strategy
from flwr_fco.strategies.strategy import StepStrategy
from flwr_fco.topology import Mixing


@strategy
class FedDAGT(StepStrategy):
    """Federated dual averaging with gradient tracking: no bias from unequal clients, at FedAvg's traffic.

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
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> from flwr_fco.mirror_maps import PNorm
    >>> strategy = FedDAGT(mirror_map=PNorm(12.0), client_lr=0.1, work=Steps(10, batch_size=10))
    >>> strategy.tracker_start
    'gradient'
    """

    algorithm = GradientTracking
    client_state: Ledger = field(default=Ledger())
    tracker_start: Literal["gradient", "zero"] = "gradient"


@strategy
class Scaffold(FedDAGT):
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


@strategy
class ReFedDAGT(StepStrategy):
    """Restricted FedDA-GT, algorithm 2: around the start point, within a ball of the map's norm.

    The trackers start at 0. The mirror map must be ``PNorm`` or ``Euclidean``. The paper's output is the s largest
    entries of the mean over the rounds of their primals: of ``output=Average()``, which keeps all.

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
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> from flwr_fco.mirror_maps import PNorm
    >>> ReFedDAGT(mirror_map=PNorm(12.0), radius_squared=25_000.0).radius_squared
    25000.0
    """

    algorithm = restricted_gradient_tracking.RestrictedGradientTracking
    client_state: Ledger = field(default=Ledger())
    radius_squared: float | None = None

    def _check(self) -> None:
        super()._check()
        restricted_gradient_tracking.restricted_map(self.mirror_map, np.zeros(1), self.radius_squared)


@strategy
class MultistepReFedDAGT(ReFedDAGT):
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

    algorithm = MultistepGradientTracking
    stages: Sequence[Stage] | None = None
    reference: Reference = field(default=Reference())

    def _check(self) -> None:
        self.stages = _checked_stages(self.stages)
        super()._check()


@strategy
class DFedDA(StepStrategy):
    """Decentralised federated dual averaging, algorithm 1 without tracking.

    On a graph it is biased even with one local step, the more the nodes' gradients differ; :class:`DFedDAGT` is not.

    Parameters
    ----------
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"ring"``, ``"star"``, ``"exponential"``,
        ``"complete"``) for the number of nodes before round 1. Row m belongs to the m-th node in the order of partition
        ids.

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

    algorithm = decentralized.DecentralizedDualAveraging
    mixing: Mixing = "complete"
    weighting: Literal["uniform"] = "uniform"


@strategy
class DFedDAGT(StepStrategy):
    """Decentralised federated dual averaging with gradient tracking, algorithm 1: exact on any connected graph.

    Parameters
    ----------
    tracker_start : {"gradient", "zero"}, default "gradient"
        ``"gradient"``: a round 0 asks every client for one gradient at the start point (one minibatch), as printed.
        ``"zero"``: trackers start at 0, without a round 0.
    mixing : Topology, array of shape (M, M), or str, default "complete"
        The gossip matrix U, or the name of a topology (``"chain"``, ``"ring"``, ``"star"``, ``"exponential"``,
        ``"complete"``) for the number of nodes before round 1. Row m belongs to the m-th node in the order of partition
        ids.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 1.
    BibTeX: liang2023gradient, in docs/reference/notation.md.

    Examples
    --------
    >>> DFedDAGT(mixing="ring", tracker_start="zero").weighting
    'uniform'
    """

    algorithm = decentralized.DecentralizedGradientTracking
    tracker_start: Literal["gradient", "zero"] = "gradient"
    mixing: Mixing = "complete"
    weighting: Literal["uniform"] = "uniform"


@strategy
class DReFedDAGT(DFedDAGT):
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

    algorithm = decentralized.DecentralizedRestricted
    tracker_start: Literal["gradient", "zero"] = field(init=False, default="zero")
    radius_squared: float | None = None
    stages: Sequence[Stage] | None = None
    reference: Reference = field(default=Reference())

    def _check(self) -> None:
        self.stages = _checked_stages(self.stages)
        super()._check()
        restricted_gradient_tracking.restricted_map(self.mirror_map, np.zeros(1), self.radius_squared)


def _checked_stages(stages: Iterable[Any] | None) -> tuple[Any, ...]:
    """Return stages, none by default: NamedTuples, whose numbers are kept as the types that they are declared with.

    Parameters
    ----------
    stages : iterable of NamedTuple, or None
        A schedule.

    Raises
    ------
    ConfigurationError
        If a number of a stage is of another type, not finite, or not positive.
    """
    kept = []
    for n, stage in enumerate(stages or ()):
        kind: Any = type(stage)
        values: dict[str, Any] = {}
        for key, given in stage._asdict().items():
            values[key] = value = checked(f"stage {n}: {key}", given, kinds_of(kind)[key])
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"stage {n}: {key}={given!r}; expected a finite number > 0")
        kept.append(stage._replace(**values))
    return tuple(kept)
