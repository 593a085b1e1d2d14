"""Regularizers and mirror maps give what they gave at commit 0b4ecee5, before each was read from what it says."""

from pathlib import Path

import numpy as np
import pytest
from psi_numbers import MAPS, PSIS, numbers_of, numbers_of_map, numbers_on_models

_STORED = np.load(Path(__file__).parents[1] / "stored_runs" / "psi.npz")
EXPECTED = np.split(_STORED["numbers"], np.cumsum(_STORED["sizes"])[:-1])


def check(found, expected, *, zeros=True):
    """To 1e-12 of a number, or of a thousandth of the largest one; with the same counts, ranks and zeros."""
    reported = ~np.isnan(expected)  # Some conjugates were not known.
    found, expected = found[reported], expected[reported]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    size = np.abs(expected[finite])
    assert (np.abs(found[finite] - expected[finite]) <= 1e-12 * np.maximum(size, 1e-3 * size.max())).all()
    assert not zeros or ((found == 0.0) == (expected == 0.0)).all()


@pytest.mark.parametrize(("own", "expected"), list(zip(PSIS, EXPECTED[: len(PSIS)], strict=True)))
def test_regularizers(own, expected):
    # An entry of a matrix of low rank is 0 by chance.
    check(numbers_of(*own), expected, zeros=own[0] not in ("Nuclear", "NuclearBall", "SpectralBall"))


@pytest.mark.parametrize(("own", "expected"), list(zip(MAPS, EXPECTED[len(PSIS) : -1], strict=True)))
def test_mirror_maps(own, expected):
    check(numbers_of_map(*own), expected)


def test_models_of_several_arrays_and_long_vectors():
    check(numbers_on_models(), EXPECTED[-1])
