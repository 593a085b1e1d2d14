"""Objectives are kept up to a number: the bits of a run do not depend on it, its memory does."""

import numpy as np
import pytest
from problems import clients, start_arrays

from flwr_fco.client_apps import client_app, training
from flwr_fco.client_apps.training import KeptObjectives
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import DualFL, FedDualAvg


@pytest.mark.parametrize("kind", [FedDualAvg, DualFL])
def test_a_run_whose_clients_are_forgotten_has_the_same_bits(kind):
    loads, held = [], []
    objectives = clients()

    def load(context):
        held.append(len(training._objectives))
        loads.append(context.node_config["partition-id"])
        own = objectives[loads[-1]]
        return LeastSquares(own.features.copy(), own.targets.copy(), l2=0.1)

    def run(**options):
        loads.clear()
        options = {"client_app": client_app(load, **options), "initial_arrays": start_arrays(), "progress": False}
        strategy = DualFL(nu=0.1) if kind is DualFL else FedDualAvg(regularizer=L1(0.05), client_lr=0.01)
        return simulate(strategy, num_nodes=4, num_rounds=3, **options).arrays["coefficients"].numpy()

    whole = run()
    assert len(loads) == 4
    held.clear()
    before = len(training._objectives)
    np.testing.assert_array_equal(run(max_objectives=1), whole)
    assert len(loads) >= 12
    assert max(held) <= before + 1


def test_those_used_last_are_kept_and_a_run_is_forgotten_whole():
    objective = LeastSquares(np.ones((10, 4)), np.ones(10))
    kept = KeptObjectives()
    for partition in range(3):
        kept.keep(("app", "train", 1, partition), objective, limit=3)
    kept.find(("app", "train", 1, 0))
    kept.keep(("app", "train", 2, 0), objective, limit=3)
    found = [kept.find(("app", "train", 1, partition)) is not None for partition in range(3)]
    assert found == [True, False, True]
    kept.forget(1)
    assert len(kept) == 1
    for partition in range(3):
        kept.keep(("app", "train", 3, partition), objective, limit=3)
    assert len(kept) == 3


@pytest.mark.parametrize("value", [0, -1, 2.5, float("nan"), "2", True, [1]])
def test_a_number_of_objectives_is_positive(value):
    with pytest.raises(ConfigurationError, match="max_objectives="):
        client_app(lambda context: None, max_objectives=value)
