import tomllib
from pathlib import Path

import numpy as np
import pytest

from flwr_fco import regularizers, strategies
from flwr_fco.errors import ConfigurationError, UnknownOptionError
from flwr_fco.strategies import STRATEGIES, Steps
from main_job.run_config import KEYS, checked_config
from main_job.task import PROBLEMS, Task

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def task_of(num_nodes=None, **overrides):
    own = {key.replace("_", "-"): value for key, value in overrides.items()}
    return Task(checked_config({**CONFIG, **own}), num_nodes)


def test_the_defaults_of_pyproject_are_the_main_job():
    task = task_of()
    assert task.regularizer == regularizers.L1(2e-3)
    assert (task.data.num_clients, task.data.num_classes) == (10, 10)
    assert (task.config["num-server-rounds"], task.config["seed"], task.config["evaluate-every"]) == (300, 0, 1)
    strategy = task.strategy()
    assert type(strategy) is strategies.FedDualAvg
    assert (strategy.client_lr, strategy.server_lr, strategy.work) == (0.1, 10.0, Steps(6))
    assert (strategy.min_train_nodes, strategy.min_available_nodes, strategy.fraction_train) == (10, 10, 1.0)


def test_every_key_of_pyproject_is_known_and_every_known_key_is_there():
    assert set(CONFIG) == set(KEYS)


def described(task):
    """Return all that a run depends on, as text."""
    strategy = task.strategy()
    seen = [type(strategy).__name__, repr(strategy), strategy.seed, strategy.fraction_train, task.regularizer]
    first = task.data.client(0)
    return repr([*seen, task.data.num_clients, first.features.shape, np.asarray(first.features).sum()])


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_key_reaches_the_run(name):
    """Each key, changed alone, changes data or strategy, but for those that the problem has no use for."""
    other = {
        "strategy": "FedMid",
        "regularizer": "Zero",
        "strength": 0.7,
        "client-lr": 0.7,
        "server-lr": 0.7,
        "batch-size": 7,
        "local-steps": 7,
        "num-nodes": 7,
        "clients-per-round": 7,
        "alpha": 0.7,
        "train-fraction": 0.7,
        "seed": 7,
    }
    elsewhere = {"problem", "num-server-rounds", "evaluate-every", "output-dir", "checkpoint-dir", "resume"}
    elsewhere |= {"round-timeout", "privacy-clip", "privacy-target-epsilon", "privacy-delta", "privacy-noise"}
    assert set(other) == set(KEYS) - elsewhere
    before = described(task_of(problem=name))
    for key, value in other.items():
        without_use = name == "lasso" and key in ("alpha", "train-fraction")
        assert (described(task_of(problem=name, **{key: value})) == before) is without_use, key


def test_privacy_reaches_the_strategy():
    pytest.importorskip("dp_accounting")
    private = {"privacy-clip": 0.3, "privacy-target-epsilon": 8.0, "privacy-delta": 0.01, "clients-per-round": 2}
    privacy = task_of(**private, privacy_noise="independent").strategy().privacy
    assert (privacy.clip, privacy.target_epsilon, privacy.delta, privacy.noise) == (0.3, 8.0, 0.01, "independent")
    with pytest.raises(ConfigurationError, match="delta=0"):
        task_of(privacy_clip=0.3).strategy()
    with pytest.raises(UnknownOptionError, match="privacy"):
        task_of(**private, strategy="DualFL").strategy()


def test_the_data_are_split_over_the_nodes_that_there_are():
    assert task_of(4).data.num_clients == 4
    assert task_of(4).strategy().min_train_nodes == 4
    with pytest.raises(ConfigurationError, match="clients-per-round=5, but there are 4 nodes"):
        task_of(4, clients_per_round=5).strategy()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_can_be_chosen(name):
    psi = {"regularizer": "Zero"} if "regularizer" in STRATEGIES[name].algorithm.refuses else {}
    strategy = task_of(3, **psi, strategy=name, seed=7).strategy()
    assert type(strategy).__name__ == name
    assert strategy.seed == 7


BAD = {
    "problem": ("mnist", "'mnist'.*digits.*breast-cancer.*lasso"),
    "strategy": ("FedAvg", "'FedAvg'.*FedDualAvg"),
    "server-lr": (float("inf"), "finite"),
    "strength": (-1.0, ">= 0"),
    "num-nodes": (1, ">= 2"),
    "train-fraction": (1.0, "between 0 and 1"),
    "output-dir": ("runs", "'runs'.*absolute"),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_bad_value_is_named_with_what_was_expected(key):
    for value, said in (BAD.get(key, ([1], "")), (3j, "expected")):
        with pytest.raises(ConfigurationError, match=f"(?s){key}.*{said}"):
            checked_config({**CONFIG, key: value})


def test_a_missing_and_an_unknown_key_are_named():
    with pytest.raises(ConfigurationError, match="lacks alpha, seed"):
        checked_config({key: value for key, value in CONFIG.items() if key not in ("seed", "alpha")})
    with pytest.raises(ConfigurationError, match="unknown key 'client-rate'"):
        checked_config({**CONFIG, "client-rate": 0.1})
