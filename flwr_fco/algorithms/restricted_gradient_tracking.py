"""Restricted dual averaging with gradient tracking, in one stage or in several with a shrinking radius.

Algorithms 2 (ReFedDA-GT) and 3 (Multistep ReFedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional
federated optimization'; their symbols in brackets::

    stage n: reference v [w_n], radius_squared [Q_n], rounds [R_n], local_steps [K_n], rates [eta_c^n, eta_s^n]
        dual [z] = 0, trackers = 0
        rounds as in FedDA-GT, with primal = v + P(dual) in the place of grad h*(dual):
            P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) sqrt(Q)) - 1, 0)),     ||P(z)||_q <= sqrt(Q)
        next reference v' = the `sparsity` [s] largest entries of the mean of the primals [w_{r,0}, r = 0 .. R-1]
        next radius_squared = radius_squared / 2

A stage needs the mirror map ``PNorm(p)``; ``Euclidean()`` stands for ``PNorm(2)``. With a new stage
all clients begin again: their trackers are 0, and the plan of its messages has the new reference.

psi, an l1 norm, is an extension that the paper does not have. It composes through `retrieve` around the reference.

Differs from the paper in: 1. psi; 2. weights p_m and unequal local work, as in FedDA-GT.

Mean of a stage. The paper takes the next reference from the mean over all rounds of a stage of the points in which
rounds begin, r = 0 .. R-1: that is the default. The authors' code takes the last 100 rounds
(``Reference(window=100)``) and uses the points in which rounds end (``Reference(newest=True)``), so that a window
includes the newest one.

Errata of the printed algorithm 2: line 7 must pass -z to its Prox, which minimises <w - v, g> + h; line 12 must be
z_{r+1} = z_r + eta_s mean(z_K - z_0): with the printed Delta_r the dual moves by differences of gradients. In (4) the
|S_r| below the sum must be M, see FedDA-GT.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flwr_fco.algorithms.contract import Algorithm, Problem, Replies, Setting
from flwr_fco.algorithms.contract.choices import Reference
from flwr_fco.algorithms.gradient_tracking import GradientTracking
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE, Choice
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap, PNorm
from flwr_fco.regularizers import HardSparsity, Regularizer, Zero
from flwr_fco.work import FirstOrder


def restricted_map(
    mirror_map: MirrorMap, reference: Vector, radius_squared: float | None, regularizer: Regularizer = Zero()
) -> PNorm:
    """Return the p-norm map around a reference point, within sqrt(radius_squared) of it.

    Parameters
    ----------
    mirror_map : MirrorMap
        ``PNorm(p)`` without center and radius, or ``Euclidean()``.
    reference : ndarray of float64, shape (d,)
        v.
    radius_squared : float or None
        Q; None for no ball.
    regularizer : Regularizer, default Zero()
        psi.

    Raises
    ------
    ConfigurationError
        If the map is neither, or has no closed form for psi around a reference point.

    Examples
    --------
    >>> import numpy as np
    >>> restricted_map(PNorm(12.0), np.zeros(3), 4.0).radius
    2.0
    """
    plain = isinstance(mirror_map, PNorm) and mirror_map.center is None and mirror_map.radius is None
    if not plain and not isinstance(mirror_map, Euclidean):
        prefix = f"mirror_map={mirror_map!r}: ReFedDA-GT puts the norm's ball around its reference point itself"
        raise ConfigurationError(f"{prefix}. Expected PNorm(p) without center and radius, or Euclidean()")
    p = mirror_map.p if isinstance(mirror_map, PNorm) else 2.0
    around = PNorm(p, center=reference, radius=None if radius_squared is None else math.sqrt(radius_squared))
    if not (regularizer.by_name or around.supports(regularizer)):
        prefix = f"regularizer={regularizer!r}: ReFedDA-GT goes around a reference point, for which there is a closed"
        raise ConfigurationError(f"{prefix} form with {PNorm.works_with}, with Euclidean() too. Take FedDAGT")
    return around


@dataclass(frozen=True)
class Stage(Choice):
    """A stage of the multistep method; None means the strategy's value, or for the radius half of the previous stage's.

    Parameters
    ----------
    rounds : int
        R_n.
    local_steps : int, optional
        K_n.
    client_lr, server_lr : float, optional
        eta_c^n, eta_s^n.
    radius_squared : float, optional
        Q_n.

    Examples
    --------
    >>> Stage(300, local_steps=20).local_steps
    20
    """

    rounds: int = field(metadata=AT_LEAST_ONE)
    local_steps: int | None = field(default=None, metadata=AT_LEAST_ONE)
    client_lr: float | None = field(default=None, metadata=POSITIVE)
    server_lr: float | None = field(default=None, metadata=POSITIVE)
    radius_squared: float | None = field(default=None, metadata=POSITIVE)


#: What a state in stages has besides: the index of the stage, from 0; how many rounds of it are done; its reference v,
#: shape (d,); and the points that the next reference averages, their sum or, of a window, the last of them after zeros.
_OF_STAGES = ("stage", "stage_round", "reference", "stage_points")
#: What a stage begins without: duals and trackers, of a server or of nodes.
_EMPTIED = ("dual", "elapsed", "control", "trackers")


def _staged(names: Sequence[str], values: Sequence[Any]) -> Any:
    """Return a state in stages; pickle calls this again, as its class is of the fields of the state without stages."""
    again = {"__reduce__": lambda state: (_staged, (state._fields, tuple(state)))}
    kind: Any = type("StagedState", (namedtuple("StagedState", names),), again)
    return kind._make(values)


@dataclass(frozen=True, kw_only=True)
class Staged(Algorithm):
    """Stages of a restricted method: what algorithm 3 adds to it, with a server and on a graph.

    Parameters
    ----------
    radius_squared : float, optional
        Q_0.
    stages : sequence of Stage
        Length and numbers of each stage.
    reference : Reference
        Which points the reference averages, and the number of entries that it keeps, s.
    """

    radius_squared: float | None = None
    stages: Sequence[Stage] = ()
    reference: Reference = field(default=Reference())

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1: if there are stages, of a first one around the start point."""
        state: Any = super().init(problem, primal)  # type: ignore[safe-super]
        if not self.stages:
            return state
        return _staged((*state._fields, *_OF_STAGES), (*state, 0, 0, primal, self._no_points(primal.size)))

    def setting(self, given: Setting, state: Any) -> Setting:
        """Return the map around the reference of the state's stage, within its ball, and the stage's work and rates."""
        number = int(getattr(state, "stage", 0))
        reference = getattr(state, "reference", given.start)
        mirror_map = restricted_map(given.mirror_map, reference, radius_of(self.stages, self.radius_squared, number))
        setting = given._replace(mirror_map=mirror_map, stage=number)
        stage = self.stages[number] if self.stages else Stage(1)
        if stage.local_steps is not None and isinstance(given.work, FirstOrder):
            setting = setting._replace(work=FirstOrder(steps=stage.local_steps, batch_size=given.work.batch_size))
        return setting._replace(client_lr=stage.client_lr, server_lr=stage.server_lr)

    def _no_points(self, size: int) -> Vector:
        """Return room for a stage's points, always as much: a saved state is compared with the first one."""
        if self.reference.window is None:
            return np.zeros(size)
        longest = max((stage.rounds for stage in self.stages[:-1]), default=1)
        return np.zeros((int(min(self.reference.window, longest)), size))

    def _centre(self, problem: Problem, state: Any) -> Vector:
        """Return what a round contributes to the mean of its stage."""
        return self.retrieve(problem, state)

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after the round, or the first state of the next stage if a stage ends."""
        following: Any = super().aggregate(problem, state, replies)  # type: ignore[safe-super]
        if problem.round == 0 or getattr(state, "stage", 0) + 1 >= len(self.stages):
            return following
        point = self._centre(problem, following if self.reference.newest else state)
        if self.reference.window is None:
            points = state.stage_points + point if state.stage_round else point
        else:
            points = np.concatenate([state.stage_points[1:], point[None]])
        following = following._replace(stage_points=points, stage_round=state.stage_round + 1)
        return following if following.stage_round < self.stages[state.stage].rounds else self._next_stage(following)

    def _next_stage(self, state: Any) -> Any:
        """Return the first state of the next stage: the reference is the sparsified mean, duals and trackers are 0."""
        points, rounds = state.stage_points, state.stage_round
        mean = points / rounds if self.reference.window is None else points[-rounds:].mean(axis=0)
        sparsity = self.reference.sparsity
        reference = mean if sparsity is None else HardSparsity(sparsity).prox(mean, 0.0)
        nothing = {name: 0.0 * abs(getattr(state, name)) for name in _EMPTIED if hasattr(state, name)}
        room = self._no_points(reference.size)
        number = state.stage + 1
        return state._replace(**nothing, stage=number, stage_round=0, reference=reference, stage_points=room)

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the metrics of the method without stages, and the stage if there are stages."""
        return super().metrics(problem, state) | ({"stage": int(state.stage)} if hasattr(state, "stage") else {})


@dataclass(frozen=True, kw_only=True)
class RestrictedGradientTracking(Staged, GradientTracking):
    """Gradient tracking around the start point, within a ball of the map's norm.

    Parameters
    ----------
    radius_squared : float, optional
        Q.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2.

    Examples
    --------
    >>> RestrictedGradientTracking.name, RestrictedGradientTracking.memory, RestrictedGradientTracking.reads
    ('gradient_tracking', ('own',), 'sums')
    """

    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1, with room for the point in which a round begins."""
        return super().init(problem, primal)._replace(points=primal[None])

    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the state after the round, with the point in which it began."""
        return super().aggregate(problem, state, replies)._replace(points=self.retrieve(problem, state)[None])


class MultistepGradientTracking(RestrictedGradientTracking):
    """Stages of restricted gradient tracking, each from the sparsified mean of the previous one.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 3.

    Examples
    --------
    >>> MultistepGradientTracking.name, MultistepGradientTracking.memory, MultistepGradientTracking.reads
    ('gradient_tracking', ('own',), 'sums')
    """


def radius_of(stages: Sequence[Stage], radius_squared: float | None, number: int) -> float | None:
    """Return Q of a stage: its own, or half of the previous stage's.

    Parameters
    ----------
    stages : sequence of Stage
        All stages of the run.
    radius_squared : float or None
        Q_0.
    number : int
        Of the stage, from 0.

    Examples
    --------
    >>> radius_of([Stage(300), Stage(300), Stage(300, local_steps=20)], 25_000.0, 2)
    6250.0
    """
    own = [(n, stage.radius_squared) for n, stage in enumerate(stages[: number + 1]) if stage.radius_squared]
    last, radius = own[-1] if own else (0, radius_squared)
    return None if radius is None else radius / 2.0 ** (number - last)
