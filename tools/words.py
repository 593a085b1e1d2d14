"""Print words of identifiers, log lines and errors for which there is a field's word: `python tools/words.py`.

Comments and docstrings are prose, which people review page by page.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("flwr_fco", "main_job", "reproduction", "tools")
#: Words of identifiers, with what to write instead.
NAMES = {
    "told": "reported",
    "heard": "received",
    "letter": "message",
    "letters": "characters",
    "mail": "messages",
    "what": "the thing's own name",
    "places": "indices",
    "chances": "probabilities",
    "chance": "probability",
    "bend": "curvature",
    "bends": "curvatures",
    "lies": "attacks",
}
#: Phrases of messages, with what to write instead.
PHRASES = {
    r"\btold\b": "reported",
    r"\bheard\b": "received",
    r"\bletters?\b": "message, or character",
    r"\bmails?\b": "message",
    r"\bkept back\b|\bkeeps? back\b": "withheld",
    r"\bhands? out\b|\bhanded out\b": "returns",
    r"\bbeg[ia]ns? anew\b|\banew\b": "restarts, again",
    r"\bchances\b": "probabilities",
    r"\bbends?\b": "curvature",
    r"\bby day\b": "by default",
    r"\bin words\b": "as an error",
}


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines and names that a module defines or assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of a module that are no docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value


def found(source: str) -> list[tuple[int, str, str]]:
    """Return the line, the word and what to write instead, of a module's source.

    Examples
    --------
    >>> found("def heard(x): raise ValueError('kept back')")
    [(1, 'heard', 'received'), (1, 'kept back', 'withheld')]
    """
    tree = ast.parse(source)
    names = [
        (line, name, NAMES[word])
        for line, name in identifiers(tree)
        for word in re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
        if word in NAMES
    ]
    texts = [
        (line, match[0], better)
        for line, text in messages(tree)
        for pattern, better in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]
    return sorted(set(names + texts))


def main() -> None:
    """Print a line for each; exit with 1 if there are any."""
    count = 0
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts)
    for path in sorted(paths):
        if path == Path(__file__):
            continue
        for line, word, better in found(path.read_text(encoding="utf-8")):
            count += 1
            print(f"{path.relative_to(ROOT)}:{line}: {word!r}: {better}")
    sys.exit(f"{count} words" if count else 0)


if __name__ == "__main__":
    main()
