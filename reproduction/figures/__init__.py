"""The figures of four papers, a function each."""

from reproduction.figures import composite, dualfl, saddle, tracking

__all__ = ["composite", "dualfl", "saddle", "tracking"]
