"""The step sizes of the papers' theorems, for losses whose constants are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError

_SQRT5 = math.sqrt(5.0)


def _over(numerator: float, denominator: float) -> float:
    """Return the quotient; inf if the denominator is 0, because the term then bounds nothing."""
    return numerator / denominator if denominator > 0.0 else math.inf


def _extragradient(big_l: float, b: float, r: float, k: float, m: float, sigma: float, g: float) -> float:
    """Return the terms that theorems 1 and 2 of the third paper share."""
    drift = _over(b**0.25, 20**0.25 * (big_l * g) ** 0.5 * k**0.75 * r**0.25)
    return min(1 / (_SQRT5 * big_l), drift, _over((b * m) ** 0.5, _SQRT5 * sigma * (r * k) ** 0.5))


def _noise(b: float, r: float, k: float, m: float, sigma: float) -> float:
    """Return the term of the noise in the first paper."""
    return _over((b * m) ** 0.5, sigma * (k * r) ** 0.5)


def _unequal(big_l: float, b: float, r: float, k: float, *, m: float, sigma: float, g: float, **_: float) -> float:
    """Return the terms that theorems D.1 and E.1 of the first paper share."""
    drift = _over((b / big_l) ** (1 / 3), k * r ** (1 / 3) * g ** (2 / 3))
    return min(1 / (4 * big_l), _noise(b, r, k, m, sigma), drift)


_Formula = Callable[..., float]
#: The formula of each theorem; `big_l`, `b`, `r`, `k`, `m`, `sigma`, `g`, `tau`, `d`, `delta` are the papers' symbols.
_THEOREMS: dict[str, _Formula] = {
    "fco-D.1": _unequal,
    "fco-E.1": lambda big_l, b, r, k, sigma, **others: min(
        _unequal(big_l, b, r, k, sigma=sigma, **others),
        _over((b / big_l) ** (1 / 3), k ** (2 / 3) * r ** (1 / 3) * sigma ** (2 / 3)),
    ),
    "fco-F.1": lambda big_l, b, r, k, m, sigma, **_: min(1 / (4 * k * big_l), _noise(b, r, k, m, sigma)),
    "gt-B.1": lambda big_l, b, r, k, sigma, g, tau, d, **_: min(
        1 / (tau * big_l * k),
        _over(b ** (1 / 3), (tau**2 * big_l * r * g**2) ** (1 / 3) * k),
        _over(b**0.5, (tau * r * k) ** 0.5 * math.log(d) ** 2 * sigma),
    ),
    "gt-B.2": lambda big_l, b, r, k, sigma, tau, d, **_: min(
        1 / (tau**2 * big_l * k), _over(b**0.5, tau * (r * k) ** 0.5 * math.log(d) ** 2 * sigma)
    ),
    "gt-C.1": lambda big_l, b, r, k, m, sigma, d, delta, **_: min(
        1 / (48 * big_l * k),
        math.sqrt(_over(2 * b, r * k * sigma**2 * math.log(d))),
        math.sqrt(_over(2 * b * m * math.log(d), k * sigma**2 * math.log(2 * d / delta))),
    ),
    "spp-1": lambda big_l, b, r, k, m, sigma, g, **_: min(
        _extragradient(big_l, b, r, k, m, sigma, g), _over(b**0.25, 2**0.75 * (big_l * g) ** 0.5 * k * r**0.5)
    ),
    "spp-2": lambda big_l, b, r, k, m, sigma, g, **_: min(
        _extragradient(big_l, b, r, k, m, sigma, g),
        _over((b / (2 * big_l)) ** (1 / 3), g ** (2 / 3) * k * r ** (1 / 3)),
    ),
    "spp-3": lambda big_l, b, r, k, sigma, **_: min(
        1 / (math.sqrt(3) * big_l), _over(b**0.5, math.sqrt(3) * sigma * (r * k) ** 0.5)
    ),
}

_POSITIVE, _COUNT = (float, *POSITIVE["range"]), (int, *AT_LEAST_ONE["range"])
_NOT_NEGATIVE = (float, *NON_NEGATIVE["range"])
#: Symbol, kind and range of each constant.
_CONSTANTS: dict[str, tuple[Any, ...]] = {
    "smoothness": ("big_l", *_POSITIVE),
    "distance": ("b", *_POSITIVE),
    "rounds": ("r", *_COUNT),
    "steps": ("k", *_COUNT),
    "clients": ("m", *_COUNT),
    "noise": ("sigma", *_NOT_NEGATIVE),
    "gradients": ("g", *_NOT_NEGATIVE),
    "mixing_time": ("tau", float, lambda value: 1.0 <= value < math.inf, "a finite number >= 1"),
    "dimension": ("d", int, lambda value: value >= 2, "a whole number >= 2"),
    "failure": ("delta", float, lambda value: 0.0 < value <= 1.0, "a number > 0, at most 1"),
}


def theorem_rate(
    theorem: str,
    *,
    smoothness: float,
    distance: float,
    rounds: int,
    steps: int = 1,
    clients: int = 1,
    noise: float = 0.0,
    gradients: float = 0.0,
    mixing_time: float = 1.0,
    dimension: int = 2,
    failure: float = 0.05,
) -> float:
    """Return the step size that a theorem of the papers chooses.

    It is the smallest of a few terms; terms of a constant that is 0 drop out. Of theorems with a rate of the server it
    is `client_lr` at ``server_lr=1``, except "fco-F.1", whose value is their product, for a small enough `client_lr`.

    Parameters
    ----------
    theorem : str
        Paper and theorem: "fco-D.1" (4.2 in the text), "fco-E.1" (4.3) or "fco-F.1" (4.1) of Yuan, Zaheer, Reddi
        (2021); "gt-B.1", "gt-B.2" or "gt-C.1" of Liang, Peng, Zhang, the first two up to a constant factor; "spp-1",
        "spp-2" or "spp-3" of Bai, Bullins (2024).
    smoothness : float
        L or beta, in the norm of the mirror map; > 0.
    distance : float
        B, the Bregman divergence of the solution from the start; h(w*) in "gt-B.1" and "gt-B.2"; Q in "gt-C.1"; > 0.
    rounds, steps, clients : int
        R, K and M; in "spp-3" their T is R K.
    noise : float, default 0.0
        sigma, the standard deviation of stochastic gradients; sub-Gaussian scale in "gt-C.1".
    gradients : float, default 0.0
        G, the bound on gradients; zeta, the bound on heterogeneity, in "fco-E.1"; in "gt-B.1" the root of E*_M.
    mixing_time : float, default 1.0
        tau, of "gt-B.1" and "gt-B.2": :meth:`flwr_fco.topology.Topology.theorem_time` with 4 and 8.
    dimension : int, default 2
        d, of the second paper's theorems.
    failure : float, default 0.05
        delta, of "gt-C.1".

    Returns
    -------
    float

    Raises
    ------
    ConfigurationError
        If the theorem is not known, or a constant is out of range, or the step size is no float64 number.

    Examples
    --------
    >>> theorem_rate("fco-D.1", smoothness=2.0, distance=1.0, rounds=100, steps=5)
    0.125
    >>> round(theorem_rate("fco-D.1", smoothness=2.0, distance=1.0, rounds=100, steps=5, gradients=3.0), 4)
    0.0164
    """
    given = dict(locals())
    if checked("theorem", theorem, str) not in _THEOREMS:
        raise ConfigurationError(f"theorem={theorem!r}; expected one of {', '.join(_THEOREMS)}")
    symbols = {}
    for name, (symbol, kind, within, text) in _CONSTANTS.items():
        symbols[symbol] = checked(name, given[name], kind, {"range": (within, text)})
    try:
        rate = _THEOREMS[theorem](**symbols)
    except OverflowError:
        rate = math.nan
    if not 0.0 < rate < math.inf:
        raise ConfigurationError(
            f"the step size of {theorem} is no float64 number > 0: {given}; a constant is too large or too small"
        )
    return rate
