"""Learning rates that are halved when a score stops improving, as in the experiments of the second paper's authors."""

from __future__ import annotations

import math
from collections.abc import Callable


class Plateau:
    """Halves the rates that it provides after `patience` scores without a new best.

    Parameters
    ----------
    patience : int
        Number of scores without a new best after which the rates are halved; then the count restarts.

    Attributes
    ----------
    scale : float
        Current factor on the rates.

    Examples
    --------
    >>> plateau = Plateau(patience=2)
    >>> rate = plateau.rate(0.1)
    >>> for score in (1.0, 1.0, 1.0):
    ...     plateau.observe(score)
    >>> rate(4)
    0.05
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.scale, self._best, self._waited = 1.0, math.inf, 0

    def rate(self, start: float) -> Callable[[int], float]:
        """Return a rate function for a strategy's ``client_lr`` or ``server_lr``.

        Parameters
        ----------
        start : float
            Initial rate.
        """
        return lambda server_round: start * self.scale

    def restart(self) -> None:
        """Forget the best score: a stage begins at another point, and its first scores are no failures."""
        self._best = math.inf

    def observe(self, score: float) -> None:
        """Take the next score; lower is better, and NaN is never a new best.

        Parameters
        ----------
        score : float
        """
        if score < self._best:
            self._best, self._waited = score, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self.scale, self._waited = self.scale / 2, 0
