"""Scaffnew: local gradient steps with a shift, averaged when a coin says so (ProxSkip).

Mishchenko, Malinovsky, Stich, Richtarik (ICML 2022), algorithm 2; their symbols in brackets::

    each client, shift [h_i] = 0: x <- x - client_lr [gamma] (g(x) - shift), until the shared coin, which falls with
        probability p after every step, says to average; then send the increment
    server: primal <- mean(x)
    client, when the new primal arrives: shift <- shift + p/client_lr (primal - x)

The weighted sum of the shifts is 0. With p = 1 it is gradient descent with the rate client_lr. The server tosses the
coin ahead: the number of steps until it falls is what it sends.
"""

from __future__ import annotations

import numpy as np

from flwr_fco.errors import ConfigurationError

__all__ = ["steps_until_heads"]


def steps_until_heads(probability: float, rng: np.random.Generator | None) -> int:
    """Return how many local steps come before the next averaging.

    Parameters
    ----------
    probability : float
        p in (0, 1].
    rng : numpy.random.Generator or None
        Where the coin is tossed; None: every 1/p-th step, rounded.

    Raises
    ------
    ConfigurationError
        If p is out of range.

    Examples
    --------
    >>> steps_until_heads(0.25, None)
    4
    """
    if not 0.0 < probability <= 1.0:
        raise ConfigurationError(f"probability={probability!r}; expected 0 < probability <= 1")
    return max(1, round(1.0 / probability)) if rng is None else int(rng.geometric(probability))
