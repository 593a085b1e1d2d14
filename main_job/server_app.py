"""The ServerApp of the root Flower App."""

from __future__ import annotations

import time
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from flwr_fco.errors import ConfigurationError
from main_job.run_config import run_settings
from reproduction.runs.recorder import Recorder
from reproduction.runs.run_folder import RunFolder

#: Seconds to wait for more nodes to connect before continuing with the connected ones.
PATIENCE = 15.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, evaluate on the server, write the run folder."""
    wanted = run_settings(context.run_config).problem_options["num-clients"]
    settings = run_settings(context.run_config, wait_for_nodes(grid, wanted))
    folder = None
    if output := str(context.run_config["output-dir"]):
        name = f"{settings.strategy}-{settings.problem}-{context.run_id}"
        folder = RunFolder(Path(output) / name, settings.to_config())
        log(INFO, "Run folder: %s", folder.path)
    recorder = Recorder(settings.load(), settings, traffic=True)
    place = str(context.run_config["checkpoint-dir"])
    saved = Path(place) / f"{settings.strategy}-{settings.problem}-{settings.seed}.npz" if place else None
    if saved is None and context.run_config["resume"]:
        raise ConfigurationError("resume=true needs checkpoint-dir, the folder where the run was saved")
    recorder.start(
        grid,
        folder,
        checkpoint=saved,
        resume=bool(context.run_config["resume"]),
        timeout=float(context.run_config["round-timeout"]),
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
