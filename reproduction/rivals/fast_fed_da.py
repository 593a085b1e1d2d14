"""Fast-FedDA, C-FedDA and MC-FedDA: dual averaging with quadratic lower models, for strongly convex losses.

Bao, Crawshaw, Luo, Liu (ICML 2022), and the variants run by Liang, Peng and Zhang; their symbols in brackets.

``variant="bao"`` (from the authors' public code; the paper's pseudo-code was not at hand)::

    server: gradients [g] = 0, points [x] = anchor [x0] = primal [w] = w_0, steps = 0
    Fast-FedDA, each client: for k = 1 .. K:
        gradients += g(primal);  eta = steps + k
        primal = prox_{psi/b}(-a/b), a = (gradients - mu/2 points - gamma anchor)/eta, b = mu/2 + gamma/eta
        points += primal
    server: gradients, points = means over the clients; steps += K; primal as above with eta = steps; points += primal
    C-FedDA: only server points enter points, and in all of round r: eta = r K, a = (gradients - gamma anchor)/eta -
        mu/2 points/r; with a radius the point is then moved to the l1 ball around the anchor
    MC-FedDA: stages; a stage begins with anchor = points = primal, gradients = 0, r = 1, and has its own radius and
        strength of psi

``variant="liang"``, rows of matrices are nodes, U the gossip matrix::

    gradients [N] = 0, points [V] = 0 (C-FedDA: w_0), n = A = 0
    each local step: a = n + 1, A1 = A + a
        N <- A/A1 N - a/A1 G(W)
        at the last local step of a round: N <- U N, V <- U V                              (here: on the server)
        W <- A1/(mu/2 A + a mu) soft(N + mu/2 V, lambda)
        C-FedDA: W <- r + P( A1/(mu/2 A + a L) soft(N + mu/2 V + L a/A1 r, lambda) - r ), P onto the l1 ball
        V <- A/A1 V + (a+1)/A1 W;  n <- n + 1, A <- A1

Without a graph (``mixing=None``) the server takes the mean, U = 11'/M.

Other mirror maps are an extension: x and V sum grad h at the points and the minimisers go through `retrieve`, which is
the above in the Euclidean geometry. Any psi composes through `retrieve`.

Differs from the sources in: 1. with unequal numbers of steps ``normalize_local_work`` scales the increments, as
elsewhere (Liang's variant wants ``work=Steps(K)``); 2. C-FedDA's radius is off by default, as in Bao's experiments.
There are no learning rates.

Errata: Bao's Fast-FedDA sums K + 1 points a round for K gradients, which shifts its limit by an error of order mu/K
(measured: .098 and .0094 at mu .1 and .01, K 1): no gradient is taken at a client's last point. Kept.
Bao's constrained map applies the soft threshold and then the projection, which is not the exact proximal map of the
sum; kept. Liang's Fast-FedDA passes L but uses mu; kept. Their C-FedDA does not add r back after the projection, which
is wrong once r is not 0; it is added here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms import Algorithm, Change, Client, Downlink, Memory, Moved, Problem, Replies, Sent, Step, To
from flwr_fco.engines import FirstOrder
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Batch, Vector
from flwr_fco.regularizers import L1Ball
from flwr_fco.strategies import POSITIVE, CompositeStrategy, Epochs, strategy
from flwr_fco.topology import Topology, consensus_error

Matrix = NDArray[np.float64]


class ModelStage(NamedTuple):
    """A stage of MC-FedDA.

    Parameters
    ----------
    rounds : int
        Number of rounds after which the next stage begins; the last stage has no end.
    radius : float
        rho_s, of the l1 ball around the stage's anchor.
    strength : float, default 1.0
        lambda_s as a multiple of the regularizer's strength.

    Examples
    --------
    >>> ModelStage(100, radius=2.0).strength
    1.0
    """

    rounds: int
    radius: float
    strength: float = 1.0


class FastState(NamedTuple):
    """State of the methods with quadratic models; rows are nodes, one row without a graph.

    Parameters
    ----------
    gradients, points, primal, anchor : ndarray of float64, shape (M, d)
        g, x, w, x0 in Bao's variant; N, V, W, r in Liang's.
    steps : float
        Number of local steps summed in the gradients.
    stage, stage_round : int
        Current stage, from 0, and number of its completed rounds.
    round : int
        Number of successful rounds.
    """

    gradients: Matrix
    points: Matrix
    primal: Matrix
    anchor: Matrix
    steps: float = 0.0
    stage: int = 0
    stage_round: int = 0
    round: int = 0


_MATRICES = ("gradients", "points", "primal", "anchor")


@dataclass(frozen=True, kw_only=True)
class FastDualAveraging(Algorithm):
    """Local steps, each to the minimiser of the quadratic model built from all previous steps.

    The message has the vectors ``gradients``, ``points``, ``primal`` and, unless it is zero, ``anchor``; the numbers
    ``steps`` (number of gradients so far), ``rounds`` (of the stage), ``radius`` and ``strength``. The client sends the
    increment of the gradients' sum (Liang: mean) and, if the local points are used, that of the points'; its elapsed
    time is its number of steps. In Liang's variant the last step ends after its gradient; the server completes it on
    the averaged sums.

    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022);
    Liang, Peng, Zhang: the variant of their experiments.

    Parameters
    ----------
    variant : {"bao", "liang"}
        Whose method.
    convexity : float
        mu.
    radius : float, optional
        C-FedDA: of the l1 ball around the start point; no ball by default.
    stages : sequence of ModelStage
        MC-FedDA: length and numbers of each stage, which is around the previous stage's point.
    anchor_weight, smoothness : float
        gamma of Bao's variant, L of Liang's C-FedDA.
    """

    name = "fast_dual_averaging"
    reads = "sums"
    variant: str
    convexity: float
    anchor_weight: float
    smoothness: float = 0.0
    radius: float | None = None
    stages: Sequence[ModelStage] | None = None
    #: Whether only the server's points enter the model (C-FedDA).
    constrained: bool = field(init=False, default=False)

    # --- a client -------------------------------------------------------------------------------------------------

    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[Sent, Moved]:
        """Take the steps of the variant."""
        vectors = downlink.vectors
        points = vectors["points"].copy()
        model = LowerModel(downlink, self)
        count = downlink.first_order.num_draws(client.objective.num_examples)
        step = (model.bao_step if self.variant == "bao" else model.liang_step)(client, points, count)
        # The step size of the message is 1, so that the elapsed time is the number of steps.
        sent, moved = client.steps(vectors["gradients"], step)
        both = self.variant == "liang" or not self.constrained
        return (sent | {"point-increment": points - vectors["points"]} if both else sent), moved

    # --- stages (MC-FedDA) and the ball (C-FedDA) -----------------------------------------------------------------

    def stage_at(self, stage: int) -> ModelStage:
        """Return the settings of a stage; the last stage never ends. Fast-FedDA has one stage, without a ball."""
        stages = self.stages or (ModelStage(0, self.radius or 0.0),)
        return stages[stage] if stage < len(stages) - 1 else stages[-1]._replace(rounds=0)

    def _model(self, problem: Problem, state: FastState, row: int) -> LowerModel:
        """Return the model around a node's anchor, in this stage, as the node has it."""
        return LowerModel(self._message(problem, state, row), self)

    # --- the server -----------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> FastState:
        """Return the state before round 1."""
        zeros = np.zeros((1, primal.size))
        dual = problem.h.gradient(primal)[None, :]
        points = zeros if self.variant == "liang" and not self.constrained else dual
        state = FastState(zeros, points, primal[None, :], primal[None, :])
        return state if problem.graph is None else self._expanded(state, problem.graph.num_rows)

    def _expanded(self, state: FastState, num_nodes: int) -> FastState:
        """Return the state with a row for each node, all like the first one."""
        if len(state.primal) == num_nodes:
            return state
        matrices: Any = {name: np.repeat(getattr(state, name), num_nodes, axis=0) for name in _MATRICES}
        return state._replace(**matrices)

    def downlink(self, problem: Problem, state: FastState, to: To | None) -> Downlink:
        """Return a node's sums and points, and the position in the stage."""
        return self._message(problem, state, 0 if problem.graph is None or to is None else problem.graph.rows[to.key])

    def _message(self, problem: Problem, state: FastState, row: int) -> Downlink:
        vectors = {"gradients": state.gradients[row], "points": state.points[row], "primal": state.primal[row]}
        if (self.variant == "bao" or self.constrained) and state.anchor[row].any():
            vectors["anchor"] = state.anchor[row]
        stage = self.stage_at(state.stage)
        numbers = {"steps": state.steps, "rounds": float(state.stage_round)}
        numbers |= {"radius": stage.radius, "strength": stage.strength}
        return Downlink(problem.plan, vectors, 1.0, numbers=numbers)

    def shapes(self, problem: Problem, state: FastState) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the sums' increments."""
        size = (problem.layout.size,)
        both = self.variant == "liang" or not self.constrained
        return {"increment": size, "point-increment": size} if both else {"increment": size}

    def aggregate(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        """Return the mixed sums, the resulting points, and the next stage if one ends."""
        following = (self._bao if self.variant == "bao" else self._liang)(problem, state, replies)
        following = following._replace(round=state.round + 1, stage_round=state.stage_round + 1)
        stage = self.stage_at(state.stage)
        if stage.rounds and following.stage_round >= stage.rounds:
            duals = np.array([problem.h.gradient(point) for point in following.primal])
            following = following._replace(gradients=np.zeros_like(duals), points=duals, anchor=following.primal)
            following = following._replace(steps=0.0, stage=state.stage + 1, stage_round=0)
        return following

    def _bao(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        gradients, elapsed = replies.mean()
        gradients += state.gradients[0]
        points = state.points[0].copy()
        steps = state.steps + elapsed
        if not self.constrained:
            points += replies.plain_mean("point-increment", normalize=True)
        count = state.stage_round + 1.0 if self.constrained else steps
        primal = self._model(problem, state, 0).bao_point(gradients, points, steps, count)
        points += problem.h.gradient(primal)
        return state._replace(gradients=gradients[None], points=points[None], primal=primal[None], steps=steps)

    def _liang(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        step = int(state.steps) + problem.plan.steps
        if problem.graph is None:
            rows = [0]
            mixing = np.ones((1, 1))
            moved = [replies.plain_mean(name)[None] for name in ("increment", "point-increment")]
        else:
            rows, mixing = problem.graph.rows_of(replies)
            state = self._expanded(state, mixing.shape[0])
            moved = [np.zeros_like(state.gradients) for _ in range(2)]
            for uplink, row in zip(replies, rows, strict=True):
                moved[0][row], moved[1][row] = uplink.vectors["increment"], uplink.vectors["point-increment"]
        gradients, points = mixing @ (state.gradients + moved[0]), mixing @ (state.points + moved[1])
        primals = state.primal.copy()
        for row in rows:
            primals[row] = self._model(problem, state, row).liang_point(gradients[row], points[row], step)
            points[row] = accumulated(points[row], problem.h.gradient(primals[row]), step)
        return state._replace(gradients=gradients, points=points, primal=primals, steps=float(step))

    def retrieve(self, problem: Problem, state: FastState) -> Vector:
        """Return the primal point; on a graph the mean of the nodes' points, taken in the dual."""
        points = state.primal if problem.graph is None else problem.graph.here(state.primal)
        if points.shape[0] == 1:
            return np.asarray(points[0].copy())
        return problem.h.conjugate_gradient(np.array([problem.h.gradient(point) for point in points]).mean(axis=0))

    def node_points(self, problem: Problem, state: FastState) -> Matrix | None:
        """Return the points of all nodes, shape (M, d), in the order of their rows; None without a graph."""
        return None if problem.graph is None else np.array(state.primal)

    def restart(self, problem: Problem, state: FastState, change: Change) -> FastState:
        """Return the state with a row for each node."""
        return state if problem.graph is None else self._expanded(state, problem.graph.num_rows)

    def metrics(self, problem: Problem, state: FastState) -> dict[str, Any]:
        """Return the nodes' disagreement, if there is a graph."""
        return {} if problem.graph is None else {"consensus-error": consensus_error(problem.graph.here(state.points))}


@dataclass(frozen=True, kw_only=True)
class ConstrainedFastDualAveraging(FastDualAveraging):
    """C-FedDA: only the server's points enter the model, and an l1 ball may bound them. In stages it is MC-FedDA."""

    name = "constrained_fast_dual_averaging"

    constrained: bool = field(init=False, default=True)


class LowerModel:
    """A round's lower model, whose minimisers are the points.

    Parameters
    ----------
    message : Downlink
        A node's message, with the anchor x_0 (Liang's r), unless that is 0.
    method : FastDualAveraging
        With mu, Bao's gamma, and Liang's L, which Fast-FedDA does not use: it takes mu, and has no anchor.
    """

    def __init__(self, message: Downlink, method: FastDualAveraging) -> None:
        self.message = message
        self.h = message.plan.h
        self.method = method
        self.smoothness: float | None = method.smoothness if method.constrained else None
        self.anchor = message.vectors.get("anchor", np.zeros_like(message.vectors["primal"]))
        # Around a map's own center grad h(0) is not 0.
        anchored = self.method.constrained or method.variant == "bao"
        self.anchor_dual = self.h.gradient(self.anchor) if anchored else None

    def bao_step(self, client: Client, points: Vector, count: int) -> Step:
        """Return a step of Bao's variant, which adds to the gradients and to the points, in place."""
        numbers = self.message.numbers
        primal = self.message.vectors["primal"]
        k = 0

        def step(gradients: Vector, batch: Batch) -> None:
            nonlocal primal, k
            k += 1
            client.objective.add_gradient(primal, batch, 1.0, gradients)
            if self.method.constrained:
                # C-FedDA's model uses the weights at the end of the round in every step.
                primal = self.bao_point(gradients, points, numbers["steps"] + count, numbers["rounds"] + 1.0)
                return
            steps = numbers["steps"] + k
            primal = self.bao_point(gradients, points, steps, steps)
            points[:] += self.h.gradient(primal)

        return step

    def liang_step(self, client: Client, points: Vector, count: int) -> Step:
        """Return a step of Liang's variant, which updates the means of gradients and points, in place."""
        first = int(self.message.numbers["steps"])
        primal = self.message.vectors["primal"]
        number = first

        def step(gradients: Vector, batch: Batch) -> None:
            nonlocal primal, number
            number += 1
            a, before, after = liang_weights(number)
            gradients *= before / after
            client.objective.add_gradient(primal, batch, -a / after, gradients)
            if number < first + count:
                primal = self.liang_point(gradients, points, number)
                points[:] = accumulated(points, self.h.gradient(primal), number)

        return step

    def bao_point(self, gradients: Vector, points: Vector, steps: float, count: float) -> Vector:
        """Return prox_{psi/b}(-a/b), a = g/steps - mu/2 x/count - gamma x_0/steps, b = mu/2 + gamma/steps.

        Parameters
        ----------
        gradients : ndarray of float64, shape (d,)
            g, the sum of the gradients.
        points : ndarray of float64, shape (d,)
            x, the sum of grad h at the points.
        steps : float
            eta, the number of gradients in g.
        count : float
            The number of points in x: `steps` for Fast-FedDA, the rounds for C-FedDA.
        """
        scale = 0.5 * self.method.convexity + self.method.anchor_weight / steps
        dual = (0.5 * self.method.convexity / count) * points - gradients / steps
        if self.anchor_dual is not None:
            dual += (self.method.anchor_weight / steps) * self.anchor_dual
        return self._minimiser(dual / scale, 1.0 / scale)

    def liang_point(self, gradients: Vector, points: Vector, step: int) -> Vector:
        """Return A1/(mu/2 A + a mu) soft(N + mu/2 V, lambda).

        With a smoothness L (C-FedDA): A1/(mu/2 A + a L) soft(N + mu/2 V + L a/A1 r, lambda).

        Parameters
        ----------
        gradients : ndarray of float64, shape (d,)
            N, minus the weighted mean of the gradients.
        points : ndarray of float64, shape (d,)
            V, the weighted mean of grad h at the points.
        step : int
            Number of the step, from 1.
        """
        (a, before, after), convexity, smoothness = liang_weights(step), self.method.convexity, self.smoothness
        dual = gradients + 0.5 * convexity * points
        if smoothness is not None and self.anchor_dual is not None:
            dual += (smoothness * a / after) * self.anchor_dual
        scale = after / (0.5 * convexity * before + a * (convexity if smoothness is None else smoothness))
        return self._minimiser(scale * dual, scale)

    def _minimiser(self, dual: Vector, t: float) -> Vector:
        """Return retrieve(dual, t strength), then moved into the ball; not the exact minimiser of the sum."""
        numbers = self.message.numbers
        point = self.h.retrieve(dual, t * numbers["strength"], self.message.plan.psi)
        if numbers["radius"] <= 0.0:
            return point
        return np.asarray(self.anchor + L1Ball(numbers["radius"]).prox(point - self.anchor, 1.0))


def liang_weights(step: int) -> tuple[float, float, float]:
    """Return a, A and A1 = A + a of a step, numbered from 1; the steps have weights 1, 2, 3, ..."""
    return float(step), step * (step - 1) / 2.0, step * (step + 1) / 2.0


def accumulated(points: Vector, dual: Vector, step: int) -> Vector:
    """Return V after a step: A/A1 V + (a+1)/A1 grad h(W).

    Parameters
    ----------
    points, dual : ndarray of float64, shape (d,)
        V and grad h(W).
    step : int
        Number of the step, from 1.
    """
    a, before, after = liang_weights(step)
    return (before / after) * points + ((a + 1.0) / after) * dual


@strategy
class FastFedDA(CompositeStrategy):
    """Fast-FedDA: every local point enters the model.

    Parameters
    ----------
    variant : {"bao", "liang"}, default "bao"
        Algorithm of Bao and others, or of Liang and others; see the module docstring.
    convexity : float, default 0.1
        mu. Bao's LASSO experiments use 0.1, EMNIST 1e-3, Liang's linear regression 8.
    anchor_weight : float, default 10.0
        gamma, Bao only: at least the losses' curvature. Bao's experiments use 550 (LASSO) and 25 (EMNIST).
    mixing : Topology, array of shape (M, M), str or None, default None
        Liang only: the graph; with None the server takes the mean.
    weighting : {"examples", "uniform"}, optional
        Client weights p_m: numbers of examples (the default without a graph) or equal (the default and only choice on a
        graph).

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).

    Examples
    --------
    >>> from flwr_fco.strategies import Steps
    >>> FastFedDA(convexity=0.1, anchor_weight=550.0, work=Steps(10)).variant
    'bao'
    """

    algorithm = FastDualAveraging
    work: FirstOrder = field(default=Epochs())
    normalize_local_work: bool = True
    variant: Literal["bao", "liang"] = "bao"
    convexity: float = field(default=0.1, metadata=POSITIVE)
    anchor_weight: float = field(default=10.0, metadata=POSITIVE)
    mixing: Topology | Matrix | str | None = None
    weighting: Literal["examples", "uniform"] | None = None  # type: ignore[assignment]

    def _check(self) -> None:
        if self.weighting is None:
            self.weighting = "examples" if self.mixing is None else "uniform"
        super()._check()
        if self.variant == "bao" and self.mixing is not None:
            raise ConfigurationError('variant="bao" has no form on a graph; take variant="liang", or mixing=None')
        if self.variant == "liang" and self.work.steps is None:
            raise ConfigurationError(
                'variant="liang" counts its steps, so all clients must take the same number: work=Steps(...)'
            )


@strategy
class CFedDA(FastFedDA):
    """C-FedDA: only the server's points enter the model, and an l1 ball may bound them.

    Bao's LASSO experiments use anchor_weight 600.

    Parameters
    ----------
    variant, convexity, anchor_weight, mixing, weighting
        As of :class:`FastFedDA`.
    smoothness : float, default 10.0
        L, Liang only.
    radius : float, optional
        Radius of the l1 ball around the start point; no ball by default, as in Bao's experiments.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).

    Examples
    --------
    >>> CFedDA(radius=30.0, anchor_weight=600.0).radius
    30.0
    """

    algorithm = ConstrainedFastDualAveraging
    smoothness: float = field(default=10.0, metadata=POSITIVE)
    radius: float | None = field(default=None, metadata=POSITIVE)


@strategy
class MCFedDA(FastFedDA):
    """MC-FedDA: C-FedDA in stages, each around the previous stage's point, with a smaller ball and a weaker psi.

    Parameters
    ----------
    variant, convexity, anchor_weight, mixing, weighting
        As of :class:`FastFedDA`.
    stages : sequence of ModelStage, optional
        The schedule; the last stage has no end. Bao's LASSO experiments: rounds 250, 250, 1500, radius 1e4 / 2^s,
        strengths 1/8, 1/16, 1/32 for s = 1, 2, 3. By default one stage without a ball, which is C-FedDA.
    smoothness : float, default 10.0
        L, Liang only.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).

    Examples
    --------
    >>> len(MCFedDA(stages=[ModelStage(250, 5e3, 1 / 8), ModelStage(250, 2.5e3, 1 / 16)]).stages)
    2
    """

    algorithm = ConstrainedFastDualAveraging
    smoothness: float = field(default=10.0, metadata=POSITIVE)
    stages: Sequence[ModelStage] | None = None

    def _check(self) -> None:
        super()._check()
        for stage in self.stages or ():
            if not all(0.0 < value < math.inf for value in stage):
                raise ConfigurationError(f"{stage}: expected finite numbers > 0")
