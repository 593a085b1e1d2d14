"""The journal of a run: its progress, the cost of each communication, and which coefficients were nonzero."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.strategies import run_of
from reproduction.runs.recorder import Recorder
from reproduction.runs.run_folder import RunFolder, RunRecord, RunStatus, SupportHistory

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


class Journal:
    """Writes a run's folder as the run goes on, so that it can be stopped, or killed, and resumed.

    Parameters
    ----------
    folder : RunFolder
    recorder : Recorder
        Recorder of the run, which writes the metrics.
    clients : TimedClientApp
    stop : callable
        Called after each communication; returns whether to end the run.

    Attributes
    ----------
    status : RunStatus
        Status at the last checkpoint.
    """

    def __init__(
        self, folder: RunFolder, recorder: Recorder, clients: TimedClientApp, stop: Callable[[], bool]
    ) -> None:
        self.folder, self.recorder, self.clients, self.stop = folder, recorder, clients, stop
        self.status = folder.status()
        self._exchanges: list[dict[str, float]] = []
        self._rounds: list[int] = []
        self._shares: list[NDArray[np.float32]] = []
        self._every = -(-recorder.settings.exchanges // _MOMENTS)
        self._evaluation = 0.0
        #: The data to save after the round, if it is time.
        self._due: tuple[int, ArrayRecord, bool] | None = None
        self._seconds = self.status.seconds
        self._began = self._saved = time.perf_counter()

    def restore(self, known: RunRecord) -> None:
        """Restore the support history from before the run was stopped."""
        support = known.support
        if support is not None:
            kept = support.rounds <= self.status.exchanges
            self._rounds = support.rounds[kept].tolist()
            self._shares = list(support.share[kept])

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate with the recorder and measure the time."""
        began = time.perf_counter()
        try:
            return self.recorder.evaluate(server_round, arrays)
        finally:
            self._evaluation += time.perf_counter() - began

    def record(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> bool:
        """Record the cost of a communication; return whether to end the run (a callback of ``start``)."""
        over = self.recorder.record(server_round, arrays, metrics)
        stopped = self.stop()
        last = server_round == self.recorder.settings.exchanges
        self._keep_costs(server_round, metrics or {})
        if server_round % self._every == 0 or last or over:
            self._rounds.append(server_round)
            self._shares.append(support_shares(self._coefficients(arrays)))
        if over or last or stopped or time.perf_counter() - self._saved > INTERVAL:
            self._due = (server_round, arrays, over or last)
        return over or stopped

    def on_save_point(self, server_round: int, last: bool) -> None:
        """Save the run if it is time (a callback of ``start``)."""
        if self._due is not None:
            number, arrays, finished = self._due
            self._due = None
            self._checkpoint(number, arrays, finished=finished)

    def _coefficients(self, arrays: ArrayRecord) -> NDArray[Any]:
        """Return the coefficients, or all arrays that psi acts on if the model has no array of that name."""
        layout = self.recorder.task.layout
        names = ("coefficients",) if "coefficients" in arrays else layout.regularized_names or tuple(arrays)
        return np.concatenate([arrays[name].numpy().reshape(-1) for name in names])

    def _keep_costs(self, server_round: int, metrics: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        total = now - self._began
        self._seconds += total
        line = {"round": server_round}
        for key in ("bytes-down", "bytes-up", "num-replies", "num-left-out", "skipped"):
            if key in metrics:
                line[key] = int(metrics[key])
        clients, evaluation = self.clients.seconds, self._evaluation
        times = {
            "clients-seconds": clients,
            "server-seconds": total - clients - evaluation,
            "evaluation-seconds": evaluation,
        }
        self._exchanges.append({**line, **{key: round(value, 6) for key, value in times.items()}})
        self.clients.seconds = self._evaluation = 0.0
        self._began = now

    def _checkpoint(self, server_round: int, arrays: ArrayRecord, *, finished: bool) -> None:
        state = "" if finished else f"state-{server_round}.npz"
        if state:
            strategy = self.recorder.strategy
            run = run_of(strategy)
            if run.progress is not None:
                # A run that is told to stop can be resumed: it has not ended itself.
                run.progress.stopped = False
            run.save(self.folder.path / state)
        self.status = RunStatus(server_round, finished, self.recorder.diverged, round(self._seconds, 3), state)
        model = {name: array.numpy() for name, array in arrays.items()}
        support = SupportHistory(np.array(self._rounds, dtype=np.int64), np.array(self._shares, dtype=np.float32))
        self.folder.save_left_out(self.recorder.left_out)
        self.folder.checkpoint(self.status, model, self._exchanges, support)
        self._exchanges = []
        # The time for writing does not count for any round.
        self._began = self._saved = time.perf_counter()
