"""Increments and running statistics far above those of other clients are left out."""

import re
from functools import partial

import numpy as np
import pytest

from flwr_fco.server.replies.bounds import IncrementBounds, Rule
from flwr_fco.wire.protocol import Uplink


def test_bounds_look_back_and_are_wide_in_first_small_rounds():
    def uplinks(*norms):
        return [Uplink({"increment": np.array([norm, 0.0])}, 1.0, 1, examples=1.0) for norm in norms]

    bounds = IncrementBounds(1000.0, None)
    assert IncrementBounds(1000.0, None).objections(uplinks(1.0, 1.0, 1.0, 1e5)) == {}
    assert list(bounds.objections(uplinks(1.0, 1.0, 1.0, 1e9))) == [3]
    assert list(bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 1e9))) == [4]
    # In small rounds what was usual before counts; a poisoned majority does not make its own usual.
    small = IncrementBounds(1000.0, None)
    assert small.objections(uplinks(1.0, 1.0, 2.0)) == {}
    assert list(small.objections(uplinks(1.0, 1e7))) == [1]
    assert list(small.objections(uplinks(1e7))) == [0]
    assert set(small.objections(uplinks(1e300, 1e300, 1e300, 1e300, 1.0))) >= {0, 1, 2, 3}
    # A first one has room for a factor of a million.
    assert IncrementBounds(1000.0, None).objections(uplinks(1.0, 9e5)) == {}
    assert list(IncrementBounds(1000.0, None).objections(uplinks(1e300))) == [0]
    # Near the optimum the median is small; what was usual before is no lie.
    assert bounds.objections(uplinks(1e-9, 1e-9, 1e-9, 1e-9, 1.0)) == {}
    assert list(bounds.objections(uplinks(1e-9, 1e-9, 1e-9, 1e-9, 1001.0))) == [4]
    again = IncrementBounds(1000.0, None)
    again.from_arrays(bounds.to_arrays())
    assert again.largest == bounds.largest
    assert IncrementBounds(1000.0, None).objections(uplinks(0.0, 0.0, 0.0, 1.0, 2.0)) == {}
    assert list(IncrementBounds(None, 5.0).objections(uplinks(1.0, 6.0))) == [1]


def test_running_statistics_are_bounded_too():
    def uplinks(*values, dtype=np.float32):
        through = [{"mean": np.array([value], dtype), "count": np.array([10**9 * (value > 2)])} for value in values]
        return [Uplink({"increment": np.ones(2)}, 1.0, 1, examples=1.0, pass_through=own) for own in through]

    old = {"mean": np.zeros(1, np.float32)}
    bounds = IncrementBounds(1000.0, None)
    assert bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 900.0), passed=old) == {}
    found = bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 3e38), passed=old)
    assert list(found) == [4]
    assert "its change of mean is 3e+38" in found[4]
    assert IncrementBounds(1000.0, None).objections(uplinks(0.0, 0.0, 0.0, 1.0, 3.0), passed=old) == {}


def test_the_reason_has_the_bound_that_was_applied():
    for ratio, said in ((None, "max_ratio=1000 times 1,"), (50.0, "its count is 1e+09, more than 50 times 1,")):
        rule = Rule(1000.0, ratio=ratio)
        found = IncrementBounds(1000.0, None).compare("count", [1.0] * 5 + [1e9], rule=rule)
        assert said in found[5]


def test_the_reason_is_true_of_a_diverging_method_too():
    """More than a times b is that, and a bound that is named instead is the one that was applied."""
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(150):
        bounds, size = IncrementBounds(1000.0, None), 10.0 ** rng.uniform(-3.0, 13.0)
        for growth in 10.0 ** rng.uniform(0.0, 12.0, 6):
            bounds._far = bool(rng.random() < 0.5)
            sizes = (size * 10.0 ** rng.uniform(-3.0, 3.0, 5)).tolist()
            largest = bounds.largest.get("length", 0.0)
            found = bounds.compare("length", sizes)
            near = partial(pytest.approx, rel=0.01)
            for i, reason in found.items():
                numbers = [float(number) for number in re.findall(r"\d[\d.]*(?:e[+-]\d+)?", reason)]
                kinds.add(re.sub(r"\d[\d.]*(?:e[+-]\d+)?", "", reason))
                assert numbers[:2] == near([sizes[i], 1000.0])
                if "allows" in reason:
                    assert numbers[3:] == near([np.median(sizes), largest])
                    assert max((s for k, s in enumerate(sizes) if k not in found), default=0.0) <= 1.01 * numbers[2]
                    assert numbers[2] <= 1.01 * sizes[i]
                else:
                    assert numbers[0] > 0.99 * numbers[1] * numbers[2]
                    assert numbers[2] == near(largest if "earlier" in reason else np.median(sizes))
            size *= growth
    assert len(kinds) == 3
