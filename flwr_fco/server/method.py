"""What a strategy class says of its method: the algorithm, and the facts of the table in docs/strategies.md."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.density import SparseDualAveraging
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.convergence import Limit


class Method(NamedTuple):
    """The method of a strategy class.

    Parameters
    ----------
    algorithm : type of Algorithm, optional
        Both halves; None for a base class.
    limit : Limit, optional
        What it converges to, with its own check.
    source : str
        Where it is from.
    sends, remembers : str
        What a client sends, and what it remembers between rounds.
    traffic : str
        Vectors down and up in a round.
    """

    algorithm: type[Algorithm] | None = None
    limit: Limit | None = None
    source: str = "your own"
    sends: str = "z_K - z_0"
    remembers: str = "nothing"
    traffic: str = "1 / 1"


_METHODS: WeakKeyDictionary[type, Method] = WeakKeyDictionary()


def declare(strategy: type, **says: Any) -> None:
    """Record what a strategy class says of its method; what it does not say is its base class's.

    Parameters
    ----------
    strategy : type
        The class.
    **says
        Fields of :class:`Method`.
    """
    inherited = next((_METHODS[base] for base in strategy.__mro__[1:] if base in _METHODS), Method())
    unknown = sorted(says.keys() - set(Method._fields))
    if unknown:
        raise ConfigurationError(
            f"class {strategy.__name__}(..., {unknown[0]}=...): a strategy class says {', '.join(Method._fields)}"
        )
    algorithm = says.get("algorithm")
    if algorithm is not None and not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise ConfigurationError(
            f"class {strategy.__name__}(..., algorithm={algorithm!r}): expected a subclass of "
            "flwr_fco.algorithms.Algorithm"
        )
    _METHODS[strategy] = inherited._replace(**says)


def method_of(strategy: object) -> Method:
    """Return the method of a strategy, or of a class of strategies.

    Parameters
    ----------
    strategy : CompositeStrategy or type
        The strategy, or its class.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDAGT
    >>> str(method_of(FedDAGT).limit), method_of(FedDAGT).algorithm.__name__
    ('exact', 'GradientTracking')
    """
    kind = strategy if isinstance(strategy, type) else type(strategy)
    return _METHODS.get(kind, Method())


def algorithm_class(options: object) -> type[Algorithm]:
    """Return the class of a strategy's algorithm.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.

    Raises
    ------
    ConfigurationError
        If the strategy's class says none.
    """
    kind = method_of(options).algorithm
    if kind is None:
        name = type(options).__name__
        raise ConfigurationError(
            f"{name} does not say what it runs: class {name}(..., CompositeStrategy, algorithm=...) takes a subclass "
            "of flwr_fco.algorithms.Algorithm"
        )
    return kind if getattr(options, "density", None) is None else SparseDualAveraging


def algorithm_of(options: object) -> Algorithm:
    """Return a strategy's algorithm, with the strategy's options of the same names.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.
    """
    kind: Any = algorithm_class(options)
    names = [option.name for option in fields(kind) if option.init] if is_dataclass(kind) else []
    algorithm: Algorithm = kind(**{name: getattr(options, name) for name in names if hasattr(options, name)})
    return algorithm
