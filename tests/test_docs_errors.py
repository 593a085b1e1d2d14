"""Every error and warning that docs/reference/errors.md quotes is one that the package can say."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
QUOTED = re.findall(r'^\| "(.*)" \|', PAGE, flags=re.MULTILINE)


def written(node):
    """Return the text of a literal, with a mark where a value is put in, or None."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%\.?\d*[sdgr]", "\0", node.value)
    return None


@cache
def messages():
    """Return all texts of the package."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "flwr_fco").rglob("*.py")]
    return [text for tree in trees for node in ast.walk(tree) if (text := written(node))]


def test_there_are_those_that_users_meet():
    assert len(QUOTED) >= 35


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_package_can_say_it(quoted):
    parts = [part.strip() for part in quoted.split("…")]
    assert any(all(part in text for part in parts) for text in messages()), quoted
