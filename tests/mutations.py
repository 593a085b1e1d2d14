"""Seeded mutations of the library, and whether its tests catch them.

    python tests/mutations.py --out FILE                          100 mutations, one after the other
    python tests/mutations.py --out FILE --count 400 --seed 1     others
    python tests/mutations.py --out FILE --tests OLD --only FILE2 the survivors of FILE2, under an older tree's tests

Each mutation changes one comparison, sign, constant, `and`/`or`, statement or returned value in a copy of the tree and
runs the tests of that part of the library. FILE gets one line of JSON for each. A run continues where FILE ends.
A number and a seed name a mutation of one tree: the draw of number i depends on nothing else.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Seconds of a processor for the tests of one mutation, and seconds after which a single test is taken to hang.
TIMEOUT, HANGS = 60.0, 60.0
#: What does not show that a mutation is caught.
SILENT = ("survived", "unfinished")


class Area(NamedTuple):
    """A part of the library: how often it is drawn, its files, the functions that count, and the tests that run."""

    share: int
    files: tuple[str, ...]
    functions: str
    tests: tuple[str, ...]


#: Paths that a tree does not have are left out, so that one table serves a tree before and after a move. The tests of
#: an area are in the order in which they run: those that find most come first.
AREAS = {
    "algorithms": Area(
        30,
        ("flwr_fco/algorithms/**/*.py", "flwr_fco/strategies/**/*.py"),
        r"aggregate|begin|remember|remembered|init|retrieve|downlink|step|local|fresh|send|keep|hear|change|direction"
        r"|uplink_shapes|shapes|rate|radius_of|run|psi_at|point|numbers|after|answer|take_steps"
        r"|setting|points|local_step|restart|mean|sum|plain_mean|changes|rows_of|increments|handed_on|robust_mean|trimmed_mean"
        r"|median|geometric_median|factors_of|mean_increment|rescaled|advance|work_of_round|stage_at|work|part|_started"
        r"|dual_steps|local_dual_steps|proximal_steps|lazy_steps|_next_stage|tracker|trackers|start_trackers|theory|of|factors",
        (
            "tests/strategies/test_algorithms.py",
            "tests/contract/test_strategies.py",
            "tests/engines",
            "tests/server/clients",
            "tests/strategies",
        ),
    ),
    "engines": Area(
        20,
        ("flwr_fco/engines/**/*.py",),
        r".*",
        (
            "tests/engines",
            "tests/strategies/test_algorithms.py",
            "tests/objectives/test_sparse_features.py",
            "tests/client_apps/test_quotas.py",
            "tests/strategies",
        ),
    ),
    "replies": Area(
        20,
        ("flwr_fco/server/replies/[!p]*.py",),
        r".*",
        ("tests/server/replies", "tests/server/attacks", "tests/strategies/test_faults.py", "tests/privacy"),
    ),
    "ledgers": Area(
        15,
        ("flwr_fco/server/clients/*.py",),
        r".*",
        (
            "tests/server/clients",
            "tests/strategies/on_graphs",
            "tests/strategies/test_faults.py",
            "tests/server/rounds",
        ),
    ),
    "certificates": Area(
        7,
        ("flwr_fco/certificates/*.py", "flwr_fco/server/certifying.py"),
        r".*",
        ("tests/certificates", "tests/server/questions"),
    ),
    "privacy": Area(
        8,
        ("flwr_fco/privacy/*.py", "flwr_fco/server/replies/private.py"),
        r".*",
        ("tests/privacy",),
    ),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: (r"<", ("<=", ">")),
    ast.LtE: (r"<=", ("<", ">=")),
    ast.Gt: (r">", (">=", "<")),
    ast.GtE: (r">=", (">", "<=")),
    ast.Eq: (r"==", ("!=",)),
    ast.NotEq: (r"!=", ("==",)),
    ast.Is: (r"\bis\b", ("is not",)),
    ast.IsNot: (r"\bis\s+not\b", ("is",)),
    ast.In: (r"\bin\b", ("not in",)),
    ast.NotIn: (r"\bnot\s+in\b", ("in",)),
}
SIGNS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: (r"/", "*"),
    ast.Pow: (r"\*\*", "*"),
    ast.FloorDiv: (r"//", "*"),
}


class Mutation(NamedTuple):
    """Bytes [start, end) of a file are replaced."""

    kind: str
    line: int
    start: int
    end: int
    replacement: str


class _Finder(ast.NodeVisitor):
    """Collects the mutations of one file, in the order of its text."""

    def __init__(self, source: bytes, functions: str) -> None:
        self.source, self.functions, self.found = source, re.compile(functions), list[Mutation]()
        lines = source.splitlines(keepends=True)
        self.offsets = [0]
        for line in lines:
            self.offsets.append(self.offsets[-1] + len(line))
        self.inside: list[ast.FunctionDef] = []
        self.counts: list[bool] = [False]

    def add(self, kind: str, start: int, end: int, replacement: str) -> None:
        if self.counts[-1]:
            self.found.append(Mutation(kind, self.source.count(b"\n", 0, start) + 1, start, end, replacement))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.offsets[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offsets[node.end_lineno - 1] + node.end_col_offset

    def between(self, kind: str, left: ast.expr, right: ast.expr, pattern: str, replacement: str) -> None:
        start, end = self.end(left), self.start(right)
        if match := re.search(pattern.encode(), self.source[start:end]):
            self.add(kind, start + match.start(), start + match.end(), replacement)

    # --- what is walked through ------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Only bodies: annotations, decorators and defaults are not drawn, nor what a function prints."""
        self.inside.append(node)
        named = self.functions.fullmatch(node.name) is not None
        self.counts.append(
            (self.counts[-1] or named) and node.name not in ("__repr__", "__str__", "describe", "summary")
        )
        for statement in node.body:
            self.visit(statement)
        self.counts.pop()
        self.inside.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are not drawn."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("statement", self.start(node), self.end(node), "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("statement", self.start(node), self.end(node), "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call):
            if re.match(rb"(log|_log|logger|warnings|_LOG)\b", self.source[self.start(node) : self.end(node)], re.I):
                return
            self.add("statement", self.start(node), self.end(node), "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Without an assignment to a name there would be a NameError, which shows nothing."""
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self.add("statement", self.start(node), self.end(node), "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", self.start(node), self.end(node), "pass")
        if type(node.op) in SIGNS:
            pattern, replacement = SIGNS[type(node.op)]
            self.between("sign", node.target, node.value, pattern, replacement)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            text = self.source[self.start(node.value) : self.end(node.value)].decode()
            returns = self.inside[-1].returns if self.inside else None
            said = isinstance(returns, ast.Name) and returns.id
            other = {"bool": f"not ({text})", "float": f"-({text})", "int": f"({text}) + 1", "Vector": f"-({text})"}
            self.add("return", self.start(node.value), self.end(node.value), other.get(str(said), "None"))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            pattern, others = COMPARISONS[type(op)]
            for other in others:
                self.between("comparison", left, right, pattern, other)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = [isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)]
        if type(node.op) in SIGNS and not any(texts):
            pattern, replacement = SIGNS[type(node.op)]
            self.between("sign", node.left, node.right, pattern, replacement)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub | ast.Not):
            self.add("sign", self.start(node), self.start(node.operand), "")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        this, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between("and/or", left, right, rf"\b{this}\b", other)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            other = str(not value)
        elif isinstance(value, int):
            other = str(value + 1)
        elif isinstance(value, float):
            other = repr(2.0 * value if value else 1.0)
        else:
            return
        self.add("constant", self.start(node), self.end(node), other)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def mutations_of(path: Path, functions: str) -> list[Mutation]:
    """All mutations of a file that can be drawn."""
    source = path.read_bytes()
    finder = _Finder(source, functions)
    finder.visit(ast.parse(source))
    return finder.found


class Drawn(NamedTuple):
    """A mutation of a tree, by its number."""

    number: int
    area: str
    file: str
    mutation: Mutation


def draw(tree: Path, count: int, seed: int) -> Iterator[Drawn]:
    """Draw mutations: an area by its share, then a place in it."""
    found: dict[str, list[tuple[str, Mutation]]] = {}
    for name, area in AREAS.items():
        paths = sorted({path for pattern in area.files for path in tree.glob(pattern)})
        places = [(path, mutation) for path in paths for mutation in mutations_of(path, area.functions)]
        found[name] = [(str(path.relative_to(tree)), mutation) for path, mutation in places]
    names = [name for name in AREAS if found[name]]
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        name = rng.choices(names, [AREAS[name].share for name in names])[0]
        yield Drawn(number, name, *rng.choice(found[name]))


class Outcome(NamedTuple):
    """What the tests said of a mutation."""

    how: str
    by: str
    seconds: float


def tests_of(scratch: Path, drawn: Drawn) -> list[str]:
    """The tests of a mutation: those that are named like its file or its folder come first, then its area's."""
    stem, folder = Path(drawn.file).stem, Path(drawn.file).parent.name
    near = [*scratch.glob(f"tests/**/test_{stem}.py"), *scratch.glob(f"tests/*/{folder}")]
    own = [str(path.relative_to(scratch)) for path in near]
    return [*dict.fromkeys([*own, *(name for name in AREAS[drawn.area].tests if (scratch / name).exists())])]


def run_tests(scratch: Path, drawn: Drawn, timeout: float) -> Outcome:
    """Run the tests of a mutation in a copy of the tree until one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    command += ["-o", f"faulthandler_timeout={HANGS:g}", "-m"]
    markers = "not slow and not flower" + " and not nightly" * ("nightly:" in (scratch / "pyproject.toml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(scratch), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, markers, *tests_of(scratch, drawn)],
        cwd=scratch,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(timeout), int(timeout))),
    )
    try:
        output, _ = process.communicate(timeout=4 * timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    with contextlib.suppress(ProcessLookupError):
        # What the tests have started is of the same group.
        os.killpg(process.pid, signal.SIGKILL)
    seconds = time.monotonic() - began
    if process.returncode < 0:
        # A loop without an end is found too; tests that were merely too many for the time found nothing.
        return Outcome("hangs" if "Timeout (" in output else "unfinished", "", seconds)
    if process.returncode == 0:
        return Outcome("survived", "", seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+.*?)(?: - |$)", output, re.MULTILINE)
    return Outcome("failed", failed[1] if failed else output[-200:], seconds)


def copy(tree: Path, tests: Path, scratch: Path) -> None:
    """Copy a tree, compiled files too, and the tests and settings of pytest of another one."""
    away = shutil.ignore_patterns(".git", ".run", ".venv*", ".*_cache", ".hypothesis")
    shutil.copytree(tree, scratch, ignore=away)
    if tests != tree:
        shutil.rmtree(scratch / "tests")
        shutil.copytree(tests / "tests", scratch / "tests", ignore=away)
        for name in ("pyproject.toml", "conftest.py"):
            shutil.copy2(tests / name, scratch / name)


def judge(drawn: Drawn, scratch: Path, timeout: float) -> dict[str, Any]:
    """Plant a mutation, run the tests, take it out again."""
    path, mutation = scratch / drawn.file, drawn.mutation
    source = path.read_bytes()
    changed = source[: mutation.start] + mutation.replacement.encode() + source[mutation.end :]
    compiled = Path(importlib.util.cache_from_source(str(path)))
    line = source.splitlines()[mutation.line - 1].decode().strip()
    try:
        # A file of the same length, written in the same second, would be taken from its compiled form.
        compiled.unlink(missing_ok=True)
        path.write_bytes(changed)
        outcome = run_tests(scratch, drawn, timeout)
    finally:
        path.write_bytes(source)
        compiled.unlink(missing_ok=True)
    return {
        "number": drawn.number,
        "area": drawn.area,
        "place": f"{drawn.file}:{mutation.line}",
        "kind": mutation.kind,
        "line": line,
        "old": source[mutation.start : mutation.end].decode(),
        "new": mutation.replacement,
        "how": outcome.how,
        "by": outcome.by,
        "seconds": round(outcome.seconds, 1),
    }


def read(path: Path | None) -> list[dict[str, Any]]:
    """The lines of a file of outcomes; none without a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="lines of JSON; what it has is not run again")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree that is mutated")
    parser.add_argument("--tests", type=Path, help="another tree, whose tests run instead")
    parser.add_argument("--only", type=Path, help="only the survivors in this file")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds of a processor for one mutation")
    options = parser.parse_args()
    tree = options.tree.resolve()
    done = {row["number"] for row in read(options.out)}
    wanted = {row["number"] for row in read(options.only) if row["how"] in SILENT} if options.only else None
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "tree"
        copy(tree, (options.tests or tree).resolve(), scratch)
        for drawn in draw(tree, options.count, options.seed):
            if drawn.number in done or (wanted is not None and drawn.number not in wanted):
                continue
            row = judge(drawn, scratch, options.timeout)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            change = f"{row['old']} -> {row['new']}".replace("\n", " ")
            print(f"{drawn.number:3} {row['how']:10} {row['seconds']:5} s  {row['place']}  {change}", flush=True)
    rows = read(options.out)
    caught = sum(row["how"] not in SILENT for row in rows)
    print(f"{caught} of {len(rows)} caught")


if __name__ == "__main__":
    main()
