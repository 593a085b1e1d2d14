"""Singular values: the method is chosen by cost, and no choice costs accuracy; the rank is what it says."""

import numpy as np
import pytest
from numpy.linalg import matrix_rank as numerical_rank

from flwr_fco.core.layout import Layout
from flwr_fco.regularizers import Nuclear, NuclearBall, SpectralBall
from flwr_fco.regularizers.spectral import noise_of


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


def low_rank_and_noise(m, n, rank, noise):
    rng = np.random.default_rng(1)
    return rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n)) / np.sqrt(m) + noise * rng.normal(size=(m, n))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (32, 32), (60, 20), (20, 60), (200, 160)])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_the_rank_is_the_numerical_rank_after_the_wire_too(m, n, quantile, size):
    v = size * low_rank_and_noise(m, n, 4, 0.05)
    threshold = np.quantile(np.linalg.svd(v, compute_uv=False), quantile) * (1 + 1e-9)
    layout = Layout.from_arrays({"w": v})
    for psi in (Nuclear(1.0), Nuclear(1.0, bound=1.5 * threshold), NuclearBall(3 * threshold), SpectralBall(threshold)):
        wire = np.frombuffer(layout.flatten({"w": psi.prox(v, threshold)}).tobytes())
        kept = psi.of_values().prox(np.linalg.svd(v, compute_uv=False), threshold)
        assert numerical_rank(layout.views(wire)["w"]) == (kept > noise_of(kept.max(), v.shape)).sum()


def test_nearly_equal_to_the_threshold():
    """Singular values that exceed the threshold by rounding do not count."""
    left, values, right = with_singular_values(40, 40, [3.0, 1.0 + 1e-15, 1.0, 1.0 - 1e-15, 0.5])
    assert numerical_rank(Nuclear(1.0).prox((left * values) @ right, 1.0)) == 1
    assert not Nuclear(1.0).prox(np.eye(5), 1.0).any()


def test_float32_is_computed_in_float64():
    left, values, right = with_singular_values(50, 30, np.geomspace(1.0, 1e-4, 6))
    v = ((left * values) @ right).astype(np.float32)
    exact, got = (Nuclear(1.0).prox(own, 5e-5) for own in (v.astype(np.float64), v))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact.astype(np.float32))


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
    np.testing.assert_allclose(p, 0.1 * left @ right, rtol=0, atol=1e-9)
