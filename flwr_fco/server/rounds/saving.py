"""Files of a strategy's state: what they hold, what is checked before it is believed, and whose a saved run is."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.files import FilePath, parse_json, read_npz, shown, write_npz
from flwr_fco.core.logs import printable
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ConfigurationError, TakenOverError
from flwr_fco.server.parts import under
from flwr_fco.server.rounds.hooks import Progress

_STATE, _PASS, _PARTS = "state/", "pass/", "part/"
_GRAPH = f"{_PARTS}graph/rows"
_SETTINGS, _CHECKSUM, _FORMAT, _OPTIONS = "digest", "checksum", "format", "options"
_OWNER, _DAMAGED = "owner", "damaged"
#: Key of the current run in a saved state, next to the parts.
_RUN = "run"
#: Version of the file format, in which who was asked is recorded by what waits for everyone.
_VERSION = 5
#: Options that may change before a state is loaded; the plan's options are in its own digest.
MAY_CHANGE = {
    *("fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "train_metrics_aggr_fn"),
    *("evaluate_metrics_aggr_fn", "regularizer", "mirror_map", "min_replies", "on_divergence", "certificate_every"),
    *("bounds", "output"),
    # of option objects
    *("node_timeout", "evict_after", "on_missing", "max_bytes"),
}


Arrays = Mapping[str, NDArray[Any]]


class Saved(NamedTuple):
    """Content of a file with a strategy's state.

    Parameters
    ----------
    state : NamedTuple
        The server's state.
    pass_through : dict of str to ndarray
        Arrays of the model that are not optimised.
    parts : dict of str to dict of str to ndarray
        States of the strategy's parts by name: clients, places in a graph, points of an average.
    """

    state: Any
    pass_through: dict[str, NDArray[Any]]
    parts: dict[str, dict[str, NDArray[Any]]]

    def copy(self) -> Saved:
        """Return the same with copies of the parts' arrays, which parts change in place."""
        parts = {name: {key: np.array(value) for key, value in arrays.items()} for name, arrays in self.parts.items()}
        return self._replace(parts=parts)


def owner_of(path: FilePath) -> str | None:
    """Return the token of the run that wrote a file; a file without one has "", None stands for no file.

    Parameters
    ----------
    path : path-like
        The file.

    Raises
    ------
    OSError
        If it cannot be read, which says nothing of whose it is.
    """
    try:
        return str(read_npz(path, [_OWNER]).get(_OWNER, ""))
    except FileNotFoundError:
        return None
    except ConfigurationError as error:
        # An archive that is none may say what makes a seek fail.
        if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.EINVAL:
            raise error.__cause__ from None
        # Nobody's: no run has written this.
        return _DAMAGED


def give(path: FilePath, owner: str) -> None:
    """Write a file again, with the token of another run.

    Parameters
    ----------
    path : path-like
        The file, which was read and checked.
    owner : str
        The token.
    """
    arrays = {name: array for name, array in read_npz(path).items() if name != _CHECKSUM}
    # The permissions stay.
    _write(path, arrays, owner)


def _write(path: FilePath, arrays: Arrays, owner: str, *, secret: bool = False) -> None:
    """Write a file whole, with the token of a run; with `secret` only its owner may read it, from its creation on."""
    arrays = {**arrays, _OWNER: np.array(owner)}
    write_npz(path, {_CHECKSUM: np.array(_checksum(arrays)), **arrays}, secret=secret)


def _checksum(arrays: Arrays) -> str:
    checksum = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        checksum.update(f"{name}:{array.dtype.str}:{arrays[name].shape}:".encode())
        checksum.update(array.tobytes())
    return checksum.hexdigest()


def options_text(options: Any) -> str:
    """Return the settings of a saved state as JSON: the strategy's class, and its options by name.

    Options about waiting, leaving out replies, reporting and error handling are excluded; they may change before a
    state is loaded.

    Parameters
    ----------
    options : dataclass
        The strategy.
    """
    kept = {f.name: _text(getattr(options, f.name)) for f in fields(options) if f.init and f.name not in MAY_CHANGE}
    kind = type(options)
    return json.dumps({"strategy": f"{kind.__module__}.{kind.__qualname__}", **kept}, sort_keys=True)


def _text(value: Any) -> str:
    """Return an option as text that is the same in every process."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return repr(sorted((repr(key), _text(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return repr([_text(item) for item in value])
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value) if f.name not in MAY_CHANGE]
        return repr([type(value).__qualname__, *(_text(getattr(value, name)) for name in names)])
    return "a function" if callable(value) else repr(value)


def _content(arrays: Arrays, like: Saved) -> Saved:
    """Return what a file holds, after comparing it with the expected one."""
    values: dict[str, Any] = {}
    rows = len(arrays[_GRAPH]) if "graph" in like.parts and arrays.get(_GRAPH, np.zeros(())).ndim else 0
    for name, value in like.state._asdict().items():
        if isinstance(value, np.ndarray):
            # On a graph there is a row for each node, once the nodes are known, but of what they share.
            of_nodes = rows and value.size and name not in getattr(like.state, "shared", ())
            shape = (rows, *value.shape[1:]) if of_nodes else value.shape
            values[name] = saved_array(arrays, _STATE + name, value.dtype, shape)
        elif isinstance(value, int):
            values[name] = int(saved_array(arrays, _STATE + name, np.int64, (), smallest=0))
        else:
            values[name] = float(saved_array(arrays, _STATE + name, np.float64, ()))
    passed = {name: saved_array(arrays, _PASS + name, old.dtype, old.shape) for name, old in like.pass_through.items()}
    for key, value in under(_PARTS, arrays).items():
        if key.partition("/")[0] not in like.parts or value.dtype.kind not in "fiubSU":
            raise ValueError(f"it holds {_PARTS + key!r}, an array of {value.dtype}")
    return Saved(type(like.state)(**values), passed, {part: under(f"{_PARTS}{part}/", arrays) for part in like.parts})


def _check_origin(where: str, arrays: dict[str, NDArray[Any]], digest: str, options: str) -> None:
    """Reject what is no state, a damaged one, and one of another release, strategy or model, or of other options."""
    checksum = arrays.pop(_CHECKSUM, None)
    if checksum is None or _SETTINGS not in arrays:
        what = f"{where} is no saved state"
        raise ConfigurationError(f"{what}: it holds {', '.join(map(printable, sorted(arrays)[:8])) or 'nothing'}")
    if str(checksum) != _checksum(arrays):
        raise ConfigurationError(f"{where} is damaged: its contents do not match its checksum. Take an earlier copy")
    if _FORMAT not in arrays or arrays[_FORMAT].shape or str(arrays[_FORMAT]) != str(_VERSION):
        what = f"{where} was saved by another release of flwr-fco, whose states this one does not read."
        raise ConfigurationError(f"{what} Resume with the release that wrote it, or start anew from the model")
    try:
        theirs, ours = parse_json(str(arrays.get(_OPTIONS, "{}"))), parse_json(options)
    except ValueError:
        theirs, ours = {}, {"options": ""}
    if theirs != ours and isinstance(theirs, dict):
        names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
        pairs = [(name, theirs.get(name, "not there"), ours.get(name, "not there")) for name in names]
        differences = "; ".join(f"{name} was {before}, is {now}" for name, before, now in pairs)
        what = f"{where} was saved with other settings than this strategy's: {printable(differences)[:500]}."
        raise ConfigurationError(f"{what} Resume with the strategy that wrote it, or start anew from the model")
    if str(arrays[_SETTINGS]) != digest:
        what = f"{where} was saved with other settings or for another model than this strategy's"
        raise ConfigurationError(f"{what}; resume with the strategy that wrote it")


try:
    import fcntl
except ImportError:  # Windows: the token alone decides
    fcntl = None  # type: ignore[assignment]

#: Seconds to wait for another process that writes into the same folder.
_PATIENCE = 60.0


class _Seen(NamedTuple):
    """What was in a place: the token of its run, None if there was no file; and how the file looked from outside."""

    owner: str | None
    stamp: tuple[int, int, int] | None


class Claims:
    """The files that a run saves itself to, and whether they are still its own.

    A file holds the token of the run that wrote it last. A run that finds another token than it left there ends: it
    was resumed by another process, which has the file now. Copies of a file know nothing of each other.
    """

    def __init__(self) -> None:
        self._token = secrets.token_hex(16)
        self._seen: dict[str, _Seen] = {}
        #: Files to take when the run begins, after everything has been checked.
        self.wanted: list[FilePath] = []

    def of_a_copy(self) -> Claims:
        """Return what a copy of the run knows: it has seen the same, and has none of it."""
        other = Claims()
        other._seen = dict(self._seen)
        return other

    def see(self, path: FilePath) -> None:
        """Note whose a file is, before it is read or written.

        Parameters
        ----------
        path : path-like
            The file.

        Raises
        ------
        ConfigurationError
            If it cannot be read.
        """
        self._seen[os.path.abspath(path)] = _Seen(_known_owner_of(path), _stamp(path))

    def take_wanted(self) -> None:
        """Make the files this run's own; the run that had them ends where it looks at them next.

        Raises
        ------
        ConfigurationError
            If one of them cannot be written.
        TakenOverError
            If one of them is not what was seen.
        """
        wanted, self.wanted = self.wanted, []
        for path in wanted:
            try:
                self.write(path, partial(give, path))
            except OSError as error:
                raise ConfigurationError(
                    f"{shown(path)} cannot be written: {error}. A run that goes on from a file records there what "
                    "it does; make the file and its folder writable, or move it to where they are"
                ) from error

    def write(self, path: FilePath, write: Callable[[str], None]) -> None:
        """Write a file, alone and only if it is what was seen.

        Parameters
        ----------
        path : path-like
            The file.
        write : callable
            Writes it, with this token.

        Raises
        ------
        TakenOverError
            If another run has it.
        """
        place = os.path.abspath(path)
        with _alone_in(Path(place).parent):
            if place in self._seen:
                self._require(place, owner_of(place))
            write(self._token)
            self._seen[place] = _Seen(self._token, _stamp(place))

    def check(self) -> None:
        """Require that the files that this run has are still its own.

        Raises
        ------
        TakenOverError
            If another run has one of them.
        ConfigurationError
            If one of them cannot be read.
        """
        for place, seen in self._seen.items():
            # Only a file that has changed is opened: this is asked in every round.
            if seen.owner == self._token and _stamp(place) != seen.stamp:
                self._require(place, _known_owner_of(place))

    def _require(self, place: str, owner: str | None) -> None:
        """Require an owner; a file that was removed is written again."""
        if owner == _DAMAGED != self._seen[place].owner:
            what = f"{shown(place)} holds no saved run any more: something else has written there"
            advice = "or the disk is damaged; this run ends, because nobody can say which rounds were done from it."
            raise TakenOverError(f"{what}, {advice} Resume from an earlier copy")
        if owner is not None and owner != self._seen[place].owner:
            raise TakenOverError(
                f"{shown(place)} is another run's now, which was resumed from it or begun there after this run had "
                "saved it; this run ends, so that no round is done, or released, by both. Go on with the other one, or "
                "end it and resume from the file"
            )


def _known_owner_of(path: FilePath) -> str | None:
    """Return the token of the run that wrote a file, without which no run may go on."""
    try:
        return owner_of(path)
    except OSError as error:
        raise ConfigurationError(
            f"{shown(path)} cannot be read: {error.strerror or error}. Nobody can say whether another run goes on from "
            "it, so this one does not; make the file and its folder readable, and resume from it"
        ) from error


def _stamp(path: FilePath) -> tuple[int, int, int] | None:
    # Of a name that no file can have, the reader says so.
    with suppress(OSError, ValueError):
        about = os.stat(path)
        return about.st_ino, about.st_mtime_ns, about.st_size
    return None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, where the file system has one; where it has none, the token alone decides."""
    handle = -1
    try:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
        deadline = time.monotonic() + _PATIENCE
        while fcntl is not None and handle >= 0:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    text = f"another process has been writing there for {_PATIENCE:.0f} seconds"
                    raise OSError(11, text, str(folder)) from None
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        if handle >= 0:
            os.close(handle)


class Keeping:
    """The half of a :class:`~flwr_fco.server.run.Run` that reads and writes files."""

    strategy: Any
    state: Any
    private_mean: Any
    #: Returns the model.
    primal_arrays: Callable[[], ArrayRecord]
    #: Returns the state, the arrays that pass through, and all parts; goes on from them.
    _saved: Callable[[], Saved]
    _take: Callable[[Saved], None]

    def _forget_files(self) -> None:
        self.progress: Progress | None = None
        self.claims = Claims()
        #: The file from which the state was restored, if it was.
        self.came_from: FilePath | None = None
        self._kept: Saved | None = None
        self._settings_digest, self._loaded = "", False

    def save(self, path: FilePath) -> None:
        """Save the state and the current run to an ``.npz`` file; see this module.

        Raises
        ------
        TakenOverError
            If the file is another run's now.
        """
        if self.state is None:
            raise ConfigurationError("there is no state to save before the first round; call `prepare` or `start`")
        saved = self._saved()
        if self.progress is not None:
            saved.parts[_RUN] = self.progress.to_arrays()
        arrays = {_STATE + name: np.asarray(value) for name, value in saved.state._asdict().items()}
        arrays.update({_PASS + name: value for name, value in saved.pass_through.items()})
        for part, values in saved.parts.items():
            arrays.update({f"{_PARTS}{part}/{name}": value for name, value in values.items()})
        about = {_SETTINGS: self._settings_digest, _FORMAT: _VERSION, _OPTIONS: options_text(self.strategy)}
        arrays.update({name: np.array(value) for name, value in about.items()})
        self.claims.write(path, partial(_write, path, arrays, secret=self.private_mean is not None))

    def move_on(self) -> None:
        """Save a resumed private run to the file that it comes from: nobody can release its rounds again from there.

        Raises
        ------
        TakenOverError
            If another run has the file.
        """
        if self.private_mean is not None and self.came_from is not None:
            self.save(self.came_from)

    def load(self, path: FilePath) -> None:
        """Restore a state that :meth:`save` wrote; call :meth:`prepare` with the same model first.

        Use it for evaluation, and for rounds run by hand; to continue a run, use ``start(..., resume=path)``.

        Raises
        ------
        ConfigurationError
            If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged;
            the strategy is then unchanged.
        """
        self.claims.see(path)
        self._restore(path, self.read_state(path))
        self._loaded, self.came_from = True, path

    def resume(self, path: FilePath, progress: Progress) -> None:
        """Restore an unfinished run that :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            The file.
        progress : Progress
            Progress of the resumed run; modified.
        """
        self.claims.see(path)
        saved = self.read_state(path)
        if not saved.parts[_RUN]:
            what = f"{shown(path)} holds a state without the run that it is of, so there is nothing to go on with"
            raise ConfigurationError(f"{what}; expected a file of flwr_fco.callbacks.Checkpoint")
        self._restore(path, saved, progress)
        self.came_from = path
        if self.private_mean is not None:
            # Whoever goes on from a private run has its file, so that its rounds are released once.
            self.claims.wanted.append(path)

    def read_state(self, path: FilePath) -> Saved:
        """Read a file that :meth:`save` wrote for this strategy and model; nothing changes.

        Parameters
        ----------
        path : path-like
            The file.

        Raises
        ------
        ConfigurationError
            If the file comes from other settings (regularizer, seed, local work, ...) or another model, or is damaged.
        FileNotFoundError
            If there is no such file.
        """
        if self.state is None:
            raise ConfigurationError("call `prepare(initial_arrays)` before `load`: it sets the model's layout")
        like = self._saved()
        like.parts[_RUN] = {}
        where = shown(path)
        try:
            arrays = read_npz(path)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. Take an earlier copy") from error
        _check_origin(where, arrays, self._settings_digest, options_text(self.strategy))
        try:
            return _content(arrays, like)
        except (KeyError, ValueError) as error:
            what = f"{where} does not hold a state of this strategy"
            raise ConfigurationError(f"{what}: {error}. Resume with the strategy that wrote it") from error

    def keep_state(self) -> None:
        """Keep a copy of the state, for :meth:`roll_back`."""
        self._kept = self._saved().copy()

    def roll_back(self) -> ArrayRecord:
        """Restore the state that was kept last, and return its model."""
        assert self._kept is not None
        self._take(self._kept.copy())
        return self.primal_arrays()

    def _restore(self, path: FilePath, saved: Saved, progress: Progress | None = None) -> None:
        before = self._saved()
        try:
            self._take(saved)
            if progress is not None:
                progress.from_arrays(saved.parts[_RUN])
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            self._take(before)
            raise ConfigurationError(f"{shown(path)} is not a state of this strategy: {error!r}") from error
