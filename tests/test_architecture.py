"""docs/contribute/architecture.md is what the modules are: its round, and its table of imports."""

import ast
import re
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")


def modules_of(package):
    """Return the paths of a package's modules by their dotted names."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / package).rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imports(path):
    """Return the dotted names that a module imports, as deep as they can be parts of the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what a module depends on"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = modules_of("flwr_fco")
IMPORTS = {name: imports(path) for name, path in MODULES.items() if name != "flwr_fco"}
PARTS = {name: name.split(".")[1] for name in IMPORTS}


def rules():
    """Return for each part which parts it may import, and in which modules Flower."""
    found = {}
    above = {"__version__"}
    for row in re.findall(r"^\| (`\w+`.*?) \|(.*?)\|(.*?)\|$", PAGE, flags=re.MULTILINE):
        parts, excluded, flower = (set(re.findall(r"`(\w+)`", cell)) for cell in row)
        found |= {part: (above - excluded | {part}, "all" in row[2] or flower) for part in parts}
        above |= parts
    return found


RULES = rules()


def test_every_part_of_the_package_has_a_row_and_every_row_a_part():
    assert set(PARTS.values()) == set(RULES)


@pytest.mark.parametrize("module", IMPORTS)
def test_a_module_imports_what_the_table_allows(module):
    allowed, flower = RULES[PARTS[module]]
    ours = {name.split(".")[1] for name in IMPORTS[module] if name.startswith("flwr_fco.")}
    assert ours <= allowed
    roots = {name.split(".")[0] for name in IMPORTS[module]}
    assert "flwr" not in roots or flower is True or MODULES[module].stem in flower
    assert not roots & {"main_job", "reproduction", "tools"}


def test_the_main_job_does_without_the_reproduction():
    assert [path for path in modules_of("main_job").values() if "from reproduction" in path.read_text()] == []


def test_modules_import_each_other_in_one_direction_only():
    graph = networkx.DiGraph()
    for name, found in IMPORTS.items():
        modules = {each if each in IMPORTS else each.rpartition(".")[0] for each in found} & IMPORTS.keys()
        graph.add_edges_from((name, other) for other in modules - {name})
    assert [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1] == []


def test_the_round_on_the_page_is_in_the_files_that_it_names():
    lines = re.findall(r"^ *(\w+) .* (\S+\.py)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 25
    for name, file in lines:
        source = (ROOT / "flwr_fco" / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), (name, file)
