"""What `help` shows: every public object and method has a docstring, its own or inherited; entries describe."""

import importlib
import inspect
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "flwr_fco"
PUBLIC = sorted(
    path.stem if path.parent == ROOT else path.parent.name
    for path in [*ROOT.glob("[a-z]*.py"), *ROOT.glob("[a-z]*/__init__.py")]
    if "__all__" in path.read_text(encoding="utf-8")
)


def public_objects(part):
    module = importlib.import_module(f"flwr_fco.{part}")
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            yield value


def documented(cls, name):
    """As inspect.getdoc, which does not look for what a cached property overrides."""
    values = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    return any(inspect.getdoc(getattr(value, "__func__", value)) for value in values)


def is_method(value):
    return inspect.isroutine(value) or isinstance(value, property) or type(value).__name__ == "cached_property"


@pytest.mark.parametrize("part", PUBLIC)
def test_every_public_object_and_method_has_a_docstring(part):
    if part == "torch":
        pytest.importorskip("torch")
    missing = []
    for value in public_objects(part):
        missing += [] if value.__doc__ else [value.__name__]
        for name, member in vars(value).items() if inspect.isclass(value) else ():
            if name[0] != "_" and is_method(member) and not documented(value, name):
                missing.append(f"{value.__name__}.{name}")
    assert not missing
