"""The command ``flwr-fco``."""

from flwr_fco.experiments.cli.commands import main

__all__ = ["main"]
