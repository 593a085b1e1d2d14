"""A strategy's state in a file: written beside it first and renamed, so there is never half a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError

_STATE, _PASS, _PARTS = "state/", "pass/", "part/"
_GRAPH = f"{_PARTS}graph/rows"
_SETTINGS, _CHECKSUM, _FORMAT, _OPTIONS = "digest", "checksum", "format", "options"
#: Of a file in which every part of a strategy has its own place, and which says with what options it was made.
_VERSION = 3
#: Options that may be others when a state is loaded; what the plan says is in its own digest.
MAY_CHANGE = frozenset(
    {
        "fraction_evaluate",
        "min_train_nodes",
        "min_evaluate_nodes",
        "min_available_nodes",
        "train_metrics_aggr_fn",
        "evaluate_metrics_aggr_fn",
        "regularizer",
        "mirror_map",
        "min_replies",
        "on_divergence",
        "certificate_every",
        "node_timeout",
        "max_examples",
        "max_ratio",
        "max_increment_norm",
        "own_loops",
        "output",
        "window",
        "sparsity",
        "evict_after",
        "on_missing",
        "ledger_bytes",
    }
)


class Saved(NamedTuple):
    """What a file of a strategy's state holds.

    Parameters
    ----------
    state : NamedTuple
    pass_through : dict of str to ndarray
        Arrays of the model that are not optimised.
    parts : dict of str to dict of str to ndarray
        What the parts that a strategy holds remember, by the part: clients, places in a graph, points of an average.
    """

    state: Any
    pass_through: dict[str, NDArray[Any]]
    parts: dict[str, dict[str, NDArray[Any]]]


def write(
    path: str | os.PathLike[str], digest: str, saved: Saved, options: str = "{}", *, secret: bool = False
) -> None:
    """Write a state to an ``.npz`` file.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``.
    digest : str
        Of the settings; a file of other settings is refused.
    saved : Saved
    options : str
        What :func:`options_text` says of the strategy.
    secret : bool, default False
        Whether nobody but the owner may read the file, from the moment in which it is made.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    arrays = {_STATE + name: np.asarray(value) for name, value in saved.state._asdict().items()}
    arrays.update({_PASS + name: value for name, value in saved.pass_through.items()})
    for part, own in saved.parts.items():
        arrays.update({f"{_PARTS}{part}/{name}": value for name, value in own.items()})
    arrays[_SETTINGS], arrays[_FORMAT], arrays[_OPTIONS] = np.array(digest), np.array(_VERSION), np.array(options)
    if secret:
        partial.unlink(missing_ok=True)
    with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, 0o600 if secret else 0o666)) as file:
        np.savez(file, **{_CHECKSUM: np.array(_checksum(arrays))}, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    # The new name is on the disk only once the folder is.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    checksum = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        checksum.update(f"{name}:{array.dtype.str}:{arrays[name].shape}:".encode())
        checksum.update(array.tobytes())
    return checksum.hexdigest()


def options_text(options: Any) -> str:
    """Return what belongs to the settings of a saved state as JSON: a strategy's class, and its options by name.

    Those that say how long to wait, what to leave out, what to report and what to do when something goes wrong may be
    others when a state is loaded.

    Parameters
    ----------
    options : dataclass
    """
    kept = {f.name: _text(getattr(options, f.name)) for f in fields(options) if f.init and f.name not in MAY_CHANGE}
    kind = type(options)
    return json.dumps({"strategy": f"{kind.__module__}.{kind.__qualname__}", **kept}, sort_keys=True)


def _text(value: Any) -> str:
    """Return an option as text that is the same in another process."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return repr(sorted((repr(key), _text(own)) for key, own in value.items()))
    if isinstance(value, list | tuple):
        return repr([_text(own) for own in value])
    if is_dataclass(value) and not isinstance(value, type):
        return repr([type(value).__qualname__, *(_text(getattr(value, f.name)) for f in fields(value))])
    return "a function" if callable(value) else repr(value)


def read(path: str | os.PathLike[str], digest: str, like: Saved, options: str = "{}") -> Saved:
    """Read a state that :func:`write` wrote.

    Parameters
    ----------
    path : path-like
    digest : str
        Of this strategy's settings.
    like : Saved
        Of the kind that is expected: its types and names.
    options : str
        What :func:`options_text` says of this strategy.

    Raises
    ------
    ConfigurationError
        If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged.
    FileNotFoundError
        If there is none.
    """
    where = os.fspath(path)
    try:
        check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy have no error in common for bytes that are none of theirs
        raise ConfigurationError(f"{where} is damaged, or no saved state: {error!r}. Take an earlier copy") from error
    return checked(where, arrays, digest, like, options)


def check_sizes(path: str | os.PathLike[str]) -> None:
    """Refuse an archive whose arrays take more memory than the file has bytes, before any of them is read.

    What is saved is not compressed, so each array's header, member and place in the file must say the same.

    Raises
    ------
    ValueError
        If they do not.
    """
    with ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > Path(path).stat().st_size:
            raise ValueError("it holds more bytes than the file has")
        for member in members:
            if member.compress_type != ZIP_STORED:
                raise ValueError(f"{member.filename} is compressed")
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = header[version](file)
                if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                    raise ValueError(f"{member.filename} claims {dtype}{list(shape)} in {member.file_size} bytes")


def checked(where: str, arrays: dict[str, NDArray[Any]], digest: str, like: Saved, options: str = "{}") -> Saved:
    """Return what the arrays of a file hold, after holding it against what is expected.

    Parameters
    ----------
    where : str
        The file, for messages.
    arrays : dict of str to ndarray
        As :func:`write` wrote them.
    digest : str
        Of this strategy's settings.
    like : Saved
        Of the kind that is expected: its types, names, dtypes and shapes.
    options : str
        What :func:`options_text` says of this strategy.

    Raises
    ------
    ConfigurationError
        If anything differs.
    """
    arrays = dict(arrays)
    checksum = arrays.pop(_CHECKSUM, None)
    if checksum is None or _SETTINGS not in arrays:
        raise ConfigurationError(f"{where} is no saved state: it holds {', '.join(sorted(arrays)[:8]) or 'nothing'}")
    if str(checksum) != _checksum(arrays):
        raise ConfigurationError(f"{where} is damaged: its contents do not match its checksum. Take an earlier copy")
    if _FORMAT not in arrays or arrays[_FORMAT].shape or str(arrays[_FORMAT]) != str(_VERSION):
        raise ConfigurationError(
            f"{where} was saved by another release of flwr-fco, whose states this one does not read. Resume with the "
            "release that wrote it, or start anew from the model"
        )
    _check_options(where, str(arrays.get(_OPTIONS, "{}")), options)
    if str(arrays[_SETTINGS]) != digest:
        raise ConfigurationError(
            f"{where} was saved with other settings or for another model than this strategy's; "
            "resume with the strategy that wrote it"
        )
    try:
        values: dict[str, Any] = {}
        rows = len(arrays[_GRAPH]) if "graph" in like.parts and arrays.get(_GRAPH, np.zeros(())).ndim else 0
        for name, value in like.state._asdict().items():
            if isinstance(value, np.ndarray):
                # On a graph there is a row for each node, once they are known.
                shape = (rows, *value.shape[1:]) if rows and value.size else value.shape
                values[name] = saved_array(arrays, _STATE + name, value.dtype, shape)
            elif isinstance(value, int):
                values[name] = int(saved_array(arrays, _STATE + name, np.dtype(np.int64), (), smallest=0))
            else:
                values[name] = float(saved_array(arrays, _STATE + name, np.dtype(np.float64), ()))
        pass_through = {
            name: saved_array(arrays, _PASS + name, value.dtype, value.shape)
            for name, value in like.pass_through.items()
        }
        parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in like.parts}
        for key, value in arrays.items():
            part, _, name = key.removeprefix(_PARTS).partition("/")
            if key.startswith(_PARTS):
                if part not in parts or value.dtype.kind not in "fiubSU":
                    raise ValueError(f"it holds {key!r}, an array of {value.dtype}")
                parts[part][name] = value
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{where} does not hold a state of this strategy: {error}. Resume with the strategy that wrote it"
        ) from error
    return Saved(type(like.state)(**values), pass_through, parts)


def _check_options(where: str, saved: str, options: str) -> None:
    """Refuse a state of another strategy or of other options, by name."""
    try:
        theirs, ours = json.loads(saved), json.loads(options)
    except (ValueError, RecursionError):
        theirs, ours = {}, {"options": ""}
    if theirs != ours and isinstance(theirs, dict):
        names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
        told = "; ".join(
            f"{name} was {theirs.get(name, 'not there')}, is {ours.get(name, 'not there')}" for name in names
        )
        raise ConfigurationError(
            f"{where} was saved with other settings than this strategy's: {told[:500]}. Resume with the strategy that "
            "wrote it, or start anew from the model"
        )
