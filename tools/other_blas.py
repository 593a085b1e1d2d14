"""Print a core type of OpenBLAS that this processor can run and whose results round otherwise than those of its own.

    OPENBLAS_CORETYPE=$(python tools/other_blas.py) python -m pytest tests/kernels

It prints nothing where none is known: on another system than Linux, on a processor that is no x86, without OpenBLAS.
"""

from pathlib import Path

import numpy as np  # noqa: F401 (loads OpenBLAS)
from threadpoolctl import threadpool_info

#: Core types, what a processor must have for them, and the names of those that compute in the same order.
CORE_TYPES = {
    "SkylakeX": ("avx512f", {"SkylakeX", "Cooperlake", "SapphireRapids"}),
    "Haswell": ("avx2", {"Haswell", "Zen", "Excavator"}),
    "Prescott": ("pni", {"Prescott", "Katmai"}),
}


def other_core_type(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the core type, "" where none is known."""
    own = {str(library.get("architecture")) for library in threadpool_info() if library["internal_api"] == "openblas"}
    if not own or not info.is_file():
        return ""
    flags = set(info.read_text(encoding="utf-8").split())
    return next((name for name, (flag, alike) in CORE_TYPES.items() if flag in flags and not own & alike), "")


if __name__ == "__main__":
    print(other_core_type())
