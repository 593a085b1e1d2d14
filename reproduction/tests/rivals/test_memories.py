"""The rivals whose clients remember, through Flower's messages: faults, clients that go, the ledger, refusals."""

import numpy as np
import pytest
from memory_rules import (
    GIVEN_UP,
    LOSSES,
    asks_again_in_the_same_round,
    goes_on_without_who_is_given_up,
    hides_a_restart_to_the_bit,
    keeps_a_weight,
    leaves_who_has_no_weight_out_of_the_mean,
    reaches_the_optimum_whatever_is_lost,
    refuses_psi_with_the_reason,
    refuses_samples,
    samples_reach_the_optimum_whatever_is_lost,
)
from problems import D, app_of, clients, flat, problem, run
from quadratics import quadratics
from remembering import faulty_run
from together import together

from flwr_fco.errors import ConfigurationError, DivergedError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Minimise, Participation
from reproduction.rivals import APDAInexact, FedCM, FedDyn, FedPD, FedProx, FedSAM, FiveGCS, Scaffnew
from reproduction.tests.rivals.days import by_day

EVERYONE = {
    "FedPD": lambda **o: FedPD(step=2.0, **o),
    "APDAInexact": lambda **o: APDAInexact(primal_step=0.2, damping=0.5, convexity=0.1, **o),
    "Scaffnew": lambda **o: Scaffnew(client_lr=0.4, probability=0.3, seed=5, **o),
}
SAMPLED = {
    "FiveGCS": lambda **o: FiveGCS(step=2.0, convexity=0.05, **o),
    "FedDyn": lambda **o: FedDyn(penalty=0.5, **o),
}
ROUNDS = {"FedPD": 75, "APDAInexact": 190, "Scaffnew": 50, "FiveGCS": 140, "FedDyn": 75}


@pytest.mark.parametrize("name", by_day(EVERYONE))
@together(("fault", "client_state"), LOSSES)
def test_those_that_need_everyone_reach_the_optimum_whatever_is_lost(name, client_state, fault):
    reaches_the_optimum_whatever_is_lost(EVERYONE[name], ROUNDS[name], fault, client_state)


@pytest.mark.parametrize("name", by_day(SAMPLED))
@together(("fault", "client_state"), LOSSES)
def test_samples_of_clients_reach_the_optimum_whatever_is_lost(name, client_state, fault):
    samples_reach_the_optimum_whatever_is_lost(SAMPLED[name], 2 * ROUNDS[name], fault, client_state)


@together("client_state", ["ledger", "reset"])
@together("name", [*EVERYONE, *SAMPLED])
def test_a_weight_stays_what_it_was(name, client_state):
    keeps_a_weight({**EVERYONE, **SAMPLED}[name], client_state)


@pytest.mark.parametrize("name", [*EVERYONE, *SAMPLED])
def test_a_ledger_hides_a_restart_to_the_bit(name):
    hides_a_restart_to_the_bit({**EVERYONE, **SAMPLED}[name])


@together("kind", ["silent", "NaN"])
@together("name", EVERYONE)
def test_a_node_without_a_good_answer_is_asked_again_in_the_same_round(name, kind):
    asks_again_in_the_same_round(EVERYONE[name], kind)


@pytest.mark.parametrize("name", by_day(EVERYONE))
@together(("fault", "client_state"), GIVEN_UP)
def test_the_others_go_on_from_zero_to_their_own_optimum(name, fault, client_state):
    goes_on_without_who_is_given_up(EVERYONE[name], ROUNDS[name] + 5, fault, client_state)


@together("name", SAMPLED)
def test_a_client_that_the_user_gives_no_weight_is_not_in_the_mean(name):
    leaves_who_has_no_weight_out_of_the_mean(SAMPLED[name], 2 * ROUNDS[name])


@together("cls", [APDAInexact, FedCM, FedDyn, FedPD, FedProx, FedSAM, FiveGCS, Scaffnew])
def test_psi_is_refused_with_the_reason(cls):
    refuses_psi_with_the_reason(cls)


@together("make", EVERYONE.values())
def test_those_that_need_everyone_refuse_samples(make):
    refuses_samples(make)


def test_options_out_of_range():
    with pytest.raises(ConfigurationError, match="ledger"):
        FedPD(repeats=2, client_state="ledger")
    with pytest.raises(ConfigurationError, match="dual_step"):
        FiveGCS(step=10.0, convexity=0.1)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_five_gcs_takes_the_steps_of_its_box_with_a_cohort(gamma):
    """Algorithm 1 with C of M clients: x <- x_hat - gamma M/C (v+ - v), and tau = 1/(2 gamma M) as in its theory."""
    objectives, count, mu = quadratics(count=4), 4, 0.1
    cohorts = [[0, 1], [1, 3], [2, 0], [3, 2], [0, 3]]
    strategy = FiveGCS(
        step=gamma,
        convexity=mu,
        weighting="uniform",
        work=Minimise(tolerance=1e-13),
        participation=Participation(choose_nodes=lambda number, nodes: [nodes[m] for m in cohorts[number - 1]]),
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


def test_fed_pd_that_goes_on_by_itself_has_no_ledger():
    """What a client remembers after two minimisations is no function of what it has sent."""
    strategy = FedPD(step=2.0, repeats=2)
    faulty_run(strategy, None, rounds=(), num_rounds=3)
    assert not strategy.memories.ledger
    assert all(member.memory is None for member in strategy.memories.members.values())


def test_the_coin_of_scaffnew_is_the_same_for_all_and_another_in_every_round():
    result = run(Scaffnew(client_lr=0.1, probability=0.2, seed=3), clients(), 400)
    steps = np.array([metrics["local-steps"] for metrics in result.train_metrics_clientapp.values()])
    assert (steps == np.round(steps)).all()
    assert steps.mean() == pytest.approx(5.0, rel=0.2)
    assert (steps == 1).mean() == pytest.approx(0.2, abs=0.08)
    periodic = run(Scaffnew(client_lr=0.1, probability=0.2, coin="periodic"), clients(), 3)
    assert [metrics["local-steps"] for metrics in periodic.train_metrics_clientapp.values()] == [5, 5, 5]


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


def test_a_method_whose_server_has_no_rate_is_told_of_none():
    with pytest.raises(DivergedError, match=r"client_lr=50 is too large for these data; try client_lr=5\."):
        run(Scaffnew(client_lr=50.0, coin="periodic"), clients(), 100)
