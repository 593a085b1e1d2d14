"""docs/contribute/architecture.md is what the modules are: its round, and its table of imports."""

import ast
import re
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flwr_fco"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


PAGE = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")


def _rules():
    """Return for each part which parts it may import, and in which modules Flower."""
    rules = {}
    above = set()
    for row in re.findall(r"^\| (`\w+`.*?) \|(.*?)\|(.*?)\|$", PAGE, flags=re.MULTILINE):
        parts, excluded, modules = (set(re.findall(r"`(\w+)`", cell)) for cell in row)
        rules |= {part: (above - excluded | {part}, {"*"} if "all" in row[2] else modules) for part in parts}
        above |= parts
    return rules


RULES = _rules()


def imports(source: str) -> set[str]:
    """Return the dotted names that a module imports, as deep as they can be parts of the package."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what a module depends on"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(module: Path, source: str) -> list[str]:
    """Return the imports of a module that the table does not allow."""
    part = module.parts[0].removesuffix(".py")
    allowed, flower = RULES[part]
    bad = []
    for name in sorted(imports(source)):
        root, _, rest = name.partition(".")
        if root == "flwr_fco" and rest.split(".")[0] not in allowed | {"__version__"}:
            bad.append(name)
        if root == "flwr" and not flower & {"*", module.stem}:
            bad.append(name)
    return bad


def test_every_part_of_the_package_has_a_row_and_every_row_a_part():
    parts = {module.parts[0].removesuffix(".py") for module in MODULES}
    assert parts == set(RULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_what_the_table_allows(module):
    assert violations(module, (PACKAGE / module).read_text(encoding="utf-8")) == []


OUTSIDE = ("main_job", "reproduction", "tools")


def test_nothing_in_the_package_imports_what_builds_on_it():
    for module in MODULES:
        roots = {name.split(".")[0] for name in imports((PACKAGE / module).read_text(encoding="utf-8"))}
        assert not roots & set(OUTSIDE), module
    for path in (ROOT / "main_job").rglob("*.py"):
        assert "reproduction" not in {name.split(".")[0] for name in imports(path.read_text(encoding="utf-8"))}, path


def _module_graph():
    names = {".".join(("flwr_fco", *m.with_suffix("").parts)).removesuffix(".__init__"): m for m in MODULES}
    graph = networkx.DiGraph()
    for name, module in names.items():
        for found in imports((PACKAGE / module).read_text(encoding="utf-8")):
            other = found if found in names else found.rpartition(".")[0]
            if other in names and other != name:
                graph.add_edge(name, other)
    return graph


def test_modules_import_each_other_in_one_direction_only():
    assert [sorted(part) for part in networkx.strongly_connected_components(_module_graph()) if len(part) > 1] == []


def test_the_round_on_the_page_is_in_the_files_that_it_names():
    lines = re.findall(r"^ *(\w+) .* (\S+\.py)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 25
    for name, file in lines:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), (name, file)
