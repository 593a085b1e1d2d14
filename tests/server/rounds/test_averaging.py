"""The moving average keeps a sum: it stays the mean of the last points, however many rounds there are."""

import numpy as np
import pytest

from flwr_fco.server.rounds.output import PointAverage

WINDOW, SIZE = 7, 20


def points(number):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SIZE) * 10.0 ** rng.uniform(-3, 3) for _ in range(number)]


def test_it_is_the_mean_of_the_last_points():
    average, seen = PointAverage("moving-average", WINDOW), points(500)
    average.start(SIZE)
    for number, point in enumerate(seen, 1):
        average.begin_round()
        average.add([point])
        last = np.array(seen[max(number - WINDOW, 0) : number])
        assert np.abs(average.mean() - last.mean(axis=0)).max() <= 1e-12 * np.abs(last).max()


@pytest.mark.parametrize("rounds", [WINDOW - 1, WINDOW, 3 * WINDOW, 3 * WINDOW + 2])
def test_a_round_that_does_not_count_leaves_no_trace(rounds):
    plain, disturbed = (PointAverage("moving-average", WINDOW) for _ in range(2))
    for average in (plain, disturbed):
        average.start(SIZE)
    for point in points(rounds):
        disturbed.begin_round()
        disturbed.add([1e6 * point, point])
        disturbed.take_back()
        for average in (plain, disturbed):
            average.begin_round()
            average.add([point])
    np.testing.assert_array_equal(plain.mean(), disturbed.mean())


def test_it_goes_on_from_what_was_saved():
    unbroken, resumed = (PointAverage("moving-average", WINDOW) for _ in range(2))
    unbroken.start(SIZE)
    seen = points(30)
    for point in seen[:17]:
        unbroken.begin_round()
        unbroken.add([point])
    resumed.start(SIZE)
    resumed.from_arrays(unbroken.to_arrays())
    for average in (unbroken, resumed):
        for point in seen[17:]:
            average.begin_round()
            average.add([point])
    np.testing.assert_array_equal(unbroken.mean(), resumed.mean())
