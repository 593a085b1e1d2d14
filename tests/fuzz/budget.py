"""How many cases the fuzz tests try: some 300 in all, the same ones each time; `make fuzz`: 10,000 new ones."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FUZZ_CASES", "0"))


def fuzzed(share):
    """Return the settings of a test that takes a share of the cases."""
    number = max(5, round((CASES or 300) * share))
    unhurried = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
    return settings(max_examples=number, derandomize=not CASES, **unhurried)


#: Numbers that are used somewhere as if they could not occur.
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([0, -1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**9, 10**12, 10**18, 10**30, -(10**12)]),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 1e-12, 1e12, 1e300, float("nan"), float("inf"), float("-inf")]),
    st.floats(allow_subnormal=True),
)
WORDS = st.one_of(
    st.sampled_from(["", "x", "l1", "euclidean", "regularizer", "mirror_map", "float64", "coefficients", "*", "\x00"]),
    st.sampled_from(["é", "0", "1e3"]) | st.text(max_size=8),
)
KEYS = st.one_of(st.sampled_from(["$array", "$nested", "$mapping", "kind", "family", "strength"]), WORDS)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS)
#: What JSON can say, with the marks of our specifications among the keys.
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def paths(value, way=()):
    """Return the ways to all entries of a JSON value."""
    found = [way] if way else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.extend(paths(item, (*way, key)))
    return found


def replaced(value, way, new):
    """Return a JSON value with another one in an entry; a `new` of ... takes the entry away."""
    key, *rest = way
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = replaced(copy[key], rest, new)
    elif new is ...:
        del copy[key]
    else:
        copy[key] = new
    return copy


@st.composite
def mutated(draw, value, times=2):
    """Draw a JSON value that differs from a good one in an entry or two."""
    for _ in range(draw(st.integers(1, times))):
        ways = paths(value)
        if not ways:
            break
        value = replaced(value, draw(st.sampled_from(ways)), draw(st.one_of(st.just(...), VALUES)))
    return value


@st.composite
def damaged(draw, data):
    """Draw bytes that differ from good ones: a flipped bit, a cut, an insertion, or others altogether."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "other", "swap"]))
    place = draw(st.integers(0, max(len(data) - 1, 0)))
    if kind == "flip" and data:
        return data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
    if kind == "cut":
        return data[:place]
    if kind == "insert":
        return data[:place] + draw(st.binary(min_size=1, max_size=9)) + data[place:]
    if kind == "swap":
        length = draw(st.integers(1, 40))
        return data[:place] + draw(st.binary(min_size=length, max_size=length)) + data[place + length :]
    return draw(st.binary(max_size=40))
