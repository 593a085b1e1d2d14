"""The table of docs/architecture.md is what the modules import: neither can drift."""

import ast
import re
from collections import Counter
from pathlib import Path

import networkx
import pytest

from flwr_fco.server import options
from flwr_fco.strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flwr_fco"
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def _rules():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", page, flags=re.MULTILINE)
    parts = [part for part, _, _ in rows]
    rules = {}
    for part, ours, flower in rows:
        allowed = set(re.findall(r"`(\w+)`", ours))
        if "everything" in ours:
            allowed = set(parts) - allowed
        modules = {"*"} if "yes" in flower else set(re.findall(r"`(\w+)`", flower))
        rules[part] = (allowed | {part}, modules)
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


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_what_the_table_allows(module):
    assert violations(module, (PACKAGE / module).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kernels/prox.py", "from flwr_fco.errors import ConfigurationError"),
        ("regularizers/separable.py", "from flwr_fco.wire import protocol"),
        ("objectives/base.py", "import flwr.app"),
        ("client_apps/solvers/dual_averaging/dual_averaging.py", "from flwr.app import Message"),
        ("strategies/primal_averaging/fed_mid.py", "from flwr.app import Message"),
        ("strategies/primal_averaging/fed_mid.py", "from flwr_fco.client_apps import app"),
        ("testing/strategies.py", "def f():\n    from flwr_fco import sklearn"),
    ],
)
def test_the_check_sees_what_it_should_refuse(module, line):
    assert violations(Path(module), line)


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


def test_no_folder_is_a_heap():
    sizes = Counter(module.parent for module in MODULES)
    assert max(sizes.values()) <= 16, sizes.most_common(1)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda cls: cls.__name__)
def test_a_strategy_derives_from_few_classes(strategy):
    ours = [cls for cls in strategy.__mro__ if cls.__module__.startswith("flwr_fco")]
    behaviour = [cls for cls in ours if cls.__module__ != options.__name__]
    assert len(behaviour) <= 5, behaviour
