"""Every rival keeps the contract of the library's strategies, comes to its limit, and takes the steps of its box."""

from functools import partial

import numpy as np
import pytest
from converging import biased, converges, doubled_strength, exact, subgradient
from faulty import FAULTS, faulty_run, held_alike, weights_of
from fresh import run_code
from halves import begins_where_it_ended, find_solver
from problems import CONSTANTS, app_of, fitting, optimum, problem, simulated, start_arrays
from problems import clients as regressions

from flwr_fco import strategies
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import Epochs, Minimise, Participation, Steps, Wire
from flwr_fco.testing import check_strategy
from reproduction.rivals import RIVALS, STRATEGIES, FedCM, FedSAM, __all__
from reproduction.tests.rivals import boxes

#: Tested by day: a client half of its own that minimises and remembers, while everybody answers; steps of its own whose
#: weights grow; primal steps that remember. The others run through what a strategy of the library stands for.
BY_DAY = ("FedPD", "FastFedDA", "Scaffnew")
#: Settings of another strategy, without a line of code of their own.
SETTINGS = ("ScaffoldS", "DScaffold")


def vanishing(run, problem):
    """The solution, slowly: an error that shrinks at least 3 times in 10 times as many rounds."""
    for steps in (1, 3):
        early, late = (problem.error(run(rounds, work=Steps(steps, batch_size=None))) for rounds in (30, 300))
        assert early >= 3 * late, f"{steps} local steps"


def shifted_by(option, values, rounds=150, steps=(1,)):
    """A point at a distance from the solution that shrinks 3 times from one value of an option to the other."""

    def check(run, problem):
        for count in steps:
            options = {"client_lr": 0.05, "work": Steps(count, batch_size=None)}
            far, near = (problem.error(run(rounds, **{option: value}, **options)) for value in values)
            assert far >= max(3 * near, 1e-8), f"{count} local steps"

    return check


#: What those converge to that do not come to the optimum.
LIMITS = {
    **dict.fromkeys(("CFedDA", "MCFedDA"), vanishing),
    **dict.fromkeys(("DistributedPGDA", "ExtraStepLocalSGD", "FedAvgS"), subgradient),
    "DFedMid": doubled_strength,
    "FastFedDA": shifted_by("convexity", (0.1, 0.01), steps=(1, 3)),
    "FedCM": biased,
    "FedProx": shifted_by("penalty", (1.0, 10.0)),
    "FedSAM": shifted_by("radius", (0.1, 0.01)),
}


def at_night(names, others):
    """Mark names that only the nightly tests run."""
    return [name if name in others else pytest.param(name, marks=pytest.mark.nightly) for name in names]


def test_the_library_has_none_of_them():
    assert set(RIVALS) == set(__all__) > LIMITS.keys()
    assert not RIVALS.keys() & {*strategies.__all__, *strategies.STRATEGIES}
    assert STRATEGIES == {**strategies.STRATEGIES, **RIVALS}


def test_a_client_finds_their_halves_where_it_imports_them():
    lines = "import {}; from flwr_fco.algorithms.contract import method_of; method_of('fed_pd', {{}})"
    found, missing = (run_code(lines.format(imported)) for imported in ("reproduction.rivals", "flwr_fco.client_apps"))
    assert found.returncode == 0, found.stderr
    assert missing.returncode != 0
    assert all(words in missing.stderr for words in ("'fed_pd'", "Import its module in the ClientApp"))


@pytest.mark.parametrize("name", at_night(RIVALS, {*RIVALS} - {*SETTINGS}))
def test_contract(name):
    check_strategy(RIVALS[name], tolerance=None)
    converges(RIVALS[name], LIMITS.get(name, exact))


@pytest.mark.parametrize("name", at_night(RIVALS, BY_DAY))
def test_with_and_without_messages_the_same_bits_and_metrics(name):
    psi = Zero() if "regularizer" in RIVALS[name].algorithm.refuses else L1(0.05)
    given = {"regularizer": psi, "client_lr": 0.05, "work": Steps(3, batch_size=4), "batch_size": 4, "seed": 3}
    found = []
    # With a mod that does nothing everything travels in messages.
    for mods in ([], [lambda message, context, call_next: call_next(message, context)]):
        strategy = RIVALS[name](**fitting(RIVALS[name], {**given, **CONSTANTS.get(name, {})}), fraction_evaluate=0.0)
        result = simulated(strategy, app_of(regressions(), mods), 5, initial_arrays=start_arrays())
        found.append((strategy, result))
    (here, one), (there, other) = found
    assert one.rows() == other.rows()
    for value, same in zip(here.state, there.state, strict=True):
        np.testing.assert_array_equal(value, same)
    for key in here.memories.members if here.memories is not None else ():
        for vector, value in there.memories.memory(key).items():
            np.testing.assert_array_equal(here.memories.memory(key)[vector], value)


# --- the boxes of the papers ------------------------------------------------------------------------------------------

STEP = {"client_lr": boxes.RATE, "server_lr": boxes.SERVER_RATE, "work": Steps(boxes.STEPS, batch_size=None)}
SOLVE = {"work": Minimise(tolerance=1e-13)}
# Without weights of their own: those of clients that have not replied yet are unknown.
SAMPLED = {
    "participation": Participation(choose_nodes=lambda r, nodes: [nodes[m] for m in boxes.COHORTS[r - 1]]),
    "weighting": "uniform",
}
PD = boxes.fed_pd, {"step": 0.4}
#: The box, its constants, what else the strategy is given, and where it begins.
BOXES = {
    "APDAInexact": (boxes.apda_inexact, {"primal_step": 0.25, "damping": 0.1, "convexity": 0.5}, SOLVE),
    "DFedMid": (boxes.d_fed_mid, {"strength": 0.4}, {**STEP, "mixing": "chain"}),
    "DScaffold": (boxes.scaffold, {}, {**STEP, "mixing": "complete"}),
    "DecoupledProx": (boxes.decoupled_prox, {"strength": 0.4}, STEP),
    "FedCM": (lambda fs, p, **own: boxes.averaged(fs, p, partial(boxes.cm_step, **own)), {"mix": 0.3}, STEP),
    "FedDR": (*PD, {**SOLVE, "relaxation": 1.0}),
    "FedDyn": (boxes.fed_dyn, {"penalty": 2.5}, {**SOLVE, **SAMPLED}),
    "FedPD": (*PD, SOLVE),
    "FedProx": (boxes.fed_prox, {"penalty": 0.7}, SOLVE),
    "FedSAM": (lambda fs, p, **own: boxes.averaged(fs, p, partial(boxes.sam_step, **own)), {"radius": 0.1}, STEP),
    "FiveGCS": (boxes.five_gcs, {"step": 2.0, "convexity": 0.1}, {**SOLVE, **SAMPLED}),
}


def model_of(strategy, fs, start=boxes.START):
    strategy.fraction_evaluate = 0.0
    result = simulated(strategy, app_of(fs), boxes.ROUNDS, initial_arrays={"x": start})
    return result.arrays["x"].numpy(), result.train_metrics_clientapp


@pytest.mark.parametrize("name", BOXES)
def test_the_steps_are_those_of_the_box(name):
    box, constants, given = BOXES[name]
    fs, p = boxes.clients()
    p = np.full(4, 0.25) if "weighting" in given or name in ("DFedMid", "DScaffold") else p
    own = {key: value for key, value in constants.items() if key != "strength"}
    if "strength" in constants:
        own["regularizer"] = L1(constants["strength"])
    start = np.zeros(boxes.D) if name == "DecoupledProx" else boxes.START
    found, metrics = model_of(STRATEGIES[name](**own, **given), fs, start)
    np.testing.assert_allclose(found, box(fs, p, **constants), rtol=0, atol=1e-10)
    if name == "FedSAM":
        assert {own["gradient-evaluations"] for own in metrics.values()} == {2 * boxes.STEPS}


@pytest.mark.parametrize("coin", ["random", "periodic"])
def test_scaffnew_takes_the_steps_of_its_box_with_the_same_coin(coin):
    fs, p = boxes.clients()
    strategy = RIVALS["Scaffnew"](client_lr=lambda number: boxes.RATE / number, probability=0.25, coin=coin, seed=5)
    found, metrics = model_of(strategy, fs)
    counts = [metrics[number]["local-steps"] for number in sorted(metrics)]
    assert (len({*counts}) > 1) == (coin == "random")
    np.testing.assert_allclose(found, boxes.scaffnew(fs, p, counts, 0.25), rtol=0, atol=1e-12)


def test_scaffnew_is_rand_prox_whose_proximal_map_is_the_mean():
    fs, p = boxes.clients()
    found, _ = model_of(RIVALS["Scaffnew"](client_lr=boxes.RATE, probability=0.25, coin="periodic"), fs)
    np.testing.assert_allclose(found, boxes.rand_prox(fs, p, 0.25), rtol=0, atol=1e-12)


# --- what clients remember --------------------------------------------------------------------------------------------

#: Of those whose clients remember something and minimise, or take steps: constants, and the rounds to 1e-8.
REMEMBER = {
    "FedPD": ({"step": 2.0}, 75),
    "Scaffnew": ({"client_lr": 0.4, "probability": 0.3, "seed": 5}, 50),
    "APDAInexact": ({"primal_step": 0.2, "damping": 0.5, "convexity": 0.1}, 190),
    "FedDyn": ({"penalty": 0.5}, 75),
    "FiveGCS": ({"step": 2.0, "convexity": 0.05}, 140),
}


@pytest.mark.parametrize("name", at_night(REMEMBER, BY_DAY))
@pytest.mark.parametrize("fault", ["lost reply", "restart"])
def test_the_optimum_is_reached_whatever_is_lost(name, fault):
    constants, rounds = REMEMBER[name]
    strategy = RIVALS[name](**constants)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], num_rounds=rounds, check=held_alike)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


@pytest.mark.parametrize("name", REMEMBER)
def test_the_ledger_knows_what_was_sent_in_single_precision(name):
    strategy = RIVALS[name](**REMEMBER[name][0], wire=Wire("float32"))
    _, grid, _ = faulty_run(strategy, FAULTS["lost reply"], num_rounds=5, check=held_alike)
    assert grid.injected


# The first round of APDA-Inexact has no minimisation.
@pytest.mark.parametrize(("name", "count"), [("fed_pd", 2), ("five_gcs", 2), ("fed_dyn", 2), ("apda_inexact", 1)])
def test_a_minimisation_begins_where_the_last_one_ended(name, count, monkeypatch):
    begins_where_it_ended(find_solver(name), monkeypatch, count)


# --- refusals and unequal work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, kind in RIVALS.items() if "regularizer" in kind.algorithm.refuses])
def test_psi_is_refused_with_the_reason(name):
    with pytest.raises(ConfigurationError, match=r"no place for psi, because .*FedDR"):
        RIVALS[name](regularizer=L1(0.1))
    with pytest.raises(ConfigurationError, match="Euclidean"):
        RIVALS[name](mirror_map=PNorm(3.0))


@pytest.mark.parametrize("normalize", [True, False])
def test_who_takes_more_steps_counts_no_more_than_its_weight(normalize):
    """As with LocalSGD, whose box has a test of its own; the momentum is of a step of mean length."""
    sizes = np.array([5, 15, 40])
    options = {"client_lr": 0.05, "work": Epochs(1, batch_size=5), "normalize_local_work": normalize}
    made = [strategies.LocalSGD(**options), FedSAM(radius=0.0, **options), FedCM(mix=1.0, **options)]
    for strategy in made:
        simulated(strategy, app_of(regressions(sizes)), 1, num_nodes=3)
    mean, *others = (strategy.state.primal for strategy in made)
    np.testing.assert_allclose(others, [mean, mean], atol=1e-12)
    np.testing.assert_allclose(made[2].state.direction, -20 * mean * sizes.sum() / (sizes @ (sizes // 5)), atol=1e-11)
