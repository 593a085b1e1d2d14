"""The algorithm of a strategy class, and the options that it has a place for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.contract.choices import Everyone
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.server.options import EveryoneOptions


class Method(NamedTuple):
    """The method of a strategy class.

    Parameters
    ----------
    algorithm : type of Algorithm, optional
        Both halves; None for a base class.
    choose : callable, optional
        ``(strategy) -> type of Algorithm``, where an option chooses another algorithm than `algorithm`.
    """

    algorithm: type[Algorithm] | None = None
    choose: Callable[[Any], type[Algorithm]] | None = None


def method_of(strategy: object) -> Method:
    """Return the method of a strategy, or of a class of strategies.

    Parameters
    ----------
    strategy : CompositeStrategy or type
        The strategy, or its class.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDAGT
    >>> method_of(FedDAGT).algorithm.__name__
    'GradientTracking'
    """
    kind = strategy if isinstance(strategy, type) else type(strategy)
    method: Method = getattr(kind, "__method__", Method())
    return method


def algorithm_class(options: object) -> type[Algorithm]:
    """Return the class of a strategy's algorithm.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.

    Raises
    ------
    ConfigurationError
        If the strategy's class says none, or one that a density would replace.
    """
    method, name, density = method_of(options), type(options).__name__, getattr(options, "density", None)
    kind = method.algorithm if method.choose is None else method.choose(options)
    if kind is None:
        what = f"{name} does not say what it runs: class {name}(..., CompositeStrategy"
        raise ConfigurationError(f"{what}, algorithm=...) takes a subclass of flwr_fco.algorithms.Algorithm")
    if density is None or issubclass(kind, SparseDualAveraging):
        return kind
    if kind is not DualAveraging:
        what = f"density={getattr(options, 'density', None)!r}: {type(options).__name__} runs {kind.__name__}"
        advice = "and a density is an algorithm of its own, flwr_fco.algorithms.SparseDualAveraging"
        raise ConfigurationError(f"{what}, {advice}: make yours a subclass of it, or leave density out")
    return SparseDualAveraging


def algorithm_of(options: object) -> Algorithm:
    """Return a strategy's algorithm, with the strategy's options of the same names.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.

    Raises
    ------
    ConfigurationError
        If the strategy lacks an option that the algorithm needs.
    """
    kind: Any = algorithm_class(options)
    values: dict[str, Any] = {}
    for option in fields(kind) if is_dataclass(kind) else ():
        if option.init and hasattr(options, option.name):
            values[option.name] = getattr(options, option.name)
        elif option.init and option.default is MISSING and option.default_factory is MISSING:
            raise ConfigurationError(
                f"{kind.__name__} needs the option {option.name!r}, which {type(options).__name__} does not have: "
                f"add a field `{option.name}: ...` to it, or give it a default in {kind.__name__}"
            )
    algorithm: Algorithm = kind(**values)
    return algorithm


def check_choices(options: Any, kind: type[Algorithm]) -> None:
    """Check that a strategy's options are among those that its algorithm has a place for.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.
    kind : type of Algorithm
        The class of its algorithm.

    Raises
    ------
    ConfigurationError
        If one is not, with the reason and what to take.
    """
    name, refuses = type(options).__name__, kind.refuses
    if options.aggregation != "mean" and kind.reads != "mean":
        sums = "its sums (trackers, duals) hold only with the clients' weights"
        why = "gossip reads each reply by itself" if kind.reads == "rows" else sums
        raise ConfigurationError(
            f"aggregation={options.aggregation!r}: {name} needs the mean: {why}. Take FedDualAvg, FedMid or "
            "FedAvgSubgradient for robust aggregation, or tighter bounds=Bounds(max_ratio=..., max_increment_norm=...)"
        )
    if "regularizer" in refuses and not isinstance(options.regularizer, Zero):
        raise ConfigurationError(
            f"regularizer={options.regularizer!r}: {name} has no place for psi, because {refuses['regularizer']}. Put "
            "a smooth psi (an l2 term) into the clients' losses, or take FedDR, FedDualAvg or FedDAGT"
        )
    if "mirror_map" in refuses and not isinstance(options.mirror_map, Euclidean):
        what = f"mirror_map={options.mirror_map!r}: {name} {refuses['mirror_map']}, so it is Euclidean"
        raise ConfigurationError(f"{what}; use Euclidean(), or FedMid or FedDualAvg for other geometries")
    if options.mirror_map.never_supports(options.regularizer):
        options.mirror_map.require(options.regularizer)
    everyone = kind.reads == "everyone"
    if everyone and options.fraction_train != 1.0:
        raise ConfigurationError(
            f"fraction_train={options.fraction_train}: {name} needs every client in every round; "
            "leave fraction_train=1.0, or take a strategy that samples clients, such as Scaffold"
        )
    waits = isinstance(options.participation, Everyone)
    if (waits and not everyone) or (isinstance(options, EveryoneOptions) and not waits):
        expected = "an Everyone, for the method needs every client: EveryoneOptions before CompositeStrategy has it"
        if not everyone:
            expected = f'a Participation, or set {kind.__name__}.reads to "everyone", or leave EveryoneOptions out'
        raise ConfigurationError(f"participation={options.participation!r} of {name}; expected {expected}")
