"""PyTorch is an extra: nothing else of the package imports it, and where it is missing the error says what to do."""

import subprocess
import sys

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


def test_the_package_does_not_import_pytorch():
    modules = "flwr_fco, flwr_fco.strategies, flwr_fco.client_apps, flwr_fco.simulation, flwr_fco.objectives"
    assert _run(f"import sys, {modules}; print('torch' in sys.modules)") == "False\n"
