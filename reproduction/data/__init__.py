"""Data sets of the papers' figures, which nobody else would train on."""

from flwr_fco.errors import FlwrFcoError


class DataNotFoundError(FlwrFcoError, FileNotFoundError):
    """Data files are not at the given location."""
