"""A run's files: what is saved of it, restored and gone back to, and by whom."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from flwr.app import ArrayRecord

from flwr_fco.errors import ConfigurationError
from flwr_fco.server.rounds import saving
from flwr_fco.server.rounds.hooks import Progress

#: Key of the current run in a saved state, next to the parts.
_RUN = "run"


class Keeping(ABC):
    """The half of a :class:`~flwr_fco.server.run.Run` that reads and writes files."""

    strategy: Any
    state: Any
    private_mean: Any

    def _forget_files(self) -> None:
        self.progress: Progress | None = None
        self.claims = saving.Claims()
        #: The file from which the state was restored, if it was.
        self.came_from: str | os.PathLike[str] | None = None
        self._kept: saving.Saved | None = None
        self._settings_digest, self._loaded = "", False

    @abstractmethod
    def primal_arrays(self) -> ArrayRecord:
        """Return the model."""

    @abstractmethod
    def _saved(self) -> saving.Saved:
        """Return the state, the arrays that pass through, and all parts."""

    @abstractmethod
    def _take(self, saved: saving.Saved) -> None:
        """Go on from a state."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state and the current run to an ``.npz`` file; see :mod:`flwr_fco.server.rounds.saving`.

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
        options, secret = saving.options_text(self.strategy), self.private_mean is not None
        digest = self._settings_digest
        self.claims.write(path, lambda owner: saving.write(path, digest, saved, options, secret=secret, owner=owner))

    def move_on(self) -> None:
        """Save a resumed private run to the file that it comes from: nobody can release its rounds again from there.

        Raises
        ------
        TakenOverError
            If another run has the file.
        """
        if self.private_mean is not None and self.came_from is not None:
            self.save(self.came_from)

    def load(self, path: str | os.PathLike[str]) -> None:
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

    def resume(self, path: str | os.PathLike[str], progress: Progress) -> None:
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
            raise ConfigurationError(
                f"{os.fspath(path)} holds a state without the run that it is of, so there is nothing to go on with; "
                "expected a file of flwr_fco.callbacks.Checkpoint"
            )
        self._restore(path, saved, progress)
        self.came_from = path
        if self.private_mean is not None:
            # Whoever goes on from a private run has its file, so that its rounds are released once.
            self.claims.wanted.append(path)

    def read_state(self, path: str | os.PathLike[str]) -> saving.Saved:
        """Read a file that :meth:`save` wrote for this strategy and model; nothing changes.

        Parameters
        ----------
        path : path-like
            The file.

        Raises
        ------
        ConfigurationError
            If the file is damaged, or comes from another strategy or model.
        """
        if self.state is None:
            raise ConfigurationError("call `prepare(initial_arrays)` before `load`: it sets the model's layout")
        like = self._saved()
        like.parts[_RUN] = {}
        return saving.read(path, self._settings_digest, like, saving.options_text(self.strategy))

    def keep_state(self) -> None:
        """Keep a copy of the state, for :meth:`roll_back`."""
        self._kept = self._saved().copy()

    def roll_back(self) -> ArrayRecord:
        """Restore the state that was kept last, and return its model."""
        assert self._kept is not None
        self._take(self._kept.copy())
        return self.primal_arrays()

    def _restore(self, path: str | os.PathLike[str], saved: saving.Saved, progress: Progress | None = None) -> None:
        before = self._saved()
        try:
            self._take(saved)
            if progress is not None:
                progress.from_arrays(saved.parts[_RUN])
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            self._take(before)
            raise ConfigurationError(f"{os.fspath(path)} is not a state of this strategy: {error!r}") from error
