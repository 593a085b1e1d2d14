"""Run scripts one after the other, each as `python SCRIPT OPTIONS` does, in a process that has loaded the libraries.

    python tools/forked.py benchmarks/path.py benchmarks/prox.py --quick

Two seconds of every new process go into importing NumPy, SciPy, scikit-learn, Numba and Flower. This one does so once,
with the package, and forks itself for each script. It ends with the first that fails.
"""

import gc
import os
import runpy
import sys
from contextlib import suppress
from importlib import import_module


def main(arguments: list[str]) -> int:
    """Run the scripts among the arguments with all others as their options; return the status of the last."""
    scripts = [each for each in arguments if each.endswith(".py")]
    options = [each for each in arguments if each not in scripts]
    # What a script does not ask for is one thread, as forks share no pool of them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in ("typer", "sklearn.datasets", "sklearn.model_selection", "flwr_fco.tables"):
        import_module(name)
    with suppress(ImportError):
        import_module("torch")
    # The first function that is compiled, or read from its cache, loads most of Numba.
    import_module("numba").njit(lambda x: x)(1.0)
    # A script that ends would copy all of it: its collector of garbage writes to each object.
    gc.freeze()
    for script in scripts:
        print(f"== {script} {' '.join(options)}", flush=True)
        child = os.fork()
        if child == 0:
            sys.argv = [script, *options]
            sys.path[0] = os.path.dirname(script)
            runpy.run_path(script, run_name="__main__")
            return 0
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
