"""Weights that balance classes: the server knows them after its first question, and says them in each later message."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, takewhile
from typing import Any

import numpy as np
from flwr.app import Context, Message

from flwr_fco.client_apps.training import forget_objectives
from flwr_fco.core.layout import Vector
from flwr_fco.errors import PublicError
from flwr_fco.wire.envelope import HANDSHAKE, NAMES
from flwr_fco.wire.keys import NUMBER

_NAME = "balance-"
#: What the last message of a run has said, by run id.
_last: dict[int, tuple[float, ...]] = {}


def numbers_of(weights: Vector) -> dict[str, float]:
    """Return the weight of each class as numbers of a question, or of a round's config."""
    return {f"{_NAME}{c}": float(weight) for c, weight in enumerate(weights)}


def balance_in(context: Context, classes: int) -> Vector | None:
    """Return the weight of each class that the server has said; None if it has said none.

    Parameters
    ----------
    context : Context
        Of the site.
    classes : int
        Number of classes.

    Raises
    ------
    ConfigurationError
        If these are no weights of so many classes.
    """
    weights = np.array(_last.get(context.run_id, ()))
    if not weights.size:
        return None
    if weights.size != classes or not (np.isfinite(weights) & (weights > 0.0)).all():
        raise PublicError(f"the server's weights of classes are {weights}; expected {classes} numbers > 0")
    return weights


def with_balance(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Read, as a mod, what a message says of the weights of classes; what was made with others is made again."""
    if message.metadata.message_type not in (HANDSHAKE, NAMES):
        configs: list[Any] = [*message.content.config_records.values()]
        said = {key.removeprefix(NUMBER): number for config in configs for key, number in config.items()}
        names = takewhile(said.__contains__, (f"{_NAME}{c}" for c in count()))
        numbers = [said[name] for name in names]
        if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers):
            raise PublicError(f"the server's weights of classes are {numbers}; expected numbers > 0")
        weights = tuple(float(number) for number in numbers)
        if weights != _last.get(context.run_id, ()):
            _last[context.run_id] = weights
            forget_objectives(context.run_id)
    return call_next(message, context)
