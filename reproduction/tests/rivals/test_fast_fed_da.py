"""Fast-FedDA, C-FedDA and MC-FedDA against plain NumPy."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from problems import FEATURES, clients, flat, run
from together import together

from flwr_fco import topology
from flwr_fco.algorithms import Replies
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Uplink
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Bounds, Steps, run_of
from reproduction.rivals import CFedDA, FastFedDA, MCFedDA
from reproduction.rivals.fast_fed_da import ModelStage

D = FEATURES + 1
SIZES = (20, 20, 20, 20)
LAMBDA, MU, GAMMA, L, K = 0.3, 0.4, 12.0, 15.0, 3
WHERE = np.r_[np.ones(FEATURES), 0.0]  # psi leaves the intercept alone


def soft(x, a):
    return np.sign(x) * np.maximum(np.abs(x) - a * WHERE, 0.0)


def project(x, radius):
    """Onto the l1 ball, by sorting."""
    if np.abs(x).sum() <= radius:
        return x
    u = np.sort(np.abs(x))[::-1]
    k = np.nonzero(u * np.arange(1, x.size + 1) > np.cumsum(u) - radius)[0][-1]
    return np.sign(x) * np.maximum(np.abs(x) - (np.cumsum(u)[k] - radius) / (k + 1), 0.0)


def ball(w, x0, radius):
    return w if radius is None else x0 + project(w - x0, radius)


def bao(objectives, w0, rounds, *, constrained, radius=None, stages=None):
    """The server's points, round by round."""
    points, total = [], 0
    x0, w = w0.copy(), w0.copy()
    for stage in stages or [(rounds, radius, 1.0)]:
        length, radius, factor = stage
        g, x, x0 = np.zeros(D), w.copy(), w.copy()
        for r in range(1, length + 1):
            gs, xs = [], []
            for f in objectives:
                g_m, x_m, w_m = g.copy(), x.copy(), w.copy()
                for k in range(1, K + 1):
                    g_m = g_m + f.gradient(w_m)
                    eta = r * K if constrained else (r - 1) * K + k
                    mean = x_m / r if constrained else x_m / eta
                    a = g_m / eta - MU / 2 * mean - GAMMA * x0 / eta
                    b = MU / 2 + GAMMA / eta
                    w_m = ball(soft(-a / b, LAMBDA * factor / b), x0, radius)
                    if not constrained:
                        x_m = x_m + w_m
                gs.append(g_m)
                xs.append(x_m)
            g, x, eta = np.mean(gs, axis=0), np.mean(xs, axis=0), r * K
            a = g / eta - MU / 2 * (x / r if constrained else x / eta) - GAMMA * x0 / eta
            b = MU / 2 + GAMMA / eta
            w = ball(soft(-a / b, LAMBDA * factor / b), x0, radius)
            x = x + w
            points.append(w)
            total += 1
            if total == rounds:
                return points
    return points


def liang(objectives, w0, rounds, u, *, constrained, radius=None):
    """Rows of W, round by round."""
    m = len(objectives)
    n_, w = np.zeros((m, D)), np.repeat(w0[None], m, axis=0)
    v = w.copy() if constrained else np.zeros((m, D))
    r, n, big, points = w.copy(), 0, 0.0, []
    for _ in range(rounds):
        for k in range(K):
            a = n + 1
            big1 = big + a
            g = np.array([f.gradient(row) for f, row in zip(objectives, w, strict=True)])
            n_ = big / big1 * n_ - a / big1 * g
            if k == K - 1:
                n_, v = u @ n_, u @ v
            if constrained:
                w = big1 / (MU / 2 * big + a * L) * soft(n_ + MU / 2 * v + L * a / big1 * r, LAMBDA)
                if radius is not None:
                    w = np.array([ball(row, center, radius) for row, center in zip(w, r, strict=True)])
            else:
                w = big1 / (MU / 2 * big + a * MU) * soft(n_ + MU / 2 * v, LAMBDA)
            v = big / big1 * v + (a + 1) / big1 * w
            n, big = n + 1, big1
        points.append(w)
    return points


def options(**more):
    return {
        "regularizer": L1(LAMBDA),
        "convexity": MU,
        "work": Steps(K, batch_size=None),
        "weighting": "uniform",
        # Some of these runs diverge, and are compared all the same.
        "bounds": Bounds(max_ratio=None),
        **more,
    }


def trace(strategy, rounds, w0):
    seen = []
    run(strategy, clients(SIZES), rounds, start=w0, callbacks=[lambda n, a, m: seen.append(flat(a))])
    return np.array(seen)


STARTS = [np.zeros(D), np.linspace(-1.0, 1.0, D)]


@pytest.mark.parametrize("w0", STARTS, ids=["from zero", "from elsewhere"])
def test_bao(w0):
    objectives = clients(SIZES)
    fast = trace(FastFedDA(anchor_weight=GAMMA, **options()), 8, w0)
    np.testing.assert_allclose(fast, bao(objectives, w0, 8, constrained=False), rtol=1e-10, atol=1e-12)
    free = trace(CFedDA(anchor_weight=GAMMA, **options()), 8, w0)
    np.testing.assert_allclose(free, bao(objectives, w0, 8, constrained=True), rtol=1e-10, atol=1e-12)
    expected = bao(objectives, w0, 8, constrained=True, radius=0.5)
    bound = trace(CFedDA(anchor_weight=GAMMA, radius=0.5, **options()), 8, w0)
    np.testing.assert_allclose(bound, expected, rtol=1e-10, atol=1e-12)
    assert np.abs(bound[-1] - w0).sum() == pytest.approx(0.5)


@pytest.mark.parametrize("w0", STARTS, ids=["from zero", "from elsewhere"])
def test_stages_of_mc_fed_da(w0):
    stages = [(3, 2.0, 1.0), (4, 1.0, 0.5), (9, 0.5, 0.25)]
    expected = bao(clients(SIZES), w0, 12, constrained=True, stages=stages)
    strategy = MCFedDA(stages=[ModelStage(*stage) for stage in stages], anchor_weight=GAMMA, **options())
    np.testing.assert_allclose(trace(strategy, 12, w0), expected, rtol=1e-10, atol=1e-12)
    assert (strategy.state.stage, strategy.state.stage_round) == (2, 5)


@together("w0", STARTS)
@together("mixing", [None, "complete", "chain"])
@together("constrained", [False, True, 0.5])
def test_liang(w0, mixing, constrained):
    objectives = clients(SIZES)
    u = topology.chain(4).mixing if mixing == "chain" else np.full((4, 4), 0.25)
    radius = None if isinstance(constrained, bool) else constrained
    expected = liang(objectives, w0, 7, u, constrained=bool(constrained), radius=radius)
    more = options(variant="liang", mixing=mixing)
    strategy = CFedDA(smoothness=L, radius=radius, **more) if constrained else FastFedDA(**more)
    last = trace(strategy, 7, w0)[-1]
    np.testing.assert_allclose(last, expected[-1].mean(axis=0), rtol=1e-10, atol=1e-12)
    if mixing is not None:
        begun = run_of(strategy)
        points = begun.method.node_points(begun.problem, begun.state)
        np.testing.assert_allclose(points, expected[-1], rtol=1e-10, atol=1e-12)


def test_sums_of_points_are_of_equal_work():
    """Bao's server: points + sum_m p_m (K / K_m) x_m + grad h(primal), with K the mean of the clients' steps K_m."""
    strategy = FastFedDA(regularizer=L1(0.1), fraction_evaluate=0.0, work=Steps(2, batch_size=None))
    begun = strategy.prepare(ArrayRecord({"w": Array(np.zeros(3))}))
    problem, state = begun.problem._replace(round=1), begun.state
    rng, steps, weights = np.random.default_rng(0), [1.0, 5.0], [0.5, 0.5]
    points = rng.standard_normal((2, 3))
    said = [
        Uplink({"increment": k * np.ones(3), "point-increment": own}, k, int(k), weight=weight)
        for k, own, weight in zip(steps, points, weights, strict=True)
    ]
    after = begun.method.aggregate(problem, state, Replies(said, begun.mean))
    expected = state.points[0] + sum(p * 3.0 / k * own for k, own, p in zip(steps, points, weights, strict=True))
    np.testing.assert_allclose(after.points[0] - problem.h.gradient(after.primal[0]), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastFedDA(variant="fast"), "variant='fast'"),
        (lambda: FastFedDA(mixing="ring"), "no form on a graph"),
        (lambda: FastFedDA(variant="liang"), "work=Steps"),
        (lambda: FastFedDA(convexity=0.0), "convexity=0.0"),
        (lambda: CFedDA(radius=-1.0), "radius=-1.0"),
        (lambda: MCFedDA(stages=[ModelStage(0, 1.0)]), r"ModelStage\(rounds=0, .* expected finite numbers > 0"),
    ],
)
def test_refusals_name_the_value(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
