"""Differential privacy by settings: the command line and run folders."""

import os
import stat

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from flwr_fco.errors import ConfigurationError, UnknownOptionError
from reproduction.pictures.comparison import compare
from reproduction.pictures.html_report import html_page
from reproduction.runs.recorder import build_strategy
from reproduction.runs.run import run
from reproduction.runs.run_folder import RunFolder, read_run
from reproduction.runs.settings import RunSettings

pytest.importorskip("dp_accounting")


def settings_of(strategy="FedDualAvg", problem="lasso-small", **options):
    chosen = {
        "privacy_clip": 0.3,
        "privacy_delta": 0.01,
        "privacy_noise_multiplier": 0.5,
        "clients_per_round": 4,
        "local_steps": 2,
        "num_rounds": 8,
        **options,
    }
    values = {key.replace("_", "-"): value for key, value in chosen.items() if value is not None}
    return RunSettings.of(problem, strategy, values)


def strategy_of(settings):
    task = settings.load()
    return build_strategy(settings, task.dataset.num_clients, task.regularizer)


def accountant_of(strategy):
    return strategy.prepare(ArrayRecord({"coefficients": Array(np.zeros(3))})).privacy.accountant


@pytest.mark.parametrize("clients", [1, 4, 5, 16])
def test_settings_make_the_strategy_that_they_say(clients):
    strategy = strategy_of(settings_of(clients_per_round=clients, privacy_noise="banded"))
    privacy = strategy.privacy
    assert (privacy.clip, privacy.delta, privacy.noise_multiplier, privacy.noise) == (0.3, 0.01, 0.5, "banded")
    assert (strategy.weighting, strategy.normalize_local_work) == ("uniform", False)
    assert accountant_of(strategy).separation == 16 // clients
    poisson = strategy_of(settings_of(clients_per_round=clients, privacy_noise="independent"))
    assert accountant_of(poisson).sampling == clients / 16


def test_what_is_missing_or_cannot_be_is_refused_with_the_reason():
    with pytest.raises(ConfigurationError, match="without privacy-clip and privacy-delta"):
        strategy_of(settings_of(privacy_clip=None, privacy_delta=None))
    with pytest.raises(ConfigurationError, match="target_epsilon"):
        strategy_of(settings_of(privacy_noise_multiplier=None))
    with pytest.raises(ConfigurationError, match="work=Steps"):
        strategy_of(settings_of(local_steps=0))
    with pytest.raises(ConfigurationError, match="weighting"):
        strategy_of(settings_of(weighting="examples"))
    with pytest.raises(UnknownOptionError, match="FedDAGT has no such option"):
        strategy_of(settings_of("FedDAGT", clients_per_round=0))
    with pytest.raises(ConfigurationError, match="privacy-clop"):
        settings_of(privacy_clop=1.0)


def test_a_folder_has_epsilon_of_every_round_and_no_secrets(tmp_path):
    settings = settings_of(privacy_noise_multiplier=None, privacy_target_epsilon=4.0)
    result = run(settings, folder=tmp_path / "run")
    record = read_run(tmp_path / "run")
    costs = [line["epsilon"] for line in record.metrics]
    assert costs[0] == 0.0
    assert costs == sorted(costs)
    assert 3.99 < costs[-1] <= 4.0
    assert {line["delta"] for line in record.metrics} == {0.01}
    assert not result.left_out
    assert sorted(os.listdir(tmp_path / "run")) == ["config.json", "metrics.jsonl", "model.npz", "status.json"]
    pytest.importorskip("matplotlib")
    final = html_page(compare([("run", record)])).partition("Curves")[0]
    assert "epsilon" in final
    assert f"{costs[-1]:.4g}" in final


@pytest.mark.parametrize("noise", ["banded", "independent"])
def test_a_run_that_is_stopped_goes_on_to_the_same_bits_with_the_seed_of_tests(tmp_path, noise):
    settings = settings_of(privacy_noise_seed=1, privacy_noise=noise)
    whole = run(settings)
    asked = iter(range(100))
    first = run(settings, folder=tmp_path / "run", stop=lambda: next(asked) == 2)
    assert first.stopped == 3
    assert stat.S_IMODE((tmp_path / "run" / "state.npz").stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="holds a run already"):
        RunFolder(tmp_path / "run", settings.to_config())
    second = run(settings, folder=tmp_path / "run", resume=True)
    assert {name: array.tobytes() for name, array in second.arrays.items()} == {
        name: array.tobytes() for name, array in whole.arrays.items()
    }
    assert read_run(tmp_path / "run").metrics == second.history == whole.history
    assert not (tmp_path / "run" / "state.npz").exists()


def test_a_run_that_is_killed_has_the_state_of_the_last_round_that_it_has_told_of(tmp_path):
    settings = settings_of()

    def kill(number):
        if number == 5:
            os.replace(tmp_path / "run" / "state.npz", tmp_path / "kept.npz")
            raise MemoryError

    with pytest.raises(MemoryError):
        run(settings, folder=tmp_path / "run", on_round=kill)
    assert RunFolder(tmp_path / "run", settings.to_config(), resume=True).read().metrics[-1]["round"] == 5
    # What was there in that moment, and not what the error's own save point has left.
    os.replace(tmp_path / "kept.npz", tmp_path / "run" / "state.npz")
    rounds = []
    result = run(settings, folder=tmp_path / "run", resume=True, on_round=rounds.append)
    assert rounds == [5, 6, 7, 8]
    costs = [line["epsilon"] for line in result.history]
    assert costs == [0.0, *(accountant_of(strategy_of(settings)).epsilon(0.5, t, 0.01) for t in range(1, 9))]
