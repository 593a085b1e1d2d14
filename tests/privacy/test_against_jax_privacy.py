"""The banded noise against Google's jax-privacy: its numbers, stored, and where it is installed the library itself.

jax-privacy is 650 MB, and no dependency of this package. The slow test is skipped without it:
``pip install jax-privacy && python -m pytest -m slow tests/privacy/test_against_jax_privacy.py``.
"""

import numpy as np
import pytest
from together import together

from flwr_fco.privacy.noise import BandedNoise, banded_sensitivity

#: Of jax-privacy 2.0.0, in double precision: rounds, separation, bands; the squared sensitivity
#: (`toeplitz.minsep_sensitivity_squared`) and the variance of the last prefix sum's noise (`toeplitz.per_query_error`).
STORED = {
    (1, 1, 1): (1.0, 1.0),
    (12, 5, 5): (4.3760986328125, 2.8207545226468937),
    (100, 10, 10): (17.91343941586092, 9.143910812523725),
    (256, 256, 256): (2.8310499318613527, 2.831049931861349),
    (500, 49, 49): (24.8259460916886, 9.675092892275233),
    (200, 1, 16): (3858.5251552654026, 11.223722930468849),
    (300, 20, 45): (56.42982102582933, 6.857362980650856),
    (64, 7, 64): (65.76900570258907, 2.388848108295434),
}


def variance_of_the_last_prefix(rounds, bands):
    """Of the streamed noise: each number that is drawn has its own coordinate."""
    stream, total, drawn = BandedNoise(bands), np.zeros(rounds), iter(np.eye(rounds))
    for _ in range(rounds):
        total += stream.next(lambda: next(drawn).copy())
    return float(total @ total)


@together("case", STORED)
def test_sensitivity_and_error_are_the_stored_ones(case):
    rounds, separation, bands = case
    squared, variance = STORED[case]
    assert banded_sensitivity(rounds, separation, bands) ** 2 == pytest.approx(squared, rel=1e-12)
    assert variance_of_the_last_prefix(rounds, bands) == pytest.approx(variance, rel=1e-10)
