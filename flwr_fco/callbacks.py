"""Callbacks for ``start`` and ``simulate``: early stopping, metric files, progress, trackers, checkpoints.

A callback is a function ``(round, arrays, metrics) -> bool or None``, called after each round with the averaged metrics
of training, or an object with any methods of :class:`Callback`, which gets all numbers of the round.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from io import StringIO
from logging import WARNING
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np
from flwr.app import Array, ArrayRecord

from flwr_fco.core.files import append_text, read_text, write_file
from flwr_fco.core.logs import log
from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, checked, saved_array
from flwr_fco.errors import ConfigurationError
from flwr_fco.results import Number, Result, write_csv
from flwr_fco.server.rounds.hooks import Answer
from flwr_fco.server.run import Run
from flwr_fco.server.strategy import CompositeStrategy, run_of

__all__ = [
    "Callback",
    "Checkpoint",
    "Csv",
    "EarlyStopping",
    "JsonLines",
    "MLflow",
    "Progress",
    "TensorBoard",
    "WandB",
]

#: Numbers of clients whose data a certificate covers, and of those that are connected.
_COVERED, _CONNECTED = "train/certificate-clients", "train/certificate-of"
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
            The model after the round.
        metrics : mapping of str to number
            All numbers of the round.
        """
        return None

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run: it can be resumed from the file that ``run_of(strategy).save(path)`` writes now.

        Called before round 1, after the replies of a round are aggregated, after each round, and once more when an
        error ends the run. A custom callback with the methods ``to_arrays()``, which returns a mapping of names to
        arrays, and ``from_arrays(arrays)`` is saved too; ``from_arrays`` is called after :meth:`on_run_begin`.

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
    mode : {"min", "max"}, default "min"
        Whether a smaller or a larger validation score is better.

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

    def __init__(
        self,
        tol: float | None = None,
        *,
        certificate: Score | str | None = None,
        validation: Score | str | None = None,
        patience: int = 10,
        every: int = 1,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        if (tol is None) == (validation is None) or (certificate is not None and tol is None):
            wrong = f"tol={tol!r}, certificate={certificate!r}, validation={validation!r}; expected tol"
            raise ConfigurationError(f"{wrong} (what the model may still move), or tol and certificate, or validation")
        for name, value in {"certificate": certificate, "validation": validation}.items():
            if not isinstance(value, str | None) and (not callable(value) or isinstance(value, type)):
                what = f"{name}={value!r}; expected a function of the arrays"
                raise ConfigurationError(f"{what}, or the name of a metric such as 'evaluate/loss'")
        self.tol: float | None = checked("tol", tol, float | None, NON_NEGATIVE)
        self.certificate, self.validation = certificate, validation
        self.patience: int = checked("patience", patience, int, AT_LEAST_ONE)
        self.every: int = checked("every", every, int, AT_LEAST_ONE)
        self.mode = checked("mode", mode, Literal["min", "max"])
        self._begin()

    def _begin(self) -> None:
        self.stopped, self.best, self._waited, self._seen = 0, math.nan, 0, False
        self.best_arrays: ArrayRecord | None = None
        self._before: np.ndarray[Any, np.dtype[np.float64]] | None = None

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Forget the previous run."""
        self._begin()

    def on_round_end(
        self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]
    ) -> tuple[bool, dict[str, Number]]:
        """Check a round; adds the metric ``change`` or ``certificate``."""
        if server_round % self.every:
            return False, {}
        added: dict[str, Number] = {}
        tol, looks_at = float(self.tol or 0.0), self.certificate if self.validation is None else self.validation
        value = self._change(arrays) if looks_at is None else self._look(looks_at, arrays, metrics)
        if self.validation is not None:
            stop = self._no_longer_improves(value, arrays)
        elif self.certificate is not None:
            # A metric says whose data it is of; a part of them certifies nothing of the rest.
            part = isinstance(self.certificate, str) and metrics.get(_COVERED, 0) < metrics.get(_CONNECTED, 0)
            stop = value is not None and value <= tol and not part
            if value is not None and callable(self.certificate):
                added["certificate"] = value
        else:
            if metrics.get("train/skipped"):
                return False, {}
            # None: no model before this one.
            self._waited = self._waited + 1 if value is not None and value <= tol else 0
            stop = self._waited >= self.patience
            added |= {} if value is None else {"change": value}
        self.stopped = server_round if stop else 0
        return stop, added

    def on_run_end(self, result: Result) -> None:
        """Warn if the metric to check was missing in all rounds."""
        name = self.validation or self.certificate
        if isinstance(name, str) and not self._seen:
            names = sorted(set().union(*result.rows()))
            log(WARNING, "EarlyStopping looks at %r, which no round had; they had %s", name, ", ".join(names))

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state to save."""
        arrays = {"numbers": np.array([self.stopped, self.best, self._waited, self._seen])}
        if self._before is not None:
            arrays["before"] = self._before
        return arrays | {f"best/{name}": array.numpy() for name, array in (self.best_arrays or {}).items()}

    def from_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the state that :meth:`to_arrays` returned."""
        self._before = saved_array(arrays, "before", np.float64, (None,)) if "before" in arrays else None
        stopped, self.best, waited, seen = arrays["numbers"].tolist()
        self.stopped, self._waited, self._seen = int(stopped), int(waited), bool(seen)
        best = {name.removeprefix("best/"): Array(value) for name, value in arrays.items() if name.startswith("best/")}
        self.best_arrays = ArrayRecord(best) if best else None

    def _look(self, what: Score | str, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> float | None:
        if not isinstance(what, str):
            return _score_of("certificate" if self.validation is None else "validation", what, arrays)
        self._seen = self._seen or what in metrics
        return float(metrics[what]) if what in metrics else None

    def _change(self, arrays: ArrayRecord) -> float | None:
        values = [array.numpy() for array in arrays.values()]
        w = np.concatenate([np.zeros(0), *(v.reshape(-1).astype(np.float64) for v in values if v.dtype.kind == "f")])
        before, self._before = self._before, w
        if before is None or before.size != w.size:
            return None
        change = float(np.linalg.norm(w - before)) / max(1.0, float(np.linalg.norm(w)))
        return change if math.isfinite(change) else None

    def _no_longer_improves(self, score: float | None, arrays: ArrayRecord) -> bool:
        if score is None:
            return False
        # A score that is NaN is no best value, not even the first.
        first = math.isnan(self.best) and not math.isnan(score)
        if first or (score < self.best if self.mode == "min" else score > self.best):
            self.best, self.best_arrays, self._waited = score, arrays, 0
        else:
            self._waited += 1
        return self._waited >= self.patience


class _File(Callback):
    """Appends the numbers of each round to a file; a resumed run keeps the lines of the earlier rounds."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def to_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the content of the file; nothing of a pipe or a device, which may have no end."""
        if self.path.exists() and not self.path.is_file():
            return {}
        return {"file": np.frombuffer(self.path.read_bytes(), dtype=np.uint8)}

    def from_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the file as it was when the run was saved."""
        write_file(self.path, arrays["file"].tobytes())


class JsonLines(_File):
    r"""Appends a line with the numbers of each round to a file during the run.

    Parameters
    ----------
    path : path-like
        An existing file is replaced when a run begins.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "run.jsonl")
    >>> lines = JsonLines(path)
    >>> lines.on_run_begin(None, 1)
    >>> lines.on_round_end(1, ArrayRecord(), {"train/density": 0.5})
    >>> path.read_text()
    '{"round": 1, "train/density": 0.5}\n'
    """

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Start a new file."""
        write_file(self.path, "")

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> None:
        """Append a line."""
        append_text(self.path, json.dumps({"round": server_round, **metrics}) + "\n")


class Csv(_File):
    """Appends a row with the numbers of each round to a CSV file during the run.

    A metric that first appears in a later round gets its own column, for which the file is rewritten.

    Parameters
    ----------
    path : path-like
        An existing file is replaced when a run begins.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     rows = Csv(f"{folder}/run.csv")
    ...     rows.on_run_begin(None, 1)
    ...     rows.on_round_end(1, ArrayRecord(), {"train/density": 0.5})
    ...     print(rows.path.read_text().split())
    ['round,train/density', '1,0.5']
    """

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Start a new file."""
        self._rows: list[dict[str, Any]] = []
        self._names: list[str] = []
        write_file(self.path, "")

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> None:
        """Append a row."""
        row: dict[str, Number] = {"round": server_round, **metrics}
        self._rows.append(row)
        if set(row) <= set(self._names):
            append_text(self.path, ",".join(str(row.get(name, "")) for name in self._names) + "\r\n")
            return
        self._names = list(dict.fromkeys([*self._names, *row]))
        write_csv(self._rows, self.path)

    def from_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().from_arrays(arrays)
        self._rows = list(csv.DictReader(StringIO(read_text(self.path), newline="")))
        self._names = list(self._rows[0]) if self._rows else []


class Progress(Callback):
    """Prints a line every few rounds: the round and some of its numbers.

    Parameters
    ----------
    every : int, default 10
        Rounds between two lines; the last round always gets a line.
    names : sequence of str, optional
        Numbers to print; by default density, rank, feasibility and all losses.
    file : file object, optional
        Output stream; standard output by default.

    Examples
    --------
    >>> progress = Progress(every=1)
    >>> progress.on_run_begin(None, 20)
    >>> progress.on_round_end(3, ArrayRecord(), {"train/density": 0.25, "train/bytes-up": 800})
    round 3/20: train/density 0.25
    """

    def __init__(self, every: int = 10, *, names: Sequence[str] | None = None, file: IO[str] | None = None) -> None:
        # One name alone is not a sequence of letters.
        self.names = (names,) if isinstance(names, str) else names
        self.every, self.file = checked("every", every, int, AT_LEAST_ONE), file
        self._total = 0

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Note the number of rounds."""
        self._total = num_rounds

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> None:
        """Print a line if it is time."""
        if server_round % self.every and server_round != self._total:
            return
        shown = [f"{name} {value:.6g}" for name, value in metrics.items() if self._shows(name)]
        print(f"round {server_round}/{self._total}: {', '.join(shown)}", file=self.file)

    def _shows(self, name: str) -> bool:
        if self.names is not None:
            return name in self.names
        return name.rsplit("/", 1)[-1] in ("density", "rank", "feasible", "loss", "certificate", "epsilon")


class Checkpoint(Callback):
    """Saves the run every few rounds, so that it can be resumed after it was stopped or killed.

    ``strategy.start(..., resume=path)``, or ``simulate(..., resume=path)``, continues the run to the same bits as an
    uninterrupted one. The file holds the strategy's state, the metrics so far, the state of callbacks
    (:class:`EarlyStopping`, and your own with ``to_arrays`` and ``from_arrays``)
    and, in one process, the clients' memories. Over Flower, clients without a memory, and clients whose memories the
    server keeps (``client_state="ledger"``), continue to the same bits; others restart.

    The state is saved when the replies of a round are aggregated and again when the round is over; before round 1 and
    after the last round; and when an error ends the run, unless in the middle of a round. The new file is written next
    to the old one and then replaces it, so there is always a complete file, even if the process is killed.

    A file is one run's: a run that is resumed from it takes it, and one that had it ends with
    :class:`flwr_fco.errors.TakenOverError` before its next round. Copies of a file know nothing of each other.

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
        self.every, self.saved_round = checked("every", every, int, AT_LEAST_ONE), 0
        self.path = Path(checked("path", path, str | os.PathLike))
        if self.path.suffix != ".npz":
            raise ConfigurationError(f"path={os.fspath(path)!r}; expected the name of a file that ends in .npz")
        self._run: Run | None = None
        self._others = False

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Check that the path can be written, and that an existing file is a checkpoint of this strategy and model.

        Raises
        ------
        ConfigurationError
            If the path cannot be written, or holds anything other than a checkpoint of this strategy and model.
        """
        run = run_of(strategy)
        self._run, self.saved_round, self._others = None, 0, self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"path={str(self.path)!r}: {error}; give a folder that can be written") from error
        if not os.access(self.path.parent, os.W_OK):
            raise ConfigurationError(f"path={str(self.path)!r}: its folder cannot be written; give another one")
        goes_on = self._others and run.came_from is not None and os.path.samefile(run.came_from, self.path)
        if not goes_on:
            run.claims.see(self.path)
        if self._others:
            try:
                saved = run.read_state(self.path)
            except ConfigurationError as error:
                raise ConfigurationError(f"{error}. It is not overwritten: give another path, or remove it") from error
            private = run.private_mean
            if private is not None and (done := int(saved.parts["privacy"]["round"])) != private.round:
                raise ConfigurationError(
                    f"{self.path} is of a private run that has released {done} rounds, and this one goes on after "
                    f"round {private.round}: the clients' privacy would be spent again. Resume from that file; for a "
                    "run whose epsilon adds to that one's give another path"
                )
        if goes_on:
            # Of two that go on from a file the second has it; the first ends where it looks at it next.
            run.claims.wanted.append(self.path)
        self._run = run

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run if it is due; log a failure and continue (a private run ends)."""
        # A run that has done nothing does not replace the file of an earlier run with the same settings.
        private = self._run is not None and self._run.private_mean is not None
        due = (last or private or server_round % self.every == 0) and (server_round > 0 or not self._others)
        if self._run is None or not due:
            return
        try:
            self._run.save(self.path)
        except OSError as error:
            if private:
                raise
            log(WARNING, "%s could not be saved after round %s: %s", self.path, server_round, error)
        else:
            self.saved_round = server_round


class _Tracker(Callback):
    """Writes the numbers of each round with an optional library, imported first: it is missing before round 1."""

    _module: ClassVar[str]
    _package: ClassVar[str]
    #: Of a run: ``(name, value, round)``, and what ends it; none before it has begun.
    _log: Callable[[str, Number, int], Any]
    _close: Callable[[], Any] | None = None

    def __init__(self) -> None:
        try:
            self._library: Any = import_module(self._module)
        except ImportError as error:
            what = f"{type(self).__name__} needs {self._module}"
            raise ConfigurationError(f"{what}: pip install {self._package} (the extra [tracking])") from error

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> None:
        """Write the numbers."""
        for name, value in metrics.items():
            self._log(name, value, server_round)

    def on_run_end(self, result: Result) -> None:
        """End what was begun."""
        if self._close is not None:
            self._close()


class TensorBoard(_Tracker):
    """Writes the numbers of each round for TensorBoard, with tensorboardX.

    Parameters
    ----------
    folder : path-like
        Folder for ``tensorboard --logdir``, which also accepts a parent folder.

    Raises
    ------
    ConfigurationError
        If tensorboardX is not installed.
    """

    _module = _package = "tensorboardX"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Open the folder."""
        writer = self._library.SummaryWriter(str(self.folder))
        writer.add_text("strategy", repr(strategy), 0)
        self._log, self._close = writer.add_scalar, writer.close


class WandB(_Tracker):
    """Logs the numbers of each round to Weights & Biases.

    Parameters
    ----------
    **options
        Passed to ``wandb.init``, such as ``project="lasso"`` or ``mode="offline"``; the config has the strategy's repr.

    Raises
    ------
    ConfigurationError
        If wandb is not installed.
    """

    _module = _package = "wandb"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Begin a run."""
        config = {"strategy": repr(strategy), "num-rounds": num_rounds, **self.options.get("config", {})}
        self._run = self._library.init(**{**self.options, "config": config})
        self._close = self._run.finish

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> None:
        """Log the numbers."""
        self._run.log(dict(metrics), step=server_round)


class MLflow(_Tracker):
    """Logs the numbers of each round to MLflow.

    Parameters
    ----------
    tracking_uri : str, optional
        URI of a server or a local store; MLflow's own default otherwise.
    experiment : str, default "flwr-fco"
        Name of the experiment; created if it does not exist.
    run_name : str, optional
        Name of the run; MLflow's choice by default.

    Attributes
    ----------
    run_id : str
        Id of the last run that was begun; empty before.

    Raises
    ------
    ConfigurationError
        If MLflow is not installed.
    """

    _module, _package = "mlflow", "mlflow-skinny"

    def __init__(
        self, tracking_uri: str | None = None, *, experiment: str = "flwr-fco", run_name: str | None = None
    ) -> None:
        super().__init__()
        self.tracking_uri, self.experiment, self.run_name, self.run_id = tracking_uri, experiment, run_name, ""

    def on_run_begin(self, strategy: CompositeStrategy, num_rounds: int) -> None:
        """Begin a run."""
        # A separate client: the module's functions would share the active run with the user's code.
        client = self._library.MlflowClient(tracking_uri=self.tracking_uri)
        earlier = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if earlier is None else earlier.experiment_id
        self.run_id = client.create_run(experiment, run_name=self.run_name).info.run_id
        # MLflow cuts or refuses long parameters; a tag may be longer.
        client.set_tag(self.run_id, "strategy", repr(strategy)[:5000])
        client.log_param(self.run_id, "num-rounds", num_rounds)
        self._log = lambda name, value, step: client.log_metric(self.run_id, name, float(value), step=step)
        self._close = partial(client.set_terminated, self.run_id)


def _score_of(name: str, score: Score, arrays: ArrayRecord) -> float:
    """Return the score of a model from a user's function, after checking that it is a number."""
    found: Any = score(arrays)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} returned a {type(found).__name__}; expected a number") from error
