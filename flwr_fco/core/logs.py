"""Flower's log, without Flower: the logger is found by its name; and texts of others, as they may be shown there."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

from flwr_fco.core.computing import temporarily

logger = logging.getLogger("flwr")


_levels: list[Any] = []


def quiet(level: int = logging.WARNING) -> AbstractContextManager[None]:
    """Raise Flower's logger to a level for a block."""
    return temporarily(_levels, lambda: logger.level, logger.setLevel, max(level, logger.level))


def printable(text: str) -> str:
    r"""Return a text on one line without characters that a terminal, a table or a browser would obey.

    Control characters, line ends and marks that turn the direction of writing are escaped as Python writes them.

    Parameters
    ----------
    text : str
        What somebody else has said: a client's error, the name of a metric, a line of a file.

    Examples
    --------
    >>> print(printable("a\x1b[2Kb\nINFO: all is well\u202e!"))
    a\x1b[2Kb\nINFO: all is well\u202e!
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in text
    )
