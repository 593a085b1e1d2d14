"""Every proximal map against conditions that prove it (duality, rational arithmetic) and against CVXPY."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from together import together

from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NonNegative,
    Nuclear,
    NuclearBall,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
)

N = 12
EPS = np.finfo(np.float64).eps
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.0, 0.25, 1.0, 4.0, 1.0])
POSITIVE = WEIGHTS + 0.5
GROUPS = np.array([0, 1, 0, 3, 1, 1, 4, 4, 4, 5, 3, 0])
ROOTS = np.sqrt(np.bincount(GROUPS))


def soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


def group_norms(w):
    return np.array([np.linalg.norm(w[g == GROUPS]) for g in range(6)])


def spectral(w):
    return np.linalg.norm(w, 2)


def nuclear(w):
    return np.linalg.norm(w, "nuc")


# psi(w) = norm(w); r = v - p is step times a subgradient at p exactly if dual(r) <= step and <r, p> = step norm(p).
NORMS = [
    (L1(0.7), (N,), lambda w: 0.7 * np.abs(w).sum(), lambda r: np.abs(r).max() / 0.7),
    (
        L1(0.7, weights=POSITIVE),
        (N,),
        lambda w: 0.7 * (POSITIVE * np.abs(w)).sum(),
        lambda r: (np.abs(r) / POSITIVE).max() / 0.7,
    ),
    (L2(0.7), (N,), lambda w: 0.7 * np.linalg.norm(w), lambda r: np.linalg.norm(r) / 0.7),
    (
        GroupLasso(0.7, groups=GROUPS),
        (N,),
        lambda w: 0.7 * (ROOTS * group_norms(w)).sum(),
        lambda r: (group_norms(r)[ROOTS > 0] / ROOTS[ROOTS > 0]).max() / 0.7,
    ),
    (Nuclear(0.7), (4, 3), lambda w: 0.7 * nuclear(w), lambda r: spectral(r) / 0.7),
    (Nuclear(0.7), (3, 6), lambda w: 0.7 * nuclear(w), lambda r: spectral(r) / 0.7),
]

# A set C; p is the projection exactly if it is in C and <r, p> is the largest <r, x> over C, the support function.
SETS = [
    (L1Ball(0.7), (N,), lambda r: 0.7 * np.abs(r).max()),
    (L1Ball(0.7, weights=POSITIVE), (N,), lambda r: 0.7 * (np.abs(r) / POSITIVE).max()),
    (L2Ball(0.7), (N,), lambda r: 0.7 * np.linalg.norm(r)),
    (LInfinityBall(0.7), (N,), lambda r: 0.7 * np.abs(r).sum()),
    (Simplex(0.7), (N,), lambda r: 0.7 * r.max()),
    (Box(-0.3, 0.7), (N,), lambda r: np.where(r > 0, 0.7 * r, -0.3 * r).sum()),
    (NuclearBall(0.7), (4, 3), lambda r: 0.7 * spectral(r)),
    (SpectralBall(0.7), (3, 6), lambda r: 0.7 * nuclear(r)),
]


def points(shape):
    rng = np.random.default_rng(1)
    for size in (1e-3, 0.3, 1.0, 10.0, 1e4):
        yield size * rng.normal(size=shape)
    yield np.ones(shape)
    yield np.resize([1.0, -1.0, 1.0, 0.0], shape)
    yield np.zeros(shape)


@together(("psi", "shape", "norm", "dual"), NORMS)
@together("step", [1e-6, 1e-2, 0.4, 1.0, 30.0, 1e6])
def test_norms_satisfy_their_optimality_conditions(psi, shape, norm, dual, step):
    for v in points(shape):
        p = psi.prox(v, step)
        r = v - p
        size = step + np.abs(v).max()
        assert psi.value(p) == pytest.approx(norm(p), rel=1e-13, abs=1e-300)
        assert dual(r) - step <= 1e-13 * size
        assert abs(np.sum(r * p) - step * norm(p)) <= 1e-13 * size * (np.abs(v).sum() + norm(p))


@together(("psi", "shape", "support"), SETS)
def test_projections_satisfy_their_optimality_conditions(psi, shape, support):
    for v in points(shape):
        p = psi.prox(v, 1.0)
        assert psi.value(p) == 0.0
        # The residual against the size of v: rounding v alone moves it by this much.
        assert support(v - p) - np.sum((v - p) * p) <= 2e-14 * (1 + np.abs(v).sum())


@pytest.mark.parametrize("step", [1e-2, 0.4, 3.0])
def test_other_optimality_conditions(step):
    for v in points((N,)):
        size = 1e-13 * (step + np.abs(v).max())
        p = ElasticNet(0.7, 0.3).prox(v, step)
        r = v - p - step * 0.7 * 0.7 * p
        assert np.abs(r).max() <= step * 0.21 + size
        assert np.abs(r[p != 0] - step * 0.21 * np.sign(p[p != 0])).max(initial=0) <= size

        p = SparseGroupLasso(0.7, groups=GROUPS, l1_ratio=0.3).prox(v, step)
        r = v - p
        assert (group_norms(soft(r, step * 0.21)) <= step * 0.49 * ROOTS + size).all()
        norm = 0.21 * np.abs(p).sum() + 0.49 * (ROOTS * group_norms(p)).sum()
        assert abs(r @ p - step * norm) <= size * (1 + np.abs(v).sum())

        p = L2Squared(0.7, weights=WEIGHTS).prox(v, step)
        assert np.abs(p * (1 + step * 0.7 * WEIGHTS) - v).max() <= size


#: What the conditions above do not cover: coordinates without weight, and two constraints at a time.
CONES = [
    (L1(0.7, weights=WEIGHTS), (N,), lambda x: 0.7 * WEIGHTS @ cp.abs(x), lambda x: []),
    (L1(0.7, bound=0.2), (N,), lambda x: 0.7 * cp.norm1(x), lambda x: [cp.abs(x) <= 0.2]),
    (L1Ball(1.5, weights=WEIGHTS), (N,), lambda x: 0, lambda x: [WEIGHTS @ cp.abs(x) <= 1.5]),
    (NonNegative(), (N,), lambda x: 0, lambda x: [x >= 0]),
    (Nuclear(0.3, bound=0.4), (4, 3), lambda x: 0.3 * cp.normNuc(x), lambda x: [cp.sigma_max(x) <= 0.4]),
]


@together(("psi", "shape", "term", "constraints"), CONES)
@together("step", [0.05, 1.0, 4.0])
def test_no_worse_than_cvxpy(psi, shape, term, constraints, step):
    v = np.random.default_rng(2).normal(size=shape)
    x = cp.Variable(shape)
    problem = cp.Problem(cp.Minimize(step * term(x) + 0.5 * cp.sum_squares(x - v)), constraints(x))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    p = psi.prox(v, step)
    objective = (0.0 if psi.constraint else step * psi.value(p)) + 0.5 * np.sum((p - v) ** 2)
    # Their point is infeasible by their tolerance, which can make its objective smaller by about as much.
    assert objective <= problem.value + 1e-9 * max(1.0, abs(problem.value))
    np.testing.assert_allclose(p, x.value, atol=2e-5)


def rational_projection(v, radius, absolute):
    """Project onto the l1 ball or the simplex in rational arithmetic: no rounding at all."""
    exact = [Fraction(float(x)) for x in v]
    size = [abs(x) if absolute else x for x in exact]
    radius = Fraction(radius)
    if absolute and sum(size) <= radius:
        return exact
    theta = None
    total = Fraction(0)
    for k, x in enumerate(sorted(size, reverse=True), start=1):
        total += x
        if x > (total - radius) / k:
            theta = (total - radius) / k
    return [max(s - theta, 0) * (1 if x > 0 or not absolute else -1) for s, x in zip(size, exact, strict=True)]


@together("radius", [1e-10, 0.5, 1.0, 37.0, 1e10])
@together("magnitude", [1e-300, 1e-5, 1.0, 1e8, 1e17, 1e200])
def test_projections_against_rational_arithmetic(radius, magnitude):
    """Relative accuracy of eps in the radius, also where v is 1e200 times as large as the radius."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 5, 40):
        for v in (
            rng.normal(size=n),
            np.ones(n),
            rng.integers(-2, 3, size=n).astype(float),
            1 + 1e-9 * rng.normal(size=n),
        ):
            v = magnitude * v
            for psi, absolute in ((L1Ball(radius), True), (Simplex(radius), False)):
                exact = rational_projection(v, radius, absolute)
                got = psi.prox(v, 1.0)
                error = max(abs(float(Fraction(float(x)) - y)) for x, y in zip(got, exact, strict=True))
                assert error <= 4 * EPS * radius
                assert (
                    abs(float(sum(abs(Fraction(float(x))) for x in got) - sum(abs(x) for x in exact)))
                    <= 8 * EPS * radius
                )


@pytest.mark.parametrize("n", [65_536, 300_001])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_long_projections(n, dtype):
    """From 65,536 on a sample guesses the threshold: also where the sample misleads."""
    rng = np.random.default_rng(4)
    spike = np.zeros(n)
    spike[1] = 5.0
    for v in (rng.normal(size=n), np.sort(rng.normal(size=n)), rng.standard_cauchy(size=n), spike, np.ones(n)):
        v = v.astype(dtype)
        for radius in (1e-3, 1.0, 100.0, 0.4 * float(np.abs(v).sum(dtype=np.float64))):
            p = L1Ball(radius).prox(v, 1.0).astype(np.float64)
            if np.abs(v).sum(dtype=np.float64) <= radius:
                assert np.array_equal(p, v)
                continue
            eps = np.finfo(dtype).eps
            assert abs(np.abs(p).sum() - radius) <= 8 * eps * radius * np.sqrt(n)
            theta = (np.abs(v) - np.abs(p))[p != 0]
            assert np.ptp(theta) <= 8 * eps * np.abs(v).max()
            assert (np.abs(v)[p == 0] <= theta.min() + 8 * eps * np.abs(v).max()).all()


@pytest.mark.parametrize("radius", [0.5, 4.0])
@pytest.mark.parametrize("magnitude", [1.0, 1e8, 1e200])
def test_weighted_ball_is_feasible_and_proportional(radius, magnitude):
    rng = np.random.default_rng(5)
    for _ in range(20):
        v = magnitude * rng.normal(size=N)
        p = L1Ball(radius, weights=WEIGHTS).prox(v, 1.0)
        inside = (WEIGHTS * np.abs(v)).sum() <= radius
        assert inside or abs((WEIGHTS * np.abs(p)).sum() - radius) <= 16 * EPS * radius
        assert np.array_equal(p[WEIGHTS == 0], v[WEIGHTS == 0])
        shrunk = (WEIGHTS > 0) & (p != 0)
        theta = (np.abs(v) - np.abs(p))[shrunk] / WEIGHTS[shrunk]
        assert np.ptp(theta) <= 16 * EPS * np.abs(v).max() / WEIGHTS[WEIGHTS > 0].min()


def test_values_are_not_lost_to_overflow():
    assert L2(1.0).value(np.full(4, 1e200)) == pytest.approx(2e200)
    assert L2(1.0).value(np.full(4, 1e-200)) == pytest.approx(2e-200)
    np.testing.assert_allclose(L2Ball(1.0).prox(np.full(4, 1e300), 1.0), 0.5)
    np.testing.assert_allclose(L2Ball(1e-310).prox(np.full(4, 1e-200), 1.0), 0.5e-310, rtol=1e-6)
    np.testing.assert_allclose(L2(1.0).prox(np.full(4, 1e-200), 1e-200), 0.5e-200)
    psi = GroupLasso(1.0, groups=[0, 0, 1, 1], weights=[1.0, 1.0])
    for size in (1e-200, 1e200):
        p = psi.prox(size * np.array([30.0, 40.0, 3.0, 4.0]), 2.5 * size)
        np.testing.assert_allclose(p, size * np.array([28.5, 38.0, 1.5, 2.0]))


@pytest.mark.parametrize(
    ("weights", "v", "expected"),
    [
        # The heavy coordinate becomes 0 exactly where the sum of the light ones is the radius.
        ([1e8, 1.0, 0.5, 0.5, 0.5], [-1.0, 0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 2.0 - 5e-9, 2.0 - 5e-9]),
        ([1e8, 0.5], [1.0, -4.0], [0.0, 5e-9 - 4.0]),
    ],
)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e160])
def test_the_weighted_l1_ball_keeps_light_and_heavy_coordinates_apart(weights, v, expected, scale):
    point = L1Ball(2.0 * scale, weights=np.array(weights)).prox(scale * np.array(v), 1.0)
    np.testing.assert_allclose(point, scale * np.array(expected), rtol=1e-14, atol=1e-14 * scale)


@pytest.mark.parametrize("weights", [None, np.array([4.0, 4.0])])
def test_values_are_right_where_squares_leave_the_range_of_floats(weights):
    times = 1.0 if weights is None else 4.0
    for size, strength, half in ((1e200, 1e-250, 1e150), (1e-200, 1e250, 1e-150), (1e-165, 1e300, 1e-30)):
        w = np.array([size, -size])
        assert L2Squared(strength, weights=weights).value(w) == pytest.approx(times * half, rel=1e-13)
        assert ElasticNet(strength, 0.0, weights=weights).value(w) == pytest.approx(times * half, rel=1e-13)
    for psi in (L1(0.0, weights=weights), L2Squared(0.0, weights=weights), ElasticNet(0.0, 0.3, weights=weights)):
        assert psi.value(np.array([1.7e308, 1.7e308])) == 0.0
    assert np.isnan(L2Squared(1.0, weights=weights).value(np.array([np.nan, 1.0])))


def test_an_elastic_net_of_scales_is_that_of_the_scaled_coefficients():
    """Against a minimisation in u = scales * w, where the term is the plain one."""
    rng = np.random.default_rng(0)
    scales, weights, v = rng.uniform(0.1, 5.0, 6), rng.uniform(0.1, 2.0, 6), 3.0 * rng.standard_normal(6)
    psi, plain = ElasticNet(0.7, 0.3, weights, scales), ElasticNet(0.7, 0.3, weights)
    assert psi.value(v) == pytest.approx(plain.value(scales * v), rel=1e-14)
    best = psi.prox(v, 0.5)
    for j in range(6):
        # On each coordinate: a step of 0.5 scales^2 in u.
        own = ElasticNet(0.7, 0.3, weights[j : j + 1]).prox(scales[j : j + 1] * v[j : j + 1], 0.5 * scales[j] ** 2)
        assert best[j] == pytest.approx(own[0] / scales[j], rel=1e-13)
    assert psi.strength_max(v) == pytest.approx(plain.strength_max(v / scales), rel=1e-14)
    np.testing.assert_allclose(psi.subgradient(v), scales * plain.subgradient(scales * v), rtol=1e-13)
