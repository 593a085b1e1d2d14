"""Option objects: what several options chose together, as one value with its own checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError

#: Above it, sums of weights are no numbers.
LARGEST_WEIGHT = 1e100


def _keep(who: object, name: str, kind: object, fits: Callable[[Any], bool], text: str) -> None:
    """Keep an option's value as the type that it is declared with, if it is in its range."""
    value = checked(f"{type(who).__name__}({name})", getattr(who, name), kind)
    if value is not None and not fits(value):
        raise ConfigurationError(f"{type(who).__name__}({name}={value!r}); expected {text}")
    object.__setattr__(who, name, value)


@dataclass(frozen=True)
class Trimmed:
    """The mean of each coordinate without the largest and the smallest values.

    Parameters
    ----------
    share : float, default 0.2
        Fraction of the weight that is left out at each end; from 0 to 1/2, exclusive.

    Raises
    ------
    ConfigurationError
        If the share is out of range.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning (ICML 2018).

    Examples
    --------
    >>> Trimmed(0.1).share
    0.1
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        _keep(self, "share", float, lambda share: 0.0 <= share < 0.5, "a number from 0 to 0.5, exclusive")


@dataclass(frozen=True)
class Average:
    """The mean of the model over rounds, as the output that evaluation and the user see.

    An average is neither sparse nor of low rank.

    Parameters
    ----------
    window : int, optional
        Number of last rounds; by default all rounds.

    Raises
    ------
    ConfigurationError
        If the window is no whole number >= 1.

    Examples
    --------
    >>> Average(window=100)
    Average(window=100)
    """

    window: int | None = None

    def __post_init__(self) -> None:
        _keep(self, "window", int | None, lambda window: window >= 1, "a whole number >= 1, or None")


@dataclass(frozen=True)
class Density:
    """The fraction of the regularized entries that are not 0 in the end.

    The density of a round is share ** (round / rounds), and `share` itself from round `rounds` on.

    Parameters
    ----------
    share : float
        Between 0 and 1.
    scope : {"layers", "global"}, default "layers"
        ``"layers"``: every array is guaranteed half of its Erdos-Renyi share, by which small layers are denser than
        large ones, and the rest goes to the largest entries of all arrays. ``"global"``: all of it goes to the largest
        entries, which can empty a layer.
    rounds : int, optional
        Number of rounds in which the density falls from 1 to `share`; by default three quarters of the rounds given to
        ``start``.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Density(0.1, scope="global")
    Density(share=0.1, scope='global', rounds=None)
    """

    share: float
    scope: Literal["layers", "global"] = "layers"
    rounds: int | None = None

    def __post_init__(self) -> None:
        _keep(self, "share", float, lambda share: 0.0 < share < 1.0, "a number between 0 and 1")
        _keep(self, "scope", Literal["layers", "global"], lambda scope: True, "")
        _keep(self, "rounds", int | None, lambda rounds: rounds >= 1, "a whole number >= 1, or None")


@dataclass(frozen=True)
class Bounds:
    """What the server accepts of a reply; one that is beyond is left out, logged and counted.

    Parameters
    ----------
    max_examples : float, default 1e12
        Largest number of examples.
    max_ratio : float or None, default 1000.0
        A reply is left out if its number of examples, the norm of a vector per unit of elapsed, the product of the two,
        or the change of a pass-through array is more than this many times the larger of the median of the round's
        replies and the largest median of an earlier round; the bounds are wider in a first round with fewer than five
        replies. An evaluation is left out if its metrics are more than a tenth of this many times as far from the
        median as usual. None disables these checks.
    max_increment_norm : float, optional
        Largest Euclidean norm of a vector, whatever the other clients send.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Bounds(max_ratio=10.0).max_examples
    1000000000000.0
    """

    max_examples: float = 1e12
    max_ratio: float | None = 1_000.0
    max_increment_norm: float | None = None

    def __post_init__(self) -> None:
        text = "a finite number > 0, at most 1e100"
        _keep(self, "max_examples", float, lambda most: 0.0 < most <= LARGEST_WEIGHT, text)
        _keep(self, "max_ratio", float | None, lambda ratio: 1.0 <= ratio < math.inf, "a finite number >= 1, or None")
        _keep(
            self, "max_increment_norm", float | None, lambda norm: 0.0 < norm < math.inf, "a finite number > 0, or None"
        )
