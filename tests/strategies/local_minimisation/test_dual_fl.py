"""DualFL and what is like it through Flower's messages: faults, clients that go, the ledger, refusals, the optimum."""

import numpy as np
import pytest
from faults import FaultyGrid
from flwr.app import ConfigRecord
from memory_rules import (
    GIVEN_UP,
    LOSSES,
    asks_again_in_the_same_round,
    check_ledger,
    goes_on_without_who_is_given_up,
    held_by_clients,
    hides_a_restart_to_the_bit,
    keeps_a_weight,
    leaves_who_has_no_weight_out_of_the_mean,
    refuses_psi_with_the_reason,
    refuses_samples,
    samples_reach_the_optimum_whatever_is_lost,
)
from problems import D, app_of, clients, flat, optimum, problem, run, start_arrays
from remembering import FAULTS, VICTIM, faulty_run, leave, weights_of
from together import together

from flwr_fco.algorithms.dual_fl import linear_tolerance, sublinear_tolerance
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.engines import StoppingRule
from flwr_fco.errors import ConfigurationError, DivergedError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import (
    Arrays,
    DualFL,
    Everyone,
    FedDR,
    LocalSGD,
    Minimise,
    Participation,
    Steps,
    run_of,
)
from flwr_fco.wire import flower as _flower
from reproduction.pooled import centralized_solution

NU = 0.05
#: With rates for the problem of `problems.problem`, whose Hessians have eigenvalues from about 0.1 to 2.
METHODS = {
    "DualFL": lambda **o: DualFL(nu=NU, smoothness=2.0, work=Minimise(tolerance=1e-12), **o),
    "FedDR": lambda **o: FedDR(step=2.0, **o),
}
ROUNDS = {"DualFL": 120, "FedDR": 75}


def check_controls(strategy, grid, number, metrics):
    """sum p_j zeta_j = 0 over what the clients hold."""
    check_ledger(strategy, grid, number, metrics)
    held, weights = held_by_clients(strategy, grid), weights_of(strategy, grid)
    controls = [held[p]["control"] if held[p] is not None else np.zeros(D) for p in sorted(held)]
    assert np.abs(weights @ np.array(controls)).max() <= 1e-11 * max(1.0, np.abs(controls).max()), f"round {number}"


def test_a_run_that_diverges_is_told_its_nu():
    """It has no rates to lower."""
    with pytest.raises(DivergedError, match=r"nu=1000 is too large for these data; try 100,"):
        run(DualFL(nu=1000.0, alpha=0.0), clients(), 40)


#: A client that did nothing, one whose work does not count, and both ways to go on after one that has lost its state.
BY_DAY = [("raises", "reset"), ("NaN", "ledger"), ("restart", "ledger"), ("restart", "reset")]
AT_NIGHT = [(fault, kept) for fault in FAULTS for kept in ("ledger", "reset") if (fault, kept) not in BY_DAY]


@pytest.mark.parametrize(
    ("fault", "client_state"), BY_DAY + [pytest.param(*case, marks=pytest.mark.nightly) for case in AT_NIGHT]
)
def test_the_controls_of_dual_fl_sum_to_zero_and_the_optimum_is_reached(fault, client_state):
    strategy = METHODS["DualFL"](client_state=client_state)
    w, grid, result = faulty_run(strategy, FAULTS[fault], num_rounds=ROUNDS["DualFL"], check=check_controls)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8
    skipped = [number for number, metrics in result.train_metrics_clientapp.items() if metrics["skipped"]]
    # A ledger restores what a restart has lost in the same round; what stays away skips its round. Without a ledger a
    # restart skips it too, but not in round 4: there is nothing to lose after an epoch's end.
    lost = [3, 9] if client_state == "reset" else []
    assert skipped == (lost if fault == "restart" else [3, 4, 9])


@together(("fault", "client_state"), LOSSES)
def test_samples_of_clients_reach_the_optimum_whatever_is_lost(client_state, fault):
    samples_reach_the_optimum_whatever_is_lost(METHODS["FedDR"], 2 * ROUNDS["FedDR"], fault, client_state)


@together("client_state", ["ledger", "reset"])
@together("name", METHODS)
def test_a_weight_stays_what_it_was(name, client_state):
    keeps_a_weight(METHODS[name], client_state)


@pytest.mark.parametrize("name", METHODS)
def test_a_ledger_hides_a_restart_to_the_bit(name):
    hides_a_restart_to_the_bit(METHODS[name])


@together("kind", ["silent", "NaN"])
def test_a_node_without_a_good_answer_is_asked_again_in_the_same_round(kind):
    asks_again_in_the_same_round(METHODS["DualFL"], kind)


@together(("fault", "client_state"), GIVEN_UP)
def test_the_others_go_on_from_zero_to_their_own_optimum(fault, client_state):
    def anew(state):
        assert (state.t, state.momentum) == (1.0, 0.0)

    goes_on_without_who_is_given_up(METHODS["DualFL"], ROUNDS["DualFL"] + 5, fault, client_state, anew)


def test_a_client_that_the_user_gives_no_weight_is_not_in_the_mean():
    leaves_who_has_no_weight_out_of_the_mean(METHODS["FedDR"], 2 * ROUNDS["FedDR"])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("lost message", "no reply"), ("raises", "this client raises on purpose"), ("NaN", "NaN or infinite")],
)
def test_a_client_that_is_bad_for_good_ends_the_run_with_an_error_that_names_it_and_why(fault, reason):
    strategy = METHODS["DualFL"](participation=Everyone(on_missing="error"))
    said = rf"partition {VICTIM} .* 3 rounds in a row.*\(its last answer: .*{reason}.*\)\. .*on_missing"
    with pytest.raises(ConfigurationError, match=said):
        faulty_run(strategy, FAULTS[fault], rounds=range(5, 100), num_rounds=30)
    assert strategy.state.round == 4
    assert run_of(strategy).current.number == 7


def test_failed_rounds_count_only_if_they_are_in_a_row():
    w, _, _ = faulty_run(
        METHODS["DualFL"](participation=Everyone(evict_after=2)),
        "drop",
        rounds=(3, 5, 7, 9),
        num_rounds=ROUNDS["DualFL"],
    )
    assert np.abs(w - optimum(problem(), [30, 40, 20, 30, 25] / np.float64(145))).max() <= 1e-8


@pytest.mark.parametrize("on_missing", ["error", "reset"])
def test_a_node_that_is_gone_is_given_up_too(on_missing):
    strategy = METHODS["DualFL"](participation=Everyone(on_missing=on_missing, node_timeout=0.0))
    if on_missing == "error":
        with pytest.raises(ConfigurationError, match=f"partition {VICTIM}"):
            faulty_run(strategy, None, rounds=(), num_rounds=30, before=leave(VICTIM))
        return
    w, _, result = faulty_run(strategy, None, rounds=(), num_rounds=ROUNDS["DualFL"], before=leave(VICTIM))
    assert [result.train_metrics_clientapp[number]["skipped"] for number in (5, 6, 7, 8, 9)] == [0, 1, 1, 1, 0]
    rest = [f for m, f in enumerate(problem()) if m != VICTIM]
    sizes = np.array([f.num_examples for f in rest], dtype=float)
    assert np.abs(w - optimum(rest, sizes / sizes.sum())).max() <= 1e-8


def test_a_node_that_comes_back_under_another_id_is_the_same_client():
    def before(grid, number):
        if number == 4:
            gone = next(i for i, p in grid.partition_ids.items() if p == VICTIM)
            config = dict(grid.contexts.pop(gone).node_config)
            del grid.partition_ids[gone]
            grid.contexts[90] = _flower.new_context(grid.run_id, 90, config, {})
            grid.partition_ids[90] = VICTIM

    a, _, result = faulty_run(METHODS["DualFL"](), None, rounds=(), num_rounds=12, before=before)
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0] * 12
    b, _, _ = faulty_run(METHODS["DualFL"](), None, rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


# --- what is refused, and what the rounds are told ------------------------------------------------------------------


@together("cls", [DualFL, LocalSGD])
def test_psi_is_refused_with_the_reason(cls):
    refuses_psi_with_the_reason(cls)


def test_dual_fl_refuses_samples():
    refuses_samples(METHODS["DualFL"])


def test_options_out_of_range():
    for options, message in [
        ({"rho": 1.0}, "rho"),
        ({"nu": 0.0}, "nu"),
        ({"alpha": -1.0}, "alpha"),
        ({"nu": 1.0, "smoothness": 1.0}, "rho"),
        ({"participation": Participation()}, "expected an Everyone"),
        ({"work": Steps(3)}, "expected a Minimise"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            DualFL(**options)


def test_dual_fl_takes_its_constants_from_theory():
    assert (DualFL(nu=0.1, smoothness=2.0).rho, DualFL(nu=0.1).rho) == (0.05, 0.0)
    strategy = DualFL(alpha=0.1, smoothness=0.9)
    assert (strategy.nu, strategy.rho) == (0.1, pytest.approx(0.1))


def test_the_tolerances_are_those_of_theorems_3_2_and_3_3():
    """(3.7) and (3.8) by hand: N = 4, gamma = 1."""
    found = [sublinear_tolerance(n, duality=0.5, clients=4, gamma=1.0) for n in range(3)]
    assert found == [1 / 2, 1 / (2 * 2**5), 1 / (2 * 3**5)]
    assert [linear_tolerance(n, rho=0.25, clients=4, gamma=1.0) for n in range(3)] == [1 / 4, 1 / 16, 1 / 64]


@pytest.mark.parametrize("schedule", ["sublinear", "linear"])
def test_the_tolerances_of_the_theorems_travel_with_every_round(schedule, monkeypatch):
    seen = []
    original = StoppingRule.__init__

    def recorded(self, work, problem, duality=0.0):
        seen.append(work)
        original(self, work, problem, duality)

    monkeypatch.setattr(StoppingRule, "__init__", recorded)
    # Theorem 3.2 or 3.3 with nu below mu, so that the gap is finite.
    strategy = DualFL(nu=NU, rho=0.01, schedule=schedule, work=Minimise(tolerance=1e-5, engine="newton-cg"), gamma=0.5)
    run(strategy, problem(), 12)
    assert strategy.state.round == 12
    for n in range(12):
        if schedule == "linear":
            expected = linear_tolerance(n, rho=0.01, clients=5, gamma=0.5)
        else:
            expected = sublinear_tolerance(n, duality=NU, clients=5, gamma=0.5)
        assert {work.rule for work in seen[5 * n : 5 * n + 5]} == {"gap"}
        assert {work.tolerance for work in seen[5 * n : 5 * n + 5]} == {max(expected, 1e-5)}


@pytest.mark.parametrize("schedule", ["sublinear", "linear"])
def test_the_tolerances_begin_anew_where_the_controls_do(schedule):
    """After a client was given up: the theorems count from zeta = a = 0, and the momentum does too."""
    strategy = DualFL(
        nu=NU,
        rho=0.01,
        schedule=schedule,
        work=Minimise(tolerance=1e-300),
        gamma=0.5,
        participation=Everyone(on_missing="reset", evict_after=2),
    )
    following = {}

    def check(strategy, grid, number, metrics):
        following[number] = (
            run_of(strategy).algorithm.work_of_round(run_of(strategy).problem, strategy.state).tolerance,
            len(run_of(strategy).problem.asked),
        )

    faulty_run(strategy, FAULTS["NaN"], rounds=range(5, 10**6), num_rounds=8, check=check)
    # Four rounds have counted, two were skipped, and at the end of the second one all began anew.
    for number, n in {3: 3, 4: 4, 5: 4, 6: 0, 7: 1, 8: 2}.items():
        tolerance, clients = following[number]
        if schedule == "linear":
            assert tolerance == linear_tolerance(n, rho=0.01, clients=clients, gamma=0.5)
        else:
            assert tolerance == sublinear_tolerance(n, duality=NU, clients=clients, gamma=0.5)


def test_a_warm_start_that_is_good_enough_is_an_answer():
    """Equal clients at their minimiser have nothing to do, and say so."""
    shard = clients((20,))[0]
    result = run(DualFL(nu=NU), [shard] * 3, 6)
    last = result.train_metrics_clientapp[6]
    assert (last["num-replies"], last["skipped"], last["num-capped"]) == (3, 0, 0)
    np.testing.assert_allclose(flat(result.arrays), optimum([shard], [1.0]), atol=1e-9)


def test_an_iteration_cap_is_reported():
    result = run(DualFL(nu=NU, work=Minimise(engine="aogm", tolerance=1e-13, max_iterations=2)), problem(), 2)
    assert [metrics["num-capped"] for metrics in result.train_metrics_clientapp.values()] == [5, 5]
    assert result.train_metrics_clientapp[1]["gradient-evaluations"] >= 2


def test_a_round_that_is_skipped_says_nothing_of_iteration_caps():
    def silent(message, context, call_next):
        train = message.metadata.message_type == "train"
        if train and message.metadata.group_id == "2" and context.node_config["partition-id"] == 0:
            raise RuntimeError("silent")
        return call_next(message, context)

    strategy = DualFL(nu=NU, work=Minimise(engine="aogm", tolerance=1e-13, max_iterations=2))
    history = run(strategy, problem(), 3, mods=[silent], raise_errors=False).train_metrics_clientapp
    assert [(history[number]["skipped"], history[number].get("num-capped")) for number in (1, 2, 3)] == [
        (0, 5),
        (1, None),
        (0, 5),
    ]


def test_fed_dr_takes_psi_and_its_zeros_are_exact():
    result = run(FedDR(regularizer=L1(0.5), arrays=Arrays(apply_to="coefficients"), step=1.0), clients(), 60)
    assert np.count_nonzero(result.arrays["coefficients"].numpy() == 0.0) >= 2


@pytest.mark.parametrize("step", [0.5, 3.0])
def test_the_limit_of_fed_dr_with_psi_does_not_depend_on_its_step(step):
    expected = centralized_solution(problem(), L1(0.5), tol=1e-12)
    assert (expected == 0.0).any()
    found = flat(run(FedDR(regularizer=L1(0.5), step=step), problem(), 90).arrays)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def _go(strategy, grid, numbers):
    """Run some rounds through Flower's hooks alone."""
    with _flower.identity(grid.run_id), _flower.quiet(50), single_threaded_blas():
        for number in numbers:
            messages = strategy.configure_train(number, run_of(strategy).primal_arrays(), ConfigRecord(), grid)
            strategy.aggregate_train(number, grid.send_and_receive(messages))


@pytest.mark.parametrize("stopped", [6, 9])
def test_who_is_given_up_stays_so_when_the_run_goes_on_from_its_file(tmp_path, stopped):
    """Stopped after one of two failed rounds, or after the eviction: the same bits as a run that was not stopped."""

    def made():
        strategy = METHODS["DualFL"](participation=Everyone(on_missing="reset", evict_after=2))
        strategy.fraction_evaluate = 0.0
        run_of(strategy).prepare(start_arrays())
        faults = {FAULTS["NaN"]: 1.0}
        return strategy, FaultyGrid(app_of(problem()), 5, faults, rounds=range(6, 10**6), partitions=[VICTIM])

    (whole, whole_grid), (first, grid), (second, _) = made(), made(), made()
    _go(whole, whole_grid, range(1, 14))
    _go(first, grid, range(1, stopped + 1))
    run_of(first).save(tmp_path / "state.npz")
    run_of(second).load(tmp_path / "state.npz")
    _go(second, grid, range(stopped + 1, 14))
    np.testing.assert_array_equal(whole.state.primal, second.state.primal)
    assert whole.state.round == second.state.round == 11
    # Nobody asks who was given up: two rounds, three times each.
    assert len(whole_grid.injected) == len(grid.injected) == 6


def test_a_run_of_dual_fl_goes_on_from_its_file_to_the_bit(tmp_path):
    objectives = problem()
    whole, first, second = (METHODS["DualFL"]() for _ in range(3))
    for strategy in (whole, first, second):
        strategy.fraction_evaluate = 0.0
        run_of(strategy).prepare(start_arrays())
    _go(whole, InProcessGrid(app_of(objectives), 5), range(1, 9))
    _go(first, InProcessGrid(app_of(objectives), 5), range(1, 5))
    run_of(first).save(tmp_path / "state.npz")
    run_of(second).load(tmp_path / "state.npz")
    _go(second, InProcessGrid(app_of(objectives), 5), range(5, 9))
    np.testing.assert_array_equal(whole.state.primal, second.state.primal)
    assert whole.state.momentum == second.state.momentum
    other = DualFL(nu=NU / 2, smoothness=2.0, work=Minimise(tolerance=1e-12))
    run_of(other).prepare(start_arrays())
    with pytest.raises(ConfigurationError, match="other settings"):
        run_of(other).load(tmp_path / "state.npz")
