"""The one noisy mean of a round, by itself: what one client can do to it, who is asked, and an audit that can fail."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from representatives import nightly
from scipy.stats import beta, norm

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.privacy import GaussianDP, PrivateMean, square_root_coefficients
from flwr_fco.strategies import FedDualAvg, Steps
from flwr_fco.strategies.checkpoint import go_back, moment

pytest.importorskip("dp_accounting")
DIMENSION = 3


def make(privacy, fraction_train=1.0, rounds=6):
    exact = {"weighting": "uniform", "normalize_local_work": False, "fraction_evaluate": 0.0, "work": Steps(1)}
    return Mean(privacy, FedDualAvg(fraction_train=fraction_train, privacy=privacy, **exact), rounds)


class Mean(PrivateMean):
    """The mean of a run of so many rounds."""

    def __init__(self, privacy, options, rounds):
        super().__init__(privacy, options)
        self.length = rounds

    def asks(self, nodes, **sizes):
        layout = Layout.from_arrays({name: np.zeros(size) for name, size in (sizes or {"w": DIMENSION}).items()})
        problem = SimpleNamespace(layout=layout, plan=SimpleNamespace(steps=1), client_lr=0.1)
        return self.begin_round(nodes, self.length, problem)


def nodes_of(number):
    return [Node(100 + m, m) for m in range(number)]


def uplink(node, vector):
    return Uplink({"increment": np.array(vector, dtype=float)}, 0.1, 1, node=node)


#: What a client may send: NaN, infinity and numbers of any size too.
VECTORS = st.lists(st.floats(), min_size=DIMENSION, max_size=DIMENSION)


@settings(max_examples=60, deadline=None)
@given(vector=VECTORS, other=VECTORS)
def test_one_client_moves_the_sum_by_the_clip_and_replaced_by_twice_that(vector, other):
    clip = 0.7
    mean = make(GaussianDP(clip=clip, noise_multiplier=1.0, delta=1e-3))
    mean.asks(nodes := nodes_of(6))
    rng = np.random.default_rng(0)
    others = [uplink(node, rng.standard_normal(3)) for node in nodes[1:]]
    without = mean.clipped_sum(others)
    own = uplink(nodes[0], vector)
    assert np.linalg.norm(mean.clipped_sum([own, *others]) - without) <= clip * (1 + 1e-12)
    assert np.linalg.norm(mean.clipped_sum([own, own, *others, own]) - without) <= clip * (1 + 1e-12)
    moved = mean.clipped_sum([own, *others]) - mean.clipped_sum([uplink(nodes[0], other), *others])
    assert np.linalg.norm(moved) <= 2 * clip * (1 + 1e-12)
    stranger = uplink(Node(7, 99), vector)
    np.testing.assert_array_equal(mean.clipped_sum([stranger, *others]), without)
    np.testing.assert_array_equal(mean.clipped_sum([own._replace(node=None), *others]), without)


def test_the_denominator_and_elapsed_are_fixed_and_an_empty_round_is_noise():
    for answering in (0, 1, 4):
        mean = make(GaussianDP(clip=1.0, noise_multiplier=0.0, delta=1e-3), 0.5)
        asked = mean.asks(nodes_of(8))
        assert len(asked) == 4
        found = mean.release([uplink(node, [1.0, 0.0, 0.0]) for node in asked[:answering]])
        assert found.vectors["increment"][0] == pytest.approx(answering / 4, rel=1e-9)
        assert (found.elapsed, found.weight, dict(found.metrics), mean.round) == (0.1, 1.0, {}, 1)
    noisy = make(GaussianDP(clip=1.0, noise_multiplier=2.0, delta=1e-3, noise_seed=1))
    noisy.asks(nodes_of(4))
    assert np.all(noisy.release([]).vectors["increment"] != 0.0)


def test_a_client_is_asked_again_after_b_rounds_and_not_before():
    orders = set()
    for _ in range(20):
        mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3), 0.25, rounds=12)
        around = nodes_of(10)
        rounds = {}
        for t in range(12):
            asked = mean.asks(around)
            assert mean.asks(around) == asked
            for node in asked:
                rounds.setdefault(node.key, []).append(t)
            mean.release([])
        assert len(rounds) == 10
        assert all(np.all(np.diff(own) == 4) for own in rounds.values())
        orders.add(tuple(rounds[0, m][0] for m in range(10)))
    assert len(orders) > 1  # the shuffle is no function of the strategy's seed


def test_poisson_sampling_takes_each_client_by_itself():
    mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3, noise="independent"), 0.2, rounds=400)
    around = nodes_of(50)
    counts = []
    for _ in range(400):
        counts.append(len(mean.asks(around)))
        mean.release([])
    assert np.mean(counts) == pytest.approx(10.0, abs=6 * math.sqrt(8.0 / 400))
    assert np.var(counts) == pytest.approx(8.0, rel=0.45)
    assert mean.denominator == pytest.approx(10.0)


def test_a_client_that_reconnects_keeps_its_turn_and_a_late_one_has_none():
    mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3), 0.5, rounds=4)
    around = nodes_of(4)
    first = mean.asks(around)
    mean.release([])
    around = [Node(900 + m, m) for m in range(6)]
    second = mean.asks(around)
    assert {node.key for node in first} | {node.key for node in second} == {(0, m) for m in range(4)}
    assert {node.key for node in first}.isdisjoint(node.key for node in second)


def test_no_round_is_released_twice_and_none_that_is_not_accounted_for():
    mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3), rounds=2)
    around = nodes_of(3)
    with pytest.raises(ConfigurationError, match="aggregated once"):
        mean.release([])
    mean.asks(around)
    saved = moment({"privacy": mean})
    mean.release([])
    with pytest.raises(ConfigurationError, match="aggregated once"):
        mean.release([])
    go_back({"privacy": mean}, saved)
    with pytest.raises(ConfigurationError, match="released already"):
        mean.asks(around)
    mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3), rounds=1)
    mean.asks(around)
    mean.release([])
    with pytest.raises(ConfigurationError, match="accounted for 1 rounds"):
        mean.asks(around)


def test_the_noise_is_never_the_same_and_no_function_of_the_strategys_seed():
    found = []
    for _ in range(2):
        mean = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3))
        mean.asks(nodes_of(2))
        found.append(mean.release([]).vectors["increment"])
    assert np.all(found[0] != found[1])


# --- the audit ------------------------------------------------------------------------------------------------------

CLAIMED = 1.0
AUDITED_ROUNDS = 4
SEPARATION = 2


def statistics(present, repeats, *, noise=1.0, clip=True, separated=True):
    """Most powerful statistics of whole runs with one canary, which sends far more than the clip, or nothing."""
    c = square_root_coefficients(2)
    matrix = np.diag(np.full(4, c[0])) + np.diag(np.full(3, c[1]), -1)
    found = []
    around = nodes_of(1)
    sensitivity = make(GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3), 0.5).accountant.sensitivity(4)
    taking_part = np.array([1.0, 0.0, 1.0, 0.0]) if separated else np.ones(4)
    direction = matrix @ taking_part
    direction /= np.linalg.norm(direction)
    privacy = GaussianDP(clip=1.0, noise_multiplier=noise * sensitivity / CLAIMED, delta=1e-3)
    for _ in range(repeats):
        mean = make(privacy, 1.0 / SEPARATION, AUDITED_ROUNDS)
        seen = []
        for _ in range(AUDITED_ROUNDS):
            asked = mean.asks(around, w=1)
            if not separated:
                asked = around
                mean._asked = {node.key for node in around}
            if not clip:
                mean._bounds = []
            replies = [uplink(node, [3.0]) for node in asked] if present else []
            seen.append(mean.release(replies).vectors["increment"][0] * mean.denominator)
        found.append(direction @ matrix @ seen / (privacy.noise_multiplier / noise))
    return np.array(found)


def lower_bound(absent, present, threshold=CLAIMED / 2):
    """A bound on mu of Gaussian differential privacy, from how often a test errs: wrong in one of 50,000 audits."""

    def at_most(errors, count):
        return beta.ppf(0.99999, errors + 1, count - errors) if errors < count else 1.0

    false_alarm = at_most(np.sum(absent > threshold), absent.size)
    missed = at_most(np.sum(present <= threshold), present.size)
    return norm.isf(false_alarm) - norm.ppf(missed)


def audit(repeats, **broken):
    return lower_bound(statistics(False, repeats, **broken), statistics(True, repeats, **broken))


@pytest.mark.parametrize("repeats", [1500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_audit_finds_no_more_than_is_claimed_and_nearly_as_much(repeats):
    assert CLAIMED - 18.0 / math.sqrt(repeats) < audit(repeats) < CLAIMED


@pytest.mark.parametrize("broken", [{"noise": 0.5}, *nightly({"clip": False}, {"separated": False})], ids=str)
@pytest.mark.parametrize("repeats", [1500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_audit_finds_a_mechanism_that_is_broken(broken, repeats):
    assert audit(repeats, **broken) > CLAIMED


def test_the_noise_of_clips_by_array_covers_all_of_them():
    """One client moves the sum by the root of the sum of the squares, and the noise is that many times as large."""
    privacy = GaussianDP(clip={"a": 3.0, "b": 4.0}, noise_multiplier=2.0, delta=1e-3, noise_seed=1)
    mean = make(privacy)
    (node,) = mean.asks(nodes_of(1), a=4000, b=4000)
    assert np.linalg.norm(mean.clipped_sum([uplink(node, np.full(8000, 1e6))])) == pytest.approx(5.0, rel=1e-9)
    assert np.std(mean.release([]).vectors["increment"]) == pytest.approx(2.0 * 5.0, rel=0.05)


def test_the_number_of_clients_is_that_of_the_privacy():
    privacy = GaussianDP(clip=1.0, noise_multiplier=0.0, delta=1e-3, clients=40)
    mean = make(privacy)
    released = mean.release([uplink(node, [0.5, 0.0, 0.0]) for node in mean.asks(nodes_of(4))])
    np.testing.assert_allclose(released.vectors["increment"], [4 * 0.5 / 40, 0.0, 0.0], rtol=1e-9)
