import tomllib
from pathlib import Path

import pytest

from flwr_fco import regularizers, strategies
from flwr_fco.errors import ConfigurationError
from main_job.run_config import APP_PROBLEMS, KEYS, run_settings
from reproduction.problems.loaders import REGULARIZERS
from reproduction.problems.named import PROBLEMS
from reproduction.runs.methods import STRATEGIES
from reproduction.runs.recorder import build_strategy
from reproduction.runs.settings import RunSettings

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def strategy_of(settings):
    return build_strategy(settings, settings.load().dataset.num_clients, settings.load().regularizer)


def test_the_defaults_of_pyproject_are_the_main_job():
    settings = run_settings(CONFIG)
    task = settings.load()
    assert (settings.problem, settings.strategy) == ("digits", "FedDualAvg")
    assert task.regularizer == regularizers.L1(2e-3)
    assert (task.dataset.num_clients, settings.num_rounds, settings.seed) == (10, 300, 0)
    assert (settings.structure_every, settings.objective_every) == (1, 1)
    strategy = strategy_of(settings)
    assert type(strategy) is strategies.FedDualAvg
    assert (strategy.client_lr, strategy.server_lr, strategy.batch_size, strategy.local_steps) == (0.1, 10.0, 32, 6)
    assert (strategy.min_train_nodes, strategy.min_available_nodes, strategy.fraction_train) == (10, 10, 1.0)


def test_every_key_of_pyproject_is_known_and_every_known_key_is_there():
    assert set(CONFIG) == set(KEYS)


@pytest.mark.parametrize("name", APP_PROBLEMS)
def test_every_key_reaches_the_run(name):
    """Each key, changed alone, changes the settings, but for those that the problem has no use for."""
    options = PROBLEMS[name].options()
    config = {**CONFIG, "problem": name}
    other = {
        "strategy": "FedMid",
        "regularizer": "Zero",
        "strength": 0.7,
        "client-lr": 0.7,
        "server-lr": 0.7,
        "batch-size": 7,
        "local-steps": 7,
        "num-server-rounds": 7,
        "num-nodes": 7,
        "alpha": 0.7,
        "train-fraction": 0.7,
        "seed": 7,
        "evaluate-every": 7,
        "clients-per-round": 7,
        "privacy-clip": 0.7,
        "privacy-target-epsilon": 0.7,
        "privacy-delta": 0.7,
    }
    unused = {"problem", "output-dir", "checkpoint-dir", "resume", "round-timeout", "privacy-noise"}
    assert set(other) == set(KEYS) - unused
    for key, value in other.items():
        without_use = key in ("alpha", "train-fraction") and key not in options
        assert (run_settings({**config, key: value}) == run_settings(config)) is without_use, key


def test_settings_survive_the_run_folders_configuration():
    settings = run_settings(CONFIG, 4)
    assert settings.load().dataset.num_clients == 4
    assert RunSettings.from_config(settings.to_config()) == settings


def test_the_app_runs_what_the_command_line_runs():
    values = {"num-clients": 3, "num-rounds": 5, "client-lr": 0.2, "local-steps": 4, "clients-per-round": 0}
    config = {**CONFIG, "num-nodes": 3, "num-server-rounds": 5, "client-lr": 0.2, "local-steps": 4, "seed": 2}
    here = RunSettings.of("digits", "FedDualAvg", {**values, "objective-every": 1}, seed=2)
    app = run_settings(config)
    for name in ("client_lr", "server_lr", "num_rounds", "clients_per_round", "batch_size", "local_steps", "seed"):
        assert getattr(app, name) == getattr(here, name), name
    for own, other in zip(app.load().clients, here.load().clients, strict=True):
        assert (own.labels == other.labels).all()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_can_be_chosen(name):
    psi = {} if STRATEGIES[name].limit.problem == "composite" else {"regularizer": "Zero"}
    strategy = strategy_of(run_settings({**CONFIG, **psi, "strategy": name, "seed": 7}, 3))
    assert type(strategy).__name__ == name
    assert strategy.seed == 7


@pytest.mark.parametrize("name", sorted(REGULARIZERS))
def test_every_regularizer_can_be_chosen(name):
    psi = run_settings({**CONFIG, "regularizer": name, "strength": 0.5}).load().regularizer
    assert type(psi).__name__ == name
    assert getattr(psi, "strength", 0.5) == 0.5


def test_whole_numbers_will_do_for_rates():
    settings = run_settings({**CONFIG, "client-lr": 1, "strength": 0})
    assert isinstance(settings.client_lr, float)
    assert settings.load().regularizer.strength == 0.0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("client-lr", "0.1", ["client-lr='0.1'", "str", "expected a number"]),
        ("client-lr", True, ["bool", "expected a number"]),
        ("num-server-rounds", True, ["bool", "expected a whole number"]),
        ("num-server-rounds", 3.0, ["float", "expected a whole number"]),
        ("problem", 3, ["expected a string"]),
        ("problem", "haxby", ["'haxby'", "digits"]),
        ("strategy", "centralized", ["'centralized'", "FedDualAvg"]),
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
        run_settings({**CONFIG, key: value})
    assert key in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_missing_and_an_unknown_key_are_named():
    with pytest.raises(ConfigurationError, match="lacks alpha, seed"):
        run_settings({key: value for key, value in CONFIG.items() if key not in ("seed", "alpha")})
    with pytest.raises(ConfigurationError, match="unknown key 'client-rate'"):
        run_settings({**CONFIG, "client-rate": 0.1})
