"""Modules that have moved: their old names still import the same module object."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

#: (old folder, new folder, moved modules); '=' marks modules that were also renamed.
_MOVES = (
    ("", "core", "parameters=layout randomness spec validation"),
    ("", "mirror_maps", "quadratic_models"),
    ("", "pooled", "sequential"),
    ("", "simulation", "paths=fit_path"),
    ("", "wire", "protocol questions"),
    ("client_apps", "client_apps", "engines=minimisers limits=quotas"),
    ("client_apps", "client_apps.solvers", "local=table"),
    ("strategies", "server", "limits=convergence options"),
    ("strategies", "server.questions", "path=strength_path rates"),
    ("strategies", "server.replies", "aggregation=centres bounds"),
    ("strategies", "server.rounds", "plateau structure"),
    ("strategies", "strategies.dual_averaging", "fast_fed_da fed_dual_avg"),
    ("strategies", "strategies.gradient_tracking", "fed_da_gt re_fed_da_gt scaffold"),
    (
        "strategies",
        "strategies.local_minimisation",
        "apda_inexact dual_fl fed_dr fed_dyn fed_pd fed_prox five_gcs scaffnew",
    ),
    ("strategies", "strategies.on_graphs", "decentralized"),
    ("strategies", "strategies.primal_averaging", "fed_avg fed_avg_subgradient fed_cm fed_mid fed_sam"),
    ("strategies", "strategies.saddle_points", "fe_dual_ex fed_mip saddle_baselines scaffold_s"),
)


def _named(folder: str, module: str) -> str:
    return ".".join(filter(None, ("flwr_fco", folder, module)))


_NEW_NAMES = {
    _named(old, module.partition("=")[0]): _named(new, module.rpartition("=")[2])
    for old, new, modules in _MOVES
    for module in modules.split()
}


class OldNames:
    """Finds modules by their old names; ``flwr_fco`` places it after Python's own finders.

    Examples
    --------
    >>> from flwr_fco.parameters import Layout
    >>> Layout.__module__
    'flwr_fco.core.layout'
    """

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has moved; None for any other name."""
        for old, new in _NEW_NAMES.items():
            if name == old or name.startswith(f"{old}."):
                return ModuleSpec(name, _Loader(new + name.removeprefix(old)))  # type: ignore[arg-type]
        return None


class _Loader:
    """Returns the module that now has the new name."""

    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the spec by that of the old name.
        module.__spec__ = self._spec
