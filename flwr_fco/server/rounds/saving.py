"""A strategy's state in a file: written beside it first and renamed, so there is never half a file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["Saved", "read", "write"]

_STATE, _PASS, _PARTS = "state/", "pass/", "part/"
_SETTINGS, _CHECKSUM, _FORMAT = "digest", "checksum", "format"
#: Of a file in which every part of a strategy has its own place.
_VERSION = 2


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


def write(path: str | os.PathLike[str], digest: str, saved: Saved, *, secret: bool = False) -> None:
    """Write a state to an ``.npz`` file.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``.
    digest : str
        Of the settings; a file of other settings is refused.
    saved : Saved
    secret : bool, default False
        Whether nobody but the owner may read the file, from the moment in which it is made.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    arrays = {_STATE + name: np.asarray(value) for name, value in saved.state._asdict().items()}
    arrays.update({_PASS + name: value for name, value in saved.pass_through.items()})
    for part, own in saved.parts.items():
        arrays.update({f"{_PARTS}{part}/{name}": value for name, value in own.items()})
    arrays[_SETTINGS], arrays[_FORMAT] = np.array(digest), np.array(_VERSION)
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


def read(path: str | os.PathLike[str], digest: str, like: Saved) -> Saved:
    """Read a state that :func:`write` wrote.

    Parameters
    ----------
    path : path-like
    digest : str
        Of this strategy's settings.
    like : Saved
        Of the kind that is expected: its types and names.

    Raises
    ------
    ConfigurationError
        If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged.
    FileNotFoundError
        If there is none.
    """
    where = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy have no error in common for bytes that are none of theirs
        raise ConfigurationError(f"{where} is damaged, or no saved state: {error!r}. Take an earlier copy") from error
    checksum = arrays.pop(_CHECKSUM, None)
    if checksum is None or _SETTINGS not in arrays:
        raise ConfigurationError(f"{where} is no saved state: it holds {', '.join(sorted(arrays)[:8]) or 'nothing'}")
    if str(checksum) != _checksum(arrays):
        raise ConfigurationError(f"{where} is damaged: its contents do not match its checksum. Take an earlier copy")
    if _FORMAT not in arrays or int(arrays[_FORMAT]) != _VERSION:
        raise ConfigurationError(
            f"{where} was saved by another release of flwr-fco, whose states this one does not read. Resume with the "
            "release that wrote it, or start anew from the model"
        )
    if str(arrays[_SETTINGS]) != digest:
        raise ConfigurationError(
            f"{where} was saved with other settings or for another model than this strategy's; "
            "resume with the strategy that wrote it"
        )
    try:
        values = {}
        for name, value in like.state._asdict().items():
            array = arrays[_STATE + name]
            values[name] = array if isinstance(value, np.ndarray) else array.item()
            if isinstance(value, np.ndarray) and not _fits(array, value):
                raise ValueError(f"its {name} has the shape {array.shape} where {value.shape} is expected")
        pass_through = {name: arrays[_PASS + name] for name in like.pass_through}
    except (KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{where} does not hold a state of this strategy: {error}. Resume with the strategy that wrote it"
        ) from error
    parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in like.parts}
    for key, value in arrays.items():
        part, _, name = key.removeprefix(_PARTS).partition("/")
        if key.startswith(_PARTS) and part in parts:
            parts[part][name] = value
    return Saved(type(like.state)(**values), pass_through, parts)


def _fits(array: NDArray[Any], like: NDArray[Any]) -> bool:
    """Whether a saved array can take the place of one of the first state, whose rows may have been fewer."""
    return array.shape[1:] == like.shape[1:] and array.ndim == like.ndim and bool(array.size or not like.size)
