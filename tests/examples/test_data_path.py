"""An app that reads `data-path` gives its node that file's rows, and without it a share of the bundled ones."""

import csv
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.datasets import load_breast_cancer

APP = Path(__file__).parents[2] / "examples" / "quickstart-sparse-logistic"


@pytest.fixture
def load_client(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    yield importlib.import_module("sparse_logistic.task").load_client
    for name in [name for name in sys.modules if name.partition(".")[0] == "sparse_logistic"]:
        del sys.modules[name]


def of_a_node(**config):
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def test_a_node_with_a_file_has_its_rows_and_one_without_its_share(load_client, tmp_path):
    path = tmp_path / "patients.csv"
    names = load_breast_cancer().feature_names
    rows = np.arange(60.0).reshape(2, 30)
    with path.open("w", newline="") as file:
        # The columns of a file may come in any order.
        csv.writer(file).writerows([["benign", *names[::-1]], [1, *rows[0, ::-1]], [0, *rows[1, ::-1]]])
    features, labels = load_client(of_a_node(**{"partition-id": 3, "data-path": str(path)}))
    np.testing.assert_array_equal(features, rows)
    np.testing.assert_array_equal(labels, [1, 0])
    parts = [load_client(of_a_node(**{"partition-id": m, "num-partitions": 4}))[0] for m in range(4)]
    assert sum(map(len, parts)) == 426
