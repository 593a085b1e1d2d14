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
from problems import app_of
from quadratics import quadratics
from remembering import faulty_run
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Minimise, Participation
from reproduction.rivals import APDAInexact, FedCM, FedPD, FedSAM, FiveGCS
from reproduction.tests.rivals.days import by_day

EVERYONE = {
    "FedPD": lambda **o: FedPD(step=2.0, **o),
    "APDAInexact": lambda **o: APDAInexact(primal_step=0.2, damping=0.5, convexity=0.1, **o),
}
SAMPLED = {"FiveGCS": lambda **o: FiveGCS(step=2.0, convexity=0.05, **o)}
ROUNDS = {"FedPD": 75, "APDAInexact": 190, "FiveGCS": 140}


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


def test_a_client_that_the_user_gives_no_weight_is_not_in_the_mean():
    leaves_who_has_no_weight_out_of_the_mean(SAMPLED["FiveGCS"], 2 * ROUNDS["FiveGCS"])


@together("cls", [APDAInexact, FedCM, FedPD, FedSAM, FiveGCS])
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
