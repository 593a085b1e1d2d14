"""The noise against brute force: its sensitivity over all patterns of participation, its covariance over the rounds."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.stats import kstest

from flwr_fco.privacy import BandedNoise, banded_sensitivity, clipped, secure_normal, square_root_coefficients


def banded_matrix(rounds, bands):
    c = np.zeros(rounds)
    c[: min(bands, rounds)] = square_root_coefficients(min(bands, rounds))
    return np.tril(toeplitz(c))


def largest_influence(matrix, separation):
    """The largest |C x| over all patterns of participation, and all signs."""
    rounds = matrix.shape[1]
    best = 0.0
    gram = matrix.T @ matrix
    for bits in itertools.product((0, 1), repeat=rounds):
        there = np.flatnonzero(bits)
        if there.size and (there.size == 1 or np.diff(there).min() >= separation):
            own = gram[np.ix_(there, there)]
            if there.size <= 4:
                signs = np.array(list(itertools.product((-1, 1), repeat=there.size)))
                best = max(best, *np.einsum("ij,jk,ik->i", signs, own, signs))
            best = max(best, own.sum())
    return math.sqrt(best)


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 12])
def test_the_banded_sensitivity_is_that_of_all_patterns(rounds):
    for separation in {1, 2, 3, 5, rounds}:
        for bands in {1, 2, separation, separation + 2, rounds, rounds + 3}:
            brute = largest_influence(banded_matrix(rounds, bands), separation)
            assert banded_sensitivity(rounds, separation, bands) == pytest.approx(brute, abs=1e-12, rel=0)


def noise_matrix(stream, rounds):
    """The noise of each round as a linear function of all numbers that were drawn."""
    drawn = 0

    def draw():
        nonlocal drawn
        unit = np.zeros(2 * rounds)
        unit[drawn] = 1.0
        drawn += 1
        return unit

    return np.array([stream.next(draw) for _ in range(rounds)])


@pytest.mark.parametrize("bands", [1, 2, 4, 20])
def test_the_streamed_banded_noise_is_that_of_the_inverse(bands):
    stream = BandedNoise(bands)
    streamed = noise_matrix(stream, 12)[:, :12]
    assert len(stream.last) < bands
    np.testing.assert_allclose(banded_matrix(12, bands) @ streamed, np.eye(12), atol=1e-13)


def test_secure_numbers_are_normal_and_never_the_same():
    one, other = secure_normal(50_000), secure_normal(50_000)
    assert kstest(np.concatenate([one, other]), "norm").pvalue > 1e-6
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    assert np.isfinite(one).all()


def test_what_is_clipped_is_within_the_bound_whatever_it_is():
    rng = np.random.default_rng(1)
    bounds = [(slice(0, 3), 0.5), (slice(3, 5), 2.0)]
    odd = [np.full(5, 1e308), np.full(5, 5e-324), np.array([1e200, 1.0, -1e-200, 1e300, 0.0]), np.zeros(5)]
    odd += [np.array([np.inf, 1.0, 1.0, np.nan, 1.0]), *(rng.standard_normal((200, 5)) * 10.0 ** rng.integers(-3, 4))]
    for vector in odd:
        before = vector.copy()
        found = clipped(vector, bounds)
        for block, bound in bounds:
            assert np.linalg.norm(found[block]) <= bound
        np.testing.assert_array_equal(vector, before)
    inside = np.array([0.1, 0.2, 0.3, 1.0, 1.0])
    np.testing.assert_array_equal(clipped(inside, bounds), inside)
