"""Learning rates that are halved when a score stops improving."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray

from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError


def score_of(name: str, score: Callable[[ArrayRecord], float], arrays: ArrayRecord) -> float:
    """Return the score of a model from a user's function.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    score : callable
    arrays : ArrayRecord

    Raises
    ------
    ConfigurationError
        If the score is not a number.
    """
    found: Any = score(arrays)
    try:
        return float(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} returned a {type(found).__name__}; expected a number") from error


class Plateau:
    """The rule of the authors' experiments: halve both rates after `patience` scores without a new best.

    An object of this class is a callback, and it provides the rates that it controls.

    Parameters
    ----------
    score : callable
        ``(arrays) -> float``, lower is better; NaN is never a new best.
    every : int, default 10
        Rounds between two scores.
    patience : int, default 30
        Number of scores without a new best after which the rates shrink; then the count restarts.
    factor : float, default 0.5
        Factor by which the rates are multiplied.
    forget_at_restart : bool, default False
        Whether a new stage of :class:`MultistepReFedDAGT` resets the best score and the count, as in the authors' code.
        By default the best score is that of the whole run.

    Attributes
    ----------
    scale : float
        Current factor on the rates.
    best : float
        Best score so far.

    Examples
    --------
    >>> plateau = Plateau(lambda arrays: 1.0, every=1, patience=2)
    >>> rate = plateau.rate(0.1)
    >>> for number in (1, 2, 3):
    ...     plateau(number, None, None)
    >>> rate(4)
    0.05
    """

    def __init__(
        self,
        score: Callable[[ArrayRecord], float],
        *,
        every: int = 10,
        patience: int = 30,
        factor: float = 0.5,
        forget_at_restart: bool = False,
    ) -> None:
        checked("score", score, Callable[[ArrayRecord], float])
        for name, value, kind in (("every", every, int), ("patience", patience, int), ("factor", factor, float)):
            checked(name, value, kind)
        if every < 1 or patience < 1 or not 0.0 < factor < 1.0:
            raise ConfigurationError(
                f"every={every!r}, patience={patience!r}, factor={factor!r}; expected whole numbers >= 1 and a factor "
                "between 0 and 1"
            )
        self.score, self.every, self.patience, self.factor = score, every, patience, factor
        self.forget_at_restart = forget_at_restart
        self.scale, self.best, self._waited, self._stage = 1.0, math.inf, 0, 0

    def rate(self, start: float) -> Callable[[int], float]:
        """Return a rate function for a strategy's ``client_lr`` or ``server_lr``.

        Parameters
        ----------
        start : float
            Initial rate.

        Raises
        ------
        ConfigurationError
            If `start` is not a finite number > 0.
        """
        start = checked("start", start, float)
        if not 0.0 < start < math.inf:
            raise ConfigurationError(f"start={start!r}; expected a finite number > 0")
        return lambda server_round: start * self.scale

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state to save."""
        return {"numbers": np.array([self.scale, self.best, self._waited, self._stage])}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        self.scale, self.best, waited, stage = arrays["numbers"].tolist()
        self._waited, self._stage = int(waited), int(stage)

    def __call__(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        """Score the model every `every` rounds."""
        stage = self._stage if metrics is None else int(metrics.get("stage", self._stage))  # type: ignore[arg-type]
        if stage != self._stage:
            self._stage = stage
            if self.forget_at_restart:
                self.best, self._waited = math.inf, 0
        if server_round % self.every:
            return
        score = score_of("score", self.score, arrays)
        if score < self.best:
            self.best, self._waited = score, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self.scale, self._waited = self.scale * self.factor, 0
