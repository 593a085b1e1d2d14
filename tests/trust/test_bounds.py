"""A reply is left out for its length, its weight or both, if it is far from the others' and from earlier rounds'."""

import numpy as np
from together import together

from flwr_fco.messages.protocol import Uplink
from flwr_fco.strategies.checkpoint import go_back, moment
from flwr_fco.strategies.replies import Bounds


def replies(*norms, examples=1.0, elapsed=1.0, **more):
    weights = examples if isinstance(examples, tuple) else (examples,) * len(norms)
    return [
        Uplink({"increment": np.array([norm])}, elapsed, 1, examples=weight, norms={"increment": norm}, **more)
        for norm, weight in zip(norms, weights, strict=True)
    ]


def out(bounds, ups, passed=None, **options):
    return list(bounds.objections(ups, passed or {}, **{"weighed": True, **options}))


def test_bounds_look_back_and_are_wide_in_first_small_rounds():
    def new():
        return Bounds(1000.0, None)

    assert out(new(), replies(1.0, 1.0, 1.0, 1e5)) == []
    assert out(new(), replies(1.0, 1.0, 1.0, 1.0, 1e5)) == [4]
    bounds = new()
    assert out(bounds, replies(1.0, 1.0, 1.0, 1e9)) == [3]
    assert out(bounds, replies(1.0, 1.0, 1.0, 1.0, 1e9)) == [4]
    # In small rounds what was usual before counts; a poisoned majority does not make its own usual.
    small = new()
    assert out(small, replies(1.0, 1.0, 2.0)) == []
    assert out(small, replies(1.0, 1e7)) == [1]
    assert out(small, replies(1e7)) == [0]
    assert set(out(small, replies(1e300, 1e300, 1e300, 1e300, 1.0))) >= {0, 1, 2, 3}
    assert out(small, replies(900.0, 900.0, 900.0)) == []
    # Near the optimum the median is small; what was usual before is no lie.
    assert out(bounds, replies(1e-9, 1e-9, 1e-9, 1e-9, 1.0)) == []
    assert out(bounds, replies(1e-9, 1e-9, 1e-9, 1e-9, 1001.0)) == [4]
    again = new()
    go_back({"bounds": again}, moment({"bounds": bounds}))
    assert out(again, replies(1e-9, 1e-9, 1e-9, 1e-9, 1001.0)) == [4]
    # A median of 0 says nothing.
    assert out(new(), replies(0.0, 0.0, 0.0, 1.0, 2.0)) == []
    assert out(Bounds(None, 5.0), replies(5.0, 6.0)) == [1]
    assert out(Bounds(None, None), replies(1.0, 1e300)) == []


def test_a_round_of_rounding_noise_is_no_yardstick_after_a_longer_one():
    bounds = Bounds(1000.0, None)
    for norm in (1.0, 1e-17, 1e-17, 0.5):
        assert out(bounds, replies(*[norm] * 8)) == []


def test_a_reply_counts_by_its_weight_times_its_length():
    heavy = {"examples": (10.0,) * 5 + (9_000.0,)}
    assert out(Bounds(1000.0, None), replies(*[1.0] * 5, 900.0, **heavy)) == [5]
    assert out(Bounds(1000.0, None), replies(*[1.0] * 6, **heavy)) == []
    assert out(Bounds(1000.0, None), replies(*[1.0] * 5, 900.0, **heavy), weighed=False) == []
    # Per unit of elapsed: who has done more is longer.
    longer = replies(*[1.0] * 5) + replies(5000.0, elapsed=1000.0)
    assert out(Bounds(1000.0, None), longer) == []


@together("sizes", [(10.0, 40_000.0), (10.0, 20.0, 60_000.0), (12.0, 12.0, 40.0, 90_000.0)])
def test_sites_of_very_different_sizes_stay_for_good_in_a_small_federation(sizes):
    bounds = Bounds(1000.0, None)
    for _ in range(5):
        assert out(bounds, replies(*[1.0] * len(sizes), examples=sizes)) == []
    assert out(bounds, replies(*[1.0] * len(sizes), examples=(*sizes[:-1], 1e12))) == [len(sizes) - 1]


def test_running_statistics_are_bounded_too():
    old = {"mean": np.zeros(1, np.float32)}

    def says(*values):
        return [replies(1.0, pass_through={"mean": np.array([v], np.float32)})[0] for v in values]

    assert out(Bounds(1000.0, None), says(1.0, 1.0, 1.0, 1.0, 900.0), old) == []
    found = Bounds(1000.0, None).objections(says(1.0, 1.0, 1.0, 1.0, 3e38), old, weighed=True)
    assert found.keys() == {4}
    assert found[4].startswith("its change of mean is 3e+38, more than max_ratio=1000 times 1,")
    assert out(Bounds(1000.0, None), says(0.0, 0.0, 0.0, 1.0, 3.0), old) == []
