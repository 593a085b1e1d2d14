"""Epsilon is dp-accounting's for the same mechanism."""

import math

import pytest
from representatives import covered

from flwr_fco import privacy as accounting
from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.privacy import Accountant, GaussianDP

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
DELTA = 1e-5
MECHANISMS = [
    Accountant("independent", sampling=0.1),
    Accountant("independent", sampling=1.0),
    Accountant("banded", separation=4, bands=4),
    Accountant("banded", separation=1, bands=3),
]


@pytest.mark.parametrize(("mechanism", "rounds"), [*covered(MECHANISMS, [13]), (MECHANISMS[0], 1), (MECHANISMS[-1], 1)])
def test_epsilon_is_that_of_the_event_and_rises_with_the_rounds(mechanism, rounds):
    found = mechanism.epsilon(2.0, rounds, DELTA)
    theirs = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    expected = theirs.compose(mechanism.event(2.0, rounds)).get_epsilon(DELTA)
    assert found == pytest.approx(expected, rel=2e-3)
    assert found <= mechanism.epsilon(2.0, rounds + 5, DELTA)
    bound = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert found <= bound.compose(mechanism.event(2.0, rounds)).get_epsilon(DELTA) * 1.001


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_multiplier_of_a_target_does_not_pass_it(mechanism):
    for target in (0.3, 8.0):
        found = mechanism.noise_multiplier(target, 30, DELTA)
        assert 0.995 * target < mechanism.epsilon(found, 30, DELTA) <= target


def test_extremes():
    for mechanism in MECHANISMS:
        assert mechanism.epsilon(0.0, 3, DELTA) == math.inf
        assert mechanism.epsilon(1.0, 0, DELTA) == 0.0
        assert mechanism.epsilon(1e-3, 3, DELTA) > 1000.0
        assert 0.0 <= mechanism.epsilon(1e6, 3, DELTA) < 1e-4
    with pytest.raises(ConfigurationError, match="out of reach"):
        Accountant("banded").noise_multiplier(1e-12, 100, 1e-300)


def test_without_the_library_there_is_no_private_run(monkeypatch):
    monkeypatch.setattr(accounting, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(NotInstalledError, match=r"pip install -e .\.\[privacy\]"):
        accounting.library()


@pytest.mark.parametrize(
    "options",
    [
        *({"clip": clip} for clip in (0.0, math.nan, {}, {"w": math.inf}, "1")),
        *({"delta": delta} for delta in (0.0, 1.0)),
        *({"noise_multiplier": multiplier} for multiplier in (-1.0, math.nan, None)),
        {"target_epsilon": 1.0},
        {"noise_multiplier": None, "target_epsilon": 0.0},
        {"noise": "laplace"},
        {"bands": 3, "noise": "independent"},
        {"rounds": 0},
        {"clients": 0},
    ],
)
def test_what_is_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError):
        GaussianDP(**{"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, **options})
