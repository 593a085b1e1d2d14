"""Proximal maps against rational arithmetic, where squares leave the range of floats, and of singular values."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.linalg import matrix_rank as numerical_rank
from numpy.testing import assert_allclose, assert_array_equal

from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import L1, L2, ElasticNet, GroupLasso, L1Ball, L2Ball, L2Squared, Nuclear, NuclearBall
from flwr_fco.regularizers.sets import Simplex
from flwr_fco.regularizers.spectral import SpectralBall, noise_of

EPS = np.finfo(np.float64).eps


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


@pytest.mark.parametrize("radius", [1e-10, 0.5, 1.0, 37.0, 1e10])
@pytest.mark.parametrize("magnitude", [1e-300, 1e-5, 1.0, 1e8, 1e17, 1e200])
def test_projections_against_rational_arithmetic(radius, magnitude):
    """Relative accuracy of eps in the radius, also where v is 1e200 times as large as the radius."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 5, 40):
        noise = rng.normal(size=n)
        for v in (noise, np.ones(n), rng.integers(-2, 3, size=n).astype(float), 1 + 1e-9 * noise):
            for psi, absolute in ((L1Ball(radius), True), (Simplex(radius), False)):
                exact = rational_projection(magnitude * v, radius, absolute)
                got = [Fraction(float(x)) for x in psi.prox(magnitude * v, 1.0)]
                assert max(abs(x - y) for x, y in zip(got, exact, strict=True)) <= 4 * EPS * radius
                assert abs(sum(map(abs, got)) - sum(map(abs, exact))) <= 8 * EPS * radius


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


def test_values_are_not_lost_to_overflow():
    assert L2(1.0).value(np.full(4, 1e200)) == pytest.approx(2e200)
    assert L2(1.0).value(np.full(4, 1e-200)) == pytest.approx(2e-200)
    assert_allclose(L2Ball(1.0).prox(np.full(4, 1e300), 1.0), 0.5)
    assert_allclose(L2Ball(1e-310).prox(np.full(4, 1e-200), 1.0), 0.5e-310, rtol=1e-6)
    assert_allclose(L2(1.0).prox(np.full(4, 1e-200), 1e-200), 0.5e-200)
    psi = GroupLasso(1.0, groups=[0, 0, 1, 1], weights=[1.0, 1.0])
    for size in (1e-200, 1e200):
        p = psi.prox(size * np.array([30.0, 40.0, 3.0, 4.0]), 2.5 * size)
        assert_allclose(p, size * np.array([28.5, 38.0, 1.5, 2.0]))


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
    assert_allclose(point, scale * np.array(expected), rtol=1e-14, atol=1e-14 * scale)


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


# --- singular values --------------------------------------------------------------------------------------------------


def with_singular_values(m, n, values, seed=0):
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(m, len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(n, len(values))))[0]
    return left, np.asarray(values, dtype=float), right.T


@pytest.mark.parametrize(("m", "n"), [(20, 20), (60, 12), (12, 60), (200, 180)])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8])
def test_the_smallest_kept_singular_value_is_accurate(m, n, condition):
    left, values, right = with_singular_values(m, n, np.geomspace(1.0, 1.0 / condition, 8))
    threshold = 0.25 / condition
    exact = (left * (values - threshold)) @ right
    got = Nuclear(1.0).prox((left * values) @ right, threshold)
    assert numerical_rank(got) == 8
    # A matrix product in float64 knows the matrix to eps sigma_1, so its singular values to eps * condition.
    limit = max(1e-9, 1e-14 * condition)
    smallest = np.linalg.svd(got, compute_uv=False)[7]
    assert abs(smallest / (values[-1] - threshold) - 1) <= limit
    assert np.linalg.norm(got - exact) <= 1e-12 * np.linalg.norm(exact) + 1e-15


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (32, 32), (60, 20), (20, 60), (200, 160)])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_the_rank_is_the_numerical_rank_after_the_wire_too(m, n, quantile, size):
    rng = np.random.default_rng(1)
    low_rank = rng.normal(size=(m, 4)) @ rng.normal(size=(4, n)) / np.sqrt(m)
    v = size * (low_rank + 0.05 * rng.normal(size=(m, n)))
    threshold = np.quantile(np.linalg.svd(v, compute_uv=False), quantile) * (1 + 1e-9)
    layout = Layout.from_arrays({"w": v})
    for psi in (Nuclear(1.0), Nuclear(1.0, bound=1.5 * threshold), NuclearBall(3 * threshold), SpectralBall(threshold)):
        wire = np.frombuffer(layout.flatten({"w": psi.prox(v, threshold)}).tobytes())
        kept = psi.of_values().prox(np.linalg.svd(v, compute_uv=False), threshold)
        assert numerical_rank(layout.views(wire)["w"]) == (kept > noise_of(kept.max(), v.shape)).sum()


def test_rounding_above_a_threshold_is_no_rank_and_float32_is_widened():
    left, values, right = with_singular_values(40, 40, [3.0, 1.0 + 1e-15, 1.0, 1.0 - 1e-15, 0.5])
    assert numerical_rank(Nuclear(1.0).prox((left * values) @ right, 1.0)) == 1
    assert not Nuclear(1.0).prox(np.eye(5), 1.0).any()
    left, values, right = with_singular_values(50, 30, np.geomspace(1.0, 1e-4, 6))
    v = ((left * values) @ right).astype(np.float32)
    exact, got = (Nuclear(1.0).prox(own, 5e-5) for own in (v.astype(np.float64), v))
    assert got.dtype == np.float32
    assert_array_equal(got, exact.astype(np.float32))


def test_nan_and_infinity_are_not_hidden():
    for bad in (np.nan, np.inf):
        v = np.eye(3)
        v[0, 1] = bad
        for psi in (Nuclear(1.0), NuclearBall(1.0), SpectralBall(0.5)):
            assert np.isnan(psi.prox(v, 1.0)).all()
            assert not psi.value(v) < np.inf


@pytest.mark.parametrize(("m", "n"), [(3, 8), (20, 20), (40, 12), (160, 170)])
@pytest.mark.parametrize("condition", [2.0, 300.0])
def test_a_proximal_point_is_within_its_bound(m, n, condition):
    """By the cheap method too, whose singular vectors are orthogonal to eps * condition^2 only."""
    left, values, right = with_singular_values(m, n, np.geomspace(condition, 1.0, min(m, n)))
    psi = Nuclear(1.0, bound=0.1)
    v = (left * values) @ right
    p = psi.prox(v, 0.7)
    assert psi.value(p) == pytest.approx(0.1 * min(m, n), rel=1e-12)
    assert_allclose(p, 0.1 * left @ right, rtol=0, atol=1e-9)
