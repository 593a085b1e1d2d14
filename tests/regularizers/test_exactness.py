"""Proximal maps against rational arithmetic, and where squares leave the range of floats."""

from fractions import Fraction

import numpy as np
import pytest

from flwr_fco.regularizers import L1, L2, ElasticNet, GroupLasso, L1Ball, L2Ball, L2Squared, Simplex

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
