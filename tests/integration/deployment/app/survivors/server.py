"""The ServerApp: runs the strategy, saves rounds where the run config says so, and leaves the model and the metrics."""

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flwr_fco.callbacks import Checkpoint
from survivors.problem import build, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = build(config["strategy"], int(config["nodes"]))
    saved = str(config["checkpoint"])
    result = strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in start().items()}),
        int(config["rounds"]),
        timeout=float(config["timeout"]),
        callbacks=[Checkpoint(saved, every=1)] if saved else [],
        resume=saved if config["resume"] and Path(saved).exists() else None,
    )
    reported = {"rows": result.rows(), "left_out": [list(row) for row in result.left_out]}
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    with Path(str(config["out"])).open("wb") as file:
        np.savez(file, reported=np.array(json.dumps(reported)), **arrays)
