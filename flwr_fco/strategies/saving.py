"""A strategy's state in a file: written beside it first and renamed, so there is never half a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.errors import ConfigurationError

__all__ = ["Saved", "read", "write"]

_STATE, _PASS, _MORE = "state/", "pass/", "extra/"


class Saved(NamedTuple):
    """What a file of a strategy's state holds.

    Parameters
    ----------
    state : NamedTuple
    pass_through : dict of str to ndarray
        Arrays of the model that are not optimised.
    more : dict of str to ndarray
        What the objects that a strategy holds remember: clients, places in a graph.
    """

    state: Any
    pass_through: dict[str, NDArray[Any]]
    more: dict[str, NDArray[Any]]


def write(path: str | os.PathLike[str], digest: str, saved: Saved) -> None:
    """Write a state to an ``.npz`` file.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``.
    digest : str
        Of the settings; a file of other settings is refused.
    saved : Saved
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial")
    arrays = {_STATE + name: np.asarray(value) for name, value in saved.state._asdict().items()}
    arrays.update({_PASS + name: value for name, value in saved.pass_through.items()})
    arrays.update({_MORE + name: value for name, value in saved.more.items()})
    with partial.open("wb") as file:
        np.savez(file, digest=np.array(digest), **arrays)  # type: ignore[arg-type]
    partial.replace(target)


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
        If the file comes from other settings (regularizer, seed, local work, ...) or another model.
    """
    with np.load(path, allow_pickle=False) as file:
        if str(file["digest"]) != digest:
            raise ConfigurationError(
                f"{os.fspath(path)} was saved with other settings or for another model than this strategy's; "
                "resume with the strategy that wrote it"
            )
        values = {}
        for name, value in like.state._asdict().items():
            array = file[_STATE + name]
            values[name] = array if isinstance(value, np.ndarray) else array.item()
        pass_through = {name: file[_PASS + name] for name in like.pass_through}
        more = {name.removeprefix(_MORE): file[name] for name in file.files if name.startswith(_MORE)}
    return Saved(type(like.state)(**values), pass_through, more)
