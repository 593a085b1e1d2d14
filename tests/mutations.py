"""Seeded mutations of the library, and whether its tests catch them.

    python tests/mutations.py --out FILE                          100 mutations, one after the other
    python tests/mutations.py --out FILE --count 400 --seed 1     others
    python tests/mutations.py --out FILE --files "flwr_fco/engines/*.py" --tests tests/engines     of these, by these

Each mutation changes one comparison, sign, constant, `and`/`or`, statement or returned value in a copy of the tree and
runs the tests of that part of the library. FILE gets one line of JSON for each. A run continues where FILE ends.
A number and a seed name a mutation of one tree: the draw of number i depends on nothing else.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: By part of the library: how often it is drawn, its files, and the tests that run, those that find most first.
AREAS = {
    "algorithms": (
        30,
        ("flwr_fco/algorithms/**/*.py",),
        (
            "tests/strategies/test_algorithms.py",
            "tests/contract/test_strategies.py",
            "tests/engines",
            "tests/strategies",
        ),
    ),
    "engines": (20, ("flwr_fco/engines/**/*.py",), ("tests/engines", "tests/strategies", "tests/client_apps")),
    "objectives": (10, ("flwr_fco/objectives/**/*.py",), ("tests/contract/test_objectives.py", "tests/objectives")),
    "replies": (20, ("flwr_fco/strategies/replies.py",), ("tests/trust", "tests/fuzz")),
    "ledgers": (15, ("flwr_fco/strategies/[lnr]*.py",), ("tests/trust", "tests/strategies/test_resume.py")),
    "certificates": (7, ("flwr_fco/certificates/*.py",), ("tests/certificates", "tests/strategies/test_certifying.py")),
    "privacy": (8, ("flwr_fco/privacy/*.py", "flwr_fco/strategies/private.py"), ("tests/privacy",)),
}
OTHERS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.FloorDiv: (ast.Mult,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
}


def variants(node: ast.AST, returns: str) -> Iterator[ast.AST]:
    """Yield what could stand in the place of a node, in a function that returns what its annotation says."""

    def changed(**fields: Any) -> ast.AST:
        other = copy.copy(node)
        vars(other).update(fields)
        return other

    text = any(isinstance(side, ast.JoinedStr) for side in (getattr(node, "left", 0), getattr(node, "right", 0)))
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and not text:
        yield from (changed(op=other()) for other in OTHERS.get(type(node.op), ()))
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield from (changed(ops=[*node.ops[:i], other(), *node.ops[i + 1 :]]) for other in OTHERS[type(op)])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        number: Any = node.value
        yield changed(value=not number if number is True or number is False else 2 * number if number else 1)
    if isinstance(node, ast.Return) and node.value is not None:
        signs: dict[str, ast.unaryop] = {
            "bool": ast.Not(),
            "float": ast.USub(),
            "int": ast.USub(),
            "Vector": ast.USub(),
        }
        value: ast.expr = ast.UnaryOp(signs[returns], node.value) if returns in signs else ast.Constant(None)
        yield changed(value=value)
    # Without an assignment to a name there would be a NameError, which shows nothing.
    stores = isinstance(node, ast.Assign) and not any(
        isinstance(target, ast.Name | ast.Tuple) for target in node.targets
    )
    calls = (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "log" not in ast.unparse(node.value.func)
    )
    if stores or calls or isinstance(node, ast.Raise | ast.Continue | ast.AugAssign):
        yield ast.Pass()


def mutations(tree: ast.AST, returns: str | None = None) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield (parent, field, index, new node) in bodies of functions: no annotations, defaults, texts and errors."""
    if isinstance(tree, ast.FunctionDef):
        if tree.name in ("__repr__", "__str__", "describe", "summary"):
            return
        returns = ast.unparse(tree.returns) if tree.returns else ""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "decorator_list", "args", "returns") and isinstance(
            tree, ast.FunctionDef | ast.AnnAssign
        ):
            continue
        for i, node in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr):
                if returns is not None:
                    for other in variants(node, returns):
                        yield tree, field, i if isinstance(value, list) else None, other
                if not isinstance(node, ast.Raise):
                    yield from mutations(node, returns)


def mutated(source: str, number: int) -> tuple[str, int, str]:
    """Return the source with its mutation of this number, its line, and what it was and is."""
    tree = ast.parse(source)
    parent, field, i, new = [*mutations(tree)][number]
    old = getattr(parent, field) if i is None else getattr(parent, field)[i]
    if i is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[i] = new
    change = f"{ast.unparse(old)} -> {ast.unparse(new)}"
    return ast.unparse(ast.fix_missing_locations(tree)), getattr(old, "lineno", 0), change.replace("\n", " ")


def judged(scratch: Path, file: str, number: int, tests: list[str], timeout: int) -> dict[str, Any]:
    """Plant a mutation in a copy of the tree, run the tests until one fails, take it out again."""
    path, source = scratch / file, (scratch / file).read_text()
    changed, line, change = mutated(source, number)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-xq",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-m",
        "not slow and not flower",
    ]
    environment = {**os.environ, "PYTHONPATH": str(scratch), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options: dict[str, Any] = {"cwd": scratch, "env": environment, "text": True, "start_new_session": True}
    path.write_text(changed)
    process = subprocess.Popen(
        [*command, *tests],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (timeout, timeout)),
        **options,
    )
    try:
        output, _ = process.communicate(timeout=4 * timeout)
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        how = "survived" if process.returncode == 0 else found[1] if found else "hangs, or breaks pytest"
    except subprocess.TimeoutExpired:
        how = "hangs, or breaks pytest"
    finally:
        path.write_text(source)
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    return {"place": f"{file}:{line}", "change": change, "how": how}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="lines of JSON; what it has is not run again")
    parser.add_argument("--files", help="only these files, a pattern")
    parser.add_argument("--tests", nargs="*", help="these tests instead of the area's")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=int, default=60, help="seconds of a processor for one mutation")
    options = parser.parse_args()
    areas = {"chosen": (1, (options.files,), tuple(options.tests or ["tests"]))} if options.files else AREAS
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "tree"
        shutil.copytree(
            ROOT, scratch, ignore=shutil.ignore_patterns(".git", ".run", ".venv*", ".*_cache", "__pycache__")
        )
        for number in range(len(rows), options.count):
            rng = random.Random(f"{options.seed}-{number}")
            _, patterns, tests = rng.choices([*areas.values()], [share for share, *_ in areas.values()])[0]
            paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
            counts = [len([*mutations(ast.parse(path.read_text()))]) for path in paths]
            path = rng.choices(paths, counts)[0]
            file, of = str(path.relative_to(ROOT)), rng.randrange(counts[paths.index(path)])
            rows.append({"number": number, **judged(scratch, file, of, [*tests], options.timeout)})
            with options.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            print(*rows[-1].values(), flush=True)
    print(f"{sum(row['how'] != 'survived' for row in rows)} of {len(rows)} caught")


if __name__ == "__main__":
    main()
