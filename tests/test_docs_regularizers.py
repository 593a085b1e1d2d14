"""The code of docs/choose/regularizers.md runs, and its table names every regularizer."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from problems import run
from scipy.sparse import csr_array

import flwr_fco.regularizers as package
from flwr_fco.core.spec import Specified
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import Regularizer, named
from flwr_fco.strategies import FedDualAvg, FedNewton, Steps
from flwr_fco.testing import check_pair, check_regularizer
from reproduction.pooled import certify

PAGE = Path(__file__).parents[1] / "docs" / "choose" / "regularizers.md"


@pytest.fixture
def clean_registry():
    """The page defines a class; forget it afterwards, so that the test can run twice in one process."""
    known = Specified._families["regularizer"]
    before = dict(known)
    yield
    known.clear()
    known.update(before)


@pytest.fixture
def page(clean_registry, monkeypatch):
    """Run the page's code, and return its names."""
    pytest.importorskip("pyproximal", reason="pip install pyproximal")
    monkeypatch.setattr(named, "_FACTORIES", {})
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    return names


def test_the_code_runs(page):
    assert page["psi"].prox(np.array([2.0, -0.3, -1.0]), 1.0).tolist() == [1.5, 0.0, -0.5]
    assert page["Huber"](0.5).kind == "huber"


def test_six_lines_of_terms_work_in_loops_newton_steps_and_certificates(page):
    rng = np.random.default_rng(0)
    psi = page["NonNegativeL1"](0.05)
    truth = np.array([1.0, -1.0, 0.5, 0, 2.0, -0.3])
    check_regularizer(psi)
    check_pair(DiagonalMetric(np.linspace(1.0, 2.0, 12)), psi)
    tables = [rng.normal(size=(40, 6)) * (rng.random((40, 6)) < 0.5) for _ in range(3)]
    targets = [x @ truth + 0.3 + 0.1 * rng.normal(size=40) for x in tables]

    def model(strategy, rounds, kind=np.asarray):
        sites = [LeastSquares(kind(x), y, scale=0.5) for x, y in zip(tables, targets, strict=True)]
        w = np.concatenate([array.numpy() for array in run(strategy, sites, rounds).arrays.values()])
        return w, certify(sites, None, psi, w)

    w, found = model(FedNewton(regularizer=psi, tolerance=1e-12, fraction_evaluate=0.0), 20)
    assert (w[[1, 5]] == 0.0).all()
    assert (w[[0, 2, 4]] > 0.1).all()
    assert found.kind == "duality-gap"
    assert found.value <= 1e-10
    options = {"regularizer": psi, "client_lr": 1.0, "fraction_evaluate": 0.0}
    np.testing.assert_allclose(model(FedDualAvg(**options, work=Steps(1, batch_size=None)), 400)[0], w, atol=1e-5)
    few = [model(FedDualAvg(**options, work=Steps(7, batch_size=5)), 3, kind)[0] for kind in (np.asarray, csr_array)]
    np.testing.assert_allclose(*few, rtol=1e-12, atol=1e-14)


def test_maps_of_other_libraries_minimise_what_they_say_and_travel(page):
    signal = np.repeat([0.0, 2.0, 0.5], 20) + 0.2 * np.random.default_rng(0).normal(size=60)
    w = page["smooth"].prox(signal, 1.0)
    # Optimal: cumulative sums of w - v are within the strength, and at it where w jumps.
    sums = np.cumsum(w - signal)
    jumps = np.diff(w)
    assert np.abs(sums).max() <= 0.5 + 1e-5
    assert np.abs(sums[:-1] - 0.5 * np.sign(jumps))[np.abs(jumps) > 1e-3].max() <= 1e-4
    assert page["increasing"].prox(np.array([1.0, 4.0, 2.0, 6.0]), 1.0).tolist() == [1.0, 3.0, 3.0, 6.0]
    assert page["increasing"].value(np.array([2.0, 1.0])) == np.inf


@pytest.mark.parametrize("name", package.__all__)
def test_every_regularizer_is_on_the_page(name):
    value = getattr(package, name)
    if inspect.isclass(value) and issubclass(value, Regularizer) and not inspect.isabstract(value):
        assert f"`{name}(" in PAGE.read_text(encoding="utf-8") or f"`{name}`" in PAGE.read_text(encoding="utf-8")
