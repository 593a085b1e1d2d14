"""Whose a saved run is: of all processes that go on from a file, that which took it last."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flwr_fco.core.files import shown
from flwr_fco.errors import ConfigurationError, TakenOverError
from flwr_fco.server.rounds import saving

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
        self.wanted: list[str | os.PathLike[str]] = []

    def of_a_copy(self) -> Claims:
        """Return what a copy of the run knows: it has seen the same, and has none of it."""
        other = Claims()
        other._seen = dict(self._seen)
        return other

    def see(self, path: str | os.PathLike[str]) -> None:
        """Note whose a file is, before it is read or written.

        Parameters
        ----------
        path : path-like
            The file.
        """
        self._seen[os.path.abspath(path)] = _Seen(saving.owner_of(path), _stamp(path))

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
                self.write(path, partial(saving.give, path))
            except OSError as error:
                raise ConfigurationError(
                    f"{shown(path)} cannot be written: {error}. A run that goes on from a file records there what "
                    "it does; make the file and its folder writable, or move it to where they are"
                ) from error

    def write(self, path: str | os.PathLike[str], write: Callable[[str], None]) -> None:
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
                self._require(place, saving.owner_of(place))
            write(self._token)
            self._seen[place] = _Seen(self._token, _stamp(place))

    def check(self) -> None:
        """Require that the files that this run has are still its own.

        Raises
        ------
        TakenOverError
            If another run has one of them.
        """
        for place, seen in self._seen.items():
            # Only a file that has changed is opened: this is asked in every round.
            if seen.owner == self._token and _stamp(place) != seen.stamp:
                self._require(place, saving.owner_of(place))

    def _require(self, place: str, owner: str | None) -> None:
        """Require an owner; a file that was removed is written again."""
        if owner is not None and owner != self._seen[place].owner:
            raise TakenOverError(
                f"{shown(place)} is another run's now, which was resumed from it or begun there after this run had "
                "saved it; this run ends, so that no round is done, or released, by both. Go on with the other one, "
                "or end it and resume from the file"
            )


def _stamp(path: str | os.PathLike[str]) -> tuple[int, int, int] | None:
    with suppress(OSError):
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
