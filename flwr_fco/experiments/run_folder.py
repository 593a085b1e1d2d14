"""What a run leaves behind: its config, a line of JSON for each evaluated round, the final model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["RunFolder", "RunRecord", "read_run"]

_CONFIG, _METRICS, _MODEL = "config.json", "metrics.jsonl", "model.npz"


class RunFolder:
    """Writes ``config.json`` at once, ``metrics.jsonl`` line by line and ``model.npz`` at the end.

    Parameters
    ----------
    path : Path
        The folder; created with its parents. It must not hold a run already.
    config : mapping
        The run's settings.

    Raises
    ------
    ConfigurationError
        If the folder cannot be made, or holds a run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"output-dir: cannot make the run folder {path}: {error}. Give a directory that the user who started "
                "the SuperLink may write to"
            ) from error
        if (path / _CONFIG).exists():
            raise ConfigurationError(f"the run folder {path} holds a run already; give another output-dir")
        self.path = path
        (path / _CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics; it is on disk when this returns, so a killed run keeps its history."""
        with (self.path / _METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def save_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the primal model under the user's names."""
        with (self.path / _MODEL).open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]


class RunRecord(NamedTuple):
    """A run that was read back.

    Parameters
    ----------
    config : dict
        The run's settings.
    metrics : list of dict
        One for each evaluated round.
    arrays : dict of str to ndarray
        The final model.
    """

    config: dict[str, Any]
    metrics: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ConfigurationError
        If the run did not finish: a file is missing.
    """
    for name in (_CONFIG, _METRICS, _MODEL):
        if not (path / name).is_file():
            raise ConfigurationError(f"{path} has no {name}; expected the folder of a run that finished")
    with np.load(path / _MODEL, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    lines = (path / _METRICS).read_text(encoding="utf-8").splitlines()
    config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    return RunRecord(config, [json.loads(line) for line in lines], arrays)
