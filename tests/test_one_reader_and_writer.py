"""Files are read and written in one place: `flwr_fco/core/files.py` checks them, and leaves none half written."""

import re
from pathlib import Path

from together import together

ROOT = Path(__file__).parents[1]
#: Examples are not here: they are complete apps to copy, of plain Python.
STRICT, SCRIPTS = ("flwr_fco", "main_job", "reproduction", "tools"), ("benchmarks", "docs")
LOADS = r"\b(np|numpy)\.load\("
READS = r"\bjson\.loads?\(|\bgzip\.decompress\(|\bZipFile\(|\.(savefig|save)\(\s*[\w.]*\bpath\b"
WRITES = (
    r"\b(np|numpy)\.savez?(_compressed)?\(|\b(json|pickle)\.dump\(|\btorch\.save\(|\.(write_text|write_bytes|touch|tofile)\("
    r"|\bos\.(open|replace|rename)\(|mkstemp\(|NamedTemporaryFile\(|\bopen\(([^()]*,)?\s*(mode=)?['\"][rbt]*[wax+]"
)
#: Lines that read or write something else than a file of ours, and how many.
OTHERS = {
    # Appends what it has found, one line a run, for days.
    "benchmarks/density.py": 1,
    "docs/measure_private_images.py": 1,
    # `checkpoint.save(path, ...)`, which writes by the one writer, and the callback that calls it beside its lock file.
    "flwr_fco/strategies/rounds.py": 1,
    "flwr_fco/callbacks.py": 2,
    # One of MNIST's own files.
    "reproduction/data/images.py": 1,
}


def found(source, strict=True):
    """Return what in a file's code reads or writes files otherwise."""
    code = re.sub(r'"""[\s\S]*?"""|#.*', "", source)
    return [match[0] for match in re.finditer("|".join((LOADS, WRITES, READS) if strict else (LOADS, WRITES)), code)]


def files(folders):
    paths = [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "tests" not in path.parts and path != Path("flwr_fco/core/files.py")]


@together("path", files(STRICT + SCRIPTS))
def test_files_are_read_and_written_in_one_place(path):
    lines = found((ROOT / path).read_text(encoding="utf-8"), strict=path.parts[0] in STRICT)
    assert len(lines) == OTHERS.get(path.as_posix(), 0), lines


def test_the_check_sees_what_it_should_refuse_and_nothing_else():
    assert all(
        map(found, ("np.load(p)", "json.loads(text)", "p.open('a')", "open(p, mode='wb')", "p.write_text(text)"))
    )
    assert not any(map(found, ("open(p)", "p.open('rb')", "read_npz(p)", "text.replace('a', 'b')")))
