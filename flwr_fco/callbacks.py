"""Callbacks for ``start`` and ``simulate``: early stopping and checkpoints.

A callback is a function ``(round, arrays, metrics) -> bool or None``, called after each round with the averaged metrics
of training, or an object with any methods of :class:`Callback`, which gets all numbers of the round.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from glob import escape
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.computing import logger
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, check_fields, checked, of_type, refusing
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.results import Number, Result
from flwr_fco.strategies.rounds import Answer
from flwr_fco.strategies.strategy import CompositeStrategy, run_of

if sys.platform != "win32":
    import fcntl

__all__ = ["Callback", "Checkpoint", "EarlyStopping"]

#: In names of metrics of which larger values are better.
_LARGER = re.compile(r"acc|auc|concordance|f1|precision|r2|recall")
Score = Callable[[ArrayRecord], float]


class Callback:
    """Base class for your own callbacks; its methods do nothing.

    Metrics have the names of :meth:`flwr_fco.results.Result.rows`: ``train/density``, ``evaluate/loss``,
    ``server/loss``. They include the metrics that earlier callbacks in the list have added in this round.

    Examples
    --------
    >>> import time
    >>> class Slowest(Callback):
    ...     longest = 0.0
    ...     def on_round_begin(self, server_round, arrays):
    ...         self.began = time.perf_counter()
    ...     def on_round_end(self, server_round, arrays, metrics):
    ...         self.longest = max(self.longest, time.perf_counter() - self.began)
    ...         return False, {"slowest": self.longest}
    """

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Act before round 1; the strategy is already prepared.

        Parameters
        ----------
        strategy : CompositeStrategy
            The strategy of the run.
        num_rounds : int
            Number of rounds in the whole run.
        """

    def on_round_begin(self, server_round: int, arrays: ArrayRecord) -> None:
        """Act before a round's messages are made.

        Parameters
        ----------
        server_round : int
            From 1.
        arrays : ArrayRecord
            The model.
        """

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> Answer:
        """Return whether to stop, alone or in a pair with metrics to add to the result.

        Parameters
        ----------
        server_round : int
            The round, from 1.
        arrays : ArrayRecord
            The model after the round, with which the next one begins: what is written into it is sent, or an error.
        metrics : mapping of str to number
            All numbers of the round.
        """
        return None

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run: it can be resumed from the file that ``strategy.saved.save(path)`` writes now.

        Called before round 1, after each round, in a private run also after the replies of a round are aggregated, and
        once more when an error between two rounds ends the run. A custom callback with the methods ``to_arrays()``,
        which returns a mapping of names to arrays, and ``from_arrays(arrays)`` is saved too; ``from_arrays`` is called
        after :meth:`on_run_begin`.

        Parameters
        ----------
        server_round : int
            Last round with aggregated replies; 0 before round 1.
        last : bool
            Whether this is the last call.
        """

    def on_run_end(self, result: Result) -> None:
        """Act after the last round, also if the run ended with an error.

        Parameters
        ----------
        result : Result
            The result so far.
        """


@refusing
@dataclass(repr=False, eq=False)
class EarlyStopping(Callback):
    """Ends a run when the model stops moving, is certified to be good enough, or stops improving.

    Pass exactly one of the three, or `certificate` with `tol`:

    - ``EarlyStopping(tol=1e-6)``: ||w_r - w_{r-1}|| <= tol max(1, ||w_r||) in `patience` successive rounds. With
      minibatches and constant rates a model never stops moving; a round that is skipped does not count.
    - ``EarlyStopping(tol=1e-3, certificate=gap)``: ``gap(arrays) <= tol``. A duality gap bounds the distance of the
      objective to its minimum; ``certificate="train/duality-gap"`` takes it from a strategy with `certificate_every`,
      if it is of the data of all connected clients.
    - ``EarlyStopping(validation="evaluate/loss")``: no new best value in `patience` successive checks.

    Parameters
    ----------
    tol : float, optional
        Finite, >= 0.
    certificate : callable or str, optional
        ``(arrays) -> float``, or the name of a metric of the round.
    validation : callable or str, optional
        ``(arrays) -> float``, or the name of a metric of the round. Rounds without the metric are ignored.
    patience : int, default 10
        Number of successive rounds or checks; not used by a certificate, for which one is enough.
    every : int, default 1
        Rounds between two checks.
    mode : {"min", "max"}, optional
        Whether a smaller or a larger validation score is better. By default smaller; a metric that is named as one of
        which larger values are better, such as ``"evaluate/accuracy"``, needs it.

    Attributes
    ----------
    stopped : int
        Round after which the callback ended the run; 0 if it did not.
    best : float
        Best validation score; NaN without one.
    best_arrays : ArrayRecord or None
        Model with the best score.

    Raises
    ------
    ConfigurationError
        If there is nothing to check, or an argument is out of range.

    Examples
    --------
    >>> stopping = EarlyStopping(validation="evaluate/loss", patience=2)
    >>> losses = [3.0, 2.0, 2.5, 2.4]
    >>> [stopping.on_round_end(n, ArrayRecord(), {"evaluate/loss": loss})[0] for n, loss in enumerate(losses)]
    [False, False, False, True]
    >>> stopping.best
    2.0
    """

    tol: float | None = field(default=None, metadata=NON_NEGATIVE)
    _: KW_ONLY
    certificate: Score | str | None = None
    validation: Score | str | None = None
    patience: int = field(default=10, metadata=AT_LEAST_ONE)
    every: int = field(default=1, metadata=AT_LEAST_ONE)
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        named = {"certificate": self.certificate, "validation": self.validation}
        if (self.tol is None) == (self.validation is None) or (self.certificate is not None and self.tol is None):
            wrong = ", ".join(f"{name}={given!r}" for name, given in {"tol": self.tol, **named}.items())
            raise ConfigurationError(f"{wrong}; expected tol, or tol and certificate, or validation")
        check_fields(self)
        if self.mode is None and isinstance(self.validation, str) and _LARGER.search(self.validation):
            prefix = f"validation={self.validation!r} looks like a score of which larger values are better"
            raise ConfigurationError(f'{prefix}; expected mode="max" if they are, else mode="min"')
        self._kind, self._looks_at = next((pair for pair in named.items() if pair[1] is not None), ("change", None))
        #: By which another one, with which it has changed places since a run was saved, does not take its numbers.
        self._about = f"{self._kind} of {self._looks_at if isinstance(self._looks_at, str) else 'the model'}"
        # Not that of a subclass, whose hook expects a run.
        EarlyStopping.on_run_begin(self)

    def on_run_begin(self, strategy: CompositeStrategy | None = None, num_rounds: int = 0) -> None:
        """Forget the previous run."""
        self.stopped = self._waited = 0
        self.best = math.nan
        self._seen = False
        self.best_arrays: ArrayRecord | None = None
        self._before: NDArray[np.float64] | None = None

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> Answer:
        """Check a round; adds the metric ``change`` or ``certificate``."""
        value = None if server_round % self.every else self._value(arrays, metrics)
        if value is None:
            return False, {}
        if self.tol is None:
            sign = -1.0 if self.mode == "max" else 1.0
            # The first score is better than none, but one that is NaN is never the best.
            done = math.isnan(value) or sign * value >= sign * self.best
            if not done:
                self.best, self.best_arrays = value, arrays.copy()
        else:
            # A metric says how many clients' data it is of; a part of those connected certifies nothing of the rest.
            covered, connected = (metrics.get(f"train/certificate-{name}", 0) for name in ("clients", "of"))
            done = value <= self.tol and not (isinstance(self._looks_at, str) and covered < connected)
        self._waited = self._waited + 1 if done else 0
        stop = self._waited >= (self.patience if self.certificate is None else 1)
        self.stopped = server_round if stop else 0
        return stop, {} if self.tol is None or isinstance(self._looks_at, str) else {self._kind: value}

    def on_run_end(self, result: Result) -> None:
        """Warn if the metric to check was missing in all rounds."""
        if isinstance(self._looks_at, str) and not self._seen and (rows := result.rows()):
            names = ", ".join(sorted(set().union(*rows)))
            logger.warning("EarlyStopping looks at %r, which no round had; they had %s", self._looks_at, names)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state to save."""
        arrays = {self._about: np.array([self.stopped, self.best, self._waited, self._seen])}
        arrays |= {} if self._before is None else {"before": self._before}
        return arrays | {f"best/{name}": array.numpy() for name, array in (self.best_arrays or {}).items()}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`to_arrays` returned."""
        self._before = np.asarray(arrays["before"], np.float64).ravel() if "before" in arrays else None
        stopped, self.best, waited, seen = arrays[self._about].tolist()
        self.stopped, self._waited, self._seen = int(stopped), int(waited), bool(seen)
        best = {name.removeprefix("best/"): Array(value) for name, value in arrays.items() if name.startswith("best/")}
        self.best_arrays = ArrayRecord(best) if best else None

    def _value(self, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> float | None:
        """Return what is checked of a round; None if it has nothing to check."""
        if self._looks_at is None:
            return None if metrics.get("train/skipped") else self._change(arrays)
        if isinstance(self._looks_at, str):
            self._seen = self._seen or self._looks_at in metrics
            near = " or ".join(repr(n) for n in metrics if not self._seen and n.endswith(f"/{self._looks_at}"))
            if near:
                raise ConfigurationError(f"{self._kind}={self._looks_at!r} is no metric of a round; give {near}")
            return float(metrics[self._looks_at]) if self._looks_at in metrics else None
        found: Any = self._looks_at(arrays)
        with in_words(f"{self._kind} returned {of_type(found)}; expected a number", ConfigurationError):
            return float(found)

    def _change(self, arrays: ArrayRecord) -> float | None:
        values = [array.numpy().ravel() for array in arrays.values() if array.dtype.startswith("float")]
        w = np.concatenate([np.zeros(0), *values])
        before, self._before = self._before, w
        if before is None or before.size != w.size:
            return None
        change = float(np.linalg.norm(w - before)) / max(1.0, float(np.linalg.norm(w)))
        return change if math.isfinite(change) else None


@refusing
class Checkpoint(Callback):
    """Saves the run every few rounds, so that it can be resumed after it was stopped or killed.

    ``strategy.start(..., resume=path)``, or ``simulate(..., resume=path)``, goes on with the run, to the bits of an
    uninterrupted one. The file holds the strategy's state, the clients' memories, the metrics so far, the state of
    callbacks (:class:`EarlyStopping`, and your own with ``to_arrays`` and ``from_arrays``) and, in one process, the
    clients' contexts. It is written when a round is over, before round 1 and after the last round; of a private run
    also before anything about a round is published. The new file is written next to the old one and then replaces it,
    so there is always a complete file, even if the process is killed.

    While a run saves itself to a file, a lock file beside it (``.lock``) keeps all others from it.

    Parameters
    ----------
    path : path-like
        File name ending in ``.npz``. An existing file must be a checkpoint of the same strategy and model; unless the
        run resumes from it, it is replaced after the first `every` rounds.
    every : int, default 10
        Rounds between two saves.

    Attributes
    ----------
    saved_round : int
        Round of the saved file; 0 before the first save.

    Examples
    --------
    >>> checkpoint = Checkpoint("run.npz", every=5)
    >>> resume = checkpoint.path if checkpoint.path.exists() else None
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 10) -> None:
        self.every = checked("every", every, int, AT_LEAST_ONE)
        self.saved_round = 0
        self.path = Path(checked("path", path, str | os.PathLike))
        if self.path.suffix != ".npz":
            raise ConfigurationError(f"path={os.fspath(path)!r}; expected the name of a file that ends in .npz")
        self._saved: Any = None
        self._lock: IO[str] | None = None

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Take the path for this run.

        Raises
        ------
        ConfigurationError
            If the path cannot be written, another run saves itself there, or it holds anything else than a checkpoint
            of this strategy and model.
        """
        self._saved = strategy.saved
        self.saved_round = 0
        self._take()
        self._others = self.path.exists()
        if not self._others:
            return
        try:
            tree = self._saved.read(self.path)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. It is not overwritten: give another path, or remove it") from error
        private = tree["parts"].get("privacy")
        released = getattr(run_of(strategy).privacy, "round", 0)
        if private is not None and private["round"] != released:
            prefix = f"{self.path} is of a private run that released {private['round']} rounds, and this one {released}"
            advice = "Resume from that file; for a run whose epsilon adds to that one's give another path"
            raise ConfigurationError(f"{prefix}: the clients' privacy would be spent again. {advice}")

    def _take(self) -> None:
        """Hold the lock file; the system lets go of it when this process ends, however it does."""
        with in_words(f"path={str(self.path)!r}", ConfigurationError, "; give a folder that can be written"):
            # One file has one lock, by whichever path, and a link to it stays one.
            self._file = file = Path(os.path.realpath(self.path))
            file.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(f"{file}.lock", "a")  # noqa: SIM115 (held as long as the run)
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"another run saves itself to {self.path}; wait until it ends") from None
        except OSError as error:
            # Some network file systems have no locks.
            logger.warning("%s.lock cannot be locked (%s): let no other run save itself there", self.path, error)
            self._lock = None
        else:
            # A process that was killed while it saved has left half a file, as large as this one.
            for partial in file.parent.glob(f".{escape(file.name[-50:])}.{'[0-9a-f]' * 16}.partial"):
                with suppress(OSError):
                    partial.unlink()

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run if it is due; log a failure and continue (a private run ends)."""
        saved = self._saved
        due = last or saved.private or server_round % self.every == 0
        # A run that has done nothing does not replace the file of an earlier run with the same settings.
        if not due or (server_round == 0 and self._others):
            return
        try:
            saved.save(self._file)
            self.saved_round = server_round
        except OSError as error:
            if saved.private:
                raise
            logger.warning("%s could not be saved after round %s: %s", self.path, server_round, error)

    def on_run_end(self, result: Result) -> None:
        """Let go of the path."""
        if self._lock is not None:
            if sys.platform != "win32":
                # A process that was forked in the run, as a DataLoader's worker, has the file open too.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._lock.close()
        self._lock = self._saved = None
