"""What `help` shows: every public object and method has a docstring, its own or inherited; entries describe."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "flwr_fco"
PUBLIC = sorted(
    path.stem if path.parent == ROOT else path.parent.name
    for path in [*ROOT.glob("[a-z]*.py"), *ROOT.glob("[a-z]*/__init__.py")]
    if "__all__" in path.read_text(encoding="utf-8")
)
PARTS = [path.stem for path in ROOT.iterdir() if path.name[0] != "_" and path.name != "py.typed"]
NEXT = re.compile(r"\n[A-Z][A-Za-z ]+\n-{3,}\n")


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
def test_every_public_object_and_method_has_a_docstring_of_its_own_or_inherits_one(part):
    if part == "torch":
        pytest.importorskip("torch")
    missing = []
    for value in public_objects(part):
        missing += [] if value.__doc__ else [value.__name__]
        for name, member in vars(value).items() if inspect.isclass(value) else ():
            if name[0] != "_" and is_method(member) and not documented(value, name):
                missing.append(f"{value.__name__}.{name}")
    assert not missing


def parameters_without_description(text):
    """Return the bare names of a numpydoc section 'Parameters'."""
    _, _, rest = f"\n{text}".partition("\nParameters\n----------\n")
    lines = NEXT.split(f"\n{rest}", maxsplit=1)[0].split("\n")
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line and not line.startswith(" ") and not following.startswith(" ")
    ]


@pytest.mark.parametrize("part", sorted(PARTS))
def test_every_entry_of_a_section_of_parameters_says_more_than_name_and_type(part):
    bare = []
    for path in [ROOT / f"{part}.py"] if (ROOT / f"{part}.py").exists() else sorted((ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                entries = parameters_without_description(ast.get_docstring(node) or "")
                bare += [f"{path.name}, {node.name}: {entry}" for entry in entries]
    assert not bare
