"""Gaps and residuals of saddle points against CVXPY and SciPy, and the strongest perturbation against all corners."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import linprog

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle, LeastSquares
from flwr_fco.regularizers import L1, Nuclear, PerParameter, Simplex, Zero
from reproduction.data.saddle_objectives import QuadraticSaddle, UniversalAdversarialLogistic
from reproduction.pooled import duality_gap, stationarity, strongest_perturbation


def bilinear(seed, *shape, width=None):
    rng = np.random.default_rng(seed)
    offset = rng.uniform(-1, 1, (shape[0], width) if width else shape[0])
    return BilinearSaddle(rng.uniform(-1, 1, shape), offset)


@pytest.mark.parametrize(
    ("width", "kind", "norm", "top"), [(None, L1, cp.norm1, cp.norm_inf), (3, Nuclear, cp.normNuc, cp.sigma_max)]
)
def test_the_gap_is_what_cvxpy_finds_for_the_two_best_answers(width, kind, norm, top):
    objective = bilinear(5, 4, 6, width=width)
    psi = PerParameter({"x": kind(0.2, bound=0.5), "y": kind(0.1, bound=0.3)})
    w = psi.bind(objective.layout).prox(np.random.default_rng(5).normal(size=objective.layout.size), 0.1)
    x, y = objective.players(w)
    a, b = objective.matrix, objective.offset
    best_x, best_y = cp.Variable(x.shape), cp.Variable(y.shape)
    psi_x, psi_y = psi.for_array("x").value(x), psi.for_array("y").value(y)
    gained, lost = cp.sum(cp.multiply(a @ x - b, best_y)), cp.sum(cp.multiply(a @ best_x - b, y))
    upper = cp.Problem(cp.Maximize(gained - 0.1 * norm(best_y)), [top(best_y) <= 0.3])
    lower = cp.Problem(cp.Minimize(lost + 0.2 * norm(best_x)), [top(best_x) <= 0.5])
    gap = (upper.solve(solver=cp.CLARABEL) + psi_x) - (lower.solve(solver=cp.CLARABEL) - psi_y)
    assert duality_gap([objective], None, psi, w) == pytest.approx(gap, abs=1e-6)


def test_the_gap_of_a_matrix_game_is_what_the_players_could_gain():
    rng = np.random.default_rng(6)
    payoff = rng.uniform(-1, 1, (5, 4))
    game = BilinearSaddle(payoff.T)
    x = rng.dirichlet(np.ones(5))
    y = rng.dirichlet(np.ones(4))
    expected = (payoff.T @ x).max() - (payoff @ y).min()
    assert duality_gap([game], None, Simplex(), np.r_[x, y]) == pytest.approx(expected, rel=1e-12)
    # min v over (x, v) with P'x <= v on the simplex; y has the multipliers.
    rows = np.hstack([payoff.T, -np.ones((4, 1))])
    given = {"A_ub": rows, "b_ub": np.zeros(4), "A_eq": [[1.0] * 5 + [0.0]], "b_eq": [1.0]}
    found = linprog([0.0] * 5 + [1.0], **given, bounds=[(0.0, None)] * 5 + [(None, None)])
    equilibrium = np.r_[found.x[:5], -found.ineqlin.marginals]
    assert duality_gap([game], None, Simplex(), equilibrium) == pytest.approx(0.0, abs=1e-9)
    assert stationarity([game], None, Simplex(), equilibrium, lipschitz=10.0) <= 1e-8
    assert stationarity([game], None, Simplex(), np.r_[x, y], lipschitz=1.0) >= 1e-2


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
    x = w[:3]
    y = w[3:]
    theirs = np.linalg.solve(f.concavity, f.matrix @ x - f.offset)
    ours = np.linalg.solve(f.convexity, -f.matrix.T @ y - f.linear)
    expected = f.value(np.r_[x, theirs]) - f.value(np.r_[ours, y])
    assert duality_gap(clients, weights, Zero(), w) == pytest.approx(expected, rel=1e-12)
    assert duality_gap(clients, weights, Zero(), f.solution) == pytest.approx(0.0, abs=1e-20)
    # Without curvature nothing bounds an answer.
    flat = QuadraticSaddle(np.zeros((3, 3)), np.ones((2, 3)), np.eye(2))
    assert duality_gap([flat], None, Zero(), w) == np.inf


def test_the_strongest_perturbation_is_the_best_corner():
    """By trying all corners of a small box."""
    rng = np.random.default_rng(6)
    objective = UniversalAdversarialLogistic(rng.normal(size=(12, 5)), np.arange(12) % 3, intercept=False)
    w = np.r_[2.0 * rng.normal(size=15), np.full(5, 0.1)]
    corners = [0.7 * (2.0 * np.array(corner) - 1.0) for corner in np.ndindex(*(2,) * 5)]
    attacked = strongest_perturbation(objective, w, 0.7)
    best = max(objective.value(np.r_[w[:15], delta]) for delta in corners)
    assert objective.value(attacked) == pytest.approx(best, abs=1e-12)
    assert np.array_equal(attacked[:15], w[:15])
    assert (w[15:] == 0.1).all()


def test_there_is_no_gap_without_a_concave_player():
    for objective in (UniversalAdversarialLogistic(np.eye(3), [0, 1, 2]), LeastSquares(np.eye(2), np.ones(2))):
        with pytest.raises(ConfigurationError, match="stationarity"):
            duality_gap([objective], None, L1(1.0), np.zeros(objective.layout.size))


def test_rounding_is_forgiven_and_infeasible_points_are_not():
    objective = bilinear(8, 3, 4)
    psi = L1(0.1, bound=0.5)
    edge = np.full(7, 0.5)
    inside = duality_gap([objective], None, psi, edge)
    assert duality_gap([objective], None, psi, edge * (1.0 + 1e-11)) == pytest.approx(inside, rel=1e-9)
    assert duality_gap([objective], None, psi, edge * 1.001) == np.inf
