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
elsewhere (Liang's variant wants `local_steps`); 2. C-FedDA's radius is off by default, as in Bao's experiments.
There are no learning rates.

Errata: Bao's Fast-FedDA sums K + 1 points a round for K gradients, which shifts its limit by an error of order mu/K
(measured: .098 and .0094 at mu .1 and .01, K 1). This is the default; ``last_point=False`` converges to the optimum.
Bao's constrained map applies the soft threshold and then the projection, which is not the exact proximal map of the
sum; kept. Liang's Fast-FedDA passes L but uses mu; kept. Their C-FedDA does not add r back after the projection, which
is wrong once r is not 0; it is added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps.quadratic_models import LowerModel, accumulated
from flwr_fco.server.algorithm import Problem
from flwr_fco.server.clients.graph import Matrix
from flwr_fco.server.convergence import Limit, Shifted, Vanishing
from flwr_fco.server.options import POSITIVE, GraphOptions, Mixing, WorkOptions
from flwr_fco.server.questions.rates import LossFacts
from flwr_fco.server.replies.replies import Replies
from flwr_fco.server.strategy import CompositeStrategy
from flwr_fco.strategies.on_graphs.decentralized import with_rows
from flwr_fco.topology import consensus_error
from flwr_fco.wire.protocol import Downlink, Node, Option


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


@dataclass(repr=False, eq=False, kw_only=True)
class FastFedDA(GraphOptions, WorkOptions, CompositeStrategy):
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

    Examples
    --------
    >>> str(FastFedDA(convexity=0.1, anchor_weight=550.0, local_steps=10).limit)
    'shifted'
    """

    local_solver: ClassVar[str] = "fast_dual_averaging"
    limit: ClassVar[Limit] = Shifted()
    source: ClassVar[str] = "Bao and others 2022; as run by [2]"
    sends: ClassVar[str] = "sums of gradients and points"
    traffic: ClassVar[str] = "3 / 2"
    constrained: ClassVar[bool] = False
    exact_elapsed: ClassVar[bool] = True
    needs_mean: ClassVar[str] = "its model is built on the sums of all gradients and points, which must belong together"

    variant: Literal["bao", "liang"] = "bao"
    convexity: float = field(default=0.1, metadata=POSITIVE)
    anchor_weight: float | Literal["auto"] = field(default=10.0, metadata=POSITIVE)
    last_point: bool = True
    mixing: Mixing | None = None  # type: ignore[assignment]
    weighting: Literal["examples", "uniform"] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.weighting is None:
            self.weighting = "examples" if self.mixing is None else "uniform"
        super().__post_init__()
        if self.variant == "bao" and self.graph is not None:
            raise ConfigurationError('variant="bao" has no form on a graph; take variant="liang", or mixing=None')
        if self.variant == "liang" and self.local_steps is None:
            raise ConfigurationError(
                'variant="liang" counts its steps, so all clients must take the same number: give local_steps'
            )

    @property
    def model_smoothness(self) -> float:
        """Smoothness L of the models, for Liang's variant of C-FedDA."""
        return 0.0

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return L for `anchor_weight` and `smoothness`."""
        return {"anchor_weight": (facts.curvature, "L"), "smoothness": (facts.curvature, "L")}

    # --- stages (MC-FedDA) and the ball (C-FedDA) ---------------------------------------------------------------

    def stage_at(self, stage: int) -> ModelStage:
        """Return the settings of a stage; Fast-FedDA has one stage, without a ball or an end."""
        return ModelStage(0, 0.0)

    def _model(self, problem: Problem, state: FastState, row: int) -> LowerModel:
        """Return the model around a node's anchor, in this stage."""
        stage, anchor = self.stage_at(state.stage), state.anchor[row]
        return LowerModel(
            problem.h,
            problem.psi,
            stage.strength,
            stage.radius,
            self.convexity,
            problem.numbers["anchor_weight"] if self.variant == "bao" else 0.0,
            self.model_smoothness if self.constrained else None,
            anchor,
            problem.h.gradient(anchor) if self.variant == "bao" or self.constrained else None,
        )

    def solver_options(self) -> dict[str, Option]:
        """Return the constants of the models."""
        return {
            "variant": self.variant,
            "constrained": self.constrained,
            "convexity": self.convexity,
            "anchor-weight": self.number("anchor_weight"),
            "smoothness": self.model_smoothness,
            "last-point": self.last_point,
        }

    def describe(self) -> list[tuple[str, str]]:
        """Return the line about the models."""
        return [("Models", f"{self.variant}, convexity {self.convexity:g}")]

    # --- the mathematics ------------------------------------------------------------------------------------------

    def init(self, problem: Problem, primal: Vector) -> FastState:
        """Return the state before round 1."""
        zeros, dual = np.zeros((1, primal.size)), problem.h.gradient(primal)[None, :]
        points = zeros if self.variant == "liang" and not self.constrained else dual
        state = FastState(zeros, points, primal[None, :], primal[None, :])
        return state if problem.graph is None else self._expanded(state, problem.graph.num_rows)

    def _expanded(self, state: FastState, num_nodes: int) -> FastState:
        """Return the state with a row for each node, all like the first one."""
        return with_rows(state, num_nodes, "points", "gradients", "primal", "anchor")

    @property
    def personal(self) -> bool:  # type: ignore[override]
        """Whether each node gets its own message, as on a graph."""
        return self.mixing is not None

    def downlink(self, problem: Problem, state: FastState, node: Node | None) -> Downlink:
        """Return a node's sums and points, and the position in the stage."""
        row = 0 if problem.graph is None or node is None else problem.graph.rows[node.key]
        vectors = {"gradients": state.gradients[row], "points": state.points[row], "primal": state.primal[row]}
        if (self.variant == "bao" or self.constrained) and state.anchor[row].any():
            vectors["anchor"] = state.anchor[row]
        stage = self.stage_at(state.stage)
        numbers = {
            "steps": state.steps,
            "rounds": float(state.stage_round),
            "radius": stage.radius,
            "strength": stage.strength,
        }
        return Downlink(problem.plan, vectors, numbers=numbers)

    def uplink_shapes(self, problem: Problem) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the sums' increments."""
        shapes = super().uplink_shapes(problem)
        if self.variant == "liang" or not self.constrained:
            shapes["point-increment"] = shapes["increment"]
        return shapes

    def aggregate(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        """Return the mixed sums, the resulting points, and the next stage if one ends."""
        following = (self._bao if self.variant == "bao" else self._liang)(problem, state, replies)
        following = following._replace(round=state.round + 1, stage_round=state.stage_round + 1)
        stage = self.stage_at(state.stage)
        if stage.rounds and following.stage_round >= stage.rounds:
            duals = np.array([problem.h.gradient(point) for point in following.primal])
            following = following._replace(
                gradients=np.zeros_like(duals),
                points=duals,
                anchor=following.primal,
                steps=0.0,
                stage=state.stage + 1,
                stage_round=0,
            )
        return following

    def _bao(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        gradients, elapsed = replies.mean()
        gradients += state.gradients[0]
        points, steps = state.points[0].copy(), state.steps + elapsed
        if not self.constrained:
            points += replies.plain_mean("point-increment", normalize=True)
        count = state.stage_round + 1.0 if self.constrained else steps
        primal = self._model(problem, state, 0).bao_point(gradients, points, steps, count)
        points += problem.h.gradient(primal)
        return state._replace(gradients=gradients[None], points=points[None], primal=primal[None], steps=steps)

    def _liang(self, problem: Problem, state: FastState, replies: Replies) -> FastState:
        step, h = int(state.steps) + int(self.local_steps or 0), problem.h
        if problem.graph is None:
            rows, mixing = [0], np.ones((1, 1))
            moved = [replies.plain_mean(name)[None] for name in ("increment", "point-increment")]
        else:
            rows, mixing = problem.graph.places(replies)
            state = self._expanded(state, mixing.shape[0])
            moved = [np.zeros_like(state.gradients) for _ in range(2)]
            for uplink, row in zip(replies, rows, strict=True):
                moved[0][row], moved[1][row] = uplink.vectors["increment"], uplink.vectors["point-increment"]
        gradients, points = mixing @ (state.gradients + moved[0]), mixing @ (state.points + moved[1])
        primals = state.primal.copy()
        for row in rows:
            primals[row] = self._model(problem, state, row).liang_point(gradients[row], points[row], step)
            points[row] = accumulated(points[row], h.gradient(primals[row]), step)
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

    def nodes_changed(self, problem: Problem, state: FastState, left: Sequence[int]) -> FastState:
        """Return the state with a row for each node."""
        return state if problem.graph is None else self._expanded(state, problem.graph.num_rows)

    def metrics(self, problem: Problem, state: FastState) -> dict[str, float | int]:
        """Return the nodes' disagreement, if there is a graph."""
        return {} if problem.graph is None else {"consensus-error": consensus_error(problem.graph.here(state.points))}


@dataclass(repr=False, eq=False, kw_only=True)
class CFedDA(FastFedDA):
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

    Examples
    --------
    >>> CFedDA(radius=30.0, anchor_weight=600.0).stage_at(0).radius
    30.0
    """

    limit: ClassVar[Limit] = Vanishing()
    constrained: ClassVar[bool] = True
    traffic: ClassVar[str] = "3 / 1; Liang's 3 / 2"

    smoothness: float | Literal["auto"] = field(default=10.0, metadata=POSITIVE)
    radius: float | None = field(default=None, metadata=POSITIVE)

    @property
    def model_smoothness(self) -> float:
        """L of the models."""
        return self.number("smoothness")

    def stage_at(self, stage: int) -> ModelStage:
        """Return the only stage, which has the ball and no end."""
        return ModelStage(0, self.radius or 0.0)


@dataclass(repr=False, eq=False, kw_only=True)
class MCFedDA(CFedDA):
    """MC-FedDA: C-FedDA in stages, each around the previous stage's point, with a smaller ball and a weaker psi.

    Parameters
    ----------
    stages : sequence of ModelStage, optional
        The schedule; the last stage has no end. Bao's LASSO experiments: rounds 250, 250, 1500, radius 1e4 / 2^s,
        strengths 1/8, 1/16, 1/32 for s = 1, 2, 3. By default one stage, which is C-FedDA.
    smoothness : float or "auto", default 10.0
        L, Liang only. ``"auto"``: the value that the clients report before round 1.
    radius : float, optional
        Radius of the l1 ball of the default stage.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022).

    Examples
    --------
    >>> MCFedDA(stages=[ModelStage(250, 5e3, 1 / 8), ModelStage(250, 2.5e3, 1 / 16)]).stage_at(7).radius
    2500.0
    """

    stages: Sequence[ModelStage] | None = None

    def __post_init__(self) -> None:
        self.stages = tuple(self.stages or ())
        super().__post_init__()
        for n, stage in enumerate(self.stages):
            if stage.rounds < 1 or stage.rounds != int(stage.rounds) or not (stage.radius > 0 and stage.strength > 0):
                raise ConfigurationError(
                    f"stage {n} is {stage}; expected a whole number of rounds and a radius and a strength > 0"
                )

    def stage_at(self, stage: int) -> ModelStage:
        """Return the settings of a stage; the last stage never ends."""
        if not self.stages:
            return super().stage_at(stage)
        if stage >= len(self.stages) - 1:
            return self.stages[-1]._replace(rounds=0)
        return self.stages[stage]
