"""The rivals keep what the strategies of the library keep: the same rules, of the same helpers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from converging import converges
from fitting import fitting
from limits import biased, doubled_strength, exact, shifted_by, subgradient, vanishing
from problems import CONSTANTS, app_of, clients, start_arrays
from unequal_work import RATE, takes_gradient_steps

from flwr_fco import strategies
from flwr_fco.regularizers import L1, Zero
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Steps
from flwr_fco.testing import check_strategy
from reproduction import rivals
from reproduction.rivals import RIVALS, STRATEGIES, FedCM, FedSAM
from reproduction.tests.rivals.days import by_day

ROOT = Path(__file__).parents[3]


def test_the_library_has_none_of_them():
    assert set(RIVALS) == set(rivals.__all__)
    assert not RIVALS.keys() & {*strategies.__all__, *strategies.STRATEGIES}
    assert STRATEGIES == {**strategies.STRATEGIES, **RIVALS}


METHODS = sorted({kind.algorithm.name for kind in RIVALS.values()})


def in_a_new_process(lines):
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, cwd=ROOT)


def test_a_client_that_imports_them_finds_their_halves():
    lines = "import reproduction.rivals; from flwr_fco.algorithms.contract.algorithm import methods; "
    found = in_a_new_process(f"{lines}[methods()[name] for name in {METHODS}]")
    assert found.returncode == 0, found.stderr


def test_a_client_without_them_says_what_to_import():
    lines = "import flwr_fco.client_apps; from flwr_fco.algorithms.contract.algorithm import method_of; "
    found = in_a_new_process(f"{lines}method_of('fed_pd', {{}})")
    assert "the server asks for the method 'fed_pd'; this client knows " in found.stderr
    assert "Import its module in the ClientApp" in found.stderr


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


def passing(message, context, call_next):
    """A mod that does nothing: with it everything travels in messages."""
    return call_next(message, context)


@pytest.mark.parametrize("name", by_day())
def test_with_and_without_messages_the_same_bits_and_metrics(name):
    psi = Zero() if "regularizer" in RIVALS[name].algorithm.refuses else L1(0.05)
    given = {"regularizer": psi, "client_lr": 0.05, "work": Steps(3, batch_size=4), "batch_size": 4, "seed": 3}
    found = []
    for mods in ([], [passing]):
        strategy = RIVALS[name](**fitting(RIVALS[name], {**given, **CONSTANTS.get(name, {})}), fraction_evaluate=0.0)
        options = {"num_nodes": 4, "num_rounds": 5, "initial_arrays": start_arrays(), "progress": False}
        result = simulate(strategy, app_of(clients(), mods), **options)
        found.append((strategy, result))
    (here, one), (there, other) = found
    assert one.rows() == other.rows()
    for value, same in zip(here.state, there.state, strict=True):
        np.testing.assert_array_equal(value, same)
    for key in here.memories.members if here.memories is not None else ():
        for vector, value in there.memories.memory(key).items():
            np.testing.assert_array_equal(here.memories.memory(key)[vector], value)


# --- unequal work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalize", [True, False])
def test_who_takes_more_steps_counts_no_more_than_its_weight(normalize):
    takes_gradient_steps(lambda **options: FedSAM(radius=0.0, **options), normalize)
    strategy, mean, steps = takes_gradient_steps(lambda **options: FedCM(mix=1.0, **options), normalize)
    assert abs(strategy.state.direction + mean / (RATE * steps)).max() <= 1e-11
