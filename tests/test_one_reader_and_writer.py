"""Files are read and written in one place: `flwr_fco/core/files.py` checks them, and leaves none half written."""

import ast
from pathlib import Path

from together import together

ROOT = Path(__file__).parents[1]
HERE = ROOT / "flwr_fco" / "core" / "files.py"
#: What is run by who made the files: it writes by the one writer, and reads arrays by the one reader.
SCRIPTS = ("benchmarks", "docs")
#: Examples are not here: they are complete apps to copy, of plain Python.
STRICT = ("flwr_fco", "main_job", "reproduction", "tools")

READS = {"np.load", "numpy.load", "json.load", "json.loads", "gzip.decompress", "zipfile.ZipFile", "ZipFile"}
WRITES = {"np.save", "np.savez", "np.savez_compressed", "json.dump", "pickle.dump", "torch.save"}
METHODS = {"write_text", "write_bytes", "touch", "tofile"}


def _name(node):
    return ast.unparse(node).replace("\n", " ")


def _mode(call):
    """Return the mode of a call of `open`, whether `open(path, "w")`, `path.open("w")` or `os.open(...)`."""
    of_path = isinstance(call.func, ast.Attribute)
    places = call.args[0:1] if of_path else call.args[1:2]
    mode = next((word.value for word in call.keywords if word.arg == "mode"), places[0] if places else None)
    return mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""


def found(source, strict=True):
    """Return the lines of a file that read or write files otherwise."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = _name(node.func)
        last = name.rpartition(".")[2]
        odd = name in (READS if strict else {"np.load", "numpy.load"}) or name in WRITES
        odd = odd or last in METHODS or (last == "open" and set(_mode(node)) & set("wax+"))
        odd = odd or name in ("os.open", "os.replace", "os.rename") or last in ("mkstemp", "NamedTemporaryFile")
        if strict:
            # A picture is drawn into memory, or into a file that `write_file` gives.
            odd = odd or (last in ("savefig", "save") and _name(node.args[0] if node.args else node).endswith("path"))
        if odd:
            lines.append(f"{node.lineno}: {ast.unparse(node)[:90]}")
    return lines


#: Where a line reads or writes something else than a file of ours, and what.
OTHERS = {
    # Appends what it has found, one line a run, for days.
    "benchmarks/density.py": 1,
    "docs/measure_private_images.py": 1,
    # A folder, for its lock.
    "flwr_fco/server/rounds/saving.py": 1,
    # `run_of(strategy).save(path)`, which writes by the one writer.
    "flwr_fco/callbacks.py": 1,
    "flwr_fco/testing/strategies.py": 1,
    # A message opens a round: `mail.open(...)` has no mode.
}


def files(folders):
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "tests" not in path.relative_to(ROOT).parts and path != HERE]


@together("path", files(STRICT))
def test_the_package_and_what_builds_on_it_reads_and_writes_in_one_place(path):
    lines = found(path.read_text(encoding="utf-8"))
    assert len(lines) == OTHERS.get(str(path.relative_to(ROOT)), 0), lines


@together("path", files(SCRIPTS))
def test_scripts_write_in_one_place(path):
    lines = found(path.read_text(encoding="utf-8"), strict=False)
    assert len(lines) == OTHERS.get(str(path.relative_to(ROOT)), 0), lines


def test_the_check_sees_what_it_should_refuse_and_nothing_else():
    assert all(
        map(found, ("np.load(p)", "json.loads(text)", "p.open('a')", "open(p, mode='wb')", "p.write_text(text)"))
    )
    assert not any(map(found, ("open(p)", "p.open('rb')", "read_npz(p)", "text.replace('a', 'b')")))
