"""Losses, psi, mirror maps and minimisers give what they gave at commit 0b4ecee5, before each was made anew."""

from pathlib import Path

import numpy as np
import pytest
from local_minima import problems
from losses import CASES, Logistic, number_of
from psi_numbers import MAPS, PSIS, numbers_of, numbers_of_map, numbers_on_models

from flwr_fco.engines import minimise
from flwr_fco.work import Minimise

FOLDER = Path(__file__).parent / "stored_runs"
LOSSES, MINIMA, PSI = (np.load(FOLDER / f"{name}.npz") for name in ("losses", "local_minima", "psi"))
NUMBERS = np.split(PSI["numbers"], np.cumsum(PSI["sizes"])[:-1])
PROBLEMS = {name: (loss, terms) for name, loss, terms in problems()}


def test_320_losses_say_what_is_stored():
    found = [number_of(number) for number in range(len(CASES))]
    np.testing.assert_allclose(found, LOSSES["losses"], rtol=0.0, atol=1e-12)


@pytest.mark.slow
def test_lanczos_finds_what_is_stored():
    features = np.random.default_rng(0).normal(size=(2200, 2300))
    np.testing.assert_allclose(Logistic(features, features[:, 0] > 0.0).lipschitz(), LOSSES["lanczos"], rtol=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_minimiser_is_the_stored_one(name):
    loss, terms = PROBLEMS[name]
    found = minimise(loss, Minimise(tolerance=1e-11), **terms)
    assert found.reached
    np.testing.assert_allclose(found.point, MINIMA[name], rtol=0, atol=1e-10)


def check(found, expected, *, zeros=True):
    """To 1e-12 of a number, or of a thousandth of the largest one; with the same counts, ranks and zeros."""
    known = ~np.isnan(expected)  # Some conjugates were not known.
    found, expected = found[known], expected[known]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    size = np.abs(expected[finite])
    assert (np.abs(found[finite] - expected[finite]) <= 1e-12 * np.maximum(size, 1e-3 * size.max())).all()
    assert not zeros or ((found == 0.0) == (expected == 0.0)).all()


@pytest.mark.parametrize(("own", "expected"), list(zip(PSIS, NUMBERS[: len(PSIS)], strict=True)))
def test_regularizers_give_what_is_stored(own, expected):
    # An entry of a matrix of low rank is 0 by chance.
    check(numbers_of(*own), expected, zeros=own[0] not in ("Nuclear", "NuclearBall", "SpectralBall"))


@pytest.mark.parametrize(("own", "expected"), list(zip(MAPS, NUMBERS[len(PSIS) : -1], strict=True)))
def test_mirror_maps_give_what_is_stored(own, expected):
    check(numbers_of_map(*own), expected)


def test_models_of_several_arrays_and_long_vectors_give_what_is_stored():
    check(numbers_on_models(), NUMBERS[-1])
