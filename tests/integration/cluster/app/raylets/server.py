"""The ServerApp; it leaves the model in a file."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from raylets.problem import build, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    arrays = ArrayRecord({name: Array(array) for name, array in start().items()})
    result = build(int(config["nodes"])).start(grid, arrays, int(config["num-server-rounds"]))
    np.savez(Path(str(config["out"]), "model.npz"), **{name: array.numpy() for name, array in result.arrays.items()})
