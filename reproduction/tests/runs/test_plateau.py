"""The rule of the authors' experiments: scores without a new best halve the rates."""

from reproduction.runs.plateau import Plateau


def test_both_rates_are_halved_and_the_count_begins_anew():
    plateau = Plateau(patience=2)
    rates, seen = (plateau.rate(0.02), plateau.rate(1.0)), []
    for score in (5.0, 4.0, 4.0, 4.0, 3.0, 3.0, float("nan"), 3.0):
        plateau.observe(score)
        seen.append(tuple(rate(1) for rate in rates))
    assert seen == [(0.02, 1.0)] * 3 + [(0.01, 0.5)] * 3 + [(0.005, 0.25)] * 2
