"""The code of docs/choose/regularizers.md runs, and its table names every regularizer."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from problems import run
from together import together

import flwr_fco.regularizers as package
from flwr_fco.core.spec import Specified
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import Regularizer, adapter
from flwr_fco.strategies import FedDualAvg
from flwr_fco.testing import check_regularizer

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
    monkeypatch.setattr(adapter, "_FACTORIES", {})
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    return names


def test_the_code_runs(page):
    assert page["psi"].prox(np.array([2.0, -0.3, -1.0]), 1.0).tolist() == [1.5, 0.0, -0.5]
    assert page["Huber"](0.5).kind == "huber"


def test_maps_of_other_libraries_minimise_what_they_say_and_travel(page):
    signal = np.repeat([0.0, 2.0, 0.5], 20) + 0.2 * np.random.default_rng(0).normal(size=60)
    w = page["smooth"].prox(signal, 1.0)
    # Optimal: cumulative sums of w - v are within the strength, and at it where w jumps.
    sums, jumps = np.cumsum(w - signal), np.diff(w)
    assert np.abs(sums).max() <= 0.5 + 1e-5
    assert np.abs(sums[:-1] - 0.5 * np.sign(jumps))[np.abs(jumps) > 1e-3].max() <= 1e-4
    assert page["increasing"].prox(np.array([1.0, 4.0, 2.0, 6.0]), 1.0).tolist() == [1.0, 3.0, 3.0, 6.0]
    assert page["increasing"].value(np.array([2.0, 1.0])) == np.inf
    check_regularizer(page["flat"])
    w = page["flat"].prox(np.array([3.0, -2.5, 1.0]), 15.0)
    np.testing.assert_allclose(w, [2.0, -2.0, 1.0], rtol=1e-15)


def test_a_federation_with_an_operator_of_another_library_has_its_structure(page):
    rng = np.random.default_rng(0)
    sites = [LeastSquares(x := rng.normal(size=(50, 6)), x @ np.array([0, 0, 1, 1, 3, 3.0])) for _ in range(3)]
    strategy = FedDualAvg(regularizer=page["increasing"], client_lr=0.05, fraction_evaluate=0.0)
    w = run(strategy, sites, 40).arrays["coefficients"].numpy()
    assert (np.diff(w) >= 0.0).all()
    np.testing.assert_allclose(w, [0, 0, 1, 1, 3, 3], atol=0.05)


@together("name", package.__all__)
def test_every_regularizer_is_on_the_page(name):
    value = getattr(package, name)
    if inspect.isclass(value) and issubclass(value, Regularizer) and not inspect.isabstract(value):
        assert f"`{name}(" in PAGE.read_text(encoding="utf-8") or f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_the_picture_is_there_and_small():
    picture = PAGE.parent.parent / "images" / "prox.png"
    assert picture.stat().st_size < 200_000
