"""A run by Flower that is killed goes on in the same record, to the lines and the model of one that was not."""

import json

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid
from reproduction.runs import flower
from reproduction.runs.recorder import Recorder
from reproduction.runs.run_folder import read_run
from reproduction.runs.settings import RunSettings


class Killed(BaseException):
    pass


def serve(folder, resume=False, **values):
    settings = RunSettings.of("lasso-small", "FedDAGT", {"num-rounds": 6, "client-lr": 3e-3, **values}, seed=3)
    config = {"settings": json.dumps(settings.to_config()), "folder": str(folder), "resume": resume}
    grid = InProcessGrid(flower.client_app, settings.load().dataset.num_clients, run_config=config)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with grid.identity(), single_threaded_blas():
        flower.server_app(grid, context)
    return read_run(folder)


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    whole = serve(tmp_path / "whole")
    record = Recorder.record

    def dying(self, server_round, arrays, metrics):
        if server_round == 4:
            raise Killed
        return record(self, server_round, arrays, metrics)

    monkeypatch.setattr(Recorder, "record", dying)
    with pytest.raises(Killed):
        serve(tmp_path / "parts")
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="holds a run already"):
        serve(tmp_path / "parts")
    with pytest.raises(ConfigurationError, match="other settings"):
        serve(tmp_path / "parts", resume=True, **{"server-lr": 0.5})
    parts = serve(tmp_path / "parts", resume=True)
    assert [line["round"] for line in parts.metrics] == list(range(7))
    assert parts.metrics == whole.metrics
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(parts.arrays[name], array)
    assert parts.status.finished
    assert not (tmp_path / "parts" / "state.npz").exists()
