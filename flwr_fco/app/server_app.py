"""The ServerApp of the root Flower App."""

from __future__ import annotations

import time
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from flwr_fco.app.problems import Scorer, load_dataset
from flwr_fco.app.run_folder import RunFolder
from flwr_fco.app.settings import Settings

__all__ = ["Recorder", "app"]

#: Seconds to wait for more nodes to connect before going on with those that are there.
PATIENCE = 15.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate on the server, write the run folder."""
    settings = Settings.from_run_config(context.run_config)
    num_nodes = wait_for_nodes(grid, settings.num_nodes)
    scorer = Scorer.from_dataset(load_dataset(settings, num_nodes), settings.build_regularizer())
    folder = None
    if settings.output_dir:
        name = f"{settings.strategy}-{settings.problem}-{context.run_id}"
        config = {**settings.to_config(), "num-nodes": num_nodes}
        folder = RunFolder(Path(settings.output_dir) / name, config)
        log(INFO, "Run folder: %s", folder.path)
    recorder = Recorder(scorer, settings.evaluate_every, settings.num_server_rounds, folder)
    result = settings.build_strategy(num_nodes).start(
        grid,
        ArrayRecord({name: Array(array) for name, array in scorer.initial_arrays().items()}),
        settings.num_server_rounds,
        evaluate_fn=recorder.evaluate,
        callbacks=[recorder.record],
    )
    if folder is not None:
        folder.save_model({name: array.numpy() for name, array in result.arrays.items()})


def wait_for_nodes(grid: Grid, wanted: int, patience: float = PATIENCE) -> int:
    """Return the number of nodes over which the data are split.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    wanted : int
        The run config's ``num-nodes``.
    patience : float
        Seconds after which a smaller federation, of two nodes or more, will do. The number of simulated nodes is the
        federation's business, an app cannot set it: Flower's own default is 2.
    """
    deadline = time.monotonic() + patience
    while (connected := len(list(grid.get_node_ids()))) < wanted and (connected < 2 or time.monotonic() < deadline):
        time.sleep(0.2)
    if connected != wanted:
        log(
            WARNING,
            "num-nodes=%s, but this federation has %s nodes: the data are split over %s. For %s simulated nodes: "
            "flwr run . --stream --federation-config 'num-supernodes=%s client-resources-num-cpus=1'",
            wanted,
            connected,
            connected,
            wanted,
            wanted,
        )
    return connected


class Recorder:
    """Evaluates the model on the server and writes a line of metrics for each evaluated round.

    Parameters
    ----------
    scorer : Scorer
    every : int
        Evaluate every so many rounds, and after the last one.
    num_rounds : int
    folder : RunFolder or None
        Where the lines go.
    """

    def __init__(self, scorer: Scorer, every: int, num_rounds: int, folder: RunFolder | None) -> None:
        self.scorer, self.folder = scorer, folder
        self.every, self.num_rounds = every, num_rounds
        self._began = time.monotonic()
        self._bytes = {"bytes-down": 0, "bytes-up": 0}
        self._scores: MetricRecord | None = None

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return objective, density and what the problem's data say; Flower's ``evaluate_fn``."""
        self._scores = None
        if server_round % self.every == 0 or server_round == self.num_rounds:
            w = self.scorer.layout.flatten({name: array.numpy() for name, array in arrays.items()})
            self._scores = MetricRecord({**self.scorer.scores(w)})
        if server_round == 0:
            self.record(0, arrays, None)
        return self._scores

    def record(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        """Write the round's line, with the traffic so far; a callback of ``start``."""
        for key in self._bytes:
            self._bytes[key] += int((metrics or {}).get(key, 0))  # type: ignore[call-overload, arg-type]
        if self._scores is not None and self.folder is not None:
            seconds = round(time.monotonic() - self._began, 3)
            self.folder.add({"round": server_round, **self._scores, **self._bytes, "seconds": seconds})  # type: ignore[dict-item]
