"""Each rule decides as its sentence says, and falsified data flip its verdict."""

import math

import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.claims.rules import RULES, Outcome


def run(*values, metric="f1", diverged=0):
    return Outcome([{"round": float(i), metric: float(v)} for i, v in enumerate(values)], diverged)


GOOD, BAD = run(0.0, 0.5, 1.0, 1.0), run(0.0, 0.5, 0.6, 0.7)
BLOWN = run(0.0, 9.0, diverged=1)


@pytest.mark.parametrize(
    ("rule", "arguments", "good", "bad"),
    [
        ("reaches", {"run": "a", "metric": "f1", "at_least": 0.99, "within": 2}, {"a": GOOD}, {"a": BAD}),
        # It gets there, too late.
        ("reaches", {"run": "a", "metric": "f1", "at_least": 0.99, "within": 1}, {"a": run(1, 1)}, {"a": GOOD}),
        # It gets there and leaves again.
        ("reaches", {"run": "a", "metric": "f1", "at_least": 0.99, "within": 9}, {"a": GOOD}, {"a": run(0, 1, 1, 0)}),
        ("reaches", {"run": "a", "metric": "f1", "at_most": 2.0, "within": 9}, {"a": run(3, 2)}, {"a": BLOWN}),
        ("never-reaches", {"run": "a", "metric": "f1", "at_least": 0.99}, {"a": BAD}, {"a": GOOD}),
        ("never-reaches", {"run": "a", "metric": "f1", "at_least": 0.99}, {"a": BAD}, {"a": BLOWN}),
        ("final-within", {"run": "a", "metric": "f1", "at_least": 0.9}, {"a": GOOD}, {"a": BAD}),
        ("final-within", {"run": "a", "metric": "f1", "at_most": 10.0}, {"a": GOOD}, {"a": BLOWN}),
        # The worst of the runs decides.
        (
            "each-at-least",
            {"runs": ["a", "b"], "metric": "f1", "at_least": 1.0},
            {"a": GOOD, "b": GOOD},
            {"a": GOOD, "b": BAD},
        ),
        (
            "each-at-least",
            {"runs": ["a", "b"], "metric": "f1", "at_least": -1.0},
            {"a": GOOD, "b": GOOD},
            {"a": BLOWN, "b": GOOD},
        ),
        (
            "final-better",
            {"run": "a", "than": ["b"], "metric": "f1", "largest": True},
            {"a": GOOD, "b": BAD},
            {"a": BAD, "b": GOOD},
        ),
        ("final-better", {"run": "a", "than": ["b"], "metric": "f1"}, {"a": BAD, "b": GOOD}, {"a": GOOD, "b": BAD}),
        # Equal is not better; a margin is a margin.
        ("final-better", {"run": "a", "than": ["b"], "metric": "f1"}, {"a": BAD, "b": GOOD}, {"a": BAD, "b": BAD}),
        (
            "final-better",
            {"run": "a", "than": ["b"], "metric": "f1", "margin": 0.5},
            {"a": run(0.1), "b": GOOD},
            {"a": BAD, "b": GOOD},
        ),
        ("final-better", {"run": "a", "than": ["b"], "metric": "f1"}, {"a": BAD, "b": GOOD}, {"a": BLOWN, "b": GOOD}),
        ("final-better", {"run": "a", "than": ["b"], "metric": "f1"}, {"a": BAD, "b": GOOD}, {"a": BAD, "b": BLOWN}),
        (
            "final-close",
            {"run": "a", "than": ["b"], "metric": "f1", "tolerance": 0.1},
            {"a": GOOD, "b": run(0.95)},
            {"a": GOOD, "b": BAD},
        ),
        (
            "final-close",
            {"run": "a", "than": ["b"], "metric": "f1", "tolerance": 0.1},
            {"a": GOOD, "b": GOOD},
            {"a": GOOD, "b": BLOWN},
        ),
        (
            "final-nearer",
            {"run": "a", "leader": "c", "than": ["b", "c"], "metric": "f1", "largest": True},
            {"a": run(0.9), "b": run(0.5), "c": run(0.8)},
            {"a": run(0.7), "b": run(0.9), "c": run(0.8)},
        ),
        (
            "final-nearer",
            {"run": "a", "leader": "best", "than": ["b", "best"], "metric": "f1", "largest": True},
            {"a": run(0.95), "b": run(0.9), "best": GOOD},
            {"a": run(0.95), "b": BLOWN, "best": GOOD},
        ),
        ("stays-stable", {"run": "a"}, {"a": GOOD}, {"a": BLOWN}),
        (
            "always-below",
            {"run": "a", "than": ["b", "c"], "metric": "f1", "first": 1.0},
            {"a": run(9, 2, 1), "b": run(1, 2, 2), "c": run(9, 9, 9)},
            {"a": run(9, 2, 1), "b": run(1, 2, 2), "c": run(9, 1, 9)},
        ),
        (
            "always-below",
            {"run": "a", "than": ["b"], "metric": "f1", "first": 0.0, "floor": 1.0},
            {"a": run(9, 0.2, 0.3), "b": run(9, 1, 0.1)},
            {"a": run(9, 1.2, 0.3), "b": run(9, 1, 0.1)},
        ),
        (
            "cheaper",
            {"run": "a", "than": ["b"], "metric": "f1", "at_most": 1.0, "cost": "round", "factor": 2.0},
            {"a": run(9, 1), "b": run(9, 9, 1)},
            {"a": run(9, 9, 1), "b": run(9, 9, 9, 1)},
        ),
        (
            "cheaper",
            {"run": "a", "than": ["b"], "metric": "f1", "at_most": 1.0, "cost": "round"},
            {"a": run(9, 1), "b": run(9, 9)},
            {"a": run(9, 9), "b": run(9, 9)},
        ),
        (
            "final-ratio",
            {"run": "a", "than": "b", "metric": "f1", "at_least": 3.0, "at_most": 5.0},
            {"a": run(9, 4), "b": run(5, 1)},
            {"a": run(9, 4), "b": run(1, 2)},
        ),
        (
            "final-ratio",
            {"run": "a", "than": "b", "metric": "f1", "at_most": 5.0, "window": 2},
            {"a": run(9, 4, 6), "b": run(5, 1, 1)},
            {"a": run(9, 4, 7), "b": run(5, 1, 1)},
        ),
        (
            "final-ratio",
            {"run": "a", "than": "b", "metric": "f1", "at_most": 5.0},
            {"a": run(1), "b": run(1)},
            {"a": BLOWN, "b": run(1)},
        ),
        (
            "rounds-ratio",
            {"run": "a", "than": "b", "metric": "f1", "below": 1.0, "at_most": 2.0},
            {"a": run(9, 9, 9, 9, 1), "b": run(9, 9, 1)},
            {"a": run(9, 9, 9, 9, 9, 1), "b": run(9, 9, 1)},
        ),
        (
            "rounds-ratio",
            {"run": "a", "than": "b", "metric": "f1", "below": 1.0, "at_least": 2.0},
            {"a": run(9, 9, 9, 9, 1), "b": run(9, 9, 1)},
            {"a": run(9, 9, 9, 1), "b": run(9, 9, 1)},
        ),
        # Who never gets there has no ratio that holds.
        (
            "rounds-ratio",
            {"run": "a", "than": "b", "metric": "f1", "below": 1.0, "at_most": 2.0},
            {"a": run(9, 1), "b": run(9, 1)},
            {"a": run(9, 9), "b": run(9, 1)},
        ),
        (
            "rounds-ratio",
            {"run": "a", "than": "b", "metric": "f1", "below": 1.0, "at_most": 2.0},
            {"a": run(9, 1), "b": run(9, 1)},
            {"a": run(9, 1), "b": run(9, 9)},
        ),
        (
            "linear-rate",
            {"run": "a", "metric": "f1", "first": 1, "last": 3, "at_most": 0.51},
            {"a": run(9, 4, 3, 1)},
            {"a": run(9, 4, 3, 1.1)},
        ),
        ("linear-rate", {"run": "a", "metric": "f1", "first": 1, "last": 2, "at_most": 9}, {"a": GOOD}, {"a": BLOWN}),
        (
            "linear-rate",
            {"run": "a", "than": "b", "metric": "f1", "first": 0, "last": 2, "at_least": 0.5, "at_most": 2.0},
            {"a": run(16, 9, 1), "b": run(4, 9, 1)},
            {"a": run(16.1, 9, 1), "b": run(4, 9, 1)},
        ),
        # A run that rises is no measure.
        (
            "linear-rate",
            {"run": "a", "than": "b", "metric": "f1", "first": 0, "last": 1, "at_least": 0.0},
            {"a": run(4, 1), "b": run(4, 1)},
            {"a": run(1, 4), "b": run(1, 4)},
        ),
        (
            "faster",
            {"run": "a", "than": ["b"], "metric": "f1", "at_least": 1.0, "factor": 1.5},
            {"a": GOOD, "b": run(0, 0, 0, 1)},
            {"a": GOOD, "b": GOOD},
        ),
        (
            "faster",
            {"run": "a", "than": ["b"], "metric": "f1", "at_least": 1.0, "factor": 1.5},
            {"a": GOOD, "b": BAD},
            {"a": BAD, "b": BAD},
        ),
        (
            "decays",
            {"run": "a", "metric": "f1", "exponent": -1.0, "first": 1, "last": 3},
            {"a": run(9, 3, 2, 0.9)},
            {"a": run(9, 3, 2, 1.1)},
        ),
        (
            "decays",
            {"run": "a", "metric": "f1", "exponent": -1.0, "first": 1, "last": 3},
            {"a": run(9, 3, 2, 0.9)},
            {"a": BLOWN},
        ),
        (
            "shrinks",
            {"run": "a", "than": ["b", "c"], "metric": "f1", "factor": 2.0},
            {"a": run(1), "b": run(2), "c": run(9)},
            {"a": run(1), "b": run(1.9), "c": run(9)},
        ),
        (
            "ratio",
            {"run": "a", "metric": "f1", "to": "x", "at_least": 2.0},
            {"a": Outcome([{"round": 0.0, "f1": 4.0, "x": 2.0}])},
            {"a": Outcome([{"round": 0.0, "f1": 3.9, "x": 2.0}])},
        ),
        (
            "share",
            {"group": "g", "groups": {"g": ["a", "b"]}, "bounds": {"f1": [0.5, 1.0]}, "at_least": 0.5},
            {"a": GOOD, "b": run(0.1)},
            {"a": run(0.2), "b": BLOWN},
        ),
        (
            "share",
            {"group": "g", "than": ["h"], "groups": {"g": ["a", "b"], "h": ["c"]}, "bounds": {"f1": [0.5, 1.0]}},
            {"a": GOOD, "b": run(0.1), "c": run(0.4)},
            {"a": GOOD, "b": GOOD, "c": GOOD},
        ),
        (
            "within-bound",
            {"run": "a", "metric": "gap", "of": "diameter", "factor": 1.0},
            {"a": Outcome([{"round": 2.0, "gap": 0.4, "diameter": 1.0}])},
            {"a": Outcome([{"round": 2.0, "gap": 0.6, "diameter": 1.0}])},
        ),
    ],
)
def test_falsified_data_flip_the_verdict(rule, arguments, good, bad):
    assert RULES[rule]({label: [own] for label, own in good.items()}, **arguments).holds
    assert not RULES[rule]({label: [own] for label, own in bad.items()}, **arguments).holds
    # One bad seed is enough.
    both = {label: [good[label], bad[label]] for label in good}
    assert not RULES[rule](both, **arguments).holds


def test_every_rule_is_tested():
    marker = test_falsified_data_flip_the_verdict.pytestmark[0]
    assert {case[0] for case in marker.args[1]} | {"final-not-worse"} == set(RULES)


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("always-below", {"first": 0.0}),
        ("cheaper", {"at_most": 1.0, "cost": "round"}),
        ("faster", {"at_most": 1.0, "factor": 1.0}),
        ("final-better", {}),
        ("final-close", {"tolerance": 9.0}),
        ("final-not-worse", {}),
        ("shrinks", {"factor": 1.0}),
    ],
)
def test_nobody_is_better_than_a_run_that_diverged(rule, arguments):
    common = {"run": "a", "than": ["b"], "metric": "f1"}
    good, rival = run(3, 1, 0.9), run(3, 2, 1)
    assert RULES[rule]({"a": [good], "b": [rival]}, **common, **arguments).holds
    assert not RULES[rule]({"a": [good], "b": [rival._replace(diverged=2)]}, **common, **arguments).holds
    assert not RULES[rule]({"a": [good._replace(diverged=2)], "b": [rival]}, **common, **arguments).holds


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("reaches", {"at_least": 0.0, "within": math.inf}),
        ("rounds-ratio", {"than": "b", "below": 9.0}),
    ],
)
def test_no_bound_is_so_wide_that_a_run_that_diverged_meets_it(rule, arguments):
    sound = run(3, 2, 1)
    for a, b, holds in ((sound, sound, True), (BLOWN, sound, False), (sound, BLOWN, rule == "reaches")):
        assert RULES[rule]({"a": [a], "b": [b]}, run="a", metric="f1", **arguments).holds == holds


def test_not_worse_is_better_or_a_tie():
    arguments = {"run": "a", "than": ["b", "c"], "metric": "f1"}

    def found(*pairs):
        outcomes = {"a": [run(a) for a, _ in pairs], "b": [run(b) for _, b in pairs], "c": [run(9)] * len(pairs)}
        return RULES["final-not-worse"](outcomes, **arguments).holds

    assert found((1, 2), (1, 3))
    assert found((1, 2), (3, 2))
    assert found((1, 1), (2, 2))
    assert not found((3, 2), (4, 3))


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("final-better", {}),
        ("shrinks", {"factor": 1.5}),
        ("faster", {"at_most": 1.0, "factor": 1.0}),
        ("cheaper", {"at_most": 1.0, "cost": "round"}),
    ],
)
def test_a_comparison_that_neither_side_wins_with_every_seed_is_a_tie(rule, arguments):
    common = {"run": "a", "than": ["b"], "metric": "f1"}
    first, second = run(4, 1, 0.5), run(4, 2, 1)
    mixed = RULES[rule]({"a": [first, second], "b": [second, first]}, **common, **arguments)
    assert mixed.tie
    assert not mixed.holds
    for a, b in ((first, second), (second, first)):
        assert not RULES[rule]({"a": [a, a], "b": [b, b]}, **common, **arguments).tie
    # Without a value there is no comparison.
    assert not RULES[rule]({"a": [first, second], "b": [second, BLOWN]}, **common, **arguments).tie


def test_differences_within_the_noise_are_none():
    def found(noise):
        return RULES["final-better"](
            {"a": [run(1.0), run(1.0)], "b": [run(1.1), run(1.2)]}, run="a", than=["b"], metric="f1", noise=noise
        )

    assert found(0.0).holds
    assert found(0.05).holds
    assert not found(0.15).holds
    assert found(0.15).tie


def test_a_share_that_is_not_larger_than_another_ones_is_a_tie():
    outcomes = {"a": [GOOD, BAD], "b": [BAD, GOOD]}
    groups = {"g": ["a"], "h": ["b"]}
    found = RULES["share"](outcomes, group="g", than=["h"], groups=groups, bounds={"f1": [0.9, 1.0]})
    assert found.values == [1.0, -1.0]
    assert found.tie
    assert not found.holds


def test_the_measured_values():
    outcomes = {"a": [GOOD, BAD, BLOWN], "b": [run(0, 0, 0, 1)] * 3}
    found = RULES["reaches"](outcomes, run="a", metric="f1", at_least=0.99, within=9).values
    assert found == pytest.approx([2.0, math.inf, math.nan], nan_ok=True)
    found = RULES["faster"](outcomes, run="a", than=["b"], metric="f1", at_least=1.0, factor=1.0).values
    assert found[0] == 1.5
    assert math.isnan(found[1])
    assert RULES["stays-stable"](outcomes, run="a").values == [math.inf, math.inf, 1.0]
    decay = RULES["decays"]({"a": [run(8, 4, 2)]}, run="a", metric="f1", exponent=-1, first=1, last=2).values
    assert decay == [pytest.approx(-1.0)]
    assert GOOD.final("f1", 2) == 1.0
    assert BAD.final("f1", 2) == pytest.approx(0.65)


def test_an_unknown_metric_is_named():
    with pytest.raises(ConfigurationError, match="'rank', but f1"):
        RULES["final-within"]({"a": [GOOD]}, run="a", metric="rank")


def test_a_bound_holds_in_every_round_or_not_at_all():
    def outcome(*gaps):
        return Outcome([{"round": float(t), "gap": gap, "diameter": 2.0} for t, gap in enumerate(gaps)])

    arguments = {"run": "a", "metric": "gap", "of": "diameter", "factor": 0.5}
    assert RULES["within-bound"]({"a": [outcome(9.0, 1.0, 0.4)]}, **arguments).values == [1.0]
    late = {"a": [outcome(9.0, 0.1, 0.6)]}
    assert not RULES["within-bound"](late, **arguments).holds
    assert RULES["within-bound"](late, **arguments, plus=0.2).holds
    # One seed is above, the mean is not.
    pair = {"a": [outcome(9.0, 1.5, 0.4), outcome(9.0, 0.3, 0.4)]}
    assert not RULES["within-bound"](pair, **arguments).holds
    assert RULES["within-bound"](pair, **arguments, mean=True).values == [pytest.approx(0.9)]
    assert not RULES["within-bound"]({"a": [Outcome(outcome(9.0, 0.1).history, 2)]}, **arguments).holds
