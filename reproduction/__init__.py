"""Problems, runs, sweeps, the papers' experiments with rules that decide their claims, and the command line.

Exported names are imported on first use, so that ``python -m reproduction --help`` loads no numerical library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reproduction.claims.definition import (
        EXPERIMENTS,
        Claim,
        Definition,
        RunLine,
        load_definition,
        select_experiments,
    )
    from reproduction.claims.reproduction import Report, Verdict, judge, reproduce
    from reproduction.claims.rules import RULES, Measurement, Outcome, Outcomes

__all__ = [
    "EXPERIMENTS",
    "RULES",
    "Claim",
    "Definition",
    "Measurement",
    "Outcome",
    "Outcomes",
    "Report",
    "RunLine",
    "Verdict",
    "judge",
    "load_definition",
    "reproduce",
    "select_experiments",
]

#: The modules that define them, the lightest first.
_MODULES = ("rules", "definition", "reproduction")


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        home = import_module(f"{__name__}.claims.{module}")
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
