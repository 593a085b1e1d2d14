"""Runs by Flower: what is settled before anything is submitted. The runs themselves are in cli/test_commands.py."""

from pathlib import Path

import pytest

from reproduction.data import DataNotFoundError
from reproduction.runs.flower import _with_absolute_path
from reproduction.runs.settings import RunSettings


def path_of(problem, **options):
    return _with_absolute_path(RunSettings.of(problem, "FedDualAvg", options)).problem_options.get("path")


def test_files_are_found_from_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_FCO_DATA", "data")
    for name in ("mnist", "haxby-slice"):
        Path("data", name).mkdir(parents=True)
    assert path_of("mnist-l1-ball") == path_of("logistic-mnist") == str(tmp_path / "data" / "mnist")
    assert path_of("haxby") == str(tmp_path / "data" / "haxby-slice")
    assert path_of("haxby", path="data") == str(tmp_path / "data")
    assert path_of("lasso-small") is None


def test_what_is_fetched_needs_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    assert path_of("haxby", fetch=True) is None
    assert path_of("mnist-l1-ball", source="openml") is None
    assert path_of("haxby", fetch=True, path="kept") == str(tmp_path / "kept")
    with pytest.raises(DataNotFoundError):
        path_of("haxby")
