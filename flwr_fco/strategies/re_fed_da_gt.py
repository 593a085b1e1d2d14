"""Restricted dual averaging with gradient tracking, in one stage or in several with a shrinking radius.

Algorithms 2 (ReFedDA-GT) and 3 (Multistep ReFedDA-GT) of Liang, Peng, Zhang, 'Gradient tracking for high dimensional
federated optimization'; their symbols in brackets::

    stage n: reference v [w_n], radius_squared [Q_n], rounds [R_n], local_steps [K_n], rates [eta_c^n, eta_s^n]
        dual [z] = 0, trackers = 0
        rounds as in FedDA-GT, with primal = v + P(dual) in the place of grad h*(dual):
            P(z) = grad h*(z) / (1 + max(||z||_p / ((p-1) sqrt(Q)) - 1, 0)),     ||P(z)||_q <= sqrt(Q)
        next reference v' = the `sparsity` [s] largest entries of the mean of the primals [w_{r,0}, r = 0 .. R-1]
        next radius_squared = radius_squared / 2

A stage needs the mirror map ``PNorm(p)``; ``Euclidean()`` is taken for ``PNorm(2)``. A new stage is a new epoch for the
clients: they forget their trackers without a message of its own; the reference travels once.

psi is an extension: the method has none. It composes through `retrieve` around the reference, for the psi that
``PNorm`` supports.

Differs from the paper in: 1. psi; 2. weights p_m and unequal local work, as in FedDA-GT; 3. the mean of a stage may be
over its last `window` rounds (``output="moving-average"``), which is what the authors' experiments do.

Errata of the printed algorithm 2: line 7 must pass -z to its Prox, which minimises <w - v, g> + h; line 12 must be
z_{r+1} = z_r + eta_s mean(z_K - z_0): with the printed Delta_r the dual moves by differences of gradients. In (4) the
|S_r| below the sum must be M, see FedDA-GT.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from logging import INFO
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap, PNorm
from flwr_fco.parameters import Vector
from flwr_fco.protocol import Uplink
from flwr_fco.strategies.base import CompositeOptions, log
from flwr_fco.strategies.fed_da_gt import FedDAGT, TrackingState
from flwr_fco.strategies.outputs import largest_entries

__all__ = ["MultistepReFedDAGT", "ReFedDAGT", "Stage", "restricted_map", "theorem_stages"]


def restricted_map(mirror_map: MirrorMap, reference: Vector, radius_squared: float | None) -> PNorm:
    """Return the p-norm map around a reference point, within sqrt(radius_squared) of it.

    Parameters
    ----------
    mirror_map : MirrorMap
        ``PNorm(p)`` without a center and a radius, or ``Euclidean()``.
    reference : ndarray of float64, shape (d,)
        v.
    radius_squared : float or None
        Q; None: no ball.

    Raises
    ------
    ConfigurationError
        If the map is another one, or Q is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> restricted_map(PNorm(12.0), np.zeros(3), 4.0).radius
    2.0
    """
    if radius_squared is not None and not 0.0 < radius_squared < math.inf:
        raise ConfigurationError(
            f"radius_squared={radius_squared!r}; expected a finite number > 0, or None for no ball"
        )
    if isinstance(mirror_map, PNorm) and mirror_map.center is None and mirror_map.radius is None:
        p = mirror_map.p
    elif isinstance(mirror_map, Euclidean):
        p = 2.0
    else:
        raise ConfigurationError(
            f"mirror_map={mirror_map!r}: ReFedDA-GT puts the norm's ball around its reference point itself. Expected "
            "PNorm(p) without center and radius, or Euclidean()"
        )
    return PNorm(p, center=reference, radius=None if radius_squared is None else math.sqrt(radius_squared))


class ReFedDAGT(FedDAGT):
    """Restricted FedDA-GT, algorithm 2: around the start point, within a ball of the map's norm.

    Parameters
    ----------
    radius_squared : float, optional
        Q: the primal points stay within sqrt(Q) of the start point, the reference; by default anywhere.
    output : {"last", "average", "moving-average"}, default "last"
        The paper's output is ``output="average", sparsity=s``: the s largest entries of the mean over the rounds
        r = 0 .. R-1 of the primals in which they began.
    client_state, ledger_bytes, window, sparsity
        See :class:`FedDAGT`. The trackers start at 0.
    **options
        See :class:`CompositeStrategy`. The mirror map must be ``PNorm`` or ``Euclidean``.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 2.

    Examples
    --------
    >>> ReFedDAGT(mirror_map=PNorm(12.0), radius_squared=25_000.0, output="average", sparsity=16).tracker_start
    'zero'
    """

    def __init__(
        self,
        *,
        radius_squared: float | None = None,
        client_state: Literal["ledger", "reset"] | None = None,
        ledger_bytes: int = 256 * 2**20,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        super().__init__(
            tracker_start="zero",
            client_state=client_state,
            ledger_bytes=ledger_bytes,
            window=window,
            sparsity=sparsity,
            **options,
        )
        restricted_map(self.mirror_map, np.zeros(1), radius_squared)
        self.radius_squared = radius_squared

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the restriction and the trackers."""
        ball = "anywhere" if self.radius_squared is None else f"within sqrt({self.radius_squared:g}) of it"
        return [("Reference", f"the start point, primals {ball}"), *super().settings()]

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map around the start point, within the ball."""
        return restricted_map(self.mirror_map, primal, self.radius_squared)

    def aggregate(self, state: TrackingState, uplinks: Sequence[Uplink]) -> TrackingState:
        """Return the state of FedDA-GT, with the primal in which the round began added to the mean."""
        following = super().aggregate(state, uplinks)
        if not following.total.size:
            return following
        total, averaged = self.summed(state, self.retrieve(state))
        return following._replace(total=total, averaged=averaged)


class Stage(NamedTuple):
    """A stage of the multistep method; what is None is the strategy's, or for the radius half of the stage before.

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
    """

    rounds: int
    local_steps: int | None = None
    client_lr: float | None = None
    server_lr: float | None = None
    radius_squared: float | None = None


def theorem_stages(
    *,
    dimension: int,
    sparsity: int,
    smoothness: float,
    convexity: float,
    noise: float,
    radius_squared: float,
    accuracy: float,
    num_clients: int,
    failure: float = 0.05,
) -> list[Stage]:
    """Return the schedule of theorem C.2: the squared l1 error is at most `accuracy` in the end.

    With kappa = L / mu, for n = 1 .. N (the paper's [N]; stage n is the n-th one)::

        N   = ceil(log2(Q_0 / accuracy))
        R_n = ceil(64 s kappa log d)
        K_n = ceil(2^(n+14) s^2 sigma^2 / (mu^2 Q_0 R_n) ((log d)^4 + 2 log(2 n d / delta) / (R_n M)))
        client_lr = min(1/(48 L K), sqrt(2 Q / (R K sigma^2 log d)), sqrt(2 Q M log d / (K sigma^2 log(2 d / delta))))

    with server_lr = 1 and Q = Q_0 / 2^(n-1), the last line from theorem C.1. The constants are those of a proof: the
    schedule is long.

    Parameters
    ----------
    dimension : int
        d.
    sparsity : int
        s, non-zero entries of the optimum.
    smoothness : float
        L, of the gradient from the l1 to the largest-entry norm.
    convexity : float
        mu(Q_0), local strong convexity.
    noise : float
        sigma, the sub-Gaussian scale of a gradient's entries.
    radius_squared : float
        Q_0, at least the squared l1 distance from the start to the optimum.
    accuracy : float
        epsilon.
    num_clients : int
        M.
    failure : float, default 0.05
        delta: the bound holds with probability 1 - delta.

    Raises
    ------
    ConfigurationError
        If an argument is not positive.

    Examples
    --------
    >>> stages = theorem_stages(dimension=1024, sparsity=2, smoothness=1.0, convexity=1.0, noise=0.01,
    ...                         radius_squared=100.0, accuracy=1.0, num_clients=16)
    >>> len(stages), stages[0].rounds, [stage.local_steps for stage in stages[:3]]
    (7, 888, [1, 1, 2])
    """
    numbers = {
        "dimension": dimension,
        "sparsity": sparsity,
        "smoothness": smoothness,
        "convexity": convexity,
        "noise": noise,
        "radius_squared": radius_squared,
        "accuracy": accuracy,
        "num_clients": num_clients,
        "failure": failure,
    }
    for name, value in numbers.items():
        if not 0.0 < value < math.inf or (name == "failure" and value > 1.0) or (name == "dimension" and value < 2):
            raise ConfigurationError(f"{name}={value!r}; expected a positive number (failure <= 1, dimension >= 2)")
    log_d = math.log(dimension)
    rounds = math.ceil(64 * sparsity * smoothness / convexity * log_d)
    stages = []
    for n in range(1, max(1, math.ceil(math.log2(radius_squared / accuracy))) + 1):
        scale = 2.0 ** (n + 14) * sparsity**2 * noise**2 / (convexity**2 * radius_squared * rounds)
        tail = 2.0 * math.log(2 * n * dimension / failure) / (rounds * num_clients)
        steps = math.ceil(scale * (log_d**4 + tail))
        radius = radius_squared / 2 ** (n - 1)
        rate = min(
            1.0 / (48.0 * smoothness * steps),
            math.sqrt(2.0 * radius / (rounds * steps * noise**2 * log_d)),
            math.sqrt(2.0 * radius * num_clients * log_d / (steps * noise**2 * math.log(2 * dimension / failure))),
        )
        stages.append(Stage(rounds, steps, rate, 1.0, radius))
    return stages


class MultistepReFedDAGT(ReFedDAGT):
    """Multistep ReFedDA-GT, algorithm 3: stages of ReFedDA-GT, each from the sparsified mean of the one before.

    Parameters
    ----------
    stages : sequence of Stage, optional
        The schedule; :func:`theorem_stages` makes the theory's. After the last stage its settings go on. By default
        one stage without an end.
    radius_squared : float, optional
        Q_0, the first radius; without it and without radii in the stages there is no ball.
    sparsity : int, optional
        s: entries that a reference keeps, and that an average as output keeps; ``output="last"`` keeps all of a point.
    restart_window : int, optional
        Take the reference from the mean over the last so many rounds of a stage; by default over all of them. The
        authors' experiments take 100.
    client_state, ledger_bytes, window
        See :class:`FedDAGT`.
    **options
        See :class:`CompositeStrategy`. A rate that is a function gets the round of the whole run; a stage's own rate
        wins. For the authors' plateau rule see :class:`flwr_fco.strategies.Plateau`.

    References
    ----------
    Liang, Peng, Zhang: Gradient tracking for high dimensional federated optimization, algorithm 3.

    Examples
    --------
    >>> stages = [Stage(300), Stage(300), Stage(300, local_steps=20)]
    >>> strategy = MultistepReFedDAGT(stages=stages, mirror_map=PNorm(12.0), radius_squared=25_000.0, sparsity=16)
    >>> strategy.radius_of(2)
    6250.0
    """

    def __init__(
        self,
        *,
        stages: Sequence[Stage] | None = None,
        radius_squared: float | None = None,
        restart_window: int | None = None,
        client_state: Literal["ledger", "reset"] | None = None,
        ledger_bytes: int = 256 * 2**20,
        window: int = 100,
        sparsity: int | None = None,
        **options: Unpack[CompositeOptions],
    ) -> None:
        self.stages: tuple[Stage, ...] = ()
        super().__init__(
            radius_squared=radius_squared,
            client_state=client_state,
            ledger_bytes=ledger_bytes,
            window=window,
            sparsity=sparsity,
            **options,
        )
        self.stages = tuple(stages or ())
        if restart_window is not None and restart_window < 1:
            raise ConfigurationError(f"restart_window={restart_window!r}; expected a whole number >= 1, or None")
        self.restart_window = restart_window
        for n, stage in enumerate(self.stages):
            values = {name: value for name, value in stage._asdict().items() if value is not None}
            if any(not value > 0 for value in values.values()) or stage.rounds != int(stage.rounds):
                raise ConfigurationError(f"stage {n} is {stage}; expected positive numbers")

    def _forget(self) -> None:
        super()._forget()
        self._stage = 0
        self._stage_round = 0
        self._reference = np.zeros(0)
        self._stage_points: list[Vector] = []
        self._stage_sum = np.zeros(0)

    # --- stages -----------------------------------------------------------------------------------------------

    @property
    def stage(self) -> int:
        """The number of the stage under way, from 0."""
        return self._stage

    def radius_of(self, stage: int) -> float | None:
        """Return Q of a stage: its own, or half of the one before."""
        radius = self.radius_squared
        for n in range(stage + 1):
            own = self.stages[n].radius_squared if n < len(self.stages) else None
            if own is not None:
                radius = own
            elif n > 0 and radius is not None:
                radius /= 2.0
        return radius

    def _settings_of_stage(self) -> Stage | None:
        return self.stages[self._stage] if self.stages else None

    def local_work(self) -> tuple[int | None, int | None]:
        """Return the local epochs and the local steps of the stage under way."""
        stage = self._settings_of_stage()
        return super().local_work() if stage is None or stage.local_steps is None else (None, stage.local_steps)

    def rates(self) -> tuple[float, float]:
        """Return the client's and the server's learning rate of the round under way."""
        client_lr, server_lr = super().rates()
        stage = self._settings_of_stage()
        if stage is None:
            return client_lr, server_lr
        return stage.client_lr or client_lr, stage.server_lr or server_lr

    def geometry(self, primal: Vector) -> MirrorMap:
        """Return the mirror map around the reference of the stage, within its ball."""
        self._reference = primal
        return restricted_map(self.mirror_map, primal, self.radius_of(self._stage))

    def after_round(self, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Count the round; begin the next stage where one ends."""
        super().after_round(before, uplinks)
        if self._stage + 1 >= len(self.stages):
            return
        point = self.retrieve(before)
        if self.restart_window is None:
            self._stage_sum = self._stage_sum + point if self._stage_sum.size else point
        else:
            self._stage_points = [*self._stage_points[1 - self.restart_window :], point]
            if self.restart_window == 1:
                self._stage_points = [point]
        self._stage_round += 1
        if self._stage_round >= self.stages[self._stage].rounds:
            self._begin_stage()

    def _begin_stage(self) -> None:
        """Restart from the sparsified mean: new reference, dual 0, trackers 0."""
        if self.restart_window is None:
            mean = self._stage_sum / self._stage_round
        else:
            mean = np.mean(self._stage_points, axis=0)
        reference = mean if self.sparsity is None else largest_entries(mean, self.sparsity)
        self._stage += 1
        self._stage_round = 0
        self._stage_points, self._stage_sum = [], np.zeros(0)
        self._epoch += 1
        for member in self._members.values():
            member.accepted, member.memory = -1, None
        self._set_plan(self.geometry(reference))
        zeros = np.zeros(reference.size)
        self.state = self.state._replace(
            dual=zeros, elapsed=0.0, control=zeros, derivable=0, total=self.empty_sum(reference.size), averaged=0
        )
        log(INFO, "Stage %s begins, radius_squared = %s", self._stage, self.radius_of(self._stage))

    # --- saving and the look ----------------------------------------------------------------------------------

    def output_point(self, state: TrackingState) -> Vector:
        """Return the output; the last point keeps all its entries, so it is sparse right after a restart only."""
        return self.retrieve(state) if self.output == "last" else super().output_point(state)

    def round_metrics(self) -> dict[str, float | int]:
        """Return the metrics of FedDA-GT and the stage."""
        return {**super().round_metrics(), "stage": self._stage}

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what FedDA-GT saves, and where in its stage the run is."""
        arrays = super().saved_arrays()
        points = np.array(self._stage_points) if self._stage_points else np.zeros((0, self._reference.size))
        arrays.update(
            {
                "stage": np.array([self._stage, self._stage_round]),
                "reference": self._reference,
                "stage-sum": self._stage_sum,
                "stage-points": points,
            }
        )
        return arrays

    def restore_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_arrays` gave."""
        super().restore_arrays(arrays)
        self._stage, self._stage_round = (int(value) for value in arrays["stage"])
        self._stage_sum, self._stage_points = arrays["stage-sum"], list(arrays["stage-points"])
        self._set_plan(self.geometry(arrays["reference"]))

    def settings(self) -> list[tuple[str, str]]:
        """Return the lines about the stages, the restriction and the trackers."""
        if not self.stages:
            return [("Stages", "one, without an end"), *super().settings()]
        lengths = ", ".join(str(stage.rounds) for stage in self.stages)
        return [("Stages", f"{len(self.stages)}, of {lengths} rounds"), *super().settings()]
