"""DualFL and its rivals through Flower's messages: faults, clients that go, the ledger, refusals, the optimum."""

import numpy as np
import pytest
from fault_bars import imbalance
from faults import FaultyGrid
from flwr.app import ConfigRecord, MetricRecord
from problems import D, app_of, clients, flat, optimum, problem, run, start_arrays
from quadratics import optimum as pooled_optimum
from quadratics import quadratics
from remembering import FAULTS, SIZES, VICTIM, corrupt, faulty_run, leave, weights_of
from representatives import by_class
from together import together

from flwr_fco.algorithms.dual_fl import linear_tolerance, sublinear_tolerance
from flwr_fco.core.threads import single_threaded_blas
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.pooled import centralized_solution
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import (
    APDAInexact,
    DualFL,
    FedCM,
    FedDR,
    FedDyn,
    FedPD,
    FedProx,
    FedSAM,
    FiveGCS,
    LocalSGD,
    Scaffnew,
    run_of,
)
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.client_state import read_state
from flwr_fco.wire.envelope import StateMissingError
from flwr_fco.wire.protocol import ClientStamp

NU = 0.05

#: With rates for the problem of `problems.problem`, whose Hessians have eigenvalues from about 0.1 to 2.
EVERYONE = {
    "DualFL": lambda **o: DualFL(nu=NU, smoothness=2.0, tolerance=1e-12, **o),
    "FedPD": lambda **o: FedPD(step=2.0, **o),
    "Scaffnew": lambda **o: Scaffnew(client_lr=0.4, probability=0.3, seed=5, **o),
    "APDAInexact": lambda **o: APDAInexact(primal_step=0.2, damping=0.5, convexity=0.1, **o),
}
SAMPLED = {
    "FedDR": lambda **o: FedDR(step=2.0, **o),
    "FedDyn": lambda **o: FedDyn(penalty=0.5, **o),
    "FiveGCS": lambda **o: FiveGCS(step=2.0, convexity=0.05, **o),
}
ROUNDS = {"DualFL": 120, "FedPD": 75, "Scaffnew": 50, "APDAInexact": 190, "FedDR": 75, "FedDyn": 75, "FiveGCS": 140}


def held_by_clients(strategy, grid):
    """What the clients hold in their own contexts, as far as the server's stamps accept it."""
    held = {}
    for node_id, partition in grid.partition_ids.items():
        member = strategy.memories.members.get((0, partition))
        stamp = ClientStamp(strategy.memories.epoch, -1 if member is None else member.accepted)
        try:
            state = read_state(grid.contexts[node_id], stamp, D)
        except StateMissingError:
            state = strategy.memories.memory((0, partition))
        held[partition] = state
    return held


def check_ledger(strategy, grid, number, metrics):
    """The ledger is what the clients hold, to the bit."""
    if not strategy.memories.ledger:
        return
    for partition, state in held_by_clients(strategy, grid).items():
        if state is not None:
            kept = strategy.memories.memory((0, partition))
            assert state.keys() == kept.keys()
            for name, vector in state.items():
                np.testing.assert_array_equal(vector, kept[name], err_msg=f"round {number}, {partition}, {name}")


def check_controls(strategy, grid, number, metrics):
    """sum p_j zeta_j = 0 over what the clients hold."""
    check_ledger(strategy, grid, number, metrics)
    held, weights = held_by_clients(strategy, grid), weights_of(strategy, grid)
    controls = [held[p]["control"] if held[p] is not None else np.zeros(D) for p in sorted(held)]
    assert np.abs(weights @ np.array(controls)).max() <= 1e-11 * max(1.0, np.abs(controls).max()), f"round {number}"


#: Every fault, and both ways to go on after those that lose a client's state.
BY_DAY = [("raises", "reset"), ("lost reply", "ledger"), ("lost message", "reset"), ("NaN", "ledger")]
BY_DAY += [("restart", "ledger"), ("restart", "reset")]
AT_NIGHT = [(fault, kept) for fault in FAULTS for kept in ("ledger", "reset") if (fault, kept) not in BY_DAY]


@pytest.mark.parametrize(
    ("fault", "client_state"), BY_DAY + [pytest.param(*case, marks=pytest.mark.nightly) for case in AT_NIGHT]
)
def test_the_controls_of_dual_fl_sum_to_zero_and_the_optimum_is_reached(fault, client_state):
    strategy = EVERYONE["DualFL"](client_state=client_state)
    w, grid, result = faulty_run(strategy, FAULTS[fault], num_rounds=ROUNDS["DualFL"], check=check_controls)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8
    skipped = [number for number, metrics in result.train_metrics_clientapp.items() if metrics["skipped"]]
    # A ledger restores what a restart has lost in the same round; what stays away skips its round. Without a ledger a
    # restart skips it too, but not in round 4: there is nothing to lose after an epoch's end.
    lost = [3, 9] if client_state == "reset" else []
    assert skipped == (lost if fault == "restart" else [3, 4, 9])


@pytest.mark.parametrize("name", by_class(name for name in EVERYONE if name != "DualFL"))
@together(("fault", "client_state"), [("lost reply", "reset"), ("restart", "ledger"), ("restart", "reset")])
def test_those_that_need_everyone_reach_the_optimum_whatever_is_lost(name, client_state, fault):
    strategy = EVERYONE[name](client_state=client_state)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], num_rounds=ROUNDS[name], check=check_ledger)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


@pytest.mark.parametrize("name", by_class(SAMPLED))
@together(("fault", "client_state"), [("lost reply", "reset"), ("restart", "ledger"), ("restart", "reset")])
def test_samples_of_clients_reach_the_optimum_whatever_is_lost(name, client_state, fault):
    strategy = SAMPLED[name](client_state=client_state, fraction_train=0.6, seed=1)
    rounds = range(1, 30)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], rounds=rounds, num_rounds=2 * ROUNDS[name], check=check_ledger)
    assert len(grid.injected) >= 8
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


def more_examples(delivery):
    """Say three times as many examples as there are."""
    reply = delivery.deliver()
    if reply.has_content() and "num-examples" in reply.content.get("metrics", {}):
        content = reply.content.copy()
        metrics = dict(content["metrics"])
        content["metrics"] = MetricRecord({**metrics, "num-examples": 3 * metrics["num-examples"]})
        reply.content = content
    return [reply]


def check_balance(strategy, grid, number, metrics):
    """Every weighted mean of the clients' memories is what the server's state says, by the weights of the round."""
    check_ledger(strategy, grid, number, metrics)
    assert imbalance(strategy) <= 1e-10, f"round {number}"


@together("client_state", ["ledger", "reset"])
@together("name", [*EVERYONE, *SAMPLED])
def test_a_weight_stays_what_it_was(name, client_state):
    strategy = {**EVERYONE, **SAMPLED}[name](client_state=client_state)
    faulty_run(strategy, more_examples, rounds=(3, 4), num_rounds=6)
    assert strategy.memories.members[(0, VICTIM)].examples == SIZES[VICTIM]
    assert {row.round for row in run_of(strategy).left_out} == {3, 4}


@pytest.mark.parametrize("name", [*EVERYONE, *SAMPLED])
def test_a_ledger_hides_a_restart_to_the_bit(name):
    make = {**EVERYONE, **SAMPLED}[name]
    a, _, _ = faulty_run(make(), "restart", num_rounds=12)
    b, _, _ = faulty_run(make(), "restart", rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


@together("kind", ["silent", "NaN"])
@together("name", EVERYONE)
def test_a_node_without_a_good_answer_is_asked_again_in_the_same_round(name, kind):
    class Once:
        def __init__(self):
            self.failed = set()

        def __call__(self, delivery):
            number = delivery.message.metadata.group_id
            if number in self.failed:
                return [delivery.deliver()]
            self.failed.add(number)
            if kind == "NaN":
                return corrupt(delivery)
            delivery.deliver()
            return []

    a, grid, result = faulty_run(EVERYONE[name](), Once(), num_rounds=12)
    assert len(grid.injected) == 6
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0] * 12
    b, _, _ = faulty_run(EVERYONE[name](), None, rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("fault", ["lost message", "raises", "NaN"])
def test_a_client_that_is_bad_for_good_ends_the_run_with_an_error_that_names_it(fault):
    strategy = EVERYONE["DualFL"]()
    with pytest.raises(ConfigurationError, match=rf"partition {VICTIM} .* 3 rounds in a row.*on_missing"):
        faulty_run(strategy, FAULTS[fault], rounds=range(5, 100), num_rounds=30)
    assert strategy.state.round == 4
    assert run_of(strategy).current.number == 7


def test_failed_rounds_count_only_if_they_are_in_a_row():
    w, _, _ = faulty_run(EVERYONE["DualFL"](evict_after=2), "drop", rounds=(3, 5, 7, 9), num_rounds=ROUNDS["DualFL"])
    assert np.abs(w - optimum(problem(), [30, 40, 20, 30, 25] / np.float64(145))).max() <= 1e-8


@pytest.mark.parametrize("name", by_class(EVERYONE))
@together(("fault", "client_state"), [("lost message", "ledger"), ("NaN", "reset")])
def test_the_others_go_on_from_zero_to_their_own_optimum(name, fault, client_state):
    strategy = EVERYONE[name](on_missing="reset", evict_after=2, client_state=client_state)
    primals = {}

    def check(strategy, grid, number, metrics):
        primals[number] = strategy.state.primal.copy()
        if number == 6:  # given up at the end of it: nobody remembers anything, the model is as it was
            assert all(member.accepted == -1 for member in strategy.memories.members.values())
            np.testing.assert_array_equal(primals[6], primals[4])
            if name == "DualFL":
                assert (strategy.state.t, strategy.state.momentum) == (1.0, 0.0)

    rounds = range(5, 10**6)
    w, grid, _ = faulty_run(strategy, FAULTS[fault], rounds=rounds, num_rounds=ROUNDS[name] + 5, check=check)
    # In each of two rounds it is asked three times.
    assert len(grid.injected) == 6
    rest = [f for m, f in enumerate(problem()) if m != VICTIM]
    sizes = np.array([f.num_examples for f in rest], dtype=float)
    assert np.abs(w - optimum(rest, sizes / sizes.sum())).max() <= 1e-8


@pytest.mark.parametrize("on_missing", ["error", "reset"])
def test_a_node_that_is_gone_is_given_up_too(on_missing):
    strategy = EVERYONE["DualFL"](on_missing=on_missing, node_timeout=0.0)
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

    a, _, result = faulty_run(EVERYONE["DualFL"](), None, rounds=(), num_rounds=12, before=before)
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0] * 12
    b, _, _ = faulty_run(EVERYONE["DualFL"](), None, rounds=(), num_rounds=12)
    np.testing.assert_array_equal(a, b)


# --- what is refused, and what the rounds are told ------------------------------------------------------------------


@together("cls", [APDAInexact, DualFL, FedCM, FedDyn, FedPD, FedProx, FedSAM, FiveGCS, LocalSGD, Scaffnew])
def test_psi_is_refused_with_the_reason(cls):
    with pytest.raises(ConfigurationError, match=r"no place for psi, because .*FedDR"):
        cls(regularizer=L1(0.1))
    with pytest.raises(ConfigurationError, match="Euclidean"):
        cls(mirror_map=PNorm(3.0))


def test_those_that_need_everyone_refuse_samples():
    for make in EVERYONE.values():
        with pytest.raises(ConfigurationError, match="every client"):
            make(fraction_train=0.5)
        with pytest.raises(TypeError, match="choose_nodes"):
            make(choose_nodes=lambda number, nodes: nodes)


def test_options_out_of_range():
    for options, message in [
        ({"rho": 1.0}, "rho"),
        ({"nu": 0.0}, "nu"),
        ({"alpha": -1.0}, "alpha"),
        ({"nu": 1.0, "smoothness": 1.0}, "rho"),
        ({"evict_after": 0}, "evict_after"),
        ({"engine": "simplex"}, "engine"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            DualFL(**options)
    with pytest.raises(ConfigurationError, match="ledger"):
        FedPD(repeats=2, client_state="ledger")
    with pytest.raises(ConfigurationError, match="dual_step"):
        FiveGCS(step=10.0, convexity=0.1)


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
    from flwr_fco.engines import minimisers as engines
    from flwr_fco.engines.minimisers import result

    original = result.StoppingRule.__init__

    def recorded(self, work, problem, duality=0.0):
        seen.append(work)
        original(self, work, problem, duality)

    monkeypatch.setattr(result.StoppingRule, "__init__", recorded)
    assert engines.minimise is not None
    # Theorem 3.2 or 3.3 with nu below mu, so that the gap is finite.
    strategy = DualFL(nu=NU, rho=0.01, schedule=schedule, tolerance=1e-5, gamma=0.5, engine="newton-cg")
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
        nu=NU, rho=0.01, schedule=schedule, tolerance=1e-300, gamma=0.5, on_missing="reset", evict_after=2
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


def test_the_coin_of_scaffnew_is_the_same_for_all_and_another_in_every_round():
    result = run(Scaffnew(client_lr=0.1, probability=0.2, seed=3), clients(), 400)
    steps = np.array([metrics["local-steps"] for metrics in result.train_metrics_clientapp.values()])
    assert (steps == np.round(steps)).all()
    assert steps.mean() == pytest.approx(5.0, rel=0.2)
    assert (steps == 1).mean() == pytest.approx(0.2, abs=0.08)
    periodic = run(Scaffnew(client_lr=0.1, probability=0.2, coin="periodic"), clients(), 3)
    assert [metrics["local-steps"] for metrics in periodic.train_metrics_clientapp.values()] == [5, 5, 5]


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_five_gcs_takes_the_steps_of_its_box_with_a_cohort(gamma):
    """Algorithm 1 with C of M clients: x <- x_hat - gamma M/C (v+ - v), and tau = 1/(2 gamma M) as in its theory."""
    objectives, count, mu = quadratics(count=4), 4, 0.1
    cohorts = [[0, 1], [1, 3], [2, 0], [3, 2], [0, 3]]
    strategy = FiveGCS(
        step=gamma,
        convexity=mu,
        weighting="uniform",
        tolerance=1e-13,
        choose_nodes=lambda number, nodes: [nodes[m] for m in cohorts[number - 1]],
    )
    strategy.fraction_evaluate = 0.0
    start = {"x": np.ones(6)}
    simulate(strategy, app_of(objectives), num_nodes=count, num_rounds=5, initial_arrays=start, progress=False)
    hat, u, tau = np.ones(6) / (1 + gamma * mu), np.zeros((count, 6)), 1 / (2 * gamma * count)
    for cohort in cohorts:
        change = np.zeros(6)
        for m in cohort:
            f = objectives[m]
            matrix = (f.matrix - mu * np.eye(6)) / count + tau * np.eye(6)
            y = np.linalg.solve(matrix, f.vector / count + tau * hat + u[m])
            u[m] += tau * (hat - y)
            change += tau * (hat - y)
        x = hat - gamma * (count / len(cohort)) * change
        hat = (x - gamma * u.sum(axis=0)) / (1 + gamma * mu)
    np.testing.assert_allclose(strategy.state.primal, hat, atol=1e-10)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_client_that_the_user_gives_no_weight_is_not_in_the_mean(name):
    """It never counts, so nothing may be divided by a weight that is guessed for it."""
    objectives, weights = quadratics(count=4), {0: 3.0, 1: 1.0, 3: 2.0}
    strategy = SAMPLED[name](weighting=weights, tolerance=1e-13)
    strategy.fraction_evaluate = 0.0
    start = {"x": np.ones(6)}
    simulate(
        strategy, app_of(objectives), num_nodes=4, num_rounds=2 * ROUNDS[name], initial_arrays=start, progress=False
    )
    expected = pooled_optimum([objectives[m] for m in weights], np.array(list(weights.values())) / 6.0)
    np.testing.assert_allclose(strategy.state.primal, expected, atol=1e-5)


def test_the_shifts_of_scaffnew_follow_a_rate_that_changes():
    """h <- h + p / gamma (mean - x) with the gamma of the steps that led to x, not of those that follow."""
    objectives, probability = quadratics(count=3), 0.5
    strategy = Scaffnew(client_lr=lambda number: 0.1 / number, probability=probability, coin="periodic")
    strategy.fraction_evaluate = 0.0
    start = {"x": np.ones(6)}
    simulate(strategy, app_of(objectives), num_nodes=3, num_rounds=5, initial_arrays=start, progress=False)
    mean, shifts = np.ones(6), np.zeros((3, 6))
    for number in range(1, 6):
        gamma, ends = 0.1 / number, np.array([mean] * 3)
        for m, f in enumerate(objectives):
            for _ in range(2):
                ends[m] -= gamma * (f.matrix @ ends[m] - f.vector - shifts[m])
        mean = ends.mean(axis=0)
        shifts += probability / gamma * (mean - ends)
    np.testing.assert_allclose(strategy.state.primal, mean, atol=1e-12)


def test_a_warm_start_that_is_good_enough_is_an_answer():
    """Equal clients at their minimiser have nothing to do, and say so."""
    shard = clients((20,))[0]
    result = run(DualFL(nu=NU), [shard] * 3, 6)
    last = result.train_metrics_clientapp[6]
    assert (last["num-replies"], last["skipped"], last["num-capped"]) == (3, 0, 0)
    np.testing.assert_allclose(flat(result.arrays), optimum([shard], [1.0]), atol=1e-9)


def test_an_iteration_cap_is_reported():
    result = run(DualFL(nu=NU, engine="aogm", tolerance=1e-13, max_iterations=2), problem(), 2)
    assert [metrics["num-capped"] for metrics in result.train_metrics_clientapp.values()] == [5, 5]
    assert result.train_metrics_clientapp[1]["gradient-evaluations"] >= 2


def test_fed_prox_is_told_its_penalty_in_every_round():
    """A message without a rate and with one number lost the number."""
    objectives = problem()
    result = run(FedProx(penalty=30.0, weighting="uniform"), objectives, 3)
    w = np.zeros(D)
    for _ in range(3):
        points = []
        for f in objectives:
            x = np.column_stack([f.features, np.ones(f.num_examples)])
            hessian = x.T @ x / len(x) + 30.0 * np.eye(D)
            points.append(np.linalg.solve(hessian, x.T @ f.targets / len(x) + 30.0 * w))
        w = np.mean(points, axis=0)
    np.testing.assert_allclose(flat(result.arrays), w, atol=1e-11)


def test_fed_dr_takes_psi_and_its_zeros_are_exact():
    result = run(FedDR(regularizer=L1(0.5), apply_to="coefficients", step=1.0), clients(), 60)
    assert np.count_nonzero(result.arrays["coefficients"].numpy() == 0.0) >= 2


@pytest.mark.parametrize("step", [0.5, 3.0])
def test_the_limit_of_fed_dr_with_psi_does_not_depend_on_its_step(step):
    expected = centralized_solution(problem(), L1(0.5), tol=1e-12)
    assert (expected == 0.0).any()
    found = flat(run(FedDR(regularizer=L1(0.5), step=step), problem(), 90).arrays)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_fed_pd_that_goes_on_by_itself_has_no_ledger():
    """What a client remembers after two minimisations is no function of what it has sent."""
    strategy = FedPD(step=2.0, repeats=2)
    faulty_run(strategy, None, rounds=(), num_rounds=3)
    assert not strategy.memories.ledger
    assert all(member.memory is None for member in strategy.memories.members.values())


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
        strategy = EVERYONE["DualFL"](on_missing="reset", evict_after=2)
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
    whole, first, second = (EVERYONE["DualFL"]() for _ in range(3))
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
    other = DualFL(nu=NU / 2, smoothness=2.0, tolerance=1e-12)
    run_of(other).prepare(start_arrays())
    with pytest.raises(ConfigurationError, match="other settings"):
        run_of(other).load(tmp_path / "state.npz")
