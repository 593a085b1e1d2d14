"""The journal of a run: its progress, the cost of each communication, and which coefficients were nonzero."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.callbacks import Checkpoint
from flwr_fco.models import parse_json
from flwr_fco.results import Result
from reproduction.runs.recorder import Recorder
from reproduction.runs.run_folder import RunFolder, RunStatus, SupportHistory

#: Seconds between two checkpoints: the most that a killed run loses.
INTERVAL = 10.0
#: Maximum numbers of rounds and cells in the picture of the support.
_MOMENTS, _CELLS = 100, 256


class TimedClientApp(ClientApp):
    """A ClientApp that adds up the seconds that the clients take.

    Parameters
    ----------
    app : ClientApp

    Attributes
    ----------
    seconds : float
    """

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app
        self.seconds = 0.0

    def __call__(self, message: Message, context: Context) -> Message:
        """Call the app and measure the time."""
        began = time.perf_counter()
        try:
            return self._app(message, context)
        finally:
            self.seconds += time.perf_counter() - began


def support_shares(coefficients: NDArray[Any], cells: int = _CELLS) -> NDArray[np.float32]:
    """Return the nonzero share of each cell of an array.

    Parameters
    ----------
    coefficients : ndarray
        Read row by row.
    cells : int, default 256
        Maximum number of cells; a cell is one coefficient if there are at most that many, else several neighbours.

    Returns
    -------
    ndarray of float32, shape (min(size, cells),)

    Examples
    --------
    >>> support_shares(np.array([[0.0, 1.0], [2.0, 3.0]]), cells=2).tolist()
    [0.5, 1.0]
    """
    nonzero = (coefficients.reshape(-1) != 0).astype(np.float32)
    count = min(nonzero.size, cells)
    edges = np.linspace(0, nonzero.size, count + 1).astype(np.int64)
    return (np.add.reduceat(nonzero, edges[:-1]) / np.diff(edges)).astype(np.float32)


class Journal(Checkpoint):
    """Writes a run's folder as the run goes on, so that it can be stopped, or killed, and resumed.

    A private run is saved at every save point, or it would repeat rounds that it has released; and nothing is kept of
    what its clients sent.

    Parameters
    ----------
    folder : RunFolder
    recorder : Recorder
        Recorder of the run, which writes the metrics; the callback before this one.
    clients : TimedClientApp
    stop : callable
        Called after each communication; returns whether to end the run.

    Attributes
    ----------
    status : RunStatus
        Status at the last checkpoint.
    stopped : bool
        Whether `stop` has ended the run.
    """

    def __init__(
        self, folder: RunFolder, recorder: Recorder, clients: TimedClientApp, stop: Callable[[], bool]
    ) -> None:
        super().__init__(folder.path / "state.npz", every=1)
        self.folder, self.recorder, self.clients, self.stop = folder, recorder, clients, stop
        self.status, self.stopped = RunStatus(), False
        self._private = getattr(recorder.strategy, "privacy", None) is not None
        self._exchanges: list[dict[str, float]] = []
        self._rounds: list[int] = []
        self._shares: list[NDArray[np.float32]] = []
        self._every = -(-recorder.settings.exchanges // _MOMENTS)
        self._evaluation = self._seconds = 0.0
        #: The model to save with the state, if it is time, and whether it is the last one.
        self._due: tuple[ArrayRecord, bool] | None = None
        self._began = self._saved_at = time.perf_counter()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the folder gets beside the metrics."""
        lines = np.array(json.dumps([self._seconds, self._exchanges]))
        return {"lines": lines, "rounds": np.array(self._rounds), "shares": np.array(self._shares)}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        self._seconds, self._exchanges = parse_json(str(arrays["lines"]))
        self._rounds, self._shares = arrays["rounds"].tolist(), list(arrays["shares"])

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate with the recorder and measure the time."""
        began = time.perf_counter()
        try:
            return self.recorder.evaluate(server_round, arrays)
        finally:
            self._evaluation += time.perf_counter() - began

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Any]) -> None:
        """Record the cost of a communication and the support; note whether to save and to stop."""
        self.stopped = self.stop()
        finished = bool(self.recorder.diverged) or self.recorder.is_last(server_round)
        self._keep_costs(server_round, metrics)
        if server_round % self._every == 0 or finished:
            self._rounds.append(server_round)
            self._shares.append(support_shares(self._coefficients(arrays)))
        if finished or self.stopped or time.perf_counter() - self._saved_at > INTERVAL:
            self._due = (arrays, finished)

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run if it is time, and end it if it was told to stop."""
        due, self._due = self._due, None
        finished = due is not None and due[1]
        if (due is not None and not finished) or (self._private and not self.stopped):
            super().on_save_point(server_round, True)
        if due is None:
            return
        seconds = round(self._seconds, 3)
        self.status = RunStatus(server_round, finished, self.recorder.diverged, seconds, self.recorder.chosen)
        costs = () if self._private else self._exchanges
        support = SupportHistory(np.array(self._rounds, dtype=np.int64), np.array(self._shares, dtype=np.float32))
        self.folder.save_left_out(self.recorder.left_out)
        model = {name: array.numpy() for name, array in due[0].items()}
        self.folder.checkpoint(self.status, model, costs, None if self._private else support)
        if finished:
            self.path.unlink(missing_ok=True)
        # The time for writing does not count for any round.
        self._began = self._saved_at = time.perf_counter()
        if self.stopped and not finished:
            raise KeyboardInterrupt

    def on_run_end(self, result: Result) -> None:
        """Let go of the file; a run that is over leaves nothing of it."""
        if not self.path.exists():
            Path(f"{self.path}.lock").unlink(missing_ok=True)
        super().on_run_end(result)

    def _coefficients(self, arrays: ArrayRecord) -> NDArray[Any]:
        """Return the coefficients, or all arrays that psi acts on if the model has no array of that name."""
        layout = self.recorder.task.layout
        names = ("coefficients",) if "coefficients" in arrays else layout.regularized_names or tuple(arrays)
        return np.concatenate([arrays[name].numpy().reshape(-1) for name in names])

    def _keep_costs(self, server_round: int, metrics: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        total = now - self._began
        self._seconds += total
        names = ("bytes-down", "bytes-up", "num-replies", "num-left-out", "skipped")
        line = {key: int(metrics[f"train/{key}"]) for key in names if f"train/{key}" in metrics}
        clients, evaluation = self.clients.seconds, self._evaluation
        times = {"clients": clients, "server": total - clients - evaluation, "evaluation": evaluation}
        seconds = {f"{part}-seconds": round(value, 6) for part, value in times.items()}
        self._exchanges.append({"round": server_round, **line, **seconds})
        self.clients.seconds = self._evaluation = 0.0
        self._began = now
