"""The root Flower App in this process: its ServerApp and its ClientApp on an in-process grid."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from problems import nightly, refused

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.errors import ConfigurationError, UnknownOptionError
from flwr_fco.models import load_npz
from flwr_fco.simulation import InProcessGrid
from main_job import client_app, server_app
from main_job.compare import RUNS, centralised, draw, main, model_of, read_task, train
from main_job.run_config import KEYS, checked_config
from main_job.task import PROBLEMS, Task

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
SETTINGS = PYPROJECT["tool"]["flwr"]["app"]["config"]
CONFIG = {**SETTINGS, "num-server-rounds": 4, "num-nodes": 3}
TRUTH = ("precision", "recall", "f1", "recovery-error")
#: Of classifications, and of a regression whose truth is known.
SCORES = ({"objective", "density", "accuracy", "validation-loss"}, {"objective", "density", *TRUTH})
LASSO = {"problem": "lasso", "client-lr": 0.0001, "server-lr": 1.0, "strength": 0.2, "batch-size": 64}


def run(overrides, num_nodes=3):
    config = {**CONFIG, **overrides}
    grid = InProcessGrid(client_app.app, num_nodes, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    # As `simulate` does: each message would look for the BLAS libraries again.
    with grid.identity(), single_threaded_blas():
        server_app.app(grid, context)
    return grid


def only_run(directory):
    """Return config, lines and model of the one run in a directory."""
    (folder,) = directory.iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "config.json").read_text()), lines, load_npz(folder / "model.npz")


def evaluated(line):
    return {name.removeprefix("server/"): value for name, value in line.items() if name.startswith("server/")}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_runs_and_leaves_its_folder(tmp_path, problem):
    own = LASSO if problem == "lasso" else {"problem": problem, "server-lr": 1.0}
    grid = run({**own, "output-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    assert str(grid.run_id) in folder.name
    config, lines, _ = only_run(tmp_path)
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert set(evaluated(lines[-1])) == SCORES[problem == "lasso"]
    assert lines[-1]["server/objective"] < lines[0]["server/objective"]
    assert config["problem"] == problem


def test_the_app_is_simulate_to_the_bit_and_its_last_line_is_the_models(tmp_path):
    run({"output-dir": str(tmp_path), "seed": 5})
    result = train(Task(checked_config({**CONFIG, "seed": 5})))
    config, lines, arrays = only_run(tmp_path)
    for name, array in model_of(result).items():
        np.testing.assert_array_equal(array, arrays[name])
    for line in lines:
        assert evaluated(line) == dict(result.evaluate_metrics_serverapp[line["round"]])
    scores = Task(config).scores(arrays)
    assert evaluated(lines[-1]) == scores
    assert scores["density"] == np.mean(arrays["coefficients"] != 0)
    # 650 float64, each way, for 3 nodes.
    assert lines[-1]["train/bytes-up"] == lines[-1]["train/bytes-down"] == 3 * 650 * 8


def test_a_private_run_tells_epsilon_and_not_how_many_bytes_have_come(tmp_path):
    pytest.importorskip("dp_accounting")
    run({"output-dir": str(tmp_path), "privacy-clip": 0.3, "privacy-target-epsilon": 8.0, "privacy-delta": 0.05})
    _, lines, _ = only_run(tmp_path)
    assert not any("bytes" in name or "replies" in name for line in lines for name in line)
    assert [line["train/delta"] for line in lines] == [0.05] * 4
    assert 7.9 < lines[-1]["train/epsilon"] <= 8.0


def test_a_small_federation_will_do_and_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("main_job.server_app.wait_for_nodes.__defaults__", (0.0,))
    with caplog.at_level("WARNING", logger="flwr"):
        run({"output-dir": str(tmp_path), "num-nodes": 10}, num_nodes=2)
    assert "num-nodes=10, but this federation has 2 nodes" in caplog.text
    assert "num-supernodes=10" in caplog.text
    assert only_run(tmp_path)[0]["num-nodes"] == 2


def test_the_run_waits_for_nodes_that_connect_late():
    counts = iter([1, 2, 3, 4])

    class Grid:
        def get_node_ids(self):
            return range(next(counts))

    assert server_app.wait_for_nodes(Grid(), 4, patience=30.0) == 4
    assert list(counts) == []


# --- saved runs -------------------------------------------------------------------------------------------------------


def run_in(folder, overrides=()):
    """Run FedDAGT, whose clients remember something; return the lines and the model."""
    run({"strategy": "FedDAGT", "output-dir": str(folder), **dict(overrides)})
    return only_run(folder)[1:]


def test_a_second_run_goes_on_with_the_first_of_the_same_data(tmp_path):
    lines, arrays = run_in(tmp_path / "whole")
    saved = {"checkpoint-dir": str(tmp_path / "saved"), "resume": True}
    # The first finds nothing to go on with, and begins.
    run_in(tmp_path / "first", {**saved, "num-server-rounds": 2})
    file = tmp_path / "saved" / "FedDAGT-digits-0.npz"
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match=r"other data: alpha=0\.5 \(was 0\.3\); resume with those"):
        run_in(tmp_path / "other", {**saved, "alpha": 0.5})
    assert file.read_bytes() == before
    more, second = run_in(tmp_path / "second", saved)
    assert [line["round"] for line in more] == [1, 2, 3, 4]
    assert more == lines
    for name, array in arrays.items():
        np.testing.assert_array_equal(second[name], array)
    refused("resume=true needs checkpoint-dir", run_in, tmp_path / "runs", {"resume": True})


# --- run configs ------------------------------------------------------------------------------------------------------


def task_of(num_nodes=None, **overrides):
    own = {key.replace("_", "-"): value for key, value in overrides.items()}
    return Task(checked_config({**SETTINGS, **own}), num_nodes)


def described(task):
    """Return all that a run depends on, as text."""
    strategy = task.strategy()
    seen = [type(strategy).__name__, repr(strategy), strategy.seed, strategy.fraction_train, task.regularizer]
    first = task.data.client(0)
    return repr([*seen, task.data.num_clients, first.features.shape, np.asarray(first.features).sum()])


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_key_reaches_the_run(name):
    """Each key, changed alone, changes data or strategy, but for those that the problem has no use for."""
    other = {"strategy": "FedMid", "regularizer": "Zero"}
    other |= dict.fromkeys(("strength", "client-lr", "server-lr", "alpha", "train-fraction"), 0.7)
    other |= dict.fromkeys(("batch-size", "local-steps", "num-nodes", "clients-per-round", "seed"), 7)
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
    refused("delta=0", task_of(privacy_clip=0.3).strategy)
    refused("privacy", task_of(**private, strategy="DualFL").strategy, kind=UnknownOptionError)


def test_the_data_are_split_over_the_nodes_that_there_are():
    assert task_of(4).data.num_clients == 4
    assert task_of(4).strategy().min_train_nodes == 4
    refused("clients-per-round=5, but there are 4 nodes", task_of(4, clients_per_round=5).strategy)


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
        refused(f"(?s){key}.*{said}", checked_config, {**SETTINGS, key: value})


def test_a_missing_and_an_unknown_key_are_named():
    with pytest.raises(ConfigurationError, match="lacks alpha, seed"):
        checked_config({key: value for key, value in SETTINGS.items() if key not in ("seed", "alpha")})
    refused("unknown key 'client-rate'", checked_config, {**SETTINGS, "client-rate": 0.1})


# --- the comparison that `make run` prints --------------------------------------------------------------------------


def test_the_runs_differ_in_the_strategy_and_its_rates_only(request):
    configs = [read_task(request.config.rootpath, overrides).config for overrides in RUNS]
    assert [config["strategy"] for config in configs] == ["FedDualAvg", "FedAvgSubgradient", "FedNewton"]
    same = [{**config, **dict.fromkeys(("strategy", "client-lr", "server-lr"))} for config in configs]
    assert same[0] == same[1] == same[2]
    # A sample of nodes is not for FedNewton.
    assert read_task(request.config.rootpath, {"clients-per-round": 2, **RUNS[2]}).strategy().fraction_train == 1.0
    refused("strength > 0", centralised, read_task(request.config.rootpath, {"strength": 0.0}))


@pytest.mark.parametrize("name", [*nightly("picture.png"), "PICTURE.PNG"])
def test_the_picture_is_drawn(tmp_path, name):
    rounds = {r: {"objective": 1.0 / (r + 1), "accuracy": r / 10, "density": 1.0 - r / 10} for r in range(10)}
    draw({"FedDualAvg": rounds, "FedAvgSubgradient": rounds}, rounds[9], tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_no_known_kind_is_refused_before_anything_runs(tmp_path, capsys):
    refused("2", main, ["--picture", "x.xyz"], kind=SystemExit)
    assert "--picture x.xyz: expected a name that ends in .png, .svg, .pdf" in capsys.readouterr().err
    # The clone is read later: the name is not refused.
    assert main(["--picture", "X.PNG", "--root", "no such clone", "--directory", str(tmp_path)]) == 1


def test_another_directory_than_the_clone_is_refused(tmp_path, capsys):
    assert main(["--root", str(tmp_path)]) == 1
    assert "pyproject.toml does not exist" in capsys.readouterr().err
    for content in ("", "x", "[tool.flwr.app]\nconfig = 3\n"):
        (tmp_path / "pyproject.toml").write_text(content)
        refused(r"pyproject\.toml is not the root app's", read_task, tmp_path, {})
