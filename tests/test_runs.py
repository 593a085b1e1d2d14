import json

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from flwr_fco.run_folder import read_run
from flwr_fco.runs import STRATEGIES, RunSettings, parse_assignments, parse_value, run, save_run
from flwr_fco.strategies import CompositeStrategy


def settings(strategy="FedDualAvg", seed=0, **values):
    return RunSettings.of("lasso-small", strategy, {key.replace("_", "-"): v for key, v in values.items()}, seed)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_and_lowers_the_objective(strategy):
    assert issubclass(STRATEGIES[strategy], CompositeStrategy)
    # The methods with quadratic models have no client rate: the weight of their anchor is an inverse step size.
    step = {"anchor_weight": 600.0} if strategy in ("FastFedDA", "CFedDA", "MCFedDA") else {"client_lr": 3e-3}
    result = run(settings(strategy, num_rounds=10, **step))
    assert [line["round"] for line in result.history] == list(range(11))
    assert result.diverged == 0
    assert result.history[-1]["objective"] < 0.8 * result.history[0]["objective"]


def test_same_seed_same_run_other_seed_other_data():
    first, again, other = (run(settings(num_rounds=5, seed=seed)) for seed in (1, 1, 2))
    assert first.history == again.history
    assert first.history != other.history


def test_evaluation_intervals():
    result = run(settings(num_rounds=10, structure_every=2, objective_every=4))
    assert [line["round"] for line in result.history] == [0, 2, 4, 6, 8, 10]
    assert [line["round"] for line in result.history if "objective" in line] == [0, 4, 8, 10]


def test_exactly_the_wanted_clients_take_part():
    seen = []
    for clients in (1, 7, 16):
        strategy = STRATEGIES["FedDualAvg"]
        original = strategy.aggregate

        def aggregate(self, state, uplinks, original=original):
            seen.append(len(uplinks))
            return original(self, state, uplinks)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategy, "aggregate", aggregate)
            run(settings(num_rounds=2, clients_per_round=clients))
    assert seen == [1, 1, 7, 7, 16, 16]
    with pytest.raises(ConfigurationError, match="clients-per-round=17"):
        run(settings(clients_per_round=17))


def test_a_diverging_run_is_cut_and_marked():
    result = run(settings(client_lr=1.0, num_rounds=100))
    assert 0 < result.diverged < 20
    assert result.history[-1]["round"] <= result.diverged
    json.dumps(result.history)


def test_options_of_the_strategy_reach_it():
    printed = run(settings("FedMid", num_rounds=30))
    once = run(settings("FedMid", num_rounds=30, server_prox=False))
    assert printed.history != once.history
    full = run(settings(batch_size=0, local_steps=3, num_rounds=3, clients_per_round=16))
    assert full.history[-1]["objective"] < full.history[0]["objective"]


def test_baselines_are_runs_with_a_certificate(tmp_path):
    result = run(settings("centralized"))
    assert result.history[-1]["duality-gap"] < 1e-4
    assert run(settings("local", client=3)).history != result.history
    save_run(result, tmp_path / "run")
    found = read_run(tmp_path / "run")
    assert found.metrics == result.history
    assert np.array_equal(found.arrays["coefficients"], result.arrays["coefficients"])


def test_settings_survive_the_run_folder(tmp_path):
    own = settings("FedMid", seed=5, num_rounds=3, server_prox=False, strength=0.3, num_clients=12)
    save_run(run(own), tmp_path / "run")
    assert RunSettings.from_config(read_run(tmp_path / "run").config) == own


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ({"client-lr": 0.0}, "client-lr=0.0; expected a finite number > 0"),
        ({"client-lr": "fast"}, "client-lr='fast' is a str; expected float"),
        ({"num-rounds": 1.5}, "num-rounds=1.5 is a float"),
        ({"num-rounds": 0}, "num-rounds=0; expected a whole number >= 1"),
        ({"batch-size": -1}, "batch-size=-1"),
        ({"server-prox": False}, r"unknown key 'server-prox'.*client-lr.*strength"),
        ({"regularizer": "L2"}, "unknown key 'regularizer'"),
    ],
)
def test_bad_settings_are_named(assignments, message):
    with pytest.raises(ConfigurationError, match=message):
        RunSettings.of("lasso-small", "FedDualAvg", assignments)


def test_unknown_names_and_seeds():
    with pytest.raises(ConfigurationError, match="strategy='FedSGD'"):
        RunSettings.of("lasso-small", "FedSGD")
    with pytest.raises(ConfigurationError, match="seed=-1"):
        RunSettings.of("lasso-small", "FedMid", seed=-1)


def test_values_and_assignments():
    assert [parse_value(text) for text in ("1", "1.5", "true", "last", "../data", "2024-01-01")] == [
        1,
        1.5,
        True,
        "last",
        "../data",
        "2024-01-01",
    ]
    assert parse_assignments(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    for bad in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ConfigurationError, match="--set"):
            parse_assignments(bad)
