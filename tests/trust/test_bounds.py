"""One rule for replies: a share of the weight times a length, against lengths of the first rounds; robust centres."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from adversarial_clients import make, regressions, run_with
from faulty import Faulty, scaled, start_on
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import app_of, clients, flat, paired, run

from flwr_fco.algorithms.contract.replies import Mean, geometric_median, median, trimmed_mean
from flwr_fco.algorithms.fed_dr import DouglasRachford
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.objectives import Huber
from flwr_fco.strategies import Bounds, FedDualAvg, FedMid, Steps, Trimmed
from flwr_fco.strategies.replies import Cap, objections
from flwr_fco.work import Minimise


def a_run(weighting="examples", passed=(), **bounds):
    options = SimpleNamespace(bounds=Bounds(**bounds), weighting=weighting, site_weights=None, _unmodified=False)
    problem = SimpleNamespace(client_lr=math.nan, plan=SimpleNamespace(work=None))
    known = {"moved": 1.0, "size": 1.0, "current": SimpleNamespace(number=1), "cap": Cap(options.bounds.max_ratio)}
    known |= {"ledger": None, "method": None, "passed": dict(passed)}
    return SimpleNamespace(options=options, problem=problem, **known)


def replies(*norms, examples=1.0, elapsed=1.0, **more):
    weights = examples if isinstance(examples, tuple) else (examples,) * len(norms)
    return [
        Uplink({"increment": np.array([norm])}, elapsed, 1, examples=weight, norms={"increment": norm}, **more)
        for norm, weight in zip(norms, weights, strict=True)
    ]


def out(run, ups, **options):
    return sorted(objections(run, ups, **options))


#: Lengths of the replies of rounds one after the other, and which of them are left out.
ROUNDS = {
    # A share of 1/4 of 400 times the usual length is 100 times. What was usual at first is never too long, and bounds
    # few replies, and a majority of absurd ones.
    "the first rounds fix what is usual": [
        *(((1.0, 1.0, 1.0, 400.0), []), ((1.0, 1.0, 2.0, 900.0), [3])),
        *(((1e-9, 1e-9, 1e-9, 3.9), []), ((1e-9, 1e-9, 1e-9, 4.1), [3])),
        *(((0.1, 0.1, 0.1, 39.0), []), ((0.1, 0.1, 0.1, 41.0), [3]), ((9.0, 9.0, 9.0, 410.0), [3])),
        *(((1.0, 1e7), [1]), ((1e7,), [0]), ((*[1e300] * 4, 1.0), [0, 1, 2, 3])),
    ],
    # Sites without an event send zeros: most of the first round, or all who are left of a later one.
    "zeros": [((0.0, 0.0, 0.0, 1.0, length), left_out) for length, left_out in ((4.0, []), (990.0, []), (1010.0, [4]))],
    # One of two, or two of four, of which one may lie, are thousands of times as long as the other.
    "one of two": [((1e-4, 1.0), [])],
    "two of four": [((1e-4, 1e-3, 1.0, 1.5), [])],
    "noise after the first round": [((norm,) * 8, []) for norm in (1.0, 1e-17, 1e-17, 0.5)],
    "noise in the first round": [((norm,) * 8, []) for norm in (1e-17, 1.0, 1e-17, 0.5)],
    # Three of them say what is usual.
    "one reply a round": [((norm,), []) for norm in (1e-3, 0.09, 5.0, 400.0)],
}


@pytest.mark.parametrize("rounds", ROUNDS.values(), ids=ROUNDS)
def test_lengths_are_bounded_by_what_is_usual(rounds):
    run = a_run()
    for norms, left_out in rounds:
        assert out(run, replies(*norms)) == left_out


def test_what_is_usual_is_saved_and_bounds_are_the_users():
    run, again = a_run(), a_run()
    assert out(run, replies(1.0, 1.0, 1.0, 400.0)) == []
    again.cap.usual = dict(run.cap.usual)
    assert out(again, replies(1e-9, 1e-9, 1e-9, 3.9)) == []
    assert out(again, replies(1e-9, 1e-9, 1e-9, 4.1)) == [3]
    assert out(a_run(max_ratio=None), replies(1.0, 1e300)) == []
    # Zeros of a later round are no yardstick.
    assert out(zeros := a_run(), replies(0.0, 0.0, 0.0, 1.0, 4.0)) == []
    assert out(zeros, replies(0.0, 150.0, examples=(1.0, 9.0))) == []


def test_a_gradient_that_a_rate_allows_is_never_too_long():
    """sqrt(2 / rate) at a quarter of the weight; a rate of clients' own says nothing of their loss."""
    for length, left_out in ((4e3 * 0.99, []), (4e3 * 1.01, [3])):
        run = a_run()
        run.problem.client_lr = 2e-6
        assert out(run, replies(0.1, 0.1, 0.1, length)) == left_out
        run.options._unmodified = True
        assert out(run, replies(0.1, 0.1, 0.1, length)) == [3]


def test_first_gradients_are_as_long_as_they_are():
    """With them trackers start: what is usual does not follow from a rate that they have not been taken at."""
    run = a_run()
    run.current.number = 0
    assert out(run, replies(1.0, 1.0, 1.0, 401.0, elapsed=1e-3)) == [3]
    run.current.number = 1
    assert out(run, replies(1e-3, 1e-3, 1e-3, 0.401, elapsed=1e-3)) == [3]


@pytest.mark.parametrize(("deviation", "longest"), [(0.0, 4e-7), (0.01, 16.0), (1.0, 16.0), (100.0, 0.16)])
def test_a_minimisation_may_move_predictions_a_little(deviation, longest):
    """At a quarter of the weight, by 4 in units of the largest deviation that sites have said, if they have."""
    for length, left_out in ((0.99 * longest, []), (1.01 * longest, [3])):
        run = a_run()
        run.method = DouglasRachford()
        run.tables = SimpleNamespace(scales=SimpleNamespace(largest=deviation))
        run.problem.plan.work = Minimise()
        assert out(run, replies(1e-9, 1e-9, 1e-9, length, elapsed=None)) == left_out


@settings(deadline=None)
@given(
    honest=st.lists(st.lists(st.floats(1.0, 10.0), min_size=3, max_size=3), min_size=1, max_size=30),
    lies=st.lists(st.floats(0.0, 1e12), min_size=30, max_size=30),
    rows=st.floats(1.0, 1e9),
)
def test_one_of_four_never_widens_the_bound_whatever_it_sends(honest, lies, rows):
    """Whatever it sends, and its weight: it never moves the mean by more than 100 times an honest length."""
    run = a_run()
    for norms, lie in zip(honest, lies, strict=False):
        weights = (10.0, 10.0, 10.0, 10.0 * rows)
        found = out(run, replies(*norms, lie, examples=weights))
        assert set(found) <= {3}
        assert found == [3] or weights[3] / sum(weights) * lie <= 100.0 * 10.0 * (1 + 1e-9)


@pytest.mark.parametrize("sizes", [(10.0, 40_000.0), (10.0, 20.0, 60_000.0), (12.0, 12.0, 40.0, 90_000.0)])
def test_sites_of_very_different_sizes_stay_unless_the_user_says_otherwise(sizes):
    run = a_run()
    for _ in range(5):
        assert out(run, replies(*[1.0] * len(sizes), examples=sizes)) == []
        assert out(run, replies(*[1.0] * (len(sizes) - 1), 50.0, examples=sizes)) == []
    assert out(run, replies(*[1.0] * (len(sizes) - 1), 900.0, examples=sizes)) == [len(sizes) - 1]
    assert out(a_run("uniform"), replies(*[1.0] * (len(sizes) - 1), 50.0, examples=sizes)) == []
    assert out(a_run(max_share=0.9), replies(*[1.0] * len(sizes), examples=sizes)) == [len(sizes) - 1]
    # Who has done more is longer, and alone in a round somebody has all of the weight.
    assert out(run, replies(*[1.0] * 5) + replies(50_000.0, elapsed=1000.0)) == []
    assert out(a_run(max_share=0.9), replies(1.0)) == []


def test_loops_of_clients_own_do_what_others_do_for_their_rows():
    def says(*pairs):
        return [ups[0]._replace(examples=rows) for rows, time in pairs for ups in [replies(1.0, elapsed=time)]]

    own = a_run(own_loops=True)
    # An epoch in batches of 32, of sites with 3 to 40,000 rows; and twenty of them.
    assert out(own, says((3.0, 1.0), (10.0, 1.0), (12.0, 1.0), (40_000.0, 1_250.0))) == []
    assert out(own, says((300.0, 10.0), (300.0, 10.0), (300.0, 1.0), (60.0, 40.0))) == []
    # Ten times as many steps, whose sizes are rounded.
    assert out(own, says(*[(300.0, sum([0.1] * 10 * steps)) for steps in (3, 3, 3, 30)])) == []
    assert out(own, says((300.0, 10.0), (300.0, 10.0), (300.0, 101.0))) == [2]
    assert out(a_run(), says((300.0, 10.0), (300.0, 10.0), (300.0, 101.0))) == []


def test_losses_are_compared_with_those_of_the_same_model():
    def says(*losses):
        return [Uplink({}, None, 1, metrics={"loss": loss}, examples=1.0) for loss in losses]

    run = a_run()
    # Sums over examples, of which one client has far more than others.
    *few, many = says(5.0, 4.0, 6.0, 4000.0)
    assert out(run, [*few, many._replace(examples=700.0)]) == []
    assert out(run, says(5.0, 4.0, 6.0, 5.0, 5.0)) == []
    # Most clients fit exactly, and one does not; a fold that nobody fits.
    assert out(run, says(1e-12, 0.0, 1e-13, 1e-12, 3.0)) == []
    assert out(run, says(5e7, 4e7, 6e7, 5e7, 9e8)) == []
    assert out(run, says(5.0, 4.0, 6.0, 5.0, -2499.0)) == []
    assert out(run, says(5.0, 4.0, 6.0, 5.0, -2501.0)) == [4]
    assert out(run, says(0.5, -1e9)) == [1]


# --- answers of before ------------------------------------------------------------------------------------------------


def replayed(first, since, every=1):
    """Send the vectors of one round again, in each round from another one on, or in every second one."""
    held = {}

    def lie(number, vectors, claims):
        if number == first:
            held.update({name: np.array(vector) for name, vector in vectors.items()})
        if number >= since and number % every == 0:
            for name in vectors:
                vectors[name] = np.array(held[name])

    return lie


@cache
def honest(name, number):
    return flat(run_with("messages", make(name), regressions(number), 10, lambda *all_: None, liar=2).arrays)


REPLAYS = [(1, 2, 1), (3, 4, 1), (2, 5, 2), (1, 5, 3)]


@pytest.mark.parametrize(("replay", "number", "name"), paired(REPLAYS, [4, 10], ["Scaffold", "FedDAGT", "FedDR"]))
def test_an_answer_of_an_earlier_round_counts_once(name, number, replay):
    result = run_with("messages", make(name), regressions(number), 10, replayed(*replay), liar=2)
    rows = [row for row in result.left_out if row.round <= 9]
    _, since, every = replay
    assert {(row.partition_id, row.round) for row in rows} == {(2, n) for n in range(since, 10) if n % every == 0}
    assert all("has sent in an earlier round, to the bit" in row.reason for row in rows)
    assert np.abs(flat(result.arrays) - honest(name, number)).max() < 0.8


@pytest.mark.parametrize(("name", "rounds"), [("Scaffold", 12), ("FedDAGT", 12), ("FedDR", 30)])
def test_constant_slopes_as_of_hubers_loss_far_from_its_targets_repeat(name, rounds):
    far = [Huber(own.features[:, :2], 1e3 * own.targets + 3e3) for own in regressions(10)]
    assert run(make(name), far, rounds, start={"coefficients": np.zeros(2), "intercept": np.zeros(1)}).left_out == []


def test_a_repeated_answer_counts_where_most_repeat_or_nothing_moves():
    def ups(*digests):
        return [replies(1.0, node=Node(m, m), digest=digest)[0] for m, digest in enumerate(digests)]

    run = a_run()
    run.ledger = SimpleNamespace(member=lambda key: SimpleNamespace(sent=("a",), memory=None))
    assert out(run, ups("a", "b", "c")) == [0]
    assert out(run, ups("a", "a", "c")) == []
    run.moved = 1e-12
    assert out(run, ups("a", "b", "c")) == []


# --- robust centres: the trimmed mean, the median, the geometric median -----------------------------------------------


def test_centres_are_those_of_the_sorted_values():
    rows = np.random.default_rng(0).standard_normal((10, 9000))
    equal = np.full(10, 0.1)
    inner = np.sort(rows, axis=0)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.2), inner[2:8].mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.0), rows.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(median(rows, equal), np.median(rows, axis=0), atol=1e-15)
    # A weight of two elevenths is two rows.
    twice = np.concatenate([rows, rows[:1]])
    weights = np.r_[2, np.ones(9)] / 11
    np.testing.assert_allclose(median(rows, weights), np.median(twice, axis=0), atol=1e-15)
    expected = trimmed_mean(twice, np.full(11, 1 / 11), 0.2)
    np.testing.assert_allclose(trimmed_mean(rows, weights, 0.2), expected, atol=1e-14)
    # The first of three is their median by coordinate, from which no step of Weiszfeld's leads away.
    three = np.array([[0.0, 0.0], [1.0, 0.1], [-0.1, -1.0]])
    # At 0 the sum that the first step smooths is least, but not the sum itself.
    six = np.array([[0.1, 0.0], [-0.2, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for own, shares in ((rows[:, :3], weights), (three, np.full(3, 1 / 3)), (six, np.r_[2, 1, [10] * 4] / 43)):
        away = own - geometric_median(own, shares)
        assert np.linalg.norm(shares @ (away / np.linalg.norm(away, axis=1)[:, None])) < 1e-8  # of the sum's gradient


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_centres_of_numbers_are_those_of_increments(rule):
    mean = Mean(aggregation=rule, trim=0.2)
    values = [1.0, 2.0, 1.5, 1.2, -1e9]
    shares = [0.2] * 5
    expected = mean.of([np.array([value]) for value in values], shares)[0]
    assert mean.of_numbers(values, shares) == expected
    assert 1.0 <= expected <= 2.0
    # Rounded once.
    assert Mean().of_numbers([1e16, 1.0, -1e16, 1.0], [1.0] * 4) == 2.0


@cache
def with_two_of_nine(cls, rule, factor):
    """Return the model where two of nine equal clients scale what they send."""
    robust = {"aggregation": rule, "on_divergence": "warn"}
    chosen = cls(client_lr=0.02, work=Steps(3, batch_size=None), fraction_evaluate=0.0, **robust)
    grid = Faulty(app_of([clients((20,))[0]] * 9), 9, scaled(factor), rounds=range(1, 99), nodes=(2, 3))
    with np.errstate(all="ignore"):
        return flat(start_on(grid, chosen, rounds=12).arrays)


@pytest.mark.parametrize("rule", [Trimmed(0.25), "median", "geometric-median"], ids=str)
@pytest.mark.parametrize("cls", [FedDualAvg, FedMid])
def test_a_minority_cannot_move_a_robust_centre_far(rule, cls):
    honest = with_two_of_nine(cls, "mean", 1.0)
    assert np.abs(with_two_of_nine(cls, rule, -50.0) - honest).max() < 1e-6
    assert np.abs(with_two_of_nine(cls, "mean", -50.0) - honest).max() > 1.0


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
def test_a_robust_centre_is_of_equal_work(rule):
    """The centre is that of the gradients, whatever the numbers of steps; without that, long ones are outliers."""
    gradients = np.random.default_rng(0).standard_normal((5, 3)) + np.array([1.0, -2.0, 0.5])
    said = [
        Uplink({"increment": 0.1 * k * own}, 0.1 * k, k, weight=0.2)
        for k, own in zip([9, 1, 2, 5, 40], gradients, strict=True)
    ]
    mean, elapsed = Mean(aggregation=rule)(said)
    expected = Mean(aggregation=rule, trim=0.2).of([elapsed * own for own in gradients], [0.2] * 5)
    np.testing.assert_allclose(mean, expected, rtol=1e-7)
