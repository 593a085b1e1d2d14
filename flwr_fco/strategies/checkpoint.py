"""Saving a run and going back in it. What changes are the attributes that its parts name in `saved`, and nothing else.

Arrays are replaced, never written into: so an earlier moment is a copy of the containers, and a file holds all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.files import FilePath, json_object, read_npz, shown, write_npz
from flwr_fco.core.spec import decode, encode
from flwr_fco.errors import ConfigurationError

_VERSION = 1
#: Begins the names of arrays in a file.
_TREE = "tree"
#: Options that may differ between a run and its resumption.
MAY_CHANGE = {"fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "bounds"}
MAY_CHANGE |= {"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "on_divergence", "certificate_every"}
MAY_CHANGE |= {"participation"}


def moment(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what parts hold now, by part and attribute.

    Parameters
    ----------
    parts : mapping of str to object
        Objects with a tuple `saved` of the names of their attributes that change.

    Examples
    --------
    >>> class Counter:
    ...     saved = ("count",)
    ...     count = 0
    >>> counter = Counter()
    >>> before = moment({"counter": counter})
    >>> counter.count = 5
    >>> go_back({"counter": counter}, before)
    >>> counter.count
    0
    """
    return {name: {key: _copied(getattr(part, key)) for key in part.saved} for name, part in parts.items()}


def go_back(parts: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]) -> None:
    """Let parts hold what they held at a moment.

    Parameters
    ----------
    parts : mapping of str to object
        As for :func:`moment`.
    before : mapping
        What :func:`moment` returned.
    """
    for name, part in parts.items():
        for key in part.saved:
            setattr(part, key, _copied(before[name][key]))


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list | set) else value


def save(path: FilePath, about: str, tree: Any, *, secret: bool = False) -> None:
    """Write a tree of dicts, lists, tuples, sets, texts, bytes, numbers, arrays and sparse vectors.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``; the file is replaced as a whole.
    about : str
        Whose it is: :func:`about`.
    tree : Any
        The values.
    secret : bool, default False
        Whether only its owner may read the file.
    """
    arrays: dict[str, NDArray[Any]] = {}
    text = json.dumps({"about": about, "version": _VERSION, "tree": encode(tree, _TREE, arrays)})
    arrays["tree"] = np.frombuffer(text.encode(), np.uint8)
    arrays["checksum"] = np.array(_checksum(arrays))
    write_npz(path, arrays, secret=secret)


def load(path: FilePath, about: str) -> Any:
    """Return the tree of a file.

    Raises
    ------
    ConfigurationError
        If the file is damaged, or of a run with other settings.
    """
    arrays = read_npz(path)
    checksum = arrays.pop("checksum", np.array(""))
    if "tree" not in arrays or str(checksum) != _checksum(arrays):
        raise ConfigurationError(f"{shown(path)} is no saved run, or is damaged; take an earlier copy")
    try:
        saved = json_object(arrays["tree"].tobytes())
        version = saved["version"]
        whose = saved["about"]
        tree = decode(saved["tree"], _TREE, arrays, math.inf)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"{shown(path)} is damaged: {error!r:.200}; take an earlier copy") from error
    if version != _VERSION or whose != about:
        raise ConfigurationError(f"{shown(path)} was saved with other settings{_difference(str(whose), about)}")
    return tree


def _difference(there: str, here: str) -> str:
    pairs = zip(there.splitlines(), here.splitlines(), strict=False)
    apart = [f"{a[:150]}, here {b[:150]}" for a, b in pairs if a != b]
    return f": {'; '.join(apart[:3])}" if apart else " by another version of flwr-fco"


def about(options: Any, model: str) -> str:
    """Return the settings that a resumed run must share, one a line.

    Parameters
    ----------
    options : Options
        The strategy.
    model : str
        The method and its layout.
    """
    kept = [option for option in fields(options) if option.init and option.name not in MAY_CHANGE]
    lines = [f"{option.name}={_text(getattr(options, option.name))}" for option in kept]
    return "\n".join([f"{type(options).__module__}.{type(options).__qualname__}", model, *lines])


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_text(getattr(value, f.name)) for f in fields(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "a function" if callable(value) else repr(value)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


def check_alike(found: Any, expected: Any, prefix: str) -> None:
    """Check that a loaded value has the form of one that is there: type, shape, dtype, and finite entries.

    Parameters
    ----------
    found, expected : Any
        Numbers, arrays, or NamedTuples of them.
    prefix : str
        Its name, for the error.

    Raises
    ------
    ValueError
        If it has not.
    """
    if isinstance(expected, tuple) and isinstance(found, tuple) and len(found) == len(expected):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            check_alike(one, other, f"{prefix}[{i}]")
        return
    if _form(found) != _form(expected):
        raise ValueError(f"{prefix} is {_form(found)}, expected {_form(expected)}")
    if isinstance(found, np.ndarray | float) and not np.all(np.isfinite(found)):
        raise ValueError(f"{prefix} is not finite")


def _form(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return "number" if type(value) in (int, float) else type(value).__name__
