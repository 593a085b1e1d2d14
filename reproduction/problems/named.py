"""Named problems: data on clients, a regularizer, the metrics of a round, and default rates.

The problems of 'Federated Composite Optimization' (Yuan, Zaheer, Reddi 2021, section 5 and appendix B), those of
'Gradient Tracking for High Dimensional Federated Optimization' (Liang, Peng, Zhang, section 7), those of 'Local
Composite Saddle Point Optimization' (Bai, Bullins 2024, section 6 and appendix A), and small ones on data that come
with scikit-learn. ``named.toml`` defines them, ``python -m reproduction list`` lists them,
``python -m reproduction run NAME`` runs one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from inspect import signature
from types import MappingProxyType
from typing import Any, get_type_hints

from flwr_fco.errors import ConfigurationError
from reproduction.problems import loaders
from reproduction.problems.tasks import Task
from reproduction.rivals import STRATEGIES
from reproduction.values import checked, suggestion

#: One method under three names.
_DUAL_AVERAGING = ("FedDualAvg", "FedDualAvgOSP", "FedDA")


@dataclass(frozen=True)
class Problem:
    """An entry of :data:`PROBLEMS`.

    Parameters
    ----------
    name, description : str
    function : callable
        ``(seed, **options) -> Task``; its keyword arguments are the problem's options.
    fixed : mapping of str to value
        Arguments of the function that are not options.
    given : mapping of str to value
        Defaults of options, in kebab-case, if they differ from the function's.
    defaults : mapping of str to number or str
        Default run settings: rates, rounds, clients per round, batch size, local work, evaluation intervals.
    tuned : sequence of str or "all"
        The strategies that the rates were chosen for; the defaults of other strategies are ``client-lr=auto``.
    files : str, default ""
        The directory of the data set, whose files must exist.
    """

    name: str
    description: str
    function: Callable[..., Task]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, int | float | str] = field(default_factory=dict)
    tuned: tuple[str, ...] | str = _DUAL_AVERAGING
    files: str = ""

    @cached_property
    def options(self) -> dict[str, Any]:
        """The problem's options in kebab-case, with their defaults."""
        known = {
            name.replace("_", "-"): parameter.default
            for name, parameter in signature(self.function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in self.fixed
        }
        return {**known, **self.given}

    def tuned_for(self, strategy: str) -> bool:
        """Whether the rates among the defaults were chosen for a strategy.

        Examples
        --------
        >>> find_problem("lasso-I").tuned_for("FedDualAvg"), find_problem("lasso-I").tuned_for("FedMid")
        (True, False)
        """
        return strategy in (STRATEGIES if self.tuned == "all" else self.tuned)

    def checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as keyword arguments of `load`.

        Parameters
        ----------
        options : mapping of str to value
            In kebab-case.

        Raises
        ------
        ConfigurationError
            If the problem has no such option, or a value is of the wrong type.
        """
        types = get_type_hints(self.function)
        found = {}
        for key, value in options.items():
            if key not in self.options:
                known = ", ".join(self.options) or "none"
                raise ConfigurationError(f"{self.name} has no option {key!r}; expected one of {known}")
            name = key.replace("-", "_")
            found[name] = checked(key, value, types[name])
        return found

    def load(self, seed: int, **options: Any) -> Task:
        """Return the problem with its data.

        Parameters
        ----------
        seed : int
        **options
            Options from :meth:`checked_options`.
        """
        given = {key.replace("-", "_"): value for key, value in self.given.items()}
        return self.function(seed, **{**self.fixed, **given, **options})


def _read_problems() -> dict[str, Problem]:
    file = resources.files(__package__ or "") / "named.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    shared = table["settings"]
    found = {}
    for name, own in table["problems"].items():
        defaults = {**shared[own.pop("like", "default")], **own.pop("settings", {})}
        names = {"function": getattr(loaders, own.pop("load")), "given": own.pop("options", {})}
        found[name] = Problem(name, **names, defaults=MappingProxyType(defaults), **own)
    return found


#: All problems by name.
PROBLEMS: Mapping[str, Problem] = MappingProxyType(_read_problems())


def find_problem(name: str) -> Problem:
    """Return the problem of that name.

    Parameters
    ----------
    name : str

    Returns
    -------
    Problem

    Raises
    ------
    ConfigurationError
        If there is none.

    Examples
    --------
    >>> find_problem("lasso-III").options
    {'strength': 0.5}
    """
    if name not in PROBLEMS:
        raise ConfigurationError(f"problem={name!r}; expected one of {', '.join(PROBLEMS)}{suggestion(name, PROBLEMS)}")
    return PROBLEMS[name]


def load_task(name: str, seed: int = 0, options: Mapping[str, Any] | None = None) -> Task:
    """Return a problem with its data; the last few are cached, so runs of one process share them.

    Parameters
    ----------
    name : str
        Name of the problem.
    seed : int, default 0
        Seed of the data and their split over clients.
    options : mapping, optional
        The problem's options, in kebab-case.

    Returns
    -------
    Task

    Raises
    ------
    ConfigurationError
        If there is no such problem or option, or a value is of the wrong type or out of range.
    DataNotFoundError
        If the problem's files are missing.

    Examples
    --------
    >>> task = load_task("lasso-small", options={"num-clients": 4})
    >>> sorted(task.structure(task.dataset.coefficients))
    ['density', 'f1', 'precision', 'recall', 'recovery-error']
    """
    # Checked before the cache, where True would be 1.0.
    checked_options = find_problem(name).checked_options(options or {})
    return _load(name, seed, tuple(sorted(checked_options.items())))


@lru_cache(maxsize=4)
def _load(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> Task:
    return PROBLEMS[name].load(seed, **dict(options))
