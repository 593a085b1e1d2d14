"""An app that reads `data-path` gives its node that file's rows, and without it a share of the bundled ones."""

import csv
import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.datasets import load_breast_cancer, load_digits

from flwr_fco.simulation import InProcessGrid
from flwr_fco.testing import check_saddle_objective
from reproduction.data.saddle_objectives import UniversalAdversarialLogistic

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    """Import a module of an example, as a run does; afterwards it is forgotten."""
    packages = []

    def load(folder, name):
        monkeypatch.syspath_prepend(str(EXAMPLES / folder))
        packages.append(name.partition(".")[0])
        return importlib.import_module(name)

    yield load
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def of_a_node(**config):
    return Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})


def file_of_patients(folder):
    """Return a CSV of the first 40 patients, as Excel writes it, in another order of columns, and their rows."""
    data = load_breast_cancer()
    path = folder / "patients.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(
            [
                ["benign", *data.feature_names[::-1]],
                *([label, *row[::-1]] for row, label in zip(data.data[:40], data.target, strict=False)),
            ]
        )
    return str(path), data.data[:40], data.target[:40]


def file_of_digits(folder):
    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", images=images[:200].reshape(-1, 8, 8), labels=labels[:200])
    return str(folder / "digits.npz"), images[:200] / 16.0, labels[:200]


def run_without_bundled_data(module, folder, package, path, **settings):
    """Run the whole app on two nodes that have this file, as a deployment does: with run configs, not with code."""
    config = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"bundled": False, **settings}
    client, server = module(folder, f"{package}.client_app").app, module(folder, f"{package}.server_app").app
    grid = InProcessGrid(client, 2, run_config=config, node_config=lambda partition: {"data-path": path})
    with grid.identity():
        server(grid, Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config))


def test_the_quickstart(module, tmp_path, capsys):
    path, rows, labels = file_of_patients(tmp_path)
    load_client = module("quickstart-sparse-logistic", "sparse_logistic.task").load_client
    features, benign = load_client(of_a_node(**{"data-path": path}))
    np.testing.assert_array_equal(features, rows)
    np.testing.assert_array_equal(benign, labels)
    parts = [load_client(of_a_node(**{"partition-id": m, "num-partitions": 4}))[0] for m in range(4)]
    assert sum(map(len, parts)) == 426
    run_without_bundled_data(module, "quickstart-sparse-logistic", "sparse_logistic", path, C=1.0)
    assert "The model uses" in (said := capsys.readouterr().out)
    assert "test patients" not in said


def test_robust_logistic(module, tmp_path, capsys):
    path, rows, labels = file_of_digits(tmp_path)
    loss = module("robust-logistic", "robust_logistic.client_app").load_objective(of_a_node(**{"data-path": path}))
    w = np.random.default_rng(0).standard_normal(loss.layout.size)
    assert loss.value(w) == pytest.approx(UniversalAdversarialLogistic(rows, labels).value(w), rel=1e-12)
    check_saddle_objective(loss)
    run_without_bundled_data(
        module, "robust-logistic", "robust_logistic", path, **{"num-server-rounds": 2, "local-steps": 1}
    )
    assert capsys.readouterr().out.count("at the nodes: clean accuracy") == 3


def test_sparse_text(module, tmp_path, capsys):
    path = tmp_path / "documents.csv"
    path.write_text('label,text\n1,"a good, good word"\n0,a bad one\n', encoding="utf-8-sig")
    loss = module("sparse-text", "sparse_text.client_app").load_objective(of_a_node(**{"data-path": str(path)}))
    task = module("sparse-text", "sparse_text.task")
    assert (loss.features != task.features_of(["a good, good word", "a bad one"])).nnz == 0
    settings = {"num-server-rounds": 1, "fraction-train": 1.0}
    run_without_bundled_data(module, "sparse-text", "sparse_text", str(path), **settings)
    assert "The model uses" in capsys.readouterr().out
    path.write_text("label,text\n")
    with pytest.raises(ValueError, match=r"documents\.csv has no documents"):
        task.load_file(str(path))
