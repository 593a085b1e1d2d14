"""Each rule decides as its sentence says, and falsified data flip its verdict."""

import math

import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.figure import claims
from reproduction.rules import RULES, Outcome


def run(*values, diverged=0, **others):
    history = [{"round": float(i), "f1": float(v)} | others for i, v in enumerate(values)]
    return Outcome(history, diverged)


def decided(rule, mine, *others, seeds=1, several=(), **arguments):
    """Return a rule's measurement of a run (or several) and the others, the same for all seeds."""
    runs = {"a": mine, **{f"b{i}": own for i, own in enumerate(others)}}
    outcomes = {label: own if isinstance(own, list) else [own] * seeds for label, own in runs.items()}
    own = ["a", *several]
    than = [label for label in outcomes if label not in own]
    if rule not in ("stays-stable", "share"):
        arguments = {"metric": "f1", **arguments}
    return RULES[rule](outcomes, run=own, than=than, **arguments)


GOOD = run(0.0, 0.5, 1.0, 1.0)
BAD = run(0.0, 0.5, 0.6, 0.7)
BLOWN = run(0.0, 9.0, diverged=1)
BOX = {"bounds": {"f1": [0.5, 1.0]}}
FLOOR = {"first": 0.0, "floor": 1.0}
OTHER_LEVEL = {"below": 1.0, "than_below": 4.0, "at_least": 2.0}
RATE = {"first": 0, "last": 2, "at_most": 2.0}
#: A rule, its arguments, runs with which it holds and falsified ones; the first run is what the claim is about.
CASES = [
    ("reaches", {"at_least": 0.99, "within": 2}, [GOOD], [BAD]),
    ("reaches", {"at_least": 0.99, "within": 1}, [run(1, 1)], [GOOD]),
    ("reaches", {"at_least": 0.99, "within": 9}, [GOOD], [run(0, 1, 1, 0)]),
    ("reaches", {"at_most": 2.0, "within": 9}, [run(3, 2)], [BLOWN]),
    ("never-reaches", {"at_least": 0.99}, [BAD], [GOOD]),
    ("never-reaches", {"at_least": 0.99}, [BAD], [BLOWN]),
    ("final-within", {"at_least": 0.9}, [GOOD], [BAD]),
    ("final-within", {"at_most": 10.0}, [GOOD], [BLOWN]),
    ("each-at-least", {"at_least": 1.0, "several": ["b0"]}, [GOOD, GOOD], [GOOD, BAD]),
    ("each-at-least", {"at_least": -1.0, "several": ["b0"]}, [GOOD, GOOD], [BLOWN, GOOD]),
    ("final-better", {"largest": True}, [GOOD, BAD], [BAD, GOOD]),
    ("final-better", {}, [BAD, GOOD], [BAD, BAD]),
    ("final-better", {"margin": 0.5}, [run(0.1), GOOD], [BAD, GOOD]),
    ("final-better", {}, [BAD, GOOD], [BLOWN, GOOD]),
    ("final-better", {}, [BAD, GOOD], [BAD, BLOWN]),
    ("final-close", {"tolerance": 0.1}, [GOOD, run(0.95)], [GOOD, BAD]),
    ("final-close", {"tolerance": 0.1}, [GOOD, GOOD], [GOOD, BLOWN]),
    ("final-nearer", {"largest": True, "several": ["b0"]}, [run(0.9), GOOD, run(0.5), GOOD], [run(0.7), GOOD] * 2),
    ("final-nearer", {"largest": True, "several": ["b0"]}, [run(0.95), GOOD, run(0.9), GOOD], [BAD, GOOD, BLOWN, GOOD]),
    ("stays-stable", {}, [GOOD], [BLOWN]),
    ("always-below", {"first": 1.0}, [run(9, 2, 1), run(1, 2, 2)], [run(9, 2, 1), run(9, 1, 9)]),
    ("always-below", FLOOR, [run(9, 0.2, 0.3), run(9, 1, 0.1)], [run(9, 1.2, 0.3), run(9, 1, 1)]),
    ("cheaper", {"at_most": 1.0, "cost": "round", "factor": 2.0}, [run(9, 1), run(9, 9, 1)], [run(9, 1), run(9, 1)]),
    ("cheaper", {"at_most": 1.0, "cost": "round"}, [run(9, 1), run(9, 9)], [run(9, 9), run(9, 9)]),
    ("final-ratio", {"at_least": 3.0, "at_most": 5.0}, [run(9, 4), run(5, 1)], [run(9, 4), run(1, 2)]),
    ("final-ratio", {"at_most": 5.0, "window": 2}, [run(9, 4, 6), run(5, 1, 1)], [run(9, 4, 7), run(5, 1, 1)]),
    ("final-ratio", {"at_most": 5.0}, [run(1), run(1)], [BLOWN, run(1)]),
    ("rounds-ratio", {"below": 1.0, "at_most": 2.0}, [run(9, 9, 1), run(9, 1)], [run(9, 9, 9, 1), run(9, 1)]),
    ("rounds-ratio", {"below": 1.0, "at_least": 2.0}, [run(9, 9, 1), run(9, 1)], [run(9, 1), run(9, 1)]),
    ("rounds-ratio", {"below": 1.0, "at_most": 2.0}, [run(9, 1), run(9, 1)], [run(9, 9), run(9, 1)]),
    ("rounds-ratio", {"below": 1.0, "at_most": 2.0}, [run(9, 1), run(9, 1)], [run(9, 1), run(9, 9)]),
    ("rounds-ratio", OTHER_LEVEL, [run(9, 4, 1), run(9, 4)], [run(1), run(9, 4)]),
    ("linear-rate", {"first": 1, "last": 3, "at_most": 0.51}, [run(9, 4, 3, 1)], [run(9, 4, 3, 1.1)]),
    ("linear-rate", {"first": 1, "last": 2, "at_most": 9}, [GOOD], [BLOWN]),
    ("linear-rate", RATE, [run(16, 9, 1), run(4, 9, 1)], [run(17, 9, 1), run(4, 9, 1)]),
    ("linear-rate", {"first": 0, "last": 1}, [run(4, 1), run(4, 1)], [run(1, 4), run(1, 4)]),
    ("faster", {"at_least": 1.0, "factor": 1.5}, [GOOD, run(0, 0, 0, 1)], [GOOD, GOOD]),
    ("faster", {"at_least": 1.0, "factor": 1.5}, [GOOD, BAD], [BAD, BAD]),
    ("decays", {"exponent": -1.0, "first": 1, "last": 3}, [run(9, 3, 2, 0.9)], [run(9, 3, 2, 1.1)]),
    ("decays", {"exponent": -1.0, "first": 1, "last": 3}, [run(9, 3, 2, 0.9)], [BLOWN]),
    ("shrinks", {"factor": 2.0}, [run(1), run(2), run(9)], [run(1), run(1.9), run(9)]),
    ("ratio", {"to": "x", "at_least": 2.0}, [run(4.0, x=2.0)], [run(3.9, x=2.0)]),
    ("share", {**BOX, "sizes": [2], "at_least": 0.5, "several": ["b0"]}, [GOOD, run(0.1)], [run(0.2), BLOWN]),
    ("share", {**BOX, "sizes": [2, 1], "several": ["b0"]}, [GOOD, run(0.1), run(0.4)], [GOOD, GOOD, GOOD]),
    ("within-bound", {"of": "x", "factor": 1.0}, [run(9, 0.9, x=1.0)], [run(9, 1.1, x=1.0)]),
    ("final-not-worse", {}, [run(1), run(2), run(9)], [run(3), run(2), run(9)]),
]


@pytest.mark.parametrize(("rule", "arguments", "good", "bad"), CASES)
def test_falsified_data_flip_the_verdict(rule, arguments, good, bad):
    assert decided(rule, *good, **arguments).holds
    assert not decided(rule, *bad, **arguments).holds
    if rule != "final-not-worse":
        # One bad seed is enough.
        assert not decided(rule, *([one, other] for one, other in zip(good, bad, strict=True)), **arguments).holds


def test_every_rule_has_cases_and_every_claim_the_arguments_of_its_rule():
    assert {case[0] for case in CASES} == set(RULES)
    decisive = {"at_least", "at_most", "factor", "margin", "noise", "tolerance", "exponent", "within", "mean", "even"}
    for row in claims().itertuples():
        given = {pair.split("=")[0] for pair in row.arguments.split("; ") if pair}
        if not row.outside:
            measured = RULES[row.rule].measured(dict.fromkeys(given))
            assert given <= {*measured} | decisive, (row.figure, row.claim)


COMPARISONS = [
    ("final-better", {}),
    ("shrinks", {}),
    ("faster", {"at_most": 1.0}),
    ("cheaper", {"at_most": 1.0, "cost": "round"}),
    ("always-below", {"first": 0.0}),
    ("final-close", {"tolerance": 9.0}),
]


@pytest.mark.parametrize(("rule", "arguments"), COMPARISONS)
def test_a_comparison_is_a_tie_or_won_and_nobody_beats_a_run_that_diverged(rule, arguments):
    first = run(4, 1, 0.5)
    second = run(4, 2, 1)
    if rule not in ("always-below", "final-close"):
        mixed = decided(rule, [first, second], [second, first], **arguments)
        assert mixed.tie > mixed.holds
        assert not any(decided(rule, *pair, seeds=2, **arguments).tie for pair in ((first, second), (second, first)))
        # Without a value there is no comparison.
        assert not decided(rule, [first, second], [second, BLOWN], **arguments).tie
    assert decided(rule, first, second, **arguments).holds
    for one, other in ((first, second._replace(diverged=2)), (first._replace(diverged=2), second)):
        assert not decided(rule, one, other, **arguments).holds


def test_differences_within_the_noise_are_none():
    runs = [run(1.0), run(1.0)], [run(1.1), run(1.2)]
    assert decided("final-better", *runs, noise=0.05).holds
    assert decided("final-better", *runs, noise=0.15).tie > decided("final-better", *runs, noise=0.15).holds


def test_the_measured_values():
    outcomes = [GOOD, BAD, BLOWN]
    found = decided("reaches", outcomes, at_least=0.99, within=9).values
    assert found == pytest.approx([2.0, math.inf, math.nan], nan_ok=True)
    found = decided("faster", outcomes, run(0, 0, 0, 1), seeds=3, at_least=1.0).values
    assert found == pytest.approx([1.5, math.nan, math.nan], nan_ok=True)
    assert decided("stays-stable", outcomes).values == [math.inf, math.inf, 1.0]
    assert decided("decays", run(8, 4, 2), exponent=-1, first=1, last=2).values == [pytest.approx(-1.0)]
    assert BAD.final("f1", 2) == pytest.approx(0.65)
    with pytest.raises(ConfigurationError, match="'rank', but f1"):
        decided("final-within", GOOD, metric="rank")


def test_a_bound_holds_in_every_round_and_of_an_expectation_for_the_mean():
    arguments = {"of": "x", "factor": 0.5}
    assert not decided("within-bound", run(9.0, 0.1, 0.6, x=2.0), **arguments).holds
    assert decided("within-bound", run(9.0, 0.1, 0.6, x=2.0), **arguments, plus=0.2).holds
    pair = [run(9.0, 1.5, 0.4, x=2.0), run(9.0, 0.3, 0.4, x=2.0)]
    assert not decided("within-bound", pair, **arguments).holds
    assert decided("within-bound", pair, **arguments, mean=True).values == [pytest.approx(0.9)]
