"""The rivals keep what the strategies of the library keep: the same rules, of the same helpers."""

import subprocess
import sys
from pathlib import Path

import pytest
from converging import converges
from fault_bars import KINDS, ROUNDS, SOAK, hold_the_bar
from limits import biased, doubled_strength, exact, shifted_by, subgradient, vanishing
from problems import SADDLE
from signatures import KEPT
from together import together
from unequal_work import RATE, takes_gradient_steps

from flwr_fco import strategies
from flwr_fco.simulation import Processes
from flwr_fco.strategies import method_of
from flwr_fco.testing import check_strategy
from reproduction import rivals
from reproduction.rivals import RIVALS, STRATEGIES, FedCM, FedSAM
from reproduction.tests.rivals.days import by_day
from tests.client_apps.test_quotas import clock, looks_at_the_time, looks_at_the_time_in_compiled_loops  # noqa: F401
from tests.objectives.test_sparse_features import agrees_with_dense_features
from tests.server.attacks.test_attacks import an_absurd_reply_is_as_if_missing, keeps_its_first_weight, skips_the_round
from tests.server.rounds.test_killed_runs import make, whole_and_resumed
from tests.simulation.test_exchange import gives_the_same_both_ways
from tests.simulation.test_workers import gives_the_bits_of_one_process

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def workers():
    with Processes(2) as both:
        yield both


def test_the_library_has_none_of_them():
    assert set(RIVALS) == set(rivals.__all__)
    assert not RIVALS.keys() & {*strategies.__all__, *strategies.STRATEGIES}
    assert STRATEGIES == {**strategies.STRATEGIES, **RIVALS}


METHODS = sorted({method_of(kind).algorithm.name for kind in RIVALS.values()})


def in_a_new_process(lines):
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, cwd=ROOT)


def test_the_client_app_of_the_experiments_finds_their_halves():
    lines = "from reproduction.runs.flower import client_app; from flwr_fco.client_apps import find_solver; "
    found = in_a_new_process(f"{lines}[find_solver(name) for name in {METHODS}]")
    assert found.returncode == 0, found.stderr


def test_a_client_without_them_says_what_to_import():
    found = in_a_new_process("from flwr_fco.client_apps import find_solver; find_solver('fed_pd')")
    assert "the server asks for the method 'fed_pd'; this client knows " in found.stderr
    assert "Import the module of the algorithm in the ClientApp" in found.stderr


#: What each converges to.
LIMITS = {
    "APDAInexact": exact,
    "CFedDA": vanishing,
    "DFedMid": doubled_strength,
    "DScaffold": exact,
    "DecoupledProx": exact,
    "DistributedPGDA": subgradient,
    "ExtraStepLocalSGD": subgradient,
    "FastFedDA": shifted_by("convexity", (0.1, 0.01), rounds=150, steps=(1, 3)),
    "FedAvgS": subgradient,
    "FedCM": biased,
    "FedDyn": exact,
    "FedPD": exact,
    "FedProx": shifted_by("penalty", (3.0, 30.0)),
    "FedSAM": shifted_by("radius", (0.1, 0.01)),
    "FiveGCS": exact,
    "MCFedDA": vanishing,
    "ScaffoldS": exact,
    "Scaffnew": exact,
}


#: Settings of another strategy, without a line of code of their own: at night.
SETTINGS = ("ScaffoldS", "DScaffold")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in SETTINGS else name for name in RIVALS]
)
def test_contract(name):
    check_strategy(RIVALS[name], tolerance=None)
    converges(RIVALS[name], LIMITS[name])


@together("kept", KEPT)
@together("cls", RIVALS.values())
def test_every_class_of_a_strategy_keeps(cls, kept):
    kept(cls)


@pytest.mark.parametrize("name", by_day())
def test_with_and_without_messages_the_same_bits_and_metrics(name):
    gives_the_same_both_ways(name)


@pytest.mark.parametrize("name", by_day())
def test_processes_give_the_bits_of_one(name, workers):
    gives_the_bits_of_one_process(name, workers)


@pytest.mark.parametrize("name", by_day())
def test_a_killed_run_goes_on_to_the_same_bits(name, tmp_path):
    for whole, resumed, at in whole_and_resumed(lambda: make(RIVALS[name]), tmp_path, name):
        assert resumed == whole, at


@pytest.mark.parametrize("name", by_day())
def test_sparse_features_agree_with_dense_ones(name):
    agrees_with_dense_features(name)


@pytest.mark.parametrize("name", by_day())
def test_every_half_looks_at_the_time(name, clock):  # noqa: F811
    looks_at_the_time(name, clock)


@pytest.mark.parametrize("name", by_day(name for name in RIVALS if name not in SADDLE))
def test_every_half_looks_at_the_time_where_the_loss_has_a_compiled_loop(name, clock):  # noqa: F811
    looks_at_the_time_in_compiled_loops(name, clock)


# --- under faults ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RIVALS)
def test_what_is_wrong_counts_as_if_it_were_missing(name, kind):
    hold_the_bar(name, kind, ROUNDS)


def test_what_is_wrong_counts_as_if_it_were_missing_in_short():
    hold_the_bar("FedPD", "bytes", 40)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [6, 12])
@pytest.mark.parametrize("kind", SOAK)
@pytest.mark.parametrize("name", RIVALS)
def test_nothing_ends_and_errors_are_those_without_the_bad_replies(name, kind, number):
    hold_the_bar(name, kind, ROUNDS, kinds=SOAK, clients=number)


@pytest.mark.nightly
def test_a_memory_forgets_one_altered_reply():
    hold_the_bar("APDAInexact", "one altered reply", ROUNDS // 2)


@together(("when", "length", "way"), [(1, 1e9, "messages"), (3, 1e300, "messages"), (3, 1e9, "uplinks")])
def test_one_of_four_nodes_with_an_absurd_reply(way, when, length):
    an_absurd_reply_is_as_if_missing(way, "FedCM", when, length)


@together("number_of_examples", [0, 15])
def test_a_client_that_remembers_weighs_what_it_said_first(number_of_examples):
    keeps_its_first_weight("FiveGCS", number_of_examples)


@pytest.mark.parametrize("name", ["APDAInexact", "FedPD"])
def test_where_everybody_must_answer_the_round_is_skipped(name):
    skips_the_round(name)


# --- unequal work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
def test_who_takes_more_steps_counts_no_more_than_its_weight(normalize):
    takes_gradient_steps(lambda **options: FedSAM(radius=0.0, **options), normalize)
    strategy, mean, steps = takes_gradient_steps(lambda **options: FedCM(mix=1.0, **options), normalize)
    assert abs(strategy.state.direction + mean / (RATE * steps)).max() <= 1e-11
