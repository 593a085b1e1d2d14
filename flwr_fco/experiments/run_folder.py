"""What a run leaves behind: its config, a line of JSON for each evaluated round, the final model.

A run of ``flwr-fco run`` writes more: ``exchanges.jsonl`` (a line for each communication: bytes, replies left out,
where the time went), ``support.npz`` (which coefficients were not zero, over the rounds) and ``status.json`` (how far
it is). Until it has finished there is the strategy's state too, from which ``--resume`` goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["RunFolder", "RunRecord", "RunStatus", "SupportHistory", "read_run"]

_CONFIG, _METRICS, _MODEL = "config.json", "metrics.jsonl", "model.npz"
_EXCHANGES, _SUPPORT, _STATUS = "exchanges.jsonl", "support.npz", "status.json"


class RunStatus(NamedTuple):
    """How far a run is.

    Parameters
    ----------
    exchanges : int, default 0
        Communications that are done and kept.
    finished : bool, default False
        Whether nothing is left to do: all rounds are done, or the run has diverged.
    diverged : int, default 0
        The round in which the run was cut; 0 if it was not.
    seconds : float, default 0.0
        Of the rounds, without loading the data.
    state : str, default ""
        Name of the file with the strategy's state, if there is one to go on from.
    """

    exchanges: int = 0
    finished: bool = False
    diverged: int = 0
    seconds: float = 0.0
    state: str = ""


class SupportHistory(NamedTuple):
    """Which coefficients were not zero, over the rounds.

    Parameters
    ----------
    rounds : ndarray, shape (n,)
    share : ndarray of float32, shape (n, cells)
        Share of the coefficients of a cell that are not zero; a cell is one coefficient, or neighbours of which the
        array has too many to show each.
    """

    rounds: NDArray[np.int64]
    share: NDArray[np.float32]


class RunFolder:
    """Writes ``config.json`` at once, ``metrics.jsonl`` line by line and ``model.npz`` at the end.

    Parameters
    ----------
    path : Path
        The folder; created with its parents. It must not hold a run already.
    config : mapping
        The run's settings.
    resume : bool, default False
        The folder may hold an unfinished run of the same settings, to go on with.

    Raises
    ------
    ConfigurationError
        If the folder cannot be made, or holds a run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"output-dir: cannot make the run folder {path}: {error}. Give a directory that the user who started "
                "the SuperLink may write to"
            ) from error
        self.path = path
        if (path / _CONFIG).exists():
            if not resume:
                raise ConfigurationError(f"the run folder {path} holds a run already; give another output-dir")
            if json.loads((path / _CONFIG).read_text(encoding="utf-8")) != json.loads(json.dumps(dict(config))):
                raise ConfigurationError(
                    f"the run folder {path} holds a run with other settings; resume with those that its {_CONFIG} has, "
                    "or give another folder"
                )
            return
        (path / _CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics; it is on disk when this returns, so a killed run keeps its history."""
        with (self.path / _METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def checkpoint(
        self,
        status: RunStatus,
        arrays: Mapping[str, NDArray[Any]],
        exchanges: Sequence[Mapping[str, float]] = (),
        support: SupportHistory | None = None,
    ) -> None:
        """Keep how far a run is, with its model; `exchanges` are those since the last call.

        The status is written last and replaced in one step: what it names is there whenever the process is killed.
        """
        if exchanges:
            with (self.path / _EXCHANGES).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(dict(line)) + "\n" for line in exchanges)
        if support is not None:
            self._save(_SUPPORT, {"rounds": support.rounds, "share": support.share})
        self.save_model(arrays)
        partial = self.path / f".{_STATUS}.partial"
        partial.write_text(json.dumps(status._asdict()) + "\n", encoding="utf-8")
        partial.replace(self.path / _STATUS)
        for state in self.path.glob("state-*.npz"):
            if state.name != status.state:
                state.unlink()

    def rewind(self, last_round: float, exchanges: int) -> RunRecord:
        """Forget the lines after a round, of which a killed run may have written some; return what is left."""
        for name, kept in ((_METRICS, last_round), (_EXCHANGES, exchanges)):
            lines = [line for line in _lines(self.path / name) if line["round"] <= kept]
            if lines or (self.path / name).exists():
                text = "".join(json.dumps(line) + "\n" for line in lines)
                (self.path / name).write_text(text, encoding="utf-8")
        return _record(self.path)

    def status(self) -> RunStatus:
        """Return how far the run is: not begun, where nothing was kept."""
        file = self.path / _STATUS
        return RunStatus(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else RunStatus()

    def save_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the primal model under the user's names."""
        self._save(_MODEL, arrays)

    def _save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        partial = self.path / f".{name}.partial"
        with partial.open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
        partial.replace(self.path / name)


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
    exchanges : list of dict, default empty
        One for each communication, where they were recorded.
    support : SupportHistory, optional
        Where it was recorded.
    status : RunStatus, optional
        Where it was recorded.
    """

    config: dict[str, Any]
    metrics: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    exchanges: Sequence[Mapping[str, float]] = ()
    support: SupportHistory | None = None
    status: RunStatus | None = None


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
    return _record(path)


def _record(path: Path) -> RunRecord:
    arrays: dict[str, NDArray[Any]] = {}
    if (path / _MODEL).is_file():
        with np.load(path / _MODEL, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    support = None
    if (path / _SUPPORT).is_file():
        with np.load(path / _SUPPORT, allow_pickle=False) as file:
            support = SupportHistory(file["rounds"], file["share"])
    status = None
    if (path / _STATUS).is_file():
        status = RunStatus(**json.loads((path / _STATUS).read_text(encoding="utf-8")))
    config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
    return RunRecord(config, _lines(path / _METRICS), arrays, _lines(path / _EXCHANGES), support, status)


def _lines(path: Path) -> list[dict[str, float]]:
    """Return the lines of a file of JSON; the last one is left out if the process was killed while it wrote it."""
    if not path.is_file():
        return []
    *whole, rest = path.read_text(encoding="utf-8").split("\n")
    del rest
    return [json.loads(line) for line in whole]
