"""The ServerApp: runs the strategy, saves rounds where the run config says so, and leaves the model and the metrics."""

import json
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp
from problems import numpy_of, start_arrays

from flwr_fco.callbacks import Checkpoint
from survivors.problem import build

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    saved = str(config["checkpoint"])
    result = build(config["strategy"], int(config["nodes"])).start(
        grid,
        start_arrays(),
        int(config["rounds"]),
        timeout=float(config["timeout"]),
        callbacks=[Checkpoint(saved, every=1)] if saved else [],
        resume=saved if config["resume"] and Path(saved).exists() else None,
    )
    reported = {"rows": result.rows(), "left_out": [list(row) for row in result.left_out]}
    np.savez(str(config["out"]), reported=np.array(json.dumps(reported)), **numpy_of(result.arrays))
