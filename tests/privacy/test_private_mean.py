"""Privacy by itself: what it costs, its noise, the one noisy mean of a round, and an audit that can fail."""

import itertools
import math
from copy import copy
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import covered, crossed, nightly, refused
from scipy.linalg import toeplitz
from scipy.stats import beta, kstest, norm

from flwr_fco import privacy as accounting
from flwr_fco.core.layout import Layout
from flwr_fco.errors import NotInstalledError
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.privacy import Accountant, BandedNoise, GaussianDP, PrivateMean, banded_sensitivity, clipped
from flwr_fco.strategies import FedDualAvg, Steps

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")

# --- epsilon is dp-accounting's for the same mechanism ----------------------------------------------------------------

DELTA = 1e-5
MECHANISMS = [
    *(Accountant(sampling) for sampling in (0.1, 1.0)),
    *(Accountant(separation=separation, bands=bands) for separation, bands in ((4, 4), (1, 3))),
]


def event(mechanism, rounds):
    if mechanism.bands > 1:
        return dp_accounting.GaussianDpEvent(2.0 / banded_sensitivity(rounds, mechanism.separation, mechanism.bands))
    sampled = dp_accounting.PoissonSampledDpEvent(mechanism.sampling, dp_accounting.GaussianDpEvent(2.0))
    return dp_accounting.SelfComposedDpEvent(sampled, rounds)


@pytest.mark.parametrize(("mechanism", "rounds"), [*covered(MECHANISMS, [13]), (MECHANISMS[0], 1), (MECHANISMS[-1], 1)])
def test_epsilon_is_that_of_the_event_and_rises_with_the_rounds(mechanism, rounds):
    found = mechanism.epsilon(2.0, rounds, DELTA)
    neighbours = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountants = [kind(neighboring_relation=neighbours) for kind in (pld.PLDAccountant, rdp.RdpAccountant)]
    expected, bound = (each.compose(event(mechanism, rounds)).get_epsilon(DELTA) for each in accountants)
    assert found == pytest.approx(expected, rel=2e-3)
    assert found <= mechanism.epsilon(2.0, rounds + 5, DELTA)
    assert found <= bound * 1.001


@pytest.mark.parametrize(("mechanism", "target"), crossed(MECHANISMS, (0.3, 8.0)), ids=str)
def test_the_multiplier_of_a_target_does_not_pass_it(mechanism, target):
    found = mechanism.noise_multiplier(target, 30, DELTA)
    assert 0.995 * target < mechanism.epsilon(found, 30, DELTA) <= target


def test_extremes():
    for mechanism in MECHANISMS:
        assert (mechanism.epsilon(0.0, 3, DELTA), mechanism.epsilon(1.0, 0, DELTA)) == (math.inf, 0.0)
        assert mechanism.epsilon(1e-3, 3, DELTA) > 1000.0
        assert 0.0 <= mechanism.epsilon(1e6, 3, DELTA) < 1e-4
    refused("out of reach", Accountant().noise_multiplier, 1e-12, 100, 1e-300)


def test_without_the_library_there_is_no_private_run(monkeypatch):
    monkeypatch.setattr("flwr_fco.errors.import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    refused(r"pip install -e .\.\[privacy\]", accounting.library, kind=NotInstalledError)


def private(**options):
    return GaussianDP(**{"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, **options})


OUT_OF_RANGE = [{"clip": clip} for clip in (0.0, math.nan, {}, {"w": math.inf}, "1", {"w": "1"}, {"w": 10**400})]
OUT_OF_RANGE += [*({"noise_multiplier": own} for own in (-1.0, math.nan, None)), {"delta": 0.0}, {"delta": 1.0}]
OUT_OF_RANGE += [{"target_epsilon": 1.0}, {"noise_multiplier": None, "target_epsilon": 0.0}, {"noise": "laplace"}]
OUT_OF_RANGE += [{"bands": 3, "noise": "independent"}, {"rounds": 0}, {"clients": 0}]


@pytest.mark.parametrize("options", OUT_OF_RANGE)
def test_what_is_out_of_range_is_refused(options):
    refused("expected|none", private, **options)


# --- the noise against brute force ------------------------------------------------------------------------------------


def banded_matrix(rounds, bands):
    c = np.zeros(rounds)
    c[: min(bands, rounds)] = accounting.square_root_coefficients(min(bands, rounds))
    return np.tril(toeplitz(c))


def largest_influence(matrix, separation):
    """The largest |C x| over all patterns of participation, and all signs."""
    best = 0.0
    gram = matrix.T @ matrix
    for bits in itertools.product((0, 1), repeat=len(gram)):
        there = np.flatnonzero(bits)
        if there.size and np.diff(there).min(initial=separation) >= separation:
            own = gram[np.ix_(there, there)]
            if there.size <= 4:
                signs = np.array(list(itertools.product((-1, 1), repeat=there.size)))
                best = max(best, *np.einsum("ij,jk,ik->i", signs, own, signs))
            best = max(best, own.sum())
    return math.sqrt(best)


@pytest.mark.parametrize("rounds", [1, 2, 5, 9, *nightly(12)])
def test_the_banded_sensitivity_is_that_of_all_patterns(rounds):
    for separation in {1, 2, 3, 5, rounds}:
        for bands in {1, 2, separation, separation + 2, rounds, rounds + 3}:
            brute = largest_influence(banded_matrix(rounds, bands), separation)
            assert banded_sensitivity(rounds, separation, bands) == pytest.approx(brute, abs=1e-12, rel=0)


@pytest.mark.parametrize("bands", [1, 2, 4, 20])
def test_the_streamed_banded_noise_is_that_of_the_inverse(bands):
    """The noise of each round as a linear function of all numbers that were drawn."""
    stream, drawn = BandedNoise(bands), iter(np.eye(24))
    streamed = np.array([stream.next(next(drawn).copy()) for _ in range(12)])[:, :12]
    assert len(stream.last) < bands
    np.testing.assert_allclose(banded_matrix(12, bands) @ streamed, np.eye(12), atol=1e-13)


def test_secure_numbers_are_normal_and_never_the_same():
    pair = accounting.secure_normal(50_000), accounting.secure_normal(50_000)
    # Neither test has an answer that is large enough where a number is NaN or infinite.
    assert kstest(np.concatenate(pair), "norm").pvalue > 1e-6
    assert abs(np.corrcoef(*pair)[0, 1]) < 0.03


def test_what_is_clipped_is_within_the_bound_whatever_it_is():
    rng = np.random.default_rng(1)
    bounds = [(slice(0, 3), 0.5), (slice(3, 5), 2.0)]
    odd = [np.full(5, 1e308), np.full(5, 5e-324), np.array([1e200, 1.0, -1e-200, 1e300, 0.0]), np.zeros(5)]
    odd += [np.array([np.inf, 1.0, 1.0, np.nan, 1.0]), *(rng.standard_normal((200, 5)) * 10.0 ** rng.integers(-3, 4))]
    for vector in odd:
        vector.flags.writeable = False
        found = clipped(vector, bounds)
        assert all(np.linalg.norm(found[block]) <= bound for block, bound in bounds)
    inside = np.array([0.1, 0.2, 0.3, 1.0, 1.0])
    np.testing.assert_array_equal(clipped(inside, bounds), inside)


# --- the mean of a round: what one client can do to it, and who is asked ----------------------------------------------

DIMENSION = 3


class Mean(PrivateMean):
    """The mean of a run of so many rounds, in which all clients are asked by default."""

    def __init__(self, fraction_train=1.0, length=6, **options):
        self.length = length
        exact = {"weighting": "uniform", "normalize_local_work": False, "fraction_evaluate": 0.0, "work": Steps(1)}
        privacy = private(**options)
        super().__init__(privacy, FedDualAvg(fraction_train=fraction_train, privacy=privacy, **exact))

    def asks(self, nodes, **sizes):
        layout = Layout.from_arrays({name: np.zeros(size) for name, size in (sizes or {"w": DIMENSION}).items()})
        problem = SimpleNamespace(layout=layout, plan=SimpleNamespace(steps=1), client_lr=0.1)
        return self.begin_round(nodes, self.length, problem)

    def increment(self, replies=()):
        return self.release(list(replies)).vectors["increment"]


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
    mean = Mean(clip=clip)
    mean.asks(nodes := nodes_of(6))
    rng = np.random.default_rng(0)
    others = [uplink(node, rng.standard_normal(3)) for node in nodes[1:]]
    without = mean.clipped_sum(others)
    own = uplink(nodes[0], vector)
    assert np.linalg.norm(mean.clipped_sum([own, *others]) - without) <= clip * (1 + 1e-12)
    assert np.linalg.norm(mean.clipped_sum([own, own, *others, own]) - without) <= clip * (1 + 1e-12)
    moved = mean.clipped_sum([own, *others]) - mean.clipped_sum([uplink(nodes[0], other), *others])
    assert np.linalg.norm(moved) <= 2 * clip * (1 + 1e-12)
    for stranger in (uplink(Node(7, 99), vector), own._replace(node=None)):
        np.testing.assert_array_equal(mean.clipped_sum([stranger, *others]), without)


def test_the_denominator_and_elapsed_are_fixed_and_an_empty_round_is_noise():
    for answering in (0, 1, 4):
        mean = Mean(0.5, noise_multiplier=0.0)
        asked = mean.asks(nodes_of(8))
        assert len(asked) == 4
        found = mean.release([uplink(node, [1.0, 0.0, 0.0]) for node in asked[:answering]])
        assert found.vectors["increment"][0] == pytest.approx(answering / 4, rel=1e-9)
        assert (found.elapsed, found.weight, dict(found.metrics), mean.round) == (0.1, 1.0, {}, 1)
    # The noise is never the same, and no function of the strategy's seed.
    one, other = Mean(noise_multiplier=2.0), Mean(noise_multiplier=2.0)
    for mean in (one, other):
        mean.asks(nodes_of(4))
    assert np.all(one.increment() != other.increment())


def test_a_client_is_asked_again_after_b_rounds_and_not_before():
    orders = set()
    for _ in range(20):
        mean, around, rounds = Mean(0.25, 12), nodes_of(10), {}
        for t in range(12):
            asked = mean.asks(around)
            assert mean.asks(around) == asked
            for node in asked:
                rounds.setdefault(node.key, []).append(t)
            mean.increment()
        assert all(np.all(np.diff(own) == 4) for own in rounds.values())
        orders.add(tuple(rounds[0, m][0] for m in range(10)))
    assert len(orders) > 1  # the shuffle is no function of the strategy's seed


def test_poisson_sampling_takes_each_client_by_itself():
    mean = Mean(0.2, 400, noise="independent")
    counts = [(len(mean.asks(nodes_of(50))), mean.increment())[0] for _ in range(400)]
    assert np.mean(counts) == pytest.approx(10.0, abs=6 * math.sqrt(8.0 / 400))
    assert np.var(counts) == pytest.approx(8.0, rel=0.45)
    assert mean.denominator == pytest.approx(10.0)


def test_a_client_that_reconnects_keeps_its_turn_and_a_late_one_has_none():
    mean = Mean(0.5, 4)
    first = {node.key for node in mean.asks(nodes_of(4))}
    mean.increment()
    second = {node.key for node in mean.asks([Node(900 + m, m) for m in range(6)])}
    assert sorted([*first, *second]) == [(0, m) for m in range(4)]


def test_no_round_is_released_twice_and_none_that_is_not_accounted_for():
    mean = Mean(length=1)
    refused("aggregated once", mean.increment)
    mean.asks(nodes_of(3))
    mean.increment()
    refused("aggregated once", mean.increment)
    refused("accounted for 1 rounds", mean.asks, nodes_of(3))
    mean.round = 0
    refused("released already", mean.asks, nodes_of(3))


def test_the_noise_of_clips_by_array_covers_all_of_them():
    """One client moves the sum by the root of the sum of the squares, and the noise is that many times as large."""
    mean = Mean(clip={"a": 3.0, "b": 4.0}, noise_multiplier=2.0, noise_seed=1)
    (node,) = mean.asks(nodes_of(1), a=4000, b=4000)
    assert np.linalg.norm(mean.clipped_sum([uplink(node, np.full(8000, 1e6))])) == pytest.approx(5.0, rel=1e-9)
    assert np.std(mean.increment()) == pytest.approx(2.0 * 5.0, rel=0.05)


def test_the_number_of_clients_is_that_of_the_privacy():
    mean = Mean(noise_multiplier=0.0, clients=40)
    released = mean.increment(uplink(node, [0.5, 0.0, 0.0]) for node in mean.asks(nodes_of(4)))
    np.testing.assert_allclose(released, [4 * 0.5 / 40, 0.0, 0.0], rtol=1e-9)


# --- the audit ------------------------------------------------------------------------------------------------------

CLAIMED = 1.0
AUDITED_ROUNDS = 4
SEPARATION = 2


def statistics(present, repeats, *, noise=1.0, clip=True, separated=True):
    """Most powerful statistics of whole runs with one canary, which sends far more than the clip, or nothing."""
    matrix = banded_matrix(AUDITED_ROUNDS, SEPARATION)
    found, around = [], nodes_of(1)
    direction = matrix @ (np.array([1.0, 0.0, 1.0, 0.0]) if separated else np.ones(4))
    multiplier = noise * banded_sensitivity(AUDITED_ROUNDS, SEPARATION, SEPARATION) / CLAIMED
    one = Mean(1.0 / SEPARATION, AUDITED_ROUNDS, noise_multiplier=multiplier)
    for _ in range(repeats):
        # Another run of the same options: to check them takes longer than a run.
        PrivateMean.__init__(mean := copy(one), one.privacy, copy(one._options))
        seen = []
        for _ in range(AUDITED_ROUNDS):
            asked = mean.asks(around, w=1)
            if not separated:
                asked = around
                mean._asked = {node.key for node in around}
            if not clip:
                mean._bounds = []
            replies = [uplink(node, [3.0]) for node in asked] if present else []
            seen.append(mean.increment(replies)[0] * mean.denominator)
        found.append(direction @ matrix @ seen / (multiplier / noise))
    return np.array(found) / np.linalg.norm(direction)


def lower_bound(absent, present, threshold=CLAIMED / 2):
    """A bound on mu of Gaussian differential privacy, from how often a test errs: wrong in one of 50,000 audits."""

    def at_most(errors, count):
        return beta.ppf(0.99999, errors + 1, count - errors) if errors < count else 1.0

    false_alarm = at_most(np.sum(absent > threshold), absent.size)
    return norm.isf(false_alarm) - norm.ppf(at_most(np.sum(present <= threshold), present.size))


def audit(repeats, **broken):
    return lower_bound(statistics(False, repeats, **broken), statistics(True, repeats, **broken))


@pytest.mark.parametrize("repeats", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_audit_finds_no_more_than_is_claimed_and_nearly_as_much(repeats):
    absent, present = (statistics(there, repeats) for there in (False, True))
    assert CLAIMED - 18.0 / math.sqrt(repeats) < lower_bound(absent, present) < CLAIMED
    # Both are normal: their means and deviations are known better than how often a test errs.
    found = present.mean() - absent.mean(), absent.std(), present.std()
    np.testing.assert_allclose(found, [CLAIMED, 1.0, 1.0], atol=7.0 / math.sqrt(repeats), rtol=0.0)


@pytest.mark.parametrize("broken", [{"noise": 0.5}, *nightly({"clip": False}, {"separated": False})], ids=str)
@pytest.mark.parametrize("repeats", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_the_audit_finds_a_mechanism_that_is_broken(broken, repeats):
    assert audit(repeats, **broken) > CLAIMED
