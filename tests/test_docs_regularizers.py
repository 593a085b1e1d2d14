"""The code of docs/choose/regularizers.md runs, and its table names every regularizer."""

import inspect
import re
from pathlib import Path

import pytest
from together import together

import flwr_fco.regularizers as package
from flwr_fco.core.spec import Specified
from flwr_fco.regularizers import Regularizer

PAGE = Path(__file__).parents[1] / "docs" / "choose" / "regularizers.md"


@pytest.fixture
def clean_registry():
    """The page defines a class; forget it afterwards, so that the test can run twice in one process."""
    known = Specified._families["regularizer"]
    before = dict(known)
    yield
    known.clear()
    known.update(before)


def test_the_code_runs(clean_registry):
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    assert names["psi"].prox(names["np"].array([2.0, -0.3, -1.0]), 1.0).tolist() == [1.5, 0.0, -0.5]
    assert names["Huber"](0.5).kind == "huber"


@together("name", package.__all__)
def test_every_regularizer_is_on_the_page(name):
    value = getattr(package, name)
    if inspect.isclass(value) and issubclass(value, Regularizer) and not inspect.isabstract(value):
        assert f"`{name}(" in PAGE.read_text(encoding="utf-8") or f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_the_picture_is_there_and_small():
    picture = PAGE.parent.parent / "images" / "prox.png"
    assert picture.stat().st_size < 200_000
