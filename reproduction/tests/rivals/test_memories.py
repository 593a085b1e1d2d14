"""The rivals whose clients remember, through Flower's messages: faults, the ledger, refusals."""

import numpy as np
import pytest
from problems import app_of, optimum, problem
from quadratics import quadratics
from remembering import FAULTS, faulty_run, weights_of
from together import together

from flwr_fco.client_apps.client import recall
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Downlink, MemoryLostError
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Minimise, Participation, run_of
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


def the_ledger_is_what_clients_hold(strategy, grid, number, metrics):
    """To the bit, of each client that has the memory which the ledger names."""
    for node_id, partition in grid.partition_ids.items():
        member = strategy.memories.members.get((0, partition))
        if member is None or not member.digest:
            continue
        named = Downlink(run_of(strategy).problem.plan, {}, stamp=member.digest)
        try:
            held = recall(grid.context(node_id), named)
        except MemoryLostError:
            continue
        for name, vector in strategy.memories.memory((0, partition)).items():
            np.testing.assert_array_equal(held[name], vector, err_msg=f"round {number}, {partition}, {name}")


@pytest.mark.parametrize("name", by_day(EVERYONE))
@together("fault", ["lost reply", "restart"])
def test_those_that_need_everyone_reach_the_optimum_whatever_is_lost(name, fault):
    strategy = EVERYONE[name]()
    check = the_ledger_is_what_clients_hold
    w, grid, _ = faulty_run(strategy, FAULTS[fault], num_rounds=ROUNDS[name], check=check)
    assert len(grid.injected) >= 3
    assert np.abs(w - optimum(problem(), weights_of(strategy, grid))).max() <= 1e-8


@together("cls", [APDAInexact, FedCM, FedDyn, FedPD, FedProx, FedSAM, FiveGCS, Scaffnew])
def test_psi_is_refused_with_the_reason(cls):
    with pytest.raises(ConfigurationError, match=r"no place for psi, because .*FedDR"):
        cls(regularizer=L1(0.1))
    with pytest.raises(ConfigurationError, match="Euclidean"):
        cls(mirror_map=PNorm(3.0))


@together("make", EVERYONE.values())
def test_those_that_need_everyone_refuse_samples(make):
    with pytest.raises(ConfigurationError, match="every client"):
        make(fraction_train=0.5)
    with pytest.raises(ConfigurationError, match="participation"):
        make(participation=Participation(choose_nodes=lambda number, nodes: nodes))


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
