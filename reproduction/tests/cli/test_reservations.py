"""--num-cpus and --num-gpus of run, sweep and reproduce."""

import os
import tempfile
import time
from importlib import import_module

import pytest
from typer.testing import CliRunner

from reproduction.cli.commands import app
from reproduction.runs import sweep

COMMANDS = {
    "run": ("run", "lasso-small", "--set", "num-rounds=1"),
    "sweep": ("sweep", "lasso-small", "--strategy", "FedMid", "--set", "num-rounds=1"),
    "reproduce": ("reproduce", "fco-theorems", "--quick"),
}
#: What each of them calls for workers or tasks of Ray's.
CALLED = {
    "run": (import_module("flwr_fco.simulation.simulate"), "RayGrid"),
    "sweep": (sweep, "ray_tasks"),
    "reproduce": (sweep, "ray_tasks"),
}


class Called(Exception):
    """Raised in place of starting Ray."""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("command", "engine"),
    [("run", "in-process"), ("run", "flower"), ("sweep", "processes"), ("reproduce", "in-process")],
)
@pytest.mark.parametrize("option", ["--num-cpus", "--num-gpus"])
def test_only_ray_reserves(command, engine, option, tmp_path):
    out = tmp_path / "out"
    result = call(*COMMANDS[command], "--engine", engine, option, 0.5, "--out", out)
    assert result.exit_code == 2
    assert f"{option} 0.5 with engine='{engine}', which reserves nothing; give --engine ray" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "reserved"),
    [
        (("--num-cpus", 0.5, "--num-gpus", 2), (0.5, 2.0)),
        (("--num-gpus", 0.25), (1.0, 0.25)),
        ((), (1.0, 0.0)),
    ],
)
def test_ray_reserves_what_is_given(command, options, reserved, tmp_path, monkeypatch):
    def nodes(app, number, *, num_cpus, num_gpus, **options):
        raise Called(num_cpus, num_gpus)

    def tasks(number, num_cpus, num_gpus):
        raise Called(num_cpus, num_gpus)

    monkeypatch.setattr(*CALLED[command], nodes if command == "run" else tasks)
    result = call(*COMMANDS[command], "--engine", "ray", *options, "--out", tmp_path)
    assert isinstance(result.exception, Called), result.output
    assert result.exception.args == reserved


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("reserved", [("--num-cpus", -1), ("--num-gpus", "nan"), ("--num-gpus", 1.5)])
def test_what_ray_cannot_reserve_is_named(command, reserved, tmp_path):
    result = call(*COMMANDS[command], "--engine", "ray", *reserved, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert str(reserved[1]) in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_both(command):
    text = call(command, "--help").output
    assert "--num-cpus" in text
    assert "--num-gpus" in text


def test_tasks_that_reserve_nothing_are_refused(tmp_path):
    result = call(*COMMANDS["sweep"], "--engine", "ray", "--num-cpus", 0, "--out", tmp_path)
    assert result.exit_code == 2
    assert "num_cpus=0 and num_gpus=0 leave room for all tasks at a time" in result.stderr


def meet(folder, others):
    """Wait for as many tasks as may run at a time: a busy machine starts its workers seconds apart."""
    began = time.time()
    tempfile.mkstemp(dir=folder)
    while len(os.listdir(folder)) < others and time.time() < began + 60.0:
        time.sleep(0.1)
    time.sleep(1.0)
    return began, time.time()


# By day the sweep below starts Ray with the same tasks.
@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("num_cpus", [0.25, 3.0])
def test_workers_are_tasks_at_a_time_whatever_each_reserves(num_cpus, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with sweep.ray_tasks(3, num_cpus, 0.0) as (ray, task):
        spans = ray.get([task(meet).remote(str(tmp_path), 3) for _ in range(7)])
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) == 3


@pytest.mark.flower
@pytest.mark.slow
# `reproduce` calls for the tasks of `sweep`; tests/simulation/test_workers.py runs the actors of `run`.
@pytest.mark.parametrize(
    "command", ["sweep", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("run", "reproduce"))]
)
def test_ray_runs_with_a_reservation_and_refuses_one_that_is_not_there(command, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    one = (*COMMANDS[command], "--engine", "ray", "--workers", 2, "--num-cpus", 0.5)
    result = call(*one, "--out", tmp_path / "half")
    assert result.exit_code == 0, result.output + result.stderr
    result = call(*one, "--num-gpus", 64, "--out", tmp_path / "many")
    assert result.exit_code == 2, result.output
    assert "num_gpus=64: no machine of the cluster has that much" in result.stderr
