"""Gaps and certificates of saddle-point problems: Fenchel-Young first, then the papers' formulas and CVXPY."""

import cvxpy as cp
import numpy as np
import pytest
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import (
    BilinearSaddle,
    LeastSquares,
    MatrixGame,
    QuadraticSaddle,
    UniversalAdversarialLogistic,
)
from flwr_fco.pooled.saddle import (
    conjugate,
    duality_gap,
    game_solution,
    natural_residual,
    saddle_metrics,
    saddle_point,
    strongest_perturbation,
)
from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NonNegative,
    Nuclear,
    NuclearBall,
    PerParameter,
    Simplex,
    SpectralBall,
    Zero,
)

WEIGHTS = np.array([0.5, 1.0, 2.0, 0.7, 1.0, 3.0])
CONJUGATES = [
    (Zero(), (6,)),
    (L1(0.3), (6,)),
    (L1(0.3, weights=WEIGHTS, bound=0.4), (6,)),
    (L2Squared(0.5, weights=WEIGHTS), (6,)),
    (ElasticNet(0.4, 0.3), (2, 3)),
    (Box(-WEIGHTS, 0.5), (6,)),
    (NonNegative(), (6,)),
    (LInfinityBall(0.3), (6,)),
    (L1Ball(1.5), (6,)),
    (L1Ball(1.5, weights=WEIGHTS), (6,)),
    (L2Ball(0.7), (6,)),
    (Simplex(2.0), (6,)),
    (Nuclear(0.3), (3, 4)),
    (Nuclear(0.3, bound=0.5), (3, 4)),
    (NuclearBall(1.1), (3, 4)),
    (SpectralBall(0.4), (4, 3)),
    (Nuclear(0.2, bound=0.4, reshape="first"), (3, 2, 2)),
]


@together(("psi", "shape"), CONJUGATES)
def test_a_conjugate_is_fenchels(psi, shape):
    """With p = prox(u) the vector (u - p)/s is a subgradient at p: psi(p) + psi*(v) = <p, v>; elsewhere at least."""
    rng = np.random.default_rng(0)
    for step in (0.3, 2.0):
        u = rng.normal(size=shape)
        p = psi.prox(u, step)
        v = (u - p) / step
        # Of an unbounded norm v lies on the boundary of where psi* is finite: rounding may push it outside.
        inner = v * (1.0 - 1e-12)
        assert psi.value(p) + conjugate(psi, inner) == pytest.approx(float(np.vdot(p, v)), abs=1e-10)
        for _ in range(10):
            other = psi.prox(rng.normal(size=shape), 0.5)
            assert psi.value(other) + conjugate(psi, inner) >= float(np.vdot(other, inner)) - 1e-12


def test_conjugates_that_are_infinite_or_unknown():
    assert conjugate(L1(1.0), np.array([0.5, 1.5])) == np.inf
    assert conjugate(Nuclear(1.0), np.diag([0.5, 1.5])) == np.inf
    assert conjugate(NonNegative(), np.array([-1.0, 1e-3])) == np.inf
    assert conjugate(L1Ball(1.0, weights=np.array([1.0, 0.0])), np.array([1.0, 0.5])) == np.inf
    layout = BilinearSaddle([[1.0]]).layout
    assert conjugate(PerParameter({"x": Box(-1.0, 1.0)}).bind(layout), np.array([2.0, 0.0])) == 2.0
    assert conjugate(PerParameter({"x": Box(-1.0, 1.0)}).bind(layout), np.array([2.0, 0.1])) == np.inf
    with pytest.raises(ConfigurationError, match="conjugate of L2"):
        conjugate(L2(1.0), np.ones(2))


def bilinear(seed, *shape, width=None):
    rng = np.random.default_rng(seed)
    offset = rng.uniform(-1, 1, (shape[0], width) if width else shape[0])
    return BilinearSaddle(rng.uniform(-1, 1, shape), offset)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_is_the_papers_formula_for_l1_in_boxes(seed):
    """Appendix A.1, written out."""
    objective, strength, side = bilinear(seed, 30, 50), 0.1, 0.05
    w = np.random.default_rng(seed + 10).uniform(-side, side, 80)
    a, b, x, y = objective.matrix, objective.offset, w[:50], w[50:]
    paper = (
        side * np.maximum(np.abs(a @ x - b) - strength, 0.0).sum()
        + strength * np.abs(x).sum()
        + side * np.maximum(np.abs(a.T @ y) - strength, 0.0).sum()
        + b @ y
        + strength * np.abs(y).sum()
    )
    assert duality_gap([objective], None, L1(strength, bound=side), w) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_is_the_papers_formula_for_nuclear_norms_in_spectral_balls(seed):
    """Appendix A.2, written out."""
    objective, strength, side = bilinear(seed, 9, 12, width=4), 0.1, 0.05
    psi = Nuclear(strength, bound=side).bind(objective.layout)
    w = psi.prox(np.random.default_rng(seed + 10).uniform(-1, 1, objective.layout.size), 0.0)
    a, b = objective.matrix, objective.offset
    x, y = objective.players(w)

    def singular(matrix):
        return np.linalg.svd(matrix, compute_uv=False)

    paper = (
        side * np.maximum(singular(a @ x - b) - strength, 0.0).sum()
        + strength * singular(x).sum()
        + side * np.maximum(singular(a.T @ y) - strength, 0.0).sum()
        + np.trace(b.T @ y)
        + strength * singular(y).sum()
    )
    assert duality_gap([objective], None, psi, w) == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("kind", ["sparse", "low rank"])
def test_the_gap_is_what_cvxpy_finds_for_the_two_best_answers(kind):
    rng = np.random.default_rng(5)
    if kind == "sparse":
        objective = bilinear(5, 4, 6)
        psi = PerParameter({"x": L1(0.2, bound=0.5), "y": L1(0.1, bound=0.3)})
    else:
        objective = bilinear(5, 4, 6, width=3)
        psi = PerParameter({"x": Nuclear(0.2, bound=0.5), "y": Nuclear(0.1, bound=0.3)})
    bound = psi.bind(objective.layout)
    w = bound.prox(rng.normal(size=objective.layout.size), 0.1)
    x, y = objective.players(w)
    a, b = objective.matrix, objective.offset
    best_x, best_y = cp.Variable(x.shape), cp.Variable(y.shape)
    if kind == "sparse":
        parts = [(best_x, 0.2, 0.5, cp.norm1, cp.norm_inf), (best_y, 0.1, 0.3, cp.norm1, cp.norm_inf)]
    else:
        parts = [(best_x, 0.2, 0.5, cp.normNuc, cp.sigma_max), (best_y, 0.1, 0.3, cp.normNuc, cp.sigma_max)]
    (of_x, of_y), inside = zip(*[(s * norm(v), top(v) <= side) for v, s, side, norm, top in parts], strict=True)
    psi_x, psi_y = psi.for_array("x").value(x), psi.for_array("y").value(y)
    upper = cp.Problem(cp.Maximize(cp.sum(cp.multiply(a @ x - b, best_y)) - of_y), [inside[1]])
    lower = cp.Problem(cp.Minimize(cp.sum(cp.multiply(a @ best_x - b, y)) + of_x), [inside[0]])
    gap = (upper.solve(solver=cp.CLARABEL) + psi_x) - (lower.solve(solver=cp.CLARABEL) - psi_y)
    assert duality_gap([objective], None, psi, w) == pytest.approx(gap, abs=1e-6)


def test_the_gap_of_a_matrix_game_is_what_the_players_could_gain():
    rng = np.random.default_rng(6)
    clients = [MatrixGame(rng.uniform(-1, 1, (5, 4)), num_examples=n) for n in (1, 3)]
    payoff = 0.25 * clients[0].payoff + 0.75 * clients[1].payoff
    x, y = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(4))
    w = np.r_[x, y]
    expected = (payoff.T @ x).max() - (payoff @ y).min()
    assert duality_gap(clients, None, Zero(), w) == pytest.approx(expected, rel=1e-12)
    assert duality_gap(clients, None, PerParameter({"*": Simplex()}), w) == pytest.approx(expected, rel=1e-12)
    assert duality_gap(clients, None, Zero(), 1.1 * w) == np.inf
    solution = game_solution(clients)
    assert solution.value == pytest.approx((payoff @ solution.y).min(), abs=1e-9)
    assert solution.value == pytest.approx((payoff.T @ solution.x).max(), abs=1e-9)
    assert duality_gap(clients, None, Zero(), np.r_[solution.x, solution.y]) == pytest.approx(0.0, abs=1e-9)


def test_the_gap_bounds_that_of_a_quadratic_from_above():
    rng = np.random.default_rng(7)
    objective = QuadraticSaddle(np.eye(3), rng.normal(size=(2, 3)), np.eye(2), offset=rng.normal(size=2))
    psi = Box(-1.0, 1.0)
    best_x, best_y = cp.Variable(3), cp.Variable(2)
    for _ in range(5):
        x, y = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 2)
        a, b = objective.coupling, objective.offset
        upper = cp.Maximize((a @ x - b) @ best_y - 0.5 * cp.sum_squares(best_y) + 0.5 * x @ x)
        lower = cp.Minimize(0.5 * cp.sum_squares(best_x) + (a @ best_x - b) @ y - 0.5 * y @ y)
        gap = cp.Problem(upper, [cp.abs(best_y) <= 1]).solve() - cp.Problem(lower, [cp.abs(best_x) <= 1]).solve()
        assert duality_gap([objective], None, psi, np.r_[x, y]) >= gap - 1e-6


def test_rounding_is_forgiven_and_infeasible_points_are_not():
    objective, psi = bilinear(8, 3, 4), L1(0.1, bound=0.5)
    edge = np.full(7, 0.5)
    inside = duality_gap([objective], None, psi, edge)
    assert duality_gap([objective], None, psi, edge * (1.0 + 1e-11)) == pytest.approx(inside, rel=1e-9)
    assert duality_gap([objective], None, psi, edge * 1.001) == np.inf


def test_there_is_no_gap_without_a_concave_player():
    adversarial = UniversalAdversarialLogistic(np.eye(3), [0, 1, 2])
    loss = LeastSquares(np.eye(2), np.ones(2))
    for objective in (adversarial, loss):
        with pytest.raises(ConfigurationError, match="natural_residual"):
            duality_gap([objective], None, L1(1.0), np.zeros(objective.layout.size))


def test_the_residual_is_zero_at_saddle_points_and_only_there():
    rng = np.random.default_rng(9)
    clients = [
        QuadraticSaddle(np.diag(rng.random(3) + 0.5), rng.normal(size=(2, 3)), np.eye(2), linear=rng.normal(size=3))
        for _ in range(3)
    ]
    saddle = saddle_point(clients, [1, 2, 3])
    assert natural_residual(clients, [1, 2, 3], Zero(), saddle) <= 1e-12
    assert natural_residual(clients, [1, 1, 1], Zero(), saddle) >= 1e-2
    game = MatrixGame(rng.normal(size=(4, 3)))
    solution = game_solution([game])
    for step in (0.1, 1.0):
        assert natural_residual([game], None, Zero(), np.r_[solution.x, solution.y], step=step) <= 1e-8
        assert natural_residual([game], None, Zero(), np.r_[np.full(4, 0.25), np.full(3, 1 / 3)], step=step) >= 1e-2


def test_metrics_of_each_player():
    objective, side = bilinear(10, 4, 5, width=2), 0.5
    psi = PerParameter({"x": Nuclear(0.1, bound=side), "y": L1(0.1, bound=side)})
    w = np.zeros(objective.layout.size)
    x, y = objective.players(w)
    x[:, 0] = 0.1
    y[0, 0], y[1, 1] = 0.2, 1e-6
    metrics = saddle_metrics([objective], None, psi, w)
    assert set(metrics) == {"gap", "residual", "density", "density-x", "density-y", "rank-x"}
    assert (metrics["density-x"], metrics["density-y"], metrics["rank-x"]) == (0.5, 1 / 8, 1.0)
    assert metrics["density"] == pytest.approx(6 / 18)
    assert metrics["gap"] == duality_gap([objective], None, psi, w)
    adversarial = UniversalAdversarialLogistic(np.eye(3), [0, 1, 2])
    metrics = saddle_metrics([adversarial], None, PerParameter({"perturbation": L1(0.1)}), np.ones(15))
    assert "gap" not in metrics
    assert metrics["density-perturbation"] == 1.0


def test_the_gap_of_quadratics_is_what_the_best_answers_gain():
    """max_y' f(x, y') - min_x' f(x', y), by solving for the answers; 0 at the saddle point; of unequal clients too."""
    rng = np.random.default_rng(5)
    clients = []
    for _ in range(3):
        roots = rng.normal(size=(3, 3)), rng.normal(size=(2, 2))
        convexity, concavity = roots[0] @ roots[0].T + np.eye(3), roots[1] @ roots[1].T + np.eye(2)
        options = {"linear": rng.normal(size=3), "offset": rng.normal(size=2)}
        clients.append(QuadraticSaddle(convexity, rng.normal(size=(2, 3)), concavity, **options))
    weights = [1.0, 2.0, 5.0]
    f = QuadraticSaddle.pooled(clients, np.array(weights) / 8.0)
    w = rng.normal(size=5)
    x, y = w[:3], w[3:]
    theirs = np.linalg.solve(f.concavity, f.coupling @ x - f.offset)
    ours = np.linalg.solve(f.convexity, -f.coupling.T @ y - f.linear)
    expected = f.value(np.r_[x, theirs]) - f.value(np.r_[ours, y])
    assert duality_gap(clients, weights, Zero(), w) == pytest.approx(expected, rel=1e-12)
    assert duality_gap(clients, weights, Zero(), f.solution) == pytest.approx(0.0, abs=1e-20)
    # Without curvature nothing bounds an answer.
    flat = QuadraticSaddle(np.zeros((3, 3)), np.ones((2, 3)), np.eye(2))
    assert duality_gap([flat], None, Zero(), w) == np.inf


@pytest.mark.parametrize("price", [0.0, 0.02, 0.3])
def test_the_strongest_perturbation_is_the_best_corner(price):
    """By trying all corners of a small box; sparse where the price is high, none where it is higher still."""
    rng = np.random.default_rng(6)
    objective = UniversalAdversarialLogistic(rng.normal(size=(12, 5)), np.arange(12) % 3, intercept=False)
    w = np.r_[2.0 * rng.normal(size=15), np.full(5, 0.1)]
    psi = L1(price, bound=0.7) if price else Box(-0.7, 0.7)
    best, found = -np.inf, 0
    for corner in np.ndindex(*(3,) * 5):
        delta = 0.7 * (np.array(corner) - 1.0)
        value = objective.value(np.r_[w[:15], delta]) - psi.value(delta)
        if value > best:
            best, found = value, np.count_nonzero(delta)
    attacked = strongest_perturbation(objective, w, psi)
    assert objective.value(attacked) - psi.value(attacked[15:]) == pytest.approx(best, abs=1e-12)
    assert np.count_nonzero(attacked[15:]) == found
    assert np.array_equal(attacked[:15], w[:15])
    assert (w[15:] == 0.1).all()


def test_the_strongest_perturbation_needs_a_bound():
    objective = UniversalAdversarialLogistic(np.eye(3), [0, 1, 2])
    for psi in (L1(0.1), Zero(), L2Ball(1.0)):
        with pytest.raises(ConfigurationError, match="box"):
            strongest_perturbation(objective, np.zeros(15), psi)
