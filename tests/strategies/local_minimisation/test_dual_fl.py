"""DualFL and what is like it through Flower's messages: faults, clients that go, the ledger, refusals, the optimum."""

import numpy as np
import pytest
from problems import clients, flat, optimum, problem, run

from flwr_fco.algorithms.dual_fl import linear_tolerance, sublinear_tolerance
from flwr_fco.regularizers import L1
from flwr_fco.strategies import DualFL, FedDR, Minimise
from reproduction.pooled import centralized_solution

NU = 0.05


# --- what is refused, and what the messages of a round hold ---------------------------------------------------------


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
    original = Minimise.stopping_norm

    def recorded(self, *options):
        seen.append(self)
        return original(self, *options)

    monkeypatch.setattr(Minimise, "stopping_norm", recorded)
    # Theorem 3.2 or 3.3 with nu below mu, so that the gap is finite.
    strategy = DualFL(nu=NU, rho=0.01, schedule=schedule, work=Minimise(tolerance=1e-5), gamma=0.5)
    run(strategy, problem(), 12)
    assert strategy.state.round == 12
    for n in range(12):
        if schedule == "linear":
            expected = linear_tolerance(n, rho=0.01, clients=5, gamma=0.5)
        else:
            expected = sublinear_tolerance(n, duality=NU, clients=5, gamma=0.5)
        assert {work.rule for work in seen[5 * n : 5 * n + 5]} == {"gap"}
        assert {work.tolerance for work in seen[5 * n : 5 * n + 5]} == {max(expected, 1e-5)}


def test_a_warm_start_that_is_good_enough_is_an_answer():
    """Equal clients at their minimiser have nothing to do, and say so."""
    shard = clients((20,))[0]
    result = run(DualFL(nu=NU), [shard] * 3, 6)
    last = result.train_metrics_clientapp[6]
    assert (last["num-replies"], last["skipped"], last["num-capped"]) == (3, 0, 0)
    np.testing.assert_allclose(flat(result.arrays), optimum([shard], [1.0]), atol=1e-9)


@pytest.mark.parametrize("step", [0.5, 3.0])
def test_the_limit_of_fed_dr_with_psi_does_not_depend_on_its_step(step):
    expected = centralized_solution(problem(), L1(0.5), tol=1e-12)
    assert (expected == 0.0).any()
    found = flat(run(FedDR(regularizer=L1(0.5), step=step), problem(), 90).arrays)
    np.testing.assert_allclose(found, expected, atol=1e-8)
