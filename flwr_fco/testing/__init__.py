"""Checks that users run on their own regularizers, mirror maps, objectives and strategies."""

from flwr_fco.testing.objectives import check_objective

__all__ = ["check_objective"]
