"""What a run leaves behind: its config, a line of JSON for each evaluated round, the final model, what was left out."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["LEFT_OUT", "RunFolder", "RunRecord", "json_object", "read_run"]

_CONFIG, _METRICS, _MODEL, _LEFT_OUT = "config.json", "metrics.jsonl", "model.npz", "left-out.csv"
#: The columns of ``left-out.csv``: what a strategy's ``left_out`` says of each reply that did not count.
LEFT_OUT = ("round", "node_id", "partition_id", "reason", "kind")

_Read = TypeVar("_Read")


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
        with _writing(path / _CONFIG):
            (path / _CONFIG).write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics; it is on disk when this returns, so a killed run keeps its history."""
        with _writing(self.path / _METRICS), (self.path / _METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def save_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the primal model under the user's names."""
        with _writing(self.path / _MODEL), (self.path / _MODEL).open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]

    def save_left_out(self, rows: Iterable[Any]) -> None:
        """Save which replies did not count, and why; nothing is written where all did.

        Parameters
        ----------
        rows : iterable of NamedTuple
            A strategy's ``left_out``: with the fields :data:`LEFT_OUT`.
        """
        found = [[getattr(row, name) for name in LEFT_OUT] for row in rows]
        if not found:
            return
        path = self.path / _LEFT_OUT
        with _writing(path), path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(LEFT_OUT)
            writer.writerows(found)


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
    left_out : sequence of dict of str to str
        The replies that did not count: the columns :data:`LEFT_OUT`.
    """

    config: dict[str, Any]
    metrics: list[dict[str, float]]
    arrays: dict[str, NDArray[Any]]
    left_out: Sequence[dict[str, str]] = ()


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ConfigurationError
        If the run did not finish (a file is missing), or a file is damaged: the error names it, and what is wrong.
    """
    for name in (_CONFIG, _METRICS, _MODEL):
        if not (path / name).is_file():
            raise ConfigurationError(f"{path} has no {name}; expected the folder of a run that finished")
    config = _read(path / _CONFIG, json_object)
    lines = _read(path / _METRICS, str.splitlines)
    metrics = [_metrics_line(path / _METRICS, number, line) for number, line in enumerate(lines, start=1)]
    left_out = _read(path / _LEFT_OUT, _table) if (path / _LEFT_OUT).is_file() else []
    return RunRecord(config, metrics, _model(path / _MODEL), left_out)


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises
    ------
    ValueError
        If the text is none.

    Examples
    --------
    >>> json_object("[1]")
    Traceback (most recent call last):
    ...
    ValueError: it holds a list, expected an object {...}
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, expected an object {{...}}")
    return value


def _metrics_line(path: Path, number: int, line: str) -> dict[str, float]:
    try:
        values = json_object(line)
        if "round" not in values:
            raise ValueError("it has no 'round'")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}, expected a number")
            # What is drawn and averaged is floating point: whole numbers beyond it are damage.
            float(value)
    except (ValueError, OverflowError) as error:
        raise _damaged(path, f"line {number}: {error}") from error
    return values


def _table(text: str) -> list[dict[str, str]]:
    # As a stream, because a reason may have several lines.
    rows = list(csv.reader(StringIO(text, newline="")))
    if not rows or tuple(rows[0]) != LEFT_OUT or any(len(row) != len(LEFT_OUT) for row in rows):
        raise ValueError(f"expected the columns {', '.join(LEFT_OUT)} in every line")
    return [dict(zip(LEFT_OUT, row, strict=True)) for row in rows[1:]]


def _model(path: Path) -> dict[str, NDArray[Any]]:
    try:
        # Without a zip's mark NumPy would take the file for a pickle or for a single array.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
                raise ValueError(f"{name!r} holds no numbers")
    except Exception as error:
        # Any type: a damaged zip file ends NumPy and zlib in errors of a dozen kinds.
        raise _damaged(path, f"{error}") from error
    return arrays


def _read(path: Path, parse: Callable[[str], _Read]) -> _Read:
    try:
        return parse(path.read_bytes().decode("utf-8"))
    except (ValueError, OSError, csv.Error) as error:
        raise _damaged(path, f"{error}") from error


def _damaged(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged: {reason}. Run it again into another folder")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror or error}. Give a directory with space, in which you may write"
        ) from error
