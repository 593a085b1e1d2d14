"""The ServerApp of the root Flower App."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from flwr_fco.callbacks import Callback, Checkpoint
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import json_object, save_npz, write_file
from main_job.run_config import checked_config
from main_job.task import Task

#: Seconds to wait for more nodes to connect before continuing with the connected ones.
PATIENCE = 15.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate on the server; write a folder and save every round, where the run config says so."""
    config = checked_config(context.run_config)
    if config["resume"] and not config["checkpoint-dir"]:
        raise ConfigurationError("resume=true needs checkpoint-dir, the folder where the run was saved")
    task = Task(config, wait_for_nodes(grid, config["num-nodes"]))
    strategy = task.strategy()
    callbacks = list[Callback]()
    folder = None
    saved = None
    name = f"{config['strategy']}-{config['problem']}"
    if config["output-dir"]:
        folder = Path(config["output-dir"]) / f"{name}-{context.run_id}"
        folder.mkdir(parents=True)
        text = json.dumps({**config, "num-nodes": task.num_nodes}, indent=1)
        write_file(folder / "config.json", text)
        callbacks.append(_Lines(folder / "metrics.jsonl"))
        log(INFO, "Run folder: %s", folder)
    if config["checkpoint-dir"]:
        saved = Path(config["checkpoint-dir"]) / f"{name}-{config['seed']}.npz"
        callbacks += [_SameData(task), Checkpoint(saved, every=1)]
    result = strategy.start(
        grid,
        task.initial_arrays(),
        config["num-server-rounds"],
        config["round-timeout"],
        evaluate_fn=task.evaluate,
        callbacks=callbacks,
        resume=saved if config["resume"] and saved is not None and saved.exists() else None,
    )
    if folder is not None:
        save_npz(result, folder / "model.npz")


class _Lines(Callback):
    """Appends each round's numbers to a file of JSON lines; at the end it has the rounds before a resumption too."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"round": server_round, **metrics}) + "\n")

    def on_run_end(self, result: Any) -> None:
        write_file(self.path, "".join(json.dumps(row) + "\n" for row in result.rows() if row["round"]))


class _SameData(Callback):
    """Refuses to go on with a run on other data: a checkpoint knows the strategy and the model's shapes alone."""

    def __init__(self, task: Task) -> None:
        keys = ("problem", "alpha", "train-fraction", "seed")
        self._own = {**{key: task.config[key] for key in keys}, "num-nodes": task.num_nodes}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the data depend on, as JSON."""
        return {"data": np.array(json.dumps(self._own))}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Compare what the data depended on.

        Raises
        ------
        ConfigurationError
            If it differs.
        """
        saved = json_object(str(arrays["data"]))
        others = [f"{key}={value!r} (was {saved[key]!r})" for key, value in self._own.items() if saved[key] != value]
        if others:
            raise ConfigurationError(
                f"the run was saved with other data: {', '.join(others)}; resume with those, or give another "
                "checkpoint-dir"
            )


def wait_for_nodes(grid: Grid, wanted: int, patience: float = PATIENCE) -> int:
    """Return the number of nodes over which the data are split.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    wanted : int
        The run config's ``num-nodes``.
    patience : float
        Seconds after which a smaller federation, of two nodes or more, is accepted. The number of simulated nodes is a
        setting of the federation, which an app cannot change; Flower's default is 2.
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
