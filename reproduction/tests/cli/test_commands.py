import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from reproduction.claims.definition import load_definition
from reproduction.cli.commands import app
from reproduction.tests import stand_ins

runner = CliRunner()


def call(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


def test_help_has_examples():
    assert "reproduce" in call("--help").output
    for command in ("list", "run", "path", "sweep", "reproduce", "plot", "report"):
        result = call(command, "--help")
        assert result.exit_code == 0
        assert "python -m reproduction " + command in result.output
        for option in ("--seed", "--out"):
            assert option in result.output, (command, option)


def test_help_says_what_the_arguments_are():
    for command, text in (("run", "A problem of"), ("plot", "Run folders"), ("reproduce", "An experiment of")):
        (arguments,) = re.findall(r"─ Arguments ─(.*?)╰", call(command, "--help").output, re.DOTALL)
        assert text in arguments


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    result = call("--version")
    assert result.exit_code == 0
    assert result.output == f"flwr-fco {version('flwr-fco')}\n"


def test_help_does_not_load_the_heavy_parts():
    code = (
        "import sys; from typer.testing import CliRunner; from reproduction.cli.commands import app;"
        "assert CliRunner().invoke(app, ['run', '--help']).exit_code == 0;"
        "print([name for name in ('flwr', 'numba', 'sklearn', 'ray', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_list_names_everything():
    output = call("list").output
    for name in ("FedDualAvg", "centralized", "L1", "Nuclear", "LeastSquares", "lasso-IV", "haxby", "fco-fig12"):
        assert name in output
    assert "gt-fig1" in output


def test_list_has_no_markup_and_says_what_run_accepts(tmp_path):
    from reproduction.problems.baselines import BASELINES
    from reproduction.problems.named import PROBLEMS, load_task
    from reproduction.runs.methods import STRATEGIES

    assert call("list", "--out", tmp_path / "list.md").exit_code == 0
    text = (tmp_path / "list.md").read_text()
    assert "`" not in text
    assert ":class:" not in text
    names = {
        title: re.findall(r"^\| (\S+) \|", part, re.MULTILINE)[1:]
        for title, part in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    by_option = [found for title, found in names.items() if "--strategy" in title]
    assert [name for found in by_option for name in found] == [*STRATEGIES, *BASELINES]
    (problems,) = [found for title, found in names.items() if title.startswith("Problems")]
    assert problems == list(PROBLEMS)
    (regularizers,) = [found for title, found in names.items() if "--set regularizer" in title]
    for name in regularizers:
        load_task("breast-cancer", options={"regularizer": name})


def test_a_run_over_a_graph(tmp_path):
    values = ("mixing=chain", "dimension=30", "num-nonzero=3", "num-clients=4", "num-rounds=20", "plateau=gap")
    chosen = [part for value in values for part in ("--set", value)]
    result = call("run", "sparse-linear-graph", "--strategy", "DFedDAGT", *chosen, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    for metric in ("l1-error", "recovery-error", "gap", "consensus-error", "tracker-norm"):
        assert metric in result.output


def test_list_says_how_large_the_problems_are_and_writes_a_file(tmp_path, monkeypatch):
    from reproduction.problems.named import PROBLEMS, load_task

    few = {name: PROBLEMS[name] for name in ("lasso-small", "breast-cancer", "mnist-l1-ball")}
    monkeypatch.setattr("reproduction.problems.named.PROBLEMS", few)
    monkeypatch.setenv("FLWR_FCO_DATA", str(tmp_path / "nowhere"))
    result = call("list", "--seed", 3, "--out", tmp_path / "new" / "list.md")
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "new" / "list.md").read_text().splitlines()
    sizes = [client.num_examples for client in load_task("breast-cancer", 3).clients]
    (own,) = [line for line in lines if line.startswith("| breast-cancer |")]
    assert f"seed 3: {len(sizes)} clients with {min(sizes)} to {max(sizes)} examples" in own
    (own,) = [line for line in lines if line.startswith("| mnist-l1-ball |")]
    assert "its files are not here" in own
    assert "seed 3" not in call("list").output


def test_report_and_plot_of_one_seed(tmp_path):
    folders = [tmp_path / f"run-{seed}" for seed in (1, 2)]
    for seed, folder in zip((1, 2), folders, strict=True):
        assert call("run", "lasso-small", "--set", "num-rounds=2", "--seed", seed, "--out", folder).exit_code == 0
    result = call("report", *folders, "--seed", 2)
    assert "| run-2 |" in result.output
    assert "| run-1 |" not in result.output
    for command in ("report", "plot"):
        result = call(command, *folders, "--seed", 7)
        assert result.exit_code == 2
        assert "seed=7; these runs have 1, 2" in result.stderr
    pytest.importorskip("matplotlib")
    pictures = []
    for name, extra in (("both", ()), ("one", ("--seed", 2))):
        picture = tmp_path / f"{name}.svg"
        assert call("plot", *folders, "--metric", "f1", "--out", picture, *extra).exit_code == 0
        pictures.append(picture.read_bytes())
    assert pictures[0] != pictures[1]
    result = call("plot", *folders, "--out", tmp_path / "runs.gif2")
    assert result.exit_code == 2
    assert "expected .png" in result.stderr


def test_run_report_and_plot(tmp_path):
    folders = []
    for strategy in ("FedDualAvg", "FedMid"):
        folder = tmp_path / strategy
        result = call(
            "run", "lasso-small", "--strategy", strategy, "--set", "num-rounds=5", "--seed", 3, "--out", folder
        )
        assert result.exit_code == 0, result.output
        assert "recovery-error" in result.output
        folders.append(folder)
    config = json.loads((folders[0] / "config.json").read_text())
    assert (config["seed"], config["num-rounds"]) == (3, 5)
    result = call("report", *folders, "--out", tmp_path / "report.md")
    assert result.exit_code == 0
    assert "| FedMid | lasso-small | FedMid | 3 | 5 |" in (tmp_path / "report.md").read_text()
    pytest.importorskip("matplotlib")
    result = call("plot", *folders, "--metric", "f1", "--out", tmp_path / "f1.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "f1.png").read_bytes()[:4] == b"\x89PNG"
    result = call("plot", *folders, "--metric", "rank")
    assert result.exit_code == 2
    assert "these runs have" in result.stderr


def test_a_baseline_prints_its_certificate(tmp_path):
    result = call("run", "lasso-small", "--strategy", "centralized", "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "duality-gap" in result.output


def test_a_diverged_run_says_so(tmp_path):
    result = call("run", "lasso-small", "--set", "client-lr=5", "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "diverged in round" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "lasso-V"), "expected one of lasso-I"),
        (("run", "lasso-small", "--strategy", "FedSGD"), "CFedDA, "),
        (("run", "lasso-small", "--set", "client-lr"), "expected key=value"),
        (("run", "lasso-small", "--set", "client-lr=fast"), "expected a number"),
        (("run", "lasso-small", "--set", "speed=1"), "unknown key 'speed'"),
        (("run", "lasso-small", "--engine", "mpi"), "expected 'in-process', 'ray' or 'flower'"),
        (("run", "mnist-l1-ball", "--set", "path=/nowhere"), "/nowhere does not exist"),
        (("sweep", "lasso-small", "--strategy", "FedMid", "--rule", "luck"), "expected one of recovery-error"),
        (("sweep", "lasso-small", "--strategy", "FedMid", "--set", "client-lr=uniform(0,1)"), "expected a number"),
        (("reproduce", "fco-fig99"), "fco-fig1, "),
        (("reproduce", "fig*"), "fco-fig1, "),
        (("run", "lasso-small", "--set", "num-rounds=0"), "num-rounds=0; expected a whole number >= 1"),
        (("run", "lasso-small", "--seed", "-1"), "-1"),
        (("list", "--out", "/dev/null/list.md"), "cannot be read or written"),
        (("reproduce", "fco-theorems", "--quick", "--out", "/dev/null/folder"), "name another place with --out"),
        (("report", "/nowhere"), "has no config.json"),
        (("run", "lasso-small", "--set", "num-rounds=1", "--out", "x" * 300), "File name too long"),
        (("plot", "/nowhere", "--out", ""), "no name of a file"),
        (("path", "lasso-small", "--strengths", "99999999999"), "2<=x<=10000"),
    ],
)
def test_bad_input_is_named_and_has_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS, errno.ENOENT])
def test_a_full_or_read_only_disk_is_one_line(reason, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "replace", refuse)
    result = call("list", "--out", tmp_path / "list.md")
    assert result.exit_code == 2
    assert f"list.md cannot be read or written: {os.strerror(reason)}. If results" in result.stderr
    assert "name another place with --out" in result.stderr
    assert "Traceback" not in result.output


def test_a_run_folder_that_cannot_be_made_says_which_option_to_change(tmp_path):
    result = call("run", "lasso-small", "--out", "/dev/null/run")
    assert result.exit_code == 2
    assert "cannot make the run folder /dev/null/run: Not a directory. Give a place by --out" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("run", "laso-I"), "lasso-I"),
        (("run", "lasso-small", "--strategy", "feddualavg"), "FedDualAvg"),
        (("run", "lasso-small", "--set", "strenght=1"), "strength"),
        (("run", "lasso", "--set", "regularizer=l1"), "L1"),
        (("sweep", "lasso-small", "--strategy", "FedMid", "--rule", "recovery_error"), "recovery-error"),
        (("reproduce", "fco-figure3"), "fco-fig3"),
    ],
)
def test_a_typing_error_is_told_what_was_meant(arguments, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"Did you mean {meant}?")


def test_the_help_of_a_sweep_names_every_rule():
    from reproduction.runs.sweep import CRITERIA

    text = " ".join(call("sweep", "--help").output.replace("│", " ").split())
    assert ", ".join(CRITERIA) + "." in text


def test_more_clients_a_round_than_there_are_is_told_how_to_take_all(tmp_path):
    result = call("run", "lasso-small", "--set", "num-clients=1", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "clients-per-round=8, but lasso-small has 1 client; expected at most that, or 0 for all" in result.stderr


def test_a_cluster_that_is_not_there_is_named(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def refuse(**options):
        raise ConnectionError("no answer")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    result = call("sweep", "lasso-small", "--strategy", "FedMid", "--engine", "ray", "--out", tmp_path)
    assert result.exit_code == 2
    assert "RAY_ADDRESS=10.0.0.1:6379: no answer; expected a running cluster" in result.stderr


def test_long_work_shows_how_far_it_is(tmp_path):
    one = ("--set", "num-rounds=3", "--set", "client-lr=0.01")
    commands = [
        (("run", "lasso-small", *one), "3/3"),
        (("run", "lasso-small", "--strategy", "local"), "200/200"),
        (("sweep", "lasso-small", "--strategy", "FedMid", "--engine", "in-process", *one), "1/1"),
        (("reproduce", "fco-theorems", "--quick"), "2/2"),
    ]
    for number, (command, last) in enumerate(commands):
        assert last in call(*command, "--out", tmp_path / f"loud-{number}").stderr
        quiet = call(*command, "--out", tmp_path / f"quiet-{number}", "--quiet")
        assert quiet.exit_code == 0
        assert quiet.stderr == ""


def test_other_settings_have_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for extra in ((), ("--set", "server-lr=0.5"), ("--set", "server-lr=0.25"), ("--seed", 1)):
        result = call("run", "lasso-small", "--set", "num-rounds=2", *extra)
        assert result.exit_code == 0, result.stderr
    assert len(list(Path("runs").iterdir())) == 4
    result = call("run", "lasso-small", "--set", "server-lr=0.5", "--set", "num-rounds=2")
    assert result.exit_code == 2
    assert "--resume" in result.stderr
    assert call("run", "lasso-small", "--set", "server-lr=0.5", "--set", "num-rounds=2", "--resume").exit_code == 0


def test_a_run_that_cannot_be_set_up_leaves_no_folder(tmp_path):
    result = call("run", "lasso-small", "--set", "clients-per-round=99", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_keeps_what_was_done_and_resume_goes_on(tmp_path):
    settings = ("--set", "num-rounds=300", "--set", "objective-every=100")
    command = [sys.executable, "-m", "reproduction", "run", "lasso-small", *settings]
    place = tmp_path / "run"
    process = subprocess.Popen([*command, "--out", place], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not (place / "metrics.jsonl").is_file():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    done = json.loads((place / "status.json").read_text())["exchanges"]
    assert 0 < done < 300
    assert f"Stopped after round {done} of 300" in output
    # The command that it names is the one that goes on.
    (line,) = [
        line
        for line in output.splitlines()
        if line.startswith("python -m reproduction run") and line.endswith("--resume")
    ]
    resumed = call(*line.split()[3:], "--quiet")
    assert resumed.exit_code == 0, resumed.output
    assert call("run", "lasso-small", *settings, "--out", tmp_path / "whole", "--quiet").exit_code == 0
    one, other = (folder / "metrics.jsonl" for folder in (place, tmp_path / "whole"))
    assert one.read_text() == other.read_text()


def test_plot_refuses_to_mix_problems_silently(tmp_path):
    pytest.importorskip("matplotlib")
    for problem in ("lasso-small", "breast-cancer"):
        assert call("run", problem, "--set", "num-rounds=2", "--out", tmp_path / problem).exit_code == 0
    both = (tmp_path / "lasso-small", tmp_path / "breast-cancer", "--out", tmp_path / "both.svg")
    result = call("plot", *both)
    assert result.exit_code == 2
    assert "different problems: lasso-small, breast-cancer" in result.stderr
    assert not (tmp_path / "both.svg").exists()
    assert call("plot", *both, "--overlay").exit_code == 0


def test_plot_names_what_differs_and_what_diverged(tmp_path):
    pytest.importorskip("matplotlib")
    for rate in ("0.01", "0.02", "5"):
        call("run", "lasso-small", "--set", "num-rounds=3", "--set", f"client-lr={rate}", "--out", tmp_path / rate)
    folders = [tmp_path / rate for rate in ("0.01", "0.02", "5")]
    assert call("plot", *folders, "--out", tmp_path / "runs.svg").exit_code == 0
    svg = (tmp_path / "runs.svg").read_text()
    for text in ("FedDualAvg, client-lr=0.01<", "FedDualAvg, client-lr=0.02<", "client-lr=5 (diverged in round"):
        assert text in svg


def test_one_run_that_failed_does_not_keep_the_others_from_being_shown(tmp_path):
    call("run", "lasso-small", "--set", "num-rounds=2", "--quiet", "--out", tmp_path / "good")
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "config.json").write_text((tmp_path / "good" / "config.json").read_text())
    result = call("report", tmp_path / "failed", tmp_path / "good")
    assert result.exit_code == 0, result.stderr
    assert "| good | lasso-small |" in result.stdout
    assert "failed is left out: its run ended before it had results" in result.stderr
    # Alone, or where it is no run at all, it is an error.
    for folder in ("failed", "other"):
        assert call("report", tmp_path / folder).exit_code == 2
    assert call("report", tmp_path / "other", tmp_path / "good").exit_code == 2


def test_report_writes_text_or_a_page(tmp_path):
    pytest.importorskip("matplotlib")
    assert call("run", "lasso-small", "--set", "num-rounds=2", "--out", tmp_path / "run").exit_code == 0
    assert "| run |" in call("report", tmp_path / "run").output
    assert "| run |" in call("report", tmp_path / "run", "--format", "text").output
    for extra in ((), ("--format", "html")):
        page = tmp_path / f"{len(extra)}.html"
        result = call("report", tmp_path / "run", "--out", page, *extra)
        assert result.exit_code == 0, result.output
        assert page.read_text().startswith("<!DOCTYPE html>")
    assert call("report", tmp_path / "run", "--format", "word").exit_code == 2


def test_missing_matplotlib_is_said_before_the_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.pictures.report.find_spec", lambda name: None)
    ran = []
    monkeypatch.setattr("reproduction.runs.sweep.run_sweep", lambda *a, **k: ran.append("sweep"))
    monkeypatch.setattr("reproduction.claims.reproduction._do", lambda job: ran.append("job"))
    for command in (
        ("sweep", "lasso-small", "--strategy", "FedMid", "--set", "client-lr=1,2", "--set", "server-lr=1,2"),
        ("reproduce", "fco-theorems", "--quick"),
    ):
        result = call(*command, "--out", tmp_path / "out")
        assert result.exit_code == 2
        assert "pip install matplotlib" in result.stderr
    assert ran == []


def test_data_that_are_not_there_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    for problem, hint in (("mnist-l1-ball", "--set source=openml"), ("haxby", "--set fetch=true")):
        result = call("run", problem)
        assert result.exit_code == 2
        for text in ("--set path=DIRECTORY", "FLWR_FCO_DATA", hint):
            assert text in result.stderr
        assert "shared" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_is_not_overwritten(tmp_path):
    assert call("run", "lasso-small", "--set", "num-rounds=2", "--out", tmp_path).exit_code == 0
    result = call("run", "lasso-small", "--set", "num-rounds=2", "--out", tmp_path)
    assert result.exit_code == 2
    assert "holds a run already" in result.stderr


def test_sweep_writes_table_best_and_heat_maps(tmp_path):
    pytest.importorskip("matplotlib")
    result = call(
        *("sweep", "lasso-small", "--strategy", "FedDualAvg", "--strategy", "FedMid"),
        *("--set", "client-lr=0.01,5", "--set", "server-lr=0.5,1", "--set", "num-rounds=10"),
        *("--engine", "in-process", "--out", tmp_path),
    )
    assert result.exit_code == 0, result.output
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert sum(row["diverged"] != "0" for row in rows) == 4
    best = json.loads((tmp_path / "best.json").read_text())
    smallest = min((row for row in rows if row["strategy"] == "FedMid"), key=lambda row: float(row["score"]))
    assert best["FedMid"]["settings"]["server-lr"] == float(smallest["server-lr"])
    assert (tmp_path / "heat-map-FedMid.png").stat().st_size > 5_000


def test_reproduce_quick_fails_when_its_claim_does(tmp_path, monkeypatch):
    result = call("reproduce", "fco-theorems", "--quick", "--out", tmp_path / "good")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "good" / "verdicts.md").is_file()
    from reproduction.claims import rules

    monkeypatch.setattr(
        "reproduction.claims.reproduction.RULES",
        {**rules.RULES, "decays": lambda outcomes, **arguments: rules.Measurement([0.0], False, "nothing")},
    )
    assert call("reproduce", "fco-theorems", "--quick", "--out", tmp_path / "good").exit_code == 1


def test_reproduce_all_skips_what_has_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.claims.definition.EXPERIMENTS", ("fco-fig13", "fco-theorems"))
    monkeypatch.setenv("FLWR_FCO_DATA", str(tmp_path / "nowhere"))
    result = call("reproduce", "all", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "fco-fig13 skipped" in result.output
    assert (tmp_path / "fco-theorems" / "verdicts.md").is_file()
    assert call("reproduce", "fco-fig13", "--quick", "--out", tmp_path / "one").exit_code == 2


def test_reproduce_all_skips_what_needs_pytorch_where_it_is_missing(tmp_path, monkeypatch):
    from reproduction import problems

    monkeypatch.setattr("reproduction.claims.definition.EXPERIMENTS", ("fco-fig15", "spp-fig8"))
    for name in [name for name in sys.modules if name.startswith(("flwr_fco.torch", "reproduction.problems.networks"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(problems, "networks", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.optim", None)
    result = call("reproduce", "all", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for name in ("fco-fig15", "spp-fig8"):
        assert f"{name} skipped: flwr_fco.torch needs PyTorch: pip install torch" in result.output
    assert call("reproduce", "spp-fig8", "--quick", "--out", tmp_path / "one").exit_code == 2


@pytest.fixture
def fresh_tasks():
    """Forget the tasks of stand-ins, before and after."""
    from reproduction.problems import named as problems

    problems._load.cache_clear()
    yield
    problems._load.cache_clear()


def test_femnist_drives_a_figure(tmp_path, monkeypatch, fresh_tasks):
    hub = stand_ins.install_flwr_datasets(monkeypatch, [[number % 10 for number in range(12)]] * 6)
    monkeypatch.chdir(tmp_path)
    command = ("reproduce", "fco-fig13", "--quick", "--set", "problem=femnist", "--set", "num-clients=5")
    command = (*command, "--set", "clients-per-round=3")
    hub.unreachable = True
    refused = call(*command)
    assert refused.exit_code == 2
    assert "--set fetch=true" in refused.stderr
    hub.unreachable = False
    result = call(*command, "--set", "fetch=true")
    assert result.exit_code == 0, result.output + result.stderr
    folder = tmp_path / "results" / "fco-fig13-quick_problem=femnist_num-clients=5_clients-per-round=3_fetch=true"
    page = (folder / "verdicts.md").read_text()
    given = "problem=femnist, num-clients=5, clients-per-round=3, fetch=true"
    assert f"(quick) (set: {given})" in page.splitlines()[0]
    assert f"not those of the definition: {given} in every run" in page
    assert "Problem femnist, seeds 0, 1" in page
    assert (folder / "figure.png").stat().st_size > 10_000
    runs = [json.loads(file.read_text()) for file in sorted((folder / "runs").iterdir())]
    quick = load_definition("fco-fig13").quick_version()
    assert len(runs) == len(quick.runs) * len(quick.seeds)
    for kept in runs:
        settings = kept["settings"]
        assert (settings["problem"], settings["fetch"], settings["num-clients"]) == ("femnist", True, 5)
        assert (settings["num-rounds"], settings["local-epochs"]) == (quick.runs[0].settings["num-rounds"], 10)
        assert "num-examples" not in settings
        assert kept["history"][-1]["norm"] <= 1000.001


def test_fetched_haxby_drives_a_figure(tmp_path, monkeypatch, fresh_tasks):
    """The paper's split and its 20 of 59 sessions a round."""
    pytest.importorskip("nibabel")
    stand_ins.write_all_of_haxby(tmp_path)
    asked = stand_ins.install_nilearn(monkeypatch, tmp_path)
    given = ("fetch=true", "num-held-out=12", "split=5", "clients-per-round=20", "num-rounds=5", "objective-every=5")
    assignments = [part for text in given for part in ("--set", text)]
    result = call("reproduce", "fco-fig5", "--quick", "--out", tmp_path / "out", *assignments)
    assert result.exit_code == 0, result.output + result.stderr
    assert all(own["subjects"] == [1, 2, 3, 4, 5, 6] for own in asked)
    assert asked
    page = (tmp_path / "out" / "verdicts.md").read_text()
    assert "(set: " + ", ".join(given) + ")" in page.splitlines()[0]
    # The baseline saw the same data.
    for label in ("centralized", "feddualavg-0.1-10"):
        kept = json.loads((tmp_path / "out" / "runs" / f"{label}-seed-1.json").read_text())
        assert {key: kept["settings"][key] for key in ("fetch", "num-held-out", "split")} == {
            "fetch": True,
            "num-held-out": 12,
            "split": 5,
        }
        assert kept["history"][-1]["accuracy"] > 0.9


def test_fetching_can_be_asked_for_in_a_run_and_a_sweep(tmp_path, monkeypatch, fresh_tasks):
    pytest.importorskip("nibabel")
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    stand_ins.write_all_of_haxby(tmp_path)
    asked = stand_ins.install_nilearn(monkeypatch, tmp_path)
    for command in (
        ("run", "haxby", "--strategy", "FedMid"),
        ("sweep", "haxby", "--strategy", "FedMid", "--engine", "in-process", "--rule", "validation-objective"),
        ("reproduce", "fco-fig5", "--quick"),
    ):
        one = (*command, "--set", "num-rounds=2", "--out", tmp_path / command[0])
        before = len(asked)
        refused = call(*one)
        assert refused.exit_code == 2
        assert "--set fetch=true" in refused.stderr
        assert len(asked) == before
        result = call(*one, "--set", "fetch=true", "--set", "num-held-out=12")
        # A quick claim may fail after two rounds.
        assert result.exit_code == 0 or command[0] == "reproduce", result.output + result.stderr
        assert len(asked) > before or command[0] == "sweep"


def test_listing_what_there_is_downloads_nothing(monkeypatch, fresh_tasks):
    from reproduction.problems import named as problems

    def refuse(*given, **options):
        raise AssertionError(given)

    for name in ("nilearn.datasets", "flwr_datasets"):
        fetcher = {"nilearn.datasets": "fetch_haxby", "flwr_datasets": "FederatedDataset"}[name]
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{fetcher: refuse}))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", refuse)
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    wanted = {name: problems.PROBLEMS[name] for name in ("haxby", "femnist", "mnist-l1-ball", "logistic-mnist")}
    monkeypatch.setattr(problems, "PROBLEMS", wanted)
    result = call("list", "--seed", 0)
    assert result.exit_code == 0, result.output
    assert result.output.count("its files are not here") == 4


def test_reproduce_refuses_what_a_run_would_and_a_folder_of_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, message in (
        ("alpha=1", "unknown key 'alpha'; lasso-small with FedDualAvg has"),
        ("num-rounds", "expected key=value"),
        ("problem=lasso-V", "problem='lasso-V'; expected one of"),
    ):
        result = call("reproduce", "fco-theorems", "--quick", "--set", given)
        assert result.exit_code == 2
        assert message in result.stderr
    # Of a pattern all are looked at before the first is run.
    monkeypatch.setattr("reproduction.claims.definition.EXPERIMENTS", ("fco-theorems", "spp-fig4"))
    result = call("reproduce", "all", "--quick", "--set", "num-features=20")
    assert result.exit_code == 2
    assert "unknown key 'num-features'; bilinear-l1 with" in result.stderr
    assert not (tmp_path / "results").exists()
    assert call("reproduce", "fco-theorems", "--quick", "--out", "mine").exit_code == 0
    result = call("reproduce", "fco-theorems", "--quick", "--out", "mine", "--set", "num-rounds=90")
    assert result.exit_code == 2
    assert "mine holds fco-theorems --quick; expected" in result.stderr
    assert "fco-theorems --quick --set num-rounds=90. Give another by --out" in result.stderr


def test_every_choice_of_an_experiment_has_a_folder_of_its_own(tmp_path, monkeypatch):
    from reproduction.cli import reproducing

    folders = []
    monkeypatch.setattr(
        reproducing, "_reproduce", lambda definition, folder, *rest: folders.append(str(folder)) or True
    )
    given = ("--set", "num-rounds=9")
    for extra in ((), ("--quick",), given, ("--quick", *given), ("--out", "x"), ("--out", "x", "--quick", *given)):
        call("reproduce", "fco-fig3", *extra)
        call("reproduce", "fco-fig[3]", *extra)
    assert folders[::2] == [
        "results/fco-fig3",
        "results/fco-fig3-quick",
        "results/fco-fig3_num-rounds=9",
        "results/fco-fig3-quick_num-rounds=9",
        "x",
        "x",
    ]
    assert folders[1::2] == [*folders[:8:2], "x/fco-fig3", "x/fco-fig3_num-rounds=9"]


# By day tests/integration/test_flower_simulation.py runs a strategy in Flower's simulation.
@pytest.mark.slow
@pytest.mark.flower
@pytest.mark.nightly
def test_the_flower_engine_gives_the_same_numbers(tmp_path):
    pytest.importorskip("ray")
    arguments = (
        "run",
        "lasso-small",
        "--set",
        "num-rounds=3",
        "--set",
        "num-clients=4",
        "--set",
        "clients-per-round=2",
    )
    results = [call(*arguments, "--engine", engine, "--out", tmp_path / engine) for engine in ("in-process", "flower")]
    assert [result.exit_code for result in results] == [0, 0], results[1].output
    one, other = (tmp_path / engine / "metrics.jsonl" for engine in ("in-process", "flower"))
    assert one.read_text() == other.read_text()


def test_a_path_leaves_a_table_models_and_a_picture(tmp_path):
    from flwr_fco.models import load_npz

    result = call(
        "path",
        "lasso-small",
        "--strengths",
        4,
        "--set",
        "num-rounds=10",
        "--set",
        "clients-per-round=0",
        "--out",
        tmp_path,
    )
    assert result.exit_code == 0, result.output
    rows = (tmp_path / "path.csv").read_text().splitlines()
    assert len(rows) == 5
    assert "smallest loss" in result.output
    assert load_npz(tmp_path / "best.npz")["coefficients"].shape == (64,)
    assert (tmp_path / "one-standard-error.npz").exists()
    # Another path is not written over it.
    again = call("path", "lasso-small", "--strengths", 3, "--set", "num-rounds=10", "--out", tmp_path)
    assert again.exit_code == 2
    assert "holds a path already; give another folder by --out" in again.stderr
    assert (tmp_path / "path.csv").read_text().splitlines() == rows


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("logistic-convex",), "has no strength"),
        (("lasso-small", "--held-out", "1.5"), "held-out=1.5"),
        (("lasso-small", "--strategy", "centralized"), "is a baseline"),
        (("lasso-small", "--ratio", "2"), "ratio=2.0"),
        (("lasso-small", "--set", "examples-per-client=1", "--set", "clients-per-round=0"), "at least two"),
    ],
)
def test_a_path_that_cannot_be(arguments, reason, tmp_path):
    result = call("path", *arguments, "--out", tmp_path / "path")
    assert result.exit_code == 2
    assert reason in result.output
    assert not (tmp_path / "path").exists()
