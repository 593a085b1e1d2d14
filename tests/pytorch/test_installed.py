"""PyTorch is an extra: nothing else of the package imports it, and where it is missing the error says what to do."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

_WITHOUT = """
import sys

class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoTorch())
import flwr_fco, flwr_fco.strategies, flwr_fco.client_apps, flwr_fco.simulation, flwr_fco.regularizers, flwr_fco.testing
try:
    import flwr_fco.torch
except ValueError as error:
    print(type(error).__name__, error)
"""


def _run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def test_without_pytorch_all_else_works_and_the_error_names_the_command():
    assert _run(_WITHOUT) == "NotInstalledError flwr_fco.torch needs PyTorch: pip install torch (the extra [torch])\n"


def test_commands_that_install_an_extra_work():
    """The package is on no index: an extra is installed from the clone, and exists."""
    parts = ("flwr_fco", "tests", "docs", "examples")
    files = [ROOT / "README.md", *(file for part in parts for file in (ROOT / part).rglob("*.*"))]
    found = [
        (file, *command)
        for file in files
        if file.suffix in (".py", ".md")
        for command in re.findall(r"pip install (?:-e )?'?([\w.-]+)\[([\w,]+)\]", file.read_text(encoding="utf-8"))
    ]
    assert len(found) > 5
    for file, package, names in found:
        # An example's README speaks of its own project too.
        projects = [own / "pyproject.toml" for own in (file.parent, ROOT) if (own / "pyproject.toml").exists()]
        tables = [tomllib.loads(project.read_text())["project"] for project in projects]
        extras = {name for table in tables for name in table.get("optional-dependencies", {})}
        assert package != "flwr-fco", file
        assert package != "." or set(names.split(",")) <= extras, file


def test_the_package_does_not_import_pytorch():
    modules = "flwr_fco, flwr_fco.strategies, flwr_fco.client_apps, flwr_fco.simulation, flwr_fco.objectives"
    assert _run(f"import sys, {modules}; print('torch' in sys.modules)") == "False\n"
