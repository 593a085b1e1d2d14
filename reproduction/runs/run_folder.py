"""The files of a run: its config, a line of JSON for each evaluated round, the final model.

A run of ``python -m reproduction run`` writes more: ``exchanges.jsonl`` (a line for each communication: bytes, replies
left out, where the time went), ``support.npz`` (which coefficients were not zero, over the rounds) and ``status.json``
(its progress). Until it has finished, the folder also has the strategy's state, from which ``--resume`` continues.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError
from flwr_fco.models import json_object, parse_json, read_npz, read_text, write_file, write_npz

_CONFIG, _METRICS, _MODEL, _LEFT_OUT = "config.json", "metrics.jsonl", "model.npz", "left-out.csv"
_EXCHANGES, _SUPPORT, _STATUS = "exchanges.jsonl", "support.npz", "status.json"
#: The columns of ``left-out.csv``: the fields of a strategy's ``left_out`` for each reply that did not count.
LEFT_OUT = ("round", "node_id", "partition_id", "reason", "kind")
#: Maximum number of bytes of a file of lines.
_LONGEST = 2**30
_AGAIN = "Run it again into another folder"

_Read = TypeVar("_Read")


class RunStatus(NamedTuple):
    """The progress of a run.

    Parameters
    ----------
    exchanges : int, default 0
        Number of communications that are done and saved.
    finished : bool, default False
        Whether all rounds are done, or the run needs no more, or has diverged.
    diverged : int, default 0
        The round in which the run was cut; 0 if it was not.
    seconds : float, default 0.0
        Duration of the rounds, without loading the data.
    chosen : sequence of str, default empty
        The values chosen for automatic settings, and why.
    """

    exchanges: int = 0
    finished: bool = False
    diverged: int = 0
    seconds: float = 0.0
    chosen: Sequence[str] = ()


class SupportHistory(NamedTuple):
    """Which coefficients were not zero, over the rounds.

    Parameters
    ----------
    rounds : ndarray, shape (n,)
    share : ndarray of float32, shape (n, cells)
        Share of nonzero coefficients in each cell; a cell is one coefficient, or several neighbours if the array is
        large.
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
        The folder may hold an unfinished run with the same settings, which is continued.

    Raises
    ------
    ConfigurationError
        If the folder cannot be created, or holds a run.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, resume: bool = False) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cannot make the run folder {path}: {error.strerror or error}. Give a place by --out (in a run "
                "config: by output-dir) in which you, or the user who started the SuperLink, may write"
            ) from error
        self.path = path
        if (path / _CONFIG).exists():
            if not resume:
                raise ConfigurationError(f"the run folder {path} holds a run already; give another output-dir")
            if _read(path / _CONFIG, json_object) != parse_json(json.dumps(dict(config))):
                raise ConfigurationError(
                    f"the run folder {path} holds a run with other settings; resume with those that its {_CONFIG} has, "
                    "or give another folder"
                )
            return
        with _writing(path / _CONFIG):
            write_file(path / _CONFIG, json.dumps(dict(config), indent=2) + "\n")

    def add(self, metrics: Mapping[str, float]) -> None:
        """Append a line of metrics; it is on disk when this returns, so a killed run keeps its history."""
        with _writing(self.path / _METRICS), open(self.path / _METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def checkpoint(
        self,
        status: RunStatus,
        arrays: Mapping[str, NDArray[Any]],
        exchanges: Sequence[Mapping[str, float]] = (),
        support: SupportHistory | None = None,
    ) -> None:
        """Save the run's progress and model, and the cost of all communications; each file is replaced atomically."""
        if exchanges:
            text = "".join(json.dumps(dict(line)) + "\n" for line in exchanges)
            write_file(self.path / _EXCHANGES, text)
        if support is not None:
            self._save(_SUPPORT, {"rounds": support.rounds, "share": support.share})
        self.save_model(arrays)
        write_file(self.path / _STATUS, json.dumps(status._asdict()) + "\n")

    def begin(self) -> None:
        """Drop the lines that a killed run has written; those up to its last checkpoint are written again."""
        (self.path / _METRICS).unlink(missing_ok=True)

    def read(self) -> RunRecord:
        """Return what the folder has."""
        return _record(self.path)

    def status(self) -> RunStatus:
        """Return the run's progress: not started, if nothing was saved."""
        file = self.path / _STATUS
        return _read(file, _status) if file.is_file() else RunStatus()

    def save_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the primal model under the user's names."""
        self._save(_MODEL, arrays)

    def _save(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        with _writing(self.path / name):
            write_npz(self.path / name, arrays)

    def save_left_out(self, rows: Iterable[Any]) -> None:
        """Save which replies did not count, and why; nothing is written if all counted.

        Parameters
        ----------
        rows : iterable of NamedTuple
            A strategy's ``left_out``, with the fields :data:`LEFT_OUT`.
        """
        found = [{name: getattr(row, name) for name in LEFT_OUT} for row in rows]
        if found:
            with _writing(self.path / _LEFT_OUT):
                write_csv(found, self.path / _LEFT_OUT)


class RunRecord(NamedTuple):
    """A run read from its folder.

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
    left_out: Sequence[dict[str, str]] = ()
    exchanges: Sequence[Mapping[str, float]] = ()
    support: SupportHistory | None = None
    status: RunStatus | None = None


def only_begun(path: Path) -> bool:
    """Return whether a folder's run ended before it had results: it has a config, but no metrics or no model.

    Parameters
    ----------
    path : Path
    """
    return (path / _CONFIG).is_file() and not all((path / name).is_file() for name in (_METRICS, _MODEL))


def read_run(path: Path) -> RunRecord:
    """Read a run folder.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ConfigurationError
        If the run did not finish (a file is missing), or a file is damaged; the error names the file and the problem.
    """
    for name in (_CONFIG, _METRICS, _MODEL):
        if not (path / name).is_file():
            wanted = "of a run that finished, or was stopped after a round"
            raise ConfigurationError(f"{path} has no {name}; expected the folder {wanted}")
    return _record(path)


def _record(path: Path) -> RunRecord:
    """Read the available files: a killed run has no model, and may have half a line at the end of a file."""
    arrays = _model(path / _MODEL) if (path / _MODEL).is_file() else {}
    support = _support(path / _SUPPORT) if (path / _SUPPORT).is_file() else None
    status = _read(path / _STATUS, _status) if (path / _STATUS).is_file() else None
    left_out = _read(path / _LEFT_OUT, _table) if (path / _LEFT_OUT).is_file() else []
    config = _read(path / _CONFIG, _config)
    lines, exchanges = _lines(path / _METRICS), _lines(path / _EXCHANGES, finite=True)
    return RunRecord(config, lines, arrays, left_out, exchanges, support, status)


def _lines(path: Path, *, finite: bool = False) -> list[dict[str, float]]:
    """Return the lines of a JSON file, without an incomplete last line of a killed process."""
    if not path.is_file():
        return []
    *whole, rest = _read(path, lambda text: text.split("\n"))
    try:
        json_object(rest)
        whole.append(rest)
    except ValueError:
        pass
    return [_metrics_line(path, number, line, finite) for number, line in enumerate(whole, start=1)]


def _config(text: str) -> dict[str, Any]:
    config = json_object(text)
    for name in ("problem", "strategy"):
        if not isinstance(config.get(name, ""), str):
            raise ValueError(f"its {name} is {config[name]!r:.100}, expected a name")
    for name in ("seed", "stretch"):
        value = config.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**53:
            raise ValueError(f"its {name} is {value!r:.100}, expected a whole number >= 0")
    return config


def _status(text: str) -> RunStatus:
    kinds: dict[str, Any] = {"exchanges": int, "finished": bool, "diverged": int, "seconds": float}
    # Older folders lack it.
    if "chosen" in json_object(text):
        kinds["chosen"] = Sequence[str]
    status = RunStatus(**json_object(text, kinds))
    if not all(0 <= number < 2**53 for number in (status.exchanges, status.diverged, status.seconds)):
        raise ValueError(f"{status}; expected numbers of at least 0")
    return status


def _support(path: Path) -> SupportHistory:
    arrays = _model(path)
    if set(arrays) != {"rounds", "share"} or arrays["rounds"].dtype.kind != "i" or arrays["rounds"].ndim != 1:
        raise _damaged(path, "expected the arrays rounds, whole numbers, and share")
    share = arrays["share"]
    if share.ndim != 2 or len(share) != arrays["rounds"].size or not ((share >= 0.0) & (share <= 1.0)).all():
        raise _damaged(path, "expected shares from 0 to 1, with a row for each round")
    return SupportHistory(arrays["rounds"], arrays["share"])


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows, which may have different names, with the union of the names as header.

    A text that a spreadsheet would compute, which may be a client's, begins with an apostrophe.
    """
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in row.items()} for row in rows)
    write_file(path, text.getvalue())


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _metrics_line(path: Path, number: int, line: str, finite: bool) -> dict[str, float]:
    try:
        values = json_object(line)
        if "round" not in values:
            raise ValueError("it has no 'round'")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} is {value!r}, expected a number")
            # Plots and averages use floating point: integers beyond its range mean a damaged file.
            if not math.isfinite(float(value)) and (finite or name == "round"):
                raise ValueError(f"{name} is {value!r}, expected a finite number")
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
        arrays = read_npz(path)
    except (ConfigurationError, OSError) as error:
        raise ConfigurationError(f"{error}. {_AGAIN}") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise _damaged(path, f"{name!r} holds no numbers")
    return arrays


def _read(path: Path, parse: Callable[[str], _Read]) -> _Read:
    try:
        text = read_text(path, _LONGEST)
    except (ConfigurationError, OSError) as error:
        raise ConfigurationError(f"{error}. {_AGAIN}") from error
    try:
        return parse(text)
    except (ValueError, csv.Error) as error:
        raise _damaged(path, f"{error}") from error


def _damaged(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(f"{path} is damaged: {reason}. {_AGAIN}")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror or error}. Give a directory with space, in which you may write"
        ) from error
