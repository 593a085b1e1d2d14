"""What a user types or a disk gives back: settings, command lines, run folders, checkpoints."""

import json
import shutil

import numpy as np
import pytest
from fuzz.budget import NUMBERS, VALUES, WORDS, damaged, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from problems import app_of, clients, start_arrays
from typer.testing import CliRunner

from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import FedDAGT
from reproduction.cli.commands import app
from reproduction.problems.named import PROBLEMS
from reproduction.runs.methods import STRATEGIES, option_names
from reproduction.runs.recorder import build_strategy
from reproduction.runs.run_folder import RunFolder, read_run
from reproduction.runs.settings import RunSettings, parse_assignments, parse_value
from reproduction.runs.sweep import expand_axes, parse_axis, read_trials

SMALL = ("lasso-small", "digits", "breast-cancer")
RUN_KEYS = [name.replace("_", "-") for name in RunSettings.__dataclass_fields__]


@st.composite
def assignments(draw):
    problem = draw(st.sampled_from(sorted(PROBLEMS)))
    strategy = draw(st.sampled_from(sorted(STRATEGIES)))
    options = [name.replace("_", "-") for name in option_names(strategy)]
    keys = [*RUN_KEYS, *PROBLEMS[problem].options(), *options]
    names = st.one_of(st.sampled_from(keys), WORDS)
    return problem, strategy, draw(st.dictionaries(names, VALUES, max_size=4)), draw(NUMBERS)


@fuzzed(0.06)
@given(assignments())
def test_settings(case):
    problem, strategy, values, seed = case
    try:
        settings = RunSettings.of(problem, strategy, values, seed)
        build = settings.problem in SMALL and not settings.problem_options
        if build:
            build_strategy(settings, 16, settings.load().regularizer)
    except FlwrFcoError:
        return
    assert isinstance(settings.seed, int)
    assert settings.num_rounds >= 1
    config = settings.to_config()
    assert RunSettings.from_config(json.loads(json.dumps(config))).to_config() == config or "NaN" in json.dumps(config)


TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["nan", "inf", "-inf", "1e400", "true", "{}", "[1]", "'", '"', "1,2", "uniform(1,2)", "9" * 30]),
    NUMBERS.map(str),
)


@fuzzed(0.02)
@given(st.lists(st.text(max_size=20), max_size=4), WORDS, TEXTS)
def test_assignments_and_axes(texts, key, text):
    for function in (lambda: parse_assignments(texts), lambda: expand_axes({key: parse_axis(key, text)})):
        try:
            function()
        except ConfigurationError:
            continue
    parse_value(text)


@fuzzed(0.03)
@given(st.data())
def test_command_lines(data):
    values = [
        f"{data.draw(st.sampled_from([*RUN_KEYS, 'strength', 'output', 'x']))}={data.draw(TEXTS)}"
        for _ in range(data.draw(st.integers(0, 2)))
    ]
    command = data.draw(
        st.one_of(
            st.just(["run", "lasso-small", "--set", "num-rounds=1", "--quiet", "--out", "/dev/null/nowhere"]),
            st.tuples(st.sampled_from(["run", "sweep", "report", "plot", "reproduce", "list"]), TEXTS).map(list),
        )
    )
    words = [*command, *(part for value in values for part in ("--set", value))]
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), words
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "run"
    run = RunFolder(path, {"seed": 3, "problem": "digits", "strategy": "FedDualAvg"})
    for number in range(3):
        run.add({"round": number, "objective": 0.5**number})
    run.save_model({"coefficients": np.arange(6.0), "intercept": np.zeros(1)})
    run.save_left_out([FakeRow()])
    return path


class FakeRow:
    round, node_id, partition_id, reason, kind = 2, 17, None, 'said "x", then nothing', "train"


@fuzzed(0.05)
@given(st.data())
def test_run_folders(folder, data):
    copy = folder.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    name = data.draw(st.sampled_from(sorted(path.name for path in copy.iterdir())))
    if name.endswith(("json", "jsonl")) and data.draw(st.booleans()):
        (copy / name).write_text("\n".join(json.dumps(data.draw(VALUES)) for _ in range(2)), encoding="utf-8")
    else:
        (copy / name).write_bytes(data.draw(damaged((folder / name).read_bytes())))
    try:
        record = read_run(copy)
    except ConfigurationError:
        assert CliRunner().invoke(app, ["report", str(copy)]).exit_code == 2
        return
    assert all(array.dtype.kind in "fiub" for array in record.arrays.values())
    result = CliRunner().invoke(app, ["report", str(copy)])
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)


@fuzzed(0.02)
@given(st.data())
def test_sweep_folders(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "trials"
    path.mkdir(exist_ok=True)
    trial = {"settings": {"strategy": "FedMid"}, "score": 0.1, "diverged": 0, "rounds": 3, "seconds": 0.1}
    trial |= {"mean": {"f1": 0.5}, "last": {}}
    good = json.dumps(trial) + "\n"
    (path / "trials.jsonl").write_text(good)
    assert read_trials(path) == [trial]
    (path / "trials.jsonl").write_bytes(data.draw(damaged(good.encode() * 3)))
    try:
        read_trials(path)
    except ConfigurationError:
        return


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "run.npz"
    strategy, options = FedDAGT(client_lr=0.02, seed=3, fraction_evaluate=0.0), {"num_nodes": 4, "num_rounds": 2}
    options |= {"initial_arrays": start_arrays(), "callbacks": [Checkpoint(path)], "progress": False}
    simulate(strategy, app_of(clients()), **options)
    return path


@fuzzed(0.03)
@given(st.data())
def test_checkpoints(checkpoint, data):
    """A damaged one is an error in words, or goes on as what it says."""
    copy = checkpoint.with_name("copy.npz")
    copy.write_bytes(data.draw(damaged(checkpoint.read_bytes())))
    strategy = FedDAGT(client_lr=0.02, seed=3, fraction_evaluate=0.0)
    options = {"num_nodes": 4, "num_rounds": 2, "initial_arrays": start_arrays(), "progress": False}
    try:
        simulate(strategy, app_of(clients()), resume=copy, **options)
    except ConfigurationError:
        return
    assert strategy.state.round == 2
