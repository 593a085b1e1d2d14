import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from flwr_fco.app.settings import REGULARIZERS, STRATEGIES, Settings

from flwr_fco import regularizers, strategies
from flwr_fco.errors import ConfigurationError

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def test_the_defaults_of_pyproject_are_the_main_job():
    settings = Settings.from_run_config(CONFIG)
    assert (settings.problem, settings.strategy, settings.regularizer) == ("digits", "FedDualAvg", "L1")
    assert (settings.strength, settings.num_nodes, settings.alpha, settings.train_fraction) == (2e-3, 10, 0.3, 0.75)
    assert settings.build_regularizer() == regularizers.L1(2e-3)
    strategy = settings.build_strategy(10)
    assert type(strategy) is strategies.FedDualAvg
    assert (strategy.client_lr, strategy.server_lr, strategy.batch_size, strategy.local_steps) == (0.1, 10.0, 32, 6)
    assert strategy.min_available_nodes == 10


def test_settings_and_config_are_inverse():
    settings = Settings.from_run_config(CONFIG)
    assert Settings.from_run_config(settings.to_config()) == settings
    assert set(settings.to_config()) == set(CONFIG) == {field.name.replace("_", "-") for field in fields(Settings)}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_can_be_chosen(name):
    settings = Settings.from_run_config({**CONFIG, "strategy": name, "seed": 7})
    strategy = settings.build_strategy(3)
    assert type(strategy).__name__ == name
    assert strategy.seed == 7


@pytest.mark.parametrize("name", sorted(REGULARIZERS))
def test_every_regularizer_can_be_chosen(name):
    psi = Settings.from_run_config({**CONFIG, "regularizer": name, "strength": 0.5}).build_regularizer()
    assert type(psi).__name__ == name
    assert getattr(psi, "strength", 0.5) == 0.5


def test_whole_numbers_will_do_for_rates():
    settings = Settings.from_run_config({**CONFIG, "client-lr": 1, "strength": 0})
    assert isinstance(settings.client_lr, float)
    assert settings.strength == 0.0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("client-lr", "0.1", ["client-lr='0.1'", "str", "expected float"]),
        ("client-lr", True, ["bool", "expected float"]),
        ("num-server-rounds", True, ["bool", "expected int"]),
        ("num-server-rounds", 3.0, ["float", "expected int"]),
        ("problem", 3, ["expected str"]),
        ("problem", "mnist", ["'mnist'", "digits", "breast-cancer", "lasso"]),
        ("strategy", "FedAvg", ["'FedAvg'", "FedDualAvg", "FedAvgSubgradient"]),
        ("regularizer", "l1", ["'l1'", "L1", "Nuclear"]),
        ("client-lr", 0.0, ["> 0"]),
        ("server-lr", float("inf"), ["finite"]),
        ("server-lr", float("nan"), ["finite"]),
        ("strength", -1.0, [">= 0"]),
        ("strength", float("nan"), [">= 0"]),
        ("num-server-rounds", 0, [">= 1"]),
        ("num-nodes", 1, [">= 2"]),
        ("batch-size", 0, [">= 1"]),
        ("local-steps", 0, [">= 1"]),
        ("evaluate-every", 0, [">= 1"]),
        ("alpha", 0.0, ["> 0"]),
        ("train-fraction", 1.0, ["between 0 and 1"]),
        ("seed", -1, ["2**32"]),
        ("seed", 2**32, ["2**32"]),
        ("output-dir", "runs", ["'runs'", "absolute"]),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(key, value, words):
    with pytest.raises(ConfigurationError) as error:
        Settings.from_run_config({**CONFIG, key: value})
    assert key in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_missing_and_an_unknown_key_are_named():
    with pytest.raises(ConfigurationError, match="lacks alpha, seed"):
        Settings.from_run_config({key: value for key, value in CONFIG.items() if key not in ("seed", "alpha")})
    with pytest.raises(ConfigurationError, match="unknown key 'client-rate'"):
        Settings.from_run_config({**CONFIG, "client-rate": 0.1})
